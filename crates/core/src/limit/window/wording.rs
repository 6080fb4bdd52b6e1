//! What clients are told of a window, written when it is made and not for each request.

use http::HeaderValue;

use super::super::headers::seconds_up;
use super::super::{Algorithm, Rate, Rule};

/// See the file's head. Each worker has its own: to hand out a value is to count a reference to it.
#[derive(Clone, Debug)]
pub struct Wording {
    /// Its units: `5`.
    pub units: HeaderValue,
    /// The element of `RateLimit-Policy`: `"login";q=5;w=60`.
    pub policy: HeaderValue,
    /// For people: `"login" allows 5/min`.
    pub allows: Box<str>,
    /// The same as it stands in a JSON string.
    pub allows_json: Box<str>,
}

impl Wording {
    /// That of a window that clients know as `policy`.
    pub fn of(policy: &str, rule: Rule) -> Wording {
        let Rule {
            units, window_us, ..
        } = rule;
        let (element, allows) = match rule.algorithm {
            Algorithm::Slots => (
                format!("\"{policy}\";q={units};qu=\"concurrent-requests\""),
                format!("\"{policy}\" allows {units} requests at once"),
            ),
            Algorithm::Log | Algorithm::Counter => (
                format!("\"{policy}\";q={units};w={}", seconds_up(window_us)),
                format!("\"{policy}\" allows {}", Rate { units, window_us }),
            ),
        };
        // Of `[a-z0-9_/~-]`: nothing in a policy's name needs an escape.
        let unnamed = HeaderValue::from_static("unnamed");
        Wording {
            units: HeaderValue::from(units),
            policy: HeaderValue::try_from(element).unwrap_or(unnamed),
            allows_json: allows.replace('"', "\\\"").into(),
            allows: allows.into(),
        }
    }
}
