//! What only the embedded store promises: bounds, forgetting, and many threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::clock::Micros;
use tidegate::config::StoreSettings;
use tidegate::limit::{Algorithm, Charge, Rule};
use tidegate::store::fleet::Fleet;
use tidegate::store::hash_key::KeyRing;
use tidegate::store::memory::Memory;
use tidegate::store::recovery::Recovery;
use tidegate::telemetry::decisions::Source;

use crate::support::{item, limit, log_rule, memory_settings, one};

const MINUTE: Duration = Duration::from_secs(60);

fn store(settings: &StoreSettings) -> (Memory, Arc<AtomicU64>) {
    let time = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let clock = Micros::Manual(Arc::clone(&time));
    (
        Memory::new(settings, KeyRing::new(settings).unwrap(), clock, None),
        time,
    )
}

#[test]
fn a_flood_of_fresh_keys_does_not_forgive_a_limited_client() {
    let settings = StoreSettings {
        max_keys: 10_000,
        ..memory_settings()
    };
    let (memory, _) = store(&settings);
    let limit = limit("flood", log_rule(5, MINUTE));
    for who in 0..50 {
        for _ in 0..5 {
            assert!(memory.charge(&one(&limit, who, 1)).allowed);
        }
    }
    for who in 1_000..200_000 {
        memory.charge(&one(&limit, who, 1));
    }
    assert!(memory.figures().keys <= 10_000 + 1);
    assert_eq!(memory.figures().forgiven, 0);
    for who in 0..50 {
        assert!(!memory.charge(&one(&limit, who, 1)).allowed);
    }
}

#[test]
fn memory_is_bounded_in_bytes_and_one_large_key_may_not_grow_past_it_unseen() {
    let settings = StoreSettings {
        max_memory: 2_000_000,
        ..memory_settings()
    };
    let (memory, _) = store(&settings);
    let limit = limit("bytes", log_rule(1_000, MINUTE));
    for who in 0..100_000 {
        memory.charge(&one(&limit, who, 1));
    }
    let figures = memory.figures();
    assert!(figures.bytes <= 2_000_000 + 1_000, "{figures:?}");
    assert!(figures.evicted > 50_000, "{figures:?}");
}

#[test]
fn expired_keys_go_by_themselves_as_others_come() {
    let (memory, time) = store(&memory_settings());
    let limit = limit("expire", log_rule(5, MINUTE));
    for who in 0..20_000 {
        memory.charge(&one(&limit, who, 1));
    }
    assert_eq!(memory.figures().keys, 20_000);
    time.fetch_add(61_000_000, Ordering::Relaxed);
    for who in 20_000..50_000 {
        memory.charge(&one(&limit, who, 1));
    }
    // Where chance sends fewer of the new ones, a few old ones are still there.
    let keys = memory.figures().keys;
    assert!((30_000..30_600).contains(&keys), "{keys}");
    assert_eq!(memory.figures().evicted, 0);
    time.fetch_add(61_000_000, Ordering::Relaxed);
    for _ in 0..40 {
        for who in 50_000..52_000 {
            memory.charge(&one(&limit, who, 0));
        }
    }
    assert!(memory.figures().keys < 6_000, "{:?}", memory.figures());
    // The rest are where nobody asks.
    for _ in 0..1_000 {
        memory.tidy();
    }
    assert_eq!(memory.figures().keys, 0);
}

