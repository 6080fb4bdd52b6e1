//! The state of a running server for code outside the workers: its configuration, what each worker
//! serves by, and the result of the last reload.
//!
//! It is created before the server and can be read at any time. Nothing of a [`Snapshot`] may be
//! kept: the last handle of a log, for example, writes its last lines when it is dropped.

use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::ServerState;
use super::control::ReloadOutcome;
use super::worker::ActiveConfig;
use crate::billing::BillingShared;
use crate::clock;
use crate::config::Config;
use crate::otlp::Exports;
use crate::proxy::Proxy;
use crate::proxy::limiter::StoreHandle;
use crate::telemetry::access::AccessLog;
use crate::telemetry::panics::lock;
use tidegate_core::exchange::key_callback::KeyCallback;

#[derive(Debug)]
pub struct Introspection {
    /// The start of the process, microseconds since the Unix epoch.
    pub started_us: u64,
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

struct LoadedConfig {
    config: Config,
    loaded_us: u64,
    server: Arc<ServerState>,
}

#[derive(Clone, Debug)]
pub struct LastReload {
    /// Its end, microseconds since the Unix epoch.
    pub at_us: u64,
    pub outcome: ReloadOutcome,
}

pub struct Snapshot<'v> {
    pub config: &'v Config,
    /// When `config` was loaded, microseconds since the Unix epoch.
    pub loaded_us: u64,
    pub(crate) counts: &'v StoreHandle,
    pub(crate) access: &'v AccessLog,
    pub(crate) exports: &'v Exports,
    pub(crate) key_callback: Option<&'v Arc<KeyCallback>>,
    pub(crate) billing: &'v Arc<BillingShared>,
    pub connections: usize,
    pub reload: Option<&'v LastReload>,
    pub reloads: u64,
    workers: Vec<Arc<ActiveConfig>>,
}

impl Snapshot<'_> {
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
    /// A receiver that is notified of each new configuration, and of the end.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Reads the state. Returns `None` before the server serves and after its end.
    pub fn inspect<T>(&self, read: impl FnOnce(&Snapshot<'_>) -> T) -> Option<T> {
        let state = lock(&self.state);
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
            key_callback: server.key_callback.as_ref(),
            billing: server.billing.shared(),
            connections: server.max_connections.saturating_sub(free),
            reload: state.reload.as_ref(),
            reloads: state.reloads,
            workers: workers.map(|serving| serving.load_full()).collect(),
        }))
    }

    pub(super) fn add_worker(&self, serving: &Arc<ArcSwap<ActiveConfig>>) {
        lock(&self.state).workers.push(Arc::downgrade(serving));
    }

    pub(super) fn renew(&self, config: Config, server: &Arc<ServerState>) {
        lock(&self.state).config = Some(LoadedConfig {
            config,
            loaded_us: clock::unix_us(),
            server: Arc::clone(server),
        });
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(super) fn note_reload(&self, outcome: &ReloadOutcome) {
        let mut state = lock(&self.state);
        state.reloads += 1;
        state.reload = Some(LastReload {
            at_us: clock::unix_us(),
            outcome: Arc::clone(outcome),
        });
    }

    /// Releases all parts of the server, at its end.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.workers.clear();
        state.config = None;
        drop(state);
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl std::fmt::Debug for IntrospectionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntrospectionState")
            .field("reloads", &self.reloads)
            .finish_non_exhaustive()
    }
}
