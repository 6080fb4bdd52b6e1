//! Explains the limits of a request: keys, costs, rates and counts.

use std::sync::Arc;

use super::explanation::{KeyPart, LimitExplanation, RateExplanation};
use super::secret::Secrets;
use super::usage::explain_reserve;
use crate::clock;
use crate::limit::key::SHOWN;
use crate::limit::key::{
    ApiKeySource, Derived, Facts, HashSecret, KeyRegistry, KeyStanding, KnownBy, KnownKey, Part,
    PartText,
};
use crate::limit::{
    Algorithm, Charge, Decision, Delay, EnforcedShare, KeyHash, Limit, LimitCheck, Missing, Retry,
    Role, Window,
};
use crate::proxy::dry_run::{DryRunResult, RequestView};
use crate::route::{CostSource, Route};
use crate::store::overrides::rate_text;

/// The parts of a client's key that the reader may see.
#[derive(Clone, Copy)]
pub(super) struct Visible<'s> {
    pub(super) secrets: &'s Secrets,
    pub(super) address: &'s str,
    /// Whether the hash is that of the running proxies.
    pub(super) hash: bool,
    /// Whether the keys of Redis or the callback were asked for.
    pub(super) live: bool,
}

pub(super) fn explain_limits(
    view: &RequestView<'_, '_, '_>,
    visible: Visible<'_>,
) -> Vec<LimitExplanation> {
    let limits = view.found.route.limits.iter();
    limits
        .map(|limit| explain_limit(limit, view, visible))
        .collect()
}

pub(super) fn add_counts(limits: &mut [LimitExplanation], result: &DryRunResult) {
    if let Some(decision) = &result.decision {
        add_decision(limits, &result.charge, decision);
    }
    for (charge, decision) in &result.shadow {
        if let Some(decision) = decision {
            add_decision(limits, charge, decision);
        }
    }
}

pub(super) fn add_decision(limits: &mut [LimitExplanation], charge: &Charge, decision: &Decision) {
    let seconds = |us: u64| us as f64 / 1e6;
    for (check, verdict) in charge.iter().zip(&decision.verdicts) {
        let name = &*check.limit.name;
        let is_candidate = check.role() == Role::Candidate;
        let limit = limits.iter_mut().find(|limit| limit.name == name);
        let mut rates = limit.into_iter().flat_map(|limit| &mut limit.rates);
        let Some(rate) = rates.find(|rate| {
            *rate.policy == *check.window.policy && (rate.role == "candidate") == is_candidate
        }) else {
            continue;
        };
        rate.used = Some(verdict.used);
        rate.remaining = Some(verdict.remaining);
        rate.allows = Some(!verdict.retry.denies());
        rate.reset_seconds = Some(seconds(verdict.reset_us));
        let unix_us = clock::unix_us();
        rate.resets_at = (check.window).resets_at(check.anchor, unix_us, verdict.reset_us);
        rate.retry_seconds = match verdict.retry {
            Retry::After(us) | Retry::Booked(us) => Some(seconds(us)),
            _ => None,
        };
    }
}

fn explain_limit(
    limit: &Arc<Limit>,
    view: &RequestView<'_, '_, '_>,
    visible: Visible<'_>,
) -> LimitExplanation {
    let facts = view.facts;
    let checks = checks_of(limit, view);
    let (state, mut why) = explain_state(limit, view, &checks);
    if limit.enforce != EnforcedShare::ALL && !checks.is_empty() {
        why = Some(match (visible.hash, state) {
            (false, _) => "it denies a share of clients; --live tells whether this one is in it",
            (true, "enforced") => "this client is in the share that it denies",
            (true, _) => "this client is outside the share that it denies",
        });
    }
    let own = limit.windows_of(facts.tier);
    let is_own = |window: &Arc<Window>| own.iter().any(|one| Arc::ptr_eq(one, window));
    let mut rates: Vec<RateExplanation> = checks
        .iter()
        .map(|check| match check.role() {
            Role::Enforced if !is_own(&check.window) => explain_rate(&check.window, "override"),
            role => explain_rate(&check.window, role.word()),
        })
        .collect();
    if rates.is_empty() {
        let own = own.iter().map(|window| explain_rate(window, state));
        rates = own.collect();
    }
    let first = checks.first();
    let cost = first.map_or(limit.cost, |check| check.cost);
    LimitExplanation {
        name: limit.name.to_string(),
        state: state.to_owned(),
        why: why.map(str::to_owned),
        key: explain_key(limit, facts, visible),
        id: first
            .filter(|_| visible.hash)
            .map(|check| short_hash(check.tag)),
        cost,
        cost_why: (cost != 1).then(|| match view.reserve {
            Some(reserve) => explain_reserve(reserve, limit, cost),
            None => explain_cost(view.found.route, limit),
        }),
        tier: explain_tier(limit, facts),
        rates,
        holds: limit.delay.map(holds),
        bans: limit.ban.map(|ban| ban.to_string()),
        on_error: limit.on_error.word().to_owned(),
    }
}

