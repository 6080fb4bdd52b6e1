//! The store for requests of operators: in this process, or over a connection of its own.

use std::sync::Arc;

use super::response::{ApiError, seconds};
use super::schema::described;
use crate::config::{RedisSettings, StoreKind, StoreSettings};
use crate::limit::key::KeyHashPrefix;
use crate::limit::{Charge, Decision, KeyHash, Limit};
use crate::server::introspection::Snapshot;
use crate::store::overrides::{ChangeOutcome, OverrideChange, OverrideList, Record};
use crate::store::redis;
use crate::store::{Backing, memory::Memory};

described! {
    struct RecordReport as "Said" {
        what: &'static str,
        limit: Option<String>,
        id: String,
        rates: Option<String>,
        until: Option<f64>,
        at: f64,
        by: String,
        key: String,
        reason: String,
    }
}

impl RecordReport {
    pub(super) fn new(record: &Record) -> RecordReport {
        let terms = &record.terms;
        RecordReport {
            what: record.what(),
            limit: record.subject.limit().map(|name| name.to_string()),
            id: record.subject.tag().to_string(),
            rates: terms.rates(),
            until: (terms.until_us > 0).then(|| seconds(terms.until_us)),
            at: seconds(terms.at_us),
            by: terms.by.clone(),
            key: terms.key.clone(),
            reason: terms.note.clone(),
        }
    }
}

/// The place of the counts and overrides.
pub(super) enum StorePlace {
    Here(Arc<Memory>),
    Redis(Box<(StoreSettings, RedisSettings)>),
    /// A reload is replacing the store.
    Nowhere,
}

/// A [`StorePlace`] that is open.
pub(super) enum OperatorStore {
    Here(Arc<Memory>),
    Redis(Box<redis::OverrideClient>),
}

impl StorePlace {
    pub(super) fn new(snapshot: &Snapshot<'_>) -> StorePlace {
        match (&snapshot.counts.backing, &snapshot.config.store.kind) {
            (Backing::Memory(memory), _) => StorePlace::Here(Arc::clone(memory)),
            (_, StoreKind::Redis(server)) => {
                StorePlace::Redis(Box::new((snapshot.config.store.clone(), server.clone())))
            }
            (_, StoreKind::Memory) => StorePlace::Nowhere,
        }
    }

    /// Connects, if the store is Redis. Blocks.
    pub(super) fn open(&self) -> Result<OperatorStore, ApiError> {
        match self {
            StorePlace::Here(memory) => Ok(OperatorStore::Here(Arc::clone(memory))),
            StorePlace::Redis(settings) => {
                let (store, server) = &**settings;
                let client = redis::OverrideClient::open(store, server).map_err(unavailable)?;
                Ok(OperatorStore::Redis(Box::new(client)))
            }
            StorePlace::Nowhere => Err(ApiError::unavailable("the store is being replaced")),
        }
    }
}

impl OperatorStore {
    pub(super) fn overrides(&mut self) -> Result<OverrideList, ApiError> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.overrides().list()),
            OperatorStore::Redis(client) => client.overrides().map_err(unavailable),
        }
    }

    /// The last changes, newest first.
    pub(super) fn changes(&mut self) -> Result<Vec<Record>, ApiError> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.overrides().changes()),
            OperatorStore::Redis(client) => client.changes().map_err(unavailable),
        }
    }

    /// The secret that keys are hashed with.
    pub(super) fn hash_key(&self) -> [u8; 32] {
        match self {
            OperatorStore::Here(memory) => *memory.hash_key().key.as_bytes(),
            OperatorStore::Redis(client) => *client.hash_key().key.as_bytes(),
        }
    }

    /// The decision that a charge would get. Nothing is charged.
    pub(super) fn stand(&mut self, charge: &Charge) -> Result<Decision, ApiError> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.stand(charge)),
            OperatorStore::Redis(client) => client.stand(charge).map_err(unavailable),
        }
    }

    /// The clients that one of the limits counts, and whose hash begins with `prefix`.
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
            // A search that stopped early reports the clients that it found.
            OperatorStore::Redis(client) => client.find_key_hashes(limits, prefix).tags,
        }
    }

    pub(super) fn change(&mut self, change: OverrideChange) -> Result<ChangeOutcome, ApiError> {
        match self {
            OperatorStore::Here(memory) => Ok(memory.overrides().change(change)),
            OperatorStore::Redis(client) => client.change(&change).map_err(unavailable),
        }
    }
}

pub(super) fn unavailable(error: redis::OverrideClientError) -> ApiError {
    ApiError::unavailable(error.to_string())
}
