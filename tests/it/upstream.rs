//! Upstreams that behave, and upstreams that do not, under requests without a body.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected};
use tidegate::body::RequestBody;
use tidegate::clock::Sweep;
use tidegate::config::ServerAddress;
use tidegate::upstream::body::UpstreamBody;
use tidegate::upstream::{HeadFault, UpstreamError, Upstreams, Vitals};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::scripted::Step::{self, Flood, Hold, Reset, Send, Stay};
use super::scripted::{BODY_TIMEOUT, HEAD, IDLE_TIMEOUT, TIMEOUT, Upstream, settings};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn to(upstream: &Upstream) -> (Upstreams, Sweep) {
    let sweep = Sweep::new();
    (
        Upstreams::new(
            &[settings(&[upstream.port])],
            sweep.clone(),
            &Vitals::default(),
        ),
        sweep,
    )
}

fn request(method: Method) -> Request<RequestBody> {
    let request = Request::builder()
        .method(method)
        .uri("/x?y")
        .header("host", "a.example");
    request.body(RequestBody::empty()).unwrap()
}

fn get() -> Request<RequestBody> {
    request(Method::GET)
}

pub type Answer = Result<Response<UpstreamBody>, UpstreamError>;

/// The answer to a request, by the upstream with this number.
pub async fn send(
    upstreams: &Upstreams,
    upstream: usize,
    request: &mut Request<RequestBody>,
) -> Answer {
    let mut head = Response::new(());
    let body = upstreams
        .send(upstream, request.into(), &mut head)
        .await
        .map_err(|failed| failed.error)?;
    Ok(head.map(|()| body))
}

/// The answer to a GET.
async fn sent(upstreams: &Upstreams) -> Answer {
    send(upstreams, 0, &mut get()).await
}

async fn body(answer: Answer) -> Result<Collected<Bytes>, UpstreamError> {
    answer.unwrap().into_body().collect().await
}

async fn text(answer: Answer) -> String {
    String::from_utf8(body(answer).await.unwrap().to_bytes().to_vec()).unwrap()
}

/// One GET to an upstream with this script, and how many connections two more GETs need.
async fn after(scripts: &[&[Step]]) -> (Result<String, UpstreamError>, usize) {
    let upstream = Upstream::start(scripts).await;
    let (upstreams, _) = to(&upstream);
    let first = match sent(&upstreams).await {
        Ok(response) => response.into_body().collect().await,
        Err(error) => Err(error),
    };
    let first = first.map(|body| String::from_utf8(body.to_bytes().to_vec()).unwrap());
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    (first, upstream.accepted())
}

/// Answers one request well.
const GOOD: &[Step] = &[HEAD, Send(OK), Stay];

/// Whether a server may have seen the request, so that a retry could do its work twice.
fn may_have_been_sent(error: &UpstreamError) -> bool {
    use UpstreamError::{Closed, Garbage, Head, Request, TimedOut, TlsEnded};
    matches!(
        error,
        TimedOut | TlsEnded(_) | Closed(_) | Garbage(_) | Head(_) | Request(_)
    )
}

macro_rules! is {
    ($value:expr, $pattern:pat) => {
        let value = $value;
        assert!(matches!(value, $pattern), "{value:?}");
    };
}

#[tokio::test]
async fn a_connection_in_order_is_used_again() {
    let (first, accepted) = after(&[&[HEAD, Send(OK), HEAD, Send(OK), Stay]]).await;
    assert_eq!((first.unwrap().as_str(), accepted), ("ok", 1));
}

#[tokio::test]
async fn the_upstream_hears_the_request_as_it_is() {
    let upstream = Upstream::start(&[GOOD]).await;
    let (upstreams, _) = to(&upstream);
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    assert_eq!(
        upstream.heard(),
        "GET /x?y HTTP/1.1\r\nhost: a.example\r\n\r\n"
    );
}

#[tokio::test]
async fn a_request_without_host_gets_the_server_s() {
    let upstream = Upstream::start(&[GOOD]).await;
    let (upstreams, _) = to(&upstream);
    let mut request = get();
    *request.version_mut() = http::Version::HTTP_10;
    request.headers_mut().clear();
    text(send(&upstreams, 0, &mut request).await).await;
    let want = format!(
        "GET /x?y HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n\r\n",
        upstream.port
    );
    assert_eq!(upstream.heard(), want);
}

