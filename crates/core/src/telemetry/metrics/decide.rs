//! The questions of other proxies.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::DECISION_BOUNDS;
use super::cells::{Durations, Histogram, WorkerCounter};
use crate::telemetry::door::{DecideCode, Door};

/// The label for domains that the configuration does not name.
pub const OTHER_DOMAIN: &str = "(other)";

/// By door, then by code.
pub type Questions<T> = [[T; DecideCode::WORDS.len()]; Door::WORDS.len()];

/// One worker's cells.
#[derive(Debug, Default)]
pub struct DecideCells {
    questions: Questions<WorkerCounter>,
    durations: [Histogram; Door::WORDS.len()],
    /// Descriptors that no rule takes, by domain.
    unmatched: Mutex<BTreeMap<String, u64>>,
    /// Limits that callers brought, and that did not count.
    pub ignored_limits: WorkerCounter,
    /// Descriptors with units of their own that were denied and not charged.
    pub lost_reports: WorkerCounter,
    /// Questions from addresses that may not ask.
    pub refused_callers: WorkerCounter,
    /// Questions that lack a header with the client's request.
    pub without_headers: WorkerCounter,
}

/// The sum over workers.
#[derive(Debug, Default)]
pub struct DecideSum {
    pub questions: Questions<u64>,
    pub durations: [Durations; Door::WORDS.len()],
    pub unmatched: BTreeMap<String, u64>,
    pub ignored_limits: u64,
    pub lost_reports: u64,
    pub refused_callers: u64,
    pub without_headers: u64,
}

impl DecideCells {
    pub fn count(&self, door: Door, code: DecideCode, took: Duration) {
        self.questions[door as usize][code as usize].add(1);
        self.durations[door as usize].observe(took, &DECISION_BOUNDS);
    }

    /// Counts a descriptor that no rule takes. `domain` is one of the configuration, or
    /// [`OTHER_DOMAIN`].
    #[cold]
    pub fn count_unmatched(&self, domain: &str) {
        let mut unmatched = self
            .unmatched
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match unmatched.get_mut(domain) {
            Some(count) => *count += 1,
            None => _ = unmatched.insert(domain.to_owned(), 1),
        }
    }

    pub fn add_to(&self, sum: &mut DecideSum) {
        let cells = self.questions.iter().flatten();
        for (count, cell) in sum.questions.iter_mut().flatten().zip(cells) {
            *count += cell.get();
        }
        for (durations, histogram) in sum.durations.iter_mut().zip(&self.durations) {
            histogram.add_to(durations);
        }
        let unmatched = self
            .unmatched
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (domain, count) in unmatched.iter() {
            *sum.unmatched.entry(domain.clone()).or_default() += count;
        }
        sum.ignored_limits += self.ignored_limits.get();
        sum.lost_reports += self.lost_reports.get();
        sum.refused_callers += self.refused_callers.get();
        sum.without_headers += self.without_headers.get();
    }
}
