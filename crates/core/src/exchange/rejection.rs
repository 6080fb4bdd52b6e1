//! Why a request is refused. Each room names what went wrong; `local_reply` makes HTTP of it.

pub(super) mod message;

use std::sync::Arc;

use http::StatusCode;
use http::header::HeaderValue;

use super::headers::RequestFault;
use crate::limit::{Charge, Decided, Decision, KeyHash};
use crate::path::PathError;
use crate::request_head::HeadError;

/// The policy that a block violates, as clients and logs call it.
pub(super) const BLOCK_POLICY: &str = "block";

/// Why a request is not answered by an upstream.
#[derive(Debug)]
pub enum Rejection {
    /// The bytes of its head.
    HeadError(HeadError),
    /// Its head's meaning.
    Request(RequestFault),
    /// Its path has no single meaning.
    Path(PathError),
    /// Its path means one route to some upstreams and another to others.
    AmbiguousPath,
    /// Served over TLS only: here.
    TlsOnly(HeaderValue),
    /// A body longer than the configuration allows.
    BodyTooLarge,
    /// No route is its.
    NoRoute,
    /// It lacks the key that this limit needs.
    MissingKey(Arc<str>),
    /// It carries several different values for the key of this limit.
    AmbiguousKey(Arc<str>),
    /// It carries an API key that is not known, for this limit.
    UnknownKey(Arc<str>),
    /// A limit denies it.
    Limited(Box<Denial>),
    /// An operator keeps its client out.
    Blocked(Box<Blocked>),
    /// The store is away, and these limits say that means no.
    StoreAway {
        /// Their names.
        limits: Vec<Arc<str>>,
        /// What is wrong with the store, for the log.
        reason: &'static str,
    },
    /// The upstream did not answer.
    Upstream(NoAnswer),
}

impl From<RequestFault> for Rejection {
    fn from(fault: RequestFault) -> Self {
        Rejection::Request(fault)
    }
}

impl From<PathError> for Rejection {
    fn from(error: PathError) -> Self {
        Rejection::Path(error)
    }
}

impl From<NoAnswer> for Rejection {
    fn from(reason: NoAnswer) -> Self {
        Rejection::Upstream(reason)
    }
}

/// Why an upstream gave no answer.
#[derive(Clone, Copy, Debug)]
pub struct NoAnswer {
    /// What the client gets.
    pub status: StatusCode,
    /// A word for logs and metrics.
    pub label: &'static str,
    /// Seconds after which another try is worth it, where that is known.
    pub retry_after: Option<u64>,
    /// The client did not send the whole body that it announced.
    pub is_cut_upload: bool,
}

impl Rejection {
    /// Whether the request ended because its client left in the middle of an upload.
    pub fn is_cut_upload(&self) -> bool {
        matches!(self, Rejection::Upstream(reason) if reason.is_cut_upload)
    }
}

/// A limit's denial.
#[derive(Debug)]
pub struct Denial {
    /// What was asked.
    pub charge: Charge,
    /// What the store said.
    pub decision: Decision,
    /// Whether it was said here, without the store.
    pub alone: bool,
}

impl Denial {
    pub fn decided(&self) -> Decided<'_> {
        Decided {
            charge: &self.charge,
            decision: &self.decision,
        }
    }
}

/// An operator's block of a client.
#[derive(Debug)]
pub struct Blocked {
    /// The hash of its key.
    pub tag: KeyHash,
    /// The key before it was hashed, where logs show keys.
    pub(super) plain: Option<Arc<str>>,
    /// Microseconds until the block ends; `None` if it has no end.
    pub(super) left_us: Option<u64>,
}
