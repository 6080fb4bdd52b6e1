//! Whether a request may be sent again: a pure rule, and a budget that bounds retries during an
//! outage. Time and counts are arguments.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};

use crate::config::{Retries, RetryOn};

/// The period over which the budget counts requests and retries.
const WINDOW: Duration = Duration::from_secs(10);
/// Retries per second that are always allowed, so that a quiet upstream has some.
const FLOOR_PER_SECOND: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptEnd {
    Unsent,
    /// The connection ended before a response began.
    Closed,
    TimedOut,
    Answered(StatusCode),
}

impl AttemptEnd {
    /// The index of this end in the metric of retries.
    pub(super) fn index(self) -> usize {
        match self {
            AttemptEnd::Unsent => 0,
            AttemptEnd::Closed => 1,
            AttemptEnd::TimedOut => 2,
            AttemptEnd::Answered(_) => 3,
        }
    }
}

/// Whether sending a request twice has the effect of sending it once. A body rules it out, because
/// it is gone after the first attempt.
pub(super) fn is_repeatable(method: &Method, has_body: bool) -> bool {
    method.is_idempotent() && !has_body
}

pub(super) fn wants_retry(on: &RetryOn, end: AttemptEnd, is_repeatable: bool) -> bool {
    match end {
        AttemptEnd::Unsent => true,
        AttemptEnd::Closed => is_repeatable && on.closed,
        AttemptEnd::TimedOut => is_repeatable && on.timeout,
        AttemptEnd::Answered(status) => is_repeatable && on.status.contains(status),
    }
}

/// The retries that an upstream has left: a share of its requests in the last [`WINDOW`], which
/// fades, and [`FLOOR_PER_SECOND`].
#[derive(Clone, Debug)]
pub(super) struct RetryBudget {
    updated: Instant,
    /// The number of all requests at `updated`.
    counted: u64,
    requests: f64,
    retries: f64,
}

impl RetryBudget {
    pub(super) fn new(now: Instant) -> RetryBudget {
        RetryBudget {
            updated: now,
            counted: 0,
            requests: 0.0,
            retries: 0.0,
        }
    }

    /// Takes one retry if one is left. `count` is the number of all requests so far.
    pub(super) fn take(&mut self, rules: &Retries, count: u64, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.updated).as_secs_f64();
        let new = count.saturating_sub(self.counted) as f64;
        (self.updated, self.counted) = (now, count);
        let window = WINDOW.as_secs_f64();
        let fade = (1.0 - since / window).max(0.0);
        // After a longer break only the requests of the last window count.
        self.requests = self.requests * fade + new * (window / since.max(window));
        self.retries *= fade;
        let floor = f64::from(FLOOR_PER_SECOND) * window;
        let most = floor + self.requests * f64::from(rules.budget) / 100.0;
        let is_left = self.retries + 1.0 <= most;
        if is_left {
            self.retries += 1.0;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn on(statuses: &[&str]) -> RetryOn {
        let mut on = Retries::default().on;
        for status in statuses {
            on.status.add(status).unwrap();
        }
        on
    }

    #[test]
    fn what_was_not_sent_may_always_be_sent() {
        assert!(wants_retry(&on(&[]), AttemptEnd::Unsent, false));
    }

    #[test]
    fn what_may_have_been_seen_is_sent_again_only_if_it_bears_repetition() {
        for (method, expected) in [
            (Method::GET, true),
            (Method::HEAD, true),
            (Method::PUT, true),
            (Method::DELETE, true),
            (Method::OPTIONS, true),
            (Method::POST, false),
            (Method::PATCH, false),
            (Method::from_bytes(b"FROB").unwrap(), false),
        ] {
            assert_eq!(is_repeatable(&method, false), expected, "{method}");
            assert!(!is_repeatable(&method, true), "{method}");
            let worth = wants_retry(&on(&[]), AttemptEnd::Closed, is_repeatable(&method, false));
            assert_eq!(worth, expected, "{method}");
        }
    }

    #[test]
    fn timeouts_and_statuses_only_where_asked_for() {
        let unavailable = AttemptEnd::Answered(StatusCode::SERVICE_UNAVAILABLE);
        assert!(!wants_retry(&on(&[]), AttemptEnd::TimedOut, true));
        assert!(!wants_retry(&on(&[]), unavailable, true));
        assert!(wants_retry(&on(&["503"]), unavailable, true));
        assert!(!wants_retry(&on(&["503"]), unavailable, false));
        let mut patient = on(&[]);
        patient.timeout = true;
        assert!(wants_retry(&patient, AttemptEnd::TimedOut, true));
        assert!(!wants_retry(&patient, AttemptEnd::TimedOut, false));
    }

    #[test]
    fn a_quiet_upstream_has_its_floor_and_no_more() {
        let start = clock::now();
        let mut budget = RetryBudget::new(start);
        let rules = Retries::default();
        let allowed = (0..1000).filter(|_| budget.take(&rules, 0, start)).count();
        assert_eq!(allowed, 100);
        // The taken retries fade: later there are some again.
        let later = start + Duration::from_secs(5);
        let allowed = (0..1000).filter(|_| budget.take(&rules, 0, later)).count();
        assert_eq!(allowed, 50);
    }

    proptest::proptest! {
        /// Every request fails and wants to be sent again: only the share and the floor are.
        #[test]
        fn an_outage_costs_no_more_than_the_budget(
            percent in 0_u32..=100,
            per_second in 1_u64..5_000,
            seconds in 1_u64..60,
        ) {
            let rules = Retries { budget: percent, ..Retries::default() };
            let start = clock::now();
            let mut budget = RetryBudget::new(start);
            let total = per_second * seconds;
            let mut retries = 0;
            for count in 1..=total {
                let now = start + Duration::from_secs_f64(count as f64 / per_second as f64);
                retries += u64::from(budget.take(&rules, count, now));
            }
            let floor = u64::from(FLOOR_PER_SECOND) * (seconds + WINDOW.as_secs());
            // The share of the window is there at once and again as it fades.
            let share = (total + per_second * WINDOW.as_secs()) * u64::from(percent) / 100;
            proptest::prop_assert!(retries <= floor + share + 1, "{} of {}", retries, total);
        }
    }
}
