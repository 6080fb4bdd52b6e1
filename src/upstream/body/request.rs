//! A request's body: streamed from the client, bounded, and followed as it is read.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::clock::Alarm;
use crate::upstream::connection::Deadline;

/// Bytes of a body nobody wants that are read all the same, to keep its connection.
const DISCARD_BYTES: u64 = 1 << 20;
/// The same on a stream of HTTP/2, whatever its length: clients that are still sending when a
/// stream is reset may lose the answer that came before.
const LINGER_BYTES: u64 = 16 << 20;
/// And how long that may take.
const LINGER: Duration = Duration::from_secs(2);

/// How far a client connection's current request body has been read. Shared between the body,
/// which is owned by an upstream connection, and the client's socket.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    bytes: AtomicU64,
    unfinished: AtomicBool,
    too_large: AtomicBool,
    /// Counts the requests of the connection: what is left of an earlier body may still be read.
    turn: AtomicU32,
    pace: Option<Pace>,
}

/// How long a client may leave its reader without a piece, where its socket cannot tell: one
/// connection of HTTP/2 carries many bodies.
#[derive(Debug)]
struct Pace {
    alarm: Arc<Alarm>,
    most: Duration,
    waiting: AtomicBool,
}

impl Progress {
    /// Of a body that has its own deadline, `alarm`: pieces come within `most` of being asked for.
    pub fn paced(alarm: Arc<Alarm>, most: Duration) -> Progress {
        let waiting = AtomicBool::new(false);
        let pace = Some(Pace {
            alarm,
            most,
            waiting,
        });
        let unfinished = AtomicBool::new(true);
        Progress(Arc::new(Marks {
            unfinished,
            pace,
            ..Marks::default()
        }))
    }

    /// A piece was asked for and has not come: whether that has lasted too long.
    fn poll_late(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(pace) = &self.0.pace else {
            return Poll::Pending;
        };
        if !pace.waiting.swap(true, Ordering::Relaxed) {
            pace.alarm.arm(pace.most);
        }
        pace.alarm.poll(context)
    }

    /// A piece has come.
    fn came(&self) {
        if let Some(pace) = &self.0.pace
            && pace.waiting.swap(false, Ordering::Relaxed)
        {
            pace.alarm.disarm();
        }
    }

    /// A new request begins, with or without a body.
    pub fn restart(&self, has_body: bool) {
        self.0.turn.fetch_add(1, Ordering::Relaxed);
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

    fn turn(&self) -> u32 {
        self.0.turn.load(Ordering::Relaxed)
    }
}

/// Why a request's body did not reach its end: always on the client's side.
#[derive(Clone, Debug)]
pub enum BodyError {
    /// It is longer than allowed.
    TooLarge,
    /// The client let too much time pass between two pieces.
    TimedOut(Option<Arc<hyper::Error>>),
    /// The client went away in the middle, or broke the framing.
    Broken(Option<Arc<hyper::Error>>),
}

impl BodyError {
    fn of(error: hyper::Error) -> BodyError {
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(io) = inner.downcast_ref::<io::Error>()
                && io.kind() == io::ErrorKind::TimedOut
            {
                return BodyError::TimedOut(Some(Arc::new(error)));
            }
            cause = inner.source();
        }
        BodyError::Broken(Some(Arc::new(error)))
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
            BodyError::TimedOut(error) | BodyError::Broken(error) => {
                error.as_deref().map(|error| error as _)
            }
        }
    }
}

/// A request's body. It is moved often, and most requests have none: what one needs is in a box.
#[derive(Debug, Default)]
pub struct RequestBody(Option<Box<Inflow>>);

#[derive(Debug)]
struct Inflow {
    incoming: Option<Incoming>,
    progress: Option<Progress>,
    /// Which request of its connection it belongs to.
    turn: u32,
    /// Content bytes that may still come; `None` for no bound.
    left: Option<u64>,
    deadline: Option<Arc<Deadline>>,
    /// The client sends nothing until it is asked to (`Expect: 100-continue`), and was not asked.
    awaits_continue: bool,
    /// Nothing more is to be read of it, whatever is left.
    given_up: bool,
    /// What has been read already, and is read again first: its server had not looked at it.
    again: VecDeque<Bytes>,
}

impl RequestBody {
    /// No body.
    pub fn empty() -> RequestBody {
        RequestBody::default()
    }

    /// The body that a client sends, if it does; `progress` follows it.
    pub fn new(incoming: Incoming, progress: Progress) -> RequestBody {
        let has_any = !incoming.is_end_stream();
        RequestBody(has_any.then(|| Inflow::new(incoming, Some(progress))))
    }

    /// The client waits for `100 Continue`: reading asks it for its body, dropping does not.
    pub fn await_continue(&mut self) {
        if let Some(inflow) = &mut self.0 {
            inflow.awaits_continue = true;
        }
    }

