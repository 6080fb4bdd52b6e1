//! One server of an upstream as one worker sees it: its idle connections and its requests under
//! way.
//!
//! It belongs to one worker, so its locks are never contended; no lock is held across an await. All
//! workers share its [`ServerHealth`].

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tokio::runtime::Handle;

use super::balance::{Load, Work};
use super::connect::{Address, Addresses, UpstreamTls};
use super::health::Standing;
use super::http1::Http1;
use super::http2::Http2Pool;
use super::latency::{Latency, MeasuredLatency};
use super::queue::PermitQueue;
use super::server_health::ServerHealth;
use crate::clock::{Alarm, Sweep};
use crate::config::{HostHeader, ServerAddress, UpstreamServer, UpstreamSettings};
use crate::telemetry::metrics::ServerCells;
use crate::tls::TlsTrouble;

/// The interval at which old idle connections are closed, unless the idle timeout is shorter.
const CLOSE_EVERY: Duration = Duration::from_secs(1);

/// The state that all servers of an upstream share under one configuration.
#[derive(Debug)]
pub(super) struct UpstreamTerms {
    pub(super) settings: UpstreamSettings,
    pub(super) sweep: Sweep,
    /// `None` without `https` servers.
    pub(super) tls: Option<Result<UpstreamTls, TlsTrouble>>,
    /// Requests under way, including those that began under earlier settings.
    pub(super) in_use: Arc<AtomicUsize>,
    /// Whether any server has a cap.
    pub(super) is_capped: bool,
    /// `None` if requests may not wait.
    pub(super) queue: Option<Arc<PermitQueue>>,
}

impl UpstreamTerms {
    /// Whether connections of an earlier configuration may be used under this one.
    fn accepts_connections_of(&self, old: &UpstreamTerms) -> bool {
        let (new, old) = (&self.settings, &old.settings);
        (new.timeout, new.body_timeout, new.http2) == (old.timeout, old.body_timeout, old.http2)
            && new.tls == old.tls
    }
}

/// One server of one worker.
#[derive(Debug)]
pub(super) struct Server {
    /// The server in the configuration.
    pub(super) origin: ServerAddress,
    /// The server in logs: `origin`, or one address of its name.
    pub(super) place: ServerAddress,
    /// The addresses that the lookup of its name found; empty before that or without a name.
    pub(super) found: Addresses,
    pub(super) address: Address,
    /// The `Host` line for every request, or for requests without one.
    pub(super) host: HeaderValue,
    /// A hash of `place`, the same in every process.
    pub(super) number: u64,
    pub(super) weight: u32,
    /// The most requests under way, of all workers.
    pub(super) cap: Option<usize>,
    pub(super) terms: Arc<UpstreamTerms>,
    pub(super) health: Arc<ServerHealth>,
    /// A stack: the connection used last is taken first, so that the others age and close.
    idle: Mutex<IdleConnections>,
    /// For a server that speaks HTTP/2, or may.
    pub(super) http2: Option<Box<Http2Pool>>,
    pub(super) in_flight: AtomicUsize,
    pub(super) cells: ServerCells,
    pub(super) latency: Latency,
    /// Whether a task closes old connections.
    has_closer: AtomicBool,
    /// The same server under newer settings, which gets the connections that come back.
    successor: OnceLock<Arc<Server>>,
}

/// Boxed once: requests borrow connections and return them.
type IdleConnections = Vec<Box<Http1>>;

impl Server {
    pub(super) fn new(
        server: &UpstreamServer,
        place: ServerAddress,
        found: &Addresses,
        terms: &Arc<UpstreamTerms>,
        health: Arc<ServerHealth>,
    ) -> Server {
        let origin = &server.address;
        let host = match &terms.settings.host {
            HostHeader::Fixed(host) => HeaderValue::from_str(host).ok(),
            HostHeader::Pass | HostHeader::Rewrite => origin.authority().try_into().ok(),
        };
        Server {
            host: host.unwrap_or(HeaderValue::from_static("")),
            http2: Http2Pool::new(origin, terms.settings.http2).map(Box::new),
            number: hash_address(&place.to_string()),
            address: Address::new(origin, found),
            origin: origin.clone(),
            place,
            found: found.clone(),
            weight: server.weight,
            cap: server.max_connections,
            latency: Latency::default(),
            health,
            idle: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            cells: ServerCells::default(),
            terms: Arc::clone(terms),
            has_closer: AtomicBool::new(false),
            successor: OnceLock::new(),
        }
    }

    /// Hands the state to the same server under newer settings. If the settings allow, that
    /// includes the connections, also those in use.
    pub(super) fn hand_over(&self, successor: &Arc<Server>) {
        successor.latency.copy_from(&self.latency);
        successor.cells.go_on(&self.cells);
        if !successor.terms.accepts_connections_of(&self.terms) {
            return;
        }
        let idle = std::mem::take(&mut *self.idle());
        for connection in idle {
            successor.keep(connection);
        }
        if let (Some(own), Some(pool)) = (&self.http2, &successor.http2) {
            pool.take_over(own);
        }
        // Only the first successor is set; later ones take over from it.
        let _ = self.successor.set(Arc::clone(successor));
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.health.standing() == Standing::Healthy
    }

