//! `POST /api/v1/explain`: what `tidegate explain` tells, of the configuration that is served by.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use super::AdminState;
use super::operator_store::StorePlace;
use super::respond::{ApiError, ApiResult, available, json_of};
use crate::config::Config;
use crate::explain::{
    EXAMPLE_PEER, Explanation, LiveCounts, RequestDescription, RequestError, explain,
};
use crate::limit::{Charge, Decision};

/// Headers of a question, at most.
const MOST_HEADERS: usize = 100;

pub(super) async fn answer(state: &Arc<AdminState>, body: &Value) -> ApiResult {
    let question = question(body)?;
    let live = match body.get("live") {
        None => false,
        Some(Value::Bool(live)) => *live,
        Some(_) => return Err(ApiError::bad_request("`live` is true or false")),
    };
    let found = state
        .server
        .introspection
        .inspect(|snapshot| (snapshot.config.fresh_copy(), StorePlace::of(snapshot)));
    let (config, place) = available(found)?;
    let _way = state.way().await?;
    let telling = tokio::task::spawn_blocking(move || match live {
        true => with_counts(&config, &question, place),
        false => explain(&config, &question, None).map_err(refusal),
    });
    let broke = |_| ApiError::internal("it could not be told");
    let told = telling.await.map_err(broke)??;
    Ok(json_of(&told))
}

fn with_counts(
    config: &Config,
    question: &RequestDescription,
    place: StorePlace,
) -> Result<Explanation, ApiError> {
    let mut counts = place.open()?;
    let said = counts.said()?;
    let hash_key = counts.hash_key();
    let from = counts.name(config);
    let mut stand = |charge: &Charge| -> Result<Decision, String> {
        counts.stand(charge).map_err(|refusal| refusal.detail)
    };
    let live = LiveCounts {
        from,
        hash_key,
        overrides: said.snapshot(),
        peek: &mut stand,
    };
    explain(config, question, Some(live)).map_err(refusal)
}

fn refusal(error: RequestError) -> ApiError {
    match error {
        RequestError::Machine(error) => ApiError::unavailable(error),
        wrong => ApiError::bad_request(wrong.to_string()),
    }
}

fn question(body: &Value) -> Result<RequestDescription, ApiError> {
    let text = |key: &str, usual: Option<&str>| match body.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        None | Some(Value::Null) if usual.is_some() => Ok(usual.unwrap_or_default().to_owned()),
        _ => Err(ApiError::bad_request(format!("`{key}` is a text"))),
    };
    let ip = match body.get("ip") {
        None | Some(Value::Null) => EXAMPLE_PEER,
        Some(ip) => {
            let ip = ip.as_str().and_then(|ip| ip.parse::<IpAddr>().ok());
            ip.ok_or_else(|| ApiError::bad_request("`ip` is an address"))?
        }
    };
    let headers = match body.get("headers") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) if list.len() <= MOST_HEADERS => {
            let pairs: Option<Vec<_>> = list.iter().map(pair).collect();
            pairs.ok_or_else(|| ApiError::bad_request("`headers` are pairs of texts"))?
        }
        Some(_) => {
            return Err(ApiError::bad_request(
                "`headers` is a list of at most 100 pairs",
            ));
        }
    };
    Ok(RequestDescription {
        method: text("method", Some("GET"))?,
        url: text("url", None)?,
        headers,
        ip,
    })
}

fn pair(value: &Value) -> Option<(String, String)> {
    match value.as_array()?.as_slice() {
        [name, value] => Some((name.as_str()?.to_owned(), value.as_str()?.to_owned())),
        _ => None,
    }
}
