//! Denials of the store, remembered until the first instant at which they could end.
//!
//! Claim: the store denied cost `c` of a key at `t`, with the wait `r`. Then it denies every
//! request of a cost `>= c` until `t + r`, whatever other proxies do. Until then a count changes in
//! two ways only: admissions add units, and expiries, which `r` already includes, remove some.
//! Admissions can only make the wait longer. So a cached denial is the one that the store would
//! return, for the counter and for the log at any precision. Tests compare it with a model.
//!
//! [`DenyCache::find`] uses a denial for the same cost and limit only. A higher cost is denied as
//! well, but for longer, and its client must get its own wait.
//!
//! [`DenyCache::find_of_at_least`] is for requests whose cost is not known, only its least value
//! `m`. A denial of a cost `<= m` holds for them. So does any denial that left fewer than `m`
//! units: nothing becomes free before its `next_us`. The client gets the longest of these waits.
//! Its own wait may be longer, and is never shorter.
//!
//! The deadline counts from when the call was *sent*: the network's delay can only shorten it.
//! Clocks may drift against each other, so it is `r * 0.999 - 1 ms`.
//!
//! The claim fails if a count sinks in a third way:
//!
//! - Units are given back: denials of such limits are kept for `GIVES_BACK_US` at most.
//! - The limit is raised: an entry knows its units.
//! - A key is reset or overridden, the store is flushed or restored, or its clock steps forward:
//!   the worker calls [`DenyCache::clear`].
//! - Slots are freed at any time: their denials are not kept.
//! - A limit with `delay` holds requests: a denial is kept until its wait could be held. Clients
//!   that leave give units back, so it is one of those limits too.
//!
//! No denial is kept longer than `LONGEST_US`, for causes that are not in this list.
//!
//! Bounded: two generations of at most `GENERATION` keys. When the young one is full, the old one
//! is forgotten. Time is an argument, microseconds of one local monotonic clock.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use crate::limit::{Charge, Decision, LimitCheck, Retry, Verdict};

/// Keys in one generation; about 150 bytes each.
const GENERATION: usize = 16_384;
/// No denial is kept longer, microseconds.
pub const LONGEST_US: u64 = 60_000_000;
/// The same for a limit whose units may be given back, microseconds.
pub const GIVES_BACK_US: u64 = 50_000;
/// Denials of one key, each with another cost or limit.
const COSTS: usize = 4;

/// Denials by key, each with its cost.
#[derive(Debug, Default)]
pub struct DenyCache {
    young: Generation,
    old: Generation,
}

type Generation = HashMap<u128, SmallVec<[Denied; 1]>, BuildHasherDefault<Folded>>;

#[derive(Clone, Debug)]
struct Denied {
    cost: u64,
    units: u64,
    until_us: u64,
    /// Until then no unit becomes free.
    full_until_us: u64,
    /// When the answer came, here and by the store's clock.
    came_us: u64,
    at_us: u64,
    verdict: Verdict,
    /// The verdicts of the request's other limits, which allowed it.
    others: Box<[(u128, Verdict)]>,
}

/// When a call was made, and when its answer came.
#[derive(Clone, Copy, Debug)]
pub struct CallSpan {
    /// Before the first byte was sent.
    pub sent_us: u64,
    /// After the last one was read.
    pub came_us: u64,
}

impl DenyCache {
    pub fn note(&mut self, charge: &Charge, decision: &Decision, span: CallSpan) {
        self.note_within(LONGEST_US, charge, decision, span);
    }

    /// Keeps the denials of a decision, for no longer than `longest_us`.
    pub fn note_within(
        &mut self,
        longest_us: u64,
        charge: &Charge,
        decision: &Decision,
        span: CallSpan,
    ) {
        for (item, verdict) in charge.iter().zip(&decision.verdicts) {
            let most = if item.limit.refunds {
                GIVES_BACK_US.min(longest_us)
            } else {
                longest_us
            };
            let certain = |us: u64| (us - us.div_ceil(1000)).saturating_sub(1000).min(most);
            // A request that would wait too long now may be held as soon as its wait is shorter.
            let held_us = item.limit.delay.map_or(0, |delay| delay.longest_us);
            let keep_us = match verdict.retry {
                Retry::After(us) => certain(us.saturating_sub(held_us)),
                Retry::Never => most,
                Retry::Now | Retry::Booked(_) | Retry::Released | Retry::Unasked => 0,
            };
            if keep_us > 0 {
                let denied = Denied {
                    cost: item.cost,
                    units: item.window.rule.units,
                    until_us: span.sent_us + keep_us,
                    full_until_us: match item.limit.delay {
                        None => span.sent_us + certain(verdict.next_us),
                        Some(_) => 0,
                    },
                    came_us: span.came_us,
                    at_us: decision.at_us,
                    verdict: *verdict,
                    others: others(charge, decision),
                };
                self.insert(item.id(), denied);
            }
        }
    }

    /// The denial of a request, if one of its items is known to be denied now. The other items have
    /// their verdicts of that time, or are [`Retry::Unasked`]. With `exact`, it is returned only if
    /// every number is the one that the store would return. See [`is_exact`].
    pub fn find(&self, charge: &Charge, now_us: u64, exact: bool) -> Option<Decision> {
        if self.is_empty() || exact && !is_exact(charge) {
            return None;
        }
        let denied = charge.iter().find_map(|item| self.get(item, now_us))?;
        let mut verdicts: SmallVec<[Verdict; 2]> = SmallVec::with_capacity(charge.len());
        for item in charge {
            let own = self.get(item, now_us);
            if exact && !own.is_some_and(|own| own.verdict.lasts()) {
                return None;
            }
            verdicts.push(match own {
                Some(own) => own.aged(&own.verdict, now_us),
                None => denied.other(item, now_us),
            });
        }
        Some(Decision {
            allowed: false,
            at_us: denied.at_us + now_us.saturating_sub(denied.came_us),
            spread_us: 0,
            verdicts,
        })
    }

