//! The calendar windows of the embedded store, as the file of counts reads and writes them.

use std::collections::HashMap;

use super::shard::{Shard, WindowKey};
use super::unwritten::{UnwrittenBudget, UnwrittenCounts};
use super::{CALENDAR_KEPT_US, Memory, WindowDescription, WindowNumber, halves, joined};
use crate::limit::calendar::{CalendarCount, UnitsChange};
use crate::limit::decide::Count;

/// What one key has used of a calendar window, and of the one before it.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct CalendarCopy {
    pub(in crate::store) budget: u128,
    pub(in crate::store) window: WindowNumber,
    pub(in crate::store) count: CalendarCount,
}

/// What a thread has taken of the changes.
pub(in crate::store) type UnwrittenBudgets = HashMap<u128, UnwrittenBudget>;

impl Memory {
    /// Collects the changes of calendar windows from now on, for [`Memory::take_unwritten`].
    pub(in crate::store) fn collect_unwritten(&self) {
        for number in 0..self.shards.len() {
            self.lock(number).unwritten = Some(Box::<UnwrittenCounts>::default());
        }
    }

    /// Collects no more changes.
    pub(in crate::store) fn end_unwritten(&self) {
        for number in 0..self.shards.len() {
            self.lock(number).unwritten = None;
        }
    }

    /// Adds the changes since the last call to `known`. Returns false if some are lost, because
    /// there were too many.
    pub(in crate::store) fn take_unwritten(&self, known: &mut UnwrittenBudgets) -> bool {
        let mut is_complete = true;
        for number in 0..self.shards.len() {
            is_complete &= take_from(&mut self.lock(number), known);
        }
        is_complete
    }

    pub(in crate::store) fn shard_numbers(&self) -> std::ops::Range<usize> {
        0..self.shards.len()
    }

    /// The calendar windows of one shard that may still count. The changes that they contain are
    /// added to `known`; returns false if some of these are lost.
    pub(in crate::store) fn copy_calendars(
        &self,
        shard: usize,
        known: &mut UnwrittenBudgets,
        copies: &mut Vec<CalendarCopy>,
    ) -> bool {
        let now_us = self.clock.unix_us();
        let mut shard = self.lock(shard);
        let is_complete = take_from(&mut shard, known);
        for place in 0..shard.entries.len() {
            let entry = &shard.entries[place];
            match &entry.count {
                Count::Calendar(count) if is_kept(count, now_us) => copies.push(CalendarCopy {
                    budget: joined(entry.id),
                    window: entry.window,
                    count: *count,
                }),
                _ => {}
            }
        }
        is_complete
    }

    /// Sets a calendar window to what the file has of it, and makes the changes again that the file
    /// lacks: those in `known`, and those since the last call of [`Memory::take_unwritten`].
    pub(in crate::store) fn replace_calendar(
        &self,
        copy: &CalendarCopy,
        known: Option<&UnwrittenBudget>,
    ) -> bool {
        let id = halves(copy.budget);
        let mut shard = self.lock(self.shard_of(id));
        let mut count = copy.count;
        let newest = shard.unwritten.as_ref();
        let newest = newest.and_then(|unwritten| unwritten.get(id));
        for unwritten in known.into_iter().chain(newest) {
            unwritten.apply_to(&mut count);
        }
        let window = copy.window;
        self.set_in(&mut shard, WindowKey { id, window }, |old| *old = count)
    }

    /// Makes a change of another process. Returns false if the store is full and does not have the
    /// key.
    pub(in crate::store) fn apply_calendar(
        &self,
        budget: u128,
        window: WindowNumber,
        change: &UnitsChange,
    ) -> bool {
        let id = halves(budget);
        let mut shard = self.lock(self.shard_of(id));
        let key = WindowKey { id, window };
        self.set_in(&mut shard, key, |count| count.apply(change))
    }

    fn set_in(
        &self,
        shard: &mut Shard,
        key: WindowKey,
        change: impl FnOnce(&mut CalendarCount),
    ) -> bool {
        if self.bounds.passed().is_some() && shard.find(key.id).is_none() {
            return false;
        }
        let ahead_us = self.clock.unix_us().wrapping_sub(self.clock.now_us());
        shard.set_calendar(key, ahead_us, &self.bounds, change);
        true
    }

    /// Forgets a budget that another process has reset.
    pub(in crate::store) fn forget_calendar(&self, budget: u128) {
        let id = halves(budget);
        let mut shard = self.lock(self.shard_of(id));
        if let Some(place) = shard.find(id) {
            shard.remove(place, &self.bounds);
        }
    }

    pub(in crate::store) fn describe_window(
        &self,
        number: WindowNumber,
    ) -> Option<WindowDescription> {
        self.bounds.describe(number)
    }

    pub(in crate::store) fn number_window(&self, window: &WindowDescription) -> WindowNumber {
        self.bounds.number_window(window)
    }

    /// The wall clock of the counts, microseconds since the Unix epoch.
    pub(in crate::store) fn unix_us(&self) -> u64 {
        self.clock.unix_us()
    }
}

/// Moves the changes of a shard to `known`. Returns false if some are lost.
fn take_from(shard: &mut Shard, known: &mut UnwrittenBudgets) -> bool {
    let Some(unwritten) = &mut shard.unwritten else {
        return true;
    };
    for (id, later) in unwritten.take() {
        known.entry(joined(id)).or_default().add_later(later);
    }
    !std::mem::take(&mut unwritten.is_incomplete)
}

/// Whether a calendar window is of use yet.
fn is_kept(count: &CalendarCount, now_us: u64) -> bool {
    count.empty_at_us().saturating_add(CALENDAR_KEPT_US) > now_us
}
