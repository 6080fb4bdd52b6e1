//! Escapes of values in URLs.

use std::fmt::Write as _;

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
    fn the_target_of_a_request_is_escaped_once() {
        let escaped = escape_target("/x\"a\u{e4}/%2F/100%?q={1}&r=%zz");
        assert_eq!(escaped, "/x%22a%C3%A4/%2F/100%25?q=%7B1%7D&r=%25zz");
    }
}
