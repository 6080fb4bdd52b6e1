//! What the admin of a running proxy tells, as `status` and `top` show it. What a proxy of another
//! version leaves out is left out here too.

use serde_json::Value;

use super::admin_client::{AdminClient, Failed};

/// Everything, at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Why it is not ready; nothing where it is.
    pub(super) reasons: Vec<String>,
    pub(super) status: Value,
    pub(super) limits: Vec<Limit>,
    pub(super) servers: Vec<Server>,
    pub(super) traffic: Traffic,
    /// As it was told: `/readyz`, limits, upstreams and traffic.
    pub(super) raw: [Value; 4],
}

/// A limit and what it does.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Limit {
    pub(super) name: String,
    pub(super) rate: String,
    pub(super) key: String,
    pub(super) shadow: bool,
    pub(super) allowed_per_second: f64,
    pub(super) denied_per_second: f64,
    /// All it denied; where it only counts, all that it would have denied.
    pub(super) denied: u64,
    pub(super) headroom: Option<f64>,
}

/// One server of an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Server {
    pub(super) upstream: String,
    pub(super) server: String,
    /// `up`, `failing`, `ejected` or `down`.
    pub(super) state: String,
    pub(super) ejected_until: Option<f64>,
    pub(super) in_flight: u64,
    pub(super) idle: u64,
    pub(super) latency: Option<f64>,
    pub(super) requests: u64,
    pub(super) failures: u64,
}

/// The last minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    pub(super) requests_per_second: f64,
    pub(super) denials_per_second: f64,
    /// By second, the newest last.
    pub(super) requests: Vec<u64>,
    pub(super) denials: Vec<u64>,
}

impl Seen {
    /// Asks for all of it.
    pub(super) async fn look(client: &AdminClient) -> Result<Seen, Failed> {
        let ready = client.get("/readyz").await?;
        let starting = ready.get("ready").and_then(Value::as_bool) == Some(false);
        let status = match client.get("/api/v1/status").await {
            // It has not begun to serve.
            Err(Failed::Refused(..)) if starting => Value::Null,
            status => status?,
        };
        let mut raw = [ready, Value::Null, Value::Null, Value::Null];
        for (place, what) in ["limits", "upstreams", "traffic"].iter().enumerate() {
            raw[place + 1] = match client.get(&format!("/api/v1/{what}")).await {
                Err(Failed::Refused(404 | 503, _)) => Value::Null,
                told => told?,
            };
        }
        Ok(Seen::of(status, raw))
    }

    /// Of what was told.
    pub(super) fn of(status: Value, raw: [Value; 4]) -> Seen {
        let [ready, limits, upstreams, traffic] = &raw;
        let mut reasons = texts(&ready["reasons"]);
        if ready["ready"] == Value::Bool(false) && reasons.is_empty() {
            reasons.push("not ready".to_owned());
        }
        let servers = list(&upstreams["upstreams"]).flat_map(|upstream| {
            let name = text(&upstream["name"]);
            list(&upstream["servers"]).map(move |told| server(name.clone(), told))
        });
        Seen {
            reasons,
            limits: list(&limits["limits"]).map(limit).collect(),
            servers: servers.collect(),
            traffic: self::traffic(traffic),
            status,
            raw: raw.clone(),
        }
    }

    /// When it was, by the proxy's clock.
    pub(super) fn now(&self) -> f64 {
        self.status["now"].as_f64().unwrap_or(0.0)
    }

    /// One object with all that was told.
    pub(super) fn json(&self) -> Value {
        let [ready, limits, upstreams, traffic] = &self.raw;
        serde_json::json!({
            "ready": self.reasons.is_empty(),
            "reasons": ready["reasons"],
            "status": self.status,
            "limits": limits["limits"],
            "upstreams": upstreams["upstreams"],
            "traffic": traffic,
        })
    }
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

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn limit(told: &Value) -> Limit {
    let shadow = told["mode"] == "shadow";
    let denied = match shadow {
        true => "shadow_denied",
        false => "denied",
    };
    let per_second = |what: &str| told["per_second"][what].as_f64().unwrap_or(0.0);
    Limit {
        name: text(&told["name"]),
        rate: texts(&told["rates"]).join(", "),
        key: text(&told["key"]),
        shadow,
        allowed_per_second: per_second("allowed"),
        denied_per_second: per_second("denied"),
        denied: number(&told["totals"][denied]),
        headroom: told["headroom"].as_f64(),
    }
}

fn server(upstream: String, told: &Value) -> Server {
    Server {
        upstream,
        server: text(&told["server"]),
        state: match (told["state"].as_str(), told["up"].as_bool()) {
            (Some(state), _) => state.to_owned(),
            // An older proxy tells only this.
            (None, Some(true)) => "up".to_owned(),
            (None, _) => "down".to_owned(),
        },
        ejected_until: told["ejected_until"].as_f64(),
        in_flight: number(&told["in_flight"]),
        idle: number(&told["idle"]),
        latency: told["latency_seconds"].as_f64(),
        requests: number(&told["requests"]),
        failures: number(&told["failures"]),
    }
}

fn traffic(told: &Value) -> Traffic {
    let seconds = |what: &str| {
        list(&told["second"])
            .map(|one| number(&one[what]))
            .collect()
    };
    Traffic {
        requests_per_second: told["rates"]["requests"].as_f64().unwrap_or(0.0),
        denials_per_second: told["rates"]["denials"].as_f64().unwrap_or(0.0),
        requests: seconds("requests"),
        denials: seconds("denied"),
    }
}
