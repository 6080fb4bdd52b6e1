//! Floods of keys against the embedded store, beside a model without bounds: which clients may be
//! forgiven, and which never are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::Micros;
use tidegate::config::StoreSettings;
use tidegate::limit::{Algorithm, Charge, Limit, Rule};
use tidegate::store::hash_key::KeyRing;
use tidegate::store::memory::Memory;

use crate::support::{Chance, item, limit, log_rule, memory_settings, one};

const MINUTE: Duration = Duration::from_secs(60);
const VICTIMS: u64 = 50;
/// From this number on keys belong to floods.
const FLOOD: u64 = 1_000_000;

fn store(max_keys: usize, max_memory: usize) -> (Memory, Arc<AtomicU64>) {
    let settings = StoreSettings {
        max_keys,
        max_memory,
        ..memory_settings()
    };
    let time = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let keys = KeyRing::new(&settings).unwrap();
    let clock = Micros::Manual(Arc::clone(&time));
    (Memory::new(&settings, keys, clock, None), time)
}

fn exhaust(memory: &Memory, limit: &Arc<Limit>) {
    for who in 0..VICTIMS {
        while memory.charge(&one(limit, who, 1)).allowed {}
    }
}

/// How many victims would pass now.
fn forgiven(memory: &Memory, limit: &Arc<Limit>) -> usize {
    let passes = |who: &u64| memory.charge(&one(limit, *who, 1)).allowed;
    (0..VICTIMS).filter(passes).count()
}

#[test]
fn a_flood_on_one_limit_forgives_no_client_of_another() {
    let (memory, _) = store(2_000, 1 << 30);
    let login = limit("login", log_rule(5, MINUTE));
    let report = limit("report", log_rule(1, 5 * MINUTE));
    exhaust(&memory, &login);
    for who in FLOOD..FLOOD + 40_000 {
        assert!(memory.charge(&one(&report, who, 1)).allowed);
    }
    assert_eq!(forgiven(&memory, &login), 0);
    assert!(memory.figures().keys <= 2_001, "{:?}", memory.figures());
    let evictions = memory.evictions();
    assert_eq!(evictions.len(), 1, "{evictions:?}");
    assert_eq!(&*evictions[0].limit, "report");
    assert_eq!(evictions[0].units, evictions[0].keys);
    assert!(evictions[0].keys >= 38_000, "{evictions:?}");
}

#[test]
fn a_flood_of_fresh_keys_forgives_no_limited_client_of_its_own_limit() {
    let (memory, time) = store(2_000, 1 << 30);
    let login = limit("login", log_rule(5, MINUTE));
    exhaust(&memory, &login);
    for who in FLOOD..FLOOD + 40_000 {
        time.fetch_add(1, Ordering::Relaxed);
        memory.charge(&one(&login, who, 1));
    }
    assert_eq!(forgiven(&memory, &login), 0);
    assert_eq!(memory.figures().forgiven, 0);
}

#[test]
fn a_flood_of_full_keys_pushes_out_its_own_and_not_those_limited_before() {
    let (memory, time) = store(2_000, 1 << 30);
    for (name, units) in [("one", 1), ("three", 3)] {
        let limit = limit(name, log_rule(units, MINUTE));
        exhaust(&memory, &limit);
        for who in FLOOD..FLOOD + 20_000 {
            time.fetch_add(1, Ordering::Relaxed);
            for _ in 0..units {
                memory.charge(&one(&limit, who, 1));
            }
        }
        assert_eq!(forgiven(&memory, &limit), 0, "{name}");
    }
}

#[test]
fn a_request_that_costs_more_than_is_left_counts_as_limited() {
    let (memory, time) = store(2_000, 1 << 30);
    let limit = limit("weighed", log_rule(10, MINUTE));
    for who in 0..VICTIMS {
        for allowed in [true, true, true, false] {
            assert_eq!(memory.charge(&one(&limit, who, 3)).allowed, allowed);
        }
    }
    // Fuller by one unit than the victims.
    for who in FLOOD..FLOOD + 20_000 {
        time.fetch_add(1, Ordering::Relaxed);
        memory.charge(&one(&limit, who, 9));
        memory.charge(&one(&limit, who, 1));
    }
    for who in 0..VICTIMS {
        assert!(!memory.charge(&one(&limit, who, 3)).allowed, "{who}");
    }
}

#[test]
fn a_flood_of_long_logs_pays_for_its_bytes_itself() {
    let (memory, time) = store(1_000_000, 400_000);
    let login = limit("login", log_rule(5, MINUTE));
    let search = limit("search", log_rule(1_000, MINUTE));
    exhaust(&memory, &login);
    for who in FLOOD..FLOOD + 1_000 {
        for _ in 0..40 {
            time.fetch_add(1, Ordering::Relaxed);
            memory.charge(&one(&search, who, 1));
        }
    }
    assert_eq!(forgiven(&memory, &login), 0);
    assert!(memory.figures().bytes <= 401_000, "{:?}", memory.figures());
    assert_eq!(memory.evictions().len(), 1, "{:?}", memory.evictions());
}

