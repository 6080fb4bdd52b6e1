//! `llmRequestCosts`: what each key of the metadata counts.

use super::{EnvoyFile, name_of};
use crate::budgets::{CountNames, Counted, WeightsDraft};
use crate::linear;
use crate::tree::TreeItem;

/// The namespace of the costs of AI gateway.
pub(super) const NAMESPACE: &str = "io.envoy.ai_gateway";

/// The variables of a CEL expression.
const CEL_NAMES: CountNames = CountNames {
    input: &["input_tokens"],
    cached: &["cached_input_tokens"],
    cache_write: &["cache_creation_input_tokens"],
    output: &["output_tokens"],
    total: &["total_tokens"],
};

/// The weight 1, in millionths.
const ONE: u64 = 1_000_000;

/// A cost by its key.
struct LlmRequestCost {
    key: String,
    counts: Result<CountedCost, String>,
}

#[derive(Clone, Copy)]
enum CountedCost {
    Quantity(Counted),
    Weights(WeightsDraft),
}

/// The costs of a route. One usage has one set of weights, so only the first one is kept.
pub(super) struct RequestCosts {
    costs: Vec<LlmRequestCost>,
    chosen: Option<WeightsDraft>,
}

impl RequestCosts {
    pub(super) fn read(route: &TreeItem, file: &EnvoyFile) -> RequestCosts {
        let own = route.list_at("spec.llmRequestCosts").iter();
        let global = file.all("GatewayConfig");
        let global = global.flat_map(|one| one.list_at("spec.globalLLMRequestCosts"));
        let costs = own.chain(global).map(|item| LlmRequestCost {
            key: item.text_at("metadataKey").unwrap_or_default().to_owned(),
            counts: read_cost(item),
        });
        RequestCosts {
            costs: costs.collect(),
            chosen: None,
        }
    }

    pub(super) fn chosen(&self) -> Option<WeightsDraft> {
        self.chosen
    }

    /// Returns what a rule with this key counts. The error says why no limit can.
    pub(super) fn find(&mut self, key: &str) -> Result<Counted, String> {
        let found = self.costs.iter().find(|one| one.key == key);
        let missing = || format!("no `llmRequestCosts` of the route has the key `{key}`");
        match found.ok_or_else(missing)?.counts.clone()? {
            CountedCost::Quantity(counts) => Ok(counts),
            CountedCost::Weights(weights) => {
                let chosen = *self.chosen.get_or_insert(weights);
                match chosen == weights {
                    true => Ok(Counted::Costs),
                    false => Err(
                        "another rule of the route has other weights, and a route has \
                                  one set of them"
                            .to_owned(),
                    ),
                }
            }
        }
    }

    /// Notes costs that no rule limits.
    pub(super) fn note_unused(&self, route: &TreeItem, used: &[String]) {
        for cost in self.costs.iter().filter(|one| !used.contains(&one.key)) {
            let what = format!("llmRequestCosts {} of {}", cost.key, name_of(route));
            route.needless(&what, "no rule limits it");
        }
    }
}

fn read_cost(item: &TreeItem) -> Result<CountedCost, String> {
    let zero = WeightsDraft {
        input: 0,
        cached: 0,
        cache_write: 0,
        output: 0,
    };
    Ok(match item.text_at("type").unwrap_or("OutputToken") {
        "InputToken" => CountedCost::Quantity(Counted::Input),
        "OutputToken" => CountedCost::Quantity(Counted::Output),
        "TotalToken" => CountedCost::Quantity(Counted::Tokens),
        "CachedInputToken" => CountedCost::Weights(WeightsDraft {
            cached: ONE,
            ..zero
        }),
        "CacheCreationInputToken" | "CachedWriteInputToken" => CountedCost::Weights(WeightsDraft {
            cache_write: ONE,
            ..zero
        }),
        "CEL" => {
            let text = item.text_at("cel").unwrap_or_default();
            let factors = linear::parse(text);
            let weights = factors.and_then(|one| WeightsDraft::of_factors(&one, &CEL_NAMES));
            CountedCost::Weights(weights.map_err(|why| format!("`{text}`: {why}"))?)
        }
        other => return Err(format!("no limit counts {other}")),
    })
}

/// Returns the key of a rule's cost, if the answer of AI gateway says it.
pub(super) fn metadata_key(rule: &TreeItem) -> Option<&str> {
    let metadata = rule.at("cost.response.metadata")?;
    let is_own = metadata.text_at("namespace") == Some(NAMESPACE);
    metadata.text_at("key").filter(|_| is_own)
}