    /// The load, for balancing.
    pub(super) fn load(&self) -> Load {
        match self.health.standing() {
            Standing::Healthy if self.cap.is_some_and(|most| self.health.is_full(most)) => {
                Load::Full
            }
            Standing::Healthy => Load::Ready(Work {
                in_flight: self.in_flight.load(Ordering::Relaxed) as u64,
                latency_us: self.latency.expected_us(self.terms.sweep.elapsed()),
                weight: u64::from(self.weight) * self.warmth(),
            }),
            Standing::Ejected(_) => Load::Resting,
            Standing::Down => Load::Down,
        }
    }

    /// The share of its weight that the server gets, percent.
    fn warmth(&self) -> u64 {
        let slow_start = self.terms.settings.slow_start;
        slow_start.map_or(100, |slow_start| self.health.warmth(slow_start))
    }

    fn idle(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the idle connection that was used last.
    pub(super) fn take_idle(&self) -> Option<Box<Http1>> {
        let mut idle = self.idle();
        while let Some(mut connection) = idle.pop() {
            if connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(self: &Arc<Self>, connection: Box<Http1>) {
        if let Some(successor) = self.successor.get() {
            return successor.keep(connection);
        }
        let settings = &self.terms.settings;
        connection.deadline.alarm.arm(settings.idle_timeout);
        let mut idle = self.idle();
        if idle.len() < settings.max_idle {
            idle.push(connection);
            drop(idle);
            self.close_when_old();
        }
    }

    /// Starts a task that closes old connections, unless it runs.
    pub(super) fn close_when_old(self: &Arc<Self>) {
        if self.has_closer.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            self.has_closer.store(true, Ordering::Relaxed);
            let every = self.terms.settings.idle_timeout.min(CLOSE_EVERY);
            let (server, alarm) = (Arc::downgrade(self), self.terms.sweep.alarm());
            runtime.spawn(close_old_connections(server, alarm, every));
        }
    }

    /// Closes old connections; true if others are left.
    fn close_old(&self) -> bool {
        let has_http2 = self.http2.as_ref().is_some_and(|pool| pool.close_old());
        let mut idle = self.idle();
        idle.retain_mut(|connection| {
            connection.free_large_buffer();
            connection.is_usable()
        });
        has_http2 || !idle.is_empty()
    }

    pub(super) fn report(&self) -> ServerReport {
        ServerReport {
            server: self.place.to_string(),
            state: match self.health.standing() {
                Standing::Healthy if self.health.is_failing() => ServerStatus::Failing,
                Standing::Healthy => ServerStatus::Up,
                Standing::Ejected(until) => ServerStatus::Ejected(until),
                Standing::Down => ServerStatus::Down,
            },
            weight: self.weight,
            in_flight: self.in_flight.load(Ordering::Relaxed) as u64,
            idle: self.idle().len() as u64,
            latency: self.latency.mean(self.terms.sweep.elapsed()),
            requests: self.cells.requests.get(),
            failures: self.cells.failures.get(),
            truncated: self.cells.truncated.get(),
        }
    }
}

async fn close_old_connections(server: Weak<Server>, alarm: Arc<Alarm>, every: Duration) {
    loop {
        alarm.arm(every);
        poll_fn(|context| alarm.poll(context)).await;
        let Some(server) = server.upgrade() else {
            return;
        };
        if !server.close_old() {
            server.has_closer.store(false, Ordering::Relaxed);
            return;
        }
    }
}

/// Must never change: every proxy has to choose the same server for one affinity.
fn hash_address(address: &str) -> u64 {
    let hash = blake3::hash(address.as_bytes());
    let first: [u8; 8] = hash.as_bytes()[..8].try_into().unwrap_or_default();
    u64::from_le_bytes(first)
}

/// The report of one worker on one server.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// The address.
    pub server: String,
    /// The same in all workers.
    pub state: ServerStatus,
    /// The share of requests.
    pub weight: u32,
    /// Requests under way.
    pub in_flight: u64,
    /// Idle connections of HTTP/1.1.
    pub idle: u64,
    /// `None` before the first measurement.
    pub latency: Option<MeasuredLatency>,
    /// All requests.
    pub requests: u64,
    /// Requests without a usable response, or with one that counts as a server's failure.
    pub failures: u64,
    /// Truncated responses; `failures` includes them.
    pub truncated: u64,
}

/// The state of a server in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// It gets requests.
    Up,
    /// It gets requests, and the last ones failed.
    Failing,
    /// It gets no requests until then, because requests failed.
    Ejected(Instant),
    /// It gets no requests, because its health checks fail.
    Down,
}

impl ServerStatus {
    /// The word in JSON and metrics.
    pub fn word(self) -> &'static str {
        match self {
            ServerStatus::Up => "up",
            ServerStatus::Failing => "failing",
            ServerStatus::Ejected(_) => "ejected",
            ServerStatus::Down => "down",
        }
    }
}
