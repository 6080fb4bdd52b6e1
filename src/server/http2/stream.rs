//! One HTTP/2 stream: its request, its response, and the deadline for a client that does not read.
//!
//! The library buffers response data for which the client's window has no room, and waits for ever.
//! So a response is passed to the library in small pieces, and the client must take each piece
//! before the deadline for bodies. Otherwise the stream is reset, which cancels the work upstream.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use h2::Reason;
use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, Entry, HeaderMap, HeaderValue};
use http::{Method, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use pin_project_lite::pin_project;

use super::ConnectionFlow;
use crate::body::{BodyProgress, RequestBody};
use crate::clock::{Alarm, Sweep};
use crate::http1::write::filter_trailers;
use crate::proxy::body::Body;
use crate::server::http1::socket::HALF_CLOSE_GRACE;
use crate::server::worker::ClientConnection;
use crate::telemetry::panics::{contained, lock};
use crate::upstream::{Cause, UpstreamError};

/// Bytes of one piece of a response. The client must take a piece in time.
const PIECE_BYTES: usize = 16 << 10;
/// The last bytes of each piece are passed on when there is room for the others. A client can make
/// the library buffer only these of a response that has ended.
const LAST_BYTES: usize = 1 << 10;

/// Units of the allowance that a request and a piece of a response earn: for the frames with which
/// a client may answer them.
const EARNED_BY_REQUEST: i64 = 1;
const EARNED_BY_PIECE: i64 = 4;

/// The pause between the last bytes of a truncated response and the reset.
const RESET_PAUSE: Duration = Duration::from_millis(20);

const TRUNCATED: &str = "the upstream's response ended before its end";

/// An open stream; dropping it counts its end.
#[derive(Debug)]
pub(super) struct OpenStream {
    flow: Arc<ConnectionFlow>,
    /// The deadline for the client to take a piece.
    taking: Arc<Alarm>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let flow = &self.flow;
        if flow.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            flow.begin_idle();
        }
    }
}

/// Runs the streams of one connection. The library starts the task of a stream right after it has
/// requested the response. So the alarm of the last opened stream belongs to the next task.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamExecutor {
    opened: Arc<Mutex<Option<Arc<Alarm>>>>,
}

impl StreamExecutor {
    pub(super) fn open_stream(&self, flow: Arc<ConnectionFlow>) -> OpenStream {
        flow.open.fetch_add(1, Ordering::Relaxed);
        flow.idle.disarm();
        flow.allowance.earn(EARNED_BY_REQUEST);
        let taking = flow.sweep.alarm();
        *lock(&self.opened) = Some(Arc::clone(&taking));
        OpenStream { flow, taking }
    }
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let taking = lock(&self.opened).take();
        tokio::spawn(StreamTask { future, taking });
    }
}

pin_project! {
    /// The library's work for one stream. It ends when the client misses the deadline.
    struct StreamTask<F> {
        #[pin]
        future: F,
        taking: Option<Arc<Alarm>>,
    }
}

impl<F: Future<Output = ()>> Future for StreamTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if let Some(taking) = this.taking
            && taking.poll(context).is_ready()
        {
            return Poll::Ready(());
        }
        this.future.poll(context)
    }
}

