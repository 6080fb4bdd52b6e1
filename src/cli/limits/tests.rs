//! Hashes, rates and durations as arguments.

use super::*;
use crate::limit::{Algorithm, Key};

fn limit(rules: &[(Algorithm, u64, u64, u64)]) -> Limit {
    let rule = |(algorithm, units, window_us, precision_us): &(Algorithm, u64, u64, u64)| Rule {
        algorithm: *algorithm,
        units: *units,
        window_us: *window_us,
        precision_us: *precision_us,
    };
    let rules: Vec<Rule> = rules.iter().map(rule).collect();
    Limit::new("login", &rules, Key::all_of([]))
}

fn message_of(error: &CommandError) -> &str {
    let line = error.text.lines().next().unwrap();
    line.strip_prefix("error: ").unwrap()
}

#[test]
fn a_rate_is_kept_as_the_limit_keeps_its_own() {
    let minute = limit(&[(Algorithm::Log, 5, 60_000_000, 1_000_000)]);
    let read = |text: &str| {
        let rules = read_rules(text, &minute).unwrap();
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
    assert_eq!(read_rules("20", &slots).unwrap()[0].units, 20);
    assert_eq!(
        read_rules("20", &slots).unwrap()[0].algorithm,
        Algorithm::Slots
    );
    let shown = overrides::rate_text(&read_rules("20", &slots).unwrap()[0]);
    assert_eq!(
        read_rules(&shown, &slots),
        read_rules("20", &slots),
        "{shown}"
    );
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
        let error = read_rules(text, &minute).unwrap_err();
        assert_eq!((error.code, message_of(&error)), (2, message));
    }
    let slots = limit(&[(Algorithm::Slots, 5, 60_000_000, 1)]);
    let error = read_rules("5/s", &slots).unwrap_err();
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
