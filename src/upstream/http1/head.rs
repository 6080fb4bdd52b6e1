//! Parses the head of a response of HTTP/1.1. No IO.
//!
//! It rejects every head that two readers could frame differently. Header values are not copied:
//! they share the memory of the read buffer.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, Version};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use smallvec::SmallVec;

use crate::http1::content::Content;
use crate::http1::head::{digits, has_option, header_name};
use crate::upstream::error::{HeadFault, UpstreamError};

pub(super) const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_LINES: usize = 100;
/// A head with more lines than this allocates.
const USUAL_LINES: usize = 24;

/// Content-Length lines contradict each other, or one is not a number.
pub(super) const BAD_LENGTH: &str = "a Content-Length that contradicts or is no number";
pub(super) const CODING_IN_HTTP10: &str = "Transfer-Encoding in HTTP/1.0";

/// The facts about a request that decide how its response is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResponseContext {
    pub(super) is_head: bool,
    pub(super) is_connect: bool,
    pub(super) asks_upgrade: bool,
}

impl ResponseContext {
    pub(super) fn new<B>(request: &Request<B>, asks_upgrade: bool) -> ResponseContext {
        ResponseContext {
            is_head: request.method() == Method::HEAD,
            is_connect: request.method() == Method::CONNECT,
            asks_upgrade,
        }
    }
}

pub(super) enum ParsedHead {
    Partial,
    /// A 1xx response, which another head follows.
    Interim,
    /// The content that follows the head, and whether another response may follow that.
    Final(Content, bool),
}

#[derive(Default)]
struct ResponseFraming {
    codings: usize,
    /// Whether `chunked` is the only coding.
    is_chunked: bool,
    lengths: usize,
    length: u64,
    has_bad_length: bool,
    /// Whether the length is written in a way that others could read differently.
    is_odd: bool,
}

impl ResponseFraming {
    fn add_coding(&mut self, value: &[u8]) {
        self.codings += 1;
        self.is_chunked = self.codings == 1 && value.eq_ignore_ascii_case(b"chunked");
    }

    fn add_length(&mut self, value: &[u8]) {
        for number in value.split(|&byte| byte == b',') {
            let is_first = self.lengths == 0;
            self.lengths += 1;
            match digits(number.trim_ascii()) {
                Some(length) if is_first => self.length = length,
                Some(length) if length == self.length => self.is_odd = true,
                _ => self.has_bad_length = true,
            }
            self.is_odd |= number.len() != number.trim_ascii().len();
        }
    }

    /// `None` if the head announces no content.
    fn into_content(self, version: Version) -> Result<Option<Content>, UpstreamError> {
        if self.codings > 0 && version == Version::HTTP_10 {
            return Err(UpstreamError::Garbage(CODING_IN_HTTP10.into()));
        }
        if self.has_bad_length {
            return Err(UpstreamError::Garbage(BAD_LENGTH.into()));
        }
        if self.codings > 0 && !self.is_chunked {
            return Err(UpstreamError::Head(HeadFault::TransferEncoding));
        }
        match (self.is_chunked, self.lengths) {
            (true, 0) => Ok(Some(Content::chunks())),
            (true, _) => Err(UpstreamError::Head(HeadFault::TwoFramings)),
            (false, 0) => Ok(None),
            (false, _) if self.is_odd => Err(UpstreamError::Head(HeadFault::ContentLength)),
            (false, _) => Ok(Some(Content::Length(self.length))),
        }
    }
}

#[cold]
fn garbage(error: httparse::Error) -> UpstreamError {
    UpstreamError::Garbage(format!("no head of an answer: {error}").into())
}

pub(super) fn too_large() -> UpstreamError {
    UpstreamError::Garbage("a head that is too large".into())
}

/// Whether the end of a head can be in `read`; the first `seen` bytes were searched before. A head
/// that comes in drops is therefore not parsed again for each drop.
pub(super) fn may_be_complete(read: &[u8], seen: usize) -> bool {
    let new = &read[seen.saturating_sub(3)..];
    memchr::memchr_iter(b'\n', new).any(|at| {
        let behind = &new[at + 1..];
        behind.starts_with(b"\n") || behind.starts_with(b"\r\n")
    })
}

struct LineSpan {
    name: Range<u32>,
    value: Range<u32>,
}

