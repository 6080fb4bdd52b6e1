//! Requests about single clients: how they stand, overrides, resets and blocks; and the list of
//! those in force.
//!
//! With Redis a change reaches every proxy, with the embedded store this process alone. A key in a
//! request is hashed and forgotten: no answer contains it.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::operator_store::{
    ChangeDone, ChangeFailure, ChangeOrder, ClientChange, KeyUsage, OperatorStore, RecordReport,
};
use super::request::ApiRequest;
use super::response::{ApiError, now_s};
use super::schema::described;
use super::state::AdminState;
use crate::client::ClientIp;
use crate::config::{StoreKind, StoreSettings};
use crate::key_selector::{
    KeySelectionError, KeySelectionErrorKind, KeySelector, SelectedKey, denied_request, hash_prefix,
};
use crate::limit::key::ApiKeys;
use crate::limit::key::HashSecret;
use crate::limit::{KeyHash, Limit};
use crate::server::introspection::Snapshot;
use crate::store::Backing;
use crate::store::memory::Memory;
use crate::store::overrides::{
    ChangeKind, MAX_RECORDS, OverrideList, Record, RecordTerms, clean, rules,
};
use crate::store::redis::OverrideClientError;

/// The longest time that a change with an end may hold, seconds.
const LONGEST: u64 = 10 * 366 * 86_400;
/// The longest reason, and the longest name of an author, characters.
const MAX_TEXT: usize = 200;
const MAX_WORDS: usize = 16;
/// Limits that are asked about one client.
const MAX_ASKED: usize = 256;

described! {
    struct OverrideTexts {
        overrides: Vec<RecordReport>,
    }

    struct ChangeList {
        changes: Vec<RecordReport>,
    }
}

/// The place of the counts and overrides.
pub(super) struct StorePlace {
    memory: Option<Arc<Memory>>,
    settings: StoreSettings,
}

impl StorePlace {
    pub(super) fn new(snapshot: &Snapshot<'_>) -> StorePlace {
        StorePlace {
            memory: match &snapshot.counts.backing {
                Backing::Memory(memory) => Some(Arc::clone(memory)),
                _ => None,
            },
            settings: snapshot.config.store.clone(),
        }
    }

    /// Connects, if the store is Redis. Blocks.
    pub(super) fn open(&self) -> Result<OperatorStore, ApiError> {
        match (&self.memory, &self.settings.kind) {
            (Some(memory), _) => Ok(OperatorStore::Here(Arc::clone(memory))),
            (None, StoreKind::Redis(server)) => Ok(OperatorStore::open(&self.settings, server)?),
            // A reload is replacing the store.
            (None, StoreKind::Memory) => Err(ApiError::unavailable("the store is being replaced")),
        }
    }
}

impl From<OverrideClientError> for ApiError {
    fn from(error: OverrideClientError) -> ApiError {
        ApiError::unavailable(error.to_string())
    }
}

impl From<ChangeFailure> for ApiError {
    fn from(failure: ChangeFailure) -> ApiError {
        match failure {
            ChangeFailure::NothingToRemove => ApiError::not_found("there is nothing to remove"),
            ChangeFailure::TooManyRecords => {
                let detail = format!("there are {MAX_RECORDS} of them, as many as there may be");
                ApiError::new(StatusCode::CONFLICT, detail)
            }
            ChangeFailure::Store(error) => error.into(),
        }
    }
}

impl ClientChange {
    pub(super) fn schema(self) -> Value {
        let word = json!({ "type": "string" });
        let mut properties = json!({
            "id": {
                "type": "string",
                "description": "The hash of the client's key. For one of the busiest clients the \
                    short form of logs is enough.",
            },
            "key": {
                "oneOf": [
                    word,
                    { "type": "array", "items": word, "minItems": 1, "maxItems": 16 },
                ],
                "description":
                    "The key as people write it, in place of `id`: one word for each part.",
            },
            "by": {
                "type": ["string", "null"], "minLength": 1, "maxLength": MAX_TEXT,
                "description": "Who makes the change.",
            },
            "reason": { "type": ["string", "null"], "maxLength": MAX_TEXT },
        });
        if self == ClientChange::Override {
            properties["rate"] = word;
        }
        if self != ClientChange::Reset {
            properties["for_seconds"] =
                json!({ "type": ["integer", "null"], "minimum": 1, "maximum": LONGEST });
            properties["remove"] = json!({ "type": "boolean" });
        }
        json!({
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
            "oneOf": [{ "required": ["id"] }, { "required": ["key"] }],
        })
    }

