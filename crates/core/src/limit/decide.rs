//! One decision over several limits, all or nothing. Twin of `lua/decide.lua`.
//!
//! Two passes: [`Count::first_pass`] asks every limit, and [`Count::settle`] charges all of them if
//! each allowed the request. A denial charges nothing, and a cost of 0 changes nothing. Pure: the
//! counts and the time are arguments.

use super::calendar::{AgedCalendar, CalendarCount, Moment};
use super::counter::{self, Counter};
use super::log::{self, Log};
use super::{Algorithm, Retry, Rule, Verdict};

#[derive(Clone, Debug)]
pub enum Count {
    Log(Log),
    Counter(Counter),
    Slots(Slots),
    Calendar(CalendarCount),
}

/// The answer of one limit before the other limits are known.
#[derive(Clone, Copy, Debug)]
pub struct FirstPass {
    /// When the limit would let the request pass. The request is allowed if all limits say
    /// [`Retry::Now`].
    pub retry: Retry,
    aged: Aged,
}

impl FirstPass {
    /// Whether the clock is before the last admission. Then even a denial changes the count.
    pub fn stepped(&self) -> bool {
        self.aged.stepped()
    }

    pub fn used(&self) -> u64 {
        self.aged.used()
    }

    /// Whether the boundaries of a calendar window do not fit the clock. Then nothing is decided:
    /// the caller must ask again, with other boundaries.
    pub fn asks_again(&self) -> bool {
        matches!(&self.aged, Aged::Calendar(aged) if aged.unfit)
    }

    /// Time until a calendar window ends, microseconds; `None` for other counts.
    pub fn left_us(&self) -> Option<u64> {
        match &self.aged {
            Aged::Calendar(aged) => Some(aged.left_us()),
            _ => None,
        }
    }
}

/// A count as it stands at one instant.
#[derive(Clone, Copy, Debug)]
enum Aged {
    Log(log::AgedLog),
    Counter(counter::AgedCounter),
    Slots(Slots),
    Calendar(AgedCalendar),
}

impl Aged {
    fn used(&self) -> u64 {
        match self {
            Aged::Log(aged) => aged.used,
            Aged::Counter(aged) => aged.used,
            Aged::Slots(slots) => slots.used(),
            Aged::Calendar(aged) => aged.used,
        }
    }

    fn stepped(&self) -> bool {
        match self {
            Aged::Log(aged) => aged.stepped,
            Aged::Counter(aged) => aged.stepped,
            Aged::Slots(_) => false,
            Aged::Calendar(aged) => aged.stepped,
        }
    }
}

impl Count {
    /// An empty count, without heap memory.
    pub fn new(algorithm: Algorithm) -> Count {
        match algorithm {
            Algorithm::Log => Count::Log(Log::default()),
            Algorithm::Counter => Count::Counter(Counter::default()),
            Algorithm::Slots => Count::Slots(Slots::default()),
            Algorithm::Calendar => Count::Calendar(CalendarCount::default()),
        }
    }

    pub fn algorithm(&self) -> Algorithm {
        match self {
            Count::Log(_) => Algorithm::Log,
            Count::Counter(_) => Algorithm::Counter,
            Count::Slots(_) => Algorithm::Slots,
            Count::Calendar(_) => Algorithm::Calendar,
        }
    }

    /// First pass: whether `cost` units would pass `rule` at a moment. A time in microseconds is
    /// one for all but calendar windows.
    pub fn first_pass(&self, rule: &Rule, cost: u64, at: impl Into<Moment>) -> FirstPass {
        self.first_pass_at(rule, cost, &at.into())
    }

    pub fn first_pass_at(&self, rule: &Rule, cost: u64, at: &Moment) -> FirstPass {
        let aged = self.age(rule, at);
        let retry = if matches!(&aged, Aged::Calendar(aged) if aged.unfit) {
            Retry::Unasked
        } else if cost > rule.units {
            Retry::Never
        } else if aged.used() + cost <= rule.units {
            Retry::Now
        } else if matches!(aged, Aged::Slots(_)) {
            Retry::Released
        } else {
            Retry::After(self.wait(&aged, rule, rule.units - cost))
        };
        FirstPass { retry, aged }
    }

