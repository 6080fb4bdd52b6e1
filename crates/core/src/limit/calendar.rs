//! The calendar window: all that was admitted since its start, in constant memory. Twin of
//! `lua/calendar.lua`.
//!
//! A cost `c` is allowed if and only if `used + c <= L`, where `used` counts what was admitted
//! since the window began. So no window ever holds more than `L`. An interval of a window's length
//! may hold `2 L` across a boundary.
//!
//! A caller brings the ends of the window that holds the clock and of the next one
//! ([`Boundaries`]). They only ever *open* a window: one that is under way goes on to the end that
//! it was opened with. So neither other zone data, nor another anchor, nor a clock that steps can
//! refill a window. If the clock steps back by more than a window, the units stay, and count until
//! the end that was brought.
//!
//! Units stay below 2^48, and sums of two of them below 2^53, as in Lua. A [`CalendarCount`] is 32
//! bytes. Time is an argument, microseconds since the Unix epoch.

pub mod zone;

pub use zone::{
    AnchorDay, AnchorSource, Calendar, CalendarSettings, CalendarSpan, CalendarUnit, Zone,
};

use std::cmp::Ordering;

use super::Rule;
use super::log::STAMPS;

/// The most units that a window counts, and that a rule may have: the store keeps six bytes.
pub const MAX_COUNT: u64 = (1 << 48) - 1;

/// The ends of two windows, as a caller knows them, microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundaries {
    /// The end of the window that holds the clock.
    pub end_us: u64,
    pub next_end_us: u64,
}

/// The time of a decision, and what a calendar window needs to open at that time.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the clock of the counts, microseconds. For a calendar window since the Unix epoch.
    pub now_us: u64,
    /// `None` for all other windows. Without them no calendar window opens.
    pub boundaries: Option<Boundaries>,
}

impl From<u64> for Moment {
    fn from(now_us: u64) -> Moment {
        Moment {
            now_us,
            boundaries: None,
        }
    }
}

/// The units of the last window that was opened, and of the one opened before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CalendarCount {
    end_us: u64,
    units: u64,
    previous_end_us: u64,
    previous_units: u64,
}

/// A change of the units of one window, as a file of counts keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitsChange {
    pub kind: UnitsChangeKind,
    pub end_us: u64,
    /// Units admitted; negative if units were given back.
    pub units: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitsChangeKind {
    /// To a window that is known.
    Adds,
    /// To a window that these units have opened.
    Opens,
    /// The window takes the place of one that ended later: the clock had stepped back.
    Replaces,
}

/// A calendar window as it stands at one instant.
#[derive(Clone, Copy, Debug)]
pub struct AgedCalendar {
    pub used: u64,
    /// Whether the clock has stepped back by more than a window.
    pub stepped: bool,
    /// Whether no boundary fits the clock: nothing can be decided.
    pub unfit: bool,
    /// The end of the window that is under way, or would be opened.
    end_us: u64,
    /// Time until then.
    left_us: u64,
}

impl CalendarCount {
    /// Ages the count to a moment, without changing it. The rule's window is the longest of its
    /// kind: an end that is further ahead is refused.
    pub fn age(&self, rule: &Rule, at: &Moment) -> AgedCalendar {
        let now_us = at.now_us;
        let last_us = now_us.saturating_add(rule.window_us);
        let stepped = self.end_us > last_us;
        let is_under_way = now_us < self.end_us;
        let sent_us = at.boundaries.map_or(0, |ends| match now_us < ends.end_us {
            true => ends.end_us,
            false => ends.next_end_us,
        });
        let end_us = match is_under_way && !stepped {
            true => self.end_us,
            false => sent_us,
        };
        AgedCalendar {
            used: if is_under_way { self.units } else { 0 },
            stepped,
            unfit: end_us <= now_us || end_us > last_us,
            end_us,
            left_us: end_us.saturating_sub(now_us),
        }
    }

