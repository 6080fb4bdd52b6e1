//! The traffic of the last quarter of an hour, for `/api/v1/traffic`: single seconds, samples of
//! five seconds, and marks of events.
//!
//! Pure: counters and the time are arguments. Its size is fixed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::response::seconds;
use super::schema::{described, words};
use crate::server::introspection::LastReload;
use crate::telemetry::metrics::{LimitSum, LimitVerdict, Sum};

const SECONDS: usize = 60;
/// Samples that are kept: a quarter of an hour.
const SAMPLES: usize = 180;
/// The length of a sample, seconds.
const STEP: u64 = 5;
const MARKS: usize = 64;
/// Outages of the store with marks of their own, before further ones share one mark.
const MARKED_OUTAGES: u32 = 5;
/// How long the store must be up until outages have marks of their own again, seconds.
const QUIET: u64 = 60;

described! {
    struct TrafficReport as "Traffic" {
        now: f64,
        step: u64,
        samples: Vec<Sample>,
        marks: Vec<Mark>,
        rates: RatesReport,
        second: Vec<SecondReport>,
    }

    #[derive(Copy)]
    struct Sample {
        at: u64 = number(),
        requests: u64,
        allowed: u64,
        denied: u64,
        shadow: u64,
        errors: u64,
        degraded: bool,
    }

    struct Mark {
        at: f64,
        kind: String =
            words(&["start", "reload", "store_down", "store_up", "store_flaps"]),
        text: String,
    }

    #[derive(Copy, Eq)]
    struct LimitRates {
        allowed: u64,
        denied: u64,
    }

    struct RatesReport {
        requests: u64,
        denials: u64,
    }

    struct SecondReport {
        at: u64 = number(),
        requests: u64,
        denied: u64,
    }
}

fn number() -> Value {
    json!({ "type": "number" })
}

#[derive(Debug)]
pub(super) struct History {
    /// The counters as they were last recorded.
    before: Option<Sample>,
    seconds: VecDeque<Sample>,
    samples: VecDeque<Sample>,
    marks: VecDeque<Mark>,
    limits: BTreeMap<Arc<str>, LimitHistory>,
    store: StoreOutages,
    reloads: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct LimitHistory {
    total: LimitRates,
    last_second: LimitRates,
}

/// Outages since the store was last up for [`QUIET`]. They bound its marks: a store that fails
/// again and again would push out all other marks.
#[derive(Debug, Default)]
struct StoreOutages {
    is_away: bool,
    /// When the store was last away, seconds since the Unix epoch.
    away_at: u64,
    count: u32,
}

impl History {
    /// `started_us` is the start of the process, microseconds since the Unix epoch.
    pub(super) fn new(started_us: u64) -> History {
        let now = started_us / 1_000_000;
        let empty = |count: usize, step: u64| {
            let newest = now - now % step;
            let sample = |age| Sample {
                at: newest.saturating_sub(age as u64 * step),
                ..Sample::default()
            };
            (0..count).rev().map(sample).collect()
        };
        let mut history = History {
            before: None,
            seconds: empty(SECONDS, 1),
            samples: empty(SAMPLES, STEP),
            marks: VecDeque::new(),
            limits: BTreeMap::new(),
            store: StoreOutages::default(),
            reloads: 0,
        };
        history.mark(started_us, "start", "tidegate started");
        history
    }

