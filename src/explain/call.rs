//! Explains a descriptor: which rule takes it, which rules fit as well, and what its limits say.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::explanation::{CountsSource, KeyPart, LimitExplanation};
use super::limits::{add_decision, explain_rate, short_hash};
use super::{LiveCounts, RequestError};
use crate::config::{Config, MAX_ENTRIES};
use crate::limit::key::{DescriptorEntry, DescriptorFacts, HashSecret, Part};
use crate::limit::{Charge, Decision, Limit, LimitCheck, Retry, Verdict};
use tidegate_core::descriptor::{DescriptorRule, ValueRule};
use tidegate_core::exchange::admit::{Admission, CheckedClient};

/// A call with one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDescription {
    pub domain: String,
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// Units; 0 only looks.
    pub hits: u64,
}

impl CallDescription {
    /// Reads entries as people write them: `KEY=VALUE`.
    pub fn parse(domain: &str, entries: &[String], hits: u64) -> Result<Self, RequestError> {
        let pair = |text: &String| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(RequestError::Invalid(format!(
                "`{text}` is no entry; write `KEY=VALUE`"
            ))),
        };
        let call = CallDescription {
            domain: domain.to_owned(),
            entries: entries.iter().map(pair).collect::<Result<_, _>>()?,
            hits,
        };
        call.check()?;
        Ok(call)
    }

    fn check(&self) -> Result<(), RequestError> {
        if !(1..=MAX_ENTRIES).contains(&self.entries.len()) {
            let why = format!("a descriptor has 1 to {MAX_ENTRIES} entries");
            return Err(RequestError::Invalid(why));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallExplanation {
    pub call: CallDescription,
    /// `allowed`, `denied`, `unlimited` or `unmatched`.
    pub outcome: String,
    pub why: String,
    pub rule: Option<RuleExplanation>,
    /// Other rules that fit, the nearest first.
    pub beaten: Vec<BeatenRule>,
    pub limits: Vec<LimitExplanation>,
    pub counts: CountsSource,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleExplanation {
    pub name: String,
    pub entries: Vec<String>,
    /// Properties that change what a decision means.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BeatenRule {
    pub name: String,
    pub why: String,
}

/// Explains a call: with `live` counts, or for a client without earlier calls.
///
/// # Errors
/// No proxy could send this call.
pub fn explain_call(
    config: &Config,
    call: &CallDescription,
    live: Option<LiveCounts<'_>>,
) -> Result<CallExplanation, RequestError> {
    call.check()?;
    let entries: Vec<DescriptorEntry<'_>> = (call.entries.iter())
        .map(|(key, value)| DescriptorEntry { key, value })
        .collect();
    let fitting = config.descriptors.find_all(&call.domain, &entries);
    let counts = CountsSource {
        live: live.is_some(),
        from: live.as_ref().map(|live| live.from.clone()),
        trouble: None,
    };
    let Some((rule, others)) = fitting.split_first() else {
        return Ok(CallExplanation {
            call: call.clone(),
            outcome: "unmatched".to_owned(),
            why: unmatched(config, call),
            rule: None,
            beaten: Vec::new(),
            limits: Vec::new(),
            counts,
        });
    };
    let beaten = |other: &&DescriptorRule| BeatenRule {
        name: other.name.to_string(),
        why: why_beaten(rule, other),
    };
    let mut explained = CallExplanation {
        call: call.clone(),
        outcome: String::new(),
        why: String::new(),
        rule: Some(RuleExplanation {
            name: rule.name.to_string(),
            entries: rule.entries.iter().map(ToString::to_string).collect(),
            notes: notes(config, rule),
        }),
        beaten: others.iter().map(beaten).collect(),
        limits: Vec::new(),
        counts,
    };
    explain_limits(&mut explained, config, rule, &entries, live);
    (explained.outcome, explained.why) = outcome(rule, &explained.limits);
    Ok(explained)
}

fn unmatched(config: &Config, call: &CallDescription) -> String {
    if !config.descriptors.has_domain(&call.domain) {
        return format!(
            "no rule has the domain `{}`: nothing is limited",
            call.domain
        );
    }
    format!(
        "no rule of `{}` takes these entries in this order: nothing is limited",
        call.domain
    )
}

/// The first entry at which `rule` is more specific.
fn why_beaten(rule: &DescriptorRule, other: &DescriptorRule) -> String {
    let pairs = rule.entries.iter().zip(&other.entries);
    let word = |value: &ValueRule| match value {
        ValueRule::Exact(_) => "an exact value",
        ValueRule::Pattern(_) => "a pattern",
        ValueRule::Any => "any value",
    };
    let mut pairs = pairs.filter(|(one, two)| one.value.rank() != two.value.rank());
    match pairs.next() {
        Some((one, two)) => format!(
            "`{two}` takes {}, and `{one}` takes {}",
            word(&two.value),
            word(&one.value)
        ),
        None => "it is less specific".to_owned(),
    }
}

fn notes(config: &Config, rule: &DescriptorRule) -> Vec<String> {
    let mut notes = Vec::new();
    if rule.is_quota {
        notes.push("a quota: denies only if all quotas of the call are over".to_owned());
    }
    if rule.charges_denied() {
        notes.push("charges denied units as well".to_owned());
    }
    if !rule.replaces.is_empty() {
        let names = rule.replaces.join(", ");
        notes.push(format!("in the same call these do not count: {names}"));
    }
    let replaces = |other: &&DescriptorRule| other.replaces.contains(&rule.name);
    let by: Vec<&str> = (config.descriptors.rules().iter())
        .filter(replaces)
        .map(|other| &*other.name)
        .collect();
    if !by.is_empty() {
        let names = by.join(", ");
        notes.push(format!("does not count in a call that has: {names}"));
    }
    notes
}

fn outcome(rule: &DescriptorRule, limits: &[LimitExplanation]) -> (String, String) {
    let denying: Vec<&str> = (limits.iter())
        .filter(|limit| limit.denies())
        .map(|limit| limit.name.as_str())
        .collect();
    let (outcome, why) = match (rule.is_block, denying.as_slice()) {
        (true, _) => ("denied", "the rule has `block`".to_owned()),
        (_, []) if limits.iter().all(|limit| limit.state != "enforced") => {
            ("unlimited", "no limit of the rule is enforced".to_owned())
        }
        (_, []) => ("allowed", "every limit of the rule allows it".to_owned()),
        (_, names) => ("denied", format!("denied by {}", names.join(", "))),
    };
    (outcome.to_owned(), why)
}

fn explain_limits(
    explained: &mut CallExplanation,
    config: &Config,
    rule: &DescriptorRule,
    entries: &[DescriptorEntry<'_>],
    mut live: Option<LiveCounts<'_>>,
) {
    let client = DescriptorFacts::address_entry(entries).and_then(DescriptorFacts::address);
    let facts = DescriptorFacts {
        entries,
        ip: client.map(|client| config.client_ip.group(client)),
    };
    // Without live counts the hash is not shown.
    let secret = live.as_ref().map_or([0; 32], |live| live.hash_key);
    let secret = HashSecret::from_bytes(secret);
    for limit in &rule.limits {
        let Some(tag) = limit.key.of_descriptor(&facts, &secret) else {
            continue;
        };
        let overrides = live.as_ref().and_then(|live| live.overrides.as_ref());
        let raised = overrides.and_then(|overrides| overrides.windows(limit, tag));
        let is_raised = raised.is_some();
        let windows = raised.unwrap_or(Cow::Borrowed(limit.windows_of(None)));
        let is_exempt = limit.exempt.has_descriptor(client, &limit.key, &facts);
        let state = match (is_exempt, !limit.enforces(tag)) {
            (true, _) => "exempt",
            (_, true) => "shadow",
            _ => "enforced",
        };
        let role = if is_raised { "override" } else { state };
        let units = limit.units(explained.call.hits);
        let mut admission = Admission::default();
        let client = CheckedClient { tag, anchor: None };
        admission.add(limit, &windows, client, units, None);
        let rates = windows.iter().map(|window| explain_rate(window, role));
        let candidates = limit.candidate.iter();
        let candidates = candidates.map(|window| explain_rate(window, "candidate"));
        explained.limits.push(LimitExplanation {
            name: limit.name.to_string(),
            state: state.to_owned(),
            why: None,
            key: key_parts(limit, &facts),
            id: live.is_some().then(|| short_hash(tag)),
            cost: units,
            cost_why: None,
            tier: None,
            rates: rates.chain(candidates).collect(),
            holds: None,
            bans: limit.ban.map(|ban| ban.to_string()),
            on_error: limit.on_error.word().to_owned(),
        });
        if is_exempt {
            continue;
        }
        for charge in std::iter::once(admission.charge).chain(admission.shadow) {
            match live.as_mut().map(|live| (live.peek)(&charge)) {
                Some(Ok(decision)) => add_decision(&mut explained.limits, &charge, &decision),
                Some(Err(trouble)) => explained.counts.trouble = Some(trouble),
                None => add_decision(&mut explained.limits, &charge, &without_calls(&charge)),
            }
        }
    }
}

/// The decision for a client without earlier calls.
fn without_calls(charge: &Charge) -> Decision {
    let verdict = |check: &LimitCheck| {
        let units = check.window.rule.units;
        let passes = check.cost <= units;
        Verdict {
            used: 0,
            remaining: if passes { units - check.cost } else { units },
            retry: if passes { Retry::Now } else { Retry::Never },
            reset_us: if passes {
                check.window.rule.window_us
            } else {
                0
            },
            next_us: 0,
            stamp: 0,
        }
    };
    Decision {
        allowed: charge
            .iter()
            .all(|check| check.cost <= check.window.rule.units),
        at_us: 0,
        spread_us: 0,
        verdicts: charge.iter().map(verdict).collect(),
    }
}

fn key_parts(limit: &Limit, facts: &DescriptorFacts<'_>) -> Vec<KeyPart> {
    let value = |part: &Part| match part {
        Part::Ip => facts.ip.map(|ip| ip.to_string()),
        Part::Entry(name) => facts.value_of(name).map(str::to_owned),
        Part::Global => Some(String::new()),
        _ => None,
    };
    let parts = limit.key.parts.iter().map(|part| {
        let found = part.0.iter().find_map(|one| Some((one, value(one)?)));
        KeyPart {
            part: part.to_string(),
            found: found.as_ref().map(|(one, _)| one.to_string()),
            value: found
                .map(|(_, value)| value)
                .filter(|value| !value.is_empty()),
            note: None,
        }
    });
    parts.collect()
}
