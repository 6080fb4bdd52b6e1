//! Headers that a route sets, adds and removes: with what the upstream and the client saw.

use crate::house::{Answer, Seen, Upstream};
use crate::probe::Probe;

/// A proxy whose only route changes requests and responses.
fn changing(settings: &str) -> Probe {
    Probe::start(&format!(
        "[[route]]\npath = \"/u/{{id}}/*\"\nupstream = \"$UPSTREAM\"\n{settings}\n\
         [[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n"
    ))
}

/// One request with these header lines: what the upstream saw and the client got.
fn ask(probe: &Probe, target: &str, lines: &str) -> (Seen, Answer) {
    let answer = probe.proxy.get_with(target, lines);
    assert_eq!(answer.status, 200, "{answer:?}");
    (probe.upstream.seen().pop().unwrap(), answer)
}

#[test]
fn upstreams_get_what_a_route_sets_adds_and_removes() {
    let probe = changing(
        r#"
        [route.headers_up]
        x-user   = "{path:id}"
        x-all    = "{method} {scheme} {host} {path}|{rest}|{query}"
        "+x-tag" = "edge"
        x-from   = "{header:x-agent}/{cookie:sid}/{query:q}"
        cookie   = false
        x-empty  = "{header:x-none}"
        x-forwarded-for = "{client_ip} via {peer_ip}"
        "#,
    );
    let lines = "X-User: forged\r\nX-User: twice\r\nx-tag: own\r\nX-Agent: a\r\n\
                 Cookie: sid=5; b=6\r\nX-Empty: forged\r\nConnection: x-user, x-all\r\n";
    let (seen, _) = ask(&probe, "/u//7/a/b/?q=1%0d%0aX-Evil:2", lines);
    for (name, value) in [
        ("x-user", Some("7")),
        (
            "x-all",
            Some("GET http test /u/7/a/b/|a/b/|q=1%0d%0aX-Evil:2"),
        ),
        ("x-tag", Some("own, edge")),
        ("x-from", Some("a/5/1%0d%0aX-Evil:2")),
        ("x-forwarded-for", Some("127.0.0.1 via 127.0.0.1")),
        ("cookie", None),
        ("x-empty", None),
        ("x-evil", None),
    ] {
        assert_eq!(seen.header(name).as_deref(), value, "{name}: {}", seen.head);
    }
    let (seen, _) = ask(&probe, "/other", "X-User: own\r\n");
    assert_eq!(seen.header("x-user").as_deref(), Some("own"));
}

#[test]
fn clients_get_what_a_route_sets_adds_and_removes() {
    let upstream = Upstream::saying(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: secret/1\r\nVary: accept\r\n\
         X-Frame-Options: ALLOW\r\n\r\nok",
    );
    let probe = Probe::before(
        upstream,
        r#"
        [[route]]
        path = "/*"
        upstream = "$UPSTREAM"
        [route.headers_down]
        server  = false
        "+vary" = "origin"
        via     = false
        x-path  = "{path}"
        x-frame-options = "DENY"
        "#,
    );
    let (_, answer) = ask(&probe, "/a/b?c", "");
    assert_eq!(answer.text(), "ok");
    for (name, value) in [
        ("server", None),
        ("vary", Some("accept, origin")),
        ("x-frame-options", Some("DENY")),
        ("x-path", Some("/a/b")),
        ("via", None),
        ("content-length", Some("2")),
    ] {
        assert_eq!(answer.header(name).as_deref(), value, "{name}: {answer:?}");
    }
    assert!(answer.header("x-ratelimit-limit").is_some());
}

#[test]
fn refusals_keep_what_they_say_and_get_the_rest() {
    let probe = Probe::start(
        r#"
        [limit.one]
        rate = "1/h"
        [[route]]
        path = "/limited"
        upstream = "$UPSTREAM"
        limits = ["one"]
        headers_down = { cache-control = "public", x-frame-options = "DENY", retry-after = false }
        [[route]]
        path = "/gone"
        upstream = "http://127.0.0.1:1"
        headers_down = { content-type = "text/plain", x-frame-options = "DENY" }
        [[route]]
        path = "/*"
        upstream = "$UPSTREAM"
        "#,
    );
    let (_, answer) = ask(&probe, "/limited", "");
    assert_eq!(answer.header("cache-control").as_deref(), Some("public"));
    let denied = probe.proxy.get("/limited");
    denied.assert_problem(429);
    assert_eq!(denied.header("cache-control").as_deref(), Some("no-store"));
    assert_eq!(denied.header("x-frame-options").as_deref(), Some("DENY"));
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    let bad = probe.proxy.get("/gone");
    bad.assert_problem(502);
    assert_eq!(bad.header("x-frame-options").as_deref(), Some("DENY"));
}

