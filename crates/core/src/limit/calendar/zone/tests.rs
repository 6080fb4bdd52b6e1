//! Boundaries of calendar windows: examples, and every zone of the bundled data.

use jiff::tz::TimeZoneDatabase;

use super::*;

fn zone(name: &str) -> Zone {
    Zone {
        name: name.into(),
        zone: TimeZoneDatabase::bundled().get(name).unwrap(),
    }
}

fn calendar(unit: CalendarUnit, settings: CalendarSettings) -> Calendar {
    Calendar::new(unit, Arc::new(settings))
}

/// A calendar of a zone with a time of day, `HH:MM`.
fn at(unit: CalendarUnit, name: &str, day: &str) -> Calendar {
    let settings = CalendarSettings {
        zone: zone(name),
        day: format!("{day}:00").parse().unwrap(),
        ..CalendarSettings::default()
    };
    calendar(unit, settings)
}

fn us(text: &str) -> u64 {
    let at: Timestamp = text.parse().unwrap();
    u64::try_from(at.as_microsecond()).unwrap()
}

/// The start and the end of the window that holds an instant, as texts.
fn window(calendar: &Calendar, anchor: Option<AnchorDay>, text: &str) -> [String; 2] {
    let span = calendar.span(anchor, us(text));
    [span.start_us, span.end_us].map(|us| calendar.text(us))
}

#[test]
fn a_month_begins_at_midnight_of_its_zone() {
    let berlin = at(CalendarUnit::Month, "Europe/Berlin", "00:00");
    let november = ["2026-11-01T00:00:00+01:00", "2026-12-01T00:00:00+01:00"];
    assert_eq!(window(&berlin, None, "2026-11-26T12:00:00Z"), november);
    assert_eq!(window(&berlin, None, "2026-10-31T23:00:00Z"), november);
    let october = ["2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00"];
    assert_eq!(
        window(&berlin, None, "2026-10-31T22:59:59.999999Z"),
        october
    );
    let span = berlin.span(None, us("2026-10-15T00:00:00Z"));
    assert_eq!(span.end_us - span.start_us, 31 * DAY_US + HOUR_US);
    assert_eq!(span.next_end_us, us("2026-11-30T23:00:00Z"));
}

#[test]
fn an_anchor_beyond_a_month_is_its_last_day_and_never_drifts() {
    let utc = calendar(CalendarUnit::Month, CalendarSettings::default());
    let anchor = AnchorDay::of_month(31);
    for (within, ends) in [
        ("2027-01-31T00:00:00Z", "2027-02-28T00:00:00+00:00"),
        ("2028-02-01T00:00:00Z", "2028-02-29T00:00:00+00:00"),
        ("2027-02-28T00:00:00Z", "2027-03-31T00:00:00+00:00"),
        ("2027-03-31T00:00:00Z", "2027-04-30T00:00:00+00:00"),
        ("2027-04-30T00:00:00Z", "2027-05-31T00:00:00+00:00"),
    ] {
        assert_eq!(window(&utc, anchor, within)[1], ends, "{within}");
    }
}

#[test]
fn a_year_begins_at_a_date_or_on_january_first() {
    let utc = calendar(CalendarUnit::Year, CalendarSettings::default());
    let leap = AnchorDay::of_date("2024-02-29");
    let from = |text: &str| window(&utc, leap, text)[0].clone();
    assert_eq!(from("2027-06-01T00:00:00Z"), "2027-02-28T00:00:00+00:00");
    assert_eq!(from("2028-06-01T00:00:00Z"), "2028-02-29T00:00:00+00:00");
    let of_month = AnchorDay::of_month(15);
    let new_year = ["2026-01-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"];
    assert_eq!(window(&utc, of_month, "2026-06-01T00:00:00Z"), new_year);
}

