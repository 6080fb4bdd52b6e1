//! The state of the process: `/api/v1/status`, and the probes `/healthz` and `/readyz`.
//!
//! `/healthz` says whether the process should live, `/readyz` whether it should get requests.
//! Neither depends on the store or on upstreams. A restart does not end their outages, and other
//! processes would meet them too. The metrics and `/api/v1/status` report such outages.

use http::{Response, StatusCode};

use super::findings::FindingReport;
use super::response::{AdminBody, ApiError, json_text, now, seconds, with_type};
use super::schema::{Sometimes, described, words};
use super::state::AdminState;
use crate::clock;
use crate::config::{RedisTopology, StoreKind};
use crate::server::Lifecycle;
use crate::server::introspection::{LastReload, Snapshot};

const STUCK: &str = "a worker stands still";

described! {
    struct Readiness as "Ready" {
        ready: bool,
        reasons: Vec<String>,
    }

    struct StatusReport as "Status" {
        version: String,
        pid: u32,
        started_at: f64,
        now: f64,
        workers: usize,
        listen: Vec<String>,
        config: ConfigReport,
        store: StoreReport,
        connections: usize,
        findings: Vec<FindingReport>,
    }

    struct ConfigReport {
        file: Option<String>,
        loaded_at: f64,
        last_reload: Option<ReloadReport>,
    }

    struct ReloadReport as "Reload" {
        at: f64,
        ok: bool,
        changes: Sometimes<Vec<String>>,
        restarts: Sometimes<Vec<String>>,
        errors: Sometimes<Vec<String>>,
    }

    struct StoreReport as "Store" {
        kind: String = words(&["memory", "redis", "sentinel", "cluster"]),
        up: bool,
        degraded: bool,
        since: Option<f64>,
        round_trip_seconds: Option<f64>,
        on_error: String = words(&["local", "allow", "deny"]),
    }
}

/// `/healthz`
pub(super) fn healthz(state: &AdminState) -> Response<AdminBody> {
    let (status, text) = match state.is_stuck() {
        false => (StatusCode::OK, "ok\n".to_owned()),
        true => (StatusCode::SERVICE_UNAVAILABLE, format!("{STUCK}\n")),
    };
    with_type(status, "text/plain; charset=utf-8", text)
}

/// `/readyz`
pub(super) fn readyz(state: &AdminState) -> Response<AdminBody> {
    let mut reasons = Vec::new();
    let serves = || state.inspect(|_| ()).is_ok() && state.server.heartbeats.serves();
    if *state.server.shutdown.borrow() != Lifecycle::Serve {
        reasons.push("draining".to_owned());
    } else if !serves() {
        reasons.push("starting".to_owned());
    }
    if state.is_stuck() {
        reasons.push(STUCK.to_owned());
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

pub(super) fn status(state: &AdminState) -> Result<StatusReport, ApiError> {
    let server = &state.server;
    state.inspect(|snapshot| StatusReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started_at: seconds(server.introspection.started_us()),
        now: now(),
        workers: snapshot.config.server.workers,
        listen: server.listeners.places(),
        config: ConfigReport {
            file: server.file.as_ref().map(|file| file.display().to_string()),
            loaded_at: seconds(snapshot.loaded_us),
            last_reload: snapshot.reload.map(reload),
        },
        store: store(state, snapshot),
        connections: snapshot.connections,
        findings: state.findings().reports(&snapshot.config.log.silence),
    })
}

fn reload(last: &LastReload) -> ReloadReport {
    let outcome = last.outcome.as_ref().as_ref();
    let done = outcome.ok();
    ReloadReport {
        at: seconds(last.at_us),
        ok: outcome.is_ok(),
        changes: Sometimes(done.map(|done| done.changes.clone())),
        restarts: Sometimes(done.map(|done| done.restarts.clone())),
        errors: Sometimes(outcome.err().map(|error| vec![error.to_string()])),
    }
}

/// The kind of the store, in one word.
pub(super) fn store_kind(snapshot: &Snapshot<'_>) -> &'static str {
    match &snapshot.config.store.kind {
        StoreKind::Memory => "memory",
        StoreKind::Redis(redis) => match redis.topology {
            RedisTopology::Single(_) => "redis",
            RedisTopology::Sentinel(_) => "sentinel",
            RedisTopology::Cluster { .. } => "cluster",
        },
    }
}

fn store(state: &AdminState, snapshot: &Snapshot<'_>) -> StoreReport {
    let since = snapshot.counts.backing().away_since();
    let since = since.map(|since| {
        let ago = clock::now().saturating_duration_since(since);
        now() - ago.as_secs_f64()
    });
    let round_trip = match &snapshot.config.store.kind {
        StoreKind::Memory => None,
        StoreKind::Redis(_) => state.findings().round_trip,
    };
    StoreReport {
        kind: store_kind(snapshot).to_owned(),
        up: since.is_none(),
        degraded: since.is_some(),
        since,
        round_trip_seconds: round_trip.map(|took| took.as_secs_f64()),
        on_error: snapshot.config.store.on_error.word().to_owned(),
    }
}
