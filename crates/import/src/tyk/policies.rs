//! Policies of Tyk: the rates and quotas of the keys that have them.

use std::collections::BTreeSet;

use super::apis::{self, TykApi};
use crate::budgets::{Budget, Counted, TierRates, add_rate, rate_of};
use crate::draft::clean_name;
use crate::limit::Rate;
use crate::tree::{TreeItem, TreeNode};
use crate::values::KeyDraft;

pub(super) struct TykPolicy<'d> {
    pub(super) item: &'d TreeItem,
    /// The tier of its keys.
    pub(super) name: String,
    rates: Vec<Rate>,
}

/// `None` for a policy that is off.
pub(super) fn read<'d>(item: &'d TreeItem, id: Option<&'d str>) -> Option<TykPolicy<'d>> {
    let own_id = item.text_at("id").or_else(|| item.text_at("_id"));
    let name = item.text_at("name").filter(|name| !name.is_empty());
    let name = clean_name(name.or(own_id).or(id).unwrap_or("policy"));
    let what = format!("policy {name}");
    if item.text_at("active") == Some("false") || item.is_true("is_inactive") {
        item.needless(&what, "the policy is not active");
        return None;
    }
    let known = "id _id name org_id rate per quota_max quota_renewal_rate quota_remaining active \
                 is_inactive access_rights tags partitions per_api last_updated date_created \
                 meta_data version";
    apis::note_used(item, &format!("{what}."), known);
    for (api, right) in item.entries_at("access_rights") {
        let path = format!("{what}.access_rights.{api}.");
        let known = "api_id api_name versions limit allowed_urls allowance_scope";
        apis::note_used(right, &path, known);
        if let Some(limit) = right.get("limit") {
            let known = "rate per quota_max quota_renewal_rate quota_remaining quota_renews";
            apis::note_used(limit, &format!("{path}limit."), known);
        }
    }
    Some(TykPolicy {
        item,
        rates: rates(item, &what),
        name,
    })
}

/// Numbers policies of the same name, since each is a tier of its own.
pub(super) fn number_names(policies: &mut [TykPolicy<'_>]) {
    let mut taken = BTreeSet::new();
    for policy in policies {
        let mut number = 1;
        let name = policy.name.clone();
        while !taken.insert(policy.name.clone()) {
            number += 1;
            policy.name = format!("{name}-{number}");
        }
    }
}

impl TykPolicy<'_> {
    fn access(&self, api: &TykApi<'_>) -> Option<&TreeItem> {
        let mut rights = self.item.entries_at("access_rights").iter();
        let right = rights.find(|(key, right)| {
            let id = right.text_at("api_id").unwrap_or(key);
            api.ids.iter().any(|own| own == id)
        });
        right.map(|(_, right)| right)
    }

    pub(super) fn covers(&self, api: &TykApi<'_>) -> bool {
        self.access(api).is_some()
    }

    /// Whether the policy is for some paths of the API alone.
    pub(super) fn has_paths(&self, api: &TykApi<'_>) -> bool {
        let paths = self.access(api).and_then(|right| right.get("allowed_urls"));
        paths.is_some_and(apis::is_used)
    }

    /// Whether the policy has rates for some API alone.
    pub(super) fn has_own_rates(&self) -> bool {
        let mut rights = self.item.entries_at("access_rights").iter();
        rights.any(|(_, right)| {
            let has = |key: &str| right.text_at(key).is_some_and(is_positive);
            has("limit.rate") || has("limit.quota_max")
        })
    }

    /// The rates that all APIs of the policy share.
    pub(super) fn shared_rates(&self) -> TierRates {
        TierRates {
            tier: self.name.clone(),
            rates: self.rates.clone(),
        }
    }

    /// The rates that the policy has for this API alone.
    pub(super) fn own_rates(&self, api: &TykApi<'_>) -> Option<TierRates> {
        let limit = self.access(api)?.get("limit")?;
        let rates = match limit.node {
            TreeNode::Table(_) => rates(limit, &format!("policy {} of {}", self.name, api.what)),
            _ => return None,
        };
        let tier = self.name.clone();
        (!rates.is_empty()).then_some(TierRates { tier, rates })
    }
}

