//! What is asked for, and the answers: JSON, problems, and the headers that every answer has.

use bytes::Bytes;
use http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::gate::Deed;
use super::{Desk, dashboard, limits, prometheus, status, traffic, upstreams};
use crate::telemetry::metrics::text::Form;

/// An answer's body.
pub(super) type Body = Full<Bytes>;

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
    pub(super) fn nothing(what: &str) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, what)
    }
}

type Answer = Result<Response<Body>, Refusal>;

/// Everything that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place<'p> {
    Healthz,
    Readyz,
    Metrics,
    /// A file of the dashboard, by its name.
    Page(&'p str),
    Status,
    Traffic,
    Limits,
    Upstreams,
}

impl<'p> Place<'p> {
    fn of(path: &'p str) -> Option<Place<'p>> {
        let api = path.strip_prefix("/api/v1/");
        Some(match (path, api) {
            ("/healthz", _) => Place::Healthz,
            ("/readyz", _) => Place::Readyz,
            ("/metrics", _) => Place::Metrics,
            (_, Some("status")) => Place::Status,
            (_, Some("traffic")) => Place::Traffic,
            (_, Some("limits")) => Place::Limits,
            (_, Some("upstreams")) => Place::Upstreams,
            (_, Some(_)) => return None,
            (page, None) => Place::Page(page.strip_prefix('/')?),
        })
    }

    fn deed(self) -> Deed {
        match self {
            Place::Healthz | Place::Readyz | Place::Metrics | Place::Page(_) => Deed::Glance,
            Place::Status | Place::Traffic | Place::Limits | Place::Upstreams => Deed::Read,
        }
    }
}

/// Answers one request.
pub(super) async fn answer(desk: &Desk, request: Request<Incoming>) -> Response<Body> {
    let answered = take(desk, &request);
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

fn take(desk: &Desk, request: &Request<Incoming>) -> Answer {
    let place = Place::of(request.uri().path());
    // Who may not ask is not told what there is.
    let deed = place.map_or(Deed::Glance, Place::deed);
    desk.pass.load().admits(request, deed)?;
    let place = place.ok_or_else(|| Refusal::nothing("there is nothing here"))?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let detail = "this can only be read: GET";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, detail));
    }
    match place {
        Place::Healthz => Ok(desk.healthz()),
        Place::Readyz => Ok(desk.readyz()),
        Place::Metrics => {
            let accept = request.headers().get(ACCEPT);
            let form = Form::asked(accept.and_then(|accept| accept.to_str().ok()));
            let text = seen(
                desk.grounds
                    .sight
                    .look(|view| prometheus::write(desk, view, form)),
            )?;
            Ok(with_type(StatusCode::OK, form.media_type(), text))
        }
        Place::Page(name) => dashboard::file(name).ok_or_else(|| Refusal::nothing("no such page")),
        Place::Status => Ok(json_of(&status::status(desk)?)),
        Place::Traffic => Ok(json_of(&traffic::traffic(desk))),
        Place::Limits => Ok(json_of(&limits::limits(desk)?)),
        Place::Upstreams => Ok(json_of(&upstreams::upstreams(desk)?)),
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
    let mut response = Response::new(Full::new(text.into()));
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
    let problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": refusal.detail,
    });
    let mut response = with_type(status, "application/problem+json", problem.to_string());
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
