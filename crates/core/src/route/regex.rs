//! Regular expressions: `regex:TEXT` as a route's path, and as a header's value.
//!
//! The engine's time is proportional to the text, for every expression. It has no look-around and
//! no backreferences.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};

use regex::bytes;

use crate::path::{Malformed, fold, push_byte, unescape};

pub(super) const MARK: &str = "regex:";
/// Bytes of an expression, at most.
const MAX_BYTES: usize = 4096;
/// Bytes of memory that a compiled expression may take.
const MAX_COMPILED: usize = 1 << 20;

/// An expression that is searched for; `^` and `$` anchor it. It matches bytes, not Unicode.
#[derive(Clone, Debug)]
pub struct Regex {
    text: Box<str>,
    /// Whether it is found in either letter case.
    any_case: bool,
    compiled: Box<bytes::Regex>,
}

// The reasons to refuse an expression.
const TOO_LONG: Malformed = Malformed("a regular expression has at most 4096 bytes");
const TOO_BIG: Malformed = Malformed("this regular expression needs more than 1 MiB of memory");
const LOOK_AROUND: Malformed =
    Malformed("regular expressions have no look-around: no `(?!..)`, `(?=..)`");
const SYNTAX: Malformed = Malformed("not a regular expression in the syntax of RE2");

impl Regex {
    /// Reads an expression, without its prefix.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        if text.len() > MAX_BYTES {
            return Err(TOO_LONG);
        }
        let compiled = compiled(text, false).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => TOO_BIG,
            _ if ["(?=", "(?!", "(?<=", "(?<!"]
                .iter()
                .any(|one| text.contains(one)) =>
            {
                LOOK_AROUND
            }
            _ => SYNTAX,
        })?;
        Ok(Self {
            text: text.into(),
            any_case: false,
            compiled: Box::new(compiled),
        })
    }

    pub(super) fn in_any_case(self) -> Self {
        Self {
            any_case: true,
            compiled: match compiled(&self.text, true) {
                Ok(folded) => Box::new(folded),
                // Ignoring case needs too much memory. The author can still write `(?i)`.
                Err(_) => self.compiled,
            },
            ..self
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The literal characters behind `^`: every matching path begins with them.
    pub(super) fn literal_prefix(&self) -> String {
        let mut prefix = String::new();
        let Some(rest) = self
            .text
            .strip_prefix('^')
            .filter(|rest| !rest.contains('|'))
        else {
            return prefix;
        };
        let mut chars = rest.chars().peekable();
        while let Some(c) = chars.next() {
            let literal = match c {
                '\\' => chars.next().filter(|c| c.is_ascii_punctuation()),
                c if c.is_ascii_alphanumeric() || "/-_~".contains(c) => Some(c),
                _ => None,
            };
            let repeats = chars.peek().is_some_and(|c| "?*+{".contains(*c));
            match literal.filter(|_| !repeats) {
                Some(c) => prefix.push(c),
                None => break,
            }
        }
        prefix
    }

    pub fn is_in(&self, value: &[u8]) -> bool {
        self.compiled.is_match(value)
    }

    /// Whether the expression is found in a canonical path, with escapes decoded. Routes ignore a
    /// trailing slash, so this tries the path without it and with it. The engine ignores the case
    /// of ASCII alone, so this also tries the folded path.
    pub(super) fn is_in_path(&self, path: &str) -> bool {
        let is_found = |path: &str| {
            let plain = decoded(path);
            self.compiled.is_match(&plain)
                || with_slash(&plain).is_some_and(|plain| self.compiled.is_match(&plain))
        };
        is_found(path) || self.folded(path).is_some_and(|path| is_found(&path))
    }

    /// The path without letter case, if only that may have the expression.
    fn folded<'p>(&self, path: &'p str) -> Option<Cow<'p, str>> {
        (self.any_case && path.contains('%')).then(|| fold(path))
    }

    /// Writes a group of the expression, as [`Self::is_in_path`] finds it. It is escaped as in a
    /// canonical path.
    pub(super) fn push_path_group(&self, group: &str, path: &str, out: &mut Vec<u8>) {
        let mut found = Vec::new();
        let mut push_from = |path: &str| {
            let plain = decoded(path);
            self.push_group(group, &plain, &mut found)
                || with_slash(&plain)
                    .is_some_and(|plain| self.push_group(group, &plain, &mut found))
        };
        if !push_from(path)
            && let Some(path) = self.folded(path)
        {
            push_from(&path);
        }
        let mut text = String::with_capacity(found.len());
        for byte in found {
            match byte {
                b'/' => text.push('/'),
                _ => push_byte(&mut text, byte),
            }
        }
        out.extend_from_slice(text.as_bytes());
    }

    /// Writes what a group of the expression matches in a text. The group is a name or a number.
    /// Returns whether the expression is found.
    pub(super) fn push_group(&self, group: &str, text: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(found) = self.compiled.captures(text) else {
            return false;
        };
        let group = match group.parse() {
            Ok(number) => found.get(number),
            Err(_) => found.name(group),
        };
        out.extend_from_slice(group.map_or(b"", |group| group.as_bytes()));
        true
    }

    /// Returns `to` with the groups of the expression, if it is found in a text.
    pub(super) fn expand(&self, text: &[u8], to: &str) -> Option<Vec<u8>> {
        let found = self.compiled.captures(text)?;
        let mut out = Vec::new();
        found.expand(to.as_bytes(), &mut out);
        Some(out)
    }

    pub(super) fn has_group(&self, group: &str) -> bool {
        match group.parse::<usize>() {
            Ok(number) => (1..self.compiled.captures_len()).contains(&number),
            Err(_) => self
                .compiled
                .capture_names()
                .flatten()
                .any(|name| name == group),
        }
    }
}

