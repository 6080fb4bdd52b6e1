//! The limiter of one worker: the store, the local counts that stand in for it, and the slots that
//! requests hold. It takes charges and knows nothing of HTTP.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::clock;
use crate::config::{Config, StoreKind, StoreSettings};
use crate::ledger::{LedgerInbox, WorkerLedger};
use crate::limit::{Algorithm, Charge, CheckResult, Decided, Decision, Limit, LimitCheck, OnError};
use crate::store::counts_file::CountsFile;
use crate::store::memory::Memory;
use crate::store::{Backing, CurrentKey, Store, StoreError};
use crate::telemetry::decisions::{DecisionLog, Source};
use crate::telemetry::metrics::{LimitVerdict, Meter};
use crate::telemetry::watched::{DeniedRequest, ObservedDenial, TrailEntry};

/// The counts of the process, which all workers share: the store, and the local counts that stand
/// in for it during an outage.
#[derive(Debug)]
pub struct StoreHandle {
    settings: StoreSettings,
    pub backing: Backing,
    local: Arc<Memory>,
    log: Option<Arc<DecisionLog>>,
    /// Keeps the calendar windows of the embedded store over restarts.
    counts_file: Option<CountsFile>,
    /// What the workers have added up for the ledger.
    pub usage: Arc<LedgerInbox>,
}

impl StoreHandle {
    /// Opens the decision log and the file of counts if `config` wants them. It does not connect to
    /// a server.
    pub fn new(config: &Config) -> io::Result<StoreHandle> {
        StoreHandle::replacing(config, None)
    }

    /// The same for a process that replaces `predecessor`, and shares its file of counts.
    pub fn replacing(config: &Config, predecessor: Option<u32>) -> io::Result<StoreHandle> {
        let log = config.log.decisions.as_deref().map(DecisionLog::open);
        let log = log.transpose()?.map(Arc::new);
        let counts_file = CountsFile::open(&config.store, log.clone(), predecessor)?;
        StoreHandle::with_file(&config.store, log, counts_file)
    }

    /// Opens a store whose counts no file keeps.
    pub fn open_store(
        store: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
    ) -> io::Result<StoreHandle> {
        StoreHandle::with_file(store, log, None)
    }

    fn with_file(
        store: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
        counts_file: Option<CountsFile>,
    ) -> io::Result<StoreHandle> {
        let backing = match &counts_file {
            Some(file) => file.backing(),
            None => Backing::new(store, log.clone()).map_err(io::Error::other)?,
        };
        let local = backing.local(store, log.clone());
        let local = Arc::new(local.map_err(io::Error::other)?);
        backing.forgets_in(&local);
        Ok(StoreHandle {
            settings: store.clone(),
            backing,
            local,
            log,
            counts_file,
            usage: Arc::default(),
        })
    }

    /// The handle after a reload. It keeps its counts if the new settings allow that. The decision
    /// log goes on, in a new file if its file was moved away.
    pub fn renewed(self: &Arc<Self>, store: &StoreSettings) -> io::Result<Arc<StoreHandle>> {
        if let Some(log) = &self.log {
            log.reopen()?;
        }
        let bounded = StoreSettings {
            max_keys: store.max_keys,
            max_memory: store.max_memory,
            // The configuration has copied this default into each limit.
            on_error: store.on_error,
            ..self.settings.clone()
        };
        let kinds = [&self.settings, store].map(|settings| &settings.kind);
        let is_same_memory = kinds == [&StoreKind::Memory; 2]
            && (&self.settings.hash_key, &self.settings.file) == (&store.hash_key, &store.file);
        if bounded == *store || is_same_memory {
            self.local.rebound(store);
            if let Backing::Memory(memory) = &self.backing {
                memory.rebound(store);
            }
            return Ok(Arc::clone(self));
        }
        let backing = self.backing.renewed(&self.settings, store);
        if let Some(backing) = backing.map_err(io::Error::other)? {
            self.local.rebound(store);
            return Ok(Arc::new(StoreHandle {
                settings: store.clone(),
                backing,
                local: Arc::clone(&self.local),
                log: self.log.clone(),
                counts_file: None,
                usage: Arc::clone(&self.usage),
            }));
        }
        // The file of counts belongs to the store of the start.
        let mut other = StoreHandle::open_store(store, self.log.clone())?;
        other.usage = Arc::clone(&self.usage);
        Ok(Arc::new(other))
    }

    /// Lets another process use the file of counts, since this one drains.
    pub fn drain(&self) {
        if let Some(file) = &self.counts_file {
            file.drain();
        }
    }

    /// Writes the last counts to their file. Later ones are not kept.
    pub fn finish(&self) {
        if let Some(file) = &self.counts_file {
            file.finish();
        }
    }

    pub fn counts_file(&self) -> Option<&CountsFile> {
        self.counts_file.as_ref()
    }

