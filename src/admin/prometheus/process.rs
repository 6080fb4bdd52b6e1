//! The metrics of this process that the kernel counts.

use std::fs;

use super::single;
use crate::admin::response::seconds;
use crate::telemetry::metrics::text::MetricsText;

/// The usage that the kernel reports of this process. A value is 0 if it cannot be read.
pub(super) fn write(text: &mut MetricsText, started_us: u64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let number = |word: &str| word.parse::<u64>().unwrap_or(0);
    let pages: Vec<u64> = pages.split(' ').map(number).collect();
    let memory = |place: usize| {
        let pages = pages.get(place).copied().unwrap_or(0);
        pages * rustix::param::page_size() as u64
    };
    // The name of the program, in brackets, may contain spaces and brackets itself.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<u64> = fields.split_whitespace().map(number).collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    let ticks = (field(14) + field(15)) as f64;
    let seconds_of = ticks / rustix::param::clock_ticks_per_second() as f64;
    single(text, "process_cpu_seconds", seconds_of);
    single(text, "process_resident_memory_bytes", memory(1));
    single(text, "process_virtual_memory_bytes", memory(0));
    // One of them is the directory that was read.
    single(text, "process_open_fds", files.saturating_sub(1));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    single(text, "process_max_fds", limit.current.unwrap_or(u64::MAX));
    single(text, "process_threads", field(20));
    single(text, "process_start_time_seconds", seconds(started_us));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::text::TextFormat;

    #[test]
    fn the_usage_of_this_process_is_read() {
        let mut text = MetricsText::new(TextFormat::Plain);
        write(&mut text, 0);
        let text = text.finish();
        let value = |name: &str| -> f64 {
            let mut samples = text.lines().filter_map(|line| line.split_once(' '));
            let sample = samples.find(|(sample, _)| *sample == name);
            sample.unwrap().1.parse().unwrap()
        };
        let resident = value("process_resident_memory_bytes");
        assert!(resident > f64::from(1 << 20));
        assert!(value("process_virtual_memory_bytes") >= resident);
        let open_files = value("process_open_fds");
        assert!(open_files >= 3.0 && value("process_threads") >= 1.0);
        assert!(value("process_max_fds") >= open_files);
        assert!((0.0..1e6).contains(&value("process_cpu_seconds_total")));
    }
}
