//! Keys in the embedded store: what each takes, and the longest that one decision takes while they
//! come, while they expire, and when there are too many. Each size in a process of its own, with
//! nothing else in memory.
//!
//! A loop that decides nothing takes turns with the decisions and has as much time as they: what
//! the machine does to it, it does to them.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::Micros;
use tidegate::config::{Fleet, StoreKind, StoreSettings};
use tidegate::limit::{Algorithm, Charge, Key, KeyHash, Limit, LimitCheck, OnError, Rule};
use tidegate::store::hash_key::KeyRing;
use tidegate::store::memory::Memory;

use super::Setting;
use crate::{page, process};

/// The word that has this program measure one size.
pub const CHILD: &str = "one-size-of-keys";

const SIZES: [u64; 5] = [1000, 10_000, 100_000, 1_000_000, 10_000_000];
/// A limit's units, of which each key has used all, and how many keys.
const FULL: [(u64, u64); 4] = [(3, 200_000), (10, 200_000), (100, 100_000), (1000, 20_000)];
const WINDOW_US: u64 = 60_000_000;
/// A decision's work is well under it; what is over is counted.
const PAUSE_NS: i64 = 1_000_000;
/// Decisions until the loop that decides nothing has its turn.
const SLICE: u64 = 1024;

pub fn measure(setting: &Setting) -> String {
    let sizes = &SIZES[..setting.or_quick(SIZES.len(), 3)];
    let rows: Vec<_> = sizes
        .iter()
        .map(|size| own_process(setting, &["grow".to_owned(), size.to_string()]))
        .collect();
    let grown = page::table(
        &[
            "keys",
            "bytes resident",
            "bytes accounted",
            "ns per decision",
            "longest us: new keys",
            "again",
            "all expire",
            "above max_keys",
            "nothing at all",
            "decisions over 1 ms",
        ],
        &rows,
    );
    let mut rows = Vec::new();
    for algorithm in ["log", "counter"] {
        let mut row = vec![format!("`{algorithm}`")];
        for (units, keys) in FULL {
            let keys = setting.or_quick(keys, keys / 10);
            let words = [algorithm.to_owned(), units.to_string(), keys.to_string()];
            row.extend(own_process(setting, &words));
        }
        rows.push(row);
    }
    let head = [
        "bytes resident of a key at a full window",
        "limit 3",
        "limit 10",
        "limit 100",
        "limit 1000",
    ];
    format!("{grown}\n{}", page::table(&head, &rows))
}

fn own_process(setting: &Setting, words: &[String]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["growth", CHILD]).args(words);
    let (status, printed) = setting.stage.output(setting.cores.0, command);
    assert!(status.success(), "{printed}");
    printed.trim().split(' ').map(str::to_owned).collect()
}

/// What runs in the process of one size; prints the row's figures.
pub fn child(words: &[String]) {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    match words[0].as_str() {
        "grow" => grow(number(1)),
        "counter" => fill(Algorithm::Counter, number(1), number(2)),
        _ => fill(Algorithm::Log, number(1), number(2)),
    }
}

struct Store {
    memory: Memory,
    clock: Arc<AtomicU64>,
    limit: Arc<Limit>,
}

impl Store {
    fn new(algorithm: Algorithm, units: u64, keys: u64) -> Store {
        let clock = Arc::new(AtomicU64::new(1_700_000_000_000_000));
        let settings = StoreSettings {
            kind: StoreKind::Memory,
            prefix: String::new(),
            timeout: Duration::from_millis(25),
            on_error: OnError::Local,
            fleet: Fleet::Fixed(1),
            hash_key: None,
            file: None,
            known_keys: false,
            // At least the default, with which few keys are found as well.
            max_keys: usize::try_from(keys.max(1_000_000)).unwrap(),
            max_memory: 1 << 40,
        };
        let ring = KeyRing::new(&settings).unwrap();
        let rule = Rule {
            algorithm,
            units,
            window_us: WINDOW_US,
            precision_us: 1,
        };
        let key = Key::all_of([]);
        Store {
            memory: Memory::new(&settings, ring, Micros::Manual(Arc::clone(&clock)), None),
            clock,
            limit: Arc::new(Limit::new("measured", &[rule], key)),
        }
    }

