//! Slots that requests hold: from their line on, for as long as the log says they took.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::meter::{Ask, Meter, Stamps};
use super::rates::Rates;

/// Everything that is held, whoever ends first on top.
pub type Held = BinaryHeap<Reverse<Release>>;

/// One request's slots.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// When it lets go, microseconds.
    pub at_us: u64,
    /// Of what.
    pub meter: usize,
    /// As it asked for them.
    pub ask: Ask,
    /// What names the charge.
    pub stamps: Stamps,
    /// At which rates it got them.
    pub allowed: Rates<bool>,
}

impl Release {
    /// Lets go.
    pub fn apply(&self, meters: &mut [Meter], now_us: u64) {
        meters[self.meter].give_back(&self.ask, &self.stamps, &self.allowed, now_us);
    }
}

/// Keys of a meter have moved, and those that are nowhere hold nothing any more.
pub fn moved(held: &mut Held, meter: usize, places: &[Option<u32>]) {
    let follow = |Reverse(mut one): Reverse<Release>| {
        if one.meter == meter {
            one.ask.place = (*places.get(one.ask.place as usize)?)?;
        }
        Some(Reverse(one))
    };
    *held = std::mem::take(held)
        .into_iter()
        .filter_map(follow)
        .collect();
}

impl PartialEq for Release {
    fn eq(&self, other: &Release) -> bool {
        self.at_us == other.at_us
    }
}

impl Eq for Release {}

impl PartialOrd for Release {
    fn partial_cmp(&self, other: &Release) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Release {
    fn cmp(&self, other: &Release) -> Ordering {
        self.at_us.cmp(&other.at_us)
    }
}
