//! The elements of the IETF's lists, in each form.
//!
//! `"10"` is draft-ietf-httpapi-ratelimit-headers-10. `"next"` is the text that its authors have
//! made since, after the review of that draft: `a` and `w` in place of `r` and `t`, the cost `c`,
//! and the header `RateLimit-Partition`.

use http::header::HeaderName;
use smallvec::SmallVec;

use super::{LimitStatus, write_number};
use crate::limit::LimitCheck;
use crate::limit::key::{Alternatives, Part};

/// What the budgets of every limit are divided by.
pub const RATELIMIT_PARTITION: HeaderName = HeaderName::from_static("ratelimit-partition");

/// `[headers] ietf`: how the headers of the IETF are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IetfForm {
    /// Of draft-ietf-httpapi-ratelimit-headers-10.
    Draft10,
    /// Of the text that follows it.
    Next,
}

/// Writes `"login";r=0;t=11, `, or `"login";a=0;w=11;c=1, `. There is no `t` or `w` where nothing
/// is counted, since no more units can become free.
pub(super) fn write_state(
    buffer: &mut Vec<u8>,
    check: &LimitCheck,
    state: LimitStatus,
    form: IetfForm,
) {
    let (remaining, next) = match form {
        IetfForm::Draft10 => (b";r=", b";t="),
        IetfForm::Next => (b";a=", b";w="),
    };
    write_name(buffer, check);
    buffer.extend_from_slice(remaining);
    write_number(buffer, state.remaining);
    if state.next > 0 {
        buffer.extend_from_slice(next);
        write_number(buffer, state.next);
    }
    if form == IetfForm::Next {
        buffer.extend_from_slice(b";c=");
        write_number(buffer, check.cost);
    }
    buffer.extend_from_slice(b", ");
}

/// Writes `"login";client_id;method, `: the dimensions of a limit's key.
pub(super) fn write_partition(buffer: &mut Vec<u8>, check: &LimitCheck) {
    write_name(buffer, check);
    let parts = check.limit.key.parts.iter();
    let mut written = SmallVec::<[&str; 4]>::new();
    for dimension in parts.filter_map(dimension_of) {
        // The later of two equal parameters would replace the first.
        if !written.contains(&dimension) {
            buffer.push(b';');
            buffer.extend_from_slice(dimension.as_bytes());
            written.push(dimension);
        }
    }
    buffer.extend_from_slice(b", ");
}

fn write_name(buffer: &mut Vec<u8>, check: &LimitCheck) {
    // A policy's name is of `[a-z0-9_/~-]`: nothing in it needs an escape.
    buffer.push(b'"');
    buffer.extend_from_slice(check.window.policy.as_bytes());
    buffer.push(b'"');
}

/// The dimension of a part: that of its first alternative. `None` if all clients are in one
/// partition.
///
/// `user_id`, `client_id` and `method` are those that the draft registers. Others have a prefix, as
/// the draft asks. They name the kind alone: clients that do not know a dimension must not guess
/// keys, and the name of a header may be nobody's business.
fn dimension_of(part: &Alternatives) -> Option<&'static str> {
    Some(match part.0.first()? {
        Part::Global => return None,
        Part::ApiKey => "client_id",
        Part::Jwt(claim) => match claim.as_str() {
            "sub" => "user_id",
            "client_id" | "azp" => "client_id",
            _ => "tidegate-jwt",
        },
        Part::Method => "method",
        Part::Ip => "tidegate-ip",
        Part::Header(_) => "tidegate-header",
        Part::Query(_) => "tidegate-query",
        Part::Cookie(_) => "tidegate-cookie",
        Part::Path | Part::PathParam(_) => "tidegate-path",
        Part::Host => "tidegate-host",
        Part::Route => "tidegate-route",
        Part::Tier => "tidegate-tier",
        Part::Tls(_) => "tidegate-tls",
        Part::Body(_) => "tidegate-body",
        Part::Entry(_) => "tidegate-entry",
        Part::Custom(_) => "tidegate-custom",
    })
}
