//! Whether a request may pass: what its route's limits ask, what the store says, and what an
//! outage of the store means.
//!
//! The mechanism of an outage (deadline, breaker) is the store's; the policy is here and nowhere
//! else. A request that has no key it should have is never let through for that.

use std::time::Instant;

use super::admission::{Admission, Decider};
use super::limiter::Limiter;
use super::rejection::Rejection;
use super::slots::slots_of;
use crate::clock;
use crate::limit::{Charge, Decided, Decision, LimitCheck, OnError};
use crate::store::StoreError;

impl Limiter {
    /// Lets a charge pass or says why not where that can be said without waiting: the counts are in
    /// this process.
    pub(super) fn admit_here(&self, admission: &mut Admission) -> Option<Result<(), Rejection>> {
        admission.decision = self.decide_here(&admission.charge)?;
        Some(self.conclude(admission))
    }

    /// Asks the store, and lets the request pass or says why not. Its time counts from `since`,
    /// when the request's head was whole.
    pub(super) async fn admit(
        &self,
        admission: &mut Admission,
        since: Instant,
    ) -> Result<(), Rejection> {
        let beside = match self.store.is_returning() {
            true => self.keep_to_share(admission)?,
            false => None,
        };
        let (charge, generation) = (&admission.charge, admission.generation);
        let answered = self.store.charge(charge, generation, since).await;
        self.note_time(since);
        match (answered, beside) {
            (Ok(decision), None) => {
                admission.decision = decision;
                self.conclude(admission)
            }
            (Ok(decision), Some(beside)) => {
                admission.decision = decision;
                self.conclude_both(admission, beside)
            }
            (Err(error), beside) => {
                if let Some(beside) = beside {
                    self.local.give_back(&admission.charge, &beside);
                }
                self.conclude_alone(admission, &error)
            }
        }
    }

    /// The store may not know of all that was admitted: what it lets pass must be within this
    /// process's share as well. What is counted here is returned.
    #[cold]
    fn keep_to_share(&self, admission: &mut Admission) -> Result<Option<Decision>, Rejection> {
        let beside = self.local.charge_beside(&admission.charge);
        if beside.allowed {
            return Ok(Some(beside));
        }
        admission.decision = beside;
        self.decided(admission, Decider::Local).map(|()| None)
    }

    /// What the store's decision means for a request that was counted here already.
    #[cold]
    fn conclude_both(&self, admission: &mut Admission, beside: Decision) -> Result<(), Rejection> {
        let (charge, decision) = (&admission.charge, &admission.decision);
        if !decision.allowed {
            self.local.give_back(charge, &beside);
            return self.decided(admission, Decider::Store { warm: None });
        }
        admission.slots = self.hold(charge);
        self.local.note(charge, decision, Some(&beside));
        let gives_back = charge.iter().any(|item| item.limit.gives_back);
        let warm = gives_back.then(|| Box::new(beside));
        self.decided(admission, Decider::Store { warm })
    }

    /// What a decision of the store means for a request.
    pub fn conclude(&self, admission: &mut Admission) -> Result<(), Rejection> {
        let (charge, decision) = (&admission.charge, &admission.decision);
        if !decision.allowed {
            if self.stores.is_shared() {
                self.local.note(charge, decision, None);
            }
            return self.decided(admission, Decider::Store { warm: None });
        }
        // Nothing may wait between the grant and its guard.
        admission.slots = self.hold(charge);
        if self.stores.is_shared() {
            let others = self.store.tells_of_others();
            let lost = self.local.lost_by(charge, decision, others);
            if !lost.is_empty() {
                return self.conclude_doubted(admission, lost);
            }
        }
        let warm = self.remember(&admission.charge, &admission.decision);
        self.decided(admission, Decider::Store { warm })
    }

    /// The store lets the request pass, and has forgotten what it had counted: so this process
    /// keeps to its share.
    #[cold]
    fn conclude_doubted(&self, admission: &mut Admission, lost: Charge) -> Result<(), Rejection> {
        self.store.suspect(lost);
        let granted = std::mem::take(&mut admission.decision);
        match self.keep_to_share(admission) {
            Ok(_) => {
                admission.decision = granted;
                self.decided(admission, Decider::Store { warm: None })
            }
            Err(denied) => {
                admission.slots = None;
                if let Rejection::Limited(denial) = &denied {
                    let generation = admission.generation;
                    self.store.give_back(&denial.charge, &granted, generation);
                }
                Err(denied)
            }
        }
    }

    fn decided(&self, admission: &mut Admission, by: Decider) -> Result<(), Rejection> {
        let decided = Decided {
            charge: &admission.charge,
            decision: &admission.decision,
        };
        self.count_decision(decided, &by);
        if !admission.decision.allowed {
            return Err(admission.denied(&by));
        }
        admission.by = Some(by);
        admission.unix_us = clock::unix_us();
        Ok(())
    }

    /// The same where the store has not answered.
    #[cold]
    fn conclude_alone(
        &self,
        admission: &mut Admission,
        error: &StoreError,
    ) -> Result<(), Rejection> {
        self.count_away(&admission.charge, error);
        let (slots, generation) = (slots_of(&admission.charge), admission.generation);
        let decision = self.decide_alone(&mut admission.charge, generation, error)?;
        let is_denied = decision.as_ref().is_some_and(|decision| !decision.allowed);
        if !is_denied {
            admission.slots = self.hold_alone(slots, generation);
        }
        let Some(decision) = decision else {
            return Ok(());
        };
        admission.decision = decision;
        self.decided(admission, Decider::Local)
    }

    /// What the shared store admitted here is also counted here, so that this process knows recent
    /// history when it must decide alone, and an outage is no second helping. What was counted is
    /// told where it may have to be given back.
    fn remember(&self, charge: &Charge, decision: &Decision) -> Option<Box<Decision>> {
        if !self.stores.is_shared() {
            return None;
        }
        let warm = self.local.keep_warm(charge);
        self.local.note(charge, decision, Some(&warm));
        let gives_back = charge.iter().any(|item| item.limit.gives_back);
        gives_back.then(|| Box::new(warm))
    }

    /// The store did not answer: each limit's `on_error` says what that means, and leaves those in
    /// `charge` that are asked here. `None` where there are none.
    fn decide_alone(
        &self,
        charge: &mut Charge,
        generation: u64,
        error: &StoreError,
    ) -> Result<Option<Decision>, Rejection> {
        let policy = |item: &LimitCheck| item.limit.on_error;
        if charge.iter().any(|item| policy(item) == OnError::Deny) {
            let denied = charge.iter().filter(|item| policy(item) == OnError::Deny);
            let limits = denied.map(|item| item.limit.name.clone()).collect();
            return Err(Rejection::StoreAway {
                limits,
                reason: error.label(),
            });
        }
        charge.retain(|item| policy(item) == OnError::Local);
        if charge.is_empty() {
            return Ok(None);
        }
        if !self.store.may_decide_alone() {
            return Err(Rejection::StoreAway {
                limits: charge.iter().map(|item| item.limit.name.clone()).collect(),
                reason: error.label(),
            });
        }
        let decision = self.local.charge(charge);
        if decision.allowed {
            self.store.owe(charge, generation);
        }
        Ok(Some(decision))
    }
}
