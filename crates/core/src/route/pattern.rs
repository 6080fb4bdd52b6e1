//! Path patterns: `/login`, `/users/{id}/posts`, `/search/*`.
//!
//! Literal segments have the canonical spelling of [`CanonicalPath`]. So a pattern matches a
//! request whatever spelling either has.

use std::fmt;

use super::regex::{MARK, Regex};
use crate::path::{ABOVE_ROOT, CanonicalPath, Case, Malformed, fold};

pub const MAX_SEGMENTS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    segments: Vec<Segment>,
    /// The pattern ends in `/*`.
    rest: bool,
    /// `regex:..`: all paths in which the expression is found.
    regex: Option<Regex>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    /// In canonical spelling.
    Literal(Box<str>),
    /// `{name}`: any one segment.
    Param(Box<str>),
}

/// A text that is not a pattern. The configuration's author is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatternError {
    /// Bytes from the beginning of the text.
    pub at: usize,
    pub fault: Malformed,
}

// The faults of a pattern, besides those of paths and expressions.
const NOT_ROOTED: Malformed = Malformed("a path begins with `/`");
const EMPTY_SEGMENT: Malformed = Malformed("nothing stands between two slashes");
const TOO_DEEP: Malformed = Malformed("a path pattern has at most 32 segments");
const STAR: Malformed = Malformed("`*` can only be the whole last segment, as in `/search/*`");
const BRACE: Malformed = Malformed("a parameter is a whole segment, as in `/users/{id}`");
/// `:name`, `<name>` or `[name]`, as other programs write parameters. As plain text, the first
/// character must be escaped.
const FOREIGN: Malformed = Malformed("a parameter is written in braces, as in `/users/{id}`");
const PARAM_NAME: Malformed = Malformed("a parameter's name has letters, digits, `_` and `-`");
const PARAM_TWICE: Malformed = Malformed("this parameter has been named before");
const QUERY: Malformed = Malformed("only the path is matched, without query and fragment");
const PARAMS: Malformed = Malformed("`;` and what follows it in a segment is left out of matching");
const END: Malformed =
    Malformed("dots and spaces at the end of a segment are left out of matching");
const NOT_CANONICAL: Malformed = Malformed("write the path without `.`, `..`, and escaped slashes");

