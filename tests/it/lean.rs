//! The two who speak HTTP/1.1 with clients, ours for plain requests and hyper for all others: which
//! of them a client has is not to be seen.
//!
//! A connection whose last request had content is hyper's until it has been idle for a while, and
//! one with a plain request is ours. So the same bytes are sent behind either, and the answers are
//! compared. Nothing here fails where a connection was idle for too long: both are ours then.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::house::{Client, Seen, Tidegate, Upstream};
use crate::probe::{AFTER, statuses};
use crate::support::Chance;

/// What makes a connection ours, and what makes it hyper's.
const OURS: &str = "GET /first HTTP/1.1\r\nHost: test\r\n\r\n";
const HYPERS: &str = "POST /first HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\nx";

/// Answers of upstreams, by path.
const ANSWERS: [(&str, &str); 14] = [
    (
        "/length",
        "200 OK\r\ncontent-length: 5\r\nX-A: 1\r\nX-A: 2\r\n\r\nhello",
    ),
    ("/none", "200 OK\r\ncontent-length: 0\r\n\r\n"),
    (
        "/chunks",
        "200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "/trailers",
        "200 OK\r\ntrailer: x-sum\r\nTrailer: x-b\r\ntransfer-encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n",
    ),
    ("/204", "204 No Content\r\nx: y\r\n\r\n"),
    ("/304", "304 Not Modified\r\netag: \"a\"\r\n\r\n"),
    (
        "/304/length",
        "304 Not Modified\r\ncontent-length: 77\r\n\r\n",
    ),
    ("/end", "200 OK\r\nconnection: close\r\n\r\nuntil the end"),
    (
        "/closes",
        "200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
    ),
    ("/reason", "404 Nothing here\r\ncontent-length: 0\r\n\r\n"),
    ("/no-reason", "599 \r\ncontent-length: 0\r\n\r\n"),
    (
        "/own",
        "299 Own\r\ncontent-length: 1\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
         date: Mon, 01 Jan 2001 00:00:00 GMT\r\n\r\nx",
    ),
    ("/garbage", "2000 OK\r\n\r\n"),
    (
        "/hints",
        "103 Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ),
];

fn respond(seen: &Seen, stream: &mut TcpStream) -> bool {
    let path = seen.head.split(' ').nth(1).unwrap_or_default();
    let found = ANSWERS.iter().find(|(known, _)| *known == path);
    let answer = found.map_or(ANSWERS[0].1, |(_, answer)| answer);
    let end = answer.rfind("\r\n\r\n").unwrap() + 4;
    let sent = match seen.head.starts_with("HEAD") {
        true => answer[..end]
            .split_inclusive("\r\n\r\n")
            .collect::<String>(),
        false => answer.to_owned(),
    };
    let goes_on = !answer.contains("connection: close") && path != "/garbage";
    stream
        .write_all(format!("HTTP/1.1 {sent}").as_bytes())
        .is_ok()
        && goes_on
}

/// A proxy whose heads have to come within this time.
fn start(header_timeout: &str) -> (Tidegate, Upstream) {
    let upstream = Upstream::start(respond);
    let proxy = Tidegate::start(&format!(
        "[server]\nheader_timeout = \"{header_timeout}\"\n[upstream.all]\nservers = [\"{}\"]\n\
         [[route]]\npath = \"/none-left\"\nlimits = [\"none\"]\nupstream = \"all\"\n\
         [[route]]\npath = \"/*\"\nlimits = []\nupstream = \"all\"\n\
         [limit.none]\nrate = \"1/day\"\nkey = \"global\"\n",
        upstream.url()
    ));
    (proxy, upstream)
}

/// Everything that is answered to `bytes`, which are sent in `pieces` once `first` has its answer;
/// without what differs each time.
fn said(proxy: SocketAddr, first: &str, bytes: &[u8], pieces: &[usize]) -> String {
    let mut client = Client::to(proxy);
    client.send(first);
    assert_eq!(client.answer().status, 200);
    let mut left = bytes;
    for &length in pieces {
        let (piece, rest) = left.split_at(length.min(left.len()));
        client.send(piece);
        left = rest;
    }
    client.send(left);
    plain(&client.rest())
}

/// Bytes as text, but for what differs each time: dates, the ids of requests, and times to wait,
/// which are long numbers here.
fn plain(bytes: &[u8]) -> String {
    let mut text = bytes.escape_ascii().to_string();
    for (before, length) in [("date: ", 29), ("\"request_id\\\":\\\"", 16)] {
        let varies = |part: &&str| {
            part.get(..length)
                .is_some_and(|part| !part.contains(" 2001 "))
        };
        let mut parts = text.split(before);
        let first = parts.next().unwrap_or_default().to_owned();
        text = parts.fold(first, |text, part| {
            let skipped = if varies(&part) { length } else { 0 };
            text + before + &part[skipped..]
        });
    }
    let is_digit = |byte: &char| byte.is_ascii_digit();
    let mut masked = String::new();
    let mut left = text.as_str();
    while let Some(first) = left.chars().next() {
        let digits = left.chars().take_while(is_digit).count();
        let (taken, mask) = match digits {
            0 => (first.len_utf8(), None),
            5.. => (digits, Some("#")),
            _ => (digits, None),
        };
        masked += mask.unwrap_or(&left[..taken]);
        left = &left[taken..];
    }
    masked.replace("\\r\\n", "\n")
}

fn get(target: &str, lines: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: test\r\n{lines}\r\n").into_bytes()
}

/// Streams of bytes that may be requests.
fn corpus() -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for (path, _) in ANSWERS {
        for method in ["GET", "HEAD", "DELETE"] {
            for lines in ["", "Connection: close\r\n", "TE: trailers\r\n"] {
                let head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{lines}\r\n");
                rows.push(head.into_bytes());
            }
        }
    }
    for lines in LINES {
        rows.push(get("/length", &format!("{lines}\r\n")));
        // Two framings behind another request are refused by either, in other words.
        if !lines.contains(": chunked") {
            rows.push([get("/length", ""), get("/chunks", &format!("{lines}\r\n"))].concat());
        }
    }
    for start in STARTS {
        rows.push(format!("{start}\r\nHost: test\r\n\r\n").into_bytes());
    }
    rows.extend(RAW.iter().map(|bytes| bytes.to_vec()));
    for bytes in [3_000, 9_000, 15_000, 20_000] {
        rows.push(get("/length", &format!("X: {}\r\n", "y".repeat(bytes))));
        rows.push(get(&format!("/{}", "y".repeat(bytes)), ""));
    }
    for many in [98, 99, 100, 200] {
        rows.push(get("/length", &"X: y\r\n".repeat(many)));
    }
    rows.push(get("/length", "").repeat(40));
    rows
}

