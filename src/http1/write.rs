//! Writes responses as HTTP/1.1: the head, and the content with the framing that the head
//! announces. The date is read from the clock.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, DATE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS,
    SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{Response, StatusCode};
use hyper::ext::ReasonPhrase;

use super::head::has_option;
use crate::clock;
use crate::wire::Outflow;
use tidegate_core::exchange::headers::put_line;

/// While at most this many bytes wait, content is copied behind them, so that one slice is written.
const JOIN_BYTES: usize = 4096;
const LINE_BYTES: usize = 48;

/// The properties of a request that decide the form of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseTerms {
    pub(crate) is_head: bool,
    pub(crate) is_http10: bool,
    pub(crate) may_follow: bool,
}

/// How content is framed, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseFraming {
    Length(u64),
    Chunks,
    UntilEnd,
}

/// The length of a body, if it is known.
pub(crate) fn length_of<B: http_body::Body>(body: &B) -> Option<u64> {
    match body.is_end_stream() {
        true => Some(0),
        false => body.size_hint().exact(),
    }
}

/// The content does not match the framing in its head.
#[derive(Debug)]
pub(crate) struct Unframed;

/// The framing of a response whose head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseStart {
    pub(crate) framing: ResponseFraming,
    pub(crate) may_follow: bool,
}

/// Writes the head of a response whose body has this `length`. `now` is from the worker's coarse
/// clock.
pub(crate) fn put_head<B>(
    out: &mut Vec<u8>,
    response: &Response<B>,
    length: Option<u64>,
    now: Duration,
    terms: ResponseTerms,
) -> Result<ResponseStart, Unframed> {
    let status = response.status();
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(Unframed);
    }
    let headers = response.headers();
    out.reserve((headers.len() + 2) * LINE_BYTES);
    put_status(out, status, response.extensions().get());
    let has_content = !terms.is_head
        && !status.is_informational()
        && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    // HTTP/1.0 has no chunks: only the end of the connection ends such content.
    let until_end =
        terms.is_http10 && has_content && length.is_none() && !headers.contains_key(CONTENT_LENGTH);
    let mut lines = HeadWriter {
        out,
        framing: until_end.then_some(ResponseFraming::UntilEnd),
        is_http10: terms.is_http10,
        may_follow: terms.may_follow && !until_end,
        has_connection: false,
        has_date: false,
    };
    let mut last: Option<&HeaderName> = None;
    for (name, value) in headers {
        // The lines of one name follow each other and share one `HeaderName`.
        let is_new = !last.is_some_and(|last| std::ptr::eq(last, name));
        last = Some(name);
        match *name {
            CONTENT_LENGTH if is_new => {
                lines.put_length(headers, value, length, terms.is_head)?;
            }
            TRANSFER_ENCODING if is_new && has_content && !terms.is_http10 => {
                lines.put_coding(headers)?;
            }
            CONNECTION if is_new => lines.put_connection(headers),
            TRAILER if is_new && has_content && !terms.is_http10 => {
                lines.put_joined(&TRAILER, headers, None);
            }
            CONTENT_LENGTH | TRANSFER_ENCODING | CONNECTION | TRAILER => {}
            _ => {
                lines.has_date |= *name == DATE;
                put_line(lines.out, name, value.as_bytes());
            }
        }
    }
    Ok(lines.finish(length, now, status, has_content))
}

/// Resets a response, except its body, so that it can be used again. It keeps the capacity of its
/// header map.
pub(crate) fn reset<B>(response: &mut Response<B>) {
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().clear();
    response.extensions_mut().clear();
}

struct CachedDate {
    /// When the text was last checked, by the coarse clock of this thread.
    at: Duration,
    second: u64,
    text: String,
}

thread_local! {
    static CACHED_DATE: RefCell<CachedDate> = const {
        RefCell::new(CachedDate { at: Duration::MAX, second: u64::MAX, text: String::new() })
    };
}

/// Writes the date. `now` is from the coarse clock, so the date is late by at most one of its
/// ticks.
fn put_date(out: &mut Vec<u8>, now: Duration) {
    CACHED_DATE.with_borrow_mut(|date| {
        if date.at != now {
            date.at = now;
            let second = clock::unix_us() / 1_000_000;
            if date.second != second {
                date.second = second;
                date.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            }
        }
        put_line(out, &DATE, date.text.as_bytes());
    });
}

/// Writes the first line. The version is this server's own, also for a request of HTTP/1.0
/// (RFC 9110 section 6.2).
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

struct HeadWriter<'o> {
    out: &'o mut Vec<u8>,
    framing: Option<ResponseFraming>,
    is_http10: bool,
    may_follow: bool,
    has_connection: bool,
    has_date: bool,
}

