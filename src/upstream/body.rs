//! The content of a response as a server sends it, and the connection it comes from.
//!
//! Content that ends early is an error, which also cuts the client's connection: it must never look
//! complete.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::connect::TolerantStream;
use super::connection::{ResponseLease, UpstreamConnection};
use super::error::UpstreamError;
use super::permit::ServerPermit;
use super::server::Server;
use crate::clock::Alarm;
use crate::telemetry::access::UpstreamFailure;
use crate::telemetry::metrics::grpc::is_in_body;
use crate::telemetry::metrics::{GrpcStatus, UpstreamCells};
use crate::telemetry::spans::{AttemptBytes, AttemptLog};

/// The body of a response, with its connection. Read to its end, it returns the connection to the
/// pool. Dropped before, it closes the connection, which cancels the work upstream.
#[derive(Debug)]
pub struct UpstreamBody {
    state: BodyState,
    /// Whether the deadline is armed, because the last poll found nothing.
    waiting: bool,
    /// Rings when the whole exchange has taken too long.
    whole: Option<Arc<Alarm>>,
    grpc: Option<Arc<UpstreamCells>>,
    /// `None` if nothing tells its bytes.
    counted: Option<Box<CountedBytes>>,
}

/// Where the bytes of a response are told, and those of its body so far.
#[derive(Debug)]
struct CountedBytes {
    attempts: Arc<AttemptLog>,
    body: u64,
}

impl CountedBytes {
    fn note(&self, connection: &UpstreamConnection) {
        self.attempts.note_bytes(AttemptBytes {
            body: self.body,
            ..connection.bytes()
        });
    }
}

#[derive(Debug)]
enum BodyState {
    Reading(ResponseLease),
    Tunnel(ResponseLease),
    /// The response of this server ended too early.
    Cut(Arc<Server>),
    Ended,
}

impl UpstreamBody {
    /// `lease` has received the head of a response.
    pub(super) fn new(
        lease: ResponseLease,
        status: StatusCode,
        attempts: Option<&Arc<AttemptLog>>,
    ) -> UpstreamBody {
        let counted = attempts.map(|attempts| {
            let attempts = Arc::clone(attempts);
            Box::new(CountedBytes { attempts, body: 0 })
        });
        if let Some(counted) = &counted {
            counted.note(&lease.connection);
        }
        let lease = lease.begin_body();
        let has_ended = lease.connection.is_end_stream();
        let is_tunnel = status == StatusCode::SWITCHING_PROTOCOLS;
        let mut body = UpstreamBody {
            state: match is_tunnel {
                true => BodyState::Tunnel(lease),
                false => BodyState::Reading(lease),
            },
            waiting: false,
            whole: None,
            grpc: None,
            counted,
        };
        if has_ended && !is_tunnel {
            body.end(None);
        }
        body
    }

    /// Cuts the body when `whole` rings. A tunnel goes on.
    pub(super) fn end_by(&mut self, whole: Arc<Alarm>) {
        if matches!(self.state, BodyState::Reading(_)) {
            self.whole = Some(whole);
        }
    }

    /// Whether a part of the body has to come from the network, so that it can end early.
    pub fn may_be_cut(&self) -> bool {
        match &self.state {
            BodyState::Reading(lease) => !lease.connection.has_all(),
            BodyState::Tunnel(_) | BodyState::Ended => false,
            BodyState::Cut(_) => true,
        }
    }

    /// The time that is left for the whole exchange, if that is bounded.
    pub fn time_left(&self) -> Option<Duration> {
        self.whole.as_ref()?.left()
    }

    /// Takes the server's end of a tunnel, and the permit that it needs as long as it is open.
    pub fn take_tunnel(&mut self) -> Option<(TolerantStream, ServerPermit)> {
        match std::mem::replace(&mut self.state, BodyState::Ended) {
            BodyState::Tunnel(lease) => lease.into_tunnel(),
            other => {
                self.state = other;
                None
            }
        }
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) {
        if let BodyState::Reading(mut lease) = std::mem::replace(&mut self.state, BodyState::Ended)
        {
            lease.permit.server.health.complete();
            if let Some(cells) = self.grpc.take() {
                let status = trailers.and_then(GrpcStatus::from_fields);
                let status = status.unwrap_or(GrpcStatus::Missing);
                cells.grpc.count(status);
                lease.permit.judge(status.as_http());
            }
            lease.end();
        }
    }

