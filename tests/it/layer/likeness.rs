//! The layer beside a proxy process: the same requests, the same answers.

use std::net::IpAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use tower::{Layer, service_fn};

use super::{CLIENT, ask, layer, ok};
use crate::house::{Tidegate, Upstream};
use crate::support::on_a_worker;

/// Which header lines are the limiter's.
fn is_told(name: &str) -> bool {
    let beginnings = ["ratelimit", "x-ratelimit-", "grpc-", "access-control-"];
    let names = [
        "retry-after",
        "content-type",
        "cache-control",
        "link",
        "vary",
    ];
    // That one is base64 of the same wait, in milliseconds.
    let opaque = name == "grpc-status-details-bin";
    !opaque && (names.contains(&name) || beginnings.iter().any(|start| name.starts_with(start)))
}

/// A text without what may differ between two moments: instants, waits and ids.
fn timeless(text: &str) -> String {
    // An id may have decimal digits only.
    let is_id = |word: &str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let word = |word: &str| match word.parse::<u64>() {
        _ if is_id(word) => "(id)".to_owned(),
        Ok(number) if number > 1000 => "(time)".to_owned(),
        _ => word.to_owned(),
    };
    let ends = |c: char| !c.is_ascii_alphanumeric();
    let parts = text.split_inclusive(ends).map(|part| {
        let bare = part.trim_end_matches(ends);
        format!("{}{}", word(bare), &part[bare.len()..])
    });
    parts.collect()
}

fn told(status: u16, headers: &[(String, String)], body: &str) -> String {
    let mut lines: Vec<String> = headers
        .iter()
        .filter(|(name, _)| is_told(name))
        .map(|(name, value)| format!("{name}: {}", timeless(value)))
        .collect();
    lines.sort();
    format!("{status}\n{}\n\n{}", lines.join("\n"), timeless(body))
}

const BOTH: &str = r#"
[api_key]
unknown = "trust"
[limit.default]
rate = "2/h"
[limit.keyed]
rate = "1/h"
key = ["api_key"]
missing = "deny"
[[route]]
path = "/users/{id}"
limits = ["keyed"]
[[bypass]]
path = "/healthz"
[[bypass]]
header = "x-pass"
value = "sesame"
[deny]
docs_url = "https://example.com/limits"
"#;

/// Method, path, header lines.
type Asked = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// Requests that differ in all that an answer may depend on.
const ASKED: [Asked; 18] = [
    ("GET", "/", &[]),
    ("GET", "/a/../b", &[("origin", "https://app.example")]),
    ("GET", "/", &[]),
    ("HEAD", "/", &[]),
    ("GET", "/", &[("accept", "text/html")]),
    ("GET", "/", &[("accept", "text/plain")]),
    ("GET", "/", &[("origin", "https://app.example")]),
    (
        "POST",
        "/svc/Call",
        &[("content-type", "application/grpc+proto")],
    ),
    ("GET", "/healthz", &[]),
    ("GET", "/", &[("x-pass", "sesame")]),
    ("GET", "/", &[("x-pass", "else")]),
    ("GET", "/users/7", &[]),
    ("GET", "/users/7", &[("x-api-key", "k1")]),
    ("GET", "//users/./8", &[("x-api-key", "k1")]),
    (
        "GET",
        "/users/7",
        &[("x-api-key", "k2"), ("x-api-key", "k3")],
    ),
    ("GET", "/users/7%2F8", &[("x-api-key", "k4")]),
    ("GET", "/a%00b", &[]),
    (
        "OPTIONS",
        "/",
        &[
            ("origin", "https://app.example"),
            ("access-control-request-method", "GET"),
        ],
    ),
];

#[test]
fn clients_cannot_tell_it_from_the_proxy() {
    let upstream = Upstream::ok();
    let top = format!("upstream = \"{}\"\n", upstream.url());
    let proxy = Tidegate::start(&format!("{top}{BOTH}"));
    on_a_worker(async {
        let service = layer(BOTH).layer(service_fn(ok));
        let mut statuses = Vec::new();
        for (method, path, lines) in ASKED {
            let mut request = Request::builder().method(method).uri(path);
            let mut wire = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
            for (name, value) in lines {
                request = request.header(*name, *value);
                wire.push_str(&format!("{name}: {value}\r\n"));
            }
            let mut client = proxy.connect();
            client.send(format!("{wire}\r\n"));
            let answer = client.try_answer(method == "HEAD").unwrap();
            let headers = answer.head.lines().skip(1).filter_map(|line| {
                let (name, value) = line.split_once(": ")?;
                Some((name.to_owned(), value.to_owned()))
            });
            let headers: Vec<_> = headers.collect();
            let from_proxy = told(answer.status, &headers, &answer.text());

            let request = request
                .header("host", "test")
                .extension(IpAddr::from(CLIENT))
                .body(Empty::<Bytes>::new());
            let response = ask(&service, request.unwrap()).await;
            let (head, body) = response.into_parts();
            let status = head.status.as_u16();
            let headers = head.headers.iter().map(|(name, value)| {
                let value = value.to_str().unwrap().to_owned();
                (name.as_str().to_owned(), value)
            });
            let headers: Vec<_> = headers.collect();
            let mut body = body.collect().await.unwrap().to_bytes();
            if method == "HEAD" {
                body.clear();
            }
            let body = String::from_utf8_lossy(&body).into_owned();
            let from_layer = told(status, &headers, &body);
            assert_eq!(from_layer, from_proxy, "{method} {path} {lines:?}");
            statuses.push(status);
        }
        assert_eq!(statuses[..3], [200, 200, 429]);
        // Only HTTP/2 has calls of gRPC, which are denied with 200.
        assert_eq!(statuses[7..11], [429, 200, 200, 429]);
    });
}
