//! The embedded store: counts in this process, shared by all workers.
//!
//! The same decisions as `lua/decide.lua`, in the same words (`limit::decide`). Keys are spread
//! over shards with a lock each; one charge takes the locks of its items in ascending order, so
//! that it is atomic and cannot deadlock, and reads the clock while it holds them.
//!
//! Bounded in keys and bytes. What has expired goes first: every charge looks at `SWEEP` keys of
//! its shards and drops those in which nothing counts any more, so nothing ever stops to clean up.
//! Above a bound each charge evicts: of `SAMPLE` keys the one with the smallest used share of its
//! limit, so that in a flood of fresh keys it is they that go, and a client at its limit is
//! forgotten only where everyone looked at is at theirs ([`Figures::forgiven`] counts that). The
//! keys of the charge itself are never its victims: the newcomer always gets in. The bounds can be
//! passed by what one charge adds, where its shards hold nothing else. Slots that are held are
//! neither swept nor evicted: they are as many as requests are under way.

mod adjust;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::fleet::Fleet;
use super::hash_key::{CurrentKey, KeyRing};
use crate::clock::Micros;
use crate::config::StoreSettings;
use crate::limit::decide::{Count, Look};
use crate::limit::{Algorithm, Charge, Decision, Item, Retry, Rule, Verdict};
use crate::telemetry::decisions::{DecisionLog, Source};

/// Keys that each charge looks at in each of its shards, to drop the expired.
const SWEEP: usize = 2;
/// Keys among which a victim is chosen.
const SAMPLE: usize = 8;
/// Victims of one charge, at most: bounds its time; it adds at most its items.
const EVICT: usize = 16;
/// Keys in a shard when the store is full: growing one moves this many, so no charge pauses.
const SHARD_KEYS: usize = 4096;
/// Bytes of a key whose ring is inside it: the entry with an eighth of slack, and its place in the
/// index.
const KEY_BYTES: usize = size_of::<Entry>() * 9 / 8 + 10;

/// The embedded store.
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    keys: KeyRing,
    clock: Micros,
    fleet: Arc<Fleet>,
    log: Option<(Source, Arc<DecisionLog>)>,
    bounds: Bounds,
}

/// What is held and what may be.
#[derive(Debug)]
struct Bounds {
    keys: AtomicUsize,
    bytes: AtomicUsize,
    evicted: AtomicU64,
    forgiven: AtomicU64,
    max_keys: AtomicUsize,
    max_bytes: AtomicUsize,
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

#[derive(Debug, Default)]
struct Shard {
    entries: Vec<Entry>,
    /// Places in `entries`, by the key's hash.
    index: HashTable<u32>,
    cursor: usize,
    chance: u64,
}

#[derive(Debug)]
struct Entry {
    id: [u64; 2],
    count: Count,
    /// From this time on nothing counts, microseconds.
    empty_at_us: u64,
    /// Units counted after the last charge, and the limit: their ratio is what eviction goes by.
    used: u32,
    units: u32,
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
        let shards = (settings.max_keys / SHARD_KEYS)
            .next_power_of_two()
            .clamp(64, 4096);
        let shard = |seed| {
            Mutex::new(Shard {
                chance: seed,
                ..Shard::default()
            })
        };
        Memory {
            shards: (1..=shards as u64).map(shard).collect(),
            keys,
            clock,
            fleet: Arc::new(Fleet::of(1)),
            log,
            bounds: Bounds {
                keys: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                evicted: AtomicU64::new(0),
                forgiven: AtomicU64::new(0),
                max_keys: AtomicUsize::new(settings.max_keys.max(1)),
                max_bytes: AtomicUsize::new(settings.max_memory),
            },
        }
    }

    /// Decides and charges one request.
    pub fn charge(&self, charge: &Charge) -> Decision {
        self.decide(charge, true)
    }

    /// Charges one request that another store admitted, as far as the share allows it, so that
    /// this store knows recent history when it must stand in. Not a decision, and not logged; what
    /// it says serves to give the units back. Slots are not among them: see [`Memory::hold`].
    pub fn keep_warm(&self, charge: &Charge) -> Decision {
        self.decide(charge, false)
    }

