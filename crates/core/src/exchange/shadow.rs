//! Limits on trial, `shadow` ones and candidates, each decided by itself beside a request.
//!
//! Nothing waits for their decisions, and no client is told of them. They are looked at when the
//! response has ended: for its line in the access log, for the figures of each minute, and to let
//! go of the slots that a check was granted.

use std::sync::Arc;

use smallvec::SmallVec;

use super::counts::show;
use super::slots::{HeldSlots, Stores, slots_of};
use super::traced::Trace;
use crate::limit::{Charge, Decided, Decision, Role};
use crate::store::Observed;
use crate::telemetry::access::ShadowSummary;
use crate::telemetry::spans::TraceSpan;
use crate::telemetry::watched::{DeniedRequest, ObservedDenial};

/// The shadow of one request. Dropped, they let go of what they hold.
#[derive(Debug)]
pub struct ShadowChecks {
    stores: Arc<Stores>,
    pub list: SmallVec<[ShadowCheck; 1]>,
}

/// One check on its way.
#[derive(Debug)]
pub struct ShadowCheck {
    pub(super) charge: Charge,
    observed: Observed,
    decision: Option<Decision>,
    /// Someone else lets go of what it was granted.
    handed_over: bool,
}

impl ShadowCheck {
    /// What the store said, if it has answered by now.
    pub fn decision(&mut self) -> Option<&Decision> {
        self.decision = self.decision.take().or_else(|| self.observed.take());
        self.decision.as_ref()
    }

    fn is_allowed(&mut self) -> bool {
        self.decision().is_some_and(|decision| decision.allowed)
    }

    fn role(&self) -> Role {
        self.charge.first().map_or(Role::Shadow, |item| item.role())
    }

    /// A shadow limit's name, a candidate's with its mark.
    fn name(&self) -> Option<Arc<str>> {
        let item = self.charge.first()?;
        Some(match item.role() {
            Role::Candidate => format!("{}~candidate", item.limit.name).into(),
            Role::Enforced | Role::Shadow => Arc::clone(&item.limit.name),
        })
    }
}

impl ShadowChecks {
    /// Asks the store for each; `None` where there are none.
    pub fn ask(
        stores: &Arc<Stores>,
        charges: Vec<Charge>,
        generation: u64,
    ) -> Option<Box<ShadowChecks>> {
        if charges.is_empty() {
            return None;
        }
        let ask = |charge: Charge| ShadowCheck {
            observed: stores.store.observe(&charge, generation),
            charge,
            decision: None,
            handed_over: false,
        };
        Some(Box::new(ShadowChecks {
            list: charges.into_iter().map(ask).collect(),
            stores: Arc::clone(stores),
        }))
    }

    /// What they hold, for a request that goes on after its response.
    pub fn take_slots(&mut self) -> Option<Box<HeldSlots>> {
        let mut held = Charge::new();
        for check in &mut self.list {
            if check.is_allowed() {
                held.extend(slots_of(&check.charge).into_iter().flatten());
                check.handed_over = true;
            }
        }
        (!held.is_empty()).then(|| HeldSlots::new(&self.stores, held))
    }

    /// Which of them would have denied the request; noted in `summary`.
    pub(super) fn would_deny(&mut self, summary: &ShadowSummary) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        for check in &mut self.list {
            let (role, charge) = (check.role(), check.charge.clone());
            let Some(decision) = check.decision() else {
                continue;
            };
            let (allowed, charge) = (decision.allowed, &charge);
            if let Some(first) = (Decided { charge, decision }).results().next() {
                let limit = &first.check.limit;
                summary.note(&limit.name, role, !allowed);
                let meter = &self.stores.meter;
                match role {
                    Role::Candidate => meter.count_candidate_decision(limit.number, allowed),
                    _ => meter.count_shadow_decision(limit.number, allowed),
                }
                if role == Role::Shadow {
                    show(&self.stores.meter, first, allowed, false);
                }
            }
            names.extend(check.name().filter(|_| !allowed));
        }
        names
    }

    /// What was decided of each, as parts of a trace.
    #[cold]
    pub(super) fn spans(&mut self, trace: &Trace, show_keys: bool) -> Vec<TraceSpan> {
        let span = |check: &mut ShadowCheck| {
            check.decision()?;
            let decision = check.decision.as_ref()?;
            trace.on_trial(&check.charge, decision, show_keys)
        };
        self.list.iter_mut().filter_map(span).collect()
    }

    /// Keeps those that would have denied `request` for the operators who watch denials.
    #[cold]
    pub(super) fn note_denials(&mut self, request: DeniedRequest<'_>) {
        let Some(denials) = self.stores.meter.denials() else {
            return;
        };
        for check in &mut self.list {
            let name = check.name();
            let Some((decision, name)) = check.decision().cloned().zip(name) else {
                continue;
            };
            if !decision.allowed {
                let decided = Decided {
                    charge: &check.charge,
                    decision: &decision,
                };
                denials.note(|| ObservedDenial::now(request, &name, decided, true));
            }
        }
    }
}

impl Drop for ShadowChecks {
    fn drop(&mut self) {
        for check in &mut self.list {
            // What is still on its way lets go by itself.
            if check.is_allowed() && !check.handed_over {
                self.stores.store.release(&check.charge);
            }
        }
    }
}
