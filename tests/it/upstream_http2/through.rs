//! HTTP/2 at both ends: what one side says of its stream, the other hears.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request, Response};

use super::{echo, polite, proxy};
use crate::backend::{Backend, Call};
use crate::house::Upstream;
use crate::http2::client::{Http2, get, read, run};
use crate::probe::{Probe, eventually};

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://api.test{path}"))
        .body(())
        .unwrap()
}

#[test]
fn streams_with_trailers_pass_as_they_come() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        // Each piece is answered before the next is sent.
        let mut stream = call.head(Response::new(())).unwrap();
        let body = call.request.body_mut();
        while let Some(Ok(piece)) = body.data().await {
            let _ = body.flow_control().release_capacity(piece.len());
            if !piece.is_empty() {
                let _ = stream.send_data(piece, false);
            }
        }
        let trailers = body.trailers().await.unwrap().unwrap_or_default();
        let _ = stream.send_trailers(trailers);
    });
    let proxy = proxy(&backend, "");
    run(async {
        let client = Http2::to(proxy.address).await;
        let (response, mut stream) = client.begin(post("/both")).await;
        let mut incoming = response.await.unwrap().into_body();
        for number in 0..20 {
            stream
                .send_data(Bytes::from(format!("piece {number}")), false)
                .unwrap();
            let piece = incoming.data().await.unwrap().unwrap();
            assert_eq!(piece, format!("piece {number}"));
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "7".parse().unwrap());
        stream.send_trailers(trailers).unwrap();
        assert!(incoming.data().await.is_none());
        assert_eq!(incoming.trailers().await.unwrap().unwrap()["x-sum"], "7");
    });
    assert_eq!(backend.seen()[0].uri(), "http://api.test/both");
}

#[test]
fn an_empty_last_frame_is_an_end() {
    let backend = Backend::h2c(polite(), echo);
    let proxy = proxy(&backend, "");
    run(async {
        let client = Http2::to(proxy.address).await;
        let (response, mut stream) = client.begin(post("/")).await;
        stream.send_data(Bytes::from("hello"), false).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.send_data(Bytes::new(), true).unwrap();
        let reply = read(response).await.unwrap();
        assert_eq!((reply.status, &reply.body[..]), (200, &b"hello"[..]));
        assert_eq!(reply.trailers, None);
    });
}

#[test]
fn each_side_hears_that_the_other_gave_up() {
    let resets = Arc::new(Mutex::new(Vec::new()));
    let seen = resets.clone();
    let backend = Backend::h2c(polite(), move |mut call: Call| {
        let seen = seen.clone();
        async move {
            if call.request.uri().path() == "/broken" {
                let mut stream = call.head(Response::new(())).unwrap();
                let _ = stream.send_data(Bytes::from("part of"), false);
                tokio::time::sleep(Duration::from_millis(50)).await;
                return stream.send_reset(Reason::ENHANCE_YOUR_CALM);
            }
            let reason = call.reset().await;
            seen.lock().unwrap().push(reason);
        }
    });
    let proxy = proxy(&backend, "");
    run(async {
        let client = Http2::to(proxy.address).await;
        for path in ["/waits", "/uploads"] {
            let (response, mut stream) = client.begin(post(path)).await;
            if path == "/waits" {
                stream.send_data(Bytes::new(), true).unwrap();
            }
            let known = backend.seen().len();
            while backend.seen().len() == known {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stream.send_reset(Reason::CANCEL);
            drop(response);
        }
        let error = client.ask(get("/broken")).await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
    });
    eventually("both are reset", || resets.lock().unwrap().len() == 2);
    assert_eq!(*resets.lock().unwrap(), [Some(Reason::CANCEL); 2]);
    assert_eq!(backend.connections(), 1);
}

#[test]
fn cookies_in_several_lines_become_one() {
    let backend = Backend::h2c(polite(), echo);
    let proxy = proxy(&backend, "");
    let probe = Probe::before(Upstream::ok(), "");
    let asking = || {
        let mut request = get("/");
        for crumb in ["a=1", "b=2", "c=3; d=4"] {
            request
                .headers_mut()
                .append("cookie", crumb.parse().unwrap());
        }
        request
    };
    run(async {
        for address in [proxy.address, probe.proxy.address] {
            let reply = Http2::to(address).await.ask(asking()).await.unwrap();
            assert_eq!(reply.status, 200);
        }
    });
    assert_eq!(backend.seen()[0].headers()["cookie"], "a=1; b=2; c=3; d=4");
    let cookies = probe.upstream.seen()[0].header("cookie");
    assert_eq!(cookies.as_deref(), Some("a=1; b=2; c=3; d=4"));
}

#[test]
fn an_answer_without_content_may_tell_the_length_of_another() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let head = Response::builder()
            .status(304)
            .header("content-length", "7");
        let mut stream = call.head(head.body(()).unwrap()).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let _ = stream.send_data(Bytes::new(), true);
    });
    let proxy = proxy(&backend, "");
    run(async {
        let client = Http2::to(proxy.address).await;
        let reply = client.ask(get("/")).await.unwrap();
        assert_eq!(reply.status, 304);
        assert_eq!(reply.headers["content-length"], "7");
    });
}
