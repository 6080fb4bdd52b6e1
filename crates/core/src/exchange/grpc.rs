//! gRPC: denials and refusals in the form that its clients read, and the status of each call.
//!
//! A refusal is HTTP 200 with the status in the only header block ("Trailers-Only", gRPC over
//! HTTP/2 protocol). Clients take an HTTP 429 for UNAVAILABLE, which many of them retry at once.
//! The protobuf messages of google/rpc/status.proto and error_details.proto are written by hand.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::telemetry::metrics::grpc::is_in_body;
use crate::telemetry::metrics::{GrpcCounter, GrpcStatus};

/// RESOURCE_EXHAUSTED, which Google's API guide maps to 429.
const RESOURCE_EXHAUSTED: u8 = 8;
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const QUOTA_FAILURE: &str = "type.googleapis.com/google.rpc.QuotaFailure";

pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(is_grpc_type)
}

pub fn is_grpc_type(content_type: &HeaderValue) -> bool {
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b'-' | b';' | b' ')))
}

/// Translates a response for a gRPC client. `detail` becomes its message.
pub fn translate(answer: Response<Bytes>, detail: &str) -> Response<Bytes> {
    let (mut head, _) = answer.into_parts();
    let code = code_of(head.status);
    head.status = StatusCode::OK;
    let headers = &mut head.headers;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(name("grpc-status"), HeaderValue::from(code));
    insert_text(headers, "grpc-message", &percent_encode(detail));
    let wait = headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok());
    if let Some(seconds) = wait.and_then(|wait| wait.parse::<u64>().ok()) {
        let millis = seconds.saturating_mul(1000).to_string();
        insert_text(headers, "grpc-retry-pushback-ms", &millis);
    }
    Response::from_parts(head, Bytes::new())
}

/// The code of google.rpc with the same meaning.
fn code_of(status: StatusCode) -> u16 {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::EXPECTATION_FAILED => 3,
        // A retry of these could make the call twice.
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => 4,
        StatusCode::FORBIDDEN => 7,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => 8,
        // No such service or method here.
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => 12,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => 14,
        StatusCode::UNAUTHORIZED => 16,
        _ => 13,
    }
}

/// A denial for a gRPC client.
pub struct GrpcDenial<'d> {
    pub message: &'d str,
    /// The exact wait, microseconds. `None` tells clients not to retry, by a negative pushback
    /// (gRFC A6).
    pub retry_us: Option<u64>,
    /// The policies that deny.
    pub violated: &'d [&'d str],
}

/// Writes the status of a denial.
pub fn write_denial(headers: &mut HeaderMap, denial: &GrpcDenial<'_>) {
    let millis = denial.retry_us.map(|us| us.div_ceil(1000));
    headers.insert(
        name("grpc-status"),
        HeaderValue::from(u16::from(RESOURCE_EXHAUSTED)),
    );
    insert_text(headers, "grpc-message", &percent_encode(denial.message));
    let pushback = millis.map_or_else(|| "-1".to_owned(), |millis| millis.to_string());
    insert_text(headers, "grpc-retry-pushback-ms", &pushback);
    let details = STANDARD_NO_PAD.encode(status(denial, millis));
    insert_text(headers, "grpc-status-details-bin", &details);
}

fn name(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

fn insert_text(headers: &mut HeaderMap, header: &'static str, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name(header), value);
    }
}

