//! Decisions that a worker makes without asking the store: cached denials, and leased units.
//!
//! A lease is units of a busy key that a worker takes ahead, and spends without asking the store.
//! The units are stamped at the lease's *end*, so no window of any length `W` ever holds more than
//! the limit. Take a window that ends at `t`. Every unit spent in it has a stamp in it or later.
//! When it was granted, no more than the limit stood in `(t - W, t]` and after.
//!
//! The cost: a unit counts up to the lease's length too long, and units not spent in time are lost
//! until they expire. A worker takes half of the units that it expects to spend. That keeps the
//! loss below a few in a thousand.
//!
//! A key is leased from [`BUSY`] requests a second of one worker on, and no longer below half of
//! that. Only requests of one item are leased. Pure: time is an argument, microseconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::batch::GroupOutcome;
use super::deny_cache::{CallSpan, DenyCache};
use crate::limit::{Charge, Decision};
use crate::telemetry::decisions::Source;

/// Requests a second from which a key is worth a lease.
const BUSY: f64 = 500.0;
/// How long demand is measured, microseconds.
const SPAN_US: u64 = 100_000;
/// Keys watched; requests of other keys ask the store.
const KEYS: usize = 1024;

/// One worker's. Its handles and its connection's task run on one thread, and lock it for a moment.
#[derive(Clone, Debug, Default)]
pub struct WorkerCache {
    state: Arc<Mutex<CacheState>>,
    /// The [`Source`] of the last decision.
    source: Arc<AtomicU8>,
}

#[derive(Debug, Default)]
pub struct CacheState {
    pub denied: DenyCache,
    pub leases: Leases,
    epoch: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct CacheLookup {
    pub now_us: u64,
    /// The overrides' epoch. Entries of an earlier one are forgotten: an operator has changed
    /// something since.
    pub epoch: u64,
    /// Whether every number of the decision must be the one that the store would return.
    pub exact: bool,
}

impl WorkerCache {
    pub fn find(&self, charge: &Charge, lookup: CacheLookup) -> Option<(Source, Decision)> {
        let CacheLookup { now_us, exact, .. } = lookup;
        let mut state = self.lock_in(lookup.epoch);
        if let Some(decision) = state.denied.find(charge, now_us, exact) {
            return Some((Source::Cache, decision));
        }
        // Leased units count from the lease's end: no log of single requests shows that.
        let is_leased = !exact && charge.iter().any(|item| item.limit.lease_us > 0);
        let decision = is_leased.then(|| state.leases.spend(charge, now_us))??;
        Some((Source::Lease, decision))
    }

    /// The denial of a request that costs as much as `charge` or more.
    pub fn find_denial_of_at_least(
        &self,
        charge: &Charge,
        lookup: CacheLookup,
    ) -> Option<Decision> {
        let CacheLookup { now_us, exact, .. } = lookup;
        let denied = &self.lock_in(lookup.epoch).denied;
        denied.find_of_at_least(charge, now_us, exact)
    }

    pub fn note_source(&self, source: Source) {
        self.source.store(source as u8, Ordering::Relaxed);
    }

    /// The source of the last decision. Call it as soon as the decision is there: nothing else runs
    /// on this worker in between.
    pub fn source(&self) -> Source {
        match self.source.load(Ordering::Relaxed) {
            noted if noted == Source::Cache as u8 => Source::Cache,
            noted if noted == Source::Lease as u8 => Source::Lease,
            _ => Source::Store,
        }
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Forgets what was noted in an earlier epoch.
    fn lock_in(&self, epoch: u64) -> MutexGuard<'_, CacheState> {
        let mut state = self.lock();
        if state.epoch != epoch {
            state.clear();
            state.epoch = epoch;
        }
        state
    }

    pub fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    fn clear(&mut self) {
        self.denied.clear();
        self.leases.clear();
    }
}

#[derive(Debug, Default)]
pub struct Leases(HashMap<u128, KeyLease>);

#[derive(Clone, Copy, Debug)]
pub struct LeaseGrant<'o> {
    /// Requests that waited for the call; the rest of the grants is leased.
    pub waiting: u16,
    /// Requests that the call asked for.
    pub asked: u16,
    pub outcome: &'o GroupOutcome,
    pub span: CallSpan,
}

