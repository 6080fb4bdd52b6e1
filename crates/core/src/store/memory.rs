//! The embedded store: counts in this process, shared by all workers.
//!
//! It makes the same decisions as `lua/decide.lua`, with the same words (`limit::decide`). Keys are
//! spread over shards with a lock each. A charge locks the shards of its items in ascending order,
//! so it is atomic and cannot deadlock. It reads the clock while it holds the locks. A denial that
//! charges nothing may use a time just before.
//!
//! Keys and bytes are bounded. Expired keys go first: one charge of `SWEEP_EVERY` looks at two keys
//! for each of these charges, and drops those that count nothing any more. So no charge pauses for
//! a long cleanup. [`Memory::tidy`] drops expired keys where no charges come.
//!
//! Above a bound, each charge evicts up to `MAX_VICTIMS` keys. Limits share the store. A charge
//! takes keys of its own limit if that limit holds more than its fair share, else of the limit that
//! holds most. Within a limit, keys below their limit go before keys at it, then those with the
//! fewest units that count. A shard has a part of each limit's keys. Where the charge's own shards
//! have no such key, a few others are searched. A charge never evicts its own keys, so a new key
//! always gets in. Keys that hold slots are neither swept nor evicted: there are as many as
//! requests under way.

mod bounds;
mod changes;
mod entry_row;
mod file_counts;
mod shard;
mod stand_in;
#[cfg(test)]
mod tests;
mod unwritten;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::{SmallVec, smallvec};

use super::fleet::Fleet;
use super::hash_key::{CurrentKey, KeyRing};
use super::overrides::MemoryOverrides;
use super::recovery::Recovery;
use super::store_clock::{CheckTime, StoreInstant};
use crate::clock::Micros;
use crate::config::StoreSettings;
use crate::limit::calendar::Moment;
use crate::limit::delay;
use crate::limit::key::KeyHashPrefix;
use crate::limit::{Charge, Decision, KeyHash, LimitCheck, Retry, Window};
use crate::telemetry::decisions::{DecisionLog, Source};
pub use bounds::Evictions;
use bounds::{EvictionClass, EvictionList, LimitNumber, MemoryBounds};
pub(super) use bounds::{WindowDescription, WindowNumber};
pub(super) use file_counts::{CalendarCopy, UnwrittenBudgets};
use shard::{CheckOutcome, KEY_BYTES, PendingCheck, Shard};
use stand_in::DecisionMode;

/// Keys in a shard when the store is full: its index grows at once, and no charge pauses for it.
const SHARD_KEYS: usize = 4096;
const MIN_SHARDS: usize = 64;
const MAX_SHARDS: usize = 1 << 18;
/// Shards that one call of [`Memory::tidy`] looks at, and keys in each of them.
const TIDY_SHARDS: usize = 4;
const TIDY_KEYS: usize = 256;
/// Keys that one charge evicts at most: it bounds its time. A charge adds fewer keys.
const MAX_VICTIMS: usize = 16;
/// Shards beside the charge's own in which a victim is looked for, at most.
const OTHER_SHARDS: usize = 8;
/// The same for a store so small that most shards are empty.
const OTHER_SHARDS_IF_SMALL: usize = 64;
/// How long a calendar window is kept after its end, microseconds.
pub(super) const CALENDAR_KEPT_US: u64 = 86_400_000_000;
/// Clients that [`Memory::find_key_hashes`] returns, about.
const MAX_FOUND: usize = 100;

#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    next_to_tidy: AtomicUsize,
    /// The shard in which a victim is looked for next.
    next_victim: AtomicUsize,
    keys: KeyRing,
    clock: Micros,
    fleet: Arc<Fleet>,
    log: Option<Arc<DecisionLog>>,
    /// This store, as the log names it.
    source: Source,
    bounds: MemoryBounds,
    overrides: MemoryOverrides,
    /// The outages of the store that this one stands in for.
    recovery: Option<Arc<Recovery>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    pub keys: usize,
    /// Bytes their counts take.
    pub bytes: usize,
    /// Keys forgotten before they had expired, to stay within the bounds.
    pub evicted: u64,
    /// Evicted keys that were at their limit.
    pub forgiven: u64,
}

