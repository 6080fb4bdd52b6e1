//! Host names of requests, and the patterns of routes.
//!
//! A host has one spelling here: lower case, no port, no trailing dot. A host that an upstream
//! could read in another way is refused, not repaired.

use std::borrow::Cow;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::regex::{MARK, Regex};
use crate::path::Malformed;

/// The longest host name, bytes (RFC 1035).
pub const MAX_HOST_BYTES: usize = 253;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    Any,
    Exact(Box<str>),
    /// `*.example.com`, stored as `example.com`: all names below it, at any depth, but not itself.
    Below(Box<str>),
    /// `regex:..`: all names in which the expression is found, in any letter case.
    Regex(Regex),
}

// The reasons to refuse a host. In a request, the client is at fault: 400.
const EMPTY: Malformed = Malformed("the host is missing");
const TOO_LONG: Malformed = Malformed("the host is longer than 253 bytes");
const CHARACTER: Malformed = Malformed(
    "a host has ASCII letters, digits, `-`, `_`, `~` and dots only (other names are written in \
     their `xn--` form)",
);
const EMPTY_LABEL: Malformed = Malformed("the host has an empty label between two dots");
const PORT: Malformed = Malformed("the port is not a number up to 65535");
const IPV6: Malformed = Malformed("an IPv6 address in brackets is expected");
const STAR: Malformed = Malformed(
    "`*` stands for whole leading labels only, as in `*.example.com`; else use `regex:..`",
);
const PORT_IN_PATTERN: Malformed = Malformed("hosts are matched without port");

impl HostPattern {
    /// Reads `example.com`, `*.example.com` or `regex:..`. A route without `host` has
    /// [`HostPattern::Any`].
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        if let Some(text) = text.strip_prefix(MARK) {
            return Ok(Self::Regex(Regex::parse(text)?.in_any_case()));
        }
        let (name, below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        if name.contains('*') {
            return Err(STAR);
        }
        let host = host_of(name)?;
        if split_port(name)?.1.is_some() {
            return Err(PORT_IN_PATTERN);
        }
        if !below {
            return Ok(Self::Exact(host.into()));
        }
        // Nothing is below an address.
        if host.starts_with('[') || host.parse::<Ipv4Addr>().is_ok() {
            return Err(STAR);
        }
        Ok(Self::Below(host.into()))
    }

    /// Writes what a group of its expression has taken of a host.
    pub(super) fn push_group(&self, group: &str, host: &str, out: &mut Vec<u8>) {
        if let Self::Regex(regex) = self {
            regex.push_group(group, host.as_bytes(), out);
        }
    }

    pub(super) fn has_group(&self, group: &str) -> bool {
        matches!(self, Self::Regex(regex) if regex.has_group(group))
    }

    /// `host` is as [`host_of`] returns it.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(name) => **name == *host,
            Self::Below(name) => host
                .strip_suffix(&**name)
                .is_some_and(|front| front.ends_with('.')),
            Self::Regex(regex) => regex.is_in(host.as_bytes()),
        }
    }
}

/// Returns the one spelling of the host in a `Host` header or an authority: lower case, without
/// port and trailing dot, IPv6 in brackets. Borrows a host that has this spelling already.
pub fn host_of(authority: &str) -> Result<Cow<'_, str>, Malformed> {
    if let Some(host) = plain(authority) {
        return Ok(Cow::Borrowed(host));
    }
    spelled(authority)
}

/// Works for every host, and is slower than [`plain`].
fn spelled(authority: &str) -> Result<Cow<'_, str>, Malformed> {
    let (name, _) = split_port(authority)?;
    if let Some(inner) = name.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or(IPV6)?;
        if is_future_address(inner) {
            return match name.len() {
                0..=MAX_HOST_BYTES => Ok(in_lower_case(name)),
                _ => Err(TOO_LONG),
            };
        }
        let address: Ipv6Addr = inner.parse().map_err(|_| IPV6)?;
        let text = format!("[{address}]");
        return Ok(if text == name {
            Cow::Borrowed(name)
        } else {
            Cow::Owned(text)
        });
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        return Err(EMPTY);
    }
    if name.len() > MAX_HOST_BYTES {
        return Err(TOO_LONG);
    }
    if !name.bytes().all(is_host_byte) {
        return Err(CHARACTER);
    }
    if name.split('.').any(str::is_empty) {
        return Err(EMPTY_LABEL);
    }
    Ok(in_lower_case(name))
}

fn in_lower_case(name: &str) -> Cow<'_, str> {
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

/// Whether brackets hold an address of a future version of IP (RFC 3986 section 3.2.2).
fn is_future_address(inner: &str) -> bool {
    let behind_mark = inner.strip_prefix(['v', 'V']);
    let Some((version, address)) = behind_mark.and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let fits = |byte: u8| is_host_byte(byte) || b"!$&'()*+,;=:".contains(&byte);
    !version.is_empty()
        && version.bytes().all(|byte| byte.is_ascii_hexdigit())
        && !address.is_empty()
        && address.bytes().all(fits)
}

/// Accepts nearly every host in one scan. `None` does not mean that the host is wrong.
fn plain(authority: &str) -> Option<&str> {
    let bytes = authority.as_bytes();
    let mut previous = b'.';
    let mut end = bytes.len();
    for (at, &byte) in bytes.iter().enumerate() {
        if byte == b':' {
            end = at;
            break;
        }
        let fits = match byte {
            b'.' => previous != b'.',
            byte => is_host_byte(byte) && !byte.is_ascii_uppercase(),
        };
        if !fits {
            return None;
        }
        previous = byte;
    }
    let port = bytes.get(end + 1..).unwrap_or_default();
    // Four digits are always a port, and five by their order.
    let fits = port.len() <= 4 || port.len() == 5 && port <= b"65535".as_slice();
    let usual = fits && port.iter().all(u8::is_ascii_digit);
    (previous != b'.' && end <= MAX_HOST_BYTES && usual).then(|| &authority[..end])
}

