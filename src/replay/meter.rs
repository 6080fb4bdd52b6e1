//! Meters: what is counted for every key of one window, at three rates at once.
//!
//! Each key has the count that it would have if everything were admitted: the most units it ever
//! shows is the smallest rate at which that key is never denied. The same count serves all three
//! rates for as long as none of them has denied the key anything. When one does, it gets a count
//! of its own (`Forks`), which ends when nothing counts any more: it holds only what the first
//! one holds too. So most requests are one look and one charge, and every count is the proxy's own
//! (`limit::decide`).

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::hash::BuildHasher;
use std::net::Ipv4Addr;

use super::rates::{RATES, Rates};
use crate::limit::decide::{Count, FirstPass};
use crate::limit::rate::MAX_UNITS;
use crate::limit::{Algorithm, Retry, Rule};

/// What a key is, as it is counted: short ones stay where they are.
pub type Name = SmallVec<[u8; 24]>;

/// One window's counts.
#[derive(Debug)]
pub struct Meter {
    /// The window's rule, without a bound on its units.
    rule: Rule,
    entries: Vec<Entry>,
    places: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Where addresses are that came lately, each at a place of its own.
    recent: Vec<(Ipv4Addr, u32)>,
}

/// Addresses whose places are remembered; a power of two.
const RECENT: usize = 8192;
/// No place.
const NOWHERE: u32 = u32::MAX;

/// One key.
#[derive(Debug)]
pub struct Entry {
    base: Count,
    forks: Option<Box<Forks>>,
    /// What it is.
    pub name: Name,
    /// Requests that asked.
    pub asked: u32,
    /// Those that would be denied at the limit's own rate.
    pub denied: u32,
    /// Which rates would have denied it something.
    pub hit: Rates<bool>,
    /// The smallest limit at which it would never have been denied anything.
    pub need: u32,
    /// The row it was last counted in.
    pub row: u16,
}

type Forks = Rates<Option<Count>>;

/// What a key's counts say of one request, before they are charged.
#[derive(Debug)]
pub struct Looked {
    base: FirstPass,
    forks: Option<Box<Rates<Option<FirstPass>>>>,
    /// Which rates deny it, as far as this window goes.
    pub denies: Rates<bool>,
}

/// One request's part in a meter.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The key's place.
    pub place: u32,
    /// Units asked for.
    pub cost: u64,
    /// What the window's limit is at each rate.
    pub units: Rates<u64>,
}

/// What names a charge in each count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamps {
    base: u64,
    forks: Rates<Option<u64>>,
}

impl Meter {
    /// Nothing counted yet.
    pub fn new(rule: Rule) -> Meter {
        Meter {
            rule: Rule {
                units: MAX_UNITS,
                ..rule
            },
            entries: Vec::new(),
            places: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            recent: Vec::new(),
        }
    }

    /// How units are remembered.
    pub fn algorithm(&self) -> Algorithm {
        self.rule.algorithm
    }

    /// Every key.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The place of the key that is this address alone, where it came lately.
    pub fn recent(&self, ip: Ipv4Addr) -> Option<u32> {
        let (known, place) = *self.recent.get(slot(ip))?;
        (known == ip && place != NOWHERE).then_some(place)
    }

    /// The place of the key `name`, which is this address alone; made if there is none.
    pub fn place_of(&mut self, ip: Ipv4Addr, name: &[u8]) -> u32 {
        let place = self.place(name);
        if self.recent.is_empty() {
            self.recent = vec![(Ipv4Addr::UNSPECIFIED, NOWHERE); RECENT];
        }
        self.recent[slot(ip)] = (ip, place);
        place
    }

    /// The place of a key, made if there is none.
    pub fn place(&mut self, name: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(name);
        let entries = &self.entries;
        let found = self.places.find(hash, |place| {
            entries[*place as usize].name.as_slice() == name
        });
        if let Some(place) = found {
            return *place;
        }
        let place = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push(Entry {
            base: Count::new(self.rule.algorithm),
            forks: None,
            name: Name::from_slice(name),
            asked: 0,
            denied: 0,
            hit: Rates::default(),
            need: 0,
            row: 0,
        });
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.places.insert_unique(hash, place, |place| {
            hasher.hash_one(entries[*place as usize].name.as_slice())
        });
        place
    }

    /// First pass: which rates deny the request, in this window alone.
    pub fn look(&mut self, ask: &Ask, now_us: u64) -> Looked {
        let entry = &mut self.entries[ask.place as usize];
        let base = entry.base.look(&self.rule, ask.cost, now_us);
        let used = base.used();
        if used == 0 {
            // What the forks hold, the first count holds too.
            entry.forks = None;
        }
        let need = used.saturating_add(ask.cost);
        entry.need = entry.need.max(u32::try_from(need).unwrap_or(u32::MAX));
        entry.asked = entry.asked.saturating_add(1);
        let mut looked = Looked {
            base,
            forks: None,
            denies: ask.units.map(|units| need > *units),
        };
        if let Some(forks) = &entry.forks {
            let looks = looked.forks.get_or_insert_default();
            for rate in RATES {
                if let Some(fork) = &forks[rate] {
                    let rule = of_units(self.rule, ask.units[rate]);
                    let look = fork.look(&rule, ask.cost, now_us);
                    looked.denies[rate] = look.retry != Retry::Now;
                    looks[rate] = Some(look);
                }
            }
        }
        looked
    }

