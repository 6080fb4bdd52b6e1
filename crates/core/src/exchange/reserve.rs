//! What a request to a model server reserves, and what it costs in the end.

use std::sync::Arc;

use smallvec::SmallVec;

use super::uploaded::UploadedBytes;
use crate::limit::key::BodyFacts;
use crate::limit::{Charge, Limit, LimitCheck, Window};
use crate::usage::estimate::{Estimate, estimate, least, lowered};
use crate::usage::settings::{Quantity, TokenWeights, UsageSettings};
use crate::usage::tokens::{ChargedTokens, ReportedTokens, TokenCounts};

/// The beginning of a request's body, read before the decision.
#[derive(Clone, Debug)]
pub struct ReadBody {
    pub facts: BodyFacts,
    /// The length of the whole body, bytes. If it is not known, the longest that the route takes.
    pub length: u64,
    /// What has come of the body, if its length is not known.
    pub uploaded: Option<UploadedBytes>,
}

/// What a request to a model server reserves.
#[derive(Clone, Debug)]
pub struct UsageReserve {
    pub settings: Arc<UsageSettings>,
    pub estimate: Estimate,
    /// Set if the length of the body is not known. The estimate is of the longest one then.
    pub uploaded: Option<UploadedBytes>,
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
        charged: ChargedTokens,
        model: &'c str,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Adjustment<'c> {
    /// Returns all units.
    Refund,
    /// Returns the units that were charged ahead for the usage of an answer.
    ReturnReserve,
    Settle(FinalCost<'c>),
}

/// The final costs of a charge, one for each check.
pub(super) type FinalCosts = SmallVec<[u64; 2]>;

impl Adjustment<'_> {
    pub(super) fn costs(self, charge: &Charge) -> FinalCosts {
        let cost = |check: &LimitCheck| match self {
            Adjustment::Refund => 0,
            Adjustment::ReturnReserve if check.limit.counts_usage() => 0,
            Adjustment::ReturnReserve => check.cost,
            Adjustment::Settle(cost) => cost.units(&check.limit, check.cost).unwrap_or(check.cost),
        };
        charge.iter().map(cost).collect()
    }
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
            uploaded: body.and_then(|body| body.uploaded.clone()),
            model: model.unwrap_or_default(),
        }
    }

    /// The least that a request with a body of `length` bytes reserves. `length` is 0 if it is not
    /// announced.
    pub(super) fn least(settings: &Arc<UsageSettings>, length: u64, path: &str) -> UsageReserve {
        let named = settings.format.and_then(|format| format.path_model(path));
        UsageReserve {
            settings: Arc::clone(settings),
            estimate: least(settings, length),
            uploaded: None,
            model: named.map(Box::from).unwrap_or_default(),
        }
    }

    /// The estimate by the bytes that have come.
    pub(super) fn known_estimate(&self) -> Estimate {
        match &self.uploaded {
            Some(uploaded) => lowered(&self.settings, self.estimate, uploaded.get()),
            None => self.estimate,
        }
    }

    /// The units of this least reserve in a limit: of the cheapest model, if the path names none.
    pub(super) fn least_units(&self, limit: &Limit, windows: &[Arc<Window>]) -> u64 {
        if limit.counts == Quantity::Money && self.model.is_empty() {
            let least = self.settings.prices.least_units(self.estimate.tokens);
            let smallest = windows.iter().map(|window| window.rule.units).min();
            return limit.units(least).min(smallest.unwrap_or(u64::MAX));
        }
        // A model without a price is refused once the body is read.
        self.units(limit, windows).unwrap_or(0)
    }

    /// The units that are charged ahead in a limit. `None` if the model has no price.
    ///
    /// Without a maximum of the request the estimate is a guess, so it is never more than the limit
    /// holds.
    pub fn units(&self, limit: &Limit, windows: &[Arc<Window>]) -> Option<u64> {
        let units = self.units_for(limit, self.estimate.tokens, &self.model)?;
        let smallest = windows.iter().map(|window| window.rule.units).min();
        Some(match (self.estimate.names_maximum, smallest) {
            (false, Some(smallest)) => units.min(smallest),
            _ => units,
        })
    }

    /// The tokens that are charged ahead: input and output together. `charge` has the checks of the
    /// request. A guess is lowered to what its limits of tokens hold.
    pub fn tokens_in(&self, charge: &Charge) -> u64 {
        let TokenCounts {
            mut input,
            mut output,
            ..
        } = self.estimate.tokens;
        let mut most = u64::MAX;
        let lowers = |limit: &Limit| !self.estimate.names_maximum && limit.counts_usage();
        for check in charge.iter().filter(|check| lowers(&check.limit)) {
            let units = check.cost / check.limit.cost.max(1);
            match check.limit.counts {
                Quantity::Tokens => most = most.min(units),
                Quantity::Costs if self.settings.weights == TokenWeights::default() => {
                    most = most.min(units);
                }
                Quantity::Input => input = input.min(units),
                Quantity::Output => output = output.min(units),
                Quantity::Costs | Quantity::Requests | Quantity::Money => {}
            }
        }
        let tokens = TokenCounts {
            input,
            output,
            ..TokenCounts::default()
        };
        tokens.total().min(most)
    }

    /// The tokens that were charged, as the access log has them. `charged` is `None` if the reserve
    /// stayed, which was of `reserved` tokens.
    pub(super) fn logged_tokens(
        &self,
        charged: Option<ChargedTokens>,
        reserved: u64,
    ) -> TokenCounts {
        let kept = ReportedTokens::default().or(self.known_estimate().tokens);
        let ChargedTokens {
            tokens,
            partly_reported,
        } = charged.unwrap_or(kept);
        match partly_reported {
            None => tokens,
            Some(known) => tokens.lowered_to(reserved.max(known.total()), known),
        }
    }

    fn units_for(&self, limit: &Limit, tokens: TokenCounts, model: &str) -> Option<u64> {
        // A call is one call under way, however many tokens it takes.
        if limit.is_concurrent() {
            return Some(limit.units(1));
        }
        let units = self.quantity(limit.counts, tokens, model)?;
        Some(limit.units(units))
    }

    /// A quantity of these tokens, with the prices of `model`.
    pub(super) fn quantity(
        &self,
        quantity: Quantity,
        tokens: TokenCounts,
        model: &str,
    ) -> Option<u64> {
        let priced = self.settings.priced_model(model, &self.model);
        self.settings.units(quantity, tokens, priced)
    }
}

