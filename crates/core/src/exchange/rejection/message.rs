//! What is said of each rejection: its status, a title, and a sentence that holds nothing of the
//! inside.

use http::StatusCode;

use super::{NoAnswer, Rejection};
use crate::request_head::HeadError;
use crate::telemetry::access::Outcome;

/// Status, title and sentence of an answer, and whether the connection may serve another request.
pub(crate) struct RejectionMessage {
    pub(in crate::exchange) status: StatusCode,
    pub(in crate::exchange) title: &'static str,
    pub(in crate::exchange) detail: &'static str,
    pub(in crate::exchange) close: bool,
}

impl Rejection {
    pub(in crate::exchange) fn message(&self) -> RejectionMessage {
        match self {
            Rejection::HeadError(HeadError::BareLf) => {
                malformed("a line of the head ends without CR")
            }
            Rejection::HeadError(HeadError::TwoLengths) => {
                malformed("Content-Length and Transfer-Encoding contradict each other")
            }
            Rejection::HeadError(HeadError::TooLarge) => RejectionMessage {
                status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                title: "Request Header Fields Too Large",
                detail: "the head of the request is larger than this server reads",
                close: true,
            },
            Rejection::HeadError(HeadError::WithoutTls) => {
                malformed("this is plain HTTP, and TLS is spoken here: use https://")
            }
            Rejection::TlsOnly(_) => RejectionMessage {
                status: StatusCode::PERMANENT_REDIRECT,
                title: "Permanent Redirect",
                detail: "this is served at https:// only",
                close: false,
            },
            Rejection::Request(fault) => RejectionMessage {
                status: fault.status(),
                title: fault.status().canonical_reason().unwrap_or("Bad Request"),
                detail: fault.detail(),
                close: matches!(
                    fault.status(),
                    StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED
                ),
            },
            Rejection::Path(error) => refused(error.detail()),
            Rejection::AmbiguousPath => refused("the path of the request has no single meaning"),
            Rejection::BodyTooLarge => RejectionMessage {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                title: "Content Too Large",
                detail: "the body of the request is larger than this server takes",
                close: true,
            },
            Rejection::NoRoute => RejectionMessage {
                status: StatusCode::NOT_FOUND,
                title: "Not Found",
                detail: "nothing is served at this host, path and method",
                close: false,
            },
            Rejection::MissingKey(_) => refused("the request lacks the key that its limit needs"),
            Rejection::AmbiguousKey(_) => {
                refused("the request carries several different keys where one must be")
            }
            Rejection::UnknownKey(_) => RejectionMessage {
                status: StatusCode::UNAUTHORIZED,
                title: "Unauthorized",
                detail: "the API key is not known",
                close: false,
            },
            Rejection::Limited(_) | Rejection::Blocked(_) => RejectionMessage {
                status: StatusCode::TOO_MANY_REQUESTS,
                title: "Quota Exceeded",
                detail: "",
                close: false,
            },
            Rejection::StoreAway { .. } => RejectionMessage {
                status: StatusCode::SERVICE_UNAVAILABLE,
                title: "Temporarily Reduced Capacity",
                detail: "limits cannot be checked at the moment",
                close: false,
            },
            Rejection::Upstream(error) => upstream(error),
        }
    }

    /// What is said of it to the client, in a sentence.
    pub fn sentence(&self) -> &'static str {
        self.message().detail
    }

    pub(in crate::exchange) fn outcome(&self) -> Outcome {
        match self {
            Rejection::Limited(_) | Rejection::Blocked(_) => Outcome::Denied,
            _ => Outcome::Rejected,
        }
    }

    pub(in crate::exchange) fn reason(&self) -> Option<&'static str> {
        match self {
            Rejection::Limited(_) => None,
            Rejection::Blocked(_) => Some("blocked"),
            Rejection::StoreAway { reason, .. } => Some(reason),
            Rejection::Upstream(error) => Some(error.label),
            other => Some(other.message().detail),
        }
    }
}

fn malformed(detail: &'static str) -> RejectionMessage {
    RejectionMessage {
        close: true,
        ..refused(detail)
    }
}

fn refused(detail: &'static str) -> RejectionMessage {
    RejectionMessage {
        status: StatusCode::BAD_REQUEST,
        title: "Bad Request",
        detail,
        close: false,
    }
}

fn upstream(error: &NoAnswer) -> RejectionMessage {
    let status = error.status;
    let (title, detail) = match status {
        StatusCode::GATEWAY_TIMEOUT => (
            "Gateway Timeout",
            "the upstream server did not answer in time",
        ),
        StatusCode::SERVICE_UNAVAILABLE => (
            "Service Unavailable",
            "no upstream server can take the request now",
        ),
        StatusCode::PAYLOAD_TOO_LARGE => return Rejection::BodyTooLarge.message(),
        StatusCode::REQUEST_TIMEOUT => (
            "Request Timeout",
            "the body of the request did not arrive in time",
        ),
        StatusCode::BAD_REQUEST => (
            "Bad Request",
            "the body of the request is malformed or ended too early",
        ),
        _ => ("Bad Gateway", "the upstream server gave no usable answer"),
    };
    RejectionMessage {
        status,
        title,
        detail,
        close: status.is_client_error(),
    }
}
