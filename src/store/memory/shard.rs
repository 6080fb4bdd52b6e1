//! One shard of the embedded store: its keys in a row, where each is, and which of them goes next.
//!
//! Keys lie close together and never move as others come, and the index holds their places only. To
//! make it larger touches a shard's keys at once, however many the store has.

use std::sync::atomic::Ordering;

use hashbrown::HashTable;

use super::rows::{PIECE, Rows};
use super::{Bounds, SHARD_KEYS};
use crate::limit::decide::{Count, Look};
use crate::limit::{Rule, Verdict};

/// Keys that each charge looks at in each of its shards, to drop the expired.
pub(super) const SWEEP: usize = 2;
/// Keys among which a victim is chosen.
const SAMPLE: usize = 8;
/// An index with room for more than this gives back what it does not need.
const SHRINK: usize = 16;
/// Bytes of a key whose ring is inside it: the entry, its part of what is unused at the end of the
/// row, and its place in the index.
pub(super) const KEY_BYTES: usize = size_of::<Entry>() * (SHARD_KEYS + PIECE / 2) / SHARD_KEYS + 10;

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) entries: Rows,
    /// Places in `entries`, by the key's hash.
    pub(super) index: HashTable<u32>,
    cursor: usize,
    chance: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    id: [u64; 2],
    pub(super) count: Count,
    /// From this time on nothing counts, microseconds.
    pub(super) empty_at_us: u64,
    /// Units counted after the last charge, and the limit: their ratio is what eviction goes by.
    pub(super) used: u32,
    pub(super) units: u32,
}

/// One item between the two passes.
pub(super) struct Asked {
    pub(super) id: [u64; 2],
    pub(super) rule: Rule,
    pub(super) cost: u64,
    /// Where its entry is, if it has one.
    place: Option<usize>,
    pub(super) look: Look,
}

impl Shard {
    pub(super) fn new(chance: u64) -> Shard {
        Shard {
            chance,
            ..Shard::default()
        }
    }

    pub(super) fn find(&self, id: [u64; 2]) -> Option<usize> {
        let found = self
            .index
            .find(id[0], |place| self.entries[*place as usize].id == id);
        found.map(|place| *place as usize)
    }

    /// First pass over one item.
    pub(super) fn look(&self, id: [u64; 2], rule: Rule, cost: u64, now_us: u64) -> Asked {
        let place = self.find(id);
        let look = match place {
            Some(place) => self.entries[place].count.look(&rule, cost, now_us),
            None => Count::new(rule.algorithm).look(&rule, cost, now_us),
        };
        Asked {
            id,
            rule,
            cost,
            place,
            look,
        }
    }

    /// Second pass over one item; only what is charged gets an entry.
    pub(super) fn settle(&mut self, asked: &Asked, allowed: bool, bounds: &Bounds) -> Verdict {
        let Asked {
            id,
            rule,
            cost,
            place,
            look,
        } = asked;
        let place = match place {
            Some(place) => *place,
            None if allowed && *cost > 0 => self.insert(*id, rule, bounds),
            None => return Count::new(rule.algorithm).settle(rule, *cost, look, allowed),
        };
        let entry = &mut self.entries[place];
        if !allowed && !look.stepped() {
            return entry.count.settle(rule, *cost, look, allowed);
        }
        let before = entry.count.heap_bytes();
        let verdict = entry.count.settle(rule, *cost, look, allowed);
        let counted = if allowed {
            verdict.used + cost
        } else {
            verdict.used
        };
        entry.used = u32::try_from(counted).unwrap_or(u32::MAX);
        entry.units = u32::try_from(rule.units).unwrap_or(u32::MAX);
        if *cost > 0 {
            entry.empty_at_us = entry.count.empty_at_us(rule);
        }
        bounds.resize(before, entry.count.heap_bytes());
        verdict
    }

    pub(super) fn insert(&mut self, id: [u64; 2], rule: &Rule, bounds: &Bounds) -> usize {
        let place = self.entries.push(Entry {
            id,
            count: Count::new(rule.algorithm),
            empty_at_us: 0,
            used: 0,
            units: 1,
        });
        let entries = &self.entries;
        let rehash = |place: &u32| entries[*place as usize].id[0];
        // A shard of 2^32 keys would be 400 GB: the bounds come first.
        self.index
            .insert_unique(id[0], u32::try_from(place).unwrap_or(u32::MAX), rehash);
        bounds.keys.fetch_add(1, Ordering::Relaxed);
        bounds.bytes.fetch_add(KEY_BYTES, Ordering::Relaxed);
        place
    }

    pub(super) fn remove(&mut self, place: usize, bounds: &Bounds) {
        let last = self.entries.len() - 1;
        let (id, moved) = (self.entries[place].id, self.entries[last].id);
        if let Ok(found) = self.index.find_entry(id[0], |at| *at as usize == place) {
            found.remove();
        }
        if place != last
            && let Some(at) = self.index.find_mut(moved[0], |at| *at as usize == last)
        {
            *at = u32::try_from(place).unwrap_or(u32::MAX);
        }
        let entry = self.entries.swap_remove(place);
        bounds.keys.fetch_sub(1, Ordering::Relaxed);
        bounds
            .bytes
            .fetch_sub(KEY_BYTES + entry.count.heap_bytes(), Ordering::Relaxed);
        if self.index.capacity() > SHRINK && self.entries.len() < self.index.capacity() / 4 {
            let entries = &self.entries;
            self.index
                .shrink_to(entries.len() * 2, |at| entries[*at as usize].id[0]);
        }
    }

    /// Looks at so many keys, in turn, and drops those in which nothing counts any more.
    pub(super) fn sweep(&mut self, looks: usize, now_us: u64, bounds: &Bounds) {
        for _ in 0..looks.min(self.entries.len()) {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            if self.entries[self.cursor].empty_at_us <= now_us {
                self.remove(self.cursor, bounds);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Drops the sampled key that matters least; false if there is none but those to keep.
    pub(super) fn evict(&mut self, keep: &[[u64; 2]], now_us: u64, bounds: &Bounds) -> bool {
        let mut victim: Option<usize> = None;
        for _ in 0..SAMPLE.min(self.entries.len()) {
            let place = self.draw();
            let entry = &self.entries[place];
            let better = victim.is_none_or(|victim| entry.before(&self.entries[victim], now_us));
            if better && !entry.is_held() && !keep.contains(&entry.id) {
                victim = Some(place);
            }
        }
        let Some(victim) = victim else { return false };
        let entry = &self.entries[victim];
        if entry.empty_at_us > now_us {
            bounds.evicted.fetch_add(1, Ordering::Relaxed);
            bounds.epoch.fetch_add(1, Ordering::Release);
            if entry.used >= entry.units {
                bounds.forgiven.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.remove(victim, bounds);
        true
    }

    /// A place, at random (xorshift: clients cannot see it, let alone steer it).
    fn draw(&mut self) -> usize {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % self.entries.len() as u64) as usize
    }
}

impl Entry {
    /// Whether it counts what is under way: forgetting that would let others in beside it.
    fn is_held(&self) -> bool {
        self.empty_at_us == u64::MAX
    }

    /// Whether this one is to be forgotten rather than `other`: expired, or the smaller used
    /// share, or the sooner empty.
    fn before(&self, other: &Entry, now_us: u64) -> bool {
        let rank = |entry: &Entry| entry.empty_at_us > now_us;
        let mine = u64::from(self.used) * u64::from(other.units);
        let theirs = u64::from(other.used) * u64::from(self.units);
        (rank(self), mine, self.empty_at_us) < (rank(other), theirs, other.empty_at_us)
    }
}
