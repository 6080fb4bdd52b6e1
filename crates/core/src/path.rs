//! One canonical path for each resource, so that no spelling of a path escapes its limit.
//!
//! Routes and keys see only this form; the upstream gets the target as the client sent it. An
//! upstream must never read a path as another resource than the proxy counted. If all readings
//! agree, spellings become one form. Otherwise the path is refused.
//!
//! - Every character that may stand in a segment unescaped does; all others are `%XX` in upper
//!   case, also those that arrived unescaped.
//! - Empty segments, `.`, a trailing slash, and the text behind a `;` are dropped.
//! - `..` removes the segment before it; `%2f`, `%5c` and `\` separate segments; the text behind a
//!   `%3b`, and dots and spaces at a segment's end, are dropped. Some upstreams do only some of
//!   these. [`CanonicalPath::others`] has their readings. A request whose readings belong to
//!   different routes is refused.
//! - A path that only an attacker sends is refused.
//!
//! Letter case tells paths apart, unless [`Case::Insensitive`] is asked for.

mod fold;
mod reading;

use std::borrow::Cow;
use std::fmt;

pub use fold::fold;
use reading::{Habits, read};

/// A request's path in the one spelling that routes and keys see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalPath<'a> {
    resolved: Cow<'a, str>,
    /// See [`CanonicalPath::ends_with_slash`].
    ends_with_slash: bool,
    /// `None` for nearly every path.
    variants: Option<Box<PathVariants>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PathVariants {
    /// Other readings; at most one for each set of habits.
    others: Vec<Box<str>>,
    /// All readings without letter case.
    folded: Option<CanonicalPath<'static>>,
}

impl PathVariants {
    fn of_readings(others: Vec<Box<str>>) -> Option<Box<PathVariants>> {
        let folded = None;
        (!others.is_empty()).then(|| Box::new(PathVariants { others, folded }))
    }
}

/// Whether letter case tells paths apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Case {
    /// `/Login` and `/login` are two paths.
    #[default]
    Sensitive,
    Insensitive,
}

/// What is wrong with a text: a sentence for its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

// The reasons to refuse a path. The client is at fault: 400.
pub(crate) const RELATIVE: Malformed = Malformed("the path does not begin with `/`");
pub(crate) const ESCAPE: Malformed =
    Malformed("a `%` in the path is not followed by two hexadecimal digits");
/// Escaped or not.
pub(crate) const CONTROL: Malformed = Malformed("the path has a control character");
/// Such as `%252f`.
pub(crate) const DOUBLE_ESCAPE: Malformed =
    Malformed("the path hides a separator or a dot in a double escape");
/// Such as `%c0%af` for `/`.
pub(crate) const OVERLONG: Malformed = Malformed("the path has an overlong UTF-8 form");
/// Such as `..%2f`, `..;` or `..%20`.
pub(crate) const HIDDEN_DOTS: Malformed =
    Malformed("the path hides `.` or `..` beside `%2f`, `%5c`, `\\`, `;` or a space");
pub(crate) const ABOVE_ROOT: Malformed = Malformed("the path climbs above its root");
pub(crate) const TOO_MANY_READINGS: Malformed =
    Malformed("the path has both `..` and an escaped separator, or a segment of dots or spaces");

/// Stands for `\`, or an escaped `/` or `\`, between decoding and splitting. Nothing else decodes
/// to it.
const MAYBE_SEPARATOR: char = '\\';

impl<'a> CanonicalPath<'a> {
    pub fn parse(raw: &'a str) -> Result<Self, Malformed> {
        if is_canonical(raw) {
            return Ok(Self {
                resolved: Cow::Borrowed(raw),
                ends_with_slash: raw == "/",
                variants: None,
            });
        }
        if !raw.starts_with('/') {
            return Err(RELATIVE);
        }
        let decoded = decode(raw)?;
        refuse_double_escapes(&decoded)?;
        let habits = Habits::seen_in(&decoded)?;
        let text = read(&decoded, habits)?;
        let mut others: Vec<Box<str>> = Vec::new();
        for fewer in habits.fewer() {
            let other = read(&decoded, fewer)?;
            if other != text && !others.iter().any(|known| **known == *other) {
                others.push(other.into());
            }
        }
        let variants = PathVariants::of_readings(others);
        let resolved = if text == raw {
            Cow::Borrowed(raw)
        } else {
            Cow::Owned(text)
        };
        Ok(Self {
            resolved,
            ends_with_slash: ends_with_slash(&decoded),
            variants,
        })
    }

