//! Checks of limits in shadow mode and of candidates: each is decided by itself, beside a request.
//!
//! No request waits for their decisions. They are read when the response has ended: for the logs,
//! for the summary of each minute, and to release slots. A client learns of them only from a header
//! that the operator makes of them.
//! A settlement that is there before its decision waits for it, in a task of its own if the request
//! has ended.

use std::sync::Arc;

use smallvec::SmallVec;

use super::limiter::{HeldSlots, Limiter, slots_of};
use super::reserve::{Adjustment, FinalCosts};
use super::traced::Trace;
use crate::limit::{Charge, Decided, Decision, Role};
use crate::route::template::LimitResult;
use crate::store::Observed;
use crate::telemetry::access::ShadowSummary;
use crate::telemetry::spans::TraceSpan;
use crate::telemetry::watched::{DeniedRequest, ObservedDenial};

/// The shadow checks of one request. A drop releases the slots that they hold.
#[derive(Debug)]
pub struct ShadowChecks {
    limiter: Arc<Limiter>,
    pub list: SmallVec<[ShadowCheck; 1]>,
}

/// One check, whose decision may not have come.
#[derive(Debug)]
pub struct ShadowCheck {
    charge: Charge,
    observed: Observed,
    decision: Option<Decision>,
    /// Whether another owner releases the slots.
    handed_over: bool,
    /// What the answer settled before the decision had come.
    settlement: Option<ShadowSettlement>,
}

#[derive(Debug)]
struct ShadowSettlement {
    costs: FinalCosts,
    generation: u64,
}

/// A check whose request has ended before its decision has come.
struct LateCheck {
    limiter: Arc<Limiter>,
    charge: Charge,
    observed: Observed,
    settlement: ShadowSettlement,
}

impl LateCheck {
    async fn settle(self) {
        let Some(decision) = self.observed.wait().await.filter(|one| one.allowed) else {
            return;
        };
        let decided = Decided {
            charge: &self.charge,
            decision: &decision,
        };
        self.settlement.apply(&self.limiter, decided);
        self.limiter.store.release(&self.charge);
    }
}

impl ShadowSettlement {
    fn apply(&self, limiter: &Limiter, decided: Decided<'_>) {
        if decided.decision.allowed {
            limiter.adjust_store(decided, &self.costs, self.generation);
        }
    }
}

impl ShadowCheck {
    /// The check and its decision, if the store has answered by now.
    pub fn decided(&mut self) -> Option<Decided<'_>> {
        self.decision = self.decision.take().or_else(|| self.observed.take());
        Some(Decided {
            charge: &self.charge,
            decision: self.decision.as_ref()?,
        })
    }

    /// Settles the check when its decision comes.
    fn settle_later(self, limiter: &Arc<Limiter>, settlement: ShadowSettlement) {
        if !self.observed.is_pending() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let late = LateCheck {
                limiter: Arc::clone(limiter),
                charge: self.charge,
                observed: self.observed,
                settlement,
            };
            runtime.spawn(late.settle());
        }
    }

    fn is_allowed(&mut self) -> bool {
        self.decided()
            .is_some_and(|decided| decided.decision.allowed)
    }
}

/// The role of a shadow charge, and the name of its limit; a candidate's name has a mark.
fn role_and_name(charge: &Charge) -> Option<(Role, Arc<str>)> {
    let check = charge.first()?;
    let name = match check.role() {
        Role::Candidate => format!("{}~candidate", check.limit.name).into(),
        Role::Enforced | Role::Shadow => Arc::clone(&check.limit.name),
    };
    Some((check.role(), name))
}

impl ShadowChecks {
    /// Sends each check to the store; `None` if there are no checks.
    pub fn start(
        limiter: &Arc<Limiter>,
        charges: Vec<Charge>,
        generation: u64,
    ) -> Option<Box<ShadowChecks>> {
        if charges.is_empty() {
            return None;
        }
        let start = |charge: Charge| ShadowCheck {
            observed: limiter.store.observe(&charge, generation),
            charge,
            decision: None,
            handed_over: false,
            settlement: None,
        };
        Some(Box::new(ShadowChecks {
            list: charges.into_iter().map(start).collect(),
            limiter: Arc::clone(limiter),
        }))
    }

