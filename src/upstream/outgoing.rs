//! A request on its way to an upstream.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::header::{HOST, UPGRADE};
pub use tidegate_core::exchange::headers::PrerenderedHeaders;
pub use tidegate_core::telemetry::spans::{AttemptLog, RecordedAttempt};

use crate::body::RequestBody;

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
}
