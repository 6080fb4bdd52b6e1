//! Changes of single clients: overrides, resets and blocks; and the list of those in force.
//!
//! With Redis a change reaches every proxy, with the embedded store this process alone.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::limits::{ClientLookup, key_words};
use super::operator_store::{OperatorStore, RecordReport, StorePlace, unavailable};
use super::request::ApiRequest;
use super::response::{ApiError, seconds};
use super::schema::described;
use crate::key_selector::{SelectedKey, limit_checks, windows_of_key};
use crate::limit::{Limit, LimitCheck, Window};
use crate::store::overrides::{
    ChangeKind, ChangeOutcome, MAX_RECORDS, OverrideChange, OverrideList, RecordTerms, Subject,
    clean, rules,
};

/// The longest time that a change with an end may hold, seconds.
const LONGEST: u64 = 10 * 366 * 86_400;
/// The longest reason, and the longest name of an author, bytes.
const MAX_TEXT: usize = 200;

described! {
    struct ChangeDone as "Changed" {
        done: bool,
        id: String,
        /// The parts of the client's key without their values, if they are known.
        key: String,
        until: Option<f64>,
        deleted: Option<u64>,
    }

    struct OverrideTexts {
        overrides: Vec<RecordReport>,
    }

    struct ChangeList {
        changes: Vec<RecordReport>,
    }
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientChange {
    Reset,
    Override,
    Block,
}

impl ClientChange {
    /// The JSON Schema of the body.
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
        });
        if self == ClientChange::Override {
            properties["rate"] = word;
        }
        if self != ClientChange::Reset {
            properties["for_seconds"] =
                json!({ "type": ["integer", "null"], "minimum": 1, "maximum": LONGEST });
            properties["reason"] = json!({ "type": ["string", "null"], "maxLength": MAX_TEXT });
            properties["remove"] = json!({ "type": "boolean" });
        }
        json!({
            "type": "object",
            "properties": properties,
            "additionalProperties": true,
            "oneOf": [{ "required": ["id"] }, { "required": ["key"] }],
        })
    }

    /// An example of the body.
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

/// A change that was read from a request.
struct ChangeRequest {
    kind: ClientChange,
    lasts_us: u64,
    terms: RecordTerms,
}

/// The result of a change.
struct ChangeResult {
    client: SelectedKey,
    outcome: ChangeOutcome,
    /// Counts that a reset deleted, if the store knows their number.
    deleted: Option<u64>,
}

/// Changes the client that the body names: for the limit in the path, or for all limits.
pub(super) async fn change(
    request: ApiRequest,
    kind: ClientChange,
) -> Result<ChangeDone, ApiError> {
    let lookup = ClientLookup::new(&request)?;
    let change = ChangeRequest::read(&request, lookup.limit.as_ref(), kind)?;
    let words = key_words(&request)?;
    let work = move || {
        let mut store = lookup.store.open()?;
        let overrides = store.overrides()?;
        let client = lookup.find(&mut store, &words, &overrides)?;
        change.apply(&mut store, client, lookup.limit.as_ref(), &overrides)
    };
    let state = &request.state;
    let done = state.run_blocking("it could not be done", work).await?;
    let until_us = match done.outcome {
        ChangeOutcome::Made(until_us) => until_us,
        ChangeOutcome::Nothing => return Err(ApiError::not_found("there is nothing to take back")),
        ChangeOutcome::Full => {
            let detail = format!("there are {MAX_RECORDS} of them, as many as there may be");
            return Err(ApiError::new(StatusCode::CONFLICT, detail));
        }
    };
    Ok(ChangeDone {
        done: true,
        id: done.client.tag.to_string(),
        key: done.client.parts,
        until: (until_us > 0).then(|| seconds(until_us)),
        deleted: done.deleted,
    })
}

