//! What operators say of single clients: another rate, a fresh start, a closed door; and what they
//! have said so far.
//!
//! In Redis it is said to every proxy, over a connection of its own for each change; in the
//! embedded store to this process alone.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;

use super::AdminState;
use super::answer::{Answer, Refusal, json_of, seen};
use super::keys::{Register, words_of};
use super::status::seconds;
use crate::config::{Config, RedisSettings, StoreKind, StoreSettings};
use crate::limit::key::key_hash_prefix::KeyHashPrefix;
use crate::limit::{Charge, Decision, KeyHash, Limit, LimitCheck, Window};
use crate::server::introspection::Snapshot;
use crate::store::overrides::{
    ChangeKind, ChangeOutcome, MAX_RECORDS, OverrideChange, OverrideList, Record, RecordTerms,
    Subject, clean, rules,
};
use crate::store::redis;
use crate::store::{Backing, memory::Memory};
use crate::whom::{Whom, every_window, items};

/// The longest that something may hold and have an end, seconds.
const LONGEST: u64 = 10 * 366 * 86_400;
/// Bytes of a reason.
const MOST_REASON: usize = 200;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Reset,
    Override,
    Block,
}

/// StorePlace it is done.
pub(super) enum StorePlace {
    Here(Arc<Memory>),
    Redis(Box<(StoreSettings, RedisSettings)>),
    /// A reload is under way.
    Nowhere,
}

/// The same, opened.
pub(super) enum OperatorStore {
    Here(Arc<Memory>),
    Redis(Box<redis::OverrideClient>),
}

/// An order that makes sense.
struct Order {
    what: What,
    lasts_us: u64,
    terms: RecordTerms,
}

/// Does `what` to the client that is named, of a limit or, of a block, of none in particular.
pub(super) async fn change(
    state: &Arc<AdminState>,
    limit: Option<&str>,
    what: What,
    said: &Value,
) -> Answer {
    let (register, place) = Register::open(state, limit)?;
    let order = order(register.limit.as_ref(), what, said)?;
    let named = words_of(said)?;
    let _way = state.way().await?;
    let crowd = Arc::clone(state);
    let doing = tokio::task::spawn_blocking(move || {
        let mut counts = place.open()?;
        let (whom, said) = register.whom(&crowd, &mut counts, &named)?;
        let done = counts.obey(order, &whom, (register.limit.as_ref(), &said))?;
        Ok::<_, Refusal>((whom, done))
    });
    let broke = || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be done");
    let (whom, (done, deleted)) = doing.await.map_err(|_| broke())??;
    let until_us = match done {
        ChangeOutcome::Made(until_us) => until_us,
        ChangeOutcome::Nothing => return Err(Refusal::nothing("there is nothing to take back")),
        ChangeOutcome::Full => {
            let detail = format!("there are {MAX_RECORDS} of them, as many as there may be");
            return Err(Refusal::new(StatusCode::CONFLICT, detail));
        }
    };
    Ok(json_of(&json!({
        "done": true,
        "id": whom.tag.to_string(),
        "key": whom.parts,
        "until": (until_us > 0).then(|| seconds(until_us)),
        "deleted": deleted,
    })))
}

/// Every override and block in force.
pub(super) async fn overrides(state: &AdminState) -> Answer {
    let said = ask(state, OperatorStore::said).await?;
    let list: Vec<Value> = said.records.iter().map(record).collect();
    Ok(json_of(&json!({ "overrides": list })))
}

/// The last changes, newest first.
pub(super) async fn changes(state: &AdminState) -> Answer {
    let changes = ask(state, OperatorStore::changes).await?;
    let list: Vec<Value> = changes.iter().map(record).collect();
    Ok(json_of(&json!({ "changes": list })))
}

async fn ask<T: Send + 'static>(
    state: &AdminState,
    question: impl FnOnce(&mut OperatorStore) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let place = seen(state.server.introspection.inspect(StorePlace::of))?;
    let _way = state.way().await?;
    let asking = tokio::task::spawn_blocking(move || question(&mut place.open()?));
    let broke = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be read");
    asking.await.map_err(broke)?
}

impl AdminState {
    /// Waits until one more may connect to the store.
    pub(super) async fn way(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        let ending = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the admin is ending");
        self.ways.acquire().await.map_err(ending)
    }
}

pub(super) fn record(record: &Record) -> Value {
    let terms = &record.terms;
    json!({
        "what": record.what(),
        "limit": record.subject.limit(),
        "id": record.subject.tag().to_string(),
        "rates": terms.rates(),
        "until": (terms.until_us > 0).then(|| seconds(terms.until_us)),
        "at": seconds(terms.at_us),
        "by": terms.by,
        "key": terms.key,
        "reason": terms.note,
    })
}

