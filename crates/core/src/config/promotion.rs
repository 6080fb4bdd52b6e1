//! The change of a configuration file that enforces a limit in shadow mode, or a candidate rate.
//!
//! Pure: the text of a file in, the changed text out.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// The limit denies, where it only counted before.
    Shadow,
    /// The candidate replaces the rate.
    Candidate,
}

impl Promotion {
    pub fn word(self) -> &'static str {
        match self {
            Promotion::Shadow => "shadow",
            Promotion::Candidate => "candidate",
        }
    }
}

/// The text of a file with this change. `None` if the limit has no such setting, or if its form is
/// too unusual for a change by a program.
pub fn promoted(text: &str, limit: &str, kind: Promotion) -> Option<String> {
    let mut promoted = text.to_owned();
    for edit in edits(text, limit, kind)?.iter().rev() {
        promoted.replace_range(edit.place.clone(), &edit.with);
    }
    // A wrong change is worse than none.
    DeTable::parse(&promoted).is_ok().then_some(promoted)
}

struct TextEdit {
    place: Range<usize>,
    with: String,
}

/// The edits of a promotion, in the order of the text.
fn edits(text: &str, limit: &str, kind: Promotion) -> Option<Vec<TextEdit>> {
    let document = DeTable::parse(text).ok()?;
    let limits = document.get_ref().get("limit")?.get_ref().as_table()?;
    let table = limits.get(limit)?.get_ref().as_table()?;
    let (key, value) = table.get_key_value(kind.word())?;
    let pair = key.span().start..value.span().end;
    let mut edits = vec![TextEdit {
        place: whole_setting(text, pair),
        with: String::new(),
    }];
    match (kind, value.get_ref()) {
        (Promotion::Shadow, DeValue::Boolean(true)) => {}
        (Promotion::Candidate, DeValue::String(_)) => edits.push(TextEdit {
            place: table.get("rate")?.span(),
            with: text.get(value.span())?.to_owned(),
        }),
        _ => return None,
    }
    edits.sort_by_key(|edit| edit.place.start);
    Some(edits)
}

/// The place of a setting with its line, or with its comma in an inline table.
fn whole_setting(text: &str, pair: Range<usize>) -> Range<usize> {
    let line_start = text[..pair.start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[pair.end..].find('\n');
    let line_end = line_end.map_or(text.len(), |at| pair.end + at + 1);
    let (left, right) = (&text[line_start..pair.start], &text[pair.end..line_end]);
    let rest = right.trim();
    if !left.contains(['{', ',']) && (rest.is_empty() || rest.starts_with('#')) {
        return line_start..line_end;
    }
    if let Some(after) = right.trim_start().strip_prefix(',') {
        let blanks = after.len() - after.trim_start_matches(' ').len();
        let end = line_end - after.len() + blanks;
        let is_alone = left.trim().is_empty() && after.trim().is_empty();
        return match is_alone {
            true => line_start..line_end,
            false => pair.start..end,
        };
    }
    match left.trim_end().strip_suffix(',') {
        Some(before) => line_start + before.len()..pair.end,
        None => pair,
    }
}
