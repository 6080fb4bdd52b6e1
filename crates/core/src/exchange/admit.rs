//! The admission of a request: what its limits check, the store's decision, and the meaning of an
//! outage of the store.
//!
//! The store has the mechanism of an outage (deadline, circuit breaker). The policy is only here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limiter::{HeldSlots, Limiter, slots_of};
use super::rejection::{Denial, Rejection};
use super::reserve::UsageReserve;
use crate::clock;
use crate::ledger::BilledRequest;
use crate::limit::{
    AnchorDay, AskedTokens, Asker, Charge, Decided, Decision, KeyHash, Limit, LimitCheck, OnError,
    Window,
};
use crate::store::StoreError;
use crate::store::memory::Memory;
use crate::telemetry::decisions::Source;
use crate::telemetry::metrics::ReservedUnits;

/// The limit checks of one request, and the decision that admitted it.
#[derive(Debug, Default)]
pub struct Admission {
    /// The enforced checks: the store grants all of them or none.
    pub charge: Charge,
    /// Checks of limits in shadow mode and of candidates. Each is decided by itself.
    pub shadow: Vec<Charge>,
    /// Whether a limit counts the request, also one that its tier or an override lifts.
    pub(super) is_counted: bool,
    /// The generation of the secret that hashed the keys.
    pub generation: u64,
    /// Chooses the upstream's server.
    pub affinity: Option<u64>,
    /// The decision that admitted the request, if `decider` is set.
    pub decision: Decision,
    pub(super) decider: Option<Decider>,
    /// The wall clock at the decision, microseconds. `RateLimit` headers count from there.
    pub(super) unix_us: u64,
    /// When an answer of the store comes too late; `None` if its own timeout is the only one.
    pub(super) deadline: Option<Instant>,
    /// How long the request may be held instead of being denied, microseconds; 0 for not at all.
    pub longest_wait_us: u64,
    /// What the request reserves of token budgets, until the answer is read.
    pub reserve: Option<Box<UsageReserve>>,
    /// The units of that reserve, for the metrics.
    pub(super) reserved: Option<Box<ReservedUnits>>,
    /// The request in the ledger, if there is one and a limit counts it.
    pub(super) billed: Option<Box<BilledRequest>>,
    /// The slots that the request holds.
    pub slots: Option<Box<HeldSlots>>,
    /// Whether a script of another origin may read the rate-limit headers.
    pub(super) cors: bool,
}

/// The source of a decision. A later change of the cost goes there.
#[derive(Debug)]
pub(super) enum Decider {
    Store {
        /// What the local counts charged too, if it may have to be refunded.
        local: Option<Box<Decision>>,
    },
    /// The local counts alone.
    Local,
}

/// The client of a limit's checks.
#[derive(Clone, Copy, Debug)]
pub struct CheckedClient {
    pub tag: KeyHash,
    /// The day on which its months and years begin. `None` for that of the limit.
    pub anchor: Option<AnchorDay>,
}

impl Admission {
    /// Bounds the wait for the store: the caller itself waits for this time from `since`.
    pub fn set_timeout(&mut self, timeout: Duration, since: Instant) {
        self.deadline = Some(deadline(since, timeout));
    }

    /// Adds the checks of one limit: `windows`, and those of its candidate.
    pub fn add(
        &mut self,
        limit: &Arc<Limit>,
        windows: &[Arc<Window>],
        client: CheckedClient,
        cost: u64,
        asker: Option<Arc<Asker>>,
    ) {
        self.is_counted = true;
        let check = |window: &Arc<Window>| LimitCheck {
            limit: Arc::clone(limit),
            window: Arc::clone(window),
            tag: client.tag,
            anchor: client.anchor,
            cost,
            asker: asker.clone(),
        };
        let checks = windows.iter().map(check);
        if limit.enforces(client.tag) {
            self.charge.extend(checks);
        } else if !windows.is_empty() {
            self.shadow.push(checks.collect());
        }
        if !limit.candidate.is_empty() {
            self.shadow
                .push(limit.candidate.iter().map(check).collect());
        }
    }

