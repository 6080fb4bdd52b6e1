//! The answers about API keys of one part of the cache, and the questions that are under way.
//!
//! Unknown keys have a table of their own: invented keys must not drive known ones out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::config::KeyCallbackSettings;
use crate::limit::key::KeyClient;

/// Keys in each generation of a table. The 16 parts of the cache have two generations each: about
/// 100,000 known keys, and as many unknown ones.
const GENERATION: usize = 3125;

/// The keyed hash of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyId(pub(super) [u8; 32]);

/// Whether an answer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It holds, or the key was asked for without success just now.
    Fresh,
    /// It is too old, and said that the key is known.
    WasKnown,
    /// It is too old, and said that the key is unknown; or there is none.
    NeverKnown,
}

#[derive(Debug, Default)]
pub(super) struct CachedAnswers {
    known: Generations<KnownAnswer>,
    /// Until when each key counts as unknown.
    unknown: Generations<Instant>,
    under_way: HashMap<KeyId, watch::Sender<()>>,
}

#[derive(Clone, Debug)]
struct KnownAnswer {
    client: Arc<KeyClient>,
    at: Instant,
    /// Set by a failed question: until when there is no other one.
    rests_until: Option<Instant>,
}

/// A table of bounded size that forgets what was not used for the longest time: the younger
/// generation takes all new keys, and those that are looked up. When it is full, the older one is
/// forgotten.
#[derive(Debug)]
struct Generations<V> {
    young: HashMap<KeyId, V>,
    old: HashMap<KeyId, V>,
}

impl<V> Default for Generations<V> {
    fn default() -> Generations<V> {
        Generations {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<V> Generations<V> {
    fn get(&mut self, id: &KeyId) -> Option<&mut V> {
        if let Some(value) = self.old.remove(id) {
            self.insert(id, value);
        }
        self.young.get_mut(id)
    }

    fn insert(&mut self, id: &KeyId, value: V) {
        self.old.remove(id);
        if self.young.len() >= GENERATION && !self.young.contains_key(id) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(*id, value);
    }

    fn remove(&mut self, id: &KeyId) {
        self.young.remove(id);
        self.old.remove(id);
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

impl CachedAnswers {
    /// The client of a key that was known less than `longest` ago.
    pub(super) fn client(
        &mut self,
        id: &KeyId,
        now: Instant,
        longest: Duration,
    ) -> Option<Arc<KeyClient>> {
        let answer = self.known.get(id)?;
        let is_held = now.saturating_duration_since(answer.at) < longest;
        is_held.then(|| Arc::clone(&answer.client))
    }

    pub(super) fn freshness(
        &mut self,
        id: &KeyId,
        now: Instant,
        settings: &KeyCallbackSettings,
    ) -> Freshness {
        if let Some(answer) = self.known.get(id) {
            let is_fresh = now.saturating_duration_since(answer.at) < settings.ttl;
            let rests = answer.rests_until.is_some_and(|until| now < until);
            return match is_fresh || rests {
                true => Freshness::Fresh,
                false => Freshness::WasKnown,
            };
        }
        match self.unknown.get(id) {
            Some(until) if now < *until => Freshness::Fresh,
            _ => Freshness::NeverKnown,
        }
    }

    pub(super) fn note_known(&mut self, id: &KeyId, client: Arc<KeyClient>, now: Instant) {
        self.unknown.remove(id);
        let answer = KnownAnswer {
            client,
            at: now,
            rests_until: None,
        };
        self.known.insert(id, answer);
    }

    pub(super) fn note_unknown(&mut self, id: &KeyId, until: Instant) {
        self.known.remove(id);
        self.unknown.insert(id, until);
    }

    pub(super) fn forget_unknown(&mut self) {
        self.unknown = Generations::default();
    }

    /// Keeps what is known of a key, and asks no more for a while.
    pub(super) fn note_failure(&mut self, id: &KeyId, until: Instant) {
        match self.known.get(id) {
            Some(answer) => answer.rests_until = Some(until),
            None => self.unknown.insert(id, until),
        }
    }

    /// Begins a question. The receiver hears of its end.
    pub(super) fn begin(&mut self, id: &KeyId) -> watch::Receiver<()> {
        let (ended, receiver) = watch::channel(());
        self.under_way.insert(*id, ended);
        receiver
    }

    /// The end of the question about this key, if one is under way.
    pub(super) fn wait_for(&self, id: &KeyId) -> Option<watch::Receiver<()>> {
        let ended = self.under_way.get(id)?;
        Some(ended.subscribe())
    }

    /// Ends a question: its drop wakes all that wait.
    pub(super) fn end(&mut self, id: &KeyId) {
        self.under_way.remove(id);
    }

    pub(super) fn known(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn id(number: usize) -> KeyId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        KeyId(bytes)
    }

    #[test]
    fn a_table_keeps_what_is_used_and_stays_small() {
        let mut table = Generations::default();
        table.insert(&id(0), 0);
        for number in 1..5 * GENERATION {
            table.insert(&id(number), number);
            assert_eq!(table.get(&id(0)), Some(&mut 0), "{number}");
        }
        assert!(table.len() <= 2 * GENERATION, "{}", table.len());
        assert_eq!(table.get(&id(1)), None);
        table.remove(&id(0));
        assert_eq!(table.get(&id(0)), None);
    }

    #[test]
    fn invented_keys_do_not_drive_known_ones_out() {
        let now = clock::now();
        let mut cache = CachedAnswers::default();
        cache.note_known(&id(0), Arc::default(), now);
        for number in 1..5 * GENERATION {
            cache.note_unknown(&id(number), now);
        }
        let longest = Duration::from_secs(1);
        assert!(cache.client(&id(0), now, longest).is_some());
        assert!(cache.client(&id(0), now + longest, longest).is_none());
        cache.note_unknown(&id(0), now);
        assert!(cache.client(&id(0), now, longest).is_none());
    }
}
