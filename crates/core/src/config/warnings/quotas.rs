//! Warnings and notes about calendar windows.

use crate::config::compile::Compiled;
use crate::config::limits::DefinedLimit;
use crate::config::*;
use crate::limit::calendar::AnchorSource;
use crate::limit::{CalendarUnit, Rule};

const DAY_US: u64 = 86_400_000_000;

/// Reports windows of weeks, months or years whose counts end with the process, and a file of
/// counts without a window to keep.
pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let store = &compiled.config.store;
    if store.kind != StoreKind::Memory {
        return;
    }
    if store.file.is_some() {
        let limits = &compiled.definitions.limits;
        if !limits.is_empty() && !limits.iter().any(has_window_to_keep) {
            let message = "`store.file` keeps calendar windows, and no limit has one";
            Diagnostic::new(Code::UnusedCountsFile, message)
                .help(
                    "write `calendar = { zone = \"UTC\" }` in a limit by `day`, or a rate by \
                     `month`; or leave `file` out",
                )
                .note("windows that slide start anew with the process")
                .report_to(reader);
        }
        return;
    }
    for defined in &compiled.definitions.limits {
        let is_long = |rule: &&Located<Rule>| {
            let unit = rule.value.calendar_unit();
            unit.is_some_and(|unit| unit != CalendarUnit::Day)
        };
        let Some(rule) = defined.rules.iter().find(is_long) else {
            continue;
        };
        let unit = rule.value.calendar_unit().map_or("", CalendarUnit::word);
        let message = format!(
            "a restart forgets the {unit} of `limit.{}`",
            defined.name.value
        );
        Diagnostic::new(Code::ForgottenQuota, message)
            .at(&rule.span, "counted in the memory of this process")
            .help(
                "keep it in a file: `[store]` with `file = \"/var/lib/tidegate/counts\"`; or count \
                 in Redis: `url = \"redis://127.0.0.1:6379\"`",
            )
            .report_to(reader);
    }
}

/// A day that slides beside a month of the calendar: the author may mean days of the calendar.
pub(super) fn sliding_day(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    let mut limits = compiled.definitions.limits.iter();
    let defined = limits.find(|defined| !defined.has_calendar && has_both(defined))?;
    let day = rule_of(defined, is_sliding_day)?;
    let month = rule_of(defined, is_month)?;
    let message = format!(
        "`day` of `limit.{}` slides, and `month` does not",
        defined.name.value
    );
    let note = Diagnostic::new(Code::SlidingDay, message)
        .at(&day.span, "any 24 hours")
        .at(&month.span, "from the first of a month, in UTC")
        .help(
            "write `calendar = { zone = \"UTC\" }`, and it is a day of the calendar too; or `24h`, \
             and it slides on",
        );
    Some(note)
}

/// A day or a month of the calendar without jitter: all clients that are denied come back when the
/// window ends.
pub(super) fn common_return(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    if compiled.config.deny.jitter.is_some() {
        return None;
    }
    let mut limits = compiled.definitions.limits.iter();
    let (defined, rule) = limits.find_map(|defined| {
        let limit = defined.limit.as_ref().filter(|limit| !limit.shadow)?;
        let ends_for_all = |rule: &&Located<Rule>| match rule.value.calendar_unit() {
            None => false,
            Some(CalendarUnit::Day | CalendarUnit::Week) => true,
            // Each client may have a day of its own.
            Some(_) => limit.calendar.source == AnchorSource::Limit,
        };
        let rule = defined.rules.iter().find(ends_for_all)?;
        Some((defined, rule))
    })?;
    let unit = rule.value.calendar_unit().map_or("", CalendarUnit::word);
    let message = format!(
        "clients that `limit.{}` denies come back at the same time",
        defined.name.value
    );
    let label = format!("all windows of this {unit} end together");
    let note = Diagnostic::new(Code::CommonReturn, message)
        .at(&rule.span, label)
        .help("write `jitter = \"5min\"` in `[deny]`: `Retry-After` is then up to so much later");
    Some(note)
}

/// Overrides of a limit with `calendar` may have days of it too.
fn has_window_to_keep(defined: &DefinedLimit) -> bool {
    let mut rules = defined.rules.iter().chain(&defined.candidate);
    defined.has_calendar || rules.any(|rule| rule.value.calendar_unit().is_some())
}

fn is_month(rule: &Rule) -> bool {
    rule.calendar_unit() == Some(CalendarUnit::Month)
}

fn is_sliding_day(rule: &Rule) -> bool {
    rule.window_us == DAY_US
}

fn rule_of(defined: &DefinedLimit, is_it: fn(&Rule) -> bool) -> Option<&Located<Rule>> {
    defined.rules.iter().find(|rule| is_it(&rule.value))
}

fn has_both(defined: &DefinedLimit) -> bool {
    rule_of(defined, is_sliding_day).is_some() && rule_of(defined, is_month).is_some()
}
