//! The two-counter window: constant memory, approximate. Twin of `lua/counter.lua`.
//!
//! Windows are aligned to multiples of `W`. With `x = now mod W` and `P`, `C` the counts of the
//! previous and the current window, a cost `c` is allowed if and only if
//! `P * (W - x) + (C + c) * W <= L * W`. This needs only integers and no division. Products stay
//! below 2^53, as in Lua: the configuration bounds `L * W`, and counts left over from a higher
//! limit are clamped.
//!
//! When the clock steps back into an earlier window, both counts become the current count of that
//! window, so that nothing is forgotten early. A [`Counter`] is 16 bytes. Time is an argument.

use super::Rule;
use super::log::STAMPS;

/// Lua's numbers hold all integers up to this one exactly.
const EXACT: u64 = (1 << 53) - 1;

#[derive(Clone, Copy, Debug, Default)]
pub struct Counter {
    start_us: u64,
    previous: u32,
    current: u32,
}

/// A counter as it stands at one instant.
#[derive(Clone, Copy, Debug)]
pub struct AgedCounter {
    /// The estimate of counted units, rounded up.
    pub used: u64,
    /// Whether the clock is in a window before the counter's.
    pub stepped: bool,
    start_us: u64,
    past_us: u64,
    previous: u64,
    current: u64,
}

impl Counter {
    /// Moves the counts to the window of `now_us`, microseconds, without changing them.
    pub fn age(&self, rule: &Rule, now_us: u64) -> AgedCounter {
        let window = rule.window_us;
        let past_us = now_us % window;
        let start_us = now_us - past_us;
        let (previous, current) = (u64::from(self.previous), u64::from(self.current));
        let stepped = start_us < self.start_us;
        let (previous, current) = if start_us == self.start_us {
            (previous, current)
        } else if stepped {
            (0, previous + current)
        } else if start_us == self.start_us + window {
            (current, 0)
        } else {
            (0, 0)
        };
        let most = (EXACT / window).min(u64::from(u32::MAX));
        let (previous, current) = (previous.min(most), current.min(most));
        let mut aged = AgedCounter {
            used: 0,
            stepped,
            start_us,
            past_us,
            previous,
            current,
        };
        aged.used = aged.count(window);
        aged
    }

    /// Admits `cost` units at the instant of `aged`. Returns the counter's state after that.
    pub fn charge(&mut self, aged: &AgedCounter, cost: u64) -> AgedCounter {
        let after = AgedCounter {
            used: aged.used + cost,
            current: aged.current + cost,
            ..*aged
        };
        self.keep_ages(&after);
        after
    }

    /// Stores the counts in the window of `aged`. A denial needs this only after a step back of the
    /// clock.
    pub fn keep_ages(&mut self, aged: &AgedCounter) {
        self.start_us = aged.start_us;
        self.previous = u32::try_from(aged.previous).unwrap_or(u32::MAX);
        self.current = u32::try_from(aged.current).unwrap_or(u32::MAX);
    }

    /// Refunds up to `cost` units admitted in the window numbered `stamp` (modulo 2^48), if that
    /// window still counts.
    pub fn refund(&mut self, aged: &AgedCounter, rule: &Rule, cost: u64, stamp: u64) {
        let mut left = *aged;
        match aged.last_stamp(rule).wrapping_sub(stamp) & (STAMPS - 1) {
            0 => left.current = aged.current.saturating_sub(cost),
            1 => left.previous = aged.previous.saturating_sub(cost),
            _ => return,
        }
        self.keep_ages(&left);
    }

    /// Refunds up to `cost` units: those of the previous window first, since they expire first.
    pub fn refund_oldest(&mut self, aged: &AgedCounter, cost: u64) {
        if aged.used == 0 || cost == 0 {
            return;
        }
        let taken = aged.previous.min(cost);
        self.keep_ages(&AgedCounter {
            previous: aged.previous - taken,
            current: aged.current.saturating_sub(cost - taken),
            ..*aged
        });
    }

    /// The time from which nothing is counted any more.
    pub fn empty_at_us(&self, rule: &Rule) -> u64 {
        self.start_us + 2 * rule.window_us
    }
}

impl AgedCounter {
    /// Microseconds until the estimate is at most `room` if nothing else is admitted.
    pub fn wait(&self, rule: &Rule, room: u64) -> u64 {
        let window = rule.window_us;
        if self.used <= room {
            return 0;
        }
        if self.current <= room {
            let excess = self.previous - (room - self.current);
            return (excess * window).div_ceil(self.previous) - self.past_us;
        }
        window - self.past_us + ((self.current - room) * window).div_ceil(self.current)
    }

    /// Names an admission at this instant by the number of its window.
    pub fn last_stamp(&self, rule: &Rule) -> u64 {
        (self.start_us / rule.window_us) & (STAMPS - 1)
    }

    fn count(&self, window_us: u64) -> u64 {
        let share = self.previous * (window_us - self.past_us);
        self.current + share.div_ceil(window_us)
    }
}
