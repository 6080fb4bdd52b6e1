//! Lengths of time and sizes as people write them: `25ms`, `24h`, `64KiB`.

use std::fmt;
use std::time::Duration;

/// A text that is not a length of time. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurationError {
    Empty,
    NoUnit,
    /// Only a rate may leave the number out, after its `/`.
    NoNumber,
    /// The number is not whole, or too large.
    Number(String),
    Unit {
        unit: String,
        /// The known unit that looks most like it.
        nearest: Option<&'static str>,
    },
    /// `m` may be minutes or milliseconds.
    Ambiguous,
}

/// A text that is not a size. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeError {
    Empty,
    /// The number is missing, not whole, or too large for 64 bits of bytes.
    Number(String),
    Unit {
        unit: String,
        /// The known unit that looks most like it.
        nearest: Option<&'static str>,
    },
}

/// All names of units of time, microseconds.
pub(super) const UNITS: [(&str, u64); 22] = [
    ("ms", 1_000),
    ("msec", 1_000),
    ("msecs", 1_000),
    ("millisecond", 1_000),
    ("milliseconds", 1_000),
    ("s", 1_000_000),
    ("sec", 1_000_000),
    ("secs", 1_000_000),
    ("second", 1_000_000),
    ("seconds", 1_000_000),
    ("min", 60_000_000),
    ("mins", 60_000_000),
    ("minute", 60_000_000),
    ("minutes", 60_000_000),
    ("h", 3_600_000_000),
    ("hr", 3_600_000_000),
    ("hrs", 3_600_000_000),
    ("hour", 3_600_000_000),
    ("hours", 3_600_000_000),
    ("d", 86_400_000_000),
    ("day", 86_400_000_000),
    ("days", 86_400_000_000),
];

/// Units of size, bytes.
const SIZES: [(&str, u64); 8] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads `25ms`, `5s`, `1min`, `24h`. A unit is required, whatever the number.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    microseconds(text, None).map(Duration::from_micros)
}

/// Reads bytes: `1024`, `64KiB`, `10MB`. `K`, `M` and `G` alone are refused: some people mean 1000
/// with them, others 1024.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    let no_number = || SizeError::Number(text.to_owned());
    let (number, unit) = split_number(text).ok_or_else(no_number)?;
    let count = whole(number).ok_or_else(no_number)?;
    if unit.is_empty() {
        return Ok(count);
    }
    let mut sizes = SIZES.iter();
    let Some((_, bytes)) = sizes.find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        let is_initial =
            |name: &&'static str| name.len() == 3 && name[..1].eq_ignore_ascii_case(unit);
        let names = || SIZES.iter().map(|(name, _)| *name);
        return Err(SizeError::Unit {
            unit: unit.to_owned(),
            nearest: names().find(is_initial).or_else(|| nearest(unit, names())),
        });
    };
    count.checked_mul(*bytes).ok_or_else(no_number)
}

/// Reads a number and a unit as microseconds. `default` is the number where only a unit stands.
pub(super) fn microseconds(text: &str, default: Option<u64>) -> Result<u64, DurationError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    let no_number = || DurationError::Number(text.to_owned());
    let (number, unit) = split_number(text).ok_or_else(no_number)?;
    let count = match number {
        "" => default.ok_or(DurationError::NoNumber)?,
        number => whole(number).ok_or_else(no_number)?,
    };
    match unit {
        "" => return Err(DurationError::NoUnit),
        "m" => return Err(DurationError::Ambiguous),
        _ => {}
    }
    let Some((_, us)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(DurationError::Unit {
            unit: unit.to_owned(),
            nearest: nearest(unit, UNITS.iter().map(|(name, _)| *name)),
        });
    };
    count.checked_mul(*us).ok_or_else(no_number)
}

/// Splits `10s` or `10 s` into `10` and `s`. `None` if something else than a unit follows.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_');
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    let unit = rest.trim_start();
    (unit.is_empty() || unit.starts_with(char::is_alphabetic)).then_some((number, unit))
}

/// A whole number, with `_` between digits as in TOML.
pub(super) fn whole(text: &str) -> Option<u64> {
    if !is_digits(text) {
        return None;
    }
    text.bytes()
        .filter(|byte| *byte != b'_')
        .try_fold(0_u64, |sum, digit| {
            sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        })
}