    pub(super) fn example(self) -> Value {
        match self {
            ClientChange::Reset => json!({ "key": "192.0.2.7" }),
            ClientChange::Override => json!({
                "key": "192.0.2.7",
                "rate": "50/min",
                "for_seconds": 60,
                "reason": "an office",
            }),
            ClientChange::Block => json!({ "key": "192.0.2.8", "for_seconds": 60 }),
        }
    }
}

/// Finds the client that a request names. Holds the settings that this takes.
pub(super) struct ClientLookup {
    pub(super) state: Arc<AdminState>,
    client_ip: ClientIp,
    api_key: ApiKeys,
    limits: Vec<Arc<Limit>>,
    limit: Option<Arc<Limit>>,
    pub(super) store: StorePlace,
}

impl ClientLookup {
    /// Reads the settings. A request whose path has no limit is about all limits.
    pub(super) fn new(request: &ApiRequest) -> Result<ClientLookup, ApiError> {
        let name = request.path.limit.as_deref();
        let lookup = request.state.inspect(|snapshot| {
            let config = snapshot.config;
            let mut limits = config.limits.iter();
            ClientLookup {
                state: Arc::clone(&request.state),
                client_ip: config.client_ip.clone(),
                api_key: config.api_key.clone(),
                limit: name.and_then(|name| limits.find(|one| *one.name == *name).cloned()),
                limits: config.limits.clone(),
                store: StorePlace::new(snapshot),
            }
        })?;
        match (&lookup.limit, name) {
            (None, Some(name)) => Err(ApiError::no_limit(name)),
            _ => Ok(lookup),
        }
    }

    fn find(
        &self,
        store: &mut OperatorStore,
        words: &[String],
        overrides: &OverrideList,
    ) -> Result<SelectedKey, ApiError> {
        let words = self.with_denied_client(words);
        let known = self.known_clients(store, &words);
        let hash_key = store.hash_key();
        let selector = self.selector(&hash_key, &known, overrides);
        let found = selector.select(&words, self.limit.as_deref(), &self.limits);
        found.map_err(not_found)
    }

    /// The client of each limit that the words name by its key, once each, with its limits. A hash
    /// and the id of a denied request name a client of any limit.
    pub(super) fn find_in_all(
        &self,
        store: &mut OperatorStore,
        words: &[String],
        overrides: &OverrideList,
    ) -> Result<Vec<ClientInLimits>, ApiError> {
        let words = self.with_denied_client(words);
        let known = self.known_clients(store, &words);
        let hash_key = store.hash_key();
        let selector = self.selector(&hash_key, &known, overrides);
        let limits = &self.limits[..self.limits.len().min(MAX_ASKED)];
        let in_all = |client| ClientInLimits {
            client,
            limits: limits.to_vec(),
            is_sure: false,
        };
        if selector.is_hash(&words) {
            let client = selector.select(&words, None, limits).map_err(not_found)?;
            return Ok(vec![in_all(client)]);
        }
        let mut found: BTreeMap<KeyHash, ClientInLimits> = BTreeMap::new();
        for limit in limits {
            let Ok(client) = selector.select(&words, Some(limit), limits) else {
                continue;
            };
            let found = found.entry(client.tag).or_insert_with(|| ClientInLimits {
                client,
                limits: Vec::new(),
                is_sure: true,
            });
            found.limits.push(Arc::clone(limit));
        }
        if !found.is_empty() {
            return Ok(found.into_values().collect());
        }
        // No limit counts by it, but a block may hold.
        let client = selector.select(&words, None, limits).map_err(not_found)?;
        Ok(vec![in_all(client)])
    }

