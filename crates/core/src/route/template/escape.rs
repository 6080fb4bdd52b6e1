//! Escapes of values in URLs, in bodies and in lines of logs.

use std::fmt::Write as _;

use super::MAX_VALUE;
use crate::json;

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    None,
    /// No client can put a script into the page of another one.
    Html,
    /// In a line of a log no client can end a field or the line. Bytes are as `\x0A`, and an empty
    /// value is `-`.
    Text,
    /// The same as within a JSON string.
    Json,
}

impl Escape {
    /// Escapes the bytes of `out` from `start` on. A log gets at most [`MAX_VALUE`] of them.
    pub(super) fn apply(self, out: &mut Vec<u8>, start: usize) {
        if self == Escape::None {
            return;
        }
        let mut value = out.split_off(start);
        if self != Escape::Html {
            value.truncate(MAX_VALUE);
        }
        match self {
            Escape::None => {}
            Escape::Html => {
                for byte in value {
                    match byte {
                        b'<' => out.extend_from_slice(b"&lt;"),
                        b'>' => out.extend_from_slice(b"&gt;"),
                        b'&' => out.extend_from_slice(b"&amp;"),
                        b'"' => out.extend_from_slice(b"&quot;"),
                        b'\'' => out.extend_from_slice(b"&#39;"),
                        _ => out.push(byte),
                    }
                }
            }
            Escape::Text if value.is_empty() => out.push(b'-'),
            Escape::Text => {
                for byte in value {
                    match byte {
                        b' '..=b'~' if byte != b'"' && byte != b'\\' => out.push(byte),
                        _ => out.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
                    }
                }
            }
            Escape::Json => json::escaped(out, &String::from_utf8_lossy(&value)),
        }
    }
}

/// Escapes the path and the query of a request for a URL in a header.
pub fn escape_target(target: &str) -> String {
    let mut url = String::with_capacity(target.len());
    push_escaped(&mut url, target.as_bytes(), is_url_byte, true, false);
    url
}

/// Writes a value into a URL. The bytes of `keep` stay; and with `escaped` the value's own escapes.
pub(super) fn push_escaped(
    url: &mut String,
    value: &[u8],
    keep: fn(u8) -> bool,
    escaped: bool,
    is_form: bool,
) {
    let mut left = value;
    while let Some((&byte, rest)) = left.split_first() {
        let is_escape = matches!(
            rest,
            [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit()
        );
        match byte {
            b'%' if escaped && is_escape => url.push('%'),
            // A plus in a form is a space.
            b'+' if is_form => url.push_str("%20"),
            byte if keep(byte) => url.push(char::from(byte)),
            byte => {
                let _ = write!(url, "%{byte:02X}");
            }
        }
        left = rest;
    }
}

pub(super) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

pub(super) fn is_host_byte(byte: u8) -> bool {
    is_unreserved(byte) || b"[]:".contains(&byte)
}

pub(super) fn is_argument_byte(byte: u8) -> bool {
    is_unreserved(byte) || byte == b'/'
}

/// Whether a path or a query may hold this byte unescaped.
pub(super) fn is_url_byte(byte: u8) -> bool {
    is_unreserved(byte) || b"/?:@!$&'()*+,;=[]".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_ends_a_field_or_a_line() {
        for (escape, value, expected) in [
            (Escape::Text, &b"a \"b\\\n\xff"[..], r"a \x22b\x5C\x0A\xFF"),
            (Escape::Text, b"", "-"),
            (Escape::Json, b"a \"b\\\n\xff", "a \\\"b\\\\\\n\u{fffd}"),
            (Escape::Json, b"", ""),
            (
                Escape::Html,
                b"<a b='\"&'>",
                "&lt;a b=&#39;&quot;&amp;&#39;&gt;",
            ),
            (Escape::None, b"<a>", "<a>"),
        ] {
            let mut out = b"before ".to_vec();
            out.extend_from_slice(value);
            escape.apply(&mut out, 7);
            assert_eq!(
                String::from_utf8(out).unwrap(),
                format!("before {expected}")
            );
        }
    }

    #[test]
    fn the_target_of_a_request_is_escaped_once() {
        let escaped = escape_target("/x\"a\u{e4}/%2F/100%?q={1}&r=%zz");
        assert_eq!(escaped, "/x%22a%C3%A4/%2F/100%25?q=%7B1%7D&r=%25zz");
    }
}
