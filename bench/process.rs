//! What running processes used: CPU time, memory. And which cores they may use.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Resident memory, KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub rss_kib: u64,
    /// Pages that are shared count by their part.
    pub pss_kib: u64,
}

/// All processes of a group: the one that began it, and those that it started.
pub fn group(leader: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| group_of(*pid) == Some(leader)).collect()
}

fn group_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last bracket may hold anything; then come state, parent, group.
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_whitespace().nth(2)?.parse().ok()
}

fn tasks(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let names = tasks.flatten();
    names
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

/// How long the threads of these processes have run, us.
pub fn cpu_us(pids: &[u32]) -> f64 {
    threads_us(pids).values().sum()
}

/// The same for each thread.
pub fn threads_us(pids: &[u32]) -> BTreeMap<u32, f64> {
    let ran_us = |(pid, task): (u32, u32)| {
        let path = format!("/proc/{pid}/task/{task}/schedstat");
        let text = fs::read_to_string(path).unwrap_or_default();
        let first = text.split(' ').next().unwrap_or_default();
        (task, first.parse().unwrap_or(0.0) / 1e3)
    };
    let each = pids.iter().flat_map(|pid| {
        let pair = |task| (*pid, task);
        tasks(*pid).into_iter().map(pair).collect::<Vec<_>>()
    });
    each.map(ran_us).collect()
}

/// How long all cores of the machine have been busy, whoever it was for, us.
pub fn machine_busy_us() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<f64> = stat
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap())
        .collect();
    // user, nice, system, irq, softirq, and what other machines took; a tick is 10 ms.
    [0, 1, 2, 5, 6, 7].iter().map(|at| ticks[*at]).sum::<f64>() * 1e4
}

/// What these processes have in memory together.
pub fn memory(pids: &[u32]) -> Memory {
    let mut found = Memory::default();
    for pid in pids {
        found.rss_kib += kib(&format!("/proc/{pid}/status"), "VmRSS:");
        found.pss_kib += kib(&format!("/proc/{pid}/smaps_rollup"), "Pss:");
    }
    found
}

fn kib(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.map_or(0, |number| number.parse().unwrap())
}

/// Leaves these processes one core.
pub fn pin(pids: &[u32], core: usize) {
    for pid in pids {
        for task in tasks(*pid) {
            let task = Pid::from_raw(task.cast_signed());
            // One that has ended meanwhile needs none.
            let _ = sched_setaffinity(task, &only(core));
        }
    }
}

/// Runs this on one core; what it starts stays there.
pub fn on_core<T>(core: Option<usize>, run: impl FnOnce() -> T) -> T {
    let Some(core) = core else {
        return run();
    };
    let before = sched_getaffinity(None).unwrap();
    sched_setaffinity(None, &only(core)).unwrap();
    let result = run();
    sched_setaffinity(None, &before).unwrap();
    result
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

/// Cores that this process may use.
pub fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// As many descriptors as this process may have at all, for itself and for what it starts.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    limit.maximum.unwrap_or(u64::MAX)
}

/// How long this process has run, and the children that it has waited for, us.
pub fn own_cpu_us() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let rest = &stat[stat.rfind(')').unwrap() + 1..];
    // cutime and cstime, in ticks of 10 ms.
    let waited = rest.split_whitespace().skip(13).take(2);
    let ticks: f64 = waited.map(|word| word.parse::<f64>().unwrap()).sum();
    ticks * 1e4 + cpu_us(&[std::process::id()])
}
