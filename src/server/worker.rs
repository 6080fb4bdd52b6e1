//! One worker as its connections see it, and one client's connection as its requests see it.

use std::fmt;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use http::{Request, Response};
use hyper::body::Bytes;
use tokio::sync::Semaphore;

use super::active_config::ActiveConfig;
use super::drain::{ConnectionsPerIp, Drain, OpenConnection};
use super::worker_set::Position;
use crate::body::RequestBody;
use crate::clock::Sweep;
use crate::proxy::body::Body;
use crate::proxy::{Downstream, local_reply};
use crate::request_head::HeadError;
use crate::telemetry::metrics::{Meter, Unanswered};
use tidegate_core::failpoint;

/// The state that all connections of one worker share.
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
        open.hold_permit(permit);
        is_permitted
    }

    /// Counts a request or a connection that could not be parsed.
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
    pub(super) worker: Arc<Worker>,
    pub(super) _open: OpenConnection,
}

impl fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.downstream.fmt(f)
    }
}

impl ClientConnection {
    /// Has the current configuration serve one request, and puts the answer into `response`. A
    /// panic is answered with 500 and ends only this request.
    pub(super) async fn handle(
        &self,
        request: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        error: Option<HeadError>,
    ) {
        let serving = self.worker.serving.load_full();
        if let Some(tls) = &serving.tls
            && let Some(proof) = tls.challenges.answer_at(request.uri().path())
        {
            // The request of a certificate authority. No limit counts it.
            *response = Response::new(Body::made(Bytes::from(proof)));
            return;
        }
        let renewed = serving.renew_downstream(&self.downstream, self.generation);
        let downstream = renewed.as_deref().unwrap_or(&self.downstream);
        let proxy = &serving.proxy;
        let mut pending = PendingAnswer {
            meter: proxy.meter(),
            is_pending: true,
        };
        let handling = async {
            proxy.handle(request, response, downstream, error).await;
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

/// Counts a request whose client leaves before the answer. Its work is then dropped, and this value
/// with it.
struct PendingAnswer<'m> {
    meter: &'m Meter,
    is_pending: bool,
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        if self.is_pending {
            self.meter.unanswered(Unanswered::ClientLeft);
        }
    }
}