    fn mark(&mut self, at_us: u64, kind: &'static str, text: impl Into<String>) {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark {
            at: seconds(at_us),
            kind: kind.to_owned(),
            text: text.into(),
        });
    }

    /// Marks the last of so many reloads, unless it is marked already.
    pub(super) fn record_reload(&mut self, reloads: u64, last: &LastReload) {
        if reloads == self.reloads {
            return;
        }
        self.reloads = reloads;
        let text = match &*last.outcome {
            Ok(reloaded) => match reloaded.changes.as_slice() {
                [] => "reload: no change".to_owned(),
                [one] => format!("reload: {one}"),
                [first, others @ ..] => format!("reload: {first}, and {} more", others.len()),
            },
            Err(_) => "reload: failed, nothing was changed".to_owned(),
        };
        self.mark(last.at_us, "reload", text);
    }

    /// Marks the begin and the end of outages of the store.
    pub(super) fn record_store(&mut self, at_us: u64, is_away: bool) {
        let at = at_us / 1_000_000;
        let was_away = std::mem::replace(&mut self.store.is_away, is_away);
        if is_away && !was_away {
            if self.store.away_at + QUIET <= at {
                self.store.count = 0;
            }
            self.store.count += 1;
        }
        if is_away {
            self.store.away_at = at;
        }
        let unmarked = self.store.count.saturating_sub(MARKED_OUTAGES);
        match (was_away, is_away) {
            (false, true) if unmarked > 0 => self.mark_repeated_outages(at_us, unmarked),
            (false, true) => self.mark(at_us, "store_down", "the store is away"),
            (true, false) if unmarked == 0 => self.mark(at_us, "store_up", "the store is back"),
            _ => {}
        }
    }

    /// Writes one mark for all outages that have none of their own.
    fn mark_repeated_outages(&mut self, at_us: u64, count: u32) {
        let mut newest = self.marks.iter_mut().rev();
        let mark = newest.find(|mark| mark.kind == "store_flaps");
        match mark.filter(|_| count > 1) {
            Some(mark) => {
                let lasted = (seconds(at_us) - mark.at).max(0.0) as u64;
                mark.text = format!("the store was away {count} more times in {lasted} s");
            }
            None => self.mark(at_us, "store_flaps", "the store is away again"),
        }
    }

    /// Records the counters as they are at `at`, seconds since the Unix epoch.
    pub(super) fn record(&mut self, at: u64, sum: &Sum, degraded: bool) {
        let limits = sum.limits.values().chain(sum.candidates.values());
        let [allowed, unlimited, denied, rejected] = sum.outcomes;
        let whole = Sample {
            at,
            requests: allowed + unlimited + denied + rejected,
            allowed: allowed + unlimited,
            denied,
            shadow: limits
                .map(|limit| count(limit, LimitVerdict::ShadowDenied))
                .sum(),
            errors: sum.errors,
            degraded,
        };
        let before = self.before.replace(whole).unwrap_or(Sample {
            at: at.saturating_sub(1),
            ..Sample::default()
        });
        let gained = whole.since(before);
        add(&mut self.seconds, SECONDS, 1, gained);
        add(&mut self.samples, SAMPLES, STEP, gained);
        self.record_limits(sum);
        let oldest = at.saturating_sub(SAMPLES as u64 * STEP) as f64;
        while self
            .marks
            .front()
            .is_some_and(|mark| mark.at.floor() < oldest)
        {
            self.marks.pop_front();
        }
    }

    fn record_limits(&mut self, sum: &Sum) {
        self.limits.retain(|name, _| sum.limits.contains_key(name));
        for (name, counts) in &sum.limits {
            let total = LimitRates {
                allowed: count(counts, LimitVerdict::Allowed),
                denied: count(counts, LimitVerdict::Denied),
            };
            let limit = self.limits.entry(Arc::clone(name)).or_default();
            limit.last_second = LimitRates {
                allowed: total.allowed.saturating_sub(limit.total.allowed),
                denied: total.denied.saturating_sub(limit.total.denied),
            };
            limit.total = total;
        }
    }

    /// The decisions of a limit in the last second.
    pub(super) fn per_second(&self, limit: &str) -> LimitRates {
        let limit = self.limits.get(limit).copied().unwrap_or_default();
        limit.last_second
    }

    pub(super) fn report(&self, now: f64) -> TrafficReport {
        let last = self.seconds.back().copied().unwrap_or_default();
        let second = |one: &Sample| SecondReport {
            at: one.at,
            requests: one.requests,
            denied: one.denied,
        };
        TrafficReport {
            now,
            step: STEP,
            samples: self.samples.iter().copied().collect(),
            marks: self.marks.iter().cloned().collect(),
            rates: RatesReport {
                requests: last.requests,
                denials: last.denied,
            },
            second: self.seconds.iter().map(second).collect(),
        }
    }
}