impl PathPattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if let Some(expression) = text.strip_prefix(MARK) {
            let regex = Regex::parse(expression).map_err(|why| fault(MARK.len(), why))?;
            return Ok(Self {
                segments: Vec::new(),
                rest: true,
                regex: Some(regex),
            });
        }
        let body = text.strip_prefix('/').ok_or(fault(0, NOT_ROOTED))?;
        let body = body
            .strip_suffix('/')
            .filter(|body| !body.is_empty())
            .unwrap_or(body);
        let mut pattern = Self {
            segments: Vec::new(),
            rest: false,
            regex: None,
        };
        if body.is_empty() {
            return Ok(pattern);
        }
        let mut at = 1;
        for segment in body.split('/') {
            if pattern.rest {
                // The star was not the last one.
                return Err(fault(at - 2, STAR));
            }
            pattern
                .push(segment)
                .map_err(|fault| PatternError { at, fault })?;
            at += segment.len() + 1;
        }
        Ok(pattern)
    }

    /// Names of its `{param}`s, in order.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Param(name) => Some(&**name),
            Segment::Literal(_) => None,
        })
    }

    /// Whether the pattern matches every reading of a path.
    pub fn matches(&self, path: &CanonicalPath<'_>) -> bool {
        path.readings().all(|path| self.matches_text(path))
    }

    #[must_use]
    pub fn in_case(mut self, case: Case) -> Self {
        if case == Case::Insensitive {
            for segment in &mut self.segments {
                if let Segment::Literal(text) = segment {
                    *text = fold(text).into();
                }
            }
            self.regex = self.regex.map(Regex::in_any_case);
        }
        self
    }

    pub(super) fn has_literals_of(&self, other: &PathPattern) -> bool {
        let literals = |pattern: &PathPattern| -> Vec<Option<Box<str>>> {
            let literal = |segment: &Segment| match segment {
                Segment::Literal(text) => Some(text.clone()),
                Segment::Param(_) => None,
            };
            pattern.segments.iter().map(literal).collect()
        };
        literals(self) == literals(other)
    }

    /// The values of its `{param}`s in a path that it matches, in order.
    pub(super) fn values_in<'p>(&self, path: &'p str) -> impl Iterator<Item = &'p str> {
        let given = segments(path);
        let both = self.segments.iter().zip(given);
        both.filter_map(|(segment, given)| match segment {
            Segment::Param(_) => Some(given),
            Segment::Literal(_) => None,
        })
    }

    /// Whether the pattern matches one reading of a path.
    pub(super) fn matches_text(&self, path: &str) -> bool {
        self.common(path).1
    }

    /// Counts the segments that match from the left, and says whether all match.
    pub(super) fn common(&self, path: &str) -> (usize, bool) {
        if let Some(regex) = &self.regex {
            return (0, regex.is_in_path(path));
        }
        let mut given = segments(path);
        for (at, segment) in self.segments.iter().enumerate() {
            let fits = match (segment, given.next()) {
                (_, None) => false,
                (Segment::Literal(own), Some(given)) => **own == *given,
                (Segment::Param(_), Some(_)) => true,
            };
            if !fits {
                return (at, false);
            }
        }
        (self.segments.len(), self.rest || given.next().is_none())
    }

    /// The value of its `{name}` in a path that it matches.
    pub fn param_of<'p>(&self, name: &str, path: &'p str) -> &'p str {
        let mut both = self.params().zip(self.values_in(path));
        both.find_map(|(own, value)| (own == name).then_some(value))
            .unwrap_or_default()
    }

    /// Writes the value of its `{name}`, or of a group of its expression, in a matching path.
    pub(super) fn push_param(&self, name: &str, path: &str, out: &mut Vec<u8>) {
        match &self.regex {
            Some(regex) => regex.push_path_group(name, path, out),
            None => out.extend_from_slice(self.param_of(name, path).as_bytes()),
        }
    }

    pub(super) fn has_param(&self, name: &str) -> bool {
        let has_group = self
            .regex
            .as_ref()
            .is_some_and(|regex| regex.has_group(name));
        has_group || self.params().any(|own| own == name)
    }

    /// The part of a matching path that `/*` stands for, without the slash before it.
    pub fn rest_of<'p>(&self, path: &'p str) -> &'p str {
        let mut rest = path.strip_prefix('/').unwrap_or(path);
        for _ in &self.segments {
            rest = rest.split_once('/').map_or("", |(_, rest)| rest);
        }
        rest
    }

    /// Makes a matching path in which `respell` has changed literals. `None` if it changed none.
    pub fn sample(&self, respell: impl Fn(&str) -> Option<String>) -> Option<String> {
        let mut path = String::new();
        let mut respelled = false;
        for segment in &self.segments {
            path.push('/');
            match segment {
                Segment::Param(_) => path.push('x'),
                Segment::Literal(text) => match respell(text) {
                    Some(other) => {
                        path.push_str(&other);
                        respelled = true;
                    }
                    None => path.push_str(text),
                },
            }
        }
        respelled.then_some(path)
    }

    /// Whether all its paths begin with these segments, given in canonical spelling.
    pub fn begins_with(&self, prefix: &str) -> bool {
        if let Some(regex) = &self.regex {
            let head = regex.literal_prefix();
            return head
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with('/'));
        }
        let mut own = self.segments.iter();
        let mut wanted = segments(prefix);
        wanted.all(|wanted| match own.next() {
            Some(Segment::Literal(literal)) => **literal == *wanted,
            _ => false,
        })
    }

    pub fn is_regex(&self) -> bool {
        self.regex.is_some()
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether it ends in `/*`.
    pub(super) fn takes_rest(&self) -> bool {
        self.rest
    }

    fn push(&mut self, text: &str) -> Result<(), Malformed> {
        if self.segments.len() == MAX_SEGMENTS {
            return Err(TOO_DEEP);
        }
        match text {
            "" => return Err(EMPTY_SEGMENT),
            "*" => {
                self.rest = true;
                return Ok(());
            }
            _ => {}
        }
        let segment = match text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'))
        {
            Some(name) => Segment::Param(self.param(name)?),
            None => Segment::Literal(literal(text)?),
        };
        self.segments.push(segment);
        Ok(())
    }

    fn param(&self, name: &str) -> Result<Box<str>, Malformed> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || !name.bytes().all(fits) {
            return Err(PARAM_NAME);
        }
        if self.params().any(|known| known == name) {
            return Err(PARAM_TWICE);
        }
        Ok(name.into())
    }
}

/// The non-empty segments of a path.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

fn literal(text: &str) -> Result<Box<str>, Malformed> {
    for byte in text.bytes() {
        match byte {
            b'*' => return Err(STAR),
            b'{' | b'}' => return Err(BRACE),
            b'?' | b'#' => return Err(QUERY),
            b';' => return Err(PARAMS),
            _ => {}
        }
    }
    let within = |open: char, close: char| text.starts_with(open) && text.ends_with(close);
    if (text.starts_with(':') && text.len() > 1) || within('<', '>') || within('[', ']') {
        return Err(FOREIGN);
    }
    if text.to_ascii_lowercase().contains("%3b") {
        return Err(PARAMS);
    }
    let path = format!("/{text}");
    let canonical = CanonicalPath::parse(&path).map_err(|error| match error == ABOVE_ROOT {
        true => NOT_CANONICAL,
        false => error,
    })?;
    let segment = canonical.as_str().trim_start_matches('/');
    if segment.is_empty() || segment.contains('/') {
        return Err(NOT_CANONICAL);
    }
    if !canonical.is_plain() {
        return Err(END);
    }
    Ok(segment.into())
}

