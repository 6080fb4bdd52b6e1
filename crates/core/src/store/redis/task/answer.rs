//! What a reply means for this worker: what can be known from it for later, and how the store is.

use super::super::reply::{self, Lead};
use super::Task;
use crate::store::deny_cache::Span;
use crate::store::gather::Batch;
use crate::store::{ServerTrouble, StoreError};
use crate::telemetry::decisions::Source;

impl Task {
    /// Hands out a reply's decisions. An error means that the connection must go.
    pub(super) fn answer(
        &mut self,
        batch: Batch,
        bytes: &[u8],
        span: Span,
    ) -> Result<(), StoreError> {
        let (known, log) = (&self.known, self.shared.log.as_ref());
        // What an operator changed meanwhile may not be in it.
        let is_fresh = self.epoch == self.shared.overrides.epoch();
        let told = reply::hand_out(
            batch,
            (bytes, span),
            &self.holder,
            |bundle, outcome| {
                if !is_fresh {
                    return;
                }
                if let Some(denied) = &outcome.denied {
                    known.lock().denied.note(bundle.charge(), denied, span);
                }
                reply::keep_what_is_ahead(bundle, outcome, span, known);
            },
            |charge, decision| {
                if let Some(log) = log {
                    log.record(Source::Store, charge, decision);
                }
            },
        );
        if told.begun_anew > 0 {
            self.shared.count_begun_anew(told.begun_anew);
        }
        if let Some(lead) = told.lead {
            self.note_clock(lead);
        }
        match told.trouble {
            None => self.succeeded(told.wrote),
            // Denials are still answered, so the store stays worth asking.
            Some(kind @ StoreError::Server(ServerTrouble::OutOfMemory)) => self.begin_trouble(kind),
            Some(kind) => return Err(kind),
        }
        Ok(())
    }

    /// When the store's clock jumps, what is known of its future is void.
    fn note_clock(&mut self, lead: Lead) {
        let before = self.lead.replace(lead);
        if let Some(seconds) = before.and_then(|before| lead.stepped_since(before)) {
            self.known.clear();
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
