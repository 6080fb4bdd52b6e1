//! The most work that one charge does, counted rather than timed, and the bytes of a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::smallvec;

use super::entry_row::CountEntry;
use super::shard::{KEY_BYTES, Shard};
use super::{KeyRing, Memory, SHARD_KEYS, TIDY_KEYS, TIDY_SHARDS};
use crate::clock::Micros;
use crate::config::{self, StoreKind, StoreSettings};
use crate::limit::{
    Algorithm, Charge, Decision, Key, KeyHash, Limit, LimitCheck, OnError, Retry, Rule, Verdict,
};
use crate::store::fleet::Fleet;
use crate::store::recovery::{Heartbeat, Recovery};
use crate::telemetry::decisions::Source;

const KEYS: u64 = 240_000;
const WINDOW_US: u64 = 60_000_000;

struct Bench {
    memory: Memory,
    time: Arc<AtomicU64>,
    limit: Arc<Limit>,
}

fn bench(max_keys: usize) -> Bench {
    let settings = StoreSettings {
        kind: StoreKind::Memory,
        prefix: String::new(),
        timeout: Duration::from_millis(25),
        on_error: OnError::Local,
        fleet: config::Fleet::Fixed(1),
        hash_key: None,
        file: None,
        known_keys: false,
        max_keys,
        max_memory: 1 << 34,
    };
    let time = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let keys = KeyRing::new(&settings).unwrap();
    let memory = Memory::new(&settings, keys, Micros::Manual(Arc::clone(&time)), None);
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: 3,
        window_us: WINDOW_US,
        precision_us: 1,
    };
    let limit = Arc::new(Limit::new("bench", &[rule], Key::all_of([])));
    Bench {
        memory,
        time,
        limit,
    }
}

impl Bench {
    /// Charges `who` and returns how many keys had to be indexed anew.
    fn indexed_by(&self, who: u64) -> usize {
        let charge = self.charge(who);
        let id = super::id(&charge[0]);
        let shard = &self.memory.shards[self.memory.shard_of(id)];
        let (before, keys) = {
            let shard = shard.lock().unwrap();
            (shard.index.capacity(), shard.entries.len())
        };
        self.memory.charge(&charge);
        let after = shard.lock().unwrap().index.capacity();
        keys * usize::from(before != after)
    }