fn fault(at: usize, fault: Malformed) -> PatternError {
    PatternError { at, fault }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(regex) = &self.regex {
            return write!(f, "{MARK}{}", regex.as_str());
        }
        for segment in &self.segments {
            match segment {
                // A star, or a colon at the beginning, was written as an escape.
                Segment::Literal(text) => {
                    let text = text.replace('*', "%2A");
                    match text.strip_prefix(':') {
                        Some(rest) => write!(f, "/%3A{rest}")?,
                        None => write!(f, "/{text}")?,
                    }
                }
                Segment::Param(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.rest, self.segments.is_empty()) {
            (true, _) => f.write_str("/*"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.fault, f)
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn takes(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern)
            .unwrap()
            .matches(&CanonicalPath::parse(path).unwrap())
    }

    #[test]
    fn a_pattern_takes_what_it_says() {
        assert!(
            takes("/login", "/login") && takes("/login", "/login/") && takes("/login/", "/login")
        );
        assert!(
            !takes("/login", "/login/x") && !takes("/login", "/logins") && !takes("/login", "/")
        );
        assert!(takes("/users/{id}/posts", "/users/5/posts"));
        assert!(!takes("/users/{id}/posts", "/users/posts"));
        assert!(takes("/search/*", "/search") && takes("/search/*", "/search/a/b"));
        assert!(!takes("/search/*", "/searches"));
        assert!(takes("/*", "/") && takes("/*", "/a/b") && takes("/", "/") && !takes("/", "/a"));
    }

    #[test]
    fn literals_meet_requests_in_any_spelling() {
        assert!(takes("/caf\u{e9}", "/caf%c3%a9") && takes("/%7euser", "/~user"));
        assert!(takes("/a%2ab", "/a*b") && takes("/a b", "/a%20b"));
        assert!(takes("/%3aid", "/:id") && takes("/a:b/:", "/a:b/:"));
    }

    #[test]
    fn a_path_with_two_readings_must_be_taken_in_both() {
        assert!(!takes("/healthz", "/admin/../healthz"));
        assert!(!takes("/a/b", "/a%2fb") && !takes("/{x}", "/a%2fb"));
        assert!(takes("/a/*", "/a/b%2fc") && takes("/*", "/a/../b"));
        for spelling in ["/login.", "/login%20", "/login%3Bx", "/login./"] {
            assert!(
                !takes("/login", spelling) && takes("/{page}", spelling),
                "{spelling}"
            );
        }
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, at, expected) in [
            ("", 0, NOT_ROOTED),
            ("login", 0, NOT_ROOTED),
            ("*", 0, NOT_ROOTED),
            ("/a//b", 3, EMPTY_SEGMENT),
            ("//", 1, EMPTY_SEGMENT),
            ("/*/a", 1, STAR),
            ("/a/*/b", 3, STAR),
            ("/a*", 1, STAR),
            ("/**", 1, STAR),
            ("/a/x{id}", 3, BRACE),
            ("/a/{id", 3, BRACE),
            ("/a/{}", 3, PARAM_NAME),
            ("/a/:id", 3, FOREIGN),
            ("/a/<id>/b", 3, FOREIGN),
            ("/a/[id]", 3, FOREIGN),
            ("/a/{i d}", 3, PARAM_NAME),
            ("/a/{a}{b}", 3, PARAM_NAME),
            ("/{id}/{id}", 6, PARAM_TWICE),
            ("/a?b", 1, QUERY),
            ("/a#b", 1, QUERY),
            ("/a;b", 1, PARAMS),
            ("/a/x%3by", 3, PARAMS),
            ("/a./b", 1, END),
            ("/a/b%20", 3, END),
            ("/a/b. ", 3, END),
            ("/a/...", 3, NOT_CANONICAL),
            ("/a/../b", 3, NOT_CANONICAL),
            ("/a/./b", 3, NOT_CANONICAL),
            ("/a%2fb", 1, NOT_CANONICAL),
            ("/a\\b", 1, NOT_CANONICAL),
            ("/a/%2", 3, crate::path::ESCAPE),
        ] {
            let error = PathPattern::parse(text).unwrap_err();
            assert_eq!((error.at, error.fault), (at, expected), "{text}");
        }
        let deep = "/a".repeat(MAX_SEGMENTS + 1);
        assert_eq!(PathPattern::parse(&deep).unwrap_err().fault, TOO_DEEP);
        assert!(PathPattern::parse(&"/a".repeat(MAX_SEGMENTS)).is_ok());
    }

    #[test]
    fn parameters_are_named_in_order() {
        let pattern = PathPattern::parse("/a/{x}/b/{y}/*").unwrap();
        assert_eq!(pattern.params().collect::<Vec<_>>(), ["x", "y"]);
    }

    const WRITTEN: &str = "(/([a-z%]{1,3}|\\{[a-z]\\}|%[0-9a-f]{2})){0,4}(/\\*)?/?";

    proptest! {
        #[test]
        fn a_pattern_reads_back_as_written(text in WRITTEN) {
            if let Ok(pattern) = PathPattern::parse(&text) {
                prop_assert_eq!(PathPattern::parse(&pattern.to_string()), Ok(pattern));
            }
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,30}") {
            let _ = PathPattern::parse(&text);
        }
    }
}
