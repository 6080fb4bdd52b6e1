//! Budgets of gateways for language models: limits of tokens, weights of calls, and what differs
//! from the gateway.

use std::collections::BTreeMap;

use super::calls::{self, UsageDraft};
use super::draft::{Draft, LimitDraft, RouteDraft, TargetDraft};
use super::files::SourceEntry;
use super::tree::TreeItem;
use super::values::{KeyDraft, ListedDraft, TomlEntries, inline_table, quote, quote_one_or_list};
use crate::limit::Rate;
use crate::limit::rate::{MAX_UNITS, MAX_WINDOW_US};

/// The largest weight of a token.
const MAX_WEIGHT: f64 = 1e6;

/// Months and years of gateways, seconds.
pub(super) const MONTH_SECONDS: u64 = 30 * 86_400;
pub(super) const YEAR_SECONDS: u64 = 365 * 86_400;

/// The member of a body that names the model.
pub(super) const MODEL: &str = "body:model";

/// What a budget counts of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Requests,
    Tokens,
    Input,
    Output,
    /// Tokens by the weights of the route's usage.
    Costs,
    Money,
}

impl Counted {
    /// Reads the word of Kong and APISIX.
    pub(super) fn of_strategy(word: &str) -> Option<Counted> {
        Some(match word {
            "total_tokens" => Counted::Tokens,
            "prompt_tokens" => Counted::Input,
            "completion_tokens" => Counted::Output,
            "cost" => Counted::Money,
            _ => return None,
        })
    }

    /// The word of `counts`.
    fn word(self) -> &'static str {
        match self {
            Counted::Requests => "requests",
            Counted::Tokens => "tokens",
            Counted::Input => "input",
            Counted::Output => "output",
            Counted::Costs => "costs",
            Counted::Money => "money",
        }
    }

    fn counts_output(self) -> bool {
        matches!(self, Counted::Tokens | Counted::Output)
    }
}

/// The rates of one tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TierRates {
    pub(super) tier: String,
    pub(super) rates: Vec<Rate>,
}

/// A limit of calls.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    pub(super) name: String,
    pub(super) source: SourceEntry,
    /// Empty is no limit, except for tiers.
    pub(super) rates: Vec<Rate>,
    pub(super) tiers: Vec<TierRates>,
    pub(super) counts: Counted,
    pub(super) key: KeyDraft,
}

impl Budget {
    /// Adds the limit. Returns its name.
    pub(super) fn add_to(&self, draft: &mut Draft) -> String {
        let mut entries = TomlEntries::default();
        entries.add("rate", rates_text(&self.rates));
        let tiers = self.tiers.iter();
        let tiers = tiers.map(|one| format!("{} = {}", quote(&one.tier), rates_text(&one.rates)));
        entries.add_table("tiers", &tiers.collect::<Vec<_>>());
        self.key.add_to(&mut entries);
        let tier_rates = self.tiers.iter().flat_map(|one| &one.rates);
        if self
            .rates
            .iter()
            .chain(tier_rates)
            .any(|rate| rate.calendar.is_some())
        {
            entries.add("calendar", "{ zone = \"UTC\" }");
        }
        entries.add("counts", quote(self.counts.word()));
        draft.add_limit(LimitDraft {
            name: self.name.clone(),
            source: self.source.clone(),
            entries,
        })
    }

    fn smallest(&self) -> Option<u64> {
        let tiers = self.tiers.iter().flat_map(|one| &one.rates);
        self.rates.iter().chain(tiers).map(|rate| rate.units).min()
    }
}

fn rates_text(rates: &[Rate]) -> String {
    let texts: Vec<String> = rates.iter().map(Rate::to_string).collect();
    match texts.is_empty() {
        true => quote("unlimited"),
        false => quote_one_or_list(&texts),
    }
}

/// Makes a rate of a count and a length in seconds. The error says why there is none.
pub(super) fn rate_of(units: &str, seconds: u64) -> Result<Rate, String> {
    let units = whole(units).ok_or_else(|| format!("`{units}` is no number of units"))?;
    if !(1..=MAX_UNITS).contains(&units) {
        return Err(format!("a rate has 1 to {MAX_UNITS} units"));
    }
    let window_us = seconds.checked_mul(1_000_000);
    let window_us = window_us.filter(|us| (1..=MAX_WINDOW_US).contains(us));
    let window_us = window_us.ok_or("no window is that long")?;
    Ok(Rate::sliding(units, window_us))
}

