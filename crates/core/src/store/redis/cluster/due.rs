//! What becomes due by itself: drawing the map, connecting, learning what all proxies share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

use super::call::Call;
use super::map::{slot_of, slot_of_tag};
use super::task::{ASSERT_EVERY, Event, LOOK_AFTER_MOVE, LOOK_EVERY, Task};
use super::{Placed, topology};
use crate::clock;
use crate::store::redis::link::{PROBE_TIMEOUT, learn_key};
use crate::store::redis::{maintenance, overrides};
use crate::store::{ServerTrouble, StoreError};

impl Task {
    /// Draws the map anew before long.
    pub(super) fn look_soon(&mut self, after: Duration) {
        self.look_at = self.look_at.min(self.looked_at + after);
    }

    /// Whatever has become due.
    pub(super) fn tick(&mut self, now: Instant) {
        let redis = &self.shared;
        redis.recovery.alive(redis.clock.at_us(now));
        if !self.looking && self.look_at <= now {
            (self.looking, self.looked_at, self.look_at) = (true, now, now + LOOK_EVERY);
            let connected = self
                .nodes
                .values()
                .filter(|node| node.connection().is_some());
            // Another one each time: one may be behind the others.
            let asked = connected.max_by_key(|node| {
                (u64::from(node.epoch) ^ clock::unix_us()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            });
            let asked = asked.and_then(|node| Some((node.connection()?.clone(), &node.address)));
            let asked = asked.map(|(connection, address)| (connection, address.clone()));
            let look = topology::look(Arc::clone(&self.shared), asked);
            self.work
                .push(Box::pin(async { Event::Looked(look.await) }));
        }
        if !self.learning && self.learn_at <= now {
            self.learn(now);
        }
        for (id, node) in &mut self.nodes {
            if node.wants_connection(now) {
                failpoint!("redis.connect", self.shared.prefix);
                node.opening = true;
                let opening = topology::open(Arc::clone(&self.shared), node.address.clone());
                let id = *id;
                self.work
                    .push(Box::pin(async move { Event::Opened(id, opening.await) }));
            }
        }
        if self.holder.next_due(now).is_some_and(|due| due <= now) {
            let generation = self.shared.keys.generation();
            for waiting in self.holder.due(now, generation) {
                if let Some(slot) = waiting.charge.first().map(slot_of) {
                    self.take(Placed { slot, waiting });
                }
            }
        }
        let late: Vec<Call> = (self.nodes.values_mut())
            .flat_map(|node| node.parked.extract_if(.., |call| call.deadline <= now))
            .collect();
        for call in late {
            self.fail(call, StoreError::Timeout);
        }
    }

    pub(super) fn wake_at(&self, gives_up: Instant) -> Instant {
        let mut at = if self.looking {
            self.look_at + LOOK_EVERY
        } else {
            self.look_at
        };
        if !self.learning {
            at = at.min(self.learn_at);
        }
        if !*self.settle.borrow() {
            at = at.min(gives_up);
        }
        at = self
            .holder
            .next_due(self.looked_at)
            .map_or(at, |due| due.min(at));
        for node in self.nodes.values() {
            if let (Some(probe_at), false) = (node.guard.probe_at(), node.opening) {
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

    /// Asks the node that holds the hash key for it.
    fn learn(&mut self, now: Instant) {
        self.learn_at = now + ASSERT_EVERY / 10;
        let Some(mut connection) = self.line_to("hash-key") else {
            return;
        };
        self.learning = true;
        let beats = self.line_to("fleet");
        let records = self.line_to("{overrides}");
        let shared = Arc::clone(&self.shared);
        self.work.push(Box::pin(async move {
            let learning = async {
                if let Some(records) = records {
                    overrides::refresh(&records, &shared).await?;
                }
                if let Some(mut beats) = beats {
                    maintenance::beat(&mut beats, &shared).await?;
                }
                learn_key(&mut connection, &shared).await
            };
            let learned = tokio::time::timeout(PROBE_TIMEOUT, learning).await;
            Event::Learned(learned.unwrap_or(Err(StoreError::Timeout)))
        }));
    }

    /// The connection to the node that holds a key of all proxies.
    fn line_to(&self, name: &str) -> Option<MultiplexedConnection> {
        let braced = name
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'));
        let whole = format!("{}{name}", self.shared.prefix);
        let slot = slot_of_tag(braced.unwrap_or(&whole).as_bytes());
        let owner = self.view.lock().map.owner(slot)?;
        self.nodes.get(&owner)?.connection().cloned()
    }

    pub(super) fn learned(&mut self, learned: Result<bool, StoreError>, now: Instant) {
        self.learning = false;
        match learned {
            Ok(was_there) => {
                let redis = &self.shared;
                let is_returning = redis.recovery.is_on();
                self.learn_at = now + ASSERT_EVERY / if is_returning { 5 } else { 1 };
                redis.journal.ripen(redis.clock.at_us(now));
                self.pay_back(None, now);
                if !was_there {
                    // Somebody has emptied the node: nothing is denied any more.
                    self.known.clear();
                }
            }
            Err(StoreError::Server(ServerTrouble::Cluster)) => self.look_soon(LOOK_AFTER_MOVE),
            Err(_) => {}
        }
        self.settle.send_replace(true);
    }
}
