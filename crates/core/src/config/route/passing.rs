//! What a route does with its requests on their way, or answers instead: paths, heads, bodies.

use super::super::diagnostic::{Code, Diagnostic};
use super::super::reader::At;
use super::super::section::Section;
use super::super::standalone;
use super::super::values::TextForm;
use super::{answer, change};
use crate::route::{Direction, HeaderChange, Prefix, Target};

/// See the file's head.
#[derive(Default)]
pub(crate) struct RawPassing {
    pub(crate) strip_prefix: Option<At<Prefix>>,
    pub(crate) add_prefix: Option<At<Prefix>>,
    /// Else the server's; `Some(None)` for no bound.
    pub(crate) body_limit: Option<Option<u64>>,
    pub(crate) headers_up: Vec<At<HeaderChange>>,
    pub(crate) headers_down: Vec<At<HeaderChange>>,
    /// In place of an upstream; its value is nothing if it could not be read.
    pub(crate) answer: Option<At<Option<Target>>>,
}

/// Settings that mean something to a proxy only.
const FORWARDING: [&str; 7] = [
    "strip_prefix",
    "add_prefix",
    "body_limit",
    "headers_up",
    "headers_down",
    "respond",
    "redirect",
];
/// Settings of what goes to an upstream.
const ON_THE_WAY_UP: [&str; 6] = [
    "upstream",
    "strip_prefix",
    "add_prefix",
    "body_limit",
    "headers_up",
    "timeout",
];

pub(super) fn passing(section: &mut Section<'_>) -> RawPassing {
    if !section.reader.surroundings.forwards {
        for key in FORWARDING {
            if section.take(key).is_some() {
                standalone::refuse(section, key, &section.key_span(key));
            }
        }
        return RawPassing::default();
    }
    let kind = TextForm::new(Code::BadPattern, "a path's beginning");
    let passing = RawPassing {
        strip_prefix: section.parsed("strip_prefix", kind, Prefix::parse),
        add_prefix: section.parsed("add_prefix", kind, Prefix::parse),
        body_limit: section.bound("body_limit"),
        headers_up: change::changes(section.section("headers_up"), Direction::Up),
        headers_down: change::changes(section.section("headers_down"), Direction::Down),
        answer: answer::answer(section),
    };
    if let Some(answer) = &passing.answer {
        for key in ON_THE_WAY_UP {
            if section.peek(key).is_some() {
                let message = format!("`{key}` means nothing here");
                let diagnostic = Diagnostic::new(Code::Contradiction, message)
                    .at(&section.key_span(key), "")
                    .at(&answer.span, "the route answers by itself");
                section.reader.report(diagnostic);
            }
        }
    }
    passing
}
