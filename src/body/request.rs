//! The body of a request: streamed from the client, bounded, and followed as it is read.

use std::collections::VecDeque;
use std::error::Error;
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
use tidegate_core::exchange::uploaded::UploadedBytes;
use tokio::time::timeout;

use super::{BodyError, PipeReader, PipeWatch, Rest};
use crate::clock::Alarm;

/// The most bytes of an unwanted body that are read so that its connection can be kept.
pub const DISCARD_BYTES: u64 = 1 << 20;
/// The same for a stream of HTTP/2, whatever its length. A client that still sends when its stream
/// is reset may lose the response that came before.
const LINGER_BYTES: u64 = 16 << 20;
/// The time limit of that.
const LINGER: Duration = Duration::from_secs(2);

/// How far a body was read. The body and the client's connection share it.
#[derive(Clone, Debug, Default)]
pub struct BodyProgress(Arc<ProgressMarks>);

#[derive(Debug, Default)]
struct ProgressMarks {
    bytes: AtomicU64,
    unfinished: AtomicBool,
    too_large: AtomicBool,
    /// Counts the requests of the connection, because an earlier body may still be read.
    turn: AtomicU32,
    pace: Option<Pace>,
}

/// The time limit for each piece of a body on a connection of HTTP/2, where the socket has none.
#[derive(Debug)]
struct Pace {
    alarm: Arc<Alarm>,
    most: Duration,
    waiting: AtomicBool,
}

impl BodyProgress {
    /// The progress of one body on a connection of HTTP/2. Each piece must come within `most`.
    pub fn paced(alarm: Arc<Alarm>, most: Duration) -> BodyProgress {
        let pace = Pace {
            alarm,
            most,
            waiting: AtomicBool::new(false),
        };
        BodyProgress(Arc::new(ProgressMarks {
            unfinished: AtomicBool::new(true),
            pace: Some(pace),
            ..ProgressMarks::default()
        }))
    }

