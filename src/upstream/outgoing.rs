//! A request on its way to an upstream, and the log of its attempts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};

use crate::body::RequestBody;
use crate::clock;
use crate::config::ServerAddress;
use crate::http1::write::put_line;
use crate::trace::{Context, SpanId};

/// A request on its way to an upstream.
#[derive(Debug)]
pub struct Outgoing<'r> {
    /// In origin form. Sending takes parts of it away.
    pub request: &'r mut Request<RequestBody>,
    /// Header lines that are not in the request's map.
    pub prerendered: Option<PrerenderedHeaders>,
    /// Bounds the whole exchange, up to the last byte of the response.
    pub timeout: Option<Duration>,
    /// How to send it.
    pub options: SendOptions,
}

/// Facts about a request that its head does not contain.
#[derive(Debug, Default)]
pub struct SendOptions {
    /// Whether the request asks for a tunnel.
    pub asks_upgrade: bool,
    /// Whether the request has a `Host` line; otherwise it gets that of its server.
    pub has_host: bool,
    /// With `balance = "hash"`, requests with the same number go to the same server.
    pub affinity: Option<u64>,
    /// Whether this is a gRPC call, whose response has a status of its own.
    pub is_grpc: bool,
    /// Records each attempt, if the request is traced.
    pub attempts: Option<Arc<AttemptLog>>,
}

impl<'r> From<&'r mut Request<RequestBody>> for Outgoing<'r> {
    fn from(request: &'r mut Request<RequestBody>) -> Outgoing<'r> {
        let options = SendOptions {
            asks_upgrade: request.headers().contains_key(UPGRADE),
            has_host: request.headers().contains_key(HOST),
            ..SendOptions::default()
        };
        Outgoing {
            request,
            prerendered: None,
            timeout: None,
            options,
        }
    }
}

/// Header lines that are equal in every request of one client, rendered once as HTTP/1.1. The map
/// of a request that has them contains none of their names.
#[derive(Clone, Debug)]
pub struct PrerenderedHeaders(Bytes);

impl PrerenderedHeaders {
    /// Renders `headers`.
    pub fn new(headers: &HeaderMap) -> PrerenderedHeaders {
        let mut lines = Vec::new();
        for (name, value) in headers {
            put_line(&mut lines, name, value.as_bytes());
        }
        PrerenderedHeaders(lines.into_boxed_slice().into())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Inserts the lines into a map.
    pub fn insert_into(&self, headers: &mut HeaderMap) {
        for line in self.0.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let name = HeaderName::from_bytes(&line[..colon]);
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.insert(name, value);
            }
        }
    }
}

/// Rebuilds a request without a body from its head as it was written to HTTP/1.1.
///
/// A copy that costs almost nothing: the connection keeps the bytes until its next request, and
/// only a retry parses them.
pub(super) fn parse_request(head: &[u8]) -> Option<Request<RequestBody>> {
    let lines = head.iter().filter(|&&byte| byte == b'\n').count();
    let mut fields = vec![httparse::EMPTY_HEADER; lines];
    let mut parsed = httparse::Request::new(&mut fields);
    if parsed.parse(head).ok()? != httparse::Status::Complete(head.len()) {
        return None;
    }
    let mut request = Request::builder().method(parsed.method?).uri(parsed.path?);
    for field in parsed.headers.iter() {
        request = request.header(field.name, field.value);
    }
    request.body(RequestBody::empty()).ok()
}

/// Copies a request that has no body.
pub(super) fn copy_request(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// The attempts to send one traced request. Each attempt is a span, and `traceparent` tells the
/// server its id.
#[derive(Debug)]
pub struct AttemptLog {
    parent: Context,
    attempts: Mutex<Vec<RecordedAttempt>>,
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct RecordedAttempt {
    /// The attempt's own span.
    pub span: SpanId,
    /// The server's name or address, or the path of its socket.
    pub address: String,
    /// The server's port, if it has one.
    pub port: Option<u16>,
    /// When it began.
    pub began: Instant,
    /// When it ended; `None` while it runs.
    pub ended: Option<Instant>,
    /// The status of the response.
    pub status: Option<u16>,
    /// The label of the error, if there was no response.
    pub error: Option<&'static str>,
}

impl AttemptLog {
    /// `parent` is the span of the request.
    pub fn new(parent: Context) -> Arc<AttemptLog> {
        Arc::new(AttemptLog {
            parent,
            attempts: Mutex::default(),
        })
    }

    /// Takes the recorded attempts.
    pub fn take(&self) -> Vec<RecordedAttempt> {
        std::mem::take(&mut *self.lock())
    }

    /// Records the start of an attempt and returns its trace context. An attempt that is still open
    /// goes on: an idle connection that turned out to be closed does not count.
    pub(super) fn begin(&self, server: &ServerAddress) -> Context {
        let mut attempts = self.lock();
        if let Some(last) = attempts.last().filter(|last| last.ended.is_none()) {
            return self.parent.with(last.span);
        }
        let (address, port) = match server {
            ServerAddress::Unix(path) => (path.display().to_string(), None),
            ServerAddress::Http(host, port)
            | ServerAddress::Https(host, port)
            | ServerAddress::H2c(host, port) => (host.clone(), Some(*port)),
        };
        let span = SpanId::made();
        attempts.push(RecordedAttempt {
            span,
            address,
            port,
            began: clock::now(),
            ended: None,
            status: None,
            error: None,
        });
        self.parent.with(span)
    }

    /// Records the end of the last attempt: a status or the label of an error.
    pub(super) fn end(&self, outcome: Result<u16, &'static str>) {
        if let Some(last) = self.lock().last_mut() {
            last.ended = Some(clock::now());
            last.status = outcome.ok();
            last.error = outcome.err();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordedAttempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"PUT /a?b=%20c HTTP/1.1\r\nhost: x\r\na: 1\r\na: \xff\r\nempty:\r\n\r\n";

    #[test]
    fn what_was_written_is_the_request_again() {
        let request = parse_request(HEAD).unwrap();
        assert_eq!(request.method(), "PUT");
        assert_eq!(request.uri(), "/a?b=%20c");
        let values: Vec<_> = request.headers().get_all("a").iter().collect();
        assert_eq!(values, ["1".as_bytes(), b"\xff"]);
        assert_eq!(request.headers()["empty"], "");
        assert_eq!(request.headers().len(), 4);
    }

    #[test]
    fn part_of_a_head_or_more_than_one_is_no_request() {
        for bytes in [&HEAD[..20], &[HEAD, HEAD].concat(), b""] {
            assert!(parse_request(bytes).is_none());
        }
    }

    #[test]
    fn what_was_worded_is_in_the_map_again_however_often_it_joins() {
        let lines = [("x-real-ip", "2001:db8::1"), ("via", "1.1 a: b")];
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let prerendered = PrerenderedHeaders::new(&headers);
        let worded: &[u8] = b"x-real-ip: 2001:db8::1\r\nvia: 1.1 a: b\r\n";
        assert_eq!(prerendered.as_bytes(), worded);
        let mut joined = HeaderMap::new();
        joined.insert("host", HeaderValue::from_static("a"));
        prerendered.insert_into(&mut joined);
        prerendered.insert_into(&mut joined);
        headers.insert("host", HeaderValue::from_static("a"));
        assert_eq!(joined, headers);
    }
}
