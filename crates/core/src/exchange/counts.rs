//! What is counted of requests and their decisions, for the metrics: each worker by itself.
//!
//! A limit with several rates is counted once for a request, and of a denial only the limits that
//! deny: the others were not charged.

use std::sync::Arc;
use std::time::Instant;

use super::admission::Decider;
use super::limiter::Limiter;
use crate::clock;
use crate::limit::{Charge, CheckResult, Decided, Decision, Limit, OnError};
use crate::store::StoreError;
use crate::telemetry::decisions::Source;
use crate::telemetry::metrics::{LimitVerdict, Meter};
use crate::telemetry::watched::{DeniedRequest, ObservedDenial, TrailEntry};

impl Limiter {
    /// Limits that a request is not counted by.
    pub(super) fn count_bypassed(&self, limits: &[Arc<Limit>]) {
        for limit in limits {
            let source = Source::Local as usize;
            self.meter
                .count_decision(limit.number, LimitVerdict::Bypassed, source);
        }
    }

    /// The decision, where the counts are in this process. Of many one is timed: two looks at the
    /// clock are a good part of it.
    pub(super) fn decide_here(&self, charge: &Charge) -> Option<Decision> {
        let since = self.meter.is_next_timed().then(clock::now);
        let decision = self.store.charge_here(charge);
        if let Some(since) = since.filter(|_| decision.is_some()) {
            self.note_time(since);
        }
        decision
    }

    /// How long the store took.
    pub(super) fn note_time(&self, since: Instant) {
        let took = clock::now().saturating_duration_since(since);
        self.meter.observe_decision(Source::Store as usize, took);
    }

    /// A decision has been made.
    pub(super) fn count_decision(&self, decided: Decided<'_>, by: &Decider) {
        let allowed = decided.decision.allowed;
        let source = match by {
            Decider::Store { .. } => self.store.decided_by(),
            Decider::Local => Source::Local,
        };
        let mut last = usize::MAX;
        for result in decided.results() {
            let number = result.check.limit.number;
            let said = match allowed {
                true => LimitVerdict::Allowed,
                false if result.verdict.retry.denies() => LimitVerdict::Denied,
                false => continue,
            };
            if number != last {
                self.meter.count_decision(number, said, source as usize);
            }
            show(&self.meter, result, allowed, number == last);
            last = number;
        }
    }

    /// Keeps a denial for the operators who watch them; `request` is called only if one is kept.
    pub(super) fn note_denial<'r>(
        &self,
        decided: Decided<'_>,
        request: impl FnOnce() -> DeniedRequest<'r>,
    ) {
        if let Some(denials) = self.meter.denials() {
            denials.note(|| {
                let denying = decided.denying().next()?;
                ObservedDenial::now(request(), &denying.check.limit.name, decided, false)
            });
        }
    }

    /// The store did not decide: what becomes of limits that are not asked here either.
    #[cold]
    pub(super) fn count_away(&self, charge: &Charge, error: &StoreError) {
        self.meter.store_failed(error.label());
        let denies = charge
            .iter()
            .any(|item| item.limit.on_error == OnError::Deny);
        let mut last = usize::MAX;
        for item in charge {
            let number = item.limit.number;
            let said = match item.limit.on_error {
                OnError::Deny => LimitVerdict::Denied,
                OnError::Allow if !denies => LimitVerdict::Allowed,
                OnError::Allow | OnError::Local => continue,
            };
            if number != last {
                let source = Source::Local as usize;
                self.meter.count_decision(number, said, source);
            }
            last = number;
        }
    }
}

/// Shows the operators who watch what a check said of a request. `is_repeated`: it is a further
/// rate of the limit before it.
pub(super) fn show(meter: &Meter, result: CheckResult<'_>, allowed: bool, is_repeated: bool) {
    let Some(trail) = meter.trail() else { return };
    let check = result.check;
    trail.push(&TrailEntry {
        tag: check.tag.0,
        limit: check.limit.number as u32,
        denied: !allowed,
        again: is_repeated,
        remaining: result.verdict.remaining as u32,
        units: check.window.rule.units as u32,
    });
}