#[tokio::test]
async fn a_short_body_is_an_error_and_its_connection_is_not_used_again() {
    let (first, accepted) = after(&[
        &[HEAD, Send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok")],
        GOOD,
    ])
    .await;
    is!(first, Err(UpstreamError::Closed(_)));
    assert_eq!(accepted, 2);
}

#[tokio::test]
async fn an_unfinished_chunked_body_is_an_error() {
    let cut = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n";
    let (first, accepted) = after(&[&[HEAD, Send(cut)], GOOD]).await;
    is!(first, Err(UpstreamError::Closed(_)));
    assert_eq!(accepted, 2);
}

#[tokio::test]
async fn a_body_longer_than_it_said_ends_where_it_said_and_the_rest_goes_nowhere() {
    let (first, accepted) = after(&[
        &[
            HEAD,
            Send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 Evil\r\n\r\n"),
            Stay,
        ],
        GOOD,
    ])
    .await;
    assert_eq!((first.unwrap().as_str(), accepted), ("ok", 2));
}

#[tokio::test]
async fn garbage_is_no_answer() {
    let (first, accepted) = after(&[&[HEAD, Send("SSH-2.0-OpenSSH\r\n\r\n"), Stay], GOOD]).await;
    is!(first, Err(UpstreamError::Garbage(_)));
    assert_eq!(accepted, 2);
}

#[tokio::test]
async fn an_endless_head_is_no_answer() {
    let (first, _) = after(&[
        &[
            HEAD,
            Send("HTTP/1.1 200 OK\r\nx: "),
            Flood("aaaaaaaaaaaaaaaa"),
            Stay,
        ],
        GOOD,
    ])
    .await;
    is!(first, Err(UpstreamError::Garbage(_)));
}

#[tokio::test]
async fn ambiguous_framing_is_no_answer() {
    for (head, fault) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
            HeadFault::TwoFramings,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n",
            HeadFault::ContentLength,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            HeadFault::TransferEncoding,
        ),
    ] {
        let script = [HEAD, Send(head), Send("2\r\nok\r\n0\r\n\r\n"), Stay];
        let (first, accepted) = after(&[&script, GOOD]).await;
        is!(&first, Err(UpstreamError::Head(_)));
        assert_eq!(
            first.unwrap_err().source().unwrap().to_string(),
            fault.to_string()
        );
        assert_eq!(accepted, 2);
    }
}

#[tokio::test]
async fn contradicting_lengths_are_no_answer() {
    let (first, _) = after(&[
        &[
            HEAD,
            Send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok"),
            Stay,
        ],
        GOOD,
    ])
    .await;
    is!(first, Err(UpstreamError::Garbage(_)));
}

