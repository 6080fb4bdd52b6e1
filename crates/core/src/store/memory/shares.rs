//! How much of the embedded store each limit holds, and which limit pays when the store is full.
//!
//! Limits share the store fairly. A charge that brings the store above a bound pays from its own
//! limit where that holds more than its fair share; else the limit that holds most pays. So a flood
//! of keys on one limit costs keys of that limit, and clients of other limits stay limited.
//!
//! Names are never forgotten, so they are bounded: a process whose reloads have named more limits
//! or windows than `MOST` counts all further ones together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::limit::{LimitCheck, Rule};

/// Limits, and windows of limits, that are told apart; the last number stands for all others.
const MOST: usize = 1024;

/// The number of a window of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowNumber(u16);

/// The number of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitNumber(pub(super) u16);

/// The bound that the store has passed.
#[derive(Clone, Copy, Debug)]
pub(super) enum PassedBound {
    Keys,
    Bytes,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct MemoryShares {
    numbers: RwLock<Numbers>,
    windows: Box<[OnceLock<SeenWindow>]>,
    holdings: Box<[Holding]>,
    /// Holdings that have a name so far.
    named: AtomicUsize,
}

#[derive(Debug, Default)]
struct Numbers {
    windows: HashMap<u128, WindowNumber>,
    limits: HashMap<Arc<str>, LimitNumber>,
}

/// What eviction must know of a window.
#[derive(Clone, Copy, Debug)]
struct SeenWindow {
    limit: LimitNumber,
    rule: Rule,
}

/// What one limit holds, and what was taken from it.
#[derive(Debug, Default)]
pub(super) struct Holding {
    name: OnceLock<Arc<str>>,
    pub(super) keys: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    evicted: AtomicU64,
    forgiven: AtomicU64,
    forgiven_units: AtomicU64,
}

/// What one limit has lost because the store was full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions {
    /// Its name; empty for the limits beyond those that are told apart.
    pub limit: Arc<str>,
    /// Keys forgotten before they had expired.
    pub keys: u64,
    /// Those of them that were at their limit.
    pub at_limit: u64,
    /// Units that counted in all of them.
    pub units: u64,
}

impl Default for MemoryShares {
    fn default() -> MemoryShares {
        MemoryShares {
            numbers: RwLock::default(),
            windows: (0..MOST).map(|_| OnceLock::new()).collect(),
            holdings: (0..MOST).map(|_| Holding::default()).collect(),
            named: AtomicUsize::new(0),
        }
    }
}

impl MemoryShares {
    /// The number of an item's window, which is given one if it has none.
    pub(super) fn window_of(&self, item: &LimitCheck, rule: &Rule) -> WindowNumber {
        let identity = item.window.identity;
        let numbers = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = numbers.windows.get(&identity) {
            return *number;
        }
        drop(numbers);
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = numbers.windows.get(&identity) {
            return *number;
        }
        let limit = self.number_of(&mut numbers, &item.limit.name);
        let place = numbers.windows.len().min(MOST - 1);
        let number = WindowNumber(u16::try_from(place).unwrap_or(u16::MAX));
        if place < MOST - 1 {
            let _ = self.windows[place].set(SeenWindow { limit, rule: *rule });
            numbers.windows.insert(identity, number);
        }
        number
    }

    fn number_of(&self, numbers: &mut Numbers, name: &Arc<str>) -> LimitNumber {
        if let Some(number) = numbers.limits.get(name) {
            return *number;
        }
        let place = numbers.limits.len().min(MOST - 1);
        let number = LimitNumber(u16::try_from(place).unwrap_or(u16::MAX));
        if place < MOST - 1 {
            let _ = self.holdings[place].name.set(Arc::clone(name));
            numbers.limits.insert(Arc::clone(name), number);
            self.named.store(place + 1, Ordering::Relaxed);
        }
        number
    }

    /// The limit that a window belongs to.
    pub(super) fn limit_of(&self, window: WindowNumber) -> LimitNumber {
        let seen = self.windows[usize::from(window.0)].get();
        seen.map_or(LimitNumber((MOST - 1) as u16), |seen| seen.limit)
    }

    /// The rule by which counts of a window age; `None` for windows beyond those told apart.
    pub(super) fn rule_of(&self, window: WindowNumber) -> Option<Rule> {
        let seen = self.windows[usize::from(window.0)].get()?;
        Some(seen.rule)
    }

    pub(super) fn holding(&self, limit: LimitNumber) -> &Holding {
        &self.holdings[usize::from(limit.0)]
    }

    /// The limit whose key goes next, where a charge of limits `own` has passed `bound`. Looks at
    /// each limit once.
    pub(super) fn payer(&self, own: &[LimitNumber], bound: PassedBound) -> Option<LimitNumber> {
        let (mut most, mut sharing, mut all) = (None::<(usize, LimitNumber)>, 0, 0);
        let named = self.named.load(Ordering::Relaxed);
        let others = std::iter::once(MOST - 1);
        for place in (0..named).chain(others) {
            let (number, holding) = (place as u16, &self.holdings[place]);
            let held = holding.held(bound);
            if held == 0 {
                continue;
            }
            (sharing, all) = (sharing + 1, all + held);
            if most.is_none_or(|(most, _)| held > most) {
                most = Some((held, LimitNumber(number)));
            }
        }
        let fair = all / sharing.max(1);
        let above = |limit: &&LimitNumber| self.holding(**limit).held(bound) > fair;
        let own = own.iter().find(above).copied();
        own.or(most.map(|(_, limit)| limit))
    }

    /// What each limit has lost, most keys first; limits that have lost nothing are left out.
    pub(super) fn evictions(&self) -> Vec<Evictions> {
        let lost = self.holdings.iter().map(Holding::evictions);
        let mut lost: Vec<Evictions> = lost.filter(|lost| lost.keys > 0).collect();
        lost.sort_by_key(|lost| std::cmp::Reverse(lost.keys));
        lost
    }
}

impl Holding {
    fn held(&self, bound: PassedBound) -> usize {
        match bound {
            PassedBound::Keys => self.keys.load(Ordering::Relaxed),
            PassedBound::Bytes => self.bytes.load(Ordering::Relaxed),
        }
    }

    pub(super) fn note_evicted(&self, at_limit: bool, units: u64) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.forgiven_units.fetch_add(units, Ordering::Relaxed);
        if at_limit {
            self.forgiven.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn evictions(&self) -> Evictions {
        Evictions {
            limit: self.name.get().cloned().unwrap_or_default(),
            keys: self.evicted.load(Ordering::Relaxed),
            at_limit: self.forgiven.load(Ordering::Relaxed),
            units: self.forgiven_units.load(Ordering::Relaxed),
        }
    }
}
