//! Plain lines: those of the common and combined formats that say who asked for what, and when, and
//! nothing else that anybody asks for. Nearly every line of most logs is one, and is read in one
//! go, without a copy; whatever is odd in any way is left to `text`, which says the same.
//!
//! Pure.

use std::net::Ipv4Addr;

use memchr::memchr2;

use super::entry::Format;
use super::text::{self, Dates, Wanted};

/// What such a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain<'l> {
    /// When, microseconds since the Unix epoch.
    pub at_us: u64,
    /// Whoever was connected.
    pub peer: Ipv4Addr,
    /// The method.
    pub method: &'static str,
    /// A path and perhaps a query: ASCII, and nothing in it was escaped.
    pub target: &'l [u8],
    /// The response's status; 0 if the log does not say it.
    pub status: u16,
    /// The line's format.
    pub format: Format,
}

/// Methods that are known by sight.
const METHODS: [(&str, &[u8]); 6] = [
    ("GET", b"GET /"),
    ("POST", b"POST /"),
    ("HEAD", b"HEAD /"),
    ("PUT", b"PUT /"),
    ("DELETE", b"DELETE /"),
    ("PATCH", b"PATCH /"),
];
/// ` HTTP/1.1`
const VERSION: usize = 9;

/// Reads such a line, without white space at its end; nothing where it is another.
pub fn read<'l>(line: &'l [u8], dates: &mut Dates, wanted: Wanted) -> Option<Plain<'l>> {
    let (peer, at_us, close) = text::beginning(line, dates)?;
    let rest = line.get(close + 1..)?.strip_prefix(b" \"")?;
    let method = METHODS.iter().find(|(_, begin)| rest.starts_with(begin));
    let (method, begin) = method?;
    let rest = &rest[begin.len() - 1..];
    let end = memchr2(b'"', b'\\', rest)?;
    let target = &rest[..end.checked_sub(VERSION)?];
    let version = &rest[target.len()..end];
    let is_sure = (version == b" HTTP/1.1" || version == b" HTTP/2.0")
        && target
            .last()
            .is_some_and(|last| !last.is_ascii_whitespace())
        && target.is_ascii()
        && rest[end] == b'"';
    if !is_sure {
        return None;
    }
    let after = rest[end + 1..].strip_prefix(b" ")?;
    let (digits, after) = after.split_first_chunk::<3>()?;
    let [hundreds, tens, ones] = digits.map(|byte| u16::from(byte.wrapping_sub(b'0')));
    if hundreds > 9 || tens > 9 || ones > 9 {
        return None;
    }
    let format = behind(after.strip_prefix(b" ")?, wanted)?;
    Some(Plain {
        at_us,
        peer,
        method,
        target,
        status: hundreds * 100 + tens * 10 + ones,
        format,
    })
}

/// The format that what stands behind the status makes of a line, where that says nothing else.
fn behind(after: &[u8], wanted: Wanted) -> Option<Format> {
    let length = after.iter().position(|byte| *byte == b' ');
    let after = match length {
        // Whatever it is: nobody asks.
        Some(1..) => &after[length.unwrap_or(0) + 1..],
        None if !after.is_empty() => return Some(Format::Common),
        _ => return None,
    };
    let inside = after.strip_prefix(b"\"")?;
    if !wanted.agents && !wanted.extras {
        // It ends there or further on: a quote that nothing stands before ends a field.
        return match inside {
            [.., b'\\', b'"'] => None,
            [.., b'"'] => Some(Format::Combined),
            _ => text::quoted(after).map(|_| Format::Combined),
        };
    }
    let (_, after) = text::quoted(after).filter(|_| !wanted.agents)?;
    match text::quoted(after) {
        Some((_, b"")) => Some(Format::Combined),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    const DATE: &str = "[20/Nov/2026:00:00:07 +0000]";

    /// What a line is read as, plain and in full, after a line of the same second.
    fn both(line: &[u8], wanted: Wanted) -> Option<(String, String)> {
        let mut dates = Dates::default();
        let before = format!("192.0.2.1 - - {DATE} \"GET / HTTP/1.1\" 200 1");
        text::common(before.as_bytes(), &mut dates, wanted).unwrap();
        let plain = read(line, &mut dates, wanted)?;
        let target = String::from_utf8_lossy(plain.target).into_owned();
        let said = (plain.at_us, IpAddr::from(plain.peer), plain.method, target);
        let said = format!("{said:?} {} {:?}", plain.status, plain.format);
        let (entry, format) = text::common(line, &mut dates, wanted).unwrap();
        assert!(entry.client.is_none() && entry.host.is_none() && entry.duration_us.is_none());
        assert!(entry.headers.is_empty());
        let full = (entry.at_us, entry.peer, entry.method, entry.target);
        Some((said, format!("{full:?} {} {format:?}", entry.status)))
    }

    const NOTHING: Wanted = Wanted {
        agents: false,
        extras: false,
    };
    const EXTRAS: Wanted = Wanted {
        agents: false,
        extras: true,
    };

    #[test]
    fn lines_as_servers_write_them_are_plain() {
        let plain = |rest: &str, wanted| {
            let line = format!("198.51.100.24 - - {DATE} {rest}");
            let (plain, full) = both(line.as_bytes(), wanted)?;
            assert_eq!(plain, full);
            Some(())
        };
        for (rest, is_plain) in [
            ("\"GET /a?b=c HTTP/1.1\" 200 12", true),
            ("\"POST /a HTTP/2.0\" 404 - \"-\" \"curl/8\"", true),
            (
                "\"GET /a HTTP/1.1\" 200 12 \"http://x/\" \"a \\\"b\\\"\"",
                true,
            ),
            ("\"GET http://h/a HTTP/1.1\" 200 12", false),
            ("\"GET /\\x22 HTTP/1.1\" 200 12", false),
            ("\"GET /\u{e9} HTTP/1.1\" 200 12", false),
            ("\"GET /a\" 200 12", false),
            ("\"\\x16\\x03\" 400 0", false),
            ("\"GET / HTTP/1.1\" 2000 12", false),
        ] {
            assert_eq!(plain(rest, NOTHING).is_some(), is_plain, "{rest}");
        }
        let with = "\"GET / HTTP/1.1\" 200 12 \"-\" \"curl/8\" \"203.0.113.9\"";
        assert_eq!(
            (plain(with, NOTHING), plain(with, EXTRAS)),
            (Some(()), None)
        );
        let without = "\"GET / HTTP/1.1\" 200 12 \"-\" \"curl/8\"";
        assert_eq!(
            (plain(without, EXTRAS), plain(without, Wanted::ALL)),
            (Some(()), None)
        );
    }

    proptest! {
        #[test]
        fn whatever_is_plain_says_the_same_in_full(
            changes in prop::collection::vec((0..140_usize, prop::sample::select(
                b" \"\\-[]/?#0129aG.:\xff\t{".to_vec()
            )), 0..4),
            extras in any::<bool>(),
        ) {
            let line = format!(
                "198.51.100.24 - - {DATE} \"GET /a/b?c=d HTTP/1.1\" 200 1234 \"http://x/y\" \
                 \"Mozilla/5.0 (X11)\""
            );
            let mut line = line.into_bytes();
            for (at, byte) in changes {
                let at = at % line.len();
                line[at] = byte;
            }
            let wanted = if extras { EXTRAS } else { NOTHING };
            if let Some((plain, full)) = both(line.trim_ascii_end(), wanted) {
                prop_assert_eq!(plain, full);
            }
        }
    }
}
