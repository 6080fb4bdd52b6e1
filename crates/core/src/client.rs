//! The client's address behind trusted proxies.
//!
//! Each proxy appends the address of its peer to a list. So the list is read from its right end,
//! which our own proxies wrote, to the left, which a client may have written. The walk stops at the
//! first address that is not a trusted proxy's: a trusted proxy was connected to that address. All
//! entries left of it may be lies. This room must never return an address that a client could have
//! made up.

pub mod networks;
pub mod proxy_header;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, header};
use ipnet::IpNet;

/// The walk ends after this many hops, at the last of them.
pub const MAX_HOPS: usize = 64;

/// How a client's address is found: `trusted_proxies` and `[client_ip]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIp {
    /// Proxies that may name their client.
    pub trusted: Vec<IpNet>,
    /// The header that names clients: a list of addresses, or `forwarded` (RFC 7239).
    pub header: HeaderName,
    /// Leading bits of an IPv6 address that make one client, 0 to 128.
    pub ipv6_prefix: u8,
    /// Leading bits of an IPv4 address that make one client, 0 to 32.
    pub ipv4_prefix: u8,
}

/// How a client's address was found, for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyChain {
    /// The visited hops, from the right. Empty if the peer itself is not trusted.
    pub hops: Vec<Hop>,
    pub client: IpAddr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub said: String,
    /// `None` if the text is unreadable. The walk ends before it.
    pub address: Option<IpAddr>,
    pub trusted: bool,
}

impl Default for ClientIp {
    /// Trusts no peer. One IPv4 address or one IPv6 /64 is one client.
    fn default() -> Self {
        Self {
            trusted: Vec::new(),
            header: HeaderName::from_static("x-forwarded-for"),
            ipv6_prefix: 64,
            ipv4_prefix: 32,
        }
    }
}

impl ClientIp {
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted.iter().any(|net| net.contains(&peer))
    }

    /// Finds the client's address: the peer's own, unless the peer is trusted and names another.
    /// Returns IPv4 addresses mapped into IPv6 as IPv4.
    pub fn find(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        self.follow(peer, headers, |_, _| {})
    }

    pub fn walk(&self, peer: IpAddr, headers: &HeaderMap) -> ProxyChain {
        let mut hops = Vec::new();
        let client = self.follow(peer, headers, |hop, address| {
            hops.push(Hop {
                said: String::from_utf8_lossy(hop).into_owned(),
                address,
                trusted: address.is_some_and(|address| self.trusts(address)),
            });
        });
        ProxyChain { hops, client }
    }

    /// The `proto` in the element of `Forwarded` that names the client. `None` if another header
    /// names clients.
    pub fn forwarded_proto<'h>(&self, peer: IpAddr, headers: &'h HeaderMap) -> Option<&'h [u8]> {
        if self.header != header::FORWARDED {
            return None;
        }
        let mut element = None;
        self.follow(peer, headers, |hop, _| element = Some(hop));
        let proto = parameter(element?, b"proto")?.trim_ascii();
        let quoted = proto.strip_prefix(b"\"");
        Some(
            quoted
                .and_then(|proto| proto.strip_suffix(b"\""))
                .unwrap_or(proto),
        )
    }

    /// Walks from the peer to the left, and calls `see` with each visited hop.
    fn follow<'h>(
        &self,
        peer: IpAddr,
        headers: &'h HeaderMap,
        mut see: impl FnMut(&'h [u8], Option<IpAddr>),
    ) -> IpAddr {
        let mut client = peer.to_canonical();
        if !self.trusts(client) {
            return client;
        }
        let hop_address = if self.header == header::FORWARDED {
            forwarded_for
        } else {
            address
        };
        let lines = headers.get_all(&self.header).iter().rev();
        let hops = lines.flat_map(|line| from_the_right(line.as_bytes()));
        for hop in hops.take(MAX_HOPS) {
            // Our proxies do not write unreadable members. The hop to its right is all we know.
            let address = hop_address(hop).map(|address| address.to_canonical());
            see(hop, address);
            let Some(address) = address else {
                break;
            };
            client = address;
            if !self.trusts(client) {
                break;
            }
        }
        client
    }

    /// The first address of the network that counts as one client.
    pub fn group(&self, ip: IpAddr) -> IpAddr {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let bits = 32_u32.saturating_sub(u32::from(self.ipv4_prefix));
                let mask = u32::MAX.checked_shl(bits).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
            }
            IpAddr::V6(ip) => {
                let bits = 128_u32.saturating_sub(u32::from(self.ipv6_prefix));
                let mask = u128::MAX.checked_shl(bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
            }
        }
    }
}

