//! The embedded store: counts in this process, shared by all workers.
//!
//! The same decisions as `lua/decide.lua`, in the same words (`limit::decide`). Keys are spread
//! over shards with a lock each; one charge takes the locks of its items in ascending order, so
//! that it is atomic and cannot deadlock, and reads the clock while it holds them. A denial that
//! charges nothing may go by an instant just before.
//!
//! Bounded in keys and bytes. What has expired goes first: every charge looks at `SWEEP` keys of
//! its shards and drops those in which nothing counts any more, so nothing ever stops to clean up;
//! where no charges come, [`Memory::tidy`] does it by and by.
//! Above a bound each charge evicts up to `EVICT` keys. Limits share the store (`shares`): a
//! charge takes from its own limit where that holds more than its fair share, else from the limit
//! that holds most. Within a limit, keys below their limit go before keys at it, then those with
//! the fewest units that count. A shard has a part of each limit's keys; where the charge's own
//! shards have no such key, a few others are looked at. The keys of the charge itself are never
//! its victims: the newcomer always gets in. Slots that are held are neither swept nor evicted:
//! they are as many as requests are under way.

mod adjust;
mod bounds;
mod find;
mod known;
mod rows;
mod shard;
mod shares;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::fleet::Fleet;
use super::hash_key::{CurrentKey, KeyRing};
use super::overrides::memory::MemoryOverrides;
use super::overrides::{ChangeOutcome, OverrideChange, OverrideList, OverrideSnapshot, Record};
use super::recovery::Recovery;
use crate::clock::Micros;
use crate::config::StoreSettings;
use crate::limit::{Charge, Decision, LimitCheck, Retry, Verdict};
use crate::telemetry::decisions::{DecisionLog, Source};
use bounds::Bounds;
use known::How;
use shard::{Asked, KEY_BYTES, SWEEP, Shard};
pub use shares::Evictions;
use shares::MemoryShares;

/// Keys in a shard when the store is full: its index grows at once, and no charge pauses for it.
const SHARD_KEYS: usize = 1024;
/// Shards, at least and at most.
const SHARDS: (usize, usize) = (64, 1 << 18);
/// Shards that are tidied at a time, and the keys looked at in each.
const TIDY: (usize, usize) = (4, 256);

/// The embedded store.
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    /// The shard that is tidied next.
    next: AtomicUsize,
    /// The shard in which a victim is looked for next.
    next_victim: AtomicUsize,
    keys: KeyRing,
    clock: Micros,
    fleet: Arc<Fleet>,
    log: Option<(Source, Arc<DecisionLog>)>,
    bounds: Bounds,
    /// What operators say of single keys.
    overrides: MemoryOverrides,
    /// What is known of the store that this one stands in for.
    recovery: Option<Arc<Recovery>>,
}

/// How full the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Keys held.
    pub keys: usize,
    /// Bytes their counts take.
    pub bytes: usize,
    /// Keys forgotten before they had expired, to stay within the bounds.
    pub evicted: u64,
    /// Those of them that were at their limit.
    pub forgiven: u64,
}

type Guards<'s> = SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>;

impl Memory {
    /// The store of a proxy that needs no other: every rule as configured.
    pub fn new(
        settings: &StoreSettings,
        keys: KeyRing,
        clock: Micros,
        log: Option<Arc<DecisionLog>>,
    ) -> Memory {
        let log = log.map(|log| (Source::Store, log));
        Memory::build(settings, keys, clock, log)
    }

    /// What stands in for a store that is away: every rule cut to this proxy's share of the fleet.
    /// The tags are the away store's, so its own key is never asked for.
    pub fn local(
        settings: &StoreSettings,
        keys: KeyRing,
        clock: Micros,
        (log, fleet): (Option<Arc<DecisionLog>>, Arc<Fleet>),
    ) -> Memory {
        let log = log.map(|log| (Source::Local, log));
        Memory {
            fleet,
            ..Memory::build(settings, keys, clock, log)
        }
    }

