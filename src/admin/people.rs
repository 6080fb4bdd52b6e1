//! What operators say of single clients: another rate, a fresh start, a closed door. Of those that
//! are named by the hash of their key.
//!
//! In Redis it is said to every proxy, over a connection of its own for each change; in the
//! embedded store to this process alone.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;

use super::Desk;
use super::answer::{Answer, Refusal, json_of, seen};
use super::status::seconds;
use crate::config::{Config, RedisSettings, StoreKind, StoreSettings};
use crate::limit::{Charge, Decision, Item, Limit, Tag, Window};
use crate::server::sight::View;
use crate::store::people::{Deed, MAX_RECORDS, Record, Subject, Words, clean, rules};
use crate::store::redis::{self, Change, Done, Said};
use crate::store::{Backing, memory::Memory};

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

/// Where it is done.
pub(super) enum Where {
    Here(Arc<Memory>),
    Redis(Box<(StoreSettings, RedisSettings)>),
    /// A reload is under way.
    Nowhere,
}

/// The same, opened.
pub(super) enum Counts {
    Here(Arc<Memory>),
    Redis(Box<redis::Desk>),
}

/// An order that makes sense.
struct Order {
    limit: Arc<Limit>,
    tag: Tag,
    change: Change,
}

/// Does `what` to the client and limit that are named.
pub(super) async fn change(desk: &Desk, limit: &str, what: What, said: &Value) -> Answer {
    let (limit, place) = find(desk, limit)?;
    let order = order(limit, what, said)?;
    let tag = order.tag;
    let _way = desk.way().await?;
    let doing = tokio::task::spawn_blocking(move || place.open()?.obey(order)).await;
    let broke = || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be done");
    let (done, deleted) = doing.map_err(|_| broke())??;
    let until_us = match done {
        Done::Made(until_us) => until_us,
        Done::Nothing => return Err(Refusal::nothing("there is nothing to take back")),
        Done::Full => {
            let detail = format!("there are {MAX_RECORDS} of them, as many as there may be");
            return Err(Refusal::new(StatusCode::CONFLICT, detail));
        }
    };
    Ok(json_of(&json!({
        "done": true,
        "id": tag.to_string(),
        "until": (until_us > 0).then(|| seconds(until_us)),
        "deleted": deleted,
    })))
}

/// Every override and block in force.
pub(super) async fn overrides(desk: &Desk) -> Answer {
    let place = seen(desk.grounds.sight.look(Where::of))?;
    let _way = desk.way().await?;
    let asking = tokio::task::spawn_blocking(move || place.open()?.said()).await;
    let broke = || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be read");
    let said = asking.map_err(|_| broke())??;
    let list: Vec<Value> = said.records.iter().map(record).collect();
    Ok(json_of(&json!({ "overrides": list })))
}

impl Desk {
    /// Waits until one more may connect to the store.
    pub(super) async fn way(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        let ending = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the admin is ending");
        self.ways.acquire().await.map_err(ending)
    }
}

fn record(record: &Record) -> Value {
    let words = &record.words;
    json!({
        "what": record.what(),
        "limit": record.subject.limit(),
        "id": record.subject.tag().to_string(),
        "rates": words.rates(),
        "until": (words.until_us > 0).then(|| seconds(words.until_us)),
        "at": seconds(words.at_us),
        "by": words.by,
        "key": words.key,
        "reason": words.note,
    })
}

fn find(desk: &Desk, name: &str) -> Result<(Arc<Limit>, Where), Refusal> {
    let found = desk.grounds.sight.look(|view| {
        let mut limits = view.config.limits.iter();
        let limit = limits.find(|limit| *limit.name == *name).cloned();
        limit.map(|limit| (limit, Where::of(view)))
    });
    seen(found)?.ok_or_else(|| Refusal::nothing(format!("there is no limit `{name}`")))
}

/// Reads what is wanted.
fn order(limit: Arc<Limit>, what: What, said: &Value) -> Result<Order, Refusal> {
    let id = said.get("id").and_then(Value::as_str);
    let id = id.ok_or_else(|| Refusal::nonsense("name the client by its `id`, a string"))?;
    let tag = Tag::parse(id).ok_or_else(|| Refusal::nonsense("`id` is not a key's hash"))?;
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
    let rules = match (what, said.get("rate")) {
        (What::Override, Some(Value::String(rate))) if !remove => {
            rules(rate, &limit).map_err(|error| Refusal::nonsense(error.message))?
        }
        (What::Override, _) if !remove => {
            return Err(Refusal::nonsense(
                "say the `rate`: `50/min`, or `unlimited`",
            ));
        }
        _ => Vec::new(),
    };
    let name = limit.name.to_string();
    let subject = match what {
        What::Reset => Subject::Reset(name, tag),
        What::Override => Subject::Override(name, tag),
        What::Block => Subject::Block(tag),
    };
    let words = Words {
        deed: if remove { Deed::Remove } else { Deed::Set },
        by: "admin".to_owned(),
        unlimited: what == What::Override && rules.is_empty() && !remove,
        rules,
        note: clean(reason),
        ..Words::default()
    };
    let change = Change {
        subject,
        lasts_us: lasts * 1_000_000,
        words,
    };
    Ok(Order { limit, tag, change })
}