#[derive(Debug)]
struct KeyLease {
    cost: u64,
    units: u64,
    /// Requests since `since_us`.
    demand: u32,
    since_us: u64,
    /// Requests a second, as last measured.
    rate: f64,
    /// The share of requests that was granted lately.
    admitted: f64,
    active: bool,
    /// Grants left: those from `next` to `end` of the outcome.
    next: u16,
    end: u16,
    until_us: u64,
    came_us: u64,
    outcome: Option<GroupOutcome>,
}

impl Leases {
    /// The decision on one request from leased units, if there are any. Counts the demand.
    pub fn spend(&mut self, charge: &Charge, now_us: u64) -> Option<Decision> {
        let [item] = charge.as_slice() else {
            return None;
        };
        let (id, units) = (item.id(), item.window.rule.units);
        if !self.0.contains_key(&id) {
            if self.0.len() >= KEYS {
                self.0
                    .retain(|_, lease| lease.since_us + 2 * SPAN_US > now_us);
            }
            if self.0.len() >= KEYS {
                return None;
            }
            self.0.insert(id, KeyLease::new(item.cost, units, now_us));
        }
        let lease = self.0.get_mut(&id)?;
        if lease.units != units && !lease.has_units(now_us) {
            // The limit has changed, or is that of another tier.
            *lease = KeyLease::new(item.cost, units, now_us);
        }
        if (lease.cost, lease.units) != (item.cost, units) {
            return None;
        }
        lease.count(now_us);
        if !lease.has_units(now_us) {
            return None;
        }
        let index = lease.next;
        lease.next += 1;
        let passed = now_us.saturating_sub(lease.came_us);
        let mut decision = lease.outcome.as_ref()?.decision(index, charge)?;
        decision.at_us += passed;
        for verdict in &mut decision.verdicts {
            verdict.reset_us = verdict.reset_us.saturating_sub(passed);
            verdict.next_us = verdict.next_us.saturating_sub(passed);
        }
        Some(decision)
    }

    /// How many requests to ask for now, beside those that wait.
    pub fn ahead(&mut self, charge: &Charge, now_us: u64) -> u16 {
        let [item] = charge.as_slice() else { return 0 };
        let Some(lease) = self.0.get_mut(&item.id()) else {
            return 0;
        };
        if !lease.active || lease.has_units(now_us) || lease.cost != item.cost {
            return 0;
        }
        let expected = lease.rate * lease.admitted * item.limit.lease_us as f64 / 1e6;
        (expected / 2.0).clamp(0.0, 10_000.0) as u16
    }

    /// Notes what a call was granted, and keeps what it was granted ahead.
    pub fn note(&mut self, charge: &Charge, grant: LeaseGrant<'_>) {
        let [item] = charge.as_slice() else { return };
        let Some(lease) = self.0.get_mut(&item.id()) else {
            return;
        };
        let outcome = grant.outcome;
        let share = f64::from(outcome.granted) / f64::from(grant.asked.max(1));
        lease.admitted += (share - lease.admitted) * 0.2;
        if outcome.granted > grant.waiting {
            (lease.next, lease.end) = (grant.waiting, outcome.granted);
            // It starts when the call was sent, since the store's stamp is not before that. It ends
            // a little earlier, since clocks may drift against each other.
            let lease_us = item.limit.lease_us;
            lease.until_us = grant.span.sent_us + lease_us - lease_us.div_ceil(1000);
            lease.came_us = grant.span.came_us;
            lease.outcome = Some(outcome.clone());
        }
    }

    /// Gives up all leased units: they count in the store until they expire.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl KeyLease {
    fn new(cost: u64, units: u64, now_us: u64) -> KeyLease {
        KeyLease {
            cost,
            units,
            demand: 0,
            since_us: now_us,
            rate: 0.0,
            admitted: 1.0,
            active: false,
            next: 0,
            end: 0,
            until_us: 0,
            came_us: 0,
            outcome: None,
        }
    }