    pub fn used(&self, rule: &Rule, at: impl Into<Moment>) -> u64 {
        self.age(rule, &at.into()).used()
    }

    /// The units of requests that are held. `first` is the first pass of this count at the same
    /// instant.
    pub fn held_units(&self, rule: &Rule, first: &FirstPass) -> u64 {
        match (self, &first.aged) {
            (Count::Log(log), Aged::Log(aged)) => log.held_units(aged, rule),
            _ => 0,
        }
    }

    fn age(&self, rule: &Rule, at: &Moment) -> Aged {
        match self {
            Count::Log(log) => Aged::Log(log.age(rule, at.now_us)),
            Count::Counter(counter) => Aged::Counter(counter.age(rule, at.now_us)),
            Count::Slots(slots) => Aged::Slots(*slots),
            Count::Calendar(count) => Aged::Calendar(count.age(rule, at)),
        }
    }

    /// Second pass: charges `cost` if the whole request is allowed. `first` is the first pass of
    /// this count at the same instant.
    pub fn settle(&mut self, rule: &Rule, cost: u64, first: &FirstPass, allowed: bool) -> Verdict {
        let aged = self.commit(rule, cost, first, allowed);
        self.verdict(rule, cost, first, &aged)
    }

    /// Second pass over a request that is held for `wait_us`: it is charged, and a log stamps it
    /// with the time at which it will be forwarded.
    pub fn book(&mut self, rule: &Rule, cost: u64, first: &FirstPass, wait_us: u64) -> Verdict {
        let mut booked = *first;
        if let Aged::Log(aged) = first.aged {
            booked.aged = Aged::Log(aged.ahead(wait_us));
        }
        if let Retry::After(us) = first.retry {
            booked.retry = Retry::Booked(us);
        }
        let aged = self.commit(rule, cost, &booked, true);
        self.verdict(rule, cost, &booked, &aged)
    }

    fn verdict(&self, rule: &Rule, cost: u64, first: &FirstPass, aged: &Aged) -> Verdict {
        let used = aged.used();
        let reset_us = match aged {
            Aged::Calendar(aged) => aged.left_us(),
            _ => self.wait(aged, rule, 0),
        };
        let next_us = match (used, first.retry) {
            (0, _) => 0,
            (1, _) => reset_us,
            // A full limit that was asked for one more unit waits for just that unit.
            (used, Retry::After(us)) if cost > 0 && used + cost == rule.units + 1 => us,
            // Of what is counted above the limit nothing becomes free.
            (used, _) => self.wait(aged, rule, used.min(rule.units).saturating_sub(1)),
        };
        Verdict {
            used: first.aged.used(),
            remaining: rule.units.saturating_sub(used),
            retry: first.retry,
            reset_us,
            next_us,
            stamp: self.last_stamp(rule, aged),
        }
    }

    /// Second pass without a verdict. Returns the charge's stamp.
    pub fn settle_quietly(
        &mut self,
        rule: &Rule,
        cost: u64,
        first: &FirstPass,
        allowed: bool,
    ) -> u64 {
        let aged = self.commit(rule, cost, first, allowed);
        self.last_stamp(rule, &aged)
    }

    fn commit(&mut self, rule: &Rule, cost: u64, first: &FirstPass, allowed: bool) -> Aged {
        let aged = first.aged;
        if cost > 0 && allowed {
            return self.charge(rule, cost, &aged);
        }
        if cost > 0 && aged.stepped() {
            match (&mut *self, &aged) {
                (Count::Log(log), Aged::Log(aged)) => log.keep_ages(aged),
                (Count::Counter(counter), Aged::Counter(aged)) => counter.keep_ages(aged),
                (Count::Calendar(count), Aged::Calendar(aged)) => count.keep_ages(aged),
                _ => {}
            }
        }
        aged
    }

    fn charge(&mut self, rule: &Rule, cost: u64, aged: &Aged) -> Aged {
        match (&mut *self, aged) {
            (Count::Log(log), Aged::Log(aged)) => Aged::Log(log.charge(aged, rule, cost)),
            (Count::Counter(count), Aged::Counter(aged)) => Aged::Counter(count.charge(aged, cost)),
            (Count::Slots(slots), _) => {
                slots.charge(cost);
                Aged::Slots(*slots)
            }
            (Count::Calendar(count), Aged::Calendar(aged)) => {
                Aged::Calendar(count.charge(aged, cost))
            }
            _ => *aged,
        }
    }

