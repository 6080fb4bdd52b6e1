//! What can be seen of a running house from outside the path: its configuration, its workers and
//! what each of them serves by, and how the last reload went.
//!
//! Whoever starts the house makes it and may look at any time; the house fills it in. Nothing that
//! is seen may be kept: a log, for one, is written to its end when the last of its handles goes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, watch};

use super::ServerState;
use super::active_config::ActiveConfig;
use super::reload_request::Outcome;
use crate::clock;
use crate::config::Config;
use crate::otlp::Exports;
use crate::proxy::Proxy;
use crate::proxy::limiter::StoreHandle;
use crate::telemetry::access::AccessLog;

/// See the file's head.
#[derive(Debug)]
pub struct Introspection {
    started_us: u64,
    /// How many configurations there were.
    changes: watch::Sender<u64>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    now: Option<Now>,
    workers: Vec<Weak<ArcSwap<ActiveConfig>>>,
    reload: Option<LastReload>,
    reloads: u64,
}

/// What the house is by now.
struct Now {
    config: Config,
    loaded_us: u64,
    counts: Arc<StoreHandle>,
    access: Arc<AccessLog>,
    exports: Arc<Exports>,
    connections: Arc<Semaphore>,
    max_connections: usize,
}

/// How the last reload went.
#[derive(Clone, Debug)]
pub struct LastReload {
    /// When it ended, microseconds since the Unix epoch.
    pub at_us: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// One look at a house that serves.
pub struct Snapshot<'v> {
    /// What it serves by.
    pub config: &'v Config,
    /// Since when, microseconds since the Unix epoch.
    pub loaded_us: u64,
    /// Where it counts.
    pub(crate) counts: &'v StoreHandle,
    /// Its access log.
    pub(crate) access: &'v AccessLog,
    /// Where its traces go.
    pub(crate) exports: &'v Exports,
    /// Client connections that are open.
    pub connections: usize,
    /// How the last reload went, if there was one.
    pub reload: Option<&'v LastReload>,
    /// How many there were.
    pub reloads: u64,
    workers: Vec<Arc<ActiveConfig>>,
}

impl Snapshot<'_> {
    /// What each worker serves by.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.workers.iter().map(|serving| &serving.proxy)
    }
}

impl Default for Introspection {
    fn default() -> Introspection {
        Introspection {
            started_us: clock::unix_us(),
            changes: watch::Sender::new(0),
            inner: Mutex::default(),
        }
    }
}

impl Introspection {
    /// When the process was started, microseconds since the Unix epoch.
    pub fn started_us(&self) -> u64 {
        self.started_us
    }

    /// Told of every configuration, and of the end.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Looks. Nothing is seen before the house serves, and after its end.
    pub fn inspect<T>(&self, see: impl FnOnce(&Snapshot<'_>) -> T) -> Option<T> {
        let inner = self.inner();
        let now = inner.now.as_ref()?;
        let workers = inner.workers.iter().filter_map(Weak::upgrade);
        let free = now.connections.available_permits();
        Some(see(&Snapshot {
            config: &now.config,
            loaded_us: now.loaded_us,
            counts: &now.counts,
            access: &now.access,
            exports: &now.exports,
            connections: now.max_connections.saturating_sub(free),
            reload: inner.reload.as_ref(),
            reloads: inner.reloads,
            workers: workers.map(|serving| serving.load_full()).collect(),
        }))
    }

    /// A worker serves by what is in there.
    pub(super) fn add(&self, serving: &Arc<ArcSwap<ActiveConfig>>) {
        self.inner().workers.push(Arc::downgrade(serving));
    }

    /// The house serves by `config` from now on.
    pub(super) fn renew(&self, config: Config, state: &ServerState) {
        self.inner().now = Some(Now {
            config,
            loaded_us: clock::unix_us(),
            counts: Arc::clone(&state.counts),
            access: Arc::clone(&state.access),
            exports: Arc::clone(&state.exports),
            connections: Arc::clone(&state.connections),
            max_connections: state.max_connections,
        });
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// A reload has ended.
    pub(super) fn note_reload(&self, outcome: &Outcome) {
        let mut inner = self.inner();
        inner.reloads += 1;
        inner.reload = Some(LastReload {
            at_us: clock::unix_us(),
            outcome: Arc::clone(outcome),
        });
    }

    /// The end: nothing of the house is held from here on.
    pub(super) fn close(&self) {
        let mut inner = self.inner();
        inner.workers.clear();
        inner.now = None;
        drop(inner);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside")
            .field("reloads", &self.reloads)
            .finish_non_exhaustive()
    }
}
