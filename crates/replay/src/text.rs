//! Lines of words: the common and combined formats and what servers hang onto them, and our own
//! lines for people.
//!
//! Pure. Servers escape a quote within a quoted field (`\"`, `\x22`), so that what a client sent
//! cannot end it.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use memchr::{memchr, memchr_iter, memchr2};

use super::date;
use super::entry::{Entry, Fault, Format, Headers};
use super::json::unescaped;
use crate::client;

/// What anybody asks of what stands behind a response's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who the client says it is and came from.
    pub agents: bool,
    /// For whom it spoke, and how long it took.
    pub extras: bool,
}

impl Wanted {
    /// All of it.
    pub const ALL: Wanted = Wanted {
        agents: true,
        extras: true,
    };
    const NOTHING: Wanted = Wanted {
        agents: false,
        extras: false,
    };
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted::ALL
    }
}

/// What is remembered from line to line: most lines have the second of the one before them.
#[derive(Debug, Default)]
pub struct Dates {
    text: Vec<u8>,
    us: u64,
    /// Of lines that have no date: days since the first, and the last time of a day.
    days: u64,
    of_day: u64,
}

impl Dates {
    fn common(&mut self, text: &[u8]) -> Option<u64> {
        if self.text != text {
            self.us = date::read(text)?;
            self.text.clear();
            self.text.extend_from_slice(text);
        }
        Some(self.us)
    }

    /// What the date that begins at `open` is, and where it ends, if it is the one before it again.
    fn again(&self, line: &[u8], open: usize) -> Option<(u64, usize)> {
        let end = open + self.text.len();
        let is_same = !self.text.is_empty()
            && line.get(open..end) == Some(self.text.as_slice())
            && line.get(end) == Some(&b']');
        is_same.then_some((self.us, end))
    }

    /// A time of a day that is long before the last one is of the next day.
    fn of_day(&mut self, text: &[u8]) -> Option<u64> {
        const DAY_US: u64 = 86_400_000_000;
        let us = date::of_day(text)?;
        if us + DAY_US / 2 < self.of_day {
            self.days += 1;
            self.of_day = us;
        }
        self.of_day = self.of_day.max(us);
        Some(self.days * DAY_US + us)
    }
}

/// Whether a line begins like one of our own for people: `22:37:06.123 `.
pub fn is_own(line: &[u8]) -> bool {
    line.len() > 13 && line[12] == b' ' && date::of_day(&line[..12]).is_some()
}

/// `HOST IDENT USER [DATE] "REQUEST" STATUS BYTES`, and in the combined format `"REFERER" "AGENT"`
/// after it, and then whatever a server was told to write; a virtual host may stand before it all.
pub fn common<'l>(
    line: &'l [u8],
    dates: &mut Dates,
    wanted: Wanted,
) -> Result<(Entry<'l>, Format), Fault> {
    let Head {
        peer,
        host,
        at_us,
        after,
    } = match quick(line, dates) {
        Some(head) => head,
        None => head(line, dates)?,
    };
    let (request, after) = quoted(after).ok_or(Fault::Form)?;
    let (method, target) = request_line(request)?;
    let (status, after) = word(after);
    let mut entry = Entry {
        at_us,
        peer,
        client: None,
        method,
        target,
        host,
        status: status_of(status),
        duration_us: None,
        headers: Headers::new(),
    };
    let (_bytes, after) = word(after);
    let mut format = Format::Common;
    if let Some((referer, after)) = quoted(after) {
        format = Format::Combined;
        if wanted == Wanted::NOTHING {
            return Ok((entry, format));
        }
        if wanted.agents {
            header(&mut entry, "referer", referer);
        }
        let after = match quoted(after) {
            Some((agent, after)) => {
                if wanted.agents {
                    header(&mut entry, "user-agent", agent);
                }
                after
            }
            None => after,
        };
        extras(&mut entry, after);
    } else {
        extras(&mut entry, after);
    }
    Ok((entry, format))
}

/// How a line begins, up to its date.
struct Head<'l> {
    peer: IpAddr,
    host: Option<Cow<'l, str>>,
    at_us: u64,
    after: &'l [u8],
}

