//! The denials that begin bans, as one process counts them: those of the embedded store, and those
//! of a proxy whose store is away. With Redis, `lua/bans.lua` counts.
//!
//! Bounded: two generations of at most `GENERATION` keys. When the young one is full, the old one
//! is forgotten. A key that is denied again is young again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limit::ban::{BeginningBan, DenialRecord};
use crate::limit::{KeyHash, Limit};

/// Keys in one generation.
const GENERATION: usize = 50_000;
/// Characters of a key's hash in logs.
const SHORT_HASH: usize = 8;

/// A key of a limit with `ban`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BannableKey {
    pub(super) limit: Arc<str>,
    pub(super) tag: KeyHash,
}

/// The denials of many keys, and the bans that they began.
#[derive(Debug, Default)]
pub struct BanRecords {
    generations: Mutex<BanGenerations>,
    /// By limit.
    begun: Mutex<BTreeMap<Arc<str>, u64>>,
}

#[derive(Debug, Default)]
struct BanGenerations {
    young: HashMap<BannableKey, DenialRecord>,
    old: HashMap<BannableKey, DenialRecord>,
}

impl BeginningBan {
    /// The note in the record of the ban; empty for a first one.
    pub(super) fn note(&self) -> String {
        match self.level {
            0 | 1 => String::new(),
            level => format!("number {level} in a row"),
        }
    }
}

impl BanRecords {
    /// Adds denials of a key. Returns the ban that they begin, if its limit has `ban`.
    pub(super) fn add(
        &self,
        limit: &Limit,
        tag: KeyHash,
        count: u64,
        now_us: u64,
    ) -> Option<BeginningBan> {
        let ban = limit.ban.as_ref()?;
        let key = BannableKey {
            limit: Arc::clone(&limit.name),
            tag,
        };
        let mut generations = self.generations();
        let BanGenerations { young, old } = &mut *generations;
        if young.len() >= GENERATION && !young.contains_key(&key) {
            *old = std::mem::take(young);
        }
        let known = old.remove(&key);
        let record = young
            .entry(key)
            .or_insert_with(|| known.unwrap_or_default());
        record.add(ban, count, now_us)
    }

    /// Forgets the denials and bans of a key. Returns whether there were any.
    pub(super) fn forget(&self, tag: KeyHash) -> bool {
        let mut generations = self.generations();
        let BanGenerations { young, old } = &mut *generations;
        let before = young.len() + old.len();
        young.retain(|key, _| key.tag != tag);
        old.retain(|key, _| key.tag != tag);
        young.len() + old.len() < before
    }

    /// Counts and logs a ban of this process.
    pub(super) fn note_begun(&self, limit: &Limit, tag: KeyHash, ban: BeginningBan) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        *begun.entry(Arc::clone(&limit.name)).or_default() += 1;
        let key = abbreviate(tag);
        let seconds = ban.length_us.div_ceil(1_000_000);
        let (limit, number) = (&*limit.name, ban.level);
        tracing::info!(limit, key, seconds, number, "bans: a ban begins");
    }

    /// The bans that this process has begun, by limit.
    pub fn begun(&self) -> BTreeMap<Arc<str>, u64> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.clone()
    }

    fn generations(&self) -> MutexGuard<'_, BanGenerations> {
        let locked = self.generations.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hash as logs show it.
pub(super) fn abbreviate(tag: KeyHash) -> String {
    tag.to_string().chars().take(SHORT_HASH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Key;
    use crate::limit::ban::Ban;

    fn limit() -> Limit {
        let ban = Ban {
            after: 3,
            window_us: 1000,
            first_us: 1000,
            again: 2,
            max_us: 10_000,
        };
        Limit {
            ban: Some(ban),
            ..Limit::new("login", &[], Key::ip())
        }
    }

    fn key(number: u64) -> KeyHash {
        KeyHash(u128::from(number).to_le_bytes())
    }

    #[test]
    fn each_key_of_each_limit_has_denials_of_its_own() {
        let records = BanRecords::default();
        let (login, mut other) = (limit(), limit());
        other.name = "other".into();
        for _ in 0..2 {
            assert_eq!(records.add(&login, key(1), 1, 5), None);
            assert_eq!(records.add(&login, key(2), 1, 5), None);
            assert_eq!(records.add(&other, key(1), 1, 5), None);
        }
        let begun = records.add(&login, key(1), 1, 5).unwrap();
        assert_eq!((begun.level, begun.note()), (1, String::new()));
        let begun = records.add(&login, key(1), 3, 1005).unwrap();
        assert_eq!((begun.level, begun.length_us), (2, 2000));
        assert_eq!(begun.note(), "number 2 in a row");
        assert!(records.forget(key(1)) && !records.forget(key(1)));
        assert_eq!(records.add(&other, key(1), 1, 5), None);
        assert_eq!(records.add(&login, key(1), 3, 3005).unwrap().level, 1);
        assert!(records.add(&login, key(2), 1, 5).is_some());
        let none = Limit {
            ban: None,
            ..limit()
        };
        assert_eq!(records.add(&none, key(2), 100, 5), None);
    }

    #[test]
    fn a_key_that_goes_on_is_kept_while_others_are_forgotten() {
        let (records, limit) = (BanRecords::default(), limit());
        records.add(&limit, key(0), 1, 5);
        records.add(&limit, key(1), 2, 5);
        for number in 2..GENERATION as u64 + 10 {
            records.add(&limit, key(number), 1, 5);
        }
        assert_eq!(records.add(&limit, key(0), 1, 5), None);
        for number in 2..2 * GENERATION as u64 {
            records.add(&limit, key(number + 1_000_000), 1, 5);
        }
        let generations = records.generations();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
        drop(generations);
        assert_eq!(records.add(&limit, key(1), 1, 5), None);
    }
}