/// A budget ([`LimitCheck::id`]) in two halves, low one first: unlike a `u128` it needs no 16-byte
/// alignment.
type BudgetId = [u64; 2];
type LockedShards<'s> = SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>;

impl Memory {
    /// The store of a proxy that needs no other: every rule as configured.
    pub fn new(
        settings: &StoreSettings,
        keys: KeyRing,
        clock: Micros,
        log: Option<Arc<DecisionLog>>,
    ) -> Memory {
        // As many shards as both bounds let in.
        let fits = settings.max_keys.min(settings.max_memory / KEY_BYTES);
        let shards = (fits / SHARD_KEYS)
            .next_power_of_two()
            .clamp(MIN_SHARDS, MAX_SHARDS);
        let shard = |seed| Mutex::new(Shard::new(seed));
        Memory {
            shards: (1..=shards as u64).map(shard).collect(),
            next_to_tidy: AtomicUsize::new(0),
            next_victim: AtomicUsize::new(0),
            keys,
            clock,
            fleet: Arc::new(Fleet::new(1)),
            log,
            source: Source::Store,
            bounds: MemoryBounds::new(settings),
            overrides: MemoryOverrides::default(),
            recovery: None,
        }
    }

    /// The same store as the substitute of a shared one that is away. It cuts every rule to this
    /// proxy's share of the fleet, and uses what is known of the shared store. Tags are those of
    /// the shared store, so this store's own hash key is never used.
    pub fn stand_in(self, recovery: &Arc<Recovery>) -> Memory {
        Memory {
            fleet: Arc::clone(recovery.fleet()),
            source: Source::Local,
            recovery: Some(Arc::clone(recovery)),
            ..self
        }
    }

    pub fn charge(&self, charge: &Charge) -> Decision {
        self.decide(charge, DecisionMode::Alone)
    }

    /// The same. A request that its limits would deny is charged and held instead, if they hold
    /// requests, and the wait is not above `longest_us`.
    pub fn charge_or_book(&self, charge: &Charge, longest_us: u64) -> Decision {
        let mode = match longest_us {
            0 => DecisionMode::Alone,
            _ => DecisionMode::Book { longest_us },
        };
        self.decide(charge, mode)
    }

    /// The denial of a charge. `None` if it would be allowed: then nothing changes.
    pub fn find_denial(&self, charge: &Charge) -> Option<Decision> {
        let decision = self.decide(charge, DecisionMode::IfDenied);
        (!decision.allowed).then_some(decision)
    }

    pub fn overrides(&self) -> &MemoryOverrides {
        &self.overrides
    }

    pub fn forget(&self, budget: u128) {
        let id = halves(budget);
        let mut shard = self.lock(self.shard_of(id));
        if let Some(place) = shard.find(id) {
            shard.remove(place, &self.bounds);
        }
        if let Some(unwritten) = &mut shard.unwritten {
            unwritten.note_reset(id);
        }
        drop(shard);
        if let Some(recovery) = &self.recovery {
            recovery.last_answers.forget(budget);
        }
    }

    /// Changes the bounds; keys above them go as charges come.
    pub fn rebound(&self, settings: &StoreSettings) {
        self.bounds.set(settings);
    }

    /// Drops some expired keys. It is called a few times a second, does little, and never waits for
    /// a lock.
    pub fn tidy(&self) {
        if self.bounds.keys() == 0 {
            return;
        }
        for _ in 0..TIDY_SHARDS {
            let next = self.next_to_tidy.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
            if let Ok(mut shard) = self.shards[next].try_lock() {
                shard.sweep(TIDY_KEYS, self.clock.now_us(), &self.bounds);
            }
        }
    }

    pub fn hash_key(&self) -> CurrentKey {
        self.keys.current()
    }

    pub fn figures(&self) -> MemoryUsage {
        let lost = self.evictions();
        MemoryUsage {
            keys: self.bounds.keys(),
            bytes: self.bounds.bytes(),
            evicted: lost.iter().map(|lost| lost.keys).sum(),
            forgiven: lost.iter().map(|lost| lost.at_limit).sum(),
        }
    }

    /// The losses of each limit because the store was full, most keys first.
    pub fn evictions(&self) -> Vec<Evictions> {
        self.bounds.evictions()
    }

