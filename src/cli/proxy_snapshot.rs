//! The state of a running proxy, as its admin reports it, and tables of it for `status` and `top`.
//!
//! A proxy of another version may leave out members; they get their defaults.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::admin_client::{AdminClient, AdminFailure};
use super::display::{StyledLine, StyledSpan, Tone, count, latency, rates, share, span, table};
use crate::admin::history::TrafficReport;
use crate::admin::limits::{LimitList, LimitState};
use crate::admin::status::{
    Readiness, ServerStateReport, StatusReport, UpstreamList, UpstreamReport,
};

/// Everything that `status` and `top` show.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxySnapshot {
    /// Why the proxy is not ready; empty if it is.
    pub(super) reasons: Vec<String>,
    pub(super) status: StatusReport,
    pub(super) limits: Vec<LimitState>,
    pub(super) upstreams: Vec<UpstreamReport>,
    pub(super) traffic: TrafficReport,
    /// All answers of the admin as one object.
    pub(super) json: Value,
}

impl ProxySnapshot {
    pub(super) async fn fetch(client: &AdminClient) -> Result<ProxySnapshot, AdminFailure> {
        let ready = client.get("/readyz").await?;
        let status = match client.get("/api/v1/status").await {
            // A proxy that starts has no status yet.
            Err(AdminFailure::Refused(..)) if ready["ready"] == false => Value::Null,
            status => status?,
        };
        let mut answers = [ready, Value::Null, Value::Null, Value::Null];
        for (index, name) in ["limits", "upstreams", "traffic"].iter().enumerate() {
            answers[index + 1] = match client.get(&format!("/api/v1/{name}")).await {
                Err(AdminFailure::Refused(404 | 503, _)) => Value::Null,
                answer => answer?,
            };
        }
        Ok(ProxySnapshot::new(status, answers))
    }

    /// Reads the answers of `/readyz`, and of the admin's `limits`, `upstreams` and `traffic`.
    pub(super) fn new(status: Value, answers: [Value; 4]) -> ProxySnapshot {
        let [ready, limits, upstreams, traffic] = answers;
        let mut reasons = read_or_default::<Readiness>(&ready).reasons;
        if ready["ready"] == false && reasons.is_empty() {
            reasons.push("not ready".to_owned());
        }
        ProxySnapshot {
            status: read_or_default(&status),
            limits: read_or_default::<LimitList>(&limits).limits,
            upstreams: read_or_default::<UpstreamList>(&upstreams).upstreams,
            traffic: read_or_default(&traffic),
            json: json!({
                "ready": reasons.is_empty(),
                "reasons": ready["reasons"],
                "status": status,
                "limits": limits["limits"],
                "upstreams": upstreams["upstreams"],
                "traffic": traffic,
            }),
            reasons,
        }
    }

    /// What the limits do while the store is away.
    pub(super) fn without_store(&self) -> &'static str {
        let common = self.status.store.on_error.as_str();
        let is_other = |limit: &LimitState| !limit.on_error.is_empty() && limit.on_error != common;
        match common {
            _ if self.limits.iter().any(is_other) => "each limit follows its `on_error`",
            "allow" => "everything is allowed",
            "deny" => "everything is denied",
            _ => "this process counts by itself",
        }
    }

    /// How long ago that was when the proxy answered, by the proxy's clock.
    pub(super) fn since(&self, at: f64) -> String {
        span(self.status.now - at)
    }

    /// The requests and the denials of each second, the newest last.
    pub(super) fn seconds(&self) -> [Vec<u64>; 2] {
        let seconds = &self.traffic.second;
        [
            seconds.iter().map(|one| one.requests).collect(),
            seconds.iter().map(|one| one.denied).collect(),
        ]
    }
}

pub(super) fn read_or_default<T: DeserializeOwned + Default>(value: &Value) -> T {
    T::deserialize(value).unwrap_or_default()
}

/// All denials of a limit; for one in shadow mode, those that it would have made.
pub(super) fn denials(limit: &LimitState) -> u64 {
    match limit.mode == "shadow" {
        true => limit.totals.shadow_denied,
        false => limit.totals.denied,
    }
}

