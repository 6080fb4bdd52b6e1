//! HTTP/2 at the running proxy, spoken by curl, by a client library, and byte by byte.

pub mod client;
mod conformance;
mod floods;
mod framing;
mod limits;
pub mod raw;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::house::{Tidegate, Upstream};
use crate::probe::{Probe, eventually};
use client::{Http2, get};
use raw::{DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, REQUEST, Raw, block, frame};

fn curl(proxy: &Tidegate, words: &[&str], path: &str) -> String {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20"])
        .args(words)
        .arg(format!("http://{}{path}", proxy.address))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn curl_is_served_in_the_version_that_it_speaks() {
    let probe = Probe::start("");
    let observed = probe.observe(|proxy| {
        let format = ["-o", "/dev/null", "-w", "%{http_version} %{http_code}"];
        let second = [&["--http2-prior-knowledge"][..], &format].concat();
        let first = [&["--http1.1"][..], &format].concat();
        // An upgrade to h2c is not taken, and answered in HTTP/1.1.
        let upgrade = [&["--http2"][..], &format].concat();
        [second, first, upgrade].map(|words| curl(proxy, &words, "/a"))
    });
    assert_eq!(observed.client, ["2 200", "1.1 200", "1.1 200"]);
    assert_eq!(observed.charged, 3);
    let seen = &observed.seen;
    assert_eq!(seen.len(), 3, "{seen:?}");
    for seen in seen {
        assert!(seen.head.starts_with("GET /a HTTP/1.1"), "{seen:?}");
        let host = seen.header("host").unwrap();
        assert_eq!(host, probe.proxy.address.to_string());
        assert_eq!(seen.header("x-forwarded-proto").as_deref(), Some("http"));
    }
    assert!(seen[0].header("via").unwrap().starts_with("2.0 "));
    assert!(seen[1].header("via").unwrap().starts_with("1.1 "));
}

#[test]
fn bodies_pass_both_ways() {
    let upstream = Upstream::ok();
    let probe = Probe::before(upstream, "");
    let body = "x".repeat(300_000);
    let file = probe.proxy.directory.path().join("body");
    std::fs::write(&file, &body).unwrap();
    let data = format!("@{}", file.display());
    let observed = probe.observe(|proxy| {
        let words = ["--http2-prior-knowledge", "--data-binary", &data];
        curl(proxy, &words, "/up")
    });
    assert_eq!(observed.seen[0].body.len(), body.len());
    assert_eq!(observed.charged, 1);
}

#[test]
fn an_answer_to_head_has_no_body_also_where_the_proxy_gives_it() {
    let proxy = Tidegate::start(
        "upstream = \"http://127.0.0.1:9\"\n\
         [[route]]\npath = \"/said\"\nlimits = []\nrespond = { body = \"hello\" }\n\
         [[route]]\npath = \"/*\"\nlimits = []\n",
    );
    client::run(async {
        let client = Http2::to(proxy.address).await;
        for (path, status) in [("/said", 200), ("/gone", 502), ("/a%00", 400)] {
            let mut request = get(path);
            let full = client.ask(request.clone()).await.unwrap();
            *request.method_mut() = http::Method::HEAD;
            // The library takes a body here for a broken stream.
            let empty = client.ask(request).await.unwrap();
            assert_eq!((full.status, empty.status), (status, status), "{path}");
            assert!(!full.body.is_empty() && empty.body.is_empty(), "{path}");
            let [of_full, of_empty] = [&full, &empty].map(|it| &it.headers["content-length"]);
            assert_eq!(of_full, of_empty, "{path}");
        }
    });
}

#[test]
fn a_client_that_is_still_sending_gets_its_answer() {
    let proxy = Tidegate::start(
        "upstream = \"http://127.0.0.1:9\"\n\
         [[route]]\npath = \"/said\"\nlimits = []\nrespond = { status = 410 }\n\
         [[route]]\npath = \"/*\"\nlimits = []\nbody_limit = \"1MiB\"\n",
    );
    let file = proxy.directory.path().join("body");
    std::fs::write(&file, "x".repeat(12 << 20)).unwrap();
    let data = format!("@{}", file.display());
    let words = [
        "--http2-prior-knowledge",
        "--data-binary",
        &data,
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
    ];
    assert_eq!(curl(&proxy, &words, "/said"), "410");
    assert_eq!(curl(&proxy, &words, "/up"), "413");
}

#[test]
fn each_stream_is_charged_and_denied_like_a_request() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"5/hour\"\n",
        upstream.url()
    ));
    let statuses = client::run(async {
        let client = Arc::new(Http2::to(proxy.address).await);
        let ask = || {
            let client = Arc::clone(&client);
            tokio::spawn(async move { client.ask(get("/a")).await.unwrap() })
        };
        let asked: Vec<_> = (0..12).map(|_| ask()).collect();
        let mut statuses = Vec::new();
        for answer in asked {
            let answer = answer.await.unwrap();
            if answer.status == 429 {
                assert!(answer.headers.contains_key("retry-after"));
                assert!(!answer.body.is_empty());
            }
            statuses.push(answer.status);
        }
        statuses.sort_unstable();
        statuses
    });
    assert_eq!(statuses[..5], [200; 5]);
    assert_eq!(statuses[5..], [429; 7]);
    assert_eq!(upstream.seen().len(), 5);
    assert_eq!(proxy.get("/a").status, 429, "one budget over both versions");
}

