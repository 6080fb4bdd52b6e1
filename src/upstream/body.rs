//! Bodies on their way through: the client's towards an upstream, an upstream's towards the
//! client. Both are streamed; neither is ever collected.
//!
//! Lengths and trailers pass through, so that hyper frames each side as the other was framed. A
//! response's body that does not end well is an error, which cuts the client's connection: it
//! must never look complete.

mod request;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::connection::{Content, Lease};
use super::error::UpstreamError;
use super::server::Seat;
use crate::clock::Alarm;
pub use request::{BodyError, Progress, RequestBody};

/// A response's body. It holds the connection it comes from: taken to its end, the connection goes
/// back to the pool; dropped before, the connection is closed, which cancels the work upstream.
#[derive(Debug)]
pub struct ResponseBody {
    content: Content,
    hold: Hold,
    /// Whether the deadline is armed, because nothing had come when we last looked.
    waiting: bool,
    /// Rings when the whole has taken too long, where that is bounded.
    whole: Option<Arc<Alarm>>,
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
    pub(super) fn new(content: Content, lease: Lease) -> ResponseBody {
        let mut body = ResponseBody {
            content,
            hold: Hold::Lease(lease),
            waiting: false,
            whole: None,
        };
        if body.content.is_end_stream() {
            body.end();
        }
        body
    }

    pub(super) fn tunnel(content: Content, seat: Seat) -> ResponseBody {
        ResponseBody {
            content,
            hold: Hold::Seat(seat),
            waiting: false,
            whole: None,
        }
    }

    /// Has it cut when `whole` rings; a tunnel is not.
    pub(super) fn end_by(&mut self, whole: Arc<Alarm>) {
        if matches!(self.hold, Hold::Lease(_)) {
            self.whole = Some(whole);
        }
    }

    /// How much time is left of the whole, where that is bounded.
    pub fn time_left(&self) -> Option<Duration> {
        self.whole.as_ref()?.left()
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
        if let Some(whole) = &self.whole
            && whole.poll(context).is_ready()
        {
            (self.hold, self.whole) = (Hold::Nothing, None);
            return Poll::Ready(Some(Err(UpstreamError::TimedOut)));
        }
        let Poll::Ready(polled) = self.content.poll_frame(context) else {
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
                if frame.is_trailers() || self.content.is_end_stream() {
                    self.end();
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                self.hold = Hold::Nothing;
                Some(Err(error))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