impl Sample {
    fn counters(&mut self) -> [&mut u64; 5] {
        [
            &mut self.requests,
            &mut self.allowed,
            &mut self.denied,
            &mut self.shadow,
            &mut self.errors,
        ]
    }

    fn since(mut self, mut before: Sample) -> Sample {
        for (now, before) in self.counters().into_iter().zip(before.counters()) {
            *now = now.saturating_sub(*before);
        }
        self.at = before.at;
        self
    }

    fn add(&mut self, mut more: Sample) {
        for (sum, more) in self.counters().into_iter().zip(more.counters()) {
            *sum += *more;
        }
        self.degraded |= more.degraded;
    }
}

/// The requests of a limit with this verdict, whoever decided.
pub(super) fn count(counts: &LimitSum, verdict: LimitVerdict) -> u64 {
    counts[verdict as usize].iter().sum()
}

/// Adds `gained` to the newest sample, or to new ones up to its time.
fn add(samples: &mut VecDeque<Sample>, most: usize, step: u64, gained: Sample) {
    let at = gained.at - gained.at % step;
    let newest = samples.back().map_or(at, |sample| sample.at);
    // After the clock was set back, requests count in the newest sample. After it was set far
    // ahead, no old sample is left.
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
        newest.add(gained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(requests: u64, denied: u64) -> Sum {
        let mut limit = [[0; 4]; 4];
        limit[LimitVerdict::Denied as usize][0] = denied;
        Sum {
            outcomes: [requests - denied, 0, denied, 0],
            limits: [("login".into(), limit)].into(),
            ..Sum::default()
        }
    }

    #[test]
    fn requests_are_reported_by_second_and_by_five() {
        let mut history = History::new(1_000_000_000);
        for (at, requests) in [(1001, 10), (1002, 30), (1003, 30), (1006, 40)] {
            history.record(at, &sum(requests, requests / 10), false);
        }
        let newest: Vec<_> = history.seconds.iter().rev().take(4).collect();
        let seen = newest.iter().map(|one| (one.at, one.requests, one.denied));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [(1003, 10, 1), (1002, 0, 0), (1001, 20, 2), (1000, 10, 1)]
        );
        let sample = history.samples.back().unwrap();
        assert_eq!((sample.at, sample.requests, sample.denied), (1000, 40, 4));
        let (allowed, denied) = (0, 1);
        assert_eq!(history.per_second("login"), LimitRates { allowed, denied });
        assert_eq!(history.samples.len(), SAMPLES);
        assert_eq!(history.samples[0].at, 1000 - 179 * STEP);
    }

    #[test]
    fn its_size_is_fixed_whatever_the_clock_does() {
        let mut history = History::new(1_000_000_000);
        for at in [1001, 990, 5, 9_000_000, 9_000_001, 1 << 40, 1001] {
            history.record(at, &sum(at, 0), false);
            assert_eq!(history.seconds.len(), SECONDS);
            assert_eq!(history.samples.len(), SAMPLES);
        }
        for at in 0..1000 {
            history.mark(at, "reload", "");
        }
        assert_eq!(history.marks.len(), MARKS);
        history.record((1 << 40) + 2000, &sum(0, 0), true);
        assert!(history.marks.is_empty() && history.seconds.back().unwrap().degraded);
    }

    #[test]
    fn a_store_that_comes_and_goes_has_few_marks() {
        let mut history = History::new(1_000_000_000);
        let kinds = |history: &History| -> Vec<String> {
            history.marks.iter().map(|mark| mark.kind.clone()).collect()
        };
        let mut at_us = 1_000_000_000;
        for _ in 0..40 {
            for is_away in [true, false] {
                history.record_store(at_us, is_away);
                at_us += 1_000_000;
            }
        }
        let pair = ["store_down", "store_up"];
        let expected = [&["start"][..], &pair.repeat(5), &["store_flaps"]].concat();
        assert_eq!(kinds(&history), expected);
        let text = &history.marks.back().unwrap().text;
        assert_eq!(text, "the store was away 35 more times in 68 s");
        at_us += 60_000_000;
        history.record_store(at_us, true);
        history.record_store(at_us + 1_000_000, false);
        assert_eq!(kinds(&history), [&expected[..], &pair].concat());
    }
}
