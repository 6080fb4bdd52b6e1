//! The payment of debts in steps: what `ClusterTask::pay_back` does.

use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::oneshot::error::TryRecvError;

use super::{OWED_KEYS, SteppedCluster, node_of};
use crate::limit::{Charge, LimitCheck};
use crate::store::batch::Operation;
use crate::store::gather::{PendingAnswer, StoreRequest};
use crate::store::redis::cluster::topology::{NodeId, slot_of};

/// A debt on its way, as one of the requests.
pub(super) struct PayingDebt {
    charge: Charge,
    answer: PendingAnswer,
}

impl SteppedCluster {
    pub(super) fn pay_back(&mut self, back: Option<usize>, now: Instant) {
        let at = self.shared.instant_at(now);
        let many = self.nodes.len();
        let debts = {
            let view = self.view.lock();
            let due = |item: &LimitCheck| {
                let owner = node_of(item, many);
                match back {
                    Some(back) => owner == back,
                    None => !view.away.contains(&(owner as NodeId)),
                }
            };
            self.shared.journal.take(OWED_KEYS, at, due)
        };
        let mut owed = debts.owed.clone();
        debts.paid(|_| true);
        owed.sort_by_key(|charge| charge[0].id());
        for charge in owed {
            let request = StoreRequest {
                slot: charge.first().map_or(0, slot_of),
                charge: charge.clone(),
                operation: Operation::Settle,
                extra: SmallVec::new(),
                generation: self.shared.keys.generation(),
                arrived: now,
            };
            let (request, answer) = request.with_answer();
            self.paying.push(PayingDebt { charge, answer });
            self.enqueue(request);
        }
    }

    pub(super) fn note_paid(&mut self) {
        let at = self.shared.instant();
        for mut debt in std::mem::take(&mut self.paying) {
            match debt.answer.try_recv() {
                Err(TryRecvError::Empty) => self.paying.push(debt),
                Ok(Ok(_)) => {}
                _ => {
                    self.shared.journal.add(&debt.charge, at);
                }
            }
        }
    }
}
