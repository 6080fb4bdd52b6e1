//! Framing and smuggling from the client's side: whatever the bytes, what the upstream saw is what
//! was answered and what was charged.

use crate::probe::{Observed, Pace, Probe, statuses, try_all};

/// What a probe is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    /// Served once with this body, and the connection goes on.
    Served(&'static str),
    /// Refused before anything is charged or sent upstream; the connection ends.
    Refused,
    /// Answered with this status and sent nowhere; the connection goes on.
    Declined(u16),
    /// Refused, or read as equal values of one header may be.
    RefusedOrServed(&'static str),
    /// Its head was fine, so it is charged; its body never arrives whole; the connection ends.
    Broken,
}

use Owed::{Broken, Declined, Refused, RefusedOrServed, Served};

type Row<'a> = (&'a str, Vec<u8>, Owed);

pub fn post(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /row HTTP/1.1\r\nHost: test\r\n{headers}\r\n{body}").into_bytes()
}

pub fn get(headers: &str) -> Vec<u8> {
    format!("GET /row HTTP/1.1\r\n{headers}\r\n").into_bytes()
}

fn row(line: &str) -> Vec<u8> {
    format!("{line}\r\nHost: test\r\n\r\n").into_bytes()
}

fn check(probe: &Probe, (name, bytes, owed): &Row<'_>, pace: Pace) {
    let Observed {
        client: answers,
        seen,
        charged,
    } = probe.send(bytes, pace);
    let all = format!("{name} ({pace:?}): charged {charged}\n{answers:#?}\nupstream: {seen:#?}");
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(seen.len(), served, "seen is not what was answered: {all}");
    for one in &seen {
        assert!(one.is_for("/row") || one.is_for("/after"), "{all}");
        let lengths = one.header("content-length").is_some();
        let both = lengths && one.header("transfer-encoding").is_some();
        assert!(!both, "two framings reached the upstream: {all}");
    }
    let refused = |count: u64| {
        assert!(answers.len() <= 1 && served == 0, "{all}");
        assert_eq!(charged, count, "{all}");
        if let Some(answer) = answers.first() {
            assert!((400..=505).contains(&answer.status), "{all}");
            answer.assert_problem(answer.status);
        }
    };
    let passed = |body: &str| {
        assert_eq!(statuses(&answers), [200, 200], "{all}");
        assert_eq!(charged, 2, "{all}");
        assert_eq!(String::from_utf8_lossy(&seen[0].body), body, "{all}");
    };
    match *owed {
        Served(body) => passed(body),
        RefusedOrServed(body) if served > 0 => passed(body),
        Refused | RefusedOrServed(_) => {
            assert_eq!(answers.len(), 1, "refused without a word: {all}");
            refused(0);
        }
        Broken => refused(1),
        Declined(status) => {
            assert_eq!(statuses(&answers), [status, 200], "{all}");
            answers[0].assert_problem(status);
            assert_eq!(charged, 1, "{all}");
        }
    }
}

