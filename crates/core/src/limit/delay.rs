//! Requests that wait instead of being denied. A request is *booked*: it is charged now, and counts
//! from the time at which it will be forwarded. Twin of `book` in `lua/decide.lua`.
//!
//! The wait is the exact one of a denial, so no window ever holds more than its limit. Units of
//! requests that are held count for each request after them. So requests of one limit and one cost
//! pass in the order in which they came, over all proxies. A request that is given up gives its
//! units back, and those behind it keep their times.

use super::decide::{Count, FirstPass};
use super::{Retry, Rule};

/// How long a limit holds requests that it would deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Microseconds; a request that would wait longer is denied.
    pub longest_us: u64,
    /// Requests of one key that wait at once, at most.
    pub queue: u32,
}

impl Delay {
    /// The same for a request that may wait for `longest_us` at most.
    pub fn within(self, longest_us: u64) -> Delay {
        Delay {
            longest_us: self.longest_us.min(longest_us),
            ..self
        }
    }
}

/// One check of a request between the two passes of its decision.
#[derive(Clone, Copy, Debug)]
pub struct BookingCheck<'c> {
    /// `None` if nothing is counted yet.
    pub count: Option<&'c Count>,
    pub rule: &'c Rule,
    pub cost: u64,
    pub first: &'c FirstPass,
    /// `None` if this check does not hold the request.
    pub delay: Option<Delay>,
}

/// How long a request must be held, microseconds. `None` if a check that denies it does not hold it
/// for so long, or holds too many requests already; or if no check denies it.
pub fn wait_us<'c>(checks: impl Iterator<Item = BookingCheck<'c>>) -> Option<u64> {
    let (mut wait_us, mut most_us) = (0, u64::MAX);
    for check in checks {
        let us = match check.first.retry {
            Retry::Now => continue,
            Retry::After(us) => us,
            _ => return None,
        };
        let delay = check.delay?;
        let held = check
            .count
            .map_or(0, |count| count.held_units(check.rule, check.first));
        let most = u64::from(delay.queue).saturating_mul(check.cost.max(1));
        if held.saturating_add(check.cost) > most {
            return None;
        }
        wait_us = wait_us.max(us);
        most_us = most_us.min(delay.longest_us);
    }
    (0 < wait_us && wait_us <= most_us).then_some(wait_us)
}
