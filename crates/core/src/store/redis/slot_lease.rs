//! A worker as a holder of slots: its name in Redis, what it holds, and who waits for an answer
//! that may grant some.
//!
//! Whatever was granted has an owner at every instant: the call, then the answer on its way to the
//! request, then the request. Where a request is gone before its answer is taken, the answer lets
//! go; nothing is held by nobody.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::sync::Notify;

use super::slot_ledger::SlotLedger;
use crate::clock;
use crate::limit::{Algorithm, Charge, Decision, LimitCheck};
use crate::store::StoreError;
use crate::store::batch::{Operation, Outcome};
use crate::store::gather::{Batch, Bundle};
use crate::store::waiting::{Answer, Asked, Question, Waiting};

/// How long a worker that ends waits until Redis knows what it has let go of.
const FAREWELL: Duration = Duration::from_millis(250);
/// Statements in one call, at most.
const MOST_SAID: usize = 32;

/// One worker's own; shared by its handles and its task.
#[derive(Clone, Debug)]
pub(super) struct SlotLease(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: u64,
    held: Mutex<SlotLedger>,
    /// Wakes the task: there is something to say.
    unsaid: Notify,
    /// Wakes whoever waits until all is said.
    said: Notify,
}

impl SlotLease {
    pub(super) fn new() -> SlotLease {
        SlotLease(Arc::new(Inner {
            // 64 random bits: no two workers of any proxy are to be taken for one.
            name: RandomState::new().hash_one(std::process::id()),
            held: Mutex::default(),
            unsaid: Notify::new(),
            said: Notify::new(),
        }))
    }

    /// What Redis knows it by.
    pub(super) fn name(&self) -> u64 {
        self.0.name
    }

    /// What it holds. Not to be kept across an await.
    fn held(&self) -> MutexGuard<'_, SlotLedger> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When there is something to say; `None` while nothing is held.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.held().next_due(now)
    }

    /// Waits until there is something new to say.
    pub(super) async fn is_woken(&self) {
        self.0.unsaid.notified().await;
    }

    /// Waits until Redis knows all that is held, as long as a worker that ends can wait. What was
    /// not said by then expires by itself.
    pub(super) async fn part(&self) {
        let all_said = async {
            while !self.held().is_all_said() {
                self.0.said.notified().await;
            }
        };
        let _ = tokio::time::timeout(FAREWELL, all_said).await;
    }

    /// The server may be another one: it is told everything anew.
    pub(super) fn reconnected(&self) {
        self.held().reconnected();
    }

    /// Puts what is due to be said into the call that leaves now, beside what was gathered, and
    /// adds to each group what is held of the slots it asks for or speaks of.
    pub(super) fn say(&self, batch: &mut Batch, (now, generation): (Instant, u64)) {
        for waiting in self.due(now, generation) {
            // Bounded already: a full call must not keep slots from being let go of.
            let _ = batch.add(waiting, usize::MAX);
        }
        self.fill(batch);
    }

    /// What is due to be said.
    pub(super) fn due(&self, now: Instant, generation: u64) -> Vec<Waiting> {
        let say = |charge| {
            Waiting::told(Question {
                charge,
                operation: Operation::Say,
                extra: SmallVec::new(),
                generation,
                arrived: now,
            })
        };
        let due = self.held().due(now, MOST_SAID);
        due.into_iter().map(say).collect()
    }

    /// Adds to each group what is held of the slots it asks for or speaks of.
    pub(super) fn fill(&self, batch: &mut Batch) {
        let held = self.held();
        for bundle in &mut batch.bundles {
            if matches!(bundle.operation, Operation::Charge(_) | Operation::Say)
                && has_slots(bundle.charge())
            {
                let extra = bundle.charge().iter().map(|item| held.extra_for(item));
                bundle.extra = extra.collect();
            }
        }
    }

    /// The call that said this has its answer.
    pub(super) fn said(&self, bundle: &Bundle) {
        if bundle.operation == Operation::Say {
            self.held().said(bundle.charge());
            self.0.said.notify_one();
        }
    }

    /// Hands out what a call that is over has granted. What nobody waits for any more is let go of.
    pub(super) fn answer(
        &self,
        bundle: Bundle,
        outcome: &mut Outcome,
        seen: impl FnMut(&Charge, &Decision),
    ) {
        if !has_slots(bundle.charge()) {
            bundle.answer(outcome, seen);
            return;
        }
        let slots = bundle.charge().clone();
        self.held().granted(&slots, outcome.granted, clock::now());
        for _ in 0..bundle.answer(outcome, seen) {
            self.let_go(&slots);
        }
    }

    /// The call that these were in has no answer.
    pub(super) fn fail(&self, bundles: impl IntoIterator<Item = Bundle>, kind: StoreError) {
        for bundle in bundles {
            self.unsure(&bundle);
            bundle.fail(kind);
        }
    }

    /// The server would not write these, or not all of each.
    pub(super) fn refuse(&self, bundles: Vec<Bundle>, kind: StoreError) {
        for bundle in bundles {
            match bundle.operation {
                Operation::Say => self.held().refused(bundle.charge(), clock::now()),
                _ => self.unsure(&bundle),
            }
            bundle.fail(kind);
        }
    }

    fn unsure(&self, bundle: &Bundle) {
        if matches!(bundle.operation, Operation::Charge(_) | Operation::Say)
            && has_slots(bundle.charge())
        {
            self.held().unsure(bundle.charge(), clock::now());
        }
    }

    /// Counts what was admitted without Redis.
    pub(super) fn hold(&self, charge: &Charge) {
        self.held().hold(charge, clock::now());
        self.0.unsaid.notify_one();
    }

    /// Lets go of what `charge` holds; Redis is told with the next call, which is due at once.
    pub(super) fn let_go(&self, charge: &Charge) {
        if has_slots(charge) {
            self.held().let_go(charge);
            self.0.unsaid.notify_one();
        }
    }

    /// Whoever waits for what it asked.
    pub(super) fn wait(&self, asked: Asked) -> Awaited {
        let holder = has_slots(asked.charge()).then(|| self.clone());
        Awaited { asked, holder }
    }
}

/// An answer on its way. Dropped before it was taken, it lets go of what it grants.
#[derive(Debug)]
pub(crate) struct Awaited {
    asked: Asked,
    /// Who lets go of the slots that it may grant.
    holder: Option<SlotLease>,
}

impl Awaited {
    /// Waits for it; what it grants is the caller's from here on. `charge` is what was asked.
    pub(crate) async fn take(mut self, charge: &mut Charge) -> Answer {
        let answer = std::future::poll_fn(|context| self.poll(context)).await;
        *charge = self.asked.take_charge();
        answer
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.asked.poll(context);
        if answer.is_ready() {
            self.holder = None;
        }
        answer
    }

    /// The answer if it has come.
    pub(crate) fn try_take(&mut self) -> Option<Answer> {
        let answer = self.asked.try_take()?;
        self.holder = None;
        Some(answer)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let Some(holder) = &self.holder else {
            return;
        };
        // What the task has not answered by now, it lets go of itself.
        if let Some(Ok(decision)) = self.asked.close()
            && decision.allowed
        {
            holder.let_go(self.asked.charge());
        }
    }
}

fn has_slots(charge: &Charge) -> bool {
    charge.iter().any(is_slots)
}

fn is_slots(item: &LimitCheck) -> bool {
    item.window.rule.algorithm == Algorithm::Slots
}
