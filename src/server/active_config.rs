//! The configuration by which a worker serves. A reload replaces it whole, between two requests.
//!
//! A connection reads it at its start, and each request reads it once. A replaced configuration
//! lives until the last request that began with it has its answer.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::ServerState;
use super::tls::ServerTls;
use crate::clock::Sweep;
use crate::config::{Config, ServerSettings};
use crate::proxy::limiter::{StoreHandle, WorkerStore};
use crate::proxy::{Downstream, Proxy};
use crate::store::Store;
use crate::telemetry::access::{AccessLog, Buffer};
use crate::telemetry::spans::SpanQueue;

/// How often a worker passes its log lines to the writer.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

pub(crate) struct ActiveConfig {
    pub(super) proxy: Proxy,
    pub(super) settings: ServerSettings,
    pub(super) tls: Option<Arc<ServerTls>>,
    /// The number of configurations before this one.
    pub(super) generation: u64,
}

impl ActiveConfig {
    /// Describes a client of an older `generation` by this configuration. Returns `None` if nothing
    /// differs from `known`.
    pub(super) fn renew_downstream(
        &self,
        known: &Downstream,
        generation: u64,
    ) -> Option<Box<Downstream>> {
        if generation == self.generation {
            return None;
        }
        self.proxy.another_downstream(known)
    }
}

/// The parts of a worker that stay when its configuration is replaced.
pub(super) struct CarriedOver {
    counts: Arc<StoreHandle>,
    store: WorkerStore,
    access: Arc<AccessLog>,
    /// The finished spans of this worker.
    spans: Arc<SpanQueue>,
}

impl CarriedOver {
    /// Opens the connection to the store, and waits for the end of the first attempt. A worker that
    /// accepts clients after that need not begin with local decisions.
    pub(super) async fn open(state: &ServerState) -> CarriedOver {
        let carried = CarriedOver {
            store: state.counts.open(),
            counts: Arc::clone(&state.counts),
            access: Arc::clone(&state.access),
            spans: state.exports.queue(),
        };
        carried.store().ready().await;
        carried
    }

    pub(super) fn store(&self) -> &Store {
        &self.store.store
    }

    /// Makes the first configuration, or the one after `old`. Requests of `old` end with its routes
    /// and limits, and with slots of its store.
    pub(super) async fn activate(
        &mut self,
        old: Option<&ActiveConfig>,
        config: Config,
        state: &ServerState,
        sweep: &Sweep,
    ) -> ActiveConfig {
        if !Arc::ptr_eq(&self.counts, &state.counts) {
            self.store = state.counts.open();
            self.counts = Arc::clone(&state.counts);
            self.store().ready().await;
        }
        let is_same_log = Arc::ptr_eq(&self.access, &state.access);
        let log = match old {
            Some(old) if is_same_log => old.proxy.log().clone(),
            _ => state.access.buffer(),
        };
        self.access = Arc::clone(&state.access);
        let settings = config.server.clone();
        let tracing = config.tracing.clone();
        let (stores, vitals) = (self.store.clone(), &state.vitals);
        if old.is_some() {
            self.store().limits_changed();
        }
        let old_proxy = old.map(|old| &old.proxy);
        let proxy = Proxy::new(config, stores, sweep, vitals, &log, old_proxy);
        ActiveConfig {
            proxy: proxy.traced(tracing.as_deref(), &self.spans),
            settings,
            tls: state.tls.clone(),
            generation: old.map_or(0, |old| old.generation + 1),
        }
    }
}

/// Periodically passes log lines to the writer, removes expired counts, and calls `beat`. The lines
/// of a replaced log are passed on too, as long as a request can add some.
pub(super) async fn flush(serving: Arc<ArcSwap<ActiveConfig>>, beat: impl Fn()) {
    let mut logs: Vec<Buffer> = Vec::new();
    loop {
        beat();
        tokio::time::sleep(FLUSH_EVERY).await;
        let config = serving.load_full();
        config.proxy.tidy();
        if logs
            .last()
            .is_none_or(|log| !log.is_same(config.proxy.log()))
        {
            logs.push(config.proxy.log().clone());
        }
        logs.retain(|log| {
            log.flush();
            log.is_same(config.proxy.log()) || !log.is_last()
        });
    }
}
