//! Changes of counts after a decision. Each item is changed by itself.

use super::{Memory, id};
use crate::limit::calendar::Moment;
use crate::limit::decide::Count;
use crate::limit::{Charge, Decision, LimitCheck, Rule};
use crate::store::is_slots;
use crate::store::store_clock::CheckTime;

impl Memory {
    /// Frees the slots that an admitted `charge` holds; its other items do not change.
    pub fn release(&self, charge: &Charge) {
        for item in charge.iter().filter(|item| is_slots(item)) {
            self.change(item, false, |count, rule, at| {
                count.refund(rule, item.cost, 0, at);
            });
        }
    }

    /// Counts the slots that another store granted to `charge`, even above the limit.
    pub fn hold(&self, charge: &Charge) {
        for item in charge.iter().filter(|item| is_slots(item) && item.cost > 0) {
            self.change(item, true, |count, rule, at| {
                let look = count.first_pass(rule, item.cost, at);
                count.settle(rule, item.cost, &look, true);
            });
        }
    }

    /// Takes back what `decision` has charged: the cost of each item, which may be less by now.
    /// Slots are freed by [`Memory::release`] instead.
    pub fn refund(&self, charge: &Charge, decision: &Decision) {
        let charged = charge.iter().zip(&decision.verdicts);
        for (item, verdict) in charged.filter(|(item, _)| !is_slots(item) && item.cost > 0) {
            self.change(item, false, |count, rule, at| {
                count.refund(rule, item.cost, verdict.stamp, at);
            });
        }
    }

    /// Takes back units of each item, oldest first: its cost, and no more than counts. Slots do not
    /// change.
    pub fn refund_oldest(&self, charge: &Charge) {
        for item in charge
            .iter()
            .filter(|item| !is_slots(item) && item.cost > 0)
        {
            self.change(item, false, |count, rule, at| {
                count.refund_oldest(rule, item.cost, at);
            });
        }
    }

    /// Charges the cost of each item, even above the limit: the request cost more than was charged.
    pub fn charge_more(&self, charge: &Charge) {
        for item in charge
            .iter()
            .filter(|item| !is_slots(item) && item.cost > 0)
        {
            self.change(item, true, |count, rule, at| {
                count.charge_more(rule, item.cost, at);
            });
        }
    }

    /// Changes an item's count. Where nothing is counted yet, `inserts` makes a count first; else
    /// nothing changes.
    fn change(
        &self,
        item: &LimitCheck,
        inserts: bool,
        change: impl FnOnce(&mut Count, &Rule, Moment),
    ) {
        let id = id(item);
        let mut shard = self.lock(self.shard_of(id));
        let rule = self.fleet.share(item.window.rule);
        let place = match shard.find(id) {
            Some(place) => place,
            None if inserts => shard.insert(item, &rule, &self.bounds),
            None => return,
        };
        let CheckTime { moment, ahead_us } = self.check_time(item, self.clock.now_us());
        shard.change(place, &self.bounds, |entry| {
            change(&mut entry.count, &rule, moment);
            entry.set_empty_at(&rule, ahead_us);
            let is_full = entry.count.used(&rule, moment) >= rule.units;
            ((), is_full)
        });
    }
}