/// A count that stands out unless it is 0.
pub(super) fn count_cell(tone: Tone, number: u64) -> StyledSpan {
    match number {
        0 => StyledSpan::plain("0"),
        many => StyledSpan::new(tone, count(many)),
    }
}

pub(super) fn server_table(snapshot: &ProxySnapshot) -> Vec<StyledLine> {
    let now = snapshot.status.now;
    let row = |(upstream, server): (&UpstreamReport, &ServerStateReport)| {
        let state = match (server.ejected_until, server.state.as_str()) {
            (Some(until), _) if until > now => {
                StyledSpan::new(Tone::Bad, format!("out for {}", span((until - now).ceil())))
            }
            (_, "up") => StyledSpan::new(Tone::Good, "up"),
            // Older proxies report only `up`.
            (_, "") if server.up => StyledSpan::new(Tone::Good, "up"),
            (_, "") => StyledSpan::new(Tone::Bad, "down"),
            (_, "ejected") => StyledSpan::new(Tone::Bad, "out"),
            (_, state) => StyledSpan::new(Tone::Bad, state),
        };
        let latency = server.latency_seconds.map(latency);
        vec![
            StyledSpan::plain(&upstream.name),
            StyledSpan::plain(&server.server),
            state,
            StyledSpan::plain(count(server.in_flight)),
            StyledSpan::plain(count(server.idle)),
            StyledSpan::plain(latency.as_deref().unwrap_or("-")),
            StyledSpan::plain(count(server.requests)),
            count_cell(Tone::Warn, server.failures),
        ]
    };
    let head = [
        "UPSTREAM",
        "SERVER",
        "STATE",
        ">BUSY",
        ">IDLE",
        ">LATENCY",
        ">REQUESTS",
        ">FAILED",
    ];
    let servers = snapshot.upstreams.iter().flat_map(|upstream| {
        let servers = upstream.servers.iter();
        servers.map(move |server| (upstream, server))
    });
    let mut rows: Vec<Vec<StyledSpan>> = servers.map(row).collect();
    // An upstream without a name has the name of its only server.
    let is_unnamed = |upstream: &UpstreamReport| {
        upstream
            .servers
            .iter()
            .all(|server| server.server == upstream.name)
    };
    if snapshot.upstreams.iter().all(is_unnamed) {
        for row in &mut rows {
            row.remove(0);
        }
        return table(&head[1..], rows);
    }
    table(&head, rows)
}

/// Whether a limit is in shadow mode, or how many requests it holds now.
fn state_cell(limit: &LimitState) -> StyledSpan {
    match limit.waiting {
        _ if limit.mode == "shadow" => StyledSpan::plain("shadow"),
        Some(waiting @ 1..) => StyledSpan::new(Tone::Warn, format!("{} wait", count(waiting))),
        _ => StyledSpan::plain(""),
    }
}

/// The limits in the order given.
pub(super) fn limit_table<'l>(limits: impl Iterator<Item = &'l LimitState>) -> Vec<StyledLine> {
    let row = |limit: &LimitState| {
        let headroom = match limit.headroom {
            None => StyledSpan::plain("-"),
            Some(left) if left < 0.05 => StyledSpan::new(Tone::Bad, share(left)),
            Some(left) if left < 0.25 => StyledSpan::new(Tone::Warn, share(left)),
            Some(left) => StyledSpan::plain(share(left)),
        };
        vec![
            StyledSpan::plain(&limit.name),
            StyledSpan::plain(rates(&limit.rates, &limit.counts)),
            StyledSpan::plain(&limit.key),
            state_cell(limit),
            StyledSpan::plain(count(limit.per_second.allowed)),
            count_cell(Tone::Warn, limit.per_second.denied),
            headroom,
            StyledSpan::plain(count(denials(limit))),
        ]
    };
    let head = [
        "LIMIT",
        "RATE",
        "KEY",
        "",
        ">ALLOWED/S",
        ">DENIED/S",
        ">HEADROOM",
        ">DENIED",
    ];
    table(&head, limits.map(row).collect())
}
