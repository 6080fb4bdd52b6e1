//! The local store in place of a shared store: it counts what that store admitted through this
//! process, and remembers its last answer for each key.

use std::sync::Arc;
use std::time::Instant;

use super::shard::{CheckOutcome, PendingCheck, Shard};
use super::{Memory, id};
use crate::limit::decide::FirstPass;
use crate::limit::{Algorithm, Charge, Decision, LimitCheck, OnError, Retry, Verdict};
use crate::store::is_slots;
use crate::store::last_answers::{Away, StoreAnswer, slack_us};
use crate::store::recovery::Recovery;
use crate::store::store_clock::CheckTime;
use crate::telemetry::decisions::{BannedRequest, Source};

/// For what the counts are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecisionMode {
    Alone,
    /// The same. A request that is denied is held instead, if its limits hold it, for so long at
    /// most.
    Book {
        longest_us: u64,
    },
    /// The same as `Alone`, if it is a denial. Else nothing changes.
    IfDenied,
    /// A decision beside that of the shared store, for as long as shares hold. A request that is
    /// denied is held instead, as for `Book`.
    Beside {
        longest_us: u64,
    },
    /// To count what the shared store has decided. It forwards the request so much later.
    Warm {
        wait_us: u64,
    },
    Usage,
}

impl DecisionMode {
    /// Whether the result decides the request, and so belongs into the log.
    pub(super) fn is_logged(self, decision: &Decision) -> bool {
        match self {
            DecisionMode::Alone | DecisionMode::Book { .. } | DecisionMode::IfDenied => true,
            DecisionMode::Beside { .. } => !decision.allowed,
            DecisionMode::Warm { .. } | DecisionMode::Usage => false,
        }
    }

    /// Whether this store decides the request.
    fn is_alone(self) -> bool {
        matches!(
            self,
            DecisionMode::Alone | DecisionMode::Book { .. } | DecisionMode::IfDenied
        )
    }

    /// The outcome of a request that every check lets pass.
    pub(super) fn admitted(self) -> CheckOutcome {
        match self {
            DecisionMode::Warm { wait_us } if wait_us > 0 => CheckOutcome::Held { wait_us },
            _ => CheckOutcome::Passes,
        }
    }

    /// The outcome of any other request. `wait_us` says how long it may be held, of a longest wait.
    pub(super) fn refused(self, wait_us: impl FnOnce(u64) -> Option<u64>) -> CheckOutcome {
        let wait_us = match self {
            DecisionMode::Book { longest_us } | DecisionMode::Beside { longest_us } => {
                wait_us(longest_us)
            }
            _ => None,
        };
        match wait_us {
            Some(wait_us) => CheckOutcome::Held { wait_us },
            None => CheckOutcome::Denied,
        }
    }
}

impl Memory {
    pub(in crate::store) fn log_banned(&self, request: &BannedRequest<'_>) {
        if let Some(log) = &self.log {
            log.record_banned(request, self.clock.now_us());
        }
    }

    /// Charges a request that another store admitted, even above the limit, so that this store
    /// knows recent history when it must stand in. This is not a decision, and is not logged. The
    /// result serves to give the units back. Slots are not counted here: see [`Memory::hold`]. The
    /// request is held for `wait_us`, microseconds.
    pub fn keep_warm(&self, charge: &Charge, wait_us: u64) -> Decision {
        self.decide(charge, DecisionMode::Warm { wait_us })
    }

    /// Counts a request from now on that was charged when it came, at `since`: the shared store has
    /// decided it in between, and counts it for longer.
    pub fn count_anew(
        &self,
        charge: &Charge,
        charged: &mut Decision,
        since: Instant,
        wait_us: u64,
    ) {
        // A process that was stopped reads decisions that may be old.
        let took_us = self.clock.now_us().saturating_sub(self.clock.at_us(since));
        let is_old = |item: &LimitCheck| took_us > slack_us(item.window.rule.window_us);
        if charge.iter().any(is_old) {
            return;
        }
        let mut anew = self.keep_warm(charge, wait_us);
        // Not before: another worker would use these units.
        self.refund(charge, charged);
        for (item, verdict) in charge.iter().zip(&mut anew.verdicts) {
            verdict.used = verdict.used.saturating_sub(item.cost);
        }
        *charged = anew;
    }