#[test]
fn threads_charging_several_keys_at_once_neither_deadlock_nor_overadmit() {
    let (memory, _) = store(&memory_settings());
    let limits: Vec<_> = (0..3)
        .map(|i| limit(&format!("threads{i}"), log_rule(1_000, MINUTE)))
        .collect();
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (memory, limits, admitted) = (&memory, &limits, &admitted);
            scope.spawn(move || {
                for turn in 0..2_000usize {
                    let order = (0..3).map(|i| &limits[(i + turn + thread) % 3]);
                    let charge: Charge = order.map(|limit| item(limit, 1, 1)).collect();
                    admitted
                        .fetch_add(u64::from(memory.charge(&charge).allowed), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 1_000);
}

#[test]
fn the_store_that_stands_in_enforces_this_proxys_share() {
    let settings = memory_settings();
    let fleet = Arc::new(Fleet::new(4));
    let keys = KeyRing::new(&settings).unwrap();
    let recovery = Arc::new(Recovery::new(fleet, [1; 16], Duration::from_millis(25), 1));
    let local = Memory::new(&settings, keys, Micros::monotonic(), None).stand_in(&recovery);
    let limit = limit("share", log_rule(10, MINUTE));
    local.keep_warm(&one(&limit, 1, 1), 0);
    assert!(local.charge(&one(&limit, 1, 1)).allowed);
    assert!(!local.charge(&one(&limit, 1, 1)).allowed);
}

#[test]
fn a_request_that_redis_decided_later_counts_once_and_from_then_on() {
    let (memory, time) = store(&memory_settings());
    let limit = limit("anew", log_rule(10, MINUTE));
    let charge = one(&limit, 1, 2);
    let used = || memory.charge(&one(&limit, 1, 0)).verdicts[0].used;
    let mut charged = memory.book_beside(&charge, 0);
    time.fetch_add(30_000_000, Ordering::Relaxed);
    memory.count_anew(&charge, &mut charged, Instant::now(), 0);
    assert_eq!((used(), charged.verdicts[0].used), (2, 0));
    time.fetch_add(40_000_000, Ordering::Relaxed);
    assert_eq!(used(), 2);
    time.fetch_add(20_000_000, Ordering::Relaxed);
    assert_eq!(used(), 0);
}

#[test]
fn an_answer_of_several_nodes_proves_a_loss_only_by_its_earliest_time() {
    let settings = memory_settings();
    let fleet = Arc::new(Fleet::new(2));
    let (memory, time) = store(&settings);
    let recovery = Arc::new(Recovery::new(fleet, [1; 16], Duration::from_millis(25), 1));
    let local = memory.stand_in(&recovery);
    let limit = limit("nodes", log_rule(10, MINUTE));
    let charge = one(&limit, 1, 1);
    let answer = |spread_us: u64| {
        let mut answer = local.stand(&charge);
        answer.verdicts[0].used = 1;
        answer.at_us = time.load(Ordering::Relaxed);
        answer.spread_us = spread_us;
        answer
    };
    for _ in 0..3 {
        local.keep_warm(&charge, 0);
    }
    // The first answer stands for what other workers know.
    local.note(&charge, &answer(0), None, Source::Store);
    time.fetch_add(1_000_000, Ordering::Relaxed);
    assert!(local.lost_by(&charge, &answer(1_000_000), true).is_empty());
    time.fetch_add(1_000_000, Ordering::Relaxed);
    let lost = local.lost_by(&charge, &answer(0), true);
    assert_eq!(lost.iter().map(|item| item.cost).collect::<Vec<_>>(), [2]);
}

fn slots_rule(units: u64) -> Rule {
    Rule {
        algorithm: Algorithm::Slots,
        ..log_rule(units, MINUTE)
    }
}

#[test]
fn held_slots_are_neither_swept_nor_evicted() {
    let settings = StoreSettings {
        max_keys: 1_000,
        ..memory_settings()
    };
    let (memory, time) = store(&settings);
    let (held, flood) = (
        limit("held", slots_rule(2)),
        limit("flood", log_rule(5, MINUTE)),
    );
    for who in 0..100 {
        assert!(memory.charge(&one(&held, who, 1)).allowed);
    }
    for who in 1_000..50_000 {
        memory.charge(&one(&flood, who, 1));
        time.fetch_add(100_000, Ordering::Relaxed);
    }
    for who in 0..100 {
        assert_eq!(memory.charge(&one(&held, who, 0)).verdicts[0].used, 1);
        memory.release(&one(&held, who, 1));
        memory.release(&one(&held, who, 1));
        assert_eq!(memory.charge(&one(&held, who, 0)).verdicts[0].used, 0);
    }
    // Now nothing counts in them, and they go like any other.
    time.fetch_add(120_000_000, Ordering::Relaxed);
    for who in 0..50_000 {
        memory.charge(&one(&flood, who, 0));
    }
    assert_eq!(memory.figures().keys, 0);
}

#[test]
fn what_another_store_granted_is_held_above_the_limit_too() {
    let (memory, _) = store(&memory_settings());
    let held = limit("held", slots_rule(2));
    for _ in 0..3 {
        memory.hold(&one(&held, 1, 1));
    }
    memory.keep_warm(&one(&held, 1, 1), 0);
    assert_eq!(memory.charge(&one(&held, 1, 0)).verdicts[0].used, 3);
    memory.release(&one(&held, 1, 2));
    assert!(memory.charge(&one(&held, 1, 1)).allowed);
    assert!(!memory.charge(&one(&held, 1, 1)).allowed);
}

#[test]
fn what_is_given_back_is_free_and_what_is_charged_more_counts() {
    for algorithm in [Algorithm::Log, Algorithm::Counter] {
        let (memory, time) = store(&memory_settings());
        let rule = Rule {
            algorithm,
            ..log_rule(10, MINUTE)
        };
        let limit = limit("adjusted", rule);
        let used = || memory.charge(&one(&limit, 1, 0)).verdicts[0].used;
        let first = memory.charge(&one(&limit, 1, 4));
        time.fetch_add(1_000_000, Ordering::Relaxed);
        memory.charge(&one(&limit, 1, 3));
        memory.refund(&one(&limit, 1, 3), &first);
        assert_eq!(used(), 4, "{algorithm:?}");
        memory.charge_more(&one(&limit, 1, 20));
        assert_eq!(used(), 24, "{algorithm:?}");
        assert!(!memory.charge(&one(&limit, 1, 1)).allowed);
        time.fetch_add(2 * 60_000_000, Ordering::Relaxed);
        // What has expired is not given back.
        memory.refund(&one(&limit, 1, 1), &first);
        assert_eq!(used(), 0, "{algorithm:?}");
        memory.charge_more(&one(&limit, 2, 3));
        assert_eq!(memory.charge(&one(&limit, 2, 0)).verdicts[0].used, 3);
    }
}

#[test]
fn the_oldest_units_are_given_back_and_no_more_than_there_are() {
    for algorithm in [Algorithm::Log, Algorithm::Counter] {
        let (memory, time) = store(&memory_settings());
        let rule = Rule {
            algorithm,
            ..log_rule(10, MINUTE)
        };
        let limit = limit("oldest", rule);
        let used = || memory.charge(&one(&limit, 1, 0)).verdicts[0].used;
        // The clock stands 20 s after the beginning of a window.
        memory.charge(&one(&limit, 1, 6));
        time.fetch_add(10_000_000, Ordering::Relaxed);
        memory.charge(&one(&limit, 1, 4));
        assert!(!memory.charge(&one(&limit, 1, 1)).allowed);
        memory.refund_oldest(&one(&limit, 1, 0));
        assert_eq!(used(), 10, "{algorithm:?}");
        memory.refund_oldest(&one(&limit, 1, 7));
        assert_eq!(used(), 3, "{algorithm:?}");
        time.fetch_add(55_000_000, Ordering::Relaxed);
        // The log has the three that were charged last, 55 s ago.
        assert_eq!(used(), 3 - u64::from(algorithm == Algorithm::Counter));
        memory.refund_oldest(&one(&limit, 1, 100));
        assert_eq!(used(), 0, "{algorithm:?}");
        assert!(memory.charge(&one(&limit, 1, 10)).allowed);
        assert!(!memory.charge(&one(&limit, 1, 1)).allowed);
        // A key that counts nothing gets no entry.
        let keys = memory.figures().keys;
        memory.refund_oldest(&one(&limit, 2, 5));
        assert_eq!(memory.figures().keys, keys);
    }
    let (memory, _) = store(&memory_settings());
    let held = limit("held", slots_rule(2));
    assert!(memory.charge(&one(&held, 1, 2)).allowed);
    memory.refund_oldest(&one(&held, 1, 2));
    assert_eq!(memory.charge(&one(&held, 1, 0)).verdicts[0].used, 2);
}
