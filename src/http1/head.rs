//! Parses the head of a request (RFC 9112).
//!
//! An [`Unreadable`] head has no meaning. A head with a [`HeadError`] was parsed, and its request
//! is answered with that error. Header values are slices of the bytes that were read, not copies.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Uri, Version};
use httparse::{Header, ParserConfig, Status};

use super::content::{Content, has_bare_lf};
use crate::request_head::HeadError;

/// Up to this many lines are parsed without an allocation.
const USUAL_LINES: usize = 100;
/// Bytes of a target. `Uri` takes no longer one.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadBounds {
    pub(crate) lines: usize,
    pub(crate) bytes: usize,
}

/// The consequences of a head for its connection and for the content of its request.
#[derive(Debug)]
pub(crate) struct RequestFraming {
    pub(crate) length: usize,
    pub(crate) may_follow: bool,
    pub(crate) content: Content,
    /// The client sends its content after `100 Continue`.
    pub(crate) expects_continue: bool,
    pub(crate) takes_trailers: bool,
    pub(crate) error: Option<HeadError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Malformed,
    /// The last transfer coding is not `chunked`.
    Coding,
    TooLong(HeadError),
}

impl From<httparse::Error> for Unreadable {
    fn from(error: httparse::Error) -> Unreadable {
        match error {
            httparse::Error::TooManyHeaders => Unreadable::TooLong(HeadError::TooManyLines),
            _ => Unreadable::Malformed,
        }
    }
}

pub(crate) fn is_whole(read: &[u8], bounds: HeadBounds) -> Result<bool, Unreadable> {
    let mut lines = vec![httparse::EMPTY_HEADER; bounds.lines];
    let parsed = httparse::Request::new(&mut lines).parse(read)?;
    Ok(parsed.is_complete())
}