    /// The hash of the client, if the only word is the id of a denied request.
    fn with_denied_client(&self, words: &[String]) -> Vec<String> {
        let denied = denied_request(words, &self.api_key).and_then(|id| {
            self.state.collect();
            let limit = self.limit.as_ref().map(|limit| &*limit.name);
            self.state.denials.find_client(id, limit)
        });
        match denied {
            Some(tag) => vec![format!("tag={tag}")],
            None => words.to_vec(),
        }
    }

    fn selector<'s>(
        &'s self,
        hash_key: &'s HashSecret,
        known: &'s [KeyHash],
        overrides: &'s OverrideList,
    ) -> KeySelector<'s> {
        KeySelector {
            client_ip: &self.client_ip,
            api_key: &self.api_key,
            hash_key,
            records: &overrides.records,
            known,
        }
    }

    /// The hashes in which the words are looked up, if they may be a hash: those of the last
    /// denials, of the busiest clients, and of the clients that the store counts.
    fn known_clients(&self, store: &mut OperatorStore, words: &[String]) -> Vec<KeyHash> {
        let Some(prefix) = hash_prefix(words) else {
            return Vec::new();
        };
        self.state.collect();
        let mut known = self.state.denials.clients();
        let limits = match &self.limit {
            Some(limit) => std::slice::from_ref(limit),
            None => &self.limits,
        };
        for limit in limits {
            let busiest = self.state.record().crowd.busiest(&limit.name, now_s());
            known.extend(busiest.clients.iter().map(|client| client.tag));
        }
        // A search that stopped early reports the clients that it found.
        known.extend(store.find_key_hashes(limits, &prefix).tags);
        known
    }
}

/// A client, and the limits that count it.
pub(super) struct ClientInLimits {
    pub(super) client: SelectedKey,
    pub(super) limits: Vec<Arc<Limit>>,
    /// Whether its key is one of these limits. A hash alone may be one of any limit.
    pub(super) is_sure: bool,
}