    /// The denial of a request that costs as much as `charge` or more, if one of its items is known
    /// to be denied now. `exact` is as for [`DenyCache::find`].
    pub fn find_of_at_least(&self, charge: &Charge, now_us: u64, exact: bool) -> Option<Decision> {
        if exact || self.is_empty() {
            return self.find(charge, now_us, exact);
        }
        let (denied, _) = charge.iter().find_map(|item| self.longest(item, now_us))?;
        let verdict = |item: &LimitCheck| match self.longest(item, now_us) {
            Some((_, verdict)) => verdict,
            None => denied.other(item, now_us),
        };
        Some(Decision {
            allowed: false,
            at_us: denied.at_us + now_us.saturating_sub(denied.came_us),
            spread_us: 0,
            verdicts: charge.iter().map(verdict).collect(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    pub fn forget(&mut self, id: u128) {
        self.young.remove(&id);
        self.old.remove(&id);
    }

    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    fn get(&self, item: &LimitCheck, now_us: u64) -> Option<&Denied> {
        let id = item.id();
        let units = item.window.rule.units;
        let holds = |denied: &&Denied| {
            item.cost == denied.cost && units == denied.units && now_us < denied.until_us
        };
        let known = [&self.young, &self.old];
        known
            .into_iter()
            .find_map(|known| known.get(&id)?.iter().find(holds))
    }

    /// The denial of this cost or more that has the longest wait.
    fn longest(&self, item: &LimitCheck, now_us: u64) -> Option<(&Denied, Verdict)> {
        let id = item.id();
        let known = [&self.young, &self.old].into_iter();
        let known = known.filter_map(|known| known.get(&id)).flatten();
        let denials = known.filter(|denied| denied.units == item.window.rule.units);
        let verdicts = denials.filter_map(|denied| {
            let verdict = denied.of_at_least(item.cost, now_us)?;
            Some((denied, verdict))
        });
        verdicts.max_by_key(|(_, verdict)| match verdict.retry {
            Retry::After(us) => us,
            _ => u64::MAX,
        })
    }

    fn insert(&mut self, id: u128, denied: Denied) {
        if self.young.len() >= GENERATION && !self.young.contains_key(&id) {
            self.old = std::mem::take(&mut self.young);
        }
        let known = self.young.entry(id).or_default();
        let is_same = |old: &Denied| old.cost == denied.cost && old.units == denied.units;
        known.retain(|old| !is_same(old) && old.until_us > denied.came_us);
        if known.len() == COSTS {
            known.remove(0);
        }
        known.push(denied);
    }
}

impl Denied {
    fn aged(&self, verdict: &Verdict, now_us: u64) -> Verdict {
        verdict.later(now_us.saturating_sub(self.came_us))
    }

    /// The verdict on a request of this cost or more, if it is denied.
    fn of_at_least(&self, cost: u64, now_us: u64) -> Option<Verdict> {
        if cost >= self.cost && now_us < self.until_us {
            return Some(self.aged(&self.verdict, now_us));
        }
        let is_full = cost > self.verdict.remaining && now_us < self.full_until_us;
        is_full.then(|| {
            let verdict = Verdict {
                retry: Retry::After(self.verdict.next_us),
                ..self.verdict
            };
            self.aged(&verdict, now_us)
        })
    }

    fn other(&self, item: &LimitCheck, now_us: u64) -> Verdict {
        let stood = self.others.iter().find(|(id, _)| *id == item.id());
        stood.map_or_else(|| unasked(item), |(_, verdict)| self.aged(verdict, now_us))
    }
}

/// Whether a cached denial of this request can have the store's own numbers.
///
/// Denials of several limits may come from several calls. Each is known at its own instant of the
/// store's clock, with a network's delay between them, so no single instant fits all of them. A
/// limit whose units other proxies give back, or charge on top, changes without our knowledge.
pub fn is_exact(charge: &Charge) -> bool {
    matches!(charge.as_slice(), [item] if !item.limit.refunds)
}

fn others(charge: &Charge, decision: &Decision) -> Box<[(u128, Verdict)]> {
    let asked = charge.iter().zip(&decision.verdicts);
    asked
        .filter(|(_, verdict)| !verdict.retry.denies())
        .map(|(item, verdict)| (item.id(), *verdict))
        .collect()
}

fn unasked(item: &LimitCheck) -> Verdict {
    Verdict {
        remaining: item.window.rule.units,
        ..UNASKED
    }
}

/// The verdict of an item that was not asked.
pub(super) const UNASKED: Verdict = Verdict {
    used: 0,
    remaining: 0,
    retry: Retry::Unasked,
    reset_us: 0,
    next_us: 0,
    stamp: 0,
};

/// Hashes an identity, which is a hash already, by folding its halves.
#[derive(Clone, Copy, Debug, Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for half in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..half.len()].copy_from_slice(half);
            self.0 ^= u64::from_le_bytes(whole);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = id as u64 ^ (id >> 64) as u64;
    }
}

#[cfg(test)]
pub(super) mod tests;
