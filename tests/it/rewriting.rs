//! What routes change of a request and its answer: against the running proxy, with what the
//! upstream saw.

mod answers;
mod heads;
mod hosts;
mod ids;

use std::io::Write;

use crate::house::{Client, Upstream};
use crate::probe::Probe;

/// Two routes to the upstream: one without its prefix, one as it is.
const STRIPPED: &str = r#"
[[route]]
path         = "/api/*"
upstream     = "$UPSTREAM"
strip_prefix = "/api"
[[route]]
path         = "/*"
upstream     = "$UPSTREAM"
"#;

/// The target that the upstream saw, or the status that the client was refused with.
fn reached(probe: &Probe, target: &str) -> Result<String, u16> {
    let observed = probe.observe(|proxy| proxy.get(target));
    match observed.seen.as_slice() {
        [seen] => {
            assert_eq!(observed.charged, 1, "{target}");
            Ok(seen.head.split(' ').nth(1).unwrap().to_owned())
        }
        [] => {
            assert_eq!(observed.charged, 0, "{target}");
            Err(observed.client.status)
        }
        more => panic!("{target}: {more:?}"),
    }
}

#[test]
fn responses_get_other_places_and_cookies() {
    let upstream = Upstream::start(|_, stream| {
        let answer = "HTTP/1.1 302 Found\r\nLocation: http://in.test/a/b\r\n\
                      Set-Cookie: s=1; Path=/app/; Domain=in.test\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let proxy = crate::house::Tidegate::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"app\"\n[route.rewrite_down]\n\
         location = {{ 'regex:^http://in\\.test/(.*)' = \"/new/{{1}}\" }}\n\
         cookie_domain = {{ \"in.test\" = \"example.com\" }}\n\
         cookie_path = {{ \"/app/\" = \"/\" }}\ncookie_flags = {{ s = \"secure\" }}\n\
         [upstream.app]\nservers = \"{}\"\n",
        upstream.url()
    ));
    let answer = proxy.get("/");
    assert_eq!(answer.header("location").as_deref(), Some("/new/a/b"));
    let cookie = answer.header("set-cookie");
    assert_eq!(
        cookie.as_deref(),
        Some("s=1; Path=/; Domain=example.com; Secure")
    );
}