const LINES: [&str; 41] = [
    "X-A: b",
    "X-A:",
    "X-A: \u{e4}",
    "X-A:  b\t ",
    "X-A: b\r\n c",
    "X-A : b",
    "X-A\t: b",
    "X A: b",
    "X-A: a\0b",
    "X-A: a\x01b",
    "X-A: a\x7fb",
    ": b",
    "X(A): b",
    "X\u{e4}: b",
    "X-A",
    "X-A: b\rX-C: d",
    "X-A: b\r",
    " X-A: b",
    "Host: test",
    "Host: other",
    "Content-Length: 0",
    "Content-Length: 00",
    "Content-Length: +0",
    "Content-Length: -1",
    "Content-Length:",
    "Content-Length: 0\r\nContent-Length: 0",
    "Content-Length: 0\r\nContent-Length: 1",
    "Content-Length: 0\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: xchunked",
    "Connection: keep-alive, close",
    "Connection: x-a\r\nX-A: b",
    "Connection: keep-alive\r\nConnection: close",
    "Connection: te\r\nTE: trailers",
    "Expect: 100-continue",
    "Expect: nothing",
    "Connection: upgrade\r\nUpgrade: websocket",
    "Upgrade: h2c",
    "Keep-Alive: timeout=5",
    "Proxy-Connection: close",
    "Via: 1.1 other",
];

