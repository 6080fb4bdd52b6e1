//! The units that this process owes the store. They were admitted here while the store was away, or
//! the store has lost them. They are charged when it is back, so that they are not admitted twice.
//!
//! Each key has the same count that the limit would keep: units that have left their window are not
//! owed. Bounded in keys; units that do not fit are forgotten. Time is an argument.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::is_slots;
use super::store_clock::StoreInstant;
use crate::limit::decide::Count;
use crate::limit::{Algorithm, Charge, CheckResult, Decided, LimitCheck};

/// Keys remembered, at most.
const KEYS: usize = 65_536;

/// How long units that the store seems to have lost wait before they are charged again,
/// microseconds. By then this process knows if an operator has reset their key.
const SUSPECT_FOR_US: u64 = 1_500_000;

#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<JournalState>);

#[derive(Debug, Default)]
struct JournalState {
    owed: HashMap<u128, (LimitCheck, Count)>,
    /// Units that the store seems to have lost, and when they are owed.
    suspected: HashMap<u128, (LimitCheck, u64)>,
    /// Payments on their way to the store: until it answers, their debts are still owed.
    payments: usize,
}

/// Debts on their way to the store. Unless they are [`Debts::paid`], they are still owed. If the
/// answer is lost, they are charged again: too little is admitted for a while, and never too much.
#[derive(Debug)]
pub(super) struct Debts<'j> {
    /// One item each: its cost is all that is owed, even beyond the limit.
    pub(super) owed: Vec<Charge>,
    journal: &'j Journal,
    at: StoreInstant,
}

impl Debts<'_> {
    /// The store has charged the debts at these places.
    pub(super) fn paid(mut self, is_paid: impl Fn(usize) -> bool) {
        let mut places = 0..;
        self.owed
            .retain(|_| places.next().is_some_and(|place| !is_paid(place)));
    }
}

impl Drop for Debts<'_> {
    fn drop(&mut self) {
        let mut state = self.journal.state();
        state.payments = state.payments.saturating_sub(1);
        for item in self.owed.drain(..).flatten() {
            state.add(&item, self.at);
        }
    }
}

impl Journal {
    fn state(&self) -> MutexGuard<'_, JournalState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what was admitted at an instant. Returns false where there was no room for it.
    pub(super) fn add(&self, charge: &Charge, at: impl Into<StoreInstant>) -> bool {
        let (mut state, at) = (self.state(), at.into());
        let mut fits = true;
        for item in charge {
            fits &= state.add(item, at);
        }
        fits
    }

    /// Gives back units of a charge that was [`add`](Journal::add)ed `age_us` ago: the cost of each
    /// item. A count has no charges, so its oldest units go. If the charge has left its window, or
    /// is being paid, its units stay: a debt that is too high never admits too much.
    pub(super) fn give_back(&self, less: Decided<'_>, age_us: u64, at: impl Into<StoreInstant>) {
        let (mut state, at) = (self.state(), at.into());
        for CheckResult { check, verdict } in less.results() {
            if let Some((item, count)) = state.owed.get_mut(&check.id()) {
                let (rule, now) = (item.window.rule, at.moment(item));
                let room_us = rule.window_us.saturating_sub(age_us);
                match rule.algorithm {
                    Algorithm::Calendar => count.refund(&rule, check.cost, verdict.stamp, now),
                    _ if room_us <= 2 * rule.precision_us => {}
                    _ => count.refund_oldest(&rule, check.cost, now),
                }
            }
        }
    }

    /// The store has lost all that it counted. The cost of `item` is what this process has
    /// admitted, and replaces what was owed.
    pub(super) fn put(&self, item: LimitCheck, at: impl Into<StoreInstant>) -> bool {
        let mut state = self.state();
        state.owed.remove(&item.id());
        state.suspected.remove(&item.id());
        state.add(&item, at.into())
    }

    /// The store seems to have lost the cost of `item`.
    pub(super) fn suspect(&self, item: LimitCheck, now_us: u64) {
        let suspected = &mut self.state().suspected;
        if suspected.len() < KEYS {
            suspected
                .entry(item.id())
                .or_insert((item, now_us + SUSPECT_FOR_US));
        }
    }

    /// Whether nothing is owed, no payment is unanswered, and no units seem to be lost.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        state.owed.is_empty() && state.suspected.is_empty() && state.payments == 0
    }

    /// Owes the units that have seemed to be lost for long enough.
    pub(super) fn ripen(&self, at: impl Into<StoreInstant>) {
        let (mut state, at) = (self.state(), at.into());
        if state.suspected.is_empty() {
            return;
        }
        let ripe = (state.suspected).extract_if(|_, (_, at_us)| *at_us <= at.now_us);
        let ripe: Vec<LimitCheck> = ripe.map(|(_, (item, _))| item).collect();
        for item in &ripe {
            state.add(item, at);
        }
    }

    pub(super) fn owes(&self) -> bool {
        !self.state().owed.is_empty()
    }

    /// Takes out up to `keys` debts that are `due`. Units that have left their window by then are
    /// not owed.
    pub(super) fn take(
        &self,
        keys: usize,
        at: impl Into<StoreInstant>,
        due: impl Fn(&LimitCheck) -> bool,
    ) -> Debts<'_> {
        let (mut state, at) = (self.state(), at.into());
        state.payments += 1;
        Debts {
            owed: state.take_out(keys, at, due),
            journal: self,
            at,
        }
    }

    /// Forgets what is owed for one budget ([`LimitCheck::id`]).
    pub(super) fn forget(&self, budget: u128) {
        let mut state = self.state();
        state.owed.remove(&budget);
        state.suspected.remove(&budget);
    }

    /// Forgets everything: the tags were made with another hash key.
    pub(super) fn clear(&self) {
        let mut state = self.state();
        state.owed.clear();
        state.suspected.clear();
    }
}

