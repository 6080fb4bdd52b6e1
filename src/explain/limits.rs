//! What limits a request: keys, weights, rates and how they stand, told.

use std::sync::Arc;

use super::secret::Secrets;
use super::story::{KeyPart, LimitStory, RateStory};
use crate::limit::key::{
    ApiKeySource, Derived, Facts, HashSecret, KeyStanding, KnownKey, Part, PartText,
};
use crate::limit::{
    Algorithm, Charge, Decision, Limit, LimitCheck, Missing, OnError, Retry, Role, Verdict, Window,
};
use crate::proxy::dry_run::{DryRunResult, RequestView};
use crate::route::{CostSource, Route};
use crate::store::overrides::rate_text;

/// The limits of one request.
#[derive(Default)]
pub(super) struct LimitsTold {
    pub(super) list: Vec<LimitStory>,
}

/// What of a key is shown: nothing secret, and of an address that which stands for its client.
/// What of a client's secrets and address the reader may see.
#[derive(Clone, Copy)]
pub(super) struct Visible<'s> {
    pub(super) secrets: &'s Secrets,
    /// The client's address as limits count it.
    pub(super) address: &'s str,
}

/// What is known before the counts are asked.
pub(super) fn tell(view: &RequestView<'_, '_, '_>, shown: Visible<'_>, known: bool) -> LimitsTold {
    let limits = view.found.route.limits.iter();
    let list = limits.map(|limit| one(limit, view, shown, known));
    LimitsTold {
        list: list.collect(),
    }
}

impl LimitsTold {
    /// Adds how they stand.
    pub(super) fn count<T>(&mut self, result: &DryRunResult<T>) {
        if let Some(decision) = &result.decision {
            self.note(&result.charge, decision);
        }
        for (charge, decision) in &result.shadow {
            if let Some(decision) = decision {
                self.note(charge, decision);
            }
        }
    }

    fn note(&mut self, charge: &Charge, decision: &Decision) {
        for (item, verdict) in charge.iter().zip(&decision.verdicts) {
            let name = &*item.limit.name;
            let Some(limit) = self.list.iter_mut().find(|limit| limit.name == name) else {
                continue;
            };
            let candidate = item.role() == Role::Candidate;
            let mut rates = limit.rates.iter_mut().filter(|rate| {
                *rate.policy == *item.window.policy && (rate.role == "candidate") == candidate
            });
            if let Some(rate) = rates.next() {
                stand(rate, verdict);
            }
        }
    }
}

fn stand(rate: &mut RateStory, verdict: &Verdict) {
    let seconds = |us: u64| us as f64 / 1e6;
    rate.used = Some(verdict.used);
    rate.remaining = Some(verdict.remaining);
    rate.allows = Some(!verdict.retry.denies());
    rate.reset_seconds = Some(seconds(verdict.reset_us));
    rate.retry_seconds = match verdict.retry {
        Retry::After(us) => Some(seconds(us)),
        Retry::Now | Retry::Never | Retry::Released | Retry::Unasked => None,
    };
}

fn one(
    limit: &Arc<Limit>,
    view: &RequestView<'_, '_, '_>,
    shown: Visible<'_>,
    known: bool,
) -> LimitStory {
    let facts = view.facts;
    let items: Vec<&LimitCheck> = items(limit, view).collect();
    let (state, why) = state(limit, view, &items);
    let own = limit.windows_of(facts.tier);
    let is_own = |window: &Arc<Window>| own.iter().any(|one| Arc::ptr_eq(one, window));
    let mut rates: Vec<RateStory> = items
        .iter()
        .map(|item| {
            let role = match item.role() {
                Role::Enforced if !is_own(&item.window) => "override",
                role => role.word(),
            };
            rate(&item.window, role)
        })
        .collect();
    if rates.is_empty() {
        rates = own.iter().map(|window| rate(window, state)).collect();
    }
    let cost = items.first().map_or(limit.cost, |item| item.cost);
    LimitStory {
        name: limit.name.to_string(),
        state: state.to_owned(),
        why,
        key: key(limit, facts, shown),
        id: items
            .first()
            .filter(|_| known)
            .map(|item| super::short(item.tag)),
        cost,
        cost_why: (cost != 1).then(|| weight(view.found.route, limit)),
        tier: tier(limit, facts),
        rates,
        on_error: match limit.on_error {
            OnError::Local => "local",
            OnError::Allow => "allow",
            OnError::Deny => "deny",
        }
        .to_owned(),
    }
}

/// What the request asks of this limit.
fn items<'s>(
    limit: &'s Arc<Limit>,
    view: &RequestView<'s, '_, '_>,
) -> impl Iterator<Item = &'s LimitCheck> {
    let (charge, shadow) = view.charge.unzip();
    let all = charge.into_iter().chain(shadow.into_iter().flatten());
    all.flatten().filter(|item| item.limit.name == limit.name)
}