    /// Whether what is left of it is read and thrown away when it is dropped, so that the
    /// connection can serve another request.
    pub fn is_discardable(&self) -> bool {
        self.0.as_ref().is_none_or(|inflow| inflow.is_discardable())
    }

    /// Lets at most `most` bytes of content pass; one more is [`BodyError::TooLarge`].
    pub fn limit(&mut self, most: u64) {
        if let Some(inflow) = &mut self.0 {
            inflow.left = Some(most);
        }
    }

    /// Has `deadline` moved as the body moves, until the response's head has come.
    pub(in crate::upstream) fn move_deadline(&mut self, deadline: &Arc<Deadline>) {
        if let Some(inflow) = &mut self.0 {
            inflow.deadline = Some(Arc::clone(deadline));
        }
    }

    /// Has `pieces` read again: all that was read of it.
    pub(in crate::upstream) fn put_back(&mut self, pieces: Vec<Bytes>) {
        if let Some(inflow) = &mut self.0 {
            inflow.again = pieces.into();
        }
    }
}

impl Inflow {
    fn new(incoming: Incoming, progress: Option<Progress>) -> Box<Inflow> {
        Box::new(Inflow {
            incoming: Some(incoming),
            turn: progress.as_ref().map_or(0, Progress::turn),
            progress,
            left: None,
            deadline: None,
            awaits_continue: false,
            given_up: false,
            again: VecDeque::new(),
        })
    }

    fn is_discardable(&self) -> bool {
        !self.awaits_continue && self.size_hint().lower() <= DISCARD_BYTES
    }

    /// Whether it is one of several that a client may send at once.
    fn is_of_http2(&self) -> bool {
        let progress = self.progress.as_ref();
        progress.is_some_and(|progress| progress.0.pace.is_some())
    }

    fn count(&mut self, length: usize) -> Result<(), BodyError> {
        let length = length as u64;
        let Some(left) = self
            .left
            .map_or(Some(None), |left| left.checked_sub(length).map(Some))
        else {
            if let Some(progress) = self.progress() {
                progress.0.too_large.store(true, Ordering::Relaxed);
            }
            return Err(BodyError::TooLarge);
        };
        self.left = left;
        if let Some(progress) = self.progress() {
            progress.0.bytes.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// None once its connection serves a later request: the marks are of that one.
    fn progress(&self) -> Option<&Progress> {
        let progress = self.progress.as_ref();
        progress.filter(|progress| progress.turn() == self.turn)
    }

    fn end(&self) {
        if let Some(progress) = self.progress() {
            progress.end();
        }
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.awaits_continue = false;
        if let Some(piece) = self.again.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut *incoming).poll_frame(context);
        let at_end = incoming.is_end_stream();
        if let Some(deadline) = &self.deadline {
            deadline.upload(polled.is_ready());
        }
        if let Some(progress) = &self.progress {
            if polled.is_ready() {
                progress.came();
            } else if progress.poll_late(context).is_ready() {
                self.given_up = true;
                return Poll::Ready(Some(Err(BodyError::TimedOut(None))));
            }
        }
        Poll::Ready(match ready!(polled) {
            // A stream that its client reset without an error has not ended, though hyper says so.
            None if self.is_of_http2() && !at_end => {
                self.given_up = true;
                Some(Err(BodyError::Broken(None)))
            }
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
                    self.given_up |= !self.is_of_http2();
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
        self.again.is_empty() && self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self
            .incoming
            .as_ref()
            .map_or(SizeHint::with_exact(0), Body::size_hint);
        if self.again.is_empty() {
            return rest;
        }
        let again: u64 = self.again.iter().map(|piece| piece.len() as u64).sum();
        match rest.exact() {
            Some(rest) => SizeHint::with_exact(again + rest),
            None => SizeHint::default(),
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
        match &mut self.0 {
            Some(inflow) => inflow.poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|inflow| inflow.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Some(inflow) => inflow.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Inflow {
    /// Nobody wants the rest, as when the proxy answers itself. Left unread it would cost the
    /// client its answer: closing a connection with unread bytes resets it.
    fn drop(&mut self) {
        let lingers = self.is_of_http2() && !self.awaits_continue;
        let discardable = !self.given_up && (lingers || self.is_discardable());
        let Some(incoming) = self.incoming.take() else {
            return;
        };
        if !discardable || incoming.is_end_stream() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let mut rest = Inflow::new(incoming, self.progress.take());
            rest.turn = self.turn;
            rest.left = Some(if lingers { LINGER_BYTES } else { DISCARD_BYTES });
            // Once only: a runtime that shuts down drops what it is given to run.
            rest.given_up = true;
            let discarding = discard(RequestBody(Some(rest)));
            if lingers {
                runtime.spawn(async { drop(timeout(LINGER, discarding).await) });
            } else {
                runtime.spawn(discarding);
            }
        }
    }
}

/// Reads a body to its end, its bound or its error; with HTTP/1.1 the client's socket bounds the
/// time.
async fn discard(mut rest: RequestBody) {
    while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
}
