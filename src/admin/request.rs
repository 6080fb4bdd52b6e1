//! A request to the API, read: the parameters of its path and query, and the fields of its body.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::response::ApiError;
use super::state::AdminState;
use crate::key_selector::percent_decoded as decoded;

/// The largest body of a request, bytes.
const MAX_BODY: usize = 64 << 10;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Refuses a field of the body that is not in `properties`, an object of a schema.
    pub(super) fn check_fields(&self, properties: &Value) -> Result<(), ApiError> {
        let known = |name: &String| properties.get(name).is_some();
        let Some(unknown) = self.body.keys().find(|name| !known(name)) else {
            return Ok(());
        };
        let names = properties.as_object().into_iter().flat_map(Map::keys);
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        let detail = format!("`{unknown}` is no field of this request: it takes {names}");
        Err(ApiError::bad_request(detail))
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
