//! Rates, durations and sizes as people write them (`100/min`, `25ms`, `64KiB`), and how precisely
//! a log counts.
//!
//! It must never guess: it refuses a unit that could mean two things. Every refusal says what to
//! write instead.
//!
//! A log of precision `q` holds at most `min(L, W / q + 2)` entries of 8 bytes for each key. It
//! never admits more than its rate, whatever `q` is. A coarse log may count a unit up to `q` too
//! long.

use std::fmt;
use std::time::Duration;

use super::calendar::{CalendarUnit, MAX_COUNT as MAX_CALENDAR_UNITS};
use super::{Algorithm, Rule};

/// The largest count of a sliding rate, units.
pub const MAX_UNITS: u64 = u32::MAX as u64;
/// The shortest window, microseconds: one millisecond.
pub const MIN_WINDOW_US: u64 = 1_000;
/// The longest window, microseconds: 366 days.
pub const MAX_WINDOW_US: u64 = 366 * 86_400_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units per window; 1 to [`MAX_UNITS`], per calendar window to [`MAX_CALENDAR_UNITS`].
    pub units: u64,
    /// The window's length, microseconds; whole milliseconds, [`MIN_WINDOW_US`] to
    /// [`MAX_WINDOW_US`]. The longest length of a calendar window.
    pub window_us: u64,
    /// The unit of a calendar window. `None` for a window that slides.
    pub calendar: Option<CalendarUnit>,
}

/// The meaning of `day` in a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DayWord {
    /// 24 hours that slide.
    Sliding,
    /// A day of the limit's calendar.
    Calendar,
}

impl DayWord {
    /// Its meaning beside these rules.
    pub fn for_rules(rules: &[Rule]) -> DayWord {
        let is_day = |rule: &Rule| rule.calendar_unit() == Some(CalendarUnit::Day);
        match rules.iter().any(is_day) {
            true => DayWord::Calendar,
            false => DayWord::Sliding,
        }
    }
}

/// A setting that is a rate or the word `unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateText {
    Limited(Rate),
    Unlimited,
}

/// Why a text is no rate, length of time or size, and what to write instead. The configuration's
/// author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError(String);

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantityError {}

fn error<T>(message: impl Into<String>) -> Result<T, QuantityError> {
    Err(QuantityError(message.into()))
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
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        Self::parse_with(text, DayWord::Sliding)
    }

    pub fn parse_with(text: &str, day: DayWord) -> Result<Self, QuantityError> {
        let text = text.trim();
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        Rate::parse_with(text, day).map(Self::Limited)
    }
}

impl Rate {
    pub fn from_rule(rule: Rule) -> Rate {
        Rate {
            units: rule.units,
            window_us: rule.window_us,
            calendar: rule.calendar_unit(),
        }
    }

    /// So many units in any interval of this length, microseconds.
    pub const fn sliding(units: u64, window_us: u64) -> Rate {
        Rate {
            units,
            window_us,
            calendar: None,
        }
    }

    /// So many units in each window of a calendar.
    pub const fn per(units: u64, unit: CalendarUnit) -> Rate {
        Rate {
            units,
            window_us: unit.longest_us(),
            calendar: Some(unit),
        }
    }

    /// The window as a rate writes it: `min`, `10s`, `month`.
    pub fn window_text(&self) -> String {
        let text = self.to_string();
        let window = text.split_once('/').map(|(_, window)| window);
        window.unwrap_or_default().to_owned()
    }

