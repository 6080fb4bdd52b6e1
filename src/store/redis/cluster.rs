//! A Redis Cluster as the store: one task per worker, one connection to each master, one call in
//! flight for each slot.
//!
//! The keys of one script must lie in one slot. A request whose limits all do is one call, all or
//! nothing; one whose limits do not goes by `store::reserve`. The protocol runs in the request's
//! own future, here; which node is asked, and what it means that one is away, is the task's.
//!
//! The redis crate's cluster client is not used: it follows a redirection only where it may also
//! repeat a command whose connection broke, and such a charge may have been made.

mod call;
mod due;
mod map;
mod node;
mod nodes;
mod task;
mod topology;
mod view;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use smallvec::SmallVec;
use tokio::sync::{mpsc, watch};

use super::QUEUE;
use super::outage_log::OutageReporter;
use super::slot_lease::{Awaited, SlotLease};
use crate::clock;
use crate::config::RedisAddress;
use crate::limit::{Algorithm, Charge, Decision};
use crate::store::batch::Operation;
use crate::store::deny_cache::{GIVES_BACK_US, LONGEST_US, Span};
use crate::store::hash_key::{CurrentKey, PROVISIONAL};
use crate::store::known::Known;
use crate::store::reserve::{Reserve, Step, Steps};
use crate::store::waiting::{Answer, Question, Waiting, ask};
use crate::store::{Observed, ServerTrouble, StoreError};
use crate::telemetry::decisions::Source;

pub(super) use map::{slot_of, slot_of_tag};
pub(super) use topology::reach;
use view::View;

/// What all workers' connections to one cluster have in common.
pub struct Shared {
    redis: Arc<super::Shared>,
    seeds: Vec<RedisAddress>,
    /// Nodes that some worker has trouble with, or had lately.
    outages: Mutex<HashMap<RedisAddress, Arc<OutageReporter>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl Shared {
    /// Connects to nothing.
    pub fn new(redis: Arc<super::Shared>, seeds: &[RedisAddress]) -> Shared {
        Shared {
            redis,
            seeds: seeds.to_vec(),
            outages: Mutex::default(),
        }
    }

    /// What is the same wherever keys lie.
    pub fn redis(&self) -> &Arc<super::Shared> {
        &self.redis
    }

    /// Since when some node is away for some worker.
    pub fn away_since(&self) -> Option<Instant> {
        let outages = self.outages();
        outages.values().filter_map(|one| one.away_since()).min()
    }

    fn trouble_begins(&self, node: &RedisAddress, kind: StoreError, now: Instant) {
        self.redis.goes_away();
        let mut outages = self.outages();
        outages.retain(|_, one| !one.is_over(now));
        let reporter = outages.entry(node.clone()).or_insert_with(|| {
            let unmade = Arc::clone(&self.redis.unmade);
            Arc::new(OutageReporter::new(Some(node.to_string()), unmade))
        });
        reporter.begin(kind, now);
    }

    fn trouble_ends(&self, node: &RedisAddress, now: Instant) {
        self.redis.comes_back();
        if let Some(reporter) = self.outages().get(node) {
            reporter.end(now);
        }
    }

    fn outages(&self) -> MutexGuard<'_, HashMap<RedisAddress, Arc<OutageReporter>>> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something to ask of a slot.
#[derive(Debug)]
struct Placed {
    slot: u16,
    waiting: Waiting,
}

/// One worker's handle; clones share its connections.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Placed>,
    view: View,
    known: Known,
    holder: SlotLease,
    ready: watch::Receiver<bool>,
}

impl Cluster {
    /// Starts the worker's task on the current runtime; it ends with the last handle.
    pub fn spawn(shared: Arc<Shared>) -> Cluster {
        let (queue, asked) = mpsc::channel(QUEUE);
        let (settle, ready) = watch::channel(false);
        let (view, known, holder) = (View::default(), Known::default(), SlotLease::new());
        let handle = (view.clone(), known.clone(), holder.clone());
        tokio::spawn(task::Task::new(Arc::clone(&shared), asked, handle, settle).run());
        Cluster {
            shared,
            queue,
            view,
            known,
            holder,
            ready,
        }
    }

