//! Escapes of values in bodies and in lines of logs.

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
}
