//! `GET /api/v1/config`: what holds in the proxy that runs, with every default and without secrets.
//! TOML, or JSON for whoever asks for that.

use http::{HeaderMap, StatusCode, header};
use serde_json::json;

use super::AdminState;
use super::answer::{Answer, json_of, seen, with_type};
use crate::config::{effective, environment};

/// `POST /api/v1/config/secrets`: what stands for each secret, for whoever has the token.
pub(super) fn secrets(state: &AdminState, headers: &HeaderMap) -> Answer {
    let text = state
        .server
        .introspection
        .inspect(|snapshot| snapshot.config.written.text.clone());
    let shown = headers.get(header::AUTHORIZATION);
    let token = shown.and_then(|shown| shown.as_bytes().get(7..));
    let token = token.unwrap_or_default().trim_ascii();
    let marks = effective::marks(&seen(text)?, &environment, token);
    Ok(json_of(&json!({ "secrets": marks })))
}

pub(super) fn config(state: &AdminState, headers: &HeaderMap) -> Answer {
    let text = state
        .server
        .introspection
        .inspect(|snapshot| snapshot.config.written.text.clone());
    let found = effective::effective(&seen(text)?, &environment);
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let wants_json = accept.is_some_and(|accept| accept.contains("application/json"));
    Ok(match wants_json {
        true => json_of(&found),
        false => with_type(StatusCode::OK, "application/toml", effective::toml(&found)),
    })
}
