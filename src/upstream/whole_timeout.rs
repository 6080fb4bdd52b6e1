//! The time limit of a whole exchange, and what it does to the attempt that it ends.

use std::sync::{Arc, OnceLock};

use super::AttemptLog;
use super::error::UpstreamError;
use super::health::FailureKind;
use super::permit::ServerPermit;
use crate::body::{BodyError, BodyWatch};
use crate::clock::Alarm;
use crate::telemetry::metrics::UpstreamCells;

/// The time limit of a whole exchange, with all of its attempts.
pub(super) struct WholeTimeout<'a> {
    pub(super) alarm: Arc<Alarm>,
    pub(super) cells: &'a UpstreamCells,
    pub(super) attempts: Option<Arc<AttemptLog>>,
    /// The body of the request; `None` without one.
    pub(super) body: Option<BodyWatch>,
    /// The server of the attempt that it has ended.
    pub(super) ended: OnceLock<String>,
}

impl WholeTimeout<'_> {
    /// Why the exchange ended at its time limit.
    pub(super) fn error(&self) -> UpstreamError {
        match self.body.as_ref().is_some_and(BodyWatch::waits_for_client) {
            true => UpstreamError::Request(BodyError::TimedOut),
            false => UpstreamError::TimedOut,
        }
    }
}

/// Counts the attempt as a failure when it is dropped after the timeout of the whole exchange.
/// After an attempt that ended by itself it is forgotten instead.
pub(super) struct EndedByTimeout<'a> {
    permit: &'a ServerPermit,
    whole: &'a WholeTimeout<'a>,
    /// False for a request with a body, because a slow client may be the reason. Such an attempt
    /// does not eject the server.
    is_to_blame: bool,
}

impl<'a> EndedByTimeout<'a> {
    pub(super) fn new(
        permit: &'a ServerPermit,
        whole: Option<&'a WholeTimeout<'a>>,
        is_to_blame: bool,
    ) -> Option<EndedByTimeout<'a>> {
        whole.map(|whole| EndedByTimeout {
            permit,
            whole,
            is_to_blame,
        })
    }
}

impl Drop for EndedByTimeout<'_> {
    fn drop(&mut self) {
        // Otherwise the client has left.
        if !self.whole.alarm.has_rung() {
            return;
        }
        if let Some(attempts) = &self.whole.attempts {
            attempts.end(Err(self.whole.error().label()));
        }
        let server = &self.permit.server;
        let is_servers = matches!(self.whole.error(), UpstreamError::TimedOut);
        server.count_unanswered(self.whole.cells, is_servers);
        if is_servers {
            let _ = self.whole.ended.set(server.place.to_string());
        }
        if self.is_to_blame {
            server.health.note_failure();
            self.permit.fail(FailureKind::Failed);
        }
    }
}