#[tokio::test]
async fn a_server_that_closes_at_once_is_not_asked_twice() {
    let upstream = Upstream::start(&[&[]]).await;
    let (upstreams, _) = to(&upstream);
    is!(sent(&upstreams).await, Err(UpstreamError::Closed(_)));
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn a_reset_before_the_head_is_an_error_and_is_not_tried_again() {
    let upstream = Upstream::start(&[&[HEAD, Reset]]).await;
    let (upstreams, _) = to(&upstream);
    let error = sent(&upstreams).await.unwrap_err();
    is!(&error, UpstreamError::Closed(_));
    assert!(may_have_been_sent(&error));
    assert_eq!(error.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn a_reset_in_a_body_without_length_is_an_error_and_no_end() {
    let upstream =
        Upstream::start(&[&[HEAD, Send("HTTP/1.1 200 OK\r\n\r\nok"), Hold, Reset]]).await;
    let (upstreams, _) = to(&upstream);
    let mut response = sent(&upstreams).await.unwrap();
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "ok");
    upstream.go_on();
    is!(
        response.body_mut().frame().await,
        Some(Err(UpstreamError::Closed(_)))
    );
}

#[tokio::test]
async fn a_body_without_length_ends_with_the_connection() {
    let (first, accepted) = after(&[&[HEAD, Send("HTTP/1.1 200 OK\r\n\r\nall of it")], GOOD]).await;
    assert_eq!((first.unwrap().as_str(), accepted), ("all of it", 2));
}

#[tokio::test]
async fn a_connection_that_the_server_or_http_1_0_ends_is_not_used_again() {
    for answer in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let script = [HEAD, Send(answer), Stay];
        let (first, accepted) = after(&[&script, GOOD]).await;
        assert_eq!((first.unwrap().as_str(), accepted), ("ok", 2));
    }
}

#[tokio::test]
async fn interim_responses_are_not_the_answer() {
    let (first, accepted) = after(&[&[
        HEAD,
        Send("HTTP/1.1 100 Continue\r\n\r\n"),
        Send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        Send(OK),
        HEAD,
        Send(OK),
        Stay,
    ]])
    .await;
    assert_eq!((first.unwrap().as_str(), accepted), ("ok", 1));
}

#[tokio::test]
async fn an_upgrade_nobody_asked_for_is_no_answer() {
    let (first, accepted) = after(&[
        &[
            HEAD,
            Send("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
            Stay,
        ],
        GOOD,
    ])
    .await;
    is!(first, Err(UpstreamError::Head(HeadFault::UnaskedUpgrade)));
    assert_eq!(accepted, 2);
}

#[tokio::test]
async fn answers_without_content_leave_the_connection_in_order() {
    for (method, answer) in [
        (Method::GET, "HTTP/1.1 204 No Content\r\n\r\n"),
        (
            Method::GET,
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 900\r\n\r\n",
        ),
        (
            Method::HEAD,
            "HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n",
        ),
        (
            Method::HEAD,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ),
    ] {
        let script = [HEAD, Send(answer), HEAD, Send(OK), Stay];
        let upstream = Upstream::start(&[&script]).await;
        let (upstreams, _) = to(&upstream);
        assert_eq!(
            text(send(&upstreams, 0, &mut request(method)).await).await,
            ""
        );
        assert_eq!(text(sent(&upstreams).await).await, "ok");
        assert_eq!(upstream.accepted(), 1, "{answer}");
    }
}

#[tokio::test]
async fn content_after_204_is_never_another_answer() {
    let late = "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n";
    let script = [HEAD, Send(late), Stay];
    let (first, accepted) = after(&[&script, GOOD]).await;
    assert_eq!((first.unwrap().as_str(), accepted), ("", 2));
}

#[tokio::test]
async fn trailers_pass() {
    let upstream = Upstream::start(&[&[
        HEAD,
        Send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"),
        Send("2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n"),
        HEAD,
        Send(OK),
        Stay,
    ]])
    .await;
    let (upstreams, _) = to(&upstream);
    let collected = body(sent(&upstreams).await).await.unwrap();
    assert_eq!(
        collected
            .trailers()
            .map(|trailers| &trailers["x-sum"])
            .unwrap(),
        "7"
    );
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn a_server_that_never_answers_times_out_and_hears_no_more() {
    let upstream = Upstream::start(&[&[HEAD, Stay]]).await;
    let (upstreams, sweep) = to(&upstream);
    let (answer, ()) = tokio::join!(sent(&upstreams), async {
        upstream.wait_for("\r\n\r\n").await;
        sweep.advance(TIMEOUT + Duration::from_secs(1));
    });
    let error = answer.unwrap_err();
    is!(&error, UpstreamError::TimedOut);
    assert_eq!(error.status(), StatusCode::GATEWAY_TIMEOUT);
    upstream.wait_closed(1).await;
}

#[tokio::test]
async fn a_body_that_stands_still_is_cut() {
    let upstream = Upstream::start(&[&[
        HEAD,
        Send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
        Stay,
    ]])
    .await;
    let (upstreams, sweep) = to(&upstream);
    let mut response = sent(&upstreams).await.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
    // Nobody waits for the rest: no time passes for the upstream.
    sweep.advance(BODY_TIMEOUT * 2);
    let (frame, ()) = tokio::join!(response.body_mut().frame(), async {
        tokio::task::yield_now().await;
        sweep.advance(BODY_TIMEOUT * 3 + Duration::from_secs(1));
    });
    is!(frame, Some(Err(UpstreamError::TimedOut)));
    upstream.wait_closed(1).await;
}

#[tokio::test]
async fn a_stale_connection_is_replaced_when_nothing_was_sent() {
    let upstream = Upstream::start(&[&[HEAD, Send(OK)], GOOD]).await;
    let (upstreams, _) = to(&upstream);
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    upstream.wait_closed(1).await;
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    assert_eq!(upstream.accepted(), 2);
}

#[tokio::test]
async fn a_connection_lost_after_the_request_was_sent_is_replaced_if_that_is_safe() {
    let upstream = Upstream::start(&[&[HEAD, Send(OK), HEAD], GOOD]).await;
    let (upstreams, _) = to(&upstream);
    for _ in 0..2 {
        assert_eq!(text(sent(&upstreams).await).await, "ok");
    }
    assert_eq!(upstream.accepted(), 2);
}

#[tokio::test]
async fn a_connection_lost_after_the_request_was_sent_is_not_replaced_if_it_is_not() {
    let upstream = Upstream::start(&[&[HEAD, Send(OK), HEAD], GOOD]).await;
    let (upstreams, _) = to(&upstream);
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    is!(
        send(&upstreams, 0, &mut request(Method::POST)).await,
        Err(UpstreamError::Closed(_))
    );
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn idle_connections_are_closed_in_time() {
    let upstream = Upstream::start(&[GOOD]).await;
    let (upstreams, sweep) = to(&upstream);
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    tokio::task::yield_now().await;
    sweep.advance(IDLE_TIMEOUT + Duration::from_secs(1));
    upstream.wait_closed(1).await;
    assert_eq!(text(sent(&upstreams).await).await, "ok");
    assert_eq!(upstream.accepted(), 2);
}

#[tokio::test]
async fn connections_in_use_and_idle_are_bounded() {
    let upstream = Upstream::start(&[GOOD]).await;
    let mut settings = settings(&[upstream.port]);
    (settings.max_connections, settings.max_idle) = (2, 1);
    let upstreams = Upstreams::new(&[settings], Sweep::new(), &Vitals::default());
    let (one, two) = tokio::join!(sent(&upstreams), sent(&upstreams));
    // The bodies have not been read: both are in use.
    let third = sent(&upstreams).await.unwrap_err();
    is!(&third, UpstreamError::TooManyConnections);
    assert!(!may_have_been_sent(&third));
    assert_eq!(
        (text(one).await.as_str(), text(two).await.as_str()),
        ("ok", "ok")
    );
    upstream.wait_closed(1).await;
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_work() {
    let upstream = Upstream::start(&[&[HEAD, Stay]]).await;
    let (upstreams, _) = to(&upstream);
    tokio::select! {
        _ = sent(&upstreams) => panic!("an answer"),
        () = upstream.wait_for("\r\n\r\n") => {}
    }
    upstream.wait_closed(1).await;
}

#[tokio::test]
async fn a_body_that_nobody_wants_any_more_cancels_the_work() {
    let upstream = Upstream::start(&[&[
        HEAD,
        Send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"),
        Stay,
    ]])
    .await;
    let (upstreams, _) = to(&upstream);
    drop(sent(&upstreams).await.unwrap());
    upstream.wait_closed(1).await;
}

#[tokio::test]
async fn a_server_that_is_down_gives_way_to_another_and_is_left_in_peace() {
    let upstream =
        Upstream::start(&[&[HEAD, Send(OK), HEAD, Send(OK), HEAD, Send(OK), Stay]]).await;
    let down = crate::support::free_port();
    let upstreams = Upstreams::new(
        &[settings(&[down, upstream.port])],
        Sweep::new(),
        &Vitals::default(),
    );
    for _ in 0..3 {
        assert_eq!(text(sent(&upstreams).await).await, "ok");
    }
    let alone = Upstreams::new(&[settings(&[down])], Sweep::new(), &Vitals::default());
    let error = send(&alone, 0, &mut get()).await.unwrap_err();
    is!(&error, UpstreamError::Unreachable(_));
    assert!(!may_have_been_sent(&error));
}

#[tokio::test]
async fn a_unix_socket_is_an_upstream_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let mut settings = settings(&[]);
    settings.servers = vec![ServerAddress::Unix(path).into()];
    let upstreams = Upstreams::new(&[settings], Sweep::new(), &Vitals::default());
    let (answer, mut stream) = tokio::join!(sent(&upstreams), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(OK.as_bytes()).await.unwrap();
        stream
    });
    assert_eq!(text(answer).await, "ok");
    let mut heard = [0; 3];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"GET");
}

#[tokio::test]
async fn an_index_without_upstream_is_an_error() {
    let upstreams = Upstreams::new(&[settings(&[])], Sweep::new(), &Vitals::default());
    is!(sent(&upstreams).await, Err(UpstreamError::NoServer));
    is!(
        send(&upstreams, 1, &mut get()).await,
        Err(UpstreamError::NoServer)
    );
}
