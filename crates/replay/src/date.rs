//! Dates of logs, read as microseconds since the Unix epoch.
//!
//! Days are counted as in Howard Hinnant's `days_from_civil`. Years from 1970 to 9999; a second may
//! be the 60th.

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const DAY_S: i64 = 86_400;
const LAST_S: i64 = 253_402_300_799;

/// Reads a date in any of the forms below.
pub fn read(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    common(text).or_else(|| iso(text)).or_else(|| epoch(text))
}

/// `20/Nov/2026:22:37:06 +0000`
pub fn common(text: &[u8]) -> Option<u64> {
    let [d1, d2, b'/', month @ ..] = text else {
        return None;
    };
    let (month, rest) = month.split_at_checked(3)?;
    let month = MONTHS.iter().position(|known| *known == month)? + 1;
    let rest = rest.strip_prefix(b"/")?;
    let (year, rest) = rest.split_at_checked(4)?;
    let rest = rest.strip_prefix(b":")?;
    let day = number(&[*d1, *d2])?;
    at(days(number(year)?, i64::try_from(month).ok()?, day)?, rest)
}

/// `2026-11-20T22:37:06.123+01:00`, also with a space or `/`, also without a zone (then UTC).
pub fn iso(text: &[u8]) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let [y1, y2, y3, y4, b'-' | b'/', m1, m2, b'-' | b'/', d1, d2] = date else {
        return None;
    };
    let [b'T' | b't' | b' ', rest @ ..] = rest else {
        return None;
    };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    at(
        days(year, number(&[*m1, *m2])?, number(&[*d1, *d2])?)?,
        rest,
    )
}

/// Seconds since the epoch, with a fraction or without. A number too large for seconds is
/// milliseconds, microseconds or nanoseconds.
pub fn epoch(text: &[u8]) -> Option<u64> {
    let us = decimal_us(text)?;
    let last = u64::try_from(LAST_S).ok()? * 1_000_000;
    [1, 1_000, 1_000_000, 1_000_000_000]
        .into_iter()
        .map(|parts| us / parts)
        .find(|us| *us <= u128::from(last))
        .and_then(|us| u64::try_from(us).ok())
}

/// `22:37:06.123`, microseconds since midnight.
pub fn of_day(text: &[u8]) -> Option<u64> {
    let (clock, rest) = text.split_at_checked(8)?;
    let (micros, rest) = fraction(rest)?;
    let seconds = u64::try_from(clock_s(clock)?).ok()?;
    rest.is_empty().then_some(seconds * 1_000_000 + micros)
}

/// A decimal number of seconds, in microseconds: `0.123`, `12`, `1.5e-3`.
pub fn seconds(text: &[u8]) -> Option<u64> {
    u64::try_from(decimal_us(text)?).ok()
}

/// A decimal number in millionths.
fn decimal_us(text: &[u8]) -> Option<u128> {
    if text.is_empty() || text.len() > 32 {
        return None;
    }
    if text.iter().any(|byte| matches!(byte, b'e' | b'E')) {
        let float: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        let us = float * 1e6;
        return (0.0..1e30).contains(&us).then_some(us as u128);
    }
    let dot = text.iter().position(|byte| *byte == b'.');
    let (whole, rest) = text.split_at(dot.unwrap_or(text.len()));
    let mut number: u128 = 0;
    for byte in whole {
        number = number.checked_mul(10)?.checked_add(digit(*byte)?.into())?;
    }
    let (micros, left) = fraction(rest)?;
    (left.is_empty() && !whole.is_empty()).then_some(())?;
    number.checked_mul(1_000_000)?.checked_add(micros.into())
}

/// Reads `.123`, `,123` or nothing as microseconds. Also returns the rest of the text.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let [b'.' | b',', digits @ ..] = text else {
        return Some((0, text));
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit());
    let (digits, rest) = digits.split_at(end.unwrap_or(digits.len()));
    let mut micros = 0;
    for place in 0..6 {
        micros = micros * 10 + digits.get(place).and_then(|byte| digit(*byte)).unwrap_or(0);
    }
    (!digits.is_empty()).then_some((micros, rest))
}

