//! A reply handed out: to each who asked their decision; and what it tells of the server.

use super::slot_lease::SlotLease;
use crate::limit::{Charge, Decision};
use crate::store::batch::{Operation, Outcome, Reply};
use crate::store::deny_cache::Span;
use crate::store::gather::{Batch, Bundle};
use crate::store::known::Known;
use crate::store::{ServerTrouble, StoreError};

/// A step of a server's clock: more than what the network's delay can look like.
const STEP_US: u64 = 100_000;
/// What comes of a group that asks for nothing.
const NOTHING: Outcome = Outcome {
    granted: 0,
    allowed: None,
    denied: None,
};

/// What a reply says of its server.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Something was written.
    pub(super) wrote: bool,
    /// Why the server refused to write, or that its reply cannot be read.
    pub(super) trouble: Option<StoreError>,
    /// Keys that held something not ours and were begun anew.
    pub(super) begun_anew: u16,
    /// What it says of the server's clock.
    pub(super) lead: Option<Lead>,
}

/// How far a server's clock is ahead of ours, at least and at most, microseconds: it was read at
/// some time between the call and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    least: i64,
    most: i64,
}

impl Lead {
    fn of(at_us: u64, span: Span) -> Lead {
        let ahead_of = |us: u64| {
            let at_us = i64::try_from(at_us).unwrap_or(i64::MAX);
            at_us.saturating_sub_unsigned(us)
        };
        Lead {
            least: ahead_of(span.came_us),
            most: ahead_of(span.sent_us),
        }
    }

    /// By how many seconds the clock has stepped since `before`, where that is certain.
    pub(super) fn stepped_since(self, before: Lead) -> Option<f64> {
        let forth = self.least.saturating_sub(before.most).max(0);
        let back = self.most.saturating_sub(before.least).min(0);
        let stepped_us = forth + back;
        (stepped_us.unsigned_abs() > STEP_US).then_some(stepped_us as f64 / 1e6)
    }
}

/// Hands out a reply's decisions, in the order of the batch. `keep` is shown what became of each
/// group of requests, and `seen` each decision, before whoever asked gets it.
pub(super) fn hand_out(
    batch: Batch,
    (bytes, span): (&[u8], Span),
    holder: &SlotLease,
    keep: impl Fn(&Bundle, &Outcome),
    seen: impl Fn(&Charge, &Decision),
) -> Told {
    let mut told = Told::default();
    let mut reply = match Reply::read(bytes) {
        Ok(reply) => reply,
        Err(kind) => {
            holder.fail(batch.bundles, kind);
            told.trouble = Some(kind);
            return told;
        }
    };
    told.begun_anew = reply.begun_anew;
    told.lead = Some(Lead::of(reply.at_us, span));
    let mut refused = Vec::new();
    let mut rest = batch.bundles.into_iter();
    while let Some(bundle) = rest.next() {
        let mut done = match bundle.operation {
            Operation::Charge(count) => reply.outcome(bundle.charge(), count),
            Operation::Say => reply.outcome(bundle.charge(), 1),
            Operation::GiveBack | Operation::Settle => {
                reply.done().map(|done| done.then_some(NOTHING))
            }
        };
        match &mut done {
            Ok(Some(outcome)) if bundle.count() > 0 => {
                let costs = bundle.charge().iter().any(|item| item.cost > 0);
                told.wrote |= outcome.granted > 0 && costs;
                keep(&bundle, outcome);
                holder.answer(bundle, outcome, &seen);
            }
            Ok(Some(_)) => {
                holder.said(&bundle);
                bundle.done();
            }
            Ok(None) => refused.push(bundle),
            Err(kind) => {
                holder.fail(std::iter::once(bundle).chain(rest), *kind);
                told.trouble = Some(*kind);
                return told;
            }
        }
    }
    told.trouble = reply.refusal().map(StoreError::Server);
    let other = StoreError::Server(ServerTrouble::Other);
    holder.refuse(refused, told.trouble.unwrap_or(other));
    told
}

/// Units that were taken ahead are this worker's to spend.
pub(super) fn keep_what_is_ahead(bundle: &Bundle, outcome: &Outcome, span: Span, known: &Known) {
    if bundle.charge().iter().any(|item| item.limit.lease_us > 0) {
        let asked = (outcome, bundle.count());
        let times = (span.sent_us, span.came_us);
        let mut known = known.lock();
        (known.leases).note(bundle.charge(), bundle.asked(), asked, times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead(at_us: u64, sent_us: u64, came_us: u64) -> Lead {
        Lead::of(at_us, Span { sent_us, came_us })
    }

    #[test]
    fn a_late_answer_is_no_step_of_the_clock() {
        let before = lead(5_000_000, 1_000_000, 1_000_500);
        assert_eq!(
            lead(6_900_000, 2_000_000, 3_000_000).stepped_since(before),
            None
        );
        assert_eq!(
            lead(6_000_000, 2_000_000, 9_000_000).stepped_since(before),
            None
        );
    }

    #[test]
    fn a_step_is_told_in_its_direction() {
        let before = lead(5_000_000, 1_000_000, 1_000_500);
        let forth = lead(16_000_000, 2_000_000, 2_000_500);
        assert_eq!(forth.stepped_since(before), Some(9.9995));
        assert_eq!(before.stepped_since(forth), Some(-9.9995));
    }
}
