//! What surrounds each request of one client connection.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use http::{Request, Response};
use hyper::body::Bytes;

use super::drain::Open;
use super::worker::Worker;
use crate::body::RequestBody;
use crate::proxy::body::Body;
use crate::proxy::{Downstream, local_reply};
use crate::request_head::HeadError;
use crate::telemetry::metrics::{Meter, Unanswered};
use tidegate_core::failpoint;

/// The client side of a connection. It lives as long as the connection, or as its tunnel.
pub(super) struct ClientConnection {
    pub(super) downstream: Downstream,
    /// Of the configuration that made `downstream`.
    pub(super) generation: u64,
    pub(super) worker: Arc<Worker>,
    pub(super) _open: Open,
}

impl fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.downstream.fmt(f)
    }
}

impl ClientConnection {
    /// Has one request served by the current configuration; the answer is put into `response`. A
    /// panic ends this request with 500, not the process.
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
            // A certificate authority asks: no limit counts it.
            *response = Response::new(Body::made(Bytes::from(proof)));
            return;
        }
        let another = serving.another(&self.downstream, self.generation);
        let downstream = another.as_deref().unwrap_or(&self.downstream);
        let mut awaited = Awaited(serving.proxy.meter(), true);
        let proxy = &serving.proxy;
        let handling = async {
            proxy.handle(request, response, downstream, error).await;
            failpoint!("server.handled");
        };
        let answered = AssertUnwindSafe(handling).catch_unwind().await;
        awaited.1 = false;
        if answered.is_err() {
            serving.proxy.meter().unanswered(Unanswered::Panic);
            *response = local_reply::panicked().map(Body::made);
        }
    }
}

/// Counts a request whose client leaves before its answer is there: what was under way is dropped.
struct Awaited<'m>(&'m Meter, bool);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.unanswered(Unanswered::ClientLeft);
        }
    }
}
