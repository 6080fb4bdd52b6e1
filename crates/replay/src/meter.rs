//! Meters: the counts of every key of one window, at three rates at once.
//!
//! Each key has a base count, as if every request were admitted. The most units that it ever shows
//! is the smallest limit that never denies the key. The base count serves all three rates while
//! none of them has denied the key anything. A rate that denies gets its own count (`forks`) until
//! nothing is counted any more. So most requests take one look and one charge, and every count is
//! the proxy's own (`limit::decide`).

mod scale_check;

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use serde::Serialize;
use smallvec::SmallVec;

use crate::limit::calendar::{Boundaries, Moment};
use crate::limit::decide::{Count, FirstPass};
use crate::limit::{Algorithm, Calendar, Retry, Rule, Window};

/// A rate at which a log is replayed, relative to the limit's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Half,
    Own,
    Twice,
}

pub const SCALES: [Scale; 3] = [Scale::Half, Scale::Own, Scale::Twice];

/// A value for each of the three rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rates<T> {
    pub half: T,
    pub own: T,
    pub twice: T,
}

impl<T> Rates<T> {
    pub fn map<U>(&self, each: impl Fn(&T) -> U) -> Rates<U> {
        Rates {
            half: each(&self.half),
            own: each(&self.own),
            twice: each(&self.twice),
        }
    }
}

impl Rates<u64> {
    /// A limit of `units` at each rate: at least 1, at most `most`.
    pub fn scaled(units: u64, most: u64) -> Rates<u64> {
        Rates {
            half: (units / 2).max(1),
            own: units,
            twice: (units * 2).min(most).max(units),
        }
    }
}

impl<T> Index<Scale> for Rates<T> {
    type Output = T;

    fn index(&self, scale: Scale) -> &T {
        match scale {
            Scale::Half => &self.half,
            Scale::Own => &self.own,
            Scale::Twice => &self.twice,
        }
    }
}

impl<T> IndexMut<Scale> for Rates<T> {
    fn index_mut(&mut self, scale: Scale) -> &mut T {
        match scale {
            Scale::Half => &mut self.half,
            Scale::Own => &mut self.own,
            Scale::Twice => &mut self.twice,
        }
    }
}

#[derive(Debug)]
pub struct WindowMeter {
    /// The window's rule, without a bound on its units.
    rule: Rule,
    /// Of a calendar window. All clients have the anchor of the limit.
    calendar: Option<Arc<Calendar>>,
    pub keys: Vec<KeyCounts>,
    /// Indexes into `keys`, by name.
    places: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
pub struct KeyCounts {
    base: Count,
    forks: Option<Box<Rates<Option<Count>>>>,
    /// The key, as `key_spaces` names it. Short names need no heap.
    pub name: SmallVec<[u8; 24]>,
    pub asked: u32,
    /// Requests that the limit's own rate denies.
    pub denied: u32,
    /// Rates that denied the key something.
    pub hit: Rates<bool>,
    /// The smallest limit that would never have denied the key.
    pub need: u32,
    /// The report's row in which the key was last counted.
    pub row: u16,
    /// What all its requests cost, denied ones too, units. Counted for calls of model servers only.
    pub spent: u64,
}

/// The answer of one key's counts before they are charged.
#[derive(Debug)]
pub struct MeterFirstPass {
    base: FirstPass,
    forks: Option<Box<Rates<Option<FirstPass>>>>,
    /// Rates at which this window denies the request.
    pub denies: Rates<bool>,
    /// At the limit's own rate it holds the request.
    pub holds: bool,
}

/// What became of a request at each rate.
#[derive(Clone, Copy, Debug)]
pub struct RateOutcomes {
    pub allowed: Rates<bool>,
    /// How long it is held, microseconds; 0 for most.
    pub waits_us: Rates<u64>,
}

#[derive(Clone, Copy, Debug)]
pub struct MeterCharge {
    /// The key's index.
    pub place: u32,
    /// Units, before they are lowered to what a limit holds.
    pub cost: u64,
    /// The units that are charged at each rate.
    pub costs: Rates<u64>,
    /// The window's limit at each rate.
    pub units: Rates<u64>,
    /// The cost is a guess that is lowered to what the limit holds.
    pub is_lowered: bool,
}

impl MeterCharge {
    /// A charge that is the same at each rate.
    pub fn new(place: u32, cost: u64, units: Rates<u64>) -> MeterCharge {
        MeterCharge {
            place,
            cost,
            costs: Rates {
                half: cost,
                own: cost,
                twice: cost,
            },
            units,
            is_lowered: false,
        }
    }
}

/// Names a charge in each count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamps {
    base: u64,
    forks: Rates<Option<u64>>,
}

