//! A worker as a holder of slots: its name in Redis, its reports of slots, and the answers that may
//! grant some.
//!
//! A granted slot has an owner at every instant: the call, then the answer on its way to the
//! request, then the request. If a request is gone before its answer is taken, the answer frees the
//! slot.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::sync::oneshot::error::TryRecvError;

use super::slot_reports::SlotReports;
use crate::clock::MonotonicClock;
use crate::limit::{Charge, Decision};
use crate::store::batch::{GroupOutcome, Operation};
use crate::store::gather::{
    Batch, Bundle, PendingAnswer, QueuedRequest, StoreRequest, StoreResult, wait_for,
};
use crate::store::{StoreError, is_slots};

/// How long a worker that ends waits until Redis knows which slots it has freed.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(250);
/// Reports in one call, at most.
const MAX_REPORTS: usize = 32;

/// One worker's slots; shared by its handles and its task.
#[derive(Clone, Debug)]
pub(in crate::store) struct SlotLease(Arc<SharedSlots>);

#[derive(Debug)]
struct SharedSlots {
    name: u64,
    clock: MonotonicClock,
    reports: Mutex<SlotReports>,
    /// Wakes the task: there is something to report.
    is_due: Notify,
    /// Wakes [`SlotLease::flush`] after a report.
    has_reported: Notify,
}

impl SlotLease {
    pub(super) fn new(clock: MonotonicClock) -> SlotLease {
        SlotLease(Arc::new(SharedSlots {
            clock,
            // 64 random bits: no two workers of any proxies have the same name.
            name: RandomState::new().hash_one(std::process::id()),
            reports: Mutex::default(),
            is_due: Notify::new(),
            has_reported: Notify::new(),
        }))
    }

    pub(super) fn name(&self) -> u64 {
        self.0.name
    }

