//! One configuration of `ai-rate-limiting-advanced` on one route, and the rates of its limits.

use super::KongRoute;
use super::identifiers::scope_name;
use super::models::KongModel;
use crate::budgets::{self, Budget, Counted, TierRates, add_rate, rate_of};
use crate::limit::Rate;
use crate::tree::TreeItem;
use crate::values::KeyDraft;

/// The name of the plugin in notes.
pub(super) const WHAT: &str = "ai-rate-limiting-advanced";

/// A configuration of the plugin, for all clients or for one tier.
#[derive(Clone, Copy)]
pub(super) struct BudgetPlugin<'r, 'd> {
    pub(super) config: &'d TreeItem,
    /// Requests of one scope have one budget.
    pub(super) scope: &'r str,
    pub(super) tier: Option<&'r str>,
    pub(super) route: &'r KongRoute<'d>,
    pub(super) model: &'r KongModel<'d>,
    pub(super) has_keys: bool,
}

/// A limit and its window as the file has them.
#[derive(Clone, Copy)]
pub(super) struct LimitText<'t> {
    pub(super) limit: &'t str,
    /// In seconds.
    pub(super) window: &'t str,
    pub(super) counts: Counted,
}

impl BudgetPlugin<'_, '_> {
    /// Returns the name of a limit.
    pub(super) fn limit_name(&self, about: &str) -> String {
        let scope = self.tier.unwrap_or_else(|| scope_name(self.scope));
        format!("{scope}-{about}")
    }

    /// Puts rates where they hold: for all clients, or for the tier.
    pub(super) fn budget(&self, about: &str, rates: Vec<Rate>) -> Budget {
        let text = format!("{WHAT} {about} of {}", self.scope);
        let (rates, tiers) = match self.tier {
            None => (rates, Vec::new()),
            Some(tier) => {
                let tier = tier.to_owned();
                (Vec::new(), vec![TierRates { tier, rates }])
            }
        };
        Budget {
            name: self.limit_name(about),
            source: self.config.entry(text),
            rates,
            tiers,
            counts: Counted::Tokens,
            key: KeyDraft::of_part("ip"),
        }
    }

    pub(super) fn add_rate(&self, item: &TreeItem, text: LimitText<'_>, rates: &mut Vec<Rate>) {
        let LimitText {
            limit,
            window,
            counts,
        } = text;
        let what = format!("{WHAT}: {limit} in {window} s");
        let units = match counts {
            // A cost of Kong is in the currency of the prices.
            Counted::Money => limit
                .parse::<f64>()
                .ok()
                .and_then(|limit| budgets::millionths(limit).ok())
                .map_or_else(|| limit.to_owned(), |units| units.to_string()),
            _ => limit.to_owned(),
        };
        let seconds = window.parse::<u64>();
        let rate = seconds
            .map_err(|_| format!("`{window}` is no number of seconds"))
            .and_then(|seconds| rate_of(&units, seconds));
        match rate {
            Ok(rate) => add_rate(rates, rate),
            Err(why) => item.lost(&what, why),
        }
    }
}
