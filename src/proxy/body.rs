//! The body of a response to a client. Its end releases slots, and writes the access record.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Bytes;

use super::ask::{AskedFrame, AskedStream};
use super::body_pace::BodyPace;
use super::grpc::Call;
use super::usage::UsageMeter;
use crate::route::Bandwidth;
use crate::upstream::UpstreamError;
use crate::upstream::body::UpstreamBody;
use tidegate_core::exchange::access_record::AccessRecord;
use tidegate_core::exchange::changes::ResponseTrailers;
use tidegate_core::exchange::limiter::HeldSlots;
use tidegate_core::failpoint;

type PolledFrame = Poll<Option<Result<Frame<Bytes>, UpstreamError>>>;

#[derive(Debug)]
pub struct Body {
    /// `None` for a body that the proxy made.
    upstream: Option<UpstreamBody>,
    made: Bytes,
    /// `None` if nothing follows `made`.
    tail: Option<Box<MadeTail>>,
    record: Option<Box<AccessRecord>>,
    /// Reads the usage that the body reports. `None` if nothing depends on it.
    usage: Option<Box<UsageMeter>>,
    /// Takes the event out that the proxy asked for. `None` if it asked for none.
    asked: Option<Box<AskedStream>>,
    /// `None` if its speed has no bound.
    pace: Option<Box<BodyPace>>,
    slots: Option<Box<HeldSlots>>,
    /// The trailers of the route, which follow the content. `None` if there are none.
    own_trailers: Option<Box<ResponseTrailers>>,
    /// Set if the response will decide the cost of its request.
    settles: Option<Arc<AtomicBool>>,
}

/// The frames that follow the first bytes of a body that the proxy made.
#[derive(Default)]
struct MadeTail {
    /// Bytes that come later.
    awaited: Option<BoxFuture<'static, Bytes>>,
    trailers: Option<HeaderMap>,
}

impl fmt::Debug for MadeTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadeTail")
            .field("is_awaited", &self.awaited.is_some())
            .field("trailers", &self.trailers)
            .finish()
    }
}

impl Body {
    fn new(upstream: Option<UpstreamBody>, made: Bytes) -> Body {
        Body {
            upstream,
            made,
            tail: None,
            record: None,
            usage: None,
            asked: None,
            pace: None,
            slots: None,
            own_trailers: None,
            settles: None,
        }
    }

    pub(crate) fn empty() -> Body {
        Body::new(None, Bytes::new())
    }

    /// The body before there is a response.
    pub(crate) fn awaited(settles: Arc<AtomicBool>) -> Body {
        let mut body = Body::empty();
        body.settles = Some(settles);
        body
    }

