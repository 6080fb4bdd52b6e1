//! Rates and the precision of logs.

use proptest::prelude::*;

use super::*;

fn rate(text: &str) -> (u64, u64) {
    let Ok(RateText::Limited(rate)) = RateText::parse(text) else {
        panic!("{text}: {:?}", RateText::parse(text));
    };
    (rate.units, rate.window_us)
}

fn error(text: &str) -> String {
    RateText::parse(text).unwrap_err().to_string()
}

#[test]
fn rates_are_a_count_and_a_window() {
    assert_eq!(rate("100/min"), (100, 60_000_000));
    assert_eq!(rate("30/10s"), (30, 10_000_000));
    assert_eq!(rate("10_000/day"), (10_000, 86_400_000_000));
    assert_eq!(rate(" 5 / 2 hours "), (5, 7_200_000_000));
    assert_eq!(rate("1/ms"), (1, 1_000));
    assert_eq!(rate("4294967295/366d"), (MAX_UNITS, MAX_WINDOW_US));
    assert_eq!(RateText::parse("unlimited"), Ok(RateText::Unlimited));
    for (unit, us) in UNITS {
        assert_eq!(rate(&format!("1/{unit}")), (1, us));
    }
}

#[test]
fn mistakes_in_rates_are_told_apart() {
    let no_slash = "a rate is a count, `/` and a window, for example `100/min` or `30/10s`";
    assert_eq!(error(""), "a rate is missing; write for example `100/min`");
    assert_eq!(error("100"), no_slash);
    assert_eq!(error("100/min/s"), no_slash);
    for count in [
        "", "x", "-1", "1.5", "1__0", "_1", "1_", "100r", "+1", "\u{665}",
    ] {
        let message = format!("`{count}` is not a whole number of requests");
        assert_eq!(error(&format!("{count}/s")), message);
    }
    for count in ["0", "4294967296", "99999999999999999999999"] {
        let message = "the count must be from 1 to 4294967295";
        assert_eq!(error(&format!("{count}/s")), message);
    }
    for (text, message) in [
        ("1/0s", "the window must be from 1 ms to 366 days"),
        ("1/367d", "the window must be from 1 ms to 366 days"),
        (
            "1/",
            "in the window: a length of time is missing; write for example `10s`",
        ),
        (
            "1/60",
            "in the window: the unit is missing: one of `ms s min h d`",
        ),
        (
            "1/m",
            "in the window: `m` may be minutes or milliseconds: `min` or `ms`?",
        ),
        (
            "1/5m",
            "in the window: `m` may be minutes or milliseconds: `min` or `ms`?",
        ),
        (
            "1/1.5s",
            "in the window: `1.5s` is not a whole number and a unit, such as `10s`",
        ),
        (
            "1/-5s",
            "in the window: `-5s` is not a whole number and a unit, such as `10s`",
        ),
    ] {
        assert_eq!(error(text), message, "{text}");
    }
}

#[test]
fn unknown_units_come_with_the_nearest_known_one() {
    for (unit, nearest) in [
        ("minuts", Some("minutes")),
        ("mn", Some("min")),
        ("Min", Some("min")),
        ("SEC", Some("sec")),
        ("horu", Some("hour")),
        ("us", Some("ms")),
        ("fortnight", None),
    ] {
        let hint = nearest.map_or("there are `ms s min h d`".to_owned(), |near: &str| {
            format!("did you mean `{near}`?")
        });
        let message = format!("in the window: `{unit}` is not a unit of time; {hint}");
        assert_eq!(error(&format!("1/{unit}")), message);
    }
    let text = error("1/minuts");
    assert_eq!(
        text,
        "in the window: `minuts` is not a unit of time; did you mean `minutes`?"
    );
}