    /// Decides and charges one request; see [`crate::store::Store::charge`].
    pub async fn charge(
        &self,
        charge: &Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        let result = self.ask(charge, generation, arrived).await;
        if result.is_err() {
            self.shared.redis.unmade.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    async fn ask(
        &self,
        charge: &Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        if !self.shared.redis.is_current(generation) {
            return Err(StoreError::Away);
        }
        if let Some((source, decision)) = self.shared.redis.find_known(&self.known, charge, arrived)
        {
            self.known.note(source);
            return Ok(decision);
        }
        let asking = Asking {
            cluster: self,
            charge,
            reserve: self.view.reserve(charge, arrived)?,
            generation,
        };
        let decision = asking.run(arrived).await?;
        if let Some(log) = &self.shared.redis.log {
            log.record(Source::Store, charge, &decision);
        }
        Ok(decision)
    }

    /// Asks one slot for items that all lie in it.
    async fn ask_slot(
        &self,
        slot: u16,
        mut charge: Charge,
        (generation, arrived): (u64, Instant),
    ) -> Answer {
        let redis = &self.shared.redis;
        let epoch = redis.overrides.epoch();
        let awaited = self.begin(slot, &mut charge, (generation, arrived))?;
        let decision = awaited.take(&mut charge).await?;
        // What an operator changed meanwhile may not be in it.
        if !decision.allowed && epoch == redis.overrides.epoch() {
            // Units that another slot's refusal gives back make a denial end early.
            let capped = self.view.gives_back(&charge);
            let longest_us = if capped { GIVES_BACK_US } else { LONGEST_US };
            let span = Span {
                sent_us: redis.clock.at_us(arrived),
                came_us: redis.clock.now_us(),
            };
            let mut known = self.known.lock();
            known
                .denied
                .note_within(longest_us, &charge, &decision, span);
        }
        Ok(decision)
    }

    /// Sends a charge on its way to its slot; until it is back, nothing is left in its place.
    fn begin(
        &self,
        slot: u16,
        charge: &mut Charge,
        (generation, arrived): (u64, Instant),
    ) -> Result<Awaited, StoreError> {
        let (waiting, asked) = ask(Question {
            charge: std::mem::take(charge),
            operation: Operation::Charge(1),
            extra: SmallVec::new(),
            generation,
            arrived,
        });
        self.enqueue(slot, waiting)?;
        Ok(self.holder.wait(asked))
    }

    fn enqueue(&self, slot: u16, waiting: Waiting) -> Result<(), StoreError> {
        let placed = Placed { slot, waiting };
        self.queue
            .try_send(placed)
            .map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => StoreError::Away,
            })
    }

    /// See [`crate::store::Store::give_back`].
    pub fn give_back(&self, charge: &Charge, decision: &Decision, generation: u64) {
        let stamps = decision.verdicts.iter().map(|verdict| verdict.stamp);
        let stamps: SmallVec<[u64; 2]> = stamps.collect();
        self.tell(Operation::GiveBack, charge, &stamps, generation);
    }

    /// See [`crate::store::Store::settle`].
    pub fn settle(&self, charge: &Charge, generation: u64) {
        self.tell(Operation::Settle, charge, &[], generation);
    }

    /// Tells the store something, item by item, once, and waits for nothing.
    fn tell(&self, operation: Operation, charge: &Charge, extra: &[u64], generation: u64) {
        if !self.shared.redis.is_current(generation) {
            return;
        }
        for (index, item) in charge.iter().enumerate() {
            if item.window.rule.algorithm == Algorithm::Slots {
                continue;
            }
            if operation == Operation::GiveBack {
                self.known.lock().denied.forget(item.id());
            }
            let waiting = Waiting::told(Question {
                charge: [item.clone()].into_iter().collect(),
                operation,
                extra: extra.get(index).copied().into_iter().collect(),
                generation,
                arrived: clock::now(),
            });
            // Where the node is away, the units expire by themselves.
            let _ = self.enqueue(map::slot_of(item), waiting);
        }
    }

    /// Remembers what was admitted without the store; see [`crate::store::Store::owe`].
    pub fn owe(&self, charge: &Charge, generation: u64) {
        self.shared.redis.owe(charge, generation);
    }

