//! The status of a gRPC call.
//!
//! Nearly every call has the HTTP status 200. Its own status is in `grpc-status`: in the trailers
//! of the answer, or in the head of an answer without a body.

use std::fmt;

use http::header::{CONTENT_TYPE, HeaderMap};
use http::{Response, StatusCode};

/// Statuses with a series of their own: the 17 of gRPC, all other numbers together, and calls whose
/// answer ended without a status.
pub const GRPC_STATUSES: [&str; 19] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
    "other", "none",
];

const OTHER: usize = 17;
const NONE: usize = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcStatus {
    Code(u16),
    Missing,
}

impl GrpcStatus {
    /// The client left before the end of the answer.
    pub const CANCELLED: GrpcStatus = GrpcStatus::Code(1);

    pub fn from_fields(fields: &HeaderMap) -> Option<GrpcStatus> {
        let value = fields.get("grpc-status")?.to_str().ok()?;
        value.trim().parse().ok().map(GrpcStatus::Code)
    }

    /// The status in the head of an answer. `None` if the trailers will have it. For an answer
    /// without `grpc-status` whose HTTP status is not 200, this is the status to which clients map
    /// the HTTP status (gRPC, "HTTP to gRPC Status Code Mapping").
    pub fn in_head<B>(answer: &Response<B>) -> Option<GrpcStatus> {
        let of_http = || match answer.status() {
            StatusCode::OK => None,
            status => Some(GrpcStatus::Code(meaning(status))),
        };
        GrpcStatus::from_fields(answer.headers()).or_else(of_http)
    }

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

    /// The HTTP status with the same meaning. An answer without a status means 502.
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

/// The status to which clients map an HTTP status.
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

/// Whether the status of an answer is part of its body, which a proxy does not read: gRPC-Web.
pub fn is_in_body(fields: &HeaderMap) -> bool {
    let content_type = fields.get(CONTENT_TYPE);
    content_type.is_some_and(|text| text.as_bytes().starts_with(b"application/grpc-web"))
}

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
    fn a_head_has_the_status_if_it_names_one_or_is_no_success() {
        let read = |status, grpc| GrpcStatus::in_head(&answer(status, grpc));
        assert_eq!(read(200, None), None);
        assert_eq!(read(200, Some("8")), Some(GrpcStatus::Code(8)));
        assert_eq!(read(503, Some("4")), Some(GrpcStatus::Code(4)));
        assert_eq!(read(200, Some("nonsense")), None);
        let codes = [(400, 13), (401, 16), (403, 7), (404, 12), (429, 14)];
        for (http, code) in codes.into_iter().chain([(502, 14), (500, 2), (302, 2)]) {
            assert_eq!(read(http, None), Some(GrpcStatus::Code(code)), "{http}");
        }
    }
}