fn compiled(text: &str, any_case: bool) -> Result<bytes::Regex, regex::Error> {
    bytes::RegexBuilder::new(text)
        .unicode(false)
        .case_insensitive(any_case)
        // Ignoring case needs more memory, and an accepted expression must not be refused later.
        .size_limit(if any_case {
            4 * MAX_COMPILED
        } else {
            MAX_COMPILED
        })
        .build()
}

/// A path with a slash at its end, unless it has one.
fn with_slash(plain: &[u8]) -> Option<Vec<u8>> {
    (!plain.ends_with(b"/")).then(|| [plain, b"/"].concat())
}

fn decoded(path: &str) -> Cow<'_, [u8]> {
    if !path.contains('%') {
        return Cow::Borrowed(path.as_bytes());
    }
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let mut rest = bytes.clone();
        match (byte == b'%').then(|| unescape(rest.next(), rest.next())) {
            Some(Ok(escaped)) => {
                out.push(escaped);
                bytes = rest;
            }
            _ => out.push(byte),
        }
    }
    Cow::Owned(out)
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Regex {}

impl Hash for Regex {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(text: &str, path: &str) -> bool {
        Regex::parse(text).unwrap().is_in_path(path)
    }

    #[test]
    fn an_expression_is_found_anywhere_unless_it_is_anchored() {
        assert!(finds(r"\.php$", "/a/b.php") && !finds(r"\.php$", "/a/b.phps"));
        assert!(finds(r"/\.git", "/x/.gitignore") && !finds(r"^/\.git", "/x/.git"));
        assert!(finds(r"(?i)\.(png|css)$", "/A.PNG") && !finds(r"\.png$", "/A.PNG"));
    }

    #[test]
    fn a_slash_at_the_end_makes_no_difference() {
        for text in ["^/admin/", "^/admin$", "^/admin/$"] {
            assert!(finds(text, "/admin"), "{text}");
        }
        assert!(!finds("^/admin/", "/administrator"));
        assert!(finds("^/$", "/") && !finds("^//$", "/"));
    }

    #[test]
    fn escapes_are_resolved_before_the_search() {
        assert!(finds("a b", "/a%20b") && finds("%2", "/%252") && !finds("%20", "/a%20b"));
        assert!(finds(r"\xC3\xA9$", "/caf%C3%A9"));
    }

    #[test]
    fn the_head_is_what_every_path_begins_with() {
        for (text, head) in [
            (r"^/a\.b/", "/a.b/"),
            ("^/api?", "/ap"),
            ("^/a|^/b", ""),
            ("/a", ""),
            (r"^/a/\d", "/a/"),
            ("^/a/(b)", "/a/"),
        ] {
            assert_eq!(Regex::parse(text).unwrap().literal_prefix(), head, "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for (text, fault) in [
            ("(", SYNTAX),
            (r"/\.(?!well-known)", LOOK_AROUND),
            ("(a{1000}){1000}", TOO_BIG),
        ] {
            assert_eq!(Regex::parse(text), Err(fault), "{text}");
        }
        assert_eq!(Regex::parse(&"a".repeat(4097)), Err(TOO_LONG));
    }
}
