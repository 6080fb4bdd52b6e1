//! One connection to a server: an exchange on it, how long that may take, and whether another may
//! follow.
//!
//! Dropping a connection closes its socket. It comes back to its server only if everything about
//! its last exchange was in order: the request sent whole, the response read to its end, and the
//! server still there.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};

use super::body::RequestBody;
use super::connect::Patient;
use super::error::UpstreamError;
use super::http2::{Download, Stream};
use super::server::Seat;
use super::spare::{self, Written};
use crate::clock::{Alarm, Sweep};

/// Bytes in the head of a response, or in its trailers.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Bytes read ahead of a response's reader, and written ahead of the network, per connection.
const MAX_BUFFER_BYTES: usize = 128 << 10;

/// What one request at a time is sent on: a connection of HTTP/1.1, or a place on one of HTTP/2.
#[derive(Debug)]
pub(super) enum Connection {
    /// Boxed once, so that responses, which carry it, are cheap to move.
    Http1(Box<Http1>),
    Http2(Box<Stream>),
}

/// A connection between hyper's task, which owns the socket, and whoever has its requests sent.
/// Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Http1 {
    sender: SendRequest<RequestBody>,
    deadline: Arc<Deadline>,
    written: Arc<Written>,
    task: Task,
}

/// Ends the task when dropped, unless it was let go.
#[derive(Debug)]
pub(super) struct Task(Option<AbortHandle>);

impl Task {
    pub(super) fn none() -> Task {
        Task(None)
    }

    pub(super) fn of(task: &JoinHandle<()>) -> Task {
        Task(Some(task.abort_handle()))
    }

    /// Lets go of it, if it has not ended.
    pub(super) fn take_unfinished(&mut self) -> Option<AbortHandle> {
        self.0.take().filter(|task| !task.is_finished())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// What a response's content is read from.
#[derive(Debug)]
pub(super) enum Content {
    Http1(Incoming),
    Http2(Box<Download>),
}

impl Content {
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match self {
            Content::Http1(incoming) => Pin::new(incoming)
                .poll_frame(context)
                .map_err(UpstreamError::of),
            Content::Http2(download) => download
                .poll_frame(context)
                .map_err(UpstreamError::of_http2),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Content::Http1(incoming) => incoming.is_end_stream(),
            Content::Http2(download) => download.is_end_stream(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Content::Http1(incoming) => incoming.size_hint(),
            Content::Http2(download) => download.size_hint(),
        }
    }
}

/// Why there is no response on a connection.
pub(super) enum Failure {
    /// The connection had gone before anything was sent, or the server has said that it will not
    /// look at it: the request comes back.
    Unsent(Box<Request<RequestBody>>, UpstreamError),
    /// The request, or part of it, may have been seen.
    Sent(UpstreamError),
}

impl Connection {
    /// Sends the request and waits for the head of its response. One that has no body can be kept,
    /// so that it could be sent again.
    pub(super) async fn exchange(
        &mut self,
        request: Request<RequestBody>,
        keep: bool,
    ) -> Result<Response<Content>, Failure> {
        match self {
            Connection::Http1(connection) => {
                connection.written.expect(keep);
                let response = connection.exchange(request).await?;
                Ok(response.map(Content::Http1))
            }
            // Boxed, so that what waits for HTTP/1.1 is no larger for it.
            Connection::Http2(stream) => {
                stream.spare = keep.then(|| spare::copy(&request));
                let response = Box::pin(stream.exchange(request)).await?;
                Ok(response.map(|content| Content::Http2(Box::new(content))))
            }
        }
    }

    /// The request that was sent last, which was to be kept.
    pub(super) fn take_spare(&mut self) -> Option<Request<RequestBody>> {
        match self {
            Connection::Http1(connection) => connection.written.request(),
            Connection::Http2(stream) => stream.spare.take(),
        }
    }

    fn deadline(&self) -> &Deadline {
        match self {
            Connection::Http1(connection) => &connection.deadline,
            Connection::Http2(stream) => stream.deadline(),
        }
    }
}

impl Http1 {
    /// Shakes hands over `stream`. Its deadlines, the head's and the body's, are `waits`.
    pub(super) async fn open(
        stream: Patient,
        sweep: &Sweep,
        waits: (Duration, Duration),
    ) -> Result<Box<Http1>, UpstreamError> {
        let mut http = http1::Builder::new();
        http.max_buf_size(MAX_BUFFER_BYTES)
            .max_header_size(MAX_HEAD_BYTES);
        let written = Arc::clone(&stream.written);
        let handshake = http.handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(UpstreamError::of)?;
        let task = tokio::spawn(async move {
            // Whoever waits for an answer is told as well; between requests it is no news.
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "upstream connection");
            }
        });
        Ok(Box::new(Http1 {
            sender,
            deadline: Arc::new(Deadline::new(sweep.alarm(), waits)),
            written,
            task: Task::of(&task),
        }))
    }

