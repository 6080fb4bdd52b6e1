//! Decisions for other proxies (`[decide]`): they ask whether a client's request may pass. This
//! file finds the service that a question is for.
//!
//! | path | file |
//! |---|---|
//! | `/auth`, `/auth/nginx`, `/auth/envoy/*` | `forward_auth` |
//! | gRPC `Authorization/Check` | `authorization` |
//! | gRPC `RateLimitService/ShouldRateLimit` | `rate_limit_service` |
//! | `/json` | `json` |
//! | gRPC `Health/Check` and `Health/Watch`, `/healthcheck` | `health` |

mod authorization;
mod forward_auth;
mod grpc;
mod health;
mod json;
#[cfg(test)]
mod message_tests;
mod messages;
mod rate_limit_service;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use tokio::sync::watch;

use super::body::Body;
use super::{Downstream, Proxy};
use crate::body::RequestBody;
use crate::clock;
use crate::config::DecideSettings;
use crate::request_head::HeadError;
use crate::telemetry::metrics::{DecideCode, Door};
use forward_auth::UnreadableQuestion;
use grpc::{CallCode, RpcError};

const UNREADABLE_HEAD: &str = "the head of the question cannot be read";

/// The bytes of the answer to a question whose head cannot be parsed. Clients can cause that, so it
/// is a denial. nginx takes every status but 403 for a failure, and may let the request pass.
pub(crate) fn unreadable_head() -> Bytes {
    let length = UNREADABLE_HEAD.len() + 1;
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\nx-decision: deny\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{UNREADABLE_HEAD}\n"
    );
    answer.into()
}

/// How long this process goes on serving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServingStage {
    #[default]
    Serves,
    /// It ends, and another process serves its addresses already.
    HandsOver,
    Ends,
}

/// A proxy that asks, and one question of it.
struct Caller<'c> {
    settings: &'c DecideSettings,
    peer: &'c Downstream,
    since: Instant,
    /// How long the proxy waits, if it says so.
    timeout: Option<Duration>,
    stage: watch::Receiver<ServingStage>,
}

/// A method of gRPC that is served here.
#[derive(Clone, Copy)]
enum RpcMethod {
    ShouldRateLimit,
    AuthorizationCheck,
    HealthCheck,
    HealthWatch,
}

impl RpcMethod {
    fn at(path: &str) -> Option<RpcMethod> {
        Some(match path {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                RpcMethod::ShouldRateLimit
            }
            "/envoy.service.auth.v3.Authorization/Check" => RpcMethod::AuthorizationCheck,
            "/grpc.health.v1.Health/Check" => RpcMethod::HealthCheck,
            "/grpc.health.v1.Health/Watch" => RpcMethod::HealthWatch,
            _ => return None,
        })
    }
}

impl Caller<'_> {
    /// Whether the proxy has stopped waiting. Its question is not decided then.
    fn has_left(&self) -> bool {
        let waited = clock::now().saturating_duration_since(self.since);
        self.timeout.is_some_and(|timeout| waited >= timeout)
    }

    /// Whether the address answers on after this process.
    fn is_served(&self) -> bool {
        *self.stage.borrow() != ServingStage::Ends
    }
}

impl Proxy {
    /// Answers a proxy that asks for a decision. `stage` changes when this process ends.
    pub(crate) async fn decide(
        &self,
        asked: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        peer: &Downstream,
        head_error: Option<HeadError>,
        stage: watch::Receiver<ServingStage>,
    ) {
        if peer.arrival.misplaced {
            refuse(
                response,
                StatusCode::BAD_REQUEST,
                "this address speaks TLS\n",
            );
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
            return;
        }
        // The content of a described request has a type too, which says nothing of the question.
        let is_described = forward_auth::door_at(asked.uri().path()).is_some();
        let is_grpc = !is_described && grpc::is_grpc_type(asked.headers());
        let settings = self.decide.as_ref();
        let Some(settings) = settings.filter(|decide| decide.may_ask(peer.arrival.ip)) else {
            self.meter().decide().refused_callers.add(1);
            return forbid(response, is_grpc);
        };
        let caller = Caller {
            settings,
            peer,
            since: clock::now(),
            timeout: grpc::timeout(asked.headers()),
            stage,
        };
        if head_error.is_some() {
            return self.refuse_head(asked, response, &caller);
        }
        match is_grpc {
            true => self.answer_grpc(asked, response, &caller).await,
            false => self.answer_http(asked, response, &caller).await,
        }
    }

