//! What was admitted here while the store was away, to be charged to it when it is back: so that
//! the end of an outage is no second helping.
//!
//! For each key the same count that the limit would keep: what has left its window meanwhile is not
//! owed. Bounded in keys; what does not fit is forgotten, and counted. Time is an argument.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::limit::decide::Count;
use crate::limit::{Algorithm, Charge, Item};

/// Keys remembered, at most; more are forgotten.
const KEYS: usize = 65_536;

/// One process's debts.
#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<HashMap<u128, (Item, Count)>>);

/// Debts on their way to the store; owed still unless they are [`Debts::paid`]. Where nobody knows
/// whether the store has charged them, they are charged again: too little is admitted for a while,
/// and never too much.
#[derive(Debug)]
pub(crate) struct Debts<'j> {
    pub(crate) owed: Vec<Owed>,
    journal: &'j Journal,
    now_us: u64,
}

impl Debts<'_> {
    /// The store has charged them.
    pub(crate) fn paid(mut self) {
        self.owed.clear();
    }
}

impl Drop for Debts<'_> {
    fn drop(&mut self) {
        for Owed { mut charge, count } in self.owed.drain(..) {
            for item in &mut charge {
                item.cost *= u64::from(count);
            }
            self.journal.add(&charge, self.now_us);
        }
    }
}

/// Units to be charged to one key, as many as fit.
#[derive(Debug)]
pub(crate) struct Owed {
    /// What one of the `count` costs is its cost.
    pub(crate) charge: Charge,
    pub(crate) count: u16,
}

impl Journal {
    /// Remembers what was admitted at `now_us`. Returns false where there was no room for it.
    pub(crate) fn add(&self, charge: &Charge, now_us: u64) -> bool {
        let mut owed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fits = true;
        for item in charge {
            let rule = item.window.rule;
            if rule.algorithm == Algorithm::Slots {
                // Who holds slots says so with every call.
                continue;
            }
            if owed.len() >= KEYS && !owed.contains_key(&item.id()) {
                fits = false;
                continue;
            }
            let entry = owed.entry(item.id());
            let (_, count) = entry.or_insert_with(|| (item.clone(), Count::new(rule.algorithm)));
            count.charge_more(&rule, item.cost, now_us);
        }
        fits
    }

    /// Whether anything is owed.
    pub(crate) fn owes(&self) -> bool {
        let owed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !owed.is_empty()
    }

    /// Takes out up to `keys` of those that are `due`. What has left its window by `now_us` is not
    /// owed.
    pub(crate) fn take(&self, keys: usize, now_us: u64, due: impl Fn(&Item) -> bool) -> Debts<'_> {
        Debts {
            owed: self.take_out(keys, now_us, due),
            journal: self,
            now_us,
        }
    }

    fn take_out(&self, keys: usize, now_us: u64, due: impl Fn(&Item) -> bool) -> Vec<Owed> {
        let mut owed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::new();
        let due = owed.iter().filter(|(_, (item, _))| due(item));
        let ids: Vec<u128> = due.map(|(id, _)| *id).take(keys).collect();
        for id in ids {
            let Some((mut item, mut count)) = owed.remove(&id) else {
                continue;
            };
            let rule = item.window.rule;
            let look = count.look(&rule, 0, now_us);
            let units = count.settle(&rule, 0, &look, false).used;
            if units == 0 {
                continue;
            }
            // As many equal parts as a group can have: as many as fit will be charged.
            item.cost = units.div_ceil(u64::from(u16::MAX));
            let count = u16::try_from(units / item.cost).unwrap_or(u16::MAX);
            taken.push(Owed {
                charge: [item].into_iter().collect(),
                count,
            });
        }
        taken
    }

    /// Forgets what is owed for one budget ([`Item::id`]).
    pub(crate) fn forget(&self, budget: u128) {
        let mut owed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        owed.remove(&budget);
    }

    /// Forgets everything: the tags are those of another key.
    pub(crate) fn clear(&self) {
        let mut owed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        owed.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::{Key, Limit, Rule, Tag};

    fn charge(who: u64, cost: u64) -> Charge {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 1_000_000,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let limit = Limit::new("l", &[rule], Key::parse(["ip"]).unwrap());
        let mut tag = Tag([0; 16]);
        tag.0[..8].copy_from_slice(&who.to_le_bytes());
        let item = Item {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag,
            cost,
            asker: None,
        };
        [item].into_iter().collect()
    }

    #[test]
    fn what_is_still_in_its_window_is_owed_once() {
        let journal = Journal::default();
        assert!(journal.add(&charge(1, 2), 1_000_000));
        assert!(journal.add(&charge(1, 3), 1_600_000));
        assert!(journal.add(&charge(2, 1), 1_000_000));
        let debts = journal.take(64, 2_100_000, |_| true);
        assert_eq!(debts.owed.len(), 1, "the second has left its window");
        let owed = &debts.owed[0];
        assert_eq!((owed.count, owed.charge[0].cost), (3, 1));
        drop(debts);
        let again = journal.take(64, 2_100_000, |_| true);
        assert_eq!(again.owed.len(), 1, "nobody knows that it was paid");
        again.paid();
        assert!(journal.take(64, 2_100_000, |_| true).owed.is_empty());
    }

    #[test]
    fn many_units_are_owed_in_larger_parts() {
        let journal = Journal::default();
        journal.add(&charge(1, 200_000), 1_000_000);
        let debts = journal.take(64, 1_000_000, |_| true);
        let owed = &debts.owed;
        let units = owed[0].charge[0].cost * u64::from(owed[0].count);
        assert!((199_990..=200_000).contains(&units), "{units}");
    }

    #[test]
    fn it_is_bounded() {
        let journal = Journal::default();
        for who in 0..KEYS as u64 {
            assert!(journal.add(&charge(who, 1), 1_000_000));
        }
        assert!(!journal.add(&charge(u64::MAX, 1), 1_000_000));
        assert!(journal.add(&charge(7, 1), 1_000_000));
        assert_eq!(journal.take(64, 1_000_000, |_| true).owed.len(), 64);
    }
}
