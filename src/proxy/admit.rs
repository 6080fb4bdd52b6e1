//! Whether a request may pass: what its route's limits ask, what the store says, and what an
//! outage of the store means.
//!
//! The mechanism of an outage (deadline, breaker) is the store's; the policy is here and nowhere
//! else. A request that has no key it should have is never let through for that.

use std::sync::Arc;
use std::time::Instant;

use super::limiter::Limiter;
use super::overrides::{refuse_blocked, refuse_blocked_key};
use super::reject::{Denial, Rejection};
use super::slots::{Slots, slots_of};
use super::stages::Stages;
use crate::clock;
use crate::limit::key::{Derived, Facts, HashSecret};
use crate::limit::{Asker, Charge, Decision, KeyHash, Limit, LimitCheck, Missing, OnError, Window};
use crate::request_head::RequestHead;
use crate::route::{Found, Route, is_preflight};
use crate::store::StoreError;
use crate::store::overrides::OverrideSnapshot;
use crate::trace::TraceId;

/// A request before its limits: what it asks of the store, and what lets it pass. Filled where it
/// lies, from head to answer.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// What is enforced: all or nothing.
    pub(super) charge: Charge,
    /// What rides along: counted and reported, each by itself, and never part of the verdict.
    shadow: Vec<Charge>,
    /// Of the hash key that the tags were made with.
    pub(super) generation: u64,
    /// What decides which of the upstream's servers gets it.
    pub(super) affinity: Option<u64>,
    /// What lets it pass; without meaning while `by` is nobody.
    pub(super) decision: Decision,
    by: Option<Decider>,
    /// The wall clock's time at the decision, microseconds: the reset that clients are told counts
    /// from there, however slow the upstream is.
    unix_us: u64,
    /// What it holds while it is under way.
    pub(super) slots: Option<Box<Slots>>,
    /// Whether scripts may ask to read the answer's headers.
    pub(super) cors: bool,
}

/// Who made a decision, and with it who is to be told what the request cost in the end.
#[derive(Debug)]
pub(super) enum Decider {
    /// The store.
    Store {
        /// What the local store counted beside it, kept where it may be given back.
        warm: Option<Box<Decision>>,
    },
    /// This process alone.
    Local,
}

/// What limits are asked about: a request whose route and client are known.
pub(super) struct Question<'q, 't, 'p> {
    pub(super) head: &'q RequestHead<'q>,
    pub(super) found: &'q Found<'t, 'p>,
    pub(super) facts: &'q Facts<'q>,
    pub(super) overrides: Option<&'q OverrideSnapshot>,
    /// The trace that its decisions are logged with.
    pub(super) trace: Option<TraceId>,
}

impl Admission {
    /// Adds what one limit asks: these windows, and those of its candidate beside them.
    fn add(
        &mut self,
        (limit, windows): (&Arc<Limit>, &[Arc<Window>]),
        (tag, asker): (KeyHash, Option<Arc<Asker>>),
        cost: u64,
    ) {
        let item = |window: &Arc<Window>| LimitCheck {
            limit: Arc::clone(limit),
            window: Arc::clone(window),
            tag,
            cost,
            asker: asker.clone(),
        };
        let enforced = windows.iter().map(item);
        if limit.shadow && !windows.is_empty() {
            self.shadow.push(enforced.collect());
        } else if !limit.shadow {
            self.charge.extend(enforced);
        }
        if !limit.candidate.is_empty() {
            self.shadow.push(limit.candidate.iter().map(item).collect());
        }
    }

    pub(super) fn take_shadow(&mut self) -> Vec<Charge> {
        std::mem::take(&mut self.shadow)
    }

    /// The wall clock's time at the decision, microseconds.
    pub(super) fn decided_us(&self) -> u64 {
        self.unix_us
    }

    /// What rides along.
    pub(super) fn shadow(&self) -> &[Charge] {
        &self.shadow
    }

