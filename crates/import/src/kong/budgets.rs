//! Budgets of tokens: `ai-rate-limiting-advanced`, with `llm_providers` or with `policies`.

use super::budget_plugin::{BudgetPlugin, LimitText, WHAT};
use super::identifiers::{counted_scope, key_of};
use super::models::KongModel;
use super::plugins::KongRoutePlugins;
use super::policies;
use super::{KongFile, KongRoute};
use crate::budgets::{self, Budget, Counted, RouteCalls, TierRates};
use crate::limit::Rate;
use crate::tree::TreeItem;
use crate::values::KeyDraft;

/// Reads the budgets that hold for the calls of a route.
pub(super) fn read_calls<'d>(
    route: &KongRoute<'d>,
    plugins: &KongRoutePlugins<'d>,
    model: &KongModel<'d>,
    file: &mut KongFile<'d>,
) -> RouteCalls {
    let all = plugins.budgets.iter().map(|plugin| (plugin, None));
    let tiers = plugins.tiers.iter();
    let all = all.chain(tiers.map(|one| (&one.plugin, Some(one.tier.as_str()))));
    let mut budgets = Vec::new();
    for (scoped, tier) in all {
        let config = scoped.config();
        let by = config.text_at("identifier").unwrap_or_default();
        let plugin = BudgetPlugin {
            config,
            scope: &counted_scope(by, &scoped.scope, route),
            tier,
            route,
            model,
            has_keys: plugins.has_keys,
        };
        plugin.note_settings(file);
        let mut found = match config.list_at("policies") {
            [] => plugin.read_providers(),
            list => policies::read(&plugin, list),
        };
        found.retain(|one| one.counts != Counted::Money || plugin.add_prices(file));
        // A consumer's own budget takes the place of the route's.
        if tier.is_none() {
            for budget in &mut found {
                budget.free_tiers(plugins.tiers.iter().map(|one| one.tier.as_str()));
            }
        }
        budgets.append(&mut found);
    }
    RouteCalls {
        format: model.format,
        budgets,
        weights: None,
    }
}

impl Budget {
    /// Leaves clients of these tiers out of the limit.
    fn free_tiers<'t>(&mut self, tiers: impl Iterator<Item = &'t str>) {
        for tier in tiers {
            if self.tiers.iter().all(|one| one.tier != tier) {
                self.tiers.push(TierRates {
                    tier: tier.to_owned(),
                    rates: Vec::new(),
                });
            }
        }
    }
}

/// Returns the texts of a value, which is one or a list.
fn texts_of<'t>(item: &'t TreeItem, key: &str) -> Vec<&'t str> {
    let Some(value) = item.get(key) else {
        return Vec::new();
    };
    let several = value.list().iter().filter_map(TreeItem::text);
    value.text().into_iter().chain(several).collect()
}