/// Reads a number without its fraction.
fn whole(text: &str) -> Option<u64> {
    let digits = match text.split_once('.') {
        Some((digits, rest)) if rest.chars().all(|c| c.is_ascii_digit()) => digits,
        Some(_) => return None,
        None => text,
    };
    digits.parse().ok()
}

/// Adds a rate. Of two of the same length, only the smaller one has an effect.
pub(super) fn add_rate(rates: &mut Vec<Rate>, rate: Rate) {
    match rates.iter_mut().find(|one| one.window_us == rate.window_us) {
        Some(same) => same.units = same.units.min(rate.units),
        None => rates.push(rate),
    }
}

/// Weights of tokens, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WeightsDraft {
    pub(super) input: u64,
    pub(super) cached: u64,
    pub(super) cache_write: u64,
    pub(super) output: u64,
}

/// The names of counts in a formula of a gateway.
pub(super) struct CountNames {
    pub(super) input: &'static [&'static str],
    pub(super) cached: &'static [&'static str],
    pub(super) cache_write: &'static [&'static str],
    pub(super) output: &'static [&'static str],
    pub(super) total: &'static [&'static str],
}

impl WeightsDraft {
    /// Makes weights of factors. The count of input includes cached tokens.
    pub(super) fn of_factors(
        factors: &BTreeMap<String, f64>,
        names: &CountNames,
    ) -> Result<WeightsDraft, String> {
        let all = [
            names.input,
            names.cached,
            names.cache_write,
            names.output,
            names.total,
        ];
        let is_known = |name: &str| name.is_empty() || all.iter().any(|one| one.contains(&name));
        if let Some(name) = factors.keys().find(|name| !is_known(name)) {
            return Err(format!("no weight is for `{name}`"));
        }
        let sum = |names: &[&str]| -> f64 {
            let found = names.iter().filter_map(|name| factors.get(*name));
            found.sum()
        };
        let total = sum(names.total);
        let input = total + sum(names.input);
        Ok(WeightsDraft {
            input: millionths(input)?,
            cached: millionths(input + sum(names.cached))?,
            cache_write: millionths(input + sum(names.cache_write))?,
            output: millionths(total + sum(names.output))?,
        })
    }

    fn text(self) -> String {
        let fields = [
            ("input", self.input),
            ("cached", self.cached),
            ("cache_write", self.cache_write),
            ("output", self.output),
        ];
        let fields = fields.map(|(name, value)| format!("{name} = {}", calls::decimal(value)));
        inline_table(&fields)
    }
}