    fn charge(&self, who: u64) {
        self.clock.fetch_add(1, Ordering::Relaxed);
        let mut mixed = u128::from(who) + 1;
        for _ in 0..2 {
            mixed = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            mixed ^= mixed >> 64;
        }
        let item = LimitCheck {
            limit: Arc::clone(&self.limit),
            window: Arc::clone(&self.limit.windows[0]),
            tag: KeyHash(mixed.to_le_bytes()),
            anchor: None,
            cost: 1,
            asker: None,
        };
        let charge: Charge = [item].into_iter().collect();
        self.memory.charge(&charge);
    }

    fn expire_all(&self) {
        self.clock.fetch_add(2 * WINDOW_US, Ordering::Relaxed);
    }
}

fn grow(keys: u64) {
    let before = resident_bytes();
    let store = Store::new(Algorithm::Log, 100, keys);
    let mut all = Longest::default();
    let mut nothing = Longest::default();
    let mut round = |keys: std::ops::Range<u64>| {
        let (found, beside) = turns(keys, |who| store.charge(who));
        all.pauses += found.pauses;
        nothing.add(&beside);
        (found.ns / 1000, found.each_ns())
    };
    let (fresh, _) = round(0..keys);
    let resident = (resident_bytes() - before) / keys;
    let accounted = store.memory.figures().bytes as u64 / keys;
    let (again, each_ns) = round(0..keys);
    store.expire_all();
    let (expired, _) = round(keys..2 * keys);
    // Half a million more than there may be, or as many as there are.
    let flood = keys.min(500_000) + store.memory.figures().keys as u64;
    let (above, _) = round(2 * keys..2 * keys + flood.min(1_500_000));
    println!(
        "{keys} {resident} {accounted} {each_ns} {fresh} {again} {expired} {above} {} {}({})",
        nothing.ns / 1000,
        all.pauses,
        nothing.pauses,
    );
}

fn fill(algorithm: Algorithm, units: u64, keys: u64) {
    let before = resident_bytes();
    let store = Store::new(algorithm, units, keys);
    for _ in 0..units {
        (0..keys).for_each(|who| store.charge(who));
    }
    println!("{}", (resident_bytes() - before) / keys);
}

/// Times of one loop. They are the thread's CPU time: what other processes take away is not this
/// store's doing.
#[derive(Default)]
struct Longest {
    /// The longest turn.
    ns: i64,
    /// Turns over [`PAUSE_NS`].
    pauses: u64,
    turns: i64,
    total_ns: i64,
}

impl Longest {
    fn note(&mut self, ns: i64) {
        self.ns = self.ns.max(ns);
        self.pauses += u64::from(ns > PAUSE_NS);
        self.turns += 1;
        self.total_ns += ns;
    }

    fn add(&mut self, other: &Longest) {
        self.ns = self.ns.max(other.ns);
        self.pauses += other.pauses;
    }

    /// What a turn takes without the look at the clock.
    fn each_ns(&self) -> i64 {
        let many = 100_000;
        let from = cpu_ns();
        (0..many).for_each(|_| _ = cpu_ns());
        self.total_ns / self.turns - (cpu_ns() - from) / many
    }
}

/// Runs it for each, and for as long a loop that does nothing but look at the clock.
fn turns(all: std::ops::Range<u64>, mut run: impl FnMut(u64)) -> (Longest, Longest) {
    let (mut found, mut nothing) = (Longest::default(), Longest::default());
    let mut at = cpu_ns();
    for who in all.clone() {
        run(who);
        let now = cpu_ns();
        found.note(now - at);
        at = now;
        if who % SLICE == 0 || who + 1 == all.end {
            while nothing.total_ns < found.total_ns {
                let now = cpu_ns();
                nothing.note(now - at);
                at = now;
            }
        }
    }
    (found, nothing)
}

fn cpu_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn resident_bytes() -> u64 {
    process::memory(&[std::process::id()]).rss_kib * 1024
}
