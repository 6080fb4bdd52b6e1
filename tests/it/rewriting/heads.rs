//! Headers that a route sets, adds and removes: with what the upstream and the client saw.

use std::io::Write as _;
use std::time::Duration;

use crate::backend::{Backend, Call, Manners};
use crate::house::{Answer, Seen, Tidegate, Upstream};
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
fn names_with_underscores_can_be_removed() {
    let probe = Probe::start("[server]\nunderscores_in_headers = false\n");
    let lines = "X_Forwarded_For: 192.0.2.1\r\nX_Other_Id: 5\r\nX-Kept: 6\r\n";
    let observed = probe.observe(|proxy| proxy.get_with("/a", lines));
    let head = &observed.seen[0].head;
    assert!(!head.contains('_'), "{head}");
    assert!(head.contains("x-kept: 6"), "{head}");
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
fn values_may_be_longer_where_heads_may() {
    let probe = changing(
        "headers_up = { x-a = \"{header:x-long}{header:x-long}\" }\n\
         [server]\nmax_header_bytes = \"64KiB\"",
    );
    let lines = format!("X-Long: {}\r\n", "a".repeat(5000));
    let (seen, _) = ask(&probe, "/u/7/a", &lines);
    assert_eq!(seen.header("x-a"), Some("a".repeat(10_000)));
    let lines = format!("X-Long: {}\r\n", "a".repeat(8193));
    probe.proxy.get_with("/u/7/a", &lines).assert_problem(431);
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
fn an_upstream_sees_another_method() {
    let probe = Probe::start(
        "[[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\nmethod_up = \"{query:m}\"\n",
    );
    for (request, method) in [
        ("GET /a?m=PUT", "PUT"),
        ("GET /b", "GET"),
        ("GET /c?m=HEAD", "GET"),
        ("HEAD /d?m=PUT", "HEAD"),
    ] {
        let mut client = probe.proxy.connect();
        client.send(format!(
            "{request} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        ));
        let head = client.answer_to_head();
        assert_eq!(head.status, 200, "{request}");
        let seen = probe.upstream.seen();
        assert!(
            seen.last()
                .unwrap()
                .head
                .starts_with(&format!("{method} /")),
            "{request}"
        );
    }
}

#[test]
fn a_route_keeps_headers_and_bodies_from_its_upstream() {
    for (settings, tag, body) in [
        ("pass_headers = false", None, &b"ab"[..]),
        ("pass_body = false", Some("x"), b""),
        ("pass_headers = false\npass_body = false", None, b""),
    ] {
        let probe = changing(&format!(
            "{settings}\nheaders_up = {{ x-kept = \"{{header:x-tag}}\" }}"
        ));
        let mut client = probe.proxy.connect();
        // The next request is read after the body that was dropped.
        for _ in 0..2 {
            let answer = client.ask(
                "POST /u/1/a HTTP/1.1\r\nHost: test\r\nX-Tag: x\r\nX-Forwarded-For: 1.1.1.1\r\n\
                 Content-Length: 2\r\n\r\nab",
            );
            assert_eq!(answer.status, 200, "{settings}");
            let seen = probe.upstream.seen().pop().unwrap();
            assert_eq!(seen.header("x-tag").as_deref(), tag, "{}", seen.head);
            assert_eq!(seen.header("x-kept").as_deref(), Some("x"));
            assert_eq!(seen.header("host").as_deref(), Some("test"));
            assert_eq!(seen.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
            assert_eq!(seen.body, body, "{settings}");
        }
    }
}

#[test]
fn a_body_that_its_upstream_does_not_get_is_read_to_its_end() {
    let backend = Backend::h2c(Manners::default(), |mut call: Call| async move {
        call.say(
            &call
                .request
                .headers()
                .contains_key("content-length")
                .to_string(),
        );
    });
    let proxy = Tidegate::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"api\"\npass_body = false\nbody_limit = \"3MB\"\n\
         [upstream.api]\nservers = [\"{}\"]\n",
        backend.h2c_url()
    ));
    let mut client = proxy.connect();
    // More than the proxy reads of a body that its response made useless.
    let long = "x".repeat(2_000_000);
    for _ in 0..2 {
        let answer = client.ask(format!(
            "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{long}",
            long.len()
        ));
        assert_eq!((answer.status, answer.text().as_str()), (200, "false"));
    }
    let chunk = format!("{:x}\r\n{long}\r\n", long.len());
    for (chunks, status) in [(&*chunk, 200), (&*chunk.repeat(2), 413), ("zz\r\n", 400)] {
        let answer = proxy.connect().ask(format!(
            "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
        ));
        assert_eq!(answer.status, status);
    }
    assert_eq!(backend.seen().len(), 3);
}

#[test]
fn a_route_closes_connections_to_its_upstream() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "[server]\nworkers = 1\n[[route]]\npath = \"/*\"\nupstream = \"{}\"\n\
         headers_up = {{ connection = \"{{query}}\" }}\n",
        upstream.url()
    ));
    let ask = |target: &str| {
        assert_eq!(proxy.get(target).status, 200);
        let sent = upstream.seen().pop().unwrap().header("connection");
        (sent, upstream.connections())
    };
    let (_, first) = ask("/");
    assert_eq!(ask("/?other"), (None, first));
    assert_eq!(ask("/?Close"), (Some("close".to_owned()), first));
    assert_eq!(ask("/"), (None, first + 1));
}