/// Returns a weight in millionths, rounded to a whole number of them.
pub(super) fn millionths(weight: f64) -> Result<u64, String> {
    if !(-1e-9..=MAX_WEIGHT).contains(&weight) {
        return Err(format!("a weight is from 0 to {MAX_WEIGHT}, not {weight}"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    Ok((weight.max(0.0) * 1e6).round() as u64)
}

/// What the calls of one route have: the server's format, budgets, and weights.
pub(super) struct RouteCalls {
    /// A format of `[usage.NAME]`.
    pub(super) format: &'static str,
    pub(super) budgets: Vec<Budget>,
    pub(super) weights: Option<WeightsDraft>,
}

impl RouteCalls {
    /// Adds limits and usage to a route that forwards calls. `item` is the source of the budgets.
    pub(super) fn add_to(&self, route: &mut RouteDraft, item: &TreeItem, draft: &mut Draft) {
        if self.budgets.is_empty() || !matches!(route.target, TargetDraft::Upstream(_)) {
            return;
        }
        // Other limits of the route count its requests.
        let counts_requests = |one: &Budget| one.counts == Counted::Requests;
        let has_request_limit =
            !route.limits.is_empty() || self.budgets.iter().any(counts_requests);
        for budget in &self.budgets {
            let name = budget.add_to(draft);
            if !route.limits.contains(&name) {
                route.limits.push(name);
            }
        }
        if self.budgets.iter().all(counts_requests) {
            return;
        }
        self.add_usage(route, item, draft);
        if has_request_limit {
            let why = "a call that fails is charged its reserve: `refund` would also give back \
                       its request to the limits that count requests";
            item.differs("failed calls", why);
        } else {
            route.entries.add_new("refund", "[\"4xx\", \"5xx\"]");
        }
    }

    fn add_usage(&self, route: &mut RouteDraft, item: &TreeItem, draft: &mut Draft) {
        let mut entries = TomlEntries::default();
        entries.add("format", quote(self.format));
        let counting = self.budgets.iter().filter(|one| one.counts.counts_output());
        let smallest = counting.filter_map(Budget::smallest).min();
        if let Some(output) = smallest.and_then(calls::default_output) {
            entries.add("default_output", output.to_string());
        }
        if let Some(weights) = self.weights {
            entries.add("weights", weights.text());
        }
        let source = item.entry("of the calls that these budgets count".to_owned());
        let usage = UsageDraft {
            name: self.format.to_owned(),
            source,
            entries,
        };
        route.usage = Some(draft.calls.add_usage(usage));
        let why = "a call reserves an estimate before the server sees it, and pays what the answer \
                   says; the gateway charged after the answer, so that calls at once could \
                   overdraw it. `default_output` of [usage] is what a call without a maximum \
                   reserves";
        item.differs("budgets", why);
        let bounds = |one: &Budget| one.counts == Counted::Requests;
        if !self.budgets.iter().any(bounds) {
            let why = "nothing bounds the calls under way; add a limit with `concurrent`";
            item.differs("calls at once", why);
        }
    }
}

/// Adds a part to a key whose values are listed. All other values share one budget.
pub(super) fn add_listed(key: &mut KeyDraft, part: &str, values: Vec<String>) {
    key.parts.push(part.to_owned());
    key.listed.push(ListedDraft {
        part: part.to_owned(),
        values,
    });
}

/// Notes that a window was one of the clock.
pub(super) fn note_fixed_window(item: &TreeItem, what: &str) {
    let why = "the window began at full minutes, hours or days of the clock, or with the first \
               call; here no window of this length ever holds more, wherever it begins";
    item.differs(what, why);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear;

    const NAMES: CountNames = CountNames {
        input: &["input_tokens"],
        cached: &["cached_input_tokens"],
        cache_write: &["cache_creation_input_tokens"],
        output: &["output_tokens"],
        total: &["total_tokens"],
    };

    fn weights(formula: &str) -> Result<String, String> {
        let factors = linear::parse(formula)?;
        WeightsDraft::of_factors(&factors, &NAMES).map(WeightsDraft::text)
    }

    #[test]
    fn formulas_become_weights() {
        let formula = "(input_tokens - cached_input_tokens) + cached_input_tokens * 0.1 \
                       + output_tokens * 1.5";
        assert_eq!(
            weights(formula).as_deref(),
            Ok("{ input = 1, cached = 0.1, cache_write = 1, output = 1.5 }")
        );
        assert_eq!(
            weights("total_tokens + output_tokens").as_deref(),
            Ok("{ input = 1, cached = 1, cache_write = 1, output = 2 }")
        );
        assert!(weights("output_tokens - input_tokens").is_err());
        assert!(weights("reasoning_tokens").is_err());
    }

    #[test]
    fn rates_are_counts_in_seconds() {
        let text = |units, seconds| rate_of(units, seconds).map(|rate| rate.to_string());
        assert_eq!(text("100", 60).as_deref(), Ok("100/min"));
        assert_eq!(text("100.7", 2_592_000).as_deref(), Ok("100/30d"));
        for (units, seconds) in [("0", 60), ("-1", 60), ("x", 1), ("5", 0), ("5", u64::MAX)] {
            assert!(text(units, seconds).is_err(), "{units} {seconds}");
        }
        let mut rates = Vec::new();
        for units in ["7", "5", "6"] {
            add_rate(&mut rates, rate_of(units, 60).unwrap());
        }
        assert_eq!(rates_text(&rates), "\"5/min\"");
        assert_eq!(rates_text(&[]), "\"unlimited\"");
    }
}
