//! Clients that are counted, found again by the beginning of their hash: for operators, not on the
//! path of a request.

use std::sync::PoisonError;

use super::Memory;
use crate::limit::key::key_hash_prefix::KeyHashPrefix;
use crate::limit::{KeyHash, Window};

/// Clients that are told, at most.
const MOST: usize = 100;

impl Memory {
    /// Clients with a count in one of the windows and a hash that begins so. Each shard is locked
    /// for the time in which its thousand keys are looked at.
    pub fn find_key_hashes<'w>(
        &self,
        windows: impl Iterator<Item = &'w Window>,
        prefix: &KeyHashPrefix,
    ) -> Vec<KeyHash> {
        let identities: Vec<u128> = windows.map(|window| window.identity).collect();
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for place in 0..shard.entries.len() {
                let [low, high] = shard.entries[place].id;
                let budget = u128::from(high) << 64 | u128::from(low);
                // The budget of another window gives a hash that is like no other.
                let tags = identities
                    .iter()
                    .map(|one| KeyHash((budget ^ one).to_le_bytes()));
                found.extend(tags.filter(|tag| prefix.matches(*tag)));
            }
            if found.len() >= MOST {
                break;
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}
