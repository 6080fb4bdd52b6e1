//! Envoy's external authorization over gRPC: a client's request as a message. It is decided as in
//! `forward_auth`.

use std::mem;

use http::{HeaderMap, Response, StatusCode};

use super::Caller;
use super::forward_auth::{AuthDecision, AuthQuestion, UnreadableQuestion};
use super::grpc::{self, CallCode, RpcError};
use super::messages::{
    AppendAction, CheckResponse, DeniedMessage, HeaderMessage, HeaderOptionMessage,
    HttpResponseMessage, HttpStatusMessage, OkMessage, RpcStatusMessage,
};
use crate::body::RequestBody;
use crate::proxy::Proxy;
use crate::proxy::body::Body;
use crate::telemetry::metrics::{DecideCode, Door};

impl Proxy {
    /// Answers a call of `Authorization/Check`. A message that is too long is a denial: Envoy may
    /// let a request pass whose call has an error, and a client can make a message long.
    pub(super) async fn answer_check(
        &self,
        body: &mut RequestBody,
        caller: &Caller<'_>,
    ) -> Result<Response<Body>, RpcError> {
        let mut response = Response::new(Body::empty());
        let decision = match read_question(body, caller).await {
            Ok(question) => {
                let deciding = self.decide_question(Door::Check, question, &mut response, caller);
                deciding.await
            }
            Err(fault) => {
                self.count_question(Door::Check, DecideCode::Error, caller);
                match fault {
                    CheckFault::Denies(unreadable) => unreadable.refuse(&mut response),
                    CheckFault::Fails(error) => return Err(error),
                }
                AuthDecision::Deny
            }
        };
        Ok(grpc::answer(&CheckResponse::new(decision, response)))
    }
}

/// Why a call is not decided.
enum CheckFault {
    /// Clients can cause it.
    Denies(UnreadableQuestion),
    /// Only the caller can cause it.
    Fails(RpcError),
}

async fn read_question(
    body: &mut RequestBody,
    caller: &Caller<'_>,
) -> Result<AuthQuestion, CheckFault> {
    let bytes = grpc::read_message(body, caller.settings.max_message).await;
    let bytes = bytes.map_err(|error| match error.code {
        CallCode::ResourceExhausted => CheckFault::Denies(UnreadableQuestion {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            why: "the request is too long to be decided",
        }),
        _ => CheckFault::Fails(error),
    })?;
    let message = grpc::decode(bytes).map_err(CheckFault::Fails)?;
    AuthQuestion::of_message(&message).map_err(CheckFault::Denies)
}

impl CheckResponse {
    fn new(decision: AuthDecision, mut response: Response<Body>) -> CheckResponse {
        let headers = header_options(response.headers());
        let (code, http_response) = match decision {
            AuthDecision::Allow => {
                let message = OkMessage {
                    response_headers_to_add: headers,
                };
                (CallCode::Ok, HttpResponseMessage::Ok(message))
            }
            AuthDecision::Deny => {
                let status = HttpStatusMessage {
                    code: response.status().as_u16().into(),
                };
                let message = DeniedMessage {
                    status: Some(status),
                    headers,
                    body: response.body_mut().take_made(),
                };
                (
                    CallCode::PermissionDenied,
                    HttpResponseMessage::Denied(message),
                )
            }
        };
        CheckResponse {
            status: Some(RpcStatusMessage { code: code as i32 }),
            http_response: Some(http_response),
        }
    }
}

/// The headers for the client's response. The first line of a name replaces the upstream's lines.
fn header_options(headers: &HeaderMap) -> Vec<HeaderOptionMessage> {
    let mut options = Vec::with_capacity(headers.len());
    for name in headers.keys() {
        let mut action = AppendAction::OverwriteIfExistsOrAdd;
        for value in headers.get_all(name) {
            let action = mem::replace(&mut action, AppendAction::AppendIfExistsOrAdd);
            options.push(HeaderOptionMessage {
                header: Some(HeaderMessage::new(name, value)),
                append: None,
                append_action: action.into(),
            });
        }
    }
    options
}
