//! A response's content as a server sends it, and the connection it comes from.
//!
//! Content that does not end well is an error, which cuts the client's connection: it must never
//! look complete.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::error::UpstreamError;
use super::grpc::Pending;
use super::http1::Upgraded;
use super::lease::Lease;
use super::permit::ServerPermit;
use crate::clock::Alarm;

/// A response's body. It holds the connection it comes from: taken to its end, the connection goes
/// back to the pool; dropped before, the connection is closed, which cancels the work upstream.
#[derive(Debug)]
pub struct UpstreamBody {
    hold: Hold,
    /// Whether the deadline is armed, because nothing had come when we last looked.
    waiting: bool,
    /// Rings when the whole has taken too long, where that is bounded.
    whole: Option<Arc<Alarm>>,
    /// The gRPC call that it answers, until its status has come.
    call: Option<Box<Pending>>,
}

#[derive(Debug)]
enum Hold {
    /// More is to come.
    Lease(Lease),
    /// It became a tunnel.
    Tunnel(Lease),
    /// It has ended before its end.
    Cut,
    /// It has ended.
    Nothing,
}

impl UpstreamBody {
    pub(super) fn new(lease: Lease) -> UpstreamBody {
        let has_ended = lease.connection.is_end_stream();
        let mut body = UpstreamBody {
            hold: Hold::Lease(lease),
            waiting: false,
            whole: None,
            call: None,
        };
        if has_ended {
            body.end();
        }
        body
    }

    pub(super) fn tunnel(lease: Lease) -> UpstreamBody {
        UpstreamBody {
            hold: Hold::Tunnel(lease),
            waiting: false,
            whole: None,
            call: None,
        }
    }

    /// Has it cut when `whole` rings; a tunnel is not.
    pub(super) fn end_by(&mut self, whole: Arc<Alarm>) {
        if matches!(self.hold, Hold::Lease(_)) {
            self.whole = Some(whole);
        }
    }

    /// Whether it can still end before its end: more of it has to come.
    pub fn may_be_cut(&self) -> bool {
        match &self.hold {
            Hold::Lease(lease) => !lease.connection.has_all(),
            Hold::Tunnel(_) | Hold::Nothing => false,
            Hold::Cut => true,
        }
    }

    /// How much time is left of the whole, where that is bounded.
    pub fn time_left(&self) -> Option<Duration> {
        self.whole.as_ref()?.left()
    }

    /// The server's end of a tunnel, and the place among `max_connections` that it keeps for as
    /// long as it stands.
    pub fn take_tunnel(&mut self) -> Option<(Upgraded, ServerPermit)> {
        match std::mem::replace(&mut self.hold, Hold::Nothing) {
            Hold::Tunnel(lease) => lease.into_tunnel(),
            other => {
                self.hold = other;
                None
            }
        }
    }

    fn end(&mut self) {
        self.end_with(None);
    }

    /// The same with the trailers that came last.
    fn end_with(&mut self, trailers: Option<&HeaderMap>) {
        if let Hold::Lease(lease) = std::mem::replace(&mut self.hold, Hold::Nothing) {
            lease.permit().completed();
            if let Some(call) = self.call.take() {
                call.end(trailers, lease.permit());
            }
            lease.give_back();
        }
    }

    /// It has ended before its end: its connection is closed.
    #[cold]
    fn cut(&mut self, error: UpstreamError) -> UpstreamError {
        if let Some(call) = self.call.take() {
            call.break_off();
        }
        if let Hold::Lease(lease) = std::mem::replace(&mut self.hold, Hold::Cut) {
            lease.permit().truncated(&error);
        }
        error
    }

    /// Has its server judged by the status of a gRPC call, which comes at the end.
    pub(super) fn judge_at_end(&mut self, call: Box<Pending>) {
        match &self.hold {
            Hold::Lease(_) => self.call = Some(call),
            // The head was all of it.
            _ => call.break_off(),
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

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        if let Some(whole) = &self.whole
            && whole.poll(context).is_ready()
        {
            self.whole = None;
            if let Some(call) = self.call.take() {
                call.break_off();
            }
            self.hold = Hold::Cut;
            return Poll::Ready(Some(Err(UpstreamError::TimedOut)));
        }
        let Hold::Lease(lease) = &mut self.hold else {
            return Poll::Ready(None);
        };
        let Poll::Ready(polled) = lease.connection.poll_frame(context) else {
            ready!(self.poll_deadline(context));
            let error = self.cut(UpstreamError::TimedOut);
            return Poll::Ready(Some(Err(error)));
        };
        let has_ended = lease.connection.is_end_stream();
        if std::mem::take(&mut self.waiting)
            && let Hold::Lease(lease) = &self.hold
        {
            lease.deadline().disarm();
        }
        Poll::Ready(match polled {
            None => {
                self.end();
                None
            }
            Some(Ok(frame)) => {
                // The last reader of a body need not ask once more to learn that it has ended.
                if frame.is_trailers() || has_ended {
                    self.end_with(frame.trailers_ref());
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(self.cut(error))),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.hold {
            Hold::Lease(lease) => lease.connection.is_end_stream(),
            Hold::Tunnel(_) | Hold::Nothing => true,
            Hold::Cut => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.hold {
            Hold::Lease(lease) => lease.connection.size_hint(),
            Hold::Tunnel(_) | Hold::Nothing => SizeHint::with_exact(0),
            Hold::Cut => SizeHint::default(),
        }
    }
}
