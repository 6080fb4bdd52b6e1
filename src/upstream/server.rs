//! One server of an upstream as one worker sees it: its idle connections and its requests under
//! way.
//!
//! It belongs to one worker, so its locks are never contended; no lock is held across an await. All
//! workers share its [`ServerHealth`].

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tokio::runtime::Handle;

use super::balance::{Load, Work};
use super::connect::{Address, Addresses, UpstreamTls};
use super::health::Standing;
use super::http1::Http1;
use super::http2::Http2Pool;
use super::queue::PermitQueue;
use super::server_health::ServerHealth;
use crate::clock::{Alarm, Sweep};
use crate::config::{HostHeader, ServerAddress, UpstreamServer, UpstreamSettings};
use crate::telemetry::metrics::{ServerCells, UpstreamCells};
use crate::telemetry::panics::lock;
use crate::tls::TlsTrouble;

/// The interval at which old idle connections are closed, unless the idle timeout is shorter.
const CLOSE_EVERY: Duration = Duration::from_secs(1);

/// The expectation halves after this time without news, so that a slow server is tried again.
const HALF_LIFE: Duration = Duration::from_secs(2);
/// A faster response moves the average by one part in this number.
const PARTS: u64 = 8;

#[derive(Debug)]
pub(super) struct UpstreamTerms {
    pub(super) settings: UpstreamSettings,
    pub(super) sweep: Sweep,
    /// `None` without `https` servers.
    pub(super) tls: Option<Result<UpstreamTls, TlsTrouble>>,
    /// Requests under way, including those that began under earlier settings.
    pub(super) in_use: Arc<AtomicUsize>,
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
            && new.connections == old.connections
    }
}

#[derive(Debug)]
pub(super) struct Server {
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
    pub(super) is_backup: bool,
    /// The most requests under way, of all workers.
    pub(super) cap: Option<usize>,
    pub(super) terms: Arc<UpstreamTerms>,
    pub(super) health: Arc<ServerHealth>,
    /// A stack: the connection used last is taken first, so that the others age and close.
    idle: Mutex<IdleConnections>,
    /// For a server that speaks HTTP/2, or may.
    pub(super) http2: Option<Box<Http2Pool>>,
    /// Shared with the same server under older settings, which may still have requests.
    pub(super) in_flight: Arc<AtomicUsize>,
    /// Shared likewise.
    pub(super) cells: Arc<ServerCells>,
    pub(super) latency: Latency,
    has_closer: AtomicBool,
    /// The same server under newer settings, which gets the connections that come back.
    successor: OnceLock<Arc<Server>>,
}

/// Boxed once: requests borrow connections and return them.
type IdleConnections = Vec<Box<Http1>>;

