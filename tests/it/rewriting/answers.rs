//! Routes that answer by themselves: always the same, or with another place.

use std::io::Write;

use crate::house::Upstream;
use crate::probe::Probe;

#[test]
fn a_route_answers_without_an_upstream_and_within_its_limits() {
    let probe = Probe::start(
        r#"
        [limit.two]
        rate = "2/h"
        [[route]]
        path = "/robots.txt"
        limits = ["two"]
        respond = { body = "User-agent: *\nDisallow: /\n" }
        [[route]]
        path = "/gone/*"
        respond = { status = 410, body = '{"gone":true}', content_type = "application/json" }
        headers_down = { x-path = "{rest}", cache-control = "max-age=60" }
        [[route]]
        path = "/nothing"
        respond = { status = 204 }
        [[route]]
        path = "/*"
        upstream = "$UPSTREAM"
        "#,
    );
    let answer = probe.proxy.get("/robots.txt");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text(), "User-agent: *\nDisallow: /\n");
    let media = answer.header("content-type");
    assert_eq!(media.as_deref(), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.header("x-ratelimit-remaining").as_deref(), Some("1"));

    let mut client = probe.proxy.connect();
    client.send("HEAD /robots.txt HTTP/1.1\r\nHost: test\r\n\r\n");
    let head = client.answer_to_head();
    assert_eq!(head.header("content-length").as_deref(), Some("26"));
    // What follows on the connection is read as it should be.
    let answer = client.ask("GET /gone/a/b HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (410, "{\"gone\":true}")
    );
    assert_eq!(answer.header("x-path").as_deref(), Some("a/b"));
    assert_eq!(
        answer.header("cache-control").as_deref(),
        Some("max-age=60")
    );
    let nothing = client.ask("GET /nothing HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(
        (nothing.status, nothing.header("content-length")),
        (204, None)
    );

    let denied = probe.proxy.get("/robots.txt");
    denied.assert_problem(429);
    assert!(probe.upstream.seen().is_empty());
}

#[test]
fn a_body_has_variables() {
    let probe = Probe::start(
        r#"
        [[route]]
        path = "/hello/{name}"
        respond = { body = "{method} {path:name}\n{{{query:a}}}", variables = true }
        [[route]]
        host = 'regex:^(?P<user>[a-z]+)\.users\.test$'
        path = 'regex:^/(?P<first>[^/]+)/([0-9]+)/$'
        respond = { body = "{host:user} {path:first} {path:2}", variables = true }
        [[route]]
        path = "/page"
        respond = { body = "<p>{header:x-a}", variables = true, content_type = "text/html" }
        "#,
    );
    let answer = probe.proxy.get("/hello/you?a=%3C");
    let media = answer.header("content-type");
    assert_eq!(media.as_deref(), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.text(), "GET you\n{%3C}");
    let mut client = probe.proxy.connect();
    let groups = client.ask("GET /a%20b/7 HTTP/1.1\r\nHost: me.Users.test\r\n\r\n");
    assert_eq!(groups.text(), "me a%20b 7");
    let page = probe.proxy.get_with("/page", "X-A: <script>'\"\r\n");
    assert_eq!(page.text(), "<p>&lt;script&gt;&#39;&quot;");
    let long = probe
        .proxy
        .get_with("/page", &format!("X-A: {}\r\n", "<".repeat(2100)));
    long.assert_problem(431);
}

#[test]
fn an_answer_does_not_wait_for_a_body_and_is_not_confused_by_it() {
    let probe = Probe::start(
        "[[route]]\npath = \"/a\"\nrespond = { body = \"x\" }\n\
         [[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n",
    );
    let inner = "GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n";
    let request = format!(
        "POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{inner}",
        inner.len()
    );
    let observed = probe.send(request.as_bytes(), crate::probe::Pace::Whole);
    assert_eq!(observed.client[0].text(), "x");
    assert!(
        observed.seen.iter().all(|seen| !seen.is_for("/smuggled")),
        "{observed:?}"
    );
}

