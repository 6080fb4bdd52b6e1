//! What somebody who reads a report should know: what the log lacked, and what was made of it.
//!
//! Pure.

use super::engine::Engine;
use super::logs::Found;
use crate::limit::key::{Key, Part};
use crate::limit::{Algorithm, Missing};

/// A key as files write it.
pub fn key(key: &Key) -> String {
    let parts = key.parts.iter().map(|part| {
        let words: Vec<_> = part.0.iter().map(Part::to_string).collect();
        words.join(" or ")
    });
    parts.collect::<Vec<_>>().join(" + ")
}

/// Everything worth a sentence.
pub fn of(engine: &Engine, logs: &[Found]) -> Vec<String> {
    let mut notes = Vec::new();
    for planned in &engine.plan.limits {
        let carried = engine.spaces.carried(planned.space);
        let limit = &planned.limit;
        let unknown = |part: &&Part| **part == Part::ApiKey && engine.totals.unknown_keys > 0;
        let never = carried.never.iter().filter(|part| !unknown(part));
        let parts: Vec<_> = never.map(Part::to_string).collect();
        if parts.is_empty() || carried.asked == 0 {
            continue;
        }
        let instead = if carried.lacked == 0 {
            "it counted by the rest of its key"
        } else {
            match limit.missing {
                Missing::Ip => "it counted by the address (missing = \"ip\")",
                Missing::Shared => "all such requests were counted together (missing = \"shared\")",
                Missing::Skip => "it was not asked (missing = \"skip\")",
                Missing::Deny => "such requests were refused (missing = \"deny\")",
            }
        };
        notes.push(format!(
            "limit `{}`: no line has {}; {instead}",
            limit.name,
            parts.join(" or ")
        ));
    }
    let totals = &engine.totals;
    if totals.unknown_keys > 0 {
        notes.push(format!(
            "{} had an API key that is not known: as in the proxy it was no identity",
            counted(totals.unknown_keys, "request")
        ));
    }
    if totals.untimed > 0 {
        notes.push(format!(
            "{} were not asked for requests at once: the log does not say how long they took",
            counted(totals.untimed, "request")
        ));
    }
    let slots = engine.plan.meters.iter();
    if slots
        .into_iter()
        .any(|meter| meter.algorithm() == Algorithm::Slots)
        && totals.untimed == 0
    {
        notes.push(
            "requests at once are held from their line on, for as long as they took".to_owned(),
        );
    }
    let settled = engine.settles();
    if !settled.is_empty() {
        notes.push(format!(
            "no log says what a response settled: route {} was charged as it came in",
            settled.join(", ")
        ));
    }
    clock(engine, &mut notes);
    for seen in engine.forgotten() {
        notes.push(format!(
            "limit `{}` met more keys than are kept at once (--max-keys): {} were forgotten, and \
             count twice if they came again",
            seen.0, seen.1
        ));
    }
    for log in logs {
        if let Some(error) = &log.error {
            notes.push(format!("{} ends early: {error}", log.name));
        }
    }
    notes
}

fn clock(engine: &Engine, notes: &mut Vec<String>) {
    let course = &engine.course;
    if course.late > 0 {
        notes.push(format!(
            "{} were up to {:.1} s older than the line before: taken at its time",
            counted(course.late, "line"),
            course.latest_us as f64 / 1e6
        ));
    }
    if course.steps > 0 {
        notes.push(format!(
            "the log's clock was set back {}",
            counted(course.steps, "time")
        ));
    }
    if course.leaps > 0 {
        notes.push(format!(
            "{} of a far future were taken at the time of the line before",
            counted(course.leaps, "line")
        ));
    }
}

/// `1 line`, `12,345 lines`
pub fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{} {what}{s}", grouped(count))
}

/// `1,234,567`
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12.3 %`, with as many digits as say something.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    match share {
        share if part == whole => format!("{share:.0} %"),
        share if share < 0.01 => "<0.01 %".to_owned(),
        share if share < 1.0 => format!("{share:.2} %"),
        share => format!("{:.1} %", share.min(99.9)),
    }
}
