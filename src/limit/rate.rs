//! Rates as people write them (`100/min`, `30/10s`, `unlimited`), and how precisely a log counts.
//!
//! It must never guess: it refuses a unit that could mean two things. Every refusal says what to
//! write instead.
//!
//! A log of precision `q` holds at most `min(L, W / q + 2)` entries of 8 bytes for each key. It
//! never admits more than its rate, whatever `q` is. A coarse log may count a unit up to `q` too
//! long.

mod quantity;

use std::fmt;

use super::{Algorithm, Rule};

pub use quantity::{DurationError, SizeError, parse_duration, parse_size};
use quantity::{is_digits, microseconds, whole};

/// The largest count a rate may have, units.
pub const MAX_UNITS: u64 = u32::MAX as u64;
/// The shortest window, microseconds: one millisecond.
pub const MIN_WINDOW_US: u64 = 1_000;
/// The longest window, microseconds: 366 days.
pub const MAX_WINDOW_US: u64 = 366 * 86_400_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units per window; 1 to [`MAX_UNITS`].
    pub units: u64,
    /// The window's length, microseconds; whole milliseconds, [`MIN_WINDOW_US`] to
    /// [`MAX_WINDOW_US`].
    pub window_us: u64,
}

/// A setting that is a rate or the word `unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateText {
    Limited(Rate),
    Unlimited,
}

/// A text that is not a rate. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateError {
    Empty,
    /// There is no `/`, or more than one.
    NoSlash,
    /// The text before the `/` is not a whole number.
    Count(String),
    /// The count is not between 1 and [`MAX_UNITS`].
    CountRange,
    /// The text after the `/` is not a length of time.
    Window(DurationError),
    /// The window is not between [`MIN_WINDOW_US`] and [`MAX_WINDOW_US`].
    WindowRange,
}

/// Up to this many units a log remembers every admission to the microsecond: 8 KB for a key.
const EXACT_UNITS: u64 = 1_000;
/// A log of more units cuts its window into this many pieces: at most 8 KB for a key, and a unit
/// counts at most a thousandth of the window too long.
const PIECES: u64 = 1_000;

/// The units that [`Rate`] is written with, longest first.
const SHORT: [(&str, u64); 5] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
];

impl RateText {
    /// Reads `100/min`, `30/10s`, `10_000/day` or `unlimited`.
    pub fn parse(text: &str) -> Result<Self, RateError> {
        let text = text.trim();
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        Rate::parse(text).map(Self::Limited)
    }
}

impl Rate {
    pub(super) fn of(rule: Rule) -> Rate {
        Rate {
            units: rule.units,
            window_us: rule.window_us,
        }
    }

    /// Reads a count, `/`, and a window. The window's number may be left out if it is 1.
    pub fn parse(text: &str) -> Result<Self, RateError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(RateError::Empty);
        }
        let (count, window) = text.split_once('/').ok_or(RateError::NoSlash)?;
        if window.contains('/') {
            return Err(RateError::NoSlash);
        }
        let count = count.trim_end();
        let units = match whole(count) {
            Some(units) => units,
            None if is_digits(count) => return Err(RateError::CountRange),
            None => return Err(RateError::Count(count.to_owned())),
        };
        if !(1..=MAX_UNITS).contains(&units) {
            return Err(RateError::CountRange);
        }
        let window_us = microseconds(window, Some(1)).map_err(RateError::Window)?;
        if !(MIN_WINDOW_US..=MAX_WINDOW_US).contains(&window_us) {
            return Err(RateError::WindowRange);
        }
        Ok(Self { units, window_us })
    }
}

impl Rule {
    /// The rule of a rate without a configured algorithm: a log, exact up to 1,000 units.
    pub fn by_size(rate: Rate) -> Rule {
        // Windows are whole milliseconds, so a thousandth of one is whole microseconds.
        let precision_us = if rate.units <= EXACT_UNITS {
            1
        } else {
            rate.window_us / PIECES
        };
        Rule::log(rate, precision_us)
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

/// Finds the divisors of a window next below and next above a wanted length, microseconds. Both
/// lengths are whole milliseconds.
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

impl fmt::Display for Rate {
    /// The shortest text that reads back as this rate: `100/min`, `30/10s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = SHORT
            .iter()
            .find(|(_, us)| self.window_us.is_multiple_of(*us));
        let (unit, us) = longest.copied().unwrap_or(("us", 1));
        match self.window_us / us {
            1 => write!(f, "{}/{unit}", self.units),
            count => write!(f, "{}/{count}{unit}", self.units),
        }
    }
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a rate is missing; write for example `100/min`"),
            Self::NoSlash => f.write_str(
                "a rate is a count, `/` and a window, for example `100/min` or `30/10s`",
            ),
            Self::Count(text) => write!(f, "`{text}` is not a whole number of requests"),
            Self::CountRange => write!(f, "the count must be from 1 to {MAX_UNITS}"),
            Self::Window(error) => write!(f, "in the window: {error}"),
            Self::WindowRange => f.write_str("the window must be from 1 ms to 366 days"),
        }
    }
}

