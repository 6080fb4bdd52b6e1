//! What all workers know together of one server's health: read on the path of a request, written
//! when something changes.
//!
//! [`health`](super::health) decides; here its decisions are kept where everybody sees them. A
//! request to servers in order reads two atomics and takes no lock.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::health::{Change, Health, Sent, Standing, Trouble, has_room};
use super::queue::Queue;
use crate::clock;
use crate::config::{Ejection, HealthCheck};

/// The gate of a server in order.
const OPEN: u64 = 0;
/// The gate of one whose checks fail. In between: when its ejection ends, in microseconds.
const SHUT: u64 = u64::MAX;
/// Nobody else tries a server for at least so long after a trial began.
const SHORTEST_TRIAL: Duration = Duration::from_millis(100);

/// The least part of its weight that a server gets, percent: one that gets nothing never warms up.
const COLDEST: u64 = 10;

/// What the servers of one upstream have in common.
#[derive(Debug)]
pub(super) struct Ward {
    upstream: Arc<str>,
    start: Instant,
    /// All servers, and those that are not in order.
    servers: AtomicUsize,
    out: AtomicUsize,
    /// Held by whoever changes anything, so that two servers are not ejected at once where there
    /// is room for one.
    turn: Mutex<()>,
    /// Where requests wait whose servers have caps.
    pub(super) queue: Arc<Queue>,
}

/// See the file's head.
pub(super) struct Watch {
    ward: Arc<Ward>,
    /// As people call the server.
    server: Box<str>,
    gate: AtomicU64,
    failures: AtomicU32,
    truncated: AtomicU32,
    /// When it came back, in microseconds, while that matters to anybody; 0 is never.
    back: AtomicU64,
    health: Mutex<Health>,
}

impl Ward {
    pub(super) fn new(upstream: &str) -> Ward {
        Ward {
            upstream: Arc::from(upstream),
            start: clock::now(),
            servers: AtomicUsize::new(0),
            out: AtomicUsize::new(0),
            turn: Mutex::default(),
            queue: Arc::default(),
        }
    }

    /// Its name.
    pub(super) fn upstream(&self) -> &Arc<str> {
        &self.upstream
    }

    /// So many servers are to choose from.
    pub(super) fn count_servers(&self, servers: usize) {
        self.servers.store(servers, Ordering::Relaxed);
    }

    /// Whether any server may not be in order: only then is it worth looking at each.
    pub(super) fn has_any_out(&self) -> bool {
        self.out.load(Ordering::Relaxed) > 0
    }
}

impl Watch {
    pub(super) fn new(ward: &Arc<Ward>, server: &impl fmt::Display) -> Watch {
        Watch {
            ward: Arc::clone(ward),
            server: server.to_string().into_boxed_str(),
            gate: AtomicU64::new(OPEN),
            failures: AtomicU32::new(0),
            truncated: AtomicU32::new(0),
            back: AtomicU64::new(0),
            health: Mutex::default(),
        }
    }

    /// How many servers of its upstream are not in order.
    pub(super) fn servers_out(&self) -> usize {
        self.ward.out.load(Ordering::Relaxed)
    }

    /// What requests may do with it.
    pub(super) fn standing(&self) -> Standing {
        match self.gate.load(Ordering::Relaxed) {
            OPEN => Standing::InOrder,
            SHUT => Standing::Down,
            until => Standing::Ejected(self.ward.start + Duration::from_micros(until)),
        }
    }

    /// The part of its weight that it gets so soon after it came back, percent: it may have to
    /// warm up for so long.
    pub(super) fn warmth(&self, slow_start: Duration) -> u64 {
        let back = self.back.load(Ordering::Relaxed);
        if back == 0 {
            return 100;
        }
        let whole = slow_start.as_micros().max(1);
        let since = u128::from(self.at(clock::now()).saturating_sub(back));
        if since >= whole {
            // Nobody need look at the clock again.
            self.back.store(0, Ordering::Relaxed);
            return 100;
        }
        let warmth = u64::try_from(since * 100 / whole).unwrap_or(100);
        warmth.max(COLDEST)
    }

    /// It begins to be asked, beside others that have been asked before.
    pub(super) fn begin_slowly(&self) {
        self.back.store(self.at(clock::now()), Ordering::Relaxed);
    }

    /// Whether whoever asks is to try this server, whose ejection is over: one at a time.
    pub(super) fn claim_trial(&self) -> bool {
        let until = self.gate.load(Ordering::Relaxed);
        if until == OPEN || until == SHUT {
            return false;
        }
        let now = clock::now();
        if self.at(now) < until {
            return false;
        }
        // Should the trial come to nothing, as when its client leaves, there is another one later.
        let again = self.at(now + self.health().rest().max(SHORTEST_TRIAL));
        let swap = self
            .gate
            .compare_exchange(until, again, Ordering::Relaxed, Ordering::Relaxed);
        swap.is_ok()
    }

    /// A request `sent` here was answered as it should be.
    pub(super) fn succeeded(&self, sent: Sent) {
        if sent == Sent::InOrder && self.failures.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.change(|health| health.succeeded(sent, clock::now()));
    }

    /// A request `sent` here met `trouble`: whether the server is left alone for that. `count` says
    /// how many servers the upstream has, and how many of them are not in order.
    pub(super) fn failed(
        &self,
        (trouble, sent): (Trouble, Sent),
        rules: &Ejection,
        count: impl FnOnce() -> (usize, usize),
    ) -> bool {
        let change = self.change(|health| {
            let (servers, out) = count();
            let has_room = has_room(servers, out, rules, trouble);
            health.failed((trouble, sent), rules, has_room, clock::now())
        });
        change.is_some()
    }

