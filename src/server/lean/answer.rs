//! The answer to a request as bytes: its head, and its content framed as that says. Pure words but
//! for the date.
//!
//! It must write what hyper writes, byte for byte: which of the two speaks is not to be seen.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, HeaderValue, TRAILER,
    TRANSFER_ENCODING,
};
use http::{Response, StatusCode};
use hyper::ext::ReasonPhrase;

use super::date;
use crate::wire::outflow::Outflow;

/// Up to so many bytes that wait, content is copied: the kernel is handed one piece.
const JOIN_BYTES: usize = 4096;
/// Room for a line.
const LINE_BYTES: usize = 48;

/// What the request was, as far as its answer's form depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) is_head: bool,
    pub(super) may_follow: bool,
}

/// How content is framed, and what of it is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunks,
}

/// What a body says of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Nothing,
    Known(u64),
    Unknown,
}

impl Length {
    pub(super) fn of<B: http_body::Body>(body: &B) -> Length {
        if body.is_end_stream() {
            return Length::Nothing;
        }
        body.size_hint()
            .exact()
            .map_or(Length::Unknown, Length::Known)
    }
}

/// The content is not framed as its head says.
#[derive(Debug)]
pub(super) struct Unframed;

/// Writes the head of an answer that is made at `at` by the worker's coarse clock. Returns how its
/// content is framed, and whether another answer may follow.
pub(super) fn put_head<B>(
    out: &mut Vec<u8>,
    answer: &Response<B>,
    (length, at): (Length, Duration),
    asked: Asked,
) -> Result<(Framing, bool), Unframed> {
    let status = answer.status();
    if status.is_informational() {
        return Err(Unframed);
    }
    let headers = answer.headers();
    out.reserve((headers.len() + 2) * LINE_BYTES);
    put_status(out, status, answer.extensions().get());
    let has_content =
        !asked.is_head && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let mut lines = Lines {
        out,
        framing: None,
        may_follow: asked.may_follow,
        has_connection: false,
        has_date: false,
    };
    let mut last: Option<&HeaderName> = None;
    for (name, value) in headers {
        // The lines of one name are behind each other, and have the same name in one place.
        let is_new = !last.is_some_and(|last| std::ptr::eq(last, name));
        last = Some(name);
        match *name {
            CONTENT_LENGTH if is_new => {
                lines.put_length((headers, value), length, asked.is_head)?
            }
            TRANSFER_ENCODING if is_new && has_content => lines.put_coding(headers)?,
            CONNECTION if is_new => lines.put_connection(headers),
            TRAILER if is_new && has_content => lines.put_joined(&TRAILER, headers, None),
            CONTENT_LENGTH | TRANSFER_ENCODING | CONNECTION | TRAILER => {}
            _ => {
                lines.has_date |= *name == DATE;
                put_line(lines.out, name, value.as_bytes());
            }
        }
    }
    Ok(lines.end((length, at), status, has_content))
}

/// Makes of an answer whose head was written one that is as good as new, but for its body: the room
/// for its lines is left.
pub(super) fn blank<B>(answer: &mut Response<B>) {
    *answer.status_mut() = StatusCode::OK;
    answer.headers_mut().clear();
    answer.extensions_mut().clear();
}

