//! The state of a running server for code outside the workers: its configuration, what each worker
//! serves by, and the result of the last reload.
//!
//! It is created before the server and can be read at any time. Nothing of a [`Snapshot`] may be
//! kept: the last handle of a log, for example, writes its last lines when it is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::ServerState;
use super::active_config::ActiveConfig;
use super::reload_request::ReloadOutcome;
use crate::clock;
use crate::config::Config;
use crate::otlp::Exports;
use crate::proxy::Proxy;
use crate::proxy::limiter::StoreHandle;
use crate::telemetry::access::AccessLog;

#[derive(Debug)]
pub struct Introspection {
    started_us: u64,
    /// Counts the configurations.
    changes: watch::Sender<u64>,
    state: Mutex<IntrospectionState>,
}

#[derive(Default)]
struct IntrospectionState {
    config: Option<LoadedConfig>,
    workers: Vec<Weak<ArcSwap<ActiveConfig>>>,
    reload: Option<LastReload>,
    reloads: u64,
}

/// The current configuration, and the state of the server that belongs to it.
struct LoadedConfig {
    config: Config,
    loaded_us: u64,
    server: Arc<ServerState>,
}

/// The last reload.
#[derive(Clone, Debug)]
pub struct LastReload {
    /// Its end, microseconds since the Unix epoch.
    pub at_us: u64,
    pub outcome: ReloadOutcome,
}

/// The state of a serving server at one moment.
pub struct Snapshot<'v> {
    pub config: &'v Config,
    /// When `config` was loaded, microseconds since the Unix epoch.
    pub loaded_us: u64,
    pub(crate) counts: &'v StoreHandle,
    pub(crate) access: &'v AccessLog,
    pub(crate) exports: &'v Exports,
    /// Open client connections.
    pub connections: usize,
    /// The last reload, if there was one.
    pub reload: Option<&'v LastReload>,
    /// The number of reloads.
    pub reloads: u64,
    workers: Vec<Arc<ActiveConfig>>,
}

impl Snapshot<'_> {
    /// The proxy of each worker.
    pub fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.workers.iter().map(|serving| &serving.proxy)
    }
}

impl Default for Introspection {
    fn default() -> Introspection {
        Introspection {
            started_us: clock::unix_us(),
            changes: watch::Sender::new(0),
            state: Mutex::default(),
        }
    }
}

impl Introspection {
    /// The start of the process, microseconds since the Unix epoch.
    pub fn started_us(&self) -> u64 {
        self.started_us
    }

    /// A receiver that is notified of each new configuration, and of the end.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Reads the state. Returns `None` before the server serves and after its end.
    pub fn inspect<T>(&self, read: impl FnOnce(&Snapshot<'_>) -> T) -> Option<T> {
        let state = self.state();
        let now = state.config.as_ref()?;
        let workers = state.workers.iter().filter_map(Weak::upgrade);
        let server = &now.server;
        let free = server.connections.available_permits();
        Some(read(&Snapshot {
            config: &now.config,
            loaded_us: now.loaded_us,
            counts: &server.counts,
            access: &server.access,
            exports: &server.exports,
            connections: server.max_connections.saturating_sub(free),
            reload: state.reload.as_ref(),
            reloads: state.reloads,
            workers: workers.map(|serving| serving.load_full()).collect(),
        }))
    }

    /// Adds a worker that serves by the content of `serving`.
    pub(super) fn add_worker(&self, serving: &Arc<ArcSwap<ActiveConfig>>) {
        self.state().workers.push(Arc::downgrade(serving));
    }

    /// Replaces the configuration.
    pub(super) fn renew(&self, config: Config, server: &Arc<ServerState>) {
        self.state().config = Some(LoadedConfig {
            config,
            loaded_us: clock::unix_us(),
            server: Arc::clone(server),
        });
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Stores the result of a reload.
    pub(super) fn note_reload(&self, outcome: &ReloadOutcome) {
        let mut state = self.state();
        state.reloads += 1;
        state.reload = Some(LastReload {
            at_us: clock::unix_us(),
            outcome: Arc::clone(outcome),
        });
    }

    /// Releases all parts of the server, at its end.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.workers.clear();
        state.config = None;
        drop(state);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn state(&self) -> MutexGuard<'_, IntrospectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for IntrospectionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntrospectionState")
            .field("reloads", &self.reloads)
            .finish_non_exhaustive()
    }
}
