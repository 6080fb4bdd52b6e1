//! `/healthz`: whether the process should live. `/readyz`: whether it should be sent requests.
//!
//! Neither looks at the store nor at upstreams: an outage of those is no reason to start this
//! process anew, nor to send its clients elsewhere, where they would meet the same. What is
//! degraded is said by the metrics and by `/api/v1/status`.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use http::{Response, StatusCode};

use super::AdminState;
use super::body::Body;
use super::respond::{json_text, with_type};
use super::schema::described;
use crate::clock;
use crate::server::Lifecycle;

/// A worker that has not beaten for so long stands still: they beat five times a second.
const STANDS_STILL: Duration = Duration::from_secs(5);

/// When all workers were last seen to have beaten.
#[derive(Debug, Default)]
pub(super) struct Beats {
    seen: Vec<u64>,
    all_since: Option<Instant>,
}

described! {
    struct Readiness as "Ready" {
        ready: bool,
        reasons: Vec<&'static str>,
    }
}

impl AdminState {
    /// Looks whether the workers have beaten.
    pub(super) fn look_at_beats(&self) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        if self.server.heartbeats.all_beat_since(&mut beats.seen) || beats.all_since.is_none() {
            beats.all_since = Some(clock::now());
        }
    }

    /// Whether a worker stands still.
    fn stands_still(&self) -> bool {
        if !self.server.heartbeats.serves() {
            return false;
        }
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |since| clock::now().saturating_duration_since(since) > STANDS_STILL;
        beats.all_since.is_some_and(still)
    }

    pub(super) fn healthz(&self) -> Response<Body> {
        let (status, text) = match self.stands_still() {
            false => (StatusCode::OK, "ok\n"),
            true => (StatusCode::SERVICE_UNAVAILABLE, "a worker stands still\n"),
        };
        with_type(status, "text/plain; charset=utf-8", text)
    }

    pub(super) fn readyz(&self) -> Response<Body> {
        let mut reasons = Vec::new();
        if *self.server.shutdown.borrow() != Lifecycle::Serve {
            reasons.push("draining");
        } else if self.server.introspection.inspect(|_| ()).is_none()
            || !self.server.heartbeats.serves()
        {
            reasons.push("starting");
        }
        if self.stands_still() {
            reasons.push("a worker stands still");
        }
        let status = match reasons.is_empty() {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        let report = Readiness {
            ready: reasons.is_empty(),
            reasons,
        };
        with_type(status, "application/json", json_text(&report))
    }
}
