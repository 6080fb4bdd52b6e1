//! One client's connection: the protocol spoken on it, what surrounds each of its requests, and its
//! end.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::Either;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::drain::Open;
use super::http2;
use super::lean::{self, End};
use super::opening::{self, Version};
use super::parked;
use super::phase::{Phase, Stage};
use super::socket::Socket;
use super::worker::Worker;
use crate::body::RequestBody;
use crate::config::ProxyProtocol;
use crate::proxy::body::Body;
use crate::proxy::flaw::Flaw;
use crate::proxy::upgrade::Tunnel;
use crate::proxy::{Arrival, Downstream};
use crate::telemetry::metrics::{Meter, Unanswered};
use crate::wire::{PrefixedStream, Stream};

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
    /// The proxy's sentence about one request, by the configuration of now, put into `response`. A
    /// panic ends this request with 500, not the process.
    pub(super) async fn handle(
        &self,
        (request, response): (&mut Request<RequestBody>, &mut Response<Body>),
        flaw: Option<Flaw>,
    ) {
        let serving = self.worker.serving.load_full();
        if let Some(tls) = &serving.tls
            && let Some(proof) = tls.challenges.answer_at(request.uri().path())
        {
            // An authority asks, which nobody is charged for.
            *response = Response::new(Body::made(Bytes::from(proof)));
            return;
        }
        let another = serving.another(&self.downstream, self.generation);
        let downstream = another.as_deref().unwrap_or(&self.downstream);
        let mut awaited = Awaited(serving.proxy.meter(), true);
        let exchange = (request, &mut *response);
        let handling = async {
            serving.proxy.handle(exchange, downstream, flaw).await;
            failpoint!("server.handled");
        };
        let answered = AssertUnwindSafe(handling).catch_unwind().await;
        awaited.1 = false;
        if answered.is_err() {
            serving.proxy.meter().unanswered(Unanswered::Panic);
            *response = crate::proxy::reject::panicked().map(Body::made);
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

/// What the requests of one connection of HTTP/1 share.
struct Held {
    client: Client,
    phase: Arc<Phase>,
}

/// Serves the client at the other end of `stream`, who came as `arrival` says, until either side
/// ends it.
// Most connections are parked most of the time: what is not there meanwhile is in a box. And what
// is handed on is not kept a second time, as it would be by functions that are `async` themselves.
pub(super) fn serve(
    stream: Stream,
    arrival: Arrival,
    worker: Arc<Worker>,
    open: Open,
) -> impl Future<Output = ()> + Send {
    let opening = Box::pin(opening(stream, arrival, worker, open));
    async move {
        let Some(serving) = opening.await else {
            return;
        };
        serving.await;
    }
}

/// The beginning of a connection, until it is known who is at its other end and what is spoken.
/// Returns what serves it then; nothing if it has ended.
async fn opening(
    mut stream: Stream,
    mut arrival: Arrival,
    worker: Arc<Worker>,
    mut open: Open,
) -> Option<impl Future<Output = ()> + Send> {
    failpoint!("server.connection");
    let began = worker.serving.load_full();
    let phase = Phase::new(worker.sweep.alarm(), &began.settings);
    let tells_apart = began.settings.http2;
    let mut ahead = Vec::new();
    if arrival.tls.is_none() && began.settings.proxy_protocol != ProxyProtocol::Off {
        let asked = (&*began, &*worker.drain);
        let peer = arrival.ip;
        ahead = opening::announced(&mut stream, &mut arrival, asked, &phase.alarm).await?;
        if arrival.ip != peer && !worker.permit(&mut open, arrival.ip) {
            return None;
        }
    }
    drop(began);
    let (version, read) = match stream.agreed_http2() {
        Some(true) => (Version::Http2, Bytes::new()),
        None if tells_apart => {
            opening::told_apart(&mut stream, ahead, &phase, &worker.drain).await?
        }
        _ => (Version::Http1, ahead.into()),
    };
    let began = worker.serving.load();
    let client = Client {
        downstream: began.proxy.downstream(arrival),
        generation: began.generation,
        _open: open,
        worker: Arc::clone(&worker),
    };
    let first = PrefixedStream {
        stream,
        prefix: read,
    };
    Some(match version {
        Version::Http1 => Either::Left(serve_http1(first, Arc::new(Held { client, phase }))),
        Version::Http2 => {
            let idle = Arc::clone(&phase.alarm);
            Either::Right(http2::serve(first, Arc::new(client), idle))
        }
    })
}

/// What of a connection is left while it is parked, is all that this keeps for itself.
#[expect(
    clippy::manual_async_fn,
    reason = "an `async fn` keeps what it is given twice"
)]
fn serve_http1(mut socket: PrefixedStream, held: Arc<Held>) -> impl Future<Output = ()> + Send {
    async move {
        loop {
            if socket.prefix.is_empty() {
                let waiting =
                    parked::wait(&mut socket.stream, &held.phase, &held.client.worker.drain);
                let Some(first) = waiting.await else {
                    return;
                };
                socket.prefix = first;
            }
            let speaking = lean::speak(socket, &held.client, &held.phase);
            let odd = match Box::pin(speaking).await {
                End::Closed => return,
                End::Idle(idle) => {
                    held.client.downstream.rest();
                    socket = PrefixedStream {
                        stream: idle,
                        prefix: Bytes::new(),
                    };
                    continue;
                }
                End::Odd(odd) => odd,
            };
            let Some(idle) = Box::pin(speak_until_idle(odd, &held)).await else {
                return;
            };
            socket = idle;
        }
    }
}

