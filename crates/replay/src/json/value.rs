//! The members of a JSON object, as slices of its line. Nothing here recurses deeper than a path
//! that an operator gave.

use std::borrow::Cow;

use crate::text::{string_end, unescaped};

/// The value of a member, as a slice of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonValue<'l> {
    /// A string without its quotes, still escaped.
    Text(&'l [u8]),
    /// A number, `true`, `false` or `null`.
    Word(&'l [u8]),
    Object(&'l [u8]),
    Array(&'l [u8]),
}

impl<'l> JsonValue<'l> {
    /// The text of a string or word. `None` for nested values, and for `null`, an empty string and
    /// `-`, which nginx writes for a missing value.
    pub(super) fn text(self) -> Option<Cow<'l, str>> {
        unescaped(self.raw_text()?)
    }

    pub(super) fn raw_text(self) -> Option<&'l [u8]> {
        match self {
            JsonValue::Text(b"" | b"-") | JsonValue::Word(b"null") => None,
            JsonValue::Text(raw) | JsonValue::Word(raw) => Some(raw),
            JsonValue::Object(_) | JsonValue::Array(_) => None,
        }
    }
}

/// A member of an object. `prefix` leads to the object from the line.
#[derive(Clone, Copy)]
pub(super) struct MemberOf<'p, 'l> {
    pub(super) prefix: &'p str,
    pub(super) name: &'l [u8],
    pub(super) value: JsonValue<'l>,
}

impl<'l> MemberOf<'_, 'l> {
    /// The value at a path that begins with this member. Names may have dots of their own.
    pub(super) fn find(self, path: &str) -> Option<JsonValue<'l>> {
        let rest = path.as_bytes().strip_prefix(self.name)?;
        match (rest, self.value) {
            ([], value) => Some(value),
            ([b'.', ..], JsonValue::Object(inner)) => {
                find_member(inner, path.get(self.name.len() + 1..)?)
            }
            _ => None,
        }
    }
}

/// The value at a path within an object. Its depth is that of the path.
pub(super) fn find_member<'l>(object: &'l [u8], path: &str) -> Option<JsonValue<'l>> {
    let mut found = None;
    members(object, |name, value| {
        let prefix = "";
        found = found.or_else(|| {
            MemberOf {
                prefix,
                name,
                value,
            }
            .find(path)
        });
    })?;
    found
}

/// Calls `each` with every member of the object `line`: its name, still escaped, and its value.
/// `None` if the line is not one whole object.
pub(super) fn members<'l>(
    line: &'l [u8],
    mut each: impl FnMut(&'l [u8], JsonValue<'l>),
) -> Option<()> {
    each_item(line, [b'{', b'}'], |scan| {
        let name = scan.string()?;
        scan.take(b':')?;
        each(name, scan.value()?);
        Some(())
    })
}

/// Calls `read` for every item between brackets, and takes the commas between them.
pub(super) fn each_item<'l>(
    text: &'l [u8],
    [open, close]: [u8; 2],
    mut read: impl FnMut(&mut Scan<'l>) -> Option<()>,
) -> Option<()> {
    let mut scan = Scan(text.trim_ascii());
    scan.take(open)?;
    if scan.take(close).is_none() {
        read(&mut scan)?;
        while scan.take(close).is_none() {
            scan.take(b',')?;
            read(&mut scan)?;
        }
    }
    scan.0.is_empty().then_some(())
}

pub(super) struct Scan<'l>(&'l [u8]);

impl<'l> Scan<'l> {
    /// Takes a byte, and the spaces before it.
    fn take(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.trim_ascii_start().strip_prefix(&[byte])?;
        Some(())
    }

    fn take_to(&mut self, end: usize) -> Option<&'l [u8]> {
        let (taken, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        (end > 0).then_some(taken)
    }

    fn string(&mut self) -> Option<&'l [u8]> {
        self.take(b'"')?;
        let text = self.take_to(string_end(self.0)?);
        self.take(b'"')?;
        Some(text.unwrap_or_default())
    }

    pub(super) fn value(&mut self) -> Option<JsonValue<'l>> {
        self.0 = self.0.trim_ascii_start();
        match self.0.first()? {
            b'"' => self.string().map(JsonValue::Text),
            b'{' => self.nested().map(JsonValue::Object),
            b'[' => self.nested().map(JsonValue::Array),
            _ => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let end = self.0.iter().position(ends)?;
                self.take_to(end).map(JsonValue::Word)
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
                return self.take_to(at);
            }
        }
    }
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
