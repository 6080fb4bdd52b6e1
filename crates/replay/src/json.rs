//! JSON in logs: the members of one object, without building a tree.
//!
//! The reader is forgiving: it accepts `\x22`, which nginx writes without `escape=json`, and skips
//! nested values unread. It does not recurse, so depth costs nothing.

use std::borrow::Cow;

use memchr::memchr2;

/// The value of a member, as a slice of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonValue<'l> {
    /// A string without its quotes, still escaped.
    Text(&'l [u8]),
    /// A number, `true`, `false` or `null`.
    Word(&'l [u8]),
    /// With its braces.
    Object(&'l [u8]),
    /// With its brackets.
    Array(&'l [u8]),
}

impl<'l> JsonValue<'l> {
    /// The text of a string or word. `None` for nested values, and for `null`, an empty string and
    /// `-`, which nginx writes for a missing value.
    pub fn text(self) -> Option<Cow<'l, str>> {
        unescaped(self.raw_text()?)
    }

    /// The text, still escaped.
    pub fn raw_text(self) -> Option<&'l [u8]> {
        match self {
            JsonValue::Text(b"" | b"-") | JsonValue::Word(b"null") => None,
            JsonValue::Text(raw) | JsonValue::Word(raw) => Some(raw),
            JsonValue::Object(_) | JsonValue::Array(_) => None,
        }
    }
}

/// Calls `each` with every member of the object `line`: its name, still escaped, and its value.
/// `None` if the line is not one whole object.
pub fn members<'l>(line: &'l [u8], mut each: impl FnMut(&'l [u8], JsonValue<'l>)) -> Option<()> {
    let mut scan = Scan(line.trim_ascii().strip_prefix(b"{")?);
    scan.space();
    if scan.took(b'}') {
        return scan.0.is_empty().then_some(());
    }
    loop {
        scan.space();
        let name = scan.string()?;
        scan.space();
        scan.took(b':').then_some(())?;
        let value = scan.value()?;
        each(name, value);
        scan.space();
        if scan.took(b'}') {
            return scan.0.is_empty().then_some(());
        }
        scan.took(b',').then_some(())?;
    }
}

/// Calls `each` with every element of an array.
pub fn elements<'l>(array: &'l [u8], mut each: impl FnMut(JsonValue<'l>)) -> Option<()> {
    let mut scan = Scan(array.trim_ascii().strip_prefix(b"[")?);
    scan.space();
    if scan.took(b']') {
        return Some(());
    }
    loop {
        each(scan.value()?);
        scan.space();
        if scan.took(b']') {
            return Some(());
        }
        scan.took(b',').then_some(())?;
    }
}

struct Scan<'l>(&'l [u8]);

impl<'l> Scan<'l> {
    fn space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn took(&mut self, byte: u8) -> bool {
        match self.0.split_first() {
            Some((first, rest)) if *first == byte => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    /// Reads a string without its quotes.
    fn string(&mut self) -> Option<&'l [u8]> {
        let text = self.0.strip_prefix(b"\"")?;
        let end = string_end(text)?;
        self.0 = &text[end + 1..];
        Some(&text[..end])
    }

    fn value(&mut self) -> Option<JsonValue<'l>> {
        self.space();
        match self.0.first()? {
            b'"' => self.string().map(JsonValue::Text),
            b'{' => self.nested().map(JsonValue::Object),
            b'[' => self.nested().map(JsonValue::Array),
            _ => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let end = self.0.iter().position(ends)?;
                let (word, rest) = self.0.split_at(end);
                self.0 = rest;
                (!word.is_empty()).then_some(JsonValue::Word(word))
            }
        }
    }

    /// Reads a nested value with its brackets.
    fn nested(&mut self) -> Option<&'l [u8]> {
        let (mut at, mut depth) = (0, 0_usize);
        loop {
            match self.0.get(at)? {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.checked_sub(1)?,
                b'"' => at += 1 + string_end(&self.0[at + 1..])?,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                let (nested, rest) = self.0.split_at(at);
                self.0 = rest;
                return Some(nested);
            }
        }
    }
}

/// Finds the quote that ends a string.
pub fn string_end(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let found = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[found] == b'"' {
            return Some(found);
        }
        from = found + 2;
    }
}