fn check_all(rows: &[Row<'_>]) {
    let probe = Probe::start("");
    let paced = |pace| rows.iter().map(move |row| (row, pace));
    let all: Vec<_> = paced(Pace::Whole).chain(paced(Pace::Bytewise)).collect();
    try_all(
        &all,
        |(row, pace)| format!("{} ({pace:?})", row.0),
        |(row, pace)| check(&probe, row, *pace),
    );
}

#[test]
fn one_length_or_none() {
    const CHUNKS: &str = "4\r\nabcd\r\n0\r\n\r\n";
    let length = |value: &str| post(&format!("Content-Length: {value}\r\n"), "abcd");
    let coding = |value: &str| post(&format!("Transfer-Encoding: {value}\r\n"), CHUNKS);
    let both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    let turned = "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n";
    let zero = "content-length:0\r\ntransfer-encoding:chunked\r\n";
    let old =
        format!("POST /row HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n{CHUNKS}");
    check_all(&[
        ("a length", length("4"), Served("abcd")),
        ("chunks", coding("chunked"), Served("abcd")),
        ("chunks, in capitals", coding("CHUNKED"), Served("abcd")),
        ("length, then chunks", post(both, CHUNKS), Refused),
        ("chunks, then length", post(turned, CHUNKS), Refused),
        ("length 0 and chunks", post(zero, CHUNKS), Refused),
        (
            "two lengths that differ",
            length("4\r\nContent-Length: 5"),
            Refused,
        ),
        (
            "two lengths that agree",
            length("4\r\nContent-Length: 4"),
            RefusedOrServed("abcd"),
        ),
        (
            "a list of lengths that agree",
            length("4, 4"),
            RefusedOrServed("abcd"),
        ),
        ("a list of lengths that differ", length("4, 5"), Refused),
        ("a length with a plus", length("+4"), Refused),
        ("a length with a minus", length("-4"), Refused),
        ("a length in hex", length("0x4"), Refused),
        ("an empty length", length(""), Refused),
        ("a length of two numbers", length("4 4"), Refused),
        ("a length with a point", length("4.0"), Refused),
        ("a length with a semicolon", length("4;"), Refused),
        (
            "a length beyond 64 bits",
            length("18446744073709551620"),
            Refused,
        ),
        ("a length in other digits", length("\u{0664}"), Refused),
        ("no coding", coding(""), Refused),
        ("identity", coding("identity"), Refused),
        (
            "identity after chunked",
            coding("chunked, identity"),
            Refused,
        ),
        ("chunked twice", coding("chunked, chunked"), Refused),
        (
            "chunked twice, on two lines",
            coding("chunked\r\nTransfer-Encoding: chunked"),
            Refused,
        ),
        ("gzip before chunked", coding("gzip, chunked"), Refused),
        ("a coding that looks alike", coding("xchunked"), Refused),
        ("a quoted coding", coding("\"chunked\""), Refused),
        ("a coding with a parameter", coding("chunked;a=b"), Refused),
        (
            "a coding behind a vertical tab",
            coding("\x0bchunked"),
            Refused,
        ),
        (
            "a list that begins with nothing",
            coding(", chunked"),
            Refused,
        ),
        (
            "a space before the colon",
            post("Transfer-Encoding : chunked\r\n", CHUNKS),
            Refused,
        ),
        (
            "an underscore for the dash",
            post("Transfer_Encoding: chunked\r\n", ""),
            Served(""),
        ),
        ("chunks in HTTP/1.0", old.into_bytes(), Refused),
    ]);
}

#[test]
fn chunks_are_exact_and_bounded() {
    let body = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let huge = "x".repeat(40 << 10);
    check_all(&[
        (
            "sizes in both cases",
            body("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"),
            { Served("01234567890123456789") },
        ),
        (
            "zeros before the size",
            body("0004\r\nabcd\r\n0\r\n\r\n"),
            Served("abcd"),
        ),
        (
            "an extension",
            body("4;a=b\r\nabcd\r\n0;c\r\n\r\n"),
            Served("abcd"),
        ),
        (
            "a trailer",
            body("4\r\nabcd\r\n0\r\nX-Sum: 1\r\n\r\n"),
            Served("abcd"),
        ),
        ("a plus", body("+4\r\nabcd\r\n0\r\n\r\n"), Broken),
        ("a minus", body("-4\r\nabcd\r\n0\r\n\r\n"), Broken),
        ("a prefix", body("0x4\r\nabcd\r\n0\r\n\r\n"), Broken),
        ("a space before", body(" 4\r\nabcd\r\n0\r\n\r\n"), Broken),
        ("a space within", body("4 4\r\nabcd\r\n0\r\n\r\n"), Broken),
        ("no size", body("\r\nabcd\r\n0\r\n\r\n"), Broken),
        ("no digits", body("g\r\nabcd\r\n0\r\n\r\n"), Broken),
        (
            "a size beyond 64 bits",
            body("10000000000000004\r\nabcd\r\n0\r\n\r\n"),
            Broken,
        ),
        (
            "many digits",
            body(&format!("{}4\r\nabcd\r\n0\r\n\r\n", "f".repeat(40))),
            Broken,
        ),
        (
            "no line end after the data",
            body("4\r\nabcd0\r\n\r\n"),
            Broken,
        ),
        (
            "more data than the size",
            body("3\r\nabcd\r\n0\r\n\r\n"),
            Broken,
        ),
        (
            "a bare LF after the size",
            body("4\nabcd\r\n0\r\n\r\n"),
            Broken,
        ),
        (
            "a bare CR after the size",
            body("4\rabcd\r\n0\r\n\r\n"),
            Broken,
        ),
        (
            "a bare LF after the data",
            body("4\r\nabcd\n0\r\n\r\n"),
            Broken,
        ),
        (
            "a bare LF in an extension",
            body("4;a\nb\r\nabcd\r\n0\r\n\r\n"),
            Broken,
        ),
        (
            "an endless extension",
            body(&format!("4;{huge}\r\nabcd\r\n0\r\n\r\n")),
            Broken,
        ),
        (
            "an endless trailer",
            body(&format!("0\r\nX: {huge}{huge}{huge}\r\n\r\n")),
            Broken,
        ),
        (
            "endless trailers",
            body(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(20_000))),
            Broken,
        ),
        (
            "a trailer that is none",
            body("4\r\nabcd\r\n0\r\nnone\r\n\r\n"),
            Broken,
        ),
        (
            "a trailer that frames",
            body("4\r\nabcd\r\n0\r\nContent-Length: 9\r\n\r\n"),
            { Served("abcd") },
        ),
    ]);
}

