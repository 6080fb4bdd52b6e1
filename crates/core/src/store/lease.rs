//! Leases: units of a busy key taken ahead, and spent here without asking the store.
//!
//! What is taken ahead is stamped at the lease's *end*, so that no window of any length `W` ever
//! holds more than the limit: in a window that ends at `t`, whatever was spent was recorded with a
//! stamp in it or later, and was granted when no more than the limit stood in `(t - W, t]` and
//! after. What it costs is that a unit counts up to the lease's length too long, and that units not
//! spent in time are lost until they expire: half of what is expected to be spent is taken, which
//! keeps that below a few in a thousand.
//!
//! Adaptive: a key is leased from [`BUSY`] requests a second of one worker on, and no longer below
//! half of that. Only requests of one item are. Pure: time is an argument, microseconds.

use std::collections::HashMap;

use crate::limit::{Charge, Decision};

use super::batch::Outcome;

/// Requests a second from which a key is worth a lease.
const BUSY: f64 = 500.0;
/// Over how long demand is measured, microseconds.
const SPAN_US: u64 = 100_000;
/// Keys watched; the rest ask the store as ever.
const KEYS: usize = 1024;

/// The leases of one worker.
#[derive(Debug, Default)]
pub struct Leases(HashMap<u128, Lease>);

#[derive(Debug)]
struct Lease {
    cost: u64,
    units: u64,
    /// Requests since `since_us`, and a second's worth of them as last measured.
    demand: u32,
    since_us: u64,
    rate: f64,
    /// Share of what was asked for that was granted lately.
    admitted: f64,
    active: bool,
    /// Grants left, out of those from `next` to `end` of the outcome.
    next: u16,
    end: u16,
    until_us: u64,
    came_us: u64,
    outcome: Option<Outcome>,
}

impl Leases {
    /// The decision on one request from units taken ahead, if there are any; counts the demand.
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
            self.0.insert(id, Lease::new(item.cost, units, now_us));
        }
        let lease = self.0.get_mut(&id)?;
        let is_left = lease.next < lease.end && now_us < lease.until_us;
        if lease.units != units && !is_left {
            // The limit is another since, or that of another tier.
            *lease = Lease::new(item.cost, units, now_us);
        }
        if (lease.cost, lease.units) != (item.cost, units) {
            return None;
        }
        lease.count(now_us);
        if lease.next >= lease.end || now_us >= lease.until_us {
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

    /// How many requests more than those that wait should be asked for now; 0 for none.
    pub fn ahead(&mut self, charge: &Charge, now_us: u64) -> u16 {
        let [item] = charge.as_slice() else { return 0 };
        let Some(lease) = self.0.get_mut(&item.id()) else {
            return 0;
        };
        let is_left = lease.next < lease.end && now_us < lease.until_us;
        if !lease.active || is_left || lease.cost != item.cost {
            return 0;
        }
        let expected = lease.rate * lease.admitted * item.limit.lease_us as f64 / 1e6;
        (expected / 2.0).clamp(0.0, 10_000.0) as u16
    }

    /// What came of a call that asked for more than `asked` requests' worth.
    pub fn note(
        &mut self,
        charge: &Charge,
        asked: u16,
        (outcome, count): (&Outcome, u16),
        (sent_us, came_us): (u64, u64),
    ) {
        let [item] = charge.as_slice() else { return };
        let Some(lease) = self.0.get_mut(&item.id()) else {
            return;
        };
        let share = f64::from(outcome.granted) / f64::from(count.max(1));
        lease.admitted += (share - lease.admitted) * 0.2;
        if outcome.granted > asked {
            (lease.next, lease.end) = (asked, outcome.granted);
            // From when it was sent, since the store's stamp is not before that; and a little less,
            // since clocks may drift against each other.
            let lease_us = item.limit.lease_us;
            lease.until_us = sent_us + lease_us - lease_us.div_ceil(1000);
            lease.came_us = came_us;
            lease.outcome = Some(outcome.clone());
        }
    }

    /// Gives up everything taken ahead: it counts in the store until it expires.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Lease {
    fn new(cost: u64, units: u64, now_us: u64) -> Lease {
        Lease {
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
            cost: 1,
            asker: None,
        };
        [item].into_iter().collect()
    }

    fn outcome(granted: u16) -> Outcome {
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
            verdicts: [verdict].into_iter().collect(),
        };
        Outcome {
            granted,
            allowed: Some(allowed),
            denied: None,
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
        leases.note(
            &charge(),
            3,
            (&outcome(count), count),
            (now_us, now_us + 400),
        );
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
        leases.note(&charge(), 3, (&outcome(5), 20), (1_000_000, 1_000_000));
        let spent = (0..10).filter(|_| leases.spend(&charge(), 1_000_100).is_some());
        assert_eq!(spent.count(), 2);
    }
}
