//! Our reading of requests and our writing of responses beside hyper's server: heads mean the same
//! to both, and both write the same bytes. Where they differ, we refuse what hyper forgives.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, Uri, Version};
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

use super::content::Content;
use super::head::{self, HeadBounds, Unreadable};
use super::write::{self, ResponseTerms};
use crate::request_head::HeadError;
use crate::wire::{MAX_PIECES, Outflow};

const BOUNDS: HeadBounds = HeadBounds {
    lines: 100,
    bytes: 16 << 10,
};

/// The parsed head of a request.
#[derive(Debug, PartialEq)]
struct ReadHead {
    method: Method,
    target: Uri,
    version: Version,
    headers: HeaderMap,
    has_content: bool,
}

impl ReadHead {
    fn from_request<B>(request: &Request<B>, has_content: bool) -> ReadHead {
        ReadHead {
            method: request.method().clone(),
            target: request.uri().clone(),
            version: request.version(),
            headers: request.headers().clone(),
            has_content,
        }
    }
}

/// A head as we read it.
struct Ours {
    head: ReadHead,
    length: usize,
    may_follow: bool,
    error: Option<HeadError>,
}

/// As we read it; nothing where its end is missing.
fn ours(bytes: &[u8]) -> Result<Option<Ours>, Unreadable> {
    let read = Bytes::copy_from_slice(bytes);
    let mut request = Request::new(());
    let Some(head) = head::read(&read, &mut request, BOUNDS)? else {
        return Ok(None);
    };
    Ok(Some(Ours {
        head: ReadHead::from_request(&request, !matches!(head.content, Content::Nothing)),
        length: head.length,
        may_follow: head.may_follow,
        error: head.error,
    }))
}

