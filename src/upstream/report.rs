//! What one worker can say of its upstreams, for whoever adds up what all of them say.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Upstreams;
use super::health::Standing;
use super::latency::Measured;
use super::pool::Upstream;
use super::server::Server;
use crate::telemetry::metrics::UpstreamSum;

/// What one worker knows of one server.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// Where it is.
    pub server: String,
    /// How it stands. Known to all workers.
    pub state: ServerStatus,
    /// Its part of the requests.
    pub weight: u32,
    /// Requests under way.
    pub in_flight: u64,
    /// Connections that wait for one.
    pub idle: u64,
    /// How long its answers take, once one was measured.
    pub latency: Option<Measured>,
    /// Requests so far.
    pub requests: u64,
    /// Those without a usable answer, or with one that says that the server failed.
    pub failures: u64,
    /// Answers that ended before their end, which are among them.
    pub truncated: u64,
}

/// How a server stands, in every view of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// Requests are sent there.
    Up,
    /// Requests are sent there, and the last of them failed.
    Failing,
    /// It is left alone until then, after requests failed there.
    Ejected(Instant),
    /// No request is sent there: its checks fail.
    Down,
}

impl ServerStatus {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            ServerStatus::Up => "up",
            ServerStatus::Failing => "failing",
            ServerStatus::Ejected(_) => "ejected",
            ServerStatus::Down => "down",
        }
    }
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
        ServerReport {
            server: self.place.to_string(),
            state: match self.vital.watch.standing() {
                Standing::InOrder if self.vital.is_failing() => ServerStatus::Failing,
                Standing::InOrder => ServerStatus::Up,
                Standing::Ejected(until) => ServerStatus::Ejected(until),
                Standing::Down => ServerStatus::Down,
            },
            weight: self.weight,
            in_flight: self.in_flight.load(Ordering::Relaxed) as u64,
            idle: self.idle().len() as u64,
            latency: self.measured_latency(),
            requests: self.cells.requests.get(),
            failures: self.cells.failures.get(),
            truncated: self.cells.truncated.get(),
        }
    }
}