    /// Forgets what is counted for one budget ([`Item::id`]).
    pub fn forget(&self, budget: u128) {
        let id = halves(budget);
        for (_, shard) in &mut self.lock(&[id]) {
            if let Some(place) = shard.find(id) {
                shard.remove(place, &self.bounds);
            }
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

    /// The secret that identities are hashed with.
    pub fn hash_key(&self) -> CurrentKey {
        self.keys.current()
    }

    /// How full the store is.
    pub fn figures(&self) -> Figures {
        Figures {
            keys: self.bounds.keys.load(Ordering::Relaxed),
            bytes: self.bounds.bytes.load(Ordering::Relaxed),
            evicted: self.bounds.evicted.load(Ordering::Relaxed),
            forgiven: self.bounds.forgiven.load(Ordering::Relaxed),
        }
    }

    fn decide(&self, charge: &Charge, record: bool) -> Decision {
        let ids: SmallVec<[[u64; 2]; 4]> = charge.iter().map(id).collect();
        let mut guards = self.lock(&ids);
        let now_us = self.clock.now_us();
        for (_, shard) in &mut guards {
            shard.sweep(now_us, &self.bounds);
        }

        let mut asked: SmallVec<[Asked; 4]> = SmallVec::new();
        for (item, id) in charge.iter().zip(&ids) {
            let rule = self.fleet.share(item.window.rule);
            let guard = self.guard_of(&guards, *id);
            // To keep warm is not to hold: who admitted it says so by `hold`.
            let passes = !record && rule.algorithm == Algorithm::Slots;
            let cost = if passes { 0 } else { item.cost };
            let mut one = guards[guard].1.look(*id, rule, cost, now_us);
            if passes {
                one.look.retry = Retry::Now;
            }
            asked.push(one);
        }
        let allowed = asked.iter().all(|asked| asked.look.retry == Retry::Now);
        let mut verdicts = SmallVec::new();
        for asked in &asked {
            let guard = self.guard_of(&guards, asked.id);
            verdicts.push(guards[guard].1.settle(asked, allowed, &self.bounds));
        }
        self.bounds.enforce(&mut guards, &ids, now_us);

        let decision = Decision {
            allowed,
            at_us: now_us,
            verdicts,
        };
        if let Some((source, log)) = self.log.as_ref().filter(|_| record) {
            // Under the locks: the log's order is the store's.
            log.record(*source, charge, &decision);
        }
        decision
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

/// One item between the two passes.
struct Asked {
    id: [u64; 2],
    rule: Rule,
    cost: u64,
    /// Where its entry is, if it has one.
    place: Option<usize>,
    look: Look,
}

impl Shard {
    fn find(&self, id: [u64; 2]) -> Option<usize> {
        let found = self
            .index
            .find(id[0], |place| self.entries[*place as usize].id == id);
        found.map(|place| *place as usize)
    }

    /// First pass over one item.
    fn look(&self, id: [u64; 2], rule: Rule, cost: u64, now_us: u64) -> Asked {
        let place = self.find(id);
        let look = match place {
            Some(place) => self.entries[place].count.look(&rule, cost, now_us),
            None => Count::new(rule.algorithm).look(&rule, cost, now_us),
        };
        Asked {
            id,
            rule,
            cost,
            place,
            look,
        }
    }

    /// Second pass over one item; only what is charged gets an entry.
    fn settle(&mut self, asked: &Asked, allowed: bool, bounds: &Bounds) -> Verdict {
        let Asked {
            id,
            rule,
            cost,
            place,
            look,
        } = asked;
        let place = match place {
            Some(place) => *place,
            None if allowed && *cost > 0 => self.insert(*id, rule, bounds),
            None => return Count::new(rule.algorithm).settle(rule, *cost, look, allowed),
        };
        let entry = &mut self.entries[place];
        let before = entry.count.heap_bytes();
        let verdict = entry.count.settle(rule, *cost, look, allowed);
        let counted = if allowed {
            verdict.used + cost
        } else {
            verdict.used
        };
        entry.used = u32::try_from(counted).unwrap_or(u32::MAX);
        entry.units = u32::try_from(rule.units).unwrap_or(u32::MAX);
        if *cost > 0 {
            entry.empty_at_us = entry.count.empty_at_us(rule);
        }
        bounds.resize(before, entry.count.heap_bytes());
        verdict
    }

    fn insert(&mut self, id: [u64; 2], rule: &Rule, bounds: &Bounds) -> usize {
        let place = self.entries.len();
        if place == self.entries.capacity() {
            // An eighth at a time rather than doubling: less slack, and a short copy.
            self.entries.reserve_exact((place / 8).max(16));
        }
        let count = Count::new(rule.algorithm);
        self.entries.push(Entry {
            id,
            count,
            empty_at_us: 0,
            used: 0,
            units: 1,
        });
        let entries = &self.entries;
        let rehash = |place: &u32| entries[*place as usize].id[0];
        // A shard of 2^32 keys would be 400 GB: the bounds come first.
        self.index
            .insert_unique(id[0], u32::try_from(place).unwrap_or(u32::MAX), rehash);
        bounds.keys.fetch_add(1, Ordering::Relaxed);
        bounds.bytes.fetch_add(KEY_BYTES, Ordering::Relaxed);
        place
    }

    fn remove(&mut self, place: usize, bounds: &Bounds) {
        let last = self.entries.len() - 1;
        let (id, moved) = (self.entries[place].id, self.entries[last].id);
        if let Ok(found) = self.index.find_entry(id[0], |at| *at as usize == place) {
            found.remove();
        }
        if place != last
            && let Some(at) = self.index.find_mut(moved[0], |at| *at as usize == last)
        {
            *at = u32::try_from(place).unwrap_or(u32::MAX);
        }
        let entry = self.entries.swap_remove(place);
        bounds.keys.fetch_sub(1, Ordering::Relaxed);
        bounds
            .bytes
            .fetch_sub(KEY_BYTES + entry.count.heap_bytes(), Ordering::Relaxed);
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            let entries = &mut self.entries;
            entries.shrink_to(entries.len() * 2);
            self.index
                .shrink_to(entries.len() * 2, |at| entries[*at as usize].id[0]);
        }
    }

    /// Looks at a few keys, in turn, and drops those in which nothing counts any more.
    fn sweep(&mut self, now_us: u64, bounds: &Bounds) {
        for _ in 0..SWEEP.min(self.entries.len()) {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            if self.entries[self.cursor].empty_at_us <= now_us {
                self.remove(self.cursor, bounds);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Drops the sampled key that matters least; false if there is none but those to keep.
    fn evict(&mut self, keep: &[[u64; 2]], now_us: u64, bounds: &Bounds) -> bool {
        let mut victim: Option<usize> = None;
        for _ in 0..SAMPLE.min(self.entries.len()) {
            let place = self.draw();
            let entry = &self.entries[place];
            let better = victim.is_none_or(|victim| entry.before(&self.entries[victim], now_us));
            if better && !entry.is_held() && !keep.contains(&entry.id) {
                victim = Some(place);
            }
        }
        let Some(victim) = victim else { return false };
        let entry = &self.entries[victim];
        if entry.empty_at_us > now_us {
            bounds.evicted.fetch_add(1, Ordering::Relaxed);
            if entry.used >= entry.units {
                bounds.forgiven.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.remove(victim, bounds);
        true
    }

    /// A place, at random (xorshift: clients cannot see it, let alone steer it).
    fn draw(&mut self) -> usize {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % self.entries.len() as u64) as usize
    }
}

impl Entry {
    /// Whether it counts what is under way: forgetting that would let others in beside it.
    fn is_held(&self) -> bool {
        self.empty_at_us == u64::MAX
    }

    /// Whether this one is to be forgotten rather than `other`: expired, or the smaller used
    /// share, or the sooner empty.
    fn before(&self, other: &Entry, now_us: u64) -> bool {
        let rank = |entry: &Entry| entry.empty_at_us > now_us;
        let mine = u64::from(self.used) * u64::from(other.units);
        let theirs = u64::from(other.used) * u64::from(self.units);
        (rank(self), mine, self.empty_at_us) < (rank(other), theirs, other.empty_at_us)
    }
}

impl Bounds {
    fn resize(&self, before: usize, after: usize) {
        if after > before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else if before > after {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    fn passed(&self) -> bool {
        let most = |bound: &AtomicUsize| bound.load(Ordering::Relaxed);
        self.keys.load(Ordering::Relaxed) > most(&self.max_keys)
            || self.bytes.load(Ordering::Relaxed) > most(&self.max_bytes)
    }

    /// Evicts from the locked shards until the bounds hold or nothing is left to evict.
    fn enforce(&self, guards: &mut Guards<'_>, keep: &[[u64; 2]], now_us: u64) {
        let mut evicted = 0;
        while evicted < EVICT && self.passed() {
            let any = guards
                .iter_mut()
                .any(|(_, shard)| shard.evict(keep, now_us, self));
            if !any {
                return;
            }
            evicted += 1;
        }
    }
}

/// The identity of one item's budget: whose, and which.
fn id(item: &Item) -> [u64; 2] {
    halves(item.id())
}

fn halves(id: u128) -> [u64; 2] {
    [id as u64, (id >> 64) as u64]
}
