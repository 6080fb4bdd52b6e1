//! What is asked for, and the answers: JSON, problems, and the headers that every answer has.

use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use super::body::Body;
use super::endpoints::ApiEndpoint;
use super::place::{AdminAction, Place, parameter};
use super::respond::{ApiError, ApiResult, available, json_of, problem, with_type};
use super::upstreams;
use super::{
    AdminState, clients, config, dashboard, denials, explain, keys, limits, openapi, overrides,
    prometheus, reload, routes, status, traffic,
};
use crate::telemetry::metrics::text::Form;
use crate::telemetry::panics::contained;
use tidegate_core::failpoint;

/// Bytes of a request's body.
const MOST_BODY: usize = 64 << 10;
/// For all of it to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers one request, whatever becomes of it.
pub(super) async fn answer(state: &Arc<AdminState>, request: Request<Incoming>) -> Response<Body> {
    let answered = contained(find(state, request)).await;
    let answered = answered.unwrap_or_else(|| {
        let why = "something of ours broke, which the log has told";
        Err(ApiError::internal(why))
    });
    let mut response = answered.unwrap_or_else(|refusal| problem(&refusal));
    let headers = response.headers_mut();
    let mut insert =
        |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    insert(CACHE_CONTROL, "no-store");
    insert(X_CONTENT_TYPE_OPTIONS, "nosniff");
    insert(X_FRAME_OPTIONS, "DENY");
    insert(REFERRER_POLICY, "no-referrer");
    insert(
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    );
    insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    response
}

async fn find(state: &Arc<AdminState>, request: Request<Incoming>) -> ApiResult {
    let path = request.uri().path();
    let found = ApiEndpoint::find(path);
    // A client that may not ask does not learn which paths there are.
    let action = found
        .as_ref()
        .map_or(AdminAction::Probe, |(one, _)| one.action);
    state.pass.load().admits(&request, action)?;
    failpoint!("admin.request");
    let Some((endpoint, place)) = found else {
        return page(&request);
    };
    if !endpoint.takes(request.method()) {
        let methods = endpoint.methods();
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, methods));
    }
    match place {
        place if endpoint.body.is_some() => write(state, &place, request).await,
        Place::Overrides => overrides::overrides(state).await,
        Place::Changes => overrides::changes(state).await,
        Place::Key(limit, words) => {
            let words = match parameter(request.uri().query(), "by").as_deref() {
                Some("id") => vec![format!("tag={}", words.join("&"))],
                _ => words,
            };
            keys::show(state, &limit, words).await
        }
        place => read(state, &place, &request),
    }
}

/// A file of the dashboard.
fn page<B>(request: &Request<B>) -> ApiResult {
    let path = request.uri().path();
    let name = path
        .strip_prefix('/')
        .filter(|_| !path.starts_with("/api/v1/"));
    let name = name.ok_or_else(|| ApiError::not_found("there is nothing here"))?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD"));
    }
    dashboard::file(name).ok_or_else(|| ApiError::not_found("no such page"))
}

fn read(state: &Arc<AdminState>, place: &Place, request: &Request<Incoming>) -> ApiResult {
    let query = request.uri().query();
    match place {
        Place::Healthz => Ok(state.healthz()),
        Place::Readyz => Ok(state.readyz()),
        Place::Metrics => {
            let accept = request.headers().get(ACCEPT);
            let form = Form::asked(accept.and_then(|accept| accept.to_str().ok()));
            let text = available(
                state
                    .server
                    .introspection
                    .inspect(|snapshot| prometheus::write(state, snapshot, form)),
            )?;
            Ok(with_type(StatusCode::OK, form.media_type(), text))
        }
        Place::OpenApi => Ok(with_type(
            StatusCode::OK,
            "application/json",
            openapi::document(),
        )),
        Place::Status => Ok(json_of(&status::status(state)?)),
        Place::Traffic => Ok(json_of(&traffic::traffic(state))),
        Place::Limits => Ok(json_of(&limits::limits(state)?)),
        Place::Clients(limit) => Ok(json_of(&clients::clients(state, limit, query)?)),
        Place::Config => config::config(state, request.headers()),
        Place::Upstreams => Ok(json_of(&upstreams::upstreams(state)?)),
        Place::Denials => {
            let filter = denials::Filter::of(query)?;
            Ok(json_of(&state.last_denials(&filter)))
        }
        Place::Routes => Ok(json_of(&routes::routes(state)?)),
        Place::DenialStream => denials::stream(state, denials::Filter::of(query)?),
        _ => Err(ApiError::not_found("there is nothing here")),
    }
}

async fn write(state: &Arc<AdminState>, place: &Place, request: Request<Incoming>) -> ApiResult {
    if *place == Place::Secrets {
        // Nothing is told it but the token.
        return config::secrets(state, request.headers());
    }
    let body = Limited::new(request.into_body(), MOST_BODY).collect();
    let body = timeout(BODY_TIMEOUT, body).await;
    let late = || ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    let body = body.map_err(|_| late())?;
    let large = |_| {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too large, or broke",
        )
    };
    let bytes = body.map_err(large)?.to_bytes();
    let said = match bytes.is_empty() {
        true => Value::Object(serde_json::Map::new()),
        false => serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))?,
    };
    if !said.is_object() {
        return Err(ApiError::bad_request("the body is not an object"));
    }
    match place {
        Place::Reload => reload::reload(state).await,
        Place::Explain => explain::answer(state, &said).await,
        Place::Change(limit, what) => {
            overrides::change(state, limit.as_deref(), *what, &said).await
        }
        _ => Err(ApiError::not_found("there is nothing here")),
    }
}
