//! The process, its configuration, and every server, added up over the workers: `/api/v1/status`,
//! `/api/v1/upstreams`, `/api/v1/config` (with every default and without secrets),
//! `/api/v1/reload`, and the probes `/healthz` and `/readyz`.
//!
//! `/healthz` says whether the process should live, `/readyz` whether it should get requests.
//! Neither depends on the store or on upstreams. A restart does not end their outages, and other
//! processes would meet them too. The metrics and `/api/v1/status` report such outages. One
//! exception: a process that has never read the API keys in Redis knows no client, and others do.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Response, StatusCode, header};

use super::findings::FindingReport;
use super::known_keys::{self, KnownKeysReport};
use super::request::ApiRequest;
use super::response::{
    AdminBody, ApiError, ApiResult, json_response, json_text, now, seconds, with_type,
};
use super::schema::{Sometimes, described, words};
use super::state::AdminState;
use crate::clock;
use crate::config::{Balance, RedisTopology, StoreKind, effective, environment, render};
use crate::server::Lifecycle;
use crate::server::control::ReloadError;
use crate::server::introspection::{LastReload, Snapshot};
use crate::upstream::{ServerReport, ServerStatus};

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
        /// Null without a source of known API keys.
        known_keys: Option<KnownKeysReport>,
        /// Null without `[ledger]`.
        ledger: Option<LedgerReport>,
        connections: usize,
        findings: Vec<FindingReport>,
    }

    struct LedgerReport as "Ledger" {
        /// The time since the oldest usage was added up that the store lacks.
        lag_seconds: f64,
    }

    struct ConfigReport {
        file: Option<String>,
        names_admin: bool,
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
        /// Keys that are banned now.
        banned: Option<usize>,
    }
}

pub(super) fn healthz(state: &AdminState) -> Response<AdminBody> {
    let (status, text) = match state.is_stuck() {
        false => (StatusCode::OK, "ok\n".to_owned()),
        true => (StatusCode::SERVICE_UNAVAILABLE, format!("{STUCK}\n")),
    };
    with_type(status, "text/plain; charset=utf-8", text)
}

pub(super) fn readyz(state: &AdminState) -> Response<AdminBody> {
    let mut reasons = Vec::new();
    let serves = || state.inspect(|_| ()).is_ok() && state.server.heartbeats.serves();
    if *state.server.shutdown.borrow() != Lifecycle::Serve {
        reasons.push("draining".to_owned());
    } else if !serves() {
        reasons.push("starting".to_owned());
    }
    if let Ok(Some(reason)) = state.inspect(known_keys::unread) {
        reasons.push(reason.to_owned());
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
        started_at: seconds(server.introspection.started_us),
        now: now(),
        workers: snapshot.config.server.workers,
        listen: server.listeners.places(),
        config: ConfigReport {
            file: server.file.as_ref().map(|file| file.display().to_string()),
            names_admin: state.policy.load().is_from_file,
            loaded_at: seconds(snapshot.loaded_us),
            last_reload: snapshot.reload.map(last_reload),
        },
        store: store(state, snapshot),
        known_keys: known_keys::report(snapshot),
        ledger: snapshot.config.ledger.as_ref().map(|_| LedgerReport {
            lag_seconds: snapshot.billing.lag_seconds(),
        }),
        connections: snapshot.connections,
        findings: state
            .record()
            .findings
            .reports(&snapshot.config.log.silence),
    })
}

fn last_reload(last: &LastReload) -> ReloadReport {
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
    let since = snapshot.counts.backing.away_since();
    let since = since.map(|since| {
        let ago = clock::now().saturating_duration_since(since);
        now() - ago.as_secs_f64()
    });
    let round_trip = match &snapshot.config.store.kind {
        StoreKind::Memory => None,
        StoreKind::Redis(_) => state.record().findings.round_trip,
    };
    StoreReport {
        kind: store_kind(snapshot).to_owned(),
        up: since.is_none(),
        degraded: since.is_some(),
        since,
        round_trip_seconds: round_trip.map(|took| took.as_secs_f64()),
        on_error: snapshot.config.store.on_error.word().to_owned(),
        banned: Some(snapshot.counts.backing.count_banned()),
    }
}

/// The servers of the upstream with this index, added up over the workers, in the order of the
/// first worker that has them.
pub(super) fn servers(snapshot: &Snapshot<'_>, upstream: usize) -> Vec<ServerReport> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut all: Vec<ServerReport> = Vec::new();
    for proxy in snapshot.proxies() {
        for report in proxy.upstreams().servers(upstream) {
            let Some(place) = places.get(&report.server) else {
                places.insert(report.server.clone(), all.len());
                all.push(report);
                continue;
            };
            let sum = &mut all[*place];
            sum.in_flight += report.in_flight;
            sum.idle += report.idle;
            sum.requests += report.requests;
            sum.failures += report.failures;
            sum.truncated += report.truncated;
            // Workers measure by themselves: the newest value counts.
            let age = |one: &ServerReport| one.latency.map_or(Duration::MAX, |seen| seen.age);
            if age(&report) < age(sum) {
                sum.latency = report.latency;
            }
        }
    }
    all
}