    /// Second pass: charges at each rate at which the whole request is allowed.
    pub fn settle(&mut self, ask: &Ask, looked: &Looked, allowed: &Rates<bool>) -> Stamps {
        let mut stamps = Stamps::default();
        let agrees = allowed.half && allowed.own && allowed.twice;
        let entry = &mut self.entries[ask.place as usize];
        if !agrees || entry.forks.is_some() {
            stamps.forks = entry.settle_forks(self.rule, ask, looked, allowed);
        }
        let room = MAX_UNITS.saturating_sub(looked.base.used());
        let cost = ask.cost.min(room);
        stamps.base = entry
            .base
            .settle_quietly(&self.rule, cost, &looked.base, true);
        stamps
    }

    /// Takes back what was charged at each rate that allowed it.
    pub fn give_back(&mut self, ask: &Ask, stamps: &Stamps, allowed: &Rates<bool>, now_us: u64) {
        let entry = &mut self.entries[ask.place as usize];
        entry
            .base
            .give_back(&self.rule, ask.cost, stamps.base, now_us);
        for rate in RATES {
            let forks = entry.forks.as_mut();
            if let Some(fork) = forks.and_then(|forks| forks[rate].as_mut())
                && allowed[rate]
            {
                let stamp = stamps.forks[rate].unwrap_or(stamps.base);
                let rule = of_units(self.rule, ask.units[rate]);
                fork.give_back(&rule, ask.cost, stamp, now_us);
            }
        }
    }

    /// Notes for a key what a request met.
    pub fn note(&mut self, place: u32, row: u16, denies: &Rates<bool>) {
        let entry = &mut self.entries[place as usize];
        entry.row = row;
        if denies.own {
            entry.denied = entry.denied.saturating_add(1);
        }
        for rate in RATES {
            entry.hit[rate] |= denies[rate];
        }
    }

    /// Forgets keys in which nothing counts at `now_us`, and of those the ones that no rate ever
    /// denied anything; or, where that is not enough, whoever needed least. Tells `each` of whoever
    /// is forgotten, and returns where the others went.
    pub fn forget(&mut self, now_us: u64, each: impl FnMut(&Entry)) -> Vec<Option<u32>> {
        let half = self.entries.len() / 2;
        let rule = self.rule;
        let is_idle = |entry: &Entry| entry.base.empty_at_us(&rule) <= now_us;
        let dull = |entry: &Entry| is_idle(entry) && !entry.hit.half;
        let mut most = 0;
        if self.entries.iter().filter(|one| dull(one)).count() < half / 2 {
            // Slots that are held are never forgotten.
            let mut needs: Vec<u32> = self.entries.iter().map(|one| one.need).collect();
            let (_, median, _) = needs.select_nth_unstable(half);
            most = *median;
        }
        self.retain(
            |one| !(dull(one) || one.need <= most && rule.algorithm != Algorithm::Slots),
            each,
        )
    }

    fn retain(
        &mut self,
        keep: impl Fn(&Entry) -> bool,
        mut each: impl FnMut(&Entry),
    ) -> Vec<Option<u32>> {
        let before = std::mem::take(&mut self.entries);
        self.recent.clear();
        let mut places = Vec::with_capacity(before.len());
        for entry in before {
            if keep(&entry) {
                places.push(u32::try_from(self.entries.len()).ok());
                self.entries.push(entry);
            } else {
                each(&entry);
                places.push(None);
            }
        }
        let (entries, hasher) = (&self.entries, &self.hasher);
        let hash = |place: &u32| hasher.hash_one(entries[*place as usize].name.as_slice());
        self.places = HashTable::with_capacity(entries.len());
        for place in places.iter().flatten() {
            self.places.insert_unique(hash(place), *place, hash);
        }
        places
    }

    /// Bytes that all counts take, about.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.places.capacity() * 5
            + self.recent.capacity() * 8
    }
}

impl Entry {
    /// Rates that have counts of their own are charged there, and those that deny get one.
    fn settle_forks(
        &mut self,
        rule: Rule,
        ask: &Ask,
        looked: &Looked,
        allowed: &Rates<bool>,
    ) -> Rates<Option<u64>> {
        let mut stamps = Rates::default();
        for rate in RATES {
            let rule = of_units(rule, ask.units[rate]);
            let look = looked.forks.as_ref().and_then(|looks| looks[rate].as_ref());
            let fork = self.forks.as_mut().and_then(|forks| forks[rate].as_mut());
            if let (Some(look), Some(fork)) = (look, fork) {
                stamps[rate] = Some(fork.settle_quietly(&rule, ask.cost, look, allowed[rate]));
            } else if !allowed[rate] && ask.cost > 0 {
                let mut fork = self.base.clone();
                fork.settle_quietly(&rule, ask.cost, &looked.base, false);
                self.forks.get_or_insert_default()[rate] = Some(fork);
            }
        }
        stamps
    }
}

/// Where an address is remembered.
fn slot(ip: Ipv4Addr) -> usize {
    (ip.to_bits().wrapping_mul(0x9e37_79b1) >> 16) as usize % RECENT
}

fn of_units(rule: Rule, units: u64) -> Rule {
    Rule { units, ..rule }
}
