//! Single clients, by their keys: whom a request of an operator means, and how they stand.
//!
//! A key that is written out is read, hashed and forgotten: no answer has it.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use super::operator_store::{OperatorStore, RecordReport, StorePlace};
use super::respond::{ApiError, ApiResult, available, json_of};
use super::schema::{described, words};
use super::time::seconds;
use crate::client::ClientIp;
use crate::key_selector::{
    KeySelectionError, KeySelectionErrorKind, KeySelector, SelectedKey, WindowStatus, client_usage,
    hash_prefix,
};
use crate::limit::key::key_hash_prefix::KeyHashPrefix;
use crate::limit::key::{ApiKeys, HashSecret};
use crate::limit::{KeyHash, Limit, Retry};
use crate::store::overrides::{OverrideList, Record};

/// Words of a key.
const MOST_WORDS: usize = 16;

/// What is needed to tell whom words name.
pub(super) struct Register {
    client_ip: ClientIp,
    api_key: ApiKeys,
    limits: Vec<Arc<Limit>>,
    /// The one that is asked about.
    pub(super) limit: Option<Arc<Limit>>,
}

impl Register {
    /// Looks it up; also where counts are.
    pub(super) fn open(
        state: &AdminState,
        name: Option<&str>,
    ) -> Result<(Register, StorePlace), ApiError> {
        let (register, place) = available(state.server.introspection.inspect(|snapshot| {
            let config = snapshot.config;
            let mut limits = config.limits.iter();
            let register = Register {
                client_ip: config.client_ip.clone(),
                api_key: config.api_key.clone(),
                limit: name.and_then(|name| limits.find(|one| *one.name == *name).cloned()),
                limits: config.limits.clone(),
            };
            (register, StorePlace::of(snapshot))
        }))?;
        match (name, &register.limit) {
            (Some(name), None) => Err(ApiError::not_found(format!("there is no limit `{name}`"))),
            _ => Ok((register, place)),
        }
    }

    /// Reads the key that the words name, with what is said of anybody.
    pub(super) fn whom(
        &self,
        state: &AdminState,
        counts: &mut OperatorStore,
        words: &[String],
    ) -> Result<(SelectedKey, OverrideList), ApiError> {
        let said = counts.said()?;
        let denied = match words {
            [word] => state.denied(word, self.limit.as_ref().map(|limit| &*limit.name)),
            _ => None,
        };
        let words = match denied {
            Some(tag) => vec![format!("tag={tag}")],
            None => words.to_vec(),
        };
        let known = match hash_prefix(&words) {
            Some(prefix) => self.known(state, counts, &prefix),
            None => Vec::new(),
        };
        let eyes = KeySelector {
            client_ip: &self.client_ip,
            api_key: &self.api_key,
            hash_key: &HashSecret::from_bytes(counts.hash_key()),
            records: &said.records,
            known: &known,
        };
        let whom = eyes.select(&words, self.limit.as_deref(), &self.limits);
        Ok((whom.map_err(unclear)?, said))
    }

    /// Clients whose hash begins so: the busiest ones, those that were denied last, and those that
    /// are counted.
    fn known(
        &self,
        state: &AdminState,
        counts: &mut OperatorStore,
        prefix: &KeyHashPrefix,
    ) -> Vec<KeyHash> {
        state.drain();
        let mut known = state.denied_tags();
        let asked = self.limits.iter();
        let asked = asked.filter(|one| self.limit.as_ref().is_none_or(|it| it.name == one.name));
        for limit in asked.clone() {
            let (clients, _) = state.crowd().clients(&limit.name, super::time::now_s());
            known.extend(clients.iter().map(|one| KeyHash(one.tag.to_le_bytes())));
        }
        known.extend(counts.find_key_hashes(asked.map(AsRef::as_ref), prefix));
        known
    }
}

