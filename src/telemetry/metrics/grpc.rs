//! The status of a gRPC call, and how calls are counted by it.
//!
//! HTTP says 200 of nearly every call. How it went is in `grpc-status`: in the trailers of its
//! answer, or in the head of an answer without a body.

use std::fmt;
use std::sync::{Arc, OnceLock};

use http::header::{CONTENT_TYPE, HeaderMap};
use http::{Response, StatusCode};

use super::cells::{Count, RouteCells};

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

    fn index(self) -> usize {
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

/// How many calls ended with which status; made with the first call.
#[derive(Debug, Default)]
pub struct GrpcCells(OnceLock<Box<[Count; GRPC_STATUSES.len()]>>);

/// The same of all workers, in the order of [`GRPC_STATUSES`]; nothing where there were no calls.
pub type GrpcSum = Option<Box<[u64; GRPC_STATUSES.len()]>>;

impl GrpcCells {
    /// One more call.
    pub fn count(&self, status: GrpcStatus) {
        let new = || Box::new(std::array::from_fn(|_| Count::default()));
        self.0.get_or_init(new)[status.index()].add(1);
    }

    /// Adds what is here to `sum`.
    pub fn add_to(&self, sum: &mut GrpcSum) {
        let Some(counts) = self.0.get() else { return };
        let sum = sum.get_or_insert_with(|| Box::new([0; GRPC_STATUSES.len()]));
        for (sum, count) in sum.iter_mut().zip(counts.iter()) {
            *sum += count.get();
        }
    }
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

/// Where one call is counted when its answer has ended.
#[derive(Clone, Debug)]
pub struct GrpcCounter {
    pub(super) route: Arc<RouteCells>,
    pub(super) kept: Arc<super::Kept>,
}

impl GrpcCounter {
    /// The call whose answer had the HTTP status `http` ended.
    pub fn ended(&self, status: GrpcStatus, http: u16) {
        self.route.grpc.count(status);
        // An answer of 5xx is among the errors already.
        if status.is_failure() && http < 500 {
            self.kept.errors.add(1);
        }
    }
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

    #[test]
    fn every_number_has_a_series_and_odd_ones_share_one() {
        let cells = GrpcCells::default();
        let mut sum = None;
        cells.add_to(&mut sum);
        assert!(sum.is_none());
        for code in [0, 14, 14, 16, 17, 999, u16::MAX] {
            cells.count(GrpcStatus::Code(code));
        }
        cells.count(GrpcStatus::Missing);
        cells.add_to(&mut sum);
        let sum = sum.unwrap();
        let seen = |word: &str| sum[GRPC_STATUSES.iter().position(|one| *one == word).unwrap()];
        assert_eq!((seen("0"), seen("14"), seen("16")), (1, 2, 1));
        assert_eq!((seen("other"), seen("none")), (3, 1));
        assert_eq!(failures(&sum), 3);
    }
}