    fn has_units(&self, now_us: u64) -> bool {
        self.next < self.end && now_us < self.until_us
    }

    fn count(&mut self, now_us: u64) {
        self.demand = self.demand.saturating_add(1);
        let passed = now_us.saturating_sub(self.since_us);
        if passed < SPAN_US {
            return;
        }
        let measured = f64::from(self.demand) * 1e6 / passed as f64;
        self.rate += (measured - self.rate) * 0.5;
        self.active = self.rate >= if self.active { BUSY / 2.0 } else { BUSY };
        (self.demand, self.since_us) = (0, now_us);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::{Algorithm, Key, KeyHash, Limit, LimitCheck, Retry, Rule, Verdict};

    fn charge() -> Charge {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 100_000,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let limit = Limit {
            lease_us: 10_000,
            ..Limit::new("hot", &[rule], Key::parse(["global"]).unwrap())
        };
        let item = LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([1; 16]),
            anchor: None,
            cost: 1,
            asker: None,
        };
        [item].into_iter().collect()
    }

    fn outcome(granted: u16) -> GroupOutcome {
        let verdict = Verdict {
            used: 50,
            remaining: 99_949,
            retry: Retry::Now,
            reset_us: 1_010_000,
            next_us: 900_000,
            stamp: 7,
        };
        let allowed = Decision {
            allowed: true,
            at_us: 0,
            spread_us: 0,
            verdicts: [verdict].into_iter().collect(),
        };
        GroupOutcome {
            granted,
            allowed: Some(allowed),
            denied: None,
        }
    }

    /// Three requests waited for the call.
    fn grant(outcome: &GroupOutcome, asked: u16, span: CallSpan) -> LeaseGrant<'_> {
        LeaseGrant {
            waiting: 3,
            asked,
            outcome,
            span,
        }
    }

    /// `per_second` requests for a second; whether the key is leased then, and how much.
    fn demand(leases: &mut Leases, from_us: u64, per_second: u64) -> u16 {
        for request in 0..per_second {
            leases.spend(&charge(), from_us + request * 1_000_000 / per_second);
        }
        leases.ahead(&charge(), from_us + 1_000_000)
    }

    #[test]
    fn only_busy_keys_are_leased_and_half_of_what_is_expected() {
        let mut leases = Leases::default();
        assert_eq!(demand(&mut leases, 0, 300), 0);
        let ahead = demand(&mut leases, 1_000_000, 2_000);
        assert!((8..=11).contains(&ahead), "{ahead} of 20 in 10 ms");
        assert!(demand(&mut leases, 2_000_000, 400) > 0);
        assert_eq!(demand(&mut leases, 3_000_000, 100), 0);
    }

    #[test]
    fn what_was_taken_ahead_is_spent_in_order_until_the_lease_ends() {
        let mut leases = Leases::default();
        let ahead = demand(&mut leases, 0, 5_000);
        let count = 3 + ahead;
        let now_us = 1_000_000;
        let span = CallSpan {
            sent_us: now_us,
            came_us: now_us + 400,
        };
        leases.note(&charge(), grant(&outcome(count), count, span));
        let first = leases.spend(&charge(), now_us + 500).unwrap();
        let second = leases.spend(&charge(), now_us + 900).unwrap();
        assert_eq!(
            (first.verdicts[0].used, first.verdicts[0].reset_us),
            (53, 1_009_900)
        );
        assert_eq!((second.verdicts[0].used, second.at_us), (54, 500));
        assert!(leases.spend(&charge(), now_us + 9_989).is_some());
        assert!(leases.spend(&charge(), now_us + 9_990).is_none());
    }

    #[test]
    fn no_more_is_spent_than_was_granted() {
        let mut leases = Leases::default();
        demand(&mut leases, 0, 5_000);
        let span = CallSpan {
            sent_us: 1_000_000,
            came_us: 1_000_000,
        };
        leases.note(&charge(), grant(&outcome(5), 20, span));
        let spent = (0..10).filter(|_| leases.spend(&charge(), 1_000_100).is_some());
        assert_eq!(spent.count(), 2);
    }
}