    /// Lines that the decision log dropped; `None` without a log.
    pub fn log_dropped(&self) -> Option<u64> {
        self.log.as_ref().map(|log| log.dropped())
    }

    /// The counts in this process: the embedded store, or the local counts beside Redis.
    pub fn in_process(&self) -> &Memory {
        match &self.backing {
            Backing::Memory(memory) => memory,
            Backing::Redis(_) => &self.local,
        }
    }

    /// Opens the store for one worker, which calls this on its own runtime.
    pub fn open(&self) -> WorkerStore {
        WorkerStore {
            store: self.backing.open(),
            local: Arc::clone(&self.local),
            bans_keys: true,
            usage: Arc::clone(&self.usage),
        }
    }
}

/// One worker's handles of the counts.
#[derive(Clone, Debug)]
pub struct WorkerStore {
    pub store: Store,
    /// Decides while the store is away.
    local: Arc<Memory>,
    /// Whether denials may begin bans.
    pub bans_keys: bool,
    usage: Arc<LedgerInbox>,
}

#[cfg(test)]
impl WorkerStore {
    /// A store that was opened otherwise, and the counts that stand in for it.
    pub(crate) fn new(store: Store, local: &Arc<Memory>) -> WorkerStore {
        WorkerStore {
            store,
            local: Arc::clone(local),
            bans_keys: true,
            usage: Arc::default(),
        }
    }
}

/// One worker's limiter.
#[derive(Debug)]
pub struct Limiter {
    pub(super) store: Store,
    /// Decides while the store is away.
    pub(super) local: Arc<Memory>,
    bans_keys: bool,
    pub meter: Arc<Meter>,
    /// `None` if usage is not added up.
    pub(super) ledger: Option<WorkerLedger>,
}

impl Limiter {
    /// Makes the limiter of the worker that opened `store`. Its meter keeps the counts of `old`.
    pub fn new(config: &Config, store: WorkerStore, old: Option<&Meter>) -> Arc<Limiter> {
        let WorkerStore {
            store,
            local,
            bans_keys,
            usage,
        } = store;
        let routes = config.routes.iter().chain(config.unrouted.as_deref());
        let routes = routes.map(|route| &*route.name);
        let limits = config.limits.iter().map(|limit| &*limit.name);
        let meter = Meter::new(routes, limits, old);
        let meter = Arc::new(match config.admin {
            Some(_) => meter.watched(),
            None => meter,
        });
        Arc::new(Limiter {
            store,
            local,
            bans_keys,
            meter,
            ledger: (config.ledger.as_ref()).map(|settings| usage.worker(settings)),
        })
    }

    /// The secret that hashes keys now.
    pub fn hash_key(&self) -> CurrentKey {
        self.store.hash_key()
    }

    /// Waits for the end of the first attempt to reach the store.
    pub async fn ready(&self) {
        self.store.ready().await;
    }

    /// Waits until the store has all corrections, and knows the slots that are held here.
    pub async fn flush(&self) {
        self.store.flush().await;
    }

    /// Drops a part of the expired counts of this process.
    pub fn tidy(&self) {
        self.local.tidy();
        if let Store::Memory(memory) = &self.store {
            memory.tidy();
        }
    }

    /// Whether other processes count in the store too, so that this one also counts locally.
    pub(super) fn is_shared(&self) -> bool {
        !matches!(self.store, Store::Memory(_))
    }

    /// Holds the slots of a charge that the store has granted. The local counts hold them too: they
    /// must know them if they decide later.
    pub(super) fn hold(self: &Arc<Self>, charge: &Charge) -> Option<Box<HeldSlots>> {
        let charge = slots_of(charge)?;
        if self.is_shared() {
            self.local.hold(&charge);
        }
        Some(HeldSlots::new(self, charge))
    }

    /// Holds slots that were granted without the store, and tells the store when it is back. The
    /// local counts already hold those that they granted.
    pub(super) fn hold_locally(
        self: &Arc<Self>,
        charge: Charge,
        generation: u64,
    ) -> Box<HeldSlots> {
        let mut uncounted = charge.clone();
        uncounted.retain(|check| check.limit.on_error != OnError::Local);
        self.local.hold(&uncounted);
        self.store.hold(&charge, generation);
        HeldSlots::new(self, charge)
    }

    /// Decides with the counts of this process. It times one of many decisions, because the clock
    /// would be a good part of their cost.
    pub(super) fn decide_here(&self, charge: &Charge, longest_us: u64) -> Option<Decision> {
        let since = self.meter.is_next_timed().then(clock::now);
        let decision = self.store.charge_here(charge, longest_us);
        if let Some(since) = since.filter(|_| decision.is_some()) {
            self.observe_duration(since);
        }
        decision
    }

