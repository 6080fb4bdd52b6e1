//! Dates as logs write them, in UTC, from microseconds since the Unix epoch.
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
    let Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
        milli,
    } = civil(unix_us);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// `20/Nov/2026:22:37:06 +0000`, as in the common log format.
pub fn common(unix_us: u64) -> String {
    let Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
        ..
    } = civil(unix_us);
    let month = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    format!("{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_214_226_123_456), "2026-11-20T22:37:06.123Z");
        assert_eq!(common(1_795_214_226_123_456), "20/Nov/2026:22:37:06 +0000");
    }
}
