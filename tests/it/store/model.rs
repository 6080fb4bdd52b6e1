//! A model of the limits that knows nothing of the store, and beside it the twin in Rust.

use std::collections::HashMap;

use tidegate::limit::calendar::Moment;
use tidegate::limit::decide::{Count, FirstPass};
use tidegate::limit::delay::{BookingCheck, wait_us};
use tidegate::limit::{Algorithm, Charge, Decision, LimitCheck, Retry, Rule, Verdict};
use tidegate::store::batch::Operation;

/// The definitions, executed: every admission is kept, and time is searched.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    admitted: Vec<(u64, u64)>,
    shift_us: u64,
    last_us: u64,
    /// The precision that admissions which still count were stamped in.
    kept_us: u64,
    start_us: Option<u64>,
    previous: u64,
    current: u64,
    /// Every calendar window that was opened, in that order.
    windows: Vec<CalendarWindow>,
}

#[derive(Clone, Copy, Debug)]
struct CalendarWindow {
    end_us: u64,
    units: u64,
}

/// The instant of a decision: the server's clock, and what the asking proxy takes it for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) now_us: u64,
    pub(super) idea_us: u64,
}

impl From<u64> for Told {
    /// A proxy that knows the server's clock.
    fn from(now_us: u64) -> Told {
        Told {
            now_us,
            idea_us: now_us,
        }
    }
}

impl Told {
    fn moment(self, item: &LimitCheck) -> Moment {
        Moment {
            now_us: self.now_us,
            boundaries: item.boundaries(self.idea_us),
        }
    }
}

impl Model {
    /// Moves to `now`; whether the clock had stepped back. Own time comes with it. `None` if no
    /// window of the calendar can be opened.
    fn age(&mut self, rule: &Rule, at: Moment) -> Option<(bool, u64)> {
        let now_us = at.now_us;
        Some(match rule.algorithm {
            Algorithm::Log => {
                let own_us = now_us + self.shift_us;
                if own_us >= self.last_us {
                    return Some((false, own_us));
                }
                self.shift_us = self.last_us - now_us;
                (true, self.last_us)
            }
            Algorithm::Counter => {
                let start_us = now_us / rule.window_us * rule.window_us;
                let mut stepped = false;
                match self.start_us {
                    Some(old) if start_us < old => {
                        (self.previous, self.current) = (0, self.previous + self.current);
                        stepped = true;
                    }
                    Some(old) if start_us == old + rule.window_us => {
                        (self.previous, self.current) = (self.current, 0);
                    }
                    Some(old) if start_us == old => {}
                    _ => (self.previous, self.current) = (0, 0),
                }
                // Numbers that Lua holds exactly: all of them, but after a merge of two full counts.
                let most = ((1 << 53) - 1) / rule.window_us;
                (self.previous, self.current) = (self.previous.min(most), self.current.min(most));
                self.start_us = Some(start_us);
                (stepped, now_us)
            }
            Algorithm::Slots => (false, now_us),
            Algorithm::Calendar => (self.open_window(rule, at)?, now_us),
        })
    }

    /// Opens a calendar window if none is under way; whether the clock had stepped back by more than
    /// a window. Then the units stay, until the end of the window that holds the clock.
    fn open_window(&mut self, rule: &Rule, at: Moment) -> Option<bool> {
        let is_near = |end_us: u64| end_us > at.now_us && end_us - at.now_us <= rule.window_us;
        let last = self.windows.last_mut();
        if last.as_ref().is_some_and(|last| is_near(last.end_us)) {
            return Some(false);
        }
        let ends = at.boundaries.unwrap();
        let mut ends = [ends.end_us, ends.next_end_us].into_iter();
        let end_us = ends.find(|end_us| *end_us > at.now_us)?;
        if !is_near(end_us) {
            return None;
        }
        let window = CalendarWindow { end_us, units: 0 };
        match last.filter(|last| last.end_us > at.now_us) {
            Some(last) => {
                last.end_us = end_us;
                return Some(true);
            }
            None => self.windows.push(window),
        }
        Some(false)
    }

