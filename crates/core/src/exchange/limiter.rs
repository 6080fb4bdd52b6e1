//! What decides whether a request may pass: the store, what stands in for it while it is away, and
//! the counts that outlive both. It knows nothing of HTTP: it is asked charges.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::admission::Admission;
use super::rejection::Rejection;
use super::slots::{HeldSlots, Stores, slots_of};
use crate::config::{Config, StoreSettings};
use crate::limit::{Charge, OnError};
use crate::store::memory::Memory;
use crate::store::overrides::OverrideSnapshot;
use crate::store::{Backing, CurrentKey, Store};
use crate::telemetry::decisions::DecisionLog;
use crate::telemetry::metrics::Meter;

/// What all limiters of a process have in common: where they count, and what decides while that
/// is away.
#[derive(Debug)]
pub struct StoreHandle {
    settings: StoreSettings,
    backing: Backing,
    local: Arc<Memory>,
    log: Option<Arc<DecisionLog>>,
}

impl StoreHandle {
    /// Opens the decision log, if `config` wants one; asks no server anything.
    pub fn new(config: &Config) -> io::Result<StoreHandle> {
        let log = config.log.decisions.as_deref().map(|path| {
            let named = |error: io::Error| {
                let text = format!("log.decisions: cannot open {}: {error}", path.display());
                io::Error::new(error.kind(), text)
            };
            DecisionLog::open(path).map_err(named)
        });
        StoreHandle::open_store(&config.store, log.transpose()?.map(Arc::new))
    }

    pub fn open_store(
        store: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
    ) -> io::Result<StoreHandle> {
        let backing = Backing::new(store, log.clone()).map_err(io::Error::other)?;
        let local = backing
            .local(store, log.clone())
            .map_err(io::Error::other)?;
        let local = Arc::new(local);
        backing.forgets_in(&local);
        Ok(StoreHandle {
            settings: store.clone(),
            backing,
            local,
            log,
        })
    }

    /// What counts from now on, where the store has these settings: these very counts if it can be,
    /// so that nothing is forgotten. The decision log goes on, in a new file where its own was
    /// moved away.
    pub fn renewed(self: &Arc<Self>, store: &StoreSettings) -> io::Result<Arc<StoreHandle>> {
        if let Some(log) = &self.log {
            let named = |error: io::Error| {
                io::Error::new(
                    error.kind(),
                    format!("log.decisions cannot be opened: {error}"),
                )
            };
            log.reopen().map_err(named)?;
        }
        let bounded = StoreSettings {
            max_keys: store.max_keys,
            max_memory: store.max_memory,
            // Each limit has its own by now.
            on_error: store.on_error,
            ..self.settings.clone()
        };
        if bounded == *store {
            self.local.rebound(store);
            if let Backing::Memory(memory) = &self.backing {
                memory.rebound(store);
            }
            return Ok(Arc::clone(self));
        }
        StoreHandle::open_store(store, self.log.clone()).map(Arc::new)
    }

    /// Lines that the decision log could not take, if there is one.
    pub fn log_dropped(&self) -> Option<u64> {
        self.log.as_ref().map(|log| log.dropped())
    }

    /// What all workers share of the store.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The counts in this process: the store itself, or what stands in for it while it is away.
    pub fn in_process(&self) -> &Memory {
        match &self.backing {
            Backing::Memory(memory) => memory,
            Backing::Redis(_) => &self.local,
        }
    }

    /// One worker's way to the counts; called on that worker's runtime.
    pub fn open(&self) -> WorkerStore {
        WorkerStore {
            store: self.backing.open(),
            local: Arc::clone(&self.local),
        }
    }
}

/// One worker's way to the counts.
#[derive(Clone, Debug)]
pub struct WorkerStore {
    pub(super) store: Store,
    /// What decides while the store is away.
    pub(super) local: Arc<Memory>,
}

impl WorkerStore {
    pub fn store(&self) -> &Store {
        &self.store
    }
}

/// One worker's limiter: its way to the store, what decides while that is away, and what it has
/// counted.
#[derive(Debug)]
pub struct Limiter {
    pub(super) store: Store,
    /// What decides while the store is away.
    pub(super) local: Arc<Memory>,
    /// What is counted of its requests and decisions.
    pub meter: Arc<Meter>,
    /// What outlives the request's path.
    pub stores: Arc<Stores>,
}

impl Limiter {
    /// A limiter of `config` for the worker that opened `store`. It goes on with what was counted
    /// by `old`.
    pub fn new(config: &Config, store: WorkerStore, old: Option<&Meter>) -> Limiter {
        let WorkerStore { store, local } = store;
        let routes = config.routes.iter().map(|route| &*route.name);
        let limits = config.limits.iter().map(|limit| &*limit.name);
        let meter = Meter::new(routes, limits, old);
        let meter = Arc::new(match config.admin {
            Some(_) => meter.watched(),
            None => meter,
        });
        let stores = Stores {
            store: store.clone(),
            local: Arc::clone(&local),
            meter: Arc::clone(&meter),
        };
        Limiter {
            store,
            local,
            meter,
            stores: Arc::new(stores),
        }
    }

    /// The secret that keys are hashed with now.
    pub fn hash_key(&self) -> CurrentKey {
        self.store.hash_key()
    }

    /// Lets an admission pass or says why not.
    pub async fn decide(&self, admission: &mut Admission, since: Instant) -> Result<(), Rejection> {
        if admission.charge.is_empty() {
            return Ok(());
        }
        match self.admit_here(admission) {
            Some(admitted) => admitted,
            None => self.admit(admission, since).await,
        }
    }

    /// Waits until the first attempt to reach the store has ended, well or badly.
    pub async fn ready(&self) {
        self.store.ready().await;
    }

    /// Waits until the store knows what is held here.
    pub async fn told(&self) {
        self.store.flush_slots().await;
    }

    /// Drops some of what has expired in this process.
    pub fn tidy(&self) {
        self.local.tidy();
        if let Store::Memory(memory) = &self.store {
            memory.tidy();
        }
    }

    /// What operators said of single clients; `None` if nothing.
    pub(super) fn overrides(&self) -> Option<OverrideSnapshot> {
        self.store.overrides()
    }

    /// What the store has granted of `charge`. Counted here as well: the process knows what it
    /// holds when it must decide alone.
    pub(super) fn hold(&self, charge: &Charge) -> Option<Box<HeldSlots>> {
        let charge = slots_of(charge)?;
        if self.stores.is_shared() {
            self.stores.local.hold(&charge);
        }
        Some(HeldSlots::new(&self.stores, charge))
    }

    /// What was let through without the store: it is to know of it as soon as it is back. The
    /// local store has counted what it was asked for.
    pub(super) fn hold_alone(
        &self,
        charge: Option<Charge>,
        generation: u64,
    ) -> Option<Box<HeldSlots>> {
        let charge = charge?;
        let mut unasked = charge.clone();
        unasked.retain(|item| item.limit.on_error != OnError::Local);
        self.stores.local.hold(&unasked);
        self.stores.store.hold(&charge, generation);
        Some(HeldSlots::new(&self.stores, charge))
    }
}
