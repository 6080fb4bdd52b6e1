//! The file of counts beside real embedded stores, whose clocks the tests move.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::counts_log::REWRITE_BYTES;
use super::record::{HEAD_BYTES, RECORD_BYTES};
use super::*;
use crate::config::Fleet;
use crate::limit::{
    Algorithm, CalendarUnit, Charge, Decision, Key, KeyHash, Limit, LimitCheck, OnError, Rule,
};

const DAY_US: u64 = 86_400_000_000;
/// 2023-11-14T22:13:20Z.
const NOVEMBER_US: u64 = 1_700_000_000_000_000;
/// 2023-12-01T00:00:00Z.
const DECEMBER_US: u64 = 1_701_388_800_000_000;
const NEW_KEY: [u8; 32] = [9; 32];

#[test]
fn a_device_is_no_file_of_counts() {
    let directory = tempfile::tempdir().unwrap();
    // By a link: what takes the place of the device here is not the device itself.
    let path = directory.path().join("counts");
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    let error = OpenedCounts::open(&path, None).unwrap_err().to_string();
    assert!(
        error.ends_with("it is a device or a pipe. Name a file"),
        "{error}"
    );
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        1,
        "nothing was written"
    );
}

/// One process: its store, and its file.
struct Process {
    memory: Memory,
    log: CountsLog,
    limit: Arc<Limit>,
}

fn memory(time: &Arc<AtomicU64>) -> Memory {
    let settings = StoreSettings {
        kind: StoreKind::Memory,
        prefix: String::new(),
        timeout: Duration::from_millis(25),
        on_error: OnError::Local,
        fleet: Fleet::Fixed(1),
        hash_key: None,
        file: None,
        known_keys: false,
        max_keys: 100_000,
        max_memory: 1 << 30,
    };
    let clock = Micros::Manual(Arc::clone(time));
    Memory::new(&settings, KeyRing::new(&settings).unwrap(), clock, None)
}

impl Process {
    fn start(path: &Path, time: &Arc<AtomicU64>) -> (Process, ReadReport) {
        let memory = memory(time);
        let mut log = CountsLog::open(path, NEW_KEY).unwrap();
        let report = log.load(&memory).unwrap();
        memory.collect_unwritten();
        let unit = CalendarUnit::Month;
        let rule = Rule {
            algorithm: Algorithm::Calendar,
            units: 1_000_000,
            window_us: unit.longest_us(),
            precision_us: 1,
        };
        let process = Process {
            memory,
            log,
            limit: Arc::new(Limit::new("plan", &[rule], Key::all_of([]))),
        };
        (process, report)
    }

    fn cost(&self, who: u8, cost: u64) -> Charge {
        let check = LimitCheck {
            limit: Arc::clone(&self.limit),
            window: Arc::clone(&self.limit.windows[0]),
            tag: KeyHash([who; 16]),
            anchor: None,
            cost,
            asker: None,
        };
        [check].into_iter().collect()
    }

    fn charge(&self, who: u8, cost: u64) -> Decision {
        self.memory.charge(&self.cost(who, cost))
    }

    fn used(&self, who: u8) -> u64 {
        self.charge(who, 0).verdicts[0].used
    }

    fn exchange(&mut self) {
        self.log.exchange(&self.memory).unwrap();
    }

    fn budget(&self, who: u8) -> u128 {
        self.cost(who, 0)[0].id()
    }
}

fn clock() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(NOVEMBER_US))
}

#[test]
fn counts_are_there_after_a_restart_and_end_with_their_window() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counts");
    let time = clock();
    let (mut first, report) = Process::start(&path, &time);
    assert_eq!(report, ReadReport::default());
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let given = first.charge(1, 30);
    first.charge(2, 5);
    first.exchange();
    first.charge(1, 12);
    first.memory.refund(&first.cost(1, 2), &given);
    first.charge(3, 7);
    first.memory.forget(first.budget(2));
    first.exchange();
    let (second, report) = Process::start(&path, &time);
    assert_eq!((report.damaged, report.cut_bytes, report.unfit), (0, 0, 0));
    let used = |process: &Process| [1, 2, 3].map(|who| process.used(who));
    assert_eq!(used(&second), [40, 0, 7]);
    assert_eq!(second.log.hash_key(), NEW_KEY);
    // A refund of the last month reaches it, whatever month is under way.
    time.store(DECEMBER_US + 1, Ordering::Relaxed);
    assert_eq!(used(&second), [0, 0, 0]);
    let mut second = second;
    second.charge(1, 3);
    second.memory.refund(&second.cost(1, 9), &given);
    second.exchange();
    let (third, _) = Process::start(&path, &time);
    assert_eq!(used(&third), [3, 0, 0]);
    time.store(NOVEMBER_US, Ordering::Relaxed);
    // Two days after its end a window is forgotten.
    time.store(DECEMBER_US + 33 * DAY_US, Ordering::Relaxed);
    let (fourth, _) = Process::start(&path, &time);
    assert_eq!(fourth.memory.figures().keys, 0);
}

/// A file with a unit of each of `clients`, in the order of their numbers.
fn written(path: &Path, time: &Arc<AtomicU64>, clients: u8) -> Vec<u8> {
    let (mut process, _) = Process::start(path, time);
    for who in 0..clients {
        process.charge(who, 1);
        process.exchange();
    }
    fs::read(path).unwrap()
}

