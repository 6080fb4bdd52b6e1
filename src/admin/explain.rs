//! `/api/v1/explain`: what `tidegate explain` reports, for the configuration in effect.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::operator_store::OperatorStore;
use super::overrides::StorePlace;
use super::request::ApiRequest;
use super::response::{ApiError, ApiResult, json_response};
use crate::config::{Config, StoreKind};
use crate::explain::call::{CallDescription, explain_call};
use crate::explain::{
    EXAMPLE_PEER, Explanation, LiveCounts, RequestDescription, RequestError, carried_keys, explain,
};
use crate::key_callback::ask_now;
use crate::limit::Charge;
use crate::store::redis::OverrideClientError;

/// The most headers of a question.
const MAX_HEADERS: usize = 100;

pub(super) fn body_schema() -> Value {
    let pair =
        json!({ "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2 });
    json!({
        "type": "object",
        "properties": {
            "method": { "type": "string" },
            "url": { "type": "string" },
            "headers": { "type": "array", "items": pair },
            "ip": { "type": "string" },
            "body": { "type": "string" },
            "live": { "type": "boolean" },
        },
        "required": ["url"],
        "additionalProperties": false,
    })
}

pub(super) fn body_example() -> Value {
    json!({
        "method": "GET",
        "url": "/login",
        "headers": [["accept", "*/*"]],
        "ip": "192.0.2.7",
        "body": "{\"model\":\"gpt-5\",\"max_tokens\":100}",
        "live": true,
    })
}

pub(super) async fn answer(request: ApiRequest) -> ApiResult {
    request.check_fields(&body_schema()["properties"])?;
    let question = question(&request)?;
    let live = request.flag("live")?;
    let read = request
        .state
        .inspect(|snapshot| (snapshot.config.fresh_copy(), StorePlace::new(snapshot)));
    let (config, place) = read?;
    let work = move || match live {
        true => Ok(explain_live(&config, &question, place.open()?)??),
        false => Ok(explain(&config, &question, None)?),
    };
    let state = &request.state;
    let explanation = state.run_blocking("it could not be told", work).await?;
    Ok(json_response(&explanation))
}

/// `/api/v1/explain/call`: the same for a call of the rate limit service.
pub(super) async fn answer_call(request: ApiRequest) -> ApiResult {
    request.check_fields(&call_schema()["properties"])?;
    let call = call(&request)?;
    let live = request.flag("live")?;
    let read = request
        .state
        .inspect(|snapshot| (snapshot.config.fresh_copy(), StorePlace::new(snapshot)));
    let (config, place) = read?;
    let work = move || match live {
        true => Ok(with_live(&config, place.open()?, |live| {
            explain_call(&config, &call, live)
        })??),
        false => Ok(explain_call(&config, &call, None)?),
    };
    let state = &request.state;
    let explanation = state.run_blocking("it could not be told", work).await?;
    Ok(json_response(&explanation))
}

pub(super) fn call_schema() -> Value {
    let pair =
        json!({ "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2 });
    json!({
        "type": "object",
        "properties": {
            "domain": { "type": "string" },
            "entries": { "type": "array", "items": pair },
            "hits": { "type": "integer", "minimum": 0 },
            "live": { "type": "boolean" },
        },
        "required": ["domain", "entries"],
        "additionalProperties": false,
    })
}

pub(super) fn call_example() -> Value {
    json!({
        "domain": "shop",
        "entries": [["generic_key", "login"], ["remote_address", "192.0.2.7"]],
        "hits": 1,
        "live": true,
    })
}

fn call(request: &ApiRequest) -> Result<CallDescription, ApiError> {
    let Some(Value::String(domain)) = request.get("domain") else {
        return Err(ApiError::bad_request("`domain` is a text"));
    };
    let Some(Value::Array(entries)) = request.get("entries") else {
        return Err(ApiError::bad_request("`entries` is a list of pairs"));
    };
    let pairs: Option<Vec<_>> = entries.iter().map(pair).collect();
    let hits = request.field("hits", "a whole number", Value::as_u64)?;
    Ok(CallDescription {
        domain: domain.clone(),
        entries: pairs.ok_or_else(|| ApiError::bad_request("`entries` are pairs of texts"))?,
        hits: hits.unwrap_or(1),
    })
}

/// Explains with the current counts of the store.
pub(crate) fn explain_live(
    config: &Config,
    question: &RequestDescription,
    store: OperatorStore,
) -> Result<Result<Explanation, RequestError>, OverrideClientError> {
    with_live(config, store, |live| {
        let Some(mut live) = live else {
            return explain(config, question, None);
        };
        if let Some(callback) = &config.key_callback {
            let keys = carried_keys(config, question)?;
            let machine = |error: std::io::Error| RequestError::Machine(error.to_string());
            live.known_keys = Some(Arc::new(ask_now(callback, keys).map_err(machine)?));
        }
        explain(config, question, Some(live))
    })
}

/// Calls `explain` with the current counts of the store.
pub(crate) fn with_live<T>(
    config: &Config,
    mut store: OperatorStore,
    explain: impl FnOnce(Option<LiveCounts<'_>>) -> T,
) -> Result<T, OverrideClientError> {
    let overrides = store.overrides()?;
    let hash_key = *store.hash_key().as_bytes();
    let known_keys = store.known_keys(&config.store)?;
    let mut stand = |charge: &Charge| store.stand(charge).map_err(|error| error.to_string());
    let live = LiveCounts {
        from: match &config.store.kind {
            StoreKind::Redis(redis) => redis.topology.to_string(),
            StoreKind::Memory => "memory".to_owned(),
        },
        hash_key,
        overrides: overrides.snapshot(),
        known_keys,
        peek: &mut stand,
    };
    Ok(explain(Some(live)))
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        match error {
            RequestError::Machine(error) => ApiError::unavailable(error),
            wrong => ApiError::bad_request(wrong.to_string()),
        }
    }
}

fn question(request: &ApiRequest) -> Result<RequestDescription, ApiError> {
    let method = request.field("method", "a text", Value::as_str)?;
    let Some(Value::String(url)) = request.get("url") else {
        return Err(ApiError::bad_request("`url` is a text"));
    };
    let ip = request.field("ip", "an address", |ip| ip.as_str()?.parse::<IpAddr>().ok())?;
    let body = request.field("body", "a text", Value::as_str)?;
    let expected = "a list of at most 100 pairs";
    let headers = request.field("headers", expected, |headers| {
        headers.as_array().filter(|list| list.len() <= MAX_HEADERS)
    })?;
    let pairs: Option<Vec<_>> = headers.into_iter().flatten().map(pair).collect();
    let wrong = || ApiError::bad_request("`headers` are pairs of texts");
    Ok(RequestDescription {
        method: method.unwrap_or("GET").to_owned(),
        url: url.clone(),
        headers: pairs.ok_or_else(wrong)?,
        ip: ip.unwrap_or(EXAMPLE_PEER),
        body: body.map(str::to_owned),
    })
}

fn pair(value: &Value) -> Option<(String, String)> {
    match value.as_array()?.as_slice() {
        [name, value] => Some((name.as_str()?.to_owned(), value.as_str()?.to_owned())),
        _ => None,
    }
}
