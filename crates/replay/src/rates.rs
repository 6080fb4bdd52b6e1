//! The three rates at which a log is replayed at once: half a limit's own, its own, and twice.

use std::ops::{Index, IndexMut};

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Half of what the limit says.
    Half,
    /// What it says.
    Own,
    /// Twice that.
    Twice,
}

/// All three, in order.
pub const RATES: [At; 3] = [At::Half, At::Own, At::Twice];

/// Something for each of the three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates<T> {
    /// At half the rate.
    pub half: T,
    /// At the limit's own.
    pub own: T,
    /// At twice the rate.
    pub twice: T,
}

impl<T> Rates<T> {
    /// Something else for each.
    pub fn map<U>(&self, each: impl Fn(&T) -> U) -> Rates<U> {
        Rates {
            half: each(&self.half),
            own: each(&self.own),
            twice: each(&self.twice),
        }
    }
}

impl Rates<u64> {
    /// What a limit of `units` is at each: at least 1, at most `most`.
    pub fn of(units: u64, most: u64) -> Rates<u64> {
        Rates {
            half: (units / 2).max(1),
            own: units,
            twice: (units * 2).min(most).max(units),
        }
    }
}

impl<T> Index<At> for Rates<T> {
    type Output = T;

    fn index(&self, at: At) -> &T {
        match at {
            At::Half => &self.half,
            At::Own => &self.own,
            At::Twice => &self.twice,
        }
    }
}

impl<T> IndexMut<At> for Rates<T> {
    fn index_mut(&mut self, at: At) -> &mut T {
        match at {
            At::Half => &mut self.half,
            At::Own => &mut self.own,
            At::Twice => &mut self.twice,
        }
    }
}
