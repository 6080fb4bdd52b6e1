//! Streams that one reader divides into requests otherwise than another.

use crate::support::Chance;

/// What may say where a body ends.
const FRAMINGS: [&str; 44] = [
    "",
    "Content-Length: 4\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 38\r\n",
    "Content-Length: 04\r\n",
    "Content-Length: +4\r\n",
    "Content-Length: -4\r\n",
    "Content-Length: 0x4\r\n",
    "Content-Length: 4 4\r\n",
    "Content-Length: 4,\r\n",
    "Content-Length: 4, 4\r\n",
    "Content-Length: 4, 0\r\n",
    "Content-Length:\r\n",
    "Content-Length: 18446744073709551620\r\n",
    "Content-Length: 4\r\nContent-Length: 4\r\n",
    "Content-Length: 0\r\nContent-Length: 4\r\n",
    "Content-Length : 4\r\n",
    "Content-Length: 4\r\n 0\r\n",
    "Content-Length: 4\nX: y\r\n",
    "X: y\rContent-Length: 4\r\n",
    "Content_Length: 4\r\n",
    "\0Content-Length: 4\r\n",
    "Transfer-Encoding: chunked\r\n",
    "transfer-encoding:CHUNKED\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "Transfer-Encoding: identity\r\nContent-Length: 4\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n",
    "Transfer-Encoding:\u{b}chunked\r\nContent-Length: 4\r\n",
    "Transfer-Encoding : chunked\r\nContent-Length: 4\r\n",
    "Transfer-Encoding\r\n: chunked\r\nContent-Length: 4\r\n",
    "Transfer-Encoding: chunked\r\n\t, identity\r\n",
    "Transfer_Encoding: chunked\r\nContent-Length: 4\r\n",
    "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "Connection: Content-Length\r\nContent-Length: 4\r\n",
    "Connection: Transfer-Encoding, close\r\nTransfer-Encoding: chunked\r\n",
    "Trailer: Content-Length\r\nTransfer-Encoding: chunked\r\n",
    "Expect: 100-continue\r\nContent-Length: 4\r\n",
    "Expect: else\r\nContent-Length: 4\r\n",
    "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 4\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
];

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n";

const BODIES: [&str; 11] = [
    "",
    "abcd",
    "0\r\n\r\n",
    "4\r\nabcd\r\n0\r\n\r\n",
    "04;a=b\r\nabcd\r\n00\r\nX: y\r\n\r\n",
    "4\r\nabcd\r\n0\r\nContent-Length: 40\r\n\r\n",
    "4\nabcd\n0\n\n",
    "0x4\r\nabcd\r\n0\r\n\r\n",
    "4\r\nabcde\r\n0\r\n\r\n",
    "4;\nabcd\r\n0\r\n\r\n",
    "0\r\n\r",
];

const LINES: [&str; 6] = [
    "POST /row HTTP/1.1\r\n",
    "GET /row HTTP/1.1\r\n",
    "POST /row HTTP/1.0\r\nConnection: keep-alive\r\n",
    "\r\n\r\nPUT /row HTTP/1.1\r\n",
    "POST http://test/row HTTP/1.1\r\n",
    "DELETE /row?a HTTP/1.1\r\n",
];

/// Each of them with a request that is hidden behind, or within.
pub fn ambiguous() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (number, framing) in FRAMINGS.iter().enumerate() {
        for (turn, body) in BODIES.iter().enumerate() {
            // Every first line with every kind of framing, though not with every body.
            let line = LINES[(number + turn) % LINES.len()];
            let head = format!("{line}Host: test\r\n{framing}\r\n{body}{SMUGGLED}");
            all.push(head.into_bytes());
        }
    }
    all
}

/// What makes something else of a stream.
const PIECES: [&str; 30] = [
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    " ",
    "\t",
    "\0",
    ":",
    ";",
    ",",
    "0",
    "4",
    "f",
    "+",
    "-",
    "0x",
    "\u{7f}",
    "\u{e4}",
    "chunked",
    "Content-Length: 4\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "Host: test\r\n",
    "X: ",
    "GET /smuggled HTTP/1.1\r\n",
    "HTTP/1.1",
    "HTTP/1.0",
    "0\r\n\r\n",
    "%",
    "/",
];

/// One of them with some places changed.
pub fn mutated(chance: &mut Chance, from: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = from[chance.below(from.len() as u64) as usize].clone();
    if chance.below(2) == 0 {
        let other = &from[chance.below(from.len() as u64) as usize];
        bytes.extend_from_slice(other);
    }
    for _ in 0..1 + chance.below(3) {
        let at = chance.below(bytes.len() as u64 + 1) as usize;
        let until = (at + chance.below(3) as usize).min(bytes.len());
        bytes.splice(at..until, chance.pick(&PIECES).bytes());
    }
    bytes
}
