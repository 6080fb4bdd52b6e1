//! The head of a request that asks for nothing but an answer: what its bytes say. Pure words.
//!
//! It must never take one that hyper would read otherwise. Whatever is not plain, it leaves.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Method, Request, Uri};
use httparse::{ParserConfig, Status};

use crate::upstream::body::RequestBody;
use crate::wire::spelling;

/// Lines in a head, at most.
const MAX_LINES: usize = 100;
/// Bytes of a target, at most.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;

/// A request without content, and whether another may follow on its connection.
pub(super) struct Head {
    pub(super) request: Request<RequestBody>,
    pub(super) may_follow: bool,
}

/// What a head may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) lines: usize,
    pub(super) bytes: usize,
}

/// Reads the head at the front of `read`, if it is whole and plain. Tells how long it is. Its
/// lines are put into `room`, which is empty.
pub(super) fn read(read: &Bytes, room: &mut HeaderMap, bounds: Bounds) -> Option<(Head, usize)> {
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
    room.reserve(parsed.headers.len());
    for line in parsed.headers.iter() {
        said.look(line.name.as_bytes(), line.value)?;
        if !ends_well(line.value, 0) {
            return None;
        }
        room.append(
            spelling::name(line.name.as_bytes())?,
            HeaderValue::from_maybe_shared(part(line.value)).ok()?,
        );
    }
    let mut request = Request::new(RequestBody::empty());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_maybe_shared(part(target.as_bytes())).ok()?;
    *request.headers_mut() = std::mem::take(room);
    let may_follow = !said.close;
    Some((
        Head {
            request,
            may_follow,
        },
        length,
    ))
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