/// Decodes the escapes of a string: `\n`, `\u00e9` with surrogates, and `\x22`. Other text stays.
pub fn unescaped(raw: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', raw).is_none() {
        return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
    }
    let mut text = Vec::with_capacity(raw.len());
    let mut left = raw;
    while let Some((&byte, rest)) = left.split_first() {
        left = rest;
        let (b'\\', Some((&kind, after))) = (byte, rest.split_first()) else {
            text.push(byte);
            continue;
        };
        left = after;
        match kind {
            b'n' => text.push(b'\n'),
            b't' => text.push(b'\t'),
            b'r' => text.push(b'\r'),
            b'b' => text.push(8),
            b'f' => text.push(12),
            b'x' if let Some(byte) = hex(after, 2) => {
                left = &after[2..];
                text.push(u8::try_from(byte).ok()?);
            }
            b'u' if let Some(high) = hex(after, 4) => {
                left = &after[4..];
                let low = left.strip_prefix(b"\\u").and_then(|low| hex(low, 4));
                let both = [u16::try_from(high).ok()?, low.unwrap_or(0) as u16];
                let pair = char::decode_utf16(both).next();
                let c = pair
                    .and_then(Result::ok)
                    .unwrap_or(char::REPLACEMENT_CHARACTER);
                if c.len_utf16() == 2 {
                    left = &left[6..];
                }
                text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            other => text.push(other),
        }
    }
    // Single escaped bytes need not make UTF-8 together.
    Some(Cow::Owned(String::from_utf8_lossy(&text).into_owned()))
}

fn hex(text: &[u8], digits: usize) -> Option<u32> {
    let digits = text.get(..digits)?;
    digits.iter().try_fold(0, |number, byte| {
        Some(number * 16 + char::from(*byte).to_digit(16)?)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(line: &str) -> Option<String> {
        let mut out = String::new();
        members(line.as_bytes(), |name, value| {
            let name = String::from_utf8_lossy(name);
            let value = match value {
                JsonValue::Object(raw) | JsonValue::Array(raw) => String::from_utf8_lossy(raw),
                other => other.text().unwrap_or("none".into()),
            };
            out.push_str(&format!("{name}={value};"));
        })?;
        Some(out)
    }

    #[test]
    fn members_are_told_in_order() {
        for (line, expected) in [
            ("{}", Some("")),
            (r#" {"a":1} "#, Some("a=1;")),
            (
                r#"{"a" : "x\"y" , "b":null,"c":"-"}"#,
                Some("a=x\"y;b=none;c=none;"),
            ),
            (
                r#"{"a":{"b":["}"]},"c":[{}]}"#,
                Some(r#"a={"b":["}"]};c=[{}];"#),
            ),
            (r#"{"a":1}}"#, None),
            (r#"{"a":1"#, None),
            (r#"{"a":"#, None),
            (r#"{"a"}"#, None),
            (r#"{"a":"x}"#, None),
            (r#"{"a":1,}"#, None),
            (r#"{a:1}"#, None),
            ("[1]", None),
            ("", None),
        ] {
            assert_eq!(read(line).as_deref(), expected, "{line}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&deep).is_some());
    }

    #[test]
    fn escapes_are_undone() {
        for (raw, expected) in [
            (r"a\/b\\c\t", "a/b\\c\t"),
            (r"\u00e9\u20AC", "é€"),
            (r"\ud83c\udf0a!", "🌊!"),
            (r"\ud83c!", "\u{fffd}!"),
            (r"\ud83c\u0041", "\u{fffd}A"),
            (r"\x22\xc3\xa9\xff", "\"é\u{fffd}"),
            (r"\q\u12", "qu12"),
            ("\\", "\\"),
        ] {
            assert_eq!(
                unescaped(raw.as_bytes()).as_deref(),
                Some(expected),
                "{raw}"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(line in r#"[{}\[\],:"\\ux0-9a ]{0,60}"#) {
            let _ = read(&line);
            let _ = unescaped(line.as_bytes());
        }

        #[test]
        fn what_we_write_reads_back(text in "\\PC{0,20}[\\x00-\\x1f]{0,3}") {
            let mut line = Vec::from(b"{\"a\":");
            crate::telemetry::json::string(&mut line, &text);
            line.push(b'}');
            let mut found = None;
            members(&line, |_, value| found = value.text().map(Cow::into_owned)).unwrap();
            let expected = Some(text).filter(|text| !matches!(text.as_str(), "" | "-"));
            prop_assert_eq!(found, expected);
        }
    }
}
