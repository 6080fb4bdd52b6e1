//! The status of a gRPC call.
//!
//! HTTP says 200 of nearly every call. How it went is in `grpc-status`: in the trailers of its
//! answer, or in the head of an answer without a body.

use std::fmt;

use http::header::{CONTENT_TYPE, HeaderMap};
use http::{Response, StatusCode};

/// Statuses with a series of their own: the 17 of gRPC, all other numbers together, and calls whose
/// answer ended without a status.
pub const GRPC_STATUSES: [&str; 19] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
    "other", "none",
];

/// The index of the first status that gRPC does not define.
const OTHER: usize = 17;
const NONE: usize = 18;

/// How one call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcStatus {
    /// With this number.
    Code(u16),
    /// Its answer ended, or broke off, without a status.
    Missing,
}

impl GrpcStatus {
    /// The client left before the end of the answer.
    pub const CANCELLED: GrpcStatus = GrpcStatus::Code(1);

    /// The status in the head or in the trailers of an answer.
    pub fn of(fields: &HeaderMap) -> Option<GrpcStatus> {
        let value = fields.get("grpc-status")?.to_str().ok()?;
        value.trim().parse().ok().map(GrpcStatus::Code)
    }

    /// The status that the head of an answer tells; nothing where it comes with the trailers. An
    /// answer of HTTP without a status of gRPC means the status that clients make of it
    /// (gRPC, "HTTP to gRPC Status Code Mapping").
    pub fn in_head<B>(answer: &Response<B>) -> Option<GrpcStatus> {
        let of_http = || match answer.status() {
            StatusCode::OK => None,
            status => Some(GrpcStatus::Code(meaning(status))),
        };
        GrpcStatus::of(answer.headers()).or_else(of_http)
    }

    /// The number, where there is one.
    pub fn code(self) -> Option<u16> {
        match self {
            GrpcStatus::Code(code) => Some(code),
            GrpcStatus::Missing => None,
        }
    }

    /// Whether the server failed, as it does with an HTTP 5xx: UNKNOWN, DEADLINE_EXCEEDED,
    /// INTERNAL, UNAVAILABLE, DATA_LOSS, or no status at all. UNIMPLEMENTED is like a 404.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            GrpcStatus::Code(2 | 4 | 13 | 14 | 15) | GrpcStatus::Missing
        )
    }

    /// The status of HTTP that says the same of a server. A server that ends its answer without a
    /// status is a bad gateway's.
    pub fn as_http(self) -> StatusCode {
        match self {
            GrpcStatus::Code(2 | 13 | 15) => StatusCode::INTERNAL_SERVER_ERROR,
            GrpcStatus::Code(4) => StatusCode::GATEWAY_TIMEOUT,
            GrpcStatus::Code(8) => StatusCode::TOO_MANY_REQUESTS,
            GrpcStatus::Code(14) => StatusCode::SERVICE_UNAVAILABLE,
            GrpcStatus::Code(_) => StatusCode::OK,
            GrpcStatus::Missing => StatusCode::BAD_GATEWAY,
        }
    }

    /// Its place in [`GRPC_STATUSES`].
    pub fn index(self) -> usize {
        match self {
            GrpcStatus::Code(code) => usize::from(code).min(OTHER),
            GrpcStatus::Missing => NONE,
        }
    }
}

impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrpcStatus::Code(code) => write!(f, "{code}"),
            GrpcStatus::Missing => f.write_str("none"),
        }
    }
}

/// What clients make of an answer of HTTP that has no status of gRPC.
fn meaning(status: StatusCode) -> u16 {
    match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

/// Whether the status of an answer is part of its body, where a proxy does not look: gRPC-Web.
pub fn is_in_body(fields: &HeaderMap) -> bool {
    let content_type = fields.get(CONTENT_TYPE);
    content_type.is_some_and(|text| text.as_bytes().starts_with(b"application/grpc-web"))
}

/// How many of these calls failed.
pub fn failures(counts: &[u64; GRPC_STATUSES.len()]) -> u64 {
    let statuses = (0..OTHER as u16)
        .map(GrpcStatus::Code)
        .chain([GrpcStatus::Missing]);
    statuses
        .filter(|status| status.is_failure())
        .map(|status| counts[status.index()])
        .sum()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn answer(status: u16, grpc: Option<&'static str>) -> Response<()> {
        let mut answer = Response::new(());
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        if let Some(grpc) = grpc {
            let value = HeaderValue::from_static(grpc);
            answer.headers_mut().insert("grpc-status", value);
        }
        answer
    }

    #[test]
    fn a_head_tells_the_status_where_it_has_one_or_is_no_success() {
        let told = |status, grpc| GrpcStatus::in_head(&answer(status, grpc));
        assert_eq!(told(200, None), None);
        assert_eq!(told(200, Some("8")), Some(GrpcStatus::Code(8)));
        assert_eq!(told(503, Some("4")), Some(GrpcStatus::Code(4)));
        assert_eq!(told(200, Some("nonsense")), None);
        let codes = [(400, 13), (401, 16), (403, 7), (404, 12), (429, 14)];
        for (http, code) in codes.into_iter().chain([(502, 14), (500, 2), (302, 2)]) {
            assert_eq!(told(http, None), Some(GrpcStatus::Code(code)), "{http}");
        }
    }
}