    /// Admits `cost` units at the instant of `aged`. Returns the state after that.
    pub fn charge(&mut self, aged: &AgedCalendar, cost: u64) -> AgedCalendar {
        if aged.unfit {
            return *aged;
        }
        let after = AgedCalendar {
            used: aged.used + cost,
            ..*aged
        };
        self.keep_ages(&after);
        after
    }

    /// Stores the units, and opens the window if none is under way. A denial needs this only after
    /// a step back of the clock.
    pub fn keep_ages(&mut self, aged: &AgedCalendar) {
        if aged.unfit {
            return;
        }
        if aged.end_us != self.end_us && !aged.stepped {
            (self.previous_end_us, self.previous_units) = (self.end_us, self.units);
        }
        (self.end_us, self.units) = (aged.end_us, aged.used);
    }

    /// Refunds up to `cost` units of the window whose end is `stamp` (modulo 2^48).
    pub fn refund(&mut self, cost: u64, stamp: u64) {
        if self.end_us & (STAMPS - 1) == stamp {
            self.units = self.units.saturating_sub(cost);
        } else if self.previous_end_us & (STAMPS - 1) == stamp {
            self.previous_units = self.previous_units.saturating_sub(cost);
        }
    }

    /// Refunds up to `cost` of the units that count.
    pub fn refund_oldest(&mut self, aged: &AgedCalendar, cost: u64) {
        if aged.used > 0 {
            self.units = self.units.saturating_sub(cost);
        }
    }

    /// The units of the last window.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The time from which nothing is counted any more.
    pub fn empty_at_us(&self) -> u64 {
        self.end_us
    }

    /// The changes that one operation has made since `before`, in order.
    pub fn changes_since(&self, before: &CalendarCount) -> [Option<UnitsChange>; 2] {
        // Only after a step back of the clock a window ends before the last one.
        let kind = match self.end_us.cmp(&before.end_us) {
            Ordering::Equal => UnitsChangeKind::Adds,
            Ordering::Greater => UnitsChangeKind::Opens,
            Ordering::Less => UnitsChangeKind::Replaces,
        };
        let units_before = if kind == UnitsChangeKind::Adds {
            before.units
        } else {
            0
        };
        let last = UnitsChange {
            kind,
            end_us: self.end_us,
            units: difference(self.units, units_before),
        };
        let previous = UnitsChange {
            kind: UnitsChangeKind::Adds,
            end_us: self.previous_end_us,
            units: difference(self.previous_units, before.previous_units),
        };
        let had_previous = self.previous_end_us == before.previous_end_us;
        [
            (had_previous && previous.units != 0).then_some(previous),
            (last.units != 0 || kind != UnitsChangeKind::Adds).then_some(last),
        ]
    }

    /// Makes a change again: one that this count lacks because another process made it, or because
    /// it was read from a file. A change of a window before the last two is left out.
    pub fn apply(&mut self, change: &UnitsChange) {
        let UnitsChange {
            kind,
            end_us,
            units,
        } = *change;
        let is_later = end_us > self.end_us;
        if kind == UnitsChangeKind::Replaces {
            (self.end_us, self.units) = (end_us, changed(0, units));
        } else if end_us == self.end_us {
            self.units = changed(self.units, units);
        } else if end_us == self.previous_end_us && !(is_later && kind == UnitsChangeKind::Opens) {
            self.previous_units = changed(self.previous_units, units);
        } else if is_later {
            (self.previous_end_us, self.previous_units) = (self.end_us, self.units);
            (self.end_us, self.units) = (end_us, changed(0, units));
        } else if end_us > self.previous_end_us {
            (self.previous_end_us, self.previous_units) = (end_us, changed(0, units));
        }
    }

    /// The changes that make this count of an empty one, in order.
    pub fn as_changes(&self) -> [Option<UnitsChange>; 2] {
        let opens = |end_us, units| UnitsChange {
            kind: UnitsChangeKind::Opens,
            end_us,
            units: difference(units, 0),
        };
        // The previous window ends later only if the clock has stepped back.
        let has_previous = self.previous_units > 0 && self.previous_end_us < self.end_us;
        [
            has_previous.then(|| opens(self.previous_end_us, self.previous_units)),
            (self.end_us > 0).then(|| opens(self.end_us, self.units)),
        ]
    }
}