/// Serves one request. Its content, if any, has a deadline of its own.
// An `async fn` would keep the request several times.
pub(super) fn serve_request(
    mut request: Request<Incoming>,
    client: Arc<ClientConnection>,
    open: OpenStream,
) -> impl Future<Output = Response<StreamBody>> + Send {
    let progress = if request.body().is_end_stream() {
        BodyProgress::default()
    } else {
        BodyProgress::paced(open.flow.sweep.alarm(), open.flow.body_timeout)
    };
    let received = progress.clone();
    join_cookies(request.headers_mut());
    let awaits_continue = request.headers().contains_key(EXPECT);
    let mut request = request.map(|incoming| RequestBody::new(incoming, progress));
    if awaits_continue {
        request.body_mut().await_continue();
    }
    let is_head = request.method() == Method::HEAD;
    let claims_no_content = !received.has_ended()
        && (request.headers().get(CONTENT_LENGTH)).is_some_and(|value| value == "0");
    let settles = Arc::new(AtomicBool::new(false));
    let (settles_later, flow) = (Arc::clone(&settles), Arc::clone(&open.flow));
    let work = async move {
        let mut response = Response::new(Body::awaited(settles_later));
        // An upstream takes such a head for the whole request, and so does the proxy. The library
        // resets the stream if content follows, so only its end is read. Nothing waits for that.
        let end = claims_no_content.then(|| std::mem::take(request.body_mut()));
        client.handle(&mut request, &mut response, None).await;
        drop((request, end));
        if is_head {
            add_length(&mut response);
        }
        response.map(|body| StreamBody {
            body,
            is_head,
            rest: Bytes::new(),
            last: Bytes::new(),
            reset: None,
            _client: client,
            open,
        })
    };
    StreamWork {
        work: Some(Box::pin(work)),
        settles,
        received,
        flow,
    }
}

/// The work on one request. It is dropped when the client resets the stream or loses the
/// connection. If the whole request has come and its response decides the cost, the work goes on
/// for [`HALF_CLOSE_GRACE`], as with HTTP/1.1. A response in this time settles the cost.
struct StreamWork {
    work: Option<BoxFuture<'static, Response<StreamBody>>>,
    /// Whether the response decides the cost of the request.
    settles: Arc<AtomicBool>,
    received: BodyProgress,
    flow: Arc<ConnectionFlow>,
}

impl Future for StreamWork {
    type Output = Response<StreamBody>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response<StreamBody>> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let done = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(done)
    }
}

impl Drop for StreamWork {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else {
            return;
        };
        // At most `max_streams` such requests of a connection, so resets keep no more upstream
        // connections busy than open streams do.
        let flow = Arc::clone(&self.flow);
        let add = |count: usize| (count < flow.max_streams).then_some(count + 1);
        let order = Ordering::Relaxed;
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && self.settles.load(order)
            && self.received.has_ended()
            && flow.abandoned.fetch_update(order, order, add).is_ok()
        {
            runtime.spawn(async move {
                contained(tokio::time::timeout(HALF_CLOSE_GRACE, work)).await;
                flow.abandoned.fetch_sub(1, order);
            });
        }
    }
}

/// Adds the length that the response to `GET` would have to the response to `HEAD`, if it is known.
fn add_length(response: &mut Response<Body>) {
    let length = response.body().size_hint().exact();
    if let Some(length) = length.filter(|&length| length > 0)
        && let Entry::Vacant(entry) = response.headers_mut().entry(CONTENT_LENGTH)
    {
        entry.insert(HeaderValue::from(length));
    }
}

fn join_cookies(headers: &mut HeaderMap) {
    let Entry::Occupied(mut cookies) = headers.entry(COOKIE) else {
        return;
    };
    if cookies.iter().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<&[u8]> = cookies.iter().map(HeaderValue::as_bytes).collect();
    // Valid values, joined by valid characters, are a valid value.
    if let Ok(line) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        cookies.insert(line);
    }
}

/// The body of a response in pieces. It keeps the client's connection alive.
pub(super) struct StreamBody {
    body: Body,
    /// The response to `HEAD`, for which the library would otherwise send content.
    is_head: bool,
    /// The rest of the last data, without its last bytes.
    rest: Bytes,
    last: Bytes,
    reset: Option<PendingReset>,
    open: OpenStream,
    _client: Arc<ClientConnection>,
}

impl StreamBody {
    /// Returns the next piece of the last data, and starts the client's deadline for it.
    fn next_piece(&mut self) -> Option<Bytes> {
        let from = if self.rest.is_empty() {
            &mut self.last
        } else {
            &mut self.rest
        };
        if from.is_empty() {
            return None;
        }
        let piece = from.split_to(from.len().min(PIECE_BYTES));
        self.open.flow.allowance.earn(EARNED_BY_PIECE);
        // The body is not polled while the client takes nothing, so its own deadline counts here.
        let most = self.open.flow.body_timeout;
        let left = self.body.time_left();
        let timeout = left.map_or(most, |left| left.min(most));
        self.open.taking.arm(timeout);
        Some(piece)
    }