impl FinalCost<'_> {
    /// The units of a limit that reserved `reserved` units; `None` if nothing is known.
    ///
    /// The part that an answer did not report never lifts a charge above its reserve. The reported
    /// part counts in full.
    pub(super) fn units(self, limit: &Limit, reserved: u64) -> Option<u64> {
        match self {
            FinalCost::Units(units) => Some(limit.units(units)),
            FinalCost::Usage {
                reserve,
                charged,
                model,
            } => {
                let units = reserve.units_for(limit, charged.tokens, model)?;
                match charged.partly_reported {
                    None => Some(units),
                    Some(reported) => {
                        let reported = reserve.units_for(limit, reported, model)?;
                        Some(units.min(reserved).max(reported))
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::option::of;
    use proptest::prelude::*;

    use super::*;
    use crate::limit::{Algorithm, Key, KeyHash, Rule};
    use crate::usage::estimate::actual;
    use crate::usage::format::{AnswerFormat, AnswerTable, TextCount};
    use crate::usage::request::BodyMembers;
    use crate::usage::settings::{AbortedUsage, MissingUsage, PriceRow, PriceTable};

    const QUANTITIES: [Quantity; 4] = [
        Quantity::Tokens,
        Quantity::Costs,
        Quantity::Input,
        Quantity::Output,
    ];

    fn settings(missing: MissingUsage, weights: TokenWeights) -> Arc<UsageSettings> {
        let format = AnswerFormat::OpenAi;
        Arc::new(UsageSettings {
            name: "chat".into(),
            format: Some(format),
            table: Arc::new(AnswerTable::new(format, TextCount::Counted)),
            bytes_per_token: 3,
            default_output: 1024,
            weights,
            asks: false,
            missing,
            abort: AbortedUsage::default(),
            prices: Arc::new(PriceTable::default()),
        })
    }

    fn limit(units: u64, counts: Quantity) -> Arc<Limit> {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units,
            window_us: 1_000_000,
            precision_us: 1,
        };
        Arc::new(Limit {
            counts,
            ..Limit::new("tokens", &[rule], Key::parse(["global"]).unwrap())
        })
    }

    fn reserve(settings: &Arc<UsageSettings>, estimate: Estimate) -> UsageReserve {
        UsageReserve {
            settings: Arc::clone(settings),
            estimate,
            uploaded: None,
            model: "gpt-5".into(),
        }
    }

    fn tokens(input: u64, output: u64) -> TokenCounts {
        TokenCounts {
            input,
            output,
            ..TokenCounts::default()
        }
    }

    fn weights() -> impl Strategy<Value = TokenWeights> {
        let weight = || 0_u64..3_000_000;
        (weight(), weight(), weight(), weight()).prop_map(|(input, cached, cache_write, output)| {
            TokenWeights {
                input,
                cached,
                cache_write,
                output,
            }
        })
    }

    fn missing() -> impl Strategy<Value = MissingUsage> {
        prop_oneof![
            Just(MissingUsage::Estimate),
            Just(MissingUsage::Prompt),
            Just(MissingUsage::Observed),
        ]
    }

    fn reported() -> impl Strategy<Value = ReportedTokens> {
        let input = of((0_u64..2000, 0_u64..=100, 0_u64..=100));
        (input, of(0_u64..2000)).prop_map(|(input, output)| {
            let (whole, cached, cache_write) = input.unwrap_or_default();
            ReportedTokens {
                input: input.map(|_| whole),
                cached: whole * cached / 200,
                cache_write: whole * cache_write / 200,
                output,
            }
        })
    }

    proptest! {
        /// With r for the reserve and a for the charge of an answer that leaves something out: a is
        /// never above r, unless the reported part alone is.
        #[test]
        fn what_is_not_reported_never_lifts_a_charge_above_its_reserve(
            missing in missing(),
            weights in weights(),
            reported in reported(),
            estimated in (0_u64..1500, 0_u64..1500),
            names_maximum: bool,
            holds in 1_u64..5000,
            text_bytes in 0_u64..10_000,
        ) {
            let settings = settings(missing, weights);
            let estimate = Estimate { tokens: tokens(estimated.0, estimated.1), names_maximum };
            let reserve = reserve(&settings, estimate);
            let charged = actual(&settings, Some(reported), estimate, text_bytes);
            let cost = FinalCost::Usage { reserve: &reserve, charged, model: "gpt-5" };
            for counts in QUANTITIES {
                let limit = limit(holds, counts);
                let reserved = reserve.units(&limit, &limit.windows).unwrap();
                let units = cost.units(&limit, reserved).unwrap();
                let Some(known) = charged.partly_reported else {
                    let exact = settings.units(counts, charged.tokens, "gpt-5");
                    prop_assert_eq!(Some(units), exact);
                    continue;
                };
                let known = settings.units(counts, known, "gpt-5").unwrap();
                prop_assert!(known <= units, "what was reported counts in full");
                prop_assert!(units <= reserved.max(known), "{counts:?}: {units} of {reserved}");
            }
        }

        /// No body of a length reserves less than the least.
        #[test]
        fn no_request_reserves_less_than_the_least(
            weights in weights(),
            maximum in of(1_u64..3000),
            answers in 0_u64..4,
            default_output in 0_u64..2000,
            length in 0_u64..9000,
            holds in 1_u64..5000,
        ) {
            let mut own = UsageSettings::clone(&settings(MissingUsage::Estimate, weights));
            own.default_output = default_output;
            own.prices = Arc::new(PriceTable {
                rows: ["gpt-4", "gpt-5"]
                    .map(|model| PriceRow { model: model.into(), price: weights })
                    .into(),
            });
            let own = Arc::new(own);
            let members = BodyMembers { maximum, answers, ..BodyMembers::default() };
            let whole = reserve(&own, estimate(&own, Some(&members), length));
            for known in [0, length] {
                let least = UsageReserve::least(&own, known, "/");
                for counts in QUANTITIES.into_iter().chain([Quantity::Money, Quantity::Requests]) {
                    let limit = limit(holds, counts);
                    let units = whole.units(&limit, &limit.windows).unwrap();
                    prop_assert!(least.least_units(&limit, &limit.windows) <= units);
                }
            }
        }

        /// The access log has what a limit of tokens was charged.
        #[test]
        fn the_logged_tokens_are_those_that_are_charged(
            reported in reported(),
            estimated in (0_u64..1500, 0_u64..1500),
            names_maximum: bool,
            holds in 1_u64..5000,
        ) {
            let settings = settings(MissingUsage::Estimate, TokenWeights::default());
            let estimate = Estimate { tokens: tokens(estimated.0, estimated.1), names_maximum };
            let reserve = reserve(&settings, estimate);
            let charged = actual(&settings, Some(reported), estimate, 0);
            let cost = FinalCost::Usage { reserve: &reserve, charged, model: "gpt-5" };
            for counts in [Quantity::Tokens, Quantity::Costs] {
                let limit = limit(holds, counts);
                let cost_ahead = reserve.units(&limit, &limit.windows).unwrap();
                let charge = charge(&limit, cost_ahead);
                let reserved = reserve.tokens_in(&charge);
                prop_assert_eq!(reserved, cost_ahead);
                let logged = reserve.logged_tokens(Some(charged), reserved);
                prop_assert_eq!(Some(logged.total()), cost.units(&limit, cost_ahead));
                prop_assert_eq!(reserve.logged_tokens(None, reserved).total(), reserved);
            }
        }
    }

    fn charge(limit: &Arc<Limit>, cost: u64) -> Charge {
        let check = LimitCheck {
            limit: Arc::clone(limit),
            window: Arc::clone(&limit.windows[0]),
            tag: KeyHash([0; 16]),
            anchor: None,
            cost,
            asker: None,
        };
        [check].into_iter().collect()
    }

    #[test]
    fn a_guess_that_was_lowered_is_not_charged_whole() {
        let settings = settings(MissingUsage::Estimate, TokenWeights::default());
        let estimate = Estimate {
            tokens: tokens(10, 1024),
            names_maximum: false,
        };
        let reserve = reserve(&settings, estimate);
        let limit = limit(300, Quantity::Tokens);
        assert_eq!(reserve.units(&limit, &limit.windows), Some(300));
        let charge = |input, output| {
            let reported = ReportedTokens {
                input,
                output,
                ..ReportedTokens::default()
            };
            let charged = actual(&settings, Some(reported), estimate, 0);
            let cost = FinalCost::Usage {
                reserve: &reserve,
                charged,
                model: "gpt-5",
            };
            cost.units(&limit, 300)
        };
        assert_eq!(charge(Some(12), None), Some(300));
        assert_eq!(charge(None, Some(7)), Some(17));
        assert_eq!(charge(None, Some(400)), Some(400));
        assert_eq!(charge(Some(12), Some(700)), Some(712));
    }

    #[test]
    fn a_model_of_the_answer_without_a_price_costs_what_the_requests_model_costs() {
        let mut own =
            UsageSettings::clone(&settings(MissingUsage::Estimate, TokenWeights::default()));
        let row = |model: &str, price: u64| PriceRow {
            model: model.into(),
            price: TokenWeights {
                output: price * TokenWeights::ONE,
                ..TokenWeights::default()
            },
        };
        own.prices = Arc::new(PriceTable {
            rows: vec![row("gpt-5", 10), row("gpt-5-mini", 2)],
        });
        let reserve = reserve(&Arc::new(own), Estimate::default());
        let limit = limit(100_000, Quantity::Money);
        let units = |model| {
            let charged = ChargedTokens {
                tokens: tokens(60, 40),
                partly_reported: None,
            };
            let cost = FinalCost::Usage {
                reserve: &reserve,
                charged,
                model,
            };
            cost.units(&limit, 9000)
        };
        assert_eq!(units("gpt-5-2025-08-07"), Some(460));
        assert_eq!(units("gpt-5-mini"), Some(140));
        assert_eq!(units(""), Some(460));
    }
}