impl<'d> BudgetPlugin<'_, 'd> {
    fn read_providers(&self) -> Vec<Budget> {
        let strategy = self.config.text_at("tokens_count_strategy");
        let strategy = strategy.unwrap_or("total_tokens");
        let Some(counts) = Counted::of_strategy(strategy) else {
            let why = "it is not known what this counts";
            self.config
                .lost(&format!("{WHAT}.tokens_count_strategy: {strategy}"), why);
            return Vec::new();
        };
        let by = self.config.text_at("identifier").unwrap_or("consumer");
        let key = key_of(by, self.config, self.has_keys).unwrap_or_else(|why| {
            self.config.lost(&format!("{WHAT}.identifier"), why);
            KeyDraft::of_part("ip")
        });
        let mut found = Vec::new();
        for item in self.config.list_at("llm_providers") {
            let name = item.text_at("name").unwrap_or_default();
            if matches!(name, "requestPrompt" | "customCost") {
                let why = "a function of Lua counts these, and tidegate runs none";
                item.lost(&format!("{WHAT}.llm_providers: {name}"), why);
                continue;
            }
            if name != self.model.provider.name {
                let why = format!("no call of {} goes there", self.route.what);
                item.needless(&format!("{WHAT}.llm_providers: {name}"), why);
                continue;
            }
            let rates = self.read_rates(item, counts);
            if !rates.is_empty() {
                found.push(Budget {
                    counts,
                    key: key.clone(),
                    ..self.budget(name, rates)
                });
            }
        }
        found
    }

    /// Reads `limit` and `window_size`, both a number or a list.
    fn read_rates(&self, item: &TreeItem, counts: Counted) -> Vec<Rate> {
        let (limits, windows) = (texts_of(item, "limit"), texts_of(item, "window_size"));
        if limits.len() != windows.len() {
            item.lost(&format!("{WHAT}.limit"), "not each limit has a window");
        }
        let mut rates = Vec::new();
        for (limit, window) in limits.into_iter().zip(windows) {
            self.add_rate(
                item,
                LimitText {
                    limit,
                    window,
                    counts,
                },
                &mut rates,
            );
        }
        rates
    }

    /// Writes the prices of the models. Returns whether all are known.
    fn add_prices(&self, file: &mut KongFile<'d>) -> bool {
        let added = self.model.add_prices(file);
        if let Err(why) = &added {
            let why = format!(
                "{why}, so the budget of money is left out: write [prices] with `input` and \
                 `output` of a million tokens, and a limit with `counts = \"money\"`"
            );
            self.config.lost(&format!("{WHAT}: cost"), why);
        }
        added.is_ok()
    }

    fn note_settings(&self, file: &mut KongFile<'d>) {
        let config = self.config;
        let known = "llm_providers policies tokens_count_strategy window_type identifier \
                     header_name path sync_rate strategy error_code error_message llm_format \
                     request_prompt_count_function disable_penalty redis dictionary_name namespace \
                     hide_client_headers error_hide_providers retry_after_jitter_max \
                     custom_cost_count_function decrease_by_fractions_in_redis";
        config.note_unknown(&format!("{WHAT}."), known);
        match config.text_at("window_type") {
            Some("fixed") => budgets::note_fixed_window(config, &format!("{WHAT}.window_type")),
            _ => {
                let why = "Kong estimated a sliding window from two fixed ones; here it is exact";
                config.differs(&format!("{WHAT}.window_type"), why);
            }
        }
        for key in [
            "request_prompt_count_function",
            "custom_cost_count_function",
        ] {
            if let Some(item) = config.get(key) {
                item.lost(&format!("{WHAT}.{key}"), "tidegate runs no Lua");
            }
        }
        self.note_denials(file);
        if let Some("redis" | "cluster") = config.text_at("strategy") {
            let why = "counts were shared between nodes; `url` of [store] names a Redis that \
                       proxies share. Its address is not copied";
            config.lost(&format!("{WHAT}.strategy"), why);
        }
        for key in [
            "sync_rate",
            "dictionary_name",
            "namespace",
            "disable_penalty",
            "error_hide_providers",
            "decrease_by_fractions_in_redis",
            "llm_format",
        ] {
            if let Some(item) = config.get(key) {
                let why = "each decision asks the store, a denied call costs nothing, and ai-proxy \
                           gives the format";
                item.needless(&format!("{WHAT}.{key}"), why);
            }
        }
    }

    /// Notes what Kong answered to calls that it denied.
    fn note_denials(&self, file: &mut KongFile<'d>) {
        let config = self.config;
        match config.number_at("error_code") {
            None | Some(429) => {}
            Some(code) => {
                let code = u16::try_from(code).ok();
                let known = *file.draft.deny_status.get_or_insert(code.unwrap_or(429));
                if Some(known) != code {
                    let why = "`status` of [deny] is one for all";
                    config.lost(&format!("{WHAT}.error_code"), why);
                }
            }
        }
        for (key, why) in [
            ("error_message", "`[deny.body]` is one for all limits"),
            ("retry_after_jitter_max", "Retry-After is exact"),
        ] {
            if let Some(item) = config.get(key) {
                item.lost(&format!("{WHAT}.{key}"), why);
            }
        }
        if config.is_true("hide_client_headers") {
            let why = "`x_ratelimit` and `ietf` of [headers] are for all limits";
            config.lost(&format!("{WHAT}.hide_client_headers"), why);
        }
    }
}