fn holds(delay: Delay) -> String {
    format!(
        "holds a request for up to {} s instead of denying it, {} of one key at once",
        delay.longest_us as f64 / 1e6,
        delay.queue
    )
}

/// The first characters of a hash, as logs show it.
pub(super) fn short_hash(tag: KeyHash) -> String {
    tag.to_string().chars().take(SHOWN).collect()
}

fn checks_of<'s>(limit: &Arc<Limit>, view: &RequestView<'s, '_, '_>) -> Vec<&'s LimitCheck> {
    let (charge, shadow) = view.charge.unzip();
    let all = charge.into_iter().chain(shadow.into_iter().flatten());
    all.flatten()
        .filter(|check| check.limit.name == limit.name)
        .collect()
}

fn explain_state(
    limit: &Limit,
    view: &RequestView<'_, '_, '_>,
    checks: &[&LimitCheck],
) -> (&'static str, Option<&'static str>) {
    let has_role = |role: Role| checks.iter().any(|check| check.role() == role);
    let (facts, client) = (view.facts, view.client);
    if has_role(Role::Enforced) {
        return ("enforced", None);
    }
    if has_role(Role::Shadow) {
        return ("shadow", Some("counted and reported, never enforced"));
    }
    if view.charge.is_some() && (view.bypass.is_some() || view.preflight) {
        return ("spared", None);
    }
    if limit.exempt.has(client, &limit.key, facts) {
        return ("exempt", Some("the client is in its `exempt`"));
    }
    // The hash itself is not used.
    let secret = HashSecret::from_bytes([0; 32]);
    let (state, why) = match limit.key.derive(facts, limit.missing, &secret) {
        Derived::Skip => (
            "skipped",
            "the request has no such key, and `missing = \"skip\"`",
        ),
        Derived::Denied => (
            "refuses",
            "the request has no such key, and `missing = \"deny\"`: 400",
        ),
        Derived::Ambiguous => (
            "refuses",
            "the request has several different values for one key: 400",
        ),
        Derived::Unknown => ("refuses", "its API key is not known: 401"),
        Derived::Hash(_) if limit.windows_of(facts.tier).is_empty() => {
            ("unlimited", "no rate holds for this client")
        }
        Derived::Hash(_) if view.charge.is_none() => {
            ("spared", "not asked: the request is refused before")
        }
        Derived::Hash(_) => ("unlimited", "an override lifts it for this client"),
    };
    (state, Some(why))
}

pub(super) fn explain_rate(window: &Window, role: &str) -> RateExplanation {
    let rule = &window.rule;
    let algorithm = match rule.algorithm {
        Algorithm::Log if rule.precision_us <= 1 => "exact log".to_owned(),
        Algorithm::Log => format!("log, to {} ms", (rule.precision_us as f64 / 1e3).max(0.001)),
        Algorithm::Counter => "counter, approximate".to_owned(),
        Algorithm::Slots => "requests at once".to_owned(),
        Algorithm::Calendar => window
            .calendar
            .as_ref()
            .map_or_else(String::new, |calendar| {
                format!("calendar {}", calendar.name())
            }),
    };
    RateExplanation {
        policy: window.policy.to_string(),
        rate: rate_text(rule),
        algorithm,
        role: role.to_owned(),
        used: None,
        remaining: None,
        allows: None,
        retry_seconds: None,
        reset_seconds: None,
        resets_at: None,
    }
}

