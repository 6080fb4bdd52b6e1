//! Answers one request: finds the endpoint or the file of the dashboard, checks access, and adds
//! the headers of every answer.

use std::sync::Arc;

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::dashboard;
use super::endpoints::ENDPOINTS;
use super::gate::AdminAction;
use super::openapi::find;
use super::request::ApiRequest;
use super::response::{AdminBody, ApiError, ApiResult};
use super::state::AdminState;
use crate::telemetry::panics::contained;
use tidegate_core::failpoint;

/// Headers that keep other pages from using an answer, and caches from keeping it.
const HEADERS: [(HeaderName, &str); 6] = [
    (CACHE_CONTROL, "no-store"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Answers one request, also if that panics.
pub(super) async fn answer(
    state: &Arc<AdminState>,
    request: Request<Incoming>,
) -> Response<AdminBody> {
    let answer = contained(dispatch(state, request)).await;
    let answer = answer.unwrap_or_else(|| {
        let detail = "something of ours broke, which the log has told";
        Err(ApiError::internal(detail))
    });
    let mut response = answer.unwrap_or_else(ApiError::into_response);
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

async fn dispatch(state: &Arc<AdminState>, request: Request<Incoming>) -> ApiResult {
    let path = request.uri().path();
    let found = find(&ENDPOINTS, path);
    // A client without access does not learn which paths exist.
    let action = found
        .as_ref()
        .map_or(AdminAction::Probe, |(endpoint, _)| endpoint.action);
    state.policy.load().authorize(&request, action)?;
    failpoint!("admin.request");
    let Some((endpoint, parameters)) = found else {
        return dashboard_file(path, request.method());
    };
    endpoint.check_method(request.method())?;
    let read = ApiRequest::new(state, parameters, &request);
    let read = match endpoint.reads_body() {
        true => read.with_body(request.into_body()).await?,
        false => read,
    };
    endpoint.answer(read).await
}

fn dashboard_file(path: &str, method: &Method) -> ApiResult {
    let name = path
        .strip_prefix('/')
        .filter(|_| !path.starts_with("/api/v1/"));
    let name = name.ok_or_else(|| ApiError::not_found("there is nothing here"))?;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD"));
    }
    dashboard::file(name).ok_or_else(|| ApiError::not_found("no such page"))
}