    pub fn restart(&self, has_body: bool) {
        self.0.turn.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.store(0, Ordering::Relaxed);
        self.0.unfinished.store(has_body, Ordering::Relaxed);
        self.0.too_large.store(false, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Whether the body was read to its end; true without a body.
    pub fn has_ended(&self) -> bool {
        !self.0.unfinished.load(Ordering::Relaxed)
    }

    pub fn is_too_large(&self) -> bool {
        self.0.too_large.load(Ordering::Relaxed)
    }

    fn turn(&self) -> u32 {
        self.0.turn.load(Ordering::Relaxed)
    }

    /// Ready if the client has sent nothing for too long after it was asked.
    fn poll_late(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(pace) = &self.0.pace else {
            return Poll::Pending;
        };
        if !pace.waiting.swap(true, Ordering::Relaxed) {
            pace.alarm.arm(pace.most);
        }
        pace.alarm.poll(context)
    }

    fn note_piece(&self) {
        if let Some(pace) = &self.0.pace
            && pace.waiting.swap(false, Ordering::Relaxed)
        {
            pace.alarm.disarm();
        }
    }
}

/// A body that was passed on to its reader.
#[derive(Debug)]
pub enum BodyWatch {
    Pipe(PipeWatch),
    Stream(BodyProgress),
}

impl BodyWatch {
    /// Whether the reader waits for the client's next piece.
    pub fn waits_for_client(&self) -> bool {
        match self {
            BodyWatch::Pipe(pipe) => pipe.has_waiting_reader(),
            BodyWatch::Stream(progress) => {
                let pace = progress.0.pace.as_ref();
                pace.is_some_and(|pace| pace.waiting.load(Ordering::Relaxed))
            }
        }
    }
}

fn classify_error(error: &hyper::Error) -> BodyError {
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

/// The content of a request. It is moved often and mostly empty, so the rest is boxed.
#[derive(Debug, Default)]
pub enum RequestBody {
    #[default]
    Empty,
    Streaming(Box<StreamingBody>),
}

#[derive(Debug)]
enum BodySource {
    /// A connection that carries one request at a time.
    Pipe(PipeReader),
    Incoming(Incoming),
}

impl BodySource {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            BodySource::Pipe(pipe) => pipe.poll_frame(context),
            BodySource::Incoming(incoming) => Pin::new(incoming)
                .poll_frame(context)
                .map_err(|error| classify_error(&error)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            BodySource::Pipe(pipe) => pipe.is_end_stream(),
            BodySource::Incoming(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            BodySource::Pipe(pipe) => pipe.size_hint(),
            BodySource::Incoming(incoming) => incoming.size_hint(),
        }
    }
}

#[derive(Debug)]
pub struct StreamingBody {
    source: Option<BodySource>,
    progress: Option<BodyProgress>,
    turn: u32,
    /// Bytes that may still come; `None` without a bound.
    left: Option<u64>,
    /// Whether the client still waits for `100 Continue`.
    awaits_continue: bool,
    /// Whether the rest must not be read.
    given_up: bool,
    /// Where the bytes that come are counted for the cost of the request.
    uploaded: Option<UploadedBytes>,
    /// Frames to be read once more: a decision needed them, or a server refused the request.
    again: VecDeque<Frame<Bytes>>,
}

impl RequestBody {
    pub fn empty() -> RequestBody {
        RequestBody::default()
    }

    /// The body that a client sends with hyper, if it sends one.
    pub fn new(incoming: Incoming, progress: BodyProgress) -> RequestBody {
        if incoming.is_end_stream() {
            return RequestBody::Empty;
        }
        let source = BodySource::Incoming(incoming);
        RequestBody::Streaming(StreamingBody::new(source, Some(progress)))
    }

    pub fn piped(reader: PipeReader) -> RequestBody {
        RequestBody::Streaming(StreamingBody::new(BodySource::Pipe(reader), None))
    }

    /// Notes that the client waits for `100 Continue`. Only a poll asks it for its body.
    pub fn await_continue(&mut self) {
        if let RequestBody::Streaming(streaming) = self {
            streaming.awaits_continue = true;
        }
    }

    /// Whether a drop reads the rest, so that the connection can serve another request.
    pub fn is_discardable(&self) -> bool {
        match self {
            RequestBody::Streaming(streaming) => streaming.is_discardable(),
            RequestBody::Empty => true,
        }
    }

    /// Bounds the content to `most` bytes; a longer one ends with [`BodyError::TooLarge`].
    pub fn limit(&mut self, most: u64) {
        if let RequestBody::Streaming(streaming) = self {
            streaming.left = Some(most);
        }
    }

    /// Counts the bytes that come from now on.
    pub fn count_into(&mut self, uploaded: UploadedBytes) {
        if let RequestBody::Streaming(streaming) = self {
            streaming.uploaded = Some(uploaded);
        }
    }

    /// Tells later whether the proxy waits for the client. `None` without a body.
    pub fn watch(&self) -> Option<BodyWatch> {
        let RequestBody::Streaming(streaming) = self else {
            return None;
        };
        match streaming.source.as_ref()? {
            BodySource::Pipe(pipe) => Some(BodyWatch::Pipe(pipe.watch())),
            BodySource::Incoming(_) => streaming.progress.clone().map(BodyWatch::Stream),
        }
    }

    /// Takes the frames that [`RequestBody::put_back`] put in front of the rest.
    pub fn take_back(&mut self) -> VecDeque<Frame<Bytes>> {
        match self {
            RequestBody::Streaming(streaming) => std::mem::take(&mut streaming.again),
            RequestBody::Empty => VecDeque::new(),
        }
    }

    /// Puts frames that were read in front of the rest.
    pub fn put_back(&mut self, frames: impl DoubleEndedIterator<Item = Frame<Bytes>>) {
        if let RequestBody::Streaming(streaming) = self {
            for frame in frames.rev() {
                streaming.again.push_front(frame);
            }
        }
    }
}

impl StreamingBody {
    fn new(source: BodySource, progress: Option<BodyProgress>) -> Box<StreamingBody> {
        Box::new(StreamingBody {
            source: Some(source),
            turn: progress.as_ref().map_or(0, BodyProgress::turn),
            progress,
            left: None,
            awaits_continue: false,
            given_up: false,
            uploaded: None,
            again: VecDeque::new(),
        })
    }

    fn is_discardable(&self) -> bool {
        !self.awaits_continue && self.size_hint().lower() <= DISCARD_BYTES
    }

    /// Whether the connection may carry other requests at the same time.
    fn is_of_http2(&self) -> bool {
        let progress = self.progress.as_ref();
        progress.is_some_and(|progress| progress.0.pace.is_some())
    }

    fn count(&mut self, length: usize) -> Result<(), BodyError> {
        let length = length as u64;
        let left = self.left.map(|left| left.checked_sub(length));
        if left == Some(None) {
            if let Some(marks) = self.marks() {
                marks.too_large.store(true, Ordering::Relaxed);
            }
            return Err(BodyError::TooLarge);
        }
        self.left = left.flatten();
        if let Some(uploaded) = &self.uploaded {
            uploaded.add(length);
        }
        if let Some(marks) = self.marks() {
            marks.bytes.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    /// `None` after the connection has begun a later request, which the marks belong to then.
    fn marks(&self) -> Option<&ProgressMarks> {
        let progress = self.progress.as_ref();
        let own = progress.filter(|progress| progress.turn() == self.turn);
        own.map(|progress| &*progress.0)
    }

    fn note_end(&self) {
        if let Some(marks) = self.marks() {
            marks.unfinished.store(false, Ordering::Relaxed);
        }
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.awaits_continue = false;
        if let Some(frame) = self.again.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(source) = &mut self.source else {
            return Poll::Ready(None);
        };
        let polled = source.poll_frame(context);
        let at_end = source.is_end_stream();
        if let Some(progress) = &self.progress {
            if polled.is_ready() {
                progress.note_piece();
            } else if progress.poll_late(context).is_ready() {
                self.given_up = true;
                return Poll::Ready(Some(Err(BodyError::TimedOut)));
            }
        }
        Poll::Ready(match ready!(polled) {
            // hyper reports an end here, although the client has reset its stream.
            None if self.is_of_http2() && !at_end => {
                self.given_up = true;
                Some(Err(BodyError::Broken))
            }
            None => {
                self.note_end();
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
                    self.note_end();
                }
                Some(Ok(frame))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.again.is_empty() && self.source.as_ref().is_none_or(BodySource::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let source = self.source.as_ref();
        let rest = source.map_or(SizeHint::with_exact(0), BodySource::size_hint);
        if self.again.is_empty() {
            return rest;
        }
        let again: u64 = self
            .again
            .iter()
            .filter_map(Frame::data_ref)
            .map(|data| data.len() as u64)
            .sum();
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

impl Drop for StreamingBody {
    /// Reads the rest, within bounds. Closing a connection with unread bytes resets it, and the
    /// client may lose its response.
    fn drop(&mut self) {
        let lingers = self.is_of_http2() && !self.awaits_continue;
        let discardable = !self.given_up && (lingers || self.is_discardable());
        let Some(source) = self.source.take() else {
            return;
        };
        if let BodySource::Pipe(pipe) = &source {
            return pipe.close(match discardable {
                true => Rest::Discarded,
                false => Rest::Unread,
            });
        }
        if !discardable || source.is_end_stream() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let mut rest = StreamingBody::new(source, self.progress.take());
            rest.turn = self.turn;
            rest.left = Some(if lingers { LINGER_BYTES } else { DISCARD_BYTES });
            // Only once: a runtime that shuts down drops the task at once.
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

/// Reads a body to its end, its bound or its error. The socket of HTTP/1.1 bounds the time.
async fn discard(mut rest: RequestBody) {
    while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
}
