//! The reasons to refuse a request, and what the client is told of each. Nothing in it tells of the
//! inside. Only `local_reply` makes HTTP of it.

use std::borrow::Cow;
use std::sync::Arc;

use http::StatusCode;
use http::header::HeaderValue;

use super::headers::RequestFault;
use crate::limit::key::LackingToken;
use crate::limit::{BLOCK_POLICY, Charge, Decided, Decision, KeyHash};
use crate::path::Malformed;
use crate::request_head::HeadError;
use crate::telemetry::access::{Outcome, UpstreamFailure};

/// Why the proxy itself answers a request.
#[derive(Debug)]
pub enum Rejection {
    /// The bytes of the head.
    HeadError(HeadError),
    /// The meaning of the head.
    Request(RequestFault),
    /// The path has no single meaning.
    Path(Malformed),
    /// Upstreams may read the path as different routes.
    AmbiguousPath,
    /// The same resource is at this `https` URL.
    TlsOnly(HeaderValue),
    BodyTooLarge,
    /// `access` serves other clients only.
    AccessDenied,
    /// The route serves clients with a verified certificate only. Holds its status.
    NoCertificate(StatusCode),
    NoRoute,
    /// The request lacks the key of a limit.
    MissingKey(Box<KeyFault>),
    /// The request has several values for the key of a limit.
    AmbiguousKey(Box<KeyFault>),
    /// The request's API key is not known. Holds the name of the limit.
    UnknownKey(Arc<str>),
    /// The model of the request has no price. Holds the name of the limit.
    Unpriced(Arc<str>),
    /// The bodies that are read before their decisions need more than `body_memory`.
    BodyMemory,
    Limited(Box<Denial>),
    /// The process ends before the request, which a limit holds, may pass.
    Draining,
    /// The address asks for its status too often.
    StatusBusy,
    /// An operator has blocked the client, or a limit has banned it.
    Blocked(Box<Blocked>),
    /// The store is away, and `on_error` of these limits is `deny`.
    StoreAway {
        limits: Vec<Arc<str>>,
        /// The store's error, for the log.
        reason: &'static str,
    },
    Upstream(NoAnswer),
}

impl From<RequestFault> for Rejection {
    fn from(fault: RequestFault) -> Self {
        Rejection::Request(fault)
    }
}

/// A request without the one key that a limit counts by.
#[derive(Debug)]
pub struct KeyFault {
    pub limit: Arc<str>,
    /// What the client must send.
    pub advice: String,
    /// Set if a token would be a key of the limit.
    pub token: Option<LackingToken>,
}

/// Why the upstream did not answer.
#[derive(Clone, Debug)]
pub struct NoAnswer {
    /// For the client.
    pub status: StatusCode,
    /// For logs and metrics.
    pub label: &'static str,
    /// Seconds until another attempt may succeed.
    pub retry_after: Option<u64>,
    /// The client did not send the whole body that it announced.
    pub is_cut_upload: bool,
    /// For the access log; `None` if no server was chosen.
    pub failure: Option<Box<UpstreamFailure>>,
}

#[derive(Debug)]
pub struct Denial {
    pub charge: Charge,
    pub decision: Decision,
    /// Whether this process decided without the store.
    pub is_local: bool,
}

impl Denial {
    pub fn decided(&self) -> Decided<'_> {
        Decided {
            charge: &self.charge,
            decision: &self.decision,
        }
    }
}

/// A block of a client.
#[derive(Debug)]
pub struct Blocked {
    pub tag: KeyHash,
    /// The key in the clear, if logs show keys.
    pub(super) plain: Option<Arc<str>>,
    /// Microseconds until the block ends; `None` if it has no end.
    pub left_us: Option<u64>,
    /// The limit whose ban it is. `None` if an operator made it.
    pub ban: Option<Arc<str>>,
}

impl Blocked {
    /// What denies, for clients and logs.
    pub(super) fn policy(&self) -> &str {
        self.ban.as_deref().unwrap_or(BLOCK_POLICY)
    }
}

/// The response to a rejection.
pub(super) struct RejectionMessage {
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) detail: Cow<'static, str>,
    /// Whether the connection must not serve another request.
    pub(super) close: bool,
}

impl RejectionMessage {
    /// A message whose title is the reason phrase of its status.
    pub(super) fn new(status: StatusCode, detail: &'static str) -> RejectionMessage {
        RejectionMessage {
            status,
            title: status.canonical_reason().unwrap_or("Bad Request"),
            detail: Cow::Borrowed(detail),
            close: false,
        }
    }
}

impl Rejection {
    /// Whether the client left during its upload.
    pub fn is_cut_upload(&self) -> bool {
        matches!(self, Rejection::Upstream(reason) if reason.is_cut_upload)
    }

    pub(super) fn message(&self) -> RejectionMessage {
        let mut message = self.plain_message();
        let status = message.status;
        match (self, status) {
            (Rejection::MissingKey(fault) | Rejection::AmbiguousKey(fault), _) => {
                message.detail = Cow::Owned(match fault.token {
                    Some(LackingToken::Invalid) => {
                        format!("The bearer token is not valid. {}", fault.advice)
                    }
                    _ => fault.advice.clone(),
                });
            }
            (Rejection::StoreAway { .. }, _) => message.title = "Temporarily Reduced Capacity",
            (_, StatusCode::TOO_MANY_REQUESTS) => message.title = "Quota Exceeded",
            (_, StatusCode::PAYLOAD_TOO_LARGE) => message.title = "Content Too Large",
            _ => {}
        }
        message.close = match self {
            Rejection::HeadError(_) | Rejection::BodyTooLarge => true,
            Rejection::Request(_) => {
                matches!(
                    status,
                    StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED
                )
            }
            Rejection::Upstream(_) => status.is_client_error(),
            _ => false,
        };
        message
    }

