//! What the kernel says of this process.

use std::fs;

/// See the file's head. What cannot be read is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Process {
    /// Seconds of all its threads on a core.
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    pub(super) open_files: u64,
    pub(super) most_files: u64,
    pub(super) threads: u64,
}

/// What it is now.
pub(super) fn process() -> Process {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let page = rustix::param::page_size() as u64;
    let mut pages = pages
        .split(' ')
        .map(|word| word.parse::<u64>().unwrap_or(0) * page);
    // What stands before may have spaces and brackets of its own.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<u64> = (fields.split_whitespace())
        .map(|word| word.parse().unwrap_or(0))
        .collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Process {
        cpu_seconds: (field(14) + field(15)) as f64 / ticks,
        virtual_bytes: pages.next().unwrap_or(0),
        resident_bytes: pages.next().unwrap_or(0),
        // One of them is the directory that was read.
        open_files: (files as u64).saturating_sub(1),
        most_files: limit.current.unwrap_or(u64::MAX),
        threads: field(20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there() {
        let process = process();
        assert!(process.resident_bytes > 1 << 20);
        assert!(process.virtual_bytes >= process.resident_bytes);
        assert!(process.open_files >= 3 && process.threads >= 1);
        assert!(process.most_files >= process.open_files);
        assert!((0.0..1e6).contains(&process.cpu_seconds));
    }
}
