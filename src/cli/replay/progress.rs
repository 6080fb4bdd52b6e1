//! How far a replay is: one line on a terminal, and nothing anywhere else.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::replay::logs::Logs;

/// Requests between two looks at the clock.
const BETWEEN: u64 = 16_384;
/// Between two drawings.
const DRAWN: Duration = Duration::from_millis(100);
/// Columns of the bar.
const BAR: usize = 24;

/// One line that says how far it is.
pub(super) struct Progress {
    drawn: Option<Instant>,
    started: Instant,
    read: Arc<AtomicU64>,
    /// Bytes of all logs; 0 where nobody knows.
    total: u64,
    shown: bool,
}

impl Progress {
    pub(super) fn new(paths: &[PathBuf], logs: &Logs) -> Progress {
        let length = |path: &PathBuf| match path.as_path() == Path::new("-") {
            true => None,
            false => std::fs::metadata(path).ok().map(|file| file.len()),
        };
        let total = paths.iter().map(length).sum::<Option<u64>>();
        let now = clock::now();
        Progress {
            drawn: super::has_terminal().then_some(now),
            started: now,
            read: Arc::clone(&logs.read),
            total: total.unwrap_or(0),
            shown: false,
        }
    }

    /// So many requests are done.
    pub(super) fn tick(&mut self, requests: u64) {
        if !requests.is_multiple_of(BETWEEN) {
            return;
        }
        let Some(drawn) = self.drawn else {
            return;
        };
        let now = clock::now();
        if now.duration_since(drawn) >= DRAWN {
            self.drawn = Some(now);
            self.draw(requests, now);
        }
    }

    fn draw(&mut self, requests: u64, now: Instant) {
        let seconds = now.duration_since(self.started).as_secs_f64().max(1e-3);
        let read = self.read.load(Ordering::Relaxed);
        let speed = requests as f64 / seconds;
        let mut line = String::from("\r");
        if self.total > 0 {
            let share = (read as f64 / self.total as f64).min(1.0);
            let full = (share * BAR as f64) as usize;
            let left = seconds / share.max(1e-6) - seconds;
            line.push_str(&"█".repeat(full));
            line.push_str(&"░".repeat(BAR - full));
            line.push_str(&format!(" {:3.0} %  ", share * 100.0));
            line.push_str(&format!("{left:.0} s left  "));
        }
        line.push_str(&format!(
            "{:.1}M requests, {:.2}M/s",
            requests as f64 / 1e6,
            speed / 1e6
        ));
        line.push_str("\u{1b}[K");
        let _ = std::io::stderr().write_all(line.as_bytes());
        self.shown = true;
    }

    /// Takes the line away.
    pub(super) fn end(&mut self) {
        if self.shown {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
