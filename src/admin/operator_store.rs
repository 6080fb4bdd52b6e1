//! The store for requests of operators, of the admin and of `tidegate limits`: in this process, or
//! over a connection of its own.

use std::slice::from_ref;
use std::sync::Arc;

use serde_json::json;
use tidegate_core::exchange::admit::CheckedClient;

use super::response::seconds;
use super::schema::{described, quantity_words, words};
use crate::config::{RedisSettings, StoreSettings};
use crate::key_selector::{SelectedKey, client_usage, limit_checks, windows_of_key};
use crate::limit::key::HashSecret;
use crate::limit::key::KeyHashPrefix;
use crate::limit::{Charge, Decision, KeyHash, Limit, LimitCheck, Retry, Window};
use crate::store::known_keys::RegisteredKeys;
use crate::store::memory::Memory;
use crate::store::overrides::{
    ChangeOutcome, OverrideChange, OverrideList, Record, RecordTerms, Subject,
};
use crate::store::redis::{FoundHashes, OverrideClient, OverrideClientError};

described! {
    struct RecordReport as "OverrideRecord" {
        what: String,
        limit: Option<String>,
        id: String,
        rates: Option<String>,
        until: Option<f64>,
        at: f64,
        by: String,
        key: String,
        reason: String,
        /// Of a ban, which is a block: the limit whose denials began it.
        ban: Option<String>,
    }

    struct KeyUsage as "KeyUsage" {
        limit: String,
        id: String,
        key: String,
        /// The quantity of its units. Money is in millionths.
        counts: String = quantity_words(),
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
        /// When a calendar window ends, in its zone. Null for windows that slide.
        resets_at: Option<String>,
        retry: String = words(&["now", "after", "never", "released"]),
        retry_seconds: Option<f64>,
    }

    struct ChangeDone as "ChangeDone" {
        done: bool,
        id: String,
        /// The parts of the client's key without their values, if they are known.
        key: String,
        until: Option<f64>,
        deleted: Option<u64>,
    }
}

impl RecordReport {
    pub(crate) fn new(record: &Record) -> RecordReport {
        let terms = &record.terms;
        RecordReport {
            what: record.what().to_owned(),
            limit: record.subject.limit().map(str::to_owned),
            id: record.subject.tag().to_string(),
            rates: terms.rates(),
            until: (terms.until_us > 0).then(|| seconds(terms.until_us)),
            at: seconds(terms.at_us),
            by: terms.by.clone(),
            key: terms.key.clone(),
            reason: terms.note.clone(),
            ban: record.ban().map(str::to_owned),
        }
    }

    pub(crate) fn list(records: &[Record]) -> Vec<RecordReport> {
        records.iter().map(RecordReport::new).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientChange {
    Reset,
    Override,
    Block,
}

/// A change of one client, for one limit or for all.
pub(crate) struct ChangeOrder<'o> {
    pub(crate) kind: ClientChange,
    pub(crate) limit: Option<&'o Arc<Limit>>,
    /// How long it holds, microseconds; 0 until it is removed.
    pub(crate) lasts_us: u64,
    pub(crate) terms: RecordTerms,
}

/// Why a change was not made.
pub(crate) enum ChangeFailure {
    NothingToRemove,
    TooManyRecords,
    Store(OverrideClientError),
}

impl From<OverrideClientError> for ChangeFailure {
    fn from(error: OverrideClientError) -> ChangeFailure {
        ChangeFailure::Store(error)
    }
}

pub(crate) enum OperatorStore {
    Here(Arc<Memory>),
    Redis(Box<OverrideClient>),
}

type OverrideResult<T> = Result<T, OverrideClientError>;

impl OperatorStore {
    /// Connects to Redis. Blocks.
    pub(crate) fn open(settings: &StoreSettings, server: &RedisSettings) -> OverrideResult<Self> {
        let client = OverrideClient::open(settings, server)?;
        Ok(OperatorStore::Redis(Box::new(client)))
    }

