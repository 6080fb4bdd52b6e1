//! What the store that stands in knows of the one it stands in for: what that one admitted through
//! this process, and what it had said of each key when it last answered.

use std::sync::{Arc, PoisonError};

use super::shard::{Asked, Shard};
use super::{Memory, id};
use crate::limit::{Algorithm, Charge, Decision, LimitCheck, OnError, Retry};
use crate::store::ledger::{Answered, slack_us};
use crate::store::recovery::Recovery;

/// What is asked of the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// A decision.
    Decide,
    /// A decision beside that of the shared store, for as long as shares hold.
    Beside,
    /// To count what the shared store has decided.
    Warm,
    /// To say how the limits stand.
    Stand,
}

impl How {
    /// Whether what came of it is the decision on a request.
    pub(super) fn is_decision(self, decision: &Decision) -> bool {
        match self {
            How::Decide => true,
            How::Beside => !decision.allowed,
            How::Warm | How::Stand => false,
        }
    }
}

impl Memory {
    /// The same store, which also goes by what was known of the one that is away.
    pub fn knowing(self, recovery: &Arc<Recovery>) -> Memory {
        Memory {
            recovery: Some(Arc::clone(recovery)),
            ..self
        }
    }

    /// Charges one request that another store admitted, whatever is counted already, so that this
    /// store knows recent history when it must stand in. Not a decision, and not logged; what
    /// it says serves to give the units back. Slots are not among them: see [`Memory::hold`].
    pub fn keep_warm(&self, charge: &Charge) -> Decision {
        self.decide(charge, How::Warm)
    }

    /// Charges one request that the shared store is to decide as well. While that store may not
    /// know of all that was admitted, no more than a share passes.
    pub fn charge_beside(&self, charge: &Charge) -> Decision {
        self.decide(charge, How::Beside)
    }

    /// How the items stand, and when each would let its cost pass. Charges nothing: one more item
    /// that can never pass makes it a denial, whatever the others say.
    pub fn stand(&self, charge: &Charge) -> Decision {
        let mut asked = charge.clone();
        if let Some(first) = charge.first() {
            asked.push(LimitCheck::never(first));
        }
        let mut decision = self.decide(&asked, How::Stand);
        decision.verdicts.truncate(charge.len());
        decision
    }

    /// First pass over one item.
    pub(super) fn look_at<'i>(
        &self,
        shard: &Shard,
        (item, id): (&'i LimitCheck, [u64; 2]),
        how: How,
        now_us: u64,
    ) -> Asked<'i> {
        if self.recovery.is_none() && matches!(how, How::Decide) {
            let rule = self.fleet.share(item.window.rule);
            return shard.look(item, id, rule, item.cost, now_us);
        }
        // To keep warm is not to hold: the worker that admitted it says so by `hold`.
        let is_held = item.window.rule.algorithm == Algorithm::Slots;
        let is_let_off = is_held && how != How::Decide;
        let is_bound = !is_let_off
            && match how {
                How::Decide | How::Stand => true,
                How::Beside => self.keeps_to_share(item, now_us),
                How::Warm => false,
            };
        let rule = match is_bound || is_held {
            true => self.fleet.share(item.window.rule),
            false => item.window.rule,
        };
        let cost = if is_let_off { 0 } else { item.cost };
        let mut one = shard.look(item, id, rule, cost, now_us);
        if !is_bound {
            one.look.retry = Retry::Now;
        } else if let Some(most) = self.most_of(item, now_us) {
            one.keep_to(most, rule.window_us);
        }
        one
    }

    fn keeps_to_share(&self, item: &LimitCheck, now_us: u64) -> bool {
        let window_us = item.window.rule.window_us;
        let holds = |recovery: &Arc<Recovery>| recovery.holds_for(window_us, now_us);
        item.limit.on_error == OnError::Local && self.recovery.as_ref().is_some_and(holds)
    }

    /// The most units of this item that may count here while the shared store is away, where
    /// something is known of it.
    fn most_of(&self, item: &LimitCheck, now_us: u64) -> Option<u64> {
        let recovery = self.recovery.as_ref()?;
        let at = recovery.at(now_us)?;
        recovery.ledger.most(item, &self.fleet, at)
    }

    /// Units of this budget that were admitted here and count at a time, microseconds.
    pub fn own_at(&self, item: &LimitCheck, at_us: u64) -> u64 {
        let id = id(item);
        let shard = self.shards[self.shard_of(id)].lock();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.find(id).map_or(0, |place| {
            let count = &shard.entries[place].count;
            count.used(&item.window.rule, at_us)
        })
    }

    /// What the shared store has lost by its own answer: for each such item, of what was admitted
    /// here, the units that it lacks. With `others`, also by what it had said of other proxies.
    pub fn lost_by(&self, charge: &Charge, decision: &Decision, others: bool) -> Charge {
        let mut lost = Charge::new();
        let Some(recovery) = self.recovery.as_ref().filter(|recovery| !recovery.is_on()) else {
            return lost;
        };
        let now_us = self.clock.now_us();
        for (item, verdict) in charge.iter().zip(&decision.verdicts) {
            let rule = &item.window.rule;
            let is_exact = rule.algorithm == Algorithm::Log
                && item.limit.lease_us == 0
                && !item.limit.gives_back;
            if !is_exact || item.cost == 0 {
                continue;
            }
            let own = self.own_at(item, now_us + slack_us(rule.window_us));
            let answered = Answered {
                item,
                verdict,
                charged: item.cost,
                own,
                store_us: decision.at_us,
                now_us,
            };
            let missing = recovery.ledger.missing(&answered, others);
            if missing > 0 {
                lost.push(LimitCheck {
                    cost: missing.min(own),
                    asker: None,
                    ..item.clone()
                });
            }
        }
        lost
    }

    /// Remembers what the shared store has answered, beside `warm`, which this store counted for
    /// it; `None` where the store has denied the request.
    pub fn note(&self, charge: &Charge, decision: &Decision, warm: Option<&Decision>) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        let (now_us, is_on) = (self.clock.now_us(), recovery.is_on());
        let mut warm = warm.map(|warm| warm.verdicts.iter());
        for (item, verdict) in charge.iter().zip(&decision.verdicts) {
            let before = warm.as_mut().and_then(Iterator::next);
            if item.window.rule.algorithm == Algorithm::Slots || verdict.retry == Retry::Unasked {
                continue;
            }
            let charged = if before.is_some() { item.cost } else { 0 };
            let own = match before {
                Some(before) => before.used + charged,
                None => self.own_at(item, now_us),
            };
            let answered = Answered {
                item,
                verdict,
                charged,
                own,
                store_us: decision.at_us,
                now_us,
            };
            // A store that does not know of everything says too little.
            if !is_on || !recovery.ledger.knows(item) {
                recovery.ledger.note(&answered);
            }
        }
    }

    /// All that was admitted here and still counts, budget by budget.
    pub fn admitted(&self) -> Vec<LimitCheck> {
        let Some(recovery) = &self.recovery else {
            return Vec::new();
        };
        let now_us = self.clock.now_us();
        let mut items = recovery.ledger.items(now_us);
        for item in &mut items {
            item.cost = self.own_at(item, now_us);
        }
        items.retain(|item| item.cost > 0);
        items
    }
}
