//! `policies` of `ai-rate-limiting-advanced`, since Kong 3.14: limits for calls that match.

use super::budget_plugin::{BudgetPlugin, LimitText};
use crate::budgets::{self, Budget, Counted, TierRates, add_listed};
use crate::draft::clean_name;
use crate::limit::Rate;
use crate::tree::TreeItem;
use crate::values::KeyDraft;

/// What the conditions of a policy say about the calls of one route.
enum PolicyMatch {
    /// No call of the route matches.
    Never,
    /// It cannot be translated, for this reason.
    Lost(String),
    Some(MatchedCalls),
}

/// The calls of a route that a policy counts.
#[derive(Default)]
struct MatchedCalls {
    key: KeyDraft,
    tiers: Vec<String>,
}

pub(super) fn read(plugin: &BudgetPlugin<'_, '_>, policies: &[TreeItem]) -> Vec<Budget> {
    let mut found = Vec::new();
    let mut is_matched = false;
    for (number, policy) in policies.iter().enumerate() {
        let what = format!("ai-rate-limiting-advanced.policies {}", number + 1);
        policy.note_unknown(&format!("{what}."), "id limits match window_type");
        let conditions = policy.list_at("match");
        if policy.get("id").is_some() {
            policy.lost(&what, "its limits are not in this file");
            continue;
        }
        // A policy without conditions is for calls that no other one matches.
        if conditions.is_empty() && is_matched {
            policy.needless(&what, "another policy matches all calls of the route");
            continue;
        }
        match read_match(plugin, conditions) {
            PolicyMatch::Never => {
                let why = format!("no call of {} matches", plugin.route.what);
                policy.needless(&what, why);
            }
            PolicyMatch::Lost(why) => policy.lost(&what, why),
            PolicyMatch::Some(calls) => {
                is_matched |= calls.tiers.is_empty() && calls.key.listed.is_empty();
                add_budgets(plugin, policy, &calls, &mut found);
            }
        }
        if policy.text_at("window_type") == Some("fixed") {
            budgets::note_fixed_window(policy, &format!("{what}.window_type"));
        }
    }
    found
}

fn read_match(plugin: &BudgetPlugin<'_, '_>, conditions: &[TreeItem]) -> PolicyMatch {
    let mut calls = MatchedCalls::default();
    for condition in conditions {
        match calls.add_condition(plugin, condition) {
            Ok(true) => {}
            Ok(false) => return PolicyMatch::Never,
            Err(why) => return PolicyMatch::Lost(why),
        }
    }
    if calls.key.parts.is_empty() {
        calls.key = KeyDraft::of_part("global");
    }
    if calls.key.parts.iter().any(|one| one == "api_key") {
        calls.key.missing = Some("deny");
    }
    PolicyMatch::Some(calls)
}

impl MatchedCalls {
    /// Adds a condition. Returns whether calls of the route can match it. The error says why no
    /// limit is for calls that do.
    fn add_condition(
        &mut self,
        plugin: &BudgetPlugin<'_, '_>,
        condition: &TreeItem,
    ) -> Result<bool, String> {
        let kind = condition.text_at("type").unwrap_or_default();
        let values = condition.texts_at("values");
        match kind {
            "provider" => match_names(&values, &[plugin.model.provider.name]),
            "model" => match plugin.model.names() {
                Some(names) => match_names(&values, &names),
                None if values.is_empty() => Ok(true),
                None => {
                    self.add_values(condition, budgets::MODEL, values);
                    Ok(true)
                }
            },
            "consumer" | "consumer_group" if !plugin.has_keys => {
                Err("the route has no key-auth, so it has no consumers".to_owned())
            }
            "consumer" | "consumer_group" => {
                self.tiers.extend(values.iter().map(|one| clean_name(one)));
                let is_own = kind == "consumer" || condition.is_true("partition_by");
                let part = if is_own { "api_key" } else { "tier" };
                self.key.parts.push(part.to_owned());
                Ok(true)
            }
            "header" => {
                let name = condition.text_at("key").unwrap_or_default();
                let part = format!("header:{}", name.to_ascii_lowercase());
                self.add_values(condition, &part, values);
                self.key.missing = Some("skip");
                Ok(true)
            }
            "ip" if values.is_empty() => {
                self.key.parts.push("ip".to_owned());
                Ok(true)
            }
            "path" => {
                let paths = plugin.route.item.texts_at("paths");
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                match_names(&values, &paths)
            }
            _ => Err(format!("no limit is for `{kind}` of these values alone")),
        }
    }

    /// Adds a part of the key whose listed values count by themselves.
    fn add_values(&mut self, condition: &TreeItem, part: &str, values: Vec<String>) {
        if values.is_empty() {
            self.key.parts.push(part.to_owned());
            return;
        }
        let why = "other values share one budget of the same size, and Kong did not count them; \
                   each listed value has a budget of its own";
        condition.differs(&format!("match {part}"), why);
        add_listed(&mut self.key, part, values);
    }
}

/// Returns whether the route's names are all among the values, or none. Fails if some are.
fn match_names(values: &[String], own: &[&str]) -> Result<bool, String> {
    let count = own
        .iter()
        .filter(|name| values.iter().any(|one| one == *name));
    match count.count() {
        _ if values.is_empty() => Ok(true),
        0 => Ok(false),
        count if count == own.len() => Ok(true),
        _ => Err("only some calls of the route match, and no limit is for these alone".to_owned()),
    }
}

/// Adds a budget for each quantity that the limits of a policy count.
fn add_budgets(
    plugin: &BudgetPlugin<'_, '_>,
    policy: &TreeItem,
    calls: &MatchedCalls,
    found: &mut Vec<Budget>,
) {
    for counts in [
        Counted::Tokens,
        Counted::Input,
        Counted::Output,
        Counted::Money,
    ] {
        let mut rates: Vec<Rate> = Vec::new();
        for item in policy.list_at("limits") {
            let strategy = item.text_at("tokens_count_strategy");
            if Counted::of_strategy(strategy.unwrap_or("total_tokens")) != Some(counts) {
                continue;
            }
            let text = LimitText {
                limit: item.text_at("limit").unwrap_or_default(),
                window: item.text_at("window_size").unwrap_or_default(),
                counts,
            };
            plugin.add_rate(item, text, &mut rates);
        }
        if rates.is_empty() {
            continue;
        }
        let mut budget = Budget {
            counts,
            key: calls.key.clone(),
            ..plugin.budget(plugin.model.provider.name, rates)
        };
        budget.source.place = policy.place();
        if !calls.tiers.is_empty() {
            let rates = std::mem::take(&mut budget.rates);
            budget.tiers = calls
                .tiers
                .iter()
                .map(|tier| TierRates {
                    tier: tier.clone(),
                    rates: rates.clone(),
                })
                .collect();
        }
        found.push(budget);
    }
}
