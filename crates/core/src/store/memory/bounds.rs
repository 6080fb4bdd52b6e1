//! The keys and bytes that the embedded store and its limits hold, their bounds, and the choice of
//! a limit to evict from when the store is full.
//!
//! Limits share the store fairly. A charge that passes a bound takes a key of its own limit, if
//! that limit holds more than its fair share. Else it takes one of the limit that holds most. So a
//! flood of keys on one limit costs keys of that limit, and clients of other limits stay limited.
//!
//! Names of limits are never forgotten, so they are bounded. After `MAX_NUMBERS` names of limits or
//! windows, by reloads, all further ones are counted together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::config::StoreSettings;
use crate::limit::{Charge, LimitCheck, Rule};

/// Limits, and windows of limits, with numbers of their own.
const MAX_NUMBERS: usize = 1024;
/// The number that all further limits or windows share.
const OTHERS: u16 = MAX_NUMBERS as u16 - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::store) struct WindowNumber(u16);

impl Default for WindowNumber {
    /// The number of windows without one of their own.
    fn default() -> WindowNumber {
        WindowNumber(OTHERS)
    }
}

/// A window as the file of counts describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct WindowDescription {
    pub(in crate::store) identity: u128,
    pub(in crate::store) rule: Rule,
    /// The name of its limit.
    pub(in crate::store) limit: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitNumber(u16);

/// The bound that the store has passed.
#[derive(Clone, Copy, Debug)]
pub(super) enum PassedBound {
    Keys,
    Bytes,
}

/// How a key may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EvictionClass {
    /// Its client may still pass: forgotten first.
    Open,
    /// Its client is denied, or would be next: forgotten if its limit has no open key.
    AtLimit,
    /// It counts requests under way and is never forgotten: that would admit others beside them.
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EvictionList {
    pub(super) limit: LimitNumber,
    pub(super) class: EvictionClass,
}

#[derive(Debug, Default)]
struct HeldTotals {
    keys: AtomicUsize,
    bytes: AtomicUsize,
}

impl HeldTotals {
    /// Adds the differences, which may be negative: two's complement wraps around.
    fn add(&self, keys: isize, bytes: isize) {
        self.keys.fetch_add(keys as usize, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
    }

    fn get(&self, bound: PassedBound) -> usize {
        match bound {
            PassedBound::Keys => self.keys.load(Ordering::Relaxed),
            PassedBound::Bytes => self.bytes.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Default)]
struct LimitHolding {
    name: OnceLock<Arc<str>>,
    held: HeldTotals,
    evicted: AtomicU64,
    evicted_at_limit: AtomicU64,
    evicted_units: AtomicU64,
}

/// The losses of one limit because the store was full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions {
    /// The limit's name; empty for limits without a number of their own.
    pub limit: Arc<str>,
    pub keys: u64,
    /// Keys of these that were at their limit.
    pub at_limit: u64,
    /// Units that counted in all of them.
    pub units: u64,
}

#[derive(Clone, Copy, Debug)]
struct NumberedWindow {
    identity: u128,
    limit: LimitNumber,
    rule: Rule,
}

#[derive(Debug, Default)]
struct Numbers {
    windows: HashMap<u128, WindowNumber>,
    limits: HashMap<Arc<str>, LimitNumber>,
}

#[derive(Debug)]
pub(super) struct MemoryBounds {
    held: HeldTotals,
    max: HeldTotals,
    numbers: RwLock<Numbers>,
    windows: Box<[OnceLock<NumberedWindow>]>,
    holdings: Box<[LimitHolding]>,
    /// Holdings that have a name so far.
    named: AtomicUsize,
}

impl MemoryBounds {
    pub(super) fn new(settings: &StoreSettings) -> MemoryBounds {
        let bounds = MemoryBounds {
            held: HeldTotals::default(),
            max: HeldTotals::default(),
            numbers: RwLock::default(),
            windows: (0..MAX_NUMBERS).map(|_| OnceLock::new()).collect(),
            holdings: (0..MAX_NUMBERS).map(|_| LimitHolding::default()).collect(),
            named: AtomicUsize::new(0),
        };
        bounds.set(settings);
        bounds
    }

    pub(super) fn set(&self, settings: &StoreSettings) {
        let max_keys = settings.max_keys.max(1);
        self.max.keys.store(max_keys, Ordering::Relaxed);
        self.max.bytes.store(settings.max_memory, Ordering::Relaxed);
    }

    pub(super) fn keys(&self) -> usize {
        self.held.get(PassedBound::Keys)
    }

    pub(super) fn bytes(&self) -> usize {
        self.held.get(PassedBound::Bytes)
    }

    pub(super) fn add(&self, window: WindowNumber, keys: isize, bytes: isize) {
        self.held.add(keys, bytes);
        self.holding(self.limit_of(window)).held.add(keys, bytes);
    }

    pub(super) fn passed(&self) -> Option<PassedBound> {
        let is_passed = |bound: &PassedBound| self.held.get(*bound) > self.max.get(*bound);
        [PassedBound::Keys, PassedBound::Bytes]
            .into_iter()
            .find(is_passed)
    }

