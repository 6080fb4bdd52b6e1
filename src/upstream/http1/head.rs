//! The head of a response over HTTP/1.1: what its bytes say. Pure words.
//!
//! It must never let a head pass that two readers could frame differently. Values are not copied:
//! they are parts of what was read.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, Version};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use smallvec::SmallVec;

use crate::http1::content::Content;
use crate::http1::head::{digits, has_option, header_name};
use crate::upstream::error::Http1Fault;
use crate::upstream::error::{HeadFault, ProtocolError, UpstreamError};

/// Bytes in the head of a response.
pub(super) const MAX_HEAD_BYTES: usize = 64 << 10;
/// Lines in the head of a response.
const MAX_LINES: usize = 100;
/// Lines for whose places no room must be made.
const USUAL_LINES: usize = 24;

/// What the request was, as far as it says how its response is to be read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) is_head: bool,
    pub(super) is_connect: bool,
    /// It asked for another protocol.
    pub(super) upgrade: bool,
}

impl Asked {
    /// `upgrade` says whether it asks for a tunnel.
    pub(super) fn of<B>(request: &Request<B>, upgrade: bool) -> Asked {
        Asked {
            is_head: request.method() == Method::HEAD,
            is_connect: request.method() == Method::CONNECT,
            upgrade,
        }
    }
}

/// A head that was read.
pub(super) enum Read {
    /// Its end has not come yet.
    Partial,
    /// It is one before the response itself.
    Interim,
    /// The response: what follows it, and whether another may.
    Final(Content, bool),
}

/// What the lines of a head say about what is behind it.
#[derive(Default)]
struct Framing {
    codings: usize,
    /// The last coding is `chunked`, in the only line and alone in it.
    is_chunked: bool,
    lengths: usize,
    length: u64,
    fault: Option<Http1Fault>,
    /// One that is written in a way that others may read otherwise.
    is_odd: bool,
}

impl Framing {
    fn coding(&mut self, value: &[u8]) {
        self.codings += 1;
        self.is_chunked = self.codings == 1 && value.eq_ignore_ascii_case(b"chunked");
    }

    fn length(&mut self, value: &[u8]) {
        for number in value.split(|&byte| byte == b',') {
            let is_first = self.lengths == 0;
            self.lengths += 1;
            match digits(number.trim_ascii()) {
                Some(length) if is_first => self.length = length,
                Some(length) if length == self.length => self.is_odd = true,
                _ => self.fault = Some(Http1Fault::Length),
            }
            self.is_odd |= number.len() != number.trim_ascii().len();
        }
    }

    /// What is announced: nothing, or content of some length.
    fn announced(self, version: Version) -> Result<Option<Content>, UpstreamError> {
        if self.codings > 0 && version == Version::HTTP_10 {
            return Err(garbage(Http1Fault::CodingInHttp10));
        }
        if let Some(fault) = self.fault {
            return Err(garbage(fault));
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

fn garbage(fault: Http1Fault) -> UpstreamError {
    UpstreamError::Garbage(ProtocolError::Http1(fault))
}

/// Whether one of the options in a line of `Connection` is `close`.
pub(super) fn says_close(value: &[u8]) -> bool {
    has_option(value, b"close")
}

/// Whether the end of a head can be in `read`, of which `seen` bytes were looked at before. So
/// that one that comes in drops is not read again for each.
pub(super) fn may_be_complete(read: &[u8], seen: usize) -> bool {
    let new = &read[seen.saturating_sub(3)..];
    memchr::memchr_iter(b'\n', new).any(|at| {
        let behind = &new[at + 1..];
        behind.starts_with(b"\n") || behind.starts_with(b"\r\n")
    })
}

/// Where a line's name and value are.
type Place = (u32, u32, u32, u32);

/// The first line, and how long the head is.
struct Start {
    length: usize,
    status: StatusCode,
    version: Version,
    reason: Option<ReasonPhrase>,
}

/// Takes a head from the front of `read`, and makes that of `answer` of it if it is the response's:
/// its lines are put into the map there, which is empty.
pub(super) fn take<B>(
    read: &mut BytesMut,
    answer: &mut Response<B>,
    asked: Asked,
) -> Result<Read, UpstreamError> {
    let mut places = SmallVec::<[Place; USUAL_LINES]>::new();
    let Some(start) = find(read, &mut places).map_err(garbage)? else {
        return Ok(Read::Partial);
    };
    if start.length > MAX_HEAD_BYTES {
        return Err(garbage(Http1Fault::HeadTooLarge));
    }
    let head = read.split_to(start.length).freeze();
    let (status, version) = (start.status, start.version);
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Read::Interim);
    }
    let mut framing = Framing::default();
    let mut close = version != Version::HTTP_11;
    let headers = answer.headers_mut();
    headers.reserve(places.len());
    // Borrowed: an iterator of its own would be moved with all its room.
    for &place in &places {
        let (name, value) = line(&head, place).map_err(garbage)?;
        if name == CONTENT_LENGTH {
            framing.length(value.as_bytes());
        } else if name == TRANSFER_ENCODING {
            framing.coding(value.as_bytes());
        } else if name == CONNECTION {
            close |= says_close(value.as_bytes());
        }
        headers.append(name, value);
    }
    let announced = framing.announced(version)?;
    *answer.status_mut() = status;
    *answer.version_mut() = version;
    if let Some(reason) = start.reason {
        answer.extensions_mut().insert(reason);
    }
    let (content, may_follow) = follows(status, announced, asked)?;
    Ok(Read::Final(content, may_follow && !close))
}

/// What follows a head, and whether another may follow that.
fn follows(
    status: StatusCode,
    announced: Option<Content>,
    asked: Asked,
) -> Result<(Content, bool), UpstreamError> {
    let has_any = !matches!(announced, None | Some(Content::Length(0)));
    match status {
        StatusCode::SWITCHING_PROTOCOLS if !asked.upgrade => {
            Err(UpstreamError::Head(HeadFault::UnaskedUpgrade))
        }
        StatusCode::SWITCHING_PROTOCOLS => Ok((Content::Nothing, false)),
        // What is announced where none may be could still come, as the next response.
        StatusCode::NO_CONTENT => Ok((Content::Nothing, !has_any)),
        StatusCode::NOT_MODIFIED => Ok((Content::Nothing, true)),
        _ if asked.is_head => Ok((Content::Nothing, true)),
        _ if asked.is_connect && status.is_success() => Ok((Content::Nothing, false)),
        _ => match announced {
            Some(Content::Length(0)) => Ok((Content::Nothing, true)),
            Some(content) => Ok((content, true)),
            None => Ok((Content::UntilEnd, false)),
        },
    }
}

/// Where the lines of the head at the front of `read` are; nothing if it is not complete.
fn find(
    read: &[u8],
    places: &mut SmallVec<[Place; USUAL_LINES]>,
) -> Result<Option<Start>, Http1Fault> {
    let mut lines = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_LINES];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut response, read, &mut lines);
    let Status::Complete(length) = parsed.map_err(Http1Fault::Head)? else {
        return Ok(None);
    };
    let code = response.code.unwrap_or_default();
    let status = StatusCode::from_u16(code).map_err(|_| Http1Fault::Status)?;
    let said = response.reason.unwrap_or_default();
    let reason = match status.canonical_reason() {
        Some(usual) if usual == said => None,
        _ => ReasonPhrase::try_from(said.as_bytes()).ok(),
    };
    let front = read.as_ptr() as usize;
    let place = |part: &[u8]| {
        let from = part.as_ptr() as usize - front;
        (from as u32, (from + part.len()) as u32)
    };
    places.extend(response.headers.iter().map(|header| {
        let (name, name_end) = place(header.name.as_bytes());
        let (value, value_end) = place(header.value);
        (name, name_end, value, value_end)
    }));
    let version = match response.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    Ok(Some(Start {
        length,
        status,
        version,
        reason,
    }))
}

