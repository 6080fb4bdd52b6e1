//! Denials of the store, remembered until the first instant at which they could end.
//!
//! Claim: the store denied cost `c` of a key at `t`, with the wait `r`. Then it denies every
//! request of a cost `>= c` until `t + r`, whatever other proxies do. Until then a count changes in
//! two ways only: admissions add units, and expiries, which `r` already includes, remove some.
//! Admissions can only make the wait longer. So a cached denial is the one that the store would
//! return, for the counter and for the log at any precision. Tests compare it with a model.
//!
//! A denial is used for the same cost and limit only. A higher cost is denied as well, but for
//! longer, and its client must get its own wait.
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
            let most = if item.limit.gives_back {
                GIVES_BACK_US.min(longest_us)
            } else {
                longest_us
            };
            let keep_us = match verdict.retry {
                Retry::After(us) => (us - us.div_ceil(1000)).saturating_sub(1000).min(most),
                Retry::Never => most,
                Retry::Now | Retry::Released | Retry::Unasked => 0,
            };
            if keep_us > 0 {
                let denied = Denied {
                    cost: item.cost,
                    units: item.window.rule.units,
                    until_us: span.sent_us + keep_us,
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
        if self.young.is_empty() && self.old.is_empty() || exact && !is_exact(charge) {
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
            verdicts,
        })
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
    matches!(charge.as_slice(), [item] if !item.limit.gives_back)
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
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::calendar::Moment;
    use crate::limit::decide::Count;
    use crate::limit::{Algorithm, Calendar, CalendarUnit, Key, KeyHash, Limit, Rule};

    fn limit(algorithm: Algorithm, units: u64, precision_us: u64) -> Arc<Limit> {
        let rule = Rule {
            algorithm,
            units,
            window_us: 1_000_000,
            precision_us,
        };
        let key = Key::parse(["global"]).unwrap();
        Arc::new(Limit::new("l", &[rule], key))
    }

    fn calendar_limit(units: u64) -> Arc<Limit> {
        let mut limit = Limit::clone(&limit(Algorithm::Calendar, units, 1));
        let unit = CalendarUnit::Day;
        let mut window = limit.windows[0].own();
        window.rule.window_us = unit.longest_us();
        window.calendar = Some(Arc::new(Calendar::new(unit, Arc::default())));
        limit.windows = vec![Arc::new(window)];
        Arc::new(limit)
    }

    fn charge(limit: &Arc<Limit>, cost: u64) -> Charge {
        let item = LimitCheck {
            limit: Arc::clone(limit),
            window: Arc::clone(&limit.windows[0]),
            tag: KeyHash([1; 16]),
            anchor: None,
            cost,
            asker: None,
        };
        [item].into_iter().collect()
    }

    /// The store, in one process: other proxies ask it too.
    struct Model(Count);

    impl Model {
        fn ask(&mut self, charge: &Charge, now_us: u64) -> Decision {
            let (rule, cost) = (charge[0].window.rule, charge[0].cost);
            let at = Moment {
                now_us,
                boundaries: charge[0].boundaries(now_us),
            };
            let look = self.0.look(&rule, cost, at);
            let allowed = look.retry == Retry::Now;
            let verdict = self.0.settle(&rule, cost, &look, allowed);
            Decision {
                allowed,
                at_us: now_us,
                verdicts: [verdict].into_iter().collect(),
            }
        }
    }

    pub(crate) fn chance(seed: &mut u64, below: u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed % below
    }

    /// The model denies every request that the cache denies, whatever other proxies do. Numbers
    /// that the cache calls exact are those of the model.
    #[test]
    fn what_it_denies_the_store_would_deny() {
        let (mut told, mut exact) = (0, 0);
        for seed in 1..=400_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let (algorithm, precision_us) = match seed % 5 {
                0 => (Algorithm::Counter, 1),
                1 => (Algorithm::Log, 1),
                2 => (Algorithm::Log, 10_000),
                3 => (Algorithm::Calendar, 1),
                _ => (Algorithm::Log, 250_000),
            };
            let units = 1 + chance(&mut random, 12);
            let (limit, slower) = match algorithm {
                Algorithm::Calendar => (calendar_limit(units), 3_000),
                _ => (limit(algorithm, units, precision_us), 1),
            };
            let mut model = Model(Count::new(algorithm));
            let mut cache = DenyCache::default();
            let mut now_us = 1_700_000_000_000_000;
            for _ in 0..400 {
                let steps = [0, 1, 900, 30_000, 200_000];
                now_us += slower * steps[chance(&mut random, 5) as usize];
                let ask = charge(&limit, 1 + chance(&mut random, 4));
                if chance(&mut random, 3) == 0 {
                    // Another proxy's request: this cache never hears of it.
                    model.ask(&ask, now_us);
                    continue;
                }
                if let Some(cached) = cache.find(&ask, now_us, false) {
                    let mut unseen = Model(model.0.clone());
                    let real = unseen.ask(&ask, now_us);
                    assert!(!real.allowed, "seed {seed} at {now_us}: {ask:?}");
                    told += 1;
                    if cache.find(&ask, now_us, true).is_some() {
                        let real = Verdict {
                            stamp: 0,
                            ..real.verdicts[0]
                        };
                        let cached = Verdict {
                            stamp: 0,
                            ..cached.verdicts[0]
                        };
                        assert_eq!(cached, real, "seed {seed} at {now_us}");
                        exact += 1;
                    }
                    continue;
                }
                let decision = model.ask(&ask, now_us);
                let span = CallSpan {
                    sent_us: now_us,
                    came_us: now_us,
                };
                cache.note(&ask, &decision, span);
            }
        }
        assert!(told > 5_000 && exact > 1_000, "{told} told, {exact} exact");
    }

    fn denied(retry_us: u64) -> Decision {
        let verdict = Verdict {
            used: 10,
            remaining: 0,
            retry: Retry::After(retry_us),
            reset_us: 2 * retry_us,
            next_us: retry_us,
            stamp: 0,
        };
        Decision {
            allowed: false,
            at_us: 500,
            verdicts: [verdict].into_iter().collect(),
        }
    }

    const SPAN: CallSpan = CallSpan {
        sent_us: 1_000,
        came_us: 3_000,
    };

    #[test]
    fn a_denial_ends_before_its_wait_does_and_tells_the_whole_of_it() {
        let limit = limit(Algorithm::Log, 10, 1);
        let (ask, mut cache) = (charge(&limit, 1), DenyCache::default());
        cache.note(&ask, &denied(1_000_000), SPAN);
        let told = cache.find(&ask, 13_000, true).unwrap();
        assert_eq!(told.at_us, 10_500);
        assert_eq!(told.verdicts[0].retry, Retry::After(990_000));
        let last = 1_000 + 999_000 - 1_000;
        assert!(cache.find(&ask, last - 1, true).is_some());
        assert!(cache.find(&ask, last, true).is_none());
        cache.clear();
        assert!(cache.find(&ask, 13_000, false).is_none());
    }

    #[test]
    fn it_is_told_for_the_same_cost_and_limit() {
        let mut cache = DenyCache::default();
        let ten = limit(Algorithm::Log, 10, 1);
        cache.note(&charge(&ten, 3), &denied(1_000_000), SPAN);
        assert!(cache.find(&charge(&ten, 2), 5_000, false).is_none());
        assert!(cache.find(&charge(&ten, 3), 5_000, false).is_some());
        assert!(cache.find(&charge(&ten, 4), 5_000, false).is_none());
        let raised = limit(Algorithm::Log, 11, 1);
        assert!(cache.find(&charge(&raised, 3), 5_000, false).is_none());
        let lowered = limit(Algorithm::Log, 9, 1);
        assert!(cache.find(&charge(&lowered, 3), 5_000, false).is_none());
    }

    #[test]
    fn other_items_are_unasked() {
        let mut cache = DenyCache::default();
        let ten = limit(Algorithm::Log, 10, 1);
        cache.note(&charge(&ten, 1), &denied(1_000_000), SPAN);
        let mut both = charge(&ten, 1);
        let other = charge(&limit(Algorithm::Counter, 10, 1), 1);
        both.extend(other);
        let told = cache.find(&both, 5_000, false).unwrap();
        assert_eq!(told.verdicts[1].retry, Retry::Unasked);
        assert!(cache.find(&both, 5_000, true).is_none(), "not all numbers");
    }

    #[test]
    fn units_that_may_come_back_are_not_trusted_for_long() {
        let mut cache = DenyCache::default();
        let limit = Arc::new(Limit {
            gives_back: true,
            ..Limit::clone(&limit(Algorithm::Log, 10, 1))
        });
        cache.note(&charge(&limit, 1), &denied(1_000_000), SPAN);
        assert!(cache.find(&charge(&limit, 1), 50_999, false).is_some());
        assert!(cache.find(&charge(&limit, 1), 51_000, false).is_none());
    }

    #[test]
    fn it_is_bounded() {
        let limit = limit(Algorithm::Log, 10, 1);
        let mut cache = DenyCache::default();
        for who in 0..3 * GENERATION as u64 {
            let mut ask = charge(&limit, 1);
            ask[0].tag.0[..8].copy_from_slice(&who.to_le_bytes());
            cache.note(&ask, &denied(1_000_000), SPAN);
            assert!(cache.find(&ask, 5_000, false).is_some());
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION);
    }
}
