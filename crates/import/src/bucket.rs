//! Leaky and token buckets as rates: the same burst at once, and the same rate in the long run.
//!
//! A bucket of capacity C that is refilled with N units in T lets C through at once and N in each T
//! for ever; so does a window of C units and length C * T / N. What is different: a bucket gets
//! its units back one by one, a window each when its time has passed. No window holds more than the
//! bucket would have let through.

use crate::limit::Rate;
use crate::limit::rate::{MAX_UNITS, MAX_WINDOW_US, MIN_WINDOW_US};

/// `units` in each `per_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refill {
    pub(super) units: u64,
    pub(super) per_us: u64,
}

/// The window; `None` where there is none that short or long. Its length is rounded up to whole
/// milliseconds, as nginx's clock is.
pub(super) fn window(refill: Refill, capacity: u64) -> Option<Rate> {
    let (units, capacity) = (u128::from(refill.units), u128::from(capacity));
    if units == 0 || capacity == 0 || capacity > u128::from(MAX_UNITS) {
        return None;
    }
    let exact = (capacity * u128::from(refill.per_us)).div_ceil(units);
    let window_us = u64::try_from(exact.div_ceil(1000) * 1000).ok()?;
    (MIN_WINDOW_US..=MAX_WINDOW_US)
        .contains(&window_us)
        .then_some(Rate {
            units: u64::try_from(capacity).ok()?,
            window_us,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_becomes_the_window_of_its_burst() {
        let s = 1_000_000;
        for (units, per_us, capacity, expected) in [
            (10, s, 1, "1/100ms"),
            (10, s, 21, "21/2100ms"),
            (5, s, 10, "10/2s"),
            (30, 60 * s, 1, "1/2s"),
            (1, 60 * s, 6, "6/6min"),
            // Between two ticks of nginx's clock.
            (700, s, 1, "1/2ms"),
            (3000, s, 1, "1/ms"),
            (100, s, 100, "100/s"),
            (1, 3600 * s, 24, "24/d"),
        ] {
            let rate = window(Refill { units, per_us }, capacity).unwrap();
            assert_eq!(rate.to_string(), expected, "{units} {per_us} {capacity}");
        }
        let none = |units, capacity| window(Refill { units, per_us: s }, capacity);
        assert_eq!((none(0, 1), none(1, 0)), (None, None));
        assert_eq!(none(1, 40_000_000), None, "longer than a year");
    }
}