/// How nearly every line begins: a plain address, nobody by name, and a date, mostly that of the
/// line before. Also where the date ends.
pub fn beginning(line: &[u8], dates: &mut Dates) -> Option<(Ipv4Addr, u64, usize)> {
    const NOBODY: &[u8; 6] = b" - - [";
    let (mut bits, mut end) = (0, 0);
    for dot in [true, true, true, false] {
        let (number, digits) = octet(line.get(end..)?)?;
        bits = bits << 8 | number;
        end += digits;
        if dot {
            if line.get(end) != Some(&b'.') {
                return None;
            }
            end += 1;
        }
    }
    if line.get(end..)?.first_chunk() != Some(NOBODY) {
        return None;
    }
    let open = end + NOBODY.len();
    let (at_us, close) = match dates.again(line, open) {
        Some(again) => again,
        None => {
            let close = open + memchr(b']', line.get(open..)?)?;
            (dates.common(&line[open..close])?, close)
        }
    };
    Some((Ipv4Addr::from_bits(bits), at_us, close))
}

/// The number of an address that `text` begins with, and its digits; something stands behind it.
#[inline]
fn octet(text: &[u8]) -> Option<(u32, usize)> {
    let [first, second, third, fourth] = text
        .first_chunk::<4>()?
        .map(|byte| u32::from(byte.wrapping_sub(b'0')));
    if first > 9 {
        return None;
    }
    if second > 9 {
        return Some((first, 1));
    }
    let two = first * 10 + second;
    if third > 9 {
        return (first > 0).then_some((two, 2));
    }
    let three = two * 10 + third;
    (first > 0 && three <= 255 && fourth > 9).then_some((three, 3))
}

fn quick<'l>(line: &'l [u8], dates: &mut Dates) -> Option<Head<'l>> {
    let (peer, at_us, close) = beginning(line, dates)?;
    Some(Head {
        peer: peer.into(),
        host: None,
        at_us,
        after: line[close + 1..].trim_ascii_start(),
    })
}

/// The long way, which every line can take.
fn head<'l>(line: &'l [u8], dates: &mut Dates) -> Result<Head<'l>, Fault> {
    let (open, close) = brackets(line).ok_or(Fault::Form)?;
    let (peer, host) = who(&line[..open])?;
    let at_us = dates.common(&line[open + 1..close]).ok_or(Fault::Time)?;
    Ok(Head {
        peer,
        host,
        at_us,
        after: line[close + 1..].trim_ascii_start(),
    })
}

/// Where the date's brackets are. A user's name may hold others, but none around a date.
fn brackets(line: &[u8]) -> Option<(usize, usize)> {
    let open = memchr_iter(b'[', line).find(|open| {
        let date = line.get(open + 1..open + 20);
        let digits = date.and_then(|date| date.first_chunk::<2>());
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
    });
    let open = open.or_else(|| memchr(b'[', line))?;
    let close = open + memchr(b']', &line[open..])?;
    Some((open, close))
}

/// The peer, and the virtual host before it.
fn who(head: &[u8]) -> Result<(IpAddr, Option<Cow<'_, str>>), Fault> {
    let (first, rest) = word(head);
    if let Some(peer) = address(first) {
        return Ok((peer, None));
    }
    let (second, _) = word(rest);
    let peer = address(second).ok_or(Fault::Client)?;
    let host = std::str::from_utf8(first).map_err(|_| Fault::Text)?;
    Ok((peer, Some(host.into())))
}

/// An address, perhaps with a port.
pub fn address(text: &[u8]) -> Option<IpAddr> {
    ipv4(text).or_else(|| client::address(text))
}

/// Most addresses are four numbers.
fn ipv4(text: &[u8]) -> Option<IpAddr> {
    let (ip, end) = leading_ipv4(text)?;
    (end == text.len()).then_some(ip)
}

/// An address of four numbers that `text` begins with, and where a space or the end is behind it.
fn leading_ipv4(text: &[u8]) -> Option<(IpAddr, usize)> {
    let (mut bits, mut dots, mut digits, mut number) = (0_u32, 0, 0, 0_u32);
    let mut end = text.len();
    for (place, &byte) in text.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit < 10 {
            number = number * 10 + u32::from(digit);
            digits += 1;
            // More digits than a number has, or one that begins with 0.
            if digits > 1 && !(10..=255).contains(&number) {
                return None;
            }
        } else if byte == b'.' && digits > 0 && dots < 3 {
            bits = bits << 8 | number;
            (dots, digits, number) = (dots + 1, 0, 0);
        } else if byte == b' ' {
            end = place;
            break;
        } else {
            return None;
        }
    }
    let is_whole = dots == 3 && digits > 0;
    is_whole.then(|| (Ipv4Addr::from_bits(bits << 8 | number).into(), end))
}