/// The limit by key with these tiers; `None` if they limit nothing.
pub(super) fn budget(name: &str, api: &TykApi<'_>, tiers: Vec<TierRates>) -> Option<Budget> {
    let mut key = KeyDraft::of_part("api_key");
    key.missing = Some("deny");
    if tiers.iter().all(|tier| tier.rates.is_empty()) {
        return None;
    }
    let mut source = api.item.entry("rates and quotas of policies".to_owned());
    if name != "keys" && !name.starts_with("keys-") {
        source.text = format!("rates and quotas of policies for {}", api.what);
    }
    Some(Budget {
        name: clean_name(name),
        source,
        rates: Vec::new(),
        tiers,
        counts: Counted::Requests,
        key,
    })
}

/// Reads `rate`, `per`, `quota_max` and `quota_renewal_rate`.
fn rates(item: &TreeItem, what: &str) -> Vec<Rate> {
    let mut rates = Vec::new();
    let number = |key: &str| item.text_at(key).filter(|text| is_positive(text));
    // A policy with partitions sets those alone that are true.
    let is_partitioned = item.entries_at("partitions").iter();
    let is_partitioned = is_partitioned
        .clone()
        .any(|(_, one)| one.text() == Some("true"));
    let sets = |part: &str| !is_partitioned || item.is_true(&format!("partitions.{part}"));
    let number = |key: &str| {
        let part = if key.starts_with("quota") {
            "quota"
        } else {
            "rate_limit"
        };
        number(key).filter(|_| sets(part))
    };
    if let (Some(units), Some(per)) = (number("rate"), number("per")) {
        add(item, &format!("{what}.rate"), [units, per], &mut rates);
    }
    let Some(units) = number("quota_max") else {
        return rates;
    };
    let quota = format!("{what}.quota_max");
    let Some(renewal) = number("quota_renewal_rate") else {
        let why = "the quota never renews, and a window of tidegate has an end";
        item.lost(&quota, why);
        return rates;
    };
    add(item, &quota, [units, renewal], &mut rates);
    let why = format!(
        "a quota of Tyk begins with the first request of a key and renews as a whole after \
         {renewal} s; here no {renewal} s in a row hold more, and each unit is free again when it \
         is that old. For a quota that begins anew at a date write `{units}/month`, with \
         `calendar`"
    );
    item.differs(&quota, why);
    rates
}

/// Adds a rate of units and seconds.
fn add(item: &TreeItem, what: &str, [units, seconds]: [&str; 2], rates: &mut Vec<Rate>) {
    let whole = seconds.split('.').next().unwrap_or_default();
    let rate = whole.parse().map_err(|_| format!("`{seconds}` is no time"));
    match rate.and_then(|seconds| rate_of(units, seconds)) {
        Ok(rate) => add_rate(rates, rate),
        Err(why) => item.lost(what, why),
    }
}

/// Unlimited is -1, and 0 is not set.
fn is_positive(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(|number| number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{SourceFile, read_yaml};

    #[test]
    fn a_quota_is_a_window_of_its_renewal() {
        for (text, expected) in [
            (
                "{rate: 10, per: 1, quota_max: -1, quota_renewal_rate: 60}",
                "10/s",
            ),
            (
                "{rate: 100, per: 60, quota_max: 1000000, quota_renewal_rate: 2592000}",
                "100/min 1000000/30d",
            ),
            (
                "{rate: 0, per: 0, quota_max: 50, quota_renewal_rate: 86400}",
                "50/d",
            ),
            (
                "{rate: -1, per: 1, quota_max: 50, quota_renewal_rate: -1}",
                "",
            ),
            ("{rate: 5.5, per: 2.0}", "5/2s"),
        ] {
            let item = read_yaml(text, &SourceFile::default()).unwrap();
            let rates: Vec<String> = rates(&item, "p").iter().map(Rate::to_string).collect();
            assert_eq!(rates.join(" "), expected, "{text}");
        }
    }
}