impl HeadWriter<'_> {
    /// Writes all lines of one name as a single line.
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
        length: Option<u64>,
        is_head: bool,
    ) -> Result<(), Unframed> {
        let values = || headers.get_all(CONTENT_LENGTH).iter();
        let framing = match length {
            // The response to HEAD may announce the length that GET would have.
            Some(0) if !is_head => return Ok(()),
            Some(known) => ResponseFraming::Length(known),
            None if values().any(|other| other != value) => return Err(Unframed),
            None => {
                let number = value.to_str().ok().and_then(|text| text.parse().ok());
                ResponseFraming::Length(number.ok_or(Unframed)?)
            }
        };
        if self.framing.replace(framing).is_some() {
            return Err(Unframed);
        }
        put_line(self.out, &CONTENT_LENGTH, value.as_bytes());
        Ok(())
    }

    fn put_coding(&mut self, headers: &HeaderMap) -> Result<(), Unframed> {
        if self.framing.replace(ResponseFraming::Chunks).is_some() {
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

    /// The option that `Connection` needs. A client of HTTP/1.0 expects the end without one, but
    /// the first line says HTTP/1.1, so the response always says `close`.
    fn option(&self) -> Option<&'static str> {
        match (self.is_http10, self.may_follow) {
            (_, false) => Some("close"),
            (true, true) => Some("keep-alive"),
            (false, true) => None,
        }
    }

    /// Writes the lines that the response does not have itself, and ends the head.
    fn finish(
        self,
        length: Option<u64>,
        now: Duration,
        status: StatusCode,
        has_content: bool,
    ) -> ResponseStart {
        let option = self.option().filter(|_| !self.has_connection);
        let out = self.out;
        if let Some(option) = option {
            put_line(out, &CONNECTION, option.as_bytes());
        }
        let framing = self.framing.unwrap_or_else(|| match length {
            None if has_content => {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                ResponseFraming::Chunks
            }
            None => ResponseFraming::Length(0),
            Some(0) => {
                if has_content {
                    out.extend_from_slice(b"content-length: 0\r\n");
                }
                ResponseFraming::Length(0)
            }
            Some(_) if matches!(status.as_u16(), 204 | 304) => ResponseFraming::Length(0),
            Some(length) => {
                let mut digits = itoa::Buffer::new();
                put_line(out, &CONTENT_LENGTH, digits.format(length).as_bytes());
                ResponseFraming::Length(length)
            }
        });
        if !self.has_date {
            put_date(out, now);
        }
        out.extend_from_slice(b"\r\n");
        ResponseStart {
            framing: match has_content {
                true => framing,
                false => ResponseFraming::Length(0),
            },
            may_follow: self.may_follow,
        }
    }
}

/// The trailers that `headers` announce, without those that are forbidden as trailers.
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

/// Headers that name a client, and those of one connection, which have no constant.
const NEVER_TRAILERS: [&str; 6] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "keep-alive",
    "proxy-connection",
];

/// Whether a field may be a trailer (RFC 9110 section 6.5.1). Servers may merge trailers into the
/// head, so a client must not name itself in them.
fn may_trail(name: &HeaderName) -> bool {
    !NEVER_TRAILERS.contains(&name.as_str().replace('_', "-").as_str())
        && !matches!(
            *name,
            AUTHORIZATION
                | CONNECTION
                | COOKIE
                | FORWARDED
                | UPGRADE
                | VIA
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

/// Removes the fields that are forbidden as trailers.
pub(crate) fn filter_trailers(trailers: HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(trailers.len());
    let mut last = None;
    for (name, value) in trailers {
        // Further lines of one name have none.
        last = name.or(last);
        if let Some(name) = last.as_ref().filter(|name| may_trail(name)) {
            kept.append(name.clone(), value);
        }
    }
    kept
}

/// Ends chunked content. Writes those of `trailers` that were announced.
pub(crate) fn put_trailers(out: &mut Vec<u8>, trailers: &HeaderMap, announced: &[HeaderName]) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        if announced.contains(name) {
            put_line(out, name, value.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the line before a chunk. Streams have many short chunks, so it does not use `fmt`.
pub(crate) fn put_chunk_size(out: &mut Vec<u8>, length: usize) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut line = *b"                \r\n";
    let mut begin = line.len() - 2;
    let mut rest = length;
    loop {
        begin -= 1;
        line[begin] = DIGITS[rest & 15];
        rest >>= 4;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&line[begin..]);
}

impl ResponseFraming {
    pub(crate) fn has_ended(self) -> bool {
        self == ResponseFraming::Length(0)
    }

    pub(crate) fn put(&mut self, outflow: &mut Outflow, mut data: Bytes) {
        match self {
            _ if data.is_empty() => {}
            ResponseFraming::UntilEnd => push(outflow, data),
            ResponseFraming::Length(left) => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                push(outflow, data);
            }
            ResponseFraming::Chunks => {
                put_chunk_size(&mut outflow.flat, data.len());
                push(outflow, data);
                outflow.flat.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Ends the content. `trailers` are written if their names were `announced`.
    pub(crate) fn end(
        self,
        outflow: &mut Outflow,
        trailers: Option<&HeaderMap>,
        announced: &[HeaderName],
    ) -> Result<(), Unframed> {
        match self {
            ResponseFraming::Length(0) | ResponseFraming::UntilEnd => {}
            ResponseFraming::Length(_) => return Err(Unframed),
            ResponseFraming::Chunks => match trailers {
                Some(trailers) => put_trailers(&mut outflow.flat, trailers, announced),
                None => outflow.flat.extend_from_slice(b"0\r\n\r\n"),
            },
        }
        Ok(())
    }
}

fn push(outflow: &mut Outflow, data: Bytes) {
    if outflow.flat.len() + data.len() <= JOIN_BYTES {
        outflow.flat.extend_from_slice(&data);
    } else {
        outflow.push(data);
    }
}

#[cfg(test)]
mod tests {
    use super::put_chunk_size;

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for length in [0, 1, 9, 10, 15, 16, 255, 256, 0xa_bcde, usize::MAX] {
            let mut line = Vec::new();
            put_chunk_size(&mut line, length);
            assert_eq!(line, format!("{length:X}\r\n").into_bytes());
        }
    }
}
