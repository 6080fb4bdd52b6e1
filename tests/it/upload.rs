//! Bodies that clients send, and tunnels, as an upstream sees them: a hyper server that forwards
//! everything, between raw bytes on either side.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate::body::{BodyProgress, RequestBody};
use tidegate::clock::Sweep;
use tidegate::proxy::headers::{self, Peer, Scheme};
use tidegate::proxy::upgrade::Tunnel;
use tidegate::upstream::body::UpstreamBody;
use tidegate::upstream::{UpstreamError, Upstreams, Vitals};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::scripted::Step::{Hold, Reset, Send, Stay, Until};
use super::scripted::{HEAD, TIMEOUT, Upstream, settings};
use super::upstream::send;
use crate::house::PATIENCE;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A client's end of a connection to a server that forwards to one upstream.
struct Client {
    bytes: DuplexStream,
    progress: BodyProgress,
    sweep: Sweep,
}

/// What the server answers: the upstream's body or none.
struct Answer(Option<UpstreamBody>);

impl Body for Answer {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

async fn forward(
    upstreams: &Upstreams,
    request: Request<Incoming>,
    progress: BodyProgress,
    most: Option<u64>,
) -> Response<Answer> {
    progress.restart(!request.body().is_end_stream());
    let mut request = request.map(|incoming| RequestBody::new(incoming, progress));
    if let Some(most) = most {
        request.body_mut().limit(most);
    }
    let ip = [192, 0, 2, 7].into();
    let peer = Peer::new(ip, false, Scheme::Http);
    let turned = headers::to_upstream(&mut request, &peer, ip, false).unwrap();
    let upgrade = turned
        .asks_upgrade
        .then(|| hyper::upgrade::on(&mut request));
    let mut response = match send(upstreams, 0, &mut request).await {
        Ok(response) => response,
        Err(error) => {
            let mut response = Response::new(Answer(None));
            *response.status_mut() = error.status();
            return response;
        }
    };
    headers::to_downstream(&mut response);
    match upgrade {
        Some(client) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            let (head, body) = response.into_parts();
            let tunnel = Tunnel::new(body);
            tokio::spawn(async move {
                if let Ok(client) = client.await {
                    tunnel.run(TokioIo::new(client)).await;
                }
            });
            Response::from_parts(head, Answer(None))
        }
        refused => {
            if refused.is_some() {
                headers::close_after(&mut response);
            }
            response.map(|body| Answer(Some(body)))
        }
    }
}

impl Client {
    fn of(upstream: &Upstream) -> Client {
        Client::bounded(upstream, None)
    }

    /// Of a server that takes bodies of `most` bytes.
    fn bounded(upstream: &Upstream, most: Option<u64>) -> Client {
        let (bytes, server) = duplex(1 << 20);
        let (progress, sweep) = (BodyProgress::default(), Sweep::new());
        let client = Client {
            bytes,
            progress: progress.clone(),
            sweep: sweep.clone(),
        };
        let upstreams = Upstreams::new(&[settings(&[upstream.port])], sweep, &Vitals::default());
        tokio::spawn(async move {
            let upstreams = &upstreams;
            let service = service_fn(move |request| {
                let progress = progress.clone();
                async move { Ok::<_, Infallible>(forward(upstreams, request, progress, most).await) }
            });
            let http = http1::Builder::new();
            let http = http
                .serve_connection(TokioIo::new(server), service)
                .with_upgrades();
            let _ = http.await;
        });
        client
    }

