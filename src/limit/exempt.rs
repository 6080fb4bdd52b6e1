//! Whom a limit does not concern.

use std::net::IpAddr;

use ipnet::IpNet;

use super::key::{Facts, Key};

/// Whom a limit does not concern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    /// Clients at these addresses.
    pub nets: Vec<IpNet>,
    /// Clients with these keys, as BLAKE3 hashes, ascending.
    pub keys: Vec<[u8; 32]>,
}

impl Exempt {
    /// Whether a client is among them: by its address (not grouped), by the API key it carries, or
    /// by a value that the limit's key takes of the request.
    pub fn has(&self, client: IpAddr, key: &Key, facts: &Facts<'_>) -> bool {
        if self.nets.iter().any(|net| net.contains(&client)) {
            return true;
        }
        if self.keys.is_empty() {
            return false;
        }
        // Only hashes are compared: how long it takes says nothing about the keys.
        let known = |value: &[u8]| {
            let hash = blake3::hash(value);
            self.keys.binary_search(hash.as_bytes()).is_ok()
        };
        facts.with_api_key(known) || key.any_named_value(facts, known)
    }
}