#[test]
fn headers_repeat_what_the_response_says() {
    let probe = Probe::start(
        "[[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n\
         headers_down = { \"+x-a\" = [\"1\", \"2\"], x-both = \"{response_header:x-a}\", \
         x-time = \"{request_time}|{unix_time}|{is_request_port}{request_port}\", \
         x-kind = \"{method} {response_header:content-length}{response_cookie:a}\" }\n",
    );
    let answer = probe.proxy.get("/");
    assert_eq!(answer.header("x-both").as_deref(), Some("1, 2"));
    let time = answer.header("x-time").unwrap();
    let parts: Vec<&str> = time.split('|').collect();
    assert!(parts[0].starts_with("0.") && parts[0].len() == 5, "{time}");
    assert!(parts[1].len() == 14, "{time}");
    assert_eq!(parts[2], "", "the client names no port");
    let length = answer.header("content-length").unwrap();
    assert_eq!(answer.header("x-kind"), Some(format!("GET {length}")));
}

#[test]
fn clients_are_told_each_attempt() {
    let upstream = Upstream::ok();
    let closed = crate::support::free_port();
    let slow = Upstream::start(|_, _| {
        std::thread::sleep(Duration::from_secs(5));
        false
    });
    let proxy = Tidegate::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"app\"\n\
         headers_down = {{ x-addr = \"{{upstream_addr}}\", \
         x-told = \"{{method}}: {{upstream_status}} in {{upstream_time}} s\" }}\n\
         [[route]]\npath = \"/gone\"\nupstream = \"http://127.0.0.1:{closed}\"\n\
         headers_down = {{ x-addr = \"{{upstream_addr}}\" }}\n\
         [[route]]\npath = \"/slow\"\nupstream = \"{}\"\ntimeout = \"1200ms\"\n\
         headers_down = {{ x-time = \"{{upstream_time}}\" }}\n\
         [upstream.app]\nbalance = \"round-robin\"\n\
         servers = [\"http://127.0.0.1:{closed}\", \"{}\"]\n",
        slow.url(),
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
    // The proxy's own answer tells them too.
    let answer = proxy.get("/gone");
    let addr = answer.header("x-addr").unwrap();
    assert_eq!(answer.status, 502);
    assert!(addr.starts_with(&format!("127.0.0.1:{closed}")), "{addr}");
    // An attempt that the timeout of the route ends has lasted until then.
    let answer = proxy.get("/slow");
    let time = answer.header("x-time").unwrap_or_default();
    assert_eq!(answer.status, 504);
    assert!(time.starts_with("1."), "{time}");
}

