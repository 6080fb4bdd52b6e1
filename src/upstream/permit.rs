//! One request's permit to use a server, and the judgement of the server by that request.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::{HeaderValue, StatusCode};

use super::error::UpstreamError;
use super::health::{FailureKind, SendReason};
use super::http2::Http2Connection;
use super::server::Server;
use crate::clock;
use crate::config::{HostHeader, UpstreamSettings};

/// Counts one request at a server until it is dropped.
#[derive(Debug)]
pub struct ServerPermit {
    pub(super) server: Arc<Server>,
    reason: SendReason,
    /// Whether the request counts towards the server's cap.
    is_capped: bool,
    /// Whether the status of the response has counted as a failure of the server.
    has_failed: bool,
    /// A connection that has refused the request.
    pub(super) avoided: Option<Arc<Http2Connection>>,
    /// The start of the measurement, if the latency of the response is measured.
    pub(super) started: Option<Instant>,
}

impl ServerPermit {
    /// `None` if the server's cap is reached.
    pub(super) fn take(server: &Arc<Server>, reason: SendReason) -> Option<ServerPermit> {
        if server.cap.is_some_and(|most| !server.health.enter(most)) {
            return None;
        }
        let mut permit = ServerPermit::uncapped(server);
        (permit.reason, permit.is_capped) = (reason, server.cap.is_some());
        Some(permit)
    }

    /// A permit for a health check, which the cap does not count.
    pub(super) fn uncapped(server: &Arc<Server>) -> ServerPermit {
        server.terms.in_use.fetch_add(1, Ordering::Relaxed);
        server.in_flight.fetch_add(1, Ordering::Relaxed);
        ServerPermit {
            server: Arc::clone(server),
            reason: SendReason::Healthy,
            is_capped: false,
            has_failed: false,
            avoided: None,
            started: None,
        }
    }

    pub(super) fn note_head(&mut self) {
        if let Some(started) = self.started.take() {
            let (took, now) = (clock::now() - started, self.server.terms.sweep.elapsed());
            self.server.latency.observe(took, now);
        }
    }

    pub(super) fn settings(&self) -> &UpstreamSettings {
        &self.server.terms.settings
    }

    /// Notes that the request failed; true if that ejects the server.
    #[cold]
    pub(super) fn fail(&self, kind: FailureKind) -> bool {
        let rules = self.settings().eject.as_ref();
        rules.is_some_and(|rules| self.server.health.fail(kind, self.reason, rules))
    }

    /// Notes a truncated response. The server is to blame unless the client broke off its request.
    #[cold]
    pub(super) fn truncate(&self, error: &UpstreamError) {
        if matches!(error, UpstreamError::Request(_)) {
            return;
        }
        self.server.cells.truncated.add(1);
        if self.has_failed {
            return;
        }
        self.server.cells.failures.add(1);
        let rules = self.settings().eject.as_ref();
        if self.server.health.truncate(self.reason, rules) {
            self.server.health.log_failure(&error.in_full());
        }
    }

    /// Judges the server by the status of its response, or by the equivalent of a gRPC status.
    pub(super) fn judge(&mut self, status: StatusCode) {
        let server = &self.server;
        let eject = self.settings().eject.as_ref();
        let ejects = eject.is_some_and(|eject| eject.status.contains(status));
        self.has_failed = ejects;
        if ejects || status.is_server_error() {
            server.cells.failures.add(1);
            server.health.note_failure();
        } else {
            server.health.note_success();
        }
        match ejects {
            true => _ = self.fail(FailureKind::Failed),
            false => server.health.succeed(self.reason),
        }
    }

    /// Notes a message of a gRPC call, whose status comes later. The first one ends the trial of a
    /// server, because the call may take hours. A head alone does not: a failed call has one too.
    pub(super) fn note_message(&mut self) {
        if self.reason != SendReason::Healthy {
            let reason = std::mem::take(&mut self.reason);
            self.server.health.succeed(reason);
        }
    }

    /// The `Host` line that the request must have; `None` if it keeps its own.
    pub(super) fn host_for(&self, has_host: bool) -> Option<&HeaderValue> {
        let keeps_own = has_host && self.settings().host == HostHeader::Pass;
        (!keeps_own).then_some(&self.server.host)
    }
}

impl Drop for ServerPermit {
    fn drop(&mut self) {
        let server = &self.server;
        if let Some(started) = self.started.take() {
            let (waited, now) = (clock::now() - started, server.terms.sweep.elapsed());
            server.latency.observe_at_least(waited, now);
        }
        server.terms.in_use.fetch_sub(1, Ordering::Relaxed);
        server.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.is_capped {
            server.health.leave();
        }
        if let Some(queue) = &server.terms.queue {
            queue.wake_next();
        }
    }
}
