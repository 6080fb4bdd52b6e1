//! What a request to a model server reserves, and what it costs in the end.

use std::sync::Arc;

use crate::limit::key::BodyFacts;
use crate::limit::{Limit, Window};
use crate::usage::estimate::{Estimate, estimate};
use crate::usage::settings::UsageSettings;
use crate::usage::tokens::TokenCounts;

/// The beginning of a request's body, read before the decision.
#[derive(Clone, Debug)]
pub struct ReadBody {
    pub facts: BodyFacts,
    /// The length of the whole body, bytes. If it is not known, the longest that the route takes.
    pub length: u64,
}

/// What a request to a model server reserves.
#[derive(Clone, Debug)]
pub struct UsageReserve {
    pub settings: Arc<UsageSettings>,
    pub estimate: Estimate,
    /// Empty if the request names none.
    pub model: Box<str>,
}

/// The final cost of a request.
#[derive(Clone, Copy, Debug)]
pub enum FinalCost<'c> {
    /// Units of the response, before they are multiplied by the cost of a limit.
    Units(u64),
    Usage {
        reserve: &'c UsageReserve,
        tokens: TokenCounts,
        model: &'c str,
    },
}

impl UsageReserve {
    /// `length` is that of the body if it was not read, bytes. `path` may name the model.
    pub fn new(
        settings: &Arc<UsageSettings>,
        body: Option<&ReadBody>,
        length: u64,
        path: &str,
    ) -> UsageReserve {
        let members = body.map(|body| &body.facts.members);
        let length = body.map_or(length, |body| body.length);
        // The server uses the model of the path, whatever the body says.
        let named = settings.format.and_then(|format| format.path_model(path));
        let model = match named {
            Some(model) => Some(model.into()),
            None => members.and_then(|members| members.model.clone()),
        };
        UsageReserve {
            settings: Arc::clone(settings),
            estimate: estimate(settings, members, length),
            model: model.unwrap_or_default(),
        }
    }

    /// The units that are charged ahead in a limit. `None` if the model has no price.
    ///
    /// Without a maximum of the request the estimate is a guess, so it is never more than the limit
    /// holds.
    pub fn units(&self, limit: &Limit, windows: &[Arc<Window>]) -> Option<u64> {
        let units = self.of(limit, self.estimate.tokens, &self.model)?;
        let smallest = windows.iter().map(|window| window.rule.units).min();
        Some(match (self.estimate.names_maximum, smallest) {
            (false, Some(smallest)) => units.min(smallest),
            _ => units,
        })
    }

    fn of(&self, limit: &Limit, tokens: TokenCounts, model: &str) -> Option<u64> {
        // A call is one call under way, however many tokens it takes.
        if limit.is_concurrent() {
            return Some(limit.units(1));
        }
        let units = self.settings.units(limit.counts, tokens, model)?;
        Some(limit.units(units))
    }
}

impl FinalCost<'_> {
    /// The units of a limit; `None` if nothing is known.
    pub(super) fn units(self, limit: &Limit) -> Option<u64> {
        match self {
            FinalCost::Units(units) => Some(limit.units(units)),
            FinalCost::Usage {
                reserve,
                tokens,
                model,
            } => reserve.of(limit, tokens, model),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Key, Rule};
    use crate::usage::format::{AnswerFormat, AnswerTable, TextCount};
    use crate::usage::settings::{AbortedUsage, MissingUsage, TokenWeights};

    #[test]
    fn a_slot_is_for_a_call_and_not_for_its_tokens() {
        let settings = Arc::new(UsageSettings {
            name: "chat".into(),
            format: Some(AnswerFormat::OpenAi),
            table: Arc::new(AnswerTable::new(AnswerFormat::OpenAi, TextCount::Ignored)),
            bytes_per_token: 3,
            default_output: 1024,
            weights: TokenWeights::default(),
            asks: false,
            missing: MissingUsage::Estimate,
            abort: AbortedUsage::Estimate,
            prices: Arc::default(),
        });
        let reserve = UsageReserve::new(&settings, None, 300, "/");
        let rule = |algorithm| Rule {
            algorithm,
            units: 10_000,
            window_us: 60_000_000,
            precision_us: 60_000,
        };
        let units = |algorithm| {
            let limit = Limit::new("l", &[rule(algorithm)], Key::ip());
            reserve.units(&limit, &limit.windows)
        };
        assert_eq!(units(Algorithm::Slots), Some(1));
        assert_eq!(units(Algorithm::Log), Some(1124));
    }
}