    /// Ends the body early, which closes its connection.
    #[cold]
    fn cut(&mut self, error: UpstreamError) -> UpstreamError {
        self.count_missing_status();
        if let BodyState::Reading(lease) = &self.state {
            lease.permit.truncate(&error);
        }
        self.close();
        error
    }

    fn close(&mut self) {
        if let BodyState::Reading(lease) = &self.state {
            self.state = BodyState::Cut(Arc::clone(&lease.permit.server));
        }
    }

    /// The server whose response ended early by `error`. `None` if the client is at fault.
    pub fn failure(&self, error: &UpstreamError) -> Option<UpstreamFailure> {
        let BodyState::Cut(server) = &self.state else {
            return None;
        };
        let is_servers = !matches!(error, UpstreamError::Request(_));
        is_servers.then(|| UpstreamFailure {
            server: server.place.to_string(),
            error: error.in_full(),
        })
    }

    fn count_missing_status(&mut self) {
        if let Some(cells) = self.grpc.take() {
            cells.grpc.count(GrpcStatus::Missing);
        }
    }

    /// Judges the server by the gRPC status at the end of the body.
    pub(super) fn judge_at_end(&mut self, cells: &Arc<UpstreamCells>) {
        self.grpc = Some(Arc::clone(cells));
        if !matches!(self.state, BodyState::Reading(_)) {
            self.count_missing_status();
        }
    }

    /// Ready if the server has sent nothing for too long.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let BodyState::Reading(lease) = &self.state else {
            return Poll::Pending;
        };
        if !self.waiting {
            self.waiting = true;
            lease.deadline().alarm.arm(lease.deadline().body);
        }
        lease.deadline().alarm.poll(context)
    }
}

/// The status that judges the server of a gRPC call. `None` if it comes with the trailers.
pub(super) fn grpc_status<B>(response: &Response<B>, cells: &UpstreamCells) -> Option<StatusCode> {
    match GrpcStatus::in_head(response) {
        Some(status) => {
            cells.grpc.count(status);
            // An error of HTTP counts too: a gateway in front of the server may have sent it.
            match response.status() {
                StatusCode::OK => Some(status.as_http()),
                http => Some(http),
            }
        }
        None if is_in_body(response.headers()) => Some(response.status()),
        None => None,
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
            self.count_missing_status();
            self.close();
            return Poll::Ready(Some(Err(UpstreamError::TimedOut)));
        }
        let this = &mut *self;
        let BodyState::Reading(lease) = &mut this.state else {
            return Poll::Ready(None);
        };
        let Poll::Ready(polled) = lease.connection.poll_frame(context) else {
            ready!(self.poll_deadline(context));
            let error = self.cut(UpstreamError::TimedOut);
            return Poll::Ready(Some(Err(error)));
        };
        if let Some(counted) = &mut this.counted {
            if let Some(Ok(frame)) = &polled {
                counted.body += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            counted.note(&lease.connection);
        }
        let has_ended = lease.connection.is_end_stream();
        if std::mem::take(&mut self.waiting)
            && let BodyState::Reading(lease) = &self.state
        {
            lease.deadline().alarm.disarm();
        }
        Poll::Ready(match polled {
            None => {
                self.end(None);
                None
            }
            Some(Ok(frame)) => {
                if self.grpc.is_some()
                    && frame.is_data()
                    && let BodyState::Reading(lease) = &mut self.state
                {
                    lease.permit.note_message();
                }
                // Ends with the last frame, because the reader need not poll again.
                if frame.is_trailers() || has_ended {
                    self.end(frame.trailers_ref());
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(self.cut(error))),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            BodyState::Reading(lease) => lease.connection.is_end_stream(),
            BodyState::Tunnel(_) | BodyState::Ended => true,
            BodyState::Cut(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            BodyState::Reading(lease) => lease.connection.size_hint(),
            BodyState::Tunnel(_) | BodyState::Ended => SizeHint::with_exact(0),
            BodyState::Cut(_) => SizeHint::default(),
        }
    }
}