pub(super) fn is_digits(text: &str) -> bool {
    text.split('_')
        .all(|run| !run.is_empty() && run.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The candidate that looks most like `word`, if one is close enough.
fn nearest(word: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let lower = word.to_ascii_lowercase();
    let distance = |name: &str| strsim::osa_distance(&lower, &name.to_ascii_lowercase());
    let (name, distance) = candidates
        .map(|name| (name, distance(name)))
        // Of two equally near names, prefer the one that only lost letters: `mn` is `min`.
        .min_by_key(|&(name, distance)| (distance, !leaves_out(&lower, name)))?;
    // At most one slip for every three letters: a wilder suggestion misleads.
    (distance <= (lower.len() / 3).max(1) && distance < lower.len()).then_some(name)
}

/// Whether `word` is `name` without some of its letters.
fn leaves_out(word: &str, name: &str) -> bool {
    let mut letters = name.chars();
    word.chars().all(|c| letters.any(|letter| letter == c))
}

/// The end of a message about an unknown unit: the nearest unit, or all units.
fn unit_hint(nearest: Option<&str>, known: &str) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("there are `{known}`"),
    }
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a length of time is missing; write for example `10s`"),
            Self::NoUnit => f.write_str("the unit is missing: one of `ms s min h d`"),
            Self::NoNumber => f.write_str("the number is missing; write for example `10s`"),
            Self::Number(text) => write!(
                f,
                "`{text}` is not a whole number and a unit, such as `10s`"
            ),
            Self::Unit { unit, nearest } => {
                let hint = unit_hint(*nearest, "ms s min h d");
                write!(f, "`{unit}` is not a unit of time; {hint}")
            }
            Self::Ambiguous => f.write_str("`m` may be minutes or milliseconds: `min` or `ms`?"),
        }
    }
}

impl std::error::Error for DurationError {}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a size is missing; write for example `64KiB`"),
            Self::Number(text) => write!(f, "`{text}` is not a whole number of bytes that fits"),
            Self::Unit { unit, nearest } => {
                let hint = unit_hint(*nearest, "B KiB MiB GiB KB MB GB");
                write!(f, "`{unit}` is not a unit of size; {hint}")
            }
        }
    }
}

impl std::error::Error for SizeError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_need_a_number_and_a_unit() {
        assert_eq!(parse_duration("25ms"), Ok(Duration::from_millis(25)));
        assert_eq!(parse_duration(" 24 h "), Ok(Duration::from_secs(86_400)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration(""), Err(DurationError::Empty));
        assert_eq!(parse_duration("5"), Err(DurationError::NoUnit));
        assert_eq!(parse_duration("s"), Err(DurationError::NoNumber));
        assert_eq!(parse_duration("5m"), Err(DurationError::Ambiguous));
        let long = "99999999999999d";
        assert_eq!(
            parse_duration(long),
            Err(DurationError::Number(long.into()))
        );
        let unit = DurationError::Unit {
            unit: "h30min".into(),
            nearest: None,
        };
        assert_eq!(parse_duration("1h30min"), Err(unit));
    }

    #[test]
    fn sizes_are_bytes_or_say_of_what() {
        assert_eq!(parse_size("1024"), Ok(1024));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("64 kib"), Ok(65_536));
        assert_eq!(parse_size("10MB"), Ok(10_000_000));
        assert_eq!(parse_size("0B"), Ok(0));
        assert_eq!(parse_size(""), Err(SizeError::Empty));
        for text in ["x", "KiB", "-1", "1.5MB", "99999999999TiB"] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::Number(text.into())),
                "{text}"
            );
        }
        let unit = |unit: &str, nearest| {
            Err(SizeError::Unit {
                unit: unit.into(),
                nearest,
            })
        };
        assert_eq!(parse_size("64K"), unit("K", Some("KiB")));
        assert_eq!(parse_size("1KiBs"), unit("KiBs", Some("KiB")));
        assert_eq!(parse_size("1bits"), unit("bits", None));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,20}") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }
    }
}