#[test]
fn header_lines_are_exact() {
    let with = |line: &str| get(&format!("Host: test\r\n{line}\r\n"));
    let raw = |line: &[u8]| [b"GET /row HTTP/1.1\r\nHost: test\r\n", line, b"\r\n\r\n"].concat();
    check_all(&[
        ("nothing odd", with("X-A: b"), Served("")),
        ("an empty value", with("X-A:"), Served("")),
        (
            "bytes beyond ASCII in a value",
            raw(b"X-A: \xe4\xff"),
            Served(""),
        ),
        ("a folded line", with("X-A: b\r\n c"), Refused),
        (
            "a folded line that frames",
            with("X-A: b\r\n\tContent-Length: 5"),
            Refused,
        ),
        (
            "a fold after Host",
            get("Host: test\r\n X-A: b\r\n"),
            Refused,
        ),
        (
            "a space before the first header",
            get(" Host: test\r\n"),
            Refused,
        ),
        ("a space before the colon", with("X-A : b"), Refused),
        ("a tab before the colon", with("X-A\t: b"), Refused),
        ("a space in the name", with("X A: b"), Refused),
        ("NUL in a value", with("X-A: a\0b"), Refused),
        ("NUL in a name", with("X\0A: b"), Refused),
        ("a control byte in a value", with("X-A: a\x01b"), Refused),
        ("DEL in a value", with("X-A: a\x7fb"), Refused),
        ("an empty name", with(": b"), Refused),
        ("a name in brackets", with("X(A): b"), Refused),
        ("a name beyond ASCII", raw(b"X\xe4: b"), Refused),
        ("no colon", with("X-A"), Refused),
        ("a bare CR in a value", with("X-A: b\rX-C: d"), Refused),
        ("a bare LF in a value", with("X-A: b\nX-C: d"), Refused),
        ("CR CR LF", with("X-A: b\r"), Refused),
        (
            "a bare LF after the request line",
            b"GET /row HTTP/1.1\nHost: test\r\n\r\n".to_vec(),
            { Refused },
        ),
        (
            "a bare LF at the head's end",
            b"GET /row HTTP/1.1\r\nHost: test\r\n\n".to_vec(),
            Refused,
        ),
        (
            "bare LFs only",
            b"GET /row HTTP/1.1\nHost: test\n\n".to_vec(),
            Refused,
        ),
    ]);
}