#[test]
fn responses_end_with_trailers() {
    let upstream = Upstream::saying("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let proxy = Tidegate::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"{}\"\n\
         trailers_down = {{ x-took = \"{{request_time}}\", \"+x-tag\" = [\"a\", \"{{path}}\"] }}\n\
         [[route]]\npath = \"/own\"\nrespond = {{ body = \"own\" }}\n\
         trailers_down = {{ x-host = \"{{host}}\" }}\n\
         [[route]]\npath = \"/error\"\nrespond = {{ status = 404, body = \"own\" }}\n\
         trailers_down = {{ x-host = \"{{host}}\" }}\n",
        upstream.url()
    ));
    let raw = |request: &str| {
        let mut client = proxy.connect();
        client.send(format!(
            "{request}\r\nHost: test\r\nConnection: close\r\n\r\n"
        ));
        String::from_utf8(client.rest()).unwrap().to_lowercase()
    };
    let text = raw("GET /x HTTP/1.1");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("trailer: x-took, x-tag, x-tag"), "{head}");
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
    assert!(body.starts_with("5\r\nhello\r\n0\r\nx-took: 0."), "{body}");
    assert!(
        body.ends_with("\r\nx-tag: a\r\nx-tag: /x\r\n\r\n"),
        "{body}"
    );
    let text = raw("GET /own HTTP/1.1");
    assert!(
        text.ends_with("3\r\nown\r\n0\r\nx-host: test\r\n\r\n"),
        "{text}"
    );
    for request in ["GET /x HTTP/1.0", "HEAD /x HTTP/1.1", "GET /error HTTP/1.1"] {
        let text = raw(request);
        assert!(text.contains("content-length: "), "{text}");
        assert!(
            !text.contains("x-took") && !text.contains("x-host"),
            "{text}"
        );
    }
}

#[test]
fn some_headers_are_for_successful_responses() {
    let upstream = Upstream::start(|request, stream| {
        let target = request.head.split(' ').nth(1).unwrap_or_default();
        let status = target.trim_start_matches('/');
        let head = format!(
            "HTTP/1.1 {status} x\r\nContent-Length: 0\r\nCache-Control: private\r\n\
             Last-Modified: Mon, 28 Sep 1970 06:00:00 GMT\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).is_ok()
    });
    let probe = Probe::before(
        upstream,
        r#"
        [[route]]
        path = "/own"
        respond = { status = 200, body = "a" }
        expires = "1h"
        headers_success = { "+cache-control" = "public" }
        [[route]]
        path = "/closed"
        respond = { status = 403 }
        headers_success = { x-success = "1" }
        [[route]]
        path = "/*"
        upstream = "$UPSTREAM"
        expires = "34min"
        expires_from = "modified"
        headers_down = { x-all = "1" }
        headers_success = { x-success = "{response_header:expires}" }
        "#,
    );
    let ended = "Mon, 28 Sep 1970 06:34:00 GMT";
    for (status, success) in [
        (200, true),
        (204, true),
        (301, true),
        (404, false),
        (202, false),
    ] {
        let answer = probe.proxy.get(&format!("/{status}"));
        assert_eq!(answer.header("x-all").as_deref(), Some("1"), "{status}");
        let expected = success.then(|| ended.to_owned());
        assert_eq!(answer.header("x-success"), expected, "{status}");
        assert_eq!(answer.header("expires"), expected, "{status}");
        let control = if success { "no-cache" } else { "private" };
        assert_eq!(
            answer.header("cache-control").as_deref(),
            Some(control),
            "{status}"
        );
    }
    let own = probe.proxy.get("/own").head.to_lowercase();
    assert!(own.contains("cache-control: max-age=3600\r\n"), "{own}");
    assert!(
        own.contains("cache-control: public") && own.contains("expires: "),
        "{own}"
    );
    assert_eq!(probe.proxy.get("/closed").header("x-success"), None);
}
