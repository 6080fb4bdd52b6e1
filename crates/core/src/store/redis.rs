//! Redis as the store: one connection per worker, one call in flight, everything that waits in it.
//!
//! A [`Redis`] handle puts a charge into a bounded queue; the worker's `task::Task` gathers all
//! that wait into one EVALSHA. Nobody waits longer than the store's timeout, and while the breaker
//! is open nobody waits at all. A charge is never sent twice: after a timeout it may have run.

mod cluster;
mod link;
mod maintenance;
mod outage;
mod outage_log;
mod override_client;
mod overrides;
#[cfg(test)]
mod panics;
mod reply;
mod sentinel;
mod server_info;
mod slot_lease;
mod slot_ledger;
mod task;
mod tls;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use cluster::ClusterQueue;
use outage::Outages;
pub use outage_log::OUTAGE_AFTER;
pub use override_client::{OverrideClient, OverrideClientError};
use overrides::SharedOverrides;
pub use server_info::{ServerInfo, fetch_server_info, server_info};
pub(super) use slot_lease::Awaited;
use slot_lease::SlotLease;

use smallvec::SmallVec;

use super::batch::Operation;
use super::fleet::Fleet;
use super::hash_key::{CurrentKey, KeyRing, PROVISIONAL};
use super::journal::Journal;
use super::known::Known;
use super::memory::Memory;
use super::overrides::OverrideSnapshot;
use super::recovery::{ProcessName, Recovery};
use super::waiting::{Asked, Question, Waiting, ask};
use super::{Observed, StoreError};
use crate::clock::{self, MonotonicClock};
use crate::config::{RedisSettings, StoreSettings};
use crate::limit::{Charge, Decision};
use crate::telemetry::decisions::{DecisionLog, Source};

/// Charges that may wait in one worker; more are refused as [`StoreError::Overloaded`].
const QUEUE: usize = 4096;

/// What all workers' connections to one Redis have in common.
pub struct Shared {
    access: Arc<link::Access>,
    prefix: String,
    script_hash: String,
    timeout: Duration,
    clock: MonotonicClock,
    keys: KeyRing,
    log: Option<Arc<DecisionLog>>,
    outages: Outages,
    /// Keys in Redis that held something not ours and were begun anew.
    begun_anew: AtomicU64,
    spawned: AtomicU32,
    /// How many proxies share the store, and what they owe it after an outage.
    recovery: Arc<Recovery>,
    /// This process among them.
    name: ProcessName,
    /// Workers, or connections to nodes, that are without the store.
    troubled: AtomicU32,
    /// It was told that there are more proxies than the configuration says.
    told_of_more: AtomicBool,
    /// What counts beside this store, and in place of it while it is away.
    local: OnceLock<Arc<Memory>>,
    /// When it should next say that it is there, microseconds.
    beat_at_us: AtomicU64,
    /// What was admitted here while the store was away.
    journal: Journal,
    overrides: SharedOverrides,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The ways in hold a password.
        f.debug_struct("Shared")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Checks the address; connects to nothing.
    pub fn new(
        settings: &StoreSettings,
        server: &RedisSettings,
        keys: KeyRing,
        log: Option<Arc<DecisionLog>>,
    ) -> Result<Shared, StoreError> {
        let (clock, name) = (MonotonicClock::start(), super::hash_key::random()?);
        let fleet = Arc::new(settings.fleet.into());
        Ok(Shared {
            access: Arc::new(link::Access::new(server)?),
            prefix: settings.prefix.clone(),
            script_hash: redis::Script::new(super::batch::SCRIPT)
                .get_hash()
                .to_owned(),
            timeout: settings.timeout,
            clock,
            keys,
            log,
            outages: Outages::default(),
            begun_anew: AtomicU64::new(0),
            spawned: AtomicU32::new(0),
            recovery: Arc::new(Recovery::new(fleet, name, clock.now_us())),
            name,
            troubled: AtomicU32::new(0),
            told_of_more: AtomicBool::new(false),
            local: OnceLock::new(),
            beat_at_us: AtomicU64::new(0),
            journal: Journal::default(),
            overrides: SharedOverrides::default(),
        })
    }

    /// Keys in Redis that held something not ours and were begun anew, since the start.
    pub fn begun_anew(&self) -> u64 {
        self.begun_anew.load(Ordering::Relaxed)
    }

    /// How many proxies share the store.
    pub fn fleet(&self) -> &Arc<Fleet> {
        self.recovery.fleet()
    }