#[test]
fn there_is_one_host() {
    let host = |value: &str| get(&format!("Host: {value}\r\n"));
    let target = |target: &str| row(&format!("GET {target} HTTP/1.1"));
    check_all(&[
        ("a port", host("test:80"), Served("")),
        ("an IPv6 address", host("[::1]:80"), Served("")),
        ("none", get(""), Refused),
        ("an empty one", host(""), Refused),
        ("two that differ", host("test\r\nHost: other"), Refused),
        ("two that agree", host("test\r\nHost: test"), Refused),
        ("a list", host("test, other"), Refused),
        ("a space within", host("test other"), Refused),
        ("a path", host("test/x"), Refused),
        ("a user", host("user@test"), Refused),
        ("a scheme", host("http://test"), Refused),
        ("an open bracket", host("[::1"), Refused),
        ("a port that is none", host("test:http"), Refused),
        ("a port beyond", host("test:99999"), Refused),
        ("a query", host("test?x"), Refused),
        ("bytes beyond ASCII", host("t\u{e4}st"), Refused),
        (
            "a target of another host, which wins",
            target("http://other/row"),
            Served(""),
        ),
        (
            "a target of another host, and two hosts",
            row("GET http://other/row HTTP/1.1\r\nHost: other"),
            Refused,
        ),
        (
            "a target with a user",
            target("http://user@test/row"),
            Refused,
        ),
        (
            "a target of another scheme",
            target("ftp://test/row"),
            Refused,
        ),
    ]);
}

#[test]
fn request_lines_are_exact() {
    check_all(&[
        (
            "an empty line before",
            b"\r\nGET /row HTTP/1.1\r\nHost: test\r\n\r\n".to_vec(),
            Served(""),
        ),
        ("a method of its own", row("BREW /row HTTP/1.1"), Served("")),
        ("two spaces", row("GET  /row HTTP/1.1"), Refused),
        (
            "two spaces before the version",
            row("GET /row  HTTP/1.1"),
            Refused,
        ),
        ("a tab", row("GET\t/row HTTP/1.1"), Refused),
        ("a space at the end", row("GET /row HTTP/1.1 "), Refused),
        (
            "a space at the beginning",
            row(" GET /row HTTP/1.1"),
            Refused,
        ),
        (
            "a space in the target",
            row("GET /row /x HTTP/1.1"),
            Refused,
        ),
        (
            "a raw quote in the query",
            row("GET /row?a=\"b\" HTTP/1.1"),
            Refused,
        ),
        (
            "raw < and > in the query",
            row("GET /row?<b> HTTP/1.1"),
            Refused,
        ),
        ("no version", row("GET /row"), Refused),
        ("no target", row("GET HTTP/1.1"), Refused),
        ("a version in lower case", row("GET /row http/1.1"), Refused),
        ("HTTP/1.2", row("GET /row HTTP/1.2"), Refused),
        ("HTTP/2.0", row("GET /row HTTP/2.0"), Refused),
        ("HTTP/11.1", row("GET /row HTTP/11.1"), Refused),
        ("brackets in the method", row("G(T /row HTTP/1.1"), Refused),
        ("NUL in the target", row("GET /row\0 HTTP/1.1"), Refused),
        (
            "a control byte in the target",
            row("GET /r\x01ow HTTP/1.1"),
            Refused,
        ),
        ("a target without a slash", row("GET row HTTP/1.1"), Refused),
        ("CONNECT", row("CONNECT test:80 HTTP/1.1"), Refused),
        ("CONNECT to a path", row("CONNECT /row HTTP/1.1"), Refused),
        ("TRACE", row("TRACE /row HTTP/1.1"), Declined(405)),
        ("the asterisk", row("GET * HTTP/1.1"), Refused),
        (
            "the asterisk of OPTIONS",
            row("OPTIONS * HTTP/1.1"),
            Declined(400),
        ),
        ("the authority form", row("GET test:80 HTTP/1.1"), Refused),
        (
            "a TLS hello",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
            Refused,
        ),
    ]);
}
