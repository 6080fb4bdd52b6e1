//! One id for each request, wherever it is spoken of.

use crate::house::{Tidegate, Upstream};
use crate::probe::{Probe, eventually};

const IDS: &str = "[headers]\nrequest_id = \"x-request-id\"\n";

/// The only id of a text, as it stands in JSON.
fn id_in(text: &str) -> String {
    let (_, rest) = text.split_once("\"request_id\":\"").expect(text);
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn upstream_client_and_log_know_a_request_by_one_id() {
    let upstream =
        Upstream::saying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Request-Id: its own\r\n\r\nok");
    let config = format!(
        "upstream = \"{}\"\n[log]\nformat = \"json\"\nsample_allowed = 1.0\n{IDS}",
        upstream.url()
    );
    let proxy = Tidegate::start(&config);
    let lines = "X-Request-Id: forged\r\nX_Request_Id: forged\r\nConnection: x-request-id\r\n";
    let answer = proxy.get_with("/a", lines);
    let id = answer.header("x-request-id").unwrap();
    assert_eq!((answer.status, id.len()), (200, 16));
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(seen.header("x-request-id"), Some(id.clone()));
    assert!(!seen.head.contains("forged"), "{}", seen.head);
    eventually("it is in the log", || proxy.stdout().contains(&id));
    let line = proxy.stdout();
    assert_eq!(id_in(line.lines().next().unwrap()), id);
    assert_ne!(proxy.get("/a").header("x-request-id"), Some(id));
}

#[test]
fn a_proxy_before_us_may_say_the_id() {
    let probe = Probe::start(&format!("trusted_proxies = [\"127.0.0.1\"]\n{IDS}"));
    let ask = |lines: &str| {
        let answer = probe.proxy.get_with("/a", lines);
        let seen = probe.upstream.seen().pop().unwrap();
        assert_eq!(seen.header("x-request-id"), answer.header("x-request-id"));
        answer.header("x-request-id").unwrap()
    };
    assert_eq!(ask("X-Request-Id: 0a-b:c/d\r\n"), "0a-b:c/d");
    for odd in [
        "X-Request-Id: a b\r\n".to_owned(),
        "X-Request-Id: a\"b\r\n".to_owned(),
        "X-Request-Id: a\r\nX-Request-Id: b\r\n".to_owned(),
        format!("X-Request-Id: {}\r\n", "a".repeat(200)),
        String::new(),
    ] {
        assert_eq!(ask(&odd).len(), 16, "{odd}");
    }
}

#[test]
fn answers_of_the_proxy_itself_say_the_id() {
    let probe = Probe::start(&format!(
        r#"
        trusted_proxies = ["127.0.0.1"]
        [limit.one]
        rate = "1/h"
        [[route]]
        path = "/fine"
        upstream = "$UPSTREAM"
        [[route]]
        path = "/limited"
        limits = ["one"]
        respond = {{}}
        headers_down = {{ x-copy = "{{request_id}}" }}
        [[route]]
        path = "/gone"
        upstream = "http://127.0.0.1:1"
        {IDS}
        "#
    ));
    let ask = |target: &str, status: u16| {
        let answer = probe.proxy.get_with(target, "X-Request-Id: mine-7\r\n");
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.header("x-request-id").as_deref(), Some("mine-7"));
        answer
    };
    let answer = ask("/limited", 200);
    assert_eq!(answer.header("x-copy").as_deref(), Some("mine-7"));
    for (target, status) in [
        ("/limited", 429),
        ("/gone", 502),
        ("/nowhere", 404),
        ("/%zz", 400),
    ] {
        assert_eq!(id_in(&ask(target, status).text()), "mine-7", "{target}");
    }
}

#[test]
fn without_the_setting_nothing_is_added() {
    let probe = Probe::start("");
    let answer = probe.proxy.get_with("/a", "X-Request-Id: own\r\n");
    assert_eq!(answer.header("x-request-id"), None);
    let seen = probe.upstream.seen().pop().unwrap();
    assert_eq!(seen.header("x-request-id").as_deref(), Some("own"));
}
