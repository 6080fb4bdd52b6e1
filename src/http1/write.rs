//! The answer to a request as bytes: its head, and its content framed as that says. The date is
//! read from the clock.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING,
};
use http::{Response, StatusCode};
use hyper::ext::ReasonPhrase;

use super::date;
use super::head::has_option;
use tidegate_core::exchange::headers::put_line;

use crate::wire::outflow::Outflow;

/// Up to so many bytes that wait, content is copied: the kernel is handed one piece.
const JOIN_BYTES: usize = 4096;
/// Room for a line.
const LINE_BYTES: usize = 48;

/// What the request was, as far as its answer's form depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerTerms {
    pub(crate) is_head: bool,
    pub(crate) is_http10: bool,
    pub(crate) may_follow: bool,
}

/// How content is framed, and what of it is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerFraming {
    Length(u64),
    Chunks,
    /// All that comes until the connection ends.
    UntilEnd,
}

/// What a body says of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Nothing,
    Known(u64),
    Unknown,
}

impl Length {
    pub(crate) fn of<B: http_body::Body>(body: &B) -> Length {
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
pub(crate) struct Unframed;

/// How an answer goes on once its head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerStart {
    pub(crate) framing: AnswerFraming,
    /// Whether another answer may follow on the connection.
    pub(crate) may_follow: bool,
}

/// Writes the head of an answer whose body says `length`; `at` is of the worker's coarse clock.
pub(crate) fn put_head<B>(
    out: &mut Vec<u8>,
    answer: &Response<B>,
    length: Length,
    at: Duration,
    asked: AnswerTerms,
) -> Result<AnswerStart, Unframed> {
    let status = answer.status();
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(Unframed);
    }
    let headers = answer.headers();
    out.reserve((headers.len() + 2) * LINE_BYTES);
    put_status(out, status, asked.is_http10, answer.extensions().get());
    let has_content = !asked.is_head
        && !status.is_informational()
        && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    // HTTP/1.0 has no chunks: only the end of the connection ends such content.
    let until_end = asked.is_http10
        && has_content
        && length == Length::Unknown
        && !headers.contains_key(CONTENT_LENGTH);
    let mut lines = HeadWriter {
        out,
        framing: until_end.then_some(AnswerFraming::UntilEnd),
        is_http10: asked.is_http10,
        may_follow: asked.may_follow && !until_end,
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
                lines.put_length(headers, value, length, asked.is_head)?;
            }
            TRANSFER_ENCODING if is_new && has_content && !asked.is_http10 => {
                lines.put_coding(headers)?;
            }
            CONNECTION if is_new => lines.put_connection(headers),
            TRAILER if is_new && has_content && !asked.is_http10 => {
                lines.put_joined(&TRAILER, headers, None);
            }
            CONTENT_LENGTH | TRANSFER_ENCODING | CONNECTION | TRAILER => {}
            _ => {
                lines.has_date |= *name == DATE;
                put_line(lines.out, name, value.as_bytes());
            }
        }
    }
    Ok(lines.end(length, at, status, has_content))
}

/// Makes of an answer whose head was written one that is as good as new, but for its body: the room
/// for its lines is left.
pub(crate) fn blank<B>(answer: &mut Response<B>) {
    *answer.status_mut() = StatusCode::OK;
    answer.headers_mut().clear();
    answer.extensions_mut().clear();
}

fn put_date(out: &mut Vec<u8>, at: Duration) {
    out.extend_from_slice(b"date: ");
    date::put(out, at);
    out.extend_from_slice(b"\r\n");
}

