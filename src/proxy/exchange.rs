//! One request and its answer, from the head to the log line: everything that is known of it, once
//! and under one name.

use http::{Request, Response};

use super::access_record::AccessRecord;
use super::admission::Admission;
use super::body::Body;
use super::changes::Changes;
use super::downstream::Downstream;
use crate::body::RequestBody;
use crate::route::Route;

/// See the file's head. The stages fill it in where it lies; `B` and `R` are the bodies.
#[derive(Debug)]
pub(super) struct Exchange<'c, B = RequestBody, R = Body> {
    /// As the client sent it, until it is forwarded.
    pub(super) request: &'c mut Request<B>,
    /// Nothing yet, or the answer.
    pub(super) response: &'c mut Response<R>,
    pub(super) downstream: &'c Downstream,
    /// `None` until it is found.
    pub(super) route: Option<&'c Route>,
    pub(super) admission: Admission,
    /// What the route changes; `None` for nothing.
    pub(super) changes: Option<Box<Changes<'c>>>,
    /// What logs, metrics and spans will say.
    pub(super) record: AccessRecord,
}
