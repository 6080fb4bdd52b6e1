//! Several requests on one connection: answered in order, each judged by itself.

use crate::framing::{get, post};
use crate::house::Upstream;
use crate::probe::{Pace, Probe, statuses, try_all};

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
        // Two framings: refused, or the chunks win and the connection ends behind them.
        let two = post(
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        );
        for pace in [Pace::Whole, Pace::Bytewise] {
            let observed = probe.send(&[first.as_bytes(), &two].concat(), pace);
            let found = statuses(&observed.client);
            assert!(found == [200, 400] || found == [200, 200], "{observed:#?}");
            assert!(
                observed.seen.iter().all(|seen| seen.is_for("/row")),
                "{observed:#?}"
            );
            assert!(
                observed.seen[1..]
                    .iter()
                    .all(|seen| seen.header("content-length").is_none())
            );
        }
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