/// Every override and block in force.
pub(super) async fn overrides(request: ApiRequest) -> Result<OverrideTexts, ApiError> {
    let list = read_store(&request, OperatorStore::overrides).await?;
    Ok(OverrideTexts {
        overrides: list.records.iter().map(RecordReport::new).collect(),
    })
}

/// The last changes, newest first.
pub(super) async fn changes(request: ApiRequest) -> Result<ChangeList, ApiError> {
    let changes = read_store(&request, OperatorStore::changes).await?;
    Ok(ChangeList {
        changes: changes.iter().map(RecordReport::new).collect(),
    })
}

async fn read_store<T: Send + 'static>(
    request: &ApiRequest,
    read: fn(&mut OperatorStore) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let place = request.state.inspect(StorePlace::new)?;
    let work = move || read(&mut place.open()?);
    let state = &request.state;
    state.run_blocking("it could not be read", work).await
}

impl ChangeRequest {
    fn read(
        request: &ApiRequest,
        limit: Option<&Arc<Limit>>,
        kind: ClientChange,
    ) -> Result<ChangeRequest, ApiError> {
        let remove = request.flag("remove")? && kind != ClientChange::Reset;
        let lasts = request.field("for_seconds", "a number from 1 to ten years", |lasts| {
            lasts.as_u64().filter(|lasts| (1..=LONGEST).contains(lasts))
        })?;
        let reason = request.field("reason", "a text of at most 200 bytes", |reason| {
            reason.as_str().filter(|reason| reason.len() <= MAX_TEXT)
        })?;
        let by = request.field("by", "a text of 1 to 200 bytes", |by| {
            by.as_str().filter(|by| (1..=MAX_TEXT).contains(&by.len()))
        })?;
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
        let terms = RecordTerms {
            kind: if remove {
                ChangeKind::Remove
            } else {
                ChangeKind::Set
            },
            by: clean(by.unwrap_or("admin")),
            unlimited: sets_rate && rules.is_empty(),
            rules,
            note: clean(reason.unwrap_or_default()),
            ..RecordTerms::default()
        };
        Ok(ChangeRequest {
            kind,
            lasts_us: lasts.unwrap_or(0) * 1_000_000,
            terms,
        })
    }

    fn apply(
        self,
        store: &mut OperatorStore,
        client: SelectedKey,
        limit: Option<&Arc<Limit>>,
        overrides: &OverrideList,
    ) -> Result<ChangeResult, ApiError> {
        let name = || limit.map_or_else(String::new, |limit| limit.name.to_string());
        let mut change = OverrideChange {
            subject: match self.kind {
                ClientChange::Reset => Subject::Reset(name(), client.tag),
                ClientChange::Override => Subject::Override(name(), client.tag),
                ClientChange::Block => Subject::Block(client.tag),
            },
            lasts_us: self.lasts_us,
            terms: self.terms,
        };
        change.terms.key = client.parts.clone();
        let (ClientChange::Reset, Some(limit)) = (self.kind, limit) else {
            return Ok(ChangeResult {
                client,
                outcome: store.change(change)?,
                deleted: None,
            });
        };
        let windows = windows_of_key(limit, client.tag, &overrides.records);
        let deleted = match store {
            OperatorStore::Here(memory) => {
                for window in &windows {
                    memory.forget(Window::budget(&window.store_suffix, client.tag));
                }
                None
            }
            OperatorStore::Redis(redis) => {
                let suffix = |window: &Arc<Window>| window.store_suffix.clone();
                change.terms.suffixes = windows.iter().map(suffix).collect();
                let items: Vec<LimitCheck> = limit_checks(limit, &windows, client.tag).collect();
                Some(redis.forget(&items).map_err(unavailable)?)
            }
        };
        // Recorded afterwards: a proxy that reads of the reset reads the counts again.
        store.change(change)?;
        Ok(ChangeResult {
            client,
            outcome: ChangeOutcome::Made(0),
            deleted,
        })
    }
}
