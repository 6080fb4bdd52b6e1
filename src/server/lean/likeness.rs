//! Our reading of requests and our writing of answers beside hyper's server: what we take of a
//! head, hyper takes and understands alike, and what we write of an answer is what hyper writes.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Version};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::answer::{self, Asked, Length};
use super::head::{self, Bounds};
use crate::server::lint::Lint;
use crate::wire::outflow::{MAX_PIECES, Outflow};

const BOUNDS: Bounds = Bounds {
    lines: 100,
    bytes: 16 << 10,
};

/// What was understood of a request's head.
#[derive(Debug, PartialEq)]
struct Head {
    method: Method,
    target: String,
    headers: HeaderMap,
}

impl Head {
    fn of<B>(request: &Request<B>) -> Head {
        Head {
            method: request.method().clone(),
            target: request.uri().to_string(),
            headers: request.headers().clone(),
        }
    }
}

/// As we read it, where it is plain: with whether another may follow, and its length.
fn ours(bytes: &[u8]) -> Option<(Head, bool, usize)> {
    let read = Bytes::copy_from_slice(bytes);
    let mut request = Request::default();
    let head = head::read(&read, &mut request, BOUNDS)?;
    assert_eq!(request.version(), Version::HTTP_11);
    Some((Head::of(&request), head.may_follow, head.length))
}

/// What hyper makes of `bytes`, after which nothing comes: the requests it sees, those with
/// content as nothing, and what it says to each `answer`.
async fn hypers(
    bytes: &[u8],
    answer: impl Fn(usize) -> Response<BoxBody<Bytes, Infallible>>,
) -> (Vec<Option<Head>>, Vec<u8>) {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let service = service_fn(|request: Request<Incoming>| {
        let mut seen = seeing.lock().unwrap();
        seen.push(request.body().is_end_stream().then(|| Head::of(&request)));
        std::future::ready(Ok::<_, Infallible>(answer(seen.len() - 1)))
    });
    let mut builder = http1::Builder::new();
    builder.half_close(true).header_read_timeout(None);
    let serving = builder.serve_connection(TokioIo::new(near), service);
    let said = async {
        far.write_all(bytes).await.unwrap();
        far.shutdown().await.unwrap();
        let mut said = Vec::new();
        far.read_to_end(&mut said).await.unwrap();
        said
    };
    let (_, said) = tokio::join!(serving, said);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (seen, said)
}

fn nothing() -> BoxBody<Bytes, Infallible> {
    Empty::new().boxed()
}

/// A head that may be plain.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let start = prop::sample::select(vec![
        "GET / HTTP/1.1",
        "GET /a/b?c=d&e HTTP/1.1",
        "HEAD http://test/a HTTP/1.1",
        "DELETE /%20 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "POST /a HTTP/1.1",
        "BREW /\"{} HTTP/1.1",
        "GET /a HTTP/1.0",
        "CONNECT test:80 HTTP/1.1",
        "\r\nGET / HTTP/1.1",
    ]);
    let line = prop::sample::select(vec![
        "Host: test",
        "host:test:80",
        "User-Agent: a b (c; d)",
        "Accept: */*",
        "accept-encoding: gzip, br",
        "X-Own:",
        "x-own: \u{e4}",
        "X-oWN: \ta \t",
        "Cookie: a=b; c=d",
        "cookie: e=f",
        "Authorization: Basic YTpi",
        "Connection: keep-alive",
        "connection: Close",
        "Connection: close, te",
        "Content-Length: 0",
        "content-length: 3",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
        "Upgrade: websocket",
        "TE: trailers",
    ]);
    let lines = prop::collection::vec(line, 0..7);
    (start, lines).prop_map(|(start, lines)| {
        let lines: String = lines.iter().flat_map(|line| ["\r\n", line]).collect();
        format!("{start}{lines}\r\n\r\n").into_bytes()
    })
}

/// What makes of bytes others that may mean something else: some at a place are replaced.
fn changes() -> impl Strategy<Value = Vec<(usize, usize, &'static [u8])>> {
    let bytes: Vec<&'static [u8]> = vec![
        b"",
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b"\0",
        b":",
        b",",
        b"0",
        b"\x0b",
        b"\x7f",
        b"\xff",
        b"\r\n ",
        b"#",
        b"\r\nUpgrade: h2c",
        b"\r\ntransfer-encoding: x",
    ];
    let at = any::<prop::sample::Index>().prop_map(|at| at.index(1 << 20));
    prop::collection::vec((at, 0..3_usize, prop::sample::select(bytes)), 0..4)
}