fn unclear(unclear: KeySelectionError) -> ApiError {
    let status = match unclear.kind {
        KeySelectionErrorKind::Wrong => StatusCode::BAD_REQUEST,
        KeySelectionErrorKind::Unknown => StatusCode::NOT_FOUND,
        KeySelectionErrorKind::Ambiguous => StatusCode::CONFLICT,
    };
    let detail = match unclear.help {
        Some(help) => format!("{}; {help}", unclear.message),
        None => unclear.message,
    };
    ApiError::new(status, detail)
}

/// How an order names a client: `id`, its hash, or `key`, a word or several.
pub(super) fn words_of(said: &Value) -> Result<Vec<String>, ApiError> {
    let words = match (said.get("id"), said.get("key")) {
        (Some(Value::String(id)), None) => vec![format!("tag={id}")],
        (None, Some(Value::String(word))) => vec![word.clone()],
        (None, Some(Value::Array(words))) => {
            let words = words.iter().map(|word| word.as_str().map(str::to_owned));
            words.collect::<Option<Vec<_>>>().unwrap_or_default()
        }
        _ => Vec::new(),
    };
    match words.len() {
        1..=MOST_WORDS => Ok(words),
        _ => Err(ApiError::bad_request(
            "name the client by its `id`, a string, or by its `key`, a word for each part",
        )),
    }
}

/// `GET /api/v1/limits/NAME/keys/KEY`
pub(super) async fn show(state: &Arc<AdminState>, limit: &str, words: Vec<String>) -> ApiResult {
    let (register, place) = Register::open(state, Some(limit))?;
    let _way = state.way().await?;
    let crowd = Arc::clone(state);
    let asking = tokio::task::spawn_blocking(move || {
        let mut counts = place.open()?;
        let (whom, said) = register.whom(&crowd, &mut counts, &words)?;
        let limit = register
            .limit
            .ok_or_else(|| ApiError::not_found("there is no limit"))?;
        let rows = client_usage(&limit, &whom, &said.records, |charge| counts.stand(charge))?;
        Ok::<_, ApiError>(usage(&limit, &whom, &rows, &said))
    });
    let broke = |_| ApiError::internal("it could not be read");
    Ok(json_of(&asking.await.map_err(broke)??))
}

described! {
    struct KeyUsage as "Standing" {
        limit: String,
        id: String,
        key: String,
        windows: Vec<WindowUsage>,
        r#override: Option<RecordReport>,
        block: Option<RecordReport>,
    }

    struct WindowUsage as "Window" {
        policy: String,
        /// `tier ..`, `override` or `candidate`; null for the limit's own rate.
        of: Option<String>,
        rate: String,
        used: u64,
        remaining: u64,
        reset_seconds: f64 = json!({ "minimum": 0 }),
        retry: &'static str = words(&["now", "after", "never", "released"]),
        retry_seconds: Option<f64>,
    }
}

fn usage(
    limit: &Limit,
    whom: &SelectedKey,
    rows: &[WindowStatus],
    said: &OverrideList,
) -> KeyUsage {
    let of_it = |one: &&Record| {
        let names = one.subject.limit();
        one.subject.tag() == whom.tag && names.is_none_or(|name| *name == *limit.name)
    };
    let record = |blocks: bool| {
        let mut records = said.records.iter().filter(of_it);
        let found = records.find(|one| one.subject.limit().is_none() == blocks);
        found.map(RecordReport::of)
    };
    KeyUsage {
        limit: limit.name.to_string(),
        id: whom.tag.to_string(),
        key: whom.parts.clone(),
        windows: rows.iter().map(window).collect(),
        r#override: record(false),
        block: record(true),
    }
}

fn window(row: &WindowStatus) -> WindowUsage {
    let (retry, after) = match row.retry {
        Retry::Now | Retry::Unasked => ("now", Some(0.0)),
        Retry::After(us) => ("after", Some(seconds(us))),
        Retry::Never => ("never", None),
        Retry::Released => ("released", None),
    };
    WindowUsage {
        policy: row.policy.clone(),
        of: row.of.clone(),
        rate: row.rate.clone(),
        used: row.used,
        remaining: row.remaining,
        reset_seconds: seconds(row.reset_us),
        retry,
        retry_seconds: after,
    }
}