#[test]
fn slots_that_are_held_outlive_a_flood_of_slots() {
    let (memory, _) = store(500, 1 << 30);
    let rule = Rule {
        algorithm: Algorithm::Slots,
        ..log_rule(2, MINUTE)
    };
    let (held, spent) = (limit("held", rule), limit("spent", log_rule(5, MINUTE)));
    for who in 0..600 {
        assert!(memory.charge(&one(&held, who, 2)).allowed);
    }
    for who in FLOOD..FLOOD + 20_000 {
        memory.charge(&one(&spent, who, 1));
    }
    for who in 0..600 {
        assert!(!memory.charge(&one(&held, who, 1)).allowed, "{who}");
    }
    // What is held has no bound but the requests under way; all else gives way to it.
    assert!(memory.figures().keys < 600 + 100, "{:?}", memory.figures());
}

#[test]
fn keys_of_several_limits_at_once_are_paid_for_by_the_one_that_fills() {
    let (memory, _) = store(3_000, 1 << 30);
    let (login, address) = (
        limit("login", log_rule(5, MINUTE)),
        limit("address", log_rule(50, MINUTE)),
    );
    exhaust(&memory, &address);
    for who in FLOOD..FLOOD + 30_000 {
        let both: Charge = [item(&login, who, 1), item(&address, 1_000 + who % 90, 1)]
            .into_iter()
            .collect();
        memory.charge(&both);
    }
    assert_eq!(forgiven(&memory, &address), 0);
    let names: Vec<_> = memory
        .evictions()
        .into_iter()
        .map(|one| one.limit)
        .collect();
    assert!(names.iter().all(|name| &**name == "login"), "{names:?}");
}

/// Everything that was admitted, for ever.
#[derive(Default)]
struct Model(HashMap<(usize, u64), Vec<(u64, u64)>>);

impl Model {
    fn used(&self, key: (usize, u64), now_us: u64, window_us: u64) -> u64 {
        let admitted = self.0.get(&key).into_iter().flatten();
        let live = admitted.filter(|(at_us, _)| at_us + window_us > now_us);
        live.map(|(_, cost)| cost).sum()
    }
}

/// One flood of random shape. Clients of limits that hold less than a fair share are decided on as
/// without bounds; every other difference is a key that the metrics count as forgotten.
fn flood(seed: u64) -> usize {
    const LIMITS: usize = 6;
    let mut chance = Chance(seed);
    let max_keys = 1_500;
    let (memory, time) = store(max_keys, 1 << 30);
    let units: Vec<u64> = (0..LIMITS).map(|_| 1 + chance.below(6)).collect();
    let window_us = 60_000_000;
    let limits: Vec<Arc<Limit>> = (0..LIMITS)
        .map(|which| limit(&format!("l{which}"), log_rule(units[which], MINUTE)))
        .collect();
    let flooded: BTreeSet<usize> = (0..1 + chance.below(3))
        .map(|_| chance.below(LIMITS as u64) as usize)
        .collect();
    let mut model = Model::default();
    let mut differing = BTreeMap::<usize, u64>::new();
    let (mut decided, mut fresh) = (0, FLOOD);
    for _ in 0..20_000 {
        let now_us = time.fetch_add(chance.below(1_500), Ordering::Relaxed);
        let now_us = now_us.max(time.load(Ordering::Relaxed));
        let is_flood = chance.below(8) > 0;
        let which = match is_flood {
            true => *flooded
                .iter()
                .nth(chance.below(flooded.len() as u64) as usize)
                .unwrap(),
            false => chance.below(LIMITS as u64) as usize,
        };
        let who = match is_flood {
            // New keys, and keys of the flood that are asked for again, up to their limit.
            true if chance.below(3) > 0 => {
                fresh += 1;
                fresh
            }
            true => fresh - chance.below(20).min(fresh - FLOOD),
            false => chance.below(100),
        };
        let cost = 1 + chance.below(units[which].min(2));
        let decision = memory.charge(&one(&limits[which], who, cost));
        let used = model.used((which, who), now_us, window_us);
        let expected = used + cost <= units[which];
        decided += 1;
        if decision.verdicts[0].used != used {
            assert!(decision.verdicts[0].used < used, "nothing counts twice");
            *differing.entry(which).or_default() += 1;
        } else {
            assert_eq!(decision.allowed, expected, "seed {seed}");
        }
        if decision.allowed {
            let admitted = model.0.entry((which, who)).or_default();
            admitted.push((now_us, cost));
        }
        let keys = memory.figures().keys;
        assert!(keys <= max_keys + 4, "seed {seed}: {keys}");
    }
    for (which, limit) in limits.iter().enumerate() {
        let lost = memory.evictions();
        let lost = lost.iter().find(|lost| lost.limit == limit.name);
        if !flooded.contains(&which) {
            assert_eq!(lost, None, "seed {seed}: {which} is below its share");
        }
        let counted = lost.map_or(0, |lost| lost.keys);
        let differing = differing.get(&which).copied().unwrap_or(0);
        assert!(differing == 0 || counted > 0, "seed {seed}: {which}");
    }
    decided
}

#[test]
fn random_floods_forgive_nobody_of_the_limits_that_they_do_not_fill() {
    let decided: usize = (1..=12).map(flood).sum();
    assert_eq!(decided, 12 * 20_000);
}