described! {
    struct UpstreamList {
        upstreams: Vec<UpstreamReport>,
    }

    struct UpstreamReport {
        name: String,
        balance: String,
        servers: Vec<ServerStateReport>,
    }

    struct ServerStateReport as "Server" {
        server: String,
        /// `failing`: it still gets requests, and at least the last three failed.
        state: String = words(&["up", "failing", "ejected", "down"]),
        /// Whether `state` is `up`.
        up: bool,
        weight: u64,
        /// It gets requests only while no other server may get them.
        backup: bool,
        in_flight: u64,
        idle: u64,
        /// Of the last answers that were measured.
        latency_seconds: Option<f64>,
        ejected_until: Option<f64>,
        requests: u64,
        /// Requests without a usable answer, or with a 5xx or the same in gRPC.
        failures: u64,
        /// Answers that were cut off; they count as failures too.
        truncated: u64,
    }
}

/// All upstreams, in the order of the configuration.
pub(super) fn upstreams(state: &AdminState) -> Result<UpstreamList, ApiError> {
    state.inspect(|snapshot| {
        let upstreams = snapshot.config.upstreams.iter().enumerate();
        let reports = upstreams.map(|(index, settings)| UpstreamReport {
            name: settings.name.to_string(),
            balance: balance(&settings.balance),
            servers: servers(snapshot, index).iter().map(server).collect(),
        });
        UpstreamList {
            upstreams: reports.collect(),
        }
    })
}

fn server(report: &ServerReport) -> ServerStateReport {
    let until = match report.state {
        ServerStatus::Ejected(until) => {
            let left = until.saturating_duration_since(clock::now());
            Some(now() + left.as_secs_f64())
        }
        ServerStatus::Up | ServerStatus::Failing | ServerStatus::Down => None,
    };
    ServerStateReport {
        server: report.server.clone(),
        state: report.state.word().to_owned(),
        up: report.state == ServerStatus::Up,
        weight: report.weight.into(),
        backup: report.is_backup,
        in_flight: report.in_flight,
        idle: report.idle,
        latency_seconds: report.latency.map(|seen| seen.took.as_secs_f64()),
        ejected_until: until,
        requests: report.requests,
        failures: report.failures,
        truncated: report.truncated,
    }
}

fn balance(balance: &Balance) -> String {
    match balance {
        Balance::P2c => "p2c".to_owned(),
        Balance::RoundRobin => "round-robin".to_owned(),
        Balance::Hash(key) => {
            let parts: Vec<String> = key.parts.iter().map(ToString::to_string).collect();
            format!("hash:{}", parts.join(", "))
        }
    }
}

described! {
    struct SecretMarks {
        secrets: BTreeMap<String, String>,
    }

    struct ReloadDone as "Reloaded" {
        done: bool,
        changes: Vec<String>,
        restarts: Vec<String>,
        problems: Vec<String>,
        warnings: String,
    }
}

fn source(request: &ApiRequest) -> Result<String, ApiError> {
    request
        .state
        .inspect(|snapshot| snapshot.config.sources.text.clone())
}

/// The configuration as TOML, or as JSON if `Accept` names it.
pub(super) fn config(request: &ApiRequest) -> ApiResult {
    let config = request
        .state
        .inspect(|snapshot| effective::running(&snapshot.config.sources, &environment))?;
    let accept = request.header(header::ACCEPT);
    let wants_json = accept.is_some_and(|accept| accept.contains("application/json"));
    Ok(match wants_json {
        true => json_response(&config),
        false => with_type(StatusCode::OK, "application/toml", effective::toml(&config)),
    })
}

/// The mark that stands for each secret. Marks are keyed with the token.
pub(super) fn secrets(request: &ApiRequest) -> Result<SecretMarks, ApiError> {
    let authorization = request.headers.get(header::AUTHORIZATION);
    // Behind `Bearer `, which was checked before.
    let token = authorization.and_then(|value| value.as_bytes().get(7..));
    let token = token.unwrap_or_default().trim_ascii();
    Ok(SecretMarks {
        secrets: effective::marks(&source(request)?, &environment, token),
    })
}

/// Reads the configuration again, as `tidegate reload` does.
pub(super) async fn reload(request: ApiRequest) -> Result<ReloadDone, ApiError> {
    let outcome = request.state.server.reload.request().await;
    match &*outcome {
        Ok(reloaded) => Ok(ReloadDone {
            done: true,
            changes: reloaded.changes.clone(),
            restarts: reloaded.restarts.clone(),
            problems: reloaded.problems.clone(),
            warnings: render::human(&reloaded.warnings, false),
        }),
        Err(error) => {
            let status = match error {
                ReloadError::NoFile => StatusCode::CONFLICT,
                ReloadError::Mistakes(_) | ReloadError::Unusable(_) => {
                    StatusCode::UNPROCESSABLE_ENTITY
                }
                ReloadError::Busy | ReloadError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            };
            Err(ApiError::new(status, error.to_string()))
        }
    }
}
