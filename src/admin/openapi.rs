//! The endpoints of the API as values, and `/openapi.json`, the document that describes them.
//!
//! An endpoint is made of the function that answers it, so its description has the schema of the
//! type that the function returns.

use futures_util::future::BoxFuture;
use http::{Method, StatusCode};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::gate::AdminAction;
use super::request::{ApiRequest, PathParameters};
use super::response::{ApiError, ApiResult, ProblemReport, json_response};
use super::schema::{Components, Described};

/// The media types of an answer, each with the schema of its content.
type ContentSchema = fn(&mut Components) -> Value;
type AnswerFn = Box<dyn Fn(ApiRequest) -> BoxFuture<'static, ApiResult> + Send + Sync>;

pub(super) struct ApiEndpoint {
    pub(super) path: &'static str,
    pub(super) action: AdminAction,
    summary: &'static str,
    /// The descriptions of the parameters of the query.
    query: Vec<Value>,
    /// The description of the body. An endpoint with a body takes POST, all others GET and HEAD.
    pub(super) body: Option<Value>,
    content: ContentSchema,
    refusals: Vec<RefusalDoc>,
    pub(super) answer: AnswerFn,
}

/// A status that an endpoint answers with beside 200. It replaces the general meaning of that
/// status.
#[derive(Clone, Copy)]
pub(super) struct RefusalDoc {
    pub(super) status: u16,
    pub(super) doc: &'static str,
    pub(super) content: ContentSchema,
}

/// An endpoint that reads, without an answer yet.
pub(super) fn read(path: &'static str, summary: &'static str) -> ApiEndpoint {
    ApiEndpoint {
        path,
        action: AdminAction::Read,
        summary,
        query: Vec::new(),
        body: None,
        content: object_content,
        refusals: Vec::new(),
        answer: Box::new(|_| {
            let absent = ApiError::not_found("there is nothing here");
            Box::pin(std::future::ready(Err(absent)))
        }),
    }
}

/// An endpoint that needs no token.
pub(super) fn probe(path: &'static str, summary: &'static str) -> ApiEndpoint {
    ApiEndpoint {
        action: AdminAction::Probe,
        ..read(path, summary)
    }
}

/// An endpoint that always needs the token. Its body is an object without fields, unless `body`
/// describes another.
pub(super) fn write(path: &'static str, summary: &'static str) -> ApiEndpoint {
    let schema = json!({
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": true,
    });
    ApiEndpoint {
        action: AdminAction::Write,
        body: Some(body_doc(false, &json!({ "schema": schema }))),
        ..read(path, summary)
    }
}

fn body_doc(required: bool, content: &Value) -> Value {
    json!({ "required": required, "content": { "application/json": content } })
}

pub(super) const fn refusal(status: u16, doc: &'static str) -> RefusalDoc {
    RefusalDoc {
        status,
        doc,
        content: problem_content,
    }
}

impl ApiEndpoint {
    pub(super) fn query(mut self, name: &str, doc: &str, schema: &Value) -> Self {
        self.query.push(json!({
            "name": name,
            "in": "query",
            "required": false,
            "description": doc,
            "schema": schema,
        }));
        self
    }

    pub(super) fn body(mut self, schema: &Value, example: &Value) -> Self {
        let content = json!({ "schema": schema, "example": example });
        self.body = Some(body_doc(true, &content));
        self
    }

    pub(super) fn refuses(mut self, refusals: &[RefusalDoc]) -> Self {
        self.refusals.extend(refusals);
        self
    }

    /// Answers with what `handle` returns, as JSON.
    pub(super) fn json<T: Described + Serialize>(
        self,
        handle: impl Fn(&ApiRequest) -> Result<T, ApiError> + Send + Sync + 'static,
    ) -> Self {
        self.respond(json_content::<T>, move |request| {
            handle(request).map(|answer| json_response(&answer))
        })
    }

