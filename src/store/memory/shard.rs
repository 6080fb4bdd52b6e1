//! One shard of the embedded store: its keys in a row, where each is, and which of them goes next.
//!
//! Keys lie close together and never move as others come, and the index holds their places only. To
//! make it larger touches a shard's keys at once, however many the store has.
//!
//! Keys that may be evicted stand in lists by limit, those at their limit apart from those below
//! it. Eviction looks at a few keys of one list, so its work does not grow with the store.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

use hashbrown::HashTable;

use super::SHARD_KEYS;
use super::bounds::Bounds;
use super::rows::{PIECE, Rows};
use super::shares::{LimitNumber, WindowNumber};
use crate::limit::decide::{Count, FirstPass};
use crate::limit::{LimitCheck, Retry, Rule, Verdict};

/// Keys that each charge looks at in each of its shards, to drop the expired.
pub(super) const SWEEP: usize = 2;
/// Keys among which a victim is chosen.
const SAMPLE: usize = 8;
/// An index with room for more than this gives back what it does not need.
const SHRINK: usize = 16;
/// Bytes of a key whose ring is inside it: the entry, its part of what is unused at the end of the
/// row, its place in the index, and its place in a list.
pub(super) const KEY_BYTES: usize =
    size_of::<Entry>() * (SHARD_KEYS + PIECE / 2) / SHARD_KEYS + 10 + 6;

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) entries: Rows,
    /// Places in `entries`, by the key's hash.
    pub(super) index: HashTable<u32>,
    /// Places in `entries` of keys that may be evicted.
    pub(super) lists: HashMap<(LimitNumber, EvictionClass), Vec<u32>>,
    cursor: usize,
    chance: u64,
}

/// What eviction may do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EvictionClass {
    /// Its client may still pass: forgotten first.
    Open,
    /// Its client is denied, or would be next: forgotten where its limit has no open key.
    AtLimit,
    /// It counts what is under way, and is never forgotten: that would let others in beside it.
    Held,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: [u64; 2],
    pub(super) count: Count,
    /// From this time on nothing counts, microseconds.
    pub(super) empty_at_us: u64,
    /// Its place in its list.
    slot: u32,
    window: WindowNumber,
    standing: EvictionClass,
}

/// One item between the two passes.
pub(super) struct Asked<'i> {
    pub(super) id: [u64; 2],
    pub(super) item: &'i LimitCheck,
    pub(super) rule: Rule,
    pub(super) cost: u64,
    /// Where its entry is, if it has one.
    place: Option<usize>,
    pub(super) look: FirstPass,
    /// Units that may count at most, where that is less than the rule says.
    most: Option<u64>,
}

