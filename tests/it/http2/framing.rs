//! What HTTP/2 makes possible and HTTP/1.1 could not carry: refused, and never forwarded.

use super::client::{self, Http2, get};
use super::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, REQUEST, RST_STREAM, Raw,
    block, frame,
};
use crate::admin::Looked;
use crate::house::Upstream;
use crate::probe::{Probe, try_all};

/// The lines of a request, with one put in place of `name`, or added at the end.
fn with<'l>(name: &'l str, value: &'l str) -> Vec<(&'l str, &'l str)> {
    let mut lines = REQUEST.to_vec();
    match lines.iter_mut().find(|line| line.0 == name) {
        Some(line) => line.1 = value,
        None => lines.push((name, value)),
    }
    lines
}

fn without(name: &str) -> Vec<(&'static str, &'static str)> {
    let kept = REQUEST.iter().filter(|line| line.0 != name);
    kept.copied().collect()
}

/// A head that is refused reaches no upstream and ends its stream alone: the connection goes on.
fn check(probe: &Probe, lines: &[(&str, &str)]) {
    let observed = probe.observe(|proxy| {
        let mut raw = Raw::to(proxy.address, &[]);
        raw.ask(1, lines);
        let refused = raw.until(&[RST_STREAM, GOAWAY, HEADERS]).unwrap();
        // An empty name or method has no other form of its length.
        if refused.kind == GOAWAY
            && lines
                .iter()
                .any(|line| *line == ("", "1") || *line == (":method", ""))
        {
            return assert_eq!(proxy.get("/a").status, 200);
        }
        assert_ne!(refused.kind, GOAWAY);
        raw.ask(3, &REQUEST);
        while raw.until(&[DATA]).unwrap().stream != 3 {}
    });
    assert_eq!(observed.seen.len(), 1, "{:?}", observed.seen);
    assert_eq!(observed.charged, 1);
    assert!(observed.seen[0].is_for("/a"));
}

#[test]
fn heads_that_another_version_would_read_otherwise_are_refused() {
    let probe = Probe::start("");
    let mut rows = vec![
        with("X-Upper", "1"),
        with("x-cr", "a\r\nx-smuggled: 1"),
        with("x-lf", "a\nb"),
        with("x-nul", "a\0b"),
        with("x a", "1"),
        with("x:a", "1"),
        with("", "1"),
        with("connection", "close"),
        with("keep-alive", "5"),
        with("proxy-connection", "close"),
        with("transfer-encoding", "chunked"),
        with("upgrade", "websocket"),
        with("te", "gzip"),
        with(":status", "200"),
        with(":unknown", "1"),
        with(":path", ""),
        with(":path", "a"),
        with(":path", "/a b"),
        with(":path", "/a\r\nx: y"),
        with(":path", "http://evil/"),
        with(":method", ""),
        with(":method", "GET /evil"),
        with(":method", "CONNECT"),
        with(":method", "TRACE"),
        with(":scheme", "ftp"),
        with(":authority", "u@test"),
        with(":authority", "te st"),
        with(":authority", "test/evil"),
        with("host", "other"),
        with("content-length", "5"),
        with("content-length", "+0"),
        with("expect", "a-miracle"),
        without(":method"),
        without(":scheme"),
        without(":path"),
        without(":authority"),
    ];
    for twice in REQUEST {
        rows.push([&REQUEST[..], &[twice]].concat());
    }
    let late = [&without(":path")[..], &[("x-a", "1"), (":path", "/a")]].concat();
    rows.push(late);
    rows.push([&with("host", "test")[..], &[("host", "test")]].concat());
    try_all(&rows, |row| format!("{row:?}"), |row| check(&probe, row));
}

