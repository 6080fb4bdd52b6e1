//! One stream of HTTP/2: its request, its response, and how long its client may take nothing.
//!
//! The library keeps what a client's window has no room for, and waits for ever. So a response is
//! handed over in small pieces, and each has to be taken before the deadline of bodies; otherwise
//! the stream is reset, which cancels the work upstream.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, Entry, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use pin_project_lite::pin_project;

use super::Flow;
use super::cut::{PendingReset, TruncatedBody};
use crate::body::{BodyError, BodyProgress, RequestBody};
use crate::clock::Alarm;
use crate::proxy::body::Body;
use crate::server::client_connection::ClientConnection;
use crate::server::http1::socket::HALF_CLOSE_GRACE;

/// Bytes of a response that are handed over at once: what a client has to take in time.
const PIECE_BYTES: usize = 16 << 10;
/// The last bytes of each piece, handed over when there is room for the others: all that a client
/// can have us keep of a response that has ended.
const LAST_BYTES: usize = 1 << 10;

/// Units of the allowance that a request earns that is served, and a piece of a response that is
/// taken: the frames which a client may answer it with.
const BEGUN: i64 = 1;
const PIECE_TAKEN: i64 = 4;

/// A stream that is under way; dropping it is its end.
#[derive(Debug)]
pub(super) struct Open {
    flow: Arc<Flow>,
    /// Rings when its client has taken nothing for too long.
    taking: Arc<Alarm>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.flow.end_stream();
    }
}

/// Runs the streams of one connection. The library asks for a response and has it run at once, so
/// that the deadline of the one is that of the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    begun: Arc<Mutex<Option<Arc<Alarm>>>>,
}

impl Streams {
    /// A request has come.
    pub(super) fn open(&self, flow: Arc<Flow>) -> Open {
        flow.begin_stream();
        flow.allowance.earn(BEGUN);
        let taking = flow.sweep.alarm();
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        *begun = Some(Arc::clone(&taking));
        Open { flow, taking }
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let taking = begun.take();
        tokio::spawn(Bounded { future, taking });
    }
}

pin_project! {
    /// What the library does for one stream, until its alarm rings.
    struct Bounded<F> {
        #[pin]
        future: F,
        taking: Option<Arc<Alarm>>,
    }
}

impl<F: Future<Output = ()>> Future for Bounded<F> {
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

/// One request: the proxy's sentence. Its body has a deadline of its own, if it has one.
// Not `async` itself: that would keep the request several times.
pub(super) fn answer(
    mut request: Request<Incoming>,
    client: Arc<ClientConnection>,
    open: Open,
) -> impl Future<Output = Response<Answer>> + Send {
    let progress = if request.body().is_end_stream() {
        BodyProgress::default()
    } else {
        BodyProgress::paced(open.flow.sweep.alarm(), open.flow.body_timeout)
    };
    let ended = progress.clone();
    join_cookies(request.headers_mut());
    let awaits_continue = request.headers().contains_key(EXPECT);
    let mut request = request.map(|incoming| RequestBody::new(incoming, progress));
    if awaits_continue {
        request.body_mut().await_continue();
    }
    let bodiless = request.method() == Method::HEAD;
    let has_stated_end = !ended.has_ended() && says_no_content(request.headers());
    let settles = Arc::new(AtomicBool::new(false));
    let (told, flow) = (Arc::clone(&settles), Arc::clone(&open.flow));
    let work = async move {
        let mut response = Response::new(Body::awaited(told));
        if has_stated_end && ends_as_stated(request.body_mut()).await.is_err() {
            *response.status_mut() = StatusCode::BAD_REQUEST;
        } else {
            client.handle(&mut request, &mut response, None).await;
        }
        drop(request);
        if bodiless {
            say_length(&mut response);
        }
        response.map(|body| Answer {
            body,
            bodiless,
            rest: Bytes::new(),
            last: Bytes::new(),
            cut: None,
            _client: client,
            open,
        })
    };
    StreamWork {
        work: Some(Box::pin(work)),
        settles,
        ended,
        flow,
    }
}

fn says_no_content(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_LENGTH)
        .is_some_and(|value| value == "0")
}

/// Waits for the end of a request that says it has no content. Its head is the whole of it for an
/// upstream, so the head has to wait until no content contradicts it.
async fn ends_as_stated(body: &mut RequestBody) -> Result<(), BodyError> {
    while let Some(frame) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        frame?;
    }
    Ok(())
}

