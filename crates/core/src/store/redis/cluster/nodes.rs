//! What becomes of nodes: connected, in trouble, found in the map, gone from it.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::super::reply::Told;
use super::Placed;
use super::map::{NodeId, Range, slot_of};
use super::node::Node;
use super::task::{Event, IDLE, LOOK_AFTER_MOVE, LOOK_IN_TROUBLE, Task};
use crate::limit::LimitCheck;
use crate::store::batch::Operation;
use crate::store::redis::link::Link;
use crate::store::waiting::{Question, ask};
use crate::store::{ServerTrouble, StoreError};

/// Keys charged at once for what was admitted meanwhile.
const OWED_KEYS: usize = 2048;

impl Task {
    /// A connection stands, and its node says that the cluster is in order.
    pub(super) fn opened(&mut self, id: NodeId, mut link: Link, now: Instant) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.opening = false;
        let (epoch, let_go) = node.connected(link.connection().clone());
        node.probed(&self.shared, now);
        let parked = std::mem::take(&mut node.parked);
        // Before anyone is let at it again.
        self.pay_back(Some(id), now);
        // It may be another server, or the same one emptied.
        self.known.clear();
        self.holder.reconnected();
        self.view.lock().away.remove(&id);
        self.work.push(Box::pin(async move {
            tokio::select! {
                () = link.end() => {}
                _ = let_go => {}
            }
            Event::Ended(id, epoch)
        }));
        for call in parked {
            self.route(id, call, now);
        }
    }

    /// Charges what was admitted here while a node was away, to the node that is back or else to
    /// all that are there. What is not known to be charged is owed still.
    pub(super) fn pay_back(&mut self, back: Option<NodeId>, now: Instant) {
        let redis = Arc::clone(&self.shared);
        let generation = redis.keys.generation();
        let mut debts = {
            let view = self.view.lock();
            let due = |item: &LimitCheck| match (view.map.owner(slot_of(item)), back) {
                (owner, Some(_)) => owner == back,
                (Some(owner), None) => !view.away.contains(&owner),
                (None, None) => false,
            };
            redis.journal.take(OWED_KEYS, redis.clock.at_us(now), due)
        };
        for charge in std::mem::take(&mut debts.owed) {
            let Some(slot) = charge.first().map(slot_of) else {
                continue;
            };
            let unpaid = charge.clone();
            let (waiting, asked) = ask(Question {
                charge,
                operation: Operation::Settle,
                extra: SmallVec::new(),
                generation,
                arrived: now,
            });
            self.work.push(Box::pin(async move {
                let paid = asked.await.is_ok();
                Event::Paid((!paid).then_some(unpaid))
            }));
            self.take(Placed { slot, waiting });
        }
    }

    pub(super) fn not_opened(&mut self, id: NodeId, kind: StoreError, now: Instant) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.opening = false;
            node.guard.connect_failed(now);
            self.shut(id, kind, now);
        }
    }

    /// A call failed, or a connection ended.
    pub(super) fn node_failed(
        &mut self,
        (id, epoch): (NodeId, u32),
        kind: StoreError,
        now: Instant,
    ) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        // All calls of a connection end with it; that is one failure.
        if node.epoch != epoch {
            return;
        }
        node.guard.call_failed(now);
        if node.guard.is_open() {
            self.shut(id, kind, now);
        } else if kind != StoreError::Timeout {
            node.disconnect();
        }
        // Where it is gone for good, another has its slots before long.
        self.look_soon(LOOK_AFTER_MOVE);
    }

    /// The breaker has opened: nobody asks this node until a probe of it passes.
    fn shut(&mut self, id: NodeId, kind: StoreError, now: Instant) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.disconnect();
        node.begin_trouble(kind, &self.shared, now);
        let parked = std::mem::take(&mut node.parked);
        self.view.lock().away.insert(id);
        for call in parked {
            self.fail(call, StoreError::Away);
        }
        self.look_soon(LOOK_IN_TROUBLE);
    }

    /// What a reply says of its node.
    pub(super) fn replied(&mut self, (id, epoch): (NodeId, u32), told: &Told, now: Instant) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if let Some(lead) = told.lead {
            node.note_clock(lead, &self.known);
        }
        if told.begun_anew > 0 {
            self.shared.count_begun_anew(told.begun_anew);
        }
        match told.trouble {
            None => node.succeeded(told.wrote, &self.shared, now),
            // Denials are still answered, so the node stays worth asking.
            Some(kind @ StoreError::Server(ServerTrouble::OutOfMemory)) => {
                node.begin_trouble(kind, &self.shared, now);
            }
            Some(kind) => self.node_failed((id, epoch), kind, now),
        }
    }

    /// The map is drawn anew, or cannot be.
    pub(super) fn looked(&mut self, found: Result<Vec<Range>, StoreError>, now: Instant) {
        self.looking = false;
        let ranges = match found {
            Ok(ranges) => ranges,
            Err(kind) => {
                tracing::debug!(kind = kind.label(), "redis: no node says who holds what");
                self.look_soon(LOOK_IN_TROUBLE);
                if self.nodes.is_empty() {
                    self.seeds_failed(kind, now);
                }
                return;
            }
        };
        if std::mem::take(&mut self.lost)
            && let Some(seed) = self.shared.access.seeds().first()
        {
            self.shared.trouble_ends(Some(seed), now);
        }
        let owners: Vec<(Range, NodeId)> = ranges
            .into_iter()
            .map(|range| {
                let id = self.node_at(&range.master, now);
                (range, id)
            })
            .collect();
        let mut view = self.view.lock();
        view.map.clear();
        for (range, id) in owners {
            (range.first..=range.last).for_each(|slot| view.map.assign(slot, id));
        }
        let serves = |id: &NodeId, node: &Node| {
            let busy = node.calls > 0 || !node.parked.is_empty() || node.used_at + IDLE > now;
            view.map.owns_any(*id) || (busy && !node.guard.is_open())
        };
        let gone: Vec<NodeId> = (self.nodes.iter())
            .filter(|(id, node)| !serves(id, node))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            view.away.remove(&id);
            if let Some(mut node) = self.nodes.remove(&id) {
                node.end_trouble(&self.shared, now);
            }
        }
        let trouble = !view.away.is_empty();
        drop(view);
        if trouble {
            self.look_soon(LOOK_IN_TROUBLE);
        }
    }

    /// No node is known, and no seed names one.
    fn seeds_failed(&mut self, kind: StoreError, now: Instant) {
        self.settle.send_replace(true);
        if !std::mem::replace(&mut self.lost, true)
            && let Some(seed) = self.shared.access.seeds().first()
        {
            self.shared.trouble_begins(Some(seed), kind, now);
        }
    }
}