const STARTS: [&str; 31] = [
    "GET /length HTTP/1.0",
    "GET /length HTTP/1.2",
    "GET /length HTTP/2.0",
    "GET /length HTTP/11.1",
    "GET /length",
    "GET HTTP/1.1",
    "GET  /length HTTP/1.1",
    "GET /length  HTTP/1.1",
    "GET\t/length HTTP/1.1",
    " GET /length HTTP/1.1",
    "GET /length HTTP/1.1 ",
    "GET /len gth HTTP/1.1",
    "GET /length http/1.1",
    "G(T /length HTTP/1.1",
    "GET length HTTP/1.1",
    "GET /length\0 HTTP/1.1",
    "GET /l\x01ength HTTP/1.1",
    "GET /l\u{e4} HTTP/1.1",
    "GET /length#a HTTP/1.1",
    "GET /\"<> HTTP/1.1",
    "GET http://test/length HTTP/1.1",
    "GET http://other/length HTTP/1.1",
    "GET ftp://test/ HTTP/1.1",
    "GET * HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "CONNECT test:80 HTTP/1.1",
    "TRACE /length HTTP/1.1",
    "BREW /length HTTP/1.1",
    "GET /none-left HTTP/1.1",
    "HEAD /none-left HTTP/1.1",
    "GET /a/../%2e%2E/length HTTP/1.1",
];

const RAW: [&[u8]; 13] = [
    b"GET /length HTTP/1.1\r\n\r\n",
    b"\r\nGET /length HTTP/1.1\r\nHost: test\r\n\r\n",
    b"GET /length HTTP/1.1\nHost: test\r\n\r\n",
    b"GET /length HTTP/1.1\r\nHost: test\n\r\n",
    b"GET /length HTTP/1.1\r\nHost: test\r\n\n",
    b"GET /length HTTP/1.1\nHost: test\n\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /length HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /length HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    b"POST /length HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"GET /length HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\nGET /length HTTP/1.1\r\n",
];

#[test]
fn nobody_can_tell_who_speaks() {
    let (proxy, _upstream) = start("20s");
    // Both are denied from now on.
    proxy.get("/none-left");
    let address = proxy.address;
    let seed = 7;
    println!("seed {seed}");
    let rows = corpus();
    let next = AtomicUsize::new(0);
    let try_some = || {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let bytes = [row, AFTER.as_bytes()].concat();
            let mut chance = Chance(seed + bytes.len() as u64);
            let mut pieces = Vec::new();
            for many in [0, 1, 3] {
                pieces.resize_with(many, || chance.below(bytes.len() as u64 / 2) as usize);
                let ours = said(address, OURS, &bytes, &pieces);
                let hypers = said(address, HYPERS, &bytes, &pieces);
                let text = row[..row.len().min(300)].escape_ascii();
                let text = format!("{text} ({} bytes)", row.len());
                assert_eq!(ours, hypers, "{text} in pieces of {pieces:?}");
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(try_some);
        }
    });
}

#[test]
fn what_comes_late_is_cut_off_alike() {
    let (proxy, _upstream) = start("1s");
    let address = proxy.address;
    let rows = [
        &b"GET /length HTT"[..],
        b"\r\n",
        b"GET /length HTTP/1.1\r\nHost: test\r\n\r",
        b"GET /length HTTP/1.1\r\nHost: test\r\n\r\nGET",
        b"GET /length HTTP/1.1\r\nHost: test\r\n\r\nGET /length HTTP/1.1\r\nHost: t",
    ];
    std::thread::scope(|scope| {
        for row in rows {
            scope.spawn(move || {
                let ours = said(address, OURS, row, &[]);
                let late = "HTTP/1.1 408 Request Timeout\nconnection: close\n";
                assert!(ours.contains(late), "{}: {ours}", row.escape_ascii());
                if !row.starts_with(b"GET /length HTTP/1.1\r\nHost: test\r\n\r\n") {
                    assert_eq!(ours, said(address, HYPERS, row, &[]));
                }
            });
        }
    });
}

