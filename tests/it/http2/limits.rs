//! Waits and sizes on HTTP/2 are bounded as they are on HTTP/1.

use std::io::Read;
use std::time::Duration;

use super::client::{self, Http2, get, read};
use super::floods::honest_beside;
use super::raw::{
    CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PREFACE, REQUEST, RST_STREAM, Raw, SETTINGS,
    block, frame,
};
use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;

/// Short enough for a test.
const SHORT: &str = "header_timeout = \"800ms\"\nidle_timeout = \"1s\"\n\
                     body_timeout = \"500ms\"";

fn proxy(upstream: &Upstream, settings: &str) -> Tidegate {
    Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n{settings}\n",
        upstream.url()
    ))
}

#[test]
fn silence_and_beginnings_are_waited_for_as_long_as_on_http_1() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, SHORT);
    let whole = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let head = frame(HEADERS, 0, 1, &block(&REQUEST));
    let rows: [(&str, Vec<u8>); 6] = [
        ("silence", Vec::new()),
        ("a letter", b"P".to_vec()),
        ("half a preface", PREFACE[..12].to_vec()),
        ("a preface", PREFACE.to_vec()),
        ("half a frame", [&whole[..], &[0, 0, 5]].concat()),
        ("half a head", [&whole[..], &head].concat()),
    ];
    honest_beside(&proxy, || {
        for (name, bytes) in &rows {
            let mut raw = Raw::silent(proxy.address);
            raw.send(bytes);
            let mut said = Vec::new();
            let _ = raw.stream.read_to_end(&mut said);
            assert!(!said.starts_with(b"HTTP/1.1 200"), "{name}");
        }
    });
    assert!(upstream.seen().iter().all(|seen| seen.is_for("/honest")));
}

#[test]
fn a_request_is_served_however_slowly_its_preface_comes() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, "");
    let mut raw = Raw::silent(proxy.address);
    for byte in PREFACE.chunks(1) {
        raw.send(byte);
    }
    raw.send(&frame(SETTINGS, 0, 0, &[]));
    raw.ask(1, &REQUEST);
    assert_eq!(raw.until(&[DATA]).unwrap().payload, b"ok");
    let mut client = proxy.connect();
    for byte in b"PRINT / HTTP/1.1\r\nHost: test\r\n\r\n".chunks(1) {
        client.send(byte);
    }
    assert_eq!(client.answer().status, 200);
}

#[test]
fn a_connection_without_requests_is_told_to_go() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, SHORT);
    let mut raw = Raw::to(proxy.address, &[]);
    raw.ask(1, &REQUEST);
    assert_eq!(raw.until(&[DATA]).unwrap().payload, b"ok");
    assert_eq!(raw.until(&[GOAWAY]).unwrap().error(), 0);
    assert!(raw.goodbye().is_none_or(|error| error == 0));
}

#[test]
fn a_client_that_ignores_goaway_is_disconnected() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, SHORT);
    for requests in [0, 1] {
        // It answers no ping either.
        let mut raw = Raw::to(proxy.address, &[]);
        if requests > 0 {
            raw.ask(1, &REQUEST);
        }
        let mut said = Vec::new();
        let ended = raw.stream.read_to_end(&mut said);
        assert!(ended.is_ok(), "{requests}: {ended:?}");
    }
}

#[test]
fn a_body_that_stands_still_ends_its_stream_alone() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, "body_timeout = \"500ms\"");
    client::run(async {
        let client = Http2::to(proxy.address).await;
        let post = http::Request::post("http://test/a").body(()).unwrap();
        let (response, mut body) = client.begin(post).await;
        body.send_data("some".into(), false).unwrap();
        assert_eq!(read(response).await.unwrap().status, 408);
        assert_eq!(client.ask(get("/b")).await.unwrap().status, 200);
    });
}

