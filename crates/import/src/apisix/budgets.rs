//! Budgets of tokens: `ai-rate-limiting`.

use super::models::ApisixModel;
use super::plugins::{self, RoutePlugins};
use super::{ApisixFile, ApisixRoute};
use crate::budgets::{
    Budget, CountNames, Counted, RouteCalls, WeightsDraft, note_fixed_window, rate_of,
};
use crate::linear;
use crate::tree::TreeItem;
use crate::values::KeyDraft;

const WHAT: &str = "ai-rate-limiting";

/// The names of counts in answers of servers that speak OpenAI's format.
const OPENAI_NAMES: CountNames = CountNames {
    input: &["prompt_tokens", "input_tokens"],
    cached: &[],
    cache_write: &[],
    output: &["completion_tokens", "output_tokens"],
    total: &["total_tokens"],
};

/// A rule of the plugin, and how it becomes a limit.
struct RuleText<'t> {
    about: String,
    units: &'t str,
    seconds: &'t str,
    key: KeyDraft,
}

pub(super) fn read_calls(
    route: &ApisixRoute<'_>,
    config: &TreeItem,
    found: &RoutePlugins<'_>,
    model: &ApisixModel<'_>,
    file: &mut ApisixFile<'_>,
) -> RouteCalls {
    note_settings(config, file);
    let mut calls = RouteCalls {
        format: model.format,
        budgets: Vec::new(),
        weights: None,
    };
    let Some(counts) = read_strategy(config, model, &mut calls) else {
        return calls;
    };
    let mut rules = read_rules(config);
    if rules.is_empty() {
        rules = read_instances(config, model);
    }
    for rule in rules {
        let what = format!("{WHAT} {}", rule.about);
        let seconds = rule.seconds.parse::<u64>();
        let rate = seconds
            .map_err(|_| format!("`{}` is no number of seconds", rule.seconds))
            .and_then(|seconds| rate_of(rule.units, seconds));
        match rate {
            Err(why) => config.lost(&what, why),
            Ok(rate) => calls.budgets.push(Budget {
                name: format!("{}-{}", route.what.trim_start_matches("route "), rule.about),
                source: config.entry(format!("{what} of {}", route.what)),
                rates: vec![rate],
                tiers: Vec::new(),
                counts,
                key: rule.key,
            }),
        }
    }
    if !found.limits.is_empty() {
        config.needless("calls at once", "`limit-count` bounds them");
    }
    calls
}

/// Returns what the budgets count, and sets the weights of an expression.
fn read_strategy(
    config: &TreeItem,
    model: &ApisixModel<'_>,
    calls: &mut RouteCalls,
) -> Option<Counted> {
    let strategy = config.text_at("limit_strategy").unwrap_or("total_tokens");
    if strategy != "expression" {
        let counts = Counted::of_strategy(strategy).filter(|one| *one != Counted::Money);
        if counts.is_none() {
            let why = "it is not known what this counts";
            config.lost(&format!("{WHAT}.limit_strategy: {strategy}"), why);
        }
        return counts;
    }
    let text = config.text_at("cost_expr").unwrap_or_default();
    let weights = linear::parse(text).and_then(|factors| match model.format {
        "anthropic" => WeightsDraft::of_anthropic(&factors),
        _ => WeightsDraft::of_factors(&factors, &OPENAI_NAMES),
    });
    match weights {
        Ok(weights) => {
            calls.weights = Some(weights);
            Some(Counted::Costs)
        }
        Err(why) => {
            let why = format!("{why}, so `weights` of [usage] cannot say it: no limit is written");
            config.lost(&format!("{WHAT}.cost_expr: {text}"), why);
            None
        }
    }
}

fn read_rules(config: &TreeItem) -> Vec<RuleText<'_>> {
    let mut found = Vec::new();
    for (number, rule) in config.list_at("rules").iter().enumerate() {
        let about = format!("rule-{}", number + 1);
        match plugins::key_of(rule.text_at("key").unwrap_or_default()) {
            Ok(mut key) => {
                // APISIX leaves a rule out for requests without its key.
                key.missing = Some("skip");
                found.push(RuleText {
                    about,
                    units: rule.text_at("count").unwrap_or_default(),
                    seconds: rule.text_at("time_window").unwrap_or_default(),
                    key,
                });
            }
            Err(why) => rule.lost(&format!("{WHAT}.{about}"), why),
        }
        if let Some(prefix) = rule.get("header_prefix") {
            let why = "the headers name the limit";
            prefix.needless(&format!("{WHAT}.header_prefix"), why);
        }
    }
    found
}

