//! Arguments of `tidegate limits`: hashes, rates and durations.

use std::ffi::OsString;
use std::path::Path;

use crate::cli::output::CommandError;
use crate::limit::key::{KeyHashPrefix, SHOWN};
use crate::limit::rate::parse_duration;
use crate::limit::{Limit, Rule};
use crate::store::overrides;

/// The longest `--for`: ten years.
const LONGEST_US: u128 = 10 * 366 * 86_400_000_000;

/// Long options that look like a hash.
const OPTIONS: [&str; 3] = ["--config", "--remove", "--version"];

/// Marks hashes that begin with `-` with `tag=`, so that they are not taken for options. One of 64
/// hashes begins so.
pub(in crate::cli) fn with_hashes(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_none_or(|command| command != "limits") {
        return words;
    }
    for word in &mut words[2..] {
        let Some(text) = word.to_str() else { continue };
        let is_option = match text.strip_prefix("-c") {
            Some(file) => Path::new(file).exists(),
            None => OPTIONS.contains(&text),
        };
        let is_hash = KeyHashPrefix::parse(text).is_some_and(|one| one.text().len() >= SHOWN);
        if text.starts_with('-') && is_hash && !is_option {
            *word = format!("tag={text}").into();
        }
    }
    words
}

/// Reads the rates of an override; none for `unlimited`.
pub(super) fn rules(text: &str, limit: &Limit) -> Result<Vec<Rule>, CommandError> {
    let rules = overrides::rules(text, limit);
    rules.map_err(|error| CommandError::wrong_use(error.message).maybe_help(error.help))
}

/// Reads `--for`, microseconds; 0 if there is none.
pub(super) fn lasts_us(text: Option<&str>) -> Result<u64, CommandError> {
    let Some(text) = text else { return Ok(0) };
    let wrong = |why: &str| {
        CommandError::wrong_use(format!("`--for {text}`: {why}")).help(
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

    fn message_of(error: &CommandError) -> &str {
        let line = error.text.lines().next().unwrap();
        line.strip_prefix("error: ").unwrap()
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
            assert_eq!((error.code, message_of(&error)), (2, message));
        }
        let slots = limit(&[(Algorithm::Slots, 5, 60_000_000, 1)]);
        let error = rules("5/s", &slots).unwrap_err();
        assert_eq!(
            message_of(&error),
            "`5/s` is not a number of requests under way"
        );
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
            assert!(message_of(&error).contains(why), "{}", error.text);
        }
    }

    #[test]
    fn a_hash_that_begins_with_a_dash_is_no_option() {
        let read = |words: &str| {
            let words = words.split(' ').map(OsString::from);
            let read: Vec<String> = with_hashes(words)
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect();
            read.join(" ")
        };
        let show = "tidegate limits show login";
        assert_eq!(
            read(&format!("{show} -Rqs-YKE --json")),
            format!("{show} tag=-Rqs-YKE --json")
        );
        assert_eq!(
            read(&format!("{show} -c234567")),
            format!("{show} tag=-c234567")
        );
        assert_eq!(
            read(&format!("{show} --Rqs-YK")),
            format!("{show} tag=--Rqs-YK")
        );
        for words in [
            "tidegate limits show login 7 --config a.toml",
            "tidegate limits block 7 --remove",
            "tidegate tap -Rqs-YKE",
        ] {
            assert_eq!(read(words), words);
        }
    }
}