/// Parses the head at the front of `read` into `request`, which must be new or [`reset`].
///
/// Returns `None` while the head is incomplete. In this case, and after an error, the content of
/// `request` is undefined.
pub(crate) fn read<B>(
    read: &Bytes,
    request: &mut Request<B>,
    bounds: HeadBounds,
) -> Result<Option<RequestFraming>, Unreadable> {
    let mut lines = [const { MaybeUninit::<Header<'_>>::uninit() }; USUAL_LINES];
    let usual = bounds.lines.min(USUAL_LINES);
    match parse(read, request, bounds, &mut lines[..usual]) {
        Err(Unreadable::TooLong(HeadError::TooManyLines)) if bounds.lines > usual => {
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
        return Err(Unreadable::TooLong(HeadError::TargetTooLong));
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
    // Usually each line ends with CRLF right after its value. Only otherwise all bytes are
    // searched.
    let mut in_order =
        ends_well(target.as_bytes(), " HTTP/1.1".len()) && read[..length].ends_with(b"\r\n");
    let mut framing = FramingLines::new(is_http10);
    let headers = request.headers_mut();
    headers.reserve(parsed.headers.len());
    for line in parsed.headers.iter() {
        in_order &= ends_well(line.value, 0);
        if !framing.add_line(line.name.as_bytes(), line.value)? {
            continue;
        }
        headers.append(
            header_name(line.name.as_bytes()).ok_or(Unreadable::Malformed)?,
            HeaderValue::from_maybe_shared(part(line.value)).map_err(|_| Unreadable::Malformed)?,
        );
    }
    if framing.coding == Some(false) {
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
        Some(exceeded(&read[..length], bounds))
    } else {
        framing.has_two_lengths().then_some(HeadError::TwoLengths)
    };
    Ok(Some(framing.finish(length, error)))
}

/// How a head is too large: a target may be the reason.
pub(crate) fn exceeded(head: &[u8], bounds: HeadBounds) -> HeadError {
    match head.get(..bounds.bytes) {
        Some(front) if !front.contains(&b'\n') => HeadError::TargetTooLong,
        _ => HeadError::TooLarge,
    }
}

/// Resets a request so that it can be used again. It keeps the capacity of its header map and
/// releases the bytes that were read.
pub(crate) fn reset<B: Default>(request: &mut Request<B>) {
    request.headers_mut().clear();
    request.extensions_mut().clear();
    *request.uri_mut() = Uri::default();
    *request.body_mut() = B::default();
}

#[derive(Default)]
struct FramingLines {
    length: Option<u64>,
    /// Whether the last transfer coding is `chunked`.
    coding: Option<bool>,
    has_length: bool,
    is_http10: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    takes_trailers: bool,
}

impl FramingLines {
    fn new(is_http10: bool) -> FramingLines {
        FramingLines {
            is_http10,
            keep_alive: !is_http10,
            ..FramingLines::default()
        }
    }

    /// Adds a line. Returns whether the line belongs into the header map of the request.
    #[inline]
    fn add_line(&mut self, name: &[u8], value: &[u8]) -> Result<bool, Unreadable> {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        match name.len() {
            2 if is(b"te") => self.takes_trailers |= has_option(value, b"trailers"),
            6 if is(b"expect") => {
                self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
            }
            10 if is(b"connection") => {
                self.close |= has_option(value, b"close");
                self.keep_alive = self.keep_alive || has_option(value, b"keep-alive");
            }
            14 if is(b"content-length") => return self.add_length(value),
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

    /// Equal lines count as one.
    fn add_length(&mut self, value: &[u8]) -> Result<bool, Unreadable> {
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

    fn has_two_lengths(&self) -> bool {
        self.has_length && self.coding.is_some()
    }

    fn finish(&self, length: usize, error: Option<HeadError>) -> RequestFraming {
        let content = match (self.coding, self.length) {
            (Some(_), _) => Content::request_chunks(),
            (None, None | Some(0)) => Content::Nothing,
            (None, Some(length)) => Content::Length(length),
        };
        RequestFraming {
            length,
            may_follow: self.keep_alive && !self.close && !self.has_two_lengths(),
            content,
            expects_continue: self.expects_continue && !self.is_http10,
            takes_trailers: self.takes_trailers,
            error,
        }
    }
}

pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    text.first().filter(|byte| byte.is_ascii_digit())?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether `option` is in the comma-separated list `value`.
pub(crate) fn has_option(value: &[u8], option: &[u8]) -> bool {
    let mut options = value.split(|&byte| byte == b',');
    options.any(|one| one.trim_ascii().eq_ignore_ascii_case(option))
}

/// Parses the name of a header. Usual names in usual spellings are found without a look at each
/// byte.
pub(crate) fn header_name(spelled: &[u8]) -> Option<HeaderName> {
    Some(match spelled {
        b"Host" | b"host" => header::HOST,
        b"ETag" | b"etag" => header::ETAG,
        b"Date" | b"date" => header::DATE,
        b"Vary" | b"vary" => header::VARY,
        b"Accept" | b"accept" => header::ACCEPT,
        b"Cookie" | b"cookie" => header::COOKIE,
        b"Origin" | b"origin" => header::ORIGIN,
        b"Server" | b"server" => header::SERVER,
        b"Referer" | b"referer" => header::REFERER,
        b"Location" | b"location" => header::LOCATION,
        b"Connection" | b"connection" => header::CONNECTION,
        b"User-Agent" | b"user-agent" => header::USER_AGENT,
        b"Set-Cookie" | b"set-cookie" => header::SET_COOKIE,
        b"Content-Type" | b"content-type" => header::CONTENT_TYPE,
        b"Cache-Control" | b"cache-control" => header::CACHE_CONTROL,
        b"Authorization" | b"authorization" => header::AUTHORIZATION,
        b"Last-Modified" | b"last-modified" => header::LAST_MODIFIED,
        b"Content-Length" | b"content-length" => header::CONTENT_LENGTH,
        b"Accept-Encoding" | b"accept-encoding" => header::ACCEPT_ENCODING,
        b"Accept-Language" | b"accept-language" => header::ACCEPT_LANGUAGE,
        b"Content-Encoding" | b"content-encoding" => header::CONTENT_ENCODING,
        b"Transfer-Encoding" | b"transfer-encoding" => header::TRANSFER_ENCODING,
        _ => return HeaderName::from_bytes(spelled).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_what_it_would_be_read_as() {
        let spelled = [
            "Host ETag Date Vary Accept Cookie Origin Server Referer Location Connection",
            "User-Agent Set-Cookie Content-Type Cache-Control Authorization Last-Modified",
            "Content-Length Accept-Encoding Accept-Language Content-Encoding Transfer-Encoding",
        ];
        for spelled in spelled.iter().flat_map(|line| line.split(' ')) {
            for spelled in [spelled, &spelled.to_lowercase()] {
                let read = HeaderName::from_bytes(spelled.as_bytes()).ok();
                assert_eq!(header_name(spelled.as_bytes()), read);
            }
        }
        assert_eq!(header_name(b"hOST"), Some(header::HOST));
        assert_eq!(header_name(b"a b"), None);
    }
}
