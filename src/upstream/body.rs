//! Bodies on their way through: the client's towards an upstream, an upstream's towards the
//! client. Both are streamed; neither is ever collected.
//!
//! Lengths and trailers pass through, so that hyper frames each side as the other was framed. A
//! response's body that does not end well is an error, which cuts the client's connection: it
//! must never look complete.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::error::UpstreamError;
use super::pool::{Deadline, Lease, Seat};

/// Bytes of a body nobody wants that are read all the same, to keep its connection.
const DISCARD_BYTES: u64 = 1 << 20;

/// How far a client connection's current request body has been read. Shared between the body,
/// which is owned by an upstream connection, and the client's socket.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    bytes: AtomicU64,
    unfinished: AtomicBool,
    too_large: AtomicBool,
}

impl Progress {
    /// A new request begins, with or without a body.
    pub fn restart(&self, has_body: bool) {
        self.0.bytes.store(0, Ordering::Relaxed);
        self.0.unfinished.store(has_body, Ordering::Relaxed);
        self.0.too_large.store(false, Ordering::Relaxed);
    }

    /// Bytes of content read so far.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Whether the body has been read to its end; true when there is none.
    pub fn has_ended(&self) -> bool {
        !self.0.unfinished.load(Ordering::Relaxed)
    }

    /// Whether it was longer than allowed.
    pub fn is_too_large(&self) -> bool {
        self.0.too_large.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.0.unfinished.store(false, Ordering::Relaxed);
    }
}

/// Why a request's body did not reach its end: always on the client's side.
#[derive(Clone, Debug)]
pub enum BodyError {
    /// It is longer than allowed.
    TooLarge,
    /// The client let too much time pass between two pieces.
    TimedOut(Arc<hyper::Error>),
    /// The client went away in the middle, or broke the framing.
    Broken(Arc<hyper::Error>),
}

impl BodyError {
    fn of(error: hyper::Error) -> BodyError {
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(io) = inner.downcast_ref::<io::Error>()
                && io.kind() == io::ErrorKind::TimedOut
            {
                return BodyError::TimedOut(Arc::new(error));
            }
            cause = inner.source();
        }
        BodyError::Broken(Arc::new(error))
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyError::TooLarge => "the body is longer than allowed",
            BodyError::TimedOut(_) => "the body did not arrive in time",
            BodyError::Broken(_) => "the body is malformed or ended too early",
        })
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BodyError::TooLarge => None,
            BodyError::TimedOut(error) | BodyError::Broken(error) => Some(error.as_ref()),
        }
    }
}

/// A request's body.
#[derive(Debug, Default)]
pub struct RequestBody {
    incoming: Option<Incoming>,
    progress: Option<Progress>,
    /// Content bytes that may still come; `None` for no bound.
    left: Option<u64>,
    deadline: Option<Arc<Deadline>>,
    /// The client sends nothing until it is asked to (`Expect: 100-continue`), and was not asked.
    awaits_continue: bool,
    /// Nothing more is to be read of it, whatever is left.
    given_up: bool,
}

impl RequestBody {
    /// No body.
    pub fn empty() -> RequestBody {
        RequestBody::default()
    }

    /// The body that a client sends; `progress` follows it.
    pub fn new(incoming: Incoming, progress: Progress) -> RequestBody {
        let mut body = RequestBody::default();
        body.incoming = Some(incoming);
        body.progress = Some(progress);
        body
    }

    /// The client waits for `100 Continue`: reading asks it for its body, dropping does not.
    pub fn await_continue(&mut self) {
        self.awaits_continue = true;
    }

    /// Whether what is left of it is read and thrown away when it is dropped, so that the
    /// connection can serve another request.
    pub fn is_discardable(&self) -> bool {
        !self.awaits_continue && self.size_hint().lower() <= DISCARD_BYTES
    }

    /// Lets at most `most` bytes of content pass; one more is [`BodyError::TooLarge`].
    pub fn limit(&mut self, most: u64) {
        self.left = Some(most);
    }

    /// Has `deadline` moved as the body moves, until the response's head has come.
    pub(super) fn move_deadline(&mut self, deadline: &Arc<Deadline>) {
        self.deadline = Some(Arc::clone(deadline));
    }