    /// Asks, and leaves the answer where it can be looked for; see
    /// [`crate::store::Store::observe`]. A rider is one limit's, so its items share a slot.
    pub fn observe(&self, charge: &Charge, generation: u64) -> Observed {
        let arrived = clock::now();
        let Some(slot) = charge.first().map(map::slot_of) else {
            return Observed::nothing();
        };
        if !self.shared.redis.is_current(generation) || self.view.reserve(charge, arrived).is_err()
        {
            return Observed::nothing();
        }
        if let Some((_, decision)) = self.shared.redis.find_known(&self.known, charge, arrived) {
            return Observed::decided(decision);
        }
        self.begin(slot, &mut charge.clone(), (generation, arrived))
            .map_or_else(|_| Observed::nothing(), Observed::awaited)
    }

    /// See [`crate::store::Store::decided_by`].
    pub fn decided_by(&self) -> Source {
        self.known.noted()
    }

    /// See [`crate::store::Store::release`].
    pub fn release(&self, charge: &Charge) {
        self.holder.let_go(charge);
    }

    /// See [`crate::store::Store::hold`].
    pub fn hold(&self, charge: &Charge, generation: u64) {
        if generation != PROVISIONAL {
            self.holder.hold(charge);
        }
    }

    /// See [`crate::store::Store::limits_changed`].
    pub fn limits_changed(&self) {
        self.known.forget_denials();
    }

    /// See [`crate::store::Store::told`].
    pub async fn told(&self) {
        self.holder.part().await;
    }

    /// The secret that identities are hashed with.
    pub fn hash_key(&self) -> CurrentKey {
        self.shared.redis.keys.current()
    }

    /// Waits until the first attempt to reach the cluster has ended.
    pub async fn ready(&self) {
        // An error means that the task is gone: ready as well.
        let _ = self.ready.clone().wait_for(|ready| *ready).await;
    }

    /// What the workers have in common.
    pub fn shared(&self) -> &Arc<super::Shared> {
        &self.shared.redis
    }
}

/// A request on its way through its slots. Dropped before it is decided (its client has gone), it
/// gives back what slots have charged.
struct Asking<'c> {
    cluster: &'c Cluster,
    charge: &'c Charge,
    reserve: Reserve,
    generation: u64,
}

impl Asking<'_> {
    /// Takes the steps of the request until it is decided.
    async fn run(mut self, arrived: Instant) -> Answer {
        let (cluster, charge) = (self.cluster, self.charge);
        let mut replies = FuturesUnordered::new();
        let mut steps: Steps = self.reserve.begin();
        loop {
            for step in steps.drain(..) {
                match step {
                    Step::Ask(part) => {
                        let slot = self.reserve.parts()[part].place;
                        let asked = self.reserve.charge_of(part, charge);
                        let asking = cluster.ask_slot(slot, asked, (self.generation, arrived));
                        replies.push(async move { (part, asking.await) });
                    }
                    Step::GiveBack(part, stamps) => self.give_back(part, &stamps),
                    Step::Answer(answer) => {
                        if let (Ok(decision), true) = (&answer, self.reserve.parts().len() > 1) {
                            cluster.view.learn(charge, !decision.allowed);
                        }
                        return answer;
                    }
                }
            }
            steps = match replies.next().await {
                Some((part, Err(StoreError::Server(ServerTrouble::TryAgain)))) => {
                    cluster.view.crosses(charge);
                    self.reserve.split(part)
                }
                Some((part, reply)) => self.reserve.replied(part, reply, charge),
                // Every part that was asked answers; there is nothing to wait for without one.
                None => return Err(StoreError::Lost),
            };
        }
    }

    fn give_back(&self, part: usize, stamps: &[u64]) {
        let charged = self.reserve.charge_of(part, self.charge);
        self.cluster.holder.let_go(&charged);
        let generation = self.generation;
        (self.cluster).tell(Operation::GiveBack, &charged, stamps, generation);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.reserve.is_over() {
            return;
        }
        for step in self.reserve.give_up(self.charge) {
            if let Step::GiveBack(part, stamps) = step {
                self.give_back(part, &stamps);
            }
        }
    }
}
