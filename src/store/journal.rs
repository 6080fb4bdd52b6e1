//! What was admitted here while the store was away, to be charged to it when it is back: so that
//! the end of an outage is no second helping. And what the store has lost, to be charged again.
//!
//! For each key the same count that the limit would keep: what has left its window meanwhile is not
//! owed. Bounded in keys; what does not fit is forgotten. Time is an argument.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limit::decide::Count;
use crate::limit::{Algorithm, Charge, LimitCheck};

/// Keys remembered, at most; more are forgotten.
const KEYS: usize = 65_536;

/// How long units that the store seems to have lost wait before they are charged again,
/// microseconds. By then this process has heard if an operator has reset their key.
const SUSPECT_FOR_US: u64 = 1_500_000;

/// One process's debts.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    owed: HashMap<u128, (LimitCheck, Count)>,
    /// Units that the store seems to have lost, and when they are owed.
    suspected: HashMap<u128, (LimitCheck, u64)>,
}

/// Debts on their way to the store; owed still unless they are [`Debts::paid`]. Where the answer is
/// lost they are charged again: too little is admitted for a while, and never too much.
#[derive(Debug)]
pub struct Debts<'j> {
    /// One item each: the cost is what is owed, all of it, also beyond the limit.
    pub owed: Vec<Charge>,
    journal: &'j Journal,
    now_us: u64,
}

impl Debts<'_> {
    /// The store has charged them.
    pub fn paid(mut self) {
        self.owed.clear();
    }
}

impl Drop for Debts<'_> {
    fn drop(&mut self) {
        for charge in self.owed.drain(..) {
            self.journal.add(&charge, self.now_us);
        }
    }
}

impl Journal {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what was admitted at `now_us`. Returns false where there was no room for it.
    pub fn add(&self, charge: &Charge, now_us: u64) -> bool {
        let mut books = self.books();
        let mut fits = true;
        for item in charge {
            fits &= books.add(item, now_us);
        }
        fits
    }

    /// The store has lost all that it counted: this is what this process has admitted of `item`,
    /// and all that is owed of it.
    pub fn put(&self, item: LimitCheck, now_us: u64) -> bool {
        let mut books = self.books();
        books.owed.remove(&item.id());
        books.suspected.remove(&item.id());
        books.add(&item, now_us)
    }

    /// The store seems to have lost so many units of this key as the item costs.
    pub fn suspect(&self, item: LimitCheck, now_us: u64) {
        let suspected = &mut self.books().suspected;
        if suspected.len() < KEYS {
            suspected
                .entry(item.id())
                .or_insert((item, now_us + SUSPECT_FOR_US));
        }
    }

    /// Whether the store lacks anything, or seems to: owed units, and suspected ones.
    pub fn is_empty(&self) -> bool {
        let books = self.books();
        books.owed.is_empty() && books.suspected.is_empty()
    }

    /// Owes what was suspected for long enough.
    pub fn ripen(&self, now_us: u64) {
        let mut books = self.books();
        if books.suspected.is_empty() {
            return;
        }
        let ripe = (books.suspected).extract_if(|_, (_, at_us)| *at_us <= now_us);
        let ripe: Vec<LimitCheck> = ripe.map(|(_, (item, _))| item).collect();
        for item in &ripe {
            books.add(item, now_us);
        }
    }

    /// Whether anything is owed.
    pub fn owes(&self) -> bool {
        !self.books().owed.is_empty()
    }

    /// Takes out up to `keys` of those that are `due`. What has left its window by `now_us` is not
    /// owed.
    pub fn take(
        &self,
        keys: usize,
        now_us: u64,
        due: impl Fn(&LimitCheck) -> bool,
    ) -> Debts<'_> {
        Debts {
            owed: self.books().take_out(keys, now_us, due),
            journal: self,
            now_us,
        }
    }

    /// Forgets what is owed for one budget ([`LimitCheck::id`]).
    pub fn forget(&self, budget: u128) {
        let mut books = self.books();
        books.owed.remove(&budget);
        books.suspected.remove(&budget);
    }

    /// Forgets everything: the tags are those of another key.
    pub fn clear(&self) {
        *self.books() = Books::default();
    }
}

impl Books {
    fn add(&mut self, item: &LimitCheck, now_us: u64) -> bool {
        let rule = item.window.rule;
        if rule.algorithm == Algorithm::Slots || item.cost == 0 {
            // Holders of slots say so with every call.
            return true;
        }
        if self.owed.len() >= KEYS && !self.owed.contains_key(&item.id()) {
            return false;
        }
        let entry = self.owed.entry(item.id());
        let (_, count) = entry.or_insert_with(|| (item.clone(), Count::new(rule.algorithm)));
        count.charge_more(&rule, item.cost, now_us);
        true
    }

    fn take_out(
        &mut self,
        keys: usize,
        now_us: u64,
        due: impl Fn(&LimitCheck) -> bool,
    ) -> Vec<Charge> {
        let mut taken = Vec::new();
        let due = self.owed.iter().filter(|(_, (item, _))| due(item));
        let ids: Vec<u128> = due.map(|(id, _)| *id).take(keys).collect();
        for id in ids {
            let Some((mut item, count)) = self.owed.remove(&id) else {
                continue;
            };
            item.cost = count.used(&item.window.rule, now_us);
            if item.cost > 0 {
                taken.push([item].into_iter().collect());
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::{Key, KeyHash, Limit, Rule};

    fn charge(who: u64, cost: u64) -> Charge {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 1_000_000,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let limit = Limit::new("l", &[rule], Key::parse(["ip"]).unwrap());
        let mut tag = KeyHash([0; 16]);
        tag.0[..8].copy_from_slice(&who.to_le_bytes());
        let item = LimitCheck {
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
        assert_eq!(debts.owed[0][0].cost, 3);
        drop(debts);
        let again = journal.take(64, 2_100_000, |_| true);
        assert_eq!(again.owed.len(), 1, "nobody knows that it was paid");
        again.paid();
        assert!(journal.take(64, 2_100_000, |_| true).owed.is_empty());
    }

    #[test]
    fn what_a_store_lost_is_owed_in_place_of_what_was_owed() {
        let journal = Journal::default();
        journal.add(&charge(1, 2), 1_000_000);
        assert!(journal.put(charge(1, 7).remove(0), 1_200_000));
        let debts = journal.take(64, 1_300_000, |_| true);
        assert_eq!(debts.owed[0][0].cost, 7);
        debts.paid();
    }

    #[test]
    fn what_a_store_seems_to_have_lost_is_owed_later_unless_it_was_reset() {
        let journal = Journal::default();
        for who in [1, 2] {
            journal.suspect(charge(who, 5).remove(0), 1_000_000);
        }
        journal.forget(charge(2, 5)[0].id());
        journal.ripen(1_000_000 + SUSPECT_FOR_US - 1);
        assert!(!journal.owes() && !journal.is_empty());
        journal.ripen(1_000_000 + SUSPECT_FOR_US);
        assert!(journal.owes());
        let debts = journal.take(64, 1_000_000 + SUSPECT_FOR_US, |_| true);
        assert_eq!((debts.owed.len(), debts.owed[0][0].cost), (1, 5));
        debts.paid();
        assert!(journal.is_empty());
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
