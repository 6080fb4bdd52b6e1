//! Path patterns: `/login`, `/users/{id}/posts`, `/search/*`.
//!
//! Literal segments have the canonical spelling of [`CanonicalPath`]. So a pattern matches a
//! request whatever spelling either has.

use std::fmt;

use super::regex::{MARK, Regex, RegexFault};
use crate::path::{CanonicalPath, Case, PathError, fold};

/// Segments in one pattern, at most.
pub const MAX_SEGMENTS: usize = 32;

/// The paths of a route.
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
    pub fault: PatternFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PatternFault {
    /// It does not begin with `/`.
    Relative,
    /// Nothing stands between two slashes.
    EmptySegment,
    /// More than [`MAX_SEGMENTS`] segments.
    TooDeep,
    /// `*` is not the whole last segment.
    Star,
    /// `{` or `}` in a segment that is not one `{name}`.
    Brace,
    /// `:name`, `<name>` or `[name]`, as other programs write parameters. As plain text, the first
    /// character must be escaped.
    Foreign,
    /// The name between the braces is empty or has other characters than letters, digits, `_`
    /// and `-`.
    ParamName,
    /// Two `{param}`s of the same name.
    ParamTwice,
    /// `?` or `#`: a pattern sees the path only.
    Query,
    /// `;` or `%3B`: matching ignores the rest of the segment behind it.
    Params,
    /// A dot or a space at the end of a segment, which matching ignores.
    End,
    /// `.`, `..`, or an escaped `/` or `\`: paths are matched without them.
    NotCanonical,
    /// No request may have such a path.
    Path(PathError),
    /// The text behind `regex:`.
    Regex(RegexFault),
}

impl PathPattern {
    /// Reads a pattern. A trailing slash is ignored, as in requests.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if let Some(expression) = text.strip_prefix(MARK) {
            let regex = Regex::parse(expression)
                .map_err(|why| fault(MARK.len(), PatternFault::Regex(why)))?;
            return Ok(Self {
                segments: Vec::new(),
                rest: true,
                regex: Some(regex),
            });
        }
        let body = text
            .strip_prefix('/')
            .ok_or(fault(0, PatternFault::Relative))?;
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
                return Err(fault(at - 2, PatternFault::Star));
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

    /// Makes the pattern match paths of this case.
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

    /// Whether both have the same literals in the same places.
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
        if let Some(regex) = &self.regex {
            return regex.is_in_path(path);
        }
        let mut given = segments(path);
        for segment in &self.segments {
            match (segment, given.next()) {
                (_, None) => return false,
                (Segment::Literal(literal), Some(given)) if **literal != *given => return false,
                _ => {}
            }
        }
        self.rest || given.next().is_none()
    }

    /// The value of its `{name}` in a path that it matches.
    pub fn param_of<'p>(&self, name: &str, path: &'p str) -> &'p str {
        let mut both = self.params().zip(self.values_in(path));
        both.find_map(|(own, value)| (own == name).then_some(value))
            .unwrap_or_default()
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

    fn push(&mut self, text: &str) -> Result<(), PatternFault> {
        if self.segments.len() == MAX_SEGMENTS {
            return Err(PatternFault::TooDeep);
        }
        match text {
            "" => return Err(PatternFault::EmptySegment),
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

    fn param(&self, name: &str) -> Result<Box<str>, PatternFault> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || !name.bytes().all(fits) {
            return Err(PatternFault::ParamName);
        }
        if self.params().any(|known| known == name) {
            return Err(PatternFault::ParamTwice);
        }
        Ok(name.into())
    }
}

/// The non-empty segments of a path.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

