//! Text lines: the common and combined formats with the fields that servers add to them, and
//! tidegate's lines for people.
//!
//! Servers escape a quote within a quoted field (`\"`, `\x22`), so that a client's text cannot end
//! the field.

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr_iter, memchr2};

use super::date;
use super::entry::{Dated, Fault, Headers, LineFormat, LogEntry};
use super::tokens::{CallField, LoggedTokens};
use crate::client::address;

const DAY_US: u64 = 86_400_000_000;

/// Counts the days of lines that have only a time of day.
#[derive(Debug, Default)]
pub struct DayCount {
    /// Days since the first line.
    days: u64,
    /// The last time of a day.
    of_day: u64,
}

impl DayCount {
    /// Reads a time of day. A time long before the last one belongs to the next day.
    fn read(&mut self, text: &[u8]) -> Option<u64> {
        let us = date::of_day(text)?;
        if us + DAY_US / 2 < self.of_day {
            self.days += 1;
            self.of_day = us;
        }
        self.of_day = self.of_day.max(us);
        Some(self.days * DAY_US + us)
    }
}

/// The date of the line before, which most lines have too.
#[derive(Debug, Default)]
pub struct LastDate {
    text: Vec<u8>,
    /// `None` if the text is no date.
    us: Option<u64>,
}

impl LastDate {
    fn read(&mut self, text: &[u8]) -> Option<u64> {
        if self.text != text {
            self.us = date::read(text);
            text.clone_into(&mut self.text);
        }
        self.us
    }
}

/// Whether a line begins like tidegate's lines for people: `22:37:06.123 `.
pub fn is_own(line: &[u8]) -> bool {
    line.len() > 13 && line[12] == b' ' && date::of_day(&line[..12]).is_some()
}

/// Reads `HOST IDENT USER [DATE] "REQUEST" STATUS BYTES`. The combined format adds `"REFERER"
/// "AGENT"`, servers may add more fields, and a virtual host may come first.
pub fn read_common<'l>(
    line: &'l [u8],
    last_date: &mut LastDate,
) -> Result<(LogEntry<'l>, LineFormat), Fault> {
    let open = date_bracket(line).ok_or(Fault::Form)?;
    let (date, after) = split_once(&line[open + 1..], b']').ok_or(Fault::Form)?;
    let (peer, host) = read_peer(&line[..open])?;
    let at_us = last_date.read(date).ok_or(Fault::Time)?;
    let (request, after) = quoted(after).ok_or(Fault::Form)?;
    let (method, target) = request_line(request)?;
    let (status, after) = word(after);
    let (_bytes, after) = word(after);
    let mut entry = LogEntry {
        at_us,
        dates: Dated::End,
        peer,
        client: None,
        method: method.into(),
        target,
        host,
        port: None,
        status: status_of(status),
        duration_us: None,
        headers: Headers::new(),
        tokens: None,
    };
    let Some((referer, after)) = quoted(after) else {
        add_extras(&mut entry, after);
        return Ok((entry, LineFormat::Common));
    };
    let (agent, after) = quoted(after).unwrap_or((b"", after));
    add_header(&mut entry, "referer", referer);
    add_header(&mut entry, "user-agent", agent);
    add_extras(&mut entry, after);
    Ok((entry, LineFormat::Combined))
}

/// Finds the bracket before the date. A user's name may contain brackets too, but no date.
fn date_bracket(line: &[u8]) -> Option<usize> {
    let open = memchr_iter(b'[', line).find(|open| {
        let date = line.get(open + 1..open + 20);
        let digits = date.and_then(|date| date.first_chunk::<2>());
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
    });
    open.or_else(|| memchr(b'[', line))
}

/// Reads the peer, and the virtual host before it.
fn read_peer(head: &[u8]) -> Result<(IpAddr, Option<Cow<'_, str>>), Fault> {
    let (first, rest) = word(head);
    if let Some(peer) = address(first) {
        return Ok((peer, None));
    }
    let (second, _) = word(rest);
    let peer = address(second).ok_or(Fault::Client)?;
    let host = std::str::from_utf8(first).map_err(|_| Fault::Text)?;
    Ok((peer, Some(host.into())))
}

/// Reads method and target of `GET /path HTTP/1.1`. HTTP/0.9 and some clients send no version.
pub fn request_line(request: &[u8]) -> Result<(&str, Cow<'_, str>), Fault> {
    let (method, rest) = split_once(request, b' ').ok_or(Fault::Request)?;
    let is_method = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
    if method.is_empty() || method.len() > 32 || !method.iter().all(is_method) {
        return Err(Fault::Request);
    }
    let method = std::str::from_utf8(method).map_err(|_| Fault::Text)?;
    let rest = rest.trim_ascii_start();
    let target = match rest.iter().rposition(|byte| *byte == b' ') {
        Some(last) if rest[last + 1..].starts_with(b"HTTP/") => rest[..last].trim_ascii_end(),
        _ if rest.starts_with(b"HTTP/") => b"",
        _ => rest,
    };
    if target.is_empty() {
        return Err(Fault::Request);
    }
    Ok((method, unescaped(target).ok_or(Fault::Text)?))
}

