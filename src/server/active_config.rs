//! What a worker serves by: replaced whole by a reload, between two requests.
//!
//! A connection looks it up when it begins, a request once for all that is done about it. What was
//! replaced lives until the last request that began with it has its answer.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::ServerState;
use super::tls::Tls;
use crate::clock::Sweep;
use crate::config::{Config, ServerSettings};
use crate::proxy::limiter::{StoreHandle, WorkerStore};
use crate::proxy::{Downstream, Proxy};
use crate::store::Store;
use crate::telemetry::access::{AccessLog, Buffer};
use crate::telemetry::spans::SpanQueue;

/// How often a worker hands its log lines over.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// Everything that one configuration has a say in.
pub(crate) struct ActiveConfig {
    pub(super) proxy: Proxy,
    pub(super) settings: ServerSettings,
    /// What is spoken where TLS is.
    pub(super) tls: Option<Arc<Tls>>,
    /// How many configurations there were before it.
    pub(super) generation: u64,
}

impl ActiveConfig {
    fn new(
        proxy: Proxy,
        settings: ServerSettings,
        state: &ServerState,
        generation: u64,
    ) -> ActiveConfig {
        ActiveConfig {
            proxy,
            settings,
            tls: state.tls.clone(),
            generation,
        }
    }

    /// What is known of a client whose connection is from `generation`, where it is not what was
    /// known then.
    pub(super) fn another(&self, known: &Downstream, generation: u64) -> Option<Box<Downstream>> {
        if generation == self.generation {
            return None;
        }
        self.proxy.another_downstream(known)
    }
}

/// What one configuration hands to the next, and connections do not need.
pub(super) struct CarriedOver {
    counts: Arc<StoreHandle>,
    store: WorkerStore,
    access: Arc<AccessLog>,
    /// Where this worker's spans wait.
    spans: Arc<SpanQueue>,
}

impl CarriedOver {
    /// Opens the store's connection, and waits until the first attempt to reach it has ended: who
    /// listens only after that need not begin with decisions of its own.
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
        self.store.store()
    }

    /// What is served first.
    pub(super) fn begin(&self, config: Config, state: &ServerState, sweep: &Sweep) -> ActiveConfig {
        let settings = config.server.clone();
        let log = state.access.buffer();
        let stores = self.store.clone();
        let tracing = config.tracing.clone();
        let proxy = Proxy::new(config, stores, sweep, &state.vitals, &log)
            .traced(tracing.as_deref(), &self.spans);
        ActiveConfig::new(proxy, settings, state, 0)
    }

    /// What is served after `old`. The requests that `old` still has end as they began: with its
    /// routes and limits, and with slots of its store.
    pub(super) async fn renew(
        &mut self,
        old: &ActiveConfig,
        config: Config,
        state: &ServerState,
        sweep: &Sweep,
    ) -> ActiveConfig {
        if !Arc::ptr_eq(&self.counts, &state.counts) {
            self.store = state.counts.open();
            self.counts = Arc::clone(&state.counts);
            self.store().ready().await;
        }
        self.store().limits_changed();
        let log = if Arc::ptr_eq(&self.access, &state.access) {
            old.proxy.log().clone()
        } else {
            state.access.buffer()
        };
        self.access = Arc::clone(&state.access);
        let settings = config.server.clone();
        let stores = self.store.clone();
        let tracing = config.tracing.clone();
        let proxy = old
            .proxy
            .renewed(config, stores, sweep, &state.vitals, &log);
        let proxy = proxy.traced(tracing.as_deref(), &self.spans);
        ActiveConfig::new(proxy, settings, state, old.generation + 1)
    }
}

/// Hands the log's lines over from time to time, those of a replaced log too as long as requests
/// that began with it may add some. Drops expired counts, whether requests come or not. Tells
/// `beat` each time that this thread runs.
pub(super) async fn flush(serving: Arc<ArcSwap<ActiveConfig>>, beat: impl Fn()) {
    let mut logs: Vec<Buffer> = Vec::new();
    loop {
        beat();
        tokio::time::sleep(FLUSH_EVERY).await;
        let now = serving.load_full();
        now.proxy.tidy();
        if logs.last().is_none_or(|log| !log.is_same(now.proxy.log())) {
            logs.push(now.proxy.log().clone());
        }
        logs.retain(|log| {
            log.flush();
            log.is_same(now.proxy.log()) || !log.is_last()
        });
    }
}
