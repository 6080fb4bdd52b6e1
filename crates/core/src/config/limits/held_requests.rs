//! `delay` and `delay_queue`: requests over the limit that wait instead of being denied.

use std::time::Duration;

use crate::config::*;
use crate::limit::{Algorithm, Delay, Rule};
use crate::usage::settings::Quantity;

/// A client waits no longer for an answer. Stamps of requests that are held stay within what a log
/// can hold.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// `None` if the limit denies at once.
pub(super) fn read(section: &mut Section<'_>) -> Option<Delay> {
    let longest_us = super::microseconds(section, "delay", MS..=LONGEST);
    let queue: u32 = section.integer("delay_queue", 1..=100_000);
    if longest_us.is_none()
        && let Some(value) = section.peek("delay_queue")
    {
        contradiction("`delay_queue` is for limits with `delay`")
            .at(&value.span(), "this limit has no `delay`")
            .help("say how long a request may wait: `delay = \"2s\"`")
            .report_to(section.reader);
    }
    Some(Delay {
        longest_us: longest_us?,
        queue,
    })
}

/// Reports a limit that cannot hold requests, or that can only in part.
pub(super) fn check(section: &Section<'_>, rules: &[Located<Rule>], counts: Quantity) {
    let Some(delay) = section.peek("delay") else {
        return;
    };
    let name = section.name();
    let can_hold = |rule: &&Located<Rule>| rule.value.algorithm == Algorithm::Log;
    let cannot = rules.iter().find(|rule| !can_hold(rule));
    if let Some(rule) = cannot {
        let (label, help) = why_not(rule.value.algorithm);
        let (code, message) = match rules.iter().any(|rule| can_hold(&rule)) {
            false => (Code::NothingHeld, format!("`{name}` cannot hold requests")),
            true => (
                Code::PartlyHeld,
                format!("a part of `{name}` denies at once, whatever its `delay`"),
            ),
        };
        Diagnostic::new(code, message)
            .at(&rule.span, label)
            .at(&delay.span(), "is for rates over a window that slides")
            .help(help)
            .report_to(section.reader);
    }
    if section.peek("lease").is_some() {
        contradiction(format!("`{name}` has `lease` and `delay`"))
            .at(&section.key_span("lease"), "takes units ahead")
            .at(&delay.span(), "books them in the order of the requests")
            .help("leave one of them out")
            .report_to(section.reader);
    }
    if counts.needs_usage() {
        let message = format!("`{name}` holds requests by what they reserve");
        Diagnostic::new(Code::PartlyHeld, message)
            .at(
                &section.value_span("counts"),
                "what a call has used is known at its end",
            )
            .at(&delay.span(), "is over by then")
            .help("a call that uses more than it reserved makes no other wait longer")
            .report_to(section.reader);
    }
}

/// What a rate of this algorithm does instead, and the help.
fn why_not(algorithm: Algorithm) -> (&'static str, &'static str) {
    match algorithm {
        Algorithm::Log => ("", ""),
        Algorithm::Counter => (
            "a counter does not know when a request may pass",
            "leave out `algorithm`, or leave out `delay`",
        ),
        Algorithm::Slots => (
            "nobody knows when a request under way ends",
            "give `delay` to a limit with a `rate`: a route may have both",
        ),
        Algorithm::Calendar => (
            "a window of the calendar denies until it ends",
            "make two limits of them, and give `delay` to the one that slides",
        ),
    }
}