impl JournalState {
    fn add(&mut self, item: &LimitCheck, at: StoreInstant) -> bool {
        let rule = item.window.rule;
        if is_slots(item) || item.cost == 0 {
            // Holders report their slots by themselves.
            return true;
        }
        if self.owed.len() >= KEYS && !self.owed.contains_key(&item.id()) {
            return false;
        }
        let entry = self.owed.entry(item.id());
        let (_, count) = entry.or_insert_with(|| (item.clone(), Count::new(rule.algorithm)));
        count.charge_more(&rule, item.cost, at.moment(item));
        true
    }

    fn take_out(
        &mut self,
        keys: usize,
        at: StoreInstant,
        due: impl Fn(&LimitCheck) -> bool,
    ) -> Vec<Charge> {
        let mut taken = Vec::new();
        let due = self.owed.iter().filter(|(_, (item, _))| due(item));
        let ids: Vec<u128> = due.map(|(id, _)| *id).take(keys).collect();
        for id in ids {
            let Some((mut item, count)) = self.owed.remove(&id) else {
                continue;
            };
            item.cost = count.used(&item.window.rule, at.moment(&item));
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
    use crate::limit::{
        Calendar, CalendarUnit, Decision, Key, KeyHash, Limit, Retry, Rule, Verdict, Window,
    };

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
            anchor: None,
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
        assert_eq!(again.owed.len(), 1, "it may not have been paid");
        again.paid(|_| true);
        assert!(journal.take(64, 2_100_000, |_| true).owed.is_empty());
    }

    #[test]
    fn units_are_given_back_while_their_charge_is_in_its_window() {
        let give_back = |journal: &Journal, cost: u64, age_us: u64, now_us: u64| {
            let verdict = Verdict {
                used: 0,
                remaining: 0,
                retry: Retry::Now,
                reset_us: 0,
                next_us: 0,
                stamp: 0,
            };
            let decision = Decision {
                verdicts: [verdict].into_iter().collect(),
                ..Decision::allowed_uncharged(0)
            };
            let less = Decided {
                charge: &charge(1, cost),
                decision: &decision,
            };
            journal.give_back(less, age_us, now_us);
        };
        let journal = Journal::default();
        give_back(&journal, 5, 0, 1_000_000);
        assert!(!journal.owes());
        journal.add(&charge(1, 900), 1_000_000);
        journal.add(&charge(1, 900), 1_500_000);
        give_back(&journal, 898, 600_000, 1_600_000);
        let debts = journal.take(64, 1_600_000, |_| true);
        assert_eq!(debts.owed[0][0].cost, 902);
        drop(debts);
        // The first charge has left its window.
        give_back(&journal, 898, 2_400_000, 2_400_000);
        let debts = journal.take(64, 2_400_000, |_| true);
        assert_eq!(debts.owed[0][0].cost, 902);
        debts.paid(|_| true);
    }

    #[test]
    fn the_units_of_a_calendar_window_are_owed_until_it_ends_by_the_stores_clock() {
        // 2023-11-30T23:59:59Z.
        const NOVEMBER_US: u64 = 1_701_388_799_000_000;
        let journal = Journal::default();
        let unit = CalendarUnit::Month;
        let mut owed = charge(1, 6_000_000_000);
        let rule = Rule {
            algorithm: Algorithm::Calendar,
            window_us: unit.longest_us(),
            ..owed[0].window.rule
        };
        let calendar = Calendar::new(unit, Arc::default());
        owed[0].window = Arc::new(Window {
            calendar: Some(Arc::new(calendar)),
            rule,
            ..owed[0].window.deep_copy()
        });
        let at = |passed_us| StoreInstant {
            now_us: 5 + passed_us,
            store_us: NOVEMBER_US + passed_us,
        };
        assert!(journal.add(&owed, at(0)));
        assert!(journal.add(&owed, at(10)));
        let debts = journal.take(64, at(999_999), |_| true);
        assert_eq!(debts.owed[0][0].cost, 12_000_000_000);
        drop(debts);
        let debts = journal.take(64, at(1_000_000), |_| true);
        assert!(debts.owed.is_empty(), "December has begun");
    }

    #[test]
    fn what_a_store_lost_is_owed_in_place_of_what_was_owed() {
        let journal = Journal::default();
        journal.add(&charge(1, 2), 1_000_000);
        assert!(journal.put(charge(1, 7).remove(0), 1_200_000));
        let debts = journal.take(64, 1_300_000, |_| true);
        assert_eq!(debts.owed[0][0].cost, 7);
        debts.paid(|_| true);
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
        assert!(!journal.owes() && !journal.is_empty(), "not paid yet");
        debts.paid(|_| true);
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
