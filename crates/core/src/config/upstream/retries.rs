//! `retries` of an upstream: when a request is sent again.

use super::super::diagnostic::Code;
use super::super::section::Section;
use super::super::values::TextForm;
use super::health::small;
use crate::route::StatusSet;

/// A request is sent again so often at most, whatever the file says.
const MAX_ATTEMPTS: u64 = 10;

/// `retries`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How often a request is sent again, at most; 0 is never.
    pub attempts: u32,
    /// Percent of the requests that may be sent again.
    pub budget: u32,
    /// What for, if the request may have been seen and bears repetition. One that was not sent at
    /// all may always be sent again.
    pub on: RetryOn,
}

/// What is worth another try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryOn {
    /// The connection ended before the head of an answer.
    pub closed: bool,
    /// No head came within the upstream's `timeout`.
    pub timeout: bool,
    /// An answer with one of these statuses.
    pub status: StatusSet,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries {
            attempts: 2,
            budget: 20,
            on: RetryOn {
                closed: true,
                timeout: false,
                status: StatusSet::default(),
            },
        }
    }
}

/// `retries`: a number, or a table.
pub(super) fn retries(outer: &mut Section<'_>) -> Retries {
    let mut retries = Retries::default();
    let value = outer.peek("retries");
    if value.is_some_and(|value| value.get_ref().is_integer()) {
        let number = outer.integer("retries", 0..=MAX_ATTEMPTS);
        retries.attempts = number.map_or(retries.attempts, small);
        return retries;
    }
    let mut section = outer.section("retries");
    let attempts = section.integer("attempts", 0..=MAX_ATTEMPTS);
    let budget = section.integer("budget", 0..=100);
    retries.attempts = attempts.map_or(retries.attempts, small);
    retries.budget = budget.map_or(retries.budget, small);
    if let Some(on) = on(&mut section) {
        retries.on = on;
    }
    section.finish();
    retries
}

/// `on = ["closed", "timeout", "503"]`
fn on(section: &mut Section<'_>) -> Option<RetryOn> {
    let texts = section.texts("on")?;
    let mut on = RetryOn {
        closed: false,
        timeout: false,
        status: StatusSet::default(),
    };
    for text in texts.value {
        let kind = TextForm::new(Code::UnknownWord, "a reason to try again");
        section.understood("on", text, kind, |text| match text {
            "closed" => {
                on.closed = true;
                Ok(())
            }
            "timeout" => {
                on.timeout = true;
                Ok(())
            }
            status => on
                .status
                .add(status)
                .map_err(|_| "write `closed`, `timeout`, or a status such as `503` or `5xx`"),
        });
    }
    Some(on)
}
