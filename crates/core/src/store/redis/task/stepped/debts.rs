//! The payment of debts, in steps: what `maintenance::pay_back` does.

use std::sync::Arc;
use std::time::Instant;

use super::{Stage, SteppedTask};
use crate::limit::Charge;
use crate::store::batch::Operation;
use crate::store::redis::link::PROBE_TIMEOUT;
use crate::store::redis::maintenance::{OWED_KEYS, PaymentReport, read_payment};
use crate::store::redis::stepped::{SentGroup, ToServer};
use crate::store::redis::task::OWED_EVERY;
use crate::store::store_clock::StoreInstant;
use crate::store::{ServerTrouble, StoreError};

/// Debts in a call. They are out of the journal until the call has ended.
pub(super) struct TakenDebts {
    owed: Vec<Charge>,
    at: StoreInstant,
}

impl SteppedTask {
    pub(super) fn take_debts(&self) -> Option<TakenDebts> {
        let shared = &self.task.shared;
        let at = shared.instant();
        let debts = shared.journal.take(OWED_KEYS, at, |_| true);
        let mut owed = debts.owed.clone();
        // The journal has no order, and a run must be the same each time.
        owed.sort_by_key(|charge| charge[0].id());
        debts.paid(|_| true);
        (!owed.is_empty()).then_some(TakenDebts { owed, at })
    }

    pub(super) fn send_debts(&mut self, debts: &TakenDebts) {
        let group = |charge: &Charge| SentGroup {
            operation: Operation::Settle,
            charge: charge.clone(),
            extra: Vec::new(),
            store_us: debts.at.store_us,
        };
        let groups = debts.owed.iter().map(group).collect();
        self.post(ToServer::Call(groups, 0));
    }

    /// The debts are still owed, but for those that the report says are paid.
    pub(super) fn owe_again(&self, debts: TakenDebts, report: Option<&PaymentReport>) {
        let is_paid = |place: usize| report.is_some_and(|report| report.is_paid[place]);
        for (place, charge) in debts.owed.iter().enumerate() {
            if !is_paid(place) {
                self.task.shared.journal.add(charge, debts.at);
            }
        }
    }

    pub(super) fn pay_first(&mut self, until: Instant, calls: usize) {
        let debts = if calls > 0 { self.take_debts() } else { None };
        match debts {
            None => self.connected(),
            Some(debts) => {
                self.send_debts(&debts);
                self.stage = Stage::PayingFirst {
                    until,
                    deadline: self.now() + PROBE_TIMEOUT,
                    debts,
                    calls,
                };
            }
        }
    }

    pub(super) fn pay_in_maintenance(&mut self, deadline: Instant, calls: usize, began: Instant) {
        if calls == 0 {
            return self.end_maintenance(true, began);
        }
        match self.take_debts() {
            None => self.end_maintenance(false, began),
            Some(debts) => {
                self.send_debts(&debts);
                self.stage = Stage::PayingInMaintenance {
                    deadline,
                    debts,
                    calls,
                    began,
                };
            }
        }
    }

    pub(super) fn end_maintenance(&mut self, owes: bool, began: Instant) {
        let now = self.now();
        let task = &mut self.task;
        let pause = match owes {
            true => OWED_EVERY,
            false => task.maintenance_pause(),
        };
        task.maintenance_at = began + pause;
        let shared = Arc::clone(&task.shared);
        task.health.call_succeeded(self.takes_writes, &shared, now);
        self.stage = Stage::Idle;
    }

    /// Returns whether the store takes more.
    pub(super) fn note_payment(&self, debts: TakenDebts, bytes: &[u8]) -> Result<bool, StoreError> {
        let report = match read_payment(bytes, &debts.owed, &self.task.shared) {
            Ok(report) => report,
            Err(kind) => {
                self.owe_again(debts, None);
                return Err(kind);
            }
        };
        match report.refusal {
            None => {
                self.owe_again(debts, Some(&report));
                Ok(true)
            }
            Some(trouble) => {
                self.owe_again(debts, None);
                match trouble {
                    ServerTrouble::OutOfMemory => Ok(false),
                    trouble => Err(StoreError::Server(trouble)),
                }
            }
        }
    }
}
