//! WebSocket (RFC 6455) through the proxy, before a server that reads frames and echoes messages.
//! The proxy must pass every byte unchanged, and an end on one side must reach the other.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::house::{Client, Tidegate, Upstream};
use crate::probe::try_all;

// Section 1.3 has this key and what the server answers to it.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const LAST: u8 = 0x80;

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A frame as section 5.2 lays it out. A client masks what it sends.
fn frame(first: u8, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut bytes = vec![first];
    match payload.len() {
        length @ ..126 => bytes.push(masked | u8::try_from(length).unwrap()),
        length @ ..0x1_0000 => {
            bytes.push(masked | 126);
            bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            bytes.push(masked | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    let Some(mask) = mask else {
        bytes.extend(payload);
        return bytes;
    };
    bytes.extend(mask);
    let keys = mask.iter().cycle();
    bytes.extend(payload.iter().zip(keys).map(|(byte, key)| byte ^ key));
    bytes
}

fn sent(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, Some(MASK), payload)
}

fn echoed(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, None, payload)
}

/// Reads a frame of a client; nothing at the connection's end.
fn read_frame(stream: &mut TcpStream, all: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let mut take = |length: usize| {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).ok()?;
        all.extend(&bytes);
        Some(bytes)
    };
    let head = take(2)?;
    let length = match head[1] & 0x7f {
        126 => usize::from(u16::from_be_bytes(take(2)?.try_into().unwrap())),
        127 => usize::try_from(u64::from_be_bytes(take(8)?.try_into().unwrap())).unwrap(),
        short => usize::from(short),
    };
    let mask = take(4)?;
    let payload = take(length)?;
    let keys = mask.iter().cycle();
    let payload = payload.iter().zip(keys).map(|(byte, key)| byte ^ key);
    Some((head[0], payload.collect()))
}

/// Echoes messages, answers pings, and closes when the client does. Returns every byte that came.
fn echo(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some((first, payload)) = read_frame(stream, &mut all) {
        let answer = match first & 0x0f {
            PING => first & 0xf0 | PONG,
            PONG => continue,
            _ => first,
        };
        if stream.write_all(&echoed(answer, &payload)).is_err() || answer & 0x0f == CLOSE {
            break;
        }
    }
    all
}

struct Stage {
    proxy: Tidegate,
    upstream: Upstream,
    /// The bytes of each connection after the handshake, when it has ended.
    ended: Receiver<Vec<u8>>,
}

fn before(serve: impl Fn(&mut TcpStream) -> Vec<u8> + Send + Sync + 'static) -> Stage {
    let (sender, ended) = channel();
    let sender: Arc<Mutex<Sender<Vec<u8>>>> = Arc::new(Mutex::new(sender));
    let upstream = Upstream::start(move |request, stream| {
        if request.header("sec-websocket-key").as_deref() != Some(KEY) {
            let refusal = "HTTP/1.1 426 Upgrade Required\r\nconnection: upgrade\r\n\
                           upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                           content-length: 0\r\n\r\n";
            return stream.write_all(refusal.as_bytes()).is_ok();
        }
        let mut head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {ACCEPT}\r\n"
        );
        for name in ["sec-websocket-protocol", "sec-websocket-extensions"] {
            if let Some(value) = request.header(name) {
                head += &format!("{name}: {value}\r\n");
            }
        }
        stream.write_all((head + "\r\n").as_bytes()).unwrap();
        let _ = sender.lock().unwrap().send(serve(stream));
        let _ = stream.shutdown(Shutdown::Both);
        false
    });
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n",
        upstream.url()
    ));
    Stage {
        proxy,
        upstream,
        ended,
    }
}

fn handshake(more: &str) -> String {
    format!(
        "GET /chat HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n{more}\r\n"
    )
}

fn open(stage: &Stage) -> Client {
    let mut client = stage.proxy.connect();
    client.send(handshake(""));
    let head = client.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    client
}

