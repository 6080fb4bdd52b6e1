//! A request to the API, read, and the parts of every answer: JSON, texts, problems (RFC 9457), and
//! times.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::schema::described;
use super::state::AdminState;
use crate::clock;
use crate::key_selector::percent_decoded as decoded;

/// The largest body of a request, bytes.
const MAX_BODY: usize = 64 << 10;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A request: the parameters of its path and query, and the fields of its body.
pub(super) struct ApiRequest {
    pub(super) state: Arc<AdminState>,
    pub(super) path: PathParameters,
    pub(super) headers: HeaderMap,
    query: Option<String>,
    /// The JSON object of a POST request; empty for other requests.
    body: Map<String, Value>,
}

/// The parameters of a path, decoded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PathParameters {
    /// `{name}`, the name of a limit.
    pub(super) limit: Option<String>,
    /// `{key}`, the words of a client's key.
    pub(super) key: Vec<String>,
}

impl PathParameters {
    /// Reads `path`. `None` if it does not match the template, or cannot be decoded.
    pub(super) fn read(template: &str, path: &str) -> Option<PathParameters> {
        let mut parameters = PathParameters::default();
        let (mut names, mut words) = (template.split('/'), path.split('/'));
        loop {
            match (names.next(), words.next()) {
                (None, None) => return Some(parameters),
                (Some("{name}"), Some(word)) => parameters.limit = Some(decoded(word)?),
                // `&` separates the words: one within a word is written `%26`.
                (Some("{key}"), Some(word)) => {
                    parameters.key = word.split('&').map(decoded).collect::<Option<_>>()?;
                }
                (Some(name), Some(word)) if name == word => {}
                _ => return None,
            }
        }
    }
}

impl ApiRequest {
    /// Takes the parts of a request. Its body is not read.
    pub(super) fn new<B>(
        state: &Arc<AdminState>,
        path: PathParameters,
        request: &Request<B>,
    ) -> ApiRequest {
        ApiRequest {
            state: Arc::clone(state),
            path,
            headers: request.headers().clone(),
            query: request.uri().query().map(str::to_owned),
            body: Map::new(),
        }
    }

    /// Reads the JSON object in `body`. An empty body counts as an empty object.
    pub(super) async fn with_body(self, body: Incoming) -> Result<ApiRequest, ApiError> {
        let body = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
        let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        let large = |_| {
            let detail = "the body is too large, or broke";
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
        };
        let bytes = body.map_err(late)?.map_err(large)?.to_bytes();
        if bytes.is_empty() {
            return Ok(self);
        }
        let wrong = |error| ApiError::bad_request(format!("the body is not JSON: {error}"));
        match serde_json::from_slice(&bytes).map_err(wrong)? {
            Value::Object(body) => Ok(ApiRequest { body, ..self }),
            _ => Err(ApiError::bad_request("the body is not an object")),
        }
    }

    /// A parameter of the query. `None` if it is absent or cannot be decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        query_parameter(self.query.as_ref()?, name)
    }

    pub(super) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.body.get(name)
    }

    /// A field of the body that may be absent or `null`. `read` returns `None` for a wrong value;
    /// the error says that the field is `expected`.
    pub(super) fn field<'v, T>(
        &'v self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let value = self.get(name).filter(|value| !value.is_null());
        let wrong = || ApiError::bad_request(format!("`{name}` is {expected}"));
        value.map(|value| read(value).ok_or_else(wrong)).transpose()
    }

    /// A boolean of the body, `false` if it is absent.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => {
                let detail = format!("`{name}` is true or false");
                Err(ApiError::bad_request(detail))
            }
        }
    }
}

fn query_parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&');
    let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    decoded(&value.replace('+', " "))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read() {
        let clients = |path: &str| PathParameters::read("/api/v1/limits/{name}/clients", path);
        for (path, limit) in [("GET%20%2Fa", "GET /a"), ("", "")] {
            let found = clients(&format!("/api/v1/limits/{path}/clients")).unwrap();
            assert_eq!(found.limit.as_deref(), Some(limit));
        }
        for wrong in [
            "/api/v1/nothing",
            "*",
            "/api/v1/limits/%ff/clients",
            "/api/v1/limits/%4/clients",
        ] {
            assert_eq!(clients(wrong), None, "{wrong}");
        }
        let key = |key: &str| {
            let path = format!("/api/v1/limits/a/keys/{key}");
            let found = PathParameters::read("/api/v1/limits/{name}/keys/{key}", &path);
            found.map(|found| found.key)
        };
        assert_eq!(key("192.0.2.7").unwrap(), ["192.0.2.7"]);
        assert_eq!(
            key("api_key=a%26b+c&path=%2Fx").unwrap(),
            ["api_key=a&b+c", "path=/x"]
        );
        assert_eq!(key("a/b"), None);
    }

    #[test]
    fn parameters_are_read() {
        let value = |name: &str| query_parameter("limit=a%2Fb+c&top=5&odd", name);
        assert_eq!(value("limit").as_deref(), Some("a/b c"));
        assert_eq!(value("top").as_deref(), Some("5"));
        assert_eq!(value("odd"), None);
        assert_eq!(query_parameter("", "top"), None);
    }
}
