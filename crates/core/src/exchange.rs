//! One request and its response, from the head to the log line, and the stages that fill it in.
//!
//! ```text
//! check     bounds of the head, TLS rules                     pure
//! identify  framing, path, route, client, token, tier, keys   pure
//! rewrite   the changes of the route                          pure
//! admit     the store's decision                              may wait
//! reject    the response to a request that a stage refused    pure
//! ```
//!
//! The proxy, the tower layer and the dry run share the stages in [`stages`], and each adds its own
//! last stage. A stage that refuses returns a [`rejection::Rejection`].

pub mod access_record;
mod adjust;
pub mod admit;
mod billing;
mod body_refusal;
mod call_checks;
pub mod changes;
mod checks;
mod claims;
mod decide_call;
pub mod downstream;
pub mod grpc;
pub mod headers;
pub mod held;
pub mod key_callback;
pub mod key_lookup;
pub mod key_registry;
pub mod key_wait;
pub mod limiter;
pub mod local_reply;
mod named_lines;
pub mod problem;
pub mod rate_limit_call;
pub mod rejection;
mod request_end;
mod request_id;
pub mod reserve;
pub mod router;
mod secure;
pub mod shadow;
pub mod stages;
pub mod status;
pub mod traced;
pub mod unreadable_head;
pub mod uploaded;
pub mod usage;

use http::{Request, Response};

use crate::route::Route;
use access_record::AccessRecord;
use admit::Admission;
use changes::Changes;
use downstream::Downstream;
use reserve::ReadBody;

/// One request and its response. `B` and `R` are their bodies.
#[derive(Debug)]
pub struct Exchange<'c, B, R> {
    /// As the client sent it, until it is forwarded.
    pub request: &'c mut Request<B>,
    pub response: &'c mut Response<R>,
    pub downstream: &'c Downstream,
    pub route: Option<&'c Route>,
    pub admission: Admission,
    /// The beginning of the body; `None` if it was not read before the decision.
    pub body: Option<Box<ReadBody>>,
    /// `None` if the route changes nothing.
    pub changes: Option<Box<Changes<'c>>>,
    pub record: AccessRecord,
}
