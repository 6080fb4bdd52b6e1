//! Headers: what is passed on, what is taken away, what the proxy says of itself and of its limits.

use std::io::Write;

use crate::house::{Answer, Seen, Tidegate, Upstream};
use crate::probe::Probe;

/// A client's headers on their way: what the upstream saw.
fn passed(settings: &str, headers: &str) -> Seen {
    let probe = Probe::start(settings);
    let answer = probe.proxy.get_with("/row", headers);
    assert_eq!(answer.status, 200, "{answer:?}");
    probe.upstream.seen().pop().unwrap()
}

/// An upstream's headers on their way: what the client saw.
fn answered(settings: &str, headers: &'static str, request: &str) -> Answer {
    let upstream = Upstream::start(move |_, stream| {
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{headers}\r\nok");
        stream.write_all(text.as_bytes()).is_ok()
    });
    Probe::before(upstream, settings)
        .proxy
        .get_with("/row", request)
}

#[test]
fn hop_by_hop_headers_stay_on_their_hop() {
    let hops = "Connection: keep-alive, X-Hop\r\nConnection: X-Other\r\nX-Hop: 1\r\nX-Other: 1\r\n\
                Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: x\r\n\
                TE: gzip\r\nX-Kept: 1\r\n";
    let seen = passed("", hops);
    for name in [
        "x-hop",
        "x-other",
        "keep-alive",
        "proxy-connection",
        "te",
        "upgrade",
    ] {
        assert_eq!(
            seen.header(name),
            None,
            "{name} reached the upstream: {}",
            seen.head
        );
    }
    assert_eq!(seen.header("x-kept").as_deref(), Some("1"));

    let answer = answered(
        "",
        "Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\n\
         Upgrade: h2c\r\nX-Kept: 1\r\n",
        "",
    );
    for name in ["x-hop", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(
            answer.header(name),
            None,
            "{name} reached the client: {}",
            answer.head
        );
    }
    assert_eq!(answer.header("x-kept").as_deref(), Some("1"));
}

#[test]
fn a_client_cannot_have_headers_dropped_that_others_rely_on() {
    let probe = Probe::start("");
    let names = "X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host, Forwarded, Via, Host, \
                 Content-Length, Content-Type, Authorization, Cookie, X-Api-Key";
    for separate in [false, true] {
        let connection = if separate {
            names
                .split(", ")
                .map(|name| format!("Connection: {name}\r\n"))
                .collect()
        } else {
            format!("Connection: close, {names}\r\n")
        };
        let mut client = probe.proxy.connect();
        let answer = client.ask(format!(
            "POST /row HTTP/1.1\r\nHost: test\r\n{connection}Content-Length: 3\r\n\
             Authorization: Bearer x\r\nConnection: close\r\n\r\nabc"
        ));
        let seen = probe.upstream.seen();
        if answer.status == 400 {
            assert!(seen.iter().all(|seen| !seen.is_for("/row")));
            continue;
        }
        let seen = seen.last().unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(seen.body, b"abc");
        let expected = [
            ("host", "test"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "test"),
            ("authorization", "Bearer x"),
        ];
        for (name, value) in expected {
            assert_eq!(
                seen.header(name).as_deref(),
                Some(value),
                "{name}: {}",
                seen.head
            );
        }
        assert!(seen.header("via").is_some(), "{}", seen.head);
    }
}