/// The work on one request. A client that resets its stream, or closes or resets its connection,
/// drops it. Where the whole request has come and its answer decides what it costs, the work goes
/// on for [`HALF_CLOSE_GRACE`]: an answer that comes in time settles the cost, as with HTTP/1.1.
struct StreamWork<F: Future + Send + 'static>
where
    F::Output: Send,
{
    work: Option<Pin<Box<F>>>,
    settles: Arc<AtomicBool>,
    ended: BodyProgress,
    flow: Arc<Flow>,
}

impl<F: Future + Send + 'static> Future for StreamWork<F>
where
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let done = std::task::ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(done)
    }
}

impl<F: Future + Send + 'static> Drop for StreamWork<F>
where
    F::Output: Send,
{
    fn drop(&mut self) {
        let Some(work) = self.work.take() else {
            return;
        };
        let runtime = tokio::runtime::Handle::try_current();
        if let Ok(runtime) = runtime
            && self.settles.load(Ordering::Relaxed)
            && self.ended.has_ended()
            && let Some(left) = Left::count(&self.flow)
        {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(HALF_CLOSE_GRACE, work).await;
                drop(left);
            });
        }
    }
}

/// A request without its client. A connection has no more of them at a time than it may have
/// streams, so resets keep no more upstream connections busy than open streams do.
struct Left(Arc<Flow>);

impl Left {
    fn count(flow: &Arc<Flow>) -> Option<Left> {
        let most = flow.max_streams;
        let add = |left: usize| (left < most).then_some(left + 1);
        let counted = flow
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        counted.ok().map(|_| Left(Arc::clone(flow)))
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.0.left.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer to `HEAD` says how long that to `GET` is, where this is known.
fn say_length(response: &mut Response<Body>) {
    let length = response
        .body()
        .size_hint()
        .exact()
        .filter(|&length| length > 0);
    if let (Some(length), Entry::Vacant(said)) =
        (length, response.headers_mut().entry(CONTENT_LENGTH))
    {
        said.insert(HeaderValue::from(length));
    }
}

/// Clients of HTTP/2 may send cookies in several lines; everywhere else they are one (RFC 9113
/// section 8.2.3).
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

/// A response's body in pieces, which holds its client's connection.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    /// Of an answer to `HEAD`, for which the library would send one.
    bodiless: bool,
    /// What is left of the piece that came last, without its last bytes.
    rest: Bytes,
    last: Bytes,
    /// It has ended before its end.
    cut: Option<PendingReset>,
    open: Open,
    _client: Arc<ClientConnection>,
}

impl Answer {
    /// The next piece of what has come: it is the client's turn to take it.
    fn piece(&mut self) -> Option<Bytes> {
        let from = if self.rest.is_empty() {
            &mut self.last
        } else {
            &mut self.rest
        };
        if from.is_empty() {
            return None;
        }
        let piece = from.split_to(from.len().min(PIECE_BYTES));
        self.open.flow.allowance.earn(PIECE_TAKEN);
        // Nothing asks the body for its time while the client takes nothing.
        let most = self.open.flow.body_timeout;
        let left = self.body.time_left();
        self.open
            .taking
            .arm(left.map_or(most, |left| left.min(most)));
        Some(piece)
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = TruncatedBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TruncatedBody>>> {
        if let Some(piece) = self.piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(cut) = &mut self.cut {
            return cut.poll_written(context).map(|error| error.map(Err));
        }
        self.open.taking.disarm();
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                self.body = Body::empty();
                self.open.taking.arm(self.open.flow.body_timeout);
                let error = TruncatedBody::of(&error);
                let (cut, mark) = PendingReset::begin(error, &self.open.flow.sweep);
                self.cut = Some(cut);
                return Poll::Ready(Some(Ok(Frame::data(mark))));
            }
            None => return Poll::Ready(None),
        };
        match frame.into_data() {
            Ok(mut data) => {
                let last = data.len().min(LAST_BYTES);
                if data.len() > last {
                    // A copy, so that it does not keep all that came with it.
                    self.last = Bytes::copy_from_slice(&data[data.len() - last..]);
                    data.truncate(data.len() - last);
                }
                self.rest = data;
                let piece = self.piece().unwrap_or_default();
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Err(trailers) => Poll::Ready(Some(Ok(trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_taken = self.rest.is_empty() && self.last.is_empty();
        self.bodiless || self.cut.is_none() && is_taken && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Asked for before anything was read.
        self.body.size_hint()
    }
}