fn changed(mut bytes: Vec<u8>, changes: &[(usize, usize, &'static [u8])]) -> Vec<u8> {
    for &(at, many, with) in changes {
        let at = at % (bytes.len() + 1);
        let until = (at + many).min(bytes.len());
        bytes.splice(at..until, with.iter().copied());
    }
    bytes
}

/// An answer from which any number of equal ones can be made.
#[derive(Clone, Debug)]
struct Plan {
    status: u16,
    reason: Option<&'static str>,
    lines: Vec<(&'static str, &'static str)>,
    pieces: Vec<Bytes>,
    /// Whether the body knows its length, and whether a line says it too.
    known: bool,
    said: bool,
}

impl Plan {
    fn content(&self) -> Bytes {
        self.pieces.concat().into()
    }

    fn body(&self) -> BoxBody<Bytes, Infallible> {
        if self.pieces.is_empty() {
            return nothing();
        }
        if self.known {
            return Full::new(self.content()).boxed();
        }
        let frames = self.pieces.clone().into_iter();
        let frames = frames.map(|piece| Ok(Frame::data(piece)));
        BodyExt::boxed(StreamBody::new(stream::iter(frames)))
    }

    fn answer(&self) -> Response<BoxBody<Bytes, Infallible>> {
        let mut answer = Response::new(self.body());
        *answer.status_mut() = self.status.try_into().unwrap();
        if let Some(reason) = self.reason {
            let reason = ReasonPhrase::from_static(reason.as_bytes());
            answer.extensions_mut().insert(reason);
        }
        for &(name, value) in &self.lines {
            let name = HeaderName::from_static(name);
            answer
                .headers_mut()
                .append(name, HeaderValue::from_static(value));
        }
        if self.said && !self.pieces.is_empty() {
            let length = HeaderValue::from(self.content().len());
            answer.headers_mut().insert(CONTENT_LENGTH, length);
        }
        answer
    }

    /// As we write it, and whether another may follow.
    fn written(&self, asked: Asked) -> (Vec<u8>, bool) {
        let (answer, mut outflow) = (self.answer(), Outflow::default());
        let told = (Length::of(answer.body()), Duration::ZERO);
        let begun = answer::put_head(&mut outflow.flat, &answer, told, asked);
        let (mut framing, may_follow) = begun.unwrap();
        let pieces = match self.known {
            true => vec![self.content()],
            false => self.pieces.clone(),
        };
        for piece in pieces {
            if !framing.has_ended() {
                framing.put(&mut outflow, piece);
            }
        }
        framing.end(&mut outflow).unwrap();
        let mut slices = [std::io::IoSlice::new(&[]); MAX_PIECES];
        let count = outflow.slices(&mut slices);
        let slices = slices[..count].iter();
        (
            slices.flat_map(|slice| slice.to_vec()).collect(),
            may_follow,
        )
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    let status = prop::sample::select(vec![200, 200, 204, 206, 304, 404, 429, 500, 599]);
    let reason = prop::sample::select(vec![None, None, Some("As I say"), Some("")]);
    let line = prop::sample::select(vec![
        ("server", "x"),
        ("x-own", ""),
        ("set-cookie", "a=b"),
        ("date", "Mon, 01 Jan 2001 00:00:00 GMT"),
        ("connection", "close"),
        ("connection", "x-own"),
        ("trailer", "x-sum"),
        ("vary", "accept"),
        ("retry-after", "7"),
    ]);
    let lines = prop::collection::vec(line, 0..6);
    let piece = prop::collection::vec(any::<u8>(), 1..40).prop_map(Bytes::from);
    let pieces = prop::collection::vec(piece, 0..4);
    let parts = (status, reason, lines, pieces, any::<bool>(), any::<bool>());
    parts.prop_map(|(status, reason, lines, pieces, known, said)| Plan {
        status,
        reason,
        lines,
        pieces,
        known,
        said,
    })
}

/// The bytes of answers without the dates that were put in.
fn undated(bytes: &[u8]) -> Vec<u8> {
    let text = bytes.escape_ascii().to_string();
    let mut parts = text.split("\\r\\ndate: ").map(|part| match part.get(..29) {
        Some(date) if !date.contains("2001") && date.ends_with("GMT") => &part[29..],
        _ => part,
    });
    let first = parts.next().unwrap_or_default().to_owned();
    parts
        .fold(first, |all, part| all + "\\r\\ndate: " + part)
        .into()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

#[test]
fn what_nearly_all_clients_send_is_plain() {
    for (head, may_follow) in [
        ("GET / HTTP/1.1\r\nHost: test\r\n\r\n", true),
        (
            "GET /a?b HTTP/1.1\r\nHost: t\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n",
            true,
        ),
        (
            "HEAD / HTTP/1.1\r\nHost: t\r\nConnection: keep-alive\r\n\r\n",
            true,
        ),
        (
            "DELETE / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n",
            true,
        ),
        (
            "GET / HTTP/1.1\r\nHost: t\r\nconnection: close\r\n\r\nmore",
            false,
        ),
        ("GET / HTTP/1.1\r\nHost: t\r\nX-Empty:\r\nx:y\r\n\r\n", true),
    ] {
        let (_, follows, length) = ours(head.as_bytes()).expect(head);
        assert_eq!(follows, may_follow, "{head}");
        assert_eq!(length, head.find("\r\n\r\n").unwrap() + 4);
    }
}

#[test]
fn what_is_not_plain_is_left() {
    for head in [
        "GET / HTTP/1.1\r\nHost: test\r\n\r",
        "GET / HTTP/1.0\r\nHost: test\r\n\r\n",
        "CONNECT t:80 HTTP/1.1\r\nHost: test\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n",
        "GET / HTTP/1.1\nHost: test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\n\n",
        "GET / HTTP/1.1\r\nX:\nHost: test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test \r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nContent-Length: 00\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nConnection: close, x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nConnection: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nTE: trailers\r\n\r\n",
    ] {
        assert!(ours(head.as_bytes()).is_none(), "{head:?}");
    }
    let line = |bytes: usize| format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(bytes));
    let around = "GET / HTTP/1.1\r\nX: \r\n\r\n".len();
    assert!(ours(line(BOUNDS.bytes - around).as_bytes()).is_some());
    assert!(ours(line(BOUNDS.bytes - around + 1).as_bytes()).is_none());
    let lines = |many: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(many));
    assert!(ours(lines(BOUNDS.lines).as_bytes()).is_some());
    assert!(ours(lines(BOUNDS.lines + 1).as_bytes()).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(600)
    })]

    #[test]
    fn what_we_take_hyper_takes_alike(head in heads(), changes in changes()) {
        let bytes = changed(head, &changes);
        if let Some((head, may_follow, length)) = ours(&bytes) {
            let bytes = &bytes[..length];
            prop_assert!(Lint::new(BOUNDS.bytes).look(bytes).is_none());
            let text = bytes.escape_ascii().to_string();
            // Whether another may follow shows in one that does.
            let last = b"GET /last HTTP/1.1\r\nhost: test\r\n\r\n";
            let both = [bytes, last].concat();
            let answers = hypers(&both, |_| Response::new(nothing()));
            let (seen, _) = runtime().block_on(answers);
            prop_assert_eq!(seen.first(), Some(&Some(head)), "{}", text);
            prop_assert_eq!(seen.len(), if may_follow { 2 } else { 1 }, "{}", text);
        }
    }

    #[test]
    fn what_we_write_hyper_writes_alike(
        plan in plans(),
        is_head in any::<bool>(),
        may_follow in any::<bool>(),
    ) {
        let method = if is_head { "HEAD" } else { "GET" };
        let close = if may_follow { "" } else { "connection: close\r\n" };
        let asking = format!("{method} / HTTP/1.1\r\n{close}\r\nGET / HTTP/1.1\r\n\r\n");
        let asked = Asked { is_head, may_follow };
        let (mut ours, follows) = plan.written(asked);
        let second = Plan { status: 404, lines: Vec::new(), known: true, ..plan.clone() };
        if follows {
            ours.extend(second.written(Asked { is_head: false, may_follow: true }).0);
        }
        let plans = [&plan, &second];
        let (_, theirs) = runtime().block_on(hypers(asking.as_bytes(), |at| plans[at].answer()));
        let (ours, theirs) = (undated(&ours), undated(&theirs));
        prop_assert_eq!(
            String::from_utf8_lossy(&ours),
            String::from_utf8_lossy(&theirs)
        );
    }
}
