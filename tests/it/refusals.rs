//! What is refused, byte by byte: with which status, and what becomes of the bytes behind it.

use std::net::TcpListener;

use crate::house::{PATIENCE, Tidegate};
use crate::http2::raw::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, REQUEST, RST_STREAM, Raw, SETTINGS,
    block, frame,
};
use crate::probe::{Pace, Probe, statuses};

const PROTOCOL_ERROR: u32 = 1;

/// Sends this and a request behind it, and sees one answer with this status, the connection's end,
/// and nothing whole at the upstream.
fn check(probe: &Probe, bytes: &str, status: u16) {
    for pace in [Pace::Whole, Pace::Bytewise] {
        let observed = probe.send(bytes.as_bytes(), pace);
        let all = format!("{bytes:?} ({pace:?}): {observed:#?}");
        assert_eq!(statuses(&observed.client), [status], "{all}");
        assert!(observed.seen.is_empty(), "{all}");
        let answer = &observed.client[0];
        assert!(answer.header("date").is_some(), "no date: {all}");
    }
}

fn post(headers: &str, body: &str) -> String {
    format!("POST /row HTTP/1.1\r\nHost: test\r\n{headers}\r\n{body}")
}

#[test]
fn chunks_whose_lines_end_in_a_bare_line_feed_are_refused_with_a_word() {
    let probe = Probe::start("");
    for body in [
        "2\r\nab\r\n0\r\nX-T: v\n\n",
        "2\r\nab\r\n0\r\nX-T: v\n\r\n",
        "2\r\nab\r\n0\r\nX-T: v\r\n\n",
        "2\r\nab\r\n0\r\n\n",
        "0\r\n\n",
        "0\n\r\n",
        "2\nab\r\n0\r\n\r\n",
        "2;a\nab\r\n0\r\n\r\n",
        "2\r\nab\n0\r\n\r\n",
        "2 \r\nab\r\n0\r\n\r\n",
        "0\r\nX-T: v\rw\r\n\r\n",
        "0\r\nX-T: \x00v\r\n\r\n",
    ] {
        check(&probe, &post("Transfer-Encoding: chunked\r\n", body), 400);
    }
}

#[test]
fn a_request_behind_chunks_is_looked_at_like_any_other() {
    let probe = Probe::start("");
    let chunks = post(
        "Transfer-Encoding: chunked\r\n",
        "2\r\nab\r\n0\r\nX-T: v\r\n\r\n",
    );
    let both = format!("{chunks}GET /row HTTP/1.1\nHost: test\r\n\r\n");
    for pace in [Pace::Whole, Pace::Bytewise] {
        let served = probe.send(chunks.as_bytes(), pace);
        assert_eq!(statuses(&served.client), [200, 200], "{served:#?}");
        let refused = probe.send(both.as_bytes(), pace);
        assert_eq!(statuses(&refused.client), [200, 400], "{refused:#?}");
        assert_eq!(refused.seen.len(), 1);
    }
}

#[test]
fn bytes_behind_a_refused_connect_are_no_request() {
    let probe = Probe::start("");
    check(
        &probe,
        "CONNECT test:80 HTTP/1.1\r\nHost: test:80\r\n\r\n",
        405,
    );
    let mut client = probe.proxy.connect();
    let refused = client.ask("TRACE /row HTTP/1.1\r\nHost: test\r\n\r\n");
    let allow = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
    assert_eq!(refused.header("allow").as_deref(), Some(allow));
}

#[test]
fn a_coding_that_is_not_known_is_told_from_one_that_is_misused() {
    let probe = Probe::start("");
    let coding = |value: &str| post(&format!("Transfer-Encoding: {value}\r\n"), "0\r\n\r\n");
    for unknown in [
        "gzip",
        "identity",
        "foo, bar",
        "gzip, chunked",
        "xchunked",
        "gzip\r\nTransfer-Encoding: chunked",
    ] {
        check(&probe, &coding(unknown), 501);
    }
    for misused in [
        "chunked, gzip",
        "chunked, chunked",
        "chunked\r\nTransfer-Encoding: identity",
        "\"chunked\"",
        "chunked;a=b",
        "",
        "gzip,",
    ] {
        check(&probe, &coding(misused), 400);
    }
    let both = post(
        "Content-Length: 5\r\nTransfer-Encoding: gzip\r\n",
        "0\r\n\r\n",
    );
    check(&probe, &both, 400);
}

