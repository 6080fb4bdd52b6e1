//! One shard of the embedded store: its keys in a row, an index of their places, and the lists that
//! eviction chooses from.
//!
//! Keys lie close together, and adding one never moves another. The index holds places only, so
//! growing it touches only one shard's keys, however many the store has.
//!
//! Keys that may be evicted are listed by limit, those at their limit apart from those below it.
//! Eviction looks at a few keys of one list, so its work does not grow with the store.

use std::collections::HashMap;

use hashbrown::HashTable;

use super::bounds::{EvictionClass, EvictionList, MemoryBounds, WindowNumber};
use super::entry_row::{CountEntry, EntryRow, PIECE};
use super::unwritten::UnwrittenCounts;
use super::{BudgetId, SHARD_KEYS, id};
use crate::limit::calendar::CalendarCount;
use crate::limit::decide::{Count, FirstPass};
use crate::limit::delay::BookingCheck;
use crate::limit::{LimitCheck, Retry, Rule, Verdict};
use crate::store::guard::xorshift;
use crate::store::store_clock::CheckTime;

/// Charges of a shard between two sweeps. Keys that lie side by side are read faster than as many
/// in different places.
const SWEEP_EVERY: usize = 8;
/// Keys among which a victim is chosen.
const SAMPLE: usize = 8;
/// An index with room for more keys than this shrinks when most of it is unused.
const SHRINK: usize = 16;
/// Bytes of a key whose ring is inside it: the entry, its part of the unused end of the row, and
/// its places in the index and in a list.
pub(super) const KEY_BYTES: usize =
    size_of::<CountEntry>() * (SHARD_KEYS + PIECE / 2) / SHARD_KEYS + 10 + 6;

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) entries: EntryRow,
    /// Places in `entries`, by the key's hash.
    pub(super) index: HashTable<u32>,
    /// Places in `entries` of keys that may be evicted.
    pub(super) lists: HashMap<EvictionList, Vec<u32>>,
    sweep_next: usize,
    /// Charges since the last sweep.
    unswept: usize,
    /// The state of a random number generator: clients cannot see it, let alone steer it.
    random: u64,
    /// Changes of calendar windows for the file of counts; `None` without such a file.
    pub(super) unwritten: Option<Box<UnwrittenCounts>>,
}

/// One budget of a calendar window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowKey {
    pub(super) id: BudgetId,
    pub(super) window: WindowNumber,
}

/// One item between the two passes of a decision.
pub(super) struct PendingCheck<'i> {
    pub(super) id: BudgetId,
    item: &'i LimitCheck,
    rule: Rule,
    cost: u64,
    /// How far the clock of the count is ahead.
    ahead_us: u64,
    /// Where its entry is, if it has one.
    place: Option<usize>,
    pub(super) first: FirstPass,
    /// Units that may count at most, where that is less than the rule says.
    max_units: Option<u64>,
}

/// The outcome of a whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckOutcome {
    Denied,
    Passes,
    /// It is charged now, and passes after so many microseconds.
    Held {
        wait_us: u64,
    },
}

impl PendingCheck<'_> {
    /// Lets no more than `max_units` count, whatever the rule says.
    pub(super) fn cap(&mut self, max_units: u64, wait_us: u64) {
        if max_units >= self.rule.units {
            return;
        }
        self.max_units = Some(max_units);
        let is_over = self.cost > 0 && self.first.used().saturating_add(self.cost) > max_units;
        match self.first.retry {
            Retry::Now if is_over => self.first.retry = Retry::After(wait_us),
            Retry::After(us) if is_over => self.first.retry = Retry::After(us.max(wait_us)),
            _ => {}
        }
    }
}

impl Shard {
    pub(super) fn new(seed: u64) -> Shard {
        Shard {
            random: seed,
            ..Shard::default()
        }
    }

