//! Bounds on clients: how long they may take, how much they may send, and what becomes of bytes
//! that nobody wanted.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::house::{Client, Tidegate, Upstream};
use crate::probe::{AFTER, Observed, Pace, Probe, eventually, statuses};

/// More than any bound in these tests, less than any default: what took longer was not bounded.
const BOUNDED: Duration = Duration::from_secs(9);

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

#[test]
fn a_slow_head_is_cut_off_however_it_drips() {
    let probe = Probe::start("[server]\nheader_timeout = \"300ms\"");
    for drips in [false, true] {
        let began = Instant::now();
        let observed = probe.observe(|proxy| {
            let mut client = proxy.connect();
            client.send("GET /row HTTP/1.1\r\nHost: test\r\nX-");
            for _ in 0..if drips { 30 } else { 0 } {
                client.send("a");
                pause(50);
            }
            client.answers()
        });
        assert!(began.elapsed() < BOUNDED);
        assert!(
            observed.client.iter().all(|answer| answer.status == 408),
            "{observed:#?}"
        );
        assert!(
            observed
                .client
                .iter()
                .all(|answer| answer.header("connection").is_some())
        );
        assert_eq!(
            (observed.seen.len(), observed.charged),
            (0, 0),
            "drips: {drips}"
        );
    }
}

#[test]
fn a_slow_head_behind_a_request_is_cut_off_too() {
    let probe = Probe::start("[server]\nheader_timeout = \"300ms\"\nidle_timeout = \"600ms\"");
    let began = Instant::now();
    let observed = probe.observe(|proxy| {
        let mut client = proxy.connect();
        client.send("GET /row HTTP/1.1\r\nHost: test\r\n\r\nGET /row HTTP/1.1\r\nHo");
        client.answers()
    });
    assert!(began.elapsed() < BOUNDED);
    assert_eq!(observed.client[0].status, 200);
    assert!(
        observed.client.len() == 1 || observed.client[1].status == 408,
        "{observed:#?}"
    );
    assert_eq!((observed.seen.len(), observed.charged), (1, 1));
}

#[test]
fn silent_connections_are_closed() {
    let probe = Probe::start("[server]\nidle_timeout = \"300ms\"");
    let began = Instant::now();
    let mut silent = probe.proxy.connect();
    assert!(silent.is_closed(), "said something to a silent client");
    let mut satisfied = probe.proxy.connect();
    assert_eq!(
        satisfied.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status,
        200
    );
    assert!(satisfied.is_closed());
    let mut blank = probe.proxy.connect();
    blank.send("\r\n");
    assert!(blank.answers().iter().all(|answer| answer.status == 408));
    assert!(began.elapsed() < 2 * BOUNDED);
}

#[test]
fn a_slow_body_is_cut_off_and_a_steady_one_is_not() {
    let probe = Probe::start("[server]\nbody_timeout = \"1500ms\"");
    for head in ["Content-Length: 10", "Transfer-Encoding: chunked"] {
        let began = Instant::now();
        let observed = probe.observe(|proxy| {
            let mut client = proxy.connect();
            client.send(format!(
                "POST /row HTTP/1.1\r\nHost: test\r\n{head}\r\n\r\n4\r\nab"
            ));
            client.answers()
        });
        assert!(began.elapsed() < BOUNDED);
        assert!(
            statuses(&observed.client)
                .iter()
                .all(|status| *status == 408),
            "{observed:#?}"
        );
        assert_eq!((observed.seen.len(), observed.charged), (0, 1), "{head}");
    }
    let steady = probe.observe(|proxy| {
        let mut client = proxy.connect();
        client.send("POST /row HTTP/1.1\r\nHost: test\r\nContent-Length: 12\r\n\r\n");
        for _ in 0..12 {
            pause(100);
            client.send("a");
        }
        client.answer()
    });
    assert_eq!((steady.client.status, steady.seen.len()), (200, 1));
}

#[test]
fn the_time_for_a_body_does_not_count_while_its_answer_is_made() {
    let upstream = Upstream::start(|_, stream| {
        pause(900);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .is_ok()
    });
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nbody_timeout = \"200ms\"\n",
        upstream.url()
    ));
    let mut client = proxy.connect();
    for _ in 0..2 {
        let answer = client.ask("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody");
        assert_eq!(answer.status, 200);
    }
}