#[test]
fn an_unreadable_head_is_answered_with_a_date() {
    let probe = Probe::start("");
    check(
        &probe,
        "GET /row HTTP/1.1\r\nHost: test\r\nX Y: 1\r\n\r\n",
        400,
    );
    check(&probe, "\x16\x03\x01\r\n\r\n", 400);
}

#[test]
fn the_host_of_a_target_wins_for_route_key_and_upstream() {
    let settings = "[[route]]\nhost = \"other\"\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n\
                    limits = [\"by_host\"]\n[limit.by_host]\nrate = \"1/h\"\nkey = \"host\"\n";
    let probe = Probe::start(settings);
    let ask = |host: &str| {
        let head = format!("GET http://Other/row HTTP/1.1\r\nHost: {host}\r\n\r\n");
        probe.proxy.connect().ask(head).status
    };
    // Both speakers: the second request is hyper's.
    assert_eq!(ask("test"), 200);
    assert_eq!(ask("elsewhere\r\nTE: trailers"), 429);
    let seen = probe.upstream.seen();
    let seen = seen.last().unwrap();
    assert_eq!(seen.header("host").as_deref(), Some("Other"));
    assert_eq!(seen.header("x-forwarded-host").as_deref(), Some("Other"));
}

#[test]
fn a_length_of_nothing_over_http_2_reaches_nobody() {
    let probe = Probe::start("");
    let mut lines = REQUEST.to_vec();
    lines.push(("content-length", ""));
    let observed = probe.observe(|proxy| {
        let mut raw = Raw::to(proxy.address, &[]);
        raw.ask(1, &lines);
        let refused = raw.until(&[RST_STREAM, GOAWAY, HEADERS]).unwrap();
        assert_ne!(refused.kind, GOAWAY);
        raw.ask(3, &REQUEST);
        while raw.until(&[DATA]).unwrap().stream != 3 {}
    });
    assert_eq!(observed.seen.len(), 1, "{observed:?}");
}

#[test]
fn a_connection_that_does_not_begin_as_http_2_does_is_told_so() {
    let probe = Probe::start("");
    let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&REQUEST));
    for begin in [
        [PREFACE, &request].concat(),
        [PREFACE, &frame(6, 0, 0, &[0; 8])].concat(),
        [PREFACE, &frame(SETTINGS, 1, 0, &[])].concat(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec(),
    ] {
        let mut raw = Raw::silent(probe.proxy.address);
        raw.send(&begin);
        let mut kinds = Vec::new();
        let mut error = None;
        while let Some(frame) = raw.next() {
            kinds.push(frame.kind);
            if frame.kind == GOAWAY {
                error = Some(frame.error());
            }
        }
        assert_eq!(kinds, [SETTINGS, GOAWAY], "{begin:?}");
        assert_eq!(error, Some(PROTOCOL_ERROR), "{begin:?}");
    }
}

#[test]
fn a_request_does_not_wait_for_the_settings_of_its_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        // Who connects first may only look whether anything is there.
        let begun = listener.incoming().map_while(Result::ok).find(|stream| {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.peek(&mut [0; 1]).is_ok_and(|count| count > 0)
        });
        let mut raw = Raw::over(begun.unwrap());
        raw.skip(PREFACE.len());
        // Not a byte is sent before the request is here.
        let asked = raw.until(&[HEADERS]).unwrap();
        raw.send(&frame(SETTINGS, 0, 0, &[]));
        raw.send(&frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            asked.stream,
            &[0x88],
        ));
        while raw.next().is_some() {}
    });
    let proxy = Tidegate::start(&format!("upstream = \"{url}\"\n"));
    let mut client = proxy.connect();
    let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(answer.status, 200);
    drop(proxy);
    server.join().unwrap();
}
