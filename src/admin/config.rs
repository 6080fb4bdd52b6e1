//! `GET /api/v1/config`: what holds in the proxy that runs, with every default and without secrets.
//! TOML, or JSON for whoever asks for that.

use std::collections::BTreeMap;

use http::{HeaderMap, StatusCode, header};

use super::AdminState;
use super::respond::{ApiResult, available, json_of, with_type};
use super::schema::described;
use crate::config::{effective, environment};

described! {
    struct SecretMarks {
        secrets: BTreeMap<String, String>,
    }
}

/// `POST /api/v1/config/secrets`: what stands for each secret, for whoever has the token.
pub(super) fn secrets(state: &AdminState, headers: &HeaderMap) -> ApiResult {
    let text = state
        .server
        .introspection
        .inspect(|snapshot| snapshot.config.sources.text.clone());
    let shown = headers.get(header::AUTHORIZATION);
    let token = shown.and_then(|shown| shown.as_bytes().get(7..));
    let token = token.unwrap_or_default().trim_ascii();
    let marks = effective::marks(&available(text)?, &environment, token);
    Ok(json_of(&SecretMarks { secrets: marks }))
}

pub(super) fn config(state: &AdminState, headers: &HeaderMap) -> ApiResult {
    let text = state
        .server
        .introspection
        .inspect(|snapshot| snapshot.config.sources.text.clone());
    let found = effective::effective(&available(text)?, &environment);
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let wants_json = accept.is_some_and(|accept| accept.contains("application/json"));
    Ok(match wants_json {
        true => json_of(&found),
        false => with_type(StatusCode::OK, "application/toml", effective::toml(&found)),
    })
}