    /// Not to be kept across an await.
    fn reports(&self) -> MutexGuard<'_, SlotReports> {
        self.0
            .reports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.reports().next_due(now)
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_due(now).is_some_and(|due| due <= now)
    }

    pub(super) async fn woken(&self) {
        self.0.is_due.notified().await;
    }

    /// Waits until Redis knows all that is held, for as long as a worker that ends can wait. Slots
    /// that are not reported by then expire by themselves.
    pub(in crate::store) async fn flush(&self) {
        let all_reported = async {
            while !self.reports().is_all_reported() {
                self.0.has_reported.notified().await;
            }
        };
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, all_reported).await;
    }

    /// The server may be another one: everything is reported again.
    pub(super) fn reconnected(&self) {
        self.reports().reconnected();
    }

    /// Adds the reports that are due to the call that leaves now, and what is held to its groups.
    pub(super) fn add_reports(&self, batch: &mut Batch, now: Instant, generation: u64) {
        for report in self.due_reports(now, generation) {
            // Bounded already: a full call must not keep slots from being freed.
            let _ = batch.add(report, usize::MAX);
        }
        self.add_held(batch);
    }

    pub(super) fn due_reports(&self, now: Instant, generation: u64) -> Vec<QueuedRequest> {
        let due = self.reports().due(now, MAX_REPORTS);
        let report = |charge: Charge| {
            let request = StoreRequest {
                slot: charge.first().map_or(0, super::slot_of),
                charge,
                operation: Operation::Report,
                extra: SmallVec::new(),
                generation,
                arrived: now,
            };
            request.without_answer()
        };
        due.into_iter().map(report).collect()
    }

    /// Adds to each group how much is held of the slots that it asks for or reports.
    pub(super) fn add_held(&self, batch: &mut Batch) {
        let reports = self.reports();
        for bundle in batch.bundles.iter_mut().filter(|bundle| may_hold(bundle)) {
            let held = bundle.charge().iter().map(|item| reports.held_units(item));
            bundle.extra = held.collect();
        }
    }

    pub(super) fn reported(&self, bundle: &Bundle) {
        if bundle.operation == Operation::Report {
            self.reports().reported(bundle.charge());
            self.0.has_reported.notify_one();
        }
    }

    /// Hands out what a call has granted. Slots of askers that have gone are freed.
    pub(super) fn answer(
        &self,
        bundle: Bundle,
        outcome: &mut GroupOutcome,
        observe: impl FnMut(&Charge, &Decision),
    ) {
        if !has_slots(bundle.charge()) {
            bundle.answer(outcome, observe);
            return;
        }
        let slots = bundle.charge().clone();
        self.reports()
            .granted(&slots, outcome.granted, self.0.clock.now());
        for _ in 0..bundle.answer(outcome, observe) {
            self.release(&slots);
        }
    }

    /// The call with these bundles has no answer.
    pub(super) fn fail(&self, bundles: impl IntoIterator<Item = Bundle>, kind: StoreError) {
        for bundle in bundles {
            self.note_unsure(&bundle);
            bundle.fail(kind);
        }
    }

    /// The server would not write these, or not all of each.
    pub(super) fn refuse(&self, bundles: Vec<Bundle>, kind: StoreError) {
        for bundle in bundles {
            match bundle.operation {
                Operation::Report => self.reports().refused(bundle.charge(), self.0.clock.now()),
                _ => self.note_unsure(&bundle),
            }
            bundle.fail(kind);
        }
    }

    fn note_unsure(&self, bundle: &Bundle) {
        if may_hold(bundle) {
            self.reports().unsure(bundle.charge(), self.0.clock.now());
        }
    }

    /// Counts slots that were admitted without Redis.
    pub(super) fn hold(&self, charge: &Charge) {
        self.reports().hold(charge, self.0.clock.now());
        self.0.is_due.notify_one();
    }

    /// Frees the slots of `charge`. The next call, which is due at once, reports it to Redis.
    pub(in crate::store) fn release(&self, charge: &Charge) {
        if has_slots(charge) {
            self.reports().release(charge);
            self.0.is_due.notify_one();
        }
    }

    /// Makes the answer to `charge` free its slots if it is dropped before it is taken.
    pub(super) fn guard(&self, answer: PendingAnswer, charge: &Charge) -> GuardedAnswer {
        let held = has_slots(charge).then(|| SlotsToFree {
            lease: self.clone(),
            charge: charge.clone(),
        });
        GuardedAnswer { answer, held }
    }
}

/// An answer on its way. Dropped before it is taken, it frees the slots that it grants.
#[derive(Debug)]
pub struct GuardedAnswer {
    answer: PendingAnswer,
    held: Option<SlotsToFree>,
}

#[derive(Debug)]
struct SlotsToFree {
    lease: SlotLease,
    charge: Charge,
}

impl GuardedAnswer {
    /// Waits for the answer; the caller owns the slots that it grants.
    pub(in crate::store) async fn take(mut self) -> StoreResult {
        let answer = wait_for(&mut self.answer).await;
        self.held = None;
        answer
    }

    /// The answer, once, if it has come.
    pub(crate) fn try_take(&mut self) -> Option<StoreResult> {
        let answer = match self.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Closed) => Err(StoreError::Lost),
            Err(TryRecvError::Empty) => return None,
        };
        self.held = None;
        Some(answer)
    }
}

impl Drop for GuardedAnswer {
    fn drop(&mut self) {
        let Some(held) = &self.held else {
            return;
        };
        // If the task has not answered by now, it frees the slots itself.
        self.answer.close();
        if let Ok(Ok(decision)) = self.answer.try_recv()
            && decision.allowed
        {
            held.lease.release(&held.charge);
        }
    }
}

fn has_slots(charge: &Charge) -> bool {
    charge.iter().any(is_slots)
}

/// Whether a bundle asks for slots or reports them.
fn may_hold(bundle: &Bundle) -> bool {
    let asks = matches!(
        bundle.operation,
        Operation::Charge(_) | Operation::Book(_) | Operation::Report
    );
    asks && has_slots(bundle.charge())
}
