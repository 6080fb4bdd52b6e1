//! The head of a request: what its bytes say.
//!
//! Faults that the client should be told in an answer of its own are flaws of a head that could be
//! read. Values are not copied: they are parts of what was read.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{Method, Request, Uri, Version};
use httparse::{Header, ParserConfig, Status};

use super::content::Content;
use crate::request_head::HeadError;
use crate::wire::spelling;

/// Lines of a head for which no memory is allocated.
const USUAL_LINES: usize = 100;
/// Bytes of a target, at most: what `Uri` takes.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;

/// What a head may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadBounds {
    pub(crate) lines: usize,
    pub(crate) bytes: usize,
}

/// A head that was read.
#[derive(Debug)]
pub(crate) struct RequestFraming {
    /// Bytes of it.
    pub(crate) length: usize,
    /// Whether another request may follow on its connection.
    pub(crate) may_follow: bool,
    pub(crate) content: Content,
    /// The client sends its content once it was asked for it with `100 Continue`.
    pub(crate) expects_continue: bool,
    /// The client takes trailers (`TE`).
    pub(crate) takes_trailers: bool,
    pub(crate) error: Option<HeadError>,
}

/// Why a head cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Malformed,
    /// The last transfer coding is not `chunked`.
    Coding,
    TooLarge,
    TargetTooLong,
}

impl From<httparse::Error> for Unreadable {
    fn from(error: httparse::Error) -> Unreadable {
        match error {
            httparse::Error::TooManyHeaders => Unreadable::TooLarge,
            _ => Unreadable::Malformed,
        }
    }
}

/// Whether the head at the front of `read` has all of its bytes. Looks for its end only.
pub(crate) fn is_whole(read: &[u8], bounds: HeadBounds) -> Result<bool, Unreadable> {
    let mut lines = vec![httparse::EMPTY_HEADER; bounds.lines];
    let parsed = httparse::Request::new(&mut lines).parse(read)?;
    Ok(parsed.is_complete())
}