    async fn send(&mut self, text: &str) {
        self.bytes.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until `end` has come or nothing more does.
    async fn read_until(&mut self, end: &str) -> String {
        let mut read = String::new();
        let mut buffer = [0; 4096];
        let reading = async {
            while !read.contains(end) {
                match self.bytes.read(&mut buffer).await.unwrap() {
                    0 => break,
                    length => read.push_str(std::str::from_utf8(&buffer[..length]).unwrap()),
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("never came");
        read
    }

    async fn read_all(&mut self) -> String {
        self.read_until("\0").await
    }
}

/// The part of a request that concerns its body.
fn framing(heard: &str) -> String {
    let ours = ["via:", "x-", "forwarded:", "host:"];
    let kept = heard
        .split("\r\n")
        .filter(|line| !ours.iter().any(|name| line.starts_with(name)));
    kept.collect::<Vec<_>>().join("|")
}

#[tokio::test]
async fn a_body_of_known_length_keeps_it() {
    let upstream = Upstream::start(&[&[Until("hello"), Send(OK), Stay]]).await;
    let mut client = Client::of(&upstream);
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhel")
        .await;
    upstream.wait_for("hel").await;
    assert!(!client.progress.has_ended());
    client.send("lo").await;
    assert!(client.read_until("ok").await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(
        framing(&upstream.heard()),
        "POST / HTTP/1.1|content-length: 5||hello"
    );
    assert!(client.progress.has_ended());
    assert_eq!(client.progress.bytes(), 5);
}

#[tokio::test]
async fn a_chunked_body_stays_chunked_also_for_get_and_its_trailers_pass() {
    let upstream = Upstream::start(&[&[Until("x-sum: 7\r\n\r\n"), Send(OK), Stay]]).await;
    let mut client = Client::of(&upstream);
    client
        .send("GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n")
        .await;
    client
        .send("trailer: x-sum\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n")
        .await;
    assert!(client.read_until("ok").await.ends_with("ok"));
    assert_eq!(
        framing(&upstream.heard().replace("x-sum: 7", "y-sum: 7")),
        "GET / HTTP/1.1|trailer: x-sum|transfer-encoding: chunked||5|hello|0|y-sum: 7||"
    );
    assert!(client.progress.has_ended());
}

#[tokio::test]
async fn the_client_is_told_to_continue_by_us() {
    let upstream = Upstream::start(&[&[Until("hello"), Send(OK), Stay]]).await;
    let mut client = Client::of(&upstream);
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n")
        .await;
    client.send("expect: 100-continue\r\n\r\n").await;
    assert_eq!(
        client.read_until("\r\n\r\n").await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    client.send("hello").await;
    assert!(client.read_until("ok").await.starts_with("HTTP/1.1 200 OK"));
    assert!(!upstream.heard().contains("expect"));
}

#[tokio::test]
async fn a_body_longer_than_allowed_is_cut_and_the_client_told() {
    let upstream = Upstream::start(&[&[HEAD, Stay]]).await;
    let mut client = Client::bounded(&upstream, Some(4));
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    client.send("3\r\nabc\r\n").await;
    upstream.wait_for("abc").await;
    client.send("2\r\nyz\r\n").await;
    assert!(
        client
            .read_until("\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 413")
    );
    assert!(client.progress.is_too_large());
    assert!(!client.progress.has_ended());
    upstream.wait_closed(1).await;
    assert!(!upstream.heard().contains("yz"));
}

#[tokio::test]
async fn a_client_that_leaves_in_its_body_never_looks_finished_to_the_upstream() {
    let upstream = Upstream::start(&[&[HEAD, Stay]]).await;
    let mut client = Client::of(&upstream);
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    client.send("3\r\nabc\r\n").await;
    upstream.wait_for("abc").await;
    drop(client);
    upstream.wait_closed(1).await;
    assert!(!upstream.heard().contains("0\r\n\r\n"));
}

#[tokio::test]
async fn time_that_the_client_takes_is_not_the_upstream_s() {
    let upstream = Upstream::start(&[&[Until("hello"), Stay]]).await;
    let mut client = Client::of(&upstream);
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhel")
        .await;
    upstream.wait_for("hel").await;
    client.sweep.advance(TIMEOUT * 2);
    client.send("lo").await;
    upstream.wait_for("lo").await;
    // From the last byte on it is.
    client.sweep.advance(TIMEOUT * 3 + Duration::from_secs(1));
    assert!(
        client
            .read_until("\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 504")
    );
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_upload_is_passed_on_and_the_upload_finished() {
    let script = [Until("hel"), Send(OK), Until("lo"), HEAD, Send(OK), Stay];
    let upstream = Upstream::start(&[&script]).await;
    let mut client = Client::of(&upstream);
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhel")
        .await;
    assert!(client.read_until("ok").await.starts_with("HTTP/1.1 200 OK"));
    client.send("lo").await;
    upstream.wait_for("lo").await;
    client.send("GET /next HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(client.read_until("ok").await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn an_answer_that_has_begun_is_cut_when_its_upload_breaks() {
    let begun = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok";
    for leaves in [false, true] {
        let upstream = Upstream::start(&[&[Until("abc"), Send(begun), Stay]]).await;
        let mut client = Client::bounded(&upstream, Some(4));
        client
            .send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
            .await;
        assert!(client.read_until("ok").await.ends_with("\r\n\r\nok"));
        if leaves {
            drop(client);
        } else {
            client.send("2\r\nyz\r\n").await;
            assert_eq!(client.read_all().await, "");
        }
        upstream.wait_closed(1).await;
        let heard = upstream.heard();
        assert!(
            !heard.contains("yz") && !heard.contains("0\r\n\r\n"),
            "{heard}"
        );
    }
}

#[tokio::test]
async fn a_refusal_of_an_upload_arrives_although_the_upstream_reads_no_more() {
    let refusal =
        "HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
    let upstream = Upstream::start(&[&[HEAD, Send(refusal)]]).await;
    let mut client = Client::of(&upstream);
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\n\r\n")
        .await;
    client.send(&"x".repeat(500_000)).await;
    let read = client.read_until("no").await;
    assert!(
        read.starts_with("HTTP/1.1 413") && read.ends_with("no"),
        "{read}"
    );
}

const UPGRADE: &str = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";

#[tokio::test]
async fn an_upgrade_opens_a_tunnel_in_which_early_bytes_come_first() {
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nhi";
    let upstream =
        Upstream::start(&[&[HEAD, Send(switch), Until("early late"), Send("bye")]]).await;
    let mut client = Client::of(&upstream);
    client.send(&format!("{UPGRADE}early")).await;
    let read = client.read_until("hi").await;
    assert!(
        read.starts_with("HTTP/1.1 101") && read.contains("upgrade: echo"),
        "{read}"
    );
    client.send(" late").await;
    assert_eq!(client.read_all().await, "bye");
    assert!(upstream.heard().ends_with("\r\n\r\nearly late"));
}

#[tokio::test]
async fn a_client_that_ends_its_side_of_a_tunnel_still_hears_the_other() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let upstream = Upstream::start(&[&[HEAD, Send(switch), Stay, Send("last words")]]).await;
    let mut client = Client::of(&upstream);
    client.send(UPGRADE).await;
    client.read_until("\r\n\r\n").await;
    client.bytes.shutdown().await.unwrap();
    assert_eq!(client.read_all().await, "last words");
}

#[tokio::test]
async fn a_tunnel_that_breaks_on_one_side_ends_on_the_other() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let upstream = Upstream::start(&[&[HEAD, Send(switch), Until("cut"), Reset]]).await;
    let mut client = Client::of(&upstream);
    client.send(UPGRADE).await;
    client.read_until("\r\n\r\n").await;
    client.send("cut").await;
    assert_eq!(client.read_all().await, "");
}

#[tokio::test]
async fn after_a_refused_upgrade_nothing_sent_ahead_is_taken_for_a_request() {
    let upstream = Upstream::start(&[&[HEAD, Send(OK), Hold]]).await;
    let mut client = Client::of(&upstream);
    client
        .send(&format!(
            "{UPGRADE}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
        ))
        .await;
    let read = client.read_all().await;
    assert!(
        read.contains("connection: close") && read.ends_with("ok"),
        "{read}"
    );
    assert!(!upstream.heard().contains("smuggled"));
}

#[tokio::test]
async fn what_was_sent_in_part_is_not_sent_again_as_if_the_rest_were_all() {
    for (framing, more) in [
        ("content-length: 5\r\n\r\nhel", "lo"),
        (
            "transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",
            "2\r\nlo\r\n",
        ),
    ] {
        let first = [HEAD, Send(OK), Until("hel"), Reset];
        let upstream = Upstream::start(&[&first, &[HEAD, Send(OK), Stay]]).await;
        let mut client = Client::of(&upstream);
        // On a connection that is kept: if nothing was sent there, it may go over another.
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        client.read_until("ok").await;
        client
            .send(&format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}"))
            .await;
        upstream.wait_for("hel").await;
        // More comes before anybody has seen that the server has gone: writing tells.
        client.send(more).await;
        let answer = client.read_until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
        assert_eq!(upstream.accepted(), 1, "{}", upstream.heard());
    }
}
