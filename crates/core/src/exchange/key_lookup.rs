//! Known API keys that change while the proxy runs: those in Redis, and those of the callback.

use std::sync::Arc;

use super::key_callback::KeyCallback;
use crate::clock;
use crate::limit::key::{Facts, RegisteredKey};
use crate::store::known_keys::RegisteredKeys;

/// Where a worker looks keys up that no file lists.
#[derive(Clone, Debug, Default)]
pub enum KeyLookup {
    /// Nowhere.
    #[default]
    None,
    Table(Arc<RegisteredKeys>),
    Callback(Arc<KeyCallback>),
}

impl KeyLookup {
    /// The first key of the request that is known. Never waits.
    pub(super) fn find(&self, facts: &Facts<'_>) -> Option<RegisteredKey> {
        if let KeyLookup::None = self {
            return None;
        }
        let find = |key: &[u8]| match self {
            KeyLookup::None => None,
            KeyLookup::Table(table) => table.find(key),
            KeyLookup::Callback(callback) => callback.find(key, clock::now()),
        };
        let mut found = None;
        let (headers, query) = (facts.headers, facts.query);
        facts.api_key.each_unlisted(headers, query, |source, key| {
            if found.is_none()
                && let Some(client) = find(key)
            {
                found = Some(RegisteredKey { source, client });
            }
        });
        found
    }
}
