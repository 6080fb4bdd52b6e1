//! Log lines that are JSON objects of nginx, Traefik, Caddy or tidegate.
//!
//! One table of member names serves all programs. Only Caddy nests members. The reader is
//! forgiving: it accepts `\x22`, which nginx writes without `escape=json`, and skips nested values
//! unread. It does not recurse, so depth costs nothing.

use std::borrow::Cow;
use std::net::IpAddr;

use super::date;
use super::entry::{Fault, Headers, LineFormat, LogEntry};
use super::text::{request_line, status_of, string_end, unescaped};
use crate::client::address;

/// A member that is a header of the request: `--header-from x-api-key=consumer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderFrom {
    pub header: String,
    /// A member within `request` is `request.NAME`.
    pub member: String,
}

#[derive(Default)]
struct EntryBuilder<'l> {
    at_us: Option<u64>,
    /// Some member is a time, readable or not.
    has_time: bool,
    peer: Option<IpAddr>,
    client: Option<IpAddr>,
    /// Some member is an address, readable or not.
    has_client: bool,
    request: Option<&'l [u8]>,
    method: Option<Cow<'l, str>>,
    target: Option<Cow<'l, str>>,
    query: Option<Cow<'l, str>>,
    host: Option<Cow<'l, str>>,
    status: u16,
    duration_us: Option<u64>,
    headers: Headers<'l>,
    format: Option<LineFormat>,
}

pub fn read<'l>(line: &'l [u8], from: &[HeaderFrom]) -> Result<(LogEntry<'l>, LineFormat), Fault> {
    let mut entry = EntryBuilder::default();
    if let Some(request) = entry.add_members(line, "", from)? {
        entry.format = Some(LineFormat::Caddy);
        entry.add_members(request, "request.", from)?;
    }
    let format = entry.format.unwrap_or(LineFormat::Json);
    Ok((entry.build()?, format))
}

