//! The health and load of servers as all workers of the process share it.
//!
//! [`health`](super::health) decides, and this file publishes the decision in atomics. The path of
//! a request to healthy servers reads atomics and takes no lock. The state outlives a
//! configuration: the names of upstream and server identify it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::health::{FailureKind, HealthChange, HealthState, SendReason, Standing, has_room};
use super::queue::PermitQueue;
use crate::clock;
use crate::config::{Ejection, HealthCheck, ServerAddress, UpstreamServer};
use crate::telemetry::panics::lock;

/// The gate of a healthy server. Other values are the end of its ejection, in microseconds.
const OPEN: u64 = 0;
/// The gate of a server that is down.
const SHUT: u64 = u64::MAX;
/// A trial keeps other trials out for at least this time.
const SHORTEST_TRIAL: Duration = Duration::from_millis(100);
/// The least share of its weight that a server gets, percent. With none it would never warm up.
const COLDEST: u64 = 10;
/// A server counts as failing after this number of failed requests in a row.
const FAILING: u32 = 3;

#[derive(Clone, Debug, Default)]
pub struct Vitals(Arc<Mutex<HealthRegistry>>);

#[derive(Debug, Default)]
struct HealthRegistry {
    servers: HashMap<ServerKey, Weak<ServerHealth>>,
    upstreams: HashMap<Arc<str>, Weak<UpstreamHealth>>,
}

/// The upstream and the place of a server.
type ServerKey = (Arc<str>, ServerAddress);

#[derive(Debug)]
pub(super) struct UpstreamHealth {
    name: Arc<str>,
    start: Instant,
    pub(super) servers: AtomicUsize,
    out: AtomicUsize,
    /// Serializes changes, so that two workers cannot eject one server too many together.
    change: Mutex<()>,
    queue: Mutex<ServersQueue>,
    /// Whether the log says that a name has too many addresses.
    has_warned: AtomicBool,
}

/// The requests that wait for servers with caps, and these servers.
#[derive(Debug, Default)]
struct ServersQueue {
    servers: Vec<UpstreamServer>,
    queue: Arc<PermitQueue>,
}

#[derive(Debug)]
pub(super) struct ServerHealth {
    upstream: Arc<UpstreamHealth>,
    /// The server in logs.
    server: Mutex<Box<str>>,
    gate: AtomicU64,
    state: Mutex<HealthState>,
    /// A copy of `state.failures`.
    failures: AtomicU32,
    /// When the server came back, in microseconds, until it is warm; 0 otherwise.
    back: AtomicU64,
    /// Requests under way. Counted only for a server with a cap.
    under_way: AtomicUsize,
    /// Failed requests in a row, whatever the rules of ejection are. Only reports show it.
    failed_in_a_row: AtomicU32,
    truncated_in_a_row: AtomicU32,
}

impl Vitals {
    /// The health of one server, created when it is asked for first.
    pub(super) fn server(
        &self,
        upstream: &Arc<UpstreamHealth>,
        server: &ServerAddress,
    ) -> Arc<ServerHealth> {
        let mut known = lock(&self.0);
        let key = (Arc::clone(&upstream.name), server.clone());
        if let Some(health) = known.servers.get(&key).and_then(Weak::upgrade) {
            return health;
        }
        known.servers.retain(|_, health| health.strong_count() > 0);
        let health = Arc::new(ServerHealth::new(upstream, server));
        known.servers.insert(key, Arc::downgrade(&health));
        health
    }

    /// The health of a server that is now at `place`, and was `known` at another one. Another
    /// worker may have noted it there already, but the health there may be that of another server.
    pub(super) fn moved(
        &self,
        known: &Arc<ServerHealth>,
        place: &ServerAddress,
        is_others: impl FnOnce(&Arc<ServerHealth>) -> bool,
    ) -> Arc<ServerHealth> {
        let mut registry = lock(&self.0);
        let key = (Arc::clone(&known.upstream.name), place.clone());
        let there = registry.servers.get(&key).and_then(Weak::upgrade);
        if let Some(health) = there.filter(|there| !is_others(there)) {
            return health;
        }
        registry.servers.insert(key, Arc::downgrade(known));
        *lock(&known.server) = place.to_string().into_boxed_str();
        Arc::clone(known)
    }