    /// Charges a request that the shared store is to decide as well. While that store may not know
    /// of all that was admitted, no more than a share passes. A request that would be denied may be
    /// held for `longest_us`, microseconds.
    pub fn book_beside(&self, charge: &Charge, longest_us: u64) -> Decision {
        self.decide(charge, DecisionMode::Beside { longest_us })
    }

    /// How the items stand, and when each would let its cost pass. It charges nothing: one more
    /// item, which can never pass, makes it a denial.
    pub fn stand(&self, charge: &Charge) -> Decision {
        let mut asked = charge.clone();
        if let Some(first) = charge.first() {
            asked.push(LimitCheck::never(first));
        }
        let mut decision = self.decide(&asked, DecisionMode::Usage);
        decision.verdicts.truncate(charge.len());
        decision
    }

    pub(super) fn check<'i>(
        &self,
        shard: &Shard,
        item: &'i LimitCheck,
        mode: DecisionMode,
        time: &CheckTime,
    ) -> PendingCheck<'i> {
        let is_alone = mode.is_alone();
        if self.recovery.is_none() && is_alone {
            return shard.check(item, self.fleet.share(item.window.rule), item.cost, time);
        }
        // To keep warm is not to hold: the worker that admitted the request calls `hold`.
        let is_slots = is_slots(item);
        let is_free = is_slots && !is_alone;
        let is_bound = !is_free
            && match mode {
                DecisionMode::Alone
                | DecisionMode::Book { .. }
                | DecisionMode::IfDenied
                | DecisionMode::Usage => true,
                DecisionMode::Beside { .. } => self.keeps_to_share(item, time.now_us()),
                DecisionMode::Warm { .. } => false,
            };
        let rule = match is_bound || is_slots {
            true => self.fleet.share(item.window.rule),
            false => item.window.rule,
        };
        let cost = if is_free { 0 } else { item.cost };
        let mut check = shard.check(item, rule, cost, time);
        if !is_bound {
            check.first.retry = Retry::Now;
        } else if let Some(max_units) = self.max_units_of(item, mode, time, &check.first) {
            check.cap(max_units, check.first.left_us().unwrap_or(rule.window_us));
        }
        check
    }

    fn keeps_to_share(&self, item: &LimitCheck, now_us: u64) -> bool {
        let window_us = item.window.rule.window_us;
        let holds_for = |recovery: &&Arc<Recovery>| recovery.holds_for(window_us, now_us);
        let recovery = self.recovery.as_ref().filter(holds_for);
        // A calendar window that began later has no unit of the outage.
        let began_later = |recovery: &Arc<Recovery>| {
            let began_us = self.instant(now_us).window_began_us(item);
            began_us.is_some_and(|began_us| recovery.is_over_by(began_us))
        };
        item.limit.on_error == OnError::Local
            && recovery.is_some_and(|recovery| !began_later(recovery))
    }

    /// The most units of this item that may count here while the shared store is away; `None` if
    /// nothing is known of it.
    fn max_units_of(
        &self,
        item: &LimitCheck,
        mode: DecisionMode,
        time: &CheckTime,
        first: &FirstPass,
    ) -> Option<u64> {
        let (recovery, now_us) = (self.recovery.as_ref()?, time.now_us());
        if mode == DecisionMode::Alone {
            recovery.note_window(item.window.rule.window_us);
        }
        // The first call that fails is decided here before anything calls that an outage.
        let decides = matches!(mode, DecisionMode::Alone | DecisionMode::Book { .. });
        let begins = decides.then_some(Away {
            since_us: now_us,
            now_us,
        });
        let away = recovery.away_at(now_us).or(begins)?;
        let ends_us = first.left_us().map(|us| time.moment.now_us + us);
        (recovery.last_answers).max_units(item, &self.fleet, away, ends_us)
    }

    /// Units of this budget that were admitted here and count at a time, microseconds.
    pub fn own_at(&self, item: &LimitCheck, at_us: u64) -> u64 {
        let id = id(item);
        let shard = self.lock(self.shard_of(id));
        let at = self.check_time(item, at_us).moment;
        shard.find(id).map_or(0, |place| {
            let count = &shard.entries[place].count;
            count.used(&item.window.rule, at)
        })
    }

    /// Units of this budget that were admitted here, in the calendar window that ends at `end_us`.
    fn own_until(&self, item: &LimitCheck, end_us: u64) -> u64 {
        let id = id(item);
        let shard = self.lock(self.shard_of(id));
        let place = shard.find(id);
        place.map_or(0, |place| shard.entries[place].count.used_until(end_us))
    }

    /// Items of which the shared store has lost units, by its own answer. Each costs the units that
    /// the store lacks of those admitted here. With `others`, the answer is also compared with what
    /// the store had said of other proxies.
    pub fn lost_by(&self, charge: &Charge, decision: &Decision, others: bool) -> Charge {
        let mut lost = Charge::new();
        let now_us = self.clock.now_us();
        let may_compare = |recovery: &&Recovery| recovery.may_compare(now_us);
        let Some(recovery) = self.recovery.as_deref().filter(may_compare) else {
            return lost;
        };
        for (item, verdict) in charge.iter().zip(&decision.verdicts) {
            let rule = &item.window.rule;
            if item.limit.refunds || item.cost == 0 {
                continue;
            }
            let own = match rule.algorithm {
                Algorithm::Log if item.limit.lease_us == 0 => {
                    self.own_at(item, now_us + slack_us(rule.window_us))
                }
                // Only units of the window that the store means are comparable.
                Algorithm::Calendar => self.own_until(item, decision.at_us + verdict.reset_us),
                _ => continue,
            };
            let answer = StoreAnswer {
                item,
                verdict,
                charged: item.cost,
                own,
                // No newer answer may look older than this one.
                store_us: decision.at_us - decision.spread_us,
                now_us,
            };
            let missing = recovery.last_answers.missing_units(&answer, others);
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

    /// Remembers an answer of the shared store. `warm` is what this store counted for it; `None` if
    /// the shared store has denied the request.
    pub fn note(
        &self,
        charge: &Charge,
        decision: &Decision,
        warm: Option<&Decision>,
        source: Source,
    ) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        let (now_us, is_on) = (self.clock.now_us(), recovery.is_on());
        let note = |item: &LimitCheck, verdict: &Verdict, charged: u64, own: u64| {
            let answer = StoreAnswer {
                item,
                verdict,
                charged,
                own,
                store_us: decision.at_us,
                now_us,
            };
            let answers = &recovery.last_answers;
            // A store that does not know of all units says too little.
            if !is_on || answers.is_tighter(&answer, &self.fleet) {
                match source {
                    Source::Store if recovery.may_compare(now_us) => answers.note(&answer),
                    Source::Store => answers.note_uncompared(&answer),
                    _ => answers.note_earlier(&answer),
                }
            }
        };
        for (index, (item, verdict)) in charge.iter().zip(&decision.verdicts).enumerate() {
            if is_slots(item) || verdict.retry == Retry::Unasked {
                continue;
            }
            let charged = match warm.and_then(|warm| warm.verdicts.get(index)) {
                Some(_) => item.cost,
                None => 0,
            };
            // A unit counts here from the answer on, so for longer than there.
            let at_us = now_us + slack_us(item.window.rule.window_us);
            note(item, verdict, charged, self.own_at(item, at_us));
        }
    }

    /// All that was admitted here and still counts: one item for each budget.
    pub fn admitted(&self) -> Vec<LimitCheck> {
        let Some(recovery) = &self.recovery else {
            return Vec::new();
        };
        let now_us = self.clock.now_us();
        let mut items = recovery.last_answers.items(now_us);
        for item in &mut items {
            item.cost = self.own_at(item, now_us);
        }
        items.retain(|item| item.cost > 0);
        items
    }
}