impl Asked<'_> {
    /// Lets no more than `most` units count, whatever the rule says.
    pub(super) fn keep_to(&mut self, most: u64, wait_us: u64) {
        if most >= self.rule.units {
            return;
        }
        self.most = Some(most);
        if self.look.retry == Retry::Now && self.cost > 0 && self.look.used() + self.cost > most {
            self.look.retry = Retry::After(wait_us);
        }
    }
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

    /// First pass over one item, which costs `cost` by `rule`.
    pub(super) fn look<'i>(
        &self,
        item: &'i LimitCheck,
        id: [u64; 2],
        rule: Rule,
        cost: u64,
        now_us: u64,
    ) -> Asked<'i> {
        let place = self.find(id);
        let look = match place {
            Some(place) => self.entries[place].count.look(&rule, cost, now_us),
            None => Count::new(rule.algorithm).look(&rule, cost, now_us),
        };
        Asked {
            id,
            item,
            rule,
            cost,
            place,
            look,
            most: None,
        }
    }

    /// Second pass over one item; only what is charged gets an entry.
    pub(super) fn settle(&mut self, asked: &Asked<'_>, allowed: bool, bounds: &Bounds) -> Verdict {
        match asked.most {
            None => self.charge(asked, allowed, bounds),
            Some(most) => {
                let verdict = self.charge(asked, allowed, bounds);
                let counted = verdict.used + if allowed { asked.cost } else { 0 };
                Verdict {
                    remaining: verdict.remaining.min(most.saturating_sub(counted)),
                    ..verdict
                }
            }
        }
    }

    fn charge(&mut self, asked: &Asked<'_>, allowed: bool, bounds: &Bounds) -> Verdict {
        let Asked {
            id,
            item,
            rule,
            cost,
            place,
            look,
            ..
        } = asked;
        let place = match place {
            Some(place) => *place,
            None if allowed && *cost > 0 => self.insert(item, *id, rule, bounds),
            None => return Count::new(rule.algorithm).settle(rule, *cost, look, allowed),
        };
        let entry = &mut self.entries[place];
        if !allowed && !look.stepped() {
            let verdict = entry.count.settle(rule, *cost, look, allowed);
            if look.retry != Retry::Now && entry.standing == EvictionClass::Open {
                self.stand(place, EvictionClass::AtLimit, bounds);
            }
            return verdict;
        }
        let before = entry.count.heap_bytes();
        let verdict = entry.count.settle(rule, *cost, look, allowed);
        let is_full = look.retry != Retry::Now || verdict.remaining < (*cost).max(1);
        if *cost > 0 {
            entry.empty_at_us = entry.count.empty_at_us(rule);
        }
        let after = entry.count.heap_bytes();
        let (window, standing) = (entry.window, entry.standing_if(is_full));
        self.stand(place, standing, bounds);
        bounds.resize(window, before, after);
        verdict
    }

    pub(super) fn insert(
        &mut self,
        item: &LimitCheck,
        id: [u64; 2],
        rule: &Rule,
        bounds: &Bounds,
    ) -> usize {
        let window = bounds.shares.window_of(item, rule);
        let place = self.entries.push(Entry {
            id,
            count: Count::new(rule.algorithm),
            empty_at_us: 0,
            slot: 0,
            window,
            standing: EvictionClass::Held,
        });
        let entries = &self.entries;
        let rehash = |place: &u32| entries[*place as usize].id[0];
        // A shard of 2^32 keys would be 400 GB: the bounds come first.
        self.index
            .insert_unique(id[0], u32::try_from(place).unwrap_or(u32::MAX), rehash);
        bounds.add_key(window);
        place
    }

    pub(super) fn remove(&mut self, place: usize, bounds: &Bounds) {
        self.stand(place, EvictionClass::Held, bounds);
        let last = self.entries.len() - 1;
        let (id, moved) = (self.entries[place].id, self.entries[last].id);
        if let Ok(found) = self.index.find_entry(id[0], |at| *at as usize == place) {
            found.remove();
        }
        if place != last {
            let to = u32::try_from(place).unwrap_or(u32::MAX);
            if let Some(at) = self.index.find_mut(moved[0], |at| *at as usize == last) {
                *at = to;
            }
            let moved = &self.entries[last];
            let list = (bounds.shares.limit_of(moved.window), moved.standing);
            if let Some(list) = self.lists.get_mut(&list) {
                list[moved.slot as usize] = to;
            }
        }
        let entry = self.entries.swap_remove(place);
        bounds.take_key(entry.window, entry.count.heap_bytes());
        if self.index.capacity() > SHRINK && self.entries.len() < self.index.capacity() / 4 {
            let entries = &self.entries;
            self.index
                .shrink_to(entries.len() * 2, |at| entries[*at as usize].id[0]);
        }
    }

    /// Puts a key into the list of its standing.
    pub(super) fn stand(&mut self, place: usize, standing: EvictionClass, bounds: &Bounds) {
        let entry = &self.entries[place];
        if entry.standing == standing {
            return;
        }
        let limit = bounds.shares.limit_of(entry.window);
        let (old, slot) = ((limit, entry.standing), entry.slot);
        if let Some(list) = self.lists.get_mut(&old) {
            list.swap_remove(slot as usize);
            if let Some(moved) = list.get(slot as usize) {
                self.entries[*moved as usize].slot = slot;
            } else if list.is_empty() {
                self.lists.remove(&old);
            } else if list.len() < list.capacity() / 4 {
                list.shrink_to(list.len() * 2);
            }
        }
        let entry = &mut self.entries[place];
        entry.standing = standing;
        if standing != EvictionClass::Held {
            let list = self.lists.entry((limit, standing)).or_default();
            entry.slot = u32::try_from(list.len()).unwrap_or(u32::MAX);
            list.push(u32::try_from(place).unwrap_or(u32::MAX));
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

    /// Forgets the key of `limit` and `standing` that has least to lose, of a few; false if there
    /// is none but those to keep.
    pub(super) fn evict(
        &mut self,
        limit: LimitNumber,
        standing: EvictionClass,
        keep: &[[u64; 2]],
        now_us: u64,
        bounds: &Bounds,
    ) -> bool {
        let Some(many) = self.lists.get(&(limit, standing)).map(Vec::len) else {
            return false;
        };
        let mut victim = None;
        for turn in 0..many.min(2 * SAMPLE) {
            // A short list is looked at as a whole.
            let slot = match many <= 2 * SAMPLE {
                true => turn,
                false if turn < SAMPLE => self.draw(many),
                false => break,
            };
            let place = self.lists[&(limit, standing)][slot] as usize;
            let entry = &self.entries[place];
            if keep.contains(&entry.id) {
                continue;
            }
            let loss = entry.loss(now_us, bounds);
            if victim.is_none_or(|(least, _)| loss < least) {
                victim = Some((loss, place));
            }
        }
        let Some((loss, place)) = victim else {
            return false;
        };
        if loss.counts {
            let holding = bounds.shares.holding(limit);
            holding.note_evicted(standing == EvictionClass::AtLimit, loss.units);
            bounds.epoch.fetch_add(1, Ordering::Release);
        }
        self.remove(place, bounds);
        true
    }

    /// Forgets some key of any limit that may be forgotten, open ones first.
    pub(super) fn evict_any(&mut self, keep: &[[u64; 2]], now_us: u64, bounds: &Bounds) -> bool {
        let mut lists: Vec<_> = self.lists.keys().copied().collect();
        lists.sort_unstable_by_key(|(_, standing)| *standing == EvictionClass::AtLimit);
        lists
            .into_iter()
            .any(|(limit, standing)| self.evict(limit, standing, keep, now_us, bounds))
    }

    /// A number below `many`, at random (xorshift: clients cannot see it, let alone steer it).
    fn draw(&mut self, many: usize) -> usize {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % many as u64) as usize
    }
}