fn explain_cost(route: &Route, limit: &Limit) -> String {
    if limit.each {
        return format!("each request is {} of the limit", limit.cost);
    }
    let of_route = match &route.cost {
        CostSource::Fixed(units) => format!("the route's cost is {units}"),
        CostSource::Header(name) => {
            format!("the route's cost is the value of {name}, accepted from trusted proxies only")
        }
        CostSource::Body(path) => {
            format!(
                "the route's cost is `{}` of the request's body",
                path.as_str()
            )
        }
    };
    match limit.cost {
        1 => of_route,
        own => format!("{of_route}, times {own} of the limit"),
    }
}

fn explain_tier(limit: &Limit, facts: &Facts<'_>) -> Option<String> {
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

fn explain_key(limit: &Limit, facts: &Facts<'_>, visible: Visible<'_>) -> Vec<KeyPart> {
    let Visible {
        secrets, address, ..
    } = visible;
    let values = limit.key.part_texts(facts);
    let parts = values.iter().map(|(part, found)| {
        let (found, value, note) = match found {
            PartText::Value(Part::Ip, _) => (Some(&Part::Ip), Some(address.to_owned()), None),
            PartText::Value(part, value) => {
                let note = key_source(part, facts);
                (Some(*part), Some(secrets.mask_part(part, value)), note)
            }
            PartText::Several(part) => {
                let note = "several different values: it could be any of them";
                (Some(*part), None, Some(note.to_owned()))
            }
            PartText::Nothing => (None, None, Some(explain_absence(limit.missing, address))),
            PartText::Unknown => (
                Some(&Part::ApiKey),
                None,
                Some("refused with 401".to_owned()),
            ),
        };
        let asks_key = part.0.contains(&Part::ApiKey);
        let unknown = asks_key.then(|| unknown_key(facts, visible.live));
        let notes: Vec<String> = unknown.flatten().into_iter().chain(note).collect();
        KeyPart {
            part: part.to_string(),
            found: found.map(Part::to_string),
            value: value.filter(|_| found != Some(&Part::Global)),
            note: (!notes.is_empty()).then(|| notes.join("; ")),
        }
    });
    parts.collect()
}

fn key_source(part: &Part, facts: &Facts<'_>) -> Option<String> {
    if *part != Part::ApiKey {
        return None;
    }
    let place = match facts.api_key_source()? {
        ApiKeySource::Header(name) => format!("from the header {name}"),
        ApiKeySource::Bearer => "from Authorization: Bearer".to_owned(),
        ApiKeySource::Query(name) => format!("from the query's {name}"),
        ApiKeySource::Cookie(name) => format!("from the cookie {name}"),
    };
    let by = match facts.key_standing() {
        KeyStanding::Counted {
            known: Some(KnownBy::Registry),
            ..
        } => match facts.api_key.registry {
            KeyRegistry::Callback => ", says the callback",
            KeyRegistry::Redis | KeyRegistry::None => ", in Redis",
        },
        _ => "",
    };
    Some(match facts.known_key() {
        Some(KnownKey {
            name: Some(name), ..
        }) => format!("{place}; known as {name}{by}"),
        Some(_) => format!("{place}; known{by}"),
        None => format!("{place}; not known, and trusted"),
    })
}

/// Says that limits do not count by this API key.
fn unknown_key(facts: &Facts<'_>, is_live: bool) -> Option<String> {
    let unknown = facts.key_standing() == KeyStanding::Unknown;
    let text = match (facts.api_key.has_source(), facts.api_key.registry) {
        (false, _) => "no API key is known: there is no source of known keys",
        (true, KeyRegistry::Redis) if !is_live => {
            "the API key is in no file; --live looks for it in Redis"
        }
        (true, KeyRegistry::Callback) if !is_live => {
            "the API key is in no file; --live asks the callback"
        }
        (true, KeyRegistry::Redis) => "the API key is not known: Redis does not have it",
        (true, KeyRegistry::Callback) => "the API key is not known: the callback does not say so",
        (true, KeyRegistry::None) => "the API key is not known",
    };
    unknown.then(|| text.to_owned())
}

fn explain_absence(missing: Missing, address: &str) -> String {
    match missing {
        Missing::Ip => format!("absent: counted by its address, {address}"),
        Missing::Deny => "absent: refused with 400".to_owned(),
        Missing::Skip => "absent: the limit is skipped".to_owned(),
        Missing::Shared => "absent: all such requests share one budget".to_owned(),
    }
}
