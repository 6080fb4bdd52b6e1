//! A response's body: streamed from upstream, made here, or empty; and the log line that is
//! written when it has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Bytes;

use super::grpc::Call;
use crate::body::ResponseBody;
use crate::upstream::UpstreamError;
use crate::upstream::body::UpstreamBody;
use tidegate_core::exchange::access_record::AccessRecord;
use tidegate_core::exchange::slots::HeldSlots;
use tidegate_core::failpoint;

/// See the file's head.
#[derive(Debug)]
pub struct Body {
    content: ResponseBody<UpstreamBody>,
    record: Option<Box<AccessRecord>>,
    /// What the request holds until here.
    slots: Option<Box<HeldSlots>>,
    /// Set where the answer decides what its request costs.
    settles: Option<Arc<AtomicBool>>,
}

impl Body {
    fn of(content: ResponseBody<UpstreamBody>) -> Body {
        Body {
            content,
            record: None,
            slots: None,
            settles: None,
        }
    }

    /// Nothing.
    pub(crate) fn empty() -> Body {
        Body::of(ResponseBody::Empty)
    }

    /// Nothing yet; `settles` is set where the answer will decide what its request costs.
    pub(crate) fn awaited(settles: Arc<AtomicBool>) -> Body {
        let mut body = Body::empty();
        body.settles = Some(settles);
        body
    }

    /// The answer that takes this body's place decides what its request costs.
    pub(crate) fn note_settling(&self) {
        if let Some(settles) = &self.settles {
            settles.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes that the proxy wrote itself.
    pub(crate) fn made(bytes: Bytes) -> Body {
        Body::of(ResponseBody::Full(bytes))
    }

    /// What the upstream sends, as it sends it.
    pub(crate) fn upstream(body: UpstreamBody) -> Body {
        Body::of(ResponseBody::Streaming(body))
    }

    /// Whether the proxy made it itself.
    pub(crate) fn is_made_here(&self) -> bool {
        !matches!(self.content, ResponseBody::Streaming(_))
    }

    /// How long it may still take as a whole, where that is bounded.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        match &self.content {
            ResponseBody::Streaming(body) => body.time_left(),
            ResponseBody::Full(_) | ResponseBody::Empty => None,
        }
    }

    /// Holds `slots` until this body has ended or was given up.
    pub(crate) fn hold(&mut self, slots: Box<HeldSlots>) {
        self.slots = Some(slots);
    }

    /// Whether it can end before its end, as only an upstream's can.
    pub(crate) fn may_be_cut(&self) -> bool {
        match &self.content {
            ResponseBody::Streaming(body) => body.may_be_cut(),
            ResponseBody::Full(_) | ResponseBody::Empty => false,
        }
    }

    /// Has `line` written when this body has ended or was given up.
    pub(crate) fn log(&mut self, mut record: Box<AccessRecord>) {
        record.expect_bytes(http_body::Body::size_hint(self).exact());
        self.record = Some(record);
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body::made(bytes)
    }
}

/// The status of a call is in its trailers; an answer that breaks off has none.
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
        if let Some(mut record) = self.record.take() {
            if let Some(call) = &mut record.call {
                call.end(is_whole);
            }
            record.write();
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
        let polled = Pin::new(&mut self.content).poll_frame(context);
        if let (Some(record), Poll::Ready(Some(polled))) = (&mut self.record, &polled) {
            match polled {
                Ok(frame) => record.add_bytes(frame.data_ref().map_or(0, Bytes::len)),
                Err(error) => record.note_truncated(error.label()),
            }
            if let Some(call) = &mut record.call {
                note_frame(call, polled);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