    /// Reads a count, `/`, and a window. The window's number may be left out if it is 1.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        Self::parse_with(text, DayWord::Sliding)
    }

    pub fn parse_with(text: &str, day: DayWord) -> Result<Self, QuantityError> {
        let text = text.trim();
        if text.is_empty() {
            return error("a rate is missing; write for example `100/min`");
        }
        let parts = text.split_once('/');
        let Some((count, window)) = parts.filter(|(_, window)| !window.contains('/')) else {
            return error("a rate is a count, `/` and a window, for example `100/min` or `30/10s`");
        };
        let count = count.trim_end();
        if !is_digits(count) {
            return error(format!("`{count}` is not a whole number of requests"));
        }
        let unit = calendar_unit(window, day)?;
        let most = match unit {
            Some(_) => MAX_CALENDAR_UNITS,
            None => MAX_UNITS,
        };
        let units = whole(count).filter(|units| (1..=most).contains(units));
        let Some(units) = units else {
            return error(format!("the count must be from 1 to {most}"));
        };
        if let Some(unit) = unit {
            return Ok(Rate::per(units, unit));
        }
        let window_us = microseconds(window, Some(1))
            .or_else(|QuantityError(wrong)| error(format!("in the window: {wrong}")))?;
        if !(MIN_WINDOW_US..=MAX_WINDOW_US).contains(&window_us) {
            return error("the window must be from 1 ms to 366 days");
        }
        Ok(Rate::sliding(units, window_us))
    }
}

impl Rule {
    /// The rule of a rate without a configured algorithm: a log, exact up to 1,000 units, or a
    /// calendar window.
    pub fn by_size(rate: Rate) -> Rule {
        if rate.calendar.is_some() {
            return Rule {
                algorithm: Algorithm::Calendar,
                ..Rule::log(rate, 1)
            };
        }
        // Windows are whole milliseconds, so a thousandth of one is whole microseconds.
        let precision_us = if rate.units <= EXACT_UNITS {
            1
        } else {
            rate.window_us / PIECES
        };
        Rule::log(rate, precision_us)
    }

    /// The unit of a calendar window. `None` for all other rules.
    pub fn calendar_unit(&self) -> Option<CalendarUnit> {
        match self.algorithm {
            Algorithm::Calendar => CalendarUnit::of_longest(self.window_us),
            Algorithm::Log | Algorithm::Counter | Algorithm::Slots => None,
        }
    }

    /// So many requests at once. A holder that does not renew its slots loses them after `hold_us`
    /// microseconds.
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
        if let Some(unit) = self.calendar {
            return write!(f, "{}/{}", self.units, unit.word());
        }
        let window = span_text(self.window_us);
        let one = window.strip_prefix('1').unwrap_or_default();
        match one.starts_with(|first: char| first.is_alphabetic()) {
            true => write!(f, "{}/{one}", self.units),
            false => write!(f, "{}/{window}", self.units),
        }
    }
}

/// The shortest text of a time, microseconds, in one unit: `90s`, `1h`.
pub fn span_text(span_us: u64) -> String {
    let mut units = SHORT.iter();
    let longest = units.find(|(_, us)| span_us.is_multiple_of(*us));
    let (unit, us) = longest.copied().unwrap_or(("us", 1));
    format!("{}{unit}", span_us / us)
}

const UNITS: [(&str, u64); 22] = [
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

/// The units that only a calendar has.
const CALENDAR_UNITS: [(&str, CalendarUnit); 6] = [
    ("week", CalendarUnit::Week),
    ("weeks", CalendarUnit::Week),
    ("month", CalendarUnit::Month),
    ("months", CalendarUnit::Month),
    ("year", CalendarUnit::Year),
    ("years", CalendarUnit::Year),
];

const DAY_UNITS: [&str; 3] = ["d", "day", "days"];

/// Every spelling of a unit of time.
pub fn time_units() -> Vec<&'static str> {
    UNITS.iter().map(|(name, _)| *name).collect()
}

/// Every spelling of a unit that only a calendar has.
pub fn calendar_units() -> Vec<&'static str> {
    CALENDAR_UNITS.iter().map(|(name, _)| *name).collect()
}