/// What would be lost with a key; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Loss {
    counts: bool,
    order: EvictionOrder,
    units: u64,
}

/// The order in which keys of one limit and standing go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionOrder {
    /// By units that count; of equals the one that expires first.
    Open(u64, u64),
    /// By the window's length; of equals the one that was admitted last. So a flood of full keys
    /// pushes out its own, and not the clients that were limited before.
    AtLimit(u64, Reverse<u64>),
}

impl Entry {
    fn loss(&self, now_us: u64, bounds: &Bounds) -> Loss {
        let rule = bounds.shares.rule_of(self.window);
        let is_same = |rule: &Rule| rule.algorithm == self.count.algorithm();
        let rule = rule.filter(is_same);
        let units = rule.map_or(0, |rule| self.count.used(&rule, now_us));
        let window_us = rule.map_or(0, |rule| rule.window_us);
        Loss {
            counts: self.empty_at_us > now_us,
            order: match self.standing {
                EvictionClass::AtLimit => {
                    EvictionOrder::AtLimit(window_us, Reverse(self.empty_at_us))
                }
                EvictionClass::Open | EvictionClass::Held => {
                    EvictionOrder::Open(units, self.empty_at_us)
                }
            },
            units,
        }
    }

    pub(super) fn window(&self) -> WindowNumber {
        self.window
    }

    /// How it stands, where the request that was last decided would be denied now, or not.
    pub(super) fn standing_if(&self, is_full: bool) -> EvictionClass {
        match is_full {
            _ if self.empty_at_us == u64::MAX => EvictionClass::Held,
            true => EvictionClass::AtLimit,
            false => EvictionClass::Open,
        }
    }
}
