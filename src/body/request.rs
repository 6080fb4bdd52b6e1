//! A request's body: streamed from the client, bounded, and followed as it is read.

use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::error::BodyError;
use super::pipe::{PipeReader, Rest};
use super::progress::Progress;

/// Bytes of a body nobody wants that are read all the same, to keep its connection.
pub const DISCARD_BYTES: u64 = 1 << 20;
/// The same on a stream of HTTP/2, whatever its length: clients that are still sending when a
/// stream is reset may lose the answer that came before.
const LINGER_BYTES: u64 = 16 << 20;
/// And how long that may take.
const LINGER: Duration = Duration::from_secs(2);

/// What it means that hyper cannot read on.
fn error_of(error: &hyper::Error) -> BodyError {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::TimedOut
        {
            return BodyError::TimedOut;
        }
        cause = inner.source();
    }
    BodyError::Broken
}

/// A request's content. It is moved often, and most requests have none: the rest is in a box.
#[derive(Debug, Default)]
pub enum RequestBody {
    #[default]
    Empty,
    /// What the client sends, as it sends it.
    Streaming(Box<Streaming>),
}

/// Where content comes from.
#[derive(Debug)]
enum Source {
    /// A connection that carries one request at a time.
    Pipe(PipeReader),
    Incoming(Incoming),
}

impl Source {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            Source::Pipe(pipe) => pipe.poll_frame(context),
            Source::Incoming(incoming) => Pin::new(incoming)
                .poll_frame(context)
                .map_err(|error| error_of(&error)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Source::Pipe(pipe) => pipe.is_end_stream(),
            Source::Incoming(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Source::Pipe(pipe) => pipe.size_hint(),
            Source::Incoming(incoming) => incoming.size_hint(),
        }
    }
}

/// Content that is read from a client.
#[derive(Debug)]
pub struct Streaming {
    incoming: Option<Source>,
    progress: Option<Progress>,
    /// Which request of its connection it belongs to.
    turn: u32,
    /// Content bytes that may still come; `None` for no bound.
    left: Option<u64>,
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
        if incoming.is_end_stream() {
            return RequestBody::Empty;
        }
        let source = Source::Incoming(incoming);
        RequestBody::Streaming(Streaming::new(source, Some(progress)))
    }

    /// Content that a connection puts into a pipe.
    pub fn piped(reader: PipeReader) -> RequestBody {
        RequestBody::Streaming(Streaming::new(Source::Pipe(reader), None))
    }

    /// The client waits for `100 Continue`: reading asks it for its body, dropping does not.
    pub fn await_continue(&mut self) {
        if let RequestBody::Streaming(streaming) = self {
            streaming.awaits_continue = true;
        }
    }

    /// Whether what is left of it is read and thrown away when it is dropped, so that the
    /// connection can serve another request.
    pub fn is_discardable(&self) -> bool {
        match self {
            RequestBody::Streaming(streaming) => streaming.is_discardable(),
            RequestBody::Empty => true,
        }
    }

    /// Lets at most `most` bytes of content pass; one more is [`BodyError::TooLarge`].
    pub fn limit(&mut self, most: u64) {
        if let RequestBody::Streaming(streaming) = self {
            streaming.left = Some(most);
        }
    }

    /// Has `pieces` read again: all that was read of it.
    pub fn put_back(&mut self, pieces: Vec<Bytes>) {
        if let RequestBody::Streaming(streaming) = self {
            streaming.again = pieces.into();
        }
    }
}

impl Streaming {
    fn new(incoming: Source, progress: Option<Progress>) -> Box<Streaming> {
        Box::new(Streaming {
            incoming: Some(incoming),
            turn: progress.as_ref().map_or(0, Progress::turn),
            progress,
            left: None,
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
        self.progress.as_ref().is_some_and(Progress::is_paced)
    }

    fn count(&mut self, length: usize) -> Result<(), BodyError> {
        let length = length as u64;
        let Some(left) = self
            .left
            .map_or(Some(None), |left| left.checked_sub(length).map(Some))
        else {
            if let Some(progress) = self.progress() {
                progress.note_too_large();
            }
            return Err(BodyError::TooLarge);
        };
        self.left = left;
        if let Some(progress) = self.progress() {
            progress.add_bytes(length);
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
        let polled = incoming.poll_frame(context);
        let at_end = incoming.is_end_stream();
        if let Some(progress) = &self.progress {
            if polled.is_ready() {
                progress.note_piece();
            } else if progress.poll_late(context).is_ready() {
                self.given_up = true;
                return Poll::Ready(Some(Err(BodyError::TimedOut)));
            }
        }
        Poll::Ready(match ready!(polled) {
            // A stream that its client reset without an error has not ended, though hyper says so.
            None if self.is_of_http2() && !at_end => {
                self.given_up = true;
                Some(Err(BodyError::Broken))
            }
            None => {
                self.end();
                None
            }
            Some(Err(error)) => {
                self.given_up = true;
                Some(Err(error))
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
        self.again.is_empty() && self.incoming.as_ref().is_none_or(Source::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self
            .incoming
            .as_ref()
            .map_or(SizeHint::with_exact(0), Source::size_hint);
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
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            RequestBody::Streaming(streaming) => streaming.poll_frame(context),
            RequestBody::Empty => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Streaming(streaming) => streaming.is_end_stream(),
            RequestBody::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Streaming(streaming) => streaming.size_hint(),
            RequestBody::Empty => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Streaming {
    /// Nobody wants the rest, as when the proxy answers itself. Left unread it would cost the
    /// client its answer: closing a connection with unread bytes resets it.
    fn drop(&mut self) {
        let lingers = self.is_of_http2() && !self.awaits_continue;
        let discardable = !self.given_up && (lingers || self.is_discardable());
        let Some(incoming) = self.incoming.take() else {
            return;
        };
        if let Source::Pipe(pipe) = &incoming {
            return pipe.close(match discardable {
                true => Rest::Discarded,
                false => Rest::Unread,
            });
        }
        if !discardable || incoming.is_end_stream() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let mut rest = Streaming::new(incoming, self.progress.take());
            rest.turn = self.turn;
            rest.left = Some(if lingers { LINGER_BYTES } else { DISCARD_BYTES });
            // Once only: a runtime that shuts down drops what it is given to run.
            rest.given_up = true;
            let discarding = discard(RequestBody::Streaming(rest));
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
