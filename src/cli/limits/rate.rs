//! RATE and `--for` on the command line.

use crate::cli::trouble::Trouble;
use crate::limit::rate::parse_duration;
use crate::limit::{Limit, Rule};
use crate::store::overrides;

/// The longest time something may hold and have an end.
const LONGEST_US: u128 = 10 * 366 * 86_400_000_000;

/// What an override puts in the place of a limit's rates; nothing for no limit at all.
pub(super) fn rules(text: &str, limit: &Limit) -> Result<Vec<Rule>, Trouble> {
    overrides::rules(text, limit).map_err(|error| {
        let trouble = Trouble::wrong(error.message);
        match error.help {
            Some(help) => trouble.help(help),
            None => trouble,
        }
    })
}

/// How long something holds, microseconds; 0 until it is removed.
pub(super) fn lasts_us(text: Option<&str>) -> Result<u64, Trouble> {
    let Some(text) = text else { return Ok(0) };
    let wrong = |why: &str| {
        let message = format!("`--for {text}`: {why}");
        Trouble::wrong(message).help(
            "write for example `30min`, `24h` or `7d`; without `--for` it holds until removed",
        )
    };
    let lasts = parse_duration(text).map_err(|error| wrong(&error.to_string()))?;
    match lasts.as_micros() {
        0 => Err(wrong("that has ended already")),
        us if us > LONGEST_US => Err(wrong("at most ten years have an end")),
        us => Ok(u64::try_from(us).unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Key};

    fn limit(rules: &[(Algorithm, u64, u64, u64)]) -> Limit {
        let rule =
            |(algorithm, units, window_us, precision_us): &(Algorithm, u64, u64, u64)| Rule {
                algorithm: *algorithm,
                units: *units,
                window_us: *window_us,
                precision_us: *precision_us,
            };
        let rules: Vec<Rule> = rules.iter().map(rule).collect();
        Limit::new("login", &rules, Key { parts: Vec::new() })
    }

    #[test]
    fn a_rate_is_kept_as_the_limit_keeps_its_own() {
        let minute = limit(&[(Algorithm::Log, 5, 60_000_000, 1_000_000)]);
        let read = |text: &str| {
            let rules = rules(text, &minute).unwrap();
            let plain = rules
                .iter()
                .map(|rule| (rule.units, rule.window_us, rule.precision_us));
            plain.collect::<Vec<_>>()
        };
        assert_eq!(read("50/min"), [(50, 60_000_000, 1_000_000)]);
        assert_eq!(read("1/500ms"), [(1, 500_000, 1)]);
        assert_eq!(
            read("5/s, 9/h"),
            [(5, 1_000_000, 1_000_000), (9, 3_600_000_000, 1_000_000)]
        );
        assert_eq!(read("unlimited"), []);
        let slots = limit(&[(Algorithm::Slots, 5, 60_000_000, 1)]);
        assert_eq!(rules("20", &slots).unwrap()[0].units, 20);
        assert_eq!(rules("20", &slots).unwrap()[0].algorithm, Algorithm::Slots);
        let shown = overrides::rate_text(&rules("20", &slots).unwrap()[0]);
        assert_eq!(rules(&shown, &slots), rules("20", &slots), "{shown}");
    }

    #[test]
    fn wrong_rates_say_what_to_write() {
        let minute = Limit {
            cost: 3,
            ..limit(&[(Algorithm::Counter, 5, 60_000_000, 1)])
        };
        for (text, message) in [
            (
                "50",
                "`50` is not a rate: a rate is a count, `/` and a window, \
                 for example `100/min` or `30/10s`",
            ),
            (
                "5/minuts",
                "`5/minuts` is not a rate: in the window: `minuts` is not a unit of time; \
                 did you mean `minutes`?",
            ),
            (
                "5/min,6/60s",
                "`5/min,6/60s` has two rates over the same window",
            ),
            ("5/s,unlimited", "`unlimited` stands alone"),
            (
                "4294967295/366d",
                "4294967295/366d is too much for `login`, a counter",
            ),
            (
                "2/s",
                "each request costs 3 in `login`: 2 would never let one pass",
            ),
        ] {
            let error = rules(text, &minute).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (2, message));
        }
        let slots = limit(&[(Algorithm::Slots, 5, 60_000_000, 1)]);
        let error = rules("5/s", &slots).unwrap_err();
        assert_eq!(error.message, "`5/s` is not a number of requests under way");
    }

    #[test]
    fn how_long_has_an_end_of_at_most_ten_years() {
        assert_eq!(lasts_us(None), Ok(0));
        assert_eq!(lasts_us(Some("24h")), Ok(86_400_000_000));
        assert_eq!(lasts_us(Some("3660d")), Ok(10 * 366 * 86_400_000_000));
        for (text, why) in [
            ("0s", "that has ended already"),
            ("3661d", "at most ten years have an end"),
            ("5m", "`m` may be minutes or milliseconds"),
        ] {
            let error = lasts_us(Some(text)).unwrap_err();
            assert_eq!(error.code, 2);
            assert!(error.message.contains(why), "{}", error.message);
        }
    }
}
