//! Redis as the store: one connection per worker and server, one call in flight, and everything
//! that waits goes into it.
//! A [`Redis`] handle puts a charge into a bounded queue. The worker's task gathers all that wait
//! into one EVALSHA. No request waits longer than the store's timeout, and none waits while the
//! breaker is open. A charge is never sent twice: after a timeout it may have run.

mod access;
mod cluster;
mod health;
mod known_keys;
pub mod ledger_client;
mod link;
mod maintenance;
mod notices;
mod outage;
mod override_client;
mod overrides;
#[cfg(test)]
mod panics;
mod server_info;
mod slot_lease;
mod slot_reports;
#[cfg(test)]
pub(crate) mod stepped;
mod task;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use access::Access;
use cluster::{ClusterView, slot_of};
pub use known_keys::KeyChangeOutcome;
use known_keys::SharedKeys;
pub use outage::OUTAGE_AFTER;
use outage::Outages;
pub use override_client::{FoundHashes, OverrideClient, OverrideClientError};
use overrides::SharedOverrides;
pub use server_info::{ServerInfo, fetch_server_info, server_info};
pub use slot_lease::GuardedAnswer;
use slot_lease::SlotLease;

use super::batch::{Operation, SCRIPT};
use super::deny_cache::CallSpan;
use super::fleet::Fleet;
use super::gather::{AskedCharge, Corrections, QueuedRequest, SendConditions};
use super::hash_key::{CurrentKey, KeyRing, PROVISIONAL};
use super::journal::Journal;
use super::lease::{CacheLookup, WorkerCache};
use super::memory::Memory;
use super::recovery::{ProcessName, Recovery};
use super::store_clock::StoreInstant;
use super::{Observed, StoreError};
use crate::clock::{self, MonotonicClock};
use crate::config::{RedisSettings, StoreSettings};
use crate::limit::{Charge, Decision};
use crate::telemetry::decisions::{DecisionLog, Source};

/// Charges that may wait in one worker; more are refused as [`StoreError::Overloaded`].
const QUEUE: usize = 4096;

/// The common state of all workers' connections to one Redis. A clone shares what is known of it.
#[derive(Clone)]
pub struct RedisShared {
    /// The way to it, by the last configuration: also for requests that began under another one.
    access: Arc<ArcSwap<Access>>,
    prefix: String,
    script_hash: String,
    timeout: Duration,
    clock: MonotonicClock,
    keys: Arc<KeyRing>,
    log: Option<Arc<DecisionLog>>,
    outages: Arc<Outages>,
    /// Keys in Redis that held foreign data and were begun anew.
    begun_anew: Arc<AtomicU64>,
    workers: Arc<AtomicU32>,
    /// How many proxies share the store, and what they owe it after an outage.
    recovery: Arc<Recovery>,
    name: ProcessName,
    /// Workers, or connections to nodes, that are without the store.
    troubled: Arc<AtomicU32>,
    /// The log already says that there are more proxies than the configuration says.
    warned_of_more: Arc<AtomicBool>,
    /// The store that counts beside this one, and in place of it while it is away.
    local: Arc<OnceLock<Arc<Memory>>>,
    /// When the next heartbeat is due, microseconds.
    beat_at_us: Arc<AtomicU64>,
    journal: Arc<Journal>,
    overrides: Arc<SharedOverrides>,
    known_keys: Arc<SharedKeys>,
}