#[test]
fn weeks_months_and_years_are_those_of_a_calendar() {
    for (text, unit) in [
        ("1/week", CalendarUnit::Week),
        ("1/month", CalendarUnit::Month),
        ("1/1months", CalendarUnit::Month),
        ("1/years", CalendarUnit::Year),
    ] {
        assert_eq!(Rate::parse(text), Ok(Rate::per(1, unit)), "{text}");
    }
    for text in ["1/day", "1/d", "1/1day"] {
        assert_eq!(Rate::parse(text), Ok(Rate::sliding(1, 86_400_000_000)));
        let day = Rate::parse_with(text, DayWord::Calendar);
        assert_eq!(day, Ok(Rate::per(1, CalendarUnit::Day)), "{text}");
    }
    for text in ["1/24h", "1/30d", "1/2day"] {
        let sliding = Rate::parse_with(text, DayWord::Calendar);
        assert_eq!(sliding, Rate::parse(text), "{text}");
        assert_eq!(sliding.unwrap().calendar, None, "{text}");
    }
    assert!(error("1/3month").contains("write `/month`, or days that slide, such as `/90d`"));
    assert!(error("1/0week").contains("a calendar window is one week"));
    let most = format!("{MAX_CALENDAR_UNITS}/month");
    assert_eq!(Rate::parse(&most).unwrap().to_string(), most);
    assert!(
        error(&format!("{}/month", MAX_CALENDAR_UNITS + 1))
            .contains(&MAX_CALENDAR_UNITS.to_string())
    );
    assert!(error("4294967296/h").contains("4294967295"));
    let wrong = parse_duration("1month").unwrap_err().to_string();
    assert!(wrong.contains("no fixed length"), "{wrong}");
}

#[test]
fn rates_are_shown_in_their_shortest_form() {
    for (text, shown) in [
        ("100/60s", "100/min"),
        ("10_000/day", "10000/d"),
        ("30/10s", "30/10s"),
        ("1/90s", "1/90s"),
        ("1/120min", "1/2h"),
        ("1/1500ms", "1/1500ms"),
    ] {
        assert_eq!(Rate::parse(text).unwrap().to_string(), shown);
    }
}

proptest! {
    #[test]
    fn a_rate_reads_back_as_shown(units in 1..=MAX_UNITS, ms in 1..=MAX_WINDOW_US / 1_000) {
        let rate = Rate::sliding(units, ms * 1_000);
        prop_assert_eq!(Rate::parse(&rate.to_string()), Ok(rate));
    }

    #[test]
    fn nothing_panics(text in "\\PC{0,20}") {
        let _ = RateText::parse(&text);
    }
}

fn precision(text: &str) -> u64 {
    Rule::by_size(Rate::parse(text).unwrap()).precision_us
}

#[test]
fn small_limits_are_exact_and_large_ones_bounded() {
    assert_eq!(precision("1000/d"), 1);
    assert_eq!(precision("1001/s"), 1_000);
    assert_eq!(precision("6000/min"), 60_000);
    assert_eq!(precision("1_000_000/h"), 3_600_000);
    assert_eq!(precision("100_000/ms"), 1);
}

#[test]
fn divisors_beside_a_length_are_found() {
    let near = |window_ms: u64, wanted_ms: u64| {
        let (below, above) = nearest_divisors(window_ms * 1_000, wanted_ms * 1_000);
        (below / 1_000, above / 1_000)
    };
    assert_eq!(near(60_000, 7_000), (6_000, 7_500));
    assert_eq!(near(60_000, 90_000), (60_000, 60_000));
    assert_eq!(near(7, 3), (1, 7));
    assert_eq!(near(1, 5), (1, 1));
}

proptest! {
    #[test]
    fn a_precision_divides_its_window(units in 1..=MAX_UNITS, ms in 1..=MAX_WINDOW_US / 1_000) {
        let rule = Rule::by_size(Rate::sliding(units, ms * 1_000));
        prop_assert!(rule.window_us.is_multiple_of(rule.precision_us));
        let entries = units.min(rule.window_us / rule.precision_us + 2);
        prop_assert!(entries <= PIECES + 2);
    }
}