impl<'l> EntryBuilder<'l> {
    /// Reads the members of an object. `prefix` leads to it from the line. Returns its request, if
    /// that is an object.
    fn add_members(
        &mut self,
        object: &'l [u8],
        prefix: &str,
        from: &[HeaderFrom],
    ) -> Result<Option<&'l [u8]>, Fault> {
        let mut nested = None;
        let read = members(object, |name, value| {
            for one in from {
                let wanted = one.member.strip_prefix(prefix);
                if wanted.is_some_and(|wanted| wanted.as_bytes() == name)
                    && let Some(value) = value.text()
                {
                    self.headers.push((one.header.clone().into(), value));
                }
            }
            match (name, value) {
                (b"request", JsonValue::Object(request)) => nested = Some(request),
                (b"headers" | b"request_headers", JsonValue::Object(all)) => self.add_headers(all),
                _ => self.add_member(name, value),
            }
        });
        read.ok_or(Fault::Form)?;
        Ok(nested)
    }

    fn build(self) -> Result<LogEntry<'l>, Fault> {
        let at_us = self.at_us.ok_or(match self.has_time || self.has_client {
            true => Fault::Time,
            false => Fault::Form,
        })?;
        let peer = self.peer.or(self.client).ok_or(Fault::Client)?;
        let (method, target) = match (self.method, self.target, self.request) {
            (Some(method), Some(target), _) => (method, target),
            (_, _, Some(request)) => {
                let (method, target) = request_line(request)?;
                (method.into(), target)
            }
            _ => return Err(Fault::Request),
        };
        let target = match self.query {
            Some(query) if !target.contains('?') => format!("{target}?{query}").into(),
            _ => target,
        };
        // No method has an escape.
        let Cow::Borrowed(method) = method else {
            return Err(Fault::Request);
        };
        Ok(LogEntry {
            at_us,
            peer,
            client: self.client,
            method,
            target,
            host: self.host,
            status: self.status,
            duration_us: self.duration_us,
            headers: self.headers,
        })
    }

    fn add_member(&mut self, name: &'l [u8], value: JsonValue<'l>) {
        let Some(plain) = value.raw_text() else {
            return;
        };
        match name {
            b"time_iso8601" | b"time_local" | b"msec" | b"time" | b"ts" | b"timestamp"
            | b"@timestamp" | b"StartUTC" | b"date" | b"datetime" => {
                self.has_time = true;
                // Prefer a time with a fraction of a second.
                let at_us = date::read(plain);
                if at_us.is_some_and(|us| us % 1_000_000 != 0) || self.at_us.is_none() {
                    self.at_us = at_us.or(self.at_us);
                }
            }
            b"remote_addr" | b"remote_ip" | b"client" | b"clientip" | b"ip" | b"remote_host"
            | b"ClientHost" | b"remoteAddr" | b"remote_address" => {
                self.has_client = true;
                self.peer = address(plain).or(self.peer);
            }
            b"client_ip" | b"real_ip" => {
                self.has_client = true;
                self.client = address(plain).or(self.client);
            }
            b"request" => self.request = Some(plain),
            b"request_method" | b"method" | b"RequestMethod" => self.method = value.text(),
            b"request_uri" | b"uri" | b"path" | b"url" | b"RequestPath" => {
                // nginx's `request_uri` is the original, and its `uri` may be rewritten.
                if self.target.is_none() || name == b"request_uri" {
                    self.target = value.text();
                }
            }
            b"args" | b"query_string" => self.query = value.text(),
            b"http_host" | b"host" | b"RequestHost" | b"vhost" => self.host = value.text(),
            b"server_name" if self.host.is_none() => self.host = value.text(),
            b"status" | b"status_code" | b"DownstreamStatus" => self.status = status_of(plain),
            b"request_time" | b"duration" => self.duration_us = date::seconds(plain),
            b"duration_us" => self.duration_us = date::seconds(plain).map(|us| us / 1_000_000),
            b"Duration" => self.duration_us = date::seconds(plain).map(|us| us / 1_000_000_000),
            b"outcome" => self.format = self.format.or(Some(LineFormat::Own)),
            _ => self.add_header_member(name, value),
        }
    }

    /// Reads nginx's `http_x_api_key` and Traefik's `request_X-Api-Key`.
    fn add_header_member(&mut self, name: &'l [u8], value: JsonValue<'l>) {
        let (Ok(name), Some(value)) = (std::str::from_utf8(name), value.text()) else {
            return;
        };
        if let Some(header) = name.strip_prefix("http_") {
            self.headers.push((header.replace('_', "-").into(), value));
        } else if let Some(header) = name.strip_prefix("request_")
            && header.starts_with(|c: char| c.is_ascii_uppercase())
        {
            self.headers.push((header.into(), value));
        } else if name.eq_ignore_ascii_case("x_forwarded_for") {
            self.headers.push(("x-forwarded-for".into(), value));
        }
    }

    /// Reads Caddy's `{"X-Api-Key":["k"]}`, without redacted values.
    fn add_headers(&mut self, all: &'l [u8]) {
        let mut add = |name: &'l [u8], value: JsonValue<'l>| {
            let (Ok(name), Some(value)) = (std::str::from_utf8(name), value.text()) else {
                return;
            };
            if value != "REDACTED" {
                self.headers.push((name.into(), value));
            }
        };
        let _ = members(all, |name, value| match value {
            JsonValue::Array(lines) => {
                let _ = each_item(lines, [b'[', b']'], |scan| {
                    add(name, scan.value()?);
                    Some(())
                });
            }
            value => add(name, value),
        });
    }
}

/// The value of a member, as a slice of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonValue<'l> {
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
    fn text(self) -> Option<Cow<'l, str>> {
        unescaped(self.raw_text()?)
    }

    fn raw_text(self) -> Option<&'l [u8]> {
        match self {
            JsonValue::Text(b"" | b"-") | JsonValue::Word(b"null") => None,
            JsonValue::Text(raw) | JsonValue::Word(raw) => Some(raw),
            JsonValue::Object(_) | JsonValue::Array(_) => None,
        }
    }
}

/// Calls `each` with every member of the object `line`: its name, still escaped, and its value.
/// `None` if the line is not one whole object.
fn members<'l>(line: &'l [u8], mut each: impl FnMut(&'l [u8], JsonValue<'l>)) -> Option<()> {
    each_item(line, [b'{', b'}'], |scan| {
        let name = scan.string()?;
        scan.take(b':')?;
        each(name, scan.value()?);
        Some(())
    })
}

/// Calls `read` for every item between brackets, and takes the commas between them.
fn each_item<'l>(
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

struct Scan<'l>(&'l [u8]);

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

    fn value(&mut self) -> Option<JsonValue<'l>> {
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
