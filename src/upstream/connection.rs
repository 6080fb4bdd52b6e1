//! A connection with one exchange on it, in either protocol, and the lease that holds it while the
//! response is read.
//!
//! Dropping a connection closes its socket. The connection returns to its server only after a
//! complete request and a complete response, and while the server is still there.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};

use super::connect::TolerantStream;
use super::deadline::{AbortOnDrop, Deadline};
use super::error::{ExchangeError, UpstreamError};
use super::http1::Http1;
use super::http2::Http2Stream;
use super::outgoing::{PrerenderedHeaders, copy_request, parse_request};
use super::permit::ServerPermit;
use crate::body::RequestBody;

/// A connection for one request at a time.
#[derive(Debug)]
pub(super) enum UpstreamConnection {
    /// Boxed, so that responses, which hold it, are cheap to move.
    Http1(Box<Http1>),
    /// A connection of HTTP/1.1 whose response began before its request was sent whole.
    EarlyResponse(Box<EarlyResponse>),
    /// A stream on a shared connection.
    Http2(Box<Http2Stream>),
}

/// How a request is sent.
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
                let ExchangeOptions {
                    prerendered,
                    asks_upgrade,
                    ..
                } = options;
                connection
                    .exchange(request, response, prerendered, asks_upgrade)
                    .await
            }
            UpstreamConnection::Http2(stream) => {
                if let Some(prerendered) = options.prerendered {
                    prerendered.insert_into(request.headers_mut());
                }
                stream.retry_copy = options.keeps_copy.then(|| copy_request(request));
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

    /// The copy of the last request.
    pub(super) fn take_retry_copy(&mut self) -> Option<Request<RequestBody>> {
        match self {
            UpstreamConnection::Http1(connection) => parse_request(connection.sent_head()),
            UpstreamConnection::Http2(stream) => stream.retry_copy.take(),
            UpstreamConnection::EarlyResponse(_) => None,
        }
    }

    /// The next piece of the response's content.
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

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            UpstreamConnection::Http1(connection) => connection.is_end_stream(),
            UpstreamConnection::EarlyResponse(early) => early.is_end_stream(),
            UpstreamConnection::Http2(stream) => stream.is_end_stream(),
        }
    }

    /// Whether all content of the response was read from the network.
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
    /// Why the request could not be sent whole.
    error: Option<UpstreamError>,
    /// Wakes the task that reads the response.
    reader: Option<Waker>,
    /// Set when the response has ended before the request.
    ended: Option<ServerPermit>,
}

impl EarlyResponseShared {
    fn lock(&self) -> MutexGuard<'_, EarlyResponseState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_send(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let has_ended = state.ended.is_some();
        let Some(connection) = &mut state.connection else {
            return Poll::Ready(());
        };
        if has_ended && connection.is_deaf() {
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
        let mut state = self.lock();
        if let Some(permit) = state.ended.take()
            && let Some(connection) = state.connection.take()
        {
            drop(state);
            permit.give_back(connection);
        }
    }
}

impl ServerPermit {
    /// Ends an exchange, and keeps its connection for the next request if possible.
    fn give_back(&self, connection: Box<Http1>) {
        if let Some(connection) = connection.end() {
            self.server().keep(connection);
        }
    }
}

impl EarlyResponse {
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
        let mut state = self.shared.lock();
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
        let state = self.shared.lock();
        let connection = state.connection.as_ref();
        connection.is_some_and(|connection| connection.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.shared.lock();
        let connection = state.connection.as_ref();
        connection.map_or(SizeHint::default(), |connection| connection.size_hint())
    }

    /// Ends a response that was read to its end. The server may still read the request, and gets
    /// the rest of it for `grace`.
    fn end(mut self, permit: ServerPermit, grace: Duration) {
        let mut state = self.shared.lock();
        if state
            .connection
            .as_ref()
            .is_some_and(|one| one.is_sending())
        {
            state.ended = Some(permit);
            drop(state);
            self.upload.abort_after(grace);
        } else if let Some(connection) = state.connection.take() {
            drop(state);
            permit.give_back(connection);
        }
    }
}

impl Drop for EarlyResponse {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
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
            UpstreamConnection::Http1(connection) if connection.is_sending() => {
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

    /// Ends a response that was read to its end.
    pub(super) fn end(self) {
        let ResponseLease { connection, permit } = self;
        let grace = permit.settings().timeout;
        match connection {
            UpstreamConnection::Http1(connection) => permit.give_back(connection),
            UpstreamConnection::EarlyResponse(early) => early.end(permit, grace),
            UpstreamConnection::Http2(stream) => stream.end(grace),
        }
    }

    /// The tunnel that the connection is after 101.
    pub(super) fn into_tunnel(self) -> Option<(TolerantStream, ServerPermit)> {
        match self.connection {
            UpstreamConnection::Http1(connection) => Some((connection.into_tunnel(), self.permit)),
            UpstreamConnection::EarlyResponse(_) | UpstreamConnection::Http2(_) => None,
        }
    }
}