/// The first line, and the length of the whole head.
struct StatusLine {
    head_length: usize,
    status: StatusCode,
    version: Version,
    reason: Option<ReasonPhrase>,
}

/// Takes a head from the front of `read`. The head of a final response goes into `response`, whose
/// header map must be empty.
pub(super) fn take_head<B>(
    read: &mut BytesMut,
    response: &mut Response<B>,
    context: ResponseContext,
) -> Result<ParsedHead, UpstreamError> {
    let mut spans = SmallVec::<[LineSpan; USUAL_LINES]>::new();
    let Some(first) = parse(read, &mut spans)? else {
        return Ok(ParsedHead::Partial);
    };
    if first.head_length > MAX_HEAD_BYTES {
        return Err(too_large());
    }
    let head = read.split_to(first.head_length).freeze();
    let (status, version) = (first.status, first.version);
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(ParsedHead::Interim);
    }
    let mut framing = ResponseFraming::default();
    let mut close = version != Version::HTTP_11;
    let headers = response.headers_mut();
    headers.reserve(spans.len());
    // These belong to this hop. Their removal moves the last header into their place, so they come
    // last: the other headers keep their order.
    let mut of_hop = SmallVec::<[(HeaderName, HeaderValue); 2]>::new();
    // By reference: an owning iterator would move the whole array.
    for span in &spans {
        let (name, value) = slice_line(&head, span)?;
        if name == CONTENT_LENGTH {
            framing.add_length(value.as_bytes());
        } else if name == TRANSFER_ENCODING {
            framing.add_coding(value.as_bytes());
            of_hop.push((name, value));
            continue;
        } else if name == CONNECTION {
            close |= has_option(value.as_bytes(), b"close");
            of_hop.push((name, value));
            continue;
        }
        headers.append(name, value);
    }
    for (name, value) in of_hop {
        headers.append(name, value);
    }
    let announced = framing.into_content(version)?;
    *response.status_mut() = status;
    *response.version_mut() = version;
    if let Some(reason) = first.reason {
        response.extensions_mut().insert(reason);
    }
    let (content, may_follow) = apply_context(status, announced, context)?;
    Ok(ParsedHead::Final(content, may_follow && !close))
}

/// The content that really follows a head, and whether another response may follow that.
fn apply_context(
    status: StatusCode,
    announced: Option<Content>,
    context: ResponseContext,
) -> Result<(Content, bool), UpstreamError> {
    let has_any = !matches!(announced, None | Some(Content::Length(0)));
    match status {
        StatusCode::SWITCHING_PROTOCOLS if !context.asks_upgrade => {
            Err(UpstreamError::Head(HeadFault::UnaskedUpgrade))
        }
        StatusCode::SWITCHING_PROTOCOLS => Ok((Content::Nothing, false)),
        // Forbidden content could still come, and would look like the next response.
        StatusCode::NO_CONTENT => Ok((Content::Nothing, !has_any)),
        StatusCode::NOT_MODIFIED => Ok((Content::Nothing, true)),
        _ if context.is_head => Ok((Content::Nothing, true)),
        _ if context.is_connect && status.is_success() => Ok((Content::Nothing, false)),
        _ => match announced {
            Some(Content::Length(0)) => Ok((Content::Nothing, true)),
            Some(content) => Ok((content, true)),
            None => Ok((Content::UntilEnd, false)),
        },
    }
}

fn parse(
    read: &[u8],
    spans: &mut SmallVec<[LineSpan; USUAL_LINES]>,
) -> Result<Option<StatusLine>, UpstreamError> {
    let mut lines = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_LINES];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut response, read, &mut lines);
    let Status::Complete(head_length) = parsed.map_err(garbage)? else {
        return Ok(None);
    };
    let code = response.code.unwrap_or_default();
    let status = StatusCode::from_u16(code)
        .map_err(|_| UpstreamError::Garbage("a status that is none".into()))?;
    let reason = response.reason.unwrap_or_default();
    let reason = match status.canonical_reason() {
        Some(usual) if usual == reason => None,
        _ => ReasonPhrase::try_from(reason.as_bytes()).ok(),
    };
    let front = read.as_ptr() as usize;
    let span = |part: &[u8]| {
        let from = part.as_ptr() as usize - front;
        from as u32..(from + part.len()) as u32
    };
    spans.extend(response.headers.iter().map(|header| LineSpan {
        name: span(header.name.as_bytes()),
        value: span(header.value),
    }));
    Ok(Some(StatusLine {
        head_length,
        status,
        version: match response.version {
            Some(1) => Version::HTTP_11,
            _ => Version::HTTP_10,
        },
        reason,
    }))
}

