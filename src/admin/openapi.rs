//! `/openapi.json`: the document of the API, made of the table of its endpoints.
//!
//! `openapi.json` beside this file is the same, for those who read it here:
//! `TIDEGATE_ACCEPT=1 cargo test --lib -- openapi` writes it.

use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use super::endpoints::{ApiEndpoint, ENDPOINTS, RefusalContent};
use super::health::Readiness;
use super::place::AdminAction;
use super::respond::ProblemReport;
use super::schema::Components;

/// The document, as it is answered.
pub(super) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::to_string_pretty(&describe()).unwrap_or_default())
}

fn describe() -> Value {
    let mut components = Components::default();
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
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
            "description": "What a running tidegate does, and what operators can change. Times are \
                seconds since the Unix epoch. On a loopback address reading needs no token; \
                everything else does.",
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
    let in_query = endpoint.query.iter().map(|one| {
        json!({
            "name": one.name,
            "in": "query",
            "required": false,
            "description": one.doc,
            "schema": (one.schema)(),
        })
    });
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = &endpoint.body {
        let mut content = json!({ "schema": (body.schema)() });
        if let Some(example) = (body.example)() {
            content["example"] = example;
        }
        operation["requestBody"] =
            json!({ "required": body.required, "content": { "application/json": content } });
    }
    operation
}

/// The parameter that a part of a path stands for.
fn path_parameter(part: &str) -> Option<Value> {
    let name = part.strip_prefix('{')?.strip_suffix('}')?;
    let mut parameter = json!({
        "name": name,
        "in": "path",
        "required": true,
        "schema": { "type": "string", "minLength": 1 },
    });
    match name {
        "key" => {
            parameter["description"] = json!(
                "A word for each part of the limit's key, with `&` between them: `PART=VALUE`, or \
                 a plain value; or `tag=HASH`."
            );
            parameter["example"] = json!("192.0.2.7");
        }
        _ => parameter["description"] = json!("The limit."),
    }
    Some(parameter)
}

fn responses(endpoint: &ApiEndpoint, components: &mut Components) -> Value {
    let problem = components.refer::<ProblemReport>();
    let problem = json!({ "application/problem+json": { "schema": problem } });
    let mut all = Map::new();
    let mut add = |status: u16, doc: &str, content: Value| {
        let response = json!({ "description": doc, "content": content });
        all.insert(status.to_string(), response);
    };
    add(200, "OK", (endpoint.answer)(components));
    add(400, "The request is wrong.", problem.clone());
    add(401, "The token is missing or wrong.", problem.clone());
    add(403, "A page of another site asked.", problem.clone());
    add(
        421,
        "The `Host` is not a name of this admin.",
        problem.clone(),
    );
    add(503, "The proxy is starting or ending.", problem.clone());
    if endpoint.body.is_some() {
        add(413, "The body is too large.", problem.clone());
        add(415, "The body is not JSON.", problem.clone());
    }
    for refusal in endpoint.refusals {
        let content = match refusal.content {
            RefusalContent::Problem => problem.clone(),
            RefusalContent::Text => {
                json!({ "text/plain; charset=utf-8": { "schema": { "type": "string" } } })
            }
            RefusalContent::Readiness => {
                json!({ "application/json": { "schema": components.refer::<Readiness>() } })
            }
        };
        add(refusal.status, refusal.doc, content);
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_json_is_what_is_answered() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/admin/openapi.json");
        let text = format!("{}\n", document());
        if std::env::var_os("TIDEGATE_ACCEPT").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == text,
            "{path} is stale: TIDEGATE_ACCEPT=1 cargo test --lib -- openapi"
        );
    }
}