/// How serving a connection with hyper ended.
enum Spoken {
    /// With the connection.
    Ended,
    /// The connection has been idle for a while; the bytes were read of it and not used.
    Idle(PrefixedStream),
    /// An answer has ended before its end, and what came of it is written.
    Cut(Socket),
}

/// Serves with hyper. Returns the connection if it has been idle for a while.
async fn speak_until_idle(socket: Socket, held: &Arc<Held>) -> Option<PrefixedStream> {
    match speak_http1(socket, held).await {
        Spoken::Idle(idle) => Some(idle),
        Spoken::Cut(socket) => {
            socket.close_after_cut().await;
            None
        }
        Spoken::Ended => None,
    }
}

/// Serves until either side ends the connection, by what is configured as this begins, except for
/// each request itself.
async fn speak_http1(socket: Socket, held: &Arc<Held>) -> Spoken {
    let worker = &held.client.worker;
    let mut serving = {
        let now = worker.serving.load();
        let held = Arc::clone(held);
        let service = service_fn(move |request: Request<Incoming>| {
            let held = Arc::clone(&held);
            // Here and not as the future is first polled: a read before that, or a client's end,
            // must find a request that is under way.
            let flaw = held.phase.begin_request(!request.body().is_end_stream());
            answer(request, held, flaw)
        });
        let http = &now.http;
        http.serve_connection(TokioIo::new(socket), service)
            .with_upgrades()
    };
    let mut told = false;
    let is_left = poll_fn(|context| {
        if !told && worker.drain.is_closing() {
            told = true;
            // What has come is served: only who has asked for nothing is closed.
            if Pin::new(&mut serving).poll(context).is_ready() {
                return Poll::Ready(false);
            }
            Pin::new(&mut serving).graceful_shutdown();
        }
        // A connection that broke is no news: its request, if there was one, has its log line.
        match Pin::new(&mut serving).poll(context) {
            Poll::Ready(ended) => {
                if ended.is_err_and(|error| error.is_parse()) {
                    let now = worker.serving.load();
                    now.proxy.meter().unanswered(Unanswered::Unreadable);
                }
                Poll::Ready(false)
            }
            Poll::Pending if held.phase.stage() == Stage::Parked => Poll::Ready(true),
            Poll::Pending if held.phase.is_cut_and_written() => Poll::Ready(true),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    let Some(parts) = is_left.then(|| serving.into_parts()).flatten() else {
        return Spoken::Ended;
    };
    let socket = parts.io.into_inner();
    if held.phase.is_cut_and_written() {
        return Spoken::Cut(socket);
    }
    // Where nothing is in it, it still holds a whole buffer.
    let unused = Some(parts.read_buf).filter(|bytes| !bytes.is_empty());
    Spoken::Idle(PrefixedStream {
        stream: socket.into_stream(),
        prefix: unused.unwrap_or_default(),
    })
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
    // Behind it the client may have sent what belongs into a tunnel that it does not get.
    let is_connect = request.method() == Method::CONNECT;
    let mut request = request.map(|incoming| RequestBody::new(incoming, body));
    if awaits_continue {
        request.body_mut().await_continue();
    }
    async move {
        let discardable = request.body().is_discardable();
        let mut response = Response::new(Body::empty());
        let exchange = (&mut request, &mut response);
        held.client.handle(exchange, flaw).await;
        drop(request);
        // The rest of the request will not be read, so nothing after it can be.
        let unread = !discardable && !held.phase.body.has_ended() && response.body().is_made_here();
        let draining = held.client.worker.drain.is_draining();
        let last = draining && response.status() != StatusCode::SWITCHING_PROTOCOLS;
        if unread || last || is_connect {
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
            is_cut: false,
        }))
    }
}

/// A response's body that tells its connection when it has been taken to its end.
struct Answer {
    body: Body,
    phase: Arc<Phase>,
    /// It has ended before its end.
    is_cut: bool,
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
        if !self.is_cut {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            if !matches!(polled, Poll::Ready(Some(Err(_)))) {
                return polled;
            }
            // Told of an error, hyper would throw away what it has not written, head included.
            self.is_cut = true;
            self.body = Body::empty();
            self.phase.cut_answer();
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        !self.is_cut && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<F>(_: impl FnOnce(Stream, Arrival, Arc<Worker>, Open) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_is_kept_of_a_parked_connection_is_little() {
        // The runtime adds 112 and rounds up to the next multiple of 128.
        assert!(bytes(serve) <= 272, "{}", bytes(serve));
    }
}
