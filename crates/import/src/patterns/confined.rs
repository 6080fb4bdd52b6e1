//! Expressions that match only paths below a prefix. They have no look-ahead, so the prefix is
//! taken out of the expression, byte by byte.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Capture, Class, Hir, HirKind, Look, Repetition};

use super::{escape_regex, regex_beginning};
use crate::route::Regex;

/// How a class of all characters is printed.
const ANY: &str = r"(?-u:[\x00-\x09\x0B-\xFF])";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfinedRegex {
    pub(crate) text: String,
    /// Each group still matches what it did.
    pub(crate) keeps_groups: bool,
}

/// Returns an expression for the paths that begin with a prefix and that `regex` matches. `None` if
/// there are none. Fails with a reason if no expression can say that.
pub(crate) fn confine_regex(regex: &str, prefix: &str) -> Result<Option<ConfinedRegex>, String> {
    let failed = || format!("`{regex}` cannot be confined to `{prefix}`");
    let done = |text: String, keeps_groups| match Regex::parse(&text) {
        Ok(_) => Ok(Some(ConfinedRegex { text, keeps_groups })),
        Err(_) => Err(failed()),
    };
    if regex_beginning(regex).starts_with(prefix) {
        return done(regex.to_owned(), true);
    }
    let hir = parse(regex).ok_or_else(failed)?;
    let is_end = |look| matches!(look, Look::Start | Look::End);
    if !hir.properties().look_set().iter().all(is_end) {
        return Err(failed());
    }
    let is_anchored = hir.properties().look_set_prefix().contains(Look::Start);
    // A match may begin anywhere in the prefix.
    let starts = if is_anchored { 1 } else { prefix.len() };
    let rests = (0..starts).filter_map(|at| rest_behind(&hir, &prefix.as_bytes()[at..], at == 0));
    let rest = any_of(rests.collect());
    let beginning = format!("^{}", escape_regex(prefix));
    let later = match regex.strip_prefix("(?i)") {
        Some(regex) => format!(".*(?i:{regex})"),
        None => format!(".*(?:{regex})"),
    };
    match rest {
        Some(rest) if is_nullable(&rest, false) => done(beginning, false),
        Some(rest) => {
            let rest = rest.to_string().replace(ANY, ".");
            match is_anchored {
                true => done(format!("{beginning}{rest}"), false),
                false => done(format!("{beginning}(?:{later}|{rest})"), false),
            }
        }
        None if is_anchored => Ok(None),
        None => done(format!("{beginning}{later}"), true),
    }
}

/// Returns the texts that an expression matches; `None` if they are many.
pub(crate) fn matched_texts(regex: &str) -> Option<Vec<String>> {
    let texts = Extractor::new().extract(&parse(regex)?);
    let literals = texts.literals().filter(|_| texts.is_exact())?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    literals.iter().map(|one| text(one.as_bytes())).collect()
}

fn parse(regex: &str) -> Option<Hir> {
    let mut parser = ParserBuilder::new().unicode(false).utf8(false).build();
    parser.parse(regex).ok()
}

/// Returns what must follow a text in a match that begins with the text.
fn rest_behind(hir: &Hir, text: &[u8], is_start: bool) -> Option<Hir> {
    let mut rest = hir.clone();
    for (index, byte) in text.iter().enumerate() {
        let is_start = is_start && index == 0;
        // The match ends within the text.
        if is_nullable(&rest, is_start) {
            return Some(Hir::empty());
        }
        rest = rest_behind_byte(&rest, *byte, is_start)?;
    }
    Some(rest)
}

fn rest_behind_byte(hir: &Hir, byte: u8, is_start: bool) -> Option<Hir> {
    let behind = |part: &Hir| rest_behind_byte(part, byte, is_start);
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => None,
        HirKind::Literal(text) => text.0.strip_prefix(&[byte]).map(Hir::literal),
        HirKind::Class(class) => class_has(class, byte).then(Hir::empty),
        HirKind::Capture(group) => {
            let sub = Box::new(behind(&group.sub)?);
            let group = group.clone();
            Some(Hir::capture(Capture { sub, ..group }))
        }
        HirKind::Repetition(one) => {
            let max = match one.max {
                Some(max) => Some(max.checked_sub(1)?),
                None => None,
            };
            let min = one.min.saturating_sub(1);
            let more = one.clone();
            let more = Hir::repetition(Repetition { min, max, ..more });
            Some(Hir::concat(vec![behind(&one.sub)?, more]))
        }
        HirKind::Alternation(parts) => any_of(parts.iter().filter_map(behind).collect()),
        HirKind::Concat(parts) => {
            let mut found = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                if let Some(rest) = behind(part) {
                    found.push(Hir::concat([&[rest], &parts[index + 1..]].concat()));
                }
                if !is_nullable(part, is_start) {
                    break;
                }
            }
            any_of(found)
        }
    }
}