impl fmt::Debug for RedisShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `access` holds a password.
        f.debug_struct("Shared")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl RedisShared {
    /// Checks the address; connects to nothing.
    pub fn new(
        settings: &StoreSettings,
        server: &RedisSettings,
        keys: KeyRing,
        log: Option<Arc<DecisionLog>>,
    ) -> Result<RedisShared, StoreError> {
        let name = super::hash_key::random()?;
        RedisShared::with_clock(MonotonicClock::start(), name, settings, server, keys, log)
    }

    /// The same with this clock, and with this name among the proxies.
    fn with_clock(
        clock: MonotonicClock,
        name: ProcessName,
        settings: &StoreSettings,
        server: &RedisSettings,
        keys: KeyRing,
        log: Option<Arc<DecisionLog>>,
    ) -> Result<RedisShared, StoreError> {
        let fleet = Arc::new(Fleet::from(settings.fleet));
        Ok(RedisShared {
            access: Arc::new(ArcSwap::from_pointee(Access::new(server)?)),
            prefix: settings.prefix.clone(),
            script_hash: redis::Script::new(SCRIPT).get_hash().to_owned(),
            timeout: settings.timeout,
            clock,
            keys: Arc::new(keys),
            log,
            outages: Arc::new(Outages::new(&server.topology)),
            begun_anew: Arc::default(),
            workers: Arc::default(),
            recovery: Arc::new(Recovery::new(fleet, name, settings.timeout, clock.now_us())),
            name,
            troubled: Arc::default(),
            warned_of_more: Arc::default(),
            local: Arc::default(),
            beat_at_us: Arc::default(),
            journal: Arc::default(),
            overrides: Arc::new(SharedOverrides::new(clock)),
            known_keys: Arc::new(SharedKeys::new(settings.known_keys)),
        })
    }

    /// The same counts with other settings. Debts, outages, overrides and the hash key stay.
    pub(super) fn renewed(
        &self,
        settings: &StoreSettings,
        server: &RedisSettings,
    ) -> Result<RedisShared, StoreError> {
        self.access.store(Arc::new(Access::new(server)?));
        self.recovery.renew(settings.fleet, settings.timeout);
        self.warned_of_more.store(false, Ordering::Relaxed);
        Ok(RedisShared {
            timeout: settings.timeout,
            known_keys: self.known_keys.renewed(settings.known_keys),
            ..self.clone()
        })
    }

    pub fn begun_anew(&self) -> u64 {
        self.begun_anew.load(Ordering::Relaxed)
    }

    pub fn fleet(&self) -> &Arc<Fleet> {
        self.recovery.fleet()
    }

    pub fn recovery(&self) -> &Arc<Recovery> {
        &self.recovery
    }

    /// Since when some worker makes decisions without the store.
    pub fn away_since(&self) -> Option<Instant> {
        self.outages.away_since()
    }

    pub(super) fn hash_key(&self) -> CurrentKey {
        self.keys.current()
    }

    pub(super) fn set_local(&self, local: &Arc<Memory>) {
        let _ = self.local.set(Arc::clone(local));
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.access.load().is_cluster()
    }

    /// The decision on a request, if a worker knows it without asking.
    fn find_cached(
        &self,
        cache: &WorkerCache,
        charge: &Charge,
        arrived: Instant,
    ) -> Option<(Source, Decision)> {
        let (source, decision) = cache.find(charge, self.lookup(arrived))?;
        if let Some(log) = &self.log {
            log.record(source, charge, &decision);
        }
        Some((source, decision))
    }

    fn lookup(&self, arrived: Instant) -> CacheLookup {
        CacheLookup {
            now_us: self.clock.at_us(arrived),
            epoch: self.overrides.epoch(),
            exact: self.log.is_some(),
        }
    }

    /// Whether tags of this generation are those that all proxies of the store share.
    fn is_current(&self, generation: u64) -> bool {
        generation != PROVISIONAL && generation == self.keys.generation()
    }

    fn send_conditions(&self, now: Instant) -> SendConditions {
        SendConditions {
            now,
            timeout: self.timeout,
            generation: self.keys.generation(),
        }
    }

    /// Now, by this process's clock and by the store's.
    fn instant(&self) -> StoreInstant {
        self.instant_at(self.clock.now())
    }

    fn instant_at(&self, now: Instant) -> StoreInstant {
        let now_us = self.clock.at_us(now);
        let store_us = self.recovery.store_clock.at_us(now_us);
        StoreInstant {
            now_us,
            store_us: store_us.unwrap_or_else(clock::unix_us),
        }
    }

    fn note_store_clock(&self, store_us: u64) {
        let now_us = self.clock.now_us();
        self.recovery.store_clock.note(store_us, now_us);
    }

    fn span_since(&self, sent: Instant) -> CallSpan {
        CallSpan {
            sent_us: self.clock.at_us(sent),
            came_us: self.clock.now_us(),
        }
    }

    /// A seed for the pauses of one more worker. Pauses must differ between proxies too, which all
    /// count their workers from 0.
    fn next_seed(&self) -> u64 {
        let number = u64::from(self.workers.fetch_add(1, Ordering::Relaxed));
        clock::unix_us().rotate_left(20) ^ u64::from(std::process::id()) << 8 ^ number
    }
}

/// One worker's handle; clones share its connections.
#[derive(Clone, Debug)]
pub struct Redis {
    shared: Arc<RedisShared>,
    queue: mpsc::Sender<QueuedRequest>,
    servers: ServersView,
    pub(super) cache: WorkerCache,
    pub(super) slots: SlotLease,
    corrections: Corrections,
    ready: watch::Receiver<bool>,
}

#[derive(Clone, Debug)]
enum ServersView {
    /// Whether the breaker is open: of one server, or of the master that sentinels name.
    Server(Arc<AtomicBool>),
    Cluster(ClusterView),
}

struct TaskSetup {
    shared: Arc<RedisShared>,
    queue: mpsc::Receiver<QueuedRequest>,
    cache: WorkerCache,
    slots: SlotLease,
    /// Becomes true when the first attempt to connect has ended.
    ready: watch::Sender<bool>,
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
    pub fn spawn(shared: Arc<RedisShared>) -> Redis {
        let (redis, setup) = Redis::new(shared);
        match &redis.servers {
            ServersView::Cluster(view) => {
                tokio::spawn(cluster::ClusterTask::new(setup, view.clone()).run());
            }
            ServersView::Server(is_open) => {
                tokio::spawn(task::ServerTask::new(setup, Arc::clone(is_open)).run());
            }
        }
        redis
    }