/// An upstream that sends for ever, and notes when nobody wants it any more.
fn endless() -> Upstream {
    Upstream::start(|seen, stream| {
        if seen.is_for("/honest") {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            return std::io::Write::write_all(stream, answer).is_ok();
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
        let mut alive = std::io::Write::write_all(stream, head).is_ok();
        while alive {
            alive = std::io::Write::write_all(stream, &[b'x'; 1 << 16]).is_ok();
        }
        false
    })
}

#[test]
fn streams_whose_client_takes_nothing_are_reset() {
    let upstream = endless();
    let proxy = proxy(&upstream, "body_timeout = \"500ms\"");
    // SETTINGS_INITIAL_WINDOW_SIZE: nothing at all, and one byte.
    for window in [0, 1] {
        honest_beside(&proxy, || {
            let mut raw = Raw::to(proxy.address, &[0, 4, 0, 0, 0, window]);
            for stream in 0..100 {
                raw.ask(stream * 2 + 1, &REQUEST);
            }
            for _ in 0..100 {
                assert_eq!(raw.until(&[RST_STREAM]).unwrap().error(), 8, "CANCEL");
            }
        });
    }
}

#[test]
fn the_whole_time_of_a_route_ends_for_who_takes_nothing_as_well() {
    let upstream = endless();
    let proxy = Tidegate::start(&format!(
        "[[route]]\npath = \"/*\"\nlimits = []\nupstream = \"{}\"\ntimeout = \"500ms\"\n\
         [server]\nbody_timeout = \"1h\"\n",
        upstream.url()
    ));
    let mut raw = Raw::to(proxy.address, &[]);
    raw.ask(1, &REQUEST);
    // The client's window is full long before.
    assert_eq!(raw.until(&[RST_STREAM]).unwrap().error(), 8, "CANCEL");
}

#[test]
fn a_client_that_reads_nothing_is_let_go() {
    let upstream = endless();
    let proxy = proxy(&upstream, "body_timeout = \"500ms\"");
    honest_beside(&proxy, || {
        // As much window as there can be, and nobody who reads.
        let mut raw = Raw::to(proxy.address, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
        let most = (0x7fff_ffffu32 - 65_535).to_be_bytes();
        raw.send(&frame(super::raw::WINDOW_UPDATE, 0, 0, &most));
        for stream in 0..30 {
            raw.ask(stream * 2 + 1, &REQUEST);
        }
        eventually("it is let go", || {
            std::thread::sleep(Duration::from_millis(20));
            !raw.send(&frame(super::raw::PING, 0, 0, &[0; 8]))
        });
    });
}

#[test]
fn heads_that_unpack_to_more_than_is_allowed_are_refused() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, "");
    // A line that is remembered, and then named by a byte each time.
    let mut remembered = vec![0x40];
    remembered.extend(&block(&[("x-bomb", &"y".repeat(3000))])[1..]);
    let mut bomb = block(&REQUEST);
    bomb.extend(remembered);
    bomb.extend([0xbe; 10_000]);
    honest_beside(&proxy, || {
        let mut raw = Raw::to(proxy.address, &[]);
        for stream in 0..20 {
            let head = frame(HEADERS, 1 | END_HEADERS, stream * 2 + 1, &bomb);
            if !raw.send(&head) {
                break;
            }
        }
        raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
        raw.goodbye();
    });
    let many: Vec<String> = (0..200).map(|line| format!("x-{line}")).collect();
    let lines: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "1")).collect();
    let mut raw = Raw::to(proxy.address, &[]);
    let head = [&REQUEST[..], &lines].concat();
    let bytes = block(&head);
    raw.send(&frame(HEADERS, 1, 1, &bytes[..1000]));
    raw.send(&frame(CONTINUATION, END_HEADERS, 1, &bytes[1000..]));
    raw.ask(3, &REQUEST);
    while raw.until(&[DATA]).unwrap().stream != 3 {}
    let seen = upstream.seen();
    let others = seen.iter().filter(|seen| !seen.is_for("/honest"));
    assert_eq!(others.count(), 1, "only the one that is as it should be");
}