type Case = (&'static str, Vec<Vec<u8>>, Vec<Vec<u8>>);

fn message(name: &'static str, first: u8, payload: &[u8]) -> Case {
    (
        name,
        vec![sent(first, payload)],
        vec![echoed(first, payload)],
    )
}

/// Frames of sections 5.4 to 5.7, and ones that no section permits: the proxy judges none of them.
fn cases() -> Vec<Case> {
    let large = vec![0xa5; 300_000];
    let mut cases = vec![
        message("5.6 text", LAST | TEXT, b"Hello"),
        message("5.6 text that is not UTF-8", LAST | TEXT, b"\xff\xfe\x80"),
        message("5.6 binary", LAST | BINARY, &[0, 1, 0xff]),
        message("5.8 reserved bits", 0x70 | LAST | TEXT, b"abc"),
        message("5.2 a reserved kind", LAST | 3, b"abc"),
        message("5.4 a continuation of nothing", LAST | CONTINUATION, b"abc"),
        message(
            "5.2 what looks like a request",
            LAST | TEXT,
            b"\r\n\r\nGET /other HTTP/1.1\r\n\r\n",
        ),
        (
            "5.5.3 a pong that was not asked for",
            vec![sent(LAST | PONG, b"x")],
            vec![],
        ),
        (
            "5.5.2 an empty ping",
            vec![sent(LAST | PING, b"")],
            vec![echoed(LAST | PONG, b"")],
        ),
        (
            "5.5.2 a ping of 125 bytes",
            vec![sent(LAST | PING, &[7; 125])],
            vec![echoed(LAST | PONG, &[7; 125])],
        ),
        (
            "5.4 fragments with a ping between them",
            vec![
                sent(TEXT, b"Hel"),
                sent(LAST | PING, b"p"),
                sent(CONTINUATION, b""),
                sent(LAST | CONTINUATION, b"lo"),
            ],
            vec![
                echoed(TEXT, b"Hel"),
                echoed(LAST | PONG, b"p"),
                echoed(CONTINUATION, b""),
                echoed(LAST | CONTINUATION, b"lo"),
            ],
        ),
        (
            "5.3 a mask of zeros",
            vec![frame(LAST | TEXT, Some([0; 4]), b"abc")],
            vec![echoed(LAST | TEXT, b"abc")],
        ),
    ];
    for length in [0, 1, 125, 126, 127, 65_535, 65_536, 300_000] {
        cases.push(message("5.2 a length", LAST | BINARY, &large[..length]));
    }
    cases
}

fn check(stage: &Stage, (_, frames, answers): &Case, piece: usize) {
    let mut client = open(stage);
    let end = sent(LAST | CLOSE, &1000u16.to_be_bytes());
    let all = [frames.concat(), end].concat();
    let mut writer = client.stream.try_clone().unwrap();
    let expected = [
        answers.concat(),
        echoed(LAST | CLOSE, &1000u16.to_be_bytes()),
    ]
    .concat();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            all.chunks(piece)
                .for_each(|piece| writer.write_all(piece).unwrap())
        });
        assert!(client.rest() == expected, "other bytes came back");
    });
    assert!(stage.ended.recv().unwrap() == all, "other bytes arrived");
}

#[test]
fn frames_pass_unchanged() {
    let stage = before(echo);
    let cases = cases();
    try_all(
        &cases,
        |case| case.0.to_owned(),
        |case| check(&stage, case, usize::MAX),
    );
    let short = |case: &&Case| case.1.concat().len() < 1000;
    for case in cases.iter().filter(short) {
        check(&stage, case, 1);
    }
}

#[test]
fn close_codes_pass_unchanged() {
    let stage = before(echo);
    let reasons: Vec<Vec<u8>> = [
        1000_u16, 1001, 1002, 1003, 1007, 1009, 1011, 3000, 4999, 0, 1005,
    ]
    .iter()
    .map(|code| [&code.to_be_bytes()[..], b"reason"].concat())
    .chain([vec![], vec![3]])
    .collect();
    for reason in reasons {
        let mut client = open(&stage);
        let close = sent(LAST | CLOSE, &reason);
        client.send(&close);
        assert_eq!(client.rest(), echoed(LAST | CLOSE, &reason));
        assert_eq!(stage.ended.recv().unwrap(), close);
    }
}