#[test]
fn a_file_that_is_torn_anywhere_loses_the_torn_record_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counts");
    let time = clock();
    let whole = written(&path, &time, 4);
    // The head, the window and its name, and a record for each client.
    let before = HEAD_BYTES + 2 * RECORD_BYTES;
    assert_eq!(whole.len(), before + 4 * RECORD_BYTES);
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let (mut process, report) = Process::start(&path, &time);
        let left = length.saturating_sub(before) / RECORD_BYTES;
        for who in 0..4_u8 {
            let expected = u64::from(usize::from(who) < left);
            assert_eq!(process.used(who), expected, "{length} bytes, client {who}");
        }
        if length >= HEAD_BYTES {
            assert_eq!(report.cut_bytes as usize, length % RECORD_BYTES);
        }
        // It goes on from there.
        process.charge(9, 5);
        process.exchange();
        let (after, report) = Process::start(&path, &time);
        assert_eq!((after.used(9), after.used(0)), (5, u64::from(left > 0)));
        assert_eq!((report.cut_bytes, report.damaged), (0, 0), "{length} bytes");
    }
}

#[test]
fn a_file_with_a_wrong_byte_anywhere_loses_that_record_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counts");
    let time = clock();
    let whole = written(&path, &time, 4);
    let before = HEAD_BYTES + 2 * RECORD_BYTES;
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        fs::write(&path, &bytes).unwrap();
        let (mut process, _) = Process::start(&path, &time);
        for who in 0..4_u8 {
            let own = before + usize::from(who) * RECORD_BYTES;
            let is_lost = (own..own + RECORD_BYTES).contains(&at);
            assert_eq!(process.used(who), u64::from(!is_lost), "byte {at}");
        }
        process.exchange();
        let (_, report) = Process::start(&path, &time);
        assert_eq!((report.cut_bytes, report.damaged), (0, 0), "byte {at}");
    }
}

#[test]
fn a_file_whose_head_is_lost_is_set_aside_and_another_kind_of_file_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counts");
    let time = clock();
    let mut bytes = written(&path, &time, 4);
    bytes[..HEAD_BYTES].fill(0xFF);
    fs::write(&path, &bytes).unwrap();
    let (process, _) = Process::start(&path, &time);
    assert_eq!(process.used(1), 0);
    let aside = directory.path().join("counts.damaged");
    assert_eq!(fs::read(&aside).unwrap(), bytes);
    let other = directory.path().join("other");
    fs::write(&other, "listen = \":8080\"\n").unwrap();
    let error = CountsLog::open(&other, NEW_KEY).unwrap_err().to_string();
    assert!(error.contains("no file of counts"), "{error}");
    assert_eq!(fs::read(&other).unwrap(), b"listen = \":8080\"\n");
}

#[test]
fn a_file_that_cannot_be_written_is_caught_up_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counts");
    let time = clock();
    let (mut process, _) = Process::start(&path, &time);
    process.charge(1, 1);
    process.exchange();
    process.log.make_read_only();
    for _ in 0..3 {
        process.charge(1, 1);
        process.charge(2, 1);
        process.log.exchange(&process.memory).unwrap_err();
    }
    process.log.make_writable();
    process.charge(1, 1);
    process.exchange();
    let (after, report) = Process::start(&path, &time);
    assert_eq!((after.used(1), after.used(2)), (5, 3));
    assert_eq!((report.damaged, report.cut_bytes), (0, 0));
}

#[test]
fn more_budgets_than_wait_for_the_disk_are_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("counts");
    let time = clock();
    let (mut process, _) = Process::start(&path, &time);
    // All in one shard: the tags differ in their lower halves.
    for number in 0..10_000_u64 {
        let mut charge = process.cost(1, 1);
        charge[0].tag.0[..8].copy_from_slice(&number.to_le_bytes());
        process.memory.charge(&charge);
    }
    process.exchange();
    let (after, _) = Process::start(&path, &time);
    assert_eq!(after.memory.figures().keys, 10_000);
    assert!(fs::metadata(&path).unwrap().len() < REWRITE_BYTES);
}

/// What one of several processes does with the file.
#[derive(Clone, Copy, Debug)]
enum Act {
    Charge(u8, u64),
    Exchange,
    Rewrite,
    Reset(u8),
    Restart,
}

fn acts() -> impl Strategy<Value = Vec<(bool, Act)>> {
    let act = prop_oneof![
        8 => (0..3_u8, 1..5_u64).prop_map(|(who, cost)| Act::Charge(who, cost)),
        5 => Just(Act::Exchange),
        1 => Just(Act::Rewrite),
        1 => (0..3_u8).prop_map(Act::Reset),
        1 => Just(Act::Restart),
    ];
    prop::collection::vec((any::<bool>(), act), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn processes_that_share_a_file_know_all_units_of_each_other(acts in acts()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counts");
        let time = clock();
        let mut processes = [(); 2].map(|()| Process::start(&path, &time).0);
        let mut units = [0; 3];
        for (which, act) in acts {
            let which = usize::from(which);
            match act {
                Act::Charge(who, cost) => {
                    processes[which].charge(who, cost);
                    units[usize::from(who)] += cost;
                }
                Act::Exchange => processes[which].exchange(),
                Act::Rewrite => {
                    processes[which].log.ask_to_rewrite();
                    processes[which].exchange();
                }
                Act::Reset(who) => {
                    // All that was charged is known to both before.
                    for which in [0, 1, 0] {
                        processes[which].exchange();
                    }
                    let budget = processes[which].budget(who);
                    processes[which].memory.forget(budget);
                    processes[which].exchange();
                    processes[1 - which].exchange();
                    units[usize::from(who)] = 0;
                }
                Act::Restart => {
                    processes[which].exchange();
                    processes[which] = Process::start(&path, &time).0;
                }
            }
        }
        for which in [0, 1, 0] {
            processes[which].exchange();
        }
        let [first, second] = &processes;
        let (third, _) = Process::start(&path, &time);
        for who in 0..3_u8 {
            let used = [first, second, &third].map(|process| process.used(who));
            prop_assert_eq!(used, [units[usize::from(who)]; 3]);
        }
    }
}