/// Reads `limit` of the route and those of its instances. All calls count together: a limit cannot
/// tell which server will take a call.
fn read_instances<'t>(config: &'t TreeItem, model: &ApisixModel<'_>) -> Vec<RuleText<'t>> {
    let rule = |about: &str, item: &'t TreeItem| RuleText {
        about: about.to_owned(),
        units: item.text_at("limit").unwrap_or_default(),
        seconds: item.text_at("time_window").unwrap_or_default(),
        key: KeyDraft::of_part("global"),
    };
    let mut found = Vec::new();
    if config.get("limit").is_some() {
        found.push(rule("tokens", config));
    }
    for item in config.list_at("instances") {
        let name = item.text_at("name").unwrap_or_default();
        let what = format!("{WHAT}.instances: {name}");
        let is_own = |own: &Option<String>| own.as_deref() == Some(name);
        match &model.instances[..] {
            [only] if only.name.is_none() || is_own(&only.name) => {
                // The limit of an instance takes the place of the one for all.
                found = vec![rule(name, item)];
            }
            all if all.iter().any(|one| is_own(&one.name)) => {
                let why = "a limit cannot be for one of several servers; give the instance a route \
                           of its own, with this limit";
                item.lost(&what, why);
            }
            _ => item.needless(&what, "the route has no such instance"),
        }
    }
    found
}

fn note_settings(config: &TreeItem, file: &mut ApisixFile<'_>) {
    let known = "limit time_window limit_strategy cost_expr instances rules rejected_code \
                 rejected_msg show_limit_quota_header policy allow_degradation _meta redis_host \
                 redis_port redis_username redis_password redis_database redis_timeout redis_ssl \
                 redis_ssl_verify redis_cluster_nodes redis_cluster_name redis_cluster_ssl \
                 redis_cluster_ssl_verify redis_sentinels redis_master_name sentinel_username \
                 sentinel_password redis_role redis_connect_timeout redis_read_timeout \
                 redis_keepalive_timeout";
    config.note_unknown(&format!("{WHAT}."), known);
    note_fixed_window(config, &format!("{WHAT}.time_window"));
    match config.number_at("rejected_code") {
        None => {
            let why = "a denial has 429, as long as `status` of [deny] says nothing else; APISIX \
                       had 503";
            config.differs(&format!("{WHAT}.rejected_code"), why);
        }
        Some(code) => {
            let code = u16::try_from(code).ok();
            let known = *file.draft.deny_status.get_or_insert(code.unwrap_or(429));
            if Some(known) != code {
                let why = "`status` of [deny] is one for all";
                config.lost(&format!("{WHAT}.rejected_code"), why);
            }
        }
    }
    if let Some(item) = config.get("rejected_msg") {
        let why = "`[deny.body]` is one for all limits";
        item.lost(&format!("{WHAT}.rejected_msg"), why);
    }
    if config.text_at("show_limit_quota_header") == Some("false") {
        let why = "`x_ratelimit` and `ietf` of [headers] are for all limits";
        config.lost(&format!("{WHAT}.show_limit_quota_header"), why);
    }
    if config.text_at("policy").is_some_and(|one| one != "local") {
        let why = "counts were shared between nodes; `url` of [store] names a Redis that proxies \
                   share. Its address is not copied";
        config.lost(&format!("{WHAT}.policy"), why);
    }
    if config.is_true("allow_degradation") {
        let why = "`on_error = \"allow\"` of a limit is like it";
        config.lost(&format!("{WHAT}.allow_degradation"), why);
    }
}

impl WeightsDraft {
    /// Makes weights of the counts of Anthropic's answers, whose input has no cached tokens.
    fn of_anthropic(
        factors: &std::collections::BTreeMap<String, f64>,
    ) -> Result<WeightsDraft, String> {
        let mut whole = factors.clone();
        let input = factors.get("input_tokens").copied().unwrap_or_default();
        for name in ["cache_read_input_tokens", "cache_creation_input_tokens"] {
            *whole.entry(name.to_owned()).or_default() -= input;
        }
        let names = CountNames {
            input: &["input_tokens"],
            cached: &["cache_read_input_tokens"],
            cache_write: &["cache_creation_input_tokens"],
            output: &["output_tokens"],
            total: &[],
        };
        WeightsDraft::of_factors(&whole, &names)
    }
}
