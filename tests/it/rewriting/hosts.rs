//! Which host an upstream's servers are asked for.

use crate::backend::{Backend, Call, Manners};
use crate::house::{Tidegate, Upstream};

/// What an upstream saw whose table says this of `host`.
fn seen(setting: &str, settings: &str, request: &str) -> (Upstream, crate::house::Seen) {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "{settings}\n[upstream.api]\nservers = \"{}\"\n{setting}\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\n",
        upstream.url()
    ));
    let answer = proxy.connect().ask(request);
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = upstream.seen().pop().unwrap();
    (upstream, seen)
}

const REQUEST: &str = "GET /a HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n";

#[test]
fn the_clients_host_passes_unless_it_is_to_be_another() {
    for (setting, host) in [
        ("", Some("shop.example:8080")),
        ("host = \"pass\"", Some("shop.example:8080")),
        ("host = \"rewrite\"", None),
        ("host = \"api.internal\"", Some("api.internal")),
    ] {
        let (upstream, seen) = seen(setting, "", REQUEST);
        let own = upstream.address.to_string();
        let expected = host.unwrap_or(&own);
        assert_eq!(seen.header("host").as_deref(), Some(expected), "{setting}");
        // What was asked for is never lost.
        let asked = seen.header("x-forwarded-host");
        assert_eq!(asked.as_deref(), Some("shop.example:8080"), "{setting}");
        let forwarded = seen.header("forwarded").unwrap();
        assert!(
            forwarded.contains("host=\"shop.example:8080\""),
            "{forwarded}"
        );
    }
}

#[test]
fn a_request_without_a_host_gets_one() {
    let request = "GET /a HTTP/1.0\r\n\r\n";
    let (_, fixed) = seen("host = \"api.internal\"", "", request);
    assert_eq!(fixed.header("host").as_deref(), Some("api.internal"));
    let (upstream, own) = seen("", "", request);
    assert_eq!(own.header("host"), Some(upstream.address.to_string()));
}

#[test]
fn what_a_trusted_proxy_says_of_the_host_stays() {
    let trusting = "trusted_proxies = [\"127.0.0.1\"]";
    let request = "GET /a HTTP/1.1\r\nHost: inner\r\nX-Forwarded-Host: shop.example\r\n\r\n";
    let (_, seen) = seen("host = \"api.internal\"", trusting, request);
    assert_eq!(seen.header("host").as_deref(), Some("api.internal"));
    let asked = seen.header("x-forwarded-host");
    assert_eq!(asked.as_deref(), Some("shop.example"));
}

#[test]
fn servers_that_speak_http_2_are_asked_in_their_words() {
    let answer = |mut call: Call| async move { call.say("ok") };
    let backend = Backend::h2c(Manners::default(), answer);
    let proxy = Tidegate::start(&format!(
        "[upstream.api]\nservers = \"{}\"\nhost = \"api.internal\"\n\
         [[route]]\npath = \"/v1/*\"\nupstream = \"api\"\nstrip_prefix = \"/v1\"\n\
         headers_up = {{ X-Rest = \"{{rest}}\", cookie = false }}\n\
         headers_down = {{ X-Path = \"{{path}}\" }}\n",
        backend.h2c_url()
    ));
    let request = "GET /v1/a/?b HTTP/1.1\r\nHost: shop.example\r\nCookie: a=b\r\n\r\n";
    let answer = proxy.connect().ask(request);
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    assert_eq!(answer.header("x-path").as_deref(), Some("/v1/a/"));
    let seen = backend.seen().remove(0);
    assert_eq!(seen.uri(), "http://api.internal/a/?b");
    assert_eq!(seen.headers()["x-rest"], "a/");
    assert_eq!(seen.headers()["x-forwarded-host"], "shop.example");
    assert_eq!(seen.headers()["x-forwarded-prefix"], "/v1");
    assert!(!seen.headers().contains_key("cookie"));
}

#[test]
fn a_route_is_for_one_port_of_the_proxy() {
    let upstream = Upstream::ok();
    let (open, inner) = (crate::support::free_port(), crate::support::free_port());
    let proxy = crate::house::Tidegate::start_listening(
        tempfile::tempdir().unwrap(),
        &format!("[\"127.0.0.1:{open}\", \"127.0.0.1:{inner}\"]"),
        &format!(
            "[[route]]\npath = \"/inner\"\nport = {inner}\nupstream = \"{}\"\n",
            upstream.url()
        ),
    );
    for (port, status) in [(inner, 200), (open, 404)] {
        let mut client = crate::house::Client::to(([127, 0, 0, 1], port).into());
        // The port in `Host` does not count.
        let host = format!("Host: test:{inner}");
        let answer = client.ask(format!("GET /inner HTTP/1.1\r\n{host}\r\n\r\n"));
        assert_eq!(answer.status, status, "{port}");
    }
    drop(proxy);
}
