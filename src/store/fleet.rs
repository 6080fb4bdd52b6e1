//! The fleet: how many proxies share the store, and so which part of every limit is this one's
//! while the store is away.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::config;
use crate::limit::Rule;

/// Said in a configuration, or counted by heartbeats.
#[derive(Debug)]
pub struct Fleet {
    size: AtomicU32,
    /// How many of the others come before this one; [`NOBODY_KNOWS`] where they are not counted.
    place: AtomicU32,
    counted: bool,
}

impl From<config::Fleet> for Fleet {
    fn from(said: config::Fleet) -> Fleet {
        match said {
            config::Fleet::Fixed(size) => Fleet::of(size),
            config::Fleet::Auto => Fleet::counted(),
        }
    }
}

const NOBODY_KNOWS: u32 = u32::MAX;

impl Fleet {
    /// So many proxies, as the configuration says.
    pub fn of(size: u32) -> Fleet {
        Fleet {
            size: AtomicU32::new(size.max(1)),
            place: AtomicU32::new(NOBODY_KNOWS),
            counted: false,
        }
    }

    /// As many as are heard of; one, until the store has been asked.
    pub fn counted() -> Fleet {
        Fleet {
            counted: true,
            ..Fleet::of(1)
        }
    }

    /// Whether proxies are counted by their heartbeats.
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    /// How many there are.
    pub fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// What the store has counted.
    pub fn learn(&self, size: u32, place: u32) {
        self.size.store(size.max(1), Ordering::Relaxed);
        self.place.store(place, Ordering::Relaxed);
    }

    /// This proxy's part of a shared budget: `floor(units / size)`, and one of the remainder where
    /// its place is among the first; at least 1, so that nobody is shut out.
    pub fn share(&self, rule: Rule) -> Rule {
        let size = u64::from(self.size());
        if size == 1 {
            return rule;
        }
        let place = self.place.load(Ordering::Relaxed);
        let rest = u64::from(u64::from(place) < rule.units % size);
        Rule {
            units: (rule.units / size + rest).max(1),
            ..rule
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    fn units(fleet: &Fleet, units: u64) -> u64 {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units,
            window_us: 1_000_000,
            precision_us: 1,
        };
        fleet.share(rule).units
    }

    #[test]
    fn shares_of_those_who_are_counted_add_up() {
        for (size, budget) in [(1, 7), (3, 10), (4, 4), (7, 100), (50, 1000)] {
            let share = |place| {
                let fleet = Fleet::counted();
                fleet.learn(size, place);
                units(&fleet, budget)
            };
            assert_eq!((0..size).map(share).sum::<u64>(), budget, "{size}");
        }
    }

    #[test]
    fn a_share_is_at_least_one_and_else_never_too_much() {
        assert_eq!(units(&Fleet::of(3), 10), 3);
        assert_eq!(units(&Fleet::of(100), 10), 1);
        assert_eq!(units(&Fleet::of(0), 10), 10);
        assert_eq!(units(&Fleet::counted(), 10), 10);
    }
}