    /// Adjusts each check whose decision has come. The others are adjusted when it comes.
    pub(super) fn adjust(&mut self, adjustment: Adjustment<'_>, generation: u64) {
        for check in &mut self.list {
            let settlement = ShadowSettlement {
                costs: adjustment.costs(&check.charge),
                generation,
            };
            match check.decided() {
                Some(decided) => settlement.apply(&self.limiter, decided),
                None => check.settlement = Some(settlement),
            }
        }
    }

    /// Takes the held slots, for a request that outlives its response.
    pub fn take_slots(&mut self) -> Option<Box<HeldSlots>> {
        let mut held = Charge::new();
        for check in &mut self.list {
            if check.is_allowed() {
                held.extend(slots_of(&check.charge).into_iter().flatten());
                check.handed_over = true;
            }
        }
        (!held.is_empty()).then(|| HeldSlots::new(&self.limiter, held))
    }

    /// What the limits in shadow mode would have done with the request; `None` if no decision of
    /// theirs has come yet.
    pub(super) fn limit_status(&mut self) -> Option<LimitResult> {
        let results = self.list.iter_mut().filter_map(|check| {
            let Decided { charge, decision } = check.decided()?;
            let is_shadow = charge.first()?.role() == Role::Shadow;
            is_shadow.then_some(match decision.allowed {
                false => LimitResult::RejectedDryRun,
                true => LimitResult::Passed,
            })
        });
        results.max()
    }

    /// Counts the decisions, and returns the names of the limits that would have denied.
    pub(super) fn count_decisions(&mut self, summary: &ShadowSummary) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        for check in &mut self.list {
            let Some(decided) = check.decided() else {
                continue;
            };
            let Some((role, name)) = role_and_name(decided.charge) else {
                continue;
            };
            let allowed = decided.decision.allowed;
            if let Some(first) = decided.results().next() {
                let (limit, meter) = (&first.check.limit, &self.limiter.meter);
                summary.note(&limit.name, role, !allowed);
                meter.count_shadow_decision(role, limit.number, allowed);
                if role == Role::Shadow {
                    self.limiter.push_trail(first, allowed, false);
                }
            }
            names.extend(Some(name).filter(|_| !allowed));
        }
        names
    }

    /// Makes a span of each decision.
    #[cold]
    pub(super) fn spans(&mut self, trace: &Trace, show_keys: bool) -> Vec<TraceSpan> {
        let span = |check: &mut ShadowCheck| trace.shadow_span(check.decided()?, show_keys);
        self.list.iter_mut().filter_map(span).collect()
    }

    /// Keeps the denials of `request` for operators who watch.
    #[cold]
    pub(super) fn note_denials(&mut self, request: DeniedRequest<'_>) {
        let Some(denials) = self.limiter.meter.denials() else {
            return;
        };
        for check in &mut self.list {
            if let Some(decided) = check.decided().filter(|one| !one.decision.allowed)
                && let Some((_, name)) = role_and_name(decided.charge)
            {
                denials.note(|| ObservedDenial::now(request, &name, decided, true));
            }
        }
    }
}

impl Drop for ShadowChecks {
    fn drop(&mut self) {
        for mut check in self.list.drain(..) {
            if let Some(settlement) = check.settlement.take() {
                match check.decided() {
                    Some(decided) => settlement.apply(&self.limiter, decided),
                    None => {
                        check.settle_later(&self.limiter, settlement);
                        continue;
                    }
                }
            }
            // If the answer has not come, the store releases its slots.
            if check.is_allowed() && !check.handed_over {
                self.limiter.store.release(&check.charge);
            }
        }
    }
}
