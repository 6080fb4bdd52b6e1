//! Content on its way from a connection, which reads it, to whoever takes it: one piece at a time.
//!
//! Both ends may be polled by different tasks. It must never take a piece before somebody has asked
//! for content: then the client is not asked for it either.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::error::BodyError;

#[derive(Debug, Default)]
struct PipeState {
    piece: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// Bytes that have not been taken, where their number is known.
    left: Option<u64>,
    /// All of it has been put in.
    has_ended: bool,
    failure: Option<BodyError>,
    /// Whether anybody has asked for it.
    is_wanted: bool,
    /// The reader has gone, and whether the rest should be read and thrown away.
    closed: Option<Rest>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What becomes of content that nobody takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Discarded,
    Unread,
}

/// What the reader asks of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    Piece,
    /// The reader has gone.
    Gone(Rest),
}

/// The connection's end.
#[derive(Debug)]
pub struct PipeWriter(Arc<Mutex<PipeState>>);

/// The end of whoever takes the content.
#[derive(Debug)]
pub struct PipeReader(Arc<Mutex<PipeState>>);

/// A pipe for content of `length` bytes, where that is known.
pub fn pipe(length: Option<u64>) -> (PipeWriter, PipeReader) {
    let state = Arc::new(Mutex::new(PipeState {
        left: length,
        ..PipeState::default()
    }));
    (PipeWriter(Arc::clone(&state)), PipeReader(state))
}

fn lock(state: &Mutex<PipeState>) -> MutexGuard<'_, PipeState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PipeWriter {
    /// Ready when a piece may be put in, or nobody takes one any more.
    pub fn poll_demand(&self, context: &mut Context<'_>) -> Poll<Demand> {
        let mut state = lock(&self.0);
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
    }

    /// Puts a piece in; whether it `is_last` is known where the length is.
    pub fn put(&self, piece: Bytes, is_last: bool) {
        self.change(|state| {
            state.piece = Some(piece);
            state.has_ended = is_last;
        });
    }

    /// All of it was put in.
    pub fn end(&self, trailers: Option<HeaderMap>) {
        self.change(|state| {
            state.trailers = trailers;
            state.has_ended = true;
        });
    }

    /// It does not reach its end.
    pub fn fail(&self, error: BodyError) {
        self.change(|state| state.failure = Some(error));
    }

    fn change(&self, change: impl FnOnce(&mut PipeState)) {
        let mut state = lock(&self.0);
        change(&mut state);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl PipeReader {
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = lock(&self.0);
        let polled = if let Some(piece) = state.piece.take() {
            state.left = state
                .left
                .map(|left| left.saturating_sub(piece.len() as u64));
            Poll::Ready(Some(Ok(Frame::data(piece))))
        } else if let Some(trailers) = state.trailers.take() {
            Poll::Ready(Some(Ok(Frame::trailers(trailers))))
        } else if let Some(error) = state.failure {
            Poll::Ready(Some(Err(error)))
        } else if state.has_ended {
            Poll::Ready(None)
        } else {
            state.reader = Some(context.waker().clone());
            Poll::Pending
        };
        state.is_wanted = true;
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        polled
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = lock(&self.0);
        state.has_ended && state.piece.is_none() && state.trailers.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let left = lock(&self.0).left;
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    /// Tells the writer what becomes of the rest.
    pub(super) fn close(&self, rest: Rest) {
        let mut state = lock(&self.0);
        state.closed = Some(rest);
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
    }
}
