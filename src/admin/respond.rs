//! The parts of every answer: JSON, texts, and problems.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use serde::Serialize;

use super::body::Body;
use super::schema::described;

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> ApiError {
        ApiError {
            status,
            detail: detail.into(),
        }
    }

    pub(super) fn not_found(detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn internal(detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    pub(super) fn unavailable(detail: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

pub(super) type ApiResult = Result<Response<Body>, ApiError>;

described! {
    struct ProblemReport as "Problem" {
        r#type: &'static str,
        title: &'static str,
        status: u32,
        detail: String,
    }
}

/// What was read of a running server; an error before it serves and after its end.
pub(super) fn available<T>(read: Option<T>) -> Result<T, ApiError> {
    read.ok_or_else(|| ApiError::unavailable("the proxy is starting or ending"))
}

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

pub(super) fn json_of(value: &impl Serialize) -> Response<Body> {
    with_type(StatusCode::OK, "application/json", json_text(value))
}

/// The JSON of an answer, its fields sorted by name.
pub(super) fn json_text(value: &impl Serialize) -> String {
    serde_json::to_value(value).unwrap_or_default().to_string()
}

pub(super) fn problem(error: &ApiError) -> Response<Body> {
    let status = error.status;
    let mut detail = error.detail.clone();
    let allowed = HeaderValue::from_str(&detail).ok();
    if status == StatusCode::METHOD_NOT_ALLOWED {
        detail = format!("this takes {detail}");
    }
    let problem = ProblemReport {
        r#type: "about:blank",
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16().into(),
        detail,
    };
    let mut response = with_type(status, "application/problem+json", json_text(&problem));
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(allowed) = allowed.filter(|_| status == StatusCode::METHOD_NOT_ALLOWED) {
        headers.insert(ALLOW, allowed);
    }
    response
}