    /// Notes the model and the tokens of the request, for the decision log.
    pub(super) fn note_tokens(&mut self, reserve: &UsageReserve) {
        let tokens = Arc::new(AskedTokens {
            model: reserve.model.clone(),
            reserved: reserve.tokens_in(&self.charge),
        });
        let shadow = self.shadow.iter_mut().flatten();
        for check in self.charge.iter_mut().chain(shadow) {
            let asker = check.asker.get_or_insert_default();
            Arc::make_mut(asker).tokens = Some(Arc::clone(&tokens));
        }
    }

    /// The decision that admitted the request; `None` if no limit decided.
    pub fn granted(&self) -> Option<Decided<'_>> {
        self.decider.as_ref().map(|_| self.decided())
    }

    fn decided(&self) -> Decided<'_> {
        Decided {
            charge: &self.charge,
            decision: &self.decision,
        }
    }
}

#[cfg(test)]
impl Admission {
    /// Whether this process admitted the request without the store.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.decider, Some(Decider::Local))
    }
}

/// Units that are charged to the counts of this process while the store decides. A drop refunds
/// them, because the client left: units that only this process has would look like units that the
/// store has lost.
struct PendingLocalCharge<'l> {
    counts: &'l Memory,
    charge: Charge,
    decision: Option<Decision>,
}

impl Drop for PendingLocalCharge<'_> {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.counts.refund(&self.charge, &decision);
        }
    }
}

impl Limiter {
    /// Decides an admission.
    pub async fn admit(
        self: &Arc<Self>,
        admission: &mut Admission,
        since: Instant,
    ) -> Result<(), Rejection> {
        match self.admit_here(admission) {
            Some(admitted) => admitted,
            None => self.admit_by_store(admission, since).await,
        }
    }

    /// Decides without waiting: nothing is checked, or the counts are in this process. `None` if
    /// the store must be asked.
    pub(super) fn admit_here(
        self: &Arc<Self>,
        admission: &mut Admission,
    ) -> Option<Result<(), Rejection>> {
        if admission.charge.is_empty() {
            return Some(Ok(()));
        }
        admission.decision = self.decide_here(&admission.charge, admission.longest_wait_us)?;
        Some(self.conclude(admission, None))
    }

    /// Sends the charge to the store. Its time counts from `since`, when the head was complete.
    pub(super) async fn admit_by_store(
        self: &Arc<Self>,
        admission: &mut Admission,
        since: Instant,
    ) -> Result<(), Rejection> {
        let local = match self.store.is_returning() {
            true => Some(self.keep_to_share(admission)?),
            false => None,
        };
        let local = local.map(|decision| PendingLocalCharge {
            counts: &self.local,
            charge: admission.charge.clone(),
            decision: Some(decision),
        });
        let answered = self.charge_store(admission, since).await;
        let mut local = local.and_then(|mut share| share.decision.take());
        self.observe_duration(since);
        match answered {
            Ok(mut decision) => {
                if let Some(local) = &mut local {
                    decision.take_longer_wait(local);
                    if decision.allowed {
                        let (charge, wait_us) = (&admission.charge, decision.wait_us());
                        self.local.count_anew(charge, local, since, wait_us);
                    }
                }
                admission.decision = decision;
                self.conclude(admission, local)
            }
            Err(error) => {
                if let Some(local) = local {
                    self.local.refund(&admission.charge, &local);
                }
                self.admit_locally(admission, &error)
            }
        }
    }

    /// Charges the store. Waits for it until the deadline of the admission at most.
    pub(super) async fn charge_store(
        &self,
        admission: &Admission,
        since: Instant,
    ) -> Result<Decision, StoreError> {
        let (charge, generation) = (&admission.charge, admission.generation);
        let longest_us = admission.longest_wait_us;
        let charged = (self.store).charge_or_book(charge, longest_us, generation, since);
        match admission.deadline {
            None => charged.await,
            Some(deadline) => within(deadline, charged).await,
        }
    }