#[test]
fn a_name_with_underscores_does_not_pass_for_one_that_is_set() {
    let probe = changing("headers_up = { x-user-id = \"{path:id}\", x-role = false }");
    let lines = "X_User_Id: forged\r\nX-User_Id: forged\r\nX_Role: admin\r\nX_Other_Id: 5\r\n";
    let (seen, _) = ask(&probe, "/u/7/a", lines);
    assert_eq!(seen.header("x-user-id").as_deref(), Some("7"));
    assert!(!seen.head.contains("forged"), "{}", seen.head);
    assert!(!seen.head.contains("admin"), "{}", seen.head);
    assert_eq!(seen.header("x_other_id").as_deref(), Some("5"));
}

#[test]
fn a_value_that_grows_too_long_is_refused_and_not_charged() {
    let probe = changing("headers_up = { x-a = \"{header:x-long}{header:x-long}\" }");
    let lines = format!("X-Long: {}\r\n", "a".repeat(5000));
    let observed = probe.observe(|proxy| proxy.get_with("/u/7/a", &lines));
    observed.client.assert_problem(431);
    assert_eq!((observed.seen.len(), observed.charged), (0, 0));
}

#[test]
fn bytes_that_are_no_text_stay_within_their_value() {
    let probe = changing("headers_up = { x-copy = \"<{header:x-odd}>\" }");
    let mut client = probe.proxy.connect();
    client.send(b"GET /u/7/a HTTP/1.1\r\nHost: test\r\nX-Odd: a\xff\xfe\tb\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    let seen = probe.upstream.seen().pop().unwrap();
    let lines = seen
        .head
        .lines()
        .filter(|line| line.starts_with("x-copy: <a"));
    assert_eq!(lines.count(), 1, "{}", seen.head);
}

#[test]
fn traces_pass_through_untouched() {
    let probe = Probe::start("");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let lines = format!("Traceparent: {trace}\r\nTracestate: a=1,b=2\r\n");
    let (seen, _) = ask(&probe, "/row", &lines);
    assert_eq!(seen.header("traceparent").as_deref(), Some(trace));
    assert_eq!(seen.header("tracestate").as_deref(), Some("a=1,b=2"));
}

#[test]
fn clients_are_told_each_attempt() {
    let upstream = Upstream::ok();
    let closed = crate::support::free_port();
    let proxy = crate::house::Tidegate::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"app\"\n\
         headers_down = {{ x-addr = \"{{upstream_addr}}\", \
         x-told = \"{{method}}: {{upstream_status}} in {{upstream_time}} s\" }}\n\
         [[route]]\npath = \"/gone\"\nupstream = \"http://127.0.0.1:{closed}\"\n\
         headers_down = {{ x-addr = \"{{upstream_addr}}\" }}\n\
         [upstream.app]\nbalance = \"round-robin\"\n\
         servers = [\"http://127.0.0.1:{closed}\", \"{}\"]\n",
        upstream.url()
    ));
    let answers: Vec<Answer> = (0..2).map(|_| proxy.get("/")).collect();
    let own = upstream.url().replace("http://", "");
    let both = format!("127.0.0.1:{closed}, {own}");
    let told: Vec<String> = answers
        .iter()
        .filter_map(|one| one.header("x-addr"))
        .collect();
    assert!(told.contains(&both), "{told:?}");
    let of_both = answers
        .iter()
        .find(|one| one.header("x-addr") == Some(both.clone()));
    let said = of_both.unwrap().header("x-told").unwrap();
    assert!(said.starts_with("GET: 502, 200 in 0."), "{said}");
    // The proxy's own answer tells no attempt.
    let answer = proxy.get("/gone");
    assert_eq!((answer.status, answer.header("x-addr")), (502, None));
}
