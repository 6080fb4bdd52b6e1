//! What one worker can say of its upstreams, for whoever adds up what all of them say.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Upstreams;
use super::health::Standing;
use super::pool::Upstream;
use super::server::Server;
use crate::telemetry::metrics::UpstreamSum;

/// What one worker knows of one server.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// Where it is.
    pub server: String,
    /// Whether requests are sent there. Known to all workers.
    pub up: bool,
    /// Until when it is left alone after requests failed there.
    pub ejected_until: Option<Instant>,
    /// Its part of the requests.
    pub weight: u32,
    /// Requests under way.
    pub in_flight: u64,
    /// Connections that wait for one.
    pub idle: u64,
    /// How long its answers take, where that is measured.
    pub latency: Option<Duration>,
    /// Requests so far.
    pub requests: u64,
    /// Those that came to nothing.
    pub failures: u64,
    /// Answers that ended before their end, which are among them.
    pub truncated: u64,
}

impl Upstreams {
    /// Adds what was counted of the upstream of this index to `sum`.
    pub fn add_to(&self, upstream: usize, sum: &mut UpstreamSum) {
        if let Some(upstream) = self.0.get(upstream) {
            upstream.cells().add_to(sum);
        }
    }

    /// The servers of the upstream of this index, as they are now.
    pub fn servers(&self, upstream: usize) -> Vec<ServerReport> {
        let upstream = self.0.get(upstream);
        let servers = upstream.map_or_else(Vec::new, |one: &Upstream| one.choice().servers.clone());
        servers.iter().map(|server| server.report()).collect()
    }
}

impl Server {
    fn report(&self) -> ServerReport {
        let standing = self.vital.watch.standing();
        let us = self.expected_us();
        ServerReport {
            server: self.place.to_string(),
            up: standing == Standing::InOrder,
            ejected_until: match standing {
                Standing::Ejected(until) => Some(until),
                Standing::InOrder | Standing::Down => None,
            },
            weight: self.weight,
            in_flight: self.in_flight.load(Ordering::Relaxed) as u64,
            idle: self.idle().len() as u64,
            latency: (us > 0).then(|| Duration::from_micros(us)),
            requests: self.cells.requests.get(),
            failures: self.cells.failures.get(),
            truncated: self.cells.truncated.get(),
        }
    }
}