    /// A handle, and what its task needs.
    fn new(shared: Arc<RedisShared>) -> (Redis, TaskSetup) {
        let (ready, is_ready) = watch::channel(false);
        let (queue, requests) = mpsc::channel(QUEUE);
        let (cache, slots) = (WorkerCache::default(), SlotLease::new(shared.clock));
        let setup = TaskSetup {
            shared: Arc::clone(&shared),
            queue: requests,
            cache: cache.clone(),
            slots: slots.clone(),
            ready,
        };
        let servers = match shared.is_cluster() {
            true => ServersView::Cluster(ClusterView::default()),
            false => ServersView::Server(Arc::default()),
        };
        let redis = Redis {
            shared,
            queue,
            servers,
            cache,
            slots,
            corrections: Corrections::default(),
            ready: is_ready,
        };
        (redis, setup)
    }

    /// See [`super::Store::charge_or_book`].
    pub async fn charge_or_book(
        &self,
        charge: &Charge,
        longest_us: u64,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        let asked = AskedCharge {
            charge,
            operation: match longest_us {
                0 => Operation::Charge(1),
                _ => Operation::Book(longest_us),
            },
            generation,
            arrived,
            is_shadow: false,
        };
        let result = self.decide(asked).await;
        if result.is_err() {
            self.shared.outages.count_unmade();
        }
        result
    }

    async fn decide(&self, asked: AskedCharge<'_>) -> Result<Decision, StoreError> {
        if !self.shared.is_current(asked.generation) {
            return Err(StoreError::Away);
        }
        let cached = self
            .shared
            .find_cached(&self.cache, asked.charge, asked.arrived);
        if let Some((source, decision)) = cached {
            self.cache.note_source(source);
            return Ok(decision);
        }
        let answer = match &self.servers {
            ServersView::Server(_) => self.send_charge(asked)?.take().await,
            // In a box: else each connection of a client had room for it, whatever the store is.
            ServersView::Cluster(view) => Box::pin(cluster::charge(self, view, asked)).await,
        };
        self.cache.note_source(Source::Store);
        answer
    }

    /// See [`super::Store::find_denial`].
    pub(super) fn find_denial(
        &self,
        charge: &Charge,
        generation: u64,
        arrived: Instant,
    ) -> Option<Decision> {
        if !self.shared.is_current(generation) {
            return None;
        }
        let lookup = self.shared.lookup(arrived);
        let decision = self.cache.find_denial_of_at_least(charge, lookup)?;
        self.cache.note_source(Source::Cache);
        if let Some(log) = &self.shared.log {
            log.record(Source::Cache, charge, &decision);
        }
        Some(decision)
    }

    pub(super) fn knows_denials(&self) -> bool {
        !self.cache.lock().denied.is_empty()
    }

    /// Puts a charge into the queue; all its keys lie in one slot of a cluster.
    fn send_charge(&self, asked: AskedCharge<'_>) -> Result<GuardedAnswer, StoreError> {
        let charge = asked.charge;
        let slot = match &self.servers {
            ServersView::Server(is_open) if is_open.load(Ordering::Relaxed) => {
                return Err(StoreError::Away);
            }
            ServersView::Server(_) => 0,
            ServersView::Cluster(_) => charge.first().map(slot_of).ok_or(StoreError::Garbled)?,
        };
        let (request, answer) = asked.queued(slot);
        self.queue.try_send(request)?;
        Ok(self.slots.guard(answer, charge))
    }

    /// Asks for a decision that nothing waits for; see [`super::Store::observe`]. The checks of
    /// `charge` are those of one limit, so they share a slot of a cluster.
    pub fn observe(&self, charge: &Charge, generation: u64) -> Observed {
        let arrived = self.shared.clock.now();
        let is_away = match &self.servers {
            ServersView::Server(_) => false,
            ServersView::Cluster(view) => view.reserve(charge, arrived).is_err(),
        };
        if is_away || !self.shared.is_current(generation) {
            return Observed::Decided(None);
        }
        if let Some((_, decision)) = self.shared.find_cached(&self.cache, charge, arrived) {
            return Observed::Decided(Some(decision));
        }
        let answer = self.send_charge(AskedCharge {
            charge,
            operation: Operation::Charge(1),
            generation,
            arrived,
            is_shadow: true,
        });
        answer.map_or(Observed::Decided(None), Observed::Pending)
    }

    pub fn hold(&self, charge: &Charge, generation: u64) {
        if generation != PROVISIONAL {
            self.slots.hold(charge);
        }
    }

    pub async fn ready(&self) {
        // An error means that the task is gone: then nothing is worth waiting for.
        let _ = self.ready.clone().wait_for(|ready| *ready).await;
    }

    pub(super) fn source(&self) -> Source {
        self.cache.source()
    }

    pub(super) fn release(&self, charge: &Charge) {
        self.slots.release(charge);
    }

    pub(super) fn forget_denials(&self) {
        self.cache.lock().denied.clear();
    }

    pub(super) async fn flush(&self) {
        let corrections = self.corrections.flush();
        let corrections = tokio::time::timeout(self.shared.timeout, corrections);
        let ((), _) = tokio::join!(self.slots.flush(), corrections);
    }

    pub fn shared(&self) -> &RedisShared {
        &self.shared
    }
}
