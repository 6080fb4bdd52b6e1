//! `/api/v1/traffic`: what the last quarter of an hour was like; and the look each second that it
//! is made of.

use std::sync::{MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::AdminState;
use super::history::{History, Mark, STEP, Sample};
use super::schema::{described, words};
use super::time::{now, seconds};
use crate::clock;
use crate::server::introspection::Snapshot;
use crate::store::redis::OUTAGE_AFTER;
use crate::telemetry::metrics::Sum;

/// All that the workers have counted, without what each route had.
pub(super) fn brief_sum(snapshot: &Snapshot<'_>) -> Sum {
    let mut sum = Sum::default();
    snapshot
        .proxies()
        .for_each(|proxy| proxy.meter().add_brief_to(&mut sum));
    sum
}

impl AdminState {
    /// Looks at what has been counted since the last time.
    pub(super) fn tick(&self) {
        self.look_at_beats();
        failpoint!("admin.look");
        self.look_for_findings();
        self.look_at_routes();
        let seen = self.server.introspection.inspect(|snapshot| {
            let since = snapshot.counts.backing().away_since();
            let degraded = since.is_some_and(|since| since.elapsed() >= OUTAGE_AFTER);
            let last = snapshot
                .reload
                .map(|last| (last.at_us, said(&last.outcome)));
            (brief_sum(snapshot), degraded, (snapshot.reloads, last))
        });
        let Some((sum, degraded, (reloads, last))) = seen else {
            return;
        };
        let now_us = clock::unix_us();
        let mut history = self.history();
        if let Some((at_us, text)) = last.filter(|_| reloads != history.known_reloads) {
            history.mark(at_us, "reload", text);
        }
        history.known_reloads = reloads;
        history.look_at_store(now_us, degraded);
        history.look(now_us / 1_000_000, &sum, degraded);
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn said(outcome: &crate::server::reload_request::ReloadOutcome) -> String {
    match &**outcome {
        Ok(reloaded) => match reloaded.changes.as_slice() {
            [] => "reload: nothing is different".to_owned(),
            [one] => format!("reload: {one}"),
            [first, others @ ..] => format!("reload: {first}, and {} more", others.len()),
        },
        Err(_) => "reload: failed, nothing was changed".to_owned(),
    }
}

described! {
    struct TrafficReport as "Traffic" {
        now: f64,
        step: u64,
        samples: Vec<SampleReport>,
        marks: Vec<MarkReport>,
        rates: RatesReport,
        second: Vec<SecondReport>,
    }

    struct SampleReport {
        at: u64 = number(),
        requests: u64,
        allowed: u64,
        denied: u64,
        shadow: u64,
        errors: u64,
        degraded: bool,
    }

    struct MarkReport {
        at: f64,
        kind: &'static str =
            words(&["start", "reload", "store_down", "store_up", "store_flaps"]),
        text: String,
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

pub(super) fn traffic(state: &AdminState) -> TrafficReport {
    let history = state.history();
    let sample = |one: &Sample| SampleReport {
        at: one.at,
        requests: one.requests,
        allowed: one.allowed,
        denied: one.denied,
        shadow: one.shadow,
        errors: one.errors,
        degraded: one.degraded,
    };
    let second = |one: &Sample| SecondReport {
        at: one.at,
        requests: one.requests,
        denied: one.denied,
    };
    let mark = |one: &Mark| MarkReport {
        at: seconds(one.at_us),
        kind: one.kind,
        text: one.text.clone(),
    };
    let last = history.seconds.back().copied().unwrap_or_default();
    TrafficReport {
        now: now(),
        step: STEP,
        samples: history.samples.iter().map(sample).collect(),
        marks: history.marks.iter().map(mark).collect(),
        rates: RatesReport {
            requests: last.requests,
            denials: last.denied,
        },
        second: history.seconds.iter().map(second).collect(),
    }
}