    /// The health of the upstream with this name, created when it is asked for first.
    pub(super) fn upstream(&self, name: &str) -> Arc<UpstreamHealth> {
        let mut known = lock(&self.0);
        if let Some(upstream) = known.upstreams.get(name).and_then(Weak::upgrade) {
            return upstream;
        }
        known.upstreams.retain(|_, one| one.strong_count() > 0);
        let upstream = Arc::new(UpstreamHealth::new(name));
        let name = Arc::clone(&upstream.name);
        known.upstreams.insert(name, Arc::downgrade(&upstream));
        upstream
    }

    /// Forgets the health checks of an upstream's servers, after they were removed from the
    /// configuration. The servers of a name are those at its addresses.
    pub(super) fn forget_checks(&self, upstream: &str) {
        let known = lock(&self.0);
        let servers = known.servers.iter();
        let servers = servers.filter(|((name, _), _)| **name == *upstream);
        let servers: Vec<_> = servers.filter_map(|(_, health)| health.upgrade()).collect();
        // The last handle of a server may be among them, and needs no lock to end.
        drop(known);
        servers.iter().for_each(|server| server.forget_checks());
    }
}

impl UpstreamHealth {
    fn new(name: &str) -> UpstreamHealth {
        UpstreamHealth {
            name: Arc::from(name),
            start: clock::now(),
            servers: AtomicUsize::new(0),
            out: AtomicUsize::new(0),
            change: Mutex::default(),
            queue: Mutex::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    /// The queue for these servers, which all workers share. Other servers or caps begin a new one:
    /// requests that wait for the old ones must not hold up requests that have room.
    pub(super) fn queue(&self, servers: &[UpstreamServer]) -> Arc<PermitQueue> {
        let mut current = lock(&self.queue);
        if current.servers != servers {
            *current = ServersQueue {
                servers: servers.to_vec(),
                queue: Arc::default(),
            };
        }
        Arc::clone(&current.queue)
    }

    /// Whether any server is not healthy. If none is, the single servers need no look.
    pub(super) fn has_any_out(&self) -> bool {
        self.out.load(Ordering::Relaxed) > 0
    }

    /// Warns once for all workers that a name has more servers than `most`.
    #[cold]
    pub(super) fn warn_of_servers(&self, name: &str, count: usize, most: usize) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let upstream = &self.name;
            tracing::warn!(
                "upstream {upstream}: {name} has {count} addresses: the first {most} get requests"
            );
        }
    }

    fn has_room(&self, rules: &Ejection, kind: FailureKind) -> bool {
        let servers = self.servers.load(Ordering::Relaxed);
        has_room(servers, self.out.load(Ordering::Relaxed), rules, kind)
    }

    fn micros(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start);
        u64::try_from(since.as_micros())
            .unwrap_or(SHUT)
            .clamp(OPEN + 1, SHUT - 1)
    }
}

impl ServerHealth {
    fn new(upstream: &Arc<UpstreamHealth>, server: &impl fmt::Display) -> ServerHealth {
        ServerHealth {
            upstream: Arc::clone(upstream),
            server: Mutex::new(server.to_string().into_boxed_str()),
            gate: AtomicU64::new(OPEN),
            state: Mutex::default(),
            failures: AtomicU32::new(0),
            back: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            failed_in_a_row: AtomicU32::new(0),
            truncated_in_a_row: AtomicU32::new(0),
        }
    }

    pub(super) fn is_full(&self, most: usize) -> bool {
        self.under_way.load(Ordering::Relaxed) >= most
    }

