//! `[access_log.NAME]`: each request of a route has its line, with all bytes that were sent.

use std::io::{Read, Write};

use crate::house::{Client, Tidegate, Upstream};
use crate::http2::raw::{END_HEADERS, END_STREAM, HEADERS, REQUEST, Raw, block, frame};
use crate::probe::eventually;

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nX-Kind: a \"b\"\r\nContent-Length: 5\r\n\r\nhello";
const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";

/// Answers by path; a request that asks for it gets a tunnel, which echoes five bytes.
fn upstream() -> Upstream {
    Upstream::start(|request, stream| {
        if request.header("upgrade").is_some() {
            let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\
                        Connection: Upgrade\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
            return false;
        }
        let response = match request.head.contains(" /chunked") {
            true => CHUNKED,
            false => RESPONSE,
        };
        stream.write_all(response.as_bytes()).is_ok()
    })
}

fn start(upstream: &Upstream) -> Tidegate {
    Tidegate::start(&format!(
        r#"
        upstream = "{}"
        [log]
        access = "access.log"
        format = "json"
        sample_allowed = 1.0
        [access_log.sizes]
        to = "sizes.log"
        format = "{{path}} {{status}} {{bytes_sent}} {{body_bytes_sent}} {{upstream_body_bytes}} {{upstream_bytes_received}} {{upstream_status}}"
        [access_log.json]
        to = "json.log"
        format = '{{{{"agent":"{{header:user-agent}}","kind":"{{response_header:x-kind}}","none":"{{header:x-none}}"}}}}'
        [access_log.text]
        to = "text.log"
        format = "{{header:user-agent}} {{header:x-none}}"
        [limit.one]
        rate = "1/h"
        [[route]]
        path = "/limited"
        limits = ["one"]
        access_logs = ["sizes"]
        [[route]]
        path = "/quiet"
        access_logs = []
        [[route]]
        path = "/*"
        "#,
        upstream.url()
    ))
}

/// The lines of a log when there are so many.
fn lines(proxy: &Tidegate, log: &str, count: usize) -> Vec<String> {
    let path = proxy.directory.path().join(log);
    let mut lines: Vec<String> = Vec::new();
    eventually("the line of each request", || {
        // The file begins with the first line.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        lines = text.lines().map(str::to_owned).collect();
        lines.len() >= count
    });
    lines
}

#[test]
fn lines_tell_every_byte_that_was_sent() {
    let upstream = upstream();
    let proxy = start(&upstream);
    let mut expected = Vec::new();
    for path in ["/a", "/chunked", "/limited", "/limited"] {
        let mut client = proxy.connect();
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        ));
        let all = client.rest();
        let text = String::from_utf8_lossy(&all);
        let end = text.find("\r\n\r\n").unwrap() + 4;
        let status = &text[9..12];
        let body = match (path, status) {
            ("/chunked", _) => 5,
            _ => all.len() - end,
        };
        let of_upstream = match (path, status) {
            (_, "429") => "- - -".to_owned(),
            ("/chunked", _) => format!("5 {} 200", CHUNKED.len()),
            _ => format!("5 {} 200", RESPONSE.len()),
        };
        expected.push(format!(
            "{path} {status} {} {body} {of_upstream}",
            all.len()
        ));
        // The lines of one worker are in the order of their ends.
        assert_eq!(
            lines(&proxy, "sizes.log", expected.len()).len(),
            expected.len()
        );
    }
    assert_eq!(proxy.get("/quiet").status, 200);
    assert_eq!(proxy.get("/b").status, 200);
    let found = lines(&proxy, "sizes.log", expected.len() + 1);
    assert_eq!(found[..expected.len()], expected);
    assert!(found[expected.len()].starts_with("/b 200 "));
}

#[test]
fn no_client_ends_a_field_or_a_line() {
    let upstream = upstream();
    let proxy = start(&upstream);
    proxy.get_with("/a", "User-Agent: a\"\\\u{e9}\r\n");
    let [text] = &lines(&proxy, "text.log", 1)[..] else {
        panic!("one line");
    };
    assert_eq!(text, r"a\x22\x5C\xC3\xA9 -");
    let [json] = &lines(&proxy, "json.log", 1)[..] else {
        panic!("one line");
    };
    assert_eq!(json, r#"{"agent":"a\"\\é","kind":"a \"b\"","none":""}"#);
}

#[test]
fn a_tunnel_has_its_line_at_its_end() {
    let upstream = upstream();
    let proxy = start(&upstream);
    let mut client = Client::to(proxy.address);
    client.send("GET /t HTTP/1.1\r\nHost: test\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
    let head = client.head().unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let path = proxy.directory.path().join("sizes.log");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    client.send("hello");
    assert_eq!(client.rest(), b"hello");
    drop(client);
    let [line] = &lines(&proxy, "sizes.log", 1)[..] else {
        panic!("one line");
    };
    // `head` lacks the empty line at its end.
    let sent = head.len() + 4 + 5;
    assert!(
        line.starts_with(&format!("/t 101 {sent} 5 ")),
        "{line} {head:?}"
    );
}

#[test]
fn a_tunnel_has_its_line_of_the_access_log_at_its_end() {
    let upstream = upstream();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"access.log\"\nformat = \"json\"\n\
         sample_allowed = 1.0\n",
        upstream.url()
    ));
    let mut client = Client::to(proxy.address);
    client.send("GET /t HTTP/1.1\r\nHost: test\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
    assert!(client.head().unwrap().starts_with("HTTP/1.1 101"));
    client.send("hello");
    assert_eq!(client.rest(), b"hello");
    drop(client);
    let [line] = &lines(&proxy, "access.log", 1)[..] else {
        panic!("one line");
    };
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["status"], &line["bytes"]),
        (&101.into(), &5.into()),
        "{line}"
    );
}

