//! A connection with one exchange on it, in either protocol: how a request with a permit gets one,
//! and the lease that holds it while the response is read.
//!
//! Dropping a connection closes its socket. The connection returns to its server only after a
//! complete request and a complete response, and while the server is still there.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tokio::time::timeout;

use super::PrerenderedHeaders;
use super::connect::TolerantStream;
use super::deadline::{AbortOnDrop, Deadline};
use super::error::{ExchangeError, UpstreamError};
use super::http1::Http1;
use super::http2::{ConnectionTerms, Http2Connection, Http2Pool, Http2Stream};
use super::permit::ServerPermit;
use crate::body::RequestBody;
use crate::connection_use::ConnectionUse;
use crate::telemetry::panics::lock;
use crate::telemetry::spans::AttemptBytes;
use crate::wire::Stream;

#[derive(Debug)]
pub(super) enum UpstreamConnection {
    /// Boxed, so that responses, which hold it, are cheap to move.
    Http1(Box<Http1>),
    /// A connection of HTTP/1.1 whose response began before its request was sent whole.
    EarlyResponse(Box<EarlyResponse>),
    Http2(Box<Http2Stream>),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExchangeOptions<'a> {
    pub(super) prerendered: Option<&'a PrerenderedHeaders>,
    /// Whether to keep a copy for a retry, of a request without a body.
    pub(super) keeps_copy: bool,
    pub(super) asks_upgrade: bool,
}

impl UpstreamConnection {
    /// Sends the request and waits for the head of the response, which goes into `response`.
    pub(super) async fn exchange<B>(
        &mut self,
        request: &mut Request<RequestBody>,
        response: &mut Response<B>,
        options: ExchangeOptions<'_>,
    ) -> Result<(), ExchangeError> {
        match self {
            UpstreamConnection::Http1(connection) => {
                let (prerendered, asks_upgrade) = (options.prerendered, options.asks_upgrade);
                let exchange = connection.exchange(request, response, prerendered, asks_upgrade);
                exchange.await
            }
            UpstreamConnection::Http2(stream) => {
                if let Some(prerendered) = options.prerendered {
                    prerendered.insert_into(request.headers_mut());
                }
                if options.keeps_copy {
                    stream.keep_copy(request);
                }
                // Boxed, so that it adds nothing to the future for HTTP/1.1.
                let (head, ()) = Box::pin(stream.exchange(request)).await?.into_parts();
                *response.status_mut() = head.status;
                *response.version_mut() = head.version;
                *response.headers_mut() = head.headers;
                *response.extensions_mut() = head.extensions;
                Ok(())
            }
            // Unreachable: the connection has a request.
            UpstreamConnection::EarlyResponse(_) => {
                Err(ExchangeError::Unsent(UpstreamError::NoServer))
            }
        }
    }

    pub(super) fn take_retry_copy(&mut self) -> Option<Request<RequestBody>> {
        match self {
            UpstreamConnection::Http1(connection) => connection.retry_copy(),
            UpstreamConnection::Http2(stream) => stream.retry_copy.take(),
            UpstreamConnection::EarlyResponse(_) => None,
        }
    }