/// The non-empty members of a comma-separated list, the last one first. A comma within double
/// quotes does not separate. A client may send an unbalanced quote. Reading from the right keeps it
/// away from the members that proxies appended.
fn from_the_right(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = Some(list);
    std::iter::from_fn(move || {
        let list = left?;
        let mut quoted = false;
        let comma = (0..list.len()).rev().find(|&at| {
            quoted ^= is_quote(list, at);
            list[at] == b',' && !quoted
        });
        let (before, member) = match comma {
            Some(comma) => (Some(&list[..comma]), &list[comma + 1..]),
            None => (None, list),
        };
        left = before;
        Some(member.trim_ascii())
    })
    .filter(|member| !member.is_empty())
}

/// Whether a quoted text begins or ends at this byte. `\"` is a part of such a text (RFC 9110
/// section 5.6.4).
fn is_quote(text: &[u8], at: usize) -> bool {
    let escapes = || text[..at].iter().rev().take_while(|byte| **byte == b'\\');
    text[at] == b'"' && escapes().count() % 2 == 0
}

/// Reads the address of a hop: alone or with a port; IPv6 also in brackets, in quotes, with a zone.
pub fn address(hop: &[u8]) -> Option<IpAddr> {
    let text = unquoted(std::str::from_utf8(hop).ok()?.trim_ascii());
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        return is_port_or_nothing(port).then(|| ipv6(address)).flatten();
    }
    // Nearly every address stands alone.
    if let Some(address) = text.parse().ok().or_else(|| ipv6(text)) {
        return Some(address);
    }
    let (address, port) = text.split_at(text.find(':').unwrap_or(text.len()));
    is_port_or_nothing(port)
        .then(|| address.parse().ok().map(IpAddr::V4))
        .flatten()
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let address = text
        .split_once('%')
        .map_or(text, |(address, _zone)| address);
    address.parse().ok().map(IpAddr::V6)
}

fn is_port_or_nothing(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.parse::<u16>().is_ok())
}

fn unquoted(text: &str) -> &str {
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text).trim_ascii()
}

/// Reads the address in the `for` parameter of an element of `Forwarded`. `unknown` and the hidden
/// names of RFC 7239 are not addresses.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    address(parameter(element, b"for")?)
}