    /// Asks how the limits of an admission stand. Its checks cost nothing, and nothing is counted.
    pub(super) async fn peek(
        &self,
        admission: &Admission,
        since: Instant,
    ) -> Result<Decision, StoreError> {
        if admission.charge.is_empty() {
            return Ok(Decision::default());
        }
        match self.store.charge_here(&admission.charge, 0) {
            Some(decision) => Ok(decision),
            None => self.charge_store(admission, since).await,
        }
    }

    /// Charges the local counts, because the store may not know all that was admitted: a request
    /// must also be within this process's share. Returns the local decision.
    #[cold]
    fn keep_to_share(&self, admission: &mut Admission) -> Result<Decision, Rejection> {
        let longest_us = admission.longest_wait_us;
        let local = self.local.book_beside(&admission.charge, longest_us);
        if local.allowed {
            return Ok(local);
        }
        admission.decision = local;
        Err(self.deny(admission, Source::Local))
    }

    /// Applies a decision of the store. `local` is what the local counts have charged already.
    pub fn conclude(
        self: &Arc<Self>,
        admission: &mut Admission,
        local: Option<Decision>,
    ) -> Result<(), Rejection> {
        let (charge, decision) = (&admission.charge, &admission.decision);
        let (store, source) = (Decider::Store { local: None }, self.store.decided_by());
        if !decision.allowed {
            match local {
                Some(local) => self.local.refund(charge, &local),
                None if self.is_shared() => self.local.note(charge, decision, None, source),
                None => {}
            }
            return self.finish(admission, store);
        }
        // Nothing may wait between the grant and its guard.
        admission.slots = self.hold(charge);
        if !self.is_shared() {
            return self.finish(admission, store);
        }
        // The local counts know recent requests, so that an outage brings no second budget.
        let local = match local {
            Some(local) => local,
            None => {
                let reports_losses = self.store.reports_losses();
                let lost = self.local.lost_by(charge, decision, reports_losses);
                if !lost.is_empty() {
                    self.store.suspect(lost);
                    return self.conclude_doubted(admission);
                }
                if self.store.is_returning() {
                    return self.conclude_doubted(admission);
                }
                self.local.keep_warm(charge, admission.wait_us())
            }
        };
        self.local.note(charge, decision, Some(&local), source);
        let may_refund = charge.iter().any(|check| check.limit.refunds);
        let local = may_refund.then(|| Box::new(local));
        self.finish(admission, Decider::Store { local })
    }

    /// Keeps to the share, because the store has lost counts, or because it was back only after the
    /// request was sent.
    #[cold]
    fn conclude_doubted(&self, admission: &mut Admission) -> Result<(), Rejection> {
        let mut granted = std::mem::take(&mut admission.decision);
        match self.keep_to_share(admission) {
            Ok(local) => {
                granted.take_longer_wait(&local);
                let (charge, generation) = (&admission.charge, admission.generation);
                self.store.owe_if_lost(charge, granted.at_us, generation);
                admission.decision = granted;
                self.finish(admission, Decider::Store { local: None })
            }
            Err(denied) => {
                admission.slots = None;
                if let Rejection::Limited(denial) = &denied {
                    let generation = admission.generation;
                    self.store.refund(&denial.charge, &granted, generation);
                }
                Err(denied)
            }
        }
    }