    pub(super) fn find(&self, id: BudgetId) -> Option<usize> {
        let is_same = |place: &u32| self.entries[*place as usize].id == id;
        let place = self.index.find(id[0], is_same)?;
        Some(*place as usize)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = BudgetId> {
        (0..self.entries.len()).map(|place| self.entries[place].id)
    }

    /// First pass over one item, which costs `cost` by `rule`: whether it may pass.
    pub(super) fn check<'i>(
        &self,
        item: &'i LimitCheck,
        rule: Rule,
        cost: u64,
        time: &CheckTime,
    ) -> PendingCheck<'i> {
        let id = id(item);
        let place = self.find(id);
        let at = &time.moment;
        let first = match place {
            Some(place) => self.entries[place].count.first_pass_at(&rule, cost, at),
            None => Count::new(rule.algorithm).first_pass_at(&rule, cost, at),
        };
        PendingCheck {
            id,
            item,
            rule,
            cost,
            ahead_us: time.ahead_us,
            place,
            first,
            max_units: None,
        }
    }

    /// What an item says to holding its request, between the two passes.
    pub(super) fn booking<'c>(
        &'c self,
        check: &'c PendingCheck<'_>,
        longest_us: u64,
    ) -> BookingCheck<'c> {
        BookingCheck {
            count: check.place.map(|place| &self.entries[place].count),
            rule: &check.rule,
            cost: check.cost,
            first: &check.first,
            delay: check.item.delay_within(longest_us),
        }
    }

    /// Second pass over one item: its verdict. Only what is charged gets an entry.
    pub(super) fn settle(
        &mut self,
        check: &PendingCheck<'_>,
        outcome: CheckOutcome,
        bounds: &MemoryBounds,
    ) -> Verdict {
        let mut verdict = self.charge(check, outcome, bounds);
        if let Some(max_units) = check.max_units {
            let allowed = outcome != CheckOutcome::Denied;
            let counted = verdict.used + if allowed { check.cost } else { 0 };
            verdict.remaining = verdict.remaining.min(max_units.saturating_sub(counted));
        }
        verdict
    }

    fn charge(
        &mut self,
        check: &PendingCheck<'_>,
        outcome: CheckOutcome,
        bounds: &MemoryBounds,
    ) -> Verdict {
        let (rule, cost, first) = (&check.rule, check.cost, &check.first);
        let allowed = outcome != CheckOutcome::Denied;
        let place = match check.place {
            Some(place) => place,
            None if allowed && cost > 0 => self.insert(check.item, rule, bounds),
            None => return Count::new(rule.algorithm).settle(rule, cost, first, allowed),
        };
        let entry = &mut self.entries[place];
        if !allowed && !first.stepped() {
            let verdict = entry.count.settle(rule, cost, first, allowed);
            if first.retry != Retry::Now && entry.class == EvictionClass::Open {
                self.set_class(place, EvictionClass::AtLimit, bounds);
            }
            return verdict;
        }
        self.change(place, bounds, |entry| {
            let verdict = match outcome {
                CheckOutcome::Held { wait_us } => entry.count.book(rule, cost, first, wait_us),
                _ => entry.count.settle(rule, cost, first, allowed),
            };
            if cost > 0 {
                entry.set_empty_at(rule, check.ahead_us);
            }
            let is_full = first.retry != Retry::Now || verdict.remaining < cost.max(1);
            (verdict, is_full)
        })
    }

    /// Changes a key. `change` also returns whether the request last decided would be denied now.
    pub(super) fn change<T>(
        &mut self,
        place: usize,
        bounds: &MemoryBounds,
        change: impl FnOnce(&mut CountEntry) -> (T, bool),
    ) -> T {
        let entry = &mut self.entries[place];
        let before = entry.count.heap_bytes();
        let (result, is_full) = match &mut self.unwritten {
            None => change(entry),
            Some(unwritten) => unwritten.note(entry, change),
        };
        let after = entry.count.heap_bytes();
        let window = entry.window;
        let class = match is_full {
            _ if entry.empty_at_us == u64::MAX => EvictionClass::Held,
            true => EvictionClass::AtLimit,
            false => EvictionClass::Open,
        };
        self.set_class(place, class, bounds);
        if before != after {
            bounds.add(window, 0, after as isize - before as isize);
        }
        result
    }

    pub(super) fn insert(
        &mut self,
        item: &LimitCheck,
        rule: &Rule,
        bounds: &MemoryBounds,
    ) -> usize {
        let window = bounds.window_of(item, rule);
        self.insert_count(id(item), Count::new(rule.algorithm), window, bounds)
    }

    fn insert_count(
        &mut self,
        id: BudgetId,
        count: Count,
        window: WindowNumber,
        bounds: &MemoryBounds,
    ) -> usize {
        let place = self.entries.push(CountEntry {
            id,
            count,
            empty_at_us: 0,
            position: 0,
            window,
            class: EvictionClass::Held,
        });
        let entries = &self.entries;
        let rehash = |place: &u32| entries[*place as usize].id[0];
        self.index.insert_unique(id[0], narrow(place), rehash);
        bounds.add(window, 1, KEY_BYTES as isize);
        place
    }

    pub(super) fn remove(&mut self, place: usize, bounds: &MemoryBounds) {
        self.set_class(place, EvictionClass::Held, bounds);
        let last = self.entries.len() - 1;
        let (id, moved) = (self.entries[place].id, self.entries[last].id);
        if let Ok(found) = self.index.find_entry(id[0], |at| *at as usize == place) {
            found.remove();
        }
        if place != last {
            if let Some(at) = self.index.find_mut(moved[0], |at| *at as usize == last) {
                *at = narrow(place);
            }
            let moved = &self.entries[last];
            let list = EvictionList {
                limit: bounds.limit_of(moved.window),
                class: moved.class,
            };
            if let Some(list) = self.lists.get_mut(&list) {
                list[moved.position as usize] = narrow(place);
            }
        }
        let entry = self.entries.swap_remove(place);
        let bytes = KEY_BYTES + entry.count.heap_bytes();
        bounds.add(entry.window, -1, -(bytes as isize));
        if self.index.capacity() > SHRINK && self.entries.len() < self.index.capacity() / 4 {
            let entries = &self.entries;
            self.index
                .shrink_to(entries.len() * 2, |at| entries[*at as usize].id[0]);
        }
    }

    /// Sets the units of a calendar window to what `change` makes of them. The file of counts has
    /// them already. The clock of the count is `ahead_us` ahead.
    pub(super) fn set_calendar(
        &mut self,
        key: WindowKey,
        ahead_us: u64,
        bounds: &MemoryBounds,
        change: impl FnOnce(&mut CalendarCount),
    ) {
        let place = match self.find(key.id) {
            Some(place) => place,
            None => {
                let empty = Count::Calendar(CalendarCount::default());
                self.insert_count(key.id, empty, key.window, bounds)
            }
        };
        let entry = &mut self.entries[place];
        if let Count::Calendar(count) = &mut entry.count {
            change(count);
            entry.empty_at_us = count.empty_at_us().wrapping_sub(ahead_us);
        }
        if entry.class == EvictionClass::Held {
            self.set_class(place, EvictionClass::Open, bounds);
        }
    }

    /// Moves a key to the list of another class; keys of class `Held` are in no list.
    fn set_class(&mut self, place: usize, class: EvictionClass, bounds: &MemoryBounds) {
        let entry = &self.entries[place];
        if entry.class == class {
            return;
        }
        let limit = bounds.limit_of(entry.window);
        let old = EvictionList {
            limit,
            class: entry.class,
        };
        let position = entry.position;
        if let Some(list) = self.lists.get_mut(&old) {
            list.swap_remove(position as usize);
            if let Some(moved) = list.get(position as usize) {
                self.entries[*moved as usize].position = position;
            } else if list.is_empty() {
                self.lists.remove(&old);
            } else if list.len() < list.capacity() / 4 {
                list.shrink_to(list.len() * 2);
            }
        }
        let entry = &mut self.entries[place];
        entry.class = class;
        if class != EvictionClass::Held {
            let list = EvictionList { limit, class };
            let list = self.lists.entry(list).or_default();
            entry.position = narrow(list.len());
            list.push(narrow(place));
        }
    }

    /// Looks at two keys for each charge, in one piece for `SWEEP_EVERY` of them.
    pub(super) fn sweep_in_turn(&mut self, now_us: u64, bounds: &MemoryBounds) {
        self.unswept += 1;
        if self.unswept >= SWEEP_EVERY {
            self.unswept = 0;
            self.sweep(2 * SWEEP_EVERY, now_us, bounds);
        }
    }

    /// Looks at the next `keys` keys and drops those in which nothing counts any more.
    pub(super) fn sweep(&mut self, keys: usize, now_us: u64, bounds: &MemoryBounds) {
        for _ in 0..keys.min(self.entries.len()) {
            if self.sweep_next >= self.entries.len() {
                self.sweep_next = 0;
            }
            let entry = &self.entries[self.sweep_next];
            if entry.empty_at_us <= now_us && entry.is_over(now_us) {
                self.remove(self.sweep_next, bounds);
            } else {
                self.sweep_next += 1;
            }
        }
    }

    /// Forgets the key of a list that has least to lose, of a sample. Returns false if there is
    /// none except those in `keep`.
    pub(super) fn evict(
        &mut self,
        list: EvictionList,
        keep: &[BudgetId],
        now_us: u64,
        bounds: &MemoryBounds,
    ) -> bool {
        let Some(places) = self.lists.get(&list) else {
            return false;
        };
        // A short list is examined as a whole.
        let is_short = places.len() <= 2 * SAMPLE;
        let sample = if is_short { places.len() } else { SAMPLE };
        let mut victim = None;
        for turn in 0..sample {
            let position = match is_short {
                true => turn,
                false => (xorshift(&mut self.random) % places.len() as u64) as usize,
            };
            let place = places[position] as usize;
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
            bounds.note_evicted(list, loss.units);
        }
        self.remove(place, bounds);
        true
    }

    /// Forgets a key of any limit, open ones first.
    pub(super) fn evict_any(
        &mut self,
        keep: &[BudgetId],
        now_us: u64,
        bounds: &MemoryBounds,
    ) -> bool {
        let mut lists: Vec<EvictionList> = self.lists.keys().copied().collect();
        lists.sort_unstable_by_key(|list| list.class == EvictionClass::AtLimit);
        lists
            .into_iter()
            .any(|list| self.evict(list, keep, now_us, bounds))
    }
}

/// A place as the index holds it. A shard of 2^32 keys would be 400 GB: the bounds come first.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