/// The value of a parameter in an element of `Forwarded`.
fn parameter<'e>(element: &'e [u8], wanted: &[u8]) -> Option<&'e [u8]> {
    let mut quoted = false;
    let ends = (0..element.len()).filter(|&at| {
        quoted ^= is_quote(element, at);
        element[at] == b';' && !quoted
    });
    let mut begin = 0;
    let mut params = ends.chain([element.len()]).map(|end| {
        let param = &element[begin..end];
        begin = end + 1;
        param
    });
    params.find_map(|param| {
        let equals = param.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (param[..equals].trim_ascii(), &param[equals + 1..]);
        name.eq_ignore_ascii_case(wanted).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Trusts 10.0.0.0/8 and fd00::/8.
    fn client_ip(header: &'static str) -> ClientIp {
        ClientIp {
            trusted: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
            header: HeaderName::from_static(header),
            ..ClientIp::default()
        }
    }

    fn found(header: &'static str, peer: &str, lines: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        client_ip(header).find(ip(peer), &headers).to_string()
    }

    fn xff(peer: &str, lines: &[&str]) -> String {
        found("x-forwarded-for", peer, lines)
    }

    #[test]
    fn the_element_that_names_the_client_names_its_scheme() {
        let proto = |header: &'static str, line: &str| {
            let mut headers = HeaderMap::new();
            headers.append(header, HeaderValue::from_str(line).unwrap());
            let proto = client_ip(header).forwarded_proto(ip("10.0.0.1"), &headers);
            proto.map(|proto| String::from_utf8_lossy(proto).into_owned())
        };
        let chain = "for=1.1.1.1;proto=x, for=192.0.2.1;proto=https, for=10.0.0.2;proto=http";
        for (line, expected) in [
            (chain, Some("https")),
            ("for=192.0.2.1; Proto=\"https\"", Some("https")),
            ("for=10.0.0.2;proto=http", Some("http")),
            ("for=_hidden;proto=https", Some("https")),
            ("for=192.0.2.1", None),
        ] {
            assert_eq!(proto("forwarded", line).as_deref(), expected, "{line}");
        }
        assert_eq!(proto("x-forwarded-for", chain), None);
        let mut headers = HeaderMap::new();
        headers.append(
            "forwarded",
            HeaderValue::from_static("for=1.1.1.1;proto=https"),
        );
        let stranger = client_ip("forwarded").forwarded_proto(ip("192.0.2.9"), &headers);
        assert_eq!(stranger, None);
    }

    #[test]
    fn an_untrusted_peer_is_the_client_whatever_it_says() {
        assert_eq!(xff("192.0.2.1", &["1.1.1.1"]), "192.0.2.1");
        assert_eq!(xff("::ffff:192.0.2.1", &["1.1.1.1"]), "192.0.2.1");
        assert_eq!(xff("192.0.2.1", &[]), "192.0.2.1");
    }

    #[test]
    fn the_rightmost_untrusted_hop_is_the_client() {
        assert_eq!(
            xff("10.0.0.1", &["6.6.6.6, 192.0.2.7, 10.0.0.2"]),
            "192.0.2.7"
        );
        assert_eq!(
            xff("10.0.0.1", &["6.6.6.6", "192.0.2.7", "10.0.0.2, 10.0.0.3"]),
            "192.0.2.7"
        );
        assert_eq!(xff("::ffff:10.0.0.1", &["192.0.2.7"]), "192.0.2.7");
        assert_eq!(xff("fd00::1", &["2001:db8::5"]), "2001:db8::5");
    }

    #[test]
    fn if_every_hop_is_trusted_the_leftmost_is_the_client() {
        assert_eq!(xff("10.0.0.1", &["10.0.0.3,10.0.0.2"]), "10.0.0.3");
        assert_eq!(xff("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(xff("10.0.0.1", &["", " , "]), "10.0.0.1");
    }

    #[test]
    fn a_walk_tells_what_was_looked_at() {
        let mut headers = HeaderMap::new();
        let line = "6.6.6.6, 192.0.2.7, 10.0.0.2:80";
        headers.append("x-forwarded-for", HeaderValue::from_static(line));
        let walk = client_ip("x-forwarded-for").walk(ip("10.0.0.1"), &headers);
        assert_eq!(walk.client, ip("192.0.2.7"));
        let hop = |said: &str, address, trusted| Hop {
            said: said.to_owned(),
            address: Some(ip(address)),
            trusted,
        };
        let seen = [
            hop("10.0.0.2:80", "10.0.0.2", true),
            hop("192.0.2.7", "192.0.2.7", false),
        ];
        assert_eq!(walk.hops, seen);
        let walk = client_ip("x-forwarded-for").walk(ip("192.0.2.1"), &headers);
        assert_eq!((walk.hops, walk.client), (Vec::new(), ip("192.0.2.1")));
    }

    #[test]
    fn garbage_stops_the_walk() {
        assert_eq!(xff("10.0.0.1", &["6.6.6.6, garbage, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(xff("10.0.0.1", &["unknown"]), "10.0.0.1");
        assert_eq!(xff("10.0.0.1", &["1.2.3.4:99999"]), "10.0.0.1");
        assert_eq!(xff("10.0.0.1", &["1.2.3.4:"]), "10.0.0.1");
        assert_eq!(xff("10.0.0.1", &["1.2.3"]), "10.0.0.1");
        assert_eq!(xff("10.0.0.1", &["6.6.6.6, \u{e9}"]), "10.0.0.1");
    }

    #[test]
    fn empty_members_are_passed_over() {
        assert_eq!(xff("10.0.0.1", &["192.0.2.7, , 10.0.0.2,"]), "192.0.2.7");
    }

    #[test]
    fn an_escaped_quote_does_not_end_a_text() {
        let line = r#"for=203.0.113.5;ua="x\",for=9.9.9.9;y=\"z;for=9.9.9.9""#;
        assert_eq!(found("forwarded", "10.0.0.1", &[line]), "203.0.113.5");
    }

    #[test]
    fn ports_brackets_zones_and_quotes_are_taken_off() {
        for hop in [
            "192.0.2.7:80",
            " 192.0.2.7 ",
            "\"192.0.2.7:80\"",
            "::ffff:192.0.2.7",
        ] {
            assert_eq!(xff("10.0.0.1", &[hop]), "192.0.2.7", "{hop}");
        }
        for hop in [
            "2001:db8::1",
            "[2001:db8::1]",
            "[2001:db8::1]:80",
            "\"[2001:db8::1]:80\"",
        ] {
            assert_eq!(xff("10.0.0.1", &[hop]), "2001:db8::1", "{hop}");
        }
        assert_eq!(xff("10.0.0.1", &["fe80::1%eth0"]), "fe80::1");
        assert_eq!(xff("10.0.0.1", &["[fe80::1%25eth0]:80"]), "fe80::1");
        assert_eq!(xff("10.0.0.1", &["[::ffff:192.0.2.7]:80"]), "192.0.2.7");
    }

    #[test]
    fn a_client_cannot_reach_appended_members_with_a_quote() {
        assert_eq!(xff("10.0.0.1", &["\"6.6.6.6, 192.0.2.7"]), "192.0.2.7");
        assert_eq!(
            found("forwarded", "10.0.0.1", &["for=\"6.6.6.6, for=192.0.2.7"]),
            "192.0.2.7"
        );
    }

    #[test]
    fn the_forwarded_header_is_read_by_its_for() {
        let forwarded = |line| found("forwarded", "10.0.0.1", &[line]);
        assert_eq!(
            forwarded("for=6.6.6.6, For=\"192.0.2.7:80\";proto=https"),
            "192.0.2.7"
        );
        assert_eq!(
            forwarded("proto=http; for=\"[2001:db8::1]:80\";by=10.0.0.9"),
            "2001:db8::1"
        );
        assert_eq!(
            forwarded("for=192.0.2.7;by=\"a,b\", for=10.0.0.2"),
            "192.0.2.7"
        );
        assert_eq!(
            forwarded("host=\"a;for=6.6.6.6\";for=192.0.2.7"),
            "192.0.2.7"
        );
        assert_eq!(forwarded("for=6.6.6.6, for=unknown"), "10.0.0.1");
        assert_eq!(forwarded("for=6.6.6.6, for=_hidden"), "10.0.0.1");
        assert_eq!(forwarded("for=6.6.6.6, proto=https"), "10.0.0.1");
    }

    #[test]
    fn the_walk_is_bounded() {
        let line = vec!["10.0.0.2"; MAX_HOPS].join(",");
        assert_eq!(xff("10.0.0.1", &["192.0.2.7", &line]), "10.0.0.2");
        assert_eq!(xff("10.0.0.1", &["192.0.2.7", &line[9..]]), "192.0.2.7");
    }

    #[test]
    fn addresses_are_grouped_by_network() {
        let client_ip = ClientIp::default();
        assert_eq!(
            client_ip.group(ip("2001:db8:1:2:3:4:5:6")),
            ip("2001:db8:1:2::")
        );
        assert_eq!(client_ip.group(ip("192.0.2.7")), ip("192.0.2.7"));
        assert_eq!(client_ip.group(ip("::ffff:192.0.2.7")), ip("192.0.2.7"));
        let wide = ClientIp {
            ipv6_prefix: 0,
            ipv4_prefix: 0,
            ..ClientIp::default()
        };
        assert_eq!(wide.group(ip("2001:db8::1")), ip("::"));
        assert_eq!(wide.group(ip("192.0.2.7")), ip("0.0.0.0"));
        let narrow = ClientIp {
            ipv6_prefix: 128,
            ipv4_prefix: 24,
            ..ClientIp::default()
        };
        assert_eq!(narrow.group(ip("2001:db8::1")), ip("2001:db8::1"));
        assert_eq!(narrow.group(ip("192.0.2.7")), ip("192.0.2.0"));
    }

    proptest! {
        #[test]
        fn nothing_to_the_left_of_the_client_matters(
            spoofed in prop::collection::vec("[ -~]{0,30}", 0..4),
            trusted in 0_usize..4,
        ) {
            let mut line = String::from("192.0.2.7");
            for _ in 0..trusted {
                line.push_str(", 10.0.0.2");
            }
            // As one line, appended to what the client sent, and as a line of its own.
            let joined = format!("{}, {line}", spoofed.join(","));
            prop_assert_eq!(xff("10.0.0.1", &[&joined]), "192.0.2.7");
            let mut lines: Vec<&str> = spoofed.iter().map(String::as_str).collect();
            lines.push(&line);
            prop_assert_eq!(xff("10.0.0.1", &lines), "192.0.2.7");
        }
    }
}
