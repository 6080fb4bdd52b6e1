//! The keys of a shard with their counts, in a row.

use std::cmp::Reverse;
use std::ops::{Index, IndexMut};

use super::bounds::{EvictionClass, MemoryBounds, WindowNumber};
use super::{BudgetId, CALENDAR_KEPT_US};
use crate::limit::Rule;
use crate::limit::decide::Count;

/// Entries in a piece of a row; half a piece is unused in each shard, on average.
pub(super) const PIECE: usize = 32;

#[derive(Debug)]
pub(super) struct CountEntry {
    pub(super) id: BudgetId,
    pub(super) count: Count,
    /// From this time on nothing counts, microseconds.
    pub(super) empty_at_us: u64,
    pub(super) position: u32,
    pub(super) window: WindowNumber,
    pub(super) class: EvictionClass,
}

/// The loss with a key; the key with the least loss goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionLoss {
    pub(super) counts: bool,
    order: EvictionOrder,
    pub(super) units: u64,
}

/// The order in which keys of one list go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionOrder {
    /// By units that count, then by expiry, earliest first.
    Open(u64, u64),
    /// By the window's length, then by admission, latest first. So a flood of full keys pushes out
    /// its own keys, and not the clients that were limited before.
    AtLimit(u64, Reverse<u64>),
}

impl CountEntry {
    /// Whether the entry is of no use any more. A calendar window is kept for a day longer: the
    /// wall clock may step back, and units may come back late.
    pub(super) fn is_over(&self, now_us: u64) -> bool {
        let kept_us = match self.count {
            Count::Calendar(_) => CALENDAR_KEPT_US,
            _ => 0,
        };
        self.empty_at_us.saturating_add(kept_us) <= now_us
    }

    /// Notes when nothing counts any more. The clock of the count is `ahead_us` ahead.
    pub(super) fn set_empty_at(&mut self, rule: &Rule, ahead_us: u64) {
        let empty_at_us = self.count.empty_at_us(rule);
        self.empty_at_us = match ahead_us {
            0 => empty_at_us,
            _ => empty_at_us.wrapping_sub(ahead_us),
        };
    }

    pub(super) fn loss(&self, now_us: u64, bounds: &MemoryBounds) -> EvictionLoss {
        let rule = bounds.rule_of(self.window);
        let rule = rule.filter(|rule| rule.algorithm == self.count.algorithm());
        let units = rule.map_or(0, |rule| self.count.used(&rule, now_us));
        let window_us = rule.map_or(0, |rule| rule.window_us);
        EvictionLoss {
            counts: self.empty_at_us > now_us,
            order: match self.class {
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
}

/// The keys of a shard, in pieces of one size. Growing moves no key, and leaves no holes of other
/// sizes in memory. All pieces but the last one are full, and the last is not empty.
#[derive(Debug, Default)]
pub(super) struct EntryRow {
    pieces: Vec<Vec<CountEntry>>,
}

impl EntryRow {
    pub(super) fn len(&self) -> usize {
        let last = self.pieces.last().map_or(PIECE, Vec::len);
        (self.pieces.len() * PIECE + last).saturating_sub(PIECE)
    }

    pub(super) fn push(&mut self, entry: CountEntry) -> usize {
        let place = self.len();
        if place.is_multiple_of(PIECE) {
            // The first piece grows slowly: a store of few keys has a few in each shard.
            let capacity = if place == 0 { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(capacity));
        }
        if let Some(last) = self.pieces.last_mut() {
            last.push(entry);
        }
        place
    }

    /// Takes an entry out; the last one moves to its place. There must be one at `place`.
    pub(super) fn swap_remove(&mut self, place: usize) -> CountEntry {
        let tail = self.pieces.last_mut().and_then(Vec::pop);
        let tail = tail.expect("a row with an entry has a last one");
        if self.pieces.last().is_some_and(Vec::is_empty) {
            self.pieces.pop();
        }
        if self.pieces.is_empty() {
            self.pieces = Vec::new();
        }
        if place == self.len() {
            return tail;
        }
        std::mem::replace(&mut self[place], tail)
    }

    /// Keys that there is memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pieces.iter().map(Vec::capacity).sum()
    }
}

impl Index<usize> for EntryRow {
    type Output = CountEntry;

    fn index(&self, place: usize) -> &CountEntry {
        &self.pieces[place / PIECE][place % PIECE]
    }
}

impl IndexMut<usize> for EntryRow {
    fn index_mut(&mut self, place: usize) -> &mut CountEntry {
        &mut self.pieces[place / PIECE][place % PIECE]
    }
}