/// Method and target of `GET /path HTTP/1.1`; without a version it is HTTP/0.9 or a client's own.
pub fn request_line(request: &[u8]) -> Result<(&str, Cow<'_, str>), Fault> {
    for (method, begin) in [("GET", "GET "), ("POST", "POST "), ("HEAD", "HEAD ")] {
        if let Some(rest) = request.strip_prefix(begin.as_bytes()) {
            return Ok((method, target(rest.trim_ascii_start())?));
        }
    }
    let space = memchr(b' ', request).ok_or(Fault::Request)?;
    let (method, rest) = (&request[..space], request[space + 1..].trim_ascii_start());
    let is_method = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
    if method.is_empty() || method.len() > 32 || !method.iter().all(is_method) {
        return Err(Fault::Request);
    }
    let method = std::str::from_utf8(method).map_err(|_| Fault::Text)?;
    Ok((method, target(rest)?))
}

/// What is asked for, without the version behind it.
fn target(rest: &[u8]) -> Result<Cow<'_, str>, Fault> {
    let before = |version: &[u8]| rest.strip_suffix(version);
    let known = before(b" HTTP/1.1").or_else(|| before(b" HTTP/2.0"));
    let last = || rest.iter().rposition(|byte| *byte == b' ');
    let target = match known.map(|known| known.len()).or_else(last) {
        Some(last) if rest[last + 1..].starts_with(b"HTTP/") => rest[..last].trim_ascii_end(),
        _ if rest.starts_with(b"HTTP/") => b"",
        _ => rest,
    };
    if target.is_empty() {
        return Err(Fault::Request);
    }
    unescaped(target).ok_or(Fault::Text)
}

/// What servers are told to write after all that: who they speak for, and how long it took.
fn extras<'l>(entry: &mut Entry<'l>, mut left: &'l [u8]) {
    while !left.is_empty() {
        if let Some((field, after)) = quoted(left) {
            // nginx's own `main` format ends with "$http_x_forwarded_for".
            let first = field.split(|byte| *byte == b',').next().unwrap_or_default();
            if address(first.trim_ascii()).is_some() {
                header(entry, "x-forwarded-for", field);
            } else if entry.duration_us.is_none() {
                entry.duration_us = took(field);
            }
            left = after;
        } else {
            let (field, after) = word(left);
            if entry.duration_us.is_none() {
                // nginx's "$request_time" stands alone, or as `rt=0.123`.
                let value = field.strip_prefix(b"rt=").unwrap_or(field);
                entry.duration_us = took(value);
            }
            left = after;
        }
    }
}

/// A duration is told from a count by its point or its unit.
fn took(field: &[u8]) -> Option<u64> {
    if let Some(millis) = field.strip_suffix(b"ms") {
        return date::seconds(millis).map(|us| us / 1000);
    }
    memchr(b'.', field)?;
    date::seconds(field)
}

/// `22:37:06.123 POST /login 429 0.2ms 1.2.3.4 denied by login`
pub fn own<'l>(line: &'l [u8], dates: &mut Dates) -> Result<Entry<'l>, Fault> {
    let (time, left) = word(line);
    let (method, left) = word(left);
    let (target, left) = word(left);
    let (status, left) = word(left);
    let (duration, left) = word(left);
    let (client, _) = word(left);
    let text = |bytes: &'l [u8]| std::str::from_utf8(bytes).map_err(|_| Fault::Text);
    if target.is_empty() {
        return Err(Fault::Request);
    }
    Ok(Entry {
        peer: address(client).ok_or(Fault::Client)?,
        at_us: dates.of_day(time).ok_or(Fault::Time)?,
        client: None,
        method: text(method)?,
        target: text(target)?.into(),
        host: None,
        status: status_of(status),
        duration_us: took(duration),
        headers: Headers::new(),
    })
}

/// A status; 0 if it is none.
pub fn status_of(text: &[u8]) -> u16 {
    if let [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = text {
        let digit = |byte: &u8| u16::from(byte - b'0');
        return digit(a) * 100 + digit(b) * 10 + digit(c);
    }
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn header<'l>(entry: &mut Entry<'l>, name: &'static str, value: &'l [u8]) {
    if !matches!(value, b"" | b"-")
        && let Some(value) = unescaped(value)
    {
        entry.headers.push((name.into(), value));
    }
}

/// The next word, and what follows it.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    // Words are short: a loop finds their end before a search has begun.
    let end = text.iter().position(|byte| *byte == b' ');
    let end = end.unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

/// The inside of a quoted field that `text` begins with, and what follows it.
pub fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let found = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[found] == b'"' {
            return Some((&text[..found], text[found + 1..].trim_ascii_start()));
        }
        from = found + 2;
    }
}