    /// Counts one more request, unless `most` are under way.
    pub(super) fn enter(&self, most: usize) -> bool {
        let more = |under_way: usize| (under_way < most).then_some(under_way + 1);
        self.under_way
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(super) fn leave(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    pub(super) fn note_failure(&self) {
        self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_success(&self) {
        // A store would cost the other workers a cache miss.
        if self.failed_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failed_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        let failed = self.failed_in_a_row.load(Ordering::Relaxed);
        let truncated = self.truncated_in_a_row.load(Ordering::Relaxed);
        failed.max(truncated) >= FAILING
    }

    pub(super) fn standing(&self) -> Standing {
        match self.gate.load(Ordering::Relaxed) {
            OPEN => Standing::Healthy,
            SHUT => Standing::Down,
            until => Standing::Ejected(self.upstream.start + Duration::from_micros(until)),
        }
    }

    /// The share of its weight that a server gets during `slow_start` after its return, percent.
    pub(super) fn warmth(&self, slow_start: Duration) -> u64 {
        let back = self.back.load(Ordering::Relaxed);
        if back == 0 {
            return 100;
        }
        let whole = slow_start.as_micros().max(1);
        let since = u128::from(self.upstream.micros(clock::now()).saturating_sub(back));
        if since >= whole {
            // Later calls need not read the clock.
            self.back.store(0, Ordering::Relaxed);
            return 100;
        }
        let warmth = u64::try_from(since * 100 / whole).unwrap_or(100);
        warmth.max(COLDEST)
    }

    pub(super) fn begin_slow_start(&self) {
        let now = self.upstream.micros(clock::now());
        self.back.store(now, Ordering::Relaxed);
    }

    /// Reserves the trial of a server whose ejection is over, for one request at a time.
    pub(super) fn claim_trial(&self) -> bool {
        let until = self.gate.load(Ordering::Relaxed);
        let now = clock::now();
        if until == OPEN || until == SHUT || self.upstream.micros(now) < until {
            return false;
        }
        // If the trial has no result, for example because its client leaves, another one follows.
        let next = now + lock(&self.state).rest.max(SHORTEST_TRIAL);
        let next = self.upstream.micros(next);
        self.gate
            .compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    pub(super) fn succeed(&self, reason: SendReason) {
        if reason == SendReason::Healthy && self.failures.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.change(|state| state.succeed(reason, clock::now()));
    }

    /// Notes a failed request; true if that ejects the server.
    pub(super) fn fail(&self, kind: FailureKind, reason: SendReason, rules: &Ejection) -> bool {
        let change = self.change(|state| {
            let has_room = self.upstream.has_room(rules, kind);
            state.fail(kind, reason, rules, has_room, clock::now())
        });
        change.is_some()
    }

    /// Notes a truncated response; true if that ejects the server.
    #[cold]
    pub(super) fn truncate(&self, reason: SendReason, rules: Option<&Ejection>) -> bool {
        let change = rules.and_then(|rules| {
            self.change(|state| {
                let has_room = self.upstream.has_room(rules, FailureKind::Failed);
                state.truncate(reason, rules, has_room, clock::now())
            })
        });
        self.truncated_in_a_row.fetch_add(1, Ordering::Relaxed);
        change.is_some()
    }

    pub(super) fn complete(&self) {
        if self.truncated_in_a_row.load(Ordering::Relaxed) > 0 {
            self.truncated_in_a_row.store(0, Ordering::Relaxed);
            self.change(|state| {
                state.truncated = 0;
                None
            });
        }
    }

    pub(super) fn log_failure(&self, why: &dyn fmt::Display) {
        let (upstream, server) = (&self.upstream.name, lock(&self.server));
        tracing::warn!("upstream {upstream}: the last failed request to {server}: {why}");
    }

    /// Notes a health check; `failure` is its error.
    pub(super) fn note_check(&self, failure: Option<&str>, rules: &HealthCheck) {
        let passed = failure.is_none();
        let change = self.change(|state| state.note_check(passed, rules, clock::now()));
        if let (Some(_), Some(why)) = (change, failure) {
            let (upstream, server) = (&self.upstream.name, lock(&self.server));
            tracing::warn!("upstream {upstream}: the last check of {server}: {why}");
        }
    }

    fn forget_checks(&self) {
        if self.gate.load(Ordering::Relaxed) == SHUT {
            self.change(|state| {
                state.forget_checks();
                None
            });
        }
    }

    /// Ends an ejection, after ejection was switched off.
    pub(super) fn forget_ejection(&self) {
        if self.gate.load(Ordering::Relaxed) != OPEN {
            self.change(|state| {
                state.forget_ejection();
                None
            });
        }
    }

    /// Applies `event` to the state, then publishes and logs the result.
    fn change(
        &self,
        event: impl FnOnce(&mut HealthState) -> Option<HealthChange>,
    ) -> Option<HealthChange> {
        let upstream = &self.upstream;
        let _serialized = lock(&upstream.change);
        let mut state = lock(&self.state);
        let before = state.standing();
        let change = event(&mut state);
        let standing = state.standing();
        self.failures.store(state.failures, Ordering::Relaxed);
        if standing != before {
            let gate = match standing {
                Standing::Healthy => OPEN,
                Standing::Down => SHUT,
                Standing::Ejected(until) => upstream.micros(until),
            };
            self.gate.store(gate, Ordering::Relaxed);
            match (before, standing) {
                (Standing::Healthy, _) => _ = upstream.out.fetch_add(1, Ordering::Relaxed),
                (_, Standing::Healthy) => {
                    self.begin_slow_start();
                    upstream.out.fetch_sub(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        if let Some(change) = change {
            let (upstream, server) = (&upstream.name, lock(&self.server));
            match change {
                HealthChange::Ejected { .. } | HealthChange::WentDown(_) => {
                    tracing::warn!("upstream {upstream}: server {server} {change}");
                }
                HealthChange::Returned | HealthChange::CameUp(_) => {
                    tracing::info!("upstream {upstream}: server {server} {change}");
                }
            }
        }
        change
    }
}

impl Drop for ServerHealth {
    fn drop(&mut self) {
        if self.gate.load(Ordering::Relaxed) != OPEN {
            self.upstream.out.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: usize) -> Vec<ServerHealth> {
        let upstream = Arc::new(UpstreamHealth::new("api"));
        upstream.servers.store(count, Ordering::Relaxed);
        let server = |port| ServerHealth::new(&upstream, &format!("http://10.0.0.1:{port}"));
        (0..count).map(server).collect()
    }

    fn fail(all: &[ServerHealth], index: usize, rules: &Ejection) {
        all[index].fail(FailureKind::Unreachable, SendReason::Healthy, rules);
    }

    #[test]
    fn what_one_finds_out_all_know_and_one_alone_may_try() {
        let rules = Ejection {
            rest: Duration::from_millis(500),
            ..Ejection::default()
        };
        let all = servers(3);
        assert!(!all[0].upstream.has_any_out());
        fail(&all, 1, &rules);
        assert!(all[0].upstream.has_any_out());
        assert!(matches!(all[1].standing(), Standing::Ejected(_)));
        assert!(!all[1].claim_trial(), "before its ejection is over");
        while !all[1].claim_trial() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!all[1].claim_trial(), "a second one at once");
        all[1].succeed(SendReason::Trial);
        assert_eq!(all[1].standing(), Standing::Healthy);
        assert!(!all[0].upstream.has_any_out());
    }

    #[test]
    fn all_at_once_are_not_ejected_by_threads_that_race() {
        for _ in 0..50 {
            let all = servers(4);
            std::thread::scope(|scope| {
                for index in 0..4 {
                    let all = &all;
                    scope.spawn(move || fail(all, index, &Ejection::default()));
                }
            });
            let left = all.iter().filter(|one| one.standing() == Standing::Healthy);
            assert_eq!(left.count(), 1);
        }
    }

    #[test]
    fn one_that_is_back_gets_its_weight_by_and_by() {
        let all = servers(2);
        let slow_start = Duration::from_millis(200);
        assert_eq!(all[0].warmth(slow_start), 100);
        all[0].begin_slow_start();
        assert!(all[0].warmth(Duration::from_secs(3600)) == COLDEST);
        let mut last = 0;
        while last < 100 {
            let warmth = all[0].warmth(slow_start);
            assert!(warmth >= last);
            last = warmth;
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(all[0].warmth(Duration::from_secs(3600)), 100);
    }

    #[test]
    fn one_that_is_gone_is_not_out() {
        let all = servers(2);
        let upstream = Arc::clone(&all[0].upstream);
        fail(&all, 0, &Ejection::default());
        drop(all);
        assert!(!upstream.has_any_out());
    }
}
