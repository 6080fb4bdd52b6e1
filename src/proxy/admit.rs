//! Whether a request may pass: what its route's limits ask, what the store says, and what an
//! outage of the store means.
//!
//! The mechanism of an outage (deadline, breaker) is the store's; the policy is here and nowhere
//! else. A request that has no key it should have is never let through for that.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::ORIGIN;
use http::{Request, Response};

use super::limiter::{Caller, Limiter};
use super::line::Line;
use super::people::Said;
use super::reject::{Denial, Form, Rejection};
use super::riders::Riders;
use super::slots::{Slots, slots_of};
use crate::clock;
use crate::limit::headers;
use crate::limit::key::{Derived, Facts, HashKey};
use crate::limit::{Asker, Charge, Decision, Item, Limit, Missing, OnError, Tag, Window};
use crate::route::{Found, Route, is_preflight};
use crate::store::StoreError;
use crate::trace::TraceId;

/// What a request asks of the store: its items, and the generation of the hash key that their
/// tags were made with.
#[derive(Debug)]
pub(super) struct Asked {
    /// What is enforced: all or nothing.
    pub(super) charge: Charge,
    /// What rides along: counted and reported, each by itself, and never part of the verdict.
    pub(super) riders: Vec<Charge>,
    pub(super) generation: u64,
    /// What decides which of the upstream's servers gets it.
    pub(super) affinity: Option<u64>,
}

impl Asked {
    /// Adds what one limit asks: these windows, and those of its candidate beside them.
    fn add(
        &mut self,
        (limit, windows): (&Arc<Limit>, &[Arc<Window>]),
        (tag, asker): (Tag, Option<Arc<Asker>>),
        cost: u64,
    ) {
        let item = |window: &Arc<Window>| Item {
            limit: Arc::clone(limit),
            window: Arc::clone(window),
            tag,
            cost,
            asker: asker.clone(),
        };
        let enforced = windows.iter().map(item);
        if limit.shadow && !windows.is_empty() {
            self.riders.push(enforced.collect());
        } else if !limit.shadow {
            self.charge.extend(enforced);
        }
        if !limit.candidate.is_empty() {
            self.riders.push(limit.candidate.iter().map(item).collect());
        }
    }
}

/// A request that may pass, and what its client is told of its limits.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) told: Option<Told>,
    /// What it holds while it is under way.
    pub(super) slots: Option<Box<Slots>>,
    /// Of the key that its tags were made with.
    pub(super) generation: u64,
    cors: bool,
}

/// How far a request is on its way to its admission.
pub(super) enum Asking {
    /// It needs no more.
    Over(Result<Admission, Rejection>),
    /// It waits for the store.
    Waits(Begun),
}

/// A request that waits for the store.
#[derive(Debug)]
pub(super) struct Begun {
    charge: Charge,
    generation: u64,
    cors: bool,
}

/// A decision, and the wall clock's time at it, microseconds: the reset that clients are told
/// counts from there, however slow the upstream is.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) charge: Charge,
    pub(super) decision: Decision,
    pub(super) by: Decider,
    unix_us: u64,
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

impl Begun {
    /// It may pass.
    fn admitted(self, slots: Option<Box<Slots>>, by: Option<(Decision, Decider)>) -> Admission {
        let Begun {
            charge,
            generation,
            cors,
        } = self;
        Admission {
            told: by.map(|(decision, by)| Told {
                charge,
                decision,
                by,
                unix_us: clock::unix_us(),
            }),
            slots,
            generation,
            cors,
        }
    }

    /// It may not.
    fn denied<B>(self, request: &Request<B>, (decision, by): (Decision, &Decider)) -> Rejection {
        Rejection::Limited(Box::new(Denial {
            charge: self.charge,
            decision,
            form: Form::of(request.method(), request.headers()),
            alone: matches!(by, Decider::Local),
            generation: self.generation,
            question: None,
        }))
    }
}

impl Admission {
    /// Whether any limit was asked.
    pub(super) fn is_limited(&self) -> bool {
        self.told.is_some()
    }
}