fn put_status(
    out: &mut Vec<u8>,
    status: StatusCode,
    is_http10: bool,
    reason: Option<&ReasonPhrase>,
) {
    if status == StatusCode::OK && reason.is_none() && !is_http10 {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(if is_http10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    let usual = || status.canonical_reason().unwrap_or("<none>").as_bytes();
    out.extend_from_slice(reason.map_or_else(usual, ReasonPhrase::as_bytes));
    out.extend_from_slice(b"\r\n");
}

/// The lines of a head on their way out.
struct HeadWriter<'o> {
    out: &'o mut Vec<u8>,
    /// How content is framed, where a line has said it.
    framing: Option<AnswerFraming>,
    is_http10: bool,
    may_follow: bool,
    has_connection: bool,
    has_date: bool,
}

impl HeadWriter<'_> {
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
        headers: &HeaderMap,
        value: &HeaderValue,
        length: Length,
        is_head: bool,
    ) -> Result<(), Unframed> {
        let values = || headers.get_all(CONTENT_LENGTH).iter();
        let framing = match length {
            // It may be what the answer to a GET would say. Otherwise the end says what is true.
            Length::Nothing if !is_head => return Ok(()),
            Length::Nothing => AnswerFraming::Length(0),
            Length::Known(known) => AnswerFraming::Length(known),
            Length::Unknown if values().any(|other| other != value) => return Err(Unframed),
            Length::Unknown => {
                let number = value.to_str().ok().and_then(|text| text.parse().ok());
                AnswerFraming::Length(number.ok_or(Unframed)?)
            }
        };
        if self.framing.replace(framing).is_some() {
            return Err(Unframed);
        }
        put_line(self.out, &CONTENT_LENGTH, value.as_bytes());
        Ok(())
    }

    fn put_coding(&mut self, headers: &HeaderMap) -> Result<(), Unframed> {
        if self.framing.replace(AnswerFraming::Chunks).is_some() {
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
        let has = |option: &[u8]| {
            let mut lines = headers.get_all(CONNECTION).iter();
            lines.any(|line| has_option(line.as_bytes(), option))
        };
        self.may_follow &= !has(b"close");
        let more = self.option().filter(|more| !has(more.as_bytes()));
        self.put_joined(&CONNECTION, headers, more);
    }

    /// What `Connection` has to say: each version has its own rule where nothing is said.
    fn option(&self) -> Option<&'static str> {
        match (self.is_http10, self.may_follow) {
            (false, false) => Some("close"),
            (true, true) => Some("keep-alive"),
            (false, true) | (true, false) => None,
        }
    }

    /// What no field of the answer has said.
    fn end(
        self,
        length: Length,
        at: Duration,
        status: StatusCode,
        has_content: bool,
    ) -> AnswerStart {
        let option = self.option().filter(|_| !self.has_connection);
        let out = self.out;
        if let Some(option) = option {
            put_line(out, &CONNECTION, option.as_bytes());
        }
        let framing = self.framing.unwrap_or_else(|| match length {
            Length::Unknown if has_content => {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                AnswerFraming::Chunks
            }
            Length::Unknown => AnswerFraming::Length(0),
            Length::Nothing | Length::Known(0) => {
                if has_content {
                    out.extend_from_slice(b"content-length: 0\r\n");
                }
                AnswerFraming::Length(0)
            }
            Length::Known(_) if matches!(status.as_u16(), 204 | 304) => AnswerFraming::Length(0),
            Length::Known(length) => {
                let mut digits = itoa::Buffer::new();
                put_line(out, &CONTENT_LENGTH, digits.format(length).as_bytes());
                AnswerFraming::Length(length)
            }
        });
        if !self.has_date {
            put_date(out, at);
        }
        out.extend_from_slice(b"\r\n");
        let framing = if has_content {
            framing
        } else {
            AnswerFraming::Length(0)
        };
        AnswerStart {
            framing,
            may_follow: self.may_follow,
        }
    }
}

/// The names of trailers that `headers` announce and that may be trailers.
pub(crate) fn announced_trailers(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(TRAILER).iter();
    let names = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    names
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(may_trail)
        .collect()
}

/// Whether a field may come behind the content (RFC 9110 section 6.5.1).
fn may_trail(name: &HeaderName) -> bool {
    !matches!(
        *name,
        AUTHORIZATION
            | CACHE_CONTROL
            | CONTENT_ENCODING
            | CONTENT_LENGTH
            | CONTENT_RANGE
            | CONTENT_TYPE
            | HOST
            | MAX_FORWARDS
            | SET_COOKIE
            | TE
            | TRAILER
            | TRANSFER_ENCODING
    )
}

/// Ends chunks with those of `trailers` that were announced.
pub(crate) fn put_trailers(out: &mut Vec<u8>, trailers: &HeaderMap, announced: &[HeaderName]) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        if announced.contains(name) {
            put_line(out, name, value.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the beginning of a chunk of so many bytes.
pub(crate) fn put_chunk_size(out: &mut Vec<u8>, length: usize) {
    // Written to a vector: it cannot fail.
    let _ = write!(out, "{length:X}\r\n");
}

impl AnswerFraming {
    /// Whether nothing more is to come.
    pub(crate) fn has_ended(self) -> bool {
        self == AnswerFraming::Length(0)
    }

    /// Puts a piece of content behind what waits.
    pub(crate) fn put(&mut self, outflow: &mut Outflow, mut data: Bytes) {
        match self {
            _ if data.is_empty() => {}
            AnswerFraming::UntilEnd => push(outflow, data),
            AnswerFraming::Length(left) => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                push(outflow, data);
            }
            AnswerFraming::Chunks => {
                put_chunk_size(&mut outflow.flat, data.len());
                push(outflow, data);
                outflow.flat.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The content has ended, with those of the trailers that the names announce.
    pub(crate) fn end(
        self,
        outflow: &mut Outflow,
        trailers: Option<(&HeaderMap, &[HeaderName])>,
    ) -> Result<(), Unframed> {
        match self {
            AnswerFraming::Length(0) | AnswerFraming::UntilEnd => Ok(()),
            AnswerFraming::Length(_) => Err(Unframed),
            AnswerFraming::Chunks => {
                match trailers {
                    Some((trailers, announced)) => {
                        put_trailers(&mut outflow.flat, trailers, announced);
                    }
                    None => outflow.flat.extend_from_slice(b"0\r\n\r\n"),
                }
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