/// Encodes `grpc-message`: all characters from space to `~` stay, except `%`.
pub fn percent_encode(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `google.rpc.Status { code, message, details: [RetryInfo { retry_delay }, QuotaFailure {
/// violations: [{ subject, description }] }] }`. The subject is a policy. OTLP exporters retry only
/// if there is a `RetryInfo`.
fn status(denial: &GrpcDenial<'_>, retry_millis: Option<u64>) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint_field(&mut out, 1, u64::from(RESOURCE_EXHAUSTED));
    put_bytes_field(&mut out, 2, denial.message.as_bytes());
    if let Some(millis) = retry_millis {
        let mut delay = Vec::new();
        put_varint_field(&mut delay, 1, millis / 1000);
        put_varint_field(&mut delay, 2, millis % 1000 * 1_000_000);
        let mut retry_info = Vec::new();
        put_bytes_field(&mut retry_info, 1, &delay);
        put_detail(&mut out, RETRY_INFO, &retry_info);
    }
    let mut failure = Vec::new();
    for policy in denial.violated {
        let mut violation = Vec::new();
        put_bytes_field(&mut violation, 1, policy.as_bytes());
        put_bytes_field(&mut violation, 2, denial.message.as_bytes());
        put_bytes_field(&mut failure, 1, &violation);
    }
    put_detail(&mut out, QUOTA_FAILURE, &failure);
    out
}

/// Adds a `google.protobuf.Any` to the details of a status.
fn put_detail(out: &mut Vec<u8>, kind: &str, message: &[u8]) {
    let mut any = Vec::new();
    put_bytes_field(&mut any, 1, kind.as_bytes());
    put_bytes_field(&mut any, 2, message);
    put_bytes_field(out, 3, &any);
}

/// Field numbers are below 16, so one byte holds the number and the wire type.
fn put_varint_field(out: &mut Vec<u8>, field: u8, value: u64) {
    if value > 0 {
        out.push(field << 3);
        put_varint(out, value);
    }
}

fn put_bytes_field(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// One gRPC call. It is counted when its response ends.
#[derive(Debug)]
pub struct Call {
    counter: GrpcCounter,
    http_status: u16,
    status: Option<GrpcStatus>,
}

impl Call {
    /// Begins with the head of the response. `None` for gRPC-Web, whose status is in the body.
    pub fn begin<B>(counter: GrpcCounter, answer: &Response<B>) -> Option<Box<Call>> {
        let status = GrpcStatus::in_head(answer);
        if status.is_none() && is_in_body(answer.headers()) {
            return None;
        }
        Some(Box::new(Call {
            counter,
            http_status: answer.status().as_u16(),
            status,
        }))
    }

    pub fn note_trailers(&mut self, trailers: &HeaderMap) {
        self.status = GrpcStatus::from_fields(trailers).or(self.status);
    }

    /// Notes that the upstream broke the response off.
    pub fn note_break(&mut self) {
        self.status.get_or_insert(GrpcStatus::Missing);
    }

    /// Counts the call, once. `is_whole` is false if the client left before the end.
    pub fn end(&mut self, is_whole: bool) {
        let absent = match is_whole {
            true => GrpcStatus::Missing,
            false => GrpcStatus::CANCELLED,
        };
        let status = *self.status.get_or_insert(absent);
        self.counter.ended(status, self.http_status);
    }

    /// The status, if it has come.
    pub fn status(&self) -> Option<GrpcStatus> {
        self.status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(retry_us: Option<u64>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let denial = GrpcDenial {
            message: "100% used",
            retry_us,
            violated: &["plan"],
        };
        write_denial(&mut headers, &denial);
        headers
    }

    #[test]
    fn a_denial_carries_status_message_pushback_and_retry_info() {
        let headers = denial(Some(13_000_001));
        assert_eq!(headers["grpc-status"], "8");
        assert_eq!(headers["grpc-message"], "100%25 used");
        assert_eq!(headers["grpc-retry-pushback-ms"], "13001");
        let bytes = STANDARD_NO_PAD
            .decode(&headers["grpc-status-details-bin"])
            .unwrap();
        let mut expected = vec![0x08, 8, 0x12, 9];
        expected.extend_from_slice(b"100% used");
        // details: Any { type_url, value: RetryInfo { Duration { 13 s, 1,000,000 ns } } }
        expected.extend_from_slice(&[0x1a, 52, 0x0a, 40]);
        expected.extend_from_slice(RETRY_INFO.as_bytes());
        expected.extend_from_slice(&[0x12, 8, 0x0a, 6, 0x08, 13, 0x10, 0xc0, 0x84, 0x3d]);
        // Any { type_url, value: QuotaFailure { Violation { subject, description } } }
        expected.extend_from_slice(&[0x1a, 66, 0x0a, 43]);
        expected.extend_from_slice(QUOTA_FAILURE.as_bytes());
        expected.extend_from_slice(&[0x12, 19, 0x0a, 17, 0x0a, 4]);
        expected.extend_from_slice(b"plan");
        expected.extend_from_slice(&[0x12, 9]);
        expected.extend_from_slice(b"100% used");
        assert_eq!(bytes, expected);
    }

    #[test]
    fn other_types_that_begin_alike_are_not_grpc() {
        let is_grpc = |text| is_grpc_type(&HeaderValue::from_static(text));
        assert!(is_grpc("application/grpc") && is_grpc("application/grpc+proto"));
        assert!(is_grpc("application/grpc-web") && is_grpc("application/grpc; a=b"));
        assert!(!is_grpc("application/grpcfoo") && !is_grpc("text/plain"));
    }

    #[test]
    fn where_no_wait_helps_clients_are_told_not_to_retry() {
        assert_eq!(denial(None)["grpc-retry-pushback-ms"], "-1");
    }

    #[test]
    fn a_refusal_keeps_its_sentence_and_says_when_to_come_back() {
        let answer = Response::builder()
            .status(503)
            .header(CONTENT_TYPE, "application/problem+json")
            .header(RETRY_AFTER, "2")
            .header("cache-control", "no-store")
            .body(Bytes::from_static(b"{}"))
            .unwrap();
        let answer = translate(answer, "not now");
        let headers = answer.headers();
        assert_eq!((answer.status().as_u16(), answer.body().len()), (200, 0));
        assert_eq!(headers[CONTENT_TYPE], "application/grpc");
        assert_eq!(headers["grpc-status"], "14");
        assert_eq!(headers["grpc-message"], "not now");
        assert_eq!(headers["grpc-retry-pushback-ms"], "2000");
        assert_eq!(headers["cache-control"], "no-store");
    }

    #[test]
    fn grpc_and_its_subtypes_are_told_from_the_rest() {
        let headers = |value: &'static str| {
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))])
        };
        assert!(is_grpc(&headers("application/grpc")));
        assert!(is_grpc(&headers("application/grpc+proto")));
        assert!(is_grpc(&headers("application/grpc-web")));
        assert!(!is_grpc(&headers("application/json")));
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