fn difference(after: u64, before: u64) -> i64 {
    after.cast_signed().wrapping_sub(before.cast_signed())
}

fn changed(units: u64, by: i64) -> u64 {
    units.saturating_add_signed(by).min(MAX_COUNT)
}

impl AgedCalendar {
    /// Microseconds until at most `room` units are counted if nothing else is admitted.
    pub fn wait(&self, room: u64) -> u64 {
        match self.used > room {
            true => self.left_us,
            false => 0,
        }
    }

    /// Microseconds until the window ends, also where nothing is counted in it.
    pub fn left_us(&self) -> u64 {
        self.left_us
    }

    /// Names an admission at this instant by the end of its window.
    pub fn last_stamp(&self) -> u64 {
        self.end_us & (STAMPS - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::decide::Count;
    use super::super::{Algorithm, Retry, Rule};
    use super::*;

    const LONGEST_US: u64 = 1_100;

    /// One request: how long after the one before it, its cost, and the asking proxy's calendar and
    /// clock.
    #[derive(Clone, Copy, Debug)]
    struct Step {
        gap_us: u64,
        cost: u64,
        /// The calendar's windows begin at multiples of this, and a phase.
        length_us: u64,
        phase_us: u64,
        behind_us: u64,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let gap = prop_oneof![4 => 0_u64..20, 2 => 0_u64..600, 1 => 0_u64..5_000];
        let length = prop::sample::select(vec![700_u64, 1_000, 1_100]);
        let behind = prop_oneof![3 => Just(0_u64), 1 => 0_u64..3_000];
        let step = (gap, 1_u64..4, length, 0_u64..700, behind);
        let step = step.prop_map(|(gap_us, cost, length_us, phase_us, behind_us)| Step {
            gap_us,
            cost,
            length_us,
            phase_us,
            behind_us,
        });
        prop::collection::vec(step, 1..200)
    }

    impl Step {
        fn at(self, now_us: u64, behind_us: u64) -> Moment {
            let known_us = now_us - behind_us - self.phase_us;
            let start_us = known_us / self.length_us * self.length_us + self.phase_us;
            Moment {
                now_us,
                boundaries: Some(Boundaries {
                    end_us: start_us + self.length_us,
                    next_end_us: start_us + 2 * self.length_us,
                }),
            }
        }
    }

    fn rule(units: u64) -> Rule {
        Rule {
            algorithm: Algorithm::Calendar,
            units,
            window_us: LONGEST_US,
            precision_us: 1,
        }
    }

    proptest! {
        /// Whatever calendars and clocks the proxies have.
        #[test]
        fn no_window_holds_more_than_its_units_and_windows_do_not_overlap(
            units in 1_u64..12, steps in steps(),
        ) {
            let (rule, mut count) = (rule(units), Count::new(Algorithm::Calendar));
            let (mut now_us, mut end_us, mut units_in) = (1_000_000_u64, 0, 0);
            for step in steps {
                now_us += step.gap_us;
                let mut first = count.first_pass(&rule, step.cost, step.at(now_us, step.behind_us));
                if first.asks_again() {
                    prop_assert!(step.behind_us > 0);
                    first = count.first_pass(&rule, step.cost, step.at(now_us, 0));
                    prop_assert!(!first.asks_again());
                }
                let allowed = first.retry == Retry::Now;
                let verdict = count.settle(&rule, step.cost, &first, allowed);
                let ends_us = now_us + verdict.reset_us;
                prop_assert!(ends_us > now_us && ends_us <= now_us + LONGEST_US);
                if ends_us != end_us && allowed {
                    prop_assert!(end_us <= now_us, "a window was cut short");
                    (end_us, units_in) = (ends_us, 0);
                }
                if allowed {
                    units_in += step.cost;
                }
                prop_assert!(units_in <= units);
            }
        }

        #[test]
        fn a_denial_lasts_until_the_end_and_no_longer(units in 1_u64..12, steps in steps()) {
            let (rule, mut count) = (rule(units), Count::new(Algorithm::Calendar));
            let mut now_us = 1_000_000;
            for step in steps {
                now_us += step.gap_us;
                let first = count.first_pass(&rule, step.cost, step.at(now_us, 0));
                if let Retry::After(wait_us) = first.retry {
                    let retry = |us: u64| {
                        let at = step.at(now_us + us, 0);
                        count.first_pass(&rule, step.cost, at).retry
                    };
                    prop_assert_eq!(retry(wait_us - 1), Retry::After(1));
                    prop_assert_eq!(retry(wait_us), Retry::Now);
                }
                count.settle(&rule, step.cost, &first, first.retry == Retry::Now);
            }
        }
    }

    proptest! {
        /// Charges, denials, refunds and steps of the clock, in windows of several calendars.
        #[test]
        fn changes_make_the_same_count_elsewhere(
            units in 1_u64..12, steps in steps(), backs in prop::collection::vec(0_u64..9_000, 200),
        ) {
            let (rule, mut count) = (rule(units), CalendarCount::default());
            let (mut copy, mut now_us) = (CalendarCount::default(), 1_000_000_u64);
            let mut stamp = 0;
            for (step, back) in steps.into_iter().zip(backs) {
                // Now and then by more than a window.
                now_us = now_us + step.gap_us - if back % 20 == 0 { back } else { 0 };
                let at = step.at(now_us, 0);
                let before = count;
                let aged = count.age(&rule, &at);
                match back % 4 {
                    0 => count.refund(step.cost, stamp),
                    1 if aged.stepped => count.keep_ages(&aged),
                    1 => count.refund_oldest(&aged, step.cost),
                    _ => stamp = count.charge(&aged, step.cost).last_stamp(),
                }
                let changes = count.changes_since(&before);
                changes.iter().flatten().for_each(|change| copy.apply(change));
                prop_assert_eq!((copy.end_us, copy.units), (count.end_us, count.units));
                let mut made = CalendarCount::default();
                count.as_changes().iter().flatten().for_each(|change| made.apply(change));
                prop_assert_eq!((made.end_us, made.units), (count.end_us, count.units));
            }
        }
    }

    /// The second step back comes while the window before has the same end as the last one.
    #[test]
    fn windows_that_replace_each_other_are_the_same_elsewhere() {
        let mut count = CalendarCount::default();
        let mut copy = CalendarCount::default();
        for end_us in [10_000, 20_000, 10_000, 3_000] {
            let before = count;
            let at = Moment {
                now_us: end_us - 1,
                boundaries: Some(Boundaries {
                    end_us,
                    next_end_us: end_us + 1_000,
                }),
            };
            count.charge(&count.age(&rule(9), &at), 1);
            let changes = count.changes_since(&before);
            changes
                .iter()
                .flatten()
                .for_each(|change| copy.apply(change));
            assert_eq!((copy.end_us, copy.units), (count.end_us, count.units));
        }
        assert_eq!((copy.end_us, copy.units), (3_000, 3));
    }

    #[test]
    fn an_end_that_is_too_far_ahead_opens_nothing() {
        let count = CalendarCount::default();
        let at = |end_us| Moment {
            now_us: 1_000,
            boundaries: Some(Boundaries {
                end_us,
                next_end_us: end_us + 1,
            }),
        };
        assert!(!count.age(&rule(1), &at(1_000 + LONGEST_US)).unfit);
        assert!(count.age(&rule(1), &at(1_001 + LONGEST_US)).unfit);
        assert!(!count.age(&rule(1), &at(1_000)).unfit, "the next one fits");
        assert!(count.age(&rule(1), &at(999)).unfit);
    }
}