#[test]
fn an_untrusted_client_cannot_say_whom_it_speaks_for() {
    let seen = passed(
        "",
        "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7\r\nX-Forwarded-Proto: https\r\n\
         X-Forwarded-Host: evil\r\nForwarded: for=6.6.6.6;host=evil\r\nX-Real-IP: 6.6.6.6\r\n\
         X-Forwarded-Port: 443\r\n",
    );
    assert_eq!(seen.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto").as_deref(), Some("http"));
    assert_eq!(seen.header("x-forwarded-host").as_deref(), Some("test"));
    assert!(
        !seen.head.contains("6.6.6.6") && !seen.head.contains("7.7.7.7"),
        "{}",
        seen.head
    );
    assert!(!seen.head.contains("evil"), "{}", seen.head);
    let forwarded = seen.header("forwarded").unwrap_or_default().to_lowercase();
    assert!(forwarded.contains("for=127.0.0.1"), "{}", seen.head);
}

#[test]
fn a_trusted_proxy_is_added_to_what_it_says() {
    let trusting = "trusted_proxies = [\"127.0.0.1\"]";
    let seen = passed(
        trusting,
        "X-Forwarded-For: 6.6.6.6, 192.0.2.7\r\nX-Forwarded-Proto: https\r\n\
         X-Forwarded-Host: shop.example\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n",
    );
    let all = &seen.head;
    assert_eq!(
        seen.header("x-forwarded-for").as_deref(),
        Some("6.6.6.6, 192.0.2.7, 127.0.0.1"),
        "{all}"
    );
    assert_eq!(
        seen.header("x-forwarded-proto").as_deref(),
        Some("https"),
        "{all}"
    );
    assert_eq!(
        seen.header("x-forwarded-host").as_deref(),
        Some("shop.example"),
        "{all}"
    );
    assert_eq!(
        seen.header("forwarded").as_deref(),
        Some("for=192.0.2.7;host=test;proto=https"),
        "{all}"
    );
    assert_eq!(
        seen.header("x-real-ip").as_deref(),
        Some("192.0.2.7"),
        "{all}"
    );

    let bare = passed(trusting, "");
    assert_eq!(bare.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(bare.header("x-forwarded-proto").as_deref(), Some("http"));
}

#[test]
fn via_is_appended_and_a_loop_ends() {
    let seen = passed("", "Via: 1.0 fred\r\n");
    let via = seen.header("via").unwrap();
    assert!(via.starts_with("1.0 fred, 1.1 "), "{via}");

    // A proxy whose upstream is another proxy, whose upstream is the first.
    let port = crate::support::free_port();
    let second = Tidegate::start(&format!(
        "upstream = \"http://127.0.0.1:{port}\"\n[limit.default]\nrate = \"1000/s\"\n"
    ));
    let directory = tempfile::tempdir().unwrap();
    let first = Tidegate::start_listening(
        directory,
        &format!("127.0.0.1:{port}"),
        &format!(
            "upstream = \"http://{}\"\n[limit.default]\nrate = \"1000/s\"\n",
            second.address
        ),
    );
    let answer = first.get("/row");
    answer.assert_problem(508);
}

#[test]
fn expectations_are_passed_on_or_refused() {
    let probe = Probe::start("");
    let head = "POST /row HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n";
    let mut client = probe.proxy.connect();
    client.send(format!("{head}Expect: 100-continue\r\n\r\n"));
    // Whoever answers it, the client is told to go on, or it sends its body after a while.
    let mut first = [0; 12];
    let told = std::io::Read::read_exact(&mut client.stream, &mut first).is_ok();
    assert!(told && &first == b"HTTP/1.1 100", "no 100: {first:?}");
    client.send("abc");
    client.head();
    assert_eq!(client.answer().status, 200);
    assert_eq!(probe.upstream.seen().last().unwrap().body, b"abc");

    let known = probe.upstream.seen().len();
    let answer = probe
        .proxy
        .connect()
        .ask(format!("{head}Expect: tea\r\n\r\nabc"));
    answer.assert_problem(417);
    assert_eq!(probe.upstream.seen().len(), known);

    // A request that is refused anyway is refused before its body.
    let tight = Probe::start(
        "[limit.none]\nrate = \"1/day\"\nkey = \"global\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"none\"]\n",
    );
    assert_eq!(tight.proxy.get("/").status, 200);
    let mut client = tight.proxy.connect();
    client.send(format!("{head}Expect: 100-continue\r\n\r\n"));
    let head = client.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
}

#[test]
fn te_says_no_more_than_trailers() {
    let seen = passed("", "TE: trailers, deflate;q=0.5\r\nConnection: TE\r\n");
    let te = seen.header("te");
    assert!(
        te.is_none() || te.as_deref() == Some("trailers"),
        "{}",
        seen.head
    );
    let seen = passed("", "TE: trailers\r\nConnection: TE\r\n");
    assert_eq!(
        seen.header("te").as_deref(),
        Some("trailers"),
        "{}",
        seen.head
    );
    let connection = seen.header("connection").unwrap_or_default().to_lowercase();
    assert!(
        connection.contains("te"),
        "TE is for one hop: {}",
        seen.head
    );
}

#[test]
fn an_upgrade_is_asked_for_only_where_the_client_asks() {
    let asked = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n";
    let seen = passed("", asked);
    assert_eq!(seen.header("upgrade").as_deref(), Some("websocket"));
    assert_eq!(
        seen.header("connection").unwrap_or_default().to_lowercase(),
        "upgrade"
    );
    // Not named in Connection, it is not asked for.
    assert_eq!(passed("", "Upgrade: websocket\r\n").header("upgrade"), None);
    // h2c would carry requests past every limit.
    let seen = passed(
        "",
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: A\r\n",
    );
    assert_eq!(seen.header("upgrade"), None, "{}", seen.head);
    assert_eq!(seen.header("http2-settings"), None, "{}", seen.head);
}

#[test]
fn bytes_behind_a_refused_upgrade_are_a_request_like_any_other() {
    let probe = Probe::start("");
    let bytes = "GET /row HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\
                 GET /row HTTP/1.1\r\nHost: test\r\n\r\n";
    let observed = probe.send(bytes.as_bytes(), crate::probe::Pace::Whole);
    assert!(
        observed.client.iter().all(|answer| answer.status == 200),
        "{observed:#?}"
    );
    assert_eq!(observed.seen.len(), observed.client.len());
    assert_eq!(observed.charged, observed.seen.len() as u64);
}

const LIMITED: &str = "[limit.two]\nrate = \"2/day\"\nkey = \"global\"\n\
    [[route]]\npath = \"/two\"\nlimits = [\"two\", \"default\"]\n\
    [[route]]\npath = \"/dead\"\nupstream = \"http://127.0.0.1:1\"\n[[route]]\npath = \"/*\"\n\
    [[route]]\npath = \"/free\"\nlimits = []\n";

#[test]
fn every_answer_of_a_limited_route_tells_its_limits() {
    let probe = Probe::start(LIMITED);
    let number = |answer: &Answer, name: &str| -> u64 {
        let value = answer
            .header(name)
            .unwrap_or_else(|| panic!("no {name}: {answer:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    };
    let now = || {
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_secs()
    };
    for left in [1, 0] {
        let answer = probe.proxy.get("/two");
        assert_eq!(answer.status, 200);
        assert_eq!(number(&answer, "x-ratelimit-limit"), 2);
        assert_eq!(number(&answer, "x-ratelimit-remaining"), left);
        let reset = number(&answer, "x-ratelimit-reset");
        assert!(
            (now() + 86_000..=now() + 86_401).contains(&reset),
            "{reset}"
        );
        let policy = answer.header("ratelimit-policy").unwrap();
        assert!(policy.contains("\"two\";q=2;w=86400"), "{policy}");
        assert!(policy.contains("\"default\";q=1000000;w=86400"), "{policy}");
        let state = answer.header("ratelimit").unwrap();
        assert!(state.contains(&format!("\"two\";r={left};t=86")), "{state}");
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = probe.proxy.get("/two");
    denied.assert_problem(429);
    assert_eq!(number(&denied, "x-ratelimit-remaining"), 0);
    assert!((86_000..=86_400).contains(&number(&denied, "retry-after")));
    assert_eq!(denied.header("cache-control").as_deref(), Some("no-store"));
    assert!(
        denied.text().contains("\"violated-policies\":[\"two\"]"),
        "{}",
        denied.text()
    );
    // The budget that would have allowed it was not charged: 3 requests of 4 were.
    let dead = probe.proxy.get("/dead");
    dead.assert_problem(502);
    assert_eq!(number(&dead, "x-ratelimit-remaining"), 1_000_000 - 3);
    let free = probe.proxy.get("/free");
    assert_eq!((free.status, free.header("x-ratelimit-limit")), (200, None));
}

#[test]
fn an_answer_without_a_route_tells_no_limits() {
    let probe = Probe::start("[[route]]\npath = \"/meter\"\nupstream = \"$UPSTREAM\"\n");
    let answer = probe.proxy.get("/nowhere");
    answer.assert_problem(404);
    assert_eq!(answer.header("x-ratelimit-limit"), None);
    assert_eq!(answer.header("ratelimit"), None);
}

#[test]
fn a_denial_of_head_has_no_body_and_others_are_readable() {
    let probe = Probe::start(LIMITED);
    for _ in 0..2 {
        assert_eq!(probe.proxy.get("/two").status, 200);
    }
    let mut client = probe.proxy.connect();
    client.send("HEAD /two HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.answer_to_head().status, 429);
    let answer = client.ask("GET /two HTTP/1.1\r\nHost: test\r\nAccept: text/html\r\n\r\n");
    assert_eq!(answer.status, 429);
    assert!(
        answer
            .header("content-type")
            .unwrap()
            .starts_with("text/html"),
        "{answer:?}"
    );
    let answer = client.ask("GET /two HTTP/1.1\r\nHost: test\r\nAccept: text/plain\r\n\r\n");
    assert!(
        answer
            .header("content-type")
            .unwrap()
            .starts_with("text/plain"),
        "{answer:?}"
    );
}

#[test]
fn the_upstreams_own_limits_are_replaced_or_merged() {
    let theirs = "X-RateLimit-Limit: 9\r\nX-RateLimit-Remaining: 3\r\nX-RateLimit-Reset: 5\r\n\
                  RateLimit: \"theirs\";r=3;t=5\r\nRateLimit-Policy: \"theirs\";q=9;w=10\r\n";
    let replaced = answered("", theirs, "");
    assert_eq!(
        replaced.header("x-ratelimit-limit").as_deref(),
        Some("1000000")
    );
    assert!(!replaced.head.contains("theirs"), "{}", replaced.head);
    let merged = answered("[headers]\npass_upstream = true", theirs, "");
    assert_eq!(
        merged.header("x-ratelimit-limit").as_deref(),
        Some("9"),
        "{}",
        merged.head
    );
    assert_eq!(merged.header("x-ratelimit-remaining").as_deref(), Some("3"));
    let policies = merged.header("ratelimit-policy").unwrap();
    assert!(
        policies.contains("theirs") && policies.contains("default"),
        "{policies}"
    );
    let states = merged.header("ratelimit").unwrap();
    assert!(
        states.contains("theirs") && states.contains("default"),
        "{states}"
    );
}

#[test]
fn scripts_of_other_origins_can_read_what_they_are_told() {
    let answer = answered(
        "",
        "Access-Control-Allow-Origin: https://app.example\r\nAccess-Control-Expose-Headers: ETag\r\n",
        "Origin: https://app.example\r\n",
    );
    let exposed = answer
        .header("access-control-expose-headers")
        .unwrap()
        .to_lowercase();
    for name in ["etag", "ratelimit", "x-ratelimit-remaining", "retry-after"] {
        assert!(exposed.contains(name), "{name}: {exposed}");
    }
    let answer = answered("", "", "Origin: https://app.example\r\n");
    assert_eq!(
        answer.header("access-control-allow-origin"),
        None,
        "that is the upstream's to say"
    );

    let probe = Probe::start(LIMITED);
    for _ in 0..2 {
        assert_eq!(probe.proxy.get("/two").status, 200);
    }
    let denied = probe
        .proxy
        .get_with("/two", "Origin: https://app.example\r\n");
    assert_eq!(denied.status, 429);
    let allowed = denied.header("access-control-allow-origin");
    assert_eq!(allowed.as_deref(), Some("https://app.example"));
    assert!(
        denied
            .header("vary")
            .unwrap()
            .to_lowercase()
            .contains("origin")
    );
    assert!(
        denied
            .header("access-control-expose-headers")
            .unwrap()
            .to_lowercase()
            .contains("retry-after")
    );
    let without = probe.proxy.get("/two");
    assert_eq!(without.header("access-control-allow-origin"), None);
}

#[test]
fn jitter_delays_retry_after_and_nothing_else() {
    let upstream = Upstream::ok();
    let proxy = |jitter: &str| {
        Tidegate::start(&format!(
            "[deny]\n{jitter}\n[limit.default]\nrate = \"1/day\"\nkey = \"global\"\n\
             [upstream.app]\nservers = \"{}\"\n[[route]]\npath = \"/*\"\nupstream = \"app\"\n",
            upstream.url()
        ))
    };
    const DAY: u64 = 86_400;
    for (jitter, most) in [
        ("jitter = \"10%\"", DAY / 10),
        ("jitter = \"60s\"", 60),
        ("", 0),
    ] {
        let proxy = proxy(jitter);
        assert_eq!(proxy.get("/").status, 200);
        let mut waits = std::collections::BTreeSet::new();
        for _ in 0..40 {
            let denied = proxy.get("/");
            let body: serde_json::Value = serde_json::from_str(&denied.text()).unwrap();
            let honest = body["retry_after"].as_u64().unwrap();
            let told: u64 = denied.header("retry-after").unwrap().parse().unwrap();
            assert!(
                (honest..=honest + most + 1).contains(&told),
                "{told} {honest}"
            );
            let state = denied.header("ratelimit").unwrap();
            assert_eq!(state, format!("\"default\";r=0;t={honest}"));
            waits.insert(told - honest);
        }
        assert_eq!(waits.len() > 10, most > 0, "{jitter}: {waits:?}");
    }
}