    /// Decides without the store: each limit's `on_error` says how. Only limits that are counted
    /// locally stay in the charge.
    #[cold]
    fn admit_locally(
        self: &Arc<Self>,
        admission: &mut Admission,
        error: &StoreError,
    ) -> Result<(), Rejection> {
        let (charge, generation) = (&mut admission.charge, admission.generation);
        self.count_store_failure(charge, error);
        let slots = slots_of(charge);
        let hold = || slots.map(|slots| self.hold_locally(slots, generation));
        let reason = error.label();
        let limits = names_with(charge, OnError::Deny);
        if !limits.is_empty() {
            return Err(Rejection::StoreAway { limits, reason });
        }
        charge.retain(|check| check.limit.on_error == OnError::Local);
        if charge.is_empty() {
            admission.slots = hold();
            return Ok(());
        }
        if !self.store.may_decide_alone() {
            let limits = names_with(charge, OnError::Local);
            return Err(Rejection::StoreAway { limits, reason });
        }
        let longest_us = admission.longest_wait_us;
        admission.decision = self.local.charge_or_book(charge, longest_us);
        if admission.decision.allowed {
            self.store.owe(charge, generation);
            admission.slots = hold();
        }
        self.finish(admission, Decider::Local)
    }

    /// Whether a charge is known to be denied now. Its decision is in `admission` then.
    pub(super) fn find_denial(&self, admission: &mut Admission) -> bool {
        let (charge, generation) = (&admission.charge, admission.generation);
        // What would be denied may be held.
        if charge.is_empty() || charge.iter().any(|check| check.limit.delay.is_some()) {
            return false;
        }
        let since = clock::now();
        let Some(decision) = self.store.find_denial(charge, generation, since) else {
            return false;
        };
        if self.is_shared() {
            self.observe_duration(since);
        }
        admission.decision = decision;
        true
    }

    /// Shows the units of an admitted charge in the metrics, while the request is under way.
    fn reserved_units(&self, charge: &Charge) -> Option<Box<ReservedUnits>> {
        let mut reserved = Box::<ReservedUnits>::default();
        let mut last = usize::MAX;
        for check in charge.iter().filter(|check| check.limit.counts_usage()) {
            let number = check.limit.number;
            // Every rate of a limit reserves the same.
            if number != last {
                self.meter.reserve(number, check.cost, &mut reserved);
            }
            last = number;
        }
        (last != usize::MAX).then_some(reserved)
    }

    /// Counts the decision and turns a denial into a rejection.
    fn finish(&self, admission: &mut Admission, decider: Decider) -> Result<(), Rejection> {
        let source = match decider {
            Decider::Local => Source::Local,
            Decider::Store { .. } => self.store.decided_by(),
        };
        if !admission.decision.allowed {
            return Err(self.deny(admission, source));
        }
        self.count_decision(admission.decided(), source);
        if admission.reserve.is_some() {
            admission.reserved = self.reserved_units(&admission.charge);
        }
        admission.decider = Some(decider);
        admission.unix_us = clock::unix_us();
        Ok(())
    }

    /// Counts a denial, and makes the rejection of it.
    fn deny(&self, admission: &mut Admission, source: Source) -> Rejection {
        self.count_decision(admission.decided(), source);
        self.count_denials(admission.decided(), admission.generation);
        Rejection::Limited(Box::new(Denial {
            charge: std::mem::take(&mut admission.charge),
            decision: std::mem::take(&mut admission.decision),
            is_local: source == Source::Local,
        }))
    }
}

/// The last instant at which a decision is of use. The answer needs some time to arrive.
pub(super) fn deadline(since: Instant, timeout: Duration) -> Instant {
    const ON_THE_WAY: Duration = Duration::from_millis(5);
    let on_the_way = ON_THE_WAY.max(timeout / 4).min(timeout / 2);
    since + (timeout - on_the_way)
}

/// Waits for an answer of the store until `deadline`.
async fn within(
    deadline: Instant,
    answer: impl Future<Output = Result<Decision, StoreError>>,
) -> Result<Decision, StoreError> {
    // Few requests have a deadline: the others need no memory for it.
    let answer = Box::pin(tokio::time::timeout_at(deadline.into(), answer));
    answer.await.unwrap_or(Err(StoreError::Timeout))
}

fn names_with(charge: &Charge, on_error: OnError) -> Vec<Arc<str>> {
    let checks = charge.iter();
    let checks = checks.filter(|check| check.limit.on_error == on_error);
    checks.map(|check| Arc::clone(&check.limit.name)).collect()
}
