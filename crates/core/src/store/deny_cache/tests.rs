//! Denials as a model of the store returns them.

use std::sync::Arc;

use super::*;
use crate::limit::calendar::Moment;
use crate::limit::decide::Count;
use crate::limit::{Algorithm, Calendar, CalendarUnit, Delay, Key, KeyHash, Limit, Rule};

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
    let mut window = limit.windows[0].deep_copy();
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
        let look = self.0.first_pass(&rule, cost, at);
        let allowed = look.retry == Retry::Now;
        let verdict = self.0.settle(&rule, cost, &look, allowed);
        Decision {
            allowed,
            at_us: now_us,
            spread_us: 0,
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

/// The model denies every request of the least cost or more, whatever other proxies do, and for no
/// less time than the cache says.
#[test]
fn what_it_denies_for_the_least_cost_the_store_denies_for_any() {
    let mut found = [0; 2];
    for seed in 1..=400_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (algorithm, precision_us) = match seed % 3 {
            0 => (Algorithm::Counter, 1),
            1 => (Algorithm::Log, 1),
            _ => (Algorithm::Log, 250_000),
        };
        let limit = limit(algorithm, 4 + chance(&mut random, 12), precision_us);
        let mut model = Model(Count::new(algorithm));
        let mut cache = DenyCache::default();
        let mut now_us = 1_700_000_000_000_000;
        for _ in 0..400 {
            now_us += [0, 1, 900, 30_000, 200_000][chance(&mut random, 5) as usize];
            let least = chance(&mut random, 5);
            let ask = charge(&limit, (least + chance(&mut random, 3)).max(1));
            if chance(&mut random, 3) == 0 {
                // Another proxy's request: this cache never hears of it.
                model.ask(&ask, now_us);
                continue;
            }
            let least = charge(&limit, least);
            if let Some(early) = cache.find_of_at_least(&least, now_us, false) {
                let real = Model(model.0.clone()).ask(&ask, now_us).verdicts[0].retry;
                let Retry::After(told_us) = early.verdicts[0].retry else {
                    panic!("seed {seed}: {early:?}");
                };
                let is_longer = match real {
                    Retry::After(us) => told_us <= us,
                    other => other == Retry::Never,
                };
                assert!(is_longer, "seed {seed} at {now_us}: {told_us} {real:?}");
                found[usize::from(cache.find(&least, now_us, false).is_some())] += 1;
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
    assert!(found.iter().all(|count| *count > 1_000), "{found:?}");
}

#[test]
fn a_denial_of_another_cost_holds_while_nothing_becomes_free() {
    let (mut cache, limit) = (DenyCache::default(), limit(Algorithm::Log, 10, 1));
    let mut decision = denied(1_000_000);
    decision.verdicts[0].remaining = 3;
    decision.verdicts[0].next_us = 400_000;
    cache.note(&charge(&limit, 8), &decision, SPAN);
    let wait_us = |cost, now_us| {
        let found = cache.find_of_at_least(&charge(&limit, cost), now_us, false)?;
        match found.verdicts[0].retry {
            Retry::After(us) => Some(us),
            _ => None,
        }
    };
    assert_eq!(wait_us(3, 3_000), None, "three may pass");
    assert_eq!(wait_us(4, 3_000), Some(400_000));
    assert_eq!(wait_us(8, 3_000), Some(1_000_000));
    assert_eq!(wait_us(9, 13_000), Some(990_000));
    let last_us = 1_000 + 399_600 - 1_000;
    assert_eq!(
        wait_us(4, last_us - 1),
        Some(400_000 - (last_us - 1 - 3_000))
    );
    assert_eq!(wait_us(4, last_us), None);
    assert!(
        cache
            .find_of_at_least(&charge(&limit, 4), 3_000, true)
            .is_none()
    );
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
        spread_us: 0,
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
        refunds: true,
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

#[test]
fn a_denial_is_forgotten_when_its_wait_could_be_held() {
    let holding = |longest_us: u64| {
        let mut limit = limit(Algorithm::Log, 1, 1);
        let one = Arc::make_mut(&mut limit);
        one.refunds = true;
        one.delay = Some(Delay {
            longest_us,
            queue: 5,
        });
        charge(&limit, 1)
    };
    let now_us = 1_700_000_000_000_000;
    let span = CallSpan {
        sent_us: now_us,
        came_us: now_us,
    };
    for (longest_us, is_kept) in [(970_000, true), (1_000_000, false), (2_000_000, false)] {
        let ask = holding(longest_us);
        let (mut model, mut cache) = (Model(Count::new(Algorithm::Log)), DenyCache::default());
        model.ask(&ask, now_us);
        let denied = model.ask(&ask, now_us);
        assert_eq!(denied.verdicts[0].retry, Retry::After(1_000_000));
        cache.note(&ask, &denied, span);
        let found = |after_us: u64| cache.find(&ask, now_us + after_us, false).is_some();
        assert_eq!(found(20_000), is_kept, "{longest_us}");
        assert!(!found(30_000), "{longest_us}");
    }
}
