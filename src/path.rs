//! One canonical path for each resource, so that no spelling of a path escapes its limit.
//!
//! Routes and keys see this form only; the upstream gets the target as the client sent it. So
//! what matters is that an upstream never reads a path as another resource than we counted. Where
//! all readings agree the spelling is folded; where they cannot, the path is refused.
//!
//! - Every character that may stand in a segment unescaped does; all others are `%XX` in upper
//!   case, also those that arrived unescaped.
//! - Empty segments, `.` and a trailing slash are dropped, and so is what follows a `;`.
//! - `..` removes the segment before it; `%2f`, `%5c` and `\` separate segments. Some upstreams do
//!   neither: how those read the path is kept as [`CanonicalPath::unresolved`], and a request
//!   whose two readings belong to different routes belongs to none.
//! - What only an attack contains is refused; see [`PathError`].

use std::borrow::Cow;
use std::fmt;

/// A request's path in the one spelling that routes and keys see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalPath<'a> {
    resolved: Cow<'a, str>,
    unresolved: Option<Box<str>>,
}

/// Why a path is refused. The client is at fault: 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathError {
    /// It does not begin with `/`.
    Relative,
    /// A `%` without two hexadecimal digits.
    Escape,
    /// A control character, escaped or not.
    Control,
    /// An escape within an escape, such as `%252f`, that hides `/`, `\`, `.` or NUL.
    DoubleEscape,
    /// A longer UTF-8 form than the character has, such as `%c0%af` for `/`.
    Overlong,
    /// A `.` or `..` beside an escaped separator or a parameter: `..%2f`, `..;`.
    HiddenDots,
    /// More `..` than there are segments.
    AboveRoot,
    /// `..` and an escaped separator in one path: too many readings to compare.
    TooManyReadings,
}

/// How a `\`, or an escaped `/` or `\`, is written between decoding and splitting. Nothing else
/// decodes to it.
const MAYBE_SEPARATOR: char = '\\';

impl<'a> CanonicalPath<'a> {
    /// The canonical form of a path, given as it stands in the request's target.
    pub fn parse(raw: &'a str) -> Result<Self, PathError> {
        if is_canonical(raw) {
            return Ok(Self {
                resolved: Cow::Borrowed(raw),
                unresolved: None,
            });
        }
        if !raw.starts_with('/') {
            return Err(PathError::Relative);
        }
        let decoded = decode(raw)?;
        refuse_double_escapes(&decoded)?;
        let Resolved { text, climbs } = resolve(&decoded)?;
        let separates = decoded.contains(MAYBE_SEPARATOR);
        if climbs && separates {
            return Err(PathError::TooManyReadings);
        }
        let unresolved = (climbs || separates).then(|| leave_unresolved(&decoded).into());
        let resolved = if text == raw {
            Cow::Borrowed(raw)
        } else {
            Cow::Owned(text)
        };
        Ok(Self {
            resolved,
            unresolved,
        })
    }

    /// The same on its own; [`CanonicalPath::is_as_sent`] is forgotten.
    pub fn into_owned(self) -> CanonicalPath<'static> {
        CanonicalPath {
            resolved: Cow::Owned(self.resolved.into_owned()),
            unresolved: self.unresolved,
        }
    }

    /// Begins with `/`; ends with one only if it is nothing else.
    pub fn as_str(&self) -> &str {
        &self.resolved
    }

    /// The path to an upstream that neither removes `..` nor splits at escaped separators (which
    /// stand as `\` here), where that differs. A route or a bypass rule must take both readings.
    pub fn unresolved(&self) -> Option<&str> {
        self.unresolved.as_deref()
    }

    /// Whether the client wrote it exactly so.
    pub fn is_as_sent(&self) -> bool {
        matches!(self.resolved, Cow::Borrowed(_))
    }
}

/// Whether a byte stands for itself in a segment: RFC 3986's `pchar` without `;`.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'@')
        || matches!(
            byte,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'='
        )
}

/// Bytes that the quick scan passes over: plain ones, and the slash.
const PASSES: [bool; 256] = {
    let mut passes = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        passes[byte] = is_plain(byte as u8) || byte as u8 == b'/';
        byte += 1;
    }
    passes
};

