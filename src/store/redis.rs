//! Redis as the store: one connection per worker, one call in flight, everything that waits in it.
//!
//! A [`Redis`] handle puts a charge into a bounded queue; the worker's `task::Task` gathers all
//! that wait into one EVALSHA. Nobody waits longer than the store's timeout, and while the breaker
//! is open nobody waits at all. A charge is never sent twice: after a timeout it may have run.

pub mod cluster;
mod line;
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

pub use outage_log::OUTAGE_AFTER;
use outage_log::OutageReporter;
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
use super::waiting::{Question, Waiting, ask};
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
    outage: Arc<OutageReporter>,
    /// Decisions that were asked for and not made since the log last told of them.
    unmade: Arc<AtomicU64>,
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
        let unmade = Arc::<AtomicU64>::default();
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
            outage: Arc::new(OutageReporter::new(None, Arc::clone(&unmade))),
            unmade,
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
        self.outage.away_since()
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

/// One worker's handle; clones share its connection.
#[derive(Clone, Debug)]
pub struct Redis {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Waiting>,
    open: Arc<AtomicBool>,
    known: Known,
    ready: watch::Receiver<bool>,
    holder: SlotLease,
}

impl Redis {
    /// Starts the connection's task on the current runtime; it ends with the last handle.
    pub fn spawn(shared: Arc<Shared>) -> Redis {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (settle, ready) = watch::channel(false);
        let open = Arc::new(AtomicBool::new(false));
        let known = Known::default();
        let holder = SlotLease::new();
        let handle = (Arc::clone(&open), known.clone(), holder.clone());
        let task = task::Task::new(Arc::clone(&shared), waiting, handle, settle);
        tokio::spawn(task.run());
        Redis {
            shared,
            queue,
            open,
            known,
            ready,
            holder,
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
            self.shared.unmade.fetch_add(1, Ordering::Relaxed);
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
        match self.shared.find_known(&self.known, charge, arrived) {
            Some((source, decision)) => {
                self.known.note(source);
                Ok(decision)
            }
            None => {
                let awaited = self.begin(charge, generation, arrived)?;
                awaited.take(charge).await
            }
        }
    }

    /// Sends a charge on its way; until it is back, nothing is left in its place.
    fn begin(
        &self,
        charge: &mut Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Awaited, StoreError> {
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
        Ok(self.holder.wait(asked))
    }

    fn enqueue(&self, waiting: Waiting) -> Result<(), StoreError> {
        if self.open.load(Ordering::Relaxed) {
            return Err(StoreError::Away);
        }
        self.queue
            .try_send(waiting)
            .map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => StoreError::Away,
            })
    }

    /// See [`super::Store::decided_by`].
    pub fn decided_by(&self) -> Source {
        self.known.noted()
    }

    /// Asks, and leaves the answer where it can be looked for; see [`super::Store::observe`].
    pub fn observe(&self, charge: &Charge, generation: u64) -> Observed {
        if !self.shared.is_current(generation) {
            return Observed::nothing();
        }
        let arrived = clock::now();
        if let Some((_, decision)) = self.shared.find_known(&self.known, charge, arrived) {
            return Observed::decided(decision);
        }
        self.begin(&mut charge.clone(), generation, arrived)
            .map_or_else(|_| Observed::nothing(), Observed::awaited)
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
        if operation == Operation::GiveBack {
            let mut known = self.known.lock();
            charge
                .iter()
                .for_each(|item| known.denied.forget(item.id()));
        }
        // Where the store is away, the units expire by themselves.
        let _ = self.enqueue(Waiting::told(Question {
            charge: charge.clone(),
            operation,
            extra,
            generation,
            arrived: clock::now(),
        }));
    }

    /// Remembers what was admitted without the store; see [`super::Store::owe`].
    pub fn owe(&self, charge: &Charge, generation: u64) {
        self.shared.owe(charge, generation);
    }

    /// See [`super::Store::release`].
    pub fn release(&self, charge: &Charge) {
        self.holder.let_go(charge);
    }

    /// See [`super::Store::hold`].
    pub fn hold(&self, charge: &Charge, generation: u64) {
        if generation != PROVISIONAL {
            self.holder.hold(charge);
        }
    }

    /// See [`super::Store::limits_changed`].
    pub fn limits_changed(&self) {
        self.known.forget_denials();
    }

    /// See [`super::Store::told`].
    pub async fn told(&self) {
        self.holder.part().await;
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
