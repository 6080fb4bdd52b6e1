//! What a request's head says of how it is charged.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, HeaderName, Method};

use super::CostSource;

impl CostSource {
    /// What a request weighs, units; `trusted` is whether its peer may say so in a header.
    pub fn units(&self, headers: &HeaderMap, trusted: bool) -> u64 {
        match self {
            Self::Fixed(units) => *units,
            Self::Header(name) if trusted => cost_in(headers, name),
            Self::Header(_) => 1,
        }
    }
}

/// A weight that a trusted peer names, units; 1 where it names none or nonsense.
fn cost_in(headers: &HeaderMap, name: &HeaderName) -> u64 {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .unwrap_or(1)
}

/// A browser's question whether it may ask: never charged, since no script can avoid it.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}
