//! One worker as its connections see it, the configuration by which it serves, and one client's
//! connection as its requests see it.
//!
//! A reload replaces the configuration whole, between two requests. A connection reads it at its
//! start, and each request reads it once. A replaced configuration lives until the last request
//! that began with it has its response.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use http::{Request, Response};
use hyper::body::Bytes;
use tokio::sync::Semaphore;

use super::ServerState;
use super::drain::{ConnectionsPerIp, Drain, OpenConnection};
use super::tls::ServerTls;
use super::worker_set::Position;
use crate::body::RequestBody;
use crate::clock::Sweep;
use crate::config::{Config, ServerSettings};
use crate::proxy::body::Body;
use crate::proxy::limiter::{StoreHandle, WorkerStore};
use crate::proxy::{Downstream, Proxy, UnreadableHead, local_reply};
use crate::request_head::HeadError;
use crate::store::Store;
use crate::telemetry::access::{AccessLog, Buffer};
use crate::telemetry::metrics::{Meter, Unanswered};
use crate::telemetry::spans::SpanQueue;
use tidegate_core::failpoint;

/// How often a worker passes its log lines to the writer.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

pub(super) struct Worker {
    pub(super) serving: Arc<ArcSwap<ActiveConfig>>,
    pub(super) sweep: Sweep,
    pub(super) drain: Arc<Drain>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) per_ip: Arc<ConnectionsPerIp>,
    pub(super) position: Position,
}

impl Worker {
    /// Counts a connection of this address. Returns false if the address has too many connections.
    /// A trusted proxy may have any number.
    pub(super) fn permit(&self, open: &mut OpenConnection, ip: IpAddr) -> bool {
        let serving = self.serving.load();
        let Some(most) = serving.settings.max_connections_per_ip else {
            return true;
        };
        if serving.proxy.trusts(ip) {
            return true;
        }
        let permit = self.per_ip.take(ip, most);
        let is_permitted = permit.is_some();
        if !is_permitted {
            tracing::debug!(%ip, "as many connections as one address may have");
        }
        open.ip_permit = permit.map(Box::new);
        is_permitted
    }

    pub(super) fn count_unreadable(&self) {
        let serving = self.serving.load();
        serving.proxy.meter().unanswered(Unanswered::Unreadable);
    }
}

/// A client's connection. It lives as long as the connection or its tunnel.
pub(super) struct ClientConnection {
    pub(super) downstream: Downstream,
    /// The generation of the configuration that made `downstream`.
    pub(super) generation: u64,
    /// Whether its peer is a proxy that asks for decisions.
    pub(super) is_decide_peer: bool,
    pub(super) worker: Arc<Worker>,
    pub(super) _open: OpenConnection,
}

impl ClientConnection {
    /// Counts a head that could not be read, and writes its line in the access log. Questions of
    /// `[decide]` have none.
    pub(super) fn note_unreadable(&self, head: UnreadableHead) {
        self.worker.count_unreadable();
        if !self.is_decide_peer {
            let serving = self.worker.serving.load();
            head.write_line(serving.proxy.log(), self.downstream.arrival.ip);
        }
    }

    /// Whether the connection gets no more requests.
    pub(super) fn is_over(&self) -> bool {
        self.downstream.usage.is_over(self.worker.sweep.elapsed())
            || self.worker.drain.is_draining()
    }

    /// Has the current configuration serve one request, and puts the response into `response`. A
    /// panic is answered with 500 and ends only this request.
    pub(super) async fn handle(
        &self,
        request: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        error: Option<HeadError>,
    ) {
        self.downstream.usage.begin_request();
        let serving = self.worker.serving.load_full();
        if let Some(tls) = &serving.tls
            && let Some(proof) = tls.challenges.answer_at(request.uri().path())
        {
            // The request of a certificate authority. No limit counts it.
            *response = Response::new(Body::made(Bytes::from(proof)));
            return;
        }
        let renewed = match self.generation == serving.generation {
            true => None,
            false => serving.proxy.another_downstream(&self.downstream),
        };
        let downstream = renewed.as_deref().unwrap_or(&self.downstream);
        let proxy = &serving.proxy;
        let mut pending = PendingResponse {
            meter: proxy.meter(),
            is_pending: true,
        };
        let handling = async {
            match self.is_decide_peer {
                true => {
                    let stage = self.worker.drain.stage();
                    let deciding = proxy.decide(request, response, downstream, error, stage);
                    // Few connections need this much room.
                    Box::pin(deciding).await;
                }
                false => proxy.handle(request, response, downstream, error).await,
            }
            failpoint!("server.handled");
        };
        let answered = AssertUnwindSafe(handling).catch_unwind().await;
        pending.is_pending = false;
        if answered.is_err() {
            proxy.meter().unanswered(Unanswered::Panic);
            *response = local_reply::panicked().map(Body::made);
        }
    }
}

/// Counts a request whose client leaves before the response. Its work is then dropped, and this
/// value with it.
struct PendingResponse<'m> {
    meter: &'m Meter,
    is_pending: bool,
}

impl Drop for PendingResponse<'_> {
    fn drop(&mut self) {
        if self.is_pending {
            self.meter.unanswered(Unanswered::ClientLeft);
        }
    }
}

pub(crate) struct ActiveConfig {
    pub(super) proxy: Proxy,
    pub(super) settings: ServerSettings,
    /// With clients.
    pub(super) tls: Option<Arc<ServerTls>>,
    /// With proxies that ask for decisions.
    pub(super) decide_tls: Option<Arc<ServerTls>>,
    /// The number of configurations before this one.
    pub(super) generation: u64,
}

/// The parts of a worker that stay when its configuration is replaced.
pub(super) struct CarriedOver {
    counts: Arc<StoreHandle>,
    store: WorkerStore,
    access: Arc<AccessLog>,
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
        let proxy = Proxy::new(config, stores, sweep, vitals, &log, old_proxy)
            .with_status_answers(&state.status_answers)
            .with_body_memory(&state.body_memory)
            .with_held_requests(&state.held)
            .with_key_callback(state.key_callback.as_ref());
        ActiveConfig {
            proxy: proxy.traced(tracing.as_deref(), &self.spans),
            settings,
            tls: state.tls.clone(),
            decide_tls: state.decide_tls.clone(),
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
        let current = config.proxy.log();
        if logs.last().is_none_or(|log| !log.is_same(current)) {
            logs.push(current.clone());
        }
        logs.retain(|log| {
            log.flush();
            log.is_same(current) || !log.is_last()
        });
    }
}