    pub(super) fn observe_duration(&self, since: Instant) {
        let took = clock::now().saturating_duration_since(since);
        self.meter.observe_decision(Source::Store as usize, took);
    }

    /// Counts limits that do not apply to a request. It asks no store, also not in an outage.
    pub(super) fn count_bypassed(&self, limits: &[Arc<Limit>]) {
        for limit in limits {
            self.count(limit.number, LimitVerdict::Bypassed, Source::Store);
        }
    }

    /// Counts a decision: each limit once, whatever its number of rates. Of a denial it counts only
    /// the limits that deny, because the others were not charged.
    pub(super) fn count_decision(&self, decided: Decided<'_>, source: Source) {
        let allowed = decided.decision.allowed;
        let mut last = usize::MAX;
        for result in decided.results() {
            let number = result.check.limit.number;
            let verdict = match allowed {
                true => LimitVerdict::Allowed,
                false if result.verdict.retry.denies() => LimitVerdict::Denied,
                false => continue,
            };
            if number != last {
                self.count(number, verdict, source);
            }
            self.push_trail(result, allowed, number == last);
            last = number;
        }
    }

    /// Counts the denials of a decision for the bans of its limits.
    pub(super) fn count_denials(&self, decided: Decided<'_>, generation: u64) {
        let mut last = usize::MAX;
        for CheckResult { check, .. } in decided.denying() {
            let is_repeated = check.limit.number == last;
            if self.bans_keys && !is_repeated {
                self.store.count_denial(check, generation);
            }
            last = check.limit.number;
        }
    }

    /// Counts the outcome of limits that `on_error` decides, unless the local counts decide.
    #[cold]
    pub(super) fn count_store_failure(&self, charge: &Charge, error: &StoreError) {
        self.meter.store_failed(error.label());
        let denies = |check: &LimitCheck| check.limit.on_error == OnError::Deny;
        let is_denied = charge.iter().any(denies);
        let mut last = usize::MAX;
        for check in charge {
            let number = check.limit.number;
            let verdict = match check.limit.on_error {
                OnError::Deny => LimitVerdict::Denied,
                OnError::Allow if !is_denied => LimitVerdict::Allowed,
                OnError::Allow | OnError::Local => continue,
            };
            if number != last {
                self.count(number, verdict, Source::Local);
            }
            last = number;
        }
    }

    fn count(&self, limit: usize, verdict: LimitVerdict, source: Source) {
        self.meter.count_decision(limit, verdict, source as usize);
    }

    /// Keeps a denial for operators who watch. It calls `request` only if there is space.
    pub(super) fn note_denial<'r>(
        &self,
        decided: Decided<'_>,
        request: impl FnOnce() -> DeniedRequest<'r>,
    ) {
        if let Some(denials) = self.meter.denials() {
            denials.note(|| {
                let denying = decided.denying().next()?;
                ObservedDenial::now(request(), &denying.check.limit.name, decided, false)
            });
        }
    }

    /// Shows the result of a check to operators who watch. `is_repeated` marks a further rate of
    /// the limit before it.
    pub(super) fn push_trail(&self, result: CheckResult<'_>, allowed: bool, is_repeated: bool) {
        let Some(trail) = self.meter.decision_trail() else {
            return;
        };
        let (check, units) = (result.check, result.check.window.rule.units);
        // Operators see the share that is left: both numbers lose the same low bits.
        let surplus = (u64::BITS - units.leading_zeros()).saturating_sub(u32::BITS);
        trail.push(&TrailEntry {
            tag: check.tag.0,
            limit: check.limit.number as u32,
            denied: !allowed,
            again: is_repeated,
            remaining: (result.verdict.remaining >> surplus) as u32,
            units: (units >> surplus) as u32,
        });
    }
}

/// The slots of one request, which a drop releases. The admission holds them first, then the body
/// of the response or the tunnel. If the process dies, the store frees them when its lease ends.
pub struct HeldSlots {
    limiter: Arc<Limiter>,
    charge: Charge,
}

impl HeldSlots {
    pub(super) fn new(limiter: &Arc<Limiter>, charge: Charge) -> Box<HeldSlots> {
        Box::new(HeldSlots {
            limiter: Arc::clone(limiter),
            charge,
        })
    }
}

impl fmt::Debug for HeldSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldSlots").field(&self.charge).finish()
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        self.limiter.store.release(&self.charge);
        if self.limiter.is_shared() {
            self.limiter.local.release(&self.charge);
        }
    }
}

/// The checks of `charge` that hold slots; `None` if there are none.
pub(super) fn slots_of(charge: &Charge) -> Option<Charge> {
    let holds =
        |check: &&LimitCheck| check.window.rule.algorithm == Algorithm::Slots && check.cost > 0;
    charge.iter().find(holds)?;
    Some(charge.iter().filter(holds).cloned().collect())
}
