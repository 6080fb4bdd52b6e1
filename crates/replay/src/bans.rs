//! The bans of a replay, by the configured rates: who is banned, and what its requests would have
//! met.
//!
//! As in the proxy, a ban by address or by API key holds on every route, and any other ban on the
//! routes that have a limit with the same key.

use std::collections::{BTreeMap, HashMap};

use super::key_spaces::KeySpace;
use crate::limit::ban::DenialRecord;
use crate::limit::key::{Facts, Part};
use crate::limit::{Ban, Key, Missing};

/// The bans in force, and the denials that may begin others.
#[derive(Debug)]
pub struct ReplayBans {
    /// By the name of the key.
    in_force: HashMap<Vec<u8>, BanInForce>,
    records: HashMap<RecordName, DenialRecord>,
    /// Every key that was ever banned.
    pub banned: BTreeMap<RecordName, BanCounts>,
    pub totals: BanTotals,
    /// The keys that are banned on every route.
    everywhere: [KeySpace; 2],
    max_keys: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct BanInForce {
    /// The index of its limit in `ReplayPlan::limits`.
    pub limit: usize,
    until_us: u64,
}

/// A key of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordName {
    pub limit: usize,
    pub key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanCounts {
    pub bans: u64,
    /// Requests that a ban denies.
    pub denied: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanTotals {
    pub bans: u64,
    pub denied: u64,
}

impl ReplayBans {
    /// Keeps the denials of about `max_keys` keys.
    pub fn new(max_keys: usize) -> ReplayBans {
        let api_key = Key::all_of([Part::ApiKey]);
        ReplayBans {
            in_force: HashMap::new(),
            records: HashMap::new(),
            banned: BTreeMap::new(),
            totals: BanTotals::default(),
            everywhere: [
                KeySpace::new(&Key::ip(), Missing::Skip),
                KeySpace::new(&api_key, Missing::Skip),
            ],
            max_keys,
        }
    }

    /// The ban of the client's address or API key.
    pub fn find_everywhere(&mut self, facts: &Facts<'_>, now_us: u64) -> Option<RecordName> {
        if self.in_force.is_empty() {
            return None;
        }
        let ReplayBans {
            everywhere,
            in_force,
            ..
        } = self;
        let mut spaces = everywhere.iter_mut();
        spaces.find_map(|space| {
            space.derive(facts).ok()?;
            find(in_force, &space.name, now_us)
        })
    }

    /// The ban of a key.
    pub fn find(&self, key: &[u8], now_us: u64) -> Option<RecordName> {
        find(&self.in_force, key, now_us)
    }

    /// Counts a request that a ban denies.
    pub fn count_denied(&mut self, of: RecordName) {
        self.totals.denied += 1;
        self.banned.entry(of).or_default().denied += 1;
    }

    /// Adds a denial of a key by a limit.
    pub fn add(&mut self, of: RecordName, ban: &Ban, now_us: u64) {
        if self.records.len() >= self.max_keys && !self.records.contains_key(&of) {
            self.records
                .retain(|_, record| !record.is_over(ban, now_us));
        }
        let record = self.records.entry(of.clone()).or_default();
        let Some(begun) = record.add(ban, 1, now_us) else {
            return;
        };
        self.totals.bans += 1;
        self.banned.entry(of.clone()).or_default().bans += 1;
        let in_force = BanInForce {
            limit: of.limit,
            until_us: now_us.saturating_add(begun.length_us),
        };
        self.in_force.insert(of.key, in_force);
    }
}

fn find(in_force: &HashMap<Vec<u8>, BanInForce>, key: &[u8], now_us: u64) -> Option<RecordName> {
    let ban = in_force.get(key).filter(|ban| ban.until_us > now_us)?;
    Some(RecordName {
        limit: ban.limit,
        key: key.to_owned(),
    })
}
