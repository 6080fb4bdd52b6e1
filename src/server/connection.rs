//! One client's connection: the protocol spoken on it, what surrounds each of its requests, and its
//! end.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::drain::Open;
use super::http2;
use super::opening::{self, Version};
use super::serving::Serving;
use super::socket::{Phase, Socket};
use super::worker::Worker;
use crate::config::ProxyProtocol;
use crate::proxy::body::Body;
use crate::proxy::flaw::Flaw;
use crate::proxy::upgrade::Tunnel;
use crate::proxy::{Arrival, Downstream};
use crate::upstream::body::RequestBody;
use crate::wire::Stream;

/// Whoever is at the other end of a connection; lives as long as that, or the tunnel it became.
pub(super) struct Client {
    downstream: Downstream,
    /// Which configuration `downstream` was asked of.
    generation: u64,
    pub(super) worker: Arc<Worker>,
    _open: Open,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.downstream.fmt(f)
    }
}

impl Client {
    /// The proxy's sentence about one request, by the configuration of now. A panic ends this
    /// request with 500, not the process.
    #[expect(clippy::manual_async_fn, reason = "that would keep the request twice")]
    pub(super) fn handle(
        &self,
        request: Request<RequestBody>,
        flaw: Option<Flaw>,
    ) -> impl Future<Output = Response<Body>> + Send {
        async move {
            let serving = self.worker.serving.load_full();
            if let Some(tls) = &serving.tls
                && let Some(proof) = tls.challenges.answer_at(request.uri().path())
            {
                // An authority asks, which nobody is charged for.
                return Response::new(Body::made(Bytes::from(proof)));
            }
            let another = serving.another(&self.downstream, self.generation);
            let downstream = another.as_deref().unwrap_or(&self.downstream);
            let handling = serving.proxy.handle(request, downstream, flaw);
            AssertUnwindSafe(handling)
                .catch_unwind()
                .await
                .unwrap_or_else(|_| crate::proxy::reject::panicked().map(Body::made))
        }
    }
}

/// What the requests of one connection of HTTP/1 share.
struct Held {
    client: Client,
    phase: Arc<Phase>,
}

/// Serves the client at the other end of `stream`, who came as `arrival` says, until either side
/// ends it.
pub(super) async fn serve(
    mut stream: Stream,
    mut arrival: Arrival,
    worker: Arc<Worker>,
    open: Open,
) {
    let began = worker.serving.load_full();
    let phase = Phase::new(worker.sweep.alarm(), &began.settings);
    let tells_apart = began.settings.http2;
    let mut ahead = Vec::new();
    if arrival.tls.is_none() && began.settings.proxy_protocol != ProxyProtocol::Off {
        let asked = (&*began, &*worker.drain);
        let announced = opening::announced(&mut stream, &mut arrival, asked, &phase.alarm);
        // Boxed, so that connections are no larger where it is off.
        let Some(announced) = Box::pin(announced).await else {
            return;
        };
        ahead = announced;
    }
    drop(began);
    let (version, ahead) = match stream.agreed_http2() {
        Some(true) => (Version::Http2, Bytes::new()),
        None if tells_apart => {
            let told = opening::told_apart(&mut stream, ahead, &phase, &worker.drain).await;
            let Some(told) = told else {
                return;
            };
            told
        }
        _ => (Version::Http1, ahead.into()),
    };
    let began = worker.serving.load_full();
    let client = Client {
        downstream: began.proxy.downstream(arrival),
        generation: began.generation,
        _open: open,
        worker,
    };
    let stream = (stream, ahead);
    match version {
        Version::Http1 => serve_http1(stream, client, phase, began).await,
        Version::Http2 => {
            let idle = Arc::clone(&phase.alarm);
            // Boxed, so that a connection of HTTP/1 is no larger for it.
            Box::pin(http2::serve(stream, client, idle, began)).await;
        }
    }
}

/// Serves by what was configured when it `began`, except for each request itself.
async fn serve_http1(
    stream: (Stream, Bytes),
    client: Client,
    phase: Arc<Phase>,
    began: Arc<Serving>,
) {
    let worker = Arc::clone(&client.worker);
    let socket = Socket::new(stream, Arc::clone(&phase), &began.settings);
    let held = Arc::new(Held { client, phase });
    let service = service_fn(move |request: Request<Incoming>| {
        let held = Arc::clone(&held);
        // Here and not as the future is first polled: hyper looks for the client's end of stream
        // before that, which must not end a request that is under way.
        let flaw = held.phase.begin_request(!request.body().is_end_stream());
        answer(request, held, flaw)
    });
    let serving = began
        .http
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    drop(began);
    let mut serving = pin!(serving);
    let mut told = false;
    // A connection that broke is no news: its request, if there was one, has its own log line.
    let _ = poll_fn(|context| {
        if !told && worker.drain.is_closing() {
            told = true;
            // What has come is served: only who has asked for nothing is closed.
            if let Poll::Ready(ended) = serving.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await;
}

/// One request: the proxy's sentence, and what surrounds it on this connection.
// Not `async` itself: that would keep the request a second time.
fn answer(
    request: Request<Incoming>,
    held: Arc<Held>,
    flaw: Option<Flaw>,
) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send {
    let body = held.phase.body.clone();
    let awaits_continue = request.headers().contains_key(EXPECT);
    let mut request = request.map(|incoming| RequestBody::new(incoming, body));
    if awaits_continue {
        request.body_mut().await_continue();
    }
    async move {
        let discardable = request.body().is_discardable();
        let mut response = held.client.handle(request, flaw).await;
        // The rest of the request will not be read, so nothing after it can be.
        let unread = !discardable && !held.phase.body.has_ended() && response.body().is_made_here();
        let draining = held.client.worker.drain.is_draining();
        let last = draining && response.status() != StatusCode::SWITCHING_PROTOCOLS;
        if unread || last {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(tunnel) = response.extensions_mut().remove::<Tunnel>() {
            held.phase.begin_tunnel();
            let held = Arc::clone(&held);
            tokio::spawn(async move {
                tunnel.run().await;
                drop(held);
            });
        }
        Ok(response.map(|body| Answer {
            body,
            phase: Arc::clone(&held.phase),
        }))
    }
}

/// A response's body that tells its connection when it has been taken to its end.
struct Answer {
    body: Body,
    phase: Arc<Phase>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.phase.end_response();
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