impl WindowMeter {
    pub fn new(window: &Arc<Window>) -> WindowMeter {
        let rule = window.rule;
        WindowMeter {
            rule: with_units(rule, rule.algorithm.max_count()),
            calendar: window.calendar.clone(),
            keys: Vec::new(),
            places: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub fn algorithm(&self) -> Algorithm {
        self.rule.algorithm
    }

    fn moment(&self, now_us: u64) -> Moment {
        let span = self.calendar.as_ref().map(|one| one.span(None, now_us));
        Moment {
            now_us,
            boundaries: span.map(|span| Boundaries {
                end_us: span.end_us,
                next_end_us: span.next_end_us,
            }),
        }
    }

    /// Finds or adds a key. Returns its index.
    pub fn place(&mut self, name: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(name);
        let is_key = |place: &u32| self.keys[*place as usize].name.as_slice() == name;
        if let Some(place) = self.places.find(hash, is_key) {
            return *place;
        }
        let place = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.keys.push(KeyCounts {
            base: Count::new(self.rule.algorithm),
            forks: None,
            name: SmallVec::from_slice(name),
            asked: 0,
            denied: 0,
            hit: Rates::default(),
            need: 0,
            row: 0,
            spent: 0,
        });
        let (keys, hasher) = (&self.keys, &self.hasher);
        let hash_of = |place: &u32| hasher.hash_one(keys[*place as usize].name.as_slice());
        self.places.insert_unique(hash, place, hash_of);
        place
    }

    /// First pass: the rates at which this window alone denies the request.
    pub fn first_pass(&mut self, charge: &MeterCharge, now_us: u64) -> MeterFirstPass {
        let at = self.moment(now_us);
        let key = &mut self.keys[charge.place as usize];
        let base = key.base.first_pass(&self.rule, charge.cost, at);
        let used = base.used();
        if used == 0 && key.forks.is_some() {
            key.drop_empty_forks(&self.rule, now_us);
        }
        let need = match charge.is_lowered && used == 0 {
            // Any limit allows it.
            true => charge.cost.min(1),
            false => used.saturating_add(charge.cost),
        };
        key.note_need(need);
        key.asked = key.asked.saturating_add(1);
        let denies = |scale| used.saturating_add(charge.costs[scale]) > charge.units[scale];
        let mut first = MeterFirstPass {
            base,
            forks: None,
            holds: false,
            denies: Rates {
                half: denies(Scale::Half),
                own: denies(Scale::Own),
                twice: denies(Scale::Twice),
            },
        };
        if let Some(forks) = &key.forks {
            let forks_first = first.forks.get_or_insert_default();
            for scale in SCALES {
                if let Some(fork) = &forks[scale] {
                    let rule = with_units(self.rule, charge.units[scale]);
                    let fork_first = fork.first_pass(&rule, charge.costs[scale], at);
                    first.denies[scale] = fork_first.retry != Retry::Now;
                    forks_first[scale] = Some(fork_first);
                }
            }
        }
        first
    }

    /// Second pass: charges at each rate that allows the whole request. Notes the result in the
    /// statistics of the key.
    pub fn settle(
        &mut self,
        charge: &MeterCharge,
        first: &MeterFirstPass,
        outcomes: &RateOutcomes,
        row: usize,
    ) -> Stamps {
        let mut stamps = Stamps::default();
        let same = |scale: &Scale| outcomes.allowed[*scale] && outcomes.waits_us[*scale] == 0;
        let all_allow = SCALES.iter().all(same);
        let is_lowered = charge.is_lowered && SCALES.iter().any(|scale| charge.lowers(*scale));
        let key = &mut self.keys[charge.place as usize];
        key.row = u16::try_from(row).unwrap_or(0);
        key.denied = key.denied.saturating_add(u32::from(first.denies.own));
        for scale in SCALES {
            key.hit[scale] |= first.denies[scale];
        }
        if !all_allow || is_lowered || key.forks.is_some() {
            stamps.forks = key.settle_forks(self.rule, charge, first, outcomes);
        }
        let most = self.rule.algorithm.max_count();
        let cost = charge.cost.min(most.saturating_sub(first.base.used()));
        stamps.base = key.base.settle_quietly(&self.rule, cost, &first.base, true);
        stamps
    }

    /// Refunds a charge at each rate that allowed it.
    pub fn refund(
        &mut self,
        charge: &MeterCharge,
        stamps: &Stamps,
        allowed: &Rates<bool>,
        now_us: u64,
    ) {
        let key = &mut self.keys[charge.place as usize];
        key.base
            .refund(&self.rule, charge.cost, stamps.base, now_us);
        for scale in SCALES {
            let forks = key.forks.as_mut();
            if let Some(fork) = forks.and_then(|forks| forks[scale].as_mut())
                && allowed[scale]
            {
                let stamp = stamps.forks[scale].unwrap_or(stamps.base);
                let rule = with_units(self.rule, charge.units[scale]);
                fork.refund(&rule, charge.cost, stamp, now_us);
            }
        }
    }

    /// Settles a charge at each rate that allowed it: gives the rest back, or charges more.
    pub fn adjust(&mut self, one: &Adjusted<'_>, now_us: u64) {
        let (charge, settled) = (one.charge, one.settled);
        let key = &mut self.keys[charge.place as usize];
        for scale in SCALES {
            let rule = with_units(self.rule, charge.units[scale]);
            let forks = key.forks.as_mut();
            let fork = forks.and_then(|forks| forks[scale].as_mut());
            let stamp = one.stamps.forks[scale].unwrap_or(one.stamps.base);
            match fork {
                Some(fork) if one.allowed[scale] => {
                    let change = CostChange::new(charge.costs[scale], settled);
                    change.apply(fork, &rule, stamp, now_us);
                }
                // The base count will hold units that this rate has not.
                None if !one.allowed[scale] && settled > charge.cost => {
                    let fork = key.base.clone();
                    key.forks.get_or_insert_default()[scale] = Some(fork);
                }
                _ => {}
            }
        }
        let change = CostChange::new(charge.cost, settled);
        change.apply(&mut key.base, &self.rule, one.stamps.base, now_us);
        // A limit that holds less would be overdrawn.
        key.note_need(key.base.used(&self.rule, now_us));
        key.spent = key.spent.saturating_add(settled);
    }

    /// Forgets idle keys that no rate ever denied; where these are too few, also the keys that
    /// needed least. Calls `each` with each forgotten key. Returns the new index of each old one.
    pub fn forget(&mut self, now_us: u64, mut each: impl FnMut(&KeyCounts)) -> Vec<Option<u32>> {
        let half = self.keys.len() / 2;
        let rule = self.rule;
        let is_dull = |key: &KeyCounts| key.base.empty_at_us(&rule) <= now_us && !key.hit.half;
        let mut least = 0;
        if self.keys.iter().filter(|key| is_dull(key)).count() < half / 2 {
            let mut needs: Vec<u32> = self.keys.iter().map(|key| key.need).collect();
            let (_, median, _) = needs.select_nth_unstable(half);
            least = *median;
        }
        let mut places = Vec::with_capacity(self.keys.len());
        let mut kept: u32 = 0;
        self.keys.retain(|key| {
            // A key that holds slots is never forgotten.
            let is_forgotten =
                is_dull(key) || key.need <= least && rule.algorithm != Algorithm::Slots;
            if is_forgotten {
                each(key);
                places.push(None);
            } else {
                places.push(Some(kept));
                kept += 1;
            }
            !is_forgotten
        });
        let (keys, hasher) = (&self.keys, &self.hasher);
        let hash_of = |place: &u32| hasher.hash_one(keys[*place as usize].name.as_slice());
        self.places.clear();
        for place in 0..kept {
            self.places.insert_unique(hash_of(&place), place, hash_of);
        }
        places
    }
}

impl MeterCharge {
    /// Whether the limit at this rate holds less than the cost.
    fn lowers(&self, scale: Scale) -> bool {
        self.costs[scale] != self.cost
    }
}

/// The end of a call of a model server.
#[derive(Clone, Copy, Debug)]
pub struct Adjusted<'c> {
    pub charge: &'c MeterCharge,
    pub stamps: &'c Stamps,
    /// The rates that allowed the charge.
    pub allowed: &'c Rates<bool>,
    /// The units that it costs in the end.
    pub settled: u64,
}

/// What a settlement does to a count.
#[derive(Clone, Copy, Debug)]
enum CostChange {
    More(u64),
    Less(u64),
}

impl CostChange {
    fn new(charged: u64, settled: u64) -> CostChange {
        match settled.checked_sub(charged) {
            Some(more) => CostChange::More(more),
            None => CostChange::Less(charged - settled),
        }
    }

