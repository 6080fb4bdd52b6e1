//! The store of a simulation: what `lua/decide.lua` and `lua/fleet.lua` do, by their twins in Rust.

use std::collections::BTreeMap;

use super::orders::Orders;
use crate::limit::calendar::Moment;
use crate::limit::decide::{Count, FirstPass};
use crate::limit::delay::{self, BookingCheck};
use crate::limit::{Algorithm, Charge, LimitCheck, Retry, Rule, Verdict};
use crate::store::batch::Operation;
use crate::store::recovery::{Greeting, Heartbeat, ProcessName};
use crate::store::redis::stepped::SentGroup;

/// How long a proxy that says nothing is counted.
const COUNTED_US: u64 = 5_000_000;
/// `lua/decide.lua`: how a group's part of the reply begins.
const REFUSED: u8 = 2;
const ASK_AGAIN: u8 = 4;
const BOOKED: u8 = 5;

/// Units that a holder of slots has, and until when.
#[derive(Clone, Copy, Debug)]
struct HolderSlots {
    units: u64,
    until_us: u64,
}

/// The memory of a store.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    counts: BTreeMap<u128, Count>,
    slots: BTreeMap<u128, BTreeMap<u64, HolderSlots>>,
    pub(super) began_us: u64,
    names: BTreeMap<ProcessName, u64>,
    clear: BTreeMap<ProcessName, u64>,
    pub(super) orders: Orders,
}

/// What a call did to one budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    pub(super) operation: Operation,
    pub(super) budget: u128,
    /// Units that are charged or given back.
    pub(super) units: u64,
    /// Units that count now.
    pub(super) used: u64,
}

/// How the server answers a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// It refuses to write.
    pub(super) refuses: bool,
    /// The part of a wait that it tells; 100 if it is honest.
    pub(super) wait_percent: u64,
}

/// The reply to a call, and what the call did.
#[derive(Clone, Debug, Default)]
pub(super) struct Called {
    pub(super) bytes: Vec<u8>,
    pub(super) effects: Vec<Effect>,
}

/// One call on its way through the memory.
struct Run<'c> {
    contents: &'c mut Contents,
    holder: u64,
    now_us: u64,
    manner: Manner,
    /// Slots that this call has granted: its holder cannot have counted them yet.
    granted: BTreeMap<u128, u64>,
    called: Called,
}

/// What one item says in the first pass.
#[derive(Clone, Copy)]
struct CheckedItem {
    retry: Retry,
    used: u64,
    first: FirstPass,
    asks_again: bool,
}

impl Contents {
    pub(super) fn new(now_us: u64) -> Contents {
        Contents {
            counts: BTreeMap::new(),
            slots: BTreeMap::new(),
            began_us: now_us,
            names: BTreeMap::new(),
            clear: BTreeMap::new(),
            orders: Orders::default(),
        }
    }

    pub(super) fn used(&self, item: &LimitCheck, now_us: u64) -> u64 {
        if item.window.rule.algorithm == Algorithm::Slots {
            return self.slots_of_others(item.id(), 0, now_us);
        }
        let at = moment(item, now_us, now_us);
        let count = self.counts.get(&item.id());
        count.map_or(0, |count| count.used(&item.window.rule, at))
    }

    /// How long a request would have to wait now, microseconds.
    pub(super) fn wait_us(&self, charge: &Charge, now_us: u64) -> u64 {
        let wait = |item: &LimitCheck| {
            let at = moment(item, now_us, now_us);
            let count = self.counts.get(&item.id())?;
            match count.first_pass(&item.window.rule, item.cost, at).retry {
                Retry::After(us) => Some(us),
                _ => None,
            }
        };
        charge.iter().filter_map(wait).max().unwrap_or(0)
    }

    fn slots_of_others(&self, budget: u128, holder: u64, now_us: u64) -> u64 {
        let holders = self.slots.get(&budget).into_iter().flatten();
        let others = holders.filter(|(name, slots)| **name != holder && slots.until_us > now_us);
        others.map(|(_, slots)| slots.units).sum()
    }

    /// What `lua/fleet.lua` does.
    pub(super) fn greet(
        &mut self,
        name: ProcessName,
        greeting: Greeting,
        now_us: u64,
    ) -> Heartbeat {
        self.names.insert(name, now_us);
        if greeting.is_clear && greeting.began_us == Some(self.began_us) {
            self.clear.insert(name, now_us);
        }
        let counts =
            |_: &ProcessName, at_us: &mut u64| *at_us + COUNTED_US >= now_us && *at_us <= now_us;
        self.names.retain(counts);
        self.clear.retain(counts);
        let clear = (self.clear.iter()).filter(|(_, at_us)| **at_us >= greeting.since_us);
        Heartbeat {
            size: self.names.len() as u32,
            place: self.names.range(..name).count() as u32,
            now_us,
            began_us: self.began_us,
            names: self.names.keys().copied().collect(),
            clear: clear.map(|(name, _)| *name).collect(),
        }
    }