    /// What let it pass, and who said so; `None` where no limit was asked.
    pub(super) fn told(&self) -> Option<(&Charge, &Decision, &Decider)> {
        let by = self.by.as_ref()?;
        Some((&self.charge, &self.decision, by))
    }

    /// Its decision denies it.
    fn denied(&mut self, by: &Decider) -> Rejection {
        Rejection::Limited(Box::new(Denial {
            charge: std::mem::take(&mut self.charge),
            decision: std::mem::take(&mut self.decision),
            alone: matches!(by, Decider::Local),
        }))
    }
}

impl Stages {
    /// What the limits of the route that was found ask of this request, put into `asked`.
    pub(super) fn ask(
        &self,
        question: &Question<'_, '_, '_>,
        asked: &mut Admission,
    ) -> Result<(), Rejection> {
        let Question {
            head,
            found,
            facts,
            overrides,
            trace,
        } = *question;
        let limiter = &self.limiter;
        let key = limiter.store.hash_key();
        asked.generation = key.generation;
        asked.affinity = affinity(found.route, facts);
        let free = found.route.limits.is_empty() || is_preflight(head.method, head.headers);
        if (free && overrides.is_none())
            || self
                .router
                .bypass_of(facts, head.client, found.route.case)
                .is_some()
        {
            limiter.count_bypassed(&found.route.limits);
            return Ok(());
        }
        if let Some(overrides) = overrides {
            refuse_blocked(overrides, facts, (&key.key, self.logged))?;
        }
        if free {
            limiter.count_bypassed(&found.route.limits);
            return Ok(());
        }
        let cost = found.route.cost.units(head.headers, head.is_trusted);
        for limit in &found.route.limits {
            // Who is blocked is kept out, exempt or not.
            let exempt = limit.exempt.has(head.client, &limit.key, facts);
            match limit.key.derive(facts, limit.missing, &key.key) {
                Derived::Hash(tag) => {
                    let mut windows = limit.windows_of(facts.tier);
                    if let Some(overrides) = overrides {
                        refuse_blocked_key(overrides, tag).map_err(|refused| {
                            let spell = || limit.key.spell(facts, limit.missing);
                            self.logged.named(refused, spell)
                        })?;
                        windows = overrides.windows(&limit.name, tag).unwrap_or(windows);
                    }
                    if exempt {
                        limiter.count_bypassed(std::slice::from_ref(limit));
                    } else {
                        let asker = self.logged.asker(limit, facts, trace);
                        asked.add((limit, windows), (tag, asker), limit.units(cost));
                    }
                }
                Derived::Skip => {}
                _ if exempt => limiter.count_bypassed(std::slice::from_ref(limit)),
                Derived::Denied => return Err(Rejection::MissingKey(limit.name.clone())),
                Derived::Ambiguous => return Err(Rejection::AmbiguousKey(limit.name.clone())),
                Derived::Unknown => return Err(Rejection::UnknownKey(limit.name.clone())),
            }
        }
        Ok(())
    }
}

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
        let (charge, generation) = (&mut admission.charge, admission.generation);
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
    pub(super) fn conclude(&self, admission: &mut Admission) -> Result<(), Rejection> {
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
        self.count_decision(&admission.charge, &admission.decision, &by);
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

/// The number of what the route's requests are told apart by, if they are; the same in every
/// process. A request without it goes wherever there is room.
fn affinity(route: &Route, facts: &Facts<'_>) -> Option<u64> {
    const NUMBERING: HashSecret = HashSecret::from_bytes(*b"tidegate 1: which server is it?!");
    let key = route.affinity.as_ref()?;
    // An invented key chooses a server and nothing else: it need not be known.
    let facts = &facts.trusting_keys();
    match key.derive(facts, Missing::Skip, &NUMBERING) {
        Derived::Hash(KeyHash(tag)) => Some(u128::from_le_bytes(tag) as u64),
        Derived::Skip | Derived::Denied | Derived::Ambiguous | Derived::Unknown => None,
    }
}