impl Where {
    pub(super) fn of(view: &View<'_>) -> Where {
        match (view.counts.backing(), &view.config.store.kind) {
            (Backing::Memory(memory), _) => Where::Here(Arc::clone(memory)),
            (_, StoreKind::Redis(server)) => {
                Where::Redis(Box::new((view.config.store.clone(), server.clone())))
            }
            (_, StoreKind::Memory) => Where::Nowhere,
        }
    }

    /// Blocks: connects, where that is needed.
    pub(super) fn open(self) -> Result<Counts, Refusal> {
        match self {
            Where::Here(memory) => Ok(Counts::Here(memory)),
            Where::Redis(place) => {
                let desk = redis::Desk::open(&place.0, &place.1).map_err(away)?;
                Ok(Counts::Redis(Box::new(desk)))
            }
            Where::Nowhere => {
                let detail = "the store is being replaced";
                Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail))
            }
        }
    }
}

impl Counts {
    pub(super) fn said(&mut self) -> Result<Said, Refusal> {
        match self {
            Counts::Here(memory) => Ok(memory.said()),
            Counts::Redis(desk) => desk.said().map_err(away),
        }
    }

    /// The secret that identities are hashed with.
    pub(super) fn hash_key(&self) -> [u8; 32] {
        match self {
            Counts::Here(memory) => *memory.hash_key().key.as_bytes(),
            Counts::Redis(desk) => *desk.hash_key().key.as_bytes(),
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
            Counts::Here(memory) => Ok(memory.stand(charge)),
            Counts::Redis(desk) => desk.stand(charge).map_err(away),
        }
    }

    fn change(&mut self, change: Change) -> Result<Done, Refusal> {
        match self {
            Counts::Here(memory) => Ok(memory.say(change)),
            Counts::Redis(desk) => desk.change(&change).map_err(away),
        }
    }

    /// Does it; also how many counts were forgotten, where that is known.
    fn obey(&mut self, mut order: Order) -> Result<(Done, Option<u64>), Refusal> {
        let Subject::Reset(..) = order.change.subject else {
            return Ok((self.change(order.change)?, None));
        };
        let windows = windows(&order, &self.said()?);
        match self {
            Counts::Here(memory) => {
                for window in &windows {
                    memory.forget(Window::budget(&window.store_suffix, order.tag));
                }
                Ok((Done::Made(0), None))
            }
            Counts::Redis(desk) => {
                let suffix = |window: &Arc<Window>| window.store_suffix.clone();
                order.change.words.suffixes = windows.iter().map(suffix).collect();
                let item = |window: Arc<Window>| Item {
                    limit: Arc::clone(&order.limit),
                    window,
                    tag: order.tag,
                    cost: order.limit.cost,
                };
                let items: Vec<Item> = windows.into_iter().map(item).collect();
                let deleted = desk.forget(&items).map_err(away)?;
                // Told after it is done: who hears of it asks the store again.
                desk.change(&order.change).map_err(away)?;
                Ok((Done::Made(0), Some(deleted)))
            }
        }
    }
}

/// Every window that the client may be measured by, each once.
fn windows(order: &Order, said: &Said) -> Vec<Arc<Window>> {
    let limit = &order.limit;
    let subject = Subject::Override(limit.name.to_string(), order.tag);
    let found = said.records.iter().find(|one| one.subject == subject);
    let own = found.map_or_else(Vec::new, |one| Window::all(&limit.name, &one.words.rules));
    let tiers = limit.tiers.iter().flat_map(|tier| &tier.windows);
    let mut all: Vec<Arc<Window>> = limit.windows.iter().chain(tiers).cloned().collect();
    all.extend(limit.candidate.iter().cloned());
    all.extend(own);
    all.sort_by(|one, other| one.store_suffix.cmp(&other.store_suffix));
    all.dedup_by(|one, other| one.store_suffix == other.store_suffix);
    all
}

fn away(error: redis::DeskError) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}
