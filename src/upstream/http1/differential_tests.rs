//! Compares our parser of responses with hyper's client, on well-formed bytes and on mutations of
//! them. Every response that we accept, hyper accepts with the same meaning. A response that only
//! hyper accepts is ambiguous, or its trailers have bare line feeds.

use bytes::BytesMut;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;

use super::head::{self, MAX_HEAD_BYTES, ParsedHead, ResponseContext};
use crate::http1::content::ContentRead;
use crate::upstream::error::UpstreamError;

/// The meaning of an answer.
#[derive(Debug, PartialEq)]
struct Answer {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

/// Why we do not take an answer.
#[derive(Debug)]
enum Refused {
    /// It could be framed in two ways.
    Ambiguous,
    Otherwise,
}

/// As we read it, `at_once` bytes at a time.
fn ours(bytes: &[u8], at_once: usize, context: ResponseContext) -> Result<Answer, Refused> {
    let mut pieces = bytes.chunks(at_once);
    let (mut read, mut seen) = (BytesMut::new(), 0);
    let mut response = Response::new(());
    let mut content = loop {
        if read.len() > seen && (seen == 0 || head::may_be_complete(&read, seen)) {
            match head::take_head(&mut read, &mut response, context) {
                Ok(ParsedHead::Partial) => {}
                Ok(ParsedHead::Interim) => {
                    seen = 0;
                    continue;
                }
                Ok(ParsedHead::Final(content, _)) => break content,
                Err(UpstreamError::Head(_)) => return Err(Refused::Ambiguous),
                Err(UpstreamError::Garbage(cause))
                    if [head::BAD_LENGTH, head::CODING_IN_HTTP10]
                        .contains(&&*cause.to_string()) =>
                {
                    return Err(Refused::Ambiguous);
                }
                Err(_) => return Err(Refused::Otherwise),
            }
        }
        seen = read.len();
        assert!(seen < MAX_HEAD_BYTES);
        read.extend_from_slice(pieces.next().ok_or(Refused::Otherwise)?);
    };
    let (parts, ()) = response.into_parts();
    let mut answer = Answer {
        status: parts.status,
        version: parts.version,
        headers: parts.headers,
        body: Vec::new(),
        trailers: None,
    };
    loop {
        match content
            .take_joined(&mut read)
            .map_err(|_| Refused::Otherwise)?
        {
            ContentRead::Data(data) => answer.body.extend_from_slice(&data),
            ContentRead::Trailers(trailers) => answer.trailers = Some(trailers),
            ContentRead::Ended => return Ok(answer),
            ContentRead::NeedsMore => match pieces.next() {
                Some(piece) => read.extend_from_slice(piece),
                None if content.end() => {}
                None => return Err(Refused::Otherwise),
            },
        }
    }
}

/// As hyper reads it.
async fn hypers(bytes: &[u8], method: &Method) -> Option<Answer> {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let mut builder = http1::Builder::new();
    let shaken = builder.max_header_size(MAX_HEAD_BYTES);
    let (mut sender, connection) = shaken.handshake(TokioIo::new(near)).await.ok()?;
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri("/");
    let request = request.body(Empty::<&[u8]>::new()).ok()?;
    let sent = sender.send_request(request);
    let said = async {
        // After the request: before it, this would be unsolicited.
        tokio::task::yield_now().await;
        let _ = far.write_all(bytes).await;
        drop(far);
    };
    let (response, ()) = tokio::join!(sent, said);
    let (parts, body) = response.ok()?.into_parts();
    let collected = body.collect().await.ok()?;
    Some(Answer {
        status: parts.status,
        version: parts.version,
        headers: parts.headers,
        trailers: collected.trailers().cloned(),
        body: collected.to_bytes().to_vec(),
    })
}

/// Content in one of the ways in which it can be framed: lines of the head, and bytes.
fn content() -> impl Strategy<Value = (String, Vec<u8>)> {
    let data = || prop::collection::vec(any::<u8>(), 0..40);
    let length = data().prop_map(|data| (format!("Content-Length: {}\r\n", data.len()), data));
    let until_end = data().prop_map(|data| (String::new(), data));
    let extension = prop::sample::select(vec!["", ";", ";a=b", " ;x", "\t", ";\"q\""]);
    let chunk = (
        prop::collection::vec(any::<u8>(), 1..20),
        extension,
        any::<bool>(),
    );
    let trailers = prop::sample::select(vec!["", "X-Sum: 7\r\n", "a: b\r\nA:\r\n"]);
    let chunks = (prop::collection::vec(chunk, 0..5), trailers);
    let chunks = chunks.prop_map(|(chunks, trailers)| {
        let mut bytes = Vec::new();
        for (data, extension, is_upper) in chunks {
            let size = match is_upper {
                true => format!("{:X}{extension}\r\n", data.len()),
                false => format!("0{:x}{extension}\r\n", data.len()),
            };
            bytes.extend_from_slice(size.as_bytes());
            bytes.extend_from_slice(&data);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
        ("Transfer-Encoding: chunked\r\n".to_owned(), bytes)
    });
    prop_oneof![length, until_end, chunks.clone(), chunks]
}

/// A well-formed answer to a request of this method.
fn answers() -> impl Strategy<Value = (Vec<u8>, Method)> {
    let interim = prop::sample::select(vec!["", "", "", "HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"]);
    let status = prop::sample::select(vec![200, 200, 204, 206, 304, 404, 500, 599]);
    let line = prop::sample::select(vec![
        "Server: x\r\n",
        "X-Own:\r\n",
        "connection: keep-alive\r\n",
        "Connection: close, te\r\n",
        "set-cookie: a=b; Path=/\r\n",
        "Date: é \t\r\n",
    ]);
    let lines = prop::collection::vec(line, 0..5);
    let method = prop::sample::select(vec![Method::GET, Method::GET, Method::HEAD, Method::POST]);
    let parts = (interim, status, lines, content(), method);
    parts.prop_map(|(interim, status, lines, (framing, content), method)| {
        let lines = lines.concat();
        let head = format!("{interim}HTTP/1.1 {status} Reason\r\n{lines}{framing}\r\n");
        ([head.into_bytes(), content].concat(), method)
    })
}

/// Changes of bytes that may change the meaning: replacements, insertions and removals.
fn changes() -> impl Strategy<Value = Vec<(usize, u8, &'static [u8])>> {
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
        b";",
        b",",
        b"0",
        b"1",
        b"9",
        b"a",
        b"f",
        b"\x7f",
        b"\xff",
        b"+",
        b"-",
        b"0x",
        b"\"",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 1,1\r\n",
    ];
    let change = (
        any::<prop::sample::Index>(),
        0..3_u8,
        prop::sample::select(bytes),
    );
    let change = change.prop_map(|(at, how, bytes)| (at.index(1 << 20), how, bytes));
    prop::collection::vec(change, 1..4)
}

fn changed(mut bytes: Vec<u8>, changes: &[(usize, u8, &'static [u8])]) -> Vec<u8> {
    for &(at, how, with) in changes {
        let at = at % (bytes.len() + 1);
        let until = (at + usize::from(how)).min(bytes.len());
        bytes.splice(at..until, with.iter().copied());
    }
    bytes
}

fn context(method: &Method) -> ResponseContext {
    ResponseContext {
        is_head: method == Method::HEAD,
        ..ResponseContext::default()
    }
}

/// Whether a line feed stands alone somewhere.
fn has_lone_line_feed(bytes: &[u8]) -> bool {
    let mut pairs = bytes.windows(2);
    pairs.any(|pair| pair[1] == b'\n' && pair[0] != b'\r')
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn well_formed_answers_are_read_alike((bytes, method) in answers(), at_once in 1..200_usize) {
        let theirs = runtime().block_on(hypers(&bytes, &method));
        let ours = ours(&bytes, at_once, context(&method));
        prop_assert!(ours.is_ok(), "{ours:?} of {:?}", String::from_utf8_lossy(&bytes));
        prop_assert_eq!(ours.ok(), theirs);
    }

    #[test]
    fn what_we_take_of_others_is_read_alike(
        (bytes, method) in answers(),
        changes in changes(),
        at_once in 1..200_usize,
    ) {
        let bytes = changed(bytes, &changes);
        let theirs = runtime().block_on(hypers(&bytes, &method));
        let text = String::from_utf8_lossy(&bytes);
        match ours(&bytes, at_once, context(&method)) {
            Ok(ours) => prop_assert_eq!(Some(ours), theirs, "{:?}", text),
            Err(Refused::Ambiguous) => {}
            Err(Refused::Otherwise) => {
                prop_assert!(theirs.is_none() || has_lone_line_feed(&bytes), "{:?}", text);
            }
        }
    }
}

/// Words of answers, for a recipe of bytes.
const WORDS: [&str; 32] = [
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.0 200 \r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 204 No\r\n",
    "HTTP/1.1 304\r\n",
    "HTTP/1.1 101 Switch\r\n",
    "Content-Length: 3\r\n",
    "Content-Length: 4\r\n",
    "Content-Length: +3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Connection: close\r\n",
    "Upgrade: x\r\n",
    "A: b\r\n",
    " fold\r\n",
    "\r\n",
    "\r",
    "\n",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
    "0\r\n",
    "ffffffffffffffff\r\n",
    "10000000000000003\r\n",
    "3;x=y\r\n",
    "+3\r\n",
    "abc",
    "HTTP/1.1",
    " ",
    "\t",
    ":",
    "\0",
    "200",
];

/// Any bytes have the same meaning however they are cut, and no byte of a body is made up.
#[test]
fn any_bytes_are_read_alike_however_they_come() {
    bolero::check!(name = "answer")
        .with_max_len(64)
        .for_each(|input: &[u8]| {
            let recipe = input.iter().map(|byte| WORDS[usize::from(byte % 32)]);
            for bytes in [input, recipe.collect::<String>().as_bytes()] {
                for (is_head, upgrade) in [(false, false), (true, false), (false, true)] {
                    let context = ResponseContext {
                        is_head,
                        is_connect: false,
                        asks_upgrade: upgrade,
                    };
                    let whole = ours(bytes, bytes.len().max(1), context).ok();
                    for at_once in [1, 7] {
                        assert_eq!(ours(bytes, at_once, context).ok(), whole, "{bytes:?}");
                    }
                    let body = whole.map_or(0, |answer| answer.body.len());
                    assert!(body <= bytes.len());
                }
            }
        });
}