    /// Adds the form without letter case that [`CanonicalPath::in_case`] returns.
    #[must_use]
    pub fn with_folded(mut self) -> Self {
        let folds = |text: &str| matches!(fold(text), Cow::Owned(other) if other != text);
        if !self.readings().any(folds) {
            // The path is its own folded form.
            return self;
        }
        let others: Vec<Box<str>> = self.others().map(|text| fold(text).into()).collect();
        let variants = PathVariants::of_readings(others);
        let folded = CanonicalPath {
            resolved: Cow::Owned(fold(&self.resolved).into_owned()),
            ends_with_slash: self.ends_with_slash,
            variants,
        };
        self.variants.get_or_insert_default().folded = Some(folded);
        self
    }

    /// The path as a route of this case sees it. [`CanonicalPath::with_folded`] comes first.
    #[inline]
    pub fn in_case(&self, case: Case) -> &CanonicalPath<'a> {
        match case {
            Case::Sensitive => self,
            Case::Insensitive => self.folded().unwrap_or(self),
        }
    }

    fn folded(&self) -> Option<&CanonicalPath<'a>> {
        self.variants.as_ref()?.folded.as_ref()
    }

    /// Begins with `/`; ends with one only if it is nothing else.
    pub fn as_str(&self) -> &str {
        &self.resolved
    }

    /// Whether the client wrote a slash at the end, or a spelling that means one: `/a/.`, `/a%2F`.
    pub fn ends_with_slash(&self) -> bool {
        self.ends_with_slash
    }

    /// The readings of upstreams that do not remove `..`, do not split at escaped separators
    /// (written `\` here), or keep a `%3B` or dots and spaces at the end of a segment. Only
    /// readings that differ. A route or a bypass rule must match all of them.
    pub fn others(&self) -> impl Iterator<Item = &str> {
        let others = self
            .variants
            .as_ref()
            .map_or(&[][..], |variants| &variants.others);
        others.iter().map(|text| &**text)
    }

    /// [`CanonicalPath::as_str`], then all [`CanonicalPath::others`].
    pub fn readings(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.as_str()).chain(self.others())
    }

    /// The longest reading without `..` and escaped separators. Dots and spaces at the end of a
    /// segment stay in it, and so does the text behind a `%3B`, as most upstreams read them.
    pub fn fullest(&self) -> &str {
        let is_resolved = |text: &&str| {
            let is_up = |segment| segment == "..";
            !text.contains(MAYBE_SEPARATOR) && !text.split('/').any(is_up)
        };
        let resolved = self.readings().filter(is_resolved);
        let longest = resolved.max_by_key(|text| text.len());
        longest.unwrap_or(&self.resolved)
    }

    /// [`CanonicalPath::fullest`], but a `%2F` that the client `sent` stays one. If it sent a
    /// backslash too, escaped or not, or a `..`, the escapes are separators.
    pub fn as_sent(&self, sent: &str) -> Cow<'_, str> {
        let has_backslash = || sent.contains('\\') || sent.contains("%5c") || sent.contains("%5C");
        if self.is_plain() || has_backslash() {
            return Cow::Borrowed(self.fullest());
        }
        let unsplit = self
            .readings()
            .filter(|text| text.contains(MAYBE_SEPARATOR));
        match unsplit.max_by_key(|text| text.len()) {
            Some(text) => Cow::Owned(text.replace(MAYBE_SEPARATOR, "%2F")),
            None => Cow::Borrowed(self.fullest()),
        }
    }

    #[inline]
    pub fn is_plain(&self) -> bool {
        match &self.variants {
            None => true,
            Some(variants) => variants.others.is_empty(),
        }
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

/// The weight of a byte in the quick scan. A path needs full parsing if the sum of two neighbours
/// reaches [`LONG_WAY`], as in `//`, `/.` and `./`.
const WEIGHT: [u8; 256] = {
    let mut weight = [LONG_WAY; 256];
    let mut byte = 0;
    while byte < 256 {
        if matches!(byte as u8, b'/' | b'.') {
            weight[byte] = 1;
        } else if is_plain(byte as u8) {
            weight[byte] = 0;
        }
        byte += 1;
    }
    weight
};

const LONG_WAY: u8 = 2;

/// Accepts nearly every path in one scan. It may reject a canonical path (with an escape, or a
/// segment that begins with a dot); full parsing then leaves the path as it is.
fn is_canonical(raw: &str) -> bool {
    if raw == "/" {
        return true;
    }
    let mut previous: u8 = 0;
    for &byte in raw.as_bytes() {
        let weight = WEIGHT[usize::from(byte)];
        if previous.wrapping_add(weight) >= LONG_WAY {
            return false;
        }
        previous = weight;
    }
    raw.starts_with('/') && previous == 0
}

/// Writes every character in its one form. Slashes and `;` stay, since they divide segments.
fn decode(raw: &str) -> Result<String, Malformed> {
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
            0..=0x1f | 0x7f => return Err(CONTROL),
            b'\\' => decoded.push(MAYBE_SEPARATOR),
            b'/' if escaped => decoded.push(MAYBE_SEPARATOR),
            b'/' => decoded.push('/'),
            b';' if !escaped => decoded.push(';'),
            _ => {
                if before.is_some_and(|before| is_overlong(before, byte)) {
                    return Err(OVERLONG);
                }
                push_byte(&mut decoded, byte);
                escape_before = Some(byte);
            }
        }
    }
    Ok(decoded)
}

