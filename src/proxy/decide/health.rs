//! `grpc.health.v1.Health`: whether this server goes on serving. It never depends on the store.

use bytes::Bytes;
use futures_util::FutureExt;
use http::Response;
use prost::Message;
use tokio::sync::watch;

use super::ServingStage;
use super::grpc::{self, CallCode, RpcError};
use crate::proxy::body::Body;

/// The services with a health. The empty name is the whole server.
const SERVICES: [&[u8]; 3] = [
    b"",
    b"ratelimit",
    b"envoy.service.ratelimit.v3.RateLimitService",
];

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckRequest {
    #[prost(bytes = "bytes", tag = "1")]
    service: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl From<ServingStatus> for HealthCheckResponse {
    fn from(status: ServingStatus) -> HealthCheckResponse {
        HealthCheckResponse {
            status: status.into(),
        }
    }
}

impl HealthCheckRequest {
    fn status(&self, is_served: bool) -> ServingStatus {
        match is_served {
            _ if !SERVICES.contains(&&*self.service) => ServingStatus::ServiceUnknown,
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        }
    }
}

/// The status now.
pub(super) fn check(
    request: &HealthCheckRequest,
    is_served: bool,
) -> Result<Response<Body>, RpcError> {
    match request.status(is_served) {
        ServingStatus::ServiceUnknown => Err(RpcError::new(CallCode::NotFound, "no such service")),
        status => Ok(grpc::answer(&HealthCheckResponse::from(status))),
    }
}

/// The status now, and the one when the server begins to end. The stream ends with that, so that it
/// does not keep the server from ending.
pub(super) fn watch(
    request: &HealthCheckRequest,
    mut stage: watch::Receiver<ServingStage>,
) -> Response<Body> {
    let status = request.status(*stage.borrow() == ServingStage::Serves);
    let changed = async move {
        // A worker that has dropped the sender has ended.
        let _ = stage.wait_for(|stage| *stage != ServingStage::Serves).await;
        match status {
            ServingStatus::Serving => {
                grpc::frame(&HealthCheckResponse::from(ServingStatus::NotServing))
            }
            _ => Bytes::new(),
        }
    };
    let end = RpcError::new(CallCode::Unavailable, "the server ends");
    grpc::stream(&HealthCheckResponse::from(status))
        .map(|body| body.then(changed.boxed()).with_trailers(end.trailers()))
}
