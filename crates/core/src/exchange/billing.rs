//! The request in the ledger. It is counted when it is admitted, or when it passes if a limit holds
//! it. Its tokens and money are corrected when its answer has ended. No request waits for this.

use super::admit::Admission;
use super::limiter::Limiter;
use super::reserve::UsageReserve;
use crate::clock;
use crate::ledger::LedgerAmounts;
use crate::limit::key::Facts;
use crate::usage::settings::Quantity;
use crate::usage::tokens::TokenCounts;

impl Limiter {
    /// Notes the client of a request that a limit counts. A tier or an override that lifts the
    /// limit leaves the client its line.
    #[inline]
    pub(super) fn note_client(&self, facts: &Facts<'_>, admission: &mut Admission) {
        if let Some(ledger) = &self.ledger
            && admission.is_counted
        {
            admission.billed = Some(Box::new(ledger.begin(facts)));
        }
    }

    /// Counts a request that was admitted, and is not held any more. Its day is that of the
    /// decision, or of the end of its wait. The clock of the embedded store never steps, so days
    /// are those of the wall clock there.
    #[inline]
    pub fn bill_admitted(&self, admission: &mut Admission) {
        if admission.billed.is_some() {
            self.bill_at_decision(admission);
        }
    }

    fn bill_at_decision(&self, admission: &mut Admission) {
        let at_us = match admission.granted() {
            Some(decided) if self.is_shared() && decided.decision.at_us > 0 => {
                decided.decision.at_us
            }
            _ => clock::unix_us(),
        };
        let amounts = match &admission.reserve {
            Some(reserve) => {
                let tokens = reserve.logged_tokens(None, reserve.tokens_in(&admission.charge));
                amounts_of(reserve, tokens, &reserve.model)
            }
            None => REQUEST,
        };
        if let (Some(ledger), Some(billed)) = (&self.ledger, &mut admission.billed) {
            ledger.admit(billed, at_us, amounts);
        }
    }

    /// Corrects the tokens and the money of a request. Call it once.
    pub(super) fn bill_settled(
        &self,
        admission: &Admission,
        reserve: &UsageReserve,
        tokens: TokenCounts,
        model: &str,
    ) {
        if let (Some(ledger), Some(billed)) = (&self.ledger, &admission.billed) {
            ledger.settle(billed, amounts_of(reserve, tokens, model));
        }
    }
}

const REQUEST: LedgerAmounts = LedgerAmounts {
    requests: 1,
    tokens: 0,
    money: 0,
};

/// A call costs nothing if neither its model nor that of its answer has a price.
fn amounts_of(reserve: &UsageReserve, tokens: TokenCounts, model: &str) -> LedgerAmounts {
    let money = reserve.quantity(Quantity::Money, tokens, model);
    LedgerAmounts {
        tokens: tokens.total().cast_signed(),
        money: money.unwrap_or(0).cast_signed(),
        ..REQUEST
    }
}
