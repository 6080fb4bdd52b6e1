//! How long a server's responses take: a moving average that rises at once, falls slowly, and fades
//! without news.
//!
//! One worker writes and reads it. It is atomic only because the tasks of that worker share it.
//! Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The expectation halves after this time without news, so that a slow server is tried again.
const HALF_LIFE: Duration = Duration::from_secs(2);
/// A faster response moves the average by one part in this number.
const PARTS: u64 = 8;

/// The latency of one server. It starts unknown.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// The pessimistic average that balancing uses.
    us: AtomicU64,
    /// A plain average for reports.
    mean_us: AtomicU64,
    /// The time of the last observation, milliseconds.
    at_ms: AtomicU64,
}

/// The latency of a server as one worker measured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredLatency {
    /// The moving average.
    pub took: Duration,
    /// The age of the last observation.
    pub age: Duration,
}

impl Latency {
    /// The plain average, which does not fade.
    pub(super) fn mean(&self, now: Duration) -> Option<MeasuredLatency> {
        let us = self.mean_us.load(Ordering::Relaxed);
        let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        (us > 0).then(|| MeasuredLatency {
            took: Duration::from_micros(us),
            age: now.saturating_sub(at),
        })
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.mean_us.load(Ordering::Relaxed) == 0
    }

    /// The expected latency at `now`, microseconds; 0 while it is unknown.
    pub(super) fn expected_us(&self, now: Duration) -> u64 {
        let us = self.us.load(Ordering::Relaxed);
        let since = millis(now).saturating_sub(self.at_ms.load(Ordering::Relaxed));
        us.checked_shr(u32::try_from(since / millis(HALF_LIFE)).unwrap_or(u32::MAX))
            .unwrap_or(0)
    }

    pub(super) fn copy_from(&self, other: &Latency) {
        let copy = |to: &AtomicU64, from: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&self.us, &other.us);
        copy(&self.mean_us, &other.mean_us);
        copy(&self.at_ms, &other.at_ms);
    }

    /// Notes the duration of one response.
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
        assert!(latency.is_unknown() && latency.mean(MS).is_none());
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