fn class_has(class: &Class, byte: u8) -> bool {
    match class {
        Class::Bytes(class) => (class.iter()).any(|one| (one.start()..=one.end()).contains(&byte)),
        Class::Unicode(class) => {
            (class.iter()).any(|one| (one.start()..=one.end()).contains(&char::from(byte)))
        }
    }
}

fn any_of(list: Vec<Hir>) -> Option<Hir> {
    let mut distinct: Vec<Hir> = Vec::new();
    for one in list {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    (!distinct.is_empty()).then(|| Hir::alternation(distinct))
}

/// Whether it matches the empty text before more text.
fn is_nullable(hir: &Hir, is_start: bool) -> bool {
    let nullable = |part: &Hir| is_nullable(part, is_start);
    match hir.kind() {
        HirKind::Empty => true,
        HirKind::Look(look) => *look == Look::Start && is_start,
        HirKind::Literal(_) | HirKind::Class(_) => false,
        HirKind::Repetition(one) => one.min == 0 || nullable(&one.sub),
        HirKind::Capture(group) => nullable(&group.sub),
        HirKind::Concat(parts) => parts.iter().all(nullable),
        HirKind::Alternation(parts) => parts.iter().any(nullable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_confined_to_a_prefix() {
        for (regex, prefix, expected) in [
            (r"\.php$", "/up/", Ok(Some(r"^/up/.*(?:\.php$)"))),
            (r"(?i)\.php$", "/up/", Ok(Some(r"^/up/.*(?i:\.php$)"))),
            (r"/\.ht", "/up/", Ok(Some(r"^/up/(?:.*(?:/\.ht)|(?:\.ht))"))),
            ("/up", "/up/", Ok(Some("^/up/"))),
            ("^/up/a", "/up/", Ok(Some("^/up/a"))),
            ("(?i)^/up/1", "/up/", Ok(Some("^/up/1"))),
            ("^/(c|d)/.*x", "/c/", Ok(Some("^/c/(?:.*x)"))),
            ("^/(?:c|d)/", "/e/", Ok(None)),
            (r"a\b", "/e/", Err(())),
        ] {
            let found = confine_regex(regex, prefix).map_err(|_| ());
            let found = found
                .as_ref()
                .map(|one| one.as_ref().map(|one| one.text.as_str()));
            assert_eq!(found, expected.as_ref().copied(), "{regex} {prefix}");
        }
    }

    /// Each path below the prefix is found as before, and no other one.
    #[test]
    fn a_confined_expression_finds_the_same_paths() {
        let parts = ["/", "a", "b", ".", "/a/", "b.b", "/.a", "ab/"];
        let mut paths = vec![String::new()];
        for _ in 0..4 {
            let longer = paths
                .iter()
                .flat_map(|path| parts.map(|part| format!("{path}{part}")));
            paths.extend(longer.collect::<Vec<_>>());
            paths.sort();
            paths.dedup();
        }
        for regex in [
            "a",
            "^/a",
            r"/\.a",
            "(?:^|/)a",
            "(a|b)+/",
            "^/a?b?/a",
            "^/(a/|ab)*b",
            "b$|^/a/$",
            "(?i)A/",
            ".*/a/.*",
            "^/[^/]+/a",
            "a{2,3}",
            "^$",
            "",
            "(/a){2}",
            "^(.+)/(.*)$",
        ] {
            let exact = Regex::parse(regex).unwrap();
            for prefix in ["/a/", "/a", "/ab/", "/a/b.b", "/b/a/"] {
                let confined = confine_regex(regex, prefix).unwrap();
                let confined = confined.map(|one| Regex::parse(&one.text).unwrap());
                for path in &paths {
                    let expected = path.starts_with(prefix) && exact.is_in(path.as_bytes());
                    let found = confined
                        .as_ref()
                        .is_some_and(|it| it.is_in(path.as_bytes()));
                    assert_eq!(found, expected, "{regex} {prefix} {path} {confined:?}");
                }
            }
        }
    }
}
