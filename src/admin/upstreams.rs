//! `/api/v1/upstreams`: the state of every server, added up over the workers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::response::{ApiError, now};
use super::schema::{described, words};
use super::state::AdminState;
use crate::clock;
use crate::config::Balance;
use crate::server::introspection::Snapshot;
use crate::upstream::{ServerReport, ServerStatus};

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
