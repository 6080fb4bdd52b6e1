//! The part of the store that all workers share.

use std::sync::Arc;
use std::time::Instant;

use super::hash_key::KeyRing;
use super::known_keys::RegisteredKeys;
use super::memory::Memory;
use super::recovery::Recovery;
use super::redis::{Redis, RedisShared};
use super::{Store, StoreError};
use crate::clock::Micros;
use crate::config::{StoreKind, StoreSettings};
use crate::telemetry::decisions::DecisionLog;

/// The part of the store that all workers share; made once, before the workers start.
#[derive(Clone, Debug)]
pub enum Backing {
    Memory(Arc<Memory>),
    Redis(Arc<RedisShared>),
}

impl Backing {
    /// Makes the shared state; connects to nothing. Decisions are written to `log`, if given.
    pub fn new(
        settings: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
    ) -> Result<Backing, StoreError> {
        let keys = KeyRing::new(settings)?;
        Ok(match &settings.kind {
            StoreKind::Memory => {
                let memory = Memory::new(settings, keys, Micros::monotonic(), log);
                Backing::Memory(Arc::new(memory))
            }
            StoreKind::Redis(server) => {
                Backing::Redis(Arc::new(RedisShared::new(settings, server, keys, log)?))
            }
        })
    }

    /// The same counts after a reload that only changes how the process reaches them; `None` if the
    /// counts are others.
    pub fn renewed(
        &self,
        before: &StoreSettings,
        settings: &StoreSettings,
    ) -> Result<Option<Backing>, StoreError> {
        let (Backing::Redis(shared), StoreKind::Redis(server)) = (self, &settings.kind) else {
            return Ok(None);
        };
        if !settings.has_counts_of(before) {
            return Ok(None);
        }
        let renewed = shared.renewed(settings, server)?;
        Ok(Some(Backing::Redis(Arc::new(renewed))))
    }

    /// The store that decides while this one is away, with this proxy's part of every limit.
    pub fn local(
        &self,
        settings: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
    ) -> Result<Memory, StoreError> {
        let local = Memory::new(settings, KeyRing::new(settings)?, Micros::monotonic(), log);
        Ok(match self.recovery() {
            Some(recovery) => local.stand_in(recovery),
            None => local,
        })
    }

    /// This process's knowledge of the store's outages; `None` if the store is in this process.
    pub fn recovery(&self) -> Option<&Arc<Recovery>> {
        match self {
            Backing::Memory(_) => None,
            Backing::Redis(shared) => Some(shared.recovery()),
        }
    }

    /// The API keys that Redis has, if the configuration keeps them there.
    pub fn known_keys(&self) -> Option<&Arc<RegisteredKeys>> {
        match self {
            Backing::Memory(_) => None,
            Backing::Redis(shared) => shared.known_keys(),
        }
    }

    /// Makes `local`, which stands in for this store, forget the keys that operators reset.
    pub fn forgets_in(&self, local: &Arc<Memory>) {
        if let Backing::Redis(shared) = self {
            shared.set_local(local);
        }
    }

    /// Since when decisions are made without the store; `None` if it is there.
    pub fn away_since(&self) -> Option<Instant> {
        match self {
            Backing::Memory(_) => None,
            Backing::Redis(shared) => shared.away_since(),
        }
    }

    /// Makes one worker's handle. Call it on that worker's runtime, which runs its connection.
    pub fn open(&self) -> Store {
        match self {
            Backing::Memory(memory) => Store::Memory(Arc::clone(memory)),
            Backing::Redis(shared) => Store::Redis(Redis::spawn(Arc::clone(shared))),
        }
    }
}
