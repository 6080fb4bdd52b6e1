//! The last answer of a shared store for each key: the units that all proxies had used then, and
//! the units of these that this process had admitted.
//!
//! While the store is away, a proxy admits no more than its part of what was left. A store that
//! answers with fewer units than it must have has lost some, and what it has lost is charged again.
//! Bounded in keys; time is an argument.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fleet::Fleet;
use crate::limit::{Algorithm, LimitCheck, Verdict};

/// Several maps, so that workers seldom wait for each other.
const MAPS: usize = 64;
/// Keys in each map, at most; more are not remembered.
const KEYS: usize = 4_096;
/// How often a full map looks for keys that have expired, microseconds.
const SWEEP_EVERY_US: u64 = 1_000_000;
/// By how much an answer may be out of step with this process's clock, at most, microseconds.
const SLACK_US: u64 = 100_000;

#[derive(Debug)]
pub struct LastAnswers {
    maps: Box<[Mutex<Map>]>,
}

impl Default for LastAnswers {
    fn default() -> LastAnswers {
        LastAnswers {
            maps: (0..MAPS).map(|_| Mutex::default()).collect(),
        }
    }
}

#[derive(Debug, Default)]
struct Map {
    keys: HashMap<u128, LastAnswer>,
    swept_us: u64,
}

/// One key as the store last answered.
#[derive(Clone, Debug)]
pub(super) struct LastAnswer {
    item: LimitCheck,
    /// Units that all proxies had used after the answer.
    used: u64,
    /// Units of these that this process had admitted.
    own: u64,
    /// The most units that others lately used between two answers.
    gap: u64,
    /// When the first unit becomes free, and when the last one expires, by this process's clock.
    next_at_us: u64,
    reset_at_us: u64,
    /// When a calendar window ends, by the store's clock.
    ends_us: u64,
    /// The store's clock at the answer, and this process's.
    store_us: u64,
    now_us: u64,
    /// The store's clock at the latest answer that was compared with this entry. Its units may be
    /// counted in this process before it is noted.
    compared_us: u64,
    /// Until when the store may report fewer units, since its clock has stepped forward.
    aged_until_us: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct StoreAnswer<'a> {
    pub item: &'a LimitCheck,
    pub verdict: &'a Verdict,
    /// Units that the answer has charged.
    pub charged: u64,
    /// Units that this process has admitted within the window, including `charged`.
    pub own: u64,
    /// The store's clock and this process's, microseconds.
    pub store_us: u64,
    pub now_us: u64,
}

/// How long before the end of a window a unit may be missing from an answer.
pub(super) fn slack_us(window_us: u64) -> u64 {
    SLACK_US.min(window_us / 4)
}

impl LastAnswers {
    fn map(&self, id: u128) -> MutexGuard<'_, Map> {
        let map = &self.maps[id as usize % MAPS];
        map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Map>> {
        let lock = |map| Mutex::lock(map).unwrap_or_else(PoisonError::into_inner);
        self.maps.iter().map(lock)
    }

    pub fn note(&self, answer: &StoreAnswer<'_>) {
        self.insert(answer, |_| false);
    }

    /// Notes an answer that was not compared with the one before. A lower number of units must not
    /// hide a loss: the number before stays as long as none of its units can have expired.
    pub fn note_uncompared(&self, answer: &StoreAnswer<'_>) {
        let soon_us = answer.now_us + slack_us(answer.item.window.rule.window_us);
        self.insert(answer, |before| soon_us < before.next_at_us);
    }

    /// Inserts an answer. It keeps the units of the one before if these still stand.
    fn insert(&self, answer: &StoreAnswer<'_>, stands: impl Fn(&LastAnswer) -> bool) {
        let StoreAnswer {
            item,
            verdict,
            now_us,
            ..
        } = *answer;
        let id = item.id();
        let mut map = self.map(id);
        // If costs are settled later, this process's own units would look like those of others.
        let known = map.keys.get(&id).filter(|_| !item.limit.refunds);
        let gap = known.map_or(0, |seen| {
            let grown = verdict.used.saturating_sub(seen.used);
            grown.max(seen.gap - seen.gap.div_ceil(16))
        });
        if !map.keys.contains_key(&id) && !map.has_room(now_us) {
            return;
        }
        let mut seen = LastAnswer {
            item: LimitCheck {
                asker: None,
                cost: 1,
                ..item.clone()
            },
            used: verdict.used + answer.charged,
            own: answer.own,
            gap,
            next_at_us: now_us + verdict.next_us,
            reset_at_us: now_us + verdict.reset_us.max(verdict.next_us),
            ends_us: answer.store_us + verdict.reset_us,
            store_us: answer.store_us,
            now_us,
            compared_us: map.keys.get(&id).map_or(0, |seen| seen.compared_us),
            aged_until_us: map.keys.get(&id).map_or(0, |seen| seen.aged_until_us),
        };
        if let Some(before) = map.keys.get(&id).filter(|before| stands(before)) {
            seen.used = seen.used.max(before.used);
            seen.next_at_us = before.next_at_us;
        }
        map.keys.insert(id, seen);
    }