#[test]
fn a_grpc_call_that_is_denied_gets_a_status_that_its_client_understands() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"1/hour\"\n",
        upstream.url()
    ));
    let answer = client::run(async {
        let client = Http2::to(proxy.address).await;
        client.ask(get("/a")).await.unwrap();
        let call = http::Request::post("http://test/p.S/M")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        client.ask(call.body(()).unwrap()).await.unwrap()
    });
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["grpc-status"], "8");
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn a_draining_proxy_says_goodbye_and_finishes_what_has_begun() {
    let upstream = Upstream::ok();
    let mut proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"100/s\"\n",
        upstream.url()
    ));
    let mut raw = Raw::to(proxy.address, &[]);
    raw.ask(1, &REQUEST);
    assert_eq!(raw.until(&[HEADERS]).unwrap().stream, 1);
    let post = [&REQUEST[1..], &[(":method", "POST")]].concat();
    raw.send(&frame(HEADERS, END_HEADERS, 3, &block(&post)));
    // The head has been read once a later ping is answered.
    raw.send(&frame(PING, 0, 0, b"together"));
    raw.until(&[PING]).unwrap();
    proxy.signal("TERM");
    assert_eq!(raw.until(&[GOAWAY]).unwrap().error(), 0);
    raw.send(&frame(DATA, END_STREAM, 3, b"late"));
    assert_eq!(raw.until(&[HEADERS]).unwrap().stream, 3);
    assert!(raw.goodbye().is_none_or(|error| error == 0));
    assert!(proxy.wait().success());
    let seen = upstream.seen();
    assert_eq!(seen[1].body, b"late");
}

#[test]
fn a_client_that_vanishes_in_a_request_does_not_hold_up_the_end() {
    let upstream = Upstream::start(|_, stream| {
        std::thread::sleep(Duration::from_secs(1));
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        std::io::Write::write_all(stream, answer).is_ok()
    });
    let mut proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\ndrain_idle = \"100ms\"\ndrain_timeout = \"60s\"\n",
        upstream.url()
    ));
    let mut raw = Raw::to(proxy.address, &[]);
    raw.ask(1, &REQUEST);
    eventually("the request is under way", || !upstream.seen().is_empty());
    let began = Instant::now();
    proxy.signal("TERM");
    assert!(proxy.wait().success());
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_silent_client_does_not_hold_up_the_end() {
    let upstream = Upstream::ok();
    let mut proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\ndrain_idle = \"100ms\"\ndrain_timeout = \"60s\"\n",
        upstream.url()
    ));
    // It answers no ping.
    let mut raw = Raw::to(proxy.address, &[]);
    raw.send(&frame(PING, 0, 0, b"together"));
    raw.until(&[PING]).unwrap();
    let began = Instant::now();
    proxy.signal("TERM");
    assert!(proxy.wait().success());
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn trailers_that_are_forbidden_break_no_response() {
    let upstream = Upstream::saying(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum, connection\r\n\r\n\
         3\r\nabc\r\n0\r\nconnection: close\r\ncontent-length: 9\r\nx-sum: 7\r\n\r\n",
    );
    let proxy = Tidegate::start(&format!("upstream = \"{}\"\n", upstream.url()));
    let reply = client::run(async {
        let client = Http2::to(proxy.address).await;
        client.ask(get("/")).await.unwrap()
    });
    assert_eq!((reply.status, &reply.body[..]), (200, &b"abc"[..]));
    let trailers = reply.trailers.unwrap();
    assert_eq!(trailers["x-sum"], "7");
    assert_eq!(trailers.len(), 1, "{trailers:?}");
}

#[test]
fn http_2_can_be_turned_off() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nhttp2 = false\n",
        upstream.url()
    ));
    let mut client = proxy.connect();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let said = client.rest();
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 4"));
    assert_eq!(proxy.get("/").status, 200);
}