/// The unit of a window of a calendar. `None` for a window that slides, or a wrong one.
fn calendar_unit(window: &str, day: DayWord) -> Result<Option<CalendarUnit>, QuantityError> {
    let Some((number, word)) = split_number(window.trim()) else {
        return Ok(None);
    };
    let number = match number {
        "" => 1,
        digits => whole(digits).unwrap_or(0),
    };
    if day == DayWord::Calendar && number == 1 && DAY_UNITS.contains(&word) {
        return Ok(Some(CalendarUnit::Day));
    }
    let mut units = CALENDAR_UNITS.iter();
    match units.find(|(name, _)| *name == word) {
        Some((_, unit)) if number == 1 => Ok(Some(*unit)),
        Some((_, unit)) => error(format!(
            "a calendar window is one {word}: `{number}{name}` is no window; write `/{word}`, or \
             days that slide, such as `/{days}d`",
            word = unit.word(),
            name = word,
            days = number.max(1) * sliding_days(*unit),
        )),
        None => Ok(None),
    }
}

/// About so many days.
const fn sliding_days(unit: CalendarUnit) -> u64 {
    match unit {
        CalendarUnit::Day => 1,
        CalendarUnit::Week => 7,
        CalendarUnit::Month => 30,
        CalendarUnit::Year => 365,
    }
}

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
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    microseconds(text, None).map(Duration::from_micros)
}

/// The same, and `10m` is 10 minutes: for settings where nobody means milliseconds by it.
pub fn parse_minutes(text: &str) -> Result<Duration, QuantityError> {
    let minutes = text.trim().strip_suffix('m').map(str::trim_end);
    match minutes.filter(|number| number.ends_with(|c: char| c.is_ascii_digit())) {
        Some(number) => parse_duration(&format!("{number}min")),
        None => parse_duration(text),
    }
}

/// Reads bytes: `1024`, `64KiB`, `10MB`. `K`, `M` and `G` alone are refused: some people mean 1000
/// with them, others 1024.
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    let text = text.trim();
    if text.is_empty() {
        return error("a size is missing; write for example `64KiB`");
    }
    let no_number = || QuantityError(format!("`{text}` is not a whole number of bytes that fits"));
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
        let nearest = names().find(is_initial).or_else(|| nearest(unit, names()));
        let hint = unit_hint(nearest, "B KiB MiB GiB KB MB GB");
        return error(format!("`{unit}` is not a unit of size; {hint}"));
    };
    count.checked_mul(*bytes).ok_or_else(no_number)
}

/// Reads a number and a unit as microseconds. `default` is the number where only a unit stands.
fn microseconds(text: &str, default: Option<u64>) -> Result<u64, QuantityError> {
    let text = text.trim();
    if text.is_empty() {
        return error("a length of time is missing; write for example `10s`");
    }
    let no_number = || {
        let message = format!("`{text}` is not a whole number and a unit, such as `10s`");
        QuantityError(message)
    };
    let (number, unit) = split_number(text).ok_or_else(no_number)?;
    let count = match (number, default) {
        ("", Some(default)) => default,
        ("", None) => return error("the number is missing; write for example `10s`"),
        (number, _) => whole(number).ok_or_else(no_number)?,
    };
    match unit {
        "" => return error("the unit is missing: one of `ms s min h d`"),
        "m" => return error("`m` may be minutes or milliseconds: `min` or `ms`?"),
        _ => {}
    }
    let Some((_, us)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let nearest = nearest(unit, UNITS.iter().map(|(name, _)| *name));
        if CALENDAR_UNITS.iter().any(|(name, _)| *name == unit) {
            return error(format!("`{unit}` has no fixed length; write days: `30d`"));
        }
        let hint = unit_hint(nearest, "ms s min h d");
        return error(format!("`{unit}` is not a unit of time; {hint}"));
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
fn whole(text: &str) -> Option<u64> {
    if !is_digits(text) {
        return None;
    }
    text.bytes()
        .filter(|byte| *byte != b'_')
        .try_fold(0_u64, |sum, digit| {
            sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        })
}

fn is_digits(text: &str) -> bool {
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

#[cfg(test)]
mod quantity_tests;
#[cfg(test)]
mod tests;
