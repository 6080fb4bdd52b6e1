//! The settings of `[usage.NAME]` and `[prices]`.

use std::sync::Arc;
use std::time::Duration;

use super::format::{AnswerFormat, AnswerTable};
use super::tokens::{MAX_UNITS, TokenCounts};

/// What a limit counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// The cost of the route or, on a route with `usage`, its weighted tokens.
    #[default]
    Costs,
    Requests,
    /// Input and output.
    Tokens,
    Input,
    Output,
    /// Millionths of the currency of `[prices]`.
    Money,
}

impl Quantity {
    /// Each quantity by its word in `counts`.
    pub const WORDS: [(&str, Quantity); 6] = [
        ("costs", Quantity::Costs),
        ("requests", Quantity::Requests),
        ("tokens", Quantity::Tokens),
        ("input", Quantity::Input),
        ("output", Quantity::Output),
        ("money", Quantity::Money),
    ];

    pub fn word(self) -> &'static str {
        Quantity::WORDS[self as usize].0
    }

    /// Whether only a route with `usage` knows the quantity.
    pub fn needs_usage(self) -> bool {
        !matches!(self, Quantity::Costs | Quantity::Requests)
    }
}

/// `[usage.NAME]`
#[derive(Clone, Debug)]
pub struct UsageSettings {
    pub name: Arc<str>,
    /// `None` for `json`, whose paths the table has.
    pub format: Option<AnswerFormat>,
    pub table: Arc<AnswerTable>,
    /// Bytes of a request's body for one token of input.
    pub bytes_per_token: u64,
    /// Output of a request that names no maximum, tokens.
    pub default_output: u64,
    /// For limits that count costs.
    pub weights: TokenWeights,
    /// Whether a stream is asked for its usage.
    pub asks: bool,
    pub missing: MissingUsage,
    pub abort: AbortedUsage,
    /// Empty without `[prices]`.
    pub prices: Arc<PriceTable>,
}

/// What is charged if an answer does not say its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingUsage {
    #[default]
    Estimate,
    /// The estimated input.
    Prompt,
    /// The estimated input, and output by the bytes of the text.
    Observed,
}

/// What is charged if the client leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AbortedUsage {
    #[default]
    Estimate,
    Observed,
    /// The answer is read to its end, for at most this time.
    Drain(Duration),
}

/// Weights of tokens, or prices of a million tokens, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWeights {
    pub input: u64,
    pub cached: u64,
    pub cache_write: u64,
    pub output: u64,
}

impl Default for TokenWeights {
    fn default() -> TokenWeights {
        TokenWeights {
            input: TokenWeights::ONE,
            cached: TokenWeights::ONE,
            cache_write: TokenWeights::ONE,
            output: TokenWeights::ONE,
        }
    }
}

impl TokenWeights {
    /// The weight 1.
    pub const ONE: u64 = 1_000_000;

    /// The weighted sum, rounded up. For prices of a million tokens, the sum is in millionths of
    /// the currency.
    pub fn units(self, tokens: TokenCounts) -> u64 {
        let plain = tokens
            .input
            .saturating_sub(tokens.cached.saturating_add(tokens.cache_write));
        let sum = [
            (plain, self.input),
            (tokens.cached, self.cached),
            (tokens.cache_write, self.cache_write),
            (tokens.output, self.output),
        ];
        let sum: u128 = sum
            .into_iter()
            .map(|(count, weight)| u128::from(count) * u128::from(weight))
            .fold(0, u128::saturating_add);
        let units = sum.div_ceil(u128::from(TokenWeights::ONE));
        u64::try_from(units).unwrap_or(MAX_UNITS).min(MAX_UNITS)
    }
}

/// `[prices]`: the first name that fits a model decides.
#[derive(Clone, Debug, Default)]
pub struct PriceTable {
    pub rows: Vec<PriceRow>,
}

#[derive(Clone, Debug)]
pub struct PriceRow {
    /// The name of a model; one that ends with `*` is a beginning of names.
    pub model: Box<str>,
    pub price: TokenWeights,
}

impl PriceTable {
    pub fn find(&self, model: &str) -> Option<&PriceRow> {
        self.rows
            .iter()
            .find(|row| match row.model.strip_suffix('*') {
                Some(beginning) => model.starts_with(beginning),
                None => model == &*row.model,
            })
    }

    /// The units of these tokens of the cheapest model; 0 without models.
    pub fn least_units(&self, tokens: TokenCounts) -> u64 {
        let units = self.rows.iter().map(|row| row.price.units(tokens));
        units.min().unwrap_or(0)
    }
}

impl UsageSettings {
    /// The model whose price counts: that of the answer or, if it has no price, that of the
    /// request. Servers answer with a dated name for the name that was asked.
    pub fn priced_model<'m>(&self, answered: &'m str, asked: &'m str) -> &'m str {
        match self.prices.find(answered) {
            Some(_) => answered,
            None => asked,
        }
    }

    /// The units of these tokens in a limit that counts `quantity`. `None` if the model has no
    /// price.
    pub fn units(&self, quantity: Quantity, tokens: TokenCounts, model: &str) -> Option<u64> {
        Some(match quantity {
            Quantity::Requests => 1,
            Quantity::Costs => self.weights.units(tokens),
            Quantity::Tokens => tokens.total(),
            Quantity::Input => tokens.input,
            Quantity::Output => tokens.output,
            Quantity::Money => self.prices.find(model)?.price.units(tokens),
        })
    }
}
