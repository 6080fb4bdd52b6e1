//! How long a server's answers take: a moving average that believes bad news at once and good news
//! slowly, and forgets both.
//!
//! Written and read by one worker; atomic only so that tasks may share it. Time comes in as an
//! argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// After so long without news half of it is forgotten, so that a server that was slow is asked
/// again.
const HALF_LIFE: Duration = Duration::from_secs(2);
/// Each answer that is faster than expected moves the average by one part of so many.
const PARTS: u64 = 8;

/// See the file's head. Nothing is known at first.
#[derive(Debug, Default)]
pub(super) struct Latency {
    us: AtomicU64,
    /// When it was observed, milliseconds.
    at_ms: AtomicU64,
}

impl Latency {
    /// What to expect at `now`, microseconds; 0 while nothing is known.
    pub(super) fn expected_us(&self, now: Duration) -> u64 {
        let us = self.us.load(Ordering::Relaxed);
        let since = millis(now).saturating_sub(self.at_ms.load(Ordering::Relaxed));
        us.checked_shr(u32::try_from(since / millis(HALF_LIFE)).unwrap_or(u32::MAX))
            .unwrap_or(0)
    }

    /// Knows what `other` knows.
    pub(super) fn learn(&self, other: &Latency) {
        let copy = |to: &AtomicU64, from: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&self.us, &other.us);
        copy(&self.at_ms, &other.at_ms);
    }

    /// An answer took `took`.
    pub(super) fn observe(&self, took: Duration, now: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let expected = self.expected_us(now);
        let us = if took >= expected {
            took
        } else {
            expected - (expected - took).div_ceil(PARTS)
        };
        self.us.store(us, Ordering::Relaxed);
        self.at_ms.store(millis(now), Ordering::Relaxed);
    }

    /// A request got no answer in `waited`: it would have taken at least as long.
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