#[test]
fn a_week_begins_on_its_day_at_its_time() {
    let settings = CalendarSettings {
        zone: zone("America/New_York"),
        day: "06:30:00".parse().unwrap(),
        week: Weekday::Sunday,
        ..CalendarSettings::default()
    };
    let week = calendar(CalendarUnit::Week, settings);
    let expected = ["2026-11-22T06:30:00-05:00", "2026-11-29T06:30:00-05:00"];
    assert_eq!(window(&week, None, "2026-11-22T11:30:00Z"), expected);
    assert_eq!(window(&week, None, "2026-11-29T11:29:59Z"), expected);
}

#[test]
fn a_skipped_wall_time_is_the_first_instant_after_the_gap() {
    let cairo = at(CalendarUnit::Day, "Africa/Cairo", "00:00");
    let day = ["2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"];
    assert_eq!(window(&cairo, None, "2026-04-24T12:00:00Z"), day);
    let berlin = at(CalendarUnit::Day, "Europe/Berlin", "02:30");
    let span = berlin.span(None, us("2026-03-29T00:59:59Z"));
    assert_eq!(berlin.text(span.end_us), "2026-03-29T03:00:00+02:00");
    assert_eq!(span.next_end_us - span.end_us, 23 * HOUR_US + HOUR_US / 2);
}

#[test]
fn a_wall_time_that_occurs_twice_is_the_first() {
    let berlin = at(CalendarUnit::Day, "Europe/Berlin", "02:30");
    let span = berlin.span(None, us("2026-10-25T01:00:00Z"));
    assert_eq!(berlin.text(span.start_us), "2026-10-25T02:30:00+02:00");
    assert_eq!(span.end_us - span.start_us, 25 * HOUR_US);
    let lord_howe = at(CalendarUnit::Day, "Australia/Lord_Howe", "00:00");
    let span = lord_howe.span(None, us("2026-04-05T00:00:00Z"));
    assert_eq!(span.end_us - span.start_us, 24 * HOUR_US + HOUR_US / 2);
}

#[test]
fn a_skipped_date_begins_no_day() {
    for (day, start, end) in [
        (
            "00:00",
            "2011-12-29T00:00:00-10:00",
            "2011-12-31T00:00:00+14:00",
        ),
        (
            "12:00",
            "2011-12-29T12:00:00-10:00",
            "2011-12-31T12:00:00+14:00",
        ),
    ] {
        let apia = at(CalendarUnit::Day, "Pacific/Apia", day);
        let span = apia.span(None, us("2011-12-30T05:00:00Z"));
        let texts = [us(start), us(end)];
        assert_eq!([span.start_us, span.end_us], texts, "{day}");
        assert_eq!(span.end_us - span.start_us, DAY_US);
    }
    let apia = at(CalendarUnit::Month, "Pacific/Apia", "00:00");
    let anchor = AnchorDay::of_month(30);
    let ends = window(&apia, anchor, "2011-12-15T00:00:00Z")[1].clone();
    assert_eq!(ends, "2011-12-31T00:00:00+14:00");
}

#[test]
fn anchors_and_offsets_are_read() {
    assert_eq!(AnchorDay::parse("31"), AnchorDay::of_month(31));
    let date = AnchorDay::parse("2026-03-15").unwrap();
    assert!(date.is_date() && date.day() == 15);
    assert_eq!(AnchorDay::parse("2026-03-15T10:00:00Z"), Some(date));
    for text in [
        "",
        "0",
        "32",
        "-1",
        "1.5",
        "2026-02-30",
        "2026-03-15x",
        "March",
    ] {
        assert_eq!(AnchorDay::parse(text), None, "{text}");
    }
    let offset = Zone::of_offset("-03:30").unwrap();
    assert_eq!(
        offset.zone.to_offset(Timestamp::UNIX_EPOCH).seconds(),
        -12_600
    );
    for text in ["03:30", "+3:30", "+24:00", "+03:60", "+0330", "+03:3x"] {
        assert!(Zone::of_offset(text).is_none(), "{text}");
    }
}