fn line(
    head: &Bytes,
    (name, name_end, value, value_end): Place,
) -> Result<(HeaderName, HeaderValue), Http1Fault> {
    let name = header_name(&head[name as usize..name_end as usize])
        .ok_or(Http1Fault::Head(httparse::Error::HeaderName))?;
    let value = HeaderValue::from_maybe_shared(head.slice(value as usize..value_end as usize))
        .map_err(|_| Http1Fault::Head(httparse::Error::HeaderValue))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, asked: Asked) -> Result<Read, UpstreamError> {
        take(&mut text.as_bytes().into(), &mut Response::new(()), asked)
    }

    /// What follows a head with these lines, as the answer to a GET.
    fn follows(lines: &str) -> Result<(Content, bool), UpstreamError> {
        let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        read(&head, Asked::default()).map(|read| match read {
            Read::Final(content, may_follow) => (content, may_follow),
            Read::Partial | Read::Interim => panic!("{head}"),
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
        let taken = take(&mut bytes, &mut response, Asked::default()).unwrap();
        assert!(matches!(taken, Read::Final(Content::UntilEnd, false)));
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
        let read = read(old, Asked::default());
        assert!(matches!(read, Ok(Read::Final(Content::Length(1), false))));
    }

    #[test]
    fn the_request_and_the_status_say_whether_anything_follows() {
        let head = Asked {
            is_head: true,
            ..Asked::default()
        };
        let connect = Asked {
            is_connect: true,
            ..Asked::default()
        };
        let upgrade = Asked {
            upgrade: true,
            ..Asked::default()
        };
        let get = Asked::default();
        for (status, line, asked, may_follow) in [
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
            let Ok(Read::Final(Content::Nothing, follows)) = read(&text, asked) else {
                panic!("{text}");
            };
            assert_eq!(follows, may_follow, "{text}");
        }
        let unasked = read("HTTP/1.1 101 x\r\n\r\n", get).err();
        let fault = HeadFault::UnaskedUpgrade;
        assert!(matches!(unasked, Some(UpstreamError::Head(is)) if is == fault));
        for status in [100, 102, 103, 199] {
            let text = format!("HTTP/1.1 {status} x\r\ncontent-length: 3\r\n\r\n");
            assert!(matches!(read(&text, get), Ok(Read::Interim)));
        }
    }

    #[test]
    fn a_head_is_read_when_its_end_has_come() {
        let whole = "HTTP/1.1 200 OK\r\na: b\r\nc: d\r\n\r\n";
        for length in 0..whole.len() {
            let part = &whole[..length];
            assert!(
                matches!(read(part, Asked::default()), Ok(Read::Partial)),
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
        let is_read = |text: &str| matches!(read(text, Asked::default()), Ok(Read::Final(..)));
        assert!(is_read(&lines(MAX_LINES)) && !is_read(&lines(MAX_LINES + 1)));
        let long = |length: usize| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(length));
        let rest = long(0).len();
        assert!(is_read(&long(MAX_HEAD_BYTES - rest)));
        assert!(!is_read(&long(MAX_HEAD_BYTES - rest + 1)));
    }
}
