//! An operator's own connection to the store: reads and changes overrides, usage and counts. It
//! blocks: for the command line and the admin, never on the path of a request.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};
use tokio::runtime::Runtime;

use super::RedisShared;
use super::cluster::{first_slots, open_slot, slot_of, slot_of_tag};
use super::link::{RedisLink, connect, learn_key, within};
use super::overrides::{self, OverrideKeys};
use crate::clock;
use crate::config::{RedisSettings, StoreSettings};
use crate::limit::key::KeyHashPrefix;
use crate::limit::{Charge, Decision, KeyHash, Limit, LimitCheck};
use crate::store::StoreError;
use crate::store::batch::{self, Group, GroupEnd, GroupOutcome, Reply, ScriptCall, ScriptName};
use crate::store::hash_key::{CurrentKey, KeyRing};
use crate::store::overrides::{
    ChangeKind, ChangeOutcome, MAX_CHANGES, MAX_RECORDS, OverrideChange, OverrideList, Record,
    SCRIPT, Subject,
};

/// The part between the braces of all keys of `OverrideKeys`.
const RECORDS_TAG: &[u8] = b"overrides";
/// How long an operator waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Keys that Redis scans in one call, about.
const SCAN_COUNT: u32 = 2000;
/// Clients that are found, at most.
const MAX_FOUND: usize = 100;

#[derive(Debug)]
pub struct OverrideClientError {
    kind: StoreError,
    message: Option<String>,
}

impl From<StoreError> for OverrideClientError {
    fn from(kind: StoreError) -> OverrideClientError {
        OverrideClientError {
            kind,
            message: None,
        }
    }
}

impl From<RedisError> for OverrideClientError {
    fn from(error: RedisError) -> OverrideClientError {
        let code = error.code().unwrap_or_default();
        let detail = error.detail();
        OverrideClientError {
            kind: StoreError::from(&error),
            message: detail.map(|detail| format!("{code} {detail}")),
        }
    }
}

impl fmt::Display for OverrideClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.message) {
            (StoreError::Server(_), Some(message)) => write!(f, "the store says {message}"),
            (kind, _) => kind.fmt(f),
        }
    }
}

impl std::error::Error for OverrideClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}

/// Clients found by the beginning of their hash.
#[derive(Debug, Default)]
pub struct FoundHashes {
    /// Clients with a count, in order.
    pub tags: Vec<KeyHash>,
    /// Redis has too many keys for the time, or does not let this user scan them.
    pub partly: bool,
}

pub struct OverrideClient {
    link: RedisLink,
    shared: Arc<RedisShared>,
    runtime: Runtime,
}

impl OverrideClient {
    /// Connects and learns the hash key, as a proxy does.
    pub fn open(
        settings: &StoreSettings,
        server: &RedisSettings,
    ) -> Result<OverrideClient, OverrideClientError> {
        let keys = KeyRing::new(settings)?;
        let shared = Arc::new(RedisShared::new(settings, server, keys, None)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|_| StoreError::Refused)?;
        let link = wait(&runtime, async {
            let slot = slot_of_tag(format!("{}hash-key", shared.prefix).as_bytes());
            let mut link = match open_slot(&shared, slot).await? {
                Some(link) => link,
                None => connect(&shared).await?,
            };
            learn_key(link.connection(), &shared).await?;
            Ok::<RedisLink, StoreError>(link)
        })?;
        Ok(OverrideClient {
            link,
            shared,
            runtime,
        })
    }

    pub fn hash_key(&self) -> CurrentKey {
        self.shared.keys.current()
    }

    pub(super) fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    /// Reads with `read`, over this connection.
    pub(super) fn read<T, R>(
        &mut self,
        read: impl FnOnce(MultiplexedConnection, Arc<RedisShared>) -> R,
    ) -> Result<T, OverrideClientError>
    where
        R: Future<Output = Result<T, RedisError>>,
    {
        let connection = self.link.connection().clone();
        wait(&self.runtime, read(connection, Arc::clone(&self.shared)))
    }

    /// Connects to the node of a cluster that holds a slot.
    pub(super) fn connect_to(&mut self, slot: u16) -> Result<(), OverrideClientError> {
        if let Some(link) = wait(&self.runtime, open_slot(&self.shared, slot))? {
            self.link = link;
        }
        Ok(())
    }

