//! Corrections that are sent once, and that nothing waits for: units that are given back, and units
//! that a request used beyond its charge.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::cluster::slot_of;
use super::{Redis, ServersView};
use crate::limit::{Charge, Decision, LimitCheck, OnError};
use crate::store::batch::Operation;
use crate::store::gather::{OnFailure, StoreRequest};
use crate::store::{StoreError, is_slots};

impl Redis {
    pub fn refund(&self, charge: &Charge, decision: &Decision, generation: u64) {
        let stamps = decision.verdicts.iter().map(|verdict| verdict.stamp);
        self.notify(Operation::Refund, charge, stamps.collect(), generation);
    }

    pub fn refund_oldest(&self, charge: &Charge, generation: u64) {
        self.notify(Operation::RefundOldest, charge, SmallVec::new(), generation);
    }

    pub fn settle(&self, charge: &Charge, generation: u64) {
        self.notify(Operation::Settle, charge, SmallVec::new(), generation);
    }

    /// Sends an operation once, and waits for nothing. If the store is away, units to give back
    /// expire by themselves, and units to settle are owed.
    pub(super) fn notify(
        &self,
        operation: Operation,
        charge: &Charge,
        extra: SmallVec<[u64; 2]>,
        generation: u64,
    ) {
        if charge.is_empty() || !self.shared.is_current(generation) {
            return;
        }
        if matches!(operation, Operation::Refund | Operation::RefundOldest) {
            let mut cache = self.cache.lock();
            charge
                .iter()
                .for_each(|item| cache.denied.forget(item.id()));
        }
        let send = |charge, extra, slot| {
            let request = StoreRequest {
                charge,
                operation,
                extra,
                generation,
                arrived: self.shared.clock.now(),
                slot,
            };
            let request = match operation {
                Operation::Settle => request.or_else(self.owing()),
                _ => request.without_answer(),
            };
            let request = request.counted(self.corrections.open());
            if self.is_open() {
                request.fail(StoreError::Away);
            } else if let Err(full) = self.queue.try_send(request) {
                full.into_inner().fail(StoreError::Overloaded);
            }
        };
        match &self.servers {
            ServersView::Server(_) => send(charge.clone(), extra, 0),
            // The items may lie in several slots: each is sent by itself.
            ServersView::Cluster(_) => {
                for (index, item) in charge.iter().enumerate().filter(|(_, one)| !is_slots(one)) {
                    let extra = extra.get(index).copied().into_iter().collect();
                    send([item.clone()].into_iter().collect(), extra, slot_of(item));
                }
            }
        }
    }

    /// Whether the one server is known to be away. A cluster's tasks know that of each node.
    fn is_open(&self) -> bool {
        matches!(&self.servers, ServersView::Server(is_open) if is_open.load(Ordering::Relaxed))
    }

    /// Owes a settlement that has failed. A limit with `on_error = "allow"` counts nothing without
    /// the store.
    fn owing(&self) -> OnFailure {
        let shared = Arc::clone(&self.shared);
        Box::new(move |request| {
            let counts = |check: &&LimitCheck| check.limit.on_error != OnError::Allow;
            let owed: Charge = request.charge.iter().filter(counts).cloned().collect();
            shared.owe(&owed, request.generation);
        })
    }
}