    /// What this process knows of the store's outages.
    pub fn recovery(&self) -> &Arc<Recovery> {
        &self.recovery
    }

    /// Since when decisions are made without it, if any worker has to.
    pub fn away_since(&self) -> Option<Instant> {
        self.outages.away_since()
    }

    /// `None`, at the cost of one load, if there are no overrides.
    pub fn overrides(&self) -> Option<OverrideSnapshot> {
        self.overrides.snapshot()
    }

    /// Where counts of a key must be forgotten too when an operator resets it.
    pub fn forgets_in(&self, local: &Arc<Memory>) {
        self.overrides.forgets_in(local);
        let _ = self.local.set(Arc::clone(local));
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.access.is_cluster()
    }

    fn count_begun_anew(&self, keys: u16) {
        self.begun_anew
            .fetch_add(u64::from(keys), Ordering::Relaxed);
        tracing::warn!(
            keys,
            "redis: keys of ours held something else and were begun anew"
        );
    }

    /// The decision on a request, where a worker knows it without asking.
    fn find_known(
        &self,
        known: &Known,
        charge: &Charge,
        arrived: Instant,
    ) -> Option<(Source, Decision)> {
        let times = (self.clock.at_us(arrived), self.overrides.epoch());
        let (source, decision) = known.find(charge, times, self.log.is_some())?;
        if let Some(log) = &self.log {
            log.record(source, charge, &decision);
        }
        Some((source, decision))
    }

    /// Whether tags of this generation are those that all proxies of the store share.
    fn is_current(&self, generation: u64) -> bool {
        generation != PROVISIONAL && generation == self.keys.generation()
    }
}

/// One worker's handle; clones share its connections.
#[derive(Clone, Debug)]
pub struct Redis {
    shared: Arc<Shared>,
    queue: Queue,
    known: Known,
    slots: SlotLease,
    ready: watch::Receiver<bool>,
}

/// A handle's way to its worker's task.
#[derive(Clone, Debug)]
enum Queue {
    /// To one server: a single one, or the master that sentinels name.
    Server(ServerQueue),
    /// To the nodes of a cluster.
    Cluster(ClusterQueue),
}

#[derive(Clone, Debug)]
struct ServerQueue {
    queue: mpsc::Sender<Waiting>,
    /// The breaker: while it is open, nothing is asked.
    open: Arc<AtomicBool>,
}

impl ServerQueue {
    fn spawn(
        shared: &Arc<Shared>,
        known: &Known,
        slots: &SlotLease,
        settle: watch::Sender<bool>,
    ) -> ServerQueue {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let open = Arc::new(AtomicBool::new(false));
        let handle = (Arc::clone(&open), known.clone(), slots.clone());
        tokio::spawn(task::Task::new(Arc::clone(shared), waiting, handle, settle).run());
        ServerQueue { queue, open }
    }

    fn enqueue(&self, waiting: Waiting) -> Result<(), StoreError> {
        if self.open.load(Ordering::Relaxed) {
            return Err(StoreError::Away);
        }
        Ok(self.queue.try_send(waiting)?)
    }

    /// Sends a charge on its way; until it is back, nothing is left in its place.
    fn begin(
        &self,
        charge: &mut Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Asked, StoreError> {
        let (waiting, mut asked) = ask(Question {
            charge: std::mem::take(charge),
            operation: Operation::Charge(1),
            extra: SmallVec::new(),
            generation,
            arrived,
        });
        if let Err(kind) = self.enqueue(waiting) {
            *charge = asked.take_charge();
            return Err(kind);
        }
        Ok(asked)
    }
}

impl<T> From<mpsc::error::TrySendError<T>> for StoreError {
    fn from(refused: mpsc::error::TrySendError<T>) -> StoreError {
        match refused {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => StoreError::Away,
        }
    }
}

impl Redis {
    /// Starts the worker's task on the current runtime; it ends with the last handle.
    pub fn spawn(shared: Arc<Shared>) -> Redis {
        let (settle, ready) = watch::channel(false);
        let (known, slots) = (Known::default(), SlotLease::new());
        let queue = match shared.is_cluster() {
            true => Queue::Cluster(ClusterQueue::spawn(&shared, &known, &slots, settle)),
            false => Queue::Server(ServerQueue::spawn(&shared, &known, &slots, settle)),
        };
        Redis {
            shared,
            queue,
            known,
            slots,
            ready,
        }
    }