    pub(super) fn query<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
    ) -> Result<T, OverrideClientError> {
        wait(&self.runtime, command.query_async(self.link.connection()))
    }

    pub fn overrides(&mut self) -> Result<OverrideList, OverrideClientError> {
        self.connect_to(slot_of_tag(RECORDS_TAG))?;
        let reading = overrides::read_all(self.link.connection(), &self.shared);
        let stored = wait(&self.runtime, reading)?;
        let now_us = stored.clocks.store_us;
        let mut records = stored.parse();
        records.retain(|one| !one.is_over(now_us));
        records.sort_by(|one, other| one.subject.cmp(&other.subject));
        Ok(OverrideList { now_us, records })
    }

    pub fn changes(&mut self) -> Result<Vec<Record>, OverrideClientError> {
        self.connect_to(slot_of_tag(RECORDS_TAG))?;
        let reading = overrides::read_changes(self.link.connection(), &self.shared, MAX_CHANGES);
        wait(&self.runtime, reading)
    }

    /// Makes a change. Every proxy sees it within a second.
    pub fn change(
        &mut self,
        change: &OverrideChange,
    ) -> Result<ChangeOutcome, OverrideClientError> {
        self.connect_to(slot_of_tag(RECORDS_TAG))?;
        let keys = OverrideKeys::new(&self.shared.prefix);
        let kind = match (&change.subject, change.terms.kind) {
            (Subject::Reset(..), _) => "reset",
            (_, ChangeKind::Set) => "set",
            (_, ChangeKind::Remove) => "remove",
        };
        let bans = keys.bans(change.subject.tag());
        let of_bans = matches!(change.subject, Subject::Block(_)).then_some(bans);
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(4 + of_bans.iter().len());
        command.arg(keys.records).arg(keys.version);
        command.arg(keys.changes).arg(keys.ends).arg(of_bans);
        command.arg("").arg(kind).arg(change.subject.to_string());
        command.arg(change.lasts_us).arg(change.terms.lines());
        command.arg(MAX_RECORDS).arg(MAX_CHANGES);
        let (done, until_us, _): (i64, u64, u64) = self.query(&command)?;
        Ok(match done {
            1 => ChangeOutcome::Made(until_us),
            0 => ChangeOutcome::Nothing,
            _ => ChangeOutcome::Full,
        })
    }

    /// How the items' windows stand, and when each would let its cost pass. Charges nothing.
    pub fn stand(&mut self, charge: &Charge) -> Result<Decision, OverrideClientError> {
        if !self.shared.access().is_cluster() {
            return self.stand_together(charge);
        }
        // Each item where its count is.
        let mut whole: Option<Decision> = None;
        for item in charge {
            self.connect_to(slot_of(item))?;
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
        // One more item, which can never pass, makes it a denial: it reports usage, and writes
        // nothing.
        let mut asked = charge.clone();
        asked.push(LimitCheck::never(first));
        let mut end = self.send_charge(&asked)?;
        if end == GroupEnd::AskAgain {
            end = self.send_charge(&asked)?;
        }
        let decision = end.done().and_then(|outcome| outcome.denied);
        let mut decision = decision.ok_or(StoreError::Garbled)?;
        decision.verdicts.truncate(charge.len());
        Ok(decision)
    }

    fn send_charge(
        &mut self,
        charge: &Charge,
    ) -> Result<GroupEnd<GroupOutcome>, OverrideClientError> {
        let shared = Arc::clone(&self.shared);
        // By its text: operators need no permission for EVALSHA.
        let call = ScriptCall {
            script: ScriptName::Text,
            prefix: &shared.prefix,
            holder: 0,
            now_us: None,
            store_us: shared.instant().store_us,
        };
        let mut command = Cmd::new();
        batch::write(&mut command, call, std::iter::once(Group::one(charge)));
        let bytes: Vec<u8> = self.query(&command)?;
        let mut reply = Reply::read(&bytes)?;
        shared.note_store_clock(reply.at_us);
        Ok(reply.outcome(charge, 1)?)
    }

    /// Deletes the items' counts; returns how many there were.
    pub fn forget(&mut self, items: &[LimitCheck]) -> Result<u64, OverrideClientError> {
        let mut gone = 0;
        for item in items {
            self.connect_to(slot_of(item))?;
            let mut command = redis::cmd("DEL");
            command.arg(batch::store_key(&self.shared.prefix, item));
            gone += self.query::<u64>(&command)?;
        }
        Ok(gone)
    }

    /// Clients with a count in one of the limits and a hash that begins with `prefix`. Scans all
    /// keys of the database, for as long as an operator waits.
    pub fn find_key_hashes<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l Limit>,
        prefix: &KeyHashPrefix,
    ) -> FoundHashes {
        let patterns = self.patterns(limits, prefix);
        let until = clock::now() + PATIENCE;
        let mut found = BTreeSet::new();
        let mut partly = false;
        for slot in self.first_slots() {
            let connected = slot.is_none_or(|slot| self.connect_to(slot).is_ok());
            for pattern in &patterns {
                let left = until.saturating_duration_since(clock::now());
                partly |= !connected || !self.scan(pattern, prefix, &mut found, left);
            }
        }
        FoundHashes {
            tags: found.into_iter().take(MAX_FOUND).collect(),
            partly,
        }
    }

    /// Patterns of keys: `<prefix>{<tag>}..`, or `<prefix>{<slot>}<limit>.<fp>.<tag>` if the limit
    /// names a slot.
    fn patterns<'l>(
        &self,
        limits: impl Iterator<Item = &'l Limit>,
        prefix: &KeyHashPrefix,
    ) -> BTreeSet<String> {
        let start = escaped(&self.shared.prefix);
        let pattern = |limit: &Limit| match &limit.slot {
            None => format!("{start}{{{prefix}*"),
            Some(slot) => format!("{start}{{{}}}*.{prefix}*", escaped(slot)),
        };
        limits.map(pattern).collect()
    }

    /// A slot of each node of a cluster; `None`, once, for a single server.
    fn first_slots(&mut self) -> Vec<Option<u16>> {
        if !self.shared.access().is_cluster() {
            return vec![None];
        }
        let slots = wait(&self.runtime, first_slots(&self.shared)).unwrap_or_default();
        slots.into_iter().map(Some).collect()
    }

    fn scan(
        &mut self,
        pattern: &str,
        prefix: &KeyHashPrefix,
        found: &mut BTreeSet<KeyHash>,
        patience: Duration,
    ) -> bool {
        let until = clock::now() + patience;
        let mut cursor = "0".to_owned();
        while clock::now() < until && found.len() < MAX_FOUND {
            let mut command = redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(pattern);
            command.arg("COUNT").arg(SCAN_COUNT);
            let Ok((next, keys)) = self.query::<(String, Vec<Vec<u8>>)>(&command) else {
                return false;
            };
            let tags = keys
                .iter()
                .filter_map(|key| tag_of(key, self.shared.prefix.len()));
            found.extend(tags.filter(|tag| prefix.matches(*tag)));
            if next == "0" {
                return true;
            }
            cursor = next;
        }
        false
    }
}

