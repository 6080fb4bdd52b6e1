//! `/api/v1/status`: what this process is, and how it stands.

use super::AdminState;
use super::findings::FindingReport;
use super::respond::{ApiError, available};
use super::schema::{Sometimes, described, words};
use super::time::{now, seconds};
use crate::clock;
use crate::config::{RedisTopology, StoreKind};
use crate::server::introspection::{LastReload, Snapshot};

described! {
    struct StatusReport as "Status" {
        version: &'static str,
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
        kind: &'static str = words(&["memory", "redis", "sentinel", "cluster"]),
        up: bool,
        degraded: bool,
        since: Option<f64>,
        round_trip_seconds: Option<f64>,
        on_error: &'static str = words(&["local", "allow", "deny"]),
    }
}

pub(super) fn status(state: &AdminState) -> Result<StatusReport, ApiError> {
    let server = &state.server;
    available(server.introspection.inspect(|snapshot| StatusReport {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        started_at: seconds(server.introspection.started_us()),
        now: now(),
        workers: snapshot.config.server.workers,
        listen: server.listeners.places(),
        config: ConfigReport {
            file: server.file.as_ref().map(|file| file.display().to_string()),
            loaded_at: seconds(snapshot.loaded_us),
            last_reload: snapshot.reload.map(last_reload),
        },
        store: store(state, snapshot),
        connections: snapshot.connections,
        findings: state.findings().reports(&snapshot.config.log.silence),
    }))
}

fn last_reload(last: &LastReload) -> ReloadReport {
    let mut report = ReloadReport {
        at: seconds(last.at_us),
        ok: last.outcome.is_ok(),
        changes: Sometimes(None),
        restarts: Sometimes(None),
        errors: Sometimes(None),
    };
    match &*last.outcome {
        Ok(reloaded) => {
            report.changes = Sometimes(Some(reloaded.changes.clone()));
            report.restarts = Sometimes(Some(reloaded.restarts.clone()));
        }
        Err(error) => report.errors = Sometimes(Some(vec![error.to_string()])),
    }
    report
}

/// What kind of store it is.
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
        kind: store_kind(snapshot),
        up: since.is_none(),
        degraded: since.is_some(),
        since,
        round_trip_seconds: round_trip.map(|took| took.as_secs_f64()),
        on_error: snapshot.config.store.on_error.word(),
    }
}
