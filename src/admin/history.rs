//! What the last minutes were like: seconds, then five of them together, and what happened when.
//!
//! Pure: what was counted and the time are arguments. Its size is fixed, whatever happens.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::telemetry::metrics::{Sum, Verdict};

/// Single seconds that are kept.
pub(super) const SECONDS: usize = 60;
/// Longer samples that are kept: a quarter of an hour.
pub(super) const SAMPLES: usize = 180;
/// How long one of those is, seconds.
pub(super) const STEP: u64 = 5;
/// Marks that are kept.
const MARKS: usize = 64;
/// Outages of the store with marks of their own, before further ones share one mark.
const MARKED_OUTAGES: u32 = 5;
/// How long the store must have been well until outages have marks of their own again, seconds.
const QUIET: u64 = 60;

/// What happened in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// When it began, seconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) requests: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) shadow: u64,
    pub(super) errors: u64,
    /// Whether decisions were made without the store at any time of it.
    pub(super) degraded: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// When, microseconds since the Unix epoch.
    pub(super) at_us: u64,
    /// `start`, `reload`, `store_down`, `store_up` or `store_flaps`.
    pub(super) kind: &'static str,
    pub(super) text: String,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct History {
    /// All that was counted at the last look.
    before: Option<Sample>,
    pub(super) seconds: VecDeque<Sample>,
    pub(super) samples: VecDeque<Sample>,
    pub(super) marks: VecDeque<Mark>,
    /// Of each limit: what it allowed and denied until the last look, and in the second before it.
    limits: BTreeMap<Arc<str>, [(u64, u64); 2]>,
    store: StoreMarks,
    /// How many reloads there had been at the last look.
    pub(super) known_reloads: u64,
}

/// The store's marks: a store that fails again and again would push out all others.
#[derive(Debug, Default)]
struct StoreMarks {
    /// Whether decisions were made without it at the last look.
    is_away: bool,
    /// When they last were, seconds since the Unix epoch.
    away_at: u64,
    /// Outages since it was last well for [`QUIET`].
    outages: u32,
}

impl History {
    /// Nothing has happened but the start, at this time in microseconds since the Unix epoch.
    pub(super) fn new(started_us: u64) -> History {
        let now = started_us / 1_000_000;
        let empty = |count: usize, step: u64| {
            let newest = now - now % step;
            let ago = move |age| newest.saturating_sub(age as u64 * step);
            let sample = move |age| Sample {
                at: ago(age),
                ..Sample::default()
            };
            (0..count).rev().map(sample).collect::<VecDeque<_>>()
        };
        let mut history = History {
            before: None,
            seconds: empty(SECONDS, 1),
            samples: empty(SAMPLES, STEP),
            marks: VecDeque::new(),
            limits: BTreeMap::new(),
            store: StoreMarks::default(),
            known_reloads: 0,
        };
        history.mark(started_us, "start", "tidegate started".to_owned());
        history
    }

    /// Something happened.
    pub(super) fn mark(&mut self, at_us: u64, kind: &'static str, text: String) {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark { at_us, kind, text });
    }

    /// The store is away at `at_us`, or it is not. Marks what is new.
    pub(super) fn look_at_store(&mut self, at_us: u64, is_away: bool) {
        let at = at_us / 1_000_000;
        let was_away = std::mem::replace(&mut self.store.is_away, is_away);
        if is_away && !was_away {
            if self.store.away_at + QUIET <= at {
                self.store.outages = 0;
            }
            self.store.outages += 1;
        }
        if is_away {
            self.store.away_at = at;
        }
        let damped = self.store.outages.saturating_sub(MARKED_OUTAGES);
        match (was_away, is_away) {
            (false, true) if damped > 0 => self.mark_damped(at_us, damped),
            (false, true) => self.mark(at_us, "store_down", "the store is away".to_owned()),
            (true, false) if damped == 0 => {
                self.mark(at_us, "store_up", "the store is back".to_owned());
            }
            _ => {}
        }
    }

    /// One mark for all outages that have none of their own.
    fn mark_damped(&mut self, at_us: u64, damped: u32) {
        let mut newest = self.marks.iter_mut().rev();
        let mark = newest.find(|mark| mark.kind == "store_flaps");
        match mark.filter(|_| damped > 1) {
            Some(mark) => {
                let seconds = at_us.saturating_sub(mark.at_us) / 1_000_000;
                mark.text = format!("the store was away {damped} more times in {seconds} s");
            }
            None => self.mark(at_us, "store_flaps", "the store is away again".to_owned()),
        }
    }

    /// What was counted by `at`, seconds since the Unix epoch.
    pub(super) fn look(&mut self, at: u64, sum: &Sum, degraded: bool) {
        let verdicts = |verdict: Verdict| {
            let limits = sum.limits.values().chain(sum.candidates.values());
            limits
                .map(|limit| limit[verdict as usize].iter().sum::<u64>())
                .sum()
        };
        let [allowed, unlimited, denied, rejected] = sum.outcomes;
        let whole = Sample {
            at,
            requests: allowed + unlimited + denied + rejected,
            allowed: allowed + unlimited,
            denied,
            shadow: verdicts(Verdict::ShadowDenied),
            errors: sum.errors,
            degraded,
        };
        let before = self.before.replace(whole).unwrap_or(Sample {
            at: at.saturating_sub(1),
            ..Sample::default()
        });
        let gained = whole.since(&before);
        add(&mut self.seconds, SECONDS, 1, gained);
        add(&mut self.samples, SAMPLES, STEP, gained);
        self.look_at_limits(sum);
        while self
            .marks
            .front()
            .is_some_and(|mark| mark.at_us / 1_000_000 + SAMPLES as u64 * STEP < at)
        {
            self.marks.pop_front();
        }
    }

