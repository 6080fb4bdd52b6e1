//! A reply handed out: to each who asked their decision, and to this worker what can be known from
//! it for later.

use super::Task;
use crate::store::batch::{Deed, Outcome, Reply};
use crate::store::deny_cache::Span;
use crate::store::gather::{Batch, Bundle};
use crate::store::{ServerTrouble, StoreError};
use crate::telemetry::decisions::Source;

/// A step of the store's clock: more than what the network's delay can look like.
const CLOCK_STEP_US: u64 = 100_000;
/// What comes of a group that asks for nothing.
const NOTHING: Outcome = Outcome {
    granted: 0,
    allowed: None,
    denied: None,
};

impl Task {
    /// Hands out a reply's decisions, in the order of the batch.
    pub(super) fn answer(
        &mut self,
        batch: Batch,
        bytes: &[u8],
        span: Span,
    ) -> Result<(), StoreError> {
        let mut reply = match Reply::read(bytes) {
            Ok(reply) => reply,
            Err(kind) => return self.fail(batch, kind),
        };
        self.note_head(&reply, span);
        let mut refused = Vec::new();
        let mut wrote = false;
        let mut rest = batch.bundles.into_iter();
        while let Some(bundle) = rest.next() {
            let done = match bundle.deed {
                Deed::Charge(count) => reply.outcome(&bundle.charge, count),
                Deed::Say => reply.outcome(&bundle.charge, 1),
                Deed::GiveBack | Deed::Settle => reply.done().map(|_| Some(NOTHING)),
            };
            match done {
                Ok(Some(outcome)) => {
                    let costs = bundle.charge.iter().any(|item| item.cost > 0);
                    wrote |= outcome.granted > 0 && costs;
                    self.hand_out(bundle, &outcome, span);
                }
                Ok(None) => refused.push(bundle),
                Err(kind) => {
                    self.holder.fail(std::iter::once(bundle).chain(rest), kind);
                    return Err(kind);
                }
            }
        }
        let Some(trouble) = reply.refusal() else {
            self.succeeded(wrote);
            return Ok(());
        };
        let kind = StoreError::Server(trouble);
        self.holder.refuse(refused, kind);
        if trouble == ServerTrouble::OutOfMemory {
            // Denials are still answered, so the store stays worth asking.
            self.begin_trouble(kind);
            return Ok(());
        }
        Err(kind)
    }

    /// One bundle's decisions, and what can be known from them for later.
    fn hand_out(&mut self, bundle: Bundle, outcome: &Outcome, span: Span) {
        let Deed::Charge(count) = bundle.deed else {
            self.holder.said(&bundle);
            return;
        };
        // What an operator changed meanwhile may not be in it.
        if self.epoch == self.shared.roll.epoch() {
            let mut known = self.known.lock();
            if let Some(denied) = &outcome.denied {
                known.denied.note(&bundle.charge, denied, span);
            }
            if bundle.charge.iter().any(|item| item.limit.lease_us > 0) {
                let times = (span.sent_us, span.came_us);
                known
                    .leases
                    .note(&bundle.charge, bundle.asked(), (outcome, count), times);
            }
        }
        let log = self.shared.log.as_ref();
        self.holder.answer(bundle, outcome, |charge, decision| {
            if let Some(log) = log {
                log.record(Source::Store, charge, decision);
            }
        });
    }

    /// What a reply's head tells of the store itself.
    fn note_head(&mut self, reply: &Reply<'_>, span: Span) {
        if reply.begun_anew > 0 {
            self.shared.count_begun_anew(reply.begun_anew);
        }
        // The store's clock against ours: when that jumps, what is known of its future is void. It
        // was read at some time between the call and its answer.
        let less = |us: u64| {
            i64::try_from(reply.at_us)
                .unwrap_or(0)
                .saturating_sub_unsigned(us)
        };
        let (least, most) = (less(span.came_us), less(span.sent_us));
        let stepped_us = self.lead_us.map_or(0, |(least_before, most_before)| {
            (least - most_before).max(0) + (most - least_before).min(0)
        });
        self.lead_us = Some((least, most));
        if stepped_us.unsigned_abs() > CLOCK_STEP_US {
            self.known.clear();
            let seconds = stepped_us as f64 / 1e6;
            tracing::warn!(
                seconds = format_args!("{seconds:.3}"),
                "redis: its clock has stepped"
            );
        }
    }

    pub(super) fn fail(&mut self, batch: Batch, kind: StoreError) -> Result<(), StoreError> {
        self.holder.fail(batch.bundles, kind);
        Err(kind)
    }
}
