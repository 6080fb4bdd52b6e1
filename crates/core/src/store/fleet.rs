//! The fleet: how many proxies share the store, and so which part of every limit this proxy has
//! while the store is away.
//!
//! Proxies count each other by heartbeats. A number in the configuration is a minimum: a larger
//! count wins. Before the first count a proxy knows of no other. It assumes [`ASSUMED`] proxies
//! unless the configuration has a number.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::config;
use crate::limit::Rule;

/// Proxies that are assumed before any were counted.
pub const ASSUMED: u32 = 8;

#[derive(Debug)]
pub struct Fleet {
    /// The configured number; 0 if the heartbeats alone count.
    configured: AtomicU32,
    /// The number that the heartbeats count; 0 before the first.
    counted: AtomicU32,
    /// The number of counted proxies with a smaller name.
    place: AtomicU32,
    /// Some counted proxies may be away: the number may grow, and not shrink.
    held: AtomicBool,
}

impl From<config::Fleet> for Fleet {
    fn from(configured: config::Fleet) -> Fleet {
        let fleet = Fleet::counted();
        fleet.configure(configured);
        fleet
    }
}

impl Fleet {
    /// At least so many proxies.
    pub fn new(size: u32) -> Fleet {
        Fleet::from(config::Fleet::Fixed(size))
    }

    pub fn counted() -> Fleet {
        Fleet {
            configured: AtomicU32::new(0),
            counted: AtomicU32::new(0),
            place: AtomicU32::new(0),
            held: AtomicBool::new(false),
        }
    }

    /// Takes another number of the configuration. What is counted stays.
    pub fn configure(&self, configured: config::Fleet) {
        let least = match configured {
            config::Fleet::Fixed(size) => size.max(1),
            config::Fleet::Auto => 0,
        };
        self.configured.store(least, Ordering::Relaxed);
    }

    fn configured(&self) -> u32 {
        self.configured.load(Ordering::Relaxed)
    }

    pub fn size(&self) -> u32 {
        match (self.counted.load(Ordering::Relaxed), self.configured()) {
            (0, 0) => ASSUMED,
            (counted, configured) => counted.max(configured),
        }
    }

    /// Whether more proxies are counted than configured.
    pub fn is_larger_than_configured(&self) -> bool {
        let configured = self.configured();
        configured > 0 && self.counted.load(Ordering::Relaxed) > configured
    }

    /// Notes the store's count. While the number is held, a smaller one changes nothing.
    pub fn learn(&self, size: u32, place: u32) {
        let size = size.max(1);
        if self.held.load(Ordering::Relaxed) && size < self.counted.load(Ordering::Relaxed) {
            return;
        }
        self.counted.store(size, Ordering::Relaxed);
        self.place.store(place, Ordering::Relaxed);
    }

    /// Keeps the number from shrinking, or lets it shrink again.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// This proxy's part of a shared budget: `floor(units / size)`, and one unit of the remainder
    /// if its place is among the first. It is at least 1, so that every proxy serves some requests.
    pub fn share(&self, rule: Rule) -> Rule {
        if self.configured() == 1 && self.counted.load(Ordering::Relaxed) <= 1 || self.size() == 1 {
            return rule;
        }
        Rule {
            units: self.part_of(rule.units).max(1),
            ..rule
        }
    }

    /// The same for any number of units, without the minimum of 1. The parts of all proxies add up
    /// to no more than `units`. The part of fewer units is no larger.
    pub fn part_of(&self, units: u64) -> u64 {
        let size = u64::from(self.size());
        let counted = u64::from(self.counted.load(Ordering::Relaxed));
        let place = u64::from(self.place.load(Ordering::Relaxed));
        // Only counted proxies have places.
        let rest = u64::from(size == counted && place < units % size);
        units / size + rest
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
        assert_eq!(units(&Fleet::new(3), 10), 3);
        assert_eq!(units(&Fleet::new(100), 10), 1);
        assert_eq!(units(&Fleet::new(0), 10), 10);
        let counted = Fleet::counted();
        counted.learn(1, 0);
        assert_eq!(units(&counted, 10), 10);
    }

    #[test]
    fn a_proxy_that_has_counted_nobody_assumes_several() {
        assert_eq!(units(&Fleet::counted(), 80), 80 / u64::from(ASSUMED));
        assert_eq!(units(&Fleet::new(2), 80), 40);
    }

    #[test]
    fn the_count_wins_over_a_smaller_number_in_the_file() {
        let fleet = Fleet::new(1);
        fleet.learn(4, 3);
        assert_eq!(units(&fleet, 400), 100);
        assert!(fleet.is_larger_than_configured());
        let fleet = Fleet::new(4);
        fleet.learn(2, 0);
        assert_eq!(units(&fleet, 402), 100, "no place among four is known");
    }

    #[test]
    fn a_held_number_grows_and_does_not_shrink() {
        let fleet = Fleet::counted();
        fleet.learn(4, 1);
        fleet.hold(true);
        fleet.learn(1, 0);
        assert_eq!(units(&fleet, 402), 101);
        fleet.learn(5, 4);
        assert_eq!(units(&fleet, 400), 80);
        fleet.hold(false);
        fleet.learn(1, 0);
        assert_eq!(units(&fleet, 400), 400);
    }
}