/// Seconds east of UTC.
fn zone_s(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [h1, h2] => (number(&[*h1, *h2])?, 0),
        [h1, h2, m1, m2] | [h1, h2, b':', m1, m2] => (number(&[*h1, *h2])?, number(&[*m1, *m2])?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// `22:37:06`, seconds since midnight.
fn clock_s(text: &[u8]) -> Option<i64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = text else {
        return None;
    };
    let (hour, minute) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
    let second = number(&[*s1, *s2])?;
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let most = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1970..=9999).contains(&year) || !(1..=most).contains(&day) {
        return None;
    }
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// The instant of a day at `22:37:06.123 +0100`.
fn at(days: i64, text: &[u8]) -> Option<u64> {
    let (clock, rest) = text.split_at_checked(8)?;
    let (micros, rest) = fraction(rest)?;
    let zone_s = zone_s(rest.trim_ascii())?;
    let seconds = u64::try_from(days * DAY_S + clock_s(clock)? - zone_s).ok()?;
    Some(seconds * 1_000_000 + micros)
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, byte| {
        Some(number * 10 + i64::try_from(digit(*byte)?).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::telemetry::stamp;

    #[test]
    fn each_form_is_the_same_instant() {
        for text in [
            "20/Nov/2026:22:37:06 +0000",
            "20/Nov/2026:23:37:06 +0100",
            "20/Nov/2026:17:07:06 -0530",
            "2026-11-20T22:37:06Z",
            "2026-11-20T22:37:06+00:00",
            "2026-11-20 22:37:06",
            "2026/11/20 23:37:06 +01",
            "2026-11-20t23:37:06.000000001+0100",
            "1795214226",
            "1795214226.0",
            "1795214226000",
            "1795214226000000",
            "1795214226000000000",
            "1.795214226e9",
        ] {
            let found = read(text.as_bytes());
            assert_eq!(found, Some(1_795_214_226_000_000), "{text}");
        }
        let fine = read(b"20/Nov/2026:22:37:06.25 +0000");
        assert_eq!(fine, Some(1_795_214_226_250_000));
        assert_eq!(read(b"1795214226.250"), Some(1_795_214_226_250_000));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "-",
            "20/Nov/2026",
            "20/Nov/2026:22:37:06 0000",
            "20/Nov/2026:22:37:06 +2500",
            "31/Feb/2026:22:37:06 +0000",
            "00/Nov/2026:22:37:06 +0000",
            "20/nov/2026:22:37:06 +0000",
            "20/Nov/2026:24:37:06 +0000",
            "2026-13-20T22:37:06Z",
            "2026-11-20T22:37Z",
            "1969-12-31T23:59:59Z",
            "1795214226.",
            ".5",
            "1e400",
            "-1",
            "NaN",
        ] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn times_of_day_and_durations() {
        assert_eq!(of_day(b"22:37:06.123"), Some(81_426_123_000));
        assert_eq!(of_day(b"22:37:06.123x"), None);
        assert_eq!(seconds(b"0.25"), Some(250_000));
        assert_eq!(seconds(b"1.5e-3"), Some(1_500));
        assert_eq!(seconds(b"0.x"), None);
    }

    proptest! {
        #[test]
        fn what_we_write_reads_back(s in 0..4_000_000_000_u64, ms in 0..1000_u64) {
            let us = s * 1_000_000;
            prop_assert_eq!(common(&stamp::common(us)), Some(us));
            let us = us + ms * 1000;
            prop_assert_eq!(iso(&stamp::rfc3339_bytes(us)), Some(us));
        }

        #[test]
        fn nothing_panics(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = super::read(&text);
            let _ = of_day(&text);
        }
    }
}
