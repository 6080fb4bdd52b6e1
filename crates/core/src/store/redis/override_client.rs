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
use super::overrides::{self, Names};
use crate::config::{RedisSettings, StoreSettings};
use crate::limit::{Charge, Decision, LimitCheck};
use crate::store::StoreError;
use crate::store::batch::{self, Call, Group, Reply};
use crate::store::hash_key::{CurrentKey, KeyRing};
use crate::store::overrides::{
    ChangeKind, ChangeOutcome, MAX_CHANGES, MAX_RECORDS, OverrideChange, OverrideList, Record,
    SCRIPT, Subject,
};

/// What stands between the braces of all names that `overrides::Names` makes.
const RECORDS_TAG: &[u8] = b"overrides";
/// How long an operator waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why an operator's command did not work: the kind, and the server's own words where it had any.
#[derive(Debug)]
pub struct OverrideClientError {
    kind: StoreError,
    said: Option<String>,
}

impl From<StoreError> for OverrideClientError {
    fn from(kind: StoreError) -> OverrideClientError {
        OverrideClientError { kind, said: None }
    }
}

impl From<RedisError> for OverrideClientError {
    fn from(error: RedisError) -> OverrideClientError {
        let code = error.code().unwrap_or_default();
        let detail = error.detail();
        OverrideClientError {
            kind: kind_of(&error),
            said: detail.map(|detail| format!("{code} {detail}")),
        }
    }
}

impl fmt::Display for OverrideClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.said) {
            (StoreError::Server(_), Some(said)) => write!(f, "the store says {said}"),
            (kind, _) => kind.fmt(f),
        }
    }
}

impl std::error::Error for OverrideClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}

/// A connection of its own.
pub struct OverrideClient {
    link: Link,
    shared: Arc<Shared>,
    runtime: Runtime,
}

impl OverrideClient {
    /// Connects and learns the hash key, as a proxy does.
    pub fn open(
        settings: &StoreSettings,
        server: &RedisSettings,
    ) -> Result<OverrideClient, OverrideClientError> {
        let keys = KeyRing::new(settings)?;
        let shared = Arc::new(Shared::new(settings, server, keys, None)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|_| StoreError::Refused)?;
        let link: Result<Link, OverrideClientError> = patiently(&runtime, async {
            let holder = slot_of_tag(format!("{}hash-key", shared.prefix).as_bytes());
            let mut link = match reach(&shared, holder).await? {
                Some(link) => link,
                None => connect(&shared).await?,
            };
            learn_key(link.connection(), &shared).await?;
            Ok(link)
        });
        let link = link?;
        Ok(OverrideClient {
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
    fn turn_to(&mut self, slot: u16) -> Result<(), OverrideClientError> {
        let reaching = async { Ok(reach(&self.shared, slot).await?) };
        if let Some(link) = patiently(&self.runtime, reaching)? {
            self.link = link;
        }
        Ok(())
    }

    /// Every override and block in force.
    pub fn overrides(&mut self) -> Result<OverrideList, OverrideClientError> {
        self.turn_to(slot_of_tag(RECORDS_TAG))?;
        let reading = overrides::read_all(self.link.connection(), &self.shared);
        let read = patiently(&self.runtime, told(reading))?.read();
        let now_us = read.clocks.store_us;
        let mut records = read.records;
        records.retain(|one| !one.is_over(now_us));
        records.sort_by(|one, other| one.subject.cmp(&other.subject));
        Ok(OverrideList { now_us, records })
    }

    /// The last changes, newest first.
    pub fn changes(&mut self) -> Result<Vec<Record>, OverrideClientError> {
        self.turn_to(slot_of_tag(RECORDS_TAG))?;
        let reading = overrides::changes(self.link.connection(), &self.shared, MAX_CHANGES);
        patiently(&self.runtime, told(reading))
    }

    /// Makes a change, which every proxy sees within a second.
    pub fn change(
        &mut self,
        change: &OverrideChange,
    ) -> Result<ChangeOutcome, OverrideClientError> {
        self.turn_to(slot_of_tag(RECORDS_TAG))?;
        let names = Names::new(&self.shared.prefix);
        let kind = match (&change.subject, change.terms.kind) {
            (Subject::Reset(..), _) => "reset",
            (_, ChangeKind::Set) => "set",
            (_, ChangeKind::Remove) => "remove",
        };
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(4);
        command.arg(names.records).arg(names.version);
        command.arg(names.changes).arg(names.ends);
        command.arg("").arg(kind).arg(change.subject.to_string());
        command.arg(change.lasts_us).arg(change.terms.lines());
        command.arg(MAX_RECORDS).arg(MAX_CHANGES);
        let asking = command.query_async(self.link.connection());
        let (done, until_us, _): (i64, u64, u64) = patiently(&self.runtime, told(asking))?;
        Ok(match done {
            1 => ChangeOutcome::Made(until_us),
            0 => ChangeOutcome::Nothing,
            _ => ChangeOutcome::Full,
        })
    }

    /// How the items' windows stand, and when each would let its cost pass. Charges nothing.
    pub fn stand(&mut self, charge: &Charge) -> Result<Decision, OverrideClientError> {
        if !self.shared.access.is_cluster() {
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

    fn stand_together(&mut self, charge: &Charge) -> Result<Decision, OverrideClientError> {
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
    pub fn forget(&mut self, items: &[LimitCheck]) -> Result<u64, OverrideClientError> {
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

async fn told<T>(
    asking: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, OverrideClientError> {
    asking.await.map_err(OverrideClientError::from)
}

fn patiently<T>(
    runtime: &Runtime,
    asking: impl Future<Output = Result<T, OverrideClientError>>,
) -> Result<T, OverrideClientError> {
    runtime.block_on(async {
        let asked = tokio::time::timeout(PATIENCE, asking).await;
        asked.unwrap_or_else(|_| Err(StoreError::Timeout.into()))
    })
}
