//! The header of the PROXY protocol, versions 1 and 2, as HAProxy specifies them. A balancer in
//! front of us names its client in it.
//!
//! Pure. It must never confuse the header with the bytes behind it.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE_1: &[u8] = b"PROXY ";
const SIGNATURE_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The largest header of version 1, bytes.
const MOST_1: usize = 107;
/// The largest header of version 2 with its extensions, bytes.
const MOST_2: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// A header of so many bytes, and its addresses; `None` if the peer speaks for itself.
    Header(usize, Option<RelayedAddresses>),
    /// The beginning of a possible header.
    Part,
    Other,
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayedAddresses {
    pub client: SocketAddr,
    /// The address that the client has connected to.
    pub server: SocketAddr,
}

pub fn parse(bytes: &[u8]) -> ProxyHeader {
    let begins = |signature: &[u8]| {
        let common = bytes.len().min(signature.len());
        bytes[..common] == signature[..common]
    };
    if begins(SIGNATURE_1) {
        parse_1(bytes)
    } else if begins(SIGNATURE_2) {
        parse_2(bytes)
    } else {
        ProxyHeader::Other
    }
}

fn parse_1(bytes: &[u8]) -> ProxyHeader {
    let bounded = &bytes[..bytes.len().min(MOST_1)];
    let Some(end) = bounded.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < MOST_1 {
            ProxyHeader::Part
        } else {
            ProxyHeader::Broken
        };
    };
    let Ok(line) = std::str::from_utf8(&bounded[..end]) else {
        return ProxyHeader::Broken;
    };
    let port = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| is_number)
    };
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["PROXY", "UNKNOWN", ..] => ProxyHeader::Header(end + 2, None),
        ["PROXY", family, from, to, from_port, to_port] => {
            let (Some(from_port), Some(to_port)) = (port(from_port), port(to_port)) else {
                return ProxyHeader::Broken;
            };
            let (from, to) = match (*family, from.parse(), to.parse()) {
                ("TCP4", Ok(from @ IpAddr::V4(_)), Ok(to @ IpAddr::V4(_))) => (from, to),
                ("TCP6", Ok(from @ IpAddr::V6(_)), Ok(to @ IpAddr::V6(_))) => (from, to),
                _ => return ProxyHeader::Broken,
            };
            let addresses = RelayedAddresses {
                client: SocketAddr::new(from, from_port),
                server: SocketAddr::new(to, to_port),
            };
            ProxyHeader::Header(end + 2, Some(addresses))
        }
        _ => ProxyHeader::Broken,
    }
}

fn parse_2(bytes: &[u8]) -> ProxyHeader {
    let Some(&[command, family, high, low]) = bytes.get(12..16) else {
        return ProxyHeader::Part;
    };
    let content = usize::from(high) << 8 | usize::from(low);
    let length = 16 + content;
    let least = match family {
        0x11 => 12,
        0x21 => 36,
        0x31 => 216,
        _ => 0,
    };
    if command >> 4 != 2 || length > MOST_2 || (command == 0x21 && content < least) {
        return ProxyHeader::Broken;
    }
    let Some(content) = bytes.get(16..length) else {
        return ProxyHeader::Part;
    };
    match (command & 15, family) {
        // LOCAL: the peer speaks for itself, for example in a health check.
        (0, _) => ProxyHeader::Header(length, None),
        (1, 0x11) => ProxyHeader::Header(length, read_addresses::<4>(content)),
        (1, 0x21) => ProxyHeader::Header(length, read_addresses::<16>(content)),
        // Unix sockets and unknown protocols have no address.
        (1, 0x31 | 0x00) => ProxyHeader::Header(length, None),
        _ => ProxyHeader::Broken,
    }
}