    /// Ends a response whose content broke off.
    fn begin_reset(&mut self, error: &UpstreamError) -> Bytes {
        self.body = Body::empty();
        self.open.taking.arm(self.open.flow.body_timeout);
        let (reset, mark) = PendingReset::begin(error, &self.open.flow.sweep);
        self.reset = Some(reset);
        mark
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        if let Some(piece) = self.next_piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(reset) = &mut self.reset {
            return reset.poll_written(context).map(|error| error.map(Err));
        }
        self.open.taking.disarm();
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let mark = self.begin_reset(&error);
                return Poll::Ready(Some(Ok(Frame::data(mark))));
            }
            None => return Poll::Ready(None),
        };
        match frame.into_data() {
            Ok(mut data) => {
                let last = data.len().min(LAST_BYTES);
                if data.len() > last {
                    // A copy, so that it does not keep the memory of all data.
                    self.last = Bytes::copy_from_slice(&data[data.len() - last..]);
                    data.truncate(data.len() - last);
                }
                self.rest = data;
                let piece = self.next_piece().unwrap_or_default();
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            // With a field of the connection, the library would reset the whole response.
            Err(frame) => Poll::Ready(match frame.into_trailers() {
                Ok(trailers) => Some(Ok(Frame::trailers(filter_trailers(trailers)))),
                Err(frame) => Some(Ok(frame)),
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_taken = self.rest.is_empty() && self.last.is_empty();
        self.is_head || self.reset.is_none() && is_taken && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The library asks before it reads anything.
        self.body.size_hint()
    }
}

/// Resets the stream of a truncated response when its bytes are written.
///
/// A reset makes the library drop the frames of the stream that it has not written, even the head.
/// So an empty mark is passed as content first. The library drops the mark when all bytes before it
/// are on their way. The reset follows after a pause. Without the pause, curl 7.88 drops a head
/// that it reads together with the reset (1 to 3 of 20 responses).
#[derive(Debug)]
struct PendingReset {
    mark: Arc<MarkState>,
    pause: Arc<Alarm>,
    is_pausing: bool,
    error: Option<Cause>,
}

#[derive(Debug, Default)]
struct MarkState {
    is_written: AtomicBool,
    waker: AtomicWaker,
}

/// The owner of the mark's bytes, of which there are none.
struct WriteMark(Arc<MarkState>);

impl PendingReset {
    /// Returns the mark as well.
    fn begin(error: &UpstreamError, sweep: &Sweep) -> (PendingReset, Bytes) {
        let mark = Arc::new(MarkState::default());
        let bytes = Bytes::from_owner(WriteMark(Arc::clone(&mark)));
        let reset = PendingReset {
            mark,
            pause: sweep.alarm(),
            is_pausing: false,
            error: Some(reset_cause(error)),
        };
        (reset, bytes)
    }

    /// Ready after the pause that follows the write of the mark. The library may also drop the mark
    /// together with its stream.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<Option<Cause>> {
        self.mark.waker.register(context.waker());
        if !self.mark.is_written.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_pausing, true) {
            self.pause.arm(RESET_PAUSE);
        }
        ready!(self.pause.poll(context));
        Poll::Ready(self.error.take())
    }
}

impl AsRef<[u8]> for WriteMark {
    fn as_ref(&self) -> &[u8] {
        &[]
    }
}

impl Drop for WriteMark {
    fn drop(&mut self) {
        self.0.is_written.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

/// The error of a truncated response: the server's HTTP/2 error, if there is one. The library
/// resets the client's stream with the same reason.
fn reset_cause(error: &UpstreamError) -> Cause {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<h2::Error>() {
            let reason = error.reason().filter(|&reason| reason != Reason::NO_ERROR);
            let cause = reason.map(|reason| h2::Error::from(reason).into());
            return cause.unwrap_or_else(|| TRUNCATED.into());
        }
        cause = inner.source();
    }
    TRUNCATED.into()
}
