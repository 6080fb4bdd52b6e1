//! When one client asks: three ways, each the same in every run.

use super::{LIMIT, WINDOW_US};
use crate::support::Chance;

pub const SECOND_US: u64 = 1_000_000;
/// For how long.
pub const LENGTH_US: u64 = 300 * SECOND_US;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// From shortly before a boundary of aligned windows on, more than is let through, for a little
    /// over a minute; a while later the same.
    Boundary,
    /// Twice the limit, evenly, all the time.
    Steady,
    /// Bursts of random length, some time apart.
    Bursts,
}

pub const TRAFFIC: [Traffic; 3] = [Traffic::Boundary, Traffic::Steady, Traffic::Bursts];

impl Traffic {
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Boundary => "hard, from a boundary on",
            Traffic::Steady => "steady, twice the limit",
            Traffic::Bursts => "bursts at random",
        }
    }

    /// The instants of its requests, us. No two share a millisecond, which some limiters need.
    pub fn asked(self) -> Vec<u64> {
        match self {
            Traffic::Boundary => [54, 234].into_iter().flat_map(from).collect(),
            Traffic::Steady => {
                let step = WINDOW_US / (2 * LIMIT);
                (0..LENGTH_US / step).map(|place| place * step).collect()
            }
            Traffic::Bursts => random(),
        }
    }
}

/// From this second on 25 a second for five seconds, then five a second.
fn from(second: u64) -> impl Iterator<Item = u64> {
    let burst = (0..125).map(|place| place * 40_000);
    let more = (0..300).map(|place| (5_000 + place * 200) * 1_000);
    burst.chain(more).map(move |us| second * SECOND_US + us)
}

fn random() -> Vec<u64> {
    let mut chance = Chance(2026);
    let mut asked = Vec::new();
    let mut now_us = 3 * SECOND_US;
    while now_us < LENGTH_US {
        for _ in 0..5 + chance.below(110) {
            asked.push(now_us);
            now_us += 20_000 + 1_000 * chance.below(80);
        }
        now_us += SECOND_US * (1 + chance.below(28));
    }
    asked.retain(|us| *us < LENGTH_US);
    asked
}