    /// It will be too old in `time` from now.
    pub(super) fn grow_old_in(&self, time: Duration) {
        self.deadline.alarm.arm(time);
    }

    /// The response has been read to its end.
    fn give_back(self: Box<Self>, seat: Seat) {
        if self.sender.is_closed() {
            return;
        }
        if self.sender.is_ready() {
            seat.keep(self);
        } else if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(finish_upload(self, seat));
        }
    }

    /// Whether another exchange may begin on it.
    pub(super) fn is_usable(&self) -> bool {
        self.sender.is_ready() && !self.deadline.alarm.has_rung()
    }

    /// Sends the request and waits for the head of its response.
    pub(super) async fn exchange(
        &mut self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        self.deadline.await_head();
        if !request.body().is_end_stream() {
            request.body_mut().move_deadline(&self.deadline);
        }
        let mut answer = pin!(self.sender.try_send_request(request));
        let answered = poll_fn(|context| {
            if let Poll::Ready(answered) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(answered));
            }
            self.deadline.poll(context).map(|()| None)
        })
        .await;
        self.deadline.end_head();
        match answered {
            Some(Ok(response)) => Ok(response),
            Some(Err(mut refused)) => Err(match refused.take_message() {
                Some(request) => {
                    let error = UpstreamError::of(refused.into_error());
                    Failure::Unsent(Box::new(request), error)
                }
                None => Failure::Sent(UpstreamError::of(refused.into_error())),
            }),
            None => Err(Failure::Sent(UpstreamError::TimedOut)),
        }
    }
}

/// A connection and its place, for one exchange. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Connection,
    seat: Seat,
    /// Whether the server's side of the exchange was such that another may follow.
    reusable: bool,
}

impl Lease {
    pub(super) fn new(connection: Connection, seat: Seat, reusable: bool) -> Lease {
        Lease {
            connection,
            seat,
            reusable,
        }
    }

    pub(super) fn deadline(&self) -> &Deadline {
        self.connection.deadline()
    }

    /// The response has been read to its end.
    pub(super) fn give_back(self) {
        let Lease {
            connection,
            seat,
            reusable,
        } = self;
        match connection {
            Connection::Http1(connection) if reusable => connection.give_back(seat),
            Connection::Http1(_) => {}
            Connection::Http2(stream) => stream.end(seat.settings().timeout),
        }
    }

    /// The connection has become a tunnel: from now on it belongs to whoever uses that.
    pub(super) fn let_go(mut self) -> Seat {
        if let Connection::Http1(connection) = &mut self.connection {
            connection.task.0 = None;
        }
        self.seat
    }
}

/// The response was complete before the request was. Its server may still be reading: it gets the
/// rest, as long as that keeps coming.
async fn finish_upload(mut connection: Box<Http1>, seat: Seat) {
    let most = seat.settings().timeout;
    if let Ok(Ok(())) = tokio::time::timeout(most, connection.sender.ready()).await {
        seat.keep(connection);
    }
}

/// What one connection waits for at most, moved by a store: no timer is armed for a request.
#[derive(Debug)]
pub(super) struct Deadline {
    alarm: Arc<Alarm>,
    head: Duration,
    body: Duration,
    /// Whether the head of the response is still to come, so that the upload may move the alarm.
    awaits_head: AtomicBool,
}

impl Deadline {
    /// Of the head and of each piece of the body.
    pub(super) fn new(alarm: Arc<Alarm>, (head, body): (Duration, Duration)) -> Deadline {
        Deadline {
            alarm,
            head,
            body,
            awaits_head: AtomicBool::new(false),
        }
    }

    pub(super) fn await_head(&self) {
        self.awaits_head.store(true, Ordering::Relaxed);
        self.alarm.arm(self.head);
    }

    pub(super) fn end_head(&self) {
        self.awaits_head.store(false, Ordering::Relaxed);
        // An idle connection's alarm says that it is too old; one that rang must not.
        self.alarm.disarm();
    }

    /// A piece of the upload has `come`, and it is the server's turn to take it; or the client has
    /// none, and the server is not to blame for the time that passes.
    pub(super) fn upload(&self, come: bool) {
        if !self.awaits_head.load(Ordering::Relaxed) {
            return;
        }
        if come {
            self.alarm.arm(self.head);
        } else {
            self.alarm.disarm();
        }
    }

    pub(super) fn arm_body(&self) {
        self.alarm.arm(self.body);
    }

    pub(super) fn disarm(&self) {
        self.alarm.disarm();
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(context)
    }
}
