//! Figures of the embedded store: decisions per second, bytes per key and the longest pause while
//! a million keys come, stay and expire.
//!
//! `cargo run --release --example embedded_store [keys]`

#![allow(
    clippy::unwrap_used,
    reason = "a measurement ends where something is wrong"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::Micros;
use tidegate::config::{Fleet, StoreKind, StoreSettings};
use tidegate::limit::{Algorithm, Charge, Item, Key, Limit, OnError, Rule, Tag};
use tidegate::store::hash_key::KeyRing;
use tidegate::store::memory::Memory;

fn main() {
    let keys: u64 = std::env::args()
        .nth(1)
        .map_or(1_000_000, |text| text.parse().unwrap());
    let clock = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let settings = StoreSettings {
        kind: StoreKind::Memory,
        prefix: String::new(),
        timeout: Duration::from_millis(25),
        on_error: OnError::Local,
        fleet: Fleet::Fixed(1),
        hash_key: None,
        max_keys: usize::try_from(keys).unwrap() + 1,
        max_memory: 1 << 34,
    };
    let ring = KeyRing::new(&settings).unwrap();
    let memory = Memory::new(&settings, ring, Micros::Manual(Arc::clone(&clock)), None);
    let limit = limit();
    // The clock is the test's: it moves 1 us for each decision.
    let tick = || clock.fetch_add(1, Ordering::Relaxed);

    let before = resident_bytes();
    let mut charges = Charges::new(&limit);
    round("new keys", keys, || {
        tick();
        memory.charge(charges.next(keys));
    });
    let bytes = resident_bytes() - before;
    let counted = memory.figures();
    println!(
        "{} keys of one entry: {:.0} bytes resident, {:.0} accounted, each",
        counted.keys,
        bytes as f64 / keys as f64,
        counted.bytes as f64 / keys as f64
    );
    for requests in 2..=4 {
        round(&format!("request {requests} of every key"), keys, || {
            tick();
            memory.charge(charges.next(keys));
        });
    }
    let bytes = resident_bytes() - before;
    println!(
        "four entries: {:.0} bytes resident each",
        bytes as f64 / keys as f64
    );

    let hot = one(&limit, 1);
    round("one key, allowed and denied", keys, || {
        tick();
        memory.charge(&hot);
    });
    clock.fetch_add(120_000_000, Ordering::Relaxed);
    let mut fresh = keys;
    round("everything expired, new keys come", keys, || {
        tick();
        fresh += 1;
        memory.charge(&one(&limit, fresh));
    });
    println!("{:?}", memory.figures());
    round("a flood above max_keys", keys, || {
        tick();
        fresh += 1;
        memory.charge(&one(&limit, fresh));
    });
    println!("{:?}", memory.figures());
}

/// Runs it for every key, and prints the rate and the longest single decision. Time is the
/// thread's CPU time: what other processes take away is not this store's doing.
fn round(name: &str, times: u64, mut decide: impl FnMut()) {
    let (begun, mut longest) = (cpu_ns(), 0);
    let mut at = begun;
    for _ in 0..times {
        decide();
        let now = cpu_ns();
        longest = longest.max(now - at);
        at = now;
    }
    let clock = {
        let from = cpu_ns();
        (0..times).for_each(|_| _ = cpu_ns());
        cpu_ns() - from
    };
    let rate = times as f64 * 1e9 / (at - begun - clock) as f64;
    println!(
        "{name:36} {rate:>10.0} decisions/s, longest {} us",
        longest / 1000
    );
}

fn cpu_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

struct Charges<'l> {
    limit: &'l Arc<Limit>,
    next: u64,
    charge: Charge,
}

impl<'l> Charges<'l> {
    fn new(limit: &'l Arc<Limit>) -> Self {
        Self {
            limit,
            next: 0,
            charge: Charge::new(),
        }
    }

    /// The next key's request, round and round.
    fn next(&mut self, keys: u64) -> &Charge {
        self.next = (self.next + 1) % keys;
        self.charge = one(self.limit, self.next);
        &self.charge
    }
}

fn one(limit: &Arc<Limit>, who: u64) -> Charge {
    let mut mixed = u128::from(who) + 1;
    for _ in 0..2 {
        mixed = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        mixed ^= mixed >> 64;
    }
    let tag = Tag(mixed.to_le_bytes());
    [Item {
        limit: Arc::clone(limit),
        window: Arc::clone(&limit.windows[0]),
        tag,
        cost: 1,
    }]
    .into_iter()
    .collect()
}

fn limit() -> Arc<Limit> {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: 100,
        window_us: 60_000_000,
        precision_us: 1,
    };
    let key = Key { parts: Vec::new() };
    Arc::new(Limit::new("measured", &[rule], key))
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