    /// The same for an answer that takes time.
    pub(super) fn json_async<T, F>(
        self,
        handle: impl Fn(ApiRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        T: Described + Serialize,
        F: Future<Output = Result<T, ApiError>> + Send + 'static,
    {
        self.respond_async(json_content::<T>, move |request| {
            let answer = handle(request);
            async { Ok(json_response(&answer.await?)) }
        })
    }

    pub(super) fn respond(
        self,
        content: ContentSchema,
        handle: impl Fn(&ApiRequest) -> ApiResult + Send + Sync + 'static,
    ) -> Self {
        self.respond_async(content, move |request| std::future::ready(handle(&request)))
    }

    pub(super) fn respond_async<F>(
        mut self,
        content: ContentSchema,
        handle: impl Fn(ApiRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ApiResult> + Send + 'static,
    {
        self.content = content;
        self.answer = Box::new(move |request| Box::pin(handle(request)));
        self
    }

    /// Refuses a parameter of the query that the endpoint does not read. A probe may have any.
    pub(super) fn check_query(&self, query: Option<&str>) -> Result<(), ApiError> {
        if self.action == AdminAction::Probe {
            return Ok(());
        }
        let known: Vec<&str> = (self.query.iter())
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        let pairs = query.unwrap_or_default().split('&');
        let mut names = pairs.filter_map(|pair| pair.split('=').next());
        let Some(unknown) = names.find(|name| !name.is_empty() && !known.contains(name)) else {
            return Ok(());
        };
        let takes = match known.is_empty() {
            true => "none".to_owned(),
            false => format!("`{}`", known.join("`, `")),
        };
        let detail = format!("`{unknown}` is no parameter of this request: it takes {takes}");
        Err(ApiError::bad_request(detail))
    }

    pub(super) fn check_method(&self, method: &Method) -> Result<(), ApiError> {
        let is_post = *method == Method::POST;
        let is_get = matches!(*method, Method::GET | Method::HEAD);
        match self.body {
            Some(_) if !is_post => Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "POST")),
            None if !is_get => Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD")),
            _ => Ok(()),
        }
    }
}

/// The endpoint of a path, with the parameters in it.
pub(super) fn find<'e>(
    endpoints: &'e [ApiEndpoint],
    path: &str,
) -> Option<(&'e ApiEndpoint, PathParameters)> {
    endpoints
        .iter()
        .find_map(|one| Some((one, PathParameters::read(one.path, path)?)))
}

pub(super) fn json_content<T: Described>(components: &mut Components) -> Value {
    json!({ "application/json": { "schema": components.refer::<T>() } })
}

pub(super) fn object_content(_: &mut Components) -> Value {
    json!({ "application/json": { "schema": { "type": "object" } } })
}

pub(super) fn text_content(_: &mut Components) -> Value {
    json!({ "text/plain; charset=utf-8": { "schema": { "type": "string" } } })
}

fn problem_content(components: &mut Components) -> Value {
    json!({ "application/problem+json": { "schema": components.refer::<ProblemReport>() } })
}

pub(super) fn document(endpoints: &[ApiEndpoint]) -> Value {
    let mut components = Components::default();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let method = match endpoint.body {
            Some(_) => "post",
            None => "get",
        };
        let operation = operation(endpoint, &mut components);
        paths.insert(endpoint.path.to_owned(), json!({ method: operation }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tidegate admin",
            "version": "1",
            "description": "The state of a running tidegate, and the changes that operators can \
                make. Times are seconds since the Unix epoch. On a loopback address reading needs \
                no token; everything else does.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": components.0,
        },
    })
}

fn operation(endpoint: &ApiEndpoint, components: &mut Components) -> Value {
    let mut operation = json!({
        "summary": endpoint.summary,
        "responses": responses(endpoint, components),
    });
    match endpoint.action {
        AdminAction::Probe => operation["security"] = json!([]),
        AdminAction::Read => {}
        AdminAction::Write => operation["security"] = json!([{ "token": [] }]),
    }
    let in_path = endpoint.path.split('/').filter_map(path_parameter);
    let parameters: Vec<Value> = in_path.chain(endpoint.query.iter().cloned()).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = &endpoint.body {
        operation["requestBody"] = body.clone();
    }
    operation
}

fn path_parameter(part: &str) -> Option<Value> {
    let name = part.strip_prefix('{')?.strip_suffix('}')?;
    let mut parameter = json!({
        "name": name,
        "in": "path",
        "required": true,
        "description": "The limit.",
        "schema": { "type": "string", "minLength": 1 },
    });
    if name == "key" {
        parameter["description"] = json!(
            "A word for each part of the limit's key, with `&` between them: `PART=VALUE`, or \
             a plain value; or `tag=HASH`."
        );
        parameter["example"] = json!("192.0.2.7");
    }
    Some(parameter)
}

/// Refusals of every endpoint.
const REFUSALS: [RefusalDoc; 5] = [
    refusal(400, "The request is wrong."),
    refusal(401, "The token is missing or wrong."),
    refusal(403, "A page of another site asked."),
    refusal(421, "The `Host` is not a name of this admin."),
    refusal(503, "The proxy is starting or ending."),
];

/// Refusals of every endpoint that takes a body.
const BODY_REFUSALS: [RefusalDoc; 2] = [
    refusal(413, "The body is too large."),
    refusal(415, "The body is not JSON."),
];

fn responses(endpoint: &ApiEndpoint, components: &mut Components) -> Value {
    let success = RefusalDoc {
        status: 200,
        doc: "OK",
        content: endpoint.content,
    };
    let of_body = BODY_REFUSALS.iter().filter(|_| endpoint.body.is_some());
    let all = [success]
        .into_iter()
        .chain(REFUSALS)
        .chain(of_body.copied());
    let mut responses = Map::new();
    for one in all.chain(endpoint.refusals.iter().copied()) {
        let response = json!({ "description": one.doc, "content": (one.content)(components) });
        responses.insert(one.status.to_string(), response);
    }
    Value::Object(responses)
}