    /// The units of the calendar window that is under way.
    fn calendar_used(&self, now_us: u64) -> u64 {
        let last = self.windows.last();
        let last = last.filter(|last| last.end_us > now_us);
        last.map_or(0, |last| last.units)
    }

    /// Time until the window that is under way ends.
    fn calendar_left(&self, now_us: u64) -> u64 {
        self.windows.last().unwrap().end_us - now_us
    }

    /// Gives back in the last two windows only: the server knows no other.
    fn calendar_give_back(&mut self, cost: u64, stamp: u64) {
        let is_named = |one: &&mut CalendarWindow| one.end_us % (1 << 48) == stamp;
        if let Some(window) = self.windows.iter_mut().rev().take(2).find(is_named) {
            window.units = window.units.saturating_sub(cost);
        }
    }

    /// The rule that holds for what still counts: a log keeps its precision until it is empty, or
    /// is charged by a coarser rule. What has expired in its own precision is gone.
    fn kept(&mut self, rule: &Rule, own_us: u64) -> Rule {
        let kept = Rule {
            precision_us: self.kept_us.max(1),
            ..*rule
        };
        let counts = rule.algorithm == Algorithm::Log && self.live(&kept, own_us).count() > 0;
        if counts {
            return kept;
        }
        self.admitted.clear();
        *rule
    }

    fn used(&self, rule: &Rule, own_us: u64) -> u64 {
        if rule.algorithm == Algorithm::Log {
            return self.live(rule, own_us).map(|(_, cost)| cost).sum();
        }
        if rule.algorithm == Algorithm::Calendar {
            return self.calendar_used(own_us);
        }
        let start_us = self.start_us.unwrap_or_default();
        let windows = (own_us - start_us) / rule.window_us;
        let (previous, current) = match windows {
            0 => (self.previous, self.current),
            1 => (self.current, 0),
            _ => (0, 0),
        };
        let left_us = u128::from(rule.window_us - own_us % rule.window_us);
        let share = (u128::from(previous) * left_us).div_ceil(u128::from(rule.window_us));
        current + u64::try_from(share).unwrap()
    }

