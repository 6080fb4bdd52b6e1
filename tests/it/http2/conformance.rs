//! Frames and field blocks that RFC 9113 and RFC 7541 permit or forbid, by section. Heads of
//! requests are in `framing`, numbers of streams in `floods`, and waits in `limits`.

mod connections;
mod requests;
mod streams;

use super::raw::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, REQUEST, RST_STREAM, Raw,
    SETTINGS, WINDOW_UPDATE, block, frame,
};
use crate::house::{Tidegate, Upstream};
use crate::probe::try_all;

const PRIORITY: u8 = 2;
const PUSH_PROMISE: u8 = 5;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 32;
const WHOLE: u8 = END_STREAM | END_HEADERS;

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE: u32 = 6;
const COMPRESSION: u32 = 9;

/// What the proxy must do with the frames.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// Serve the next request on the connection.
    Serve,
    /// End the connection, with this error.
    End(u32),
    /// End the connection. The section names this error, and h2 0.4 says PROTOCOL_ERROR.
    EndAs(u32),
    /// End the connection. A reset may overtake the reason, because the proxy leaves bytes unread.
    EndUnread,
    /// Reset stream 1 with this error, and serve the next request.
    Reset(u32),
}
use Expected::{End, EndAs, EndUnread, Reset, Serve};

type Case = (&'static str, &'static str, Vec<u8>, Expected);

fn whole(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &block(&REQUEST))
}

/// The head of a request whose content is still to come.
fn open(stream: u32) -> Vec<u8> {
    let lines = [&REQUEST[1..], &[(":method", "POST")]].concat();
    // Pseudo-header fields may have any order.
    frame(HEADERS, END_HEADERS, stream, &block(&lines))
}

fn fields(bytes: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &[&block(&REQUEST), bytes].concat())
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    let entry = [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &entry)
}

fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())
}

/// The content of the answer on a stream.
fn answer(raw: &mut Raw, stream: u32) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let frame = raw.until(&[HEADERS, DATA, GOAWAY, RST_STREAM]).unwrap();
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        if frame.stream != stream {
            continue;
        }
        assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
        if frame.kind == DATA {
            content.extend(&frame.payload);
        }
        if frame.flags & END_STREAM != 0 {
            return content;
        }
    }
}

fn check(raw: &mut Raw, bytes: &[u8], expected: Expected) {
    raw.send(bytes);
    match expected {
        End(error) => assert_eq!(raw.goodbye(), Some(error)),
        EndAs(error) => assert!([error, PROTOCOL].contains(&raw.goodbye().unwrap())),
        EndUnread => assert_ne!(raw.goodbye(), Some(0)),
        Reset(error) => {
            let end = raw.until(&[RST_STREAM, GOAWAY]).unwrap();
            assert_eq!(
                (end.kind, end.stream, end.error()),
                (RST_STREAM, 1, error),
                "{end:?}"
            );
        }
        Serve => {}
    }
    if matches!(expected, Serve | Reset(_)) {
        raw.send(&whole(1001));
        assert_eq!(answer(raw, 1001), b"ok");
    }
}

fn proxy(upstream: &Upstream) -> Tidegate {
    Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n",
        upstream.url()
    ))
}

fn run(cases: &[Case]) {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream);
    try_all(
        cases,
        |case| format!("{}: {}", case.0, case.1),
        |(_, _, bytes, expected)| check(&mut Raw::to(proxy.address, &[]), bytes, *expected),
    );
}

#[test]
fn a_connection_begins_as_section_3_4_says() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream);
    let mut raw = Raw::to(proxy.address, &[]);
    assert_eq!(raw.next().unwrap().kind, SETTINGS);
    let mut raw = Raw::silent(proxy.address);
    raw.send(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n");
    assert_ne!(raw.goodbye(), Some(0));
    let mut raw = Raw::silent(proxy.address);
    raw.send(&[PREFACE, &whole(1)].concat());
    assert_eq!(raw.goodbye(), Some(PROTOCOL), "no SETTINGS");
    assert!(upstream.seen().is_empty());
}

#[test]
fn settings_and_pings_are_acknowledged() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream);
    let mut raw = Raw::to(proxy.address, &[]);
    let acknowledged = |frame: Frame| frame.flags == 1 && frame.payload.is_empty();
    while !acknowledged(raw.until(&[SETTINGS]).unwrap()) {}
    raw.send(&setting(4, 100));
    assert!(acknowledged(raw.until(&[SETTINGS]).unwrap()));
    raw.send(&frame(PING, 0, 0, b"together"));
    let pong = raw.until(&[PING]).unwrap();
    assert_eq!((pong.flags, &pong.payload[..]), (1, &b"together"[..]));
}

/// Sections 6.9.1 and 6.9.2.
#[test]
fn content_waits_for_windows() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream);
    let mut raw = Raw::to(proxy.address, &[0, 4, 0, 0, 0, 1]);
    raw.send(&whole(1));
    let mut piece = || raw.until(&[DATA]).unwrap();
    assert_eq!(piece().payload, b"o");
    // The window is then -1, and 1 behind the update.
    raw.send(&[setting(4, 0), window(1, 2)].concat());
    assert_eq!(answer(&mut raw, 1), b"k");
    // Of two values of one setting, the last counts.
    let entries = [[0, 4, 0, 0, 0, 9], [0, 4, 0, 0, 0, 1]].concat();
    raw.send(&[frame(SETTINGS, 0, 0, &entries), whole(3)].concat());
    let mut piece = || raw.until(&[DATA]).unwrap();
    assert_eq!(piece().payload, b"o");
    raw.send(&setting(4, 2));
    assert_eq!(answer(&mut raw, 3), b"k");
}

/// Section 6.8.
#[test]
fn a_client_that_says_goodbye_gets_its_answer() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream);
    for error in [0, 0xffff_u32] {
        let mut raw = Raw::to(proxy.address, &[]);
        let last = [&[0; 4][..], &error.to_be_bytes()].concat();
        raw.send(&[whole(1), frame(PING, 0, 0, b"together")].concat());
        raw.until(&[PING]).unwrap();
        raw.send(&frame(GOAWAY, 0, 0, &last));
        if error == 0 {
            assert_eq!(answer(&mut raw, 1), b"ok");
        }
        assert!(raw.goodbye().is_none_or(|error| error == 0));
    }
}
