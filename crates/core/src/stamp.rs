//! Dates of log lines, in UTC, from microseconds since the Unix epoch.
//!
//! Pure. The civil calendar is computed as in Howard Hinnant's `civil_from_days`
//! (chrono-Compatible Low-Level Date Algorithms), exact for every date after 1970.

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

struct Civil {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    milli: u64,
}

fn civil(unix_us: u64) -> Civil {
    let (days, of_day) = (unix_us / 86_400_000_000, unix_us % 86_400_000_000);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let seconds = of_day / 1_000_000;
    Civil {
        year: year_of_era + era * 400 + u64::from(month <= 2),
        month,
        day: of_year - (153 * march_month + 2) / 5 + 1,
        hour: seconds / 3600,
        minute: seconds / 60 % 60,
        second: seconds % 60,
        milli: of_day / 1000 % 1000,
    }
}

/// `2026-11-20T22:37:06.123Z` (RFC 3339).
pub fn rfc3339(unix_us: u64) -> String {
    rfc3339_bytes(unix_us).map(char::from).iter().collect()
}

/// The same as ASCII, without an allocation.
pub fn rfc3339_bytes(unix_us: u64) -> [u8; 24] {
    let civil = civil(unix_us);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    put(&mut text[..4], civil.year);
    put(&mut text[5..7], civil.month);
    put(&mut text[8..10], civil.day);
    put(&mut text[11..13], civil.hour);
    put(&mut text[14..16], civil.minute);
    put(&mut text[17..19], civil.second);
    put(&mut text[20..23], civil.milli);
    text
}

/// `20/Nov/2026:22:37:06 +0000`, as in the common log format; ASCII.
pub fn common(unix_us: u64) -> [u8; 26] {
    let civil = civil(unix_us);
    let mut text = *b"00/Jan/0000:00:00:00 +0000";
    put(&mut text[..2], civil.day);
    let month = MONTHS[usize::try_from(civil.month - 1).unwrap_or(0)];
    text[3..6].copy_from_slice(month.as_bytes());
    put(&mut text[7..11], civil.year);
    put(&mut text[12..14], civil.hour);
    put(&mut text[15..17], civil.minute);
    put(&mut text[18..20], civil.second);
    text
}

fn put(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_214_226_123_456), "2026-11-20T22:37:06.123Z");
        let date = common(1_795_214_226_123_456);
        assert_eq!(&date, b"20/Nov/2026:22:37:06 +0000");
    }
}