    fn charge(&self, who: u64) -> Charge {
        let mixed = (u128::from(who) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        let item = LimitCheck {
            limit: Arc::clone(&self.limit),
            window: Arc::clone(&self.limit.windows[0]),
            tag: KeyHash((mixed ^ mixed >> 64).to_le_bytes()),
            anchor: None,
            cost: 1,
            asker: None,
        };
        [item].into_iter().collect()
    }

    /// Bytes that all shards have for their keys.
    fn bytes(&self) -> usize {
        let bytes = |shard: &Shard| {
            let lists: usize = shard.lists.values().map(Vec::capacity).sum();
            shard.entries.capacity() * size_of::<CountEntry>()
                + shard.index.allocation_size()
                + lists * size_of::<u32>()
        };
        let shards = self.memory.shards.iter();
        shards.map(|shard| bytes(&shard.lock().unwrap())).sum()
    }
}

#[test]
fn no_charge_indexes_more_keys_than_a_shard_has_and_memory_comes_back() {
    let bench = bench(usize::try_from(KEYS).unwrap());
    let most = (0..KEYS).map(|who| bench.indexed_by(who)).max().unwrap();
    assert!(
        most > 0 && most <= 2 * SHARD_KEYS,
        "{most} keys in one charge"
    );
    let each = bench.bytes() as f64 / KEYS as f64;
    assert!(each < 1.05 * KEY_BYTES as f64, "{each} bytes of a key");

    bench.time.fetch_add(WINDOW_US, Ordering::Relaxed);
    let most = (KEYS..2 * KEYS)
        .map(|who| bench.indexed_by(who))
        .max()
        .unwrap();
    assert!(most <= 2 * SHARD_KEYS, "{most} keys in one charge");
    assert!(bench.bytes() as u64 <= 11 * KEYS * KEY_BYTES as u64 / 10);

    bench.time.fetch_add(WINDOW_US, Ordering::Relaxed);
    let keys = usize::try_from(KEYS).unwrap();
    for _ in 0..2 * (keys / TIDY_KEYS + bench.memory.shards.len()) / TIDY_SHARDS {
        bench.memory.tidy();
    }
    assert_eq!(bench.memory.figures().keys, 0);
    assert_eq!(bench.memory.figures().bytes, 0);
    let left = bench.bytes() / bench.memory.shards.len();
    assert!(
        left < 20 * size_of::<CountEntry>(),
        "{left} bytes of an empty shard"
    );
}

#[test]
fn shards_are_as_many_as_both_bounds_let_keys_in() {
    let shards = |max_keys| bench(max_keys).memory.shards.len();
    assert_eq!(shards(1), 64);
    assert_eq!(shards(1_000_000), 256);
    assert_eq!(shards(10_000_000), 4096);
    // 16 GiB hold 133 million at most.
    assert_eq!(shards(1 << 32), 1 << 15);
}

#[test]
fn a_denial_is_found_without_a_charge() {
    let bench = bench(1000);
    let (one, other) = (bench.charge(1), bench.charge(2));
    let both: Charge = one.iter().chain(&other).cloned().collect();
    for _ in 0..3 {
        assert_eq!(bench.memory.find_denial(&one), None);
        assert_eq!(bench.memory.find_denial(&both), None);
        assert!(bench.memory.charge(&one).allowed, "nothing was charged");
    }
    for charge in [&one, &both] {
        let found = bench.memory.find_denial(charge).unwrap();
        assert_eq!(found, bench.memory.charge(charge));
    }
    assert_eq!(bench.memory.find_denial(&other), None);
    let waited_us = bench.time.load(Ordering::Relaxed) + WINDOW_US;
    bench.time.store(waited_us, Ordering::Relaxed);
    assert_eq!(bench.memory.find_denial(&both), None);
}

/// A store that comes back with older data has too few units. Until its answers are compared, they
/// must not replace what shows that.
#[test]
fn older_data_of_the_store_is_noticed_after_an_outage() {
    let bench = bench(1000);
    let now_us = || bench.time.load(Ordering::Relaxed);
    let timeout = Duration::from_millis(25);
    let recovery = Recovery::new(Arc::new(Fleet::new(2)), [1; 16], timeout, now_us());
    let recovery = Arc::new(recovery);
    let (time, charge) = (Arc::clone(&bench.time), bench.charge(1));
    let memory = bench.memory.stand_in(&recovery);
    let answer = |used, at_us| Decision {
        allowed: true,
        at_us,
        spread_us: 0,
        verdicts: smallvec![Verdict {
            used,
            remaining: 2 - used,
            retry: Retry::Now,
            reset_us: WINDOW_US,
            next_us: if used > 0 { WINDOW_US } else { 0 },
            stamp: 0,
        }],
    };
    let greet = |us| {
        let beat = Heartbeat {
            size: 2,
            now_us: us,
            ..Heartbeat::default()
        };
        recovery.take_greeting(recovery.greeting(false, false), beat, us);
    };
    let start_us = now_us();
    let warm = memory.keep_warm(&charge, 0);
    memory.note(&charge, &answer(1, start_us), Some(&warm), Source::Store);
    recovery.away(start_us + 1);
    for later in [2, 3] {
        greet(start_us + later);
    }
    assert!(!recovery.is_on());
    time.store(start_us + 10, Ordering::Relaxed);
    memory.note(&charge, &answer(0, start_us + 10), None, Source::Store);
    time.store(start_us + 1_000_000, Ordering::Relaxed);
    let lost = memory.lost_by(&charge, &answer(1, start_us + 1_000_000), true);
    assert_eq!(
        lost.len(),
        1,
        "the store had two units, one of them of another proxy"
    );
}
