//! All that was found, and what it comes down to.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::measure::{SHARES, Sample};
use super::peer::Peer;
use super::scenario::{ALL as SCENARIOS, Scenario};
use crate::numbers::Spread;
use crate::process::Memory;

#[derive(Debug, Default)]
pub struct Findings {
    /// The machine, in words; and what ran, with its version.
    pub machine: String,
    pub versions: Vec<(&'static str, String)>,
    pub missing: Vec<&'static str>,
    pub took_s: f64,
    /// Of all; some are measured more often.
    pub rounds: usize,
    /// For each round one, if it could be measured.
    pub samples: BTreeMap<(Scenario, Peer), Vec<Option<Sample>>>,
    /// With so many idle connections.
    pub memory: BTreeMap<Peer, Vec<(usize, Memory)>>,
    /// What proxies did that their scenario is not about.
    pub faults: Vec<String>,
}

impl Findings {
    /// How often it was measured, or tried to.
    pub fn rounds_of(&self, scenario: Scenario, peer: Peer) -> usize {
        self.samples.get(&(scenario, peer)).map_or(0, Vec::len)
    }

    /// What one round found.
    pub fn sample(&self, scenario: Scenario, peer: Peer, round: usize) -> Option<&Sample> {
        self.samples.get(&(scenario, peer))?.get(round)?.as_ref()
    }

    /// Something of all rounds.
    pub fn spread(
        &self,
        scenario: Scenario,
        peer: Peer,
        of: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let rounds = 0..self.rounds_of(scenario, peer);
        let samples = rounds.filter_map(|round| self.sample(scenario, peer, round));
        Spread::of(samples.map(of))
    }

    /// Resident memory with so many idle connections, MiB.
    pub fn resident_mib(&self, peer: Peer, connections: usize) -> Option<f64> {
        let found = self.memory.get(&peer)?.iter();
        let mut found = found.filter(|(count, _)| *count == connections);
        found
            .next()
            .map(|(_, memory)| memory.rss_kib as f64 / 1024.0)
    }

    /// The most of the machine that others used during a measurement that counts, in cores.
    pub fn foreign(&self) -> f64 {
        let samples = self.samples.values().flatten().flatten();
        samples.map(|sample| sample.foreign).fold(0.0, f64::max)
    }

    pub fn to_json(&self) -> Value {
        let scenario = |scenario: &Scenario| {
            let of = |peer: &Peer| {
                let samples = self.samples.get(&(*scenario, *peer))?;
                let samples: Vec<Value> = samples.iter().flatten().map(sample).collect();
                Some((peer.name().to_owned(), Value::Array(samples)))
            };
            let peers: serde_json::Map<_, _> = scenario.peers().iter().filter_map(of).collect();
            (!peers.is_empty()).then(|| (scenario.id().to_owned(), Value::Object(peers)))
        };
        let scenarios: serde_json::Map<_, _> = SCENARIOS.iter().filter_map(scenario).collect();
        let memory = self.memory.iter().map(|(peer, found)| {
            let found = found.iter().map(|(connections, memory)| {
                json!({
                    "idle_connections": connections,
                    "rss_kib": memory.rss_kib,
                    "pss_kib": memory.pss_kib,
                })
            });
            (peer.name().to_owned(), found.collect())
        });
        let memory: serde_json::Map<_, _> = memory.collect();
        let versions = self.versions.iter();
        let versions = versions.map(|(name, version)| ((*name).to_owned(), json!(version)));
        json!({
            "machine": self.machine,
            "versions": versions.collect::<serde_json::Map<_, _>>(),
            "missing": self.missing,
            "rounds": self.rounds,
            "seconds": self.took_s.round(),
            "scenarios": scenarios,
            "memory": memory,
            "faults": self.faults,
        })
    }
}

fn sample(sample: &Sample) -> Value {
    let round = |figure: f64| (figure * 1e3).round() / 1e3;
    let mut value = json!({
        "requests": sample.requests,
        "per_second": round(sample.per_second),
        "proxy_cpu_us": round(sample.proxy_us),
        "redis_cpu_us": round(sample.redis_us),
        "upstream_cpu_us": round(sample.upstream_us),
        "proxy_busy_cores": round(sample.busy),
        "foreign_busy_cores": round(sample.foreign),
    });
    if let Some(waits) = sample.waits_us {
        for (share, wait) in SHARES.iter().zip(waits) {
            value[format!("p{}_us", share * 100.0)] = json!(wait);
        }
    }
    value
}
