//! One gRPC call on its way: its status is read where its answer has it, and counted at the end.

use http::{HeaderMap, Response};

use crate::telemetry::metrics::grpc::is_in_body;
use crate::telemetry::metrics::{GrpcCounter, GrpcStatus};

/// See the file's head.
#[derive(Debug)]
pub struct Call {
    counter: GrpcCounter,
    /// The status of HTTP.
    http: u16,
    status: Option<GrpcStatus>,
}

impl Call {
    /// A call whose answer has this head. Nothing for gRPC-Web whose status is in the body: only
    /// the client reads that.
    pub fn begin<B>(counter: GrpcCounter, answer: &Response<B>) -> Option<Box<Call>> {
        let status = GrpcStatus::in_head(answer);
        if status.is_none() && is_in_body(answer.headers()) {
            return None;
        }
        Some(Box::new(Call {
            counter,
            http: answer.status().as_u16(),
            status,
        }))
    }

    /// The trailers of the answer have come.
    pub fn note_trailers(&mut self, trailers: &HeaderMap) {
        self.status = GrpcStatus::of(trailers).or(self.status);
    }

    /// The upstream broke the answer off.
    pub fn note_break(&mut self) {
        self.status.get_or_insert(GrpcStatus::Missing);
    }

    /// The answer has ended, or the client left before `is_whole`. Counts the call, once.
    pub fn end(&mut self, is_whole: bool) {
        let unsaid = match is_whole {
            true => GrpcStatus::Missing,
            false => GrpcStatus::CANCELLED,
        };
        let status = *self.status.get_or_insert(unsaid);
        self.counter.ended(status, self.http);
    }

    /// The status, as far as it is known.
    pub fn status(&self) -> Option<GrpcStatus> {
        self.status
    }
}