    /// The connection, if other requests share it.
    pub(super) fn shared(&self) -> Option<&Arc<Http2Connection>> {
        match self {
            UpstreamConnection::Http1(_) | UpstreamConnection::EarlyResponse(_) => None,
            UpstreamConnection::Http2(stream) => Some(&stream.connection),
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match self {
            UpstreamConnection::Http1(connection) => connection.poll_frame(context),
            UpstreamConnection::EarlyResponse(early) => early.poll_frame(context),
            UpstreamConnection::Http2(stream) => stream.poll_frame(context),
        }
    }

    /// Bytes of the current exchange, as far as the protocol tells them.
    pub(super) fn bytes(&self) -> AttemptBytes {
        match self {
            UpstreamConnection::Http1(connection) => connection.bytes(),
            UpstreamConnection::EarlyResponse(early) => early.bytes(),
            UpstreamConnection::Http2(_) => AttemptBytes::default(),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            UpstreamConnection::Http1(connection) => connection.is_end_stream(),
            UpstreamConnection::EarlyResponse(early) => early.is_end_stream(),
            UpstreamConnection::Http2(stream) => stream.is_end_stream(),
        }
    }

    pub(super) fn has_all(&self) -> bool {
        match self {
            UpstreamConnection::Http1(connection) => connection.has_all(),
            other => other.is_end_stream(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            UpstreamConnection::Http1(connection) => connection.size_hint(),
            UpstreamConnection::EarlyResponse(early) => early.size_hint(),
            UpstreamConnection::Http2(stream) => stream.size_hint(),
        }
    }
}

/// A response that began before its request was sent whole. A task sends the rest while the
/// response is read, so neither direction waits for the other.
///
/// Dropping it closes the connection, unless the response has ended.
#[derive(Debug)]
pub(super) struct EarlyResponse {
    shared: Arc<EarlyResponseShared>,
    deadline: Deadline,
    upload: AbortOnDrop,
}

#[derive(Debug)]
struct EarlyResponseShared(Mutex<EarlyResponseState>);

#[derive(Debug)]
struct EarlyResponseState {
    /// `None` after it was closed or went back to its server.
    connection: Option<Box<Http1>>,
    error: Option<UpstreamError>,
    /// Wakes the task that reads the response.
    reader: Option<Waker>,
    /// Set when the response has ended before the request.
    ended: Option<ServerPermit>,
}

impl EarlyResponseShared {
    fn poll_send(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        let has_ended = state.ended.is_some();
        let Some(connection) = &mut state.connection else {
            return Poll::Ready(());
        };
        if has_ended && connection.is_deaf {
            // The server reads nothing more, and the response is complete.
            state.connection = None;
            return Poll::Ready(());
        }
        if let Err(error) = ready!(connection.poll_send(context)) {
            state.connection = None;
            state.error = Some(error.into());
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
        Poll::Ready(())
    }

    /// Gives the connection back if the response has ended as well.
    fn end_request(&self) {
        let mut state = lock(&self.0);
        if let Some(permit) = state.ended.take()
            && let Some(connection) = state.connection.take()
        {
            drop(state);
            permit.return_connection(connection);
        }
    }
}

impl ServerPermit {
    /// A connection that is open already: the idle one used last, or a stream on a shared one.
    pub(super) fn pooled(&self, asks_upgrade: bool) -> Option<UpstreamConnection> {
        if let Some(connection) = self.server.take_idle() {
            return Some(UpstreamConnection::Http1(connection));
        }
        let pool = self.server.http2.as_ref()?;
        self.open_stream(pool, asks_upgrade)
    }

    fn open_stream(&self, pool: &Http2Pool, asks_upgrade: bool) -> Option<UpstreamConnection> {
        if pool.needs_http1(asks_upgrade) {
            return None;
        }
        let now = self.server.terms.sweep.elapsed();
        let found = pool.with_room(now, self.avoided.as_ref());
        found.map(|found| self.use_http2(pool, found))
    }

    /// A new connection, or a stream on one that opened meanwhile.
    pub(super) async fn connect(
        &self,
        asks_upgrade: bool,
    ) -> Result<UpstreamConnection, UpstreamError> {
        // A client that resets its stream at once is noticed here, before it costs a connection.
        tokio::task::yield_now().await;
        if let Some(pool) = &self.server.http2 {
            return self.connect_http2(pool, asks_upgrade).await;
        }
        let connected = self.server.address.connect(self.settings().connect_timeout);
        Ok(self.use_http1(connected.await?))
    }

    /// While one request connects, the others wait for its result: a burst opens one connection,
    /// and a failure fails all of them.
    async fn connect_http2(
        &self,
        pool: &Http2Pool,
        asks_upgrade: bool,
    ) -> Result<UpstreamConnection, UpstreamError> {
        if pool.needs_http1(asks_upgrade) {
            return self.open(pool, asks_upgrade).await;
        }
        let before = pool.attempts();
        let turn = pool.connecting.lock().await;
        if let Some(stream) = self.open_stream(pool, asks_upgrade) {
            return Ok(stream);
        }
        if let Some(young) = pool.without_settings() {
            // Neither its number of streams is known, nor whether its server speaks HTTP/2.
            let has_settings = young.wait_for_settings().await;
            if let Some(stream) = self.open_stream(pool, asks_upgrade) {
                return Ok(stream);
            }
            if !has_settings && young.is_silent() {
                pool.note_attempt(Some(UpstreamError::ConnectTimedOut));
                return Err(UpstreamError::ConnectTimedOut);
            }
        }
        if pool.attempts() != before
            && let Some(failure) = pool.last_failure()
        {
            return Err(failure);
        }
        if pool.needs_http1(asks_upgrade) {
            drop(turn);
            return self.open(pool, asks_upgrade).await;
        }
        let opened = self.open(pool, asks_upgrade).await;
        pool.note_attempt(opened.as_ref().err().map(UpstreamError::duplicate));
        opened
    }

    async fn open(
        &self,
        pool: &Http2Pool,
        only_http1: bool,
    ) -> Result<UpstreamConnection, UpstreamError> {
        let opened = timeout(
            self.settings().connect_timeout,
            self.open_untimed(pool, only_http1),
        );
        opened.await.unwrap_or(Err(UpstreamError::ConnectTimedOut))
    }

    async fn open_untimed(
        &self,
        pool: &Http2Pool,
        only_http1: bool,
    ) -> Result<UpstreamConnection, UpstreamError> {
        let (server, settings) = (&self.server, self.settings());
        let stream = server.address.connect(settings.connect_timeout).await?;
        let (stream, is_http2) = match (&pool.tls_name, &server.terms.tls) {
            (Some(_), Some(Err(trouble))) => return Err(UpstreamError::Tls(*trouble)),
            (Some(host), Some(Ok(tls))) => tls.handshake(stream, host, only_http1).await?,
            _ => (stream, true),
        };
        if !only_http1 {
            pool.set_chose_http1(!is_http2);
        }
        if !is_http2 {
            return Ok(self.use_http1(stream));
        }
        let stream = TolerantStream::new(stream, Bytes::new());
        let terms = ConnectionTerms {
            settings,
            sweep: &server.terms.sweep,
            usage: self.usage(),
            first_streams: pool.first_streams(),
        };
        let opened = Http2Connection::open(stream, terms).await;
        let connection = opened.map_err(UpstreamError::opening_http2)?;
        pool.add(Arc::clone(&connection));
        server.close_when_old();
        Ok(self.use_http2(pool, connection))
    }

    fn use_http1(&self, stream: Stream) -> UpstreamConnection {
        UpstreamConnection::Http1(Http1::new(stream, self.deadline(), self.usage()))
    }

    fn use_http2(&self, pool: &Http2Pool, connection: Arc<Http2Connection>) -> UpstreamConnection {
        let scheme = match pool.tls_name {
            Some(_) => Scheme::HTTPS,
            None => Scheme::HTTP,
        };
        let (deadline, host) = (Arc::new(self.deadline()), self.server.host.clone());
        let stream = Http2Stream::new(connection, deadline, scheme, host);
        UpstreamConnection::Http2(Box::new(stream))
    }

    fn usage(&self) -> ConnectionUse {
        let now = self.server.terms.sweep.elapsed();
        ConnectionUse::new(self.settings().connections, now)
    }

    fn deadline(&self) -> Deadline {
        let (settings, sweep) = (self.settings(), &self.server.terms.sweep);
        Deadline::new(sweep.alarm(), settings.timeout, settings.body_timeout)
    }

    /// Ends an exchange, and keeps its connection for the next request if possible.
    fn return_connection(&self, connection: Box<Http1>) {
        connection.usage.count_request();
        if let Some(connection) = connection.end() {
            self.server.keep_idle(connection);
        }
    }
}

impl EarlyResponse {
    fn bytes(&self) -> AttemptBytes {
        let state = lock(&self.shared.0);
        let connection = state.connection.as_ref();
        connection.map_or_else(AttemptBytes::default, |connection| connection.bytes())
    }

    fn new(connection: Box<Http1>) -> Box<EarlyResponse> {
        let deadline = connection.deadline.for_body();
        let shared = Arc::new(EarlyResponseShared(Mutex::new(EarlyResponseState {
            connection: Some(connection),
            error: None,
            reader: None,
            ended: None,
        })));
        let sending = Arc::clone(&shared);
        let upload = tokio::spawn(async move {
            poll_fn(|context| sending.poll_send(context)).await;
            sending.end_request();
        });
        Box::new(EarlyResponse {
            shared,
            deadline,
            upload: AbortOnDrop::new(&upload),
        })
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let mut state = lock(&self.shared.0);
        let Some(connection) = &mut state.connection else {
            let error = state.error.take();
            return Poll::Ready(Some(Err(error.unwrap_or_else(UpstreamError::ended_early))));
        };
        let polled = connection.poll_frame(context);
        if polled.is_pending() {
            state.reader = Some(context.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.shared.0);
        let connection = state.connection.as_ref();
        connection.is_some_and(|connection| connection.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let state = lock(&self.shared.0);
        let connection = state.connection.as_ref();
        connection.map_or(SizeHint::default(), |connection| connection.size_hint())
    }

    /// Ends a response that was read to its end. The server may still read the request, and gets
    /// the rest of it for `grace`.
    fn end(mut self, permit: ServerPermit, grace: Duration) {
        let mut state = lock(&self.shared.0);
        let connection = state.connection.as_ref();
        if connection.is_some_and(|one| one.is_sending) {
            state.ended = Some(permit);
            drop(state);
            self.upload.abort_after(grace);
        } else if let Some(connection) = state.connection.take() {
            drop(state);
            permit.return_connection(connection);
        }
    }
}

impl Drop for EarlyResponse {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.0);
        if state.ended.is_none() {
            state.connection = None;
        }
    }
}

/// A connection and its permit, for one exchange. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct ResponseLease {
    pub(super) connection: UpstreamConnection,
    pub(super) permit: ServerPermit,
}

impl ResponseLease {
    /// Prepares to read the body, after the head of the response has come.
    pub(super) fn begin_body(self) -> ResponseLease {
        let ResponseLease { connection, permit } = self;
        let connection = match connection {
            UpstreamConnection::Http1(connection) if connection.is_sending => {
                UpstreamConnection::EarlyResponse(EarlyResponse::new(connection))
            }
            other => other,
        };
        ResponseLease { connection, permit }
    }

    pub(super) fn deadline(&self) -> &Deadline {
        match &self.connection {
            UpstreamConnection::Http1(connection) => &connection.deadline,
            UpstreamConnection::EarlyResponse(early) => &early.deadline,
            UpstreamConnection::Http2(stream) => &stream.deadline,
        }
    }

    pub(super) fn end(self) {
        let ResponseLease { connection, permit } = self;
        let grace = permit.settings().timeout;
        match connection {
            UpstreamConnection::Http1(connection) => permit.return_connection(connection),
            UpstreamConnection::EarlyResponse(early) => early.end(permit, grace),
            UpstreamConnection::Http2(stream) => stream.end(grace),
        }
    }

    pub(super) fn into_tunnel(self) -> Option<(TolerantStream, ServerPermit)> {
        match self.connection {
            UpstreamConnection::Http1(connection) => Some((connection.into_tunnel(), self.permit)),
            UpstreamConnection::EarlyResponse(_) | UpstreamConnection::Http2(_) => None,
        }
    }
}