/// Where the proxy sends a request for this target.
fn place(probe: &Probe, target: &str, host: &str) -> (u16, Option<String>) {
    let mut client = probe.proxy.connect();
    let answer = client.ask(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    (answer.status, answer.header("location"))
}

#[test]
fn clients_are_sent_elsewhere_and_nowhere_else() {
    let probe = Probe::start(
        r#"
        [[route]]
        path = "/old/*"
        redirect = { to = "/new/{rest}?{query}", status = 308 }
        [[route]]
        path = "/login"
        redirect = "https://login.example/?next={query:next}"
        [[route]]
        path = "/jump"
        redirect = "/{query:to}"
        [[route]]
        host = "plain.example"
        path = "/*"
        redirect = { to = "https://{host}{uri}", status = 301 }
        [[route]]
        path = "/*"
        upstream = "$UPSTREAM"
        "#,
    );
    for (target, host, status, to) in [
        ("/old/a/b/?c=1", "test", 308, "/new/a/b/?c=1"),
        ("/old//evil.example", "test", 308, "/new/evil.example"),
        (
            "/a/?b=1&c",
            "PLAIN.example:80",
            301,
            "https://plain.example/a/?b=1&c",
        ),
        (
            "//evil.example/%2e%2e/x",
            "plain.example",
            301,
            "https://plain.example/x",
        ),
        (
            "/login?next=/a%26b",
            "test",
            302,
            "https://login.example/?next=%2Fa%26b",
        ),
        ("/jump?to=/evil.example", "test", 302, "/%2Fevil.example"),
        ("/jump?to=%0d%0aX:1", "test", 302, "/%0d%0aX%3A1"),
        ("/jump?to=%5cevil.example", "test", 302, "/%5cevil.example"),
    ] {
        let found = place(&probe, target, host);
        assert_eq!(found, (status, Some(to.to_owned())), "{target}");
    }
    // HTTP/1.0 need not say which host it wants.
    let mut client = probe.proxy.connect();
    let answer = client.ask("GET /old/a HTTP/1.0\r\n\r\n");
    assert_eq!(answer.header("location").as_deref(), Some("/new/a"));
}

#[test]
fn the_scheme_is_what_a_trusted_proxy_says() {
    let route = "[[route]]\npath = \"/*\"\nredirect = \"{scheme}://{host}/there\"\n";
    let ask = |settings: &str| {
        let probe = Probe::start(&format!("{settings}{route}"));
        let answer = probe.proxy.get_with("/", "X-Forwarded-Proto: https\r\n");
        answer.header("location").unwrap()
    };
    assert_eq!(ask(""), "http://test/there");
    let nameless = Probe::start(route)
        .proxy
        .connect()
        .ask("GET / HTTP/1.0\r\n\r\n");
    nameless.assert_problem(400);
    assert_eq!(
        ask("trusted_proxies = [\"127.0.0.1\"]\n"),
        "https://test/there"
    );
}

#[test]
fn a_body_has_the_speed_of_its_route() {
    let upstream = Upstream::start(|_, stream| {
        let body = "x".repeat(40 << 10);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).is_ok()
    });
    let proxy = crate::house::Tidegate::start(&format!(
        "[[route]]\npath = \"/slow\"\nupstream = \"app\"\n\
         bandwidth = \"100KiB/s\"\nbandwidth_after = \"10KiB\"\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\n\
         [upstream.app]\nservers = \"{}\"\n",
        upstream.url()
    ));
    let took = |path: &str| {
        let began = std::time::Instant::now();
        assert_eq!(proxy.get(path).body.len(), 40 << 10);
        began.elapsed().as_millis()
    };
    let (slow, quick) = (took("/slow"), took("/quick"));
    // 30 KiB at 100 KiB/s, and a slice of 100 ms is ahead.
    assert!(slow >= 190 && slow > quick, "{slow} ms and {quick} ms");
}

#[test]
fn a_slash_at_the_end_is_added_or_tells_paths_apart() {
    let probe = Probe::start(
        r#"
        [[route]]
        path = "/docs"
        trailing_slash = false
        redirect = { to = "/docs/?{query}", status = 301 }
        [[route]]
        path = "/docs/*"
        upstream = "$UPSTREAM"
        "#,
    );
    for (target, place) in [("/docs", "/docs/"), ("/docs?a=b", "/docs/?a=b")] {
        let answer = probe.proxy.get(target);
        assert_eq!(answer.status, 301, "{target}");
        assert_eq!(answer.header("location").as_deref(), Some(place));
    }
    for target in ["/docs/", "/docs/.", "/docs/a"] {
        assert_eq!(probe.proxy.get(target).status, 200, "{target}");
    }
}

#[test]
fn places_of_the_proxy_get_scheme_host_and_port() {
    let upstream = Upstream::start(|request, stream| {
        let target = request.head.split(' ').nth(1).unwrap_or_default();
        let place = target.rsplit('/').next().unwrap_or_default();
        let head = format!(
            "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: /{place}\r\n\
             Refresh: 7; url=/in/x\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).is_ok()
    });
    let probe = Probe::before(
        upstream,
        r#"
        [[route]]
        path = "/own/*"
        redirect = "/{rest}"
        location_base = "{scheme}://{host}{port_part}"
        [[route]]
        path = "/a/*"
        upstream = "$UPSTREAM"
        location_base = "https://b.example"
        rewrite_down = { location = { "/old" = "/new" } }
        [[route]]
        path = "/c/*"
        upstream = "$UPSTREAM"
        location_base = "https://b.example"
        replace_prefix = { from = "/c/", to = "/in/", location = true }
        "#,
    );
    let port = probe.proxy.address.port();
    for (target, place) in [
        ("/own/x", format!("http://test:{port}/x")),
        ("/a/old", "https://b.example/new".to_owned()),
        ("/a/other", "/other".to_owned()),
    ] {
        let answer = probe.proxy.get(target);
        assert_eq!(answer.header("location"), Some(place), "{target}");
    }
    let refresh = probe.proxy.get("/c/x").header("refresh");
    assert_eq!(refresh.as_deref(), Some("7; url=/c/x"));
}