#[test]
fn a_window_of_the_store_is_found_by_its_end() {
    let utc = calendar(CalendarUnit::Month, CalendarSettings::default());
    let end_us = us("2026-12-01T00:00:00Z");
    for at in ["2026-11-30T23:59:59.9Z", "2026-12-01T00:00:00Z"] {
        // A clock may be a little behind the store's.
        let span = utc.span_ending(None, us(at) - 1_000, end_us);
        assert_eq!(span.end_us, end_us, "{at}");
        assert_eq!(span.end_us - span.start_us, 30 * DAY_US, "{at}");
    }
    let next_us = us("2027-01-01T00:00:00Z");
    let span = utc.span_ending(None, end_us - 100, next_us + 50);
    assert_eq!((span.start_us, span.end_us), (end_us, next_us));
    // The anchor has changed: the window under way goes on.
    let odd_us = us("2026-12-15T00:00:00Z");
    let span = utc.span_ending(None, us("2026-11-20T00:00:00Z"), odd_us + 400_000);
    assert_eq!(span.end_us, odd_us);
}

#[test]
fn far_instants_do_not_panic() {
    for unit in CalendarUnit::ALL {
        let kiritimati = at(unit, "Pacific/Kiritimati", "00:00");
        for at_us in [0, 1, LAST_US, u64::MAX] {
            kiritimati.span(AnchorDay::of_month(31), at_us);
        }
    }
}

/// The days that a window has, without changes of clocks.
fn days(unit: CalendarUnit) -> [u64; 2] {
    match unit {
        CalendarUnit::Day => [1, 1],
        CalendarUnit::Week => [7, 7],
        CalendarUnit::Month => [28, 31],
        CalendarUnit::Year => [365, 366],
    }
}

/// Walks through windows from 2000 to 2040, each `step`th of them: they join, hold their instants,
/// and are as long as their unit says.
fn walk(calendar: &Calendar, anchor: Option<AnchorDay>, step: u64) {
    let what = calendar.name();
    let end_us = us("2040-01-01T00:00:00Z");
    let [least, most] = days(calendar.unit()).map(|days| days * DAY_US);
    let mut span = calendar.find(
        anchor.unwrap_or(AnchorDay::FIRST),
        us("2000-01-01T00:00:00Z"),
    );
    while span.start_us < end_us {
        let next = calendar.span(anchor, span.end_us);
        let (start_us, ends) = (span.start_us, [span.end_us, span.next_end_us]);
        assert_eq!(
            (next.start_us, next.end_us),
            (ends[0], ends[1]),
            "{what} {anchor:?}"
        );
        for at_us in [start_us, (start_us + ends[0]) / 2, ends[0] - 1] {
            assert_eq!(calendar.span(anchor, at_us), span, "{what} {at_us}");
        }
        let length_us = ends[0] - start_us;
        let text = calendar.text(start_us);
        assert!(length_us <= calendar.longest_us(), "{what} {text}");
        assert!(length_us <= most + SET_BACK_US, "{what} {text}");
        // A zone that skips a date makes one window a day shorter.
        let skipped_us = if text.starts_with("2011-12") || text.starts_with("2011-01") {
            DAY_US
        } else {
            0
        };
        assert!(
            length_us + SET_BACK_US + skipped_us >= least,
            "{what} {text}"
        );
        let ahead_us = (step - 1) * most;
        span = match ahead_us {
            0 => next,
            us => calendar.span(anchor, next.start_us + us),
        };
    }
}

#[test]
fn windows_of_every_zone_join() {
    let database = TimeZoneDatabase::bundled();
    let names: Vec<_> = database.available().collect();
    assert!(names.len() > 500, "{}", names.len());
    for (index, name) in names.iter().enumerate() {
        let time = ["00:00", "02:30", "12:00"][index % 3];
        for unit in CalendarUnit::ALL {
            let calendar = at(unit, name.as_str(), time);
            let step = match unit {
                CalendarUnit::Day => 61,
                CalendarUnit::Week => 7,
                CalendarUnit::Month | CalendarUnit::Year => 1,
            };
            let day = 1 + (index as u64 * 7) % 31;
            walk(&calendar, AnchorDay::of_month(day), step);
        }
    }
}