/// Reads the head at the front of `read` into `request`, which is a new one or [`blank`]. Nothing
/// if its end has not come; then and after an error `request` has no meaning.
pub(crate) fn read<B>(
    read: &Bytes,
    request: &mut Request<B>,
    bounds: HeadBounds,
) -> Result<Option<RequestFraming>, Unreadable> {
    let mut lines = [const { MaybeUninit::<Header<'_>>::uninit() }; USUAL_LINES];
    let usual = bounds.lines.min(USUAL_LINES);
    match parse(read, request, bounds, &mut lines[..usual]) {
        Err(Unreadable::TooLarge) if bounds.lines > usual => {
            let mut lines = vec![MaybeUninit::uninit(); bounds.lines];
            parse(read, request, bounds, &mut lines)
        }
        parsed => parsed,
    }
}

fn parse<'r, B>(
    read: &'r Bytes,
    request: &mut Request<B>,
    bounds: HeadBounds,
    lines: &mut [MaybeUninit<Header<'r>>],
) -> Result<Option<RequestFraming>, Unreadable> {
    let mut parsed = httparse::Request::new(&mut []);
    let status =
        ParserConfig::default().parse_request_with_uninit_headers(&mut parsed, read, lines)?;
    let (Status::Complete(length), Some(method), Some(target)) =
        (status, parsed.method, parsed.path)
    else {
        return Ok(None);
    };
    if target.len() > MAX_TARGET_BYTES {
        return Err(Unreadable::TargetTooLong);
    }
    let is_http10 = parsed.version == Some(0);
    let front = read.as_ptr() as usize;
    let part = |part: &[u8]| {
        let from = part.as_ptr() as usize - front;
        read.slice(from..from + part.len())
    };
    let ends_well = |part: &[u8], skip: usize| {
        let end = part.as_ptr() as usize - front + part.len() + skip;
        read.get(end..end + 2) == Some(b"\r\n")
    };
    // Mostly each line's end is where it must be; otherwise all bytes are looked at.
    let mut in_order =
        ends_well(target.as_bytes(), " HTTP/1.1".len()) && read[..length].ends_with(b"\r\n");
    let mut said = HeadLines::new(is_http10);
    let headers = request.headers_mut();
    headers.reserve(parsed.headers.len());
    for line in parsed.headers.iter() {
        in_order &= ends_well(line.value, 0);
        if !said.look(line.name.as_bytes(), line.value)? {
            continue;
        }
        headers.append(
            spelling::name(line.name.as_bytes()).ok_or(Unreadable::Malformed)?,
            HeaderValue::from_maybe_shared(part(line.value)).map_err(|_| Unreadable::Malformed)?,
        );
    }
    if said.coding == Some(false) {
        return Err(Unreadable::Coding);
    }
    *request.method_mut() =
        Method::from_bytes(method.as_bytes()).map_err(|_| Unreadable::Malformed)?;
    *request.uri_mut() =
        Uri::from_maybe_shared(part(target.as_bytes())).map_err(|_| Unreadable::Malformed)?;
    *request.version_mut() = match is_http10 {
        true => Version::HTTP_10,
        false => Version::HTTP_11,
    };
    let error = if !in_order && has_bare_lf(&read[..length]) {
        Some(HeadError::BareLf)
    } else if length > bounds.bytes {
        Some(HeadError::TooLarge)
    } else {
        said.two_lengths().then_some(HeadError::TwoLengths)
    };
    Ok(Some(said.head(length, error)))
}

fn has_bare_lf(head: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r')
}

/// Makes of a request one that is as good as new: nothing of it holds what was read, and the room
/// for its lines is left.
pub(crate) fn blank<B: Default>(request: &mut Request<B>) {
    request.headers_mut().clear();
    request.extensions_mut().clear();
    *request.uri_mut() = Uri::default();
    *request.body_mut() = B::default();
}

/// Whether the client takes trailers in its answer.
pub(crate) fn takes_trailers(value: &[u8]) -> bool {
    has_option(value, b"trailers")
}

/// What the lines of a head say of its connection and of what is behind it.
struct HeadLines {
    length: Option<u64>,
    /// Whether the last coding is `chunked`.
    coding: Option<bool>,
    has_length: bool,
    is_http10: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    takes_trailers: bool,
}

impl HeadLines {
    fn new(is_http10: bool) -> HeadLines {
        HeadLines {
            length: None,
            coding: None,
            has_length: false,
            is_http10,
            close: false,
            keep_alive: !is_http10,
            expects_continue: false,
            takes_trailers: false,
        }
    }

    /// Looks at a line. Returns whether it belongs to the request's fields.
    #[inline]
    fn look(&mut self, name: &[u8], value: &[u8]) -> Result<bool, Unreadable> {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        match name.len() {
            2 if is(b"te") => self.takes_trailers |= takes_trailers(value),
            6 if is(b"expect") => {
                self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
            }
            10 if is(b"connection") => {
                self.close |= has_option(value, b"close");
                self.keep_alive = self.keep_alive || has_option(value, b"keep-alive");
            }
            14 if is(b"content-length") => return self.look_at_length(value),
            17 if is(b"transfer-encoding") => {
                if self.is_http10 {
                    return Err(Unreadable::Malformed);
                }
                let last = value.rsplit(|&byte| byte == b',').next();
                let last = last.unwrap_or_default().trim_ascii();
                self.coding = Some(last.eq_ignore_ascii_case(b"chunked"));
            }
            _ => {}
        }
        Ok(true)
    }

    /// Lines that say the same are one.
    fn look_at_length(&mut self, value: &[u8]) -> Result<bool, Unreadable> {
        self.has_length = true;
        if self.coding.is_some() {
            return Ok(false);
        }
        let length = digits(value).ok_or(Unreadable::Malformed)?;
        match self.length.replace(length) {
            None => Ok(true),
            Some(before) if before == length => Ok(false),
            Some(_) => Err(Unreadable::Malformed),
        }
    }

    fn two_lengths(&self) -> bool {
        self.has_length && self.coding.is_some()
    }

    fn head(&self, length: usize, error: Option<HeadError>) -> RequestFraming {
        let content = match (self.coding, self.length) {
            (Some(_), _) => Content::request_chunks(),
            (None, None | Some(0)) => Content::Nothing,
            (None, Some(length)) => Content::Length(length),
        };
        RequestFraming {
            length,
            may_follow: self.keep_alive && !self.close && !self.two_lengths(),
            content,
            expects_continue: self.expects_continue && !self.is_http10,
            takes_trailers: self.takes_trailers,
            error,
        }
    }
}

/// A number of digits only.
pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Whether one of the options in a line is `option`.
pub(crate) fn has_option(value: &[u8], option: &[u8]) -> bool {
    let mut options = value.split(|&byte| byte == b',');
    options.any(|one| one.trim_ascii().eq_ignore_ascii_case(option))
}
