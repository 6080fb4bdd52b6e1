//! Puts requests in the order of their beginnings.
//!
//! A log has a line when an answer ends, and the answers of model servers take long. The workers of
//! tidegate write their lines in batches. A request is held until no line that follows can be of an
//! earlier one.

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
    /// Requests of a time before the log's clock was set back. They come first.
    before_step: BTreeMap<(u64, u64), LogEntry<'static>>,
}

impl StartOrder {
    pub fn push(&mut self, entry: &LogEntry<'_>) {
        let steps = self.clock.steps;
        self.now_us = self.clock.advance(entry.end_us());
        if self.clock.steps != steps {
            self.before_step.append(&mut self.held);
        }
        self.number += 1;
        let key = (entry.start_us(), self.number);
        self.held.insert(key, entry.detached());
    }

    /// Takes the earliest request that no other one can precede.
    pub fn pop(&mut self) -> Option<LogEntry<'static>> {
        if let Some((_, entry)) = self.before_step.pop_first() {
            return Some(entry);
        }
        let is_full = self.held.len() > MAX_HELD;
        let first = self.held.first_entry()?;
        let is_due = first.key().0.saturating_add(LONGEST_US) <= self.now_us;
        (is_due || is_full).then(|| first.remove())
    }

    /// Takes the earliest request at the end of the log.
    pub fn pop_last(&mut self) -> Option<LogEntry<'static>> {
        self.held.pop_first().map(|(_, entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Dated;

    const MINUTE_US: u64 = 60_000_000;
    const NOON_US: u64 = 1_795_176_000_000_000;

    fn entry(at_us: u64, took_us: u64) -> LogEntry<'static> {
        LogEntry {
            at_us,
            dates: Dated::Start,
            peer: "192.0.2.1".parse().unwrap(),
            client: None,
            method: "GET".into(),
            target: "/".into(),
            host: None,
            port: None,
            status: 200,
            duration_us: Some(took_us),
            headers: Vec::new(),
            tokens: None,
        }
    }

    /// The minutes of these requests in the order in which they come out.
    fn ordered(requests: &[(u64, u64)]) -> Vec<u64> {
        let mut order = StartOrder::default();
        let mut out = Vec::new();
        let minute = |entry: LogEntry<'_>| (entry.at_us - NOON_US) / MINUTE_US;
        for (at, took) in requests {
            order.push(&entry(NOON_US + at * MINUTE_US, took * MINUTE_US));
            out.extend(std::iter::from_fn(|| order.pop()).map(minute));
        }
        out.extend(std::iter::from_fn(|| order.pop_last()).map(minute));
        out
    }

    #[test]
    fn requests_come_in_the_order_of_their_beginnings() {
        let lines = [(30, 1), (29, 4), (31, 3), (26, 14), (60, 0), (59, 2)];
        assert_eq!(ordered(&lines), [26, 29, 30, 31, 59, 60]);
        // Longer than a request is waited for.
        assert_eq!(ordered(&[(30, 0), (50, 0), (20, 31)]), [30, 20, 50]);
    }

    #[test]
    fn requests_before_a_step_of_the_clock_come_first() {
        let late = (0..20).map(|at| (at, 0));
        let lines: Vec<_> = [(600, 0), (601, 0)].into_iter().chain(late).collect();
        let out = ordered(&lines);
        let before: Vec<_> = out.iter().take_while(|minute| **minute != 16).collect();
        assert!(before.contains(&&600) && before.contains(&&601), "{out:?}");
    }

    #[test]
    fn few_requests_are_held() {
        let mut order = StartOrder::default();
        for at_us in 0..MAX_HELD as u64 + 500 {
            order.push(&entry(NOON_US + at_us, 0));
            while order.pop().is_some() {}
        }
        assert_eq!(order.held.len(), MAX_HELD);
    }
}
