//! Changes of nodes, and work that becomes due by itself: reading the map, connecting, and learning
//! what all proxies share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use smallvec::SmallVec;

use super::node::{ClusterCall, ClusterNode};
use super::task::{
    ClusterEvent, ClusterTask, LinkId, MAP_AFTER_MOVE, MAP_EVERY, MAP_IN_TROUBLE, NODE_IDLE,
    SHARED_EVERY,
};
use super::topology::{self, NodeId, SlotRange, slot_of, slot_of_tag};
use crate::clock;
use crate::limit::LimitCheck;
use crate::store::batch::Operation;
use crate::store::gather::{StoreRequest, wait_for};
use crate::store::redis::health::ReplyReport;
use crate::store::redis::link::{PROBE_TIMEOUT, RedisLink, compare_secrets, learn_key, within};
use crate::store::redis::{known_keys, maintenance, overrides};
use crate::store::{ServerTrouble, StoreError};

/// Keys charged at once for what is owed.
const OWED_KEYS: usize = 2048;
/// Tags that are tried to find one of a node. A node with 1 of 100 slots has none of them once in
/// 30,000 times.
const MAX_TAGS: u32 = 1024;

impl ClusterTask {
    /// A node is connected, and reports the cluster's state as ok.
    pub(super) fn opened(&mut self, id: NodeId, mut link: RedisLink, now: Instant) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.opening = false;
        let dropped = node.connected(link.connection().clone());
        let link_id = LinkId {
            node: id,
            epoch: node.epoch,
        };
        node.probed(&self.shared, now);
        let parked = std::mem::take(&mut node.parked);
        // Before other requests use it.
        self.pay_back(Some(id), now);
        // It may be another server, or the same one emptied.
        self.cache.clear();
        self.slots.reconnected();
        self.view.lock().away.remove(&id);
        self.work.push(Box::pin(async move {
            tokio::select! {
                () = link.ended() => {}
                _ = dropped => {}
            }
            ClusterEvent::Ended(link_id)
        }));
        for call in parked {
            self.route(id, call, now);
        }
    }

    /// Charges what was admitted here while a node was away: to the node that is `back`, or else to
    /// all nodes that are there. Debts that are not known to be charged are still owed.
    pub(super) fn pay_back(&mut self, back: Option<NodeId>, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let generation = shared.keys.generation();
        let mut debts = {
            let view = self.view.lock();
            let due = |item: &LimitCheck| match (view.map.owner(slot_of(item)), back) {
                (owner, Some(_)) => owner == back,
                (Some(owner), None) => !view.away.contains(&owner),
                (None, None) => false,
            };
            shared.journal.take(OWED_KEYS, shared.instant_at(now), due)
        };
        for charge in std::mem::take(&mut debts.owed) {
            let Some(slot) = charge.first().map(slot_of) else {
                continue;
            };
            let unpaid = charge.clone();
            let request = StoreRequest {
                charge,
                operation: Operation::Settle,
                extra: SmallVec::new(),
                generation,
                arrived: now,
                slot,
            };
            let (request, mut answer) = request.with_answer();
            self.work.push(Box::pin(async move {
                let paid = wait_for(&mut answer).await;
                ClusterEvent::Paid(paid.is_err().then_some(unpaid))
            }));
            self.enqueue(request);
        }
    }

    pub(super) fn not_opened(&mut self, id: NodeId, kind: StoreError, now: Instant) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.opening = false;
            node.health.breaker.connect_failed(now);
            self.close(id, kind, now);
        }
    }

    /// A call failed, or a connection ended.
    pub(super) fn node_failed(&mut self, link: LinkId, kind: StoreError, now: Instant) {
        // All calls of a connection fail with it; that is one failure.
        let node = self.nodes.get_mut(&link.node);
        let Some(node) = node.filter(|node| node.epoch == link.epoch) else {
            return;
        };
        node.health.breaker.call_failed(now);
        if node.health.breaker.is_open() {
            self.close(link.node, kind, now);
        } else if kind != StoreError::Timeout {
            node.disconnect();
        }
        // If it is gone for good, another node has its slots soon.
        self.read_map_soon(MAP_AFTER_MOVE);
    }

    /// The breaker has opened: this node is not asked until a probe of it passes.
    fn close(&mut self, id: NodeId, kind: StoreError, now: Instant) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.disconnect();
        node.health.begin_trouble(kind, &self.shared, now);
        let parked = std::mem::take(&mut node.parked);
        self.view.lock().away.insert(id);
        for call in parked {
            self.fail(call, StoreError::Away);
        }
        self.read_map_soon(MAP_IN_TROUBLE);
    }

    pub(super) fn replied(&mut self, link: LinkId, report: &ReplyReport, now: Instant) {
        let Some(node) = self.nodes.get_mut(&link.node) else {
            return;
        };
        let noted = (node.health).note_reply(report, &self.shared, &self.cache, now);
        if let Err(kind) = noted {
            self.node_failed(link, kind, now);
        }
    }

    /// The map was read, or could not be.
    pub(super) fn map_read(&mut self, map: Result<Vec<SlotRange>, StoreError>, now: Instant) {
        self.reading_map = false;
        let ranges = match map {
            Ok(ranges) => ranges,
            Err(kind) => {
                tracing::debug!(
                    kind = kind.label(),
                    "redis: no node of the cluster sends the \
                 slot map"
                );
                self.read_map_soon(MAP_IN_TROUBLE);
                if self.nodes.is_empty() {
                    self.ready.send_replace(true);
                    self.seeds.begin_trouble(kind, &self.shared, now);
                }
                return;
            }
        };
        self.seeds.end_trouble(&self.shared, now);
        let owners: Vec<(SlotRange, NodeId)> = ranges
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
        let serves = |id: &NodeId, node: &ClusterNode| {
            let busy = node.calls > 0 || !node.parked.is_empty() || node.used_at + NODE_IDLE > now;
            view.map.owns_any(*id) || (busy && !node.health.breaker.is_open())
        };
        let gone: Vec<NodeId> = (self.nodes.iter())
            .filter(|(id, node)| !serves(id, node))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            view.away.remove(&id);
            if let Some(mut node) = self.nodes.remove(&id) {
                node.health.end_trouble(&self.shared, now);
            }
        }
        let any_away = !view.away.is_empty();
        drop(view);
        if any_away {
            self.read_map_soon(MAP_IN_TROUBLE);
        }
    }

    pub(super) fn read_map_soon(&mut self, after: Duration) {
        self.map_at = self.map_at.min(self.map_read_at + after);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        let shared = &self.shared;
        shared.recovery.alive(shared.clock.at_us(now));
        if !self.reading_map && self.map_at <= now {
            self.start_reading_map(now);
        }
        if !self.learning && self.learn_at <= now {
            self.start_learning(now);
        }
        for (id, node) in &mut self.nodes {
            if node.wants_connection(now) {
                failpoint!("redis.connect", self.shared.prefix);
                node.opening = true;
                let opening = topology::open(Arc::clone(&self.shared), node.address.clone());
                let id = *id;
                self.work.push(Box::pin(
                    async move { ClusterEvent::Opened(id, opening.await) },
                ));
            }
        }
        if self.slots.is_due(now) {
            let generation = self.shared.keys.generation();
            for report in self.slots.due_reports(now, generation) {
                self.enqueue(report);
            }
        }
        let late: Vec<ClusterCall> = (self.nodes.values_mut())
            .flat_map(|node| node.parked.extract_if(.., |call| call.deadline <= now))
            .collect();
        for call in late {
            self.fail(call, StoreError::Timeout);
        }
    }

    fn start_reading_map(&mut self, now: Instant) {
        (self.reading_map, self.map_read_at, self.map_at) = (true, now, now + MAP_EVERY);
        // Another node each time: one may be behind the others.
        let connected = self.nodes.values().filter(|node| node.connection.is_some());
        let asked = connected.max_by_key(|node| {
            (u64::from(node.epoch) ^ clock::unix_us()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        let asked = asked.and_then(|node| node.connection.clone());
        let reading = topology::read_map(Arc::clone(&self.shared), asked);
        self.work
            .push(Box::pin(async { ClusterEvent::MapRead(reading.await) }));
    }

    pub(super) fn wake_at(&self, gives_up: Instant) -> Instant {
        let mut at = if self.reading_map {
            self.map_at + MAP_EVERY
        } else {
            self.map_at
        };
        if !self.learning {
            at = at.min(self.learn_at);
        }
        if !*self.ready.borrow() {
            at = at.min(gives_up);
        }
        at = self
            .slots
            .next_due(self.map_read_at)
            .map_or(at, |due| due.min(at));
        for node in self.nodes.values() {
            if let (Some(probe_at), false) = (node.health.breaker.probe_at(), node.opening) {
                at = at.min(probe_at);
            }
            at = node
                .parked
                .iter()
                .map(|call| call.deadline)
                .fold(at, Instant::min);
        }
        at
    }

    /// Asks the nodes that hold them for the hash key, the fleet and the overrides.
    fn start_learning(&mut self, now: Instant) {
        self.learn_at = now + SHARED_EVERY / 10;
        let Some(mut connection) = self.connection_for("hash-key") else {
            return;
        };
        self.learning = true;
        let fleet = self.connection_for("fleet");
        let records = self.connection_for("{overrides}");
        let keys = self.connection_for("keys");
        let shared = Arc::clone(&self.shared);
        self.work.push(Box::pin(async move {
            let learning = within(PROBE_TIMEOUT, async {
                if let Some(records) = records {
                    overrides::refresh(&records, &shared).await?;
                }
                if let Some(keys) = keys {
                    known_keys::learn(&keys, &shared).await?;
                }
                if let Some(mut fleet) = fleet {
                    maintenance::beat(&mut fleet, &shared).await?;
                }
                let was_there = learn_key(&mut connection, &shared).await?;
                compare_secrets(&mut connection, &shared).await?;
                Ok(was_there)
            });
            ClusterEvent::Learned(learning.await)
        }));
    }

    /// Writes to each node that has refused writes. Without requests nothing else shows that it
    /// takes them again.
    fn try_writes(&mut self) {
        let view = self.view.lock();
        for (id, node) in &self.nodes {
            let refuses = node
                .health
                .trouble()
                .is_some_and(StoreError::refuses_writes);
            let Some(connection) = node.connection.as_ref().filter(|_| refuses) else {
                continue;
            };
            let tags = (0..MAX_TAGS).map(|number| number.to_string());
            let is_own = |tag: &String| view.map.owner(slot_of_tag(tag.as_bytes())) == Some(*id);
            let Some(tag) = tags.into_iter().find(is_own) else {
                continue;
            };
            let (mut connection, shared) =
                (connection.connection.clone(), Arc::clone(&self.shared));
            let id = *id;
            self.work.push(Box::pin(async move {
                let trying = maintenance::takes_writes(&mut connection, &shared, &tag);
                let wrote = within(PROBE_TIMEOUT, trying).await;
                ClusterEvent::TriedWrite(id, wrote.unwrap_or(false))
            }));
        }
    }

    pub(super) fn tried_write(&mut self, id: NodeId, wrote: bool, now: Instant) {
        if let (true, Some(node)) = (wrote, self.nodes.get_mut(&id)) {
            node.health.end_trouble(&self.shared, now);
        }
    }

    /// The connection to the node that holds a key of all proxies.
    fn connection_for(&self, name: &str) -> Option<MultiplexedConnection> {
        let braced = name
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'));
        let whole = format!("{}{name}", self.shared.prefix);
        let slot = slot_of_tag(braced.unwrap_or(&whole).as_bytes());
        let owner = self.view.lock().map.owner(slot)?;
        let node = self.nodes.get(&owner)?.connection.as_ref()?;
        Some(node.connection.clone())
    }

    pub(super) fn learned(&mut self, learned: Result<bool, StoreError>, now: Instant) {
        self.learning = false;
        match learned {
            Ok(was_there) => {
                let shared = &self.shared;
                let is_returning = shared.recovery.is_on();
                self.learn_at = now + SHARED_EVERY / if is_returning { 5 } else { 1 };
                shared.journal.ripen(shared.instant_at(now));
                self.pay_back(None, now);
                self.try_writes();
                let losses = self.shared.recovery.losses();
                let has_lost = std::mem::replace(&mut self.losses, losses) != losses;
                if has_lost || !was_there {
                    // The node has been emptied: no cached denial holds, and it knows of no held
                    // slot.
                    self.cache.clear();
                    self.slots.reconnected();
                }
            }
            Err(StoreError::Server(ServerTrouble::Cluster)) => self.read_map_soon(MAP_AFTER_MOVE),
            Err(_) => {}
        }
        self.ready.send_replace(true);
    }
}