fn not_found(unclear: KeySelectionError) -> ApiError {
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

/// The words that name a client in a body: `id`, its hash, or `key`, one word or several.
fn key_words(request: &ApiRequest) -> Result<Vec<String>, ApiError> {
    let words = match (request.get("id"), request.get("key")) {
        (Some(Value::String(id)), None) => vec![format!("tag={id}")],
        (None, Some(Value::String(word))) => vec![word.clone()],
        (None, Some(Value::Array(words))) => {
            let words = words.iter().map(|word| word.as_str().map(str::to_owned));
            words.collect::<Option<Vec<_>>>().unwrap_or_default()
        }
        _ => Vec::new(),
    };
    match words.len() {
        1..=MAX_WORDS => Ok(words),
        _ => Err(ApiError::bad_request(
            "name the client by its `id`, a string, or by its `key`, a word for each part",
        )),
    }
}

/// The words that name a client in a path.
pub(super) fn path_words(request: &ApiRequest) -> Result<Vec<String>, ApiError> {
    match request.parameter("by").as_deref() {
        None => Ok(request.path.key.clone()),
        Some("id") => Ok(vec![format!("tag={}", request.path.key.join("&"))]),
        Some(_) => Err(ApiError::bad_request("`by` is `id`, or left out")),
    }
}

pub(super) async fn usage(request: ApiRequest) -> Result<KeyUsage, ApiError> {
    let words = path_words(&request)?;
    let lookup = ClientLookup::new(&request)?;
    let work = move || {
        let mut store = lookup.store.open()?;
        let overrides = store.overrides()?;
        let client = lookup.find(&mut store, &words, &overrides)?;
        let missing = || ApiError::not_found("there is no limit");
        let limit = lookup.limit.as_ref().ok_or_else(missing)?;
        Ok(store.usage(limit, &client, &overrides)?)
    };
    let state = &request.state;
    state.run_blocking("it could not be read", work).await
}

/// Changes the client that the body names: for the limit in the path, or for all limits.
pub(super) async fn change(
    request: ApiRequest,
    kind: ClientChange,
) -> Result<ChangeDone, ApiError> {
    let lookup = ClientLookup::new(&request)?;
    // A misspelt `for_seconds` would be a change without an end.
    request.check_fields(&kind.schema()["properties"])?;
    let lasts = request.field("for_seconds", "a number from 1 to ten years", |lasts| {
        lasts.as_u64().filter(|lasts| (1..=LONGEST).contains(lasts))
    })?;
    let terms = read_terms(&request, lookup.limit.as_deref(), kind)?;
    let words = key_words(&request)?;
    let work = move || {
        let mut store = lookup.store.open()?;
        let overrides = store.overrides()?;
        let client = lookup.find(&mut store, &words, &overrides)?;
        let order = ChangeOrder {
            kind,
            limit: lookup.limit.as_ref(),
            lasts_us: lasts.unwrap_or(0) * 1_000_000,
            terms,
        };
        Ok(store.change(&client, order, &overrides)?)
    };
    let state = &request.state;
    state.run_blocking("it could not be done", work).await
}

fn read_terms(
    request: &ApiRequest,
    limit: Option<&Limit>,
    kind: ClientChange,
) -> Result<RecordTerms, ApiError> {
    let remove = request.flag("remove")? && kind != ClientChange::Reset;
    let reason = request.field("reason", "a text of at most 200 characters", |reason| {
        let reason = reason.as_str()?;
        (reason.chars().count() <= MAX_TEXT).then_some(reason)
    })?;
    let by = request.field("by", "a text of 1 to 200 characters", |by| {
        let by = by.as_str()?;
        (1..=MAX_TEXT).contains(&by.chars().count()).then_some(by)
    })?;
    let is_given = |name: &&str| request.get(name).is_some_and(|value| !value.is_null());
    if remove && let Some(other) = ["rate", "for_seconds"].iter().find(|name| is_given(name)) {
        let detail = format!("`remove` and `{other}` contradict each other: write one of them");
        return Err(ApiError::bad_request(detail));
    }
    let sets_rate = kind == ClientChange::Override && !remove;
    let rules = match (request.get("rate"), limit) {
        _ if !sets_rate => Vec::new(),
        (Some(Value::String(rate)), Some(limit)) => {
            rules(rate, limit).map_err(|error| ApiError::bad_request(error.message))?
        }
        _ => {
            let detail = "say the `rate`: `50/min`, or `unlimited`";
            return Err(ApiError::bad_request(detail));
        }
    };
    Ok(RecordTerms {
        kind: match remove {
            true => ChangeKind::Remove,
            false => ChangeKind::Set,
        },
        by: clean(by.unwrap_or("admin")),
        unlimited: sets_rate && rules.is_empty(),
        rules,
        note: clean(reason.unwrap_or_default()),
        ..RecordTerms::default()
    })
}

/// Every override and block in force.
pub(super) async fn overrides(request: ApiRequest) -> Result<OverrideTexts, ApiError> {
    let overrides = read_store(&request, |store| Ok(store.overrides()?.records)).await?;
    Ok(OverrideTexts { overrides })
}

/// The last changes, newest first.
pub(super) async fn changes(request: ApiRequest) -> Result<ChangeList, ApiError> {
    let changes = read_store(&request, OperatorStore::changes).await?;
    Ok(ChangeList { changes })
}

async fn read_store(
    request: &ApiRequest,
    read: fn(&mut OperatorStore) -> Result<Vec<Record>, OverrideClientError>,
) -> Result<Vec<RecordReport>, ApiError> {
    let place = request.state.inspect(StorePlace::new)?;
    let work = move || Ok(RecordReport::list(&read(&mut place.open()?)?));
    let state = &request.state;
    state.run_blocking("it could not be read", work).await
}
