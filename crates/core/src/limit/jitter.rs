//! What is added to `Retry-After`, so that denied clients come back at different times.

use std::time::Duration;

use super::rate::parse_duration;

/// `[deny] jitter`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// Of the wait, percent; 1 to 100.
    Percent(u8),
    UpTo(Duration),
}

impl Jitter {
    pub fn parse(text: &str) -> Result<Jitter, &'static str> {
        const WANTED: &str = "write for example `10%` or `5s`; at most `100%` or `1h`";
        const LONGEST: Duration = Duration::from_secs(3600);
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.trim_end().parse().ok();
            let percent = percent.filter(|percent| (1..=100).contains(percent));
            return percent.map(Jitter::Percent).ok_or(WANTED);
        }
        let time = parse_duration(text).ok();
        let time = time.filter(|time| (Duration::from_millis(1)..=LONGEST).contains(time));
        time.map(Jitter::UpTo).ok_or(WANTED)
    }

    /// The wait with its jitter, microseconds. It is never less than `wait_us`, and uniform if
    /// `random` is.
    pub fn add_to(self, wait_us: u64, random: u64) -> u64 {
        let bound_us = match self {
            Jitter::Percent(percent) => wait_us / 100 * u64::from(percent),
            Jitter::UpTo(time) => u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        };
        let added = (u128::from(bound_us) * u128::from(random)) >> 64;
        wait_us.saturating_add(u64::try_from(added).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_or_a_time_is_read() {
        assert_eq!(Jitter::parse("10%"), Ok(Jitter::Percent(10)));
        assert_eq!(
            Jitter::parse("5s"),
            Ok(Jitter::UpTo(Duration::from_secs(5)))
        );
        for wrong in ["", "0%", "101%", "-1%", "10", "0s", "2h", "ten%"] {
            assert!(Jitter::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_wait_grows_by_at_most_the_bound() {
        let draws = [0, 1, u64::MAX / 2, u64::MAX];
        let waits = |jitter: Jitter, wait_us| draws.map(|random| jitter.add_to(wait_us, random));
        let tenth = waits(Jitter::Percent(10), 1_000_000);
        assert_eq!(tenth, [1_000_000, 1_000_000, 1_049_999, 1_099_999]);
        let second = waits(Jitter::UpTo(Duration::from_secs(1)), 7);
        assert_eq!(second, [7, 7, 500_006, 1_000_006]);
        assert_eq!(Jitter::Percent(100).add_to(u64::MAX, u64::MAX), u64::MAX);
    }
}