impl std::error::Error for RateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Window(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> (u64, u64) {
        let Ok(RateText::Limited(rate)) = RateText::parse(text) else {
            panic!("{text}: {:?}", RateText::parse(text));
        };
        (rate.units, rate.window_us)
    }

    fn error(text: &str) -> RateError {
        RateText::parse(text).unwrap_err()
    }

    #[test]
    fn rates_are_a_count_and_a_window() {
        assert_eq!(rate("100/min"), (100, 60_000_000));
        assert_eq!(rate("30/10s"), (30, 10_000_000));
        assert_eq!(rate("10_000/day"), (10_000, 86_400_000_000));
        assert_eq!(rate(" 5 / 2 hours "), (5, 7_200_000_000));
        assert_eq!(rate("1/ms"), (1, 1_000));
        assert_eq!(rate("4294967295/366d"), (MAX_UNITS, MAX_WINDOW_US));
        assert_eq!(RateText::parse("unlimited"), Ok(RateText::Unlimited));
        for (unit, us) in quantity::UNITS {
            assert_eq!(rate(&format!("1/{unit}")), (1, us));
        }
    }

    #[test]
    fn mistakes_in_rates_are_told_apart() {
        assert_eq!(error(""), RateError::Empty);
        assert_eq!(error("100"), RateError::NoSlash);
        assert_eq!(error("100/min/s"), RateError::NoSlash);
        for count in [
            "", "x", "-1", "1.5", "1__0", "_1", "1_", "100r", "+1", "\u{665}",
        ] {
            assert_eq!(error(&format!("{count}/s")), RateError::Count(count.into()));
        }
        for count in ["0", "4294967296", "99999999999999999999999"] {
            assert_eq!(error(&format!("{count}/s")), RateError::CountRange);
        }
        assert_eq!(error("1/0s"), RateError::WindowRange);
        assert_eq!(error("1/367d"), RateError::WindowRange);
        assert_eq!(error("1/"), RateError::Window(DurationError::Empty));
        assert_eq!(error("1/60"), RateError::Window(DurationError::NoUnit));
        assert_eq!(error("1/m"), RateError::Window(DurationError::Ambiguous));
        assert_eq!(error("1/5m"), RateError::Window(DurationError::Ambiguous));
        assert_eq!(
            error("1/1.5s"),
            RateError::Window(DurationError::Number("1.5s".into()))
        );
        assert_eq!(
            error("1/-5s"),
            RateError::Window(DurationError::Number("-5s".into()))
        );
    }

    #[test]
    fn unknown_units_come_with_the_nearest_known_one() {
        for (unit, nearest) in [
            ("minuts", Some("minutes")),
            ("mn", Some("min")),
            ("Min", Some("min")),
            ("SEC", Some("sec")),
            ("horu", Some("hour")),
            ("us", Some("ms")),
            ("week", None),
            ("month", None),
            ("fortnight", None),
        ] {
            let expected = DurationError::Unit {
                unit: unit.into(),
                nearest,
            };
            assert_eq!(
                error(&format!("1/{unit}")),
                RateError::Window(expected),
                "{unit}"
            );
        }
        let text = error("1/minuts").to_string();
        assert_eq!(
            text,
            "in the window: `minuts` is not a unit of time; did you mean `minutes`?"
        );
    }

    #[test]
    fn rates_are_shown_in_their_shortest_form() {
        for (text, shown) in [
            ("100/60s", "100/min"),
            ("10_000/day", "10000/d"),
            ("30/10s", "30/10s"),
            ("1/90s", "1/90s"),
            ("1/120min", "1/2h"),
            ("1/1500ms", "1/1500ms"),
        ] {
            assert_eq!(Rate::parse(text).unwrap().to_string(), shown);
        }
    }

    proptest! {
        #[test]
        fn a_rate_reads_back_as_shown(units in 1..=MAX_UNITS, ms in 1..=MAX_WINDOW_US / 1_000) {
            let rate = Rate { units, window_us: ms * 1_000 };
            prop_assert_eq!(Rate::parse(&rate.to_string()), Ok(rate));
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,20}") {
            let _ = RateText::parse(&text);
        }
    }

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