#[test]
fn a_slow_reader_is_cut_off() {
    let gave_up = Arc::new(AtomicBool::new(false));
    let noted = gave_up.clone();
    let upstream = Upstream::start(move |seen, stream| {
        if !seen.is_for("/big") {
            return stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .is_ok();
        }
        let megabyte = vec![b'x'; 1 << 20];
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n");
        let all = (0..64).all(|_| stream.write_all(&megabyte).is_ok());
        noted.store(!all, Ordering::Relaxed);
        false
    });
    let probe = Probe::before(upstream, "[server]\nbody_timeout = \"500ms\"");
    let mut reader = probe.proxy.connect();
    reader.send("GET /big HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("the upstream is let go", || gave_up.load(Ordering::Relaxed));
    reader.head();
    assert!(
        reader.rest().len() < 64 << 20,
        "a client that did not read got everything"
    );
}

#[test]
fn a_client_that_has_shut_its_writing_side_gets_its_answer() {
    let upstream = Upstream::start(|_, stream| {
        pause(300);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .is_ok()
    });
    let probe = Probe::before(upstream, "");
    let rows = [
        ("GET /row HTTP/1.1\r\nHost: test\r\n\r\n", 1),
        (
            "POST /row HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc",
            1,
        ),
        ("GET /row HTTP/1.0\r\nHost: test\r\n\r\n", 1),
        (
            "GET /row HTTP/1.1\r\nHost: test\r\n\r\nGET /row HTTP/1.1\r\nHost: test\r\n\r\n",
            2,
        ),
    ];
    for (bytes, count) in rows {
        let observed = probe.observe(|proxy| {
            let mut client = proxy.connect();
            client.send(bytes);
            client.end_writing();
            client.answers()
        });
        assert_eq!(statuses(&observed.client), vec![200; count], "{bytes}");
        assert_eq!(
            (observed.seen.len(), observed.charged),
            (count, count as u64),
            "{bytes}"
        );
    }
}

#[test]
fn a_request_that_ends_too_early_is_never_complete() {
    let probe = Probe::start("");
    for (bytes, charged) in [
        ("GET /row HTTP/1.1\r\nHost: te", 0),
        (
            "POST /row HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nabc",
            1,
        ),
        (
            "POST /row HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            1,
        ),
        (
            "POST /row HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
            1,
        ),
    ] {
        let observed = probe.observe(|proxy| {
            let mut client = proxy.connect();
            client.send(bytes);
            client.end_writing();
            client.answers()
        });
        assert!(
            observed.client.iter().all(|answer| answer.status == 400),
            "{bytes} {observed:#?}"
        );
        assert_eq!(
            (observed.seen.len(), observed.charged),
            (0, charged),
            "{bytes}"
        );
    }
}

#[test]
fn heads_are_bounded() {
    let probe = Probe::start("[server]\nmax_header_bytes = \"8KiB\"\nmax_headers = 50");
    let lines = |count: usize| "X-A: b\r\n".repeat(count);
    let line = |bytes: usize| format!("X-A: {}\r\n", "b".repeat(bytes));
    let long = |bytes: usize| format!("/{}", "a".repeat(bytes));
    for (name, target, headers, allowed) in [
        (
            "49 headers and Host",
            "/row".to_owned(),
            lines(49),
            vec![200, 200],
        ),
        (
            "50 headers and Host",
            "/row".to_owned(),
            lines(50),
            vec![431],
        ),
        ("99 headers", "/row".to_owned(), lines(98), vec![431]),
        ("300 headers", "/row".to_owned(), lines(300), vec![431]),
        (
            "a header of 7 KiB",
            "/row".to_owned(),
            line(7 << 10),
            vec![200, 200],
        ),
        (
            "a header of 9 KiB",
            "/row".to_owned(),
            line(9 << 10),
            vec![431],
        ),
        (
            "a header of 40 KiB",
            "/row".to_owned(),
            line(40 << 10),
            vec![431],
        ),
        (
            "a header of 4 MiB",
            "/row".to_owned(),
            line(4 << 20),
            vec![431],
        ),
        (
            "headers of 9 KiB",
            "/row".to_owned(),
            line(1024).repeat(9),
            vec![431],
        ),
        ("a target of 9 KiB", long(9 << 10), String::new(), vec![414]),
        (
            "a target of 100 KiB",
            long(100 << 10),
            String::new(),
            vec![414],
        ),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: test\r\n{headers}\r\n");
        let observed = probe.send(head.as_bytes(), Pace::Whole);
        let got = statuses(&observed.client);
        assert_eq!(got, allowed, "{name}");
        if allowed.len() == 1 {
            observed.client[0].assert_problem(allowed[0]);
            let has_many = name.ends_with("headers") || name.ends_with("and Host");
            let detail = match allowed[0] {
                414 => "the target of the request is longer",
                _ if has_many => "the request has more header lines",
                _ => "the head of the request is larger",
            };
            let text = observed.client[0].text();
            assert!(text.contains(detail), "{name}: {text}");
            assert_eq!((observed.seen.len(), observed.charged), (0, 0), "{name}");
        }
    }
}

#[test]
fn bodies_are_bounded() {
    let probe = Probe::start("[server]\nmax_body = \"1KiB\"");
    let declared = |bytes: usize| format!("Content-Length: {bytes}\r\n\r\n{}", "a".repeat(bytes));
    let chunked = |bytes: usize| {
        let piece = "a".repeat(bytes / 4);
        let chunk = format!("{:x}\r\n{piece}\r\n", bytes / 4);
        format!(
            "Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
            chunk.repeat(4)
        )
    };
    let promised = "Content-Length: 9223372036854775807\r\n\r\n".to_owned();
    for (name, rest, fits) in [
        ("declared and at the bound", declared(1024), true),
        ("chunked and at the bound", chunked(1024), true),
        ("declared and over it", declared(1025), false),
        ("chunked and over it", chunked(1028), false),
        ("declared and far over it", declared(1 << 20), false),
        ("chunked and far over it", chunked(1 << 20), false),
        ("declared and never sent", promised, false),
    ] {
        let bytes = format!("POST /row HTTP/1.1\r\nHost: test\r\n{rest}");
        let observed = probe.send(bytes.as_bytes(), Pace::Whole);
        let served = observed
            .client
            .iter()
            .filter(|answer| answer.status == 200)
            .count();
        assert_eq!(observed.seen.len(), served, "{name} {observed:#?}");
        if fits {
            assert_eq!(statuses(&observed.client), [200, 200], "{name}");
            assert_eq!(observed.seen[0].body.len(), 1024, "{name}");
        } else {
            observed.client[0].assert_problem(413);
            assert!(
                observed.seen.iter().all(|seen| seen.is_for("/after")),
                "{name}"
            );
        }
    }
}

/// A request within a request's body; whoever reads it as a request has been smuggled.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n";

fn assert_nothing_smuggled(name: &str, observed: &Observed<Vec<crate::house::Answer>>) {
    let served = observed
        .client
        .iter()
        .filter(|answer| answer.status == 200)
        .count();
    assert_eq!(observed.seen.len(), served, "{name} {observed:#?}");
    assert!(
        observed.seen.iter().all(|seen| seen.is_for("/after")),
        "{name} {observed:#?}"
    );
    assert!(observed.client.len() <= 2, "{name} {observed:#?}");
}

#[test]
fn a_body_that_nobody_read_is_never_a_request() {
    let to = |path: &str, more: &str| {
        format!("[[route]]\npath = \"{path}\"\nupstream = \"$UPSTREAM\"\n{more}")
    };
    let rules = [
        "[server]\nmax_body = \"1MiB\"\n[limit.none]\nrate = \"1/day\"\nkey = \"global\"\n",
        "[[route]]\npath = \"/dead\"\nupstream = \"http://127.0.0.1:1\"\n",
        &to("/limited", "limits = [\"none\", \"default\"]\n"),
        &to("/meter", ""),
        &to("/after", ""),
        &to("/smuggled", ""),
    ]
    .concat();
    let probe = Probe::start(&rules);
    assert_eq!(probe.proxy.get("/limited").status, 200);
    let many = SMUGGLED.repeat(5000);
    let chunk = format!("{:x}\r\n{SMUGGLED}\r\n", SMUGGLED.len());
    for (target, status) in [
        ("/limited", 429),
        ("/nowhere", 404),
        ("/dead", 502),
        ("/a%00b", 400),
        ("/%252f", 400),
    ] {
        let post =
            |headers: &str| format!("POST {target} HTTP/1.1\r\nHost: test\r\n{headers}\r\n\r\n");
        let length = |body: &str| post(&format!("Content-Length: {}", body.len()));
        let chunked = post("Transfer-Encoding: chunked");
        for (name, head, body) in [
            ("a length", length(SMUGGLED), SMUGGLED.to_owned()),
            ("a long one", length(&many), many.clone()),
            ("chunks", chunked.clone(), format!("{chunk}0\r\n\r\n")),
            (
                "many chunks",
                chunked.clone(),
                format!("{}0\r\n\r\n", chunk.repeat(5000)),
            ),
        ] {
            let name = format!("{target}, {name}");
            let at_once = probe.send(format!("{head}{body}").as_bytes(), Pace::Whole);
            at_once.client[0].assert_problem(status);
            assert_nothing_smuggled(&name, &at_once);
            let later = probe.observe(|proxy| {
                let mut client = proxy.connect();
                client.send(&head);
                // Some bodies are waited for first; none of them is needed for the answer's count.
                pause(20);
                client.send(body);
                client.send(AFTER);
                client.answers()
            });
            assert_nothing_smuggled(&format!("{name}, later"), &later);
        }
    }
}

#[test]
fn a_body_over_the_bound_is_never_a_request() {
    let probe = Probe::start("[server]\nmax_body = 0");
    for count in [1, 5000] {
        let body = SMUGGLED.repeat(count);
        let length = format!("Content-Length: {}\r\n\r\n{body}", body.len());
        let chunks = format!(
            "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        for rest in [length, chunks] {
            let bytes = format!("POST /row HTTP/1.1\r\nHost: test\r\n{rest}");
            let observed = probe.send(bytes.as_bytes(), Pace::Whole);
            observed.client[0].assert_problem(413);
            assert_nothing_smuggled("413", &observed);
        }
    }
}

#[test]
fn connections_beyond_the_bound_wait_their_turn() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nmax_connections = 8\nworkers = 1\nidle_timeout = \"400ms\"\n\
         [limit.default]\nrate = \"1000/s\"\n",
        upstream.url()
    ));
    let silent: Vec<_> = (0..40).map(|_| proxy.connect()).collect();
    // They are closed as they come of age, and whoever waits is served then.
    assert_eq!(proxy.get("/").status, 200);
    drop(silent);
    assert_eq!(proxy.get("/").status, 200);
}

