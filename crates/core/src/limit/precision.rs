//! How finely a log tells times apart, and so how much it remembers.
//!
//! A log of precision `q` holds at most `min(L, W / q + 2)` entries of 8 bytes for each key. It
//! never admits more than its rate for any `q`; what a coarse one costs is that a unit may count up
//! to `q` too long.

use super::{Algorithm, Rate, Rule};

/// Up to this many units every admission is remembered to the microsecond: 8 KB for a key.
pub const EXACT_UNITS: u64 = 1_000;
/// Above, a window is cut into so many pieces: no key takes more than 8 KB, and a unit counts at
/// most a thousandth of the window too long.
const PIECES: u64 = 1_000;

impl Rule {
    /// The rule for a rate where nothing is said of its algorithm: a log, exact up to
    /// [`EXACT_UNITS`], of a thousandth of the window above.
    pub fn by_size(rate: Rate) -> Rule {
        // Windows are whole milliseconds, so a thousandth of one is whole microseconds.
        let precision_us = if rate.units <= EXACT_UNITS {
            1
        } else {
            rate.window_us / PIECES
        };
        Rule::log(rate, precision_us)
    }

    /// So many requests at once; a holder that says nothing keeps a slot for `hold_us` microseconds.
    pub const fn slots(units: u64, hold_us: u64) -> Rule {
        Rule {
            algorithm: Algorithm::Slots,
            units,
            window_us: hold_us,
            precision_us: 1,
        }
    }

    /// A log of this precision, which divides the rate's window.
    pub const fn log(rate: Rate, precision_us: u64) -> Rule {
        Rule {
            algorithm: Algorithm::Log,
            units: rate.units,
            window_us: rate.window_us,
            precision_us,
        }
    }
}

/// The divisors of a window next to a length that does not divide it, both in whole milliseconds,
/// given and found in microseconds. The window is whole milliseconds itself.
pub fn nearest_divisors(window_us: u64, wanted_us: u64) -> (u64, u64) {
    let (window, wanted) = (window_us / 1_000, (wanted_us / 1_000).max(1));
    let (mut below, mut above) = (1, window.max(1));
    let mut small = 1;
    while small * small <= window {
        if window.is_multiple_of(small) {
            for divisor in [small, window / small] {
                if divisor <= wanted {
                    below = below.max(divisor);
                }
                if divisor >= wanted {
                    above = above.min(divisor);
                }
            }
        }
        small += 1;
    }
    (below * 1_000, above * 1_000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rate::{MAX_UNITS, MAX_WINDOW_US};
    use super::*;

    fn precision(text: &str) -> u64 {
        Rule::by_size(Rate::parse(text).unwrap()).precision_us
    }

    #[test]
    fn small_limits_are_exact_and_large_ones_bounded() {
        assert_eq!(precision("1000/d"), 1);
        assert_eq!(precision("1001/s"), 1_000);
        assert_eq!(precision("6000/min"), 60_000);
        assert_eq!(precision("1_000_000/h"), 3_600_000);
        assert_eq!(precision("100_000/ms"), 1);
    }

    #[test]
    fn divisors_beside_a_length_are_found() {
        let near = |window_ms: u64, wanted_ms: u64| {
            let (below, above) = nearest_divisors(window_ms * 1_000, wanted_ms * 1_000);
            (below / 1_000, above / 1_000)
        };
        assert_eq!(near(60_000, 7_000), (6_000, 7_500));
        assert_eq!(near(60_000, 90_000), (60_000, 60_000));
        assert_eq!(near(7, 3), (1, 7));
        assert_eq!(near(1, 5), (1, 1));
    }

    proptest! {
        #[test]
        fn a_precision_divides_its_window(units in 1..=MAX_UNITS, ms in 1..=MAX_WINDOW_US / 1_000) {
            let rule = Rule::by_size(Rate { units, window_us: ms * 1_000 });
            prop_assert!(rule.window_us.is_multiple_of(rule.precision_us));
            let entries = units.min(rule.window_us / rule.precision_us + 2);
            prop_assert!(entries <= PIECES + 2);
        }
    }
}
