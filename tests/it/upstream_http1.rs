//! Connections to an upstream over HTTP/1.1 while nobody has a request on them, and answers that
//! come in pieces of any size.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt;
use tidegate::body::RequestBody;
use tidegate::clock::Sweep;
use tidegate::upstream::{Upstreams, Vitals};

use super::scripted::Step::{End, Hold, Reset, Send, Stay};
use super::scripted::{HEAD, IDLE_TIMEOUT, Step, Upstream, settings};
use super::upstream::send;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const GOOD: &[Step] = &[HEAD, Send(OK), Stay];

fn to(upstream: &Upstream) -> (Upstreams, Sweep) {
    let sweep = Sweep::new();
    let settings = [settings(&[upstream.port])];
    let upstreams = Upstreams::new(&settings, sweep.clone(), &Vitals::default());
    (upstreams, sweep)
}

/// The content of the answer to a request of this method, which has no content itself.
async fn ask(upstreams: &Upstreams, method: Method) -> String {
    let request = Request::builder()
        .method(method)
        .uri("/")
        .header("host", "a");
    let mut request = request.body(RequestBody::empty()).unwrap();
    let response = send(upstreams, 0, &mut request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

/// Lets time pass until the only connection was closed, but not so much that it is too old.
async fn wait_until_closed(upstream: &Upstream, sweep: &Sweep) {
    let mut time = Duration::ZERO;
    let closed = async {
        while time < IDLE_TIMEOUT - Duration::from_secs(2) {
            time += Duration::from_millis(200);
            sweep.advance(time);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::future::pending().await
    };
    tokio::select! {
        () = upstream.wait_closed(1) => {}
        () = closed => {}
    }
}

#[tokio::test]
async fn a_connection_that_its_server_ended_is_closed_although_nobody_uses_it() {
    let upstream = Upstream::start(&[&[HEAD, Send(OK), Hold, End, Stay], GOOD]).await;
    let (upstreams, sweep) = to(&upstream);
    assert_eq!(ask(&upstreams, Method::GET).await, "ok");
    upstream.go_on();
    wait_until_closed(&upstream, &sweep).await;
    assert_eq!(ask(&upstreams, Method::POST).await, "ok");
    assert_eq!(upstream.accepted(), 2);
}

#[tokio::test]
async fn what_nobody_asked_for_is_nobody_s_answer() {
    let evil = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    let upstream = Upstream::start(&[&[HEAD, Send(OK), Hold, Send(evil), Stay], GOOD]).await;
    let (upstreams, sweep) = to(&upstream);
    assert_eq!(ask(&upstreams, Method::GET).await, "ok");
    upstream.go_on();
    wait_until_closed(&upstream, &sweep).await;
    assert_eq!(ask(&upstreams, Method::GET).await, "ok");
    assert_eq!(upstream.accepted(), 2);
}

#[tokio::test]
async fn a_connection_that_has_gone_is_replaced_for_every_request() {
    for gone in [&[HEAD, Send(OK)][..], &[HEAD, Send(OK), Hold, Reset]] {
        let upstream = Upstream::start(&[gone, GOOD]).await;
        let (upstreams, _sweep) = to(&upstream);
        assert_eq!(ask(&upstreams, Method::GET).await, "ok");
        upstream.go_on();
        upstream.wait_closed(1).await;
        // Whoever has nothing to do looks what has come.
        tokio::time::sleep(Duration::from_millis(5)).await;
        // Nothing of it was sent to the first: also what may not be done twice is sent again.
        assert_eq!(ask(&upstreams, Method::POST).await, "ok");
        assert_eq!(upstream.accepted(), 2);
    }
}

#[tokio::test]
async fn an_answer_may_come_in_drops() {
    let answer = "HTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\
                  transfer-encoding: chunked\r\n\r\n1;a\r\no\r\n1\r\nk\r\n0\r\nx: y\r\n\r\n";
    let drops = (0..answer.len()).map(|at| Send(&answer[at..=at]));
    let script: Vec<Step> = [HEAD].into_iter().chain(drops).collect();
    let upstream = Upstream::start(&[&[script, vec![HEAD, Send(OK), Stay]].concat()]).await;
    let (upstreams, _sweep) = to(&upstream);
    assert_eq!(ask(&upstreams, Method::GET).await, "ok");
    assert_eq!(ask(&upstreams, Method::GET).await, "ok");
    assert_eq!(upstream.accepted(), 1);
}
