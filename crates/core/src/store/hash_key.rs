//! The secret that identities are hashed with, and which one is in force.
//!
//! All proxies of one Redis must use one secret, or they would count apart. It is the configured
//! one, or made once and kept in Redis; until that is learned a provisional one of this process is
//! used, whose tags never reach Redis. Each change is a new generation, and a charge names the
//! generation of its tags.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use super::StoreError;
use crate::config::{StoreKind, StoreSettings};
use crate::limit::key::HashSecret;

/// The generation of a provisional key, whose tags only this process knows.
pub const PROVISIONAL: u64 = 0;

/// A key and which it is.
#[derive(Debug)]
pub struct KeyInForce {
    /// The secret.
    pub key: HashSecret,
    /// Grows with every change; [`PROVISIONAL`] until the shared key is known.
    pub generation: u64,
}

/// The key in force when it was asked for; cheap, not to be kept across an await.
pub type CurrentKey = Guard<Arc<KeyInForce>>;

/// The key of one store, shared by all workers.
#[derive(Debug)]
pub struct KeyRing {
    current: ArcSwap<KeyInForce>,
    /// Its generation, for whoever needs no more.
    generation: AtomicU64,
    /// Given by the configuration: not kept in Redis, and never changed.
    configured: bool,
}

impl KeyRing {
    /// The configured key, or a random one: provisional if Redis is to have the last word.
    pub fn new(settings: &StoreSettings) -> Result<KeyRing, StoreError> {
        let configured = settings.hash_key.is_some();
        let bytes = match settings.hash_key {
            Some(bytes) => bytes,
            None => random()?,
        };
        let known = configured || settings.kind == StoreKind::Memory;
        let generation = if known { PROVISIONAL + 1 } else { PROVISIONAL };
        let key = KeyInForce {
            key: HashSecret::from_bytes(bytes),
            generation,
        };
        Ok(KeyRing {
            current: ArcSwap::from_pointee(key),
            generation: AtomicU64::new(generation),
            configured,
        })
    }

    /// The key in force.
    pub fn current(&self) -> CurrentKey {
        self.current.load()
    }

    /// The generation of the key in force.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether the configuration gave the key.
    pub fn is_configured(&self) -> bool {
        self.configured
    }

    /// The key that all proxies share, as just read from Redis. Returns whether it is a new one.
    pub fn learn(&self, bytes: [u8; 32]) -> bool {
        let mut changed = false;
        self.current.rcu(|old| {
            changed = old.generation == PROVISIONAL || *old.key.as_bytes() != bytes;
            if changed {
                let generation = old.generation + 1;
                Arc::new(KeyInForce {
                    key: HashSecret::from_bytes(bytes),
                    generation,
                })
            } else {
                Arc::clone(old)
            }
        });
        let generation = self.current.load().generation;
        // Of two workers that learn at once the slower must not set it back.
        self.generation.fetch_max(generation, Ordering::AcqRel);
        changed
    }
}

/// Random bytes from the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| StoreError::NoEntropy)?;
    Ok(bytes)
}
