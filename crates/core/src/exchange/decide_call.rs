//! Decides a call of the rate limit service.
//!
//! Descriptors whose rules charge only what is allowed are one decision: all of them, or none. A
//! rule that also charges what it denies decides by itself, and first: its units count whatever the
//! others say. If it denies the call, the others are asked and not charged.

use std::time::Instant;

use bytes::Bytes;
use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::Exchange;
use super::admit::{Admission, Decider, deadline};
use super::call_checks::{CallPart, PartKind};
use super::rate_limit_call::{CallAnswer, DescriptorStatus, Hits, RateLimitCall};
use super::rejection::{Denial, Rejection};
use super::shadow::ShadowChecks;
use super::stages::Stages;
use crate::clock;
use crate::limit::{Algorithm, Charge, Decision, LimitCheck, Retry, Rule, Verdict};

/// The decisions of a call.
#[derive(Default)]
struct CallResults {
    /// The checks that were decided, each once, with their verdicts.
    charge: Charge,
    verdicts: SmallVec<[Verdict; 2]>,
    is_local: bool,
    /// Why the call is denied, if no limit denies it.
    rejection: Option<Rejection>,
}

impl CallResults {
    /// Adds verdicts. The last one of a check is kept, except that a denial stays.
    fn add(&mut self, charge: &Charge, decision: &Decision) {
        for (check, verdict) in charge.iter().zip(&decision.verdicts) {
            match self.position_of(check) {
                Some(at) if self.verdicts[at].retry.denies() => {}
                Some(at) => self.verdicts[at] = *verdict,
                None => {
                    self.charge.push(check.clone());
                    self.verdicts.push(*verdict);
                }
            }
        }
    }

    /// Corrects the verdicts of units that were charged although they were denied.
    fn note_charged(&mut self, charge: &Charge) {
        for check in charge {
            if let Some(at) = self.position_of(check) {
                let verdict = &mut self.verdicts[at];
                verdict.used = verdict.used.saturating_add(check.cost);
                verdict.remaining = verdict.remaining.saturating_sub(check.cost);
                note_new_units(verdict, &check.window.rule);
            }
        }
    }

    fn position_of(&self, check: &LimitCheck) -> Option<usize> {
        let mut charge = self.charge.iter();
        charge.position(|known| known.id() == check.id())
    }

    /// The checks of one descriptor, as far as they were decided.
    fn decision_of(&self, part: &Charge) -> (Charge, Decision) {
        let mut charge = Charge::new();
        let mut decision = Decision::default();
        for check in part {
            if let Some(at) = self.position_of(check) {
                charge.push(check.clone());
                decision.verdicts.push(self.verdicts[at]);
            }
        }
        (charge, decision)
    }
}

/// The new units count for a whole window, or until the end of a calendar window.
fn note_new_units(verdict: &mut Verdict, rule: &Rule) {
    if rule.algorithm != Algorithm::Calendar {
        verdict.reset_us = verdict.reset_us.max(rule.window_us);
    }
    if verdict.retry == Retry::Never {
        verdict.retry = Retry::After(verdict.reset_us);
    }
    if let Retry::After(us) = verdict.retry
        && verdict.remaining == 0
    {
        verdict.next_us = us;
    }
}

impl Stages {
    /// Decides a call. Writes headers and body of the client's response into the exchange.
    pub async fn decide_call<B>(
        &self,
        x: &mut Exchange<'_, B, Bytes>,
        call: &RateLimitCall<'_>,
        since: Instant,
    ) -> CallAnswer {
        let overrides = self.limiter.store.overrides();
        let mut parts = self.call_parts(call, overrides.as_ref(), x);
        let deadline = call.timeout.map(|timeout| deadline(since, timeout));
        let counted = parts
            .iter_mut()
            .filter(|part| part.kind != PartKind::Refund);
        let shadow = counted.flat_map(|part| std::mem::take(&mut part.shadow));
        let generation = self.limiter.hash_key().generation;
        x.record.shadow = ShadowChecks::start(&self.limiter, shadow.collect(), generation);
        let mut results = CallResults::default();
        let mut is_over = self.refuse_blocked_parts(&mut parts, &mut results);
        is_over |= self
            .decide_single(&mut parts, &mut results, since, deadline)
            .await;
        is_over |= self
            .decide_together(&parts, &mut results, is_over, since, deadline)
            .await;
        self.peek_at_refunded(&mut parts, &mut results, since, deadline)
            .await;
        let statuses = parts.iter().map(|part| status_of(part, &results)).collect();
        let metadata = metadata_of(&parts, &results);
        self.answer_client(x, results, is_over);
        CallAnswer {
            is_over,
            statuses,
            headers: std::mem::take(x.response.headers_mut()),
            body: std::mem::take(x.response.body_mut()),
            metadata,
        }
    }