/// One scan that finds nothing to do in nearly every path. It may miss a canonical path (one with
/// an escape, or a segment that begins with a dot), which then takes the long way to itself.
fn is_canonical(raw: &str) -> bool {
    if raw == "/" {
        return true;
    }
    let mut previous = 0;
    for &byte in raw.as_bytes() {
        if !PASSES[usize::from(byte)] || (previous == b'/' && matches!(byte, b'/' | b'.')) {
            return false;
        }
        previous = byte;
    }
    raw.starts_with('/') && previous != b'/'
}

/// Writes every character in its one form; slashes and `;` stay, so that segments can be told.
fn decode(raw: &str) -> Result<String, PathError> {
    let mut decoded = String::with_capacity(raw.len() + 8);
    let mut escape_before = None;
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        let (byte, escaped) = match byte {
            b'%' => (unescape(bytes.next(), bytes.next())?, true),
            _ => (byte, false),
        };
        let before = escape_before.take();
        match byte {
            0..=0x1f | 0x7f => return Err(PathError::Control),
            b'\\' => decoded.push(MAYBE_SEPARATOR),
            b'/' if escaped => decoded.push(MAYBE_SEPARATOR),
            b'/' => decoded.push('/'),
            b';' if !escaped => decoded.push(';'),
            _ if is_plain(byte) => decoded.push(char::from(byte)),
            _ => {
                if before.is_some_and(|before| is_overlong(before, byte)) {
                    return Err(PathError::Overlong);
                }
                push_escape(&mut decoded, byte);
                escape_before = Some(byte);
            }
        }
    }
    Ok(decoded)
}

fn unescape(high: Option<u8>, low: Option<u8>) -> Result<u8, PathError> {
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    match (digit(high), digit(low)) {
        (Some(high), Some(low)) => u8::try_from(high * 16 + low).map_err(|_| PathError::Escape),
        _ => Err(PathError::Escape),
    }
}

fn push_escape(text: &mut String, byte: u8) {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    text.push('%');
    text.push(DIGITS[usize::from(byte >> 4)]);
    text.push(DIGITS[usize::from(byte & 15)]);
}

/// Whether two bytes begin a UTF-8 form that is longer than need be: some decoders accept it, and
/// see a slash or a dot in it.
fn is_overlong(first: u8, second: u8) -> bool {
    matches!(
        (first, second),
        (0xc0 | 0xc1, 0x80..=0xbf) | (0xe0, 0x80..=0x9f) | (0xf0, 0x80..=0x8f)
    )
}

/// Refuses `%252f` and its like at any depth (`%25252f`): after decoding, because the digits may
/// have been escaped too.
fn refuse_double_escapes(decoded: &str) -> Result<(), PathError> {
    for (at, escape) in decoded.match_indices("%25") {
        let mut inner = &decoded[at + escape.len()..];
        while let Some(deeper) = inner.strip_prefix("25") {
            inner = deeper;
        }
        let mut digits = inner.bytes();
        if let Ok(b'/' | b'\\' | b'.' | 0) = unescape(digits.next(), digits.next()) {
            return Err(PathError::DoubleEscape);
        }
    }
    Ok(())
}

struct Resolved {
    text: String,
    climbs: bool,
}

/// The reading of an upstream that splits at every separator and removes dot segments.
fn resolve(decoded: &str) -> Result<Resolved, PathError> {
    let mut text = String::with_capacity(decoded.len());
    let mut climbs = false;
    for segment in decoded.split('/') {
        let is_whole = !segment.contains([MAYBE_SEPARATOR, ';']);
        for piece in segment.split(MAYBE_SEPARATOR) {
            match without_params(piece) {
                "" => {}
                "." | ".." if !is_whole => return Err(PathError::HiddenDots),
                "." => {}
                ".." => {
                    let parent = text.rfind('/').ok_or(PathError::AboveRoot)?;
                    text.truncate(parent);
                    climbs = true;
                }
                name => {
                    text.push('/');
                    text.push_str(name);
                }
            }
        }
    }
    if text.is_empty() {
        text.push('/');
    }
    Ok(Resolved { text, climbs })
}

