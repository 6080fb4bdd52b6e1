//! The PROXY protocol: a header ends where it ends, whatever follows it and however it comes.

use tidegate::client::proxy_header::{ProxyHeader, parse};

use crate::both;

const WORDS: &[&str] = &[
    "PROXY ",
    "TCP4 ",
    "TCP6 ",
    "UNKNOWN",
    "192.0.2.1 ",
    "198.51.100.1 ",
    "2001:db8::1 ",
    "::1 ",
    "1000 ",
    "80",
    "65536",
    "\r\n",
    "\n",
    "\r",
    " ",
    "\r\n\r\n\0\r\nQUIT\n",
    "!",
    "\x11",
    "\0\x0c",
    "\0\0",
    "\x20",
    "abcdabcdefgh",
    "GET / HTTP/1.1\r\n",
    "\0$",
    "abcdabcdabcdabcdabcdabcdabcdabcdabcd",
    "x",
    "+",
    "-",
];

#[test]
fn a_header_ends_where_it_ends() {
    bolero::check!(name = "proxy_header")
        .with_max_len(64)
        .for_each(|input: &[u8]| both(input, WORDS, check));
}

fn check(bytes: &[u8]) {
    let parsed = parse(bytes);
    let longer = [bytes, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"].concat();
    match parsed {
        ProxyHeader::Header(length, _) => {
            assert!(length <= bytes.len());
            assert_eq!(parse(&bytes[..length]), parsed);
            assert_eq!(parse(&longer), parsed);
            for part in 0..length {
                assert_eq!(
                    parse(&bytes[..part]),
                    ProxyHeader::Part,
                    "{part} of {bytes:?}"
                );
            }
        }
        ProxyHeader::Part => assert!(bytes.len() < 16 + 4096),
        ProxyHeader::Other | ProxyHeader::Broken => assert_eq!(parse(&longer), parsed, "{bytes:?}"),
    }
}