/// Writes one line.
#[inline]
fn put_line(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn put_date(out: &mut Vec<u8>, at: Duration) {
    out.extend_from_slice(b"date: ");
    date::put(out, at);
    out.extend_from_slice(b"\r\n");
}

fn put_status(out: &mut Vec<u8>, status: StatusCode, reason: Option<&ReasonPhrase>) {
    if status == StatusCode::OK && reason.is_none() {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    let usual = || status.canonical_reason().unwrap_or("<none>").as_bytes();
    out.extend_from_slice(reason.map_or_else(usual, ReasonPhrase::as_bytes));
    out.extend_from_slice(b"\r\n");
}

/// The lines of a head on their way out.
struct Lines<'o> {
    out: &'o mut Vec<u8>,
    /// How content is framed, where a line has said it.
    framing: Option<Framing>,
    may_follow: bool,
    has_connection: bool,
    has_date: bool,
}

impl Lines<'_> {
    /// Of several lines of one name, one.
    fn put_joined(&mut self, name: &HeaderName, headers: &HeaderMap, more: Option<&str>) {
        self.out.extend_from_slice(name.as_str().as_bytes());
        let mut between: &[u8] = b": ";
        let values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
        for value in values.chain(more.map(str::as_bytes)) {
            self.out.extend_from_slice(between);
            self.out.extend_from_slice(value);
            between = b", ";
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn put_length(
        &mut self,
        (headers, value): (&HeaderMap, &HeaderValue),
        length: Length,
        is_head: bool,
    ) -> Result<(), Unframed> {
        let values = || headers.get_all(CONTENT_LENGTH).iter();
        let framing = match length {
            // It may be what the answer to a GET would say. Otherwise the end says what is true.
            Length::Nothing if !is_head => return Ok(()),
            Length::Nothing => Framing::Length(0),
            Length::Known(known) => Framing::Length(known),
            Length::Unknown if values().any(|other| other != value) => return Err(Unframed),
            Length::Unknown => {
                let number = value.to_str().ok().and_then(|text| text.parse().ok());
                Framing::Length(number.ok_or(Unframed)?)
            }
        };
        if self.framing.replace(framing).is_some() {
            return Err(Unframed);
        }
        put_line(self.out, &CONTENT_LENGTH, value.as_bytes());
        Ok(())
    }

    fn put_coding(&mut self, headers: &HeaderMap) -> Result<(), Unframed> {
        if self.framing.replace(Framing::Chunks).is_some() {
            return Err(Unframed);
        }
        let last = headers.get_all(TRANSFER_ENCODING).iter().next_back();
        let codings = last.and_then(|value| value.to_str().ok());
        let coding = codings.and_then(|codings| codings.rsplit(',').next());
        let is_chunked = coding.is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"));
        let more = (!is_chunked).then_some("chunked");
        self.put_joined(&TRANSFER_ENCODING, headers, more);
        Ok(())
    }

    fn put_connection(&mut self, headers: &HeaderMap) {
        self.has_connection = true;
        let closes = headers.get_all(CONNECTION).iter().any(says_close);
        let more = (!closes && !self.may_follow).then_some("close");
        self.may_follow &= !closes;
        self.put_joined(&CONNECTION, headers, more);
    }

    /// What hyper adds, in its order.
    fn end(
        self,
        (length, at): (Length, Duration),
        status: StatusCode,
        has_content: bool,
    ) -> (Framing, bool) {
        let out = self.out;
        if !self.may_follow && !self.has_connection {
            out.extend_from_slice(b"connection: close\r\n");
        }
        let framing = self.framing.unwrap_or_else(|| match length {
            Length::Unknown if has_content => {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Framing::Chunks
            }
            Length::Unknown => Framing::Length(0),
            Length::Nothing | Length::Known(0) => {
                if has_content {
                    out.extend_from_slice(b"content-length: 0\r\n");
                }
                Framing::Length(0)
            }
            Length::Known(_) if matches!(status.as_u16(), 204 | 304) => Framing::Length(0),
            Length::Known(length) => {
                let mut digits = itoa::Buffer::new();
                put_line(out, &CONTENT_LENGTH, digits.format(length).as_bytes());
                Framing::Length(length)
            }
        });
        if !self.has_date {
            put_date(out, at);
        }
        out.extend_from_slice(b"\r\n");
        let framing = if has_content {
            framing
        } else {
            Framing::Length(0)
        };
        (framing, self.may_follow)
    }
}

/// Whether one of the options in a line of `Connection` is `close`.
fn says_close(value: &HeaderValue) -> bool {
    let options = value.to_str().unwrap_or_default();
    let mut options = options.split(',');
    options.any(|option| option.trim().eq_ignore_ascii_case("close"))
}

impl Framing {
    /// Whether nothing more is to come.
    pub(super) fn has_ended(self) -> bool {
        self == Framing::Length(0)
    }

    /// Puts a piece of content behind what waits.
    pub(super) fn put(&mut self, outflow: &mut Outflow, mut data: Bytes) {
        match self {
            _ if data.is_empty() => {}
            Framing::Length(left) => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                push(outflow, data);
            }
            Framing::Chunks => {
                // Written to a vector: it cannot fail.
                let _ = write!(outflow.flat, "{:X}\r\n", data.len());
                push(outflow, data);
                outflow.flat.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The content has ended.
    pub(super) fn end(self, outflow: &mut Outflow) -> Result<(), Unframed> {
        match self {
            Framing::Length(0) => Ok(()),
            Framing::Length(_) => Err(Unframed),
            Framing::Chunks => {
                outflow.flat.extend_from_slice(b"0\r\n\r\n");
                Ok(())
            }
        }
    }
}

fn push(outflow: &mut Outflow, data: Bytes) {
    if outflow.flat.len() + data.len() <= JOIN_BYTES {
        outflow.flat.extend_from_slice(&data);
    } else {
        outflow.push(data);
    }
}
