//! The head of a request that asks for nothing but an answer: what its bytes say. Pure words.
//!
//! It must never take one that hyper would read otherwise. Whatever is not plain, it leaves.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{Method, Request, Uri};
use httparse::{ParserConfig, Status};

use crate::body::RequestBody;
use crate::wire::spelling;

/// Lines in a head, at most.
const MAX_LINES: usize = 100;
/// Bytes of a target, at most.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;

/// A head that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// Bytes of it.
    pub(super) length: usize,
    /// Whether another request may follow on its connection.
    pub(super) may_follow: bool,
}

/// What a head may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) lines: usize,
    pub(super) bytes: usize,
}

/// Reads the head at the front of `read` into `request`, which is a new one or [`blank`], if it is
/// whole and plain. What it has put there where it is not has no meaning.
pub(super) fn read(
    read: &Bytes,
    request: &mut Request<RequestBody>,
    bounds: Bounds,
) -> Option<Head> {
    let mut lines = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_LINES];
    let lines = &mut lines[..bounds.lines.min(MAX_LINES)];
    let mut parsed = httparse::Request::new(&mut []);
    let Ok(Status::Complete(length)) =
        ParserConfig::default().parse_request_with_uninit_headers(&mut parsed, read, lines)
    else {
        return None;
    };
    let (method, target) = (parsed.method?, parsed.path?);
    if parsed.version != Some(1) || target.len() > MAX_TARGET_BYTES || length > bounds.bytes {
        return None;
    }
    let front = read.as_ptr() as usize;
    let part = |part: &[u8]| {
        let from = part.as_ptr() as usize - front;
        read.slice(from..from + part.len())
    };
    let ends_well = |part: &[u8], skip: usize| {
        let end = part.as_ptr() as usize - front + part.len() + skip;
        read.get(end..end + 2) == Some(b"\r\n")
    };
    // A bare LF as a line's end is seen by what is behind the line; of blank lines before the
    // first one, nothing is to be seen.
    let in_order = read.starts_with(method.as_bytes())
        && ends_well(target.as_bytes(), " HTTP/1.1".len())
        && read[..length].ends_with(b"\r\n");
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    if !in_order || method == Method::CONNECT {
        return None;
    }
    let mut said = Said::default();
    let headers = request.headers_mut();
    headers.reserve(parsed.headers.len());
    for line in parsed.headers.iter() {
        said.look(line.name.as_bytes(), line.value)?;
        if !ends_well(line.value, 0) {
            return None;
        }
        headers.append(
            spelling::name(line.name.as_bytes())?,
            HeaderValue::from_maybe_shared(part(line.value)).ok()?,
        );
    }
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_maybe_shared(part(target.as_bytes())).ok()?;
    Some(Head {
        length,
        may_follow: !said.close,
    })
}

/// Makes of a request one that is as good as new: nothing of it holds what was read, and the room
/// for its lines is left.
pub(super) fn blank(request: &mut Request<RequestBody>) {
    request.headers_mut().clear();
    request.extensions_mut().clear();
    *request.uri_mut() = Uri::default();
    *request.body_mut() = RequestBody::empty();
}

/// What the lines of a head say of its connection and of what is behind it.
#[derive(Default)]
struct Said {
    length: bool,
    connection: bool,
    close: bool,
}

impl Said {
    /// Looks at a line; nothing if its head is not plain.
    fn look(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        let plain = match name.len() {
            2 => !is(b"te"),
            6 => !is(b"expect"),
            7 => !is(b"upgrade"),
            10 if is(b"connection") => {
                self.close = value.eq_ignore_ascii_case(b"close");
                let alone = !std::mem::replace(&mut self.connection, true);
                alone && (self.close || value.eq_ignore_ascii_case(b"keep-alive"))
            }
            14 if is(b"content-length") => {
                !std::mem::replace(&mut self.length, true) && value == b"0"
            }
            17 => !is(b"transfer-encoding"),
            _ => true,
        };
        plain.then_some(())
    }
}
