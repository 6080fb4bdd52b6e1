//! `[tier]`: which tier a client has.

use std::sync::Arc;

use super::diagnostic::{Code, Diagnostic, Span};
use super::limits::{self, Known};
use super::raw::check_name;
use super::section::{At, Section};
use super::values::list_lines;
use crate::limit::key::{Alternatives, Key, Part};
use crate::limit::tier::{KeyTiers, TierSource, Tiers};

/// Keys in a list, at most: 36 bytes each.
const MAX_KEYS: usize = 1_000_000;
/// Wrong lines of a file that are told.
pub(super) const MAX_TOLD: usize = 5;

/// Where the section stands.
pub(super) fn span(top: &Section<'_>) -> Span {
    top.key_span("tier")
}

/// `[tier]`
pub(super) fn read(top: &mut Section<'_>, known: Known) -> Option<Tiers> {
    let mut section = top.section("tier");
    let from = section.text("from");
    let file = section.text("keys_file");
    let default = section.text("default");
    if let Some(default) = &default {
        check_name(&section, default, "a tier");
    }
    let has = |key| section.peek(key).is_some();
    if known.tier && !has("from") && !has("keys_file") {
        section.missing("from", "from = \"jwt:plan\"");
    }
    if let (Some(from), Some(file)) = (&from, &file) {
        let diagnostic = Diagnostic::new(Code::Contradiction, "`tier` has `from` and `keys_file`")
            .at(&file.span, "")
            .at(&from.span, "")
            .help("keep one: a client has one tier");
        section.reader.report(diagnostic);
    }
    let source = match (from, file) {
        (Some(from), _) => source(&section, from, known).map(TierSource::Part),
        (None, Some(file)) => {
            let keys = section.list_file("keys_file", &file);
            let keys = keys.and_then(|text| key_tiers(&section, &file, &text));
            keys.map(|keys| TierSource::Keys(Arc::new(keys)))
        }
        (None, None) => None,
    };
    section.finish();
    source.map(|from| Tiers {
        from,
        default: default.map(|name| name.value.into()),
    })
}

/// `from`: what says a tier must not be whatever the client likes.
fn source(section: &Section<'_>, text: At<String>, known: Known) -> Option<Alternatives> {
    let kind = (Code::BadKey, "what says a tier");
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

/// A file of lines `KEY TIER`.
fn key_tiers(section: &Section<'_>, path: &At<String>, text: &str) -> Option<KeyTiers> {
    let mut pairs = Vec::new();
    let mut numbers = Vec::new();
    let mut wrong = 0;
    for (number, line) in list_lines(text) {
        match key_and_tier(line) {
            Ok(pair) => {
                pairs.push(pair);
                numbers.push(number);
            }
            Err(why) => {
                wrong += 1;
                section.bad_line("keys_file", &path.span, (number, why));
            }
        }
        if wrong == MAX_TOLD {
            return None;
        }
    }
    if pairs.len() > MAX_KEYS {
        section.out_of_range_at("keys_file", path, &format!("at most {MAX_KEYS} keys"));
        return None;
    }
    match KeyTiers::new(pairs.into_iter()) {
        Ok(keys) => Some(keys),
        Err(index) => {
            let why = "this key has another tier on an earlier line";
            section.bad_line("keys_file", &path.span, (numbers[index], why));
            None
        }
    }
}

/// `KEY TIER`, `KEY = TIER`, `KEY: TIER` or `KEY,TIER`; either may be in quotes, and a comment may
/// follow.
fn key_and_tier(line: &str) -> Result<(&str, &str), &'static str> {
    const WRITE: &str = "not a key and a tier; write `KEY TIER`";
    const MARKS: [char; 3] = ['=', ':', ','];
    let (key, rest) = match line.chars().next().filter(|first| "\"'".contains(*first)) {
        Some(quote) => line[1..].split_once(quote).ok_or("a quote is not closed")?,
        None => {
            let line = line.split(" #").next().unwrap_or(line).trim_end();
            match line.split_once(char::is_whitespace) {
                // A key may end in `=`, as base64 does.
                Some((key, rest)) => (key.trim_end_matches([':', ',']), rest),
                None => line.rsplit_once(MARKS).ok_or(WRITE)?,
            }
        }
    };
    let rest = rest.trim();
    let rest = rest.strip_prefix(MARKS).unwrap_or(rest).trim();
    let rest = rest.split(" #").next().unwrap_or(rest).trim_end();
    let inner = |quote: char| rest.strip_prefix(quote)?.strip_suffix(quote);
    let tier = inner('"').or(inner('\'')).unwrap_or(rest);
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    if key.trim_matches(MARKS).is_empty() || tier.is_empty() {
        Err(WRITE)
    } else if tier.len() > 64 || !tier.chars().all(fits) {
        Err("not a tier: 1 to 64 of `a-z`, `0-9`, `_` and `-`")
    } else {
        Ok((key, tier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_keys_may_be_written_in_many_ways() {
        for (line, expected) in [
            ("k1 pro", ("k1", "pro")),
            ("k1\t pro", ("k1", "pro")),
            ("k1 = pro", ("k1", "pro")),
            ("k1=pro", ("k1", "pro")),
            ("k1: pro", ("k1", "pro")),
            ("k1:pro", ("k1", "pro")),
            ("k1,pro", ("k1", "pro")),
            ("k1, pro", ("k1", "pro")),
            ("k1 : \"pro\"", ("k1", "pro")),
            ("\"k 1\" = 'pro'", ("k 1", "pro")),
            ("'k1','pro'", ("k1", "pro")),
            ("\"k#1\" pro  # a customer", ("k#1", "pro")),
            ("k1 pro # a customer", ("k1", "pro")),
            ("sk:live:abc== pro", ("sk:live:abc==", "pro")),
            ("abc===pro", ("abc==", "pro")),
        ] {
            assert_eq!(key_and_tier(line), Ok(expected), "{line}");
        }
        for line in [
            "k1",
            "k1 ",
            "= pro",
            "k1 Pro",
            "\"k1 pro",
            "k1 pro gold",
            "\"\" pro",
        ] {
            assert!(key_and_tier(line).is_err(), "{line}");
        }
    }
}