fn state(
    limit: &Limit,
    view: &RequestView<'_, '_, '_>,
    items: &[&LimitCheck],
) -> (&'static str, Option<String>) {
    let why = |text: &str| Some(text.to_owned());
    let enforced = |item: &&&LimitCheck| item.role() == Role::Enforced;
    if items.iter().find(enforced).is_some() {
        return ("enforced", None);
    }
    if items.iter().any(|item| item.role() == Role::Shadow) {
        return ("shadow", why("counted and reported, never enforced"));
    }
    let (facts, client) = (view.facts, view.client);
    let spared = view.charge.is_some() && (view.bypass.is_some() || view.preflight);
    if spared {
        return ("spared", None);
    }
    if limit.exempt.has(client, &limit.key, facts) {
        return ("exempt", why("the client is in its `exempt`"));
    }
    match limit
        .key
        .derive(facts, limit.missing, &HashSecret::from_bytes([0; 32]))
    {
        Derived::Skip => (
            "skipped",
            why("the request has no such key, and `missing = \"skip\"`"),
        ),
        Derived::Denied => (
            "refuses",
            why("the request has no such key, and `missing = \"deny\"`: 400"),
        ),
        Derived::Ambiguous => (
            "refuses",
            why("the request has several different values for one key: 400"),
        ),
        Derived::Unknown => ("refuses", why("its API key is not known: 401")),
        Derived::Hash(_) if limit.windows_of(facts.tier).is_empty() => {
            ("unlimited", why("no rate holds for this client"))
        }
        Derived::Hash(_) if view.charge.is_none() => {
            ("spared", why("not asked: the request is refused before"))
        }
        Derived::Hash(_) => ("unlimited", why("an override lifts it for this client")),
    }
}

fn rate(window: &Window, role: &str) -> RateStory {
    let rule = &window.rule;
    let algorithm = match rule.algorithm {
        Algorithm::Log if rule.precision_us <= 1 => "exact log".to_owned(),
        Algorithm::Log => format!("log, to {} ms", (rule.precision_us as f64 / 1e3).max(0.001)),
        Algorithm::Counter => "counter, approximate".to_owned(),
        Algorithm::Slots => "requests at once".to_owned(),
    };
    RateStory {
        policy: window.policy.to_string(),
        rate: rate_text(rule),
        algorithm,
        role: role.to_owned(),
        used: None,
        remaining: None,
        allows: None,
        retry_seconds: None,
        reset_seconds: None,
    }
}

fn weight(route: &Route, limit: &Limit) -> String {
    if limit.each {
        return format!("each request is {} of the limit", limit.cost);
    }
    let of_route = match &route.cost {
        CostSource::Fixed(units) => format!("the route's cost is {units}"),
        CostSource::Header(name) => {
            format!("the route's cost is what {name} says, believed from trusted proxies only")
        }
    };
    match limit.cost {
        1 => of_route,
        own => format!("{of_route}, times {own} of the limit"),
    }
}

fn tier(limit: &Limit, facts: &Facts<'_>) -> Option<String> {
    if !limit.asks_tier() {
        return None;
    }
    let Some(name) = facts.tier else {
        return Some("none: the limit's own rates".to_owned());
    };
    let has = limit.tiers.iter().any(|tier| *tier.name == *name);
    Some(match has || limit.tiers.is_empty() {
        true => name.to_owned(),
        false => format!("{name}, for which it has no rate of its own"),
    })
}

fn key(limit: &Limit, facts: &Facts<'_>, shown: Visible<'_>) -> Vec<KeyPart> {
    let Visible { secrets, address } = shown;
    let parts = limit.key.part_texts(facts);
    let parts = parts.iter().map(|(part, text)| {
        let (found, value, note) = match text {
            PartText::Value(Part::Ip, _) => (Some(&Part::Ip), Some(address.to_owned()), None),
            PartText::Value(part, value) => {
                let note = source(part, facts);
                (Some(*part), Some(secrets.value(part, value)), note)
            }
            PartText::Several(part) => {
                let note = "several different values: it could be any of them";
                (Some(*part), None, Some(note.to_owned()))
            }
            PartText::Nothing => (None, None, Some(absence(limit.missing, address))),
            PartText::Unknown => (
                Some(&Part::ApiKey),
                None,
                Some("refused with 401".to_owned()),
            ),
        };
        let note = match part.0.contains(&Part::ApiKey) {
            true => join(unknown_key(facts), note),
            false => note,
        };
        KeyPart {
            part: part.to_string(),
            found: found.map(Part::to_string),
            value: value.filter(|_| found != Some(&Part::Global)),
            note,
        }
    });
    parts.collect()
}

fn source(part: &Part, facts: &Facts<'_>) -> Option<String> {
    if *part != Part::ApiKey {
        return None;
    }
    let place = match facts.api_key_source()? {
        ApiKeySource::Header(name) => format!("from the header {name}"),
        ApiKeySource::Bearer => "from Authorization: Bearer".to_owned(),
        ApiKeySource::Query(name) => format!("from the query's {name}"),
        ApiKeySource::Cookie(name) => format!("from the cookie {name}"),
    };
    Some(match facts.known_key() {
        Some(KnownKey {
            name: Some(name), ..
        }) => format!("{place}; known as {name}"),
        Some(_) => format!("{place}; known"),
        None => format!("{place}; not known, and trusted"),
    })
}

/// What is said of an API key that is not counted by.
fn unknown_key(facts: &Facts<'_>) -> Option<String> {
    let unknown = facts.key_standing() == KeyStanding::Unknown;
    unknown.then(|| match facts.api_key.has_source() {
        true => "the API key is not known".to_owned(),
        false => "API keys are not told apart: no source of known keys".to_owned(),
    })
}

fn join(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    }
}

fn absence(missing: Missing, address: &str) -> String {
    match missing {
        Missing::Ip => format!("absent: counted by its address, {address}"),
        Missing::Deny => "absent: refused with 400".to_owned(),
        Missing::Skip => "absent: the limit is skipped".to_owned(),
        Missing::Shared => "absent: all such requests share one budget".to_owned(),
    }
}
