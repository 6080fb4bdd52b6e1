//! One connection to a server: an exchange on it, how long that may take, and whether another may
//! follow.
//!
//! Dropping a connection closes its socket. It comes back to its server only if everything about
//! its last exchange was in order: the request sent whole, the response read to its end, and the
//! server still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tokio::task::{AbortHandle, JoinHandle};

use super::beside::Beside;
use super::error::UpstreamError;
use super::http1::{Crossing, Http1, Upgraded};
use super::http2::Stream;
use super::server::Seat;
use super::spare;
use crate::body::RequestBody;
use crate::clock::Alarm;

/// What one request at a time is sent on: a connection of HTTP/1.1, or a place on one of HTTP/2.
#[derive(Debug)]
pub(super) enum Connection {
    /// Boxed once, so that responses, which carry it, are cheap to move.
    Http1(Box<Http1>),
    /// The same while its request is still being sent and the response has begun.
    Crossing(Box<Crossing>),
    Http2(Box<Stream>),
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

/// Why there is no response on a connection.
pub(super) enum Failure {
    /// The connection had gone before anything was sent, or the server has said that it will not
    /// look at it: the request is what it was.
    Unsent(UpstreamError),
    /// The request, or part of it, may have been seen. Nothing of it is left.
    Sent(UpstreamError),
}

impl Connection {
    /// Sends the request, with the lines `beside` it, and waits for the head of its response,
    /// which is put into `answer`. A request that has no body can be kept, so that it could be
    /// sent again. `upgrade` says whether it asks for a tunnel.
    pub(super) async fn exchange<B>(
        &mut self,
        request: &mut Request<RequestBody>,
        answer: &mut Response<B>,
        (beside, keep, upgrade): (Option<&Beside>, bool, bool),
    ) -> Result<(), Failure> {
        match self {
            Connection::Http1(connection) => {
                let with = (beside, upgrade);
                connection.exchange(request, answer, with).await
            }
            // Boxed, so that what waits for HTTP/1.1 is no larger for it.
            Connection::Http2(stream) => {
                if let Some(beside) = beside {
                    beside.join(request.headers_mut());
                }
                stream.spare = keep.then(|| spare::copy(request));
                let (head, ()) = Box::pin(stream.exchange(request)).await?.into_parts();
                *answer.status_mut() = head.status;
                *answer.version_mut() = head.version;
                *answer.headers_mut() = head.headers;
                *answer.extensions_mut() = head.extensions;
                Ok(())
            }
            // Never: it has a request.
            Connection::Crossing(_) => Err(Failure::Unsent(UpstreamError::NoServer)),
        }
    }

    /// The request that was sent last, which was to be kept.
    pub(super) fn take_spare(&mut self) -> Option<Request<RequestBody>> {
        match self {
            Connection::Http1(connection) => spare::parsed(connection.sent()),
            Connection::Http2(stream) => stream.spare.take(),
            Connection::Crossing(_) => None,
        }
    }

    /// The next piece of the response's content.
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match self {
            Connection::Http1(connection) => connection.poll_frame(context),
            Connection::Crossing(crossing) => crossing.poll_frame(context),
            Connection::Http2(stream) => stream.poll_frame(context),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Connection::Http1(connection) => connection.is_end_stream(),
            Connection::Crossing(crossing) => crossing.is_end_stream(),
            Connection::Http2(stream) => stream.is_end_stream(),
        }
    }

    /// Whether all of the response's content has been read from the network.
    pub(super) fn has_all(&self) -> bool {
        match self {
            Connection::Http1(connection) => connection.has_all(),
            Connection::Crossing(crossing) => crossing.is_end_stream(),
            Connection::Http2(stream) => stream.is_end_stream(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Connection::Http1(connection) => connection.size_hint(),
            Connection::Crossing(crossing) => crossing.size_hint(),
            Connection::Http2(stream) => stream.size_hint(),
        }
    }
}

/// A connection and its place, for one exchange. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) connection: Connection,
    seat: Seat,
}

impl Lease {
    /// For the response of `connection`, whose head has come.
    pub(super) fn new(connection: Connection, seat: Seat) -> Lease {
        let connection = match connection {
            Connection::Http1(connection) if connection.is_sending() => {
                Connection::Crossing(Crossing::new(connection))
            }
            other => other,
        };
        Lease { connection, seat }
    }

    /// The place of the request.
    pub(super) fn seat(&self) -> &Seat {
        &self.seat
    }

    pub(super) fn deadline(&self) -> &Deadline {
        match &self.connection {
            Connection::Http1(connection) => &connection.deadline,
            Connection::Crossing(crossing) => &crossing.deadline,
            Connection::Http2(stream) => stream.deadline(),
        }
    }

    /// The response has been read to its end.
    pub(super) fn give_back(self) {
        let Lease { connection, seat } = self;
        match connection {
            Connection::Http1(connection) => {
                if let Some(connection) = connection.end() {
                    seat.keep(connection);
                }
            }
            Connection::Crossing(crossing) => crossing.end(seat),
            Connection::Http2(stream) => stream.end(seat.settings().timeout),
        }
    }

    /// The connection has become a tunnel: from now on it belongs to whoever uses that.
    pub(super) fn into_tunnel(self) -> Option<(Upgraded, Seat)> {
        match self.connection {
            Connection::Http1(connection) => Some((connection.upgraded(), self.seat)),
            Connection::Crossing(_) | Connection::Http2(_) => None,
        }
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

    /// With the same alarm, for the body.
    pub(super) fn twin(&self) -> Deadline {
        Deadline::new(Arc::clone(&self.alarm), (self.head, self.body))
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

    /// Rings in `time` from now.
    pub(super) fn arm(&self, time: Duration) {
        self.alarm.arm(time);
    }

    pub(super) fn disarm(&self) {
        self.alarm.disarm();
    }

    pub(super) fn has_rung(&self) -> bool {
        self.alarm.has_rung()
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(context)
    }
}
