//! What is counted of requests and their decisions, for the metrics: each worker by itself.
//!
//! A limit with several rates is counted once for a request, and of a denial only the limits that
//! deny: the others were not charged.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::Method;

use super::access_record::AccessRecord;
use super::admit::Decider;
use super::limiter::Limiter;
use crate::clock;
use crate::limit::{Charge, Decision, Limit, LimitCheck, OnError};
use crate::store::StoreError;
use crate::telemetry::decisions::Source;
use crate::telemetry::denials::{Denial, DeniedRate, short};
use crate::telemetry::metrics::trail::Seen;
use crate::telemetry::metrics::{Meter, Verdict};

/// What was asked by whoever was denied.
pub(super) struct Asked<'r> {
    pub(super) client: IpAddr,
    pub(super) method: &'r Method,
    pub(super) path: &'r str,
    pub(super) route: Option<&'r str>,
    pub(super) id: &'r str,
}

impl Limiter {
    /// One more request has the head of its answer.
    pub(super) fn count_answer(&self, record: &AccessRecord) {
        let took = clock::now().saturating_duration_since(record.began);
        let answered = (record.method, record.status);
        self.meter.answered(record.route_number, answered, took);
        self.meter.ended(record.outcome);
    }

    /// Limits that a request is not counted by.
    pub(super) fn count_bypassed(&self, limits: &[Arc<Limit>]) {
        for limit in limits {
            let source = Source::Local as usize;
            self.meter.decided(limit.number, Verdict::Bypassed, source);
        }
    }

    /// The decision, where the counts are in this process. Of many one is timed: two looks at the
    /// clock are a good part of it.
    pub(super) fn decide_here(&self, charge: &Charge) -> Option<Decision> {
        let since = self.meter.is_turn().then(clock::now);
        let decision = self.store.charge_here(charge);
        if let Some(since) = since.filter(|_| decision.is_some()) {
            self.note_time(since);
        }
        decision
    }

    /// How long the store took.
    pub(super) fn note_time(&self, since: Instant) {
        let took = clock::now().saturating_duration_since(since);
        self.meter.took(Source::Store as usize, took);
    }

    /// A decision has been made.
    pub(super) fn count_decision(&self, charge: &Charge, decision: &Decision, by: &Decider) {
        let source = match by {
            Decider::Store { .. } => self.store.decided_by(),
            Decider::Local => Source::Local,
        };
        let mut last = usize::MAX;
        for (item, verdict) in charge.iter().zip(&decision.verdicts) {
            let number = item.limit.number;
            let said = match decision.allowed {
                true => Verdict::Allowed,
                false if verdict.retry.denies() => Verdict::Denied,
                false => continue,
            };
            if number != last {
                self.meter.decided(number, said, source as usize);
            }
            see(
                &self.meter,
                (item, number == last),
                decision.allowed,
                verdict.remaining,
            );
            last = number;
        }
    }

    /// A denial, for whoever watches.
    pub(super) fn note_denial<'r>(
        &self,
        (charge, decision): (&Charge, &Decision),
        asked: impl FnOnce() -> Asked<'r>,
    ) {
        let Some(denials) = self.meter.denials() else {
            return;
        };
        denials.note(|| {
            let mut items = charge.iter().zip(&decision.verdicts);
            let (item, _) = items.find(|(_, verdict)| verdict.retry.denies())?;
            let rates = DeniedRate::all(charge, decision);
            let asked = asked();
            Some(Denial {
                at_us: clock::unix_us(),
                limit: item.limit.name.to_string(),
                route: asked.route.unwrap_or_default().to_owned(),
                method: asked.method.clone(),
                path: short(asked.path),
                client: asked.client,
                tag: item.tag,
                retry_after: rates.first().and_then(|rate| rate.retry_after),
                rates,
                request_id: asked.id.to_owned(),
                shadow: false,
            })
        });
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
                OnError::Deny => Verdict::Denied,
                OnError::Allow if !denies => Verdict::Allowed,
                OnError::Allow | OnError::Local => continue,
            };
            if number != last {
                let source = Source::Local as usize;
                self.meter.decided(number, said, source);
            }
            last = number;
        }
    }
}

/// Tells whoever watches what a limit said of a request.
pub(super) fn see(
    meter: &Meter,
    (item, again): (&LimitCheck, bool),
    allowed: bool,
    remaining: u64,
) {
    let Some(trail) = meter.trail() else { return };
    trail.push(&Seen {
        tag: item.tag.0,
        limit: item.limit.number as u32,
        denied: !allowed,
        again,
        left: (remaining as u32, item.window.rule.units as u32),
    });
}
