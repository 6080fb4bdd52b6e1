//! Rules of `BackendTrafficPolicy` as budgets.

use super::costs::{self, NAMESPACE, RequestCosts};
use super::{EnvoyFile, name_of};
use crate::budgets::{
    Budget, Counted, MODEL, MONTH_SECONDS, YEAR_SECONDS, add_listed, add_rate, note_fixed_window,
    rate_of,
};
use crate::limit::Rate;
use crate::tree::TreeItem;
use crate::values::KeyDraft;

/// The header that AI gateway sets to the model of the body.
const MODEL_HEADER: &str = "x-ai-eg-model";

/// Whether a policy is for a route, or for a gateway of the route.
pub(super) fn targets(policy: &TreeItem, route: &TreeItem, file: &EnvoyFile) -> bool {
    let own = name_of(route);
    let parents = route.list_at("spec.parentRefs").iter();
    let parents: Vec<&str> = parents.filter_map(|one| one.text_at("name")).collect();
    let several = policy.list_at("spec.targetRefs").iter();
    let mut all = several.chain(policy.at("spec.targetRef"));
    all.any(|one| {
        let name = one.text_at("name").unwrap_or_default();
        match one.text_at("kind") {
            Some("Gateway") => parents.contains(&name),
            // The gateway makes an HTTPRoute of the same name.
            Some("HTTPRoute" | "AIGatewayRoute") => name == own,
            _ => false,
        }
    }) || policy.list_at("spec.targetSelectors").iter().any(|one| {
        match one.text_at("kind") {
            // A gateway of another file may have the labels.
            Some("Gateway") => parents
                .iter()
                .any(|name| file.find("Gateway", name).is_none_or(|it| selects(one, it))),
            Some("HTTPRoute" | "AIGatewayRoute") => selects(one, route),
            _ => false,
        }
    })
}

/// Whether a resource has the labels of a selector. Its `matchExpressions` may match each resource.
fn selects(selector: &TreeItem, resource: &TreeItem) -> bool {
    let labels = resource.at("metadata.labels");
    selector
        .entries_at("matchLabels")
        .iter()
        .all(|(key, value)| {
            let own = labels.and_then(|labels| labels.get(key));
            own.is_some_and(|own| own.text() == value.text())
        })
}

/// A rule before it is a budget.
struct RuleParts {
    rates: Vec<Rate>,
    counts: Counted,
    key: KeyDraft,
    /// The models that the rule is for.
    models: Vec<String>,
    what: String,
    /// The route, if each route has a budget of its own.
    scope: Option<String>,
    item: TreeItem,
}

/// Reads the budgets of a route.
pub(super) fn read_budgets(
    route: &TreeItem,
    costs: &mut RequestCosts,
    file: &EnvoyFile,
) -> Vec<Budget> {
    let mut rules: Vec<RuleParts> = Vec::new();
    let mut used = Vec::new();
    for policy in file
        .all("BackendTrafficPolicy")
        .filter(|one| targets(one, route, file))
    {
        note_policy(policy);
        for (number, item) in policy
            .list_at("spec.rateLimit.global.rules")
            .iter()
            .enumerate()
        {
            let what = format!("{} rule {}", name_of(policy), number + 1);
            used.extend(costs::metadata_key(item).map(str::to_owned));
            let scope = format!("AIGatewayRoute {}", name_of(route));
            match read_rule(item, &what, costs) {
                Ok(rule) => rules.push(RuleParts {
                    scope: (!item.is_true("shared")).then_some(scope),
                    ..rule
                }),
                Err(why) => item.lost(&what, why),
            }
        }
    }
    costs.note_unused(route, &used);
    join_models(&mut rules);
    rules.into_iter().map(RuleParts::into_budget).collect()
}

fn note_policy(policy: &TreeItem) {
    let what = format!("BackendTrafficPolicy {}", name_of(policy));
    if let Some(spec) = policy.get("spec") {
        spec.note_unknown(
            &format!("{what}."),
            "targetRef targetRefs rateLimit targetSelectors",
        );
    }
    if let Some(local) = policy.at("spec.rateLimit.local") {
        let why = "counts each proxy for itself; write a limit of requests";
        local.lost(&format!("{what}: local rules"), why);
    }
    if policy.at("spec.rateLimit.global").is_some() {
        note_fixed_window(policy, &what);
    }
}

fn read_rule(item: &TreeItem, what: &str, costs: &mut RequestCosts) -> Result<RuleParts, String> {
    item.note_unknown(&format!("{what}."), "clientSelectors limit cost shared");
    let seconds = match item.text_at("limit.unit").unwrap_or_default() {
        "Second" => 1,
        "Minute" => 60,
        "Hour" => 3_600,
        "Day" => 86_400,
        "Month" => MONTH_SECONDS,
        "Year" => YEAR_SECONDS,
        other => return Err(format!("`{other}` is no unit of time")),
    };
    if seconds >= MONTH_SECONDS {
        let why = "Envoy's month has 30 days and its year 365, and so they have here";
        item.differs(&format!("{what}.limit.unit"), why);
    }
    if let Some(from) = item.at("limit.fromMetadata") {
        let why =
            "a filter could set another limit for each client; `tiers` of a limit are like it";
        from.lost(&format!("{what}.limit.fromMetadata"), why);
    }
    let counts = read_counts(item, costs)?;
    let mut parts = RuleParts {
        rates: vec![rate_of(
            item.text_at("limit.requests").unwrap_or_default(),
            seconds,
        )?],
        counts,
        key: KeyDraft::default(),
        models: Vec::new(),
        what: what.to_owned(),
        scope: None,
        item: item.clone(),
    };
    let selectors = item.list_at("clientSelectors");
    if selectors.len() > 1 {
        return Err("no limit is for several kinds of clients; write a limit for each".to_owned());
    }
    for selector in selectors {
        parts.read_selector(selector)?;
    }
    if parts.key.parts.is_empty() {
        parts.key.parts.push("global".to_owned());
    }
    Ok(parts)
}

