//! Puts requests in the order of their beginnings.
//!
//! A log has a line when an answer ends, and the answers of model servers take long. A request is
//! held until no line that follows can be of an earlier one.

use std::collections::BTreeMap;

use super::entry::LogEntry;
use super::timeline::LogClock;

/// An answer that takes longer is replayed late, microseconds.
const LONGEST_US: u64 = 15 * 60 * 1_000_000;
/// Requests that are held, at most. Each takes about 300 bytes.
const MAX_HELD: usize = 131_072;

#[derive(Debug, Default)]
pub struct StartOrder {
    /// The clock of ends.
    clock: LogClock,
    now_us: u64,
    /// By the beginning, and a number that makes the key unique.
    held: BTreeMap<(u64, u64), LogEntry<'static>>,
    number: u64,
    /// Requests that are no longer held, whatever the clock says.
    overdue: usize,
}

impl StartOrder {
    pub fn push(&mut self, entry: &LogEntry<'_>) {
        let steps = self.clock.steps;
        self.now_us = self.clock.advance(entry.end_us());
        if self.clock.steps != steps {
            // The clock was set back: the requests before the step come first.
            self.overdue = self.held.len();
        }
        self.number += 1;
        let key = (entry.start_us(), self.number);
        self.held.insert(key, entry.detached());
        self.overdue = self.overdue.max(self.held.len().saturating_sub(MAX_HELD));
    }

    /// Takes the earliest request that no other one can precede.
    pub fn pop(&mut self) -> Option<LogEntry<'static>> {
        let first = self.held.first_entry()?;
        let is_due = first.key().0.saturating_add(LONGEST_US) <= self.now_us;
        if self.overdue == 0 && !is_due {
            return None;
        }
        self.overdue = self.overdue.saturating_sub(1);
        Some(first.remove())
    }

    /// Takes the earliest request at the end of the log.
    pub fn pop_last(&mut self) -> Option<LogEntry<'static>> {
        self.held.pop_first().map(|(_, entry)| entry)
    }
}