/// A connection from this address, on which a request is answered; or not.
fn is_served(proxy: &Tidegate, from: [u8; 4], before: &str) -> Option<Client> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let bound = std::net::SocketAddr::from((from, 0));
    socket.bind(&bound.into()).unwrap();
    socket.connect(&proxy.address.into()).unwrap();
    let mut client = Client::over(socket.into());
    client.send(format!("{before}GET / HTTP/1.1\r\nHost: test\r\n\r\n"));
    client.try_answer(false).map(|answer| {
        assert_eq!(answer.status, 200);
        client
    })
}

#[test]
fn one_address_has_so_many_connections_and_no_more() {
    let upstream = Upstream::ok();
    let rules = "[server]\nmax_connections_per_ip = 3\n[limit.default]\nrate = \"1000/s\"\n";
    let proxy = Tidegate::start(&format!("upstream = \"{}\"\n{rules}", upstream.url()));
    let (greedy, other) = ([127, 0, 0, 2], [127, 0, 0, 3]);
    let kept: Vec<_> = (0..3).map(|_| is_served(&proxy, greedy, "")).collect();
    assert!(kept.iter().all(Option::is_some));
    assert!(is_served(&proxy, greedy, "").is_none(), "a fourth");
    assert!(is_served(&proxy, other, "").is_some(), "another address");
    drop(kept);
    crate::probe::eventually("there is room again", || {
        is_served(&proxy, greedy, "").is_some()
    });
    // Whom a balancer speaks for is bounded, and the balancer is not.
    let proxy = Tidegate::start(&format!(
        "proxy_protocol = \"required\"\ntrusted_proxies = [\"127.0.0.2\"]\nupstream = \"{}\"\n{rules}",
        upstream.url()
    ));
    let of = |client: &str| {
        let header = format!("PROXY TCP4 {client} 198.51.100.1 1 2\r\n");
        is_served(&proxy, greedy, &header)
    };
    let kept: Vec<_> = (0..3).map(|_| of("192.0.2.1")).collect();
    assert!(kept.iter().all(Option::is_some) && of("192.0.2.1").is_none());
    assert!(of("192.0.2.2").is_some());
}
