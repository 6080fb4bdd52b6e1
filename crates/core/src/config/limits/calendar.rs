//! Reads `calendar` of a limit, and checks what calendar windows exclude.

use std::sync::Arc;

use jiff::civil::{Time, Weekday};

use super::RuleForm;
use crate::config::section::SectionsPresent;
use crate::config::*;
use crate::limit::calendar::{AnchorSource, Zone};
use crate::limit::rate::DayWord;
use crate::limit::{AnchorDay, CalendarUnit, Rule};

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

/// The calendar of a limit, and what `day` means in its rates.
pub(super) struct LimitCalendar {
    pub(super) settings: Arc<CalendarSettings>,
    pub(super) day: DayWord,
}

pub(super) fn read(outer: &mut Section<'_>, present: SectionsPresent) -> LimitCalendar {
    let is_given = outer.has("calendar");
    let mut section = outer.section("calendar");
    let zone = section.located_text("zone");
    let zone = zone.and_then(|text| zones::read(&section, text));
    let form = TextForm::new(Code::BadQuantity, "a time of day");
    section.declare("day", || ValueKind::TimeOfDay);
    let day = section.parse("day", form, time_of_day);
    let week = section.word("week", &WEEKDAYS);
    let (anchor, source) = read_anchor(&mut section, present);
    section.finish();
    let settings = CalendarSettings {
        zone: zone.unwrap_or_else(Zone::utc),
        day: day.unwrap_or(Time::midnight()),
        week,
        anchor,
        source,
    };
    LimitCalendar {
        settings: Arc::new(settings),
        day: match is_given {
            true => DayWord::Calendar,
            false => DayWord::Sliding,
        },
    }
}

/// Reads `06:30`.
fn time_of_day(text: &str) -> Result<Time, &'static str> {
    const WRITE: &str = "a time of day is `HH:MM`; write for example `06:30`";
    let (hour, minute) = text.split_once(':').ok_or(WRITE)?;
    let number = |text: &str| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_plain).ok_or(WRITE)
    };
    Time::new(number(hour)?, number(minute)?, 0, 0).map_err(|_| WRITE)
}

/// An anchor as the file writes it.
enum AnchorText {
    Day(AnchorDay),
    Source(AnchorSource),
}

fn read_anchor(section: &mut Section<'_>, present: SectionsPresent) -> (AnchorDay, AnchorSource) {
    section.declare("anchor", || ValueKind::Anchor);
    let value = section.peek("anchor");
    if !value.is_some_and(|value| value.get_ref().is_str()) {
        let day = section.optional_integer("anchor", 1..=31);
        let anchor = day.and_then(AnchorDay::of_month);
        return (anchor.unwrap_or(AnchorDay::FIRST), AnchorSource::Limit);
    }
    let form = TextForm::new(Code::BadQuantity, "an anchor");
    match section.parse("anchor", form, anchor_text) {
        Some(AnchorText::Day(anchor)) => (anchor, AnchorSource::Limit),
        Some(AnchorText::Source(source)) => {
            check_source(section, &source, present);
            (AnchorDay::FIRST, source)
        }
        None => (AnchorDay::FIRST, AnchorSource::Limit),
    }
}

fn anchor_text(text: &str) -> Result<AnchorText, &'static str> {
    const WRITE: &str = "an anchor is a day from 1 to 31, a date, `keys` or `jwt:CLAIM`; write for \
                         example `anchor = 15`, or for years `anchor = \"2024-02-29\"`";
    if text == "keys" {
        return Ok(AnchorText::Source(AnchorSource::Keys));
    }
    match text.strip_prefix("jwt:") {
        Some("") => Err("the claim is missing; write for example `jwt:billing_day`"),
        Some(claim) => Ok(AnchorText::Source(AnchorSource::Claim(claim.into()))),
        None => AnchorDay::parse(text).map(AnchorText::Day).ok_or(WRITE),
    }
}

/// Reports an anchor of clients in a file that knows no clients.
fn check_source(section: &Section<'_>, source: &AnchorSource, present: SectionsPresent) {
    let (needed, why, example) = match source {
        AnchorSource::Keys if !present.known_keys => (
            "[api_key]",
            "no file of keys has the anchors of clients",
            "known = \"keys.txt\"",
        ),
        AnchorSource::Claim(_) if !present.jwt => (
            "[auth.jwt]",
            "a client can invent the claims of a token that is not verified",
            "jwks_file = \"/etc/tidegate/jwks.json\"",
        ),
        _ => return,
    };
    contradiction(format!("this `anchor` needs `{needed}`"))
        .at(&section.value_span("anchor"), why)
        .help(format!("write for example `{needed}` with `{example}`"))
        .report_to(section.reader);
}

/// Reports settings that do not go together with the windows of a limit.
pub(super) fn check<'l>(
    section: &Section<'_>,
    form: &RuleForm,
    rules: impl Iterator<Item = &'l Located<Rule>> + Clone,
) {
    let unit = |rule: &Located<Rule>| rule.value.calendar_unit();
    let windows = rules.filter(|rule| unit(rule).is_some());
    let Some(first) = windows.clone().next() else {
        if section.has("calendar") && !section.has("concurrent") {
            contradiction(format!("`{}` has no calendar window", section.name()))
                .at(&section.key_span("calendar"), "changes nothing")
                .help("a calendar window is `/day`, `/week`, `/month` or `/year`")
                .report_to(section.reader);
        }
        return;
    };
    for key in ["algorithm", "precision", "lease"] {
        if !section.has(key) {
            continue;
        }
        contradiction(format!("`{key}` is for windows that slide"))
            .at(&section.value_span(key), "")
            .at(&first.span, "this window is one of a calendar")
            .help("make two limits of them: a route may have both")
            .report_to(section.reader);
    }
    let anchor = &form.calendar.settings;
    let moves = anchor.source != AnchorSource::Limit || anchor.anchor != AnchorDay::FIRST;
    let has = |wanted: &[CalendarUnit]| {
        let mut units = windows.clone().filter_map(unit);
        units.any(|unit| wanted.contains(&unit))
    };
    let label = match anchor.anchor.is_date() {
        _ if !has(&[CalendarUnit::Month, CalendarUnit::Year]) => "is for months and years",
        true if !has(&[CalendarUnit::Year]) => "a date is for years; a month has a day",
        false if anchor.source == AnchorSource::Limit && !has(&[CalendarUnit::Month]) => {
            "is for months; a year has a date, such as `2026-04-06`"
        }
        _ => return,
    };
    if moves {
        contradiction(format!(
            "`{}` does not need `anchor`",
            section.full_key("calendar")
        ))
        .at(&first.span, label)
        .report_to(section.reader);
    }
}
