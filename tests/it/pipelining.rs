//! Several requests on one connection: answered in order, each judged by itself.

use crate::framing::{get, post};
use crate::house::Upstream;
use crate::probe::{AFTER, Pace, Probe, statuses, try_all};

#[test]
fn a_preface_of_http_2_is_no_request() {
    let probe = Probe::start("[server]\nhttp2 = false");
    let observed = probe.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Pace::Whole);
    assert!(
        observed.client.iter().all(|answer| answer.status >= 400),
        "{observed:#?}"
    );
    assert_eq!((observed.seen.len(), observed.charged), (0, 0));
}

#[test]
fn requests_of_http_1_0_are_answered_with_the_servers_version() {
    let upstream = Upstream::start(|_, stream| {
        let _ = std::io::Write::write_all(stream, b"HTTP/1.1 404 Not Found\r\n\r\nno");
        false
    });
    let probe = Probe::before(upstream, "");
    // Content without a length ends with the connection, whatever the client asks for.
    for kept in ["", "Connection: keep-alive\r\n"] {
        let mut client = probe.proxy.connect();
        let answer = client.ask(format!("GET / HTTP/1.0\r\nHost: test\r\n{kept}\r\n"));
        assert!(answer.head.starts_with("HTTP/1.1 404 "), "{answer:?}");
        assert_eq!(answer.header("connection").as_deref(), Some("close"));
        assert_eq!(answer.header("transfer-encoding"), None);
        assert_eq!(answer.text(), "no");
    }
    let probe = Probe::start("");
    let mut client = probe.proxy.connect();
    for _ in 0..2 {
        let kept = "GET /row HTTP/1.0\r\nHost: test\r\nConnection: keep-alive\r\n\r\n";
        let answer = client.ask(kept);
        assert!(answer.head.starts_with("HTTP/1.1 200 "), "{answer:?}");
        assert_eq!(answer.header("connection").as_deref(), Some("keep-alive"));
    }
}