fn literal(text: &str) -> Result<Box<str>, PatternFault> {
    for byte in text.bytes() {
        match byte {
            b'*' => return Err(PatternFault::Star),
            b'{' | b'}' => return Err(PatternFault::Brace),
            b'?' | b'#' => return Err(PatternFault::Query),
            b';' => return Err(PatternFault::Params),
            _ => {}
        }
    }
    let within = |open: char, close: char| text.starts_with(open) && text.ends_with(close);
    if (text.starts_with(':') && text.len() > 1) || within('<', '>') || within('[', ']') {
        return Err(PatternFault::Foreign);
    }
    if text.to_ascii_lowercase().contains("%3b") {
        return Err(PatternFault::Params);
    }
    let path = format!("/{text}");
    let canonical = CanonicalPath::parse(&path).map_err(|error| match error {
        PathError::AboveRoot => PatternFault::NotCanonical,
        error => PatternFault::Path(error),
    })?;
    let segment = canonical.as_str().trim_start_matches('/');
    if segment.is_empty() || segment.contains('/') {
        return Err(PatternFault::NotCanonical);
    }
    if !canonical.is_plain() {
        return Err(PatternFault::End);
    }
    Ok(segment.into())
}

fn fault(at: usize, fault: PatternFault) -> PatternError {
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

impl fmt::Display for PatternFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relative => "a path begins with `/`",
            Self::EmptySegment => "nothing stands between two slashes",
            Self::TooDeep => "a path pattern has at most 32 segments",
            Self::Star => "`*` can only be the whole last segment, as in `/search/*`",
            Self::Brace => "a parameter is a whole segment, as in `/users/{id}`",
            Self::Foreign => "a parameter is written in braces, as in `/users/{id}`",
            Self::ParamName => "a parameter's name has letters, digits, `_` and `-`",
            Self::ParamTwice => "this parameter has been named before",
            Self::Query => "only the path is matched, without query and fragment",
            Self::Params => "`;` and what follows it in a segment is left out of matching",
            Self::End => "dots and spaces at the end of a segment are left out of matching",
            Self::NotCanonical => "write the path without `.`, `..`, and escaped slashes",
            Self::Path(error) => return error.fmt(f),
            Self::Regex(why) => return why.fmt(f),
        })
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
            ("", 0, PatternFault::Relative),
            ("login", 0, PatternFault::Relative),
            ("*", 0, PatternFault::Relative),
            ("/a//b", 3, PatternFault::EmptySegment),
            ("//", 1, PatternFault::EmptySegment),
            ("/*/a", 1, PatternFault::Star),
            ("/a/*/b", 3, PatternFault::Star),
            ("/a*", 1, PatternFault::Star),
            ("/**", 1, PatternFault::Star),
            ("/a/x{id}", 3, PatternFault::Brace),
            ("/a/{id", 3, PatternFault::Brace),
            ("/a/{}", 3, PatternFault::ParamName),
            ("/a/:id", 3, PatternFault::Foreign),
            ("/a/<id>/b", 3, PatternFault::Foreign),
            ("/a/[id]", 3, PatternFault::Foreign),
            ("/a/{i d}", 3, PatternFault::ParamName),
            ("/a/{a}{b}", 3, PatternFault::ParamName),
            ("/{id}/{id}", 6, PatternFault::ParamTwice),
            ("/a?b", 1, PatternFault::Query),
            ("/a#b", 1, PatternFault::Query),
            ("/a;b", 1, PatternFault::Params),
            ("/a/x%3by", 3, PatternFault::Params),
            ("/a./b", 1, PatternFault::End),
            ("/a/b%20", 3, PatternFault::End),
            ("/a/b. ", 3, PatternFault::End),
            ("/a/...", 3, PatternFault::NotCanonical),
            ("/a/../b", 3, PatternFault::NotCanonical),
            ("/a/./b", 3, PatternFault::NotCanonical),
            ("/a%2fb", 1, PatternFault::NotCanonical),
            ("/a\\b", 1, PatternFault::NotCanonical),
            ("/a/%2", 3, PatternFault::Path(PathError::Escape)),
        ] {
            let error = PathPattern::parse(text).unwrap_err();
            assert_eq!((error.at, error.fault), (at, expected), "{text}");
        }
        let deep = "/a".repeat(MAX_SEGMENTS + 1);
        assert_eq!(
            PathPattern::parse(&deep).unwrap_err().fault,
            PatternFault::TooDeep
        );
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
