//! Changes of calendar windows that the file of counts does not have yet. Each shard collects them
//! under its lock, one entry for each budget; a thread takes and writes them a few times a second.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use smallvec::SmallVec;

use super::BudgetId;
use super::bounds::WindowNumber;
use super::entry_row::CountEntry;
use crate::limit::calendar::{CalendarCount, UnitsChange, UnitsChangeKind};
use crate::limit::decide::Count;

/// Budgets of one shard between two writes, at most. With more of them the file is written anew.
const MAX_BUDGETS: usize = 4096;

/// The changes of one shard.
#[derive(Debug, Default)]
pub(super) struct UnwrittenCounts {
    budgets: HashMap<BudgetId, UnwrittenBudget>,
    /// Some changes are not in `budgets`: there were too many.
    pub(super) is_incomplete: bool,
}

/// The changes of one budget, in order.
#[derive(Debug, Default)]
pub(in crate::store) struct UnwrittenBudget {
    pub(in crate::store) window: WindowNumber,
    /// All that was counted before the changes was forgotten.
    pub(in crate::store) is_reset: bool,
    pub(in crate::store) changes: SmallVec<[UnitsChange; 2]>,
}

impl UnwrittenBudget {
    /// Adds a change. Units of one window are added up.
    fn add(&mut self, change: UnitsChange) {
        let is_same = |known: &&mut UnitsChange| known.end_us == change.end_us;
        match self.changes.iter_mut().rev().find(is_same) {
            Some(known) if change.kind == UnitsChangeKind::Adds => {
                known.units = known.units.saturating_add(change.units);
            }
            _ => self.changes.push(change),
        }
    }

    /// Makes the changes again.
    pub(super) fn apply_to(&self, count: &mut CalendarCount) {
        if self.is_reset {
            *count = CalendarCount::default();
        }
        self.changes.iter().for_each(|change| count.apply(change));
    }

    /// Adds the changes that followed these.
    pub(in crate::store) fn add_later(&mut self, later: UnwrittenBudget) {
        if later.is_reset {
            *self = later;
            return;
        }
        self.window = later.window;
        later
            .changes
            .into_iter()
            .for_each(|change| self.add(change));
    }
}

impl UnwrittenCounts {
    /// Changes an entry, and notes what becomes of its units if it is a calendar window.
    pub(super) fn note<T>(
        &mut self,
        entry: &mut CountEntry,
        change: impl FnOnce(&mut CountEntry) -> T,
    ) -> T {
        let Count::Calendar(before) = entry.count else {
            return change(entry);
        };
        let result = change(entry);
        let Count::Calendar(after) = &entry.count else {
            return result;
        };
        let window = entry.window;
        for change in after.changes_since(&before).into_iter().flatten() {
            if let Some(budget) = self.budget(entry.id) {
                budget.window = window;
                budget.add(change);
            }
        }
        result
    }

    /// Notes that an operator has reset a budget.
    pub(super) fn note_reset(&mut self, id: BudgetId) {
        if let Some(budget) = self.budget(id) {
            budget.is_reset = true;
            budget.changes.clear();
        }
    }

    fn budget(&mut self, id: BudgetId) -> Option<&mut UnwrittenBudget> {
        let is_full = self.budgets.len() >= MAX_BUDGETS;
        match self.budgets.entry(id) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(_) if is_full => {
                self.is_incomplete = true;
                None
            }
            Entry::Vacant(unknown) => Some(unknown.insert(UnwrittenBudget::default())),
        }
    }

    pub(super) fn get(&self, id: BudgetId) -> Option<&UnwrittenBudget> {
        self.budgets.get(&id)
    }

    pub(super) fn take(&mut self) -> HashMap<BudgetId, UnwrittenBudget> {
        std::mem::take(&mut self.budgets)
    }
}