    fn apply(self, count: &mut Count, rule: &Rule, stamp: u64, now_us: u64) {
        match self {
            CostChange::More(0) => {}
            CostChange::More(units) => count.charge_more(rule, units, now_us),
            CostChange::Less(units) => count.refund(rule, units, stamp, now_us),
        }
    }
}

impl KeyCounts {
    fn note_need(&mut self, need: u64) {
        self.need = self.need.max(u32::try_from(need).unwrap_or(u32::MAX));
    }

    /// Drops the forks that hold nothing. The base count is empty, so it serves their rates.
    fn drop_empty_forks(&mut self, rule: &Rule, now_us: u64) {
        let Some(forks) = &mut self.forks else {
            return;
        };
        for scale in SCALES {
            if forks[scale]
                .as_ref()
                .is_some_and(|fork| fork.used(rule, now_us) == 0)
            {
                forks[scale] = None;
            }
        }
        if SCALES.iter().all(|scale| forks[*scale].is_none()) {
            self.forks = None;
        }
    }

    /// Charges the rates that have their own count, and forks a count for each rate that denies.
    fn settle_forks(
        &mut self,
        rule: Rule,
        charge: &MeterCharge,
        first: &MeterFirstPass,
        outcomes: &RateOutcomes,
    ) -> Rates<Option<u64>> {
        let mut stamps = Rates::default();
        for scale in SCALES {
            let rule = with_units(rule, charge.units[scale]);
            let of_fork = first.forks.as_ref().and_then(|forks| forks[scale].as_ref());
            let fork = self.forks.as_mut().and_then(|forks| forks[scale].as_mut());
            let (allowed, wait_us) = (outcomes.allowed[scale], outcomes.waits_us[scale]);
            let cost = charge.costs[scale];
            let settle = |fork: &mut Count, first: &FirstPass| match wait_us {
                0 => fork.settle_quietly(&rule, cost, first, allowed),
                _ => fork.book(&rule, cost, first, wait_us).stamp,
            };
            if let (Some(of_fork), Some(fork)) = (of_fork, fork) {
                stamps[scale] = Some(settle(fork, of_fork));
            } else if (!allowed || wait_us > 0 || charge.lowers(scale)) && charge.cost > 0 {
                let mut fork = self.base.clone();
                stamps[scale] = Some(settle(&mut fork, &first.base));
                self.forks.get_or_insert_default()[scale] = Some(fork);
            }
        }
        stamps
    }
}

fn with_units(rule: Rule, units: u64) -> Rule {
    Rule { units, ..rule }
}
