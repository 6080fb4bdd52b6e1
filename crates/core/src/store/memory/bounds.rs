//! The bounds of the embedded store, and what is evicted to keep them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;

use super::Memory;
use super::shard::{EvictionClass, KEY_BYTES, Shard};
use super::shares::{LimitNumber, MemoryShares, PassedBound, WindowNumber};
use crate::limit::Charge;

/// Victims of one charge, at most: bounds its time; it adds at most its items.
const EVICT: usize = 16;
/// Shards beside the charge's own in which a victim is looked for, at most; the second number is
/// for a store so small that most shards are empty.
const ELSEWHERE: (usize, usize) = (8, 64);
/// What is held and what may be.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Grows with whatever changes a count that is no admission and no expiry.
    pub(super) epoch: AtomicU64,
    pub(super) keys: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) shares: MemoryShares,
    pub(super) max_keys: AtomicUsize,
    pub(super) max_bytes: AtomicUsize,
}

impl Memory {
    /// Evicts until the bounds hold, or nothing is left to evict; `shards` are locked.
    pub(super) fn enforce(
        &self,
        shards: &mut [&mut Shard],
        charge: &Charge,
        keep: &[[u64; 2]],
        now_us: u64,
    ) {
        let shares = &self.bounds.shares;
        let own: SmallVec<[LimitNumber; 4]> = charge
            .iter()
            .map(|item| shares.limit_of(shares.window_of(item, &item.window.rule)))
            .collect();
        for _ in 0..EVICT {
            let Some(bound) = self.bounds.passed() else {
                return;
            };
            let payer = shares.payer(&own, bound);
            let is_paid = payer.is_some_and(|limit| self.evict(shards, limit, keep, now_us));
            let is_far_above = || self.bounds.is_far_above();
            let mut any = || {
                let mut shards = shards.iter_mut();
                shards.any(|shard| shard.evict_any(keep, now_us, &self.bounds))
            };
            if !(is_paid || is_far_above() && any()) {
                return;
            }
        }
    }

    /// Evicts one key of `limit`: of the locked shards, or of a few others that are not in use.
    fn evict(
        &self,
        shards: &mut [&mut Shard],
        limit: LimitNumber,
        keep: &[[u64; 2]],
        now_us: u64,
    ) -> bool {
        let is_small = self.bounds.keys.load(Ordering::Relaxed) < 4 * self.shards.len();
        let elsewhere = if is_small { ELSEWHERE.1 } else { ELSEWHERE.0 };
        for standing in [EvictionClass::Open, EvictionClass::AtLimit] {
            let mut own = shards.iter_mut();
            if own.any(|shard| shard.evict(limit, standing, keep, now_us, &self.bounds)) {
                return true;
            }
            for _ in 0..elsewhere {
                let next = self.next_victim.fetch_add(1, Ordering::Relaxed);
                // The locked shards, and those that other threads use, are passed over.
                let other = self.shards[next & (self.shards.len() - 1)].try_lock();
                if let Ok(mut shard) = other
                    && shard.evict(limit, standing, keep, now_us, &self.bounds)
                {
                    return true;
                }
            }
        }
        false
    }
}

impl Bounds {
    pub(super) fn resize(&self, window: WindowNumber, before: usize, after: usize) {
        if before == after {
            return;
        }
        let holding = self.shares.holding(self.shares.limit_of(window));
        for bytes in [&self.bytes, &holding.bytes] {
            if after > before {
                bytes.fetch_add(after - before, Ordering::Relaxed);
            } else {
                bytes.fetch_sub(before - after, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn add_key(&self, window: WindowNumber) {
        let holding = self.shares.holding(self.shares.limit_of(window));
        for keys in [&self.keys, &holding.keys] {
            keys.fetch_add(1, Ordering::Relaxed);
        }
        for bytes in [&self.bytes, &holding.bytes] {
            bytes.fetch_add(KEY_BYTES, Ordering::Relaxed);
        }
    }

    pub(super) fn take_key(&self, window: WindowNumber, heap_bytes: usize) {
        let holding = self.shares.holding(self.shares.limit_of(window));
        for keys in [&self.keys, &holding.keys] {
            keys.fetch_sub(1, Ordering::Relaxed);
        }
        for bytes in [&self.bytes, &holding.bytes] {
            bytes.fetch_sub(KEY_BYTES + heap_bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn passed(&self) -> Option<PassedBound> {
        let is_above = |held: &AtomicUsize, most: &AtomicUsize| {
            held.load(Ordering::Relaxed) > most.load(Ordering::Relaxed)
        };
        if is_above(&self.keys, &self.max_keys) {
            return Some(PassedBound::Keys);
        }
        is_above(&self.bytes, &self.max_bytes).then_some(PassedBound::Bytes)
    }

    /// Whether a bound is passed by an eighth: memory comes before fairness then.
    fn is_far_above(&self) -> bool {
        let far = |held: &AtomicUsize, most: &AtomicUsize, least: usize| {
            let most = most.load(Ordering::Relaxed);
            held.load(Ordering::Relaxed) > most + most / 8 + least
        };
        far(&self.keys, &self.max_keys, EVICT)
            || far(&self.bytes, &self.max_bytes, EVICT * KEY_BYTES)
    }
}