/// The reading of an upstream that splits at `/` only and takes `..` for a name.
fn leave_unresolved(decoded: &str) -> String {
    let mut text = String::with_capacity(decoded.len());
    for segment in decoded.split('/').map(without_params) {
        if !matches!(segment, "" | ".") {
            text.push('/');
            text.push_str(segment);
        }
    }
    if text.is_empty() {
        text.push('/');
    }
    text
}

fn without_params(segment: &str) -> &str {
    segment.split_once(';').map_or(segment, |(name, _)| name)
}

impl fmt::Display for CanonicalPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PathError {
    /// A sentence for the client.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Relative => "the path does not begin with `/`",
            Self::Escape => "a `%` in the path is not followed by two hexadecimal digits",
            Self::Control => "the path has a control character",
            Self::DoubleEscape => "the path hides a separator or a dot in a double escape",
            Self::Overlong => "the path has an overlong UTF-8 form",
            Self::HiddenDots => "the path hides `.` or `..` beside `%2f`, `%5c`, `\\` or `;`",
            Self::AboveRoot => "the path climbs above its root",
            Self::TooManyReadings => "the path has both `..` and an escaped separator",
        }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail())
    }
}

impl std::error::Error for PathError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(raw: &str) -> String {
        CanonicalPath::parse(raw).unwrap().as_str().to_owned()
    }

    fn refused(raw: &str) -> PathError {
        CanonicalPath::parse(raw).unwrap_err()
    }

    #[test]
    fn ordinary_paths_are_borrowed() {
        for raw in [
            "/",
            "/login",
            "/a/b.c/d-e_f~g",
            "/@me/x:y",
            "/.well-known/x",
            "/caf%C3%A9",
        ] {
            let path = CanonicalPath::parse(raw).unwrap();
            assert_eq!(path.as_str(), raw);
            assert!(path.is_as_sent(), "{raw}");
            assert_eq!(path.unresolved(), None);
        }
    }

    #[test]
    fn every_spelling_of_a_path_is_one_path() {
        for raw in [
            "/login/",
            "//login",
            "/login//",
            "/./login",
            "/login/.",
            "/%6cogin",
            "/%6Cog%69n",
            "/login;x=1",
            "/;x/login",
            "/login;",
            "/a/../login",
            "/%2e/login",
            "/a/%2e%2E/login",
            "/%2flogin",
            "/%5Clogin",
            "/\\login",
            "/login%2f",
            "/.//login/./",
        ] {
            assert_eq!(canonical(raw), "/login", "{raw}");
        }
        assert_eq!(canonical("/a!b/c@d"), canonical("/a%21b/c%40d"));
        assert_eq!(canonical("/caf\u{e9}"), canonical("/caf%c3%a9"));
        assert_eq!(canonical("/a%3bb"), "/a%3Bb");
        assert_eq!(canonical("/{x}"), "/%7Bx%7D");
        assert_eq!(canonical("/a/b/.."), "/a");
        assert_eq!(canonical("/a/.."), "/");
        assert_eq!(canonical("/.../..x/x.."), "/.../..x/x..");
    }

    #[test]
    fn case_is_kept() {
        assert_eq!(canonical("/Login/"), "/Login");
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for (raw, error) in [
            ("", PathError::Relative),
            ("login", PathError::Relative),
            ("*", PathError::Relative),
            ("/%", PathError::Escape),
            ("/%2", PathError::Escape),
            ("/%zz", PathError::Escape),
            ("/%u002f", PathError::Escape),
            ("/%+2f", PathError::Escape),
            ("/a%00", PathError::Control),
            ("/a%0d%0A", PathError::Control),
            ("/a%7f", PathError::Control),
            ("/a\tb", PathError::Control),
            ("/a%252fb", PathError::DoubleEscape),
            ("/a%25252Fb", PathError::DoubleEscape),
            ("/%252e%252e/b", PathError::DoubleEscape),
            ("/a%255cb", PathError::DoubleEscape),
            ("/a%25%32%66b", PathError::DoubleEscape),
            ("/a%2500", PathError::DoubleEscape),
            ("/a%c0%afb", PathError::Overlong),
            ("/%C0%AE%C0%AE/", PathError::Overlong),
            ("/%e0%80%af", PathError::Overlong),
            ("/%f0%80%80%af", PathError::Overlong),
            ("/a/..%2fb", PathError::HiddenDots),
            ("/a%2f../b", PathError::HiddenDots),
            ("/a%2f.%2fb", PathError::HiddenDots),
            ("/a%5c..%5cb", PathError::HiddenDots),
            ("/a/..;/b", PathError::HiddenDots),
            ("/a/.;x/b", PathError::HiddenDots),
            ("/..", PathError::AboveRoot),
            ("/a/../../b", PathError::AboveRoot),
            ("/%2e%2e/b", PathError::AboveRoot),
            ("/a%2fb/../c", PathError::TooManyReadings),
        ] {
            assert_eq!(refused(raw), error, "{raw}");
        }
    }

    #[test]
    fn other_escapes_and_odd_bytes_stay_escaped() {
        assert_eq!(canonical("/50%25"), "/50%25");
        assert_eq!(canonical("/a%2520b"), "/a%2520b");
        assert_eq!(canonical("/%ff%fe"), "/%FF%FE");
        assert_eq!(canonical("/a%20b%3fc%23"), "/a%20b%3Fc%23");
    }

    #[test]
    fn the_reading_of_a_literal_upstream_is_kept_where_it_differs() {
        let unresolved = |raw: &'static str| {
            CanonicalPath::parse(raw)
                .unwrap()
                .unresolved()
                .map(str::to_owned)
        };
        assert_eq!(unresolved("/a/../b").as_deref(), Some("/a/../b"));
        assert_eq!(unresolved("/a%2fb;x/./c/").as_deref(), Some("/a\\b/c"));
        assert_eq!(unresolved("//a/./b;c/"), None);
    }

    /// One spelling of `path` out of many, chosen by `choices`.
    fn respell(path: &str, choices: &[u8]) -> String {
        let mut choices = choices.iter().copied().cycle();
        let mut choose = move || choices.next().unwrap_or(0);
        let mut raw = String::new();
        for c in path.chars() {
            match (c, choose() % 12) {
                ('/', 0) => raw.push_str("//"),
                ('/', 1) => raw.push_str("/./"),
                ('/', 2) => raw.push_str("/%2E/"),
                ('/', 3) => raw.push_str("/zz/../"),
                ('/', 4) => raw.push_str("/zz/.%2e/"),
                ('/', 5) if !raw.is_empty() => raw.push_str("%2f"),
                ('/', 6) if !raw.is_empty() => raw.push('\\'),
                ('/', 7) if !raw.is_empty() => raw.push_str(";p=1/"),
                ('/', 8) if !raw.is_empty() => raw.push_str("/..;/"),
                ('/', _) => raw.push('/'),
                (c, 0..=3) => raw.push_str(&format!("%{:02x}", c as u32)),
                (c, 4 | 5) => raw.push_str(&format!("%{:02X}", c as u32)),
                (c, _) => raw.push(c),
            }
        }
        if choose() % 3 == 0 {
            raw.push('/');
        }
        raw
    }

    proptest! {
        #[test]
        fn canonical_paths_stay_as_they_are(
            raw in "/([a-c./;%\\\\]|%2[0-9a-fA-F]|%5[cC]|é|%[0-9A-F]{2}){0,16}"
        ) {
            if let Ok(path) = CanonicalPath::parse(&raw) {
                let again = CanonicalPath::parse(path.as_str()).unwrap();
                prop_assert_eq!(again.as_str(), path.as_str());
                prop_assert!(again.is_as_sent());
                prop_assert_eq!(again.unresolved(), None);
            }
        }

        #[test]
        fn no_spelling_makes_another_path(
            path in "(/[a-z@!~]{1,4}){1,5}",
            choices in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            let raw = respell(&path, &choices);
            if let Ok(found) = CanonicalPath::parse(&raw) {
                prop_assert_eq!(found.as_str(), path, "{}", raw);
            }
        }

        #[test]
        fn nothing_panics(raw in "\\PC{0,40}") {
            let _ = CanonicalPath::parse(&raw);
        }
    }
}