#[test]
fn a_head_behind_a_plain_request_ends_its_lines_in_order() {
    let (proxy, upstream) = start("20s");
    for odd in [
        &b"GET /odd HTTP/1.1\r\nHost: test\n\r\n"[..],
        RAW[2],
        RAW[4],
        RAW[5],
    ] {
        let known = upstream.seen().len();
        let mut client = proxy.connect();
        client.send([&get("/length", ""), odd, AFTER.as_bytes()].concat());
        let answers = client.answers();
        assert_eq!(statuses(&answers), [200, 400], "{answers:#?}");
        answers[1].assert_problem(400);
        assert_eq!(upstream.seen().len(), known + 1);
    }
}

/// An upstream that answers `/slow` only when it is told, and `/big` with more than anybody's room.
fn slow_upstream(release: std::sync::mpsc::Receiver<()>) -> Upstream {
    let release = std::sync::Mutex::new(release);
    Upstream::start(move |seen, stream| {
        if seen.is_for("/slow") {
            let _ = release
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(60));
        }
        if seen.is_for("/big") {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BIG}\r\n\r\n");
            let content = vec![b'z'; BIG];
            return stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&content).is_ok();
        }
        respond(seen, stream)
    })
}

const BIG: usize = 20 << 20;

#[test]
fn those_behind_one_another_are_answered_in_order_around_a_large_one() {
    let (_release, held) = std::sync::mpsc::channel();
    let upstream = slow_upstream(held);
    let proxy = Tidegate::start(&format!("upstream = \"{}\"", upstream.url()));
    let mut client = proxy.connect();
    let all = ["/length", "/big", "/chunks", "/big", "/204", "/none"];
    let asked = all.map(|path| get(path, "")).concat();
    client.send([&asked[..], AFTER.as_bytes()].concat());
    // Longer than it takes until there is no room left.
    std::thread::sleep(Duration::from_millis(200));
    let answers = client.answers();
    let lengths: Vec<usize> = answers.iter().map(|answer| answer.body.len()).collect();
    assert_eq!(lengths, [5, BIG, 5, BIG, 0, 0, 5]);
    assert_eq!(statuses(&answers), [200, 200, 200, 200, 204, 200, 200]);
}

#[test]
fn a_drain_lets_plain_requests_end_and_says_that_it_is_the_last() {
    let (release, held) = std::sync::mpsc::channel();
    let upstream = slow_upstream(held);
    let mut proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n",
        upstream.url()
    ));
    let mut idle = proxy.connect();
    assert_eq!(idle.ask(OURS).status, 200);
    let mut busy = proxy.connect();
    assert_eq!(busy.ask(OURS).status, 200);
    // A second one waits behind the one that is under way: nobody will serve it.
    busy.send([get("/slow", ""), get("/length", "")].concat());
    while !upstream.seen().iter().any(|seen| seen.is_for("/slow")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    proxy.signal("TERM");
    // Once it drains, an idle connection has one more answer, which says that it is the last.
    let last = loop {
        let answer = idle.ask(OURS);
        if let Some(word) = answer.header("connection") {
            break word;
        }
    };
    assert_eq!(last, "close");
    assert!(idle.is_closed());
    release.send(()).unwrap();
    let answer = busy.answer();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("connection").as_deref(), Some("close"));
    assert!(busy.is_closed());
    assert!(proxy.wait().success());
}

#[test]
fn a_client_that_leaves_cancels_its_plain_request() {
    let gone = std::sync::Arc::new(AtomicUsize::new(0));
    let noted = gone.clone();
    let upstream = Upstream::start(move |seen, stream| {
        if !seen.is_for("/slow") {
            return respond(seen, stream);
        }
        let mut byte = [0];
        // The end of the stream, or a reset: either way the work is cancelled.
        let left = std::io::Read::read(stream, &mut byte).map_or(0, |count| count);
        noted.store(1 + left, Ordering::Relaxed);
        false
    });
    let proxy = Tidegate::start(&format!("upstream = \"{}\"", upstream.url()));
    let mut client: Client = proxy.connect();
    assert_eq!(client.ask(OURS).status, 200);
    client.send(get("/slow", ""));
    while !upstream.seen().iter().any(|seen| seen.is_for("/slow")) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let left = Instant::now();
    drop(client);
    while gone.load(Ordering::Relaxed) == 0 {
        assert!(left.elapsed() < Duration::from_secs(20), "nobody was told");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(gone.load(Ordering::Relaxed), 1);
}
