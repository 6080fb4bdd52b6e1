//! Units of a log that are given back: those of one charge, or the oldest ones.

use super::{AgedLog, Log, MAX_REFUND_ENTRIES, Ring, STAMPS, wrapped};
use crate::limit::Rule;

impl Log {
    /// Refunds up to `cost` units of the entry stamped `stamp` (modulo 2^48), by lowering all
    /// totals from it on. Nothing happens if the entry has expired, or if more than
    /// `MAX_REFUND_ENTRIES` entries came since.
    pub fn refund(&mut self, aged: &AgedLog, rule: &Rule, cost: u64, stamp: u64) {
        match self.own_rule(rule) {
            None => self.refund_by(aged, rule, cost, stamp),
            Some(own) => self.refund_by(aged, &own, cost, stamp),
        }
    }

    fn refund_by(&mut self, aged: &AgedLog, rule: &Rule, cost: u64, stamp: u64) {
        let age = self.newest.wrapping_sub(stamp) & (STAMPS - 1);
        let Some(stamp) = self.newest.checked_sub(age).filter(|_| aged.used > 0) else {
            return;
        };
        if stamp < self.entry(rule, aged.skip).0 {
            return;
        }
        let place = self.first_where(aged.skip, |i| self.entry(rule, i).0 >= stamp);
        if self.entry(rule, place).0 != stamp || self.count - place > MAX_REFUND_ENTRIES {
            return;
        }
        let before = match place {
            place if place == aged.skip => aged.base,
            place => self.entry(rule, place - 1).1,
        };
        let units = self.entry(rule, place).1.wrapping_sub(before);
        let taken = units.min(u32::try_from(cost).unwrap_or(u32::MAX));
        if taken == 0 {
            return;
        }
        for i in place..self.count {
            let (stamp, total) = self.entry(rule, i);
            self.put(rule, i, stamp, total.wrapping_sub(taken));
        }
        self.total = self.total.wrapping_sub(taken);
        self.forget_expired(aged, rule);
        // The last entry must have units: a wait for an empty one would be too long.
        while let Some(last) = self.count.checked_sub(1) {
            let before = last.checked_sub(1).map(|before| self.entry(rule, before));
            if before.map_or(self.base, |(_, total)| total) != self.total {
                break;
            }
            self.count = last;
            self.newest = before.map_or(self.newest, |(stamp, _)| stamp);
        }
    }

    /// Refunds up to `cost` of the units that count, oldest first. So the log counts at least what
    /// it would count if the refunded request were another one that still counts.
    pub fn refund_oldest(&mut self, aged: &AgedLog, rule: &Rule, cost: u64) {
        match self.own_rule(rule) {
            None => self.refund_oldest_by(aged, rule, cost),
            Some(own) => self.refund_oldest_by(aged, &own, cost),
        }
    }

    fn refund_oldest_by(&mut self, aged: &AgedLog, rule: &Rule, cost: u64) {
        let taken = u32::try_from(aged.used.min(cost)).unwrap_or(u32::MAX);
        if taken == 0 {
            return;
        }
        self.forget_expired(aged, rule);
        self.base = aged.base.wrapping_add(taken);
        if self.base == self.total {
            self.count = 0;
            self.ring = Ring::default();
            return;
        }
        // The last entry has units left, since fewer than all are taken.
        let through = |i| self.entry(rule, i).1.wrapping_sub(aged.base);
        let emptied = self.first_where(0, |i| through(i) > taken);
        self.head = wrapped(self.head, emptied, self.capacity(rule));
        self.count -= emptied;
    }
}
