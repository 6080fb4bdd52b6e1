//! How a server is judged by its answer to a gRPC call: by the status of gRPC, which comes in the
//! head or, after the body, in the trailers.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};

use super::permit::ServerPermit;
use crate::telemetry::metrics::grpc::is_in_body;
use crate::telemetry::metrics::{GrpcStatus, UpstreamCells};

/// A call whose status is still to come.
#[derive(Debug)]
pub(super) struct Pending {
    cells: Arc<UpstreamCells>,
    /// How many servers the upstream has.
    servers: usize,
}

/// The status of HTTP by which a server is judged that answered a call with this head; nothing
/// where the status comes with the trailers.
pub(super) fn judged_by<B>(answer: &Response<B>, cells: &UpstreamCells) -> Option<StatusCode> {
    match GrpcStatus::in_head(answer) {
        Some(status) => {
            cells.grpc.count(status);
            // What HTTP says counts too: a gateway before the server may have answered.
            match answer.status() {
                StatusCode::OK => Some(status.as_http()),
                http => Some(http),
            }
        }
        None if is_in_body(answer.headers()) => Some(answer.status()),
        None => None,
    }
}

impl Pending {
    pub(super) fn new(cells: &Arc<UpstreamCells>, servers: usize) -> Box<Pending> {
        Box::new(Pending {
            cells: Arc::clone(cells),
            servers,
        })
    }

    /// The answer has ended: with trailers, or without.
    pub(super) fn end(&self, trailers: Option<&HeaderMap>, permit: &ServerPermit) {
        let status = trailers.and_then(GrpcStatus::of);
        let status = status.unwrap_or(GrpcStatus::Missing);
        self.cells.grpc.count(status);
        permit.judge(status.as_http(), || (self.servers, permit.servers_out()));
    }

    /// The server broke the answer off.
    pub(super) fn break_off(&self) {
        self.cells.grpc.count(GrpcStatus::Missing);
    }
}