/// Literals that enter the dynamic table, in Huffman code and without, and blocks in pieces.
#[test]
fn a_malformed_field_ends_its_stream_and_the_table_stays_in_step() {
    let probe = Probe::start("");
    let rows: [(&str, &[u8]); 5] = [
        ("X-Upper: 1", b"\x40\x07X-Upper\x011"),
        (
            "X-Upper in Huffman code: 1",
            b"\x40\x86\xfc\x5b\x85\x75\x96\xcf\x011",
        ),
        (":upper: 1", b"\x40\x06:upper\x011"),
        ("x-lf: a LF b", b"\x40\x04x-lf\x03a\nb"),
        (
            "x-lf: a LF b in Huffman code",
            b"\x40\x04x-lf\x86\x1f\xff\xff\xff\x91\xff",
        ),
    ];
    let good = block(&REQUEST);
    try_all(
        &rows,
        |row| row.0.to_owned(),
        |(_, field)| {
            let observed = probe.observe(|proxy| {
                let mut raw = Raw::to(proxy.address, &[]);
                // `x-kept: 2` enters the table first, and stands behind the malformed field.
                let kept = [&good[..], b"\x40\x06x-kept\x012"].concat();
                raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &kept));
                while raw.until(&[DATA, GOAWAY]).unwrap().stream != 1 {}
                let bad = [&good[..], field].concat();
                let (first, second) = bad.split_at(good.len() + 3);
                raw.send(&frame(HEADERS, END_STREAM, 3, first));
                raw.send(&frame(CONTINUATION, END_HEADERS, 3, second));
                let refused = raw.until(&[RST_STREAM, GOAWAY]).unwrap();
                assert_eq!(
                    (refused.kind, refused.stream, refused.error()),
                    (RST_STREAM, 3, 1)
                );
                // The second entry of the table: 61 static ones, then the malformed field.
                let again = [&good[..], b"\xbf"].concat();
                raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 5, &again));
                while raw.until(&[DATA, GOAWAY]).unwrap().stream != 5 {}
            });
            let kept: Vec<_> = observed
                .seen
                .iter()
                .map(|seen| seen.header("x-kept"))
                .collect();
            assert_eq!(kept, [Some("2".to_owned()), Some("2".to_owned())]);
        },
    );
}

#[test]
fn pseudo_header_fields_in_trailers_are_refused_before_the_upstream_has_the_request() {
    let probe = Probe::start("");
    let trailers: [&[u8]; 5] = [
        &block(&[(":path", "/other")]),
        &block(&[("x-sum", "1"), (":method", "GET")]),
        &block(&[(":status", "200")]),
        // From the static table, and from the dynamic one.
        b"\x84",
        b"\xbe",
    ];
    try_all(
        &trailers,
        |row| format!("{row:?}"),
        |trailers| {
            let observed = probe.observe(|proxy| {
                let mut raw = Raw::to(proxy.address, &[]);
                let mut lines = with(":method", "POST");
                lines.retain(|line| line.0 != ":path");
                // `:path: /b` enters the dynamic table.
                let head = [&b"\x44\x02/b"[..], &block(&lines)].concat();
                let frames = [
                    frame(HEADERS, END_HEADERS, 1, &head),
                    frame(DATA, 0, 1, b"abc"),
                    frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers),
                ];
                raw.send(&frames.concat());
                let refused = raw.until(&[RST_STREAM, GOAWAY, HEADERS]).unwrap();
                assert_eq!(
                    (refused.kind, refused.stream, refused.error()),
                    (RST_STREAM, 1, 1)
                );
                raw.ask(3, &REQUEST);
                while raw.until(&[DATA]).unwrap().stream != 3 {}
            });
            assert_eq!(observed.seen.len(), 1, "{:?}", observed.seen);
            assert!(observed.seen[0].is_for("/a"));
        },
    );
}

#[test]
fn trailers_pass_as_they_are() {
    let probe = Probe::start("");
    let observed = probe.observe(|proxy| {
        let mut raw = Raw::to(proxy.address, &[]);
        let mut lines = with(":method", "POST");
        lines.push(("trailer", "x-sum"));
        let frames = [
            frame(HEADERS, END_HEADERS, 1, &block(&lines)),
            frame(DATA, 0, 1, b"abc"),
            // A change of the table's size stands before any field.
            frame(
                HEADERS,
                END_STREAM,
                1,
                &[&b"\x3f\x01"[..], &block(&[("x-s", "0")])].concat(),
            ),
            frame(CONTINUATION, END_HEADERS, 1, &block(&[("x-sum", "7")])),
        ];
        for piece in frames.concat().chunks(7) {
            raw.send(piece);
        }
        raw.until(&[DATA]).unwrap();
    });
    assert_eq!(observed.seen.len(), 1);
    assert_eq!(observed.seen[0].body, b"abc", "{:?}", observed.seen[0]);
}