    /// What `lua/decide.lua` does.
    pub(super) fn call(
        &mut self,
        groups: &[SentGroup],
        holder: u64,
        now_us: u64,
        manner: Manner,
    ) -> Called {
        let mut run = Run {
            contents: self,
            holder,
            now_us,
            manner,
            granted: BTreeMap::new(),
            called: Called::default(),
        };
        run.put(7, now_us);
        run.put(2, 0);
        for group in groups {
            match group.operation {
                Operation::Charge(count) => run.charge(group, count),
                Operation::Report => run.charge(group, 1),
                Operation::Book(longest_us) => run.book(group, longest_us),
                Operation::Refund | Operation::Settle | Operation::RefundOldest => {
                    run.change(group);
                }
            }
        }
        if manner.refuses {
            let text = b"OOM command not allowed when used memory > 'maxmemory'.";
            run.called.bytes.extend_from_slice(text);
        }
        run.called
    }
}

impl Run<'_> {
    fn put(&mut self, bytes: usize, number: u64) {
        self.called
            .bytes
            .extend_from_slice(&number.to_le_bytes()[..bytes]);
    }

    fn check_item(&mut self, group: &SentGroup, index: usize) -> CheckedItem {
        let item = &group.charge[index];
        let rule = item.window.rule;
        let at = moment(item, self.now_us, group.store_us);
        let count = self.contents.counts.entry(item.id());
        let count = count.or_insert_with(|| Count::new(rule.algorithm));
        let first = count.first_pass(&rule, item.cost, at);
        if rule.algorithm != Algorithm::Slots {
            return CheckedItem {
                retry: first.retry,
                used: first.used(),
                first,
                asks_again: first.asks_again(),
            };
        }
        let used = self.held_units(group, index) + self.others(item);
        let retry = match () {
            () if item.cost > rule.units => Retry::Never,
            () if used + item.cost <= rule.units => Retry::Now,
            () => Retry::Released,
        };
        CheckedItem {
            // What is held may be said at any time.
            retry: if item.cost == 0 { Retry::Now } else { retry },
            used,
            first,
            asks_again: false,
        }
    }

    fn others(&self, item: &LimitCheck) -> u64 {
        let (holder, now_us) = (self.holder, self.now_us);
        self.contents.slots_of_others(item.id(), holder, now_us)
    }

    /// The slots of the caller, with those that this call has granted.
    fn held_units(&self, group: &SentGroup, index: usize) -> u64 {
        let granted = self.granted.get(&group.charge[index].id());
        group.extra.get(index).copied().unwrap_or(0) + granted.copied().unwrap_or(0)
    }

    /// Second pass over an item. A log is stamped `ahead_us` later.
    fn settle(
        &mut self,
        group: &SentGroup,
        index: usize,
        looked: &CheckedItem,
        how: Settled,
    ) -> Verdict {
        let item = &group.charge[index];
        let rule = item.window.rule;
        let charged = how.is_charged && item.cost > 0;
        let verdict = match rule.algorithm {
            Algorithm::Slots => self.settle_slots(group, index, looked, how.is_charged),
            _ => match self.contents.counts.get_mut(&item.id()) {
                None => unreachable!("the first pass has made it"),
                Some(count) if charged && how.ahead_us > 0 => {
                    count.book(&rule, item.cost, &looked.first, how.ahead_us)
                }
                Some(count) => count.settle(&rule, item.cost, &looked.first, how.is_charged),
            },
        };
        self.called.effects.push(Effect {
            operation: group.operation,
            budget: item.id(),
            units: if charged { item.cost } else { 0 },
            used: verdict.used + if charged { item.cost } else { 0 },
        });
        verdict
    }

    fn settle_slots(
        &mut self,
        group: &SentGroup,
        index: usize,
        looked: &CheckedItem,
        is_charged: bool,
    ) -> Verdict {
        let item = &group.charge[index];
        if is_charged {
            let units = self.held_units(group, index) + item.cost;
            *self.granted.entry(item.id()).or_default() += item.cost;
            let holders = self.contents.slots.entry(item.id()).or_default();
            let until_us = self.now_us + item.window.rule.window_us;
            match units {
                0 => holders.remove(&self.holder),
                _ => holders.insert(self.holder, HolderSlots { units, until_us }),
            };
        }
        Verdict {
            used: looked.used,
            remaining: 0,
            retry: looked.retry,
            reset_us: 0,
            next_us: 0,
            stamp: 0,
        }
    }

    fn put_verdict(&mut self, verdict: &Verdict) {
        self.put(6, verdict.used);
        let retry = match verdict.retry {
            Retry::Now | Retry::Unasked => 0,
            Retry::After(us) => us * self.manner.wait_percent / 100,
            Retry::Booked(us) => us,
            Retry::Never => u64::MAX,
            Retry::Released => u64::MAX - 1,
        };
        self.put(7, retry);
        self.put(7, verdict.reset_us);
        self.put(7, verdict.next_us);
        self.put(6, verdict.stamp);
    }

    fn looks(&mut self, group: &SentGroup) -> Vec<CheckedItem> {
        (0..group.charge.len())
            .map(|index| self.check_item(group, index))
            .collect()
    }

    fn settle_all(
        &mut self,
        group: &SentGroup,
        looks: &[CheckedItem],
        how: Settled,
    ) -> Vec<Verdict> {
        let items = looks.iter().enumerate();
        items
            .map(|(index, looked)| self.settle(group, index, looked, how))
            .collect()
    }

    fn charge(&mut self, group: &SentGroup, count: u16) {
        let is_ahead = group.charge[0].window.rule.algorithm == Algorithm::Log;
        let ahead_us = match group.operation {
            Operation::Charge(_) if is_ahead => group.extra.first().copied().unwrap_or(0),
            _ => 0,
        };
        let (mut granted, mut allowed, mut denied) = (0_u16, None, None);
        while granted < count {
            let looks = self.looks(group);
            if looks.iter().any(|looked| looked.asks_again) {
                self.put(1, u64::from(ASK_AGAIN));
                return self.put(2, 0);
            }
            let is_allowed = looks.iter().all(|looked| looked.retry == Retry::Now);
            if is_allowed && self.manner.refuses {
                self.put(1, u64::from(REFUSED));
                return self.put(2, 0);
            }
            let how = Settled {
                is_charged: is_allowed,
                ahead_us,
            };
            let verdicts = self.settle_all(group, &looks, how);
            if !is_allowed {
                denied = Some(verdicts);
                break;
            }
            granted += 1;
            allowed.get_or_insert(verdicts);
        }
        self.put(1, u64::from(granted == count));
        self.put(2, u64::from(granted));
        for verdict in allowed.iter().flatten().chain(denied.iter().flatten()) {
            self.put_verdict(verdict);
        }
    }

    fn book(&mut self, group: &SentGroup, longest_us: u64) {
        let looks = self.looks(group);
        let is_allowed = looks.iter().all(|looked| looked.retry == Retry::Now);
        let counts = &self.contents.counts;
        let check = |(item, looked): (&LimitCheck, &CheckedItem)| {
            (item.id(), item.window.rule, looked.first)
        };
        let checks: Vec<(u128, Rule, FirstPass)> =
            group.charge.iter().zip(&looks).map(check).collect();
        let bookings = group.charge.iter().zip(&checks);
        let wait_us = delay::wait_us(bookings.map(|(item, (id, rule, first))| BookingCheck {
            count: counts.get(id),
            rule,
            cost: item.cost,
            first,
            delay: item.delay_within(longest_us),
        }));
        let has_slots_left = looks.iter().all(|looked| looked.retry != Retry::Released);
        let wait_us = wait_us.filter(|_| !is_allowed && has_slots_left);
        if (is_allowed || wait_us.is_some()) && self.manner.refuses {
            self.put(1, u64::from(REFUSED));
            return self.put(2, 0);
        }
        let how = Settled {
            is_charged: is_allowed || wait_us.is_some(),
            ahead_us: wait_us.unwrap_or(0),
        };
        let verdicts = self.settle_all(group, &looks, how);
        let kind = match wait_us {
            Some(_) => u64::from(BOOKED),
            None => u64::from(is_allowed),
        };
        self.put(1, kind);
        self.put(2, u64::from(how.is_charged));
        verdicts
            .iter()
            .for_each(|verdict| self.put_verdict(verdict));
    }

    /// Gives back, settles, or gives back the oldest.
    fn change(&mut self, group: &SentGroup) {
        if self.manner.refuses {
            return self.put(1, u64::from(REFUSED));
        }
        for (index, item) in group.charge.iter().enumerate() {
            let rule = item.window.rule;
            if rule.algorithm == Algorithm::Slots {
                continue;
            }
            let at = moment(item, self.now_us, group.store_us);
            let count = self.contents.counts.entry(item.id());
            let count = count.or_insert_with(|| Count::new(rule.algorithm));
            let before = count.used(&rule, at);
            match group.operation {
                Operation::Refund => {
                    let stamp = group.extra.get(index).copied().unwrap_or(0);
                    count.refund(&rule, item.cost, stamp, at);
                }
                Operation::RefundOldest => count.refund_oldest(&rule, item.cost, at),
                _ => count.charge_more(&rule, item.cost, at),
            }
            let used = count.used(&rule, at);
            self.called.effects.push(Effect {
                operation: group.operation,
                budget: item.id(),
                units: used.abs_diff(before),
                used,
            });
        }
        self.put(1, 1);
    }
}

/// How a group is settled in the second pass.
#[derive(Clone, Copy)]
struct Settled {
    is_charged: bool,
    ahead_us: u64,
}

/// The moment of a count. The caller brings the boundaries by the clock that it knows.
fn moment(item: &LimitCheck, now_us: u64, known_us: u64) -> Moment {
    Moment {
        now_us,
        boundaries: item.boundaries(known_us),
    }
}
