//! `/api/v1/upstreams`: where requests go, and how it is there; added up over the workers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::AdminState;
use super::answer::{Refusal, seen};
use super::status::now;
use crate::clock;
use crate::config::Balance;
use crate::server::introspection::Snapshot;
use crate::upstream::{ServerReport, ServerStatus};

/// The servers of the upstream of this index, as all workers together see them. In the order of the
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
            // That of the worker that measured last.
            let age = |one: &ServerReport| one.latency.map_or(Duration::MAX, |seen| seen.age);
            if age(&report) < age(sum) {
                sum.latency = report.latency;
            }
        }
    }
    all
}

/// All of them, in the file's order.
pub(super) fn upstreams(state: &AdminState) -> Result<Value, Refusal> {
    let list = seen(state.server.introspection.inspect(|snapshot| {
        let upstreams = snapshot.config.upstreams.iter().enumerate();
        let described = upstreams.map(|(index, settings)| {
            let servers: Vec<Value> = servers(snapshot, index).iter().map(server).collect();
            json!({
                "name": &*settings.name,
                "balance": balance(&settings.balance),
                "servers": servers,
            })
        });
        described.collect::<Vec<_>>()
    }))?;
    Ok(json!({ "upstreams": list }))
}

fn server(report: &ServerReport) -> Value {
    let until = match report.state {
        ServerStatus::Ejected(until) => {
            let left = until.saturating_duration_since(clock::now());
            Some(now() + left.as_secs_f64())
        }
        ServerStatus::Up | ServerStatus::Failing | ServerStatus::Down => None,
    };
    json!({
        "server": report.server,
        "state": report.state.word(),
        "up": report.state == ServerStatus::Up,
        "weight": report.weight,
        "in_flight": report.in_flight,
        "idle": report.idle,
        "latency_seconds": report.latency.map(|seen| seen.took.as_secs_f64()),
        "ejected_until": until,
        "requests": report.requests,
        "failures": report.failures,
        "truncated": report.truncated,
    })
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
