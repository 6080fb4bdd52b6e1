//! Changes of single clients: overrides, resets and blocks; and the list of those made so far.
//!
//! With Redis every proxy follows a change; with the embedded store this process alone.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::SemaphorePermit;

use super::AdminState;
use super::keys::{Register, words_of};
use super::operator_store::{OperatorStore, RecordReport, StorePlace, unavailable};
use super::place::ClientChange;
use super::respond::{ApiError, ApiResult, available, json_of};
use super::schema::described;
use super::time::seconds;
use crate::key_selector::{SelectedKey, limit_checks, windows_of_key};
use crate::limit::{Limit, LimitCheck, Window};
use crate::store::overrides::{
    ChangeKind, ChangeOutcome, MAX_RECORDS, OverrideChange, OverrideList, RecordTerms, Subject,
    clean, rules,
};

/// The longest that something may hold and have an end, seconds.
pub(super) const LONGEST: u64 = 10 * 366 * 86_400;
/// Bytes of a reason.
pub(super) const MOST_REASON: usize = 200;

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

/// A change of one client that was read.
struct Order {
    what: ClientChange,
    lasts_us: u64,
    terms: RecordTerms,
}

/// Does `what` to the client that is named, of a limit or, of a block, of none in particular.
pub(super) async fn change(
    state: &Arc<AdminState>,
    limit: Option<&str>,
    what: ClientChange,
    said: &Value,
) -> ApiResult {
    let (register, place) = Register::open(state, limit)?;
    let order = order(register.limit.as_ref(), what, said)?;
    let named = words_of(said)?;
    let _way = state.way().await?;
    let crowd = Arc::clone(state);
    let doing = tokio::task::spawn_blocking(move || {
        let mut counts = place.open()?;
        let (whom, said) = register.whom(&crowd, &mut counts, &named)?;
        let limit = register.limit.as_ref();
        let done = order.obey(&mut counts, &whom, limit, &said)?;
        Ok::<_, ApiError>((whom, done))
    });
    let broke = || ApiError::internal("it could not be done");
    let (whom, (done, deleted)) = doing.await.map_err(|_| broke())??;
    let until_us = match done {
        ChangeOutcome::Made(until_us) => until_us,
        ChangeOutcome::Nothing => return Err(ApiError::not_found("there is nothing to take back")),
        ChangeOutcome::Full => {
            let detail = format!("there are {MAX_RECORDS} of them, as many as there may be");
            return Err(ApiError::new(StatusCode::CONFLICT, detail));
        }
    };
    Ok(json_of(&ChangeDone {
        done: true,
        id: whom.tag.to_string(),
        key: whom.parts,
        until: (until_us > 0).then(|| seconds(until_us)),
        deleted,
    }))
}

/// Every override and block in force.
pub(super) async fn overrides(state: &AdminState) -> ApiResult {
    let said = ask(state, OperatorStore::said).await?;
    let overrides = said.records.iter().map(RecordReport::of).collect();
    Ok(json_of(&OverrideTexts { overrides }))
}

/// The last changes, newest first.
pub(super) async fn changes(state: &AdminState) -> ApiResult {
    let changes = ask(state, OperatorStore::changes).await?;
    let changes = changes.iter().map(RecordReport::of).collect();
    Ok(json_of(&ChangeList { changes }))
}

async fn ask<T: Send + 'static>(
    state: &AdminState,
    question: impl FnOnce(&mut OperatorStore) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let place = available(state.server.introspection.inspect(StorePlace::of))?;
    let _way = state.way().await?;
    let asking = tokio::task::spawn_blocking(move || question(&mut place.open()?));
    let broke = |_| ApiError::internal("it could not be read");
    asking.await.map_err(broke)?
}

impl AdminState {
    /// Waits until one more may connect to the store.
    pub(super) async fn way(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        let ending = |_| ApiError::unavailable("the admin is ending");
        self.ways.acquire().await.map_err(ending)
    }
}