    /// Clients with a count in one of the windows and a hash that begins with `prefix`. It locks
    /// one shard at a time, for its few thousand keys. For operators, not on the path of a request.
    pub fn find_key_hashes<'w>(
        &self,
        windows: impl Iterator<Item = &'w Window>,
        prefix: &KeyHashPrefix,
    ) -> Vec<KeyHash> {
        let identities: Vec<u128> = windows.map(|window| window.identity).collect();
        let mut found = Vec::new();
        for number in 0..self.shards.len() {
            for budget in self.lock(number).ids().map(joined) {
                // The budget of another window gives a hash that no client has.
                let hashes = identities
                    .iter()
                    .map(|identity| KeyHash((budget ^ identity).to_le_bytes()));
                found.extend(hashes.filter(|hash| prefix.matches(*hash)));
            }
            if found.len() >= MAX_FOUND {
                break;
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn decide(&self, charge: &Charge, mode: DecisionMode) -> Decision {
        match charge.as_slice() {
            [item] => self.decide_one(charge, item, mode),
            _ => self.decide_all(charge, mode),
        }
    }

    /// Does what [`Memory::decide_all`] does, for a request of one item. Most requests have one:
    /// there are no shards to sort, and no second pass over them.
    fn decide_one(&self, charge: &Charge, item: &LimitCheck, mode: DecisionMode) -> Decision {
        let mut shard = self.lock(self.shard_of(id(item)));
        let now_us = self.clock.now_us();
        shard.sweep_in_turn(now_us, &self.bounds);
        let check = self.check(&shard, item, mode, &self.check_time(item, now_us));
        let outcome = match check.first.retry {
            Retry::Now => mode.admitted(),
            _ => mode.refused(|longest_us| {
                delay::wait_us([shard.booking(&check, longest_us)].into_iter())
            }),
        };
        let allowed = outcome != CheckOutcome::Denied;
        if allowed && mode == DecisionMode::IfDenied {
            return Decision::allowed_uncharged(now_us);
        }
        let verdict = shard.settle(&check, outcome, &self.bounds);
        if self.bounds.passed().is_some() {
            self.enforce_bounds(&mut [&mut *shard], charge, now_us);
        }
        let decision = Decision {
            allowed,
            at_us: now_us,
            spread_us: 0,
            verdicts: smallvec![verdict],
        };
        self.record(charge, &decision, mode);
        decision
    }

    fn decide_all(&self, charge: &Charge, mode: DecisionMode) -> Decision {
        let mut shards = self.lock_shards(charge);
        let now_us = self.clock.now_us();
        for (_, shard) in &mut shards {
            shard.sweep_in_turn(now_us, &self.bounds);
        }
        let check = |item| {
            let position = self.position_of(&shards, id(item));
            self.check(
                &shards[position].1,
                item,
                mode,
                &self.check_time(item, now_us),
            )
        };
        let checks: SmallVec<[PendingCheck<'_>; 4]> = charge.iter().map(check).collect();
        let outcome = match checks.iter().all(|check| check.first.retry == Retry::Now) {
            true => mode.admitted(),
            false => mode.refused(|longest_us| {
                delay::wait_us(checks.iter().map(|check| {
                    let at = self.position_of(&shards, check.id);
                    shards[at].1.booking(check, longest_us)
                }))
            }),
        };
        let allowed = outcome != CheckOutcome::Denied;
        if allowed && mode == DecisionMode::IfDenied {
            return Decision::allowed_uncharged(now_us);
        }
        let settle = |check: &PendingCheck<'_>| {
            let at = self.position_of(&shards, check.id);
            shards[at].1.settle(check, outcome, &self.bounds)
        };
        let verdicts = checks.iter().map(settle).collect();
        if self.bounds.passed().is_some() {
            let mut shards: SmallVec<[&mut Shard; 4]> =
                shards.iter_mut().map(|(_, shard)| &mut **shard).collect();
            self.enforce_bounds(&mut shards, charge, now_us);
        }
        let decision = Decision {
            allowed,
            at_us: now_us,
            spread_us: 0,
            verdicts,
        };
        self.record(charge, &decision, mode);
        decision
    }

    /// How long ago this store made the decision, microseconds.
    pub fn age_us(&self, decision: &Decision) -> u64 {
        self.clock.now_us().saturating_sub(decision.at_us)
    }

    /// The time of a check. Only calendar windows need the wall clock.
    fn check_time(&self, item: &LimitCheck, now_us: u64) -> CheckTime {
        if let Some(_calendar) = &item.window.calendar {
            return self.instant(now_us).check_time(item);
        }
        let moment = Moment {
            now_us,
            boundaries: None,
        };
        CheckTime {
            moment,
            ahead_us: 0,
        }
    }

    /// With the clock of calendar windows: the shared store's, or this machine's wall clock.
    #[cold]
    fn instant(&self, now_us: u64) -> StoreInstant {
        let recovery = self.recovery.as_ref();
        let store_us = recovery.and_then(|recovery| recovery.store_clock.at_us(now_us));
        StoreInstant {
            now_us,
            store_us: store_us.unwrap_or_else(|| self.clock.unix_us()),
        }
    }

    /// Evicts keys until the bounds hold, or nothing is left to evict; `shards` are locked.
    fn enforce_bounds(&self, shards: &mut [&mut Shard], charge: &Charge, now_us: u64) {
        let keep: SmallVec<[BudgetId; 4]> = charge.iter().map(id).collect();
        for _ in 0..MAX_VICTIMS {
            let Some(bound) = self.bounds.passed() else {
                return;
            };
            let limit = self.bounds.limit_to_evict(charge, bound);
            if limit.is_some_and(|limit| self.evict(shards, limit, &keep, now_us)) {
                continue;
            }
            let is_far = self
                .bounds
                .is_far_passed(MAX_VICTIMS, MAX_VICTIMS * KEY_BYTES);
            let mut all = shards.iter_mut();
            if !is_far || !all.any(|shard| shard.evict_any(&keep, now_us, &self.bounds)) {
                return;
            }
        }
    }

    /// Evicts one key of `limit`, from the locked shards or from a few others that are not in use.
    fn evict(
        &self,
        shards: &mut [&mut Shard],
        limit: LimitNumber,
        keep: &[BudgetId],
        now_us: u64,
    ) -> bool {
        let others = match self.bounds.keys() < 4 * self.shards.len() {
            true => OTHER_SHARDS_IF_SMALL,
            false => OTHER_SHARDS,
        };
        for class in [EvictionClass::Open, EvictionClass::AtLimit] {
            let list = EvictionList { limit, class };
            let evict = |shard: &mut Shard| shard.evict(list, keep, now_us, &self.bounds);
            if shards.iter_mut().any(|shard| evict(shard)) {
                return true;
            }
            for _ in 0..others {
                let next = self.next_victim.fetch_add(1, Ordering::Relaxed);
                // Skips the locked shards, and those that other threads use.
                let other = self.shards[next & (self.shards.len() - 1)].try_lock();
                if other.is_ok_and(|mut shard| evict(&mut shard)) {
                    return true;
                }
            }
        }
        false
    }

    /// Writes a decision to the log while the shards are locked: the log's order is the store's.
    fn record(&self, charge: &Charge, decision: &Decision, mode: DecisionMode) {
        if let Some(log) = self.log.as_ref().filter(|_| mode.is_logged(decision)) {
            log.record(self.source, charge, decision);
        }
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        let shard = self.shards[shard].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shards of all items, each once, in ascending order.
    fn lock_shards(&self, charge: &Charge) -> LockedShards<'_> {
        let shards = charge.iter().map(|item| self.shard_of(id(item)));
        let mut shards: SmallVec<[usize; 4]> = shards.collect();
        shards.sort_unstable();
        shards.dedup();
        let locked = shards.into_iter().map(|shard| (shard, self.lock(shard)));
        locked.collect()
    }

    fn shard_of(&self, id: BudgetId) -> usize {
        // The tag is a keyed hash: any of its bits will do, but not those of the index's hash.
        id[1] as usize & (self.shards.len() - 1)
    }

    fn position_of(&self, shards: &LockedShards<'_>, id: BudgetId) -> usize {
        let shard = self.shard_of(id);
        let position = shards.iter().position(|(number, _)| *number == shard);
        position.unwrap_or_default()
    }
}

fn id(item: &LimitCheck) -> BudgetId {
    halves(item.id())
}

fn halves(budget: u128) -> BudgetId {
    [budget as u64, (budget >> 64) as u64]
}

fn joined([low, high]: BudgetId) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}