    fn count(&mut self, length: usize) -> Result<(), BodyError> {
        let length = length as u64;
        let Some(left) = self
            .left
            .map_or(Some(None), |left| left.checked_sub(length).map(Some))
        else {
            if let Some(progress) = &self.progress {
                progress.0.too_large.store(true, Ordering::Relaxed);
            }
            return Err(BodyError::TooLarge);
        };
        self.left = left;
        if let Some(progress) = &self.progress {
            progress.0.bytes.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    fn end(&self) {
        if let Some(progress) = &self.progress {
            progress.end();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.awaits_continue = false;
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut *incoming).poll_frame(context);
        let at_end = incoming.is_end_stream();
        if let Some(deadline) = &self.deadline {
            deadline.upload(polled.is_ready());
        }
        Poll::Ready(match ready!(polled) {
            None => {
                self.end();
                None
            }
            Some(Err(error)) => {
                self.given_up = true;
                Some(Err(BodyError::of(error)))
            }
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref()
                    && let Err(error) = self.count(data.len())
                {
                    self.given_up = true;
                    return Poll::Ready(Some(Err(error)));
                }
                if at_end || frame.is_trailers() {
                    self.end();
                }
                Some(Ok(frame))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming
            .as_ref()
            .map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    /// Nobody wants the rest, as when the proxy answers itself. Left unread it would cost the
    /// client its answer: closing a connection with unread bytes resets it.
    fn drop(&mut self) {
        let discardable = !self.given_up && self.is_discardable();
        let Some(incoming) = self.incoming.take() else {
            return;
        };
        if !discardable || incoming.is_end_stream() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let mut rest = RequestBody::default();
            rest.incoming = Some(incoming);
            rest.progress = self.progress.take();
            rest.limit(DISCARD_BYTES);
            // Once only: a runtime that shuts down drops what it is given to run.
            rest.given_up = true;
            runtime.spawn(discard(rest));
        }
    }
}

/// Reads a body to its end, its bound or its error; the client's socket bounds the time.
async fn discard(mut rest: RequestBody) {
    while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
}

/// A response's body. It holds the connection it comes from: taken to its end, the connection goes
/// back to the pool; dropped before, the connection is closed, which cancels the work upstream.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Incoming,
    hold: Hold,
    /// Whether the deadline is armed, because nothing had come when we last looked.
    waiting: bool,
}

#[derive(Debug)]
enum Hold {
    /// More is to come.
    Lease(Lease),
    /// It became a tunnel: only its place among `max_connections` is left to hold.
    Seat(Seat),
    /// It has ended, well or badly.
    Nothing,
}

impl ResponseBody {
    pub(super) fn new(incoming: Incoming, lease: Lease) -> ResponseBody {
        let mut body = ResponseBody {
            incoming,
            hold: Hold::Lease(lease),
            waiting: false,
        };
        if body.incoming.is_end_stream() {
            body.end();
        }
        body
    }

    pub(super) fn tunnel(incoming: Incoming, seat: Seat) -> ResponseBody {
        ResponseBody {
            incoming,
            hold: Hold::Seat(seat),
            waiting: false,
        }
    }

    /// The place among `max_connections` that a tunnel keeps for as long as it stands.
    pub fn take_seat(&mut self) -> Option<Seat> {
        match std::mem::replace(&mut self.hold, Hold::Nothing) {
            Hold::Seat(seat) => Some(seat),
            other => {
                self.hold = other;
                None
            }
        }
    }

    fn end(&mut self) {
        if let Hold::Lease(lease) = std::mem::replace(&mut self.hold, Hold::Nothing) {
            lease.give_back();
        }
    }

    /// Nothing has come: whether that has lasted too long.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Hold::Lease(lease) = &self.hold else {
            return Poll::Pending;
        };
        if !self.waiting {
            self.waiting = true;
            lease.deadline().arm_body();
        }
        lease.deadline().poll(context)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let Poll::Ready(polled) = Pin::new(&mut self.incoming).poll_frame(context) else {
            ready!(self.poll_deadline(context));
            self.hold = Hold::Nothing;
            return Poll::Ready(Some(Err(UpstreamError::TimedOut)));
        };
        if self.waiting {
            self.waiting = false;
            if let Hold::Lease(lease) = &self.hold {
                lease.deadline().disarm();
            }
        }
        Poll::Ready(match polled {
            None => {
                self.end();
                None
            }
            Some(Ok(frame)) => {
                // The last reader of a body need not ask once more to learn that it has ended.
                if frame.is_trailers() || self.incoming.is_end_stream() {
                    self.end();
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                self.hold = Hold::Nothing;
                Some(Err(UpstreamError::of(error)))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