    /// Charges `cost` units even above the limit: an admitted request turned out to cost more.
    pub fn charge_more(&mut self, rule: &Rule, cost: u64, at: impl Into<Moment>) {
        let aged = self.age(rule, &at.into());
        let cost = cost.min(self.algorithm().max_count() - aged.used());
        if cost > 0 && !matches!(aged, Aged::Slots(_)) {
            self.charge(rule, cost, &aged);
        }
    }

    /// Refunds up to `cost` units of the charge that `stamp` names, unless the charge has expired.
    pub fn refund(&mut self, rule: &Rule, cost: u64, stamp: u64, at: impl Into<Moment>) {
        match (self.age(rule, &at.into()), &mut *self) {
            (Aged::Log(aged), Count::Log(log)) => log.refund(&aged, rule, cost, stamp),
            (Aged::Counter(aged), Count::Counter(count)) => {
                count.refund(&aged, rule, cost, stamp);
            }
            (_, Count::Slots(slots)) => slots.refund(cost),
            (_, Count::Calendar(count)) => count.refund(cost, stamp),
            _ => {}
        }
    }

    /// Refunds up to `cost` of the units that count, oldest first. Slots have no age: they do not
    /// change.
    pub fn refund_oldest(&mut self, rule: &Rule, cost: u64, at: impl Into<Moment>) {
        match (self.age(rule, &at.into()), self) {
            (Aged::Log(aged), Count::Log(log)) => log.refund_oldest(&aged, rule, cost),
            (Aged::Counter(aged), Count::Counter(count)) => count.refund_oldest(&aged, cost),
            (Aged::Calendar(aged), Count::Calendar(count)) => count.refund_oldest(&aged, cost),
            _ => {}
        }
    }

    /// The units of the calendar window that ends at `end_us`, if it is the last one of this count.
    pub fn used_until(&self, end_us: u64) -> u64 {
        match self {
            Count::Calendar(count) if count.empty_at_us() == end_us => count.units(),
            _ => 0,
        }
    }

    /// The clock's time from which nothing is counted any more, microseconds.
    pub fn empty_at_us(&self, rule: &Rule) -> u64 {
        match self {
            Count::Log(log) => log.empty_at_us(rule),
            Count::Counter(counter) => counter.empty_at_us(rule),
            Count::Slots(slots) if slots.used() == 0 => 0,
            Count::Slots(_) => u64::MAX,
            Count::Calendar(count) => count.empty_at_us(),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Count::Log(log) => log.heap_bytes(),
            Count::Counter(_) | Count::Slots(_) | Count::Calendar(_) => 0,
        }
    }

    /// Names the last charge, so that it can be refunded.
    fn last_stamp(&self, rule: &Rule, aged: &Aged) -> u64 {
        match (self, aged) {
            (Count::Log(log), _) => log.last_stamp(),
            (_, Aged::Counter(aged)) => aged.last_stamp(rule),
            (_, Aged::Calendar(aged)) => aged.last_stamp(),
            _ => 0,
        }
    }

    /// Microseconds until at most `room` units are counted if nothing else is admitted.
    fn wait(&self, aged: &Aged, rule: &Rule, room: u64) -> u64 {
        match (self, aged) {
            (Count::Log(log), Aged::Log(aged)) => log.wait(aged, rule, room),
            (Count::Counter(_), Aged::Counter(aged)) => aged.wait(rule, room),
            (_, Aged::Calendar(aged)) => aged.wait(room),
            _ => 0,
        }
    }
}
/// Units held by one key: concurrent requests, as one process counts them. Twin of `lua/slots.lua`,
/// which adds the counts of other processes, and leases. A unit is held until it is given back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots {
    held: u32,
}

impl Slots {
    pub fn used(&self) -> u64 {
        u64::from(self.held)
    }

    pub fn charge(&mut self, cost: u64) {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.held = self.held.saturating_add(cost);
    }

    pub fn refund(&mut self, cost: u64) {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.held = self.held.saturating_sub(cost);
    }
}