#[test]
fn a_client_that_leaves_has_a_line() {
    let upstream = Upstream::start(|_, stream| {
        // The proxy closes the connection when the client has left.
        let _ = stream.read(&mut [0]);
        false
    });
    let proxy = start(&upstream);
    let mut client = proxy.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("the request comes", || !upstream.seen().is_empty());
    client.stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(client);
    let [line] = &lines(&proxy, "sizes.log", 1)[..] else {
        panic!("one line");
    };
    assert!(line.starts_with("/slow 499 0 0 "), "{line}");
    let [line] = &lines(&proxy, "access.log", 1)[..] else {
        panic!("one line");
    };
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&line["status"], &line["reason"], &line["outcome"]),
        (&499.into(), &"client_left".into(), &"unlimited".into())
    );
}

#[test]
fn streams_that_come_at_once_have_numbers_of_their_own() {
    let proxy = Tidegate::start(
        r#"
        [server]
        workers = 1
        [access_log.all]
        to = "all.log"
        format = "{connection_requests}"
        [[route]]
        path = "/*"
        respond = { body = "a" }
        limits = []
        "#,
    );
    let mut client = Raw::to(proxy.address, &[]);
    let heads = (0..5).flat_map(|turn| {
        let stream = 2 * turn + 1;
        frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(&REQUEST))
    });
    client.send(&heads.collect::<Vec<u8>>());
    let mut numbers = lines(&proxy, "all.log", 5);
    numbers.sort();
    assert_eq!(numbers, ["1", "2", "3", "4", "5"]);
}

#[test]
fn a_log_chooses_responses_by_status_and_requests_by_a_variable() {
    let upstream = upstream();
    let proxy = Tidegate::start(&format!(
        r#"
        upstream = "{}"
        [access_log.all]
        to = "all.log"
        format = "{{connection_requests}} {{uri}} {{connection_age}}"
        [access_log.failed]
        to = "failed.log"
        format = "{{uri}}"
        status = ["404", "5xx"]
        [access_log.asked]
        to = "asked.log"
        format = "{{uri}}"
        if = "{{query:l}}"
        [access_log.both]
        to = "both.log"
        format = "{{uri}}"
        status = ["2xx"]
        if = "{{response_header:x-kind}}"
        [[route]]
        path = "/missing"
        respond = {{ status = 404 }}
        limits = []
        [[route]]
        path = "/*"
        limits = []
        "#,
        upstream.url()
    ));
    let mut client = proxy.connect();
    let mut ask = |target: &str| {
        let head = format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n");
        client.ask(&head).status
    };
    for target in ["/a?l=0", "/missing?l=1", "/chunked", "/b?l="] {
        ask(target);
    }
    let all = lines(&proxy, "all.log", 4);
    for (number, line) in (1..).zip(&all) {
        assert!(line.starts_with(&format!("{number} /")), "{all:?}");
        assert!(
            line.rsplit(' ').next().unwrap().starts_with("0."),
            "{all:?}"
        );
    }
    assert_eq!(lines(&proxy, "failed.log", 1), ["/missing?l=1"]);
    assert_eq!(lines(&proxy, "asked.log", 1), ["/missing?l=1"]);
    assert_eq!(lines(&proxy, "both.log", 2), ["/a?l=0", "/b?l="]);
}

#[test]
fn headers_and_lines_tell_what_the_limits_decided() {
    let upstream = upstream();
    let proxy = Tidegate::start(&format!(
        r#"
        upstream = "{}"
        [access_log.limits]
        to = "limits.log"
        format = "{{path}} {{status}} {{limit_status}}"
        [limit.one]
        rate = "1/h"
        [limit.waits]
        rate = "1/200ms"
        delay = "10s"
        [limit.shadow]
        rate = "1/h"
        shadow = true
        [[route]]
        path = "/one"
        limits = ["one"]
        headers_down = {{ x-limits = "{{limit_status}}" }}
        [[route]]
        path = "/text"
        limits = ["waits"]
        respond = {{}}
        headers_down = {{ x-limits = "{{limit_status}}" }}
        [[route]]
        path = "/none"
        limits = []
        headers_down = {{ x-limits = "{{limit_status}}" }}
        [[route]]
        path = "/*"
        limits = ["shadow"]
        headers_down = {{ x-limits = "{{limit_status}}" }}
        "#,
        upstream.url()
    ));
    for (path, status, told) in [
        ("/one", 200, Some("PASSED")),
        ("/one", 429, Some("REJECTED")),
        ("/text", 200, Some("PASSED")),
        ("/text", 200, Some("DELAYED")),
        ("/none", 200, None),
        ("/b", 200, Some("PASSED")),
        ("/b", 200, Some("REJECTED_DRY_RUN")),
    ] {
        let answer = proxy.get(path);
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.header("x-limits").as_deref(), told, "{answer:?}");
    }
    // Each worker writes its lines by itself.
    let mut lines = lines(&proxy, "limits.log", 7);
    lines.sort();
    let expected = [
        "/b 200 PASSED",
        "/b 200 REJECTED_DRY_RUN",
        "/none 200 -",
        "/one 200 PASSED",
        "/one 429 REJECTED",
        "/text 200 DELAYED",
        "/text 200 PASSED",
    ];
    assert_eq!(lines, expected);
}