    /// Decides and charges one request; see [`super::Store::charge`].
    pub async fn charge(
        &self,
        charge: &mut Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        let result = self.ask(charge, generation, arrived).await;
        if result.is_err() {
            self.shared.outages.count_unmade();
        }
        result
    }

    async fn ask(
        &self,
        charge: &mut Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        if !self.shared.is_current(generation) {
            return Err(StoreError::Away);
        }
        if let Some((source, decision)) = self.shared.find_known(&self.known, charge, arrived) {
            self.known.note(source);
            return Ok(decision);
        }
        match &self.queue {
            Queue::Server(queue) => {
                let asked = queue.begin(charge, generation, arrived)?;
                self.slots.wait(asked).take(charge).await
            }
            // In a box, or each connection of a client had room for it, whatever the store is.
            Queue::Cluster(queue) => {
                Box::pin(cluster::charge(self, queue, charge, generation, arrived)).await
            }
        }
    }

    /// See [`super::Store::decided_by`].
    pub fn decided_by(&self) -> Source {
        self.known.noted()
    }

    /// Asks, and leaves the answer where it can be looked for; see [`super::Store::observe`]. The
    /// checks of a `charge` are one limit's, so they share a slot of a cluster.
    pub fn observe(&self, charge: &Charge, generation: u64) -> Observed {
        let arrived = clock::now();
        let is_there = match &self.queue {
            Queue::Server(_) => true,
            Queue::Cluster(queue) => queue.is_there(charge, arrived),
        };
        if !is_there || !self.shared.is_current(generation) {
            return Observed::nothing();
        }
        if let Some((_, decision)) = self.shared.find_known(&self.known, charge, arrived) {
            return Observed::decided(decision);
        }
        let mut charge = charge.clone();
        let asked = match &self.queue {
            Queue::Server(queue) => queue.begin(&mut charge, generation, arrived),
            Queue::Cluster(queue) => queue.begin(&mut charge, generation, arrived),
        };
        asked.map_or_else(
            |_| Observed::nothing(),
            |asked| Observed::awaited(self.slots.wait(asked)),
        )
    }

    /// See [`super::Store::give_back`].
    pub fn give_back(&self, charge: &Charge, decision: &Decision, generation: u64) {
        let stamps = decision.verdicts.iter().map(|verdict| verdict.stamp);
        self.tell(Operation::GiveBack, charge, stamps.collect(), generation);
    }

    /// See [`super::Store::settle`].
    pub fn settle(&self, charge: &Charge, generation: u64) {
        self.tell(Operation::Settle, charge, SmallVec::new(), generation);
    }

    /// Tells the store something, once, and waits for nothing.
    fn tell(
        &self,
        operation: Operation,
        charge: &Charge,
        extra: SmallVec<[u64; 2]>,
        generation: u64,
    ) {
        if !self.shared.is_current(generation) {
            return;
        }
        let told = Question {
            charge: charge.clone(),
            operation,
            extra,
            generation,
            arrived: clock::now(),
        };
        match &self.queue {
            Queue::Cluster(queue) => queue.tell(&self.known, &told),
            Queue::Server(queue) => {
                if operation == Operation::GiveBack {
                    let mut known = self.known.lock();
                    charge
                        .iter()
                        .for_each(|item| known.denied.forget(item.id()));
                }
                // Where the store is away, the units expire by themselves.
                let _ = queue.enqueue(Waiting::told(told));
            }
        }
    }

    /// Remembers what was admitted without the store; see [`super::Store::owe`].
    pub fn owe(&self, charge: &Charge, generation: u64) {
        self.shared.owe(charge, generation);
    }

    /// See [`super::Store::release`].
    pub fn release(&self, charge: &Charge) {
        self.slots.let_go(charge);
    }

    /// See [`super::Store::hold`].
    pub fn hold(&self, charge: &Charge, generation: u64) {
        if generation != PROVISIONAL {
            self.slots.hold(charge);
        }
    }

    /// See [`super::Store::limits_changed`].
    pub fn limits_changed(&self) {
        self.known.forget_denials();
    }

    /// See [`super::Store::told`].
    pub async fn told(&self) {
        self.slots.part().await;
    }

    /// The secret that identities are hashed with.
    pub fn hash_key(&self) -> CurrentKey {
        self.shared.keys.current()
    }

    /// Waits until the first attempt to connect has ended.
    pub async fn ready(&self) {
        // An error means that the task is gone: ready as well.
        let _ = self.ready.clone().wait_for(|ready| *ready).await;
    }

    /// What the workers have in common.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }
}