impl Server {
    /// A server that has the counts of `before`, the same one under older settings or addresses.
    pub(super) fn new(
        server: &UpstreamServer,
        place: ServerAddress,
        found: &Addresses,
        terms: &Arc<UpstreamTerms>,
        health: Arc<ServerHealth>,
        before: Option<&Arc<Server>>,
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
            is_backup: server.backup,
            cap: server.max_connections,
            latency: Latency::default(),
            health,
            idle: Mutex::default(),
            in_flight: before.map_or_else(Arc::default, |one| Arc::clone(&one.in_flight)),
            cells: before.map_or_else(Arc::default, |one| Arc::clone(&one.cells)),
            terms: Arc::clone(terms),
            has_closer: AtomicBool::new(false),
            successor: OnceLock::new(),
        }
    }

    /// Hands the state to the same server under newer settings. If the settings allow, that
    /// includes the connections, also those in use.
    pub(super) fn hand_over(&self, successor: &Arc<Server>) {
        successor.latency.copy_from(&self.latency);
        if !successor.terms.accepts_connections_of(&self.terms) {
            return;
        }
        let idle = std::mem::take(&mut *lock(&self.idle));
        for connection in idle {
            successor.keep_idle(connection);
        }
        if let (Some(own), Some(pool)) = (&self.http2, &successor.http2) {
            pool.take_over(own, &successor.terms.settings);
            successor.close_when_old();
        }
        // Only the first successor is set; later ones take over from it.
        let _ = self.successor.set(Arc::clone(successor));
    }

    /// Counts an attempt without a usable response. The server is not to blame if the client broke
    /// off its request.
    pub(super) fn count_unanswered(&self, upstream: &UpstreamCells, is_to_blame: bool) {
        upstream.failures.add(1);
        self.cells.requests.add(1);
        if is_to_blame {
            self.cells.failures.add(1);
        }
    }

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

    fn warmth(&self) -> u64 {
        let slow_start = self.terms.settings.slow_start;
        slow_start.map_or(100, |slow_start| self.health.warmth(slow_start))
    }

    pub(super) fn take_idle(&self) -> Option<Box<Http1>> {
        let mut idle = lock(&self.idle);
        while let Some(mut connection) = idle.pop() {
            if connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    pub(super) fn keep_idle(self: &Arc<Self>, connection: Box<Http1>) {
        if let Some(successor) = self.successor.get() {
            return successor.keep_idle(connection);
        }
        let settings = &self.terms.settings;
        if connection.usage.is_over(self.terms.sweep.elapsed()) {
            return;
        }
        connection.deadline.alarm.arm(settings.idle_timeout);
        let mut idle = lock(&self.idle);
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
        let mut idle = lock(&self.idle);
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
            is_backup: self.is_backup,
            in_flight: self.in_flight.load(Ordering::Relaxed) as u64,
            idle: lock(&self.idle).len() as u64,
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

#[derive(Clone, Debug)]
pub struct ServerReport {
    pub server: String,
    /// The same in all workers.
    pub state: ServerStatus,
    pub weight: u32,
    pub is_backup: bool,
    pub in_flight: u64,
    /// Idle connections of HTTP/1.1.
    pub idle: u64,
    /// `None` before the first measurement.
    pub latency: Option<MeasuredLatency>,
    pub requests: u64,
    /// Requests without a usable response, or with one that counts as a server's failure.
    pub failures: u64,
    /// Truncated responses; `failures` includes them.
    pub truncated: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStatus {
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

/// How long a server's responses take: a moving average that rises at once, falls slowly, and fades
/// without news. It starts unknown. Only the tasks of one worker share it.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// The pessimistic average that balancing uses.
    us: AtomicU64,
    /// A plain average for reports.
    pub(super) mean_us: AtomicU64,
    /// The time of the last observation, milliseconds.
    at_ms: AtomicU64,
}

/// The latency of a server as one worker measured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredLatency {
    pub took: Duration,
    pub age: Duration,
}

impl Latency {
    /// The plain average, which does not fade.
    fn mean(&self, now: Duration) -> Option<MeasuredLatency> {
        let us = self.mean_us.load(Ordering::Relaxed);
        let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        (us > 0).then(|| MeasuredLatency {
            took: Duration::from_micros(us),
            age: now.saturating_sub(at),
        })
    }

    /// The expected latency at `now`, microseconds; 0 while it is unknown.
    fn expected_us(&self, now: Duration) -> u64 {
        let us = self.us.load(Ordering::Relaxed);
        let since = millis(now).saturating_sub(self.at_ms.load(Ordering::Relaxed));
        us.checked_shr(u32::try_from(since / millis(HALF_LIFE)).unwrap_or(u32::MAX))
            .unwrap_or(0)
    }

    fn copy_from(&self, other: &Latency) {
        let copy = |to: &AtomicU64, from: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&self.us, &other.us);
        copy(&self.mean_us, &other.mean_us);
        copy(&self.at_ms, &other.at_ms);
    }

    pub(super) fn observe(&self, took: Duration, now: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let mean = match self.mean_us.load(Ordering::Relaxed) {
            0 => took,
            mean if took < mean => mean - (mean - took).div_ceil(PARTS),
            mean => mean.saturating_add((took - mean).div_ceil(PARTS)),
        };
        self.mean_us.store(mean, Ordering::Relaxed);
        let us = match self.expected_us(now) {
            expected if took < expected => expected - (expected - took).div_ceil(PARTS),
            _ => took,
        };
        self.us.store(us, Ordering::Relaxed);
        self.at_ms.store(millis(now), Ordering::Relaxed);
    }

    /// Notes a request that got no response in `waited`: it would have taken longer.
    pub(super) fn observe_at_least(&self, waited: Duration, now: Duration) {
        if waited.as_micros() > u128::from(self.expected_us(now)) {
            self.observe(waited, now);
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn bad_news_counts_at_once_and_good_news_slowly() {
        let (latency, now) = (Latency::default(), 1000 * MS);
        assert_eq!(latency.expected_us(now), 0);
        latency.observe(10 * MS, now);
        latency.observe(90 * MS, now);
        assert_eq!(latency.expected_us(now), 90_000);
        latency.observe(10 * MS, now);
        assert_eq!(latency.expected_us(now), 80_000);
        for _ in 0..100 {
            latency.observe(10 * MS, now);
        }
        assert_eq!(latency.expected_us(now), 10_000);
    }

    #[test]
    fn views_have_an_average_that_lasts() {
        let latency = Latency::default();
        assert!((latency.mean_us.load(Ordering::Relaxed) == 0) && latency.mean(MS).is_none());
        for took in [8, 8, 80] {
            latency.observe(took * MS, MS);
        }
        let seen = latency.mean(MS + 1000 * HALF_LIFE).unwrap();
        assert_eq!((seen.took, seen.age), (17 * MS, 1000 * HALF_LIFE));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let latency = Latency::default();
        latency.observe(80 * MS, MS);
        assert_eq!(latency.expected_us(MS + HALF_LIFE), 40_000);
        assert_eq!(latency.expected_us(MS + 3 * HALF_LIFE), 10_000);
        assert_eq!(latency.expected_us(MS + 1000 * HALF_LIFE), 0);
    }

    #[test]
    fn a_request_that_was_given_up_is_no_good_news() {
        let (latency, now) = (Latency::default(), MS);
        latency.observe(50 * MS, now);
        latency.observe_at_least(2 * MS, now);
        assert_eq!(latency.expected_us(now), 50_000);
        latency.observe_at_least(70 * MS, now);
        assert_eq!(latency.expected_us(now), 70_000);
    }
}
