//! `[tier]`: which tier a client has.

use super::api_key::{KeyList, LineForm};
use super::diagnostic::{Code, Diagnostic, Span};
use super::limits::{self, Known};
use super::reader::At;
use super::section::Section;
use super::values::TextForm;
use crate::limit::key::{Alternatives, Key, Part};
use crate::limit::tier::Tiers;

/// Where the section stands.
pub(super) fn span(top: &Section<'_>) -> Span {
    top.key_span("tier")
}

/// `[tier]`. Keys of its `keys_file` are added to `keys`, whose lines may say tiers as well.
pub(super) fn read(top: &mut Section<'_>, known: Known, keys: &mut KeyList) -> Option<Tiers> {
    let mut section = top.section("tier");
    let from = section.text("from");
    let file = section.text("keys_file");
    let default = section.text("default");
    if let Some(default) = &default {
        section.check_name(default, "a tier");
    }
    let has = |key| section.peek(key).is_some();
    if known.tier && !has("from") && !has("keys_file") && !keys.is_named() {
        section.missing("from", "from = \"jwt:plan\"");
    }
    if let (Some(from), Some(file)) = (&from, &file) {
        let diagnostic = Diagnostic::new(Code::Contradiction, "`tier` has `from` and `keys_file`")
            .at(&file.span, "")
            .at(&from.span, "")
            .help("keep one: a client has one tier");
        section.reader.report(diagnostic);
    }
    let from = match (from, file) {
        (Some(from), _) => source(&section, from, known),
        (None, Some(file)) => {
            keys.add_file(&section, "keys_file", &file, LineForm::Tiers);
            None
        }
        (None, None) => None,
    };
    section.finish();
    // A file of keys may say tiers at any reload, also where it names none now.
    let by_key = keys.is_named();
    (from.is_some() || by_key || default.is_some()).then(|| Tiers {
        from,
        by_key,
        default: default.map(|name| name.value.into()),
    })
}

/// `from`: what says a tier must not be whatever the client likes.
fn source(section: &Section<'_>, text: At<String>, known: Known) -> Option<Alternatives> {
    let kind = TextForm::new(Code::BadKey, "what says a tier");
    let parts = section.understood("from", text, kind, Key::parse_part)?;
    for part in &parts.value.0 {
        if matches!(part, Part::Jwt(_) | Part::Header(_)) {
            continue;
        }
        let message = format!("`{part}` cannot say a tier");
        let diagnostic = Diagnostic::new(Code::BadKey, message)
            .at(&parts.span, "clients choose it")
            .help("use `jwt:CLAIM`, `header:NAME` (from trusted proxies) or `keys_file`");
        section.reader.report(diagnostic);
    }
    limits::check_known(section, &parts.value, &parts.span, known);
    Some(parts.value)
}