/// Reads what is wanted.
fn order(limit: Option<&Arc<Limit>>, what: What, said: &Value) -> Result<Order, Refusal> {
    let remove = match said.get("remove") {
        None => false,
        Some(Value::Bool(remove)) => *remove && what != What::Reset,
        Some(_) => return Err(Refusal::nonsense("`remove` is true or false")),
    };
    let lasts = match said.get("for_seconds") {
        None | Some(Value::Null) => 0,
        Some(lasts) => match lasts.as_u64() {
            Some(lasts @ 1..=LONGEST) => lasts,
            _ => {
                return Err(Refusal::nonsense(
                    "`for_seconds` is a number from 1 to ten years",
                ));
            }
        },
    };
    let reason = match said.get("reason") {
        None | Some(Value::Null) => "",
        Some(Value::String(reason)) if reason.len() <= MOST_REASON => reason,
        Some(_) => return Err(Refusal::nonsense("`reason` is a text of at most 200 bytes")),
    };
    let by = match said.get("by") {
        None | Some(Value::Null) => "admin",
        Some(Value::String(by)) if (1..=MOST_REASON).contains(&by.len()) => by,
        Some(_) => return Err(Refusal::nonsense("`by` is a text of 1 to 200 bytes")),
    };
    let rules = match (what, said.get("rate"), limit) {
        (What::Override, Some(Value::String(rate)), Some(limit)) if !remove => {
            rules(rate, limit).map_err(|error| Refusal::nonsense(error.message))?
        }
        (What::Override, _, _) if !remove => {
            return Err(Refusal::nonsense(
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
        unlimited: what == What::Override && rules.is_empty() && !remove,
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

impl StorePlace {
    pub(super) fn of(snapshot: &Snapshot<'_>) -> StorePlace {
        match (snapshot.counts.backing(), &snapshot.config.store.kind) {
            (Backing::Memory(memory), _) => StorePlace::Here(Arc::clone(memory)),
            (_, StoreKind::Redis(server)) => {
                StorePlace::Redis(Box::new((snapshot.config.store.clone(), server.clone())))
            }
            (_, StoreKind::Memory) => StorePlace::Nowhere,
        }
    }

    /// Blocks: connects, where that is needed.
    pub(super) fn open(self) -> Result<OperatorStore, Refusal> {
        match self {
            StorePlace::Here(memory) => Ok(OperatorStore::Here(memory)),
            StorePlace::Redis(place) => {
                let client = redis::OverrideClient::open(&place.0, &place.1).map_err(away)?;
                Ok(OperatorStore::Redis(Box::new(client)))
            }
            StorePlace::Nowhere => {
                let detail = "the store is being replaced";
                Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail))
            }
        }
    }
}

impl OperatorStore {
    pub(super) fn said(&mut self) -> Result<OverrideList, Refusal> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.override_list()),
            OperatorStore::Redis(client) => client.overrides().map_err(away),
        }
    }

    /// The last changes, newest first.
    pub(super) fn changes(&mut self) -> Result<Vec<Record>, Refusal> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.override_changes()),
            OperatorStore::Redis(client) => client.changes().map_err(away),
        }
    }

    /// The secret that identities are hashed with.
    pub(super) fn hash_key(&self) -> [u8; 32] {
        match self {
            OperatorStore::Here(memory) => *memory.hash_key().key.as_bytes(),
            OperatorStore::Redis(client) => *client.hash_key().key.as_bytes(),
        }
    }

    /// As people call it.
    pub(super) fn name(&self, config: &Config) -> String {
        match &config.store.kind {
            StoreKind::Redis(redis) => redis.topology.to_string(),
            StoreKind::Memory => "memory".to_owned(),
        }
    }

    /// How a charge stands; nothing is charged by asking.
    pub(super) fn stand(&mut self, charge: &Charge) -> Result<Decision, Refusal> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.stand(charge)),
            OperatorStore::Redis(client) => client.stand(charge).map_err(away),
        }
    }

    /// Clients that are counted by one of the limits, and whose hash begins so.
    pub(super) fn find_key_hashes<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l Limit>,
        prefix: &KeyHashPrefix,
    ) -> Vec<KeyHash> {
        match self {
            OperatorStore::Here(memory) => {
                let windows = limits.flat_map(|limit| {
                    let tiers = limit.tiers.iter().flat_map(|tier| &tier.windows);
                    limit.windows.iter().chain(tiers).map(AsRef::as_ref)
                });
                memory.find_key_hashes(windows, prefix)
            }
            // What was not looked at is as unknown as what is not there.
            OperatorStore::Redis(client) => client.find_key_hashes(limits, prefix).tags,
        }
    }

    fn change(&mut self, change: OverrideChange) -> Result<ChangeOutcome, Refusal> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.change_override(change)),
            OperatorStore::Redis(client) => client.change(&change).map_err(away),
        }
    }

    /// Does it; also how many counts were forgotten, where that is known.
    fn obey(
        &mut self,
        order: Order,
        whom: &Whom,
        (limit, said): (Option<&Arc<Limit>>, &OverrideList),
    ) -> Result<(ChangeOutcome, Option<u64>), Refusal> {
        let name = || limit.map_or_else(String::new, |limit| limit.name.to_string());
        let mut change = OverrideChange {
            subject: match order.what {
                What::Reset => Subject::Reset(name(), whom.tag),
                What::Override => Subject::Override(name(), whom.tag),
                What::Block => Subject::Block(whom.tag),
            },
            lasts_us: order.lasts_us,
            terms: order.terms,
        };
        change.terms.key = whom.parts.clone();
        let (What::Reset, Some(limit)) = (order.what, limit) else {
            return Ok((self.change(change)?, None));
        };
        let windows = every_window(limit, whom.tag, &said.records);
        let deleted = match self {
            OperatorStore::Here(memory) => {
                for window in &windows {
                    memory.forget(Window::budget(&window.store_suffix, whom.tag));
                }
                None
            }
            OperatorStore::Redis(client) => {
                let suffix = |window: &Arc<Window>| window.store_suffix.clone();
                change.terms.suffixes = windows.iter().map(suffix).collect();
                let items: Vec<LimitCheck> = items(limit, &windows, whom.tag).collect();
                Some(client.forget(&items).map_err(away)?)
            }
        };
        // Told after it is done: who hears of it asks the store again.
        self.change(change)?;
        Ok((ChangeOutcome::Made(0), deleted))
    }
}

fn away(error: redis::OverrideClientError) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}