/// Returns what a rule counts: requests, or a cost of the answer.
fn read_counts(item: &TreeItem, costs: &mut RequestCosts) -> Result<Counted, String> {
    if item.get("cost").is_none() {
        return Ok(Counted::Requests);
    }
    let of_request = item.text_at("cost.request.number").unwrap_or("1");
    match (costs::metadata_key(item), of_request) {
        (Some(key), "0") => costs.find(key),
        (Some(_), _) => Err(
            "a call costs its tokens alone here, and Envoy added a number for \
                             each request"
                .to_owned(),
        ),
        (None, _) => Err(format!("its cost is not one of {NAMESPACE}")),
    }
}

impl RuleParts {
    fn read_selector(&mut self, selector: &TreeItem) -> Result<(), String> {
        selector.note_unknown("clientSelectors.", "headers sourceCIDR");
        for header in selector.list_at("headers") {
            let name = header
                .text_at("name")
                .unwrap_or_default()
                .to_ascii_lowercase();
            let value = header.text_at("value").unwrap_or_default().to_owned();
            if header.is_true("invert") {
                return Err(format!("no limit is for all values of `{name}` but one"));
            }
            match header.text_at("type").unwrap_or("Exact") {
                "Distinct" if name == MODEL_HEADER => {
                    let why = "clients choose the model of a body: name the models that count in \
                               `values` of the limit, so that an invented one has no budget";
                    header.differs(&format!("{}: {name}", self.what), why);
                    self.key.parts.push(MODEL.to_owned());
                }
                "Distinct" => {
                    self.key.parts.push(format!("header:{name}"));
                    self.key.missing = Some("skip");
                }
                "Exact" if name == MODEL_HEADER => self.models.push(value),
                "Exact" => {
                    let why = "other values share one budget of the same size; Envoy did not \
                               count them";
                    header.differs(&format!("{}: {name} {value}", self.what), why);
                    add_listed(&mut self.key, &format!("header:{name}"), vec![value]);
                    self.key.missing = Some("skip");
                }
                other => return Err(format!("no limit is for `{name}` by {other}")),
            }
        }
        if let Some(network) = selector.get("sourceCIDR") {
            match network.text_at("type") {
                Some("Distinct") => self.key.parts.push("ip".to_owned()),
                _ => return Err("no limit is for the clients of one network alone".to_owned()),
            }
        }
        Ok(())
    }

    fn into_budget(mut self) -> Budget {
        if !self.models.is_empty() {
            add_listed(&mut self.key, MODEL, self.models);
        }
        self.key
            .parts
            .retain(|one| one != "global" || self.key.listed.is_empty());
        let of = self
            .scope
            .map_or(String::new(), |scope| format!(" of {scope}"));
        let text = format!("BackendTrafficPolicy {}{of}", self.what);
        Budget {
            name: self.what.replace(" rule ", "-"),
            source: self.item.entry(text),
            rates: self.rates,
            tiers: Vec::new(),
            counts: self.counts,
            key: self.key,
        }
    }
}

/// Joins rules that differ by their model only. A limit has one rate for all models, so the
/// smallest one counts. A separate limit for each would count the other models too.
fn join_models(rules: &mut Vec<RuleParts>) {
    let mut joined: Vec<RuleParts> = Vec::new();
    for rule in rules.drain(..) {
        let is_same = |one: &&mut RuleParts| {
            let windows = |rule: &RuleParts| {
                rule.rates
                    .iter()
                    .map(|rate| rate.window_us)
                    .collect::<Vec<_>>()
            };
            !rule.models.is_empty()
                && !one.models.is_empty()
                && one.key == rule.key
                && one.counts == rule.counts
                && one.scope == rule.scope
                && windows(one) == windows(&rule)
        };
        match joined.iter_mut().find(is_same) {
            None => joined.push(rule),
            Some(first) => {
                if first.rates != rule.rates {
                    let why = format!(
                        "a limit has one rate for all models: the smallest one of this rule and \
                         of {} counts. For other rates, give the model a route of its own",
                        first.what
                    );
                    rule.item.lost(
                        &format!("{}: models {}", rule.what, rule.models.join(", ")),
                        why,
                    );
                }
                for rate in rule.rates {
                    add_rate(&mut first.rates, rate);
                }
                first.models.extend(rule.models);
            }
        }
    }
    for rule in joined.iter().filter(|one| !one.models.is_empty()) {
        let why = "each of these models has a budget, and all others share one of the same size; \
                   Envoy did not count them";
        rule.item
            .differs(&format!("{}: {}", rule.what, rule.models.join(", ")), why);
    }
    *rules = joined;
}
