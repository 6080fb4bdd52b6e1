//! An operator's own way to the store: what is said of single keys, how they stand, and how to
//! change both. It blocks: for the command line, never on the path of a request.

mod find;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::runtime::Runtime;

use super::Shared;
use super::cluster::{reach, slot_of, slot_of_tag};
use super::link::{Link, connect, kind_of, learn_key};
use super::people::{self, Names};
use crate::config::{RedisSettings, StoreSettings};
use crate::limit::people::People;
use crate::limit::{Charge, Decision, LimitCheck};
use crate::store::StoreError;
use crate::store::batch::{self, Call, Group, Reply};
use crate::store::hash_key::{CurrentKey, KeyRing};
use crate::store::people::{Deed, MAX_CHANGES, MAX_RECORDS, Record, SCRIPT, Subject, Words};

/// What stands between the braces of all names that `people::Names` makes.
const RECORDS_TAG: &[u8] = b"overrides";
/// How long an operator waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why an operator's command did not work: the kind, and the server's own words where it had any.
#[derive(Debug)]
pub struct DeskError {
    kind: StoreError,
    said: Option<String>,
}

impl From<StoreError> for DeskError {
    fn from(kind: StoreError) -> DeskError {
        DeskError { kind, said: None }
    }
}

impl From<RedisError> for DeskError {
    fn from(error: RedisError) -> DeskError {
        let code = error.code().unwrap_or_default();
        let detail = error.detail();
        DeskError {
            kind: kind_of(&error),
            said: detail.map(|detail| format!("{code} {detail}")),
        }
    }
}

impl fmt::Display for DeskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.said) {
            (StoreError::Server(_), Some(said)) => write!(f, "the store says {said}"),
            (kind, _) => kind.fmt(f),
        }
    }
}

impl std::error::Error for DeskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}

/// A connection of its own.
pub struct Desk {
    link: Link,
    shared: Arc<Shared>,
    runtime: Runtime,
}

/// What is said now.
#[derive(Debug)]
pub struct Said {
    /// The store's time, microseconds since the Unix epoch; 0 where nothing was ever said.
    pub now_us: u64,
    /// What is in force, by subject.
    pub records: Vec<Record>,
}

impl Said {
    /// The same as a proxy asks it, at [`Said::now_us`].
    pub fn people(&self) -> People {
        people::tabulate((self.now_us, self.now_us), &self.records)
    }
}

/// A change to make.
#[derive(Debug)]
pub struct Change {
    /// Of whom.
    pub subject: Subject,
    /// How long it holds, microseconds; 0 until it is removed.
    pub lasts_us: u64,
    /// What, by whom and why.
    pub words: Words,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is made; it ends then, by the store's clock (0: when it is removed).
    Made(u64),
    /// There was nothing to remove.
    Nothing,
    /// There are as many overrides and blocks as there may be.
    Full,
}

impl Desk {
    /// Connects and learns the hash key, as a proxy does.
    pub fn open(settings: &StoreSettings, server: &RedisSettings) -> Result<Desk, DeskError> {
        let keys = KeyRing::new(settings)?;
        let shared = Arc::new(Shared::new(settings, server, keys, None)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|_| StoreError::Refused)?;
        let link: Result<Link, DeskError> = patiently(&runtime, async {
            let holder = slot_of_tag(format!("{}hash-key", shared.prefix).as_bytes());
            let mut link = match reach(&shared, holder).await? {
                Some(link) => link,
                None => connect(&shared).await?,
            };
            learn_key(link.connection(), &shared).await?;
            Ok(link)
        });
        let link = link?;
        Ok(Desk {
            link,
            shared,
            runtime,
        })
    }

    /// The secret that identities are hashed with.
    pub fn hash_key(&self) -> CurrentKey {
        self.shared.keys.current()
    }

    /// Turns to the node of a cluster that holds a slot.
    fn turn_to(&mut self, slot: u16) -> Result<(), DeskError> {
        let reaching = async { Ok(reach(&self.shared, slot).await?) };
        if let Some(link) = patiently(&self.runtime, reaching)? {
            self.link = link;
        }
        Ok(())
    }

    /// Every override and block in force.
    pub fn said(&mut self) -> Result<Said, DeskError> {
        self.turn_to(slot_of_tag(RECORDS_TAG))?;
        let reading = people::read_all(self.link.connection(), &self.shared);
        let read = patiently(&self.runtime, told(reading))?.read();
        let now_us = read.times_us.0;
        let mut records = read.records;
        records.retain(|one| !one.is_over(now_us));
        records.sort_by(|one, other| one.subject.cmp(&other.subject));
        Ok(Said { now_us, records })
    }