impl Limiter {
    /// Writes the rate-limit headers of the decision that let the request pass: as lines into
    /// `lines` where those are wanted and nothing of the upstream's is kept, else into the
    /// response's own.
    pub(super) fn mark<B>(
        &self,
        admission: &Admission,
        response: &mut Response<B>,
        lines: Option<&mut Vec<u8>>,
    ) {
        let Some(told) = &admission.told else {
            return;
        };
        let (charge, decision) = (&told.charge, &told.decision);
        let map = response.headers_mut();
        match lines.filter(|_| !self.headers.pass_upstream) {
            Some(lines) => {
                headers::take_out(map);
                let times = (told.unix_us, None);
                headers::put_lines(lines, self.headers, (charge, decision), times);
            }
            None => headers::write(map, self.headers, charge, decision, told.unix_us),
        }
        if admission.cors {
            headers::expose_to_scripts(map);
        }
    }

    /// What the limits of the route that was found ask of this request.
    pub(super) fn ask<B>(
        &self,
        request: &Request<B>,
        (found, said): (&Found<'_, '_>, Option<&Said>),
        facts: &Facts<'_>,
        (caller, client, trace): (Caller<'_>, IpAddr, Option<TraceId>),
    ) -> Result<Asked, Rejection> {
        let key = self.store.hash_key();
        let mut asked = Asked {
            charge: Charge::new(),
            riders: Vec::new(),
            generation: key.generation,
            affinity: affinity(found.route, facts),
        };
        let free =
            found.route.limits.is_empty() || is_preflight(request.method(), request.headers());
        if (free && said.is_none()) || self.bypass_of(facts, client).is_some() {
            self.count_bypassed(&found.route.limits);
            return Ok(asked);
        }
        if let Some(said) = said {
            said.admits(facts, (&key.key, self.logged))?;
        }
        if free {
            self.count_bypassed(&found.route.limits);
            return Ok(asked);
        }
        let cost = found.route.cost.units(request.headers(), caller.trusted);
        for limit in &found.route.limits {
            // Who is blocked is kept out, exempt or not.
            let exempt = limit.exempt.has(client, &limit.key, facts);
            match limit.key.derive(facts, limit.missing, &key.key) {
                Derived::Tag(tag) => {
                    let mut windows = limit.windows_of(facts.tier);
                    if let Some(said) = said {
                        said.admits_tag(tag, facts).map_err(|refused| {
                            let spell = || limit.key.spell(facts, limit.missing);
                            self.logged.named(refused, spell)
                        })?;
                        windows = said.windows(limit, tag).unwrap_or(windows);
                    }
                    if exempt {
                        self.count_bypassed(std::slice::from_ref(limit));
                    } else {
                        let asker = self.logged.asker(limit, facts, trace);
                        asked.add((limit, windows), (tag, asker), limit.units(cost));
                    }
                }
                Derived::Skip => {}
                _ if exempt => self.count_bypassed(std::slice::from_ref(limit)),
                Derived::Denied => return Err(Rejection::MissingKey(limit.name.clone())),
                Derived::Ambiguous => return Err(Rejection::AmbiguousKey(limit.name.clone())),
            }
        }
        Ok(asked)
    }

    /// The rule under which a request is not charged, by its place in the file.
    pub(super) fn bypass_of(&self, facts: &Facts<'_>, client: IpAddr) -> Option<usize> {
        let mut rules = self.bypass.iter();
        rules.position(|bypass| bypass.covers(facts, client))
    }

    /// Asks for what rides along, and decides what can be decided without waiting: nothing asked,
    /// or the counts in this process. What waits is a future of its own: who need not wait does
    /// not carry it.
    pub(super) fn begin<B>(&self, request: &Request<B>, asked: Asked, line: &mut Line) -> Asking {
        line.riders = Riders::ask(&self.stores, asked.riders, asked.generation);
        let begun = self.begun(request, asked.charge, asked.generation);
        if begun.charge.is_empty() {
            return Asking::Over(Ok(begun.admitted(None, None)));
        }
        match self.decide_here(&begun.charge) {
            Some(decision) => Asking::Over(self.conclude(request, begun, Ok(decision))),
            None => Asking::Waits(begun),
        }
    }

    fn begun<B>(&self, request: &Request<B>, charge: Charge, generation: u64) -> Begun {
        let is_told = !charge.is_empty() && self.headers.cors_expose;
        Begun {
            charge,
            generation,
            cors: is_told && request.headers().contains_key(ORIGIN),
        }
    }

    /// Asks the store, and lets the request pass or says why not.
    pub(super) async fn admit<B>(
        &self,
        request: &Request<B>,
        begun: Begun,
    ) -> Result<Admission, Rejection> {
        let since = clock::now();
        let answered = self.store.charge(&begun.charge, begun.generation).await;
        self.note_time(since);
        self.conclude(request, begun, answered)
    }

    /// What a decision that was made elsewhere means for a request.
    pub(super) fn settled_by<B>(
        &self,
        request: &Request<B>,
        charge: Charge,
        decision: Decision,
    ) -> Result<Admission, Rejection> {
        self.conclude(request, self.begun(request, charge, 0), Ok(decision))
    }

    fn conclude<B>(
        &self,
        request: &Request<B>,
        begun: Begun,
        answered: Result<Decision, StoreError>,
    ) -> Result<Admission, Rejection> {
        match answered {
            Ok(decision) if decision.allowed => {
                // Nothing may wait between the grant and its guard.
                let slots = self.hold(&begun.charge);
                let warm = self.remember(&begun.charge);
                let by = Decider::Store { warm };
                self.count_decision(&begun.charge, &decision, &by);
                Ok(begun.admitted(slots, Some((decision, by))))
            }
            Ok(decision) => {
                let by = Decider::Store { warm: None };
                self.count_decision(&begun.charge, &decision, &by);
                Err(begun.denied(request, (decision, &by)))
            }
            Err(error) => self.conclude_alone(request, begun, &error),
        }
    }

    /// The same where the store has not answered.
    #[cold]
    fn conclude_alone<B>(
        &self,
        request: &Request<B>,
        mut begun: Begun,
        error: &StoreError,
    ) -> Result<Admission, Rejection> {
        self.count_away(&begun.charge, error);
        let (slots, generation) = (slots_of(&begun.charge), begun.generation);
        let decision = self.decide_alone(&mut begun.charge, generation, error)?;
        let is_denied = decision.as_ref().is_some_and(|decision| !decision.allowed);
        let held = match is_denied {
            false => self.hold_alone(slots, generation),
            true => None,
        };
        let Some(decision) = decision else {
            return Ok(begun.admitted(held, None));
        };
        let by = Decider::Local;
        self.count_decision(&begun.charge, &decision, &by);
        if is_denied {
            return Err(begun.denied(request, (decision, &by)));
        }
        Ok(begun.admitted(held, Some((decision, by))))
    }

    /// What the shared store admitted here is also counted here, so that this process knows recent
    /// history when it must decide alone, and an outage is no second helping. What was counted is
    /// told where it may have to be given back.
    fn remember(&self, charge: &Charge) -> Option<Box<Decision>> {
        let is_local = |item: &Item| item.limit.on_error == OnError::Local;
        if !self.stores.is_shared() || !charge.iter().all(is_local) {
            return None;
        }
        let warm = self.local.keep_warm(charge);
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
        let policy = |item: &Item| item.limit.on_error;
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
    const NUMBERING: HashKey = HashKey::from_bytes(*b"tidegate 1: which server is it?!");
    let key = route.affinity.as_ref()?;
    match key.derive(facts, Missing::Skip, &NUMBERING) {
        Derived::Tag(Tag(tag)) => Some(u128::from_le_bytes(tag) as u64),
        Derived::Skip | Derived::Denied | Derived::Ambiguous => None,
    }
}