    pub(crate) fn note_settling(&self) {
        if let Some(settles) = &self.settles {
            settles.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn made(bytes: Bytes) -> Body {
        Body::new(None, bytes)
    }

    /// Adds bytes that come later, after the others.
    pub(crate) fn then(mut self, bytes: BoxFuture<'static, Bytes>) -> Body {
        self.tail.get_or_insert_default().awaited = Some(bytes);
        self
    }

    pub(crate) fn with_trailers(mut self, trailers: HeaderMap) -> Body {
        self.tail.get_or_insert_default().trailers = Some(trailers);
        self
    }

    /// Takes the bytes of a body that the proxy made.
    pub(crate) fn take_made(&mut self) -> Bytes {
        std::mem::take(&mut self.made)
    }

    pub(crate) fn upstream(body: UpstreamBody) -> Body {
        Body::new(Some(body), Bytes::new())
    }

    pub(crate) fn is_made_here(&self) -> bool {
        self.upstream.is_none()
    }

    /// The time until the whole body must have come, if that is bounded.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.upstream.as_ref().and_then(UpstreamBody::time_left)
    }

    /// Puts another content in place of this one. The slots and the speed stay: they are those of
    /// the response. Returns the content of the upstream.
    pub(super) fn replace_content(&mut self, mut content: Body) -> Option<UpstreamBody> {
        content.slots = self.slots.take();
        content.pace = self.pace.take();
        let replaced = self.upstream.take();
        *self = content;
        replaced
    }

    pub(super) fn meter(&mut self, usage: Box<UsageMeter>) {
        self.usage = Some(usage);
    }

    pub(super) fn is_metered(&self) -> bool {
        self.usage.is_some()
    }

    pub(super) fn filter(&mut self, asked: Box<AskedStream>) {
        self.asked = Some(asked);
    }

    pub(super) fn pace(&mut self, bandwidth: Bandwidth) {
        self.pace = Some(Box::new(BodyPace::new(bandwidth)));
    }

    pub(super) fn end_with(&mut self, trailers: Box<ResponseTrailers>) {
        self.own_trailers = Some(trailers);
    }

    pub(crate) fn has_own_trailers(&self) -> bool {
        self.own_trailers.is_some()
    }

    pub(crate) fn hold(&mut self, slots: Box<HeldSlots>) {
        self.slots = Some(slots);
    }

    /// Whether it may end too early, as only an upstream's body may.
    pub(crate) fn may_be_cut(&self) -> bool {
        self.upstream.as_ref().is_some_and(UpstreamBody::may_be_cut)
    }

    /// Polls the content as it comes, and reads its usage.
    fn poll_content(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let polled = match &mut self.upstream {
            Some(body) => Pin::new(body).poll_frame(context),
            None => self.poll_made(context),
        };
        if let (Some(usage), Poll::Ready(polled)) = (&mut self.usage, &polled) {
            match polled {
                Some(Ok(frame)) => usage.read(frame),
                Some(Err(_)) => usage.note_break(),
                None => {}
            }
        }
        polled
    }

    /// Bytes that wait for their time.
    fn waiting(&self) -> u64 {
        self.pace.as_ref().map_or(0, |pace| pace.waiting())
    }

    /// Polls the content for the client, at its speed.
    fn poll_paced(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        if let Some(pace) = &mut self.pace
            && pace.waiting() > 0
        {
            return pace
                .poll_next(context)
                .map(|data| Some(Ok(Frame::data(data))));
        }
        let polled = ready!(self.poll_passed(context));
        let Some(pace) = &mut self.pace else {
            return Poll::Ready(polled);
        };
        match polled.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) if !data.is_empty() => {
                pace.put(data);
                pace.poll_next(context)
                    .map(|data| Some(Ok(Frame::data(data))))
            }
            Some(Ok(Ok(data))) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Some(Ok(Err(frame))) => Poll::Ready(Some(Ok(frame))),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => Poll::Ready(None),
        }
    }

    /// Adds the trailers of the route to the end of the content.
    #[cold]
    fn add_trailers(&mut self, polled: PolledFrame) -> PolledFrame {
        let mut trailers = match polled {
            Poll::Ready(None) => HeaderMap::new(),
            Poll::Ready(Some(Ok(frame))) => match frame.into_trailers() {
                Ok(trailers) => trailers,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            },
            other => return other,
        };
        if let Some(own) = self.own_trailers.take() {
            own.add_to(&mut trailers);
        }
        Poll::Ready((!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers))))
    }

    /// Polls the content for the client.
    fn poll_passed(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        loop {
            match self.asked.as_mut().map(|asked| asked.next()) {
                None | Some(AskedFrame::Later) => {}
                Some(AskedFrame::Frame(frame)) => return Poll::Ready(Some(frame)),
                Some(AskedFrame::End) => return Poll::Ready(None),
            }
            let polled = ready!(self.poll_content(context));
            match &mut self.asked {
                Some(asked) => asked.take(polled),
                None => return Poll::Ready(polled),
            }
        }
    }

    fn poll_made(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        if self.made.is_empty()
            && let Some(tail) = &mut self.tail
        {
            self.made = ready!(tail.poll_bytes(context));
        }
        if !self.made.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.take_made()))));
        }
        let tail = self.tail.take();
        let trailers = tail.and_then(|tail| tail.trailers);
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    /// Notes bytes that the client was sent.
    pub(crate) fn note_sent(&mut self, bytes: usize) {
        if let Some(record) = &mut self.record {
            record.add_sent(bytes);
        }
    }

    /// Writes `record` when this body is dropped.
    pub(crate) fn log(&mut self, mut record: Box<AccessRecord>) {
        record.expect_bytes(http_body::Body::size_hint(self).exact());
        self.record = Some(record);
    }
}

impl MadeTail {
    /// The bytes that come later; empty if there are none.
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let Some(awaited) = &mut self.awaited else {
            return Poll::Ready(Bytes::new());
        };
        let bytes = ready!(awaited.as_mut().poll(context));
        self.awaited = None;
        Poll::Ready(bytes)
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body::made(bytes)
    }
}

fn note_frame(call: &mut Call, polled: &Result<Frame<Bytes>, UpstreamError>) {
    match polled {
        Ok(frame) => {
            if let Some(trailers) = frame.trailers_ref() {
                call.note_trailers(trailers);
            }
        }
        Err(_) => call.note_break(),
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let is_whole = self.is_end_stream();
        let mut record = self.record.take();
        if let Some(call) = record.as_mut().and_then(|record| record.call.as_mut()) {
            call.end(is_whole);
        }
        match self.usage.take() {
            Some(usage) => usage.end(is_whole, self.upstream.take(), record),
            None => record.into_iter().for_each(|mut record| record.write()),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        failpoint!("proxy.body");
        let this = &mut *self;
        let mut polled = this.poll_paced(context);
        if this.own_trailers.is_some() {
            polled = this.add_trailers(polled);
        }
        if let (Some(record), Poll::Ready(Some(polled))) = (&mut this.record, &polled) {
            match polled {
                Ok(frame) => record.add_bytes(frame.data_ref().map_or(0, Bytes::len)),
                Err(error) => {
                    let failure = this.upstream.as_ref().and_then(|body| body.failure(error));
                    record.note_truncated(error.label(), failure);
                }
            }
            if let Some(call) = &mut record.call {
                note_frame(call, polled);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let is_asked = self.asked.as_ref().is_some_and(|asked| !asked.is_empty());
        if is_asked || self.waiting() > 0 || self.own_trailers.is_some() {
            return false;
        }
        match &self.upstream {
            Some(body) => body.is_end_stream(),
            None => self.made.is_empty() && self.tail.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.upstream {
            _ if self.own_trailers.is_some() => SizeHint::default(),
            // The stream may have an event that does not pass.
            Some(_) if self.asked.is_some() => SizeHint::default(),
            Some(body) => {
                let hint = body.size_hint();
                let exact = hint.exact().map(|exact| exact + self.waiting());
                exact.map_or(hint, SizeHint::with_exact)
            }
            None if self.tail.is_some() => SizeHint::default(),
            None => SizeHint::with_exact(self.made.len() as u64),
        }
    }
}