    /// The message by its status and sentence alone.
    fn plain_message(&self) -> RejectionMessage {
        let (status, detail) = self.fixed_sentence();
        RejectionMessage::new(status, detail)
    }

    fn fixed_sentence(&self) -> (StatusCode, &'static str) {
        match self {
            Rejection::HeadError(error) => head_message(*error),
            Rejection::TlsOnly(_) => (
                StatusCode::PERMANENT_REDIRECT,
                "this address is served over https:// only",
            ),
            Rejection::Request(fault) => fault.message(),
            Rejection::Path(error) => (StatusCode::BAD_REQUEST, error.0),
            Rejection::AmbiguousPath => (
                StatusCode::BAD_REQUEST,
                "the path of the request is ambiguous",
            ),
            Rejection::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body of the request is larger than this server takes",
            ),
            Rejection::AccessDenied => (
                StatusCode::FORBIDDEN,
                "clients with this address are not served here",
            ),
            Rejection::NoCertificate(status) => (
                *status,
                "only clients with a verified certificate are served here",
            ),
            Rejection::NoRoute => (
                StatusCode::NOT_FOUND,
                "no route matches this host, path and method",
            ),
            Rejection::MissingKey(fault) if fault.token.is_some() => (StatusCode::UNAUTHORIZED, ""),
            // The sentence is the advice of the fault.
            Rejection::MissingKey(_) | Rejection::AmbiguousKey(_) => (StatusCode::BAD_REQUEST, ""),
            Rejection::UnknownKey(_) => (StatusCode::UNAUTHORIZED, "the API key is not known"),
            Rejection::Unpriced(_) => (
                StatusCode::BAD_REQUEST,
                "the model of the request has no price here",
            ),
            Rejection::BodyMemory => (
                StatusCode::SERVICE_UNAVAILABLE,
                "this server has no memory for the body of the request now",
            ),
            Rejection::Draining => (
                StatusCode::SERVICE_UNAVAILABLE,
                "this server stops before the turn of the request comes",
            ),
            Rejection::Limited(_) | Rejection::Blocked(_) => (StatusCode::TOO_MANY_REQUESTS, ""),
            Rejection::StatusBusy => (
                StatusCode::TOO_MANY_REQUESTS,
                "this address asks for its status more than ten times a second",
            ),
            Rejection::StoreAway { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "limits cannot be checked at the moment",
            ),
            Rejection::Upstream(error) => (error.status, upstream_detail(error)),
        }
    }

    /// A sentence for the client.
    pub fn sentence(&self) -> Cow<'static, str> {
        self.message().detail
    }

    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Rejection::Limited(_) | Rejection::Blocked(_) => Outcome::Denied,
            _ => Outcome::Rejected,
        }
    }

    /// The reason in logs and spans.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Rejection::Limited(_) => None,
            Rejection::Blocked(blocked) => Some(match blocked.ban {
                Some(_) => "banned",
                None => "blocked",
            }),
            Rejection::StoreAway { reason, .. } => Some(reason),
            Rejection::Upstream(error) => Some(error.label),
            Rejection::MissingKey(_) => Some("missing_key"),
            Rejection::AmbiguousKey(_) => Some("ambiguous_key"),
            Rejection::UnknownKey(_) => Some("unknown_key"),
            Rejection::Unpriced(_) => Some("no_price"),
            Rejection::TlsOnly(_) => Some("tls_only"),
            Rejection::AmbiguousPath => Some("ambiguous_path"),
            Rejection::BodyTooLarge => Some("request_too_large"),
            Rejection::AccessDenied => Some("access_denied"),
            Rejection::NoCertificate(_) => Some("missing_certificate"),
            Rejection::NoRoute => Some("no_route"),
            Rejection::BodyMemory => Some("body_memory"),
            Rejection::StatusBusy => Some("status_busy"),
            Rejection::Draining => Some("draining"),
            // Many mistakes; each has a sentence of its own.
            Rejection::HeadError(_) | Rejection::Request(_) | Rejection::Path(_) => {
                Some(self.fixed_sentence().1)
            }
        }
    }
}

pub(super) fn head_message(error: HeadError) -> (StatusCode, &'static str) {
    let detail = match error {
        HeadError::TooLarge => "the head of the request is larger than this server reads",
        HeadError::TooManyLines => "the request has more header lines than this server reads",
        HeadError::TargetTooLong => "the target of the request is longer than this server reads",
        HeadError::BareLf => "a line of the head ends without CR",
        HeadError::TwoLengths => "Content-Length and Transfer-Encoding contradict each other",
        HeadError::WithoutTls => "this port expects TLS: use https://",
    };
    let status = match error {
        HeadError::TooLarge | HeadError::TooManyLines => {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        }
        HeadError::TargetTooLong => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    };
    (status, detail)
}

fn upstream_detail(error: &NoAnswer) -> &'static str {
    match error.status {
        StatusCode::GATEWAY_TIMEOUT => "the upstream server did not answer in time",
        StatusCode::SERVICE_UNAVAILABLE => "no upstream server can take the request now",
        StatusCode::PAYLOAD_TOO_LARGE => Rejection::BodyTooLarge.fixed_sentence().1,
        StatusCode::REQUEST_TIMEOUT => "the body of the request did not arrive in time",
        StatusCode::BAD_REQUEST => "the body of the request is malformed or ended too early",
        _ if error.label == "upstream_unreachable" => "the upstream server cannot be reached",
        _ => "the upstream server sent no usable response",
    }
}
