//! The parts of a draft about calls of a language model: `[usage.NAME]`, `[prices]`, and the
//! sections that say who a client is.

use super::files::SourceEntry;
use super::tree::TreeItem;
use super::values::{TomlEntries, quote, quote_list};

/// Output of a call without a maximum, tokens: the default of `default_output`.
const DEFAULT_OUTPUT: u64 = 1024;
/// Calls without a maximum that the smallest budget holds at once, at least.
const CALLS_AT_ONCE: u64 = 10;

/// `[usage.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsageDraft {
    pub(super) name: String,
    pub(super) source: SourceEntry,
    pub(super) entries: TomlEntries,
}

/// A line of `[prices]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PriceDraft {
    pub(super) model: String,
    pub(super) price: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct CallsDraft {
    pub(super) usages: Vec<UsageDraft>,
    pub(super) prices: Vec<PriceDraft>,
    /// `[api_key]`
    pub(super) api_key: TomlEntries,
    /// The sources of keys in `[api_key]`, of all routes.
    key_sources: Vec<String>,
    /// `[tier]`
    pub(super) tier: TomlEntries,
}

impl CallsDraft {
    /// Adds the sources of keys of some routes, and refuses unknown keys. `item` is the source.
    pub(super) fn add_key_sources(&mut self, sources: &[String], item: &TreeItem) {
        let is_first = self.key_sources.is_empty();
        let is_new = |one: &&String| !self.key_sources.contains(one);
        let new: Vec<String> = sources.iter().filter(is_new).cloned().collect();
        if !is_first && !new.is_empty() {
            let why = "`from` of [api_key] is for all routes: each route reads the keys of all";
            item.differs(&format!("keys in {}", new.join(", ")), why);
        }
        self.key_sources.extend(new);
        let value = quote_list(&self.key_sources);
        let mut entries = self.api_key.list.iter_mut();
        match entries.find(|entry| entry.key == "from") {
            Some(entry) => entry.value = value,
            None => self.api_key.add("from", value),
        }
        self.api_key.add_new("unknown", quote("deny"));
    }

    /// Adds a usage unless there is an equal one. Returns its name.
    pub(super) fn add_usage(&mut self, mut draft: UsageDraft) -> String {
        if let Some(known) = self.usages.iter().find(|one| one.entries == draft.entries) {
            return known.name.clone();
        }
        let same_name = format!("{}-", draft.name);
        let is_same =
            |one: &&UsageDraft| one.name == draft.name || one.name.starts_with(same_name.as_str());
        let count = self.usages.iter().filter(is_same).count();
        if count > 0 {
            draft.name = format!("{}-{}", draft.name, count + 1);
        }
        let name = draft.name.clone();
        self.usages.push(draft);
        name
    }

    /// Adds a price unless the model has one. Returns whether it has this price now.
    pub(super) fn add_price(&mut self, draft: PriceDraft) -> bool {
        match self.prices.iter().find(|one| one.model == draft.model) {
            Some(known) => known.price == draft.price,
            None => {
                self.prices.push(draft);
                true
            }
        }
    }

    /// Orders the names so that none hides a later one.
    pub(super) fn sort_prices(&mut self) {
        let rank = |one: &PriceDraft| (one.model.ends_with('*'), usize::MAX - one.model.len());
        self.prices.sort_by_key(rank);
    }
}

/// Returns `default_output` for a budget of so many tokens, if the default is too large for it.
///
/// Without it, one call without a maximum would reserve the whole budget.
pub(super) fn default_output(smallest: u64) -> Option<u64> {
    let fits = (smallest / CALLS_AT_ONCE).max(1);
    (fits < DEFAULT_OUTPUT).then_some(fits)
}

/// Writes a number of millionths as a decimal.
pub(super) fn decimal(millionths: u64) -> String {
    let (whole, rest) = (millionths / 1_000_000, millionths % 1_000_000);
    match rest {
        0 => whole.to_string(),
        rest => format!("{whole}.{rest:06}")
            .trim_end_matches('0')
            .to_owned(),
    }
}

/// Returns the lines of `[prices]`.
pub(super) fn price_lines(prices: &[PriceDraft]) -> TomlEntries {
    let mut entries = TomlEntries::default();
    for one in prices {
        entries.add(&quote(&one.model), one.price.clone());
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_budget_holds_several_calls() {
        assert_eq!(default_output(100), Some(10));
        assert_eq!(default_output(3), Some(1));
        assert_eq!(default_output(10_240), None);
        assert_eq!(decimal(1_250_000), "1.25");
        assert_eq!(decimal(3_000_000), "3");
        assert_eq!(decimal(100_000), "0.1");
    }

    #[test]
    fn longer_names_of_models_come_first() {
        let mut calls = CallsDraft::default();
        for (model, price) in [("*", "a"), ("gpt-5", "b"), ("gpt-5", "b"), ("gpt*", "c")] {
            let (model, price) = (model.to_owned(), price.to_owned());
            assert!(calls.add_price(PriceDraft { model, price }));
        }
        calls.sort_prices();
        let names: Vec<&str> = calls.prices.iter().map(|one| one.model.as_str()).collect();
        assert_eq!(names, ["gpt-5", "gpt*", "*"]);
    }
}
