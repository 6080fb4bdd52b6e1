//! The parts of every answer of the API: JSON, texts, problems (RFC 9457), and times.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde::Serialize;

use super::schema::described;
use crate::clock;

/// A body that is complete, or events that are sent as they happen.
pub(super) type AdminBody = UnsyncBoxBody<Bytes, Infallible>;

pub(super) type ApiResult = Result<Response<AdminBody>, ApiError>;

/// The status and the text of a refusal. For 405, `detail` lists the allowed methods.
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

    pub(super) fn no_limit(name: &str) -> ApiError {
        ApiError::not_found(format!("there is no limit `{name}`"))
    }

    pub(super) fn into_response(self) -> Response<AdminBody> {
        let (allow, detail) = match self.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                let allow = HeaderValue::from_str(&self.detail).ok();
                (allow, format!("this takes {}", self.detail))
            }
            _ => (None, self.detail),
        };
        let problem = ProblemReport {
            r#type: "about:blank".to_owned(),
            title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: self.status.as_u16().into(),
            detail,
        };
        let media = "application/problem+json";
        let mut response = with_type(self.status, media, json_text(&problem));
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        headers.extend(allow.map(|allow| (ALLOW, allow)));
        response
    }
}

described! {
    struct ProblemReport as "Problem" {
        r#type: String,
        title: String,
        status: u32,
        detail: String,
    }
}

pub(super) fn with_type(
    status: StatusCode,
    media: &'static str,
    text: impl Into<Bytes>,
) -> Response<AdminBody> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

pub(super) fn json_response(value: &impl Serialize) -> Response<AdminBody> {
    with_type(StatusCode::OK, "application/json", json_text(value))
}

/// The JSON of an answer, its fields sorted by name.
pub(super) fn json_text(value: &impl Serialize) -> String {
    serde_json::to_value(value).unwrap_or_default().to_string()
}

/// Microseconds as the seconds of the API.
pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Now, seconds since the Unix epoch.
pub(super) fn now() -> f64 {
    seconds(clock::unix_us())
}

/// Now, whole seconds since the Unix epoch.
pub(super) fn now_s() -> u64 {
    clock::unix_us() / 1_000_000
}