#[test]
fn a_head_behind_another_is_judged_alike() {
    let probe = Probe::start("");
    let rows = [
        ("no host", b"GET /row HTTP/1.1\r\n\r\n".to_vec()),
        ("a fold", get("Host: test\r\n X-A: b\r\n")),
        ("nonsense", b"nonsense\r\n\r\n".to_vec()),
    ];
    let firsts = ["GET /row HTTP/1.1\r\nHost: test\r\n\r\n".to_owned(), {
        "POST /row HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc".to_owned()
    }];
    for first in &firsts {
        let paced = |pace| rows.iter().map(move |row| (row, pace));
        let all: Vec<_> = paced(Pace::Whole).chain(paced(Pace::Bytewise)).collect();
        try_all(
            &all,
            |((name, _), pace)| format!("{name} ({pace:?})"),
            |((name, second), pace)| {
                let observed = probe.send(&[first.as_bytes(), second].concat(), *pace);
                assert_eq!(
                    statuses(&observed.client),
                    [200, 400],
                    "{name} {pace:?} {observed:#?}"
                );
                observed.client[1].assert_problem(400);
                assert_eq!(
                    (observed.seen.len(), observed.charged),
                    (1, 1),
                    "{name} {pace:?}"
                );
            },
        );
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::start(|seen, stream| {
        let target = seen.head.split(' ').nth(1).unwrap_or_default();
        let length = target.len() + seen.body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{target}");
        std::io::Write::write_all(stream, &[head.as_bytes(), &seen.body].concat()).is_ok()
    });
    let probe = Probe::before(upstream, "");
    let mut bytes = String::new();
    for number in 0..50 {
        bytes.push_str(&match number % 3 {
            0 => format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n"),
            1 => format!("POST /{number} HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc"),
            _ => format!(
                "\r\nPOST /{number} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2\r\nde\r\n0\r\n\r\n"
            ),
        });
    }
    for pace in [Pace::Whole, Pace::Bytewise] {
        let observed = probe.send(bytes.as_bytes(), pace);
        let bodies: Vec<String> = observed.client.iter().map(|answer| answer.text()).collect();
        let mut expected: Vec<String> = (0..50)
            .map(|number| format!("/{number}{}", ["", "abc", "de"][number % 3]))
            .collect();
        expected.push("/after".to_owned());
        assert_eq!(bodies, expected);
        assert_eq!((observed.seen.len(), observed.charged), (51, 51));
    }
}

/// First requests that hyper serves, by how their content is framed.
const FIRSTS: [&str; 3] = [
    "GET /row HTTP/1.1\r\nHost: test\r\nTE: trailers\r\n\r\n",
    "POST /row HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc",
    "POST /row HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
];

#[test]
fn a_head_behind_another_is_refused_as_if_it_came_first() {
    let probe = Probe::start("[server]\nmax_header_bytes = \"8KiB\"");
    let chunked = "Transfer-Encoding: chunked\r\n";
    let seconds = [
        (400, b"GET /row HTTP/1.1\nHost: test\r\n\r\n".to_vec()),
        (400, b"GET /row HTTP/1.1\r\nHost: test\n\n".to_vec()),
        (
            400,
            post(&format!("Content-Length: 5\r\n{chunked}"), "0\r\n\r\n"),
        ),
        (
            400,
            post(&format!("{chunked}Content-Length: 5\r\n"), "0\r\n\r\n"),
        ),
        (
            400,
            post("Content-Length: 3\r\nContent-Length: 4\r\n", "abc"),
        ),
        (
            400,
            post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"),
        ),
        (400, post(chunked, "0\r\n\n")),
        (
            501,
            post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
        ),
        (501, post("Transfer-Encoding: foo\r\n", "0\r\n\r\n")),
        (
            431,
            get(&format!("Host: test\r\nX-A: {}\r\n", "x".repeat(9_000))),
        ),
    ];
    for first in FIRSTS {
        for (status, second) in &seconds {
            let alone = probe.send(second, Pace::Whole);
            assert_eq!(statuses(&alone.client), [*status], "{alone:#?}");
            let all = [first.as_bytes(), second].concat();
            for pace in [Pace::Whole, Pace::Bytewise] {
                let observed = probe.send(&all, pace);
                assert_eq!(
                    statuses(&observed.client),
                    [200, *status],
                    "{first:?} {pace:?} {observed:#?}"
                );
                assert_eq!(observed.seen.len(), 1, "{observed:#?}");
            }
        }
    }
}

#[test]
fn a_head_whose_beginning_came_with_the_request_before_is_read_whole() {
    let probe = Probe::start("");
    // Each rest is harmless as part of this value, and read by itself it is not.
    let rests = [
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n",
        "a\r\nContent-Length: 3\r\n\r\nabc",
    ];
    for first in FIRSTS {
        for rest in rests {
            let observed = probe.observe(|proxy| {
                let mut client = proxy.connect();
                client.send(format!("{first}POST /row HTTP/1.1\r\nHost: test\r\nX-A: "));
                assert_eq!(client.answer().status, 200);
                client.send(rest);
                client.send(AFTER);
                client.answers()
            });
            assert_eq!(statuses(&observed.client), [200, 200], "{first:?} {rest:?}");
            assert_eq!(observed.seen.len(), 3, "{observed:#?}");
        }
    }
}

#[test]
fn a_request_behind_a_refused_upload_gets_its_own_content() {
    let probe = Probe::start(
        "[[route]]\npath = \"/no\"\nrespond = { status = 403 }\n\
         [[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n",
    );
    let chunked = "Host: test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
    let framings = [
        ("Content-Length: 4\r\n\r\n", "ab", "cd"),
        (
            "Transfer-Encoding: chunked\r\n\r\n",
            "4\r\nab",
            "cd\r\n0\r\n\r\n",
        ),
    ];
    for (framing, begun, rest) in framings {
        for head_waits in [false, true] {
            let observed = probe.observe(|proxy| {
                let mut client = proxy.connect();
                let head = format!("POST /row HTTP/1.1\r\nHost: test\r\n{framing}");
                let (now, later) = head.split_at(if head_waits { 20 } else { head.len() });
                client.send(format!("POST /no HTTP/1.1\r\n{chunked}{now}"));
                assert_eq!(client.answer().status, 403);
                client.send(format!("{later}{begun}"));
                std::thread::sleep(std::time::Duration::from_millis(20));
                client.send(rest);
                client.send(AFTER);
                client.answers()
            });
            assert_eq!(statuses(&observed.client), [200, 200], "{observed:#?}");
            assert_eq!(observed.seen[0].body, b"abcd", "{observed:#?}");
        }
    }
}

#[test]
fn a_thousand_pipelined_requests_in_pieces_of_any_size_are_answered_in_order() {
    let upstream = Upstream::start(|seen, stream| {
        let target = seen.head.split(' ').nth(1).unwrap_or_default();
        let length = target.len() + seen.body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{target}");
        std::io::Write::write_all(stream, &[head.as_bytes(), &seen.body].concat()).is_ok()
    });
    let probe = Probe::before(
        upstream,
        "[[route]]\npath = \"/no\"\nrespond = { status = 403 }\n\
         [[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n",
    );
    // A sequence that is the same on each run.
    let mut state = 0x9e37_79b9_u32;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut bytes = String::new();
    let mut expected = Vec::new();
    for number in 0..1_000 {
        let length = random(600) as usize;
        let body = "b".repeat(length);
        let (framing, owed) = match random(5) {
            0 => (String::new(), ""),
            1 => ("TE: trailers\r\n\r\n".to_owned(), ""),
            2 | 3 => (format!("Content-Length: {length}\r\n\r\n{body}"), &*body),
            _ => {
                let chunk = format!("{:x}\r\n{body}b\r\n0\r\nX-T: v\r\n\r\n", length + 1);
                (format!("Transfer-Encoding: chunked\r\n\r\n{chunk}"), "+")
            }
        };
        let framing = if framing.is_empty() { "\r\n" } else { &framing };
        let is_denied = random(4) == 0;
        let target = if is_denied {
            "/no".to_owned()
        } else {
            format!("/{number}")
        };
        bytes.push_str(&format!(
            "POST {target} HTTP/1.1\r\nHost: test\r\n{framing}"
        ));
        expected.push(match owed {
            _ if is_denied => (403, None),
            "+" => (200, Some(format!("{target}{body}b"))),
            owed => (200, Some(format!("{target}{owed}"))),
        });
    }
    expected.push((200, Some("/after".to_owned())));
    bytes.push_str(AFTER);
    let mut client = probe.proxy.connect();
    let mut writer = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let mut rest = bytes.as_bytes();
        while !rest.is_empty() {
            let most = [3, 40, 700, 9_000][random(4) as usize];
            let (piece, behind) = rest.split_at((1 + random(most) as usize).min(rest.len()));
            std::io::Write::write_all(&mut writer, piece).unwrap();
            rest = behind;
            if random(20) == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    });
    let answers = client.answers();
    writing.join().unwrap();
    let found: Vec<_> = answers
        .iter()
        .map(|answer| (answer.status, (answer.status == 200).then(|| answer.text())))
        .collect();
    assert_eq!(found, expected);
}
