//! Framing from the upstream's side: nothing that an upstream says can be taken for another
//! answer, reach another client, or look complete when it is not.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use crate::house::{Seen, Upstream};
use crate::probe::{AFTER, Probe, try_all};

/// What the client gets of an upstream's answer.
#[derive(Clone, Copy, Debug)]
enum Owed {
    /// 502, and the upstream's connection is not used again.
    Bad,
    /// This answer, and the upstream's connection is not used again.
    Once(u16, &'static str),
    /// This answer; the connection may go on.
    Is(u16, &'static str),
    /// This answer or 502.
    BadOr(u16, &'static str),
    /// The head, then the end of the connection in place of the rest.
    Cut,
}

use Owed::{Bad, BadOr, Cut, Is, Once};

/// An upstream that answers `/row` with the bytes that are set, and everything else with the port
/// of the connection it came by.
struct Liar {
    probe: Probe,
    bytes: Arc<Mutex<(Vec<u8>, bool)>>,
    port: Arc<AtomicU16>,
}

impl Liar {
    fn start() -> Liar {
        let bytes = Arc::new(Mutex::new((Vec::new(), true)));
        let port = Arc::new(AtomicU16::new(0));
        let (said, by) = (bytes.clone(), port.clone());
        let upstream = Upstream::start(move |seen: &Seen, stream: &mut TcpStream| {
            let own = stream.peer_addr().map_or(0, |peer| peer.port());
            if seen.is_for("/row") {
                by.store(own, Ordering::SeqCst);
                let (bytes, goes_on) = said.lock().unwrap().clone();
                return stream.write_all(&bytes).is_ok() && goes_on;
            }
            let text = format!("{own:05}");
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
            stream.write_all(format!("{head}{text}").as_bytes()).is_ok()
        });
        let settings = "[server]\nworkers = 1";
        Liar {
            probe: Probe::before(upstream, settings),
            bytes,
            port,
        }
    }

    fn will_say(&self, bytes: &[u8], goes_on: bool) {
        *self.bytes.lock().unwrap() = (bytes.to_vec(), goes_on);
    }

    /// The next request of another client: answered as it should be. By the same connection?
    fn goes_on(&self, name: &str) -> bool {
        let answer = self.probe.proxy.get("/other");
        assert_eq!(
            (answer.status, answer.body.len()),
            (200, 5),
            "after {name}: {answer:?}"
        );
        answer.text().parse() == Ok(self.port.load(Ordering::SeqCst))
    }

    fn check(&self, name: &str, bytes: &[u8], owed: Owed) {
        // Ends with the connection only where that is what ends the body, or cuts it.
        let text = String::from_utf8_lossy(bytes).to_lowercase();
        let framed = text.contains("content-length") || text.contains("transfer-encoding");
        let whole = text.contains("\r\n\r\n");
        let goes_on = framed && whole && !matches!(owed, Cut) || matches!(owed, Is(204 | 304, _));
        self.will_say(bytes, goes_on);
        let mut client = self.probe.proxy.connect();
        if let Cut = owed {
            client.send("GET /row HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
            let head = client.head().unwrap_or_default();
            let rest = client.rest();
            if head.is_empty() || head.starts_with("HTTP/1.1 502") {
                // Seen to be cut before any of it was passed on.
                assert!(!self.goes_on(name), "{name}: the connection is used again");
                return;
            }
            assert!(head.starts_with("HTTP/1.1 200"), "{name}: {head}");
            let chunked = head.to_lowercase().contains("transfer-encoding");
            assert!(
                !chunked || !rest.ends_with(b"0\r\n\r\n"),
                "{name}: complete: {rest:?}"
            );
            assert!(rest.len() < 10 || chunked, "{name}: complete: {rest:?}");
            assert!(!self.goes_on(name), "{name}: the connection is used again");
            return;
        }
        client.send(format!("GET /row HTTP/1.1\r\nHost: test\r\n\r\n{AFTER}"));
        let answers = client.answers();
        let all = format!("{name}: {answers:#?}");
        let is = |status: u16, body: &str| {
            assert_eq!(
                (answers[0].status, answers[0].text().as_str()),
                (status, body),
                "{all}"
            );
        };
        assert!(
            answers.len() == 2 || answers.len() == 1 && answers[0].status == 502,
            "{all}"
        );
        if let Some(after) = answers.get(1) {
            assert_eq!((after.status, after.body.len()), (200, 5), "{all}");
        }
        let reused = answers
            .get(1)
            .is_some_and(|after| after.text().parse() == Ok(self.port.load(Ordering::SeqCst)))
            || self.goes_on(name);
        match owed {
            Bad => answers[0].assert_problem(502),
            BadOr(..) if answers[0].status == 502 => answers[0].assert_problem(502),
            Once(status, body) | Is(status, body) | BadOr(status, body) => is(status, body),
            Cut => {}
        }
        let again = matches!(owed, Is(..)) || matches!(owed, BadOr(..) if answers[0].status != 502);
        assert!(again || !reused, "{name}: the connection is used again");
    }
}

fn head(lines: &str, rest: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{lines}\r\n{rest}").into_bytes()
}

#[test]
fn an_answer_is_one_answer() {
    let liar = Liar::start();
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let long =
        |count: usize| format!("HTTP/1.1 200 OK\r\n{}", "X: y\r\n".repeat(count)).into_bytes();
    let big = "HTTP/1.1 200 OK\r\nX: ".to_owned() + &"y".repeat(2 << 20);
    let rows: Vec<(&str, Vec<u8>, Owed)> = vec![
        ("an answer", ok.into(), Is(200, "ok")),
        (
            "chunks",
            head("Transfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n"),
            Is(200, "ok"),
        ),
        (
            "until the end",
            b"HTTP/1.1 200 OK\r\n\r\nok".into(),
            Once(200, "ok"),
        ),
        (
            "HTTP/1.0",
            b"HTTP/1.0 200 OK\r\n\r\nok".into(),
            Once(200, "ok"),
        ),
        ("nothing", b"".into(), Bad),
        ("nonsense", b"hello there\r\n\r\n".into(), Bad),
        ("no line end", b"HTTP/1.1 200 OK".into(), Bad),
        (
            "no end of the head",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n".into(),
            Bad,
        ),
        (
            "lengths that differ",
            head("Content-Length: 2\r\nContent-Length: 3\r\n", "ok!"),
            Bad,
        ),
        (
            "lengths that agree",
            head("Content-Length: 2\r\nContent-Length: 2\r\n", "ok"),
            { BadOr(200, "ok") },
        ),
        (
            "a list of lengths",
            head("Content-Length: 2, 2\r\n", "ok"),
            BadOr(200, "ok"),
        ),
        (
            "a list that differs",
            head("Content-Length: 2, 3\r\n", "ok"),
            Bad,
        ),
        ("a signed length", head("Content-Length: +2\r\n", "ok"), Bad),
        (
            "a negative length",
            head("Content-Length: -2\r\n", "ok"),
            Bad,
        ),
        (
            "a length that is none",
            head("Content-Length: two\r\n", "ok"),
            Bad,
        ),
        (
            "two framings",
            head(
                "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
                "2\r\nok\r\n0\r\n\r\n",
            ),
            Bad,
        ),
        (
            "identity",
            head("Transfer-Encoding: identity\r\n", "ok"),
            Bad,
        ),
        (
            "gzip",
            head(
                "Transfer-Encoding: gzip, chunked\r\n",
                "2\r\nok\r\n0\r\n\r\n",
            ),
            Bad,
        ),
        (
            "chunked, then gzip",
            head("Transfer-Encoding: chunked, gzip\r\n", "ok"),
            Bad,
        ),
        (
            "chunks in HTTP/1.0",
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".into(),
            Bad,
        ),
        ("an endless head of lines", long(200_000), Bad),
        ("an endless line", big.into(), Bad),
        (
            "NUL in a header",
            head("X: a\0b\r\nContent-Length: 2\r\n", "ok"),
            Bad,
        ),
        (
            "a folded header",
            head("X: a\r\n b\r\nContent-Length: 2\r\n", "ok"),
            Bad,
        ),
        (
            "a space before the colon",
            head("X : a\r\nContent-Length: 2\r\n", "ok"),
            Bad,
        ),
        ("no colon", head("X\r\nContent-Length: 2\r\n", "ok"), Bad),
        (
            "a bare CR",
            head("X: a\rb\r\nContent-Length: 2\r\n", "ok"),
            Bad,
        ),
        (
            "a status of two digits",
            b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok".into(),
            Bad,
        ),
        (
            "a status of four digits",
            b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok".into(),
            Bad,
        ),
        (
            "a status of letters",
            b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\nok".into(),
            Bad,
        ),
        (
            "another version",
            b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok".into(),
            Bad,
        ),
        (
            "an upgrade that nobody asked for",
            format!("HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n{evil}").into(),
            Bad,
        ),
        (
            "a second answer",
            format!("{ok}{evil}").into(),
            Once(200, "ok"),
        ),
        (
            "more than its length",
            format!("{ok}xx").into(),
            Once(200, "ok"),
        ),
        (
            "204 with a body",
            b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil".into(),
            { Once(204, "") },
        ),
        (
            "204 with an answer",
            format!("HTTP/1.1 204 No Content\r\n\r\n{evil}").into(),
            { Once(204, "") },
        ),
        (
            "204",
            b"HTTP/1.1 204 No Content\r\n\r\n".into(),
            Is(204, ""),
        ),
        (
            "304",
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n".into(),
            Is(304, ""),
        ),
        (
            "304 with a body",
            b"HTTP/1.1 304 X\r\nContent-Length: 4\r\n\r\nevil".into(),
            Once(304, ""),
        ),
        (
            "100 before",
            format!("HTTP/1.1 100 Continue\r\n\r\n{ok}").into(),
            Is(200, "ok"),
        ),
        (
            "103 before",
            format!("HTTP/1.1 103 Hints\r\nLink: <x>\r\n\r\n{ok}").into(),
            Is(200, "ok"),
        ),
        (
            "102 with a length",
            format!("HTTP/1.1 102 X\r\nContent-Length: 4\r\n\r\n{ok}").into(),
            { BadOr(200, "ok") },
        ),
        ("a short body", head("Content-Length: 10\r\n", "abcd"), Cut),
        ("no body", head("Content-Length: 10\r\n", ""), Cut),
        (
            "a short chunk",
            head("Transfer-Encoding: chunked\r\n", "4\r\nab"),
            Cut,
        ),
        (
            "no last chunk",
            head("Transfer-Encoding: chunked\r\n", "4\r\nabcd\r\n"),
            Cut,
        ),
        (
            "no end of the trailers",
            head("Transfer-Encoding: chunked\r\n", "4\r\nabcd\r\n0\r\n"),
            Cut,
        ),
        (
            "a broken chunk",
            head("Transfer-Encoding: chunked\r\n", "4\r\nabcdXX\r\n0\r\n\r\n"),
            Cut,
        ),
        (
            "a chunk without size",
            head("Transfer-Encoding: chunked\r\n", "x\r\nabcd\r\n"),
            Cut,
        ),
    ];
    try_all(
        &rows,
        |row| row.0.to_owned(),
        |(name, bytes, owed)| liar.check(name, bytes, *owed),
    );
}

#[test]
fn answers_to_head_have_no_body_whatever_they_say() {
    let liar = Liar::start();
    for (name, bytes, clean) in [
        ("a length", head("Content-Length: 10\r\n", ""), true),
        ("chunks", head("Transfer-Encoding: chunked\r\n", ""), true),
        ("a body", head("Content-Length: 4\r\n", "evil"), false),
        (
            "an answer",
            head("", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"),
            false,
        ),
    ] {
        liar.will_say(&bytes, true);
        let mut client = liar.probe.proxy.connect();
        client.send(format!("HEAD /row HTTP/1.1\r\nHost: test\r\n\r\n{AFTER}"));
        assert_eq!(client.answer_to_head().status, 200, "{name}");
        let after = client.answer();
        assert_eq!(
            (after.status, after.body.len()),
            (200, 5),
            "{name}: {after:?}"
        );
        let reused = after.text().parse() == Ok(liar.port.load(Ordering::SeqCst));
        assert!(clean || !reused, "{name}: the connection is used again");
        assert!(client.is_closed());
    }
}

#[test]
fn chunks_are_read_in_one_way_or_not_at_all() {
    let liar = Liar::start();
    let extension = |length: usize| format!("2;{}\r\nok\r\n0\r\n\r\n", "x".repeat(length));
    let trailer = |length: usize| format!("2\r\nok\r\n0\r\na: {}\r\n\r\n", "x".repeat(length));
    let trailers = format!("2\r\nok\r\n0\r\n{}\r\n", "a: b\r\n".repeat(101));
    let rows: Vec<(&str, String, Owed)> = [
        (
            "several chunks",
            "1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
            Is(200, "ok"),
        ),
        (
            "an extension",
            "2;a=\"b\"\r\nok\r\n0;c\r\n\r\n",
            Is(200, "ok"),
        ),
        (
            "blanks behind a size",
            "2 \t\r\nok\r\n0\r\n\r\n",
            Is(200, "ok"),
        ),
        (
            "noughts before a size",
            "0002\r\nok\r\n00\r\n\r\n",
            Is(200, "ok"),
        ),
        ("trailers", "2\r\nok\r\n0\r\na: b\r\n\r\n", Is(200, "ok")),
        (
            "more than the last chunk",
            "2\r\nok\r\n0\r\n\r\nevil",
            Once(200, "ok"),
        ),
        (
            "more than the trailers",
            "2\r\nok\r\n0\r\na: b\r\n\r\nevil",
            Once(200, "ok"),
        ),
        ("a size without CR", "2\nok\r\n0\r\n\r\n", Cut),
        ("data without CR", "2\r\nok\n0\r\n\r\n", Cut),
        ("a blank before a size", " 2\r\nok\r\n0\r\n\r\n", Cut),
        ("a size with a prefix", "0x2\r\nok\r\n0\r\n\r\n", Cut),
        ("a signed size", "+2\r\nok\r\n0\r\n\r\n", Cut),
        ("two sizes", "2 2\r\nok\r\n0\r\n\r\n", Cut),
        ("no size", ";a\r\nok\r\n0\r\n\r\n", Cut),
        (
            "a size that wraps",
            "10000000000000002\r\nok\r\n0\r\n\r\n",
            Cut,
        ),
        (
            "a line feed in an extension",
            "2;a\nb\r\nok\r\n0\r\n\r\n",
            Cut,
        ),
        (
            "a bare CR in an extension",
            "2;a\rb\r\nok\r\n0\r\n\r\n",
            Cut,
        ),
        ("more data than its size", "2\r\nokk\r\n0\r\n\r\n", Cut),
        ("less data than its size", "3\r\nok\r\n0\r\n\r\n", Cut),
        (
            "the end of the trailers without CR",
            "2\r\nok\r\n0\r\n\n",
            Cut,
        ),
        (
            "a trailer without CR",
            "2\r\nok\r\n0\r\na: b\nc: d\r\n\r\n",
            Cut,
        ),
        (
            "a trailer without a colon",
            "2\r\nok\r\n0\r\na\r\n\r\n",
            Cut,
        ),
        (
            "a folded trailer",
            "2\r\nok\r\n0\r\na: b\r\n c\r\n\r\n",
            Cut,
        ),
    ]
    .map(|(name, chunks, owed)| (name, chunks.to_owned(), owed))
    .into_iter()
    .chain([
        ("a long extension", extension(15 << 10), Is(200, "ok")),
        ("an endless extension", extension(1 << 20), Cut),
        ("a long trailer", trailer(60 << 10), Is(200, "ok")),
        ("an endless trailer", trailer(1 << 20), Cut),
        ("many trailers", trailers, Cut),
    ])
    .collect();
    try_all(
        &rows,
        |row| row.0.to_owned(),
        |(name, chunks, owed)| {
            liar.check(name, &head("Transfer-Encoding: chunked\r\n", chunks), *owed);
        },
    );
}
