//! Reads `ban` of a limit, and checks what it excludes.

use std::time::Duration;

use crate::config::*;
use crate::limit::ban::MAX_AFTER;
use crate::limit::{Ban, Rate};

const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// How many times longer a further ban lasts, at most.
const MAX_AGAIN: u64 = 100;

pub(super) fn read(outer: &mut Section<'_>) -> Option<Ban> {
    let is_given = outer.has("ban");
    let mut section = outer.section("ban");
    section.declare("after", || ValueKind::Rate);
    let form = TextForm::new(Code::BadRate, "a number of denials within a time");
    let after = section.parse("after", form, Rate::parse);
    let after = after.map(|after| section.located("after", after));
    let first = section.optional_duration("for", MS..=LONGEST);
    let again = section.integer("again", 1..=MAX_AGAIN);
    let given_max = section.optional_duration("max_for", MS..=LONGEST);
    if is_given {
        section.require("after", "after = \"20/10min\"");
        section.require("for", "for = \"1h\"");
    }
    if let Some(after) = &after {
        check_after(&section, after);
    }
    let max = given_max.or(first.map(|first| first.max(section.default_duration("max_for"))));
    if let (Some(first), Some(max)) = (first, max)
        && max < first
    {
        report(format!("`{}` is below `for`", section.full_key("max_for")))
            .at(&section.value_span("max_for"), "the longest ban")
            .at(&section.value_span("for"), "the first ban")
            .report_to(section.reader);
    }
    section.finish();
    let (after, first, max) = (after?.value, first?, max?);
    let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Some(Ban {
        after: after.units,
        window_us: after.window_us,
        first_us: microseconds(first),
        again,
        max_us: microseconds(max),
    })
}

fn report(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::ImpossibleBan, message)
}

fn check_after(section: &Section<'_>, after: &Located<Rate>) {
    if after.value.calendar.is_some() {
        report("`after` of a `ban` is within a time that slides")
            .at(&after.span, "a window of the calendar")
            .help("write for example `20/10min`, or `100/24h`")
            .report_to(section.reader);
    } else if after.value.units > MAX_AFTER {
        report(format!("`after` of a `ban` is at most {MAX_AFTER} denials"))
            .at(&after.span, "")
            .help("use fewer denials within a shorter time")
            .report_to(section.reader);
    }
}