    /// The smallest wait after which no more than `room` units count, by bisection.
    fn wait(&self, rule: &Rule, own_us: u64, room: u64) -> u64 {
        // Beyond every request that is held.
        let longest_us = 3 * rule.window_us + rule.precision_us + 10_000_000;
        let (mut low, mut high) = (0, longest_us);
        if self.used(rule, own_us) <= room {
            return 0;
        }
        assert!(self.used(rule, own_us + high) <= room);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.used(rule, own_us + middle) <= room {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// Units of requests that are held.
    fn held(&self, rule: &Rule, own_us: u64) -> u64 {
        let now_us = own_us.div_ceil(rule.precision_us) * rule.precision_us;
        let live = self.live(rule, own_us);
        live.filter(|(stamp_us, _)| *stamp_us > now_us)
            .map(|(_, cost)| cost)
            .sum()
    }

    /// Admits units, stamped `ahead_us` later; no stamp is before one that still counts.
    fn admit(&mut self, rule: &Rule, own_us: u64, cost: u64, ahead_us: u64) {
        match rule.algorithm {
            Algorithm::Log => {
                let kept = self.kept(rule, own_us);
                let precision_us = kept.precision_us.max(rule.precision_us);
                let up = |us: u64| us.div_ceil(precision_us) * precision_us;
                if precision_us > kept.precision_us {
                    let live = self.live(&kept, own_us);
                    self.admitted = live.map(|(stamp, cost)| (up(stamp), cost)).collect();
                }
                self.kept_us = precision_us;
                let rule = &Rule {
                    precision_us,
                    ..*rule
                };
                let live = self.live(rule, own_us).map(|(stamp, _)| stamp).max();
                let stamp_us = up(own_us + ahead_us).max(live.unwrap_or(0));
                self.admitted.push((stamp_us, cost));
                self.last_us = own_us;
                // What is older than two windows counts nowhere.
                self.admitted
                    .retain(|(stamp, _)| stamp + 2 * rule.window_us > own_us);
            }
            Algorithm::Counter => self.current += cost,
            Algorithm::Slots => {}
            Algorithm::Calendar => self.windows.last_mut().unwrap().units += cost,
        }
    }

    /// Units that count.
    fn live(&self, rule: &Rule, own_us: u64) -> impl Iterator<Item = (u64, u64)> {
        let floor_us = own_us / rule.precision_us * rule.precision_us;
        let edge_us = floor_us.saturating_sub(rule.window_us);
        let live = move |(stamp_us, cost): &(u64, u64)| *stamp_us > edge_us && *cost > 0;
        self.admitted.iter().copied().filter(live)
    }

    /// What names an admission made now.
    fn stamp(&self, rule: &Rule, own_us: u64) -> u64 {
        let named = match rule.algorithm {
            Algorithm::Log => {
                let newest = self.live(rule, own_us).map(|(stamp, _)| stamp).max();
                newest.unwrap_or(0) / rule.precision_us
            }
            Algorithm::Counter => own_us / rule.window_us,
            Algorithm::Slots => 0,
            Algorithm::Calendar => self.windows.last().unwrap().end_us,
        };
        named % (1 << 48)
    }

    /// Takes back up to `cost` of what `stamp` names, if it still counts.
    fn refund(&mut self, rule: &Rule, own_us: u64, cost: u64, stamp: u64) {
        let mut left = cost;
        match rule.algorithm {
            Algorithm::Log => {
                let live: Vec<(u64, u64)> = self.live(rule, own_us).collect();
                let named = |us: u64| us / rule.precision_us % (1 << 48) == stamp;
                for entry in &mut self.admitted {
                    if named(entry.0) && live.contains(entry) {
                        let taken = left.min(entry.1);
                        (left, entry.1) = (left - taken, entry.1 - taken);
                    }
                }
            }
            Algorithm::Counter => match ((own_us / rule.window_us).checked_sub(stamp), self) {
                (Some(0), model) => model.current = model.current.saturating_sub(cost),
                (Some(1), model) => model.previous = model.previous.saturating_sub(cost),
                _ => {}
            },
            Algorithm::Slots => {}
            Algorithm::Calendar => self.calendar_give_back(cost, stamp),
        }
    }

    /// Forgets what has expired, for good: it does not count again if the clock steps back.
    fn forget_expired(&mut self, rule: &Rule, own_us: u64) {
        if rule.algorithm == Algorithm::Log {
            self.admitted = self.live(rule, own_us).collect();
        }
    }

    /// Takes back up to `cost` of all units, the first that was admitted first.
    fn refund_oldest(&mut self, rule: &Rule, cost: u64) {
        let mut left = cost;
        match rule.algorithm {
            Algorithm::Log => {
                for (_, units) in &mut self.admitted {
                    let taken = left.min(*units);
                    (left, *units) = (left - taken, *units - taken);
                }
            }
            Algorithm::Counter => {
                for units in [&mut self.previous, &mut self.current] {
                    let taken = left.min(*units);
                    (left, *units) = (left - taken, *units - taken);
                }
            }
            Algorithm::Slots => {}
            Algorithm::Calendar => {
                let units = &mut self.windows.last_mut().unwrap().units;
                *units = units.saturating_sub(cost);
            }
        }
    }
}

/// For every key the model and the twin.
#[derive(Default)]
pub(super) struct Models(HashMap<(String, [u8; 16]), (Model, Option<Count>)>);

pub(super) fn key(item: &LimitCheck) -> (String, [u8; 16]) {
    (item.window.store_suffix.clone(), item.tag.0)
}

impl Models {
    /// One request by the model, stamped `ahead_us` later than now if it is allowed. `None` if the
    /// proxy must ask again.
    pub(super) fn by_model(
        &mut self,
        charge: &Charge,
        at: impl Into<Told>,
        ahead_us: u64,
    ) -> Option<Decision> {
        self.decide(charge, at.into(), ahead_us, 0)
    }

    /// One request that may be held, for `longest_us` at most.
    pub(super) fn by_model_or_held(
        &mut self,
        charge: &Charge,
        at: impl Into<Told>,
        longest_us: u64,
    ) -> Option<Decision> {
        self.decide(charge, at.into(), 0, longest_us)
    }

    fn decide(
        &mut self,
        charge: &Charge,
        at: Told,
        mut ahead_us: u64,
        longest_us: u64,
    ) -> Option<Decision> {
        let mut aged = Vec::new();
        let (mut wait_us, mut may_wait) = (0, longest_us > 0);
        for item in charge {
            let rule = &item.window.rule;
            let mut model = self.0.entry(key(item)).or_default().0.clone();
            let (stepped, own_us) = model.age(rule, at.moment(item))?;
            let rule = &model.kept(rule, own_us);
            let used = model.used(rule, own_us);
            let retry = if item.cost > rule.units {
                Retry::Never
            } else if used + item.cost <= rule.units {
                Retry::Now
            } else {
                Retry::After(model.wait(rule, own_us, rule.units - item.cost))
            };
            if let (Retry::After(us), Some(delay)) = (retry, item.limit.delay) {
                let most = u64::from(delay.queue) * item.cost.max(1);
                may_wait &= model.held(rule, own_us) + item.cost <= most;
                may_wait &= rule.algorithm == Algorithm::Log;
                wait_us = wait_us.max(us);
            } else {
                may_wait &= retry == Retry::Now;
            }
            aged.push((model, stepped, own_us, used, retry));
        }
        for (item, (.., retry)) in charge.iter().zip(&aged) {
            let delay = item.limit.delay.filter(|_| *retry != Retry::Now);
            may_wait &= delay.is_none_or(|delay| wait_us <= delay.longest_us.min(longest_us));
        }
        let passes = aged.iter().all(|(.., retry)| *retry == Retry::Now);
        let is_held = may_wait && !passes;
        let allowed = passes || is_held;
        if is_held {
            ahead_us = wait_us;
        }
        let mut verdicts = smallvec::SmallVec::new();
        for (item, (mut model, stepped, own_us, used, retry)) in charge.iter().zip(aged) {
            let rule = &item.window.rule;
            if allowed && item.cost > 0 {
                model.admit(rule, own_us, item.cost, ahead_us);
            }
            let rule = &model.kept(rule, own_us);
            let after = model.used(rule, own_us);
            verdicts.push(Verdict {
                used,
                remaining: rule.units.saturating_sub(after),
                retry: match retry {
                    Retry::After(us) if is_held => Retry::Booked(us),
                    retry => retry,
                },
                reset_us: match rule.algorithm {
                    Algorithm::Calendar => model.calendar_left(own_us),
                    _ => model.wait(rule, own_us, 0),
                },
                next_us: if after == 0 {
                    0
                } else {
                    model.wait(rule, own_us, after.min(rule.units) - 1)
                },
                stamp: model.stamp(rule, own_us),
            });
            if item.cost > 0 && (allowed || stepped) {
                self.0.entry(key(item)).or_default().0 = model;
            }
        }
        let decision = Decision {
            allowed,
            at_us: at.now_us,
            spread_us: 0,
            verdicts,
        };
        Some(named(decision, charge))
    }

    /// Gives back, or charges more, by model and twin.
    pub(super) fn adjust(
        &mut self,
        (operation, charge): (Operation, &Charge),
        stamps: &[u64],
        now_us: u64,
    ) {
        for (item, stamp) in charge.iter().zip(stamps) {
            let rule = &item.window.rule;
            let moment = Told::from(now_us).moment(item);
            let (model, twin) = self.0.entry(key(item)).or_default();
            let mut aged = model.clone();
            let (_, own_us) = aged.age(rule, moment).expect("the clock is known");
            let kept = &aged.kept(rule, own_us);
            let twin = twin.get_or_insert_with(|| Count::new(rule.algorithm));
            if rule.algorithm == Algorithm::Calendar && operation != Operation::Settle {
                // Nothing is opened for what is given back.
                match operation {
                    Operation::Refund => {
                        model.calendar_give_back(item.cost, *stamp);
                        twin.refund(rule, item.cost, *stamp, moment);
                    }
                    _ => {
                        if model.calendar_used(now_us) > 0 {
                            model.refund_oldest(rule, item.cost);
                        }
                        twin.refund_oldest(rule, item.cost, moment);
                    }
                }
            } else if operation == Operation::Refund {
                let before = aged.used(kept, own_us);
                aged.refund(kept, own_us, item.cost, *stamp);
                // What takes nothing back keeps no ages either.
                let names = own_us / rule.window_us - stamp.min(&(own_us / rule.window_us)) < 2
                    && *stamp <= own_us / rule.window_us;
                let counts = rule.algorithm == Algorithm::Counter && names;
                if counts || aged.used(kept, own_us) < before {
                    aged.forget_expired(kept, own_us);
                    *model = aged;
                }
                twin.refund(rule, item.cost, *stamp, now_us);
            } else if operation == Operation::RefundOldest {
                if item.cost > 0 && aged.used(kept, own_us) > 0 {
                    aged.forget_expired(kept, own_us);
                    aged.refund_oldest(kept, item.cost);
                    *model = aged;
                }
                twin.refund_oldest(rule, item.cost, now_us);
            } else if item.cost > 0 {
                let most = match rule.algorithm {
                    Algorithm::Calendar => (1 << 48) - 1,
                    _ => u64::from(u32::MAX),
                };
                let cost = item.cost.min(most - aged.used(kept, own_us));
                if cost > 0 {
                    aged.admit(rule, own_us, cost, 0);
                    *model = aged;
                }
                twin.charge_more(rule, item.cost, moment);
            }
        }
    }

    /// One request by the twin. `None` if the proxy must ask again.
    pub(super) fn by_twin(&mut self, charge: &Charge, at: impl Into<Told>) -> Option<Decision> {
        self.by_twin_or_held(charge, at, 0)
    }

    /// One request by the twin, which may be held for `longest_us` at most.
    pub(super) fn by_twin_or_held(
        &mut self,
        charge: &Charge,
        at: impl Into<Told>,
        longest_us: u64,
    ) -> Option<Decision> {
        let (at, mut looks) = (at.into(), Vec::new());
        for item in charge {
            let count = &mut self.0.entry(key(item)).or_default().1;
            let count = count.get_or_insert_with(|| Count::new(item.window.rule.algorithm));
            looks.push(count.first_pass(&item.window.rule, item.cost, at.moment(item)));
        }
        if looks.iter().any(FirstPass::asks_again) {
            return None;
        }
        let passes = looks.iter().all(|look| look.retry == Retry::Now);
        let checks = charge.iter().zip(&looks).map(|(item, first)| BookingCheck {
            count: self.0[&key(item)].1.as_ref(),
            rule: &item.window.rule,
            cost: item.cost,
            first,
            delay: item.delay_within(longest_us),
        });
        let wait_us = wait_us(checks).filter(|_| !passes);
        let allowed = passes || wait_us.is_some();
        let settle = |(item, look): (&LimitCheck, &_)| {
            let count = self.0.get_mut(&key(item)).unwrap().1.as_mut().unwrap();
            match wait_us {
                Some(wait_us) => count.book(&item.window.rule, item.cost, look, wait_us),
                None => count.settle(&item.window.rule, item.cost, look, allowed),
            }
        };
        let verdicts = charge.iter().zip(&looks).map(settle).collect();
        let decision = Decision {
            allowed,
            at_us: at.now_us,
            spread_us: 0,
            verdicts,
        };
        Some(named(decision, charge))
    }
}

/// A stamp means something only where something was charged.
pub(super) fn named(mut decision: Decision, charge: &Charge) -> Decision {
    for (verdict, item) in decision.verdicts.iter_mut().zip(charge) {
        if !decision.allowed || item.cost == 0 {
            verdict.stamp = 0;
        }
    }
    decision
}
