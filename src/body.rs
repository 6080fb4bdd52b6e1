//! The content of requests, independent of the version of HTTP. It is streamed and never collected.
//!
//! Lengths and trailers pass through. Content that ends early is an error: it must never look
//! complete. A pipe passes content from the task that reads the connection to the task that takes
//! it, one piece at a time. The writer must not read a piece before the reader has asked for it.

mod request;

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

pub use request::{BodyProgress, BodyWatch, DISCARD_BYTES, RequestBody};

/// Why a request's body ended early. The cause is always on the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    TooLarge,
    TimedOut,
    /// The client went away, or broke the framing.
    Broken,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyError::TooLarge => "the body is longer than allowed",
            BodyError::TimedOut => "the body did not arrive in time",
            BodyError::Broken => "the body is malformed or ended too early",
        })
    }
}

impl Error for BodyError {}

#[derive(Debug, Default)]
struct PipeState {
    piece: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// Bytes that the reader has not taken, if the length is known.
    left: Option<u64>,
    has_ended: bool,
    error: Option<BodyError>,
    is_wanted: bool,
    closed: Option<Rest>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The fate of content after its reader has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Discarded,
    Unread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    Piece,
    Gone(Rest),
}

/// The end of the pipe for the task that reads the connection.
#[derive(Debug)]
pub struct PipeWriter(Arc<PipeShared>);

/// The end of the pipe for the task that takes the content.
#[derive(Debug)]
pub struct PipeReader(Arc<PipeShared>);

/// A third handle of a pipe, which only asks for its state.
#[derive(Debug)]
pub struct PipeWatch(Arc<PipeShared>);

#[derive(Debug)]
struct PipeShared(Mutex<PipeState>);

/// A pipe for content of `length` bytes, if that is known.
pub fn pipe(length: Option<u64>) -> (PipeWriter, PipeReader) {
    let shared = Arc::new(PipeShared(Mutex::new(PipeState {
        left: length,
        ..PipeState::default()
    })));
    (PipeWriter(Arc::clone(&shared)), PipeReader(shared))
}

impl PipeShared {
    fn with<T>(&self, act: impl FnOnce(&mut PipeState) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state, then wakes the task that `act` returns.
    fn change<T>(&self, act: impl FnOnce(&mut PipeState) -> (T, Option<Waker>)) -> T {
        let (result, waker) = self.with(act);
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }
}

impl PipeWatch {
    pub fn has_waiting_reader(&self) -> bool {
        self.0.with(|state| state.reader.is_some())
    }
}

impl PipeWriter {
    /// Ready when the reader wants a piece, or has gone.
    pub fn poll_demand(&self, context: &mut Context<'_>) -> Poll<Demand> {
        self.0.with(|state| {
            if let Some(rest) = state.closed {
                return Poll::Ready(Demand::Gone(rest));
            }
            if state.is_wanted && state.piece.is_none() {
                return Poll::Ready(Demand::Piece);
            }
            let known = state.writer.as_ref();
            if !known.is_some_and(|waker| waker.will_wake(context.waker())) {
                state.writer = Some(context.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Puts in a piece. With a known length, `is_last` marks the end.
    pub fn put(&self, piece: Bytes, is_last: bool) {
        self.0.change(|state| {
            state.piece = Some(piece);
            state.has_ended = is_last;
            ((), state.reader.take())
        });
    }

    pub fn end(&self, trailers: Option<HeaderMap>) {
        self.0.change(|state| {
            state.trailers = trailers;
            state.has_ended = true;
            ((), state.reader.take())
        });
    }

    pub fn fail(&self, error: BodyError) {
        self.0.change(|state| {
            state.error = Some(error);
            ((), state.reader.take())
        });
    }
}

impl PipeReader {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.change(|state| {
            state.is_wanted = true;
            let polled = if let Some(piece) = state.piece.take() {
                let length = piece.len() as u64;
                state.left = state.left.map(|left| left.saturating_sub(length));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            } else if let Some(trailers) = state.trailers.take() {
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            } else if let Some(error) = state.error {
                Poll::Ready(Some(Err(error)))
            } else if state.has_ended {
                Poll::Ready(None)
            } else {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            };
            (polled, state.writer.take())
        })
    }

    fn watch(&self) -> PipeWatch {
        PipeWatch(Arc::clone(&self.0))
    }

    fn is_end_stream(&self) -> bool {
        self.0
            .with(|state| state.has_ended && state.piece.is_none() && state.trailers.is_none())
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.0.with(|state| state.left);
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    /// Tells the writer the fate of the rest.
    fn close(&self, rest: Rest) {
        self.0.change(|state| {
            state.closed = Some(rest);
            ((), state.writer.take())
        });
    }
}