#[test]
fn bodies_that_are_not_as_long_as_they_say_are_never_whole() {
    let probe = Probe::start("");
    let rows = [("5", "abc"), ("2", "abc")];
    for (length, body) in rows {
        let mut lines = with(":method", "POST");
        lines.push(("content-length", length));
        let observed = probe.observe(|proxy| {
            let mut raw = Raw::to(proxy.address, &[]);
            raw.send(&frame(HEADERS, END_HEADERS, 1, &block(&lines)));
            // The head is read before its content is sent.
            raw.send(&frame(PING, 0, 0, &[7; 8]));
            raw.until(&[PING]).unwrap();
            raw.send(&frame(DATA, END_STREAM, 1, body.as_bytes()));
            let end = raw.until(&[RST_STREAM, GOAWAY]).unwrap();
            assert_ne!(end.error(), 0, "{length}");
            proxy.get("/after").status
        });
        assert_eq!(observed.client, 200);
        let whole = observed.seen.iter().filter(|seen| !seen.is_for("/after"));
        assert_eq!(whole.count(), 0, "{length}: {:?}", observed.seen);
    }
}

/// An upstream cannot tell such a request from one that ends with its head.
#[test]
fn a_request_that_states_no_content_is_served_before_its_end() {
    let probe = Probe::start("");
    let mut lines = with(":method", "POST");
    lines.push(("content-length", "0"));
    let observed = probe.observe(|proxy| {
        let mut raw = Raw::to(proxy.address, &[]);
        raw.send(&frame(HEADERS, END_HEADERS, 1, &block(&lines)));
        assert_eq!(raw.until(&[DATA, RST_STREAM]).unwrap().kind, DATA);
        raw.send(&frame(DATA, END_STREAM, 1, b""));
        // The connection goes on.
        raw.ask(3, &REQUEST);
        while raw.until(&[DATA]).unwrap().stream != 3 {}
    });
    assert_eq!(observed.charged, 2);
    assert_eq!(observed.seen.len(), 2, "{:?}", observed.seen);
    let length = observed.seen[0].header("content-length");
    assert_eq!(length.as_deref(), Some("0"));
}

#[test]
fn content_after_a_head_that_states_none_reaches_no_upstream() {
    let probe = Probe::start("");
    let mut lines = with(":method", "POST");
    lines.push(("content-length", "0"));
    for waits in [false, true] {
        let observed = probe.observe(|proxy| {
            let mut raw = Raw::to(proxy.address, &[]);
            raw.send(&frame(HEADERS, END_HEADERS, 1, &block(&lines)));
            if waits {
                raw.until(&[DATA]).unwrap();
            }
            raw.send(&frame(DATA, END_STREAM, 1, b"GET /x HTTP/1.1\r\n\r\n"));
            let end = raw.until(&[RST_STREAM, GOAWAY]).unwrap();
            assert_eq!((end.kind, end.error()), (RST_STREAM, 1));
            proxy.get("/after").status
        });
        assert_eq!(observed.client, 200);
        for seen in &observed.seen {
            assert!(seen.is_for("/a") || seen.is_for("/after"), "{seen:?}");
            assert!(seen.body.is_empty(), "{seen:?}");
        }
    }
}

#[test]
fn a_body_that_its_client_gives_up_is_never_whole() {
    const NO_ERROR: u32 = 0;
    const CANCEL: u32 = 8;
    let probe = Probe::start("");
    for reason in [NO_ERROR, CANCEL] {
        let observed = probe.observe(|proxy| {
            let mut raw = Raw::to(proxy.address, &[]);
            raw.send(&frame(
                HEADERS,
                END_HEADERS,
                1,
                &block(&with(":method", "POST")),
            ));
            raw.send(&frame(DATA, 0, 1, b"half of it"));
            raw.send(&frame(RST_STREAM, 0, 1, &reason.to_be_bytes()));
            proxy.get("/after").status
        });
        assert_eq!(observed.client, 200);
        let whole = observed.seen.iter().filter(|seen| !seen.is_for("/after"));
        assert_eq!(whole.count(), 0, "{reason}: {:?}", observed.seen);
    }
}