/// Reads the fields that servers add behind all others: addresses, and the duration.
fn add_extras<'l>(entry: &mut LogEntry<'l>, mut left: &'l [u8]) {
    while !left.is_empty() {
        let (field, after) = match quoted(left) {
            Some((field, after)) => {
                // nginx's own `main` format ends with "$http_x_forwarded_for".
                let first = field.split(|byte| *byte == b',').next().unwrap_or_default();
                if address(first.trim_ascii()).is_some() {
                    add_header(entry, "x-forwarded-for", field);
                    left = after;
                    continue;
                }
                (field, after)
            }
            None => {
                // nginx's "$request_time" is a word of its own, or `rt=0.123`.
                let (field, after) = word(left);
                (field.strip_prefix(b"rt=").unwrap_or(field), after)
            }
        };
        entry.duration_us = entry.duration_us.or_else(|| duration_us(field));
        left = after;
    }
}

/// Reads a duration, which has a point or a unit. Other numbers are counts.
fn duration_us(field: &[u8]) -> Option<u64> {
    if let Some(millis) = field.strip_suffix(b"ms") {
        return date::seconds(millis).map(|us| us / 1000);
    }
    memchr(b'.', field)?;
    date::seconds(field)
}

/// Reads `22:37:06.123 POST /login 429 0.2ms 1.2.3.4 denied by login`.
pub fn read_own<'l>(line: &'l [u8], days: &mut DayCount) -> Result<LogEntry<'l>, Fault> {
    let (time, left) = word(line);
    let (method, left) = word(left);
    let (target, left) = word(left);
    let (status, left) = word(left);
    let (duration, left) = word(left);
    let (client, rest) = word(left);
    let text = |bytes: &'l [u8]| std::str::from_utf8(bytes).map_err(|_| Fault::Text);
    if target.is_empty() {
        return Err(Fault::Request);
    }
    Ok(LogEntry {
        peer: address(client).ok_or(Fault::Client)?,
        at_us: days.read(time).ok_or(Fault::Time)?,
        dates: Dated::Start,
        client: None,
        method: text(method)?.into(),
        target: text(target)?.into(),
        host: None,
        port: None,
        status: status_of(status),
        duration_us: duration_us(duration),
        headers: Headers::new(),
        tokens: own_tokens(rest),
    })
}

/// Reads `tokens 22+178 of 1030 exact`: input and output of the charge, and the reserve.
fn own_tokens(rest: &[u8]) -> Option<Box<LoggedTokens<'_>>> {
    let start = memchr::memmem::find(rest, b" tokens ")?;
    let rest = std::str::from_utf8(&rest[start..]).ok()?;
    let mut words = rest.split_ascii_whitespace().skip(1);
    let (input, output) = words.next()?.split_once('+')?;
    let reserved = words.nth(1)?;
    let mut tokens = Box::<LoggedTokens<'_>>::default();
    tokens.set(CallField::Input, input.into());
    tokens.set(CallField::Output, output.into());
    tokens.set(CallField::Reserved, reserved.into());
    tokens.set(CallField::Outcome, words.next()?.into());
    Some(tokens)
}

/// Reads a status; 0 if it is not a number.
pub fn status_of(text: &[u8]) -> u16 {
    let append = |status: u16, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| byte - b'0')?;
        status.checked_mul(10)?.checked_add(digit.into())
    };
    text.iter().try_fold(0, append).unwrap_or(0)
}

fn add_header<'l>(entry: &mut LogEntry<'l>, name: &'static str, value: &'l [u8]) {
    if !matches!(value, b"" | b"-")
        && let Some(value) = unescaped(value)
    {
        entry.headers.push((name.into(), value));
    }
}

fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    // Words are short: a loop finds their end before a search has begun.
    let end = text.iter().position(|byte| *byte == b' ');
    let end = end.unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

/// Splits a quoted field off. Returns its inside and the rest.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let end = string_end(text)?;
    Some((&text[..end], text[end + 1..].trim_ascii_start()))
}

/// Splits at the first such byte, which neither part contains.
fn split_once(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr(byte, text)?;
    Some((&text[..at], &text[at + 1..]))
}

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
    if memchr(b'\\', raw).is_none() {
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