    fn build(
        settings: &StoreSettings,
        keys: KeyRing,
        clock: Micros,
        log: Option<(Source, Arc<DecisionLog>)>,
    ) -> Memory {
        // As many as both bounds let in.
        let fits = settings.max_keys.min(settings.max_memory / KEY_BYTES);
        let shards = (fits / SHARD_KEYS)
            .next_power_of_two()
            .clamp(SHARDS.0, SHARDS.1);
        let shard = |seed| Mutex::new(Shard::new(seed));
        Memory {
            shards: (1..=shards as u64).map(shard).collect(),
            next: AtomicUsize::new(0),
            next_victim: AtomicUsize::new(0),
            keys,
            clock,
            fleet: Arc::new(Fleet::of(1)),
            log,
            overrides: MemoryOverrides::default(),
            recovery: None,
            bounds: Bounds {
                epoch: AtomicU64::new(0),
                keys: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                shares: MemoryShares::default(),
                max_keys: AtomicUsize::new(settings.max_keys.max(1)),
                max_bytes: AtomicUsize::new(settings.max_memory),
            },
        }
    }

    /// Decides and charges one request.
    pub fn charge(&self, charge: &Charge) -> Decision {
        self.decide(charge, How::Decide)
    }

    /// `None`, at the cost of one load, if there are no overrides.
    pub fn overrides(&self) -> Option<OverrideSnapshot> {
        self.overrides.snapshot()
    }

    pub fn override_list(&self) -> OverrideList {
        self.overrides.list()
    }

    /// The last changes of overrides, newest first.
    pub fn override_changes(&self) -> Vec<Record> {
        self.overrides.changes()
    }

    /// Makes a change, which holds from the next request on. A reset is only noted.
    pub fn change_override(&self, change: OverrideChange) -> ChangeOutcome {
        self.overrides.change(change)
    }

    /// Forgets what is counted for one budget ([`LimitCheck::id`]).
    pub fn forget(&self, budget: u128) {
        let id = halves(budget);
        for (_, shard) in &mut self.lock(&[id]) {
            if let Some(place) = shard.find(id) {
                self.bounds.epoch.fetch_add(1, Ordering::Release);
                shard.remove(place, &self.bounds);
            }
        }
        if let Some(recovery) = &self.recovery {
            recovery.ledger.forget(budget);
        }
    }

    /// Holds to other bounds from now on; what is over them goes as charges come.
    pub fn rebound(&self, settings: &StoreSettings) {
        let Bounds {
            max_keys,
            max_bytes,
            ..
        } = &self.bounds;
        max_keys.store(settings.max_keys.max(1), Ordering::Relaxed);
        max_bytes.store(settings.max_memory, Ordering::Relaxed);
    }

    /// Drops some of what has expired where no charge comes by to do it; called a few times a
    /// second, does little, and waits for nobody.
    pub fn tidy(&self) {
        if self.bounds.keys.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (shards, looks) = TIDY;
        for _ in 0..shards {
            let next = self.next.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
            if let Ok(mut shard) = self.shards[next].try_lock() {
                shard.sweep(looks, self.clock.now_us(), &self.bounds);
            }
        }
    }

    /// The secret that identities are hashed with.
    pub fn hash_key(&self) -> CurrentKey {
        self.keys.current()
    }

    /// How full the store is.
    pub fn figures(&self) -> Figures {
        let lost = self.evictions();
        Figures {
            keys: self.bounds.keys.load(Ordering::Relaxed),
            bytes: self.bounds.bytes.load(Ordering::Relaxed),
            evicted: lost.iter().map(|lost| lost.keys).sum(),
            forgiven: lost.iter().map(|lost| lost.at_limit).sum(),
        }
    }

    /// What each limit has lost because the store was full, most keys first.
    pub fn evictions(&self) -> Vec<Evictions> {
        self.bounds.shares.evictions()
    }

    fn decide(&self, charge: &Charge, how: How) -> Decision {
        match charge.as_slice() {
            [item] => self.decide_one(charge, item, how),
            _ => self.decide_all(charge, how),
        }
    }