#[test]
fn a_host_beside_the_authority_must_be_the_same() {
    let probe = Probe::start("");
    let observed = probe.observe(|proxy| {
        client::run(async {
            let client = Http2::to(proxy.address).await;
            let mut request = get("/a");
            request
                .headers_mut()
                .insert("host", "test".parse().unwrap());
            client.ask(request).await.unwrap().status
        })
    });
    assert_eq!(observed.client, 200);
    assert_eq!(observed.seen[0].header("host").as_deref(), Some("test"));
}

#[test]
fn cookies_in_crumbs_reach_the_upstream_in_one_line() {
    let probe = Probe::start("");
    let observed = probe.observe(|proxy| {
        client::run(async {
            let client = Http2::to(proxy.address).await;
            let mut request = get("/a");
            for crumb in ["a=1", "b=2"] {
                let crumb = crumb.parse().unwrap();
                request.headers_mut().append("cookie", crumb);
            }
            client.ask(request).await.unwrap().status
        })
    });
    assert_eq!(observed.client, 200);
    let head = &observed.seen[0].head.to_lowercase();
    assert_eq!(head.matches("cookie:").count(), 1, "{head}");
    assert!(head.contains("cookie: a=1; b=2"), "{head}");
}

#[test]
fn tunnels_are_refused_and_the_connection_lives() {
    let probe = Probe::start("");
    let observed = probe.observe(|proxy| {
        let mut raw = Raw::to(proxy.address, &[]);
        let connect = [(":method", "CONNECT"), (":authority", "test:80")];
        raw.send(&frame(HEADERS, END_HEADERS, 1, &block(&connect)));
        let extended = [
            &with(":method", "CONNECT")[..],
            &[(":protocol", "websocket")],
        ]
        .concat();
        raw.send(&frame(HEADERS, END_HEADERS, 3, &block(&extended)));
        raw.ask(5, &REQUEST);
        let mut ends = Vec::new();
        while ends.len() < 3 {
            let frame = raw.until(&[HEADERS, RST_STREAM]).unwrap();
            if !ends.contains(&frame.stream) {
                ends.push(frame.stream);
            }
        }
    });
    assert_eq!(observed.seen.len(), 1);
    assert_eq!(observed.charged, 1);
}

#[test]
fn a_connection_that_had_to_be_ended_for_its_frames_is_counted_and_nothing_else_is() {
    const CONTINUED: u8 = END_STREAM;
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!("upstream = \"{}\"\n", upstream.url()));
    let name = "tidegate_http_requests_unanswered_total{reason=\"unreadable\"} ";
    let count = |looked: &Looked| {
        let text = looked.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse::<u32>().unwrap()
    };
    let address = looked.tidegate.address;
    // A stream that is refused alone, whoever goes, and whoever says why.
    let mut raw = Raw::to(address, &[]);
    raw.ask(1, &with("connection", "close"));
    assert_eq!(raw.until(&[RST_STREAM]).unwrap().stream, 1);
    drop(raw);
    let mut raw = Raw::to(address, &[]);
    raw.send(&frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 1]));
    raw.goodbye();
    for (number, (what, bytes)) in (1..).zip([
        (
            "what cannot be decompressed",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0x80]),
        ),
        (
            "a stream of the server's",
            frame(HEADERS, END_STREAM | END_HEADERS, 2, &block(&REQUEST)),
        ),
        (
            "a head that goes on elsewhere",
            [
                frame(HEADERS, CONTINUED, 1, &block(&REQUEST)),
                frame(DATA, END_STREAM, 1, b""),
            ]
            .concat(),
        ),
        (
            "a frame that is too large",
            frame(DATA, 0, 1, &[0; 32 << 10]),
        ),
    ]) {
        let mut raw = Raw::to(address, &[]);
        raw.send(&bytes);
        assert_ne!(raw.goodbye(), Some(0), "{what}");
        looked.wait_until(what, |looked| count(looked) >= number);
        assert_eq!(count(&looked), number, "{what}");
    }
    assert_eq!(upstream.seen().len(), 0);
}