    /// Answers a question whose head has an error.
    fn refuse_head(
        &self,
        asked: &Request<RequestBody>,
        response: &mut Response<Body>,
        caller: &Caller<'_>,
    ) {
        let unreadable = UnreadableQuestion {
            status: StatusCode::BAD_REQUEST,
            why: UNREADABLE_HEAD,
        };
        match forward_auth::door_at(asked.uri().path()) {
            Some(door) => self.deny_unreadable(door, &unreadable, response, caller),
            None => unreadable.refuse(response),
        }
    }

    async fn answer_grpc(
        &self,
        asked: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        caller: &Caller<'_>,
    ) {
        if asked.version() != Version::HTTP_2 {
            let text = "gRPC needs HTTP/2\n";
            return refuse(response, StatusCode::HTTP_VERSION_NOT_SUPPORTED, text);
        }
        if asked.method() != Method::POST {
            return refuse(
                response,
                StatusCode::METHOD_NOT_ALLOWED,
                "gRPC needs POST\n",
            );
        }
        let method = RpcMethod::at(asked.uri().path());
        let answered = self.answer_method(method, asked, caller).await;
        *response = answered.unwrap_or_else(|error| error.response());
    }

    async fn answer_method(
        &self,
        method: Option<RpcMethod>,
        asked: &mut Request<RequestBody>,
        caller: &Caller<'_>,
    ) -> Result<Response<Body>, RpcError> {
        let (body, most) = (asked.body_mut(), caller.settings.max_message);
        match method {
            Some(RpcMethod::ShouldRateLimit) => self.answer_rls(asked, caller).await,
            Some(RpcMethod::AuthorizationCheck) => self.answer_check(body, caller).await,
            Some(RpcMethod::HealthCheck) => {
                let request = grpc::decode(grpc::read_message(body, most).await?)?;
                health::check(&request, caller.is_served())
            }
            Some(RpcMethod::HealthWatch) => {
                let request = grpc::decode(grpc::read_message(body, most).await?)?;
                Ok(health::watch(&request, caller.stage.clone()))
            }
            None => Err(RpcError::new(CallCode::Unimplemented, "no such method")),
        }
    }

    async fn answer_http(
        &self,
        asked: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        caller: &Caller<'_>,
    ) {
        match asked.uri().path() {
            "/healthcheck" => match caller.is_served() {
                true => refuse(response, StatusCode::OK, "OK\n"),
                false => refuse(response, StatusCode::INTERNAL_SERVER_ERROR, "draining\n"),
            },
            "/json" => self.answer_json(asked, response, caller).await,
            path if RpcMethod::at(path).is_some() => {
                let text = "this is a method of gRPC: send `content-type: application/grpc`\n";
                refuse(response, StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
            }
            path => match forward_auth::door_at(path) {
                Some(door) => {
                    self.answer_forward_auth(door, asked, response, caller)
                        .await
                }
                None => {
                    let text = "ask at /auth, /auth/nginx, /auth/envoy, /json, or by gRPC\n";
                    refuse(response, StatusCode::NOT_FOUND, text);
                }
            },
        }
    }

    fn count_question(&self, door: Door, code: DecideCode, caller: &Caller<'_>) {
        let took = clock::now().saturating_duration_since(caller.since);
        self.meter().decide().count(door, code, took);
    }
}

/// Answers a proxy that may not ask.
fn forbid(response: &mut Response<Body>, is_grpc: bool) {
    const TEXT: &str = "this address may not ask for decisions";
    match is_grpc {
        true => *response = RpcError::new(CallCode::PermissionDenied, TEXT).response(),
        false => refuse(response, StatusCode::FORBIDDEN, &format!("{TEXT}\n")),
    }
}

fn refuse(response: &mut Response<Body>, status: StatusCode, text: &str) {
    *response.status_mut() = status;
    *response.body_mut() = Body::made(text.to_owned().into());
}