    fn look_at_limits(&mut self, sum: &Sum) {
        self.limits.retain(|name, _| sum.limits.contains_key(name));
        for (name, counts) in &sum.limits {
            let count = |verdict: Verdict| counts[verdict as usize].iter().sum::<u64>();
            let now = (count(Verdict::Allowed), count(Verdict::Denied));
            let before = self.limits.get(name).map_or((0, 0), |limit| limit[0]);
            let gained = (
                now.0.saturating_sub(before.0),
                now.1.saturating_sub(before.1),
            );
            self.limits.insert(Arc::clone(name), [now, gained]);
        }
    }

    /// What a limit allowed and denied in the last second.
    pub(super) fn per_second(&self, limit: &str) -> (u64, u64) {
        self.limits.get(limit).map_or((0, 0), |limit| limit[1])
    }
}

impl Sample {
    fn since(&self, before: &Sample) -> Sample {
        Sample {
            at: before.at,
            requests: self.requests.saturating_sub(before.requests),
            allowed: self.allowed.saturating_sub(before.allowed),
            denied: self.denied.saturating_sub(before.denied),
            shadow: self.shadow.saturating_sub(before.shadow),
            errors: self.errors.saturating_sub(before.errors),
            degraded: self.degraded,
        }
    }

    fn add(&mut self, more: &Sample) {
        self.requests += more.requests;
        self.allowed += more.allowed;
        self.denied += more.denied;
        self.shadow += more.shadow;
        self.errors += more.errors;
        self.degraded |= more.degraded;
    }
}

/// Adds `gained` to the newest sample, or to new ones up to its time.
fn add(samples: &mut VecDeque<Sample>, most: usize, step: u64, gained: Sample) {
    let at = gained.at - gained.at % step;
    let newest = samples.back().map_or(at, |sample| sample.at);
    // Where the clock was set back, what comes is counted with the newest; where it was set far
    // ahead, nothing of what was is left.
    let from = (newest + step).max((at + step).saturating_sub(most as u64 * step));
    for at in (from..=at).step_by(usize::try_from(step).unwrap_or(1)) {
        if samples.len() == most {
            samples.pop_front();
        }
        samples.push_back(Sample {
            at,
            ..Sample::default()
        });
    }
    if let Some(newest) = samples.back_mut() {
        newest.add(&gained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(requests: u64, denied: u64) -> Sum {
        let mut limit = [[0; 4]; 4];
        limit[Verdict::Denied as usize][0] = denied;
        Sum {
            outcomes: [requests - denied, 0, denied, 0],
            limits: [("login".into(), limit)].into(),
            ..Sum::default()
        }
    }

    #[test]
    fn what_was_counted_is_told_by_second_and_by_five() {
        let mut history = History::new(1_000_000_000);
        for (at, requests) in [(1001, 10), (1002, 30), (1003, 30), (1006, 40)] {
            history.look(at, &sum(requests, requests / 10), false);
        }
        let newest: Vec<_> = history.seconds.iter().rev().take(4).collect();
        let seen = newest.iter().map(|one| (one.at, one.requests, one.denied));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [(1003, 10, 1), (1002, 0, 0), (1001, 20, 2), (1000, 10, 1)]
        );
        let sample = history.samples.back().unwrap();
        assert_eq!((sample.at, sample.requests, sample.denied), (1000, 40, 4));
        assert_eq!(history.per_second("login"), (0, 1));
        assert_eq!(history.samples.len(), SAMPLES);
        assert_eq!(history.samples[0].at, 1000 - 179 * STEP);
    }

    #[test]
    fn its_size_is_fixed_whatever_the_clock_does() {
        let mut history = History::new(1_000_000_000);
        for at in [1001, 990, 5, 9_000_000, 9_000_001, 1 << 40, 1001] {
            history.look(at, &sum(at, 0), false);
            assert_eq!(history.seconds.len(), SECONDS);
            assert_eq!(history.samples.len(), SAMPLES);
        }
        for at in 0..1000 {
            history.mark(at, "reload", String::new());
        }
        assert_eq!(history.marks.len(), MARKS);
        history.look((1 << 40) + 2000, &sum(0, 0), true);
        assert!(history.marks.is_empty() && history.seconds.back().unwrap().degraded);
    }

    #[test]
    fn a_store_that_comes_and_goes_has_few_marks() {
        let mut history = History::new(1_000_000_000);
        let kinds = |history: &History| -> Vec<&'static str> {
            history.marks.iter().map(|mark| mark.kind).collect()
        };
        let mut at_us = 1_000_000_000;
        for _ in 0..40 {
            for is_away in [true, false] {
                history.look_at_store(at_us, is_away);
                at_us += 1_000_000;
            }
        }
        let pair = ["store_down", "store_up"];
        let expected = [&["start"][..], &pair.repeat(5), &["store_flaps"]].concat();
        assert_eq!(kinds(&history), expected);
        let text = &history.marks.back().unwrap().text;
        assert_eq!(text, "the store was away 35 more times in 68 s");
        at_us += 60_000_000;
        history.look_at_store(at_us, true);
        history.look_at_store(at_us + 1_000_000, false);
        assert_eq!(kinds(&history), [&expected[..], &pair].concat());
    }
}
