//! Calls of model servers: what each reserves, and what it is charged for in the end.
//!
//! The reserve is that of the log. Where the log has none, it is estimated as the proxy does, from
//! the input that the answer reports.

use std::sync::Arc;

use super::meter::{MeterCharge, Rates};
use super::tokens::{LoggedEnd, LoggedTokens};
use crate::limit::Limit;
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::usage::estimate::{Estimate, actual};
use crate::usage::settings::{AbortedUsage, MissingUsage, UsageSettings};
use crate::usage::tokens::{ChargedTokens, MAX_UNITS, ReportedTokens, TokenCounts};

/// A call of a model server.
#[derive(Clone, Debug)]
pub struct LoggedCall<'e> {
    settings: &'e UsageSettings,
    estimate: Estimate,
    /// What the call is charged for in the end.
    charged: ChargedTokens,
    asked_model: &'e str,
    /// The model whose price the settlement uses.
    priced_model: &'e str,
    pub facts: CallFacts,
}

/// How well the log knows a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallFacts {
    /// The log has its reserve.
    pub has_reserve: bool,
    /// The log has not what its answer used.
    pub is_unsettled: bool,
}

/// What a call costs in one limit.
#[derive(Clone, Copy, Debug)]
pub struct CallCost {
    /// Units that are charged ahead.
    pub reserved: u64,
    /// Units in the end.
    pub settled: u64,
    /// The reserve is a guess, so it is lowered to what the limit holds.
    pub is_lowered: bool,
}

impl<'e> LoggedCall<'e> {
    /// `path` may name the model. `None` if the log says nothing of the call's size.
    pub fn new(
        settings: &'e Arc<UsageSettings>,
        tokens: &'e LoggedTokens<'_>,
        path: &'e str,
    ) -> Option<LoggedCall<'e>> {
        if !tokens.numbers.is_known() {
            return None;
        }
        let named = settings.format.and_then(|format| format.path_model(path));
        let asked = named.or(tokens.asked_model()).unwrap_or_default();
        let estimate = estimate(settings, tokens);
        let charged = charged(settings, tokens, estimate);
        Some(LoggedCall {
            settings,
            estimate,
            charged: charged.unwrap_or(ChargedTokens {
                tokens: estimate.tokens,
                partly_reported: None,
            }),
            asked_model: asked,
            priced_model: settings.priced_model(tokens.model.as_deref().unwrap_or(asked), asked),
            facts: CallFacts {
                has_reserve: tokens.numbers.reserved.is_some(),
                is_unsettled: charged.is_none(),
            },
        })
    }

    /// `None` if the model has no price. `is_refunded` gives all units back.
    pub fn cost(&self, limit: &Limit, is_refunded: bool) -> Option<CallCost> {
        if !limit.counts_usage() {
            let reserved = limit.units(1);
            let settled = if is_refunded { 0 } else { reserved };
            return Some(CallCost {
                reserved,
                settled,
                is_lowered: false,
            });
        }
        let units = |tokens, model| {
            let units = self.settings.units(limit.counts, tokens, model)?;
            Some(limit.units(units))
        };
        let reserved = units(self.estimate.tokens, self.asked_model)?;
        let settled = match is_refunded {
            true => 0,
            false => self.settled_units(|tokens| units(tokens, self.priced_model), reserved)?,
        };
        Some(CallCost {
            reserved,
            settled,
            is_lowered: !self.estimate.names_maximum,
        })
    }
}

impl CallCost {
    /// The charge of a key in a window. `smallest` is what the limit holds at each rate.
    pub fn charge(self, place: u32, units: Rates<u64>, smallest: &Rates<u64>) -> MeterCharge {
        MeterCharge {
            place,
            cost: self.reserved,
            costs: match self.is_lowered {
                true => smallest.map(|smallest| self.reserved.min(*smallest)),
                false => smallest.map(|_| self.reserved),
            },
            units,
            is_lowered: self.is_lowered,
        }
    }
}

fn estimate(settings: &UsageSettings, tokens: &LoggedTokens<'_>) -> Estimate {
    let numbers = &tokens.numbers;
    let reported = numbers.reported().input;
    if let Some(reserved) = numbers.estimated.or(numbers.reserved) {
        // An older log does not say how much of the reserve is input.
        let input = numbers
            .reserved_input
            .or(reported)
            .unwrap_or(0)
            .min(reserved);
        let output = reserved - input;
        let named = numbers.named_maximum;
        return Estimate {
            tokens: TokenCounts {
                input,
                output,
                ..TokenCounts::default()
            },
            names_maximum: named.unwrap_or(output != settings.default_output),
        };
    }
    let by_bytes = |bytes: u64| bytes.div_ceil(settings.bytes_per_token.max(1));
    let input = numbers.body_bytes.map(by_bytes).or(reported).unwrap_or(0);
    Estimate {
        tokens: TokenCounts {
            input: input.min(MAX_UNITS),
            output: numbers.maximum.unwrap_or(settings.default_output),
            ..TokenCounts::default()
        },
        names_maximum: numbers.maximum.is_some(),
    }
}

impl LoggedCall<'_> {
    /// The units in the end, as the proxy settles them: what the answer left out never lifts a
    /// charge above its reserve.
    fn settled_units(
        &self,
        units: impl Fn(TokenCounts) -> Option<u64>,
        reserved: u64,
    ) -> Option<u64> {
        let all = units(self.charged.tokens)?;
        match self.charged.partly_reported {
            None => Some(all),
            Some(reported) => Some(all.min(reserved).max(units(reported)?)),
        }
    }
}

/// What an admitted call is charged for. `None` keeps the reserve.
fn charged(
    settings: &UsageSettings,
    tokens: &LoggedTokens<'_>,
    estimate: Estimate,
) -> Option<ChargedTokens> {
    let reported = tokens.numbers.reported();
    let is_aborted = match tokens.numbers.end {
        None | Some(LoggedEnd::Settled(UsageOutcome::Exact | UsageOutcome::Drained)) => {
            let known = (!reported.is_empty()).then_some(reported);
            return match (known, settings.missing) {
                (None, MissingUsage::Estimate) => None,
                // The log has no text of the answer.
                _ => Some(actual(settings, known, estimate, u64::MAX)),
            };
        }
        Some(LoggedEnd::Denied | LoggedEnd::Settled(UsageOutcome::Refunded)) => return None,
        Some(LoggedEnd::Settled(UsageOutcome::Aborted)) => true,
        Some(LoggedEnd::Settled(UsageOutcome::Missing | UsageOutcome::Encoded)) => false,
    };
    // The log has what was charged then.
    let observed = || Some(ReportedTokens::or(reported, estimate.tokens));
    match (is_aborted, settings.abort, settings.missing) {
        (true, AbortedUsage::Observed, _) | (false, _, MissingUsage::Observed) => observed(),
        (false, _, MissingUsage::Prompt) => Some(actual(settings, None, estimate, 0)),
        _ => {
            // The answer had reported more than the reserve before it broke off.
            let known = ReportedTokens::or(reported, TokenCounts::default()).tokens;
            let kept = ReportedTokens::default().or(estimate.tokens);
            (known.total() > estimate.tokens.total()).then(|| kept.at_least(known))
        }
    }
}
