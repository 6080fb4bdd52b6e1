//! The format of each line, found by how the line begins: a log may change its format halfway.

use std::net::Ipv4Addr;

use memchr::memchr;

use super::entry::{Fault, LineFormat, LogEntry};
use super::json_entry::{self, HeaderFrom};
use super::text::{self, LineDates, WantedFields, quoted, split_once};

/// Bytes of a line, at most.
pub const MAX_LINE: usize = 1 << 20;

/// Reads the lines of one log.
#[derive(Debug)]
pub struct LineReader {
    forced: Option<LineFormat>,
    from: Vec<HeaderFrom>,
    dates: LineDates,
    pub wanted: WantedFields,
}

/// A line of the common or combined format without any field that needs more work: nearly every
/// line of most logs. [`LineReader::read_plain`] reads it in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainLine<'l> {
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    pub peer: Ipv4Addr,
    pub method: &'static str,
    /// A path and perhaps a query: ASCII without escapes.
    pub target: &'l str,
    pub status: u16,
    pub format: LineFormat,
}

/// The beginnings of a plain request line.
const METHODS: [(&str, &[u8]); 6] = [
    ("GET", b"GET /"),
    ("POST", b"POST /"),
    ("HEAD", b"HEAD /"),
    ("PUT", b"PUT /"),
    ("DELETE", b"DELETE /"),
    ("PATCH", b"PATCH /"),
];

impl LineReader {
    /// Reads logs of one format, or of any. `from` names members of JSON lines that are headers.
    pub fn new(forced: Option<LineFormat>, from: &[HeaderFrom]) -> LineReader {
        LineReader {
            forced,
            from: from.to_vec(),
            dates: LineDates::default(),
            wanted: WantedFields::ALL,
        }
    }

    /// Reads a plain line. `None` for a line that [`LineReader::read`] must read.
    pub fn read_plain<'l>(&mut self, line: &'l [u8]) -> Option<PlainLine<'l>> {
        let may_be_plain = matches!(
            self.forced,
            None | Some(LineFormat::Common | LineFormat::Combined)
        );
        match may_be_plain && line.len() < MAX_LINE {
            true => read_plain(line.trim_ascii_end(), &mut self.dates, self.wanted),
            false => None,
        }
    }

    pub fn read<'l>(&mut self, line: &'l [u8]) -> Result<(LogEntry<'l>, LineFormat), Fault> {
        if line.len() >= MAX_LINE {
            return Err(Fault::Long);
        }
        let line = line.trim_ascii_end();
        let (is_object, is_own) = match self.forced {
            None => (line.first() == Some(&b'{'), text::is_own(line)),
            Some(LineFormat::Common | LineFormat::Combined) => (false, false),
            Some(LineFormat::OwnText) => (false, true),
            Some(LineFormat::Json | LineFormat::Caddy | LineFormat::Own) => (true, false),
        };
        if is_object {
            json_entry::read(line, &self.from)
        } else if is_own {
            let entry = text::read_own(line, &mut self.dates)?;
            Ok((entry, LineFormat::OwnText))
        } else {
            text::read_common(line, &mut self.dates, self.wanted)
        }
    }
}

fn read_plain<'l>(
    line: &'l [u8],
    dates: &mut LineDates,
    wanted: WantedFields,
) -> Option<PlainLine<'l>> {
    let (peer, rest) = split_once(line, b' ')?;
    let peer = std::str::from_utf8(peer).ok()?.parse().ok()?;
    let (date, rest) = split_once(rest.strip_prefix(b"- - [")?, b']')?;
    let at_us = dates.read(date)?;
    let rest = rest.strip_prefix(b" \"")?;
    let mut methods = METHODS.iter();
    let (method, begin) = methods.find(|(_, begin)| rest.starts_with(begin))?;
    let (request, rest) = split_once(&rest[begin.len() - 1..], b'"')?;
    let target = [b" HTTP/1.1", b" HTTP/2.0"]
        .iter()
        .find_map(|version| request.strip_suffix(version.as_slice()))?;
    if !target.is_ascii() || memchr(b'\\', target).is_some() {
        return None;
    }
    let target = std::str::from_utf8(target).ok()?;
    if target.ends_with(|last: char| last.is_ascii_whitespace()) {
        return None;
    }
    let (status, rest) = rest.strip_prefix(b" ")?.split_first_chunk::<3>()?;
    if !status.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(PlainLine {
        at_us,
        peer,
        method,
        target,
        status: text::status_of(status),
        format: plain_format(rest.strip_prefix(b" ")?, wanted)?,
    })
}

/// The format of a plain line, from the text behind its status. `None` if a field is wanted.
fn plain_format(after: &[u8], wanted: WantedFields) -> Option<LineFormat> {
    let Some((length, after)) = split_once(after, b' ') else {
        return (!after.is_empty()).then_some(LineFormat::Common);
    };
    let inside = after.strip_prefix(b"\"").filter(|_| !length.is_empty())?;
    if !wanted.agents && !wanted.extras {
        // An unescaped quote at the end of the line ends some field.
        return match inside {
            [.., b'\\', b'"'] => None,
            [.., b'"'] => Some(LineFormat::Combined),
            _ => quoted(after).map(|_| LineFormat::Combined),
        };
    }
    let (_, after) = quoted(after).filter(|_| !wanted.agents)?;
    match quoted(after) {
        Some((_, b"")) => Some(LineFormat::Combined),
        _ => None,
    }
}

#[cfg(test)]
mod plain_tests;
#[cfg(test)]
mod tests;
