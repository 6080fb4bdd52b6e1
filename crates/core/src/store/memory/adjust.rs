//! What happens to counts after a decision: slots are held and let go of, units given back or
//! charged on top. Each item by itself: nothing here is part of a verdict.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::bounds::Bounds;
use super::{Memory, Shard, id};
use crate::limit::decide::Count;
use crate::limit::{Algorithm, Charge, Decision, LimitCheck, Rule};

impl Memory {
    /// Lets go of the slots that an admitted `charge` holds; its other items stay as they are.
    pub fn release(&self, charge: &Charge) {
        for item in charge.iter().filter(|item| is_held(item)) {
            self.change(item, |count, rule, now_us| {
                count.give_back(rule, item.cost, 0, now_us);
            });
        }
    }

    /// Counts the slots that `charge` holds by another store's word, whatever the limit says.
    pub fn hold(&self, charge: &Charge) {
        for item in charge.iter().filter(|item| is_held(item) && item.cost > 0) {
            self.add(item, |count, rule, now_us| {
                let look = count.look(rule, item.cost, now_us);
                count.settle(rule, item.cost, &look, true);
            });
        }
    }

    /// Takes back what `decision`, which allowed `charge`, has charged: the cost of each item,
    /// which may be less by now. Slots are let go of elsewhere.
    pub fn give_back(&self, charge: &Charge, decision: &Decision) {
        let charged = charge.iter().zip(&decision.verdicts);
        for (item, verdict) in charged.filter(|(item, _)| !is_held(item) && item.cost > 0) {
            self.change(item, |count, rule, now_us| {
                count.give_back(rule, item.cost, verdict.stamp, now_us);
            });
        }
    }

    /// Charges the cost of each item whatever is counted already: what was granted turned out to
    /// cost more.
    pub fn charge_more(&self, charge: &Charge) {
        for item in charge.iter().filter(|item| !is_held(item) && item.cost > 0) {
            self.add(item, |count, rule, now_us| {
                count.charge_more(rule, item.cost, now_us);
            });
        }
    }

    /// Changes what is counted, if anything is.
    fn change(&self, item: &LimitCheck, change: impl FnOnce(&mut Count, &Rule, u64)) {
        self.at(item, |shard, rule, now_us| {
            if let Some(place) = shard.find(id(item)) {
                shard.change(place, (rule, now_us), &self.bounds, change);
            }
        });
    }

    /// The same, where nothing is counted yet as well.
    fn add(&self, item: &LimitCheck, change: impl FnOnce(&mut Count, &Rule, u64)) {
        self.at(item, |shard, rule, now_us| {
            let place = match shard.find(id(item)) {
                Some(place) => place,
                None => shard.insert(item, id(item), rule, &self.bounds),
            };
            shard.change(place, (rule, now_us), &self.bounds, change);
        });
    }

    fn at(&self, item: &LimitCheck, work: impl FnOnce(&mut Shard, &Rule, u64)) {
        let shard = self.shards[self.shard_of(id(item))].lock();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        let rule = self.fleet.share(item.window.rule);
        work(&mut shard, &rule, self.clock.now_us());
    }
}

impl Shard {
    fn change(
        &mut self,
        place: usize,
        (rule, now_us): (&Rule, u64),
        bounds: &Bounds,
        change: impl FnOnce(&mut Count, &Rule, u64),
    ) {
        // Of slots nobody is told when they are free.
        if rule.algorithm != Algorithm::Slots {
            bounds.epoch.fetch_add(1, Ordering::Release);
        }
        let entry = &mut self.entries[place];
        let before = entry.count.heap_bytes();
        change(&mut entry.count, rule, now_us);
        let is_full = entry.count.used(rule, now_us) >= rule.units;
        entry.empty_at_us = entry.count.empty_at_us(rule);
        let after = entry.count.heap_bytes();
        let (window, standing) = (entry.window(), entry.standing_if(is_full));
        self.stand(place, standing, bounds);
        bounds.resize(window, before, after);
    }
}

fn is_held(item: &LimitCheck) -> bool {
    item.window.rule.algorithm == Algorithm::Slots
}