/// Reads two addresses of `BYTES` bytes, and their ports.
fn read_addresses<const BYTES: usize>(content: &[u8]) -> Option<RelayedAddresses>
where
    IpAddr: From<[u8; BYTES]>,
{
    let (from, rest) = content.split_first_chunk::<BYTES>()?;
    let (to, rest) = rest.split_first_chunk::<BYTES>()?;
    let (from_port, rest) = rest.split_first_chunk()?;
    let to_port = rest.first_chunk()?;
    Some(RelayedAddresses {
        client: SocketAddr::new(IpAddr::from(*from), u16::from_be_bytes(*from_port)),
        server: SocketAddr::new(IpAddr::from(*to), u16::from_be_bytes(*to_port)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [SIGNATURE_2, &[command, family], &length, content].concat()
    }

    /// What a header is, and that every shorter part of it is a part.
    fn check(header: &[u8], addresses: Option<[&str; 2]>) {
        let addresses = addresses.map(|[client, server]| RelayedAddresses {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
        });
        let more = [header, b"GET / HTTP/1.1\r\n"].concat();
        assert_eq!(parse(&more), ProxyHeader::Header(header.len(), addresses));
        for length in 0..header.len() {
            assert_eq!(parse(&header[..length]), ProxyHeader::Part, "{length}");
        }
    }

    #[test]
    fn headers_name_who_is_behind_the_peer() {
        check(
            b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 80\r\n",
            Some(["192.0.2.1:1000", "198.51.100.1:80"]),
        );
        check(
            b"PROXY TCP6 2001:db8::1 ::1 1000 65535\r\n",
            Some(["[2001:db8::1]:1000", "[::1]:65535"]),
        );
        check(b"PROXY UNKNOWN\r\n", None);
        check(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None);
        let four = [192, 0, 2, 1, 198, 51, 100, 1, 3, 232, 0, 80];
        let addresses = Some(["192.0.2.1:1000", "198.51.100.1:80"]);
        check(&two(0x21, 0x11, &four), addresses);
        let with_more = [&four[..], &[4, 0, 3, 1, 2, 3]].concat();
        check(&two(0x21, 0x11, &with_more), addresses);
        let mut six = [0; 36];
        six[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        check(&two(0x21, 0x21, &six), Some(["[2001:db8::]:0", "[::]:0"]));
        check(&two(0x21, 0x31, &[0; 216]), None);
        check(&two(0x21, 0, &[]), None);
        check(&two(0x20, 0x11, &four), None);
        check(&two(0x20, 0, &[9; 40]), None);
    }

    #[test]
    fn what_cannot_be_understood_is_broken() {
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
        for line in [
            "PROXY TCP4 192.0.2.1 198.51.100.1 1000\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1000 80 1\r\n",
            "PROXY TCP4  192.0.2.1 198.51.100.1 1000 80\r\n",
            "PROXY TCP4 2001:db8::1 ::1 1000 80\r\n",
            "PROXY TCP6 192.0.2.1 198.51.100.1 1000 80\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 +1 80\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1 65536\r\n",
            "PROXY UDP4 192.0.2.1 198.51.100.1 1 2\r\n",
            "PROXY TCP4 host 198.51.100.1 1 2\r\n",
            "PROXY \r\n",
            &long,
        ] {
            assert_eq!(parse(line.as_bytes()), ProxyHeader::Broken, "{line}");
        }
        for header in [
            two(0x11, 0x11, &[0; 12]),
            two(0x22, 0x11, &[0; 12]),
            two(0x21, 0x12, &[0; 12]),
            two(0x21, 0x11, &[0; 11]),
            two(0x21, 0x21, &[0; 35]),
            two(0x21, 0x11, &[0; 5000]),
        ] {
            assert_eq!(parse(&header), ProxyHeader::Broken, "{:?}", &header[..16]);
        }
        assert_eq!(parse(b"GET / HTTP/1.1"), ProxyHeader::Other);
        assert_eq!(parse(b"PRI * HTTP/2.0"), ProxyHeader::Other);
        assert_eq!(parse(b"\x16\x03\x01"), ProxyHeader::Other);
    }
}
