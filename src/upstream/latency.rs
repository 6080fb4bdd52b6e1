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
    /// The average for the views, in which good and bad news weigh the same.
    mean_us: AtomicU64,
    /// When it was observed, milliseconds.
    at_ms: AtomicU64,
}

/// How long the answers of a server take, as a worker measured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The moving average.
    pub took: Duration,
    /// How long ago an answer was measured last.
    pub age: Duration,
}

impl Latency {
    /// The average of what was measured by `now`; nothing is forgotten for lack of news.
    pub(super) fn measured(&self, now: Duration) -> Option<Measured> {
        let us = self.mean_us.load(Ordering::Relaxed);
        let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        (us > 0).then(|| Measured {
            took: Duration::from_micros(us),
            age: now.saturating_sub(at),
        })
    }

    /// Whether nothing was measured yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.mean_us.load(Ordering::Relaxed) == 0
    }

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
        copy(&self.mean_us, &other.mean_us);
        copy(&self.at_ms, &other.at_ms);
    }

    /// An answer took `took`.
    pub(super) fn observe(&self, took: Duration, now: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        self.average(took);
        let expected = self.expected_us(now);
        let us = if took >= expected {
            took
        } else {
            expected - (expected - took).div_ceil(PARTS)
        };
        self.us.store(us, Ordering::Relaxed);
        self.at_ms.store(millis(now), Ordering::Relaxed);
    }

    fn average(&self, took: u64) {
        let mean = match self.mean_us.load(Ordering::Relaxed) {
            0 => took,
            mean if took < mean => mean - (mean - took).div_ceil(PARTS),
            mean => mean.saturating_add((took - mean).div_ceil(PARTS)),
        };
        self.mean_us.store(mean, Ordering::Relaxed);
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
    fn views_have_an_average_that_lasts() {
        let latency = Latency::default();
        assert!(latency.is_unknown() && latency.measured(MS).is_none());
        for took in [8, 8, 80] {
            latency.observe(took * MS, MS);
        }
        let seen = latency.measured(MS + 1000 * HALF_LIFE).unwrap();
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