#[test]
fn handshakes_pass_or_are_refused_by_the_server() {
    let stage = before(echo);
    let rows = [
        (handshake("Origin: http://other.test\r\n"), 101),
        (
            handshake("Sec-WebSocket-Protocol: chat, superchat\r\n"),
            101,
        ),
        (
            handshake("Sec-WebSocket-Extensions: permessage-deflate\r\n"),
            101,
        ),
        (handshake("").replace("websocket", "WebSocket"), 101),
        (
            handshake("").replace("Connection: U", "Connection: keep-alive, u"),
            101,
        ),
        (handshake("").replace(KEY, "bm90IHRoaXMgb25lIGJlcw=="), 426),
        (handshake("").replace("Sec-WebSocket-Key", "X-Key"), 426),
    ];
    for (request, status) in &rows {
        let mut client = stage.proxy.connect();
        client.send(request);
        let head = client.head().unwrap().to_lowercase();
        assert!(
            head.starts_with(&format!("http/1.1 {status}")),
            "{request}{head}"
        );
        assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
        if *status == 101 {
            assert!(
                head.contains(&format!("accept: {ACCEPT}").to_lowercase()),
                "{head}"
            );
            for name in ["sec-websocket-protocol", "sec-websocket-extensions"] {
                let asked = request.to_lowercase().contains(name);
                assert_eq!(head.contains(name), asked, "{head}");
            }
            client.send(sent(LAST | CLOSE, b""));
            assert_eq!(client.rest(), echoed(LAST | CLOSE, b""));
        }
    }
    let seen = stage.upstream.seen();
    assert_eq!(seen.len(), rows.len());
    let version = |seen: &crate::house::Seen| seen.header("sec-websocket-version");
    assert!(
        seen.iter()
            .all(|seen| version(seen).as_deref() == Some("13"))
    );
}

/// Frames behind the head, in one packet with it: they wait for the server's agreement.
#[test]
fn frames_in_one_packet_with_the_handshake_pass() {
    let stage = before(echo);
    let mut client = stage.proxy.connect();
    let frames = [sent(LAST | TEXT, b"early"), sent(LAST | CLOSE, b"")].concat();
    client.send([handshake("").as_bytes(), &frames].concat());
    assert!(client.head().unwrap().starts_with("HTTP/1.1 101"));
    let answers = [echoed(LAST | TEXT, b"early"), echoed(LAST | CLOSE, b"")].concat();
    assert_eq!(client.rest(), answers);
    assert_eq!(stage.ended.recv().unwrap(), frames);
}

#[test]
fn a_server_may_close_first() {
    let stage = before(|stream| {
        let going = [&1001_u16.to_be_bytes()[..], b"going away"].concat();
        stream.write_all(&echoed(LAST | CLOSE, &going)).unwrap();
        echo(stream)
    });
    let mut client = open(&stage);
    let going = echoed(LAST | CLOSE, b"\x03\xe9going away");
    let mut came = client.take_buffered();
    let read = came.len();
    came.resize(going.len(), 0);
    client.stream.read_exact(&mut came[read..]).unwrap();
    assert_eq!(came, going);
    let answer = sent(LAST | CLOSE, &1001_u16.to_be_bytes());
    client.send(&answer);
    assert_eq!(stage.ended.recv().unwrap(), answer);
}

#[test]
fn an_end_without_a_close_frame_reaches_the_other_side() {
    let stage = before(echo);
    // The client stops in the middle of a frame.
    let client = open(&stage);
    let half = &sent(LAST | TEXT, b"Hello")[..4];
    (&client.stream).write_all(half).unwrap();
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stage.ended.recv().unwrap()[..2], half[..2]);
    drop(client);
    drop(open(&stage));
    assert_eq!(stage.ended.recv().unwrap(), b"");
    // The server ends behind half a frame.
    let stage = before(|stream| {
        stream.write_all(b"\x81\x05Hel").unwrap();
        Vec::new()
    });
    assert_eq!(open(&stage).rest(), b"\x81\x05Hel");
}