#[test]
fn an_upstream_sees_another_beginning_and_answers_get_the_old_one_back() {
    let upstream = Upstream::start(|request, stream| {
        let place = request.header("x-place").unwrap_or_default();
        let answer = format!(
            "HTTP/1.1 302 Found\r\nLocation: {place}\r\nSet-Cookie: a=1; Path=/b/x; Secure\r\n\
             Set-Cookie: b=2; path=/c\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let proxy = crate::house::Tidegate::start(&format!(
        "[[route]]\npath = \"/a/*\"\nupstream = \"app\"\n\
         replace_prefix = {{ from = \"/a/\", to = \"/b/\", location = true, cookies = true }}\n\
         [[route]]\npath = \"regex:^/t\"\nupstream = \"app\"\n\
         replace_prefix = {{ from = \"/t\", to = \"/u\" }}\n\
         [upstream.app]\nservers = \"{}\"\n",
        upstream.url()
    ));
    let own = upstream.url();
    for (path, seen, place, told) in [
        ("/a/x/?q=%2f", "/b/x/?q=%2f", "/b/y?z", "/a/y?z"),
        ("/a//./x/%7e", "/b/x/~", &format!("{own}/b/y"), "/a/y"),
        ("/a", "/b", "http://test/b/", "http://test/a/"),
        (
            "/a/",
            "/b/",
            "http://elsewhere.example/b/",
            "http://elsewhere.example/b/",
        ),
        ("/txt", "/uxt", "/u", "/u"),
    ] {
        let answer = proxy.get_with(path, &format!("X-Place: {place}\r\n"));
        assert_eq!(answer.header("location").as_deref(), Some(told), "{path}");
        let all = upstream.seen();
        assert_eq!(
            all.last().unwrap().head.split(' ').nth(1),
            Some(seen),
            "{path}"
        );
        let changed = answer.head.contains("a=1; Path=/a/x; Secure");
        assert_eq!(changed, path != "/txt", "{answer:?}");
        assert!(answer.head.contains("b=2; path=/c"), "{answer:?}");
    }
}

#[test]
fn an_upstream_sees_the_path_without_its_prefix() {
    let probe = Probe::start(STRIPPED);
    for (sent, seen) in [
        ("/api/users?a=1", "/users?a=1"),
        ("/api/users/", "/users/"),
        ("/api", "/"),
        ("/api?x", "/?x"),
        ("http://test/api/users", "/users"),
        ("/api/a%2Fb;v=1", "/a%2Fb;v=1"),
        ("/apis/users", "/apis/users"),
        ("/other/api", "/other/api"),
    ] {
        assert_eq!(reached(&probe, sent).as_deref(), Ok(seen), "{sent}");
    }
    let seen = probe.upstream.seen();
    let told = |index: usize| seen[index].header("x-forwarded-prefix");
    assert_eq!(told(1).as_deref(), Some("/api"), "{seen:?}");
    assert_eq!(told(seen.len() - 2), None);
}

#[test]
fn no_spelling_of_a_prefix_leads_out_of_what_was_counted() {
    let probe = Probe::start(STRIPPED);
    for (sent, seen) in [
        ("//api/users", Ok("/users")),
        ("/%61pi/users/", Ok("/users/")),
        ("/api//evil.example/%2e%2e/a", Ok("/a")),
        ("/api//evil.example", Ok("/evil.example")),
        ("/api/%2fevil.example", Ok("/evil.example")),
        ("/api;x/users", Ok("/users")),
        ("/api/x/../users", Ok("/x/../users")),
        // To some this is the other route.
        ("/api/../users", Err(400)),
        ("/users/../api/x", Err(400)),
        ("/api%2fusers", Err(400)),
        ("/api/..%2fusers", Err(400)),
        ("/api/%252e%252e/users", Err(400)),
    ] {
        let found = reached(&probe, sent);
        assert_eq!(found.as_deref(), seen.as_deref(), "{sent}");
    }
}

#[test]
fn a_client_cannot_say_what_was_taken_off() {
    let probe = Probe::start(STRIPPED);
    probe.proxy.get_with(
        "/api/a",
        "X-Forwarded-Prefix: /evil\r\nX_Forwarded_Prefix: /evil\r\n",
    );
    let seen = probe.upstream.seen().pop().unwrap();
    assert_eq!(seen.header("x-forwarded-prefix").as_deref(), Some("/api"));
    assert!(!seen.head.contains("evil"), "{}", seen.head);

    let trusting = format!("trusted_proxies = [\"127.0.0.1\"]\n{STRIPPED}");
    let probe = Probe::start(&trusting);
    probe
        .proxy
        .get_with("/api/a", "X-Forwarded-Prefix: /shop\r\n");
    let seen = probe.upstream.seen().pop().unwrap();
    let told = seen.header("x-forwarded-prefix");
    assert_eq!(told.as_deref(), Some("/shop, /api"));
}

/// An upload to `path`, in one piece that says its length or in chunks.
fn upload(client: &mut Client, path: &str, bytes: usize, chunked: bool) -> u16 {
    let body = "a".repeat(bytes);
    let framed = match chunked {
        true => format!("Transfer-Encoding: chunked\r\n\r\n{bytes:x}\r\n{body}\r\n0\r\n\r\n"),
        false => format!("Content-Length: {bytes}\r\n\r\n{body}"),
    };
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\n");
    client.ask(format!("{head}{framed}")).status
}

#[test]
fn a_route_bounds_the_bodies_that_it_takes() {
    let probe = Probe::start(
        r#"
        [server]
        max_body = "1KiB"
        [[route]]
        path = "/small"
        upstream = "$UPSTREAM"
        body_limit = 10
        [[route]]
        path = "/large"
        upstream = "$UPSTREAM"
        body_limit = "64KiB"
        [[route]]
        path = "/any"
        upstream = "$UPSTREAM"
        body_limit = "unlimited"
        [[route]]
        path = "/*"
        upstream = "$UPSTREAM"
        "#,
    );
    for (path, bytes, status) in [
        ("/small", 10, 200),
        ("/small", 11, 413),
        ("/large", 64 << 10, 200),
        ("/large", (64 << 10) + 1, 413),
        ("/any", 1 << 20, 200),
        ("/other", 1024, 200),
        ("/other", 1025, 413),
    ] {
        for chunked in [false, true] {
            let act =
                |proxy: &crate::house::Tidegate| upload(&mut proxy.connect(), path, bytes, chunked);
            let observed = probe.observe(act);
            assert_eq!(observed.client, status, "{path} {bytes} {chunked}");
            let whole = observed.seen.iter().filter(|seen| seen.body.len() == bytes);
            assert_eq!(whole.count(), usize::from(status == 200), "{path} {bytes}");
            if status == 413 && !chunked {
                assert!(observed.seen.is_empty(), "{path} {bytes}");
            }
        }
    }
}

#[test]
fn a_body_that_is_too_long_is_not_even_asked_for() {
    let probe =
        Probe::start("[[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\nbody_limit = 10\n");
    let mut client = probe.proxy.connect();
    client.send(
        "POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n",
    );
    let head = client.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
    assert!(probe.upstream.seen().is_empty());
}

#[test]
fn a_tunnel_is_asked_for_where_its_route_leads() {
    let upstream = Upstream::start(|_, stream| {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                      Upgrade: websocket\r\nServer: secret\r\n\r\n";
        stream.write_all(switch.as_bytes()).is_ok() && stream.write_all(b"hello").is_ok()
    });
    let probe = Probe::before(
        upstream,
        r#"
        [[route]]
        path         = "/api/*"
        upstream     = "$UPSTREAM"
        strip_prefix = "/api"
        headers_up   = { x-room = "{rest}" }
        headers_down = { server = false }
        "#,
    );
    let mut client = probe.proxy.connect();
    client.send(
        "GET /api/ws HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\n\
         Upgrade: websocket\r\n\r\n",
    );
    let head = client.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(!head.contains("secret"), "{head}");
    assert_eq!(client.some(), "hello");
    let seen = probe.upstream.seen().pop().unwrap();
    assert!(seen.is_for("/ws"), "{}", seen.head);
    assert_eq!(seen.header("x-room").as_deref(), Some("ws"));
    assert_eq!(seen.header("upgrade").as_deref(), Some("websocket"));
}