/// Has hyper read `bytes` and then the end. Returns the requests that hyper sees, and the bytes
/// that it writes for each `response`.
async fn hypers(
    bytes: &[u8],
    response: impl Fn(usize) -> Response<BoxBody<Bytes, Infallible>>,
) -> (Vec<ReadHead>, Vec<u8>) {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let service = service_fn(|request: Request<Incoming>| {
        let mut seen = seeing.lock().unwrap();
        seen.push(ReadHead::from_request(
            &request,
            !request.body().is_end_stream(),
        ));
        std::future::ready(Ok::<_, Infallible>(response(seen.len() - 1)))
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

/// Replacements of some bytes at some places, which may change the meaning of a head.
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

/// A response from which any number of equal ones can be made.
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

    fn response(&self) -> Response<BoxBody<Bytes, Infallible>> {
        let mut response = Response::new(self.body());
        *response.status_mut() = self.status.try_into().unwrap();
        if let Some(reason) = self.reason {
            let reason = ReasonPhrase::from_static(reason.as_bytes());
            response.extensions_mut().insert(reason);
        }
        for &(name, value) in &self.lines {
            let name = HeaderName::from_static(name);
            response
                .headers_mut()
                .append(name, HeaderValue::from_static(value));
        }
        if self.said && !self.pieces.is_empty() {
            let length = HeaderValue::from(self.content().len());
            response.headers_mut().insert(CONTENT_LENGTH, length);
        }
        response
    }

    /// As we write it, and whether another may follow.
    fn written(&self, asked: ResponseTerms) -> (Vec<u8>, bool) {
        let (response, mut outflow) = (self.response(), Outflow::default());
        let length = write::length_of(response.body());
        let begun = write::put_head(&mut outflow.flat, &response, length, Duration::ZERO, asked);
        let begun = begun.unwrap();
        let mut framing = begun.framing;
        let pieces = match self.known {
            true => vec![self.content()],
            false => self.pieces.clone(),
        };
        for piece in pieces {
            if !framing.has_ended() {
                framing.put(&mut outflow, piece);
            }
        }
        framing.end(&mut outflow, None, &[]).unwrap();
        let may_follow = begun.may_follow;
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

/// The bytes of responses without the dates that were put in.
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

/// Whether the first head of undated responses says that the connection ends.
fn has_close(responses: &[u8]) -> bool {
    let text = String::from_utf8_lossy(responses);
    let head = text.split("\\r\\n\\r\\n").next().unwrap_or_default();
    let mut lines = head.split("\\r\\n");
    lines.any(|line| line.starts_with("connection: ") && line.contains("close"))
}

/// Undated responses without what depends on the version in the first line. hyper answers a request
/// of HTTP/1.0 with that version, which needs no `close`.
fn without_version(responses: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(responses);
    let (head, rest) = text.split_once("\\r\\n\\r\\n").unwrap_or((&text, ""));
    let mut kept = Vec::new();
    for line in head.split("\\r\\n") {
        if let Some(options) = line.strip_prefix("connection: ") {
            let others = options.split(", ").filter(|option| *option != "close");
            kept.extend(others.map(str::to_owned));
        } else {
            kept.push(line.replacen("HTTP/1.0 ", "HTTP/1.1 ", 1));
        }
    }
    format!("{}\\r\\n\\r\\n{rest}", kept.join("\\r\\n")).into()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

#[test]
fn heads_are_bounded() {
    let line = |bytes: usize| format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(bytes));
    let around = "GET / HTTP/1.1\r\nX: \r\n\r\n".len();
    let error = |head: &str| ours(head.as_bytes()).unwrap().unwrap().error;
    assert_eq!(error(&line(BOUNDS.bytes - around)), None);
    let too_large = Some(HeadError::TooLarge);
    assert_eq!(error(&line(BOUNDS.bytes - around + 1)), too_large);
    let lines = |many: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(many));
    assert!(ours(lines(BOUNDS.lines).as_bytes()).is_ok());
    let over = ours(lines(BOUNDS.lines + 1).as_bytes());
    let too_long = Unreadable::TooLong;
    assert_eq!(over.err(), Some(too_long(HeadError::TooManyLines)));
    let target = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 16));
    let long = ours(target.as_bytes());
    assert_eq!(long.err(), Some(too_long(HeadError::TargetTooLong)));
    let target = |bytes: usize| format!("GET /{} HTTP/1.1\r\nX: y\r\n\r\n", "a".repeat(bytes));
    assert_eq!(error(&target(BOUNDS.bytes - 20)), too_large);
    let too_long = Some(HeadError::TargetTooLong);
    assert_eq!(error(&target(BOUNDS.bytes)), too_long);
    // More lines than there is room for at first.
    let read = Bytes::from(lines(150));
    let bounds = HeadBounds {
        lines: 150,
        ..BOUNDS
    };
    let whole = head::read(&read, &mut Request::new(()), bounds);
    assert_eq!(whole.unwrap().unwrap().length, read.len());
}

#[test]
fn flaws_are_found_that_hyper_forgives() {
    for (head, error) in [
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", HeadError::BareLf),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", HeadError::BareLf),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", HeadError::BareLf),
        (
            "GET / HTTP/1.1\r\nX:\nHost: test\r\n\r\n",
            HeadError::BareLf,
        ),
        (
            "POST / HTTP/1.1\r\ncontent-LENGTH: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            HeadError::TwoLengths,
        ),
        (
            "POST / HTTP/1.1\r\nTransfer-encoding:chunked\r\nContent-Length:0\r\n\r\n",
            HeadError::TwoLengths,
        ),
    ] {
        let found = ours(head.as_bytes()).unwrap().unwrap().error;
        assert_eq!(found, Some(error), "{head:?}");
    }
    let padded = "GET / HTTP/1.1\r\nHost:\ttest \t\r\n\r\n";
    let read = ours(padded.as_bytes()).unwrap().unwrap();
    assert_eq!(
        (read.error, read.head.headers["host"].as_bytes()),
        (None, &b"test"[..])
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(600)
    })]

    #[test]
    fn heads_mean_the_same_to_hyper(head in heads(), changes in changes()) {
        let bytes = changed(head, &changes);
        // Every reader skips blank lines before a head.
        let blank = bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count();
        let text = bytes.escape_ascii().to_string();
        // Whether another may follow shows in one that does.
        let last = b"GET /last HTTP/1.1\r\nhost: test\r\n\r\n";
        match ours(&bytes[blank..]) {
            Ok(Some(ours)) => {
                let both = [&bytes[blank..blank + ours.length], last].concat();
                let responses = hypers(&both, |_| Response::new(nothing()));
                let (seen, _) = runtime().block_on(responses);
                let has_content = ours.head.has_content;
                let headers = &ours.head.headers;
                let two_lengths = headers.contains_key(CONTENT_LENGTH)
                    && headers.contains_key(TRANSFER_ENCODING);
                if ours.error != Some(HeadError::TwoLengths) && !two_lengths {
                    prop_assert_eq!(seen.first(), Some(&ours.head), "{}", text);
                }
                if !has_content && ours.head.method != Method::CONNECT {
                    let count = if ours.may_follow { 2 } else { 1 };
                    prop_assert_eq!(seen.len(), count, "{}", text);
                }
            }
            Ok(None) => {}
            Err(_) => {
                let responses = hypers(&bytes[blank..], |_| Response::new(nothing()));
                let (seen, _) = runtime().block_on(responses);
                prop_assert!(seen.is_empty(), "{}", text);
            }
        }
    }

    #[test]
    fn what_we_write_hyper_writes_alike(
        plan in plans(),
        is_head in any::<bool>(),
        is_http10 in any::<bool>(),
        may_follow in any::<bool>(),
    ) {
        let says_close = plan.lines.contains(&("connection", "close"));
        let sized = plan.known || plan.said || plan.pieces.is_empty();
        // Here hyper promises to go on and does not.
        prop_assume!(!is_http10 || !may_follow || sized && !says_close);
        let method = if is_head { "HEAD" } else { "GET" };
        let option = match (is_http10, may_follow) {
            (false, false) => "connection: close\r\n",
            (true, true) => "connection: keep-alive\r\n",
            _ => "",
        };
        let version = if is_http10 { "HTTP/1.0" } else { "HTTP/1.1" };
        let asking = format!("{method} / {version}\r\n{option}\r\nGET / HTTP/1.1\r\n\r\n");
        let (mut ours, follows) = plan.written(ResponseTerms { is_head, is_http10, may_follow });
        let second = Plan { status: 404, lines: Vec::new(), known: true, ..plan.clone() };
        if follows {
            let asked = ResponseTerms { is_head: false, is_http10: false, may_follow: true };
            ours.extend(second.written(asked).0);
        }
        let plans = [&plan, &second];
        let (_, theirs) = runtime().block_on(hypers(asking.as_bytes(), |at| plans[at].response()));
        let (mut ours, mut theirs) = (undated(&ours), undated(&theirs));
        if is_http10 {
            prop_assert!(ours.starts_with(b"HTTP/1.1 "));
            prop_assert!(follows || has_close(&ours));
            (ours, theirs) = (without_version(&ours), without_version(&theirs));
        }
        prop_assert_eq!(
            String::from_utf8_lossy(&ours),
            String::from_utf8_lossy(&theirs)
        );
    }
}
