//! JSON without serde, for lines and bodies that are written on the path of a request.
//!
//! Pure: it appends to a buffer. It owns the escapes; callers write the structure.

/// Appends `text` as a JSON string, quotes included (RFC 8259 section 7).
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escaped(out, text);
    out.push(b'"');
}

pub fn escaped(out: &mut Vec<u8>, text: &str) {
    let mut plain = 0;
    let bytes = text.as_bytes();
    for (index, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[plain..index]);
        plain = index + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                let hex = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[hex(byte >> 4), hex(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[plain..]);
}

pub fn name(out: &mut Vec<u8>, name: &str) {
    string(out, name);
    out.push(b':');
}

pub fn number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_bytes_quotes_and_backslashes_are_escaped() {
        let mut out = Vec::new();
        string(&mut out, "a\"b\\c\n\u{1}\u{1f}é");
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\"a\\\"b\\\\c\\n\\u0001\\u001fé\""
        );
    }
}