    /// Whether a bound is passed by an eighth and so many keys or bytes more. Then memory is more
    /// important than fairness.
    pub(super) fn is_far_passed(&self, keys: usize, bytes: usize) -> bool {
        let is_far = |bound, least: usize| {
            let max = self.max.get(bound);
            self.held.get(bound) > max + max / 8 + least
        };
        is_far(PassedBound::Keys, keys) || is_far(PassedBound::Bytes, bytes)
    }

    /// The number of an item's window. A window without a number gets the next one.
    pub(super) fn window_of(&self, item: &LimitCheck, rule: &Rule) -> WindowNumber {
        let identity = item.window.identity;
        let numbers = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = numbers.windows.get(&identity) {
            return *number;
        }
        drop(numbers);
        self.number_window(&WindowDescription {
            identity,
            rule: *rule,
            limit: Arc::clone(&item.limit.name),
        })
    }

    pub(super) fn number_window(&self, window: &WindowDescription) -> WindowNumber {
        let WindowDescription {
            identity,
            rule,
            limit,
        } = window;
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = numbers.windows.get(identity) {
            return *number;
        }
        let limit = self.number_of(&mut numbers, limit);
        let number = next_number(numbers.windows.len());
        if number < OTHERS {
            let window = NumberedWindow {
                identity: *identity,
                limit,
                rule: *rule,
            };
            let _ = self.windows[usize::from(number)].set(window);
            numbers.windows.insert(*identity, WindowNumber(number));
        }
        WindowNumber(number)
    }

    /// The window with a number of its own.
    pub(super) fn describe(&self, number: WindowNumber) -> Option<WindowDescription> {
        let window = self.windows[usize::from(number.0)].get()?;
        let name = self.holding(window.limit).name.get();
        Some(WindowDescription {
            identity: window.identity,
            rule: window.rule,
            limit: name.cloned().unwrap_or_default(),
        })
    }

    fn number_of(&self, numbers: &mut Numbers, name: &Arc<str>) -> LimitNumber {
        if let Some(number) = numbers.limits.get(name) {
            return *number;
        }
        let number = next_number(numbers.limits.len());
        if number < OTHERS {
            let _ = self.holdings[usize::from(number)]
                .name
                .set(Arc::clone(name));
            numbers.limits.insert(Arc::clone(name), LimitNumber(number));
            self.named.store(numbers.limits.len(), Ordering::Relaxed);
        }
        LimitNumber(number)
    }

    pub(super) fn limit_of(&self, window: WindowNumber) -> LimitNumber {
        let window = self.windows[usize::from(window.0)].get();
        window.map_or(LimitNumber(OTHERS), |window| window.limit)
    }

    /// The rule by which counts of a window age; `None` for windows without a number of their own.
    pub(super) fn rule_of(&self, window: WindowNumber) -> Option<Rule> {
        let window = self.windows[usize::from(window.0)].get()?;
        Some(window.rule)
    }

    fn holding(&self, limit: LimitNumber) -> &LimitHolding {
        &self.holdings[usize::from(limit.0)]
    }

    /// The limit that loses the next key after `charge` has passed `bound`. Looks at each limit
    /// once.
    pub(super) fn limit_to_evict(
        &self,
        charge: &Charge,
        bound: PassedBound,
    ) -> Option<LimitNumber> {
        let named = self.named.load(Ordering::Relaxed) as u16;
        let held = |limit: LimitNumber| self.holding(limit).held.get(bound);
        let holders = (0..named).chain(std::iter::once(OTHERS)).map(LimitNumber);
        let holders = holders.filter(|limit| held(*limit) > 0);
        let (count, total) = holders.clone().fold((0, 0), |(count, total), limit| {
            (count + 1, total + held(limit))
        });
        let fair = total / count.max(1);
        let own = charge
            .iter()
            .map(|item| self.limit_of(self.window_of(item, &item.window.rule)))
            .find(|limit| held(*limit) > fair);
        own.or_else(|| holders.max_by_key(|limit| held(*limit)))
    }

    pub(super) fn note_evicted(&self, list: EvictionList, units: u64) {
        let holding = self.holding(list.limit);
        holding.evicted.fetch_add(1, Ordering::Relaxed);
        holding.evicted_units.fetch_add(units, Ordering::Relaxed);
        if list.class == EvictionClass::AtLimit {
            holding.evicted_at_limit.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The losses of each limit, most keys first. Limits without losses are left out.
    pub(super) fn evictions(&self) -> Vec<Evictions> {
        let lost = self.holdings.iter().map(|holding| Evictions {
            limit: holding.name.get().cloned().unwrap_or_default(),
            keys: holding.evicted.load(Ordering::Relaxed),
            at_limit: holding.evicted_at_limit.load(Ordering::Relaxed),
            units: holding.evicted_units.load(Ordering::Relaxed),
        });
        let mut lost: Vec<Evictions> = lost.filter(|lost| lost.keys > 0).collect();
        lost.sort_by_key(|lost| std::cmp::Reverse(lost.keys));
        lost
    }
}

fn next_number(taken: usize) -> u16 {
    u16::try_from(taken).unwrap_or(OTHERS).min(OTHERS)
}