    pub(crate) fn overrides(&mut self) -> OverrideResult<OverrideList> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.overrides().list()),
            OperatorStore::Redis(client) => client.overrides(),
        }
    }

    /// The API keys that Redis has, if the configuration keeps them there.
    pub(crate) fn known_keys(
        &mut self,
        settings: &StoreSettings,
    ) -> OverrideResult<Option<Arc<RegisteredKeys>>> {
        match self {
            OperatorStore::Redis(client) if settings.known_keys => Ok(Some(Arc::new(
                RegisteredKeys::from_records(&client.known_keys()?),
            ))),
            OperatorStore::Redis(_) | OperatorStore::Here(_) => Ok(None),
        }
    }

    /// The last changes, newest first.
    pub(crate) fn changes(&mut self) -> OverrideResult<Vec<Record>> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.overrides().changes()),
            OperatorStore::Redis(client) => client.changes(),
        }
    }

    /// The secret that keys are hashed with.
    pub(crate) fn hash_key(&self) -> HashSecret {
        let current = match self {
            OperatorStore::Here(memory) => memory.hash_key(),
            OperatorStore::Redis(client) => client.hash_key(),
        };
        HashSecret::from_bytes(*current.key.as_bytes())
    }

    /// The decision that a charge would get. Nothing is charged.
    pub(crate) fn stand(&mut self, charge: &Charge) -> OverrideResult<Decision> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.stand(charge)),
            OperatorStore::Redis(client) => client.stand(charge),
        }
    }

    /// The clients that one of the limits counts, and whose hash begins with `prefix`.
    pub(crate) fn find_key_hashes(
        &mut self,
        limits: &[Arc<Limit>],
        prefix: &KeyHashPrefix,
    ) -> FoundHashes {
        let limits = limits.iter().map(AsRef::<Limit>::as_ref);
        match self {
            OperatorStore::Here(memory) => {
                let windows = limits.flat_map(|limit| {
                    let tiers = limit.tiers.iter().flat_map(|tier| &tier.windows);
                    limit.windows.iter().chain(tiers).map(AsRef::as_ref)
                });
                FoundHashes {
                    tags: memory.find_key_hashes(windows, prefix),
                    partly: false,
                }
            }
            OperatorStore::Redis(client) => client.find_key_hashes(limits, prefix),
        }
    }

    /// How much of a limit a client uses, and its override and block.
    pub(crate) fn usage(
        &mut self,
        limit: &Arc<Limit>,
        client: &SelectedKey,
        overrides: &OverrideList,
    ) -> OverrideResult<KeyUsage> {
        let records = &overrides.records;
        let rows = client_usage(limit, client, records, |charge| self.stand(charge))?;
        let record = |limit: Option<&str>| {
            let mut of_client = records.iter();
            let is_wanted =
                |one: &&Record| one.subject.tag() == client.tag && one.subject.limit() == limit;
            of_client.find(is_wanted).map(RecordReport::new)
        };
        let windows = rows.into_iter().map(|row| {
            let (retry, retry_seconds) = match row.retry {
                Retry::Now | Retry::Booked(_) | Retry::Unasked => ("now", Some(0.0)),
                Retry::After(us) => ("after", Some(seconds(us))),
                Retry::Never => ("never", None),
                Retry::Released => ("released", None),
            };
            WindowUsage {
                policy: row.policy,
                of: row.of,
                rate: row.rate,
                used: row.used,
                remaining: row.remaining,
                reset_seconds: seconds(row.reset_us),
                resets_at: row.resets_at,
                retry: retry.to_owned(),
                retry_seconds,
            }
        });
        Ok(KeyUsage {
            limit: limit.name.to_string(),
            id: client.tag.to_string(),
            key: client.parts.clone(),
            counts: limit.counts.word().to_owned(),
            windows: windows.collect(),
            r#override: record(Some(&limit.name)),
            block: record(None),
        })
    }

    pub(crate) fn change(
        &mut self,
        client: &SelectedKey,
        order: ChangeOrder<'_>,
        overrides: &OverrideList,
    ) -> Result<ChangeDone, ChangeFailure> {
        let tag = client.tag;
        let name = || {
            order
                .limit
                .map_or_else(String::new, |limit| limit.name.to_string())
        };
        let mut change = OverrideChange {
            subject: match order.kind {
                ClientChange::Reset => Subject::Reset(name(), tag),
                ClientChange::Override => Subject::Override(name(), tag),
                ClientChange::Block => Subject::Block(tag),
            },
            lasts_us: order.lasts_us,
            terms: order.terms,
        };
        change.terms.key.clone_from(&client.parts);
        let mut deleted = None;
        if order.kind == ClientChange::Reset {
            for limit in order.limit.map_or(&[][..], from_ref) {
                let windows = windows_of_key(limit, tag, &overrides.records);
                let suffixes = windows.iter().map(|window| window.store_suffix.clone());
                change.terms.suffixes = suffixes.collect();
                deleted = self.forget(limit, &windows, tag)?;
            }
        }
        // A reset is recorded after its counts are deleted: a proxy that reads of the reset reads
        // the counts again.
        let outcome = match self {
            OperatorStore::Here(memory) => memory.overrides().change(change),
            OperatorStore::Redis(client) => client.change(&change)?,
        };
        let until_us = match outcome {
            _ if order.kind == ClientChange::Reset => 0,
            ChangeOutcome::Made(until_us) => until_us,
            ChangeOutcome::Nothing => return Err(ChangeFailure::NothingToRemove),
            ChangeOutcome::Full => return Err(ChangeFailure::TooManyRecords),
        };
        Ok(ChangeDone {
            done: true,
            id: tag.to_string(),
            key: client.parts.clone(),
            until: (until_us > 0).then(|| seconds(until_us)),
            deleted,
        })
    }

    /// Deletes the counts of a client. Returns their number, if the store knows it.
    fn forget(
        &mut self,
        limit: &Arc<Limit>,
        windows: &[Arc<Window>],
        tag: KeyHash,
    ) -> OverrideResult<Option<u64>> {
        match self {
            OperatorStore::Here(memory) => {
                for window in windows {
                    memory.forget(Window::budget(&window.store_suffix, tag));
                }
                Ok(None)
            }
            OperatorStore::Redis(client) => {
                let counted = CheckedClient { tag, anchor: None };
                let checks: Vec<LimitCheck> = limit_checks(limit, windows, counted).collect();
                client.forget(&checks).map(Some)
            }
        }
    }
}
