//! Figures as people read them: counts, shares, times, and small pictures of the last minute.
//!
//! Pure.

pub(super) use crate::replay::report::grouped as count;
use crate::telemetry::stamp;

/// `12 %`
pub(super) fn share(part: f64) -> String {
    format!("{:.0} %", part.clamp(0.0, 1.0) * 100.0)
}

/// `1.2 ms`
pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.099_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

/// `3 h 12 min`
pub(super) fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, _) if minutes < 10 && !whole.is_multiple_of(60) => {
            format!("{minutes} min {} s", whole % 60)
        }
        (0, 0, _) => format!("{minutes} min"),
        (0, _, 0) => format!("{hours} h"),
        (0, ..) => format!("{hours} h {minutes} min"),
        (1, 0, _) => "1 day".to_owned(),
        (_, 0, _) => format!("{days} days"),
        (1, ..) => format!("1 day {hours} h"),
        _ => format!("{days} days {hours} h"),
    }
}

/// `2026-11-20 22:37:06Z`
pub(super) fn date(seconds: f64) -> String {
    let text = stamp::rfc3339((seconds.max(0.0) * 1e6) as u64);
    let (day, time) = (text.get(..10), text.get(11..19));
    format!("{} {}Z", day.unwrap_or_default(), time.unwrap_or_default())
}

/// `22:37:06`, in UTC.
pub(super) fn time(seconds: f64) -> String {
    let text = stamp::rfc3339((seconds.max(0.0) * 1e6) as u64);
    text.get(11..19).unwrap_or_default().to_owned()
}

/// A column for each of the last `width` values, up to the highest of them. A value that is not 0
/// is always seen.
pub(super) fn sparkline(values: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = &values[values.len().saturating_sub(width)..];
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let bar = |value: &u64| match *value {
        0 => ' ',
        value => {
            let eighths = (u128::from(value) * 8).div_ceil(u128::from(most));
            BARS[usize::try_from(eighths).unwrap_or(8).clamp(1, 8) - 1]
        }
    };
    let missing = " ".repeat(width.saturating_sub(values.len()));
    missing + &values.iter().map(bar).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_exact_enough() {
        assert_eq!([count(0), count(999), count(1000)], ["0", "999", "1,000"]);
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(
            [share(0.0), share(0.127), share(7.0)],
            ["0 %", "13 %", "100 %"]
        );
        assert_eq!(latency(0.000_4), "400 us");
        assert_eq!(latency(0.001_23), "1.2 ms");
        assert_eq!(latency(0.25), "250 ms");
        assert_eq!(latency(0.9996), "1.0 s");
        assert_eq!(date(1_700_000_000.9), "2023-11-14 22:13:20Z");
        assert_eq!(time(1_700_000_000.9), "22:13:20");
    }

    #[test]
    fn spans_are_told_in_two_words_at_most() {
        for (seconds, text) in [
            (0.9, "0 s"),
            (59.0, "59 s"),
            (60.0, "1 min"),
            (61.0, "1 min 1 s"),
            (3599.0, "59 min"),
            (3600.0, "1 h"),
            (11_520.0, "3 h 12 min"),
            (86_400.0, "1 day"),
            (900_000.0, "10 days 10 h"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn what_happened_once_is_seen_beside_what_happened_often() {
        assert_eq!(sparkline(&[0, 1, 500, 1000], 6), "   ▁▄█");
        assert_eq!(sparkline(&[9, 8, 0, 0], 2), "  ");
        assert_eq!(sparkline(&[u64::MAX, 1], 2), "█▁");
        assert_eq!(sparkline(&[], 3), "   ");
    }
}
