//! What is asked for, and the answers: JSON, problems, and the headers that every answer has.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::body::Body;
use super::gate::Deed;
use super::place::{Place, parameter};
use super::upstreams;
use super::{
    AdminState, clients, config, dashboard, denials, explain, keys, limits, overrides, prometheus,
    reload, routes, status, traffic,
};
use crate::telemetry::metrics::text::Form;
use crate::telemetry::panics::contained;

/// Bytes of a request's body.
const MOST_BODY: usize = 64 << 10;
/// For all of it to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

const OPENAPI: &str = include_str!("openapi.json");

/// Why there is no other answer.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Refusal {
        Refusal {
            status,
            detail: detail.into(),
        }
    }

    /// Nothing is there.
    pub(super) fn nothing(what: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, what)
    }

    /// What was asked makes no sense.
    pub(super) fn nonsense(what: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, what)
    }
}

/// An answer, or why there is none.
pub(super) type Answer = Result<Response<Body>, Refusal>;

/// Answers one request, whatever becomes of it.
pub(super) async fn answer(state: &Arc<AdminState>, request: Request<Incoming>) -> Response<Body> {
    let answered = contained(find(state, request)).await;
    let answered = answered.unwrap_or_else(|| {
        let why = "something of ours broke, which the log has told";
        Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why))
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

async fn find(state: &Arc<AdminState>, request: Request<Incoming>) -> Answer {
    let place = admit(state, &request)?;
    failpoint!("admin.request");
    match place {
        place if place.is_told_something() => write(state, &place, request).await,
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

/// What a request asks for, if it may.
fn admit(state: &AdminState, request: &Request<Incoming>) -> Result<Place, Refusal> {
    let place = Place::of(request.uri().path());
    // Who may not ask is not told what there is.
    let deed = place.as_ref().map_or(Deed::Glance, Place::deed);
    state.pass.load().admits(request, deed)?;
    let place = place.ok_or_else(|| Refusal::nothing("there is nothing here"))?;
    let fits = match *request.method() {
        Method::GET | Method::HEAD => !place.is_told_something(),
        Method::POST => place.is_told_something(),
        _ => false,
    };
    match fits {
        true => Ok(place),
        false => Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            place.methods(),
        )),
    }
}

fn read(state: &Arc<AdminState>, place: &Place, request: &Request<Incoming>) -> Answer {
    let query = request.uri().query();
    match place {
        Place::Healthz => Ok(state.healthz()),
        Place::Readyz => Ok(state.readyz()),
        Place::Metrics => {
            let accept = request.headers().get(ACCEPT);
            let form = Form::asked(accept.and_then(|accept| accept.to_str().ok()));
            let text = seen(
                state
                    .server
                    .introspection
                    .inspect(|snapshot| prometheus::write(state, snapshot, form)),
            )?;
            Ok(with_type(StatusCode::OK, form.media_type(), text))
        }
        Place::OpenApi => Ok(with_type(StatusCode::OK, "application/json", OPENAPI)),
        Place::Page(name) => dashboard::file(name).ok_or_else(|| Refusal::nothing("no such page")),
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
        _ => Err(Refusal::nothing("there is nothing here")),
    }
}

async fn write(state: &Arc<AdminState>, place: &Place, request: Request<Incoming>) -> Answer {
    if *place == Place::Secrets {
        // Nothing is told it but the token.
        return config::secrets(state, request.headers());
    }
    let body = Limited::new(request.into_body(), MOST_BODY).collect();
    let body = timeout(BODY_TIMEOUT, body).await;
    let late = || Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    let body = body.map_err(|_| late())?;
    let large = |_| {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too large, or broke",
        )
    };
    let bytes = body.map_err(large)?.to_bytes();
    let said = match bytes.is_empty() {
        true => Value::Object(serde_json::Map::new()),
        false => serde_json::from_slice(&bytes)
            .map_err(|error| Refusal::nonsense(format!("the body is not JSON: {error}")))?,
    };
    if !said.is_object() {
        return Err(Refusal::nonsense("the body is not an object"));
    }
    match place {
        Place::Reload => reload::reload(state).await,
        Place::Explain => explain::tell(state, &said).await,
        Place::Change(limit, what) => {
            overrides::change(state, limit.as_deref(), *what, &said).await
        }
        _ => Err(Refusal::nothing("there is nothing here")),
    }
}

/// What was seen, or that there is nothing to see.
pub(super) fn seen<T>(seen: Option<T>) -> Result<T, Refusal> {
    let ending = "the proxy is starting or ending";
    seen.ok_or_else(|| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, ending))
}

/// A text of some media type.
pub(super) fn with_type(
    status: StatusCode,
    media: &'static str,
    text: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Body::Whole(text.into()));
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

/// JSON.
pub(super) fn json_of(value: &Value) -> Response<Body> {
    with_type(StatusCode::OK, "application/json", value.to_string())
}

fn problem(refusal: &Refusal) -> Response<Body> {
    let status = refusal.status;
    let mut detail = refusal.detail.clone();
    let allowed = HeaderValue::from_str(&detail).ok();
    if status == StatusCode::METHOD_NOT_ALLOWED {
        detail = format!("this takes {detail}");
    }
    let problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
    });
    let mut response = with_type(status, "application/problem+json", problem.to_string());
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(allowed) = allowed.filter(|_| status == StatusCode::METHOD_NOT_ALLOWED) {
        headers.insert(ALLOW, allowed);
    }
    response
}