/// Whether the last segment of a decoded path is empty, `.` or `..`, as `/a/..` is `/`.
fn ends_with_slash(decoded: &str) -> bool {
    let last = decoded.rsplit(['/', MAYBE_SEPARATOR]).next();
    let last = last.and_then(|last| last.split(';').next());
    matches!(last, Some("" | "." | ".."))
}

pub(crate) fn unescape(high: Option<u8>, low: Option<u8>) -> Result<u8, Malformed> {
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    match (digit(high), digit(low)) {
        (Some(high), Some(low)) => u8::try_from(high * 16 + low).map_err(|_| ESCAPE),
        _ => Err(ESCAPE),
    }
}

/// Writes a byte of a segment in its one form.
pub(crate) fn push_byte(text: &mut String, byte: u8) {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    if is_plain(byte) {
        text.push(char::from(byte));
        return;
    }
    text.push('%');
    text.push(DIGITS[usize::from(byte >> 4)]);
    text.push(DIGITS[usize::from(byte & 15)]);
}

/// Whether two bytes begin an overlong UTF-8 form. Some decoders accept it, and see a slash or a
/// dot in it.
fn is_overlong(first: u8, second: u8) -> bool {
    matches!(
        (first, second),
        (0xc0 | 0xc1, 0x80..=0xbf) | (0xe0, 0x80..=0x9f) | (0xf0, 0x80..=0x8f)
    )
}

/// Refuses `%252f` and its like at any depth (`%25252f`): after decoding, because the digits may
/// have been escaped too.
fn refuse_double_escapes(decoded: &str) -> Result<(), Malformed> {
    for (at, escape) in decoded.match_indices("%25") {
        let mut inner = &decoded[at + escape.len()..];
        while let Some(deeper) = inner.strip_prefix("25") {
            inner = deeper;
        }
        let mut digits = inner.bytes();
        if let Ok(b'/' | b'\\' | b'.' | 0) = unescape(digits.next(), digits.next()) {
            return Err(DOUBLE_ESCAPE);
        }
    }
    Ok(())
}

/// Whether nothing of a path but its parameters (`;v=1`) could be written in another way.
pub fn has_one_spelling(path: &str) -> bool {
    !path.contains(['%', '\\']) && !path.contains("//") && !path.contains("/.")
}

impl fmt::Display for CanonicalPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