    fn refuse_blocked_parts(&self, parts: &mut [CallPart<'_>], results: &mut CallResults) -> bool {
        for part in parts {
            if let Some(rejection) = part.refused.take() {
                results.rejection.get_or_insert(rejection);
            }
        }
        results.rejection.is_some()
    }

    /// Decides the rules that charge what they deny. Returns whether they deny the call.
    async fn decide_single(
        &self,
        parts: &mut [CallPart<'_>],
        results: &mut CallResults,
        since: Instant,
        deadline: Option<Instant>,
    ) -> bool {
        let (mut is_over, mut quotas, mut quotas_over) = (false, 0, 0);
        for part in parts {
            let is_quota = part.kind == PartKind::Quota;
            quotas += usize::from(is_quota);
            if !is_quota && part.kind != PartKind::Always || part.charge.is_empty() {
                continue;
            }
            let admission = self.admission(part.charge.clone(), deadline);
            let denied = self.decide(admission, results, since).await;
            if let Some(charge) = denied.charge {
                let generation = self.limiter.hash_key().generation;
                self.limiter.charge_anyway(&charge, generation);
                results.note_charged(&charge);
            }
            quotas_over += usize::from(is_quota && denied.is_denied);
            is_over |= denied.is_denied && !is_quota;
        }
        is_over || quotas > 0 && quotas == quotas_over
    }

    /// Decides all other rules at once. Returns whether they deny the call.
    async fn decide_together(
        &self,
        parts: &[CallPart<'_>],
        results: &mut CallResults,
        is_over: bool,
        since: Instant,
        deadline: Option<Instant>,
    ) -> bool {
        let mut charge = Charge::new();
        let together = parts.iter().filter(|part| part.kind == PartKind::Together);
        for check in together.flat_map(|part| &part.charge) {
            match charge.iter_mut().find(|known| known.id() == check.id()) {
                Some(known) => known.cost = known.cost.saturating_add(check.cost),
                None => charge.push(check.clone()),
            }
        }
        let Some(first) = charge.first().cloned() else {
            return false;
        };
        if !is_over {
            let admission = self.admission(charge, deadline);
            let is_denied = self.decide(admission, results, since).await.is_denied;
            let mut together = parts.iter().filter(|part| part.kind == PartKind::Together);
            if is_denied && together.any(|part| part.has_own_hits && part.hits.charged() > 0) {
                self.limiter.meter.decide().lost_reports.add(1);
            }
            return is_denied;
        }
        // The call is denied already: this check denies the others too, so nothing is charged.
        charge.push(LimitCheck::never(&first));
        let mut asked = self.admission(charge, deadline);
        if let Ok(decision) = self.limiter.charge_store(&asked, since).await {
            asked.charge.pop();
            results.add(&asked.charge, &decision);
        }
        false
    }

    /// Finds what is left of limits that get units back, and gives them back.
    async fn peek_at_refunded(
        &self,
        parts: &mut [CallPart<'_>],
        results: &mut CallResults,
        since: Instant,
        deadline: Option<Instant>,
    ) {
        for part in parts {
            let Hits::Refund(units) = part.hits else {
                continue;
            };
            let asked = self.admission(part.charge.clone(), deadline);
            if let Ok(mut decision) = self.limiter.charge_store(&asked, since).await {
                for (check, verdict) in part.charge.iter().zip(&mut decision.verdicts) {
                    let units = check.limit.units(units);
                    let most = check.window.rule.units;
                    verdict.retry = Retry::Now;
                    let used = verdict.used.saturating_sub(units);
                    verdict.remaining = most.saturating_sub(used);
                }
                results.add(&part.charge, &decision);
                if !part.charge.is_empty() {
                    part.refunded = Some(DescriptorStatus::new(&part.charge, decision));
                }
            }
            let shadow = part.shadow.iter().flatten();
            let mut charge: Charge = part.charge.iter().chain(shadow).cloned().collect();
            for check in &mut charge {
                let most = check.window.rule.algorithm.max_count();
                check.cost = check.limit.units(units).min(most);
            }
            self.limiter.refund_oldest(&charge, asked.generation);
        }
    }

    fn admission(&self, charge: Charge, deadline: Option<Instant>) -> Admission {
        Admission {
            charge,
            generation: self.limiter.hash_key().generation,
            deadline,
            ..Admission::default()
        }
    }

    async fn decide(
        &self,
        mut admission: Admission,
        results: &mut CallResults,
        since: Instant,
    ) -> PartDenial {
        let decided = self.limiter.admit(&mut admission, since).await;
        match decided {
            Ok(()) => {
                results.is_local |= matches!(admission.decider, Some(Decider::Local));
                if let Some(granted) = admission.granted() {
                    results.add(granted.charge, granted.decision);
                }
                PartDenial::default()
            }
            Err(Rejection::Limited(denial)) => {
                results.is_local |= denial.is_local;
                results.add(&denial.charge, &denial.decision);
                PartDenial {
                    is_denied: true,
                    charge: Some(denial.charge),
                }
            }
            Err(rejection) => {
                results.rejection.get_or_insert(rejection);
                PartDenial {
                    is_denied: true,
                    charge: None,
                }
            }
        }
    }

    /// Makes the response to the client, and notes the outcome in the record.
    fn answer_client<B>(
        &self,
        x: &mut Exchange<'_, B, Bytes>,
        mut results: CallResults,
        is_over: bool,
    ) {
        let mut decision = Decision {
            allowed: !is_over,
            at_us: 0,
            spread_us: 0,
            verdicts: std::mem::take(&mut results.verdicts),
        };
        let mut charge = std::mem::take(&mut results.charge);
        if !is_over {
            remove_denying(&mut charge, &mut decision);
            x.record.note_admission(!charge.is_empty());
            if !charge.is_empty() {
                x.admission.decider = Some(Decider::Local);
                x.admission.unix_us = clock::unix_us();
            }
            (x.admission.charge, x.admission.decision) = (charge, decision);
            return self.replies.mark(&x.admission, x.response);
        }
        let rejection = results.rejection.unwrap_or_else(|| {
            Rejection::Limited(Box::new(Denial {
                charge,
                decision,
                is_local: results.is_local,
            }))
        });
        self.reject(x, &rejection);
    }
}

/// The result of one decision.
#[derive(Default)]
struct PartDenial {
    is_denied: bool,
    /// What was denied, if a limit denied it.
    charge: Option<Charge>,
}

/// Removes the checks that deny: a quota that is over does not deny a call that another allows.
fn remove_denying(charge: &mut Charge, decision: &mut Decision) {
    let verdicts = std::mem::take(&mut decision.verdicts);
    let mut kept = verdicts.iter().map(|verdict| !verdict.retry.denies());
    charge.retain(|_| kept.next().unwrap_or(false));
    let allowing = verdicts.into_iter();
    decision.verdicts = allowing.filter(|verdict| !verdict.retry.denies()).collect();
}

fn status_of(part: &CallPart<'_>, results: &CallResults) -> DescriptorStatus {
    if part.is_blocked {
        return DescriptorStatus {
            is_over: true,
            ..DescriptorStatus::default()
        };
    }
    if let Some(status) = &part.refunded {
        return status.clone();
    }
    if part.charge.is_empty() {
        return match part.kind {
            PartKind::Unmatched => DescriptorStatus::default(),
            _ => DescriptorStatus::unlimited(),
        };
    }
    let away = match &results.rejection {
        Some(Rejection::StoreAway { limits, .. }) => {
            let mut names = part.charge.iter().map(|check| &check.limit.name);
            names.any(|name| limits.contains(name))
        }
        _ => false,
    };
    let (charge, decision) = results.decision_of(&part.charge);
    let mut status = match charge.is_empty() {
        true => undecided(&part.charge, part.hits),
        false => DescriptorStatus::new(&charge, decision),
    };
    if away {
        status.is_over = true;
        status.reset_s = Some(1);
    }
    status
}

/// The status where the store's failure decided: nothing is known of the counts.
fn undecided(charge: &Charge, hits: Hits) -> DescriptorStatus {
    let verdict = |check: &LimitCheck| Verdict {
        used: 0,
        remaining: check.window.rule.units.saturating_sub(hits.charged()),
        retry: Retry::Now,
        reset_us: 0,
        next_us: 0,
        stamp: 0,
    };
    let decision = Decision {
        verdicts: charge.iter().map(verdict).collect(),
        ..Decision::default()
    };
    DescriptorStatus::new(charge, decision)
}

/// Merges the tables of the rules that pass. Of two values the first one stays, as in
/// envoyproxy/ratelimit.
fn metadata_of(parts: &[CallPart<'_>], results: &CallResults) -> Option<Map<String, Value>> {
    let mut merged: Option<Map<String, Value>> = None;
    for part in parts {
        let Some(metadata) = part.rule.and_then(|rule| rule.metadata.as_ref()) else {
            continue;
        };
        if part.kind != PartKind::Unmatched && !status_of(part, results).is_over {
            merge(merged.get_or_insert_default(), metadata);
        }
    }
    merged
}

fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
            (None, _) => _ = into.insert(key.clone(), value.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(retry: Retry) -> Verdict {
        Verdict {
            used: 0,
            remaining: 0,
            retry,
            reset_us: 0,
            next_us: 0,
            stamp: 0,
        }
    }

    #[test]
    fn units_that_were_charged_above_the_limit_have_a_wait() {
        let mut rule = Rule {
            algorithm: Algorithm::Log,
            units: 100,
            window_us: 60_000_000,
            precision_us: 1,
        };
        let mut above = verdict(Retry::Never);
        note_new_units(&mut above, &rule);
        assert_eq!(above.retry, Retry::After(60_000_000));
        assert_eq!((above.reset_us, above.next_us), (60_000_000, 60_000_000));
        let mut soon = verdict(Retry::After(5));
        note_new_units(&mut soon, &rule);
        assert_eq!((soon.retry, soon.reset_us), (Retry::After(5), 60_000_000));
        rule.algorithm = Algorithm::Calendar;
        let mut month = Verdict {
            reset_us: 7,
            ..verdict(Retry::Never)
        };
        note_new_units(&mut month, &rule);
        assert_eq!((month.retry, month.reset_us), (Retry::After(7), 7));
    }
}