/// Reads what is wanted.
fn order(limit: Option<&Arc<Limit>>, what: ClientChange, said: &Value) -> Result<Order, ApiError> {
    let remove = match said.get("remove") {
        None => false,
        Some(Value::Bool(remove)) => *remove && what != ClientChange::Reset,
        Some(_) => return Err(ApiError::bad_request("`remove` is true or false")),
    };
    let lasts = match said.get("for_seconds") {
        None | Some(Value::Null) => 0,
        Some(lasts) => match lasts.as_u64() {
            Some(lasts @ 1..=LONGEST) => lasts,
            _ => {
                return Err(ApiError::bad_request(
                    "`for_seconds` is a number from 1 to ten years",
                ));
            }
        },
    };
    let reason = match said.get("reason") {
        None | Some(Value::Null) => "",
        Some(Value::String(reason)) if reason.len() <= MOST_REASON => reason,
        Some(_) => {
            return Err(ApiError::bad_request(
                "`reason` is a text of at most 200 bytes",
            ));
        }
    };
    let by = match said.get("by") {
        None | Some(Value::Null) => "admin",
        Some(Value::String(by)) if (1..=MOST_REASON).contains(&by.len()) => by,
        Some(_) => return Err(ApiError::bad_request("`by` is a text of 1 to 200 bytes")),
    };
    let rules = match (what, said.get("rate"), limit) {
        (ClientChange::Override, Some(Value::String(rate)), Some(limit)) if !remove => {
            rules(rate, limit).map_err(|error| ApiError::bad_request(error.message))?
        }
        (ClientChange::Override, _, _) if !remove => {
            return Err(ApiError::bad_request(
                "say the `rate`: `50/min`, or `unlimited`",
            ));
        }
        _ => Vec::new(),
    };
    let terms = RecordTerms {
        kind: if remove {
            ChangeKind::Remove
        } else {
            ChangeKind::Set
        },
        by: clean(by),
        unlimited: what == ClientChange::Override && rules.is_empty() && !remove,
        rules,
        note: clean(reason),
        ..RecordTerms::default()
    };
    Ok(Order {
        what,
        lasts_us: lasts * 1_000_000,
        terms,
    })
}

impl Order {
    /// Also returns how many counts a reset deleted, if the store tells.
    fn obey(
        self,
        store: &mut OperatorStore,
        whom: &SelectedKey,
        limit: Option<&Arc<Limit>>,
        said: &OverrideList,
    ) -> Result<(ChangeOutcome, Option<u64>), ApiError> {
        let name = || limit.map_or_else(String::new, |limit| limit.name.to_string());
        let mut change = OverrideChange {
            subject: match self.what {
                ClientChange::Reset => Subject::Reset(name(), whom.tag),
                ClientChange::Override => Subject::Override(name(), whom.tag),
                ClientChange::Block => Subject::Block(whom.tag),
            },
            lasts_us: self.lasts_us,
            terms: self.terms,
        };
        change.terms.key = whom.parts.clone();
        let (ClientChange::Reset, Some(limit)) = (self.what, limit) else {
            return Ok((store.change(change)?, None));
        };
        let windows = windows_of_key(limit, whom.tag, &said.records);
        let deleted = match store {
            OperatorStore::Here(memory) => {
                for window in &windows {
                    memory.forget(Window::budget(&window.store_suffix, whom.tag));
                }
                None
            }
            OperatorStore::Redis(client) => {
                let suffix = |window: &Arc<Window>| window.store_suffix.clone();
                change.terms.suffixes = windows.iter().map(suffix).collect();
                let items: Vec<LimitCheck> = limit_checks(limit, &windows, whom.tag).collect();
                Some(client.forget(&items).map_err(unavailable)?)
            }
        };
        // Told after it is done: who hears of it asks the store again.
        store.change(change)?;
        Ok((ChangeOutcome::Made(0), deleted))
    }
}