    /// The last changes, newest first.
    pub fn changes(&mut self) -> Result<Vec<Record>, DeskError> {
        self.turn_to(slot_of_tag(RECORDS_TAG))?;
        let reading = people::changes(self.link.connection(), &self.shared, MAX_CHANGES);
        patiently(&self.runtime, told(reading))
    }

    /// Makes a change, which every proxy sees within a second.
    pub fn change(&mut self, change: &Change) -> Result<Done, DeskError> {
        self.turn_to(slot_of_tag(RECORDS_TAG))?;
        let names = Names::new(&self.shared.prefix);
        let deed = match (&change.subject, change.words.deed) {
            (Subject::Reset(..), _) => "reset",
            (_, Deed::Set) => "set",
            (_, Deed::Remove) => "remove",
        };
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(4);
        command.arg(names.records).arg(names.version);
        command.arg(names.changes).arg(names.ends);
        command.arg("").arg(deed).arg(change.subject.to_string());
        command.arg(change.lasts_us).arg(change.words.lines());
        command.arg(MAX_RECORDS).arg(MAX_CHANGES);
        let asking = command.query_async(self.link.connection());
        let (done, until_us, _): (i64, u64, u64) = patiently(&self.runtime, told(asking))?;
        Ok(match done {
            1 => Done::Made(until_us),
            0 => Done::Nothing,
            _ => Done::Full,
        })
    }

    /// How the items' windows stand, and when each would let its cost pass. Charges nothing.
    pub fn stand(&mut self, charge: &Charge) -> Result<Decision, DeskError> {
        if self.shared.access.seeds().is_none() {
            return self.stand_together(charge);
        }
        // Each where it is kept.
        let mut whole: Option<Decision> = None;
        for item in charge {
            self.turn_to(slot_of(item))?;
            let decision = self.stand_together(&[item.clone()].into_iter().collect())?;
            match &mut whole {
                Some(whole) => whole.verdicts.extend(decision.verdicts),
                None => whole = Some(decision),
            }
        }
        whole.ok_or_else(|| StoreError::Garbled.into())
    }

    fn stand_together(&mut self, charge: &Charge) -> Result<Decision, DeskError> {
        let Some(first) = charge.first() else {
            return Err(StoreError::Garbled.into());
        };
        // With one item more, which can never pass, it is a denial whatever the others say: they
        // tell what they would say, and nothing is written.
        let mut asked = charge.clone();
        asked.push(LimitCheck::never(first));
        let groups = [Group::one(&asked)];
        let prefix = (self.shared.prefix.as_str(), 0);
        let command = batch::encode(Call::Whole, prefix, groups.into_iter(), None);
        let sending = self.link.connection().send_packed_command(&command);
        let value = patiently(&self.runtime, told(sending))?;
        let Value::BulkString(bytes) = value else {
            return Err(match value.extract_error() {
                Err(error) => error.into(),
                Ok(_) => StoreError::Garbled.into(),
            });
        };
        let outcome = Reply::read(&bytes)?.outcome(&asked, 1)?;
        let decision = outcome.and_then(|outcome| outcome.denied);
        let mut decision = decision.ok_or(StoreError::Garbled)?;
        decision.verdicts.truncate(charge.len());
        Ok(decision)
    }

    /// Deletes the items' counts; returns how many there were.
    pub fn forget(&mut self, items: &[LimitCheck]) -> Result<u64, DeskError> {
        let mut gone = 0;
        for item in items {
            self.turn_to(slot_of(item))?;
            let name = batch::store_key(&self.shared.prefix, item);
            let mut command = redis::cmd("DEL");
            command.arg(name);
            let deleting = command.query_async::<u64>(self.link.connection());
            gone += patiently(&self.runtime, told(deleting))?;
        }
        Ok(gone)
    }
}

async fn told<T>(asking: impl Future<Output = Result<T, RedisError>>) -> Result<T, DeskError> {
    asking.await.map_err(DeskError::from)
}

fn patiently<T>(
    runtime: &Runtime,
    asking: impl Future<Output = Result<T, DeskError>>,
) -> Result<T, DeskError> {
    runtime.block_on(async {
        let asked = tokio::time::timeout(PATIENCE, asking).await;
        asked.unwrap_or_else(|_| Err(StoreError::Timeout.into()))
    })
}
