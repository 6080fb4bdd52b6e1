//! The clock of the store, as this process knows it: each reply tells it. Calendar windows need it,
//! since they end at dates.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::limit::LimitCheck;
use crate::limit::calendar::Moment;

/// Nothing is known yet.
const UNKNOWN: i64 = i64::MIN;

/// How far the store's clock is ahead of this process's, microseconds.
#[derive(Debug)]
pub struct StoreClock(AtomicI64);

impl Default for StoreClock {
    fn default() -> StoreClock {
        StoreClock(AtomicI64::new(UNKNOWN))
    }
}

impl StoreClock {
    /// The store's clock was at `store_us` just before this process's was at `now_us`.
    pub fn note(&self, store_us: u64, now_us: u64) {
        self.note_ahead(store_us.cast_signed().saturating_sub_unsigned(now_us));
    }

    /// The store's clock is at least so far ahead of this process's, microseconds.
    pub fn note_ahead(&self, ahead_us: i64) {
        self.0.store(ahead_us, Ordering::Relaxed);
    }

    /// The store's time when this process's clock is at `now_us`; `None` before the first reply.
    pub fn at_us(&self, now_us: u64) -> Option<u64> {
        let ahead = self.0.load(Ordering::Relaxed);
        (ahead != UNKNOWN).then(|| now_us.saturating_add_signed(ahead))
    }
}

/// One instant by two clocks, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct StoreInstant {
    /// By this process's clock, which does not step.
    pub now_us: u64,
    /// By the store's clock, since the Unix epoch.
    pub store_us: u64,
}

impl From<u64> for StoreInstant {
    /// Where both clocks are the same.
    fn from(now_us: u64) -> StoreInstant {
        StoreInstant {
            now_us,
            store_us: now_us,
        }
    }
}

impl StoreInstant {
    /// The moment for a count of `item`: calendar windows follow the store's clock.
    pub fn moment(self, item: &LimitCheck) -> Moment {
        match item.boundaries(self.store_us) {
            None => Moment::from(self.now_us),
            boundaries => Moment {
                now_us: self.store_us,
                boundaries,
            },
        }
    }

    /// The same, and what it takes to go back to this process's clock.
    pub fn check_time(self, item: &LimitCheck) -> CheckTime {
        let moment = self.moment(item);
        CheckTime {
            moment,
            ahead_us: moment.now_us.wrapping_sub(self.now_us),
        }
    }

    /// When the calendar window of `item` that is under way began, by this process's clock; `None`
    /// for other windows.
    pub fn window_began_us(self, item: &LimitCheck) -> Option<u64> {
        let calendar = item.window.calendar.as_ref()?;
        let passed_us = self.store_us - calendar.span(item.anchor, self.store_us).start_us;
        Some(self.now_us.saturating_sub(passed_us))
    }
}

/// The time of one check.
#[derive(Clone, Copy, Debug)]
pub struct CheckTime {
    pub moment: Moment,
    /// How far the moment is ahead of this process's clock, microseconds, modulo 2^64. 0 for all
    /// but calendar windows.
    pub ahead_us: u64,
}

impl CheckTime {
    pub fn now_us(&self) -> u64 {
        self.moment.now_us.wrapping_sub(self.ahead_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reply_tells_the_clock() {
        let clock = StoreClock::default();
        assert_eq!(clock.at_us(7_000), None);
        clock.note(5_000, 7_000);
        assert_eq!(clock.at_us(8_000), Some(6_000));
        clock.note(1_000_000, 8_000);
        assert_eq!(clock.at_us(9_000), Some(1_001_000));
    }
}
