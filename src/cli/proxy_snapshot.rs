//! The state of a running proxy, as its admin reports it, and tables of it for `status` and `top`.
//!
//! A proxy of another version may leave out members; they get their defaults.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::admin_client::{AdminClient, AdminFailure};
use super::display::{StyledLine, StyledSpan, Tone, count, latency, share, span, table};

/// Everything that `status` and `top` show.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxySnapshot {
    /// Why the proxy is not ready; empty if it is.
    pub(super) reasons: Vec<String>,
    pub(super) status: Value,
    pub(super) limits: Vec<LimitSummary>,
    pub(super) servers: Vec<ServerSummary>,
    pub(super) traffic: TrafficSummary,
    /// All answers of the admin as one object.
    pub(super) json: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct LimitSummary {
    pub(super) name: String,
    rates: Vec<String>,
    key: String,
    mode: String,
    per_second: RequestRates,
    totals: DenialTotals,
    /// The part of the limit that its busiest client has left, 0 to 1.
    pub(super) headroom: Option<f64>,
}

/// Requests per second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RequestRates {
    allowed: f64,
    denied: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct DenialTotals {
    denied: u64,
    shadow_denied: u64,
}

impl LimitSummary {
    fn is_shadow(&self) -> bool {
        self.mode == "shadow"
    }

    pub(super) fn requests_per_second(&self) -> f64 {
        self.per_second.allowed + self.per_second.denied
    }

    pub(super) fn denied_per_second(&self) -> f64 {
        self.per_second.denied
    }

    /// All denials; for a shadow limit, those that it would have made.
    pub(super) fn denied(&self) -> u64 {
        match self.is_shadow() {
            true => self.totals.shadow_denied,
            false => self.totals.denied,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ServerSummary {
    #[serde(skip)]
    upstream: String,
    server: String,
    /// `up`, `failing`, `ejected` or `down`; older proxies report only `up`.
    state: Option<String>,
    up: bool,
    /// Seconds since the Unix epoch.
    ejected_until: Option<f64>,
    in_flight: u64,
    idle: u64,
    latency_seconds: Option<f64>,
    requests: u64,
    failures: u64,
}

/// The last minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TrafficSummary {
    pub(super) requests_per_second: f64,
    pub(super) denials_per_second: f64,
    /// By second, the newest last.
    pub(super) requests: Vec<u64>,
    pub(super) denials: Vec<u64>,
}

impl ProxySnapshot {
    /// Asks the admin.
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
        let mut reasons = texts(&ready["reasons"]);
        if ready["ready"] == false && reasons.is_empty() {
            reasons.push("not ready".to_owned());
        }
        let mut servers = Vec::new();
        for upstream in list(&upstreams["upstreams"]) {
            servers.extend(list(&upstream["servers"]).map(|server| ServerSummary {
                upstream: text(&upstream["name"]),
                ..read_or_default(server)
            }));
        }
        let seconds = |name: &str| {
            let seconds = list(&traffic["second"]);
            seconds.map(|one| one[name].as_u64().unwrap_or(0)).collect()
        };
        ProxySnapshot {
            limits: list(&limits["limits"]).map(read_or_default).collect(),
            servers,
            traffic: TrafficSummary {
                requests_per_second: traffic["rates"]["requests"].as_f64().unwrap_or(0.0),
                denials_per_second: traffic["rates"]["denials"].as_f64().unwrap_or(0.0),
                requests: seconds("requests"),
                denials: seconds("denied"),
            },
            json: json!({
                "ready": reasons.is_empty(),
                "reasons": ready["reasons"],
                "status": status,
                "limits": limits["limits"],
                "upstreams": upstreams["upstreams"],
                "traffic": traffic,
            }),
            reasons,
            status,
        }
    }

    /// The time of the answers by the proxy's clock, seconds since the Unix epoch.
    pub(super) fn now(&self) -> f64 {
        self.status["now"].as_f64().unwrap_or(0.0)
    }
}

pub(super) fn read_or_default<T: DeserializeOwned + Default>(value: &Value) -> T {
    T::deserialize(value).unwrap_or_default()
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(super) fn texts(value: &Value) -> Vec<String> {
    list(value).map(text).collect()
}

/// A count that stands out unless it is 0.
pub(super) fn count_cell(tone: Tone, number: u64) -> StyledSpan {
    match number {
        0 => StyledSpan::plain("0"),
        many => StyledSpan::new(tone, count(many)),
    }
}

pub(super) fn server_table(snapshot: &ProxySnapshot) -> Vec<StyledLine> {
    let now = snapshot.now();
    let row = |server: &ServerSummary| {
        let state = match (server.ejected_until, server.state.as_deref()) {
            (Some(until), _) if until > now => {
                StyledSpan::new(Tone::Bad, format!("out for {}", span((until - now).ceil())))
            }
            (_, Some("up")) => StyledSpan::new(Tone::Good, "up"),
            (_, None) if server.up => StyledSpan::new(Tone::Good, "up"),
            (_, Some("ejected")) => StyledSpan::new(Tone::Bad, "out"),
            (_, state) => StyledSpan::new(Tone::Bad, state.unwrap_or("down")),
        };
        let latency = server.latency_seconds.map(latency);
        vec![
            // An upstream without a name has the name of its only server.
            StyledSpan::plain(match server.upstream == server.server {
                true => "-",
                false => &server.upstream,
            }),
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
    table(&head, snapshot.servers.iter().map(row).collect())
}

/// The limits in the order given.
pub(super) fn limit_table<'l>(limits: impl Iterator<Item = &'l LimitSummary>) -> Vec<StyledLine> {
    let row = |limit: &LimitSummary| {
        let headroom = match limit.headroom {
            None => StyledSpan::plain("-"),
            Some(left) if left < 0.05 => StyledSpan::new(Tone::Bad, share(left)),
            Some(left) if left < 0.25 => StyledSpan::new(Tone::Warn, share(left)),
            Some(left) => StyledSpan::plain(share(left)),
        };
        vec![
            StyledSpan::plain(&limit.name),
            StyledSpan::plain(limit.rates.join(", ")),
            StyledSpan::plain(&limit.key),
            StyledSpan::plain(if limit.is_shadow() { "shadow" } else { "" }),
            StyledSpan::plain(count(limit.per_second.allowed as u64)),
            count_cell(Tone::Warn, limit.per_second.denied as u64),
            headroom,
            StyledSpan::plain(count(limit.denied())),
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