    /// The answer to a request `sent` here ended before its end: whether the server is left alone
    /// for that.
    #[cold]
    pub(super) fn truncated(&self, sent: Sent, rules: &Ejection) -> bool {
        let change = self.change(|health| {
            let servers = self.ward.servers.load(Ordering::Relaxed);
            let out = self.ward.out.load(Ordering::Relaxed);
            let has_room = has_room(servers, out, rules, Trouble::Failed);
            health.truncated(sent, rules, has_room, clock::now())
        });
        change.is_some()
    }

    /// An answer came to its end.
    pub(super) fn completed(&self) {
        if self.truncated.load(Ordering::Relaxed) > 0 {
            self.change(|health| {
                health.completed();
                None
            });
        }
    }

    /// Says what the last request here met.
    pub(super) fn explain(&self, why: &dyn fmt::Display) {
        let (upstream, server) = (&self.ward.upstream, &self.server);
        tracing::warn!("upstream {upstream}: the last request to {server}: {why}");
    }

    /// A check ended; `why` it failed.
    pub(super) fn checked(&self, failure: Option<&dyn fmt::Display>, rules: &HealthCheck) {
        let passed = failure.is_none();
        let change = self.change(|health| health.checked(passed, rules, clock::now()));
        if let (Some(_), Some(why)) = (change, failure) {
            let (upstream, server) = (&self.ward.upstream, &self.server);
            tracing::warn!("upstream {upstream}: the last check of {server}: {why}");
        }
    }

    /// Nobody checks it any more.
    pub(super) fn unchecked(&self) {
        if self.gate.load(Ordering::Relaxed) == SHUT {
            self.change(|health| {
                health.unchecked();
                None
            });
        }
    }

    /// Has `happen` change its health, and makes that known.
    fn change(&self, happen: impl FnOnce(&mut Health) -> Option<Change>) -> Option<Change> {
        let _turn = self
            .ward
            .turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut health = self.health();
        let before = health.standing();
        let change = happen(&mut health);
        let standing = health.standing();
        self.failures.store(health.failures(), Ordering::Relaxed);
        let truncated = health.truncated_in_a_row();
        self.truncated.store(truncated, Ordering::Relaxed);
        if standing != before {
            let gate = match standing {
                Standing::InOrder => OPEN,
                Standing::Down => SHUT,
                Standing::Ejected(until) => self.at(until),
            };
            self.gate.store(gate, Ordering::Relaxed);
            match (before, standing) {
                (Standing::InOrder, _) => _ = self.ward.out.fetch_add(1, Ordering::Relaxed),
                (_, Standing::InOrder) => {
                    self.begin_slowly();
                    self.ward.out.fetch_sub(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        if let Some(change) = change {
            let (upstream, server) = (&self.ward.upstream, &self.server);
            match change {
                Change::Ejected { .. } | Change::WentDown(_) => {
                    tracing::warn!("upstream {upstream}: server {server} {change}");
                }
                Change::Returned | Change::CameUp(_) => {
                    tracing::info!("upstream {upstream}: server {server} {change}");
                }
            }
        }
        change
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instant as the gate holds it.
    fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.ward.start);
        u64::try_from(since.as_micros())
            .unwrap_or(SHUT)
            .clamp(OPEN + 1, SHUT - 1)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.gate.load(Ordering::Relaxed) != OPEN {
            self.ward.out.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("server", &self.server)
            .field("standing", &self.standing())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watches(count: usize) -> Vec<Watch> {
        let ward = Arc::new(Ward::new("api"));
        let server = |port| Watch::new(&ward, &format!("http://10.0.0.1:{port}"));
        (0..count).map(server).collect()
    }

    fn fail(all: &[Watch], index: usize, rules: &Ejection) {
        let out = || {
            let in_order = |one: &&Watch| one.standing() == Standing::InOrder;
            (all.len(), all.len() - all.iter().filter(in_order).count())
        };
        all[index].failed((Trouble::Unreachable, Sent::InOrder), rules, out);
    }

    #[test]
    fn what_one_finds_out_all_know_and_one_alone_may_try() {
        let rules = Ejection {
            rest: Duration::from_millis(500),
            ..Ejection::default()
        };
        let all = watches(3);
        assert!(!all[0].ward.has_any_out());
        fail(&all, 1, &rules);
        assert!(all[0].ward.has_any_out());
        assert!(matches!(all[1].standing(), Standing::Ejected(_)));
        assert!(!all[1].claim_trial(), "before its ejection is over");
        while !all[1].claim_trial() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!all[1].claim_trial(), "a second one at once");
        all[1].succeeded(Sent::Trial);
        assert_eq!(all[1].standing(), Standing::InOrder);
        assert!(!all[0].ward.has_any_out());
    }

    #[test]
    fn all_at_once_are_not_ejected_by_threads_that_race() {
        for _ in 0..50 {
            let all = watches(4);
            std::thread::scope(|scope| {
                for index in 0..4 {
                    let all = &all;
                    scope.spawn(move || fail(all, index, &Ejection::default()));
                }
            });
            let left = all.iter().filter(|one| one.standing() == Standing::InOrder);
            assert_eq!(left.count(), 1);
        }
    }

    #[test]
    fn one_that_is_back_gets_its_weight_by_and_by() {
        let all = watches(2);
        let slow_start = Duration::from_millis(200);
        assert_eq!(all[0].warmth(slow_start), 100);
        all[0].begin_slowly();
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
        let all = watches(2);
        let ward = Arc::clone(&all[0].ward);
        fail(&all, 0, &Ejection::default());
        drop(all);
        assert!(!ward.has_any_out());
    }
}