/// Splits a port off, and checks it. The port may be empty (RFC 3986).
fn split_port(authority: &str) -> Result<(&str, Option<&str>), Malformed> {
    let end = match authority.rfind(']') {
        Some(bracket) if authority.starts_with('[') => bracket + 1,
        _ => authority.find(':').unwrap_or(authority.len()),
    };
    let (name, rest) = authority.split_at(end);
    let Some(port) = rest.strip_prefix(':') else {
        return if rest.is_empty() {
            Ok((name, None))
        } else {
            Err(IPV6)
        };
    };
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (!port.is_empty() && port.parse::<u16>().is_err()) {
        // `user:password@host` also ends here: the text behind its colon is not a port.
        return Err(PORT);
    }
    Ok((name, Some(port)))
}

/// Whether names in use have this byte. Percent escapes and other characters of RFC 3986 are
/// refused, since an upstream might decode them into another name.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::Regex(regex) => write!(f, "{MARK}{}", regex.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_spelling_of_a_host_is_one_host() {
        for given in [
            "example.com",
            "EXAMPLE.com",
            "example.com.",
            "example.com:80",
            "Example.Com.:",
            "example.com:18080",
            "example.com:65535",
        ] {
            assert_eq!(host_of(given).as_deref(), Ok("example.com"), "{given}");
        }
        for given in ["[::1]", "[0:0::1]:8080", "[::1]:", "[0000::0001]"] {
            assert_eq!(host_of(given).as_deref(), Ok("[::1]"), "{given}");
        }
        let future = "[v1F.!$&'()*+,;=-._~aZ:]:80";
        assert_eq!(host_of(future).as_deref(), Ok("[v1f.!$&'()*+,;=-._~az:]"));
        assert_eq!(host_of("127.0.0.1:8080").as_deref(), Ok("127.0.0.1"));
        assert_eq!(host_of("my_host-1").as_deref(), Ok("my_host-1"));
    }

    proptest! {
        #[test]
        fn the_short_way_leads_where_the_long_one_does(
            text in "[a-cA._~:0-9%-]{0,12}|a:[0-9]{4,6}"
        ) {
            prop_assert_eq!(host_of(&text), spelled(&text));
        }
    }

    #[test]
    fn what_is_written_so_is_borrowed() {
        assert!(matches!(host_of("example.com:80"), Ok(Cow::Borrowed(_))));
        assert!(matches!(host_of("[::1]:80"), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn what_could_be_another_host_is_refused() {
        for (given, error) in [
            ("", EMPTY),
            (".", EMPTY),
            (":80", EMPTY),
            ("a b", CHARACTER),
            ("a,b", CHARACTER),
            ("user@host", CHARACTER),
            ("user:pass@host", PORT),
            ("user:80@host", PORT),
            ("%65xample.com", CHARACTER),
            ("b\u{fc}cher.example", CHARACTER),
            ("a/b", CHARACTER),
            ("a\0", CHARACTER),
            ("a..b", EMPTY_LABEL),
            (".a", EMPTY_LABEL),
            ("a..", EMPTY_LABEL),
            ("a:x", PORT),
            ("a:+1", PORT),
            ("a:65536", PORT),
            ("a:1:2", PORT),
            ("::1", PORT),
            ("[::1", PORT),
            ("[::1]x", IPV6),
            ("[x]", IPV6),
            ("[fe80::1%25eth0]", IPV6),
            ("[]", IPV6),
            ("[v.a]", IPV6),
            ("[v1.]", IPV6),
            ("[vg.a]", IPV6),
            ("[v1.%61]", IPV6),
            ("[v1.a@b]", IPV6),
        ] {
            assert_eq!(host_of(given), Err(error), "{given}");
        }
        assert_eq!(host_of(&"a".repeat(254)), Err(TOO_LONG));
    }

    #[test]
    fn a_wildcard_takes_everything_below_and_not_itself() {
        let pattern = HostPattern::parse("*.Example.com").unwrap();
        assert!(pattern.matches("a.example.com") && pattern.matches("a.b.example.com"));
        assert!(!pattern.matches("example.com") && !pattern.matches("badexample.com"));
        assert!(HostPattern::Any.matches("x"));
        assert!(
            HostPattern::parse("Example.com.")
                .unwrap()
                .matches("example.com")
        );
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for (given, error) in [
            ("*", STAR),
            ("a.*.com", STAR),
            ("*a.com", STAR),
            ("*.*.com", STAR),
            ("*.127.0.0.1", STAR),
            ("*.", EMPTY),
            ("", EMPTY),
            ("example.com:80", PORT_IN_PATTERN),
            ("*.example.com:80", PORT_IN_PATTERN),
        ] {
            assert_eq!(HostPattern::parse(given), Err(error), "{given}");
        }
    }

    proptest! {
        #[test]
        fn a_host_of_a_host_is_itself(given in "[a-zA-Z0-9.:\\[\\]-]{0,12}") {
            if let Ok(host) = host_of(&given) {
                let again = host_of(&host);
                prop_assert_eq!(again.as_deref(), Ok(&*host));
            }
        }

        #[test]
        fn nothing_panics(given in "\\PC{0,30}") {
            let _ = host_of(&given);
            let _ = HostPattern::parse(&given);
        }
    }
}