/// Waits for an answer, as long as an operator does.
fn wait<T, E>(
    runtime: &Runtime,
    asking: impl Future<Output = Result<T, E>>,
) -> Result<T, OverrideClientError>
where
    OverrideClientError: From<E>,
{
    runtime.block_on(within(PATIENCE, async { Ok(asking.await?) }))
}

/// The tag in a key: between its braces, or at its end.
fn tag_of(name: &[u8], prefix: usize) -> Option<KeyHash> {
    let name = std::str::from_utf8(name.get(prefix..)?).ok()?;
    let (braced, rest) = name.strip_prefix('{')?.split_once('}')?;
    let last = rest.rsplit_once('.').map(|(_, last)| last);
    KeyHash::parse(braced).or_else(|| KeyHash::parse(last?))
}

/// Escapes what is special in a pattern.
fn escaped(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    let escape = |c| special(c).then_some('\\').into_iter().chain([c]);
    text.chars().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_from_either_form_of_a_name() {
        let tag = KeyHash([7; 16]);
        let names = [
            format!("t:{{{tag}}}login.9f"),
            format!("t:{{s1}}login.9f.{tag}"),
        ];
        for name in names {
            assert_eq!(tag_of(name.as_bytes(), 2), Some(tag), "{name}");
        }
        for name in ["t:hash-key", "t:{overrides}", "t:", ""] {
            assert_eq!(tag_of(name.as_bytes(), 2), None, "{name}");
        }
        assert_eq!(escaped("a[b]*"), "a\\[b\\]\\*");
    }
}
