//! The secret that identities are hashed with.
//!
//! All proxies of one Redis must use one secret, or they would count separately. It is configured,
//! or made once and kept in Redis. Until it is learned, this process uses a provisional one, whose
//! tags never reach Redis. Each change is a new generation, and a charge names the generation of
//! its tags.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use super::StoreError;
use crate::config::{StoreKind, StoreSettings};
use crate::limit::key::HashSecret;

/// The generation of a provisional key, whose tags only this process knows.
pub const PROVISIONAL: u64 = 0;

#[derive(Debug)]
pub struct KeyInForce {
    pub key: HashSecret,
    /// Grows with every change; [`PROVISIONAL`] until the shared key is known.
    pub generation: u64,
}

/// The key in force at a time; cheap, not to be kept across an await.
pub type CurrentKey = Guard<Arc<KeyInForce>>;

/// The key of one store, shared by all workers.
#[derive(Debug)]
pub struct KeyRing {
    current: ArcSwap<KeyInForce>,
    /// The same generation, to be read without loading the key.
    generation: AtomicU64,
    /// The configuration has the key: it is not kept in Redis, and never changes.
    configured: bool,
    /// Whether the key was compared with that of the other proxies.
    pub(super) is_compared: AtomicBool,
}

impl KeyRing {
    /// The configured key, or a random one. That is provisional if Redis keeps the key.
    pub fn new(settings: &StoreSettings) -> Result<KeyRing, StoreError> {
        let configured = settings.hash_key.is_some();
        let bytes = match &settings.hash_key {
            Some(secret) => secret.0,
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
            is_compared: AtomicBool::new(false),
        })
    }

    /// The configured key, or the one that a file has kept.
    pub fn kept(settings: &StoreSettings, kept: [u8; 32]) -> KeyRing {
        let configured = settings.hash_key.as_ref();
        let generation = PROVISIONAL + 1;
        KeyRing {
            current: ArcSwap::from_pointee(KeyInForce {
                key: HashSecret::from_bytes(configured.map_or(kept, |secret| secret.0)),
                generation,
            }),
            generation: AtomicU64::new(generation),
            configured: configured.is_some(),
            is_compared: AtomicBool::new(false),
        }
    }

    pub fn current(&self) -> CurrentKey {
        self.current.load()
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn is_configured(&self) -> bool {
        self.configured
    }

    /// A short digest of the key, which does not show the key. Equal keys have equal digests.
    pub(super) fn fingerprint(&self) -> String {
        let bytes = *self.current().key.as_bytes();
        let digest = blake3::keyed_hash(&bytes, b"tidegate: fingerprint of the hash secret");
        digest.to_hex()[..16].to_owned()
    }

    /// Takes the key that all proxies share, as read from Redis. Returns whether it is new.
    pub fn learn(&self, bytes: [u8; 32]) -> bool {
        let mut changed = false;
        self.current.rcu(|old| {
            changed = old.generation == PROVISIONAL || *old.key.as_bytes() != bytes;
            match changed {
                true => Arc::new(KeyInForce {
                    key: HashSecret::from_bytes(bytes),
                    generation: old.generation + 1,
                }),
                false => Arc::clone(old),
            }
        });
        let generation = self.current.load().generation;
        // If two workers learn at once, the slower one must not set it back.
        self.generation.fetch_max(generation, Ordering::AcqRel);
        changed
    }
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| StoreError::NoEntropy)?;
    Ok(bytes)
}