    /// Notes a decision that this process made by an earlier answer. Newer answers may have been
    /// noted since, so a denial does not change the units that all proxies had used. Those of a
    /// lease count from when this process spends them.
    pub fn note_earlier(&self, answer: &StoreAnswer<'_>) {
        let id = answer.item.id();
        if let Some(seen) = self.map(id).keys.get_mut(&id) {
            seen.own = answer.own;
            if answer.charged > 0 {
                seen.used = seen.used.max(answer.verdict.used + answer.charged);
            }
        }
    }

    /// Whether this process may admit fewer units by an answer than by the last one that was noted.
    /// The first answer does.
    pub fn is_tighter(&self, answer: &StoreAnswer<'_>, fleet: &Fleet) -> bool {
        let units = answer.item.window.rule.units;
        let max_units = |own: u64, used: u64| own + fleet.part_of(units.saturating_sub(used));
        let map = self.map(answer.item.id());
        map.keys.get(&answer.item.id()).is_none_or(|seen| {
            let used = answer.verdict.used + answer.charged;
            max_units(answer.own, used) < max_units(seen.own, seen.used + seen.gap)
        })
    }

    /// Units that the store must have and its answer lacks: 0 if the answer may be right. `own` of
    /// the answer leaves out units that are about to expire. `others` means that other proxies give
    /// no units back. Call it before the answer's units are counted in this process.
    pub fn missing_units(&self, answer: &StoreAnswer<'_>, others: bool) -> u64 {
        let (item, now_us) = (answer.item, answer.now_us);
        let window_us = item.window.rule.window_us;
        let mut map = self.map(item.id());
        let Some(seen) = map.keys.get_mut(&item.id()) else {
            return 0;
        };
        let passed_us = now_us.saturating_sub(seen.now_us);
        let by_store_us = answer.store_us.saturating_sub(seen.store_us);
        if seen.store_us > 0 && by_store_us > passed_us + slack_us(window_us) {
            seen.aged_until_us = now_us + window_us;
        }
        // Answers to other workers, or of the same call, may be newer than this one. `own` has
        // their units, and this answer lacks them.
        let newest_us = seen.store_us.max(seen.compared_us);
        seen.compared_us = newest_us.max(answer.store_us);
        if answer.store_us <= newest_us || now_us < seen.aged_until_us {
            return 0;
        }
        let stands = now_us + slack_us(window_us) < seen.next_at_us;
        // Units above the limit may expire before the first one becomes free.
        let used = seen.used.min(seen.item.window.rule.units);
        let known = match others && stands {
            true => used.max(answer.own),
            false => answer.own,
        };
        known.saturating_sub(answer.verdict.used)
    }

    /// The most units that this process may admit within the window while the store is away. These
    /// are the units that it had admitted, and its part of what was left. `None` if nothing that
    /// still counts is known. A calendar window ends at `ends_us` for the counts of this process,
    /// by the store's clock.
    pub fn max_units(
        &self,
        item: &LimitCheck,
        fleet: &Fleet,
        at: Away,
        ends_us: Option<u64>,
    ) -> Option<u64> {
        if fleet.size() == 1 {
            return None;
        }
        let map = self.map(item.id());
        let seen = map.keys.get(&item.id())?;
        let rule = &item.window.rule;
        // All that the store had admitted came before it went away. A calendar window ends at once.
        let until_us = match rule.algorithm {
            Algorithm::Calendar => seen.reset_at_us,
            _ => at.since_us + rule.window_us,
        };
        // The counts may be in the window of the answer for a moment longer.
        let is_same = ends_us.is_some_and(|ends_us| ends_us <= seen.ends_us + SLACK_US);
        let counts = is_same || seen.reset_at_us > at.since_us && at.now_us < until_us;
        let left = rule.units.saturating_sub(seen.used + seen.gap);
        counts.then(|| seen.own + fleet.part_of(left))
    }

    /// Every key that may still count something.
    pub fn items(&self, now_us: u64) -> Vec<LimitCheck> {
        let live = |seen: &&LastAnswer| seen.reset_at_us > now_us;
        let items_of = |map: MutexGuard<'_, Map>| -> Vec<LimitCheck> {
            let live = map.keys.values().filter(live);
            live.map(|seen| seen.item.clone()).collect()
        };
        self.all().flat_map(items_of).collect()
    }

    pub fn forget(&self, budget: u128) {
        self.map(budget).keys.remove(&budget);
    }

    pub fn clear(&self) {
        self.all().for_each(|mut map| map.keys.clear());
    }

    /// Forgets the store's clock: another server may answer from now on.
    pub fn forget_clock(&self) {
        for mut map in self.all() {
            map.keys.values_mut().for_each(LastAnswer::forget_clock);
        }
    }
}

impl LastAnswer {
    fn forget_clock(&mut self) {
        self.store_us = 0;
        self.compared_us = 0;
    }
}

impl Map {
    fn has_room(&mut self, now_us: u64) -> bool {
        if self.keys.len() < KEYS {
            return true;
        }
        if self.swept_us + SWEEP_EVERY_US <= now_us {
            self.swept_us = now_us;
            self.keys.retain(|_, seen| seen.reset_at_us > now_us);
        }
        self.keys.len() < KEYS
    }
}

/// The time of a decision without the store, and since when the store is away, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Away {
    pub since_us: u64,
    pub now_us: u64,
}

#[cfg(test)]
mod tests;