    /// What [`Memory::decide_all`] does for one item, which is what most requests have: no shards
    /// to put in order, and no other item to ask between the passes.
    fn decide_one(&self, charge: &Charge, item: &LimitCheck, how: How) -> Decision {
        let id = id(item);
        let shard = self.shards[self.shard_of(id)].lock();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        let now_us = self.clock.now_us();
        shard.sweep(SWEEP, now_us, &self.bounds);
        let asked = self.look_at(&shard, (item, id), how, now_us);
        let allowed = asked.look.retry == Retry::Now;
        let verdict = shard.settle(&asked, allowed, &self.bounds);
        if self.bounds.passed().is_some() {
            self.enforce(&mut [&mut *shard], charge, &[id], now_us);
        }
        let mut decision = Decision {
            allowed,
            at_us: now_us,
            verdicts: SmallVec::new(),
        };
        decision.verdicts.push(verdict);
        self.record(charge, &decision, how);
        decision
    }

    fn decide_all(&self, charge: &Charge, how: How) -> Decision {
        let ids: SmallVec<[[u64; 2]; 4]> = charge.iter().map(id).collect();
        let mut guards = self.lock(&ids);
        let now_us = self.clock.now_us();
        for (_, shard) in &mut guards {
            shard.sweep(SWEEP, now_us, &self.bounds);
        }

        let asked = self.look(&guards, (charge, &ids), how, now_us);
        let allowed = asked.iter().all(|asked| asked.look.retry == Retry::Now);
        let verdicts = self.settle(&mut guards, &asked, allowed);
        if self.bounds.passed().is_some() {
            let mut shards: SmallVec<[&mut Shard; 4]> =
                guards.iter_mut().map(|(_, shard)| &mut **shard).collect();
            self.enforce(&mut shards, charge, &ids, now_us);
        }
        let decision = Decision {
            allowed,
            at_us: now_us,
            verdicts,
        };
        self.record(charge, &decision, how);
        decision
    }

    /// First pass: how each item stands.
    fn look<'i>(
        &self,
        guards: &Guards<'_>,
        (charge, ids): (&'i Charge, &[[u64; 2]]),
        how: How,
        now_us: u64,
    ) -> SmallVec<[Asked<'i>; 4]> {
        let look = |(item, id): (&'i LimitCheck, &[u64; 2])| {
            let guard = self.guard_of(guards, *id);
            self.look_at(&guards[guard].1, (item, *id), how, now_us)
        };
        charge.iter().zip(ids).map(look).collect()
    }

    /// Second pass: what becomes of each.
    fn settle(
        &self,
        guards: &mut Guards<'_>,
        asked: &[Asked<'_>],
        allowed: bool,
    ) -> SmallVec<[Verdict; 2]> {
        let settle = |asked: &Asked<'_>| {
            let guard = self.guard_of(guards, asked.id);
            guards[guard].1.settle(asked, allowed, &self.bounds)
        };
        asked.iter().map(settle).collect()
    }

    /// Under the locks: the log's order is the store's.
    fn record(&self, charge: &Charge, decision: &Decision, how: How) {
        if let Some((source, log)) = self.log.as_ref().filter(|_| how.is_decision(decision)) {
            log.record(*source, charge, decision);
        }
    }

    /// Locks the shards of all items, each once, in ascending order.
    fn lock(&self, ids: &[[u64; 2]]) -> Guards<'_> {
        let mut shards: SmallVec<[usize; 4]> = ids.iter().map(|id| self.shard_of(*id)).collect();
        shards.sort_unstable();
        shards.dedup();
        let lock = |shard: usize| {
            let guard = self.shards[shard].lock();
            (shard, guard.unwrap_or_else(PoisonError::into_inner))
        };
        shards.into_iter().map(lock).collect()
    }

    fn shard_of(&self, id: [u64; 2]) -> usize {
        // The tag is a keyed hash: any of its bits will do, but not those of the index's hash.
        id[1] as usize & (self.shards.len() - 1)
    }

    fn guard_of(&self, guards: &Guards<'_>, id: [u64; 2]) -> usize {
        let shard = self.shard_of(id);
        guards
            .iter()
            .position(|(held, _)| *held == shard)
            .unwrap_or_default()
    }
}

/// The identity of one item's budget: whose, and which.
fn id(item: &LimitCheck) -> [u64; 2] {
    halves(item.id())
}

fn halves(id: u128) -> [u64; 2] {
    [id as u64, (id >> 64) as u64]
}