fn slice_line(head: &Bytes, span: &LineSpan) -> Result<(HeaderName, HeaderValue), UpstreamError> {
    let name = header_name(&head[span.name.start as usize..span.name.end as usize])
        .ok_or_else(|| garbage(httparse::Error::HeaderName))?;
    let value = head.slice(span.value.start as usize..span.value.end as usize);
    let value =
        HeaderValue::from_maybe_shared(value).map_err(|_| garbage(httparse::Error::HeaderValue))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, context: ResponseContext) -> Result<ParsedHead, UpstreamError> {
        take_head(&mut text.as_bytes().into(), &mut Response::new(()), context)
    }

    /// The content after a head with these lines, in a response to GET.
    fn follows(lines: &str) -> Result<(Content, bool), UpstreamError> {
        let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        read(&head, ResponseContext::default()).map(|read| match read {
            ParsedHead::Final(content, may_follow) => (content, may_follow),
            ParsedHead::Partial | ParsedHead::Interim => panic!("{head}"),
        })
    }

    #[test]
    fn values_are_parts_of_what_was_read() {
        let mut bytes = BytesMut::from(
            &b"HTTP/1.1 404 Nothing here\r\nA: 1\r\nx-own:\t\xff \r\na: 2\r\n\r\nrest"[..],
        );
        let mut response = Response::new(());
        response.headers_mut().reserve(30);
        let room = response.headers().capacity();
        let taken = take_head(&mut bytes, &mut response, ResponseContext::default()).unwrap();
        assert!(matches!(taken, ParsedHead::Final(Content::UntilEnd, false)));
        assert_eq!(bytes, "rest");
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.headers().capacity(), room);
        let values: Vec<_> = response.headers().get_all("a").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert_eq!(response.headers()["x-own"].as_bytes(), b"\xff");
        let reason = response.extensions().get::<ReasonPhrase>().unwrap();
        assert_eq!(reason.as_bytes(), b"Nothing here");
    }

    #[test]
    fn what_follows_is_framed_in_one_way_only() {
        assert!(matches!(follows(""), Ok((Content::UntilEnd, false))));
        let length = follows("content-length: 7\r\n");
        assert!(matches!(length, Ok((Content::Length(7), true))));
        let nothing = follows("content-length: 000\r\n");
        assert!(matches!(nothing, Ok((Content::Nothing, true))));
        let chunks = follows("transfer-encoding: Chunked\r\n");
        assert!(matches!(chunks, Ok((Content::Chunks(_), true))));
        let two = follows("transfer-encoding: chunked\r\ncontent-length: 0\r\n");
        assert!(matches!(
            two,
            Err(UpstreamError::Head(HeadFault::TwoFramings))
        ));
        for lines in [
            "content-length: 5\r\ncontent-length: 5\r\n",
            "content-length: 5,5\r\n",
            "content-length: 5 , 5\r\n",
        ] {
            let fault = follows(lines);
            let is_odd = matches!(fault, Err(UpstreamError::Head(HeadFault::ContentLength)));
            assert!(is_odd, "{lines}: {:?}", fault.err());
        }
        for value in [
            "5, 6",
            "+5",
            "-5",
            "",
            "5,",
            ",5",
            "0x5",
            "5a",
            "5 5",
            "18446744073709551616",
        ] {
            let fault = follows(&format!("content-length: {value}\r\n"));
            assert!(matches!(fault, Err(UpstreamError::Garbage(_))), "{value}");
        }
        for lines in [
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "transfer-encoding:\r\n",
            "transfer-encoding: xchunked\r\n",
            "transfer-encoding: chunked;q=1\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        ] {
            let fault = follows(lines);
            let is_coding = matches!(fault, Err(UpstreamError::Head(HeadFault::TransferEncoding)));
            assert!(is_coding, "{lines}");
        }
    }

    #[test]
    fn headers_keep_their_order_when_those_of_the_hop_are_removed() {
        let mut bytes = BytesMut::from(
            &b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\na: 1\r\ntransfer-encoding: chunked\r\n\
               b: 2\r\nconnection: x\r\nc: 3\r\n\r\n"[..],
        );
        let mut response = Response::new(());
        take_head(&mut bytes, &mut response, ResponseContext::default()).unwrap();
        let headers = response.headers_mut();
        let options: Vec<_> = headers.get_all(CONNECTION).iter().collect();
        assert_eq!(options, ["keep-alive", "x"]);
        headers.remove(CONNECTION);
        headers.remove(TRANSFER_ENCODING);
        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn a_server_that_says_close_is_not_asked_again() {
        for (lines, may_follow) in [
            ("connection: close\r\n", false),
            ("connection: x , CLOSE\r\n", false),
            ("connection: close\r\nconnection: keep-alive\r\n", false),
            ("connection: closed\r\n", true),
        ] {
            let lines = format!("content-length: 1\r\n{lines}");
            assert_eq!(follows(&lines).unwrap().1, may_follow, "{lines}");
        }
        let old = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\n";
        let read = read(old, ResponseContext::default());
        assert!(matches!(
            read,
            Ok(ParsedHead::Final(Content::Length(1), false))
        ));
    }

    #[test]
    fn the_request_and_the_status_say_whether_anything_follows() {
        let head = ResponseContext {
            is_head: true,
            ..ResponseContext::default()
        };
        let connect = ResponseContext {
            is_connect: true,
            ..ResponseContext::default()
        };
        let upgrade = ResponseContext {
            asks_upgrade: true,
            ..ResponseContext::default()
        };
        let get = ResponseContext::default();
        for (status, line, context, may_follow) in [
            (200, "content-length: 9", head, true),
            (200, "transfer-encoding: chunked", head, true),
            (204, "x: y", get, true),
            (204, "content-length: 0", get, true),
            (204, "content-length: 9", get, false),
            (204, "transfer-encoding: chunked", get, false),
            (304, "content-length: 9", get, true),
            (200, "content-length: 9", connect, false),
            (101, "upgrade: x", upgrade, false),
        ] {
            let text = format!("HTTP/1.1 {status} x\r\n{line}\r\n\r\n");
            let Ok(ParsedHead::Final(Content::Nothing, follows)) = read(&text, context) else {
                panic!("{text}");
            };
            assert_eq!(follows, may_follow, "{text}");
        }
        let unasked = read("HTTP/1.1 101 x\r\n\r\n", get).err();
        let fault = HeadFault::UnaskedUpgrade;
        assert!(matches!(unasked, Some(UpstreamError::Head(is)) if is == fault));
        for status in [100, 102, 103, 199] {
            let text = format!("HTTP/1.1 {status} x\r\ncontent-length: 3\r\n\r\n");
            assert!(matches!(read(&text, get), Ok(ParsedHead::Interim)));
        }
    }

    #[test]
    fn a_head_is_read_when_its_end_has_come() {
        let whole = "HTTP/1.1 200 OK\r\na: b\r\nc: d\r\n\r\n";
        for length in 0..whole.len() {
            let part = &whole[..length];
            assert!(
                matches!(
                    read(part, ResponseContext::default()),
                    Ok(ParsedHead::Partial)
                ),
                "{part:?}"
            );
            for seen in 0..=length {
                assert!(!may_be_complete(part.as_bytes(), seen), "{part:?}");
                assert!(may_be_complete(whole.as_bytes(), seen), "{seen}");
            }
        }
        for line_feeds in ["HTTP/1.1 200 OK\n\n", "HTTP/1.1 200 OK\na: b\n\r\n"] {
            assert!(may_be_complete(line_feeds.as_bytes(), 0));
        }
    }

    #[test]
    fn heads_are_bounded() {
        let lines = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count));
        let is_read = |text: &str| {
            matches!(
                read(text, ResponseContext::default()),
                Ok(ParsedHead::Final(..))
            )
        };
        assert!(is_read(&lines(MAX_LINES)) && !is_read(&lines(MAX_LINES + 1)));
        let long = |length: usize| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(length));
        let rest = long(0).len();
        assert!(is_read(&long(MAX_HEAD_BYTES - rest)));
        assert!(!is_read(&long(MAX_HEAD_BYTES - rest + 1)));
    }
}
