//! Reads `[[descriptor]]`: the rules for descriptors that other proxies send.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::DeValue;

use super::definitions::Definitions;
use super::limit_names::{ChosenLimit, RateInPlace};
use super::reference::as_json;
use super::*;
use crate::descriptor::{DescriptorRule, DescriptorTable, EntryRule, ValuePattern, ValueRule};
use crate::limit::key::{Alternatives, Key, MAX_CHOICES, Part};
use crate::limit::{Algorithm, Missing};

/// Entries of one descriptor, at most.
pub const MAX_ENTRIES: usize = 16;
/// Rules of one file, at most.
const MAX_RULES: usize = 50_000;
const DOMAIN: TextForm = TextForm::new(Code::BadName, "a domain");
const ENTRY: TextForm = TextForm::new(Code::BadName, "an entry");

/// A rule and its places in the file.
pub(super) struct DefinedDescriptor {
    rule: DescriptorRule,
    name: Option<Located<String>>,
    limits: Vec<Located<String>>,
    key: Option<Located<Key>>,
    shadow: Option<TextSpan>,
    /// The place of `charge` or `quota`, if it charges what is denied.
    charges_denied: Option<TextSpan>,
    replaces: Vec<Located<String>>,
    span: TextSpan,
    is_whole: bool,
}

impl DefinedDescriptor {
    pub(super) fn span(&self) -> &TextSpan {
        &self.span
    }
}

/// Reads `[[descriptor]]`.
pub(super) fn read_all(top: &mut Section<'_>) -> Vec<DefinedDescriptor> {
    let sections = top.list("descriptor");
    if sections.is_empty() {
        // Declares the keys of a descriptor.
        read_keys(top.inner("descriptor", None, top.span.clone()));
    }
    let read = sections.into_iter().map(|section| {
        section.require("domain", "domain = \"shop\"");
        section.require("entries", "entries = [\"remote_address\"]");
        check_limits(&section);
        read_keys(section)
    });
    read.collect()
}

fn read_keys(mut section: Section<'_>) -> DefinedDescriptor {
    let name = section.located_text("name");
    if let Some(name) = &name {
        check_name(&section, name);
    }
    let domain = section.parse("domain", DOMAIN, |text| match text {
        "" => Err("empty"),
        text => Ok(text.to_owned()),
    });
    let entries = entries(&mut section);
    let limits = section.texts("limits");
    let is_block = section.boolean("block");
    let key = key(&mut section, &entries);
    let shadow = section.boolean("shadow");
    let words = [("allowed", false), ("always", true)];
    let charges_always = section.word("charge", &words);
    let is_quota = section.boolean("quota");
    let replaces = section.texts("replaces").unwrap_or_default();
    let metadata = metadata(&mut section);
    let text = entries.iter().map(ToString::to_string);
    let text = text.collect::<Vec<_>>().join(",");
    let full = format!("{}/{text}", domain.as_deref().unwrap_or_default());
    let charging = if is_quota { "quota" } else { "charge" };
    let defined = DefinedDescriptor {
        is_whole: domain.is_some() && !entries.is_empty(),
        rule: DescriptorRule {
            name: name
                .as_ref()
                .map_or(full.as_str(), |name| &name.value)
                .into(),
            domain: domain.unwrap_or_default(),
            entries,
            limits: Vec::new(),
            is_block,
            charges_always,
            is_quota,
            replaces: replaces
                .iter()
                .map(|one| one.value.as_str().into())
                .collect(),
            metadata: metadata.map(Arc::new),
        },
        name,
        limits: limits.unwrap_or_default(),
        key,
        shadow: shadow.then(|| section.key_span("shadow")),
        charges_denied: (charges_always || is_quota).then(|| section.key_span(charging)),
        replaces,
        span: section.span.clone(),
    };
    section.finish();
    defined
}

/// Names stand in logs and metrics. Those of imported files may have any characters but controls.
fn check_name(section: &Section<'_>, name: &Located<String>) {
    let fits = !name.value.is_empty()
        && name.value.chars().count() <= 200
        && !name.value.contains(char::is_control);
    if !fits {
        Diagnostic::new(Code::BadName, "not a name for a descriptor")
            .at(&name.span, "1 to 200 characters")
            .report_to(section.reader);
    }
}

fn check_limits(section: &Section<'_>) {
    let is_block = section
        .peek("block")
        .is_some_and(|value| value.get_ref().as_bool() == Some(true));
    if !is_block {
        section.require("limits", "limits = [\"10/min\"]");
    } else if section.has("limits") {
        contradiction("`block` and `limits` in one descriptor")
            .at(&section.key_span("block"), "denies every call")
            .at(&section.key_span("limits"), "counts calls")
            .help("keep one of them")
            .report_to(section.reader);
    }
}

fn entries(section: &mut Section<'_>) -> Vec<EntryRule> {
    let Some(value) = section.take("entries", || ValueKind::TextsOrTables) else {
        // Declares the keys of an entry.
        entry_table(section.inner("entries", None, section.span.clone()));
        return Vec::new();
    };
    let values = match value.get_ref() {
        DeValue::Array(values) => values.iter().collect(),
        _ => vec![value],
    };
    if !(1..=MAX_ENTRIES).contains(&values.len()) {
        section.out_of_range("entries", &format!("1 to {MAX_ENTRIES} entries"));
    }
    let read = values.into_iter();
    read.filter_map(|value| entry(section, value)).collect()
}

fn entry(section: &Section<'_>, value: &Spanned<DeValue<'_>>) -> Option<EntryRule> {
    match value.get_ref() {
        DeValue::String(_) => {
            let text = section.interpolated(value)?;
            let parsed = section.parse_text("entries", text, ENTRY, parse_entry)?;
            Some(parsed.value)
        }
        DeValue::Table(table) => {
            let inner = section.inner("entries", Some(table), value.span());
            inner.require("key", "key = \"user\"");
            entry_table(inner)
        }
        _ => {
            section.wrong_type("entries", value, "a list of texts or tables");
            None
        }
    }
}

fn entry_table(mut section: Section<'_>) -> Option<EntryRule> {
    let key = section.parse("key", ENTRY, |text| match text {
        "" => Err("empty"),
        text => Ok(text.to_owned()),
    });
    let value = section.text("value");
    section.finish();
    Some(EntryRule {
        key: key?,
        value: value.map_or(ValueRule::Any, ValueRule::Exact),
    })
}

/// Reads `KEY=VALUE`, `KEY=PAT*TERN`, or `KEY` for any value.
fn parse_entry(text: &str) -> Result<EntryRule, &'static str> {
    let (key, value) = match text.split_once('=') {
        None => (text, ValueRule::Any),
        Some((key, value)) => (
            key,
            match ValuePattern::parse(value) {
                Some(pattern) => ValueRule::Pattern(pattern),
                None => ValueRule::Exact(value.to_owned()),
            },
        ),
    };
    match key {
        "" => Err("the key is empty"),
        key if key.contains('*') => Err("a key has no pattern, only a value has"),
        key => Ok(EntryRule {
            key: key.to_owned(),
            value,
        }),
    }
}

/// The key of rates in place.
fn key(section: &mut Section<'_>, entries: &[EntryRule]) -> Option<Located<Key>> {
    let allowed = format!("1 to {MAX_CHOICES} parts");
    section.declare("key", || ValueKind::Keys);
    let texts = section.counted_texts("key", 1..=MAX_CHOICES, &allowed)?;
    let form = TextForm::new(Code::BadKey, "a key");
    let mut parts: Vec<Alternatives> = Vec::new();
    for part in section.parse_all("key", Some(texts), form, Key::parse_part) {
        check_part(section.reader, &part.value, &part.span, entries);
        parts.push(part.value);
    }
    (!parts.is_empty()).then(|| section.located("key", Key::new(parts)))
}

/// Reports a part of a key that no descriptor of a rule can have.
fn check_part(
    reader: &ConfigReader<'_>,
    part: &Alternatives,
    span: &TextSpan,
    entries: &[EntryRule],
) {
    let keys = || entries.iter().map(|entry| entry.key.as_str());
    if entries.is_empty() || part.0.iter().any(|one| one.is_in_descriptor(keys())) {
        return;
    }
    let is_entry = |part: &&Part| matches!(part, Part::Entry(_));
    let (why, help) = match part.0.iter().find(is_entry) {
        Some(Part::Entry(name)) => (
            format!("this rule lists no entry `{name}`"),
            format!("list `{name}` in `entries`, or count by another entry"),
        ),
        _ if part.0.contains(&Part::Ip) => (
            "this rule lists no entry with an address".to_owned(),
            "list `remote_address` in `entries`, or count by another entry".to_owned(),
        ),
        _ => (
            "a descriptor has only entries".to_owned(),
            "write `entry:NAME` with the key of an entry".to_owned(),
        ),
    };
    contradiction(format!("no descriptor of this rule has `{part}`"))
        .at(span, why)
        .help(help)
        .report_to(reader);
}

fn metadata(section: &mut Section<'_>) -> Option<Map<String, Value>> {
    let value = section.take("metadata", || ValueKind::AnyTable)?;
    match as_json(value.get_ref()) {
        Value::Object(map) => Some(map),
        _ => {
            section.wrong_type("metadata", value, "a table");
            None
        }
    }
}

/// Finds the limits of all rules. Call it before the limits are shared with routes.
pub(super) fn choose_all(
    definitions: &mut Definitions<'_>,
    defined: &[DefinedDescriptor],
) -> Vec<Vec<ChosenLimit>> {
    if let Some(first) = defined.get(MAX_RULES) {
        Diagnostic::new(
            Code::OutOfRange,
            format!("more than {MAX_RULES} descriptors"),
        )
        .at(&first.span, "the first of too many")
        .report_to(definitions.reader);
    }
    check_names(definitions, defined);
    let chosen = defined.iter().map(|one| choose(definitions, one));
    chosen.collect()
}

fn choose(definitions: &mut Definitions<'_>, one: &DefinedDescriptor) -> Vec<ChosenLimit> {
    let in_place = RateInPlace {
        user: "descriptor",
        name: one.rule.name.to_string(),
        key: Some(match &one.key {
            Some(key) => key.value.clone(),
            None => default_key(&one.rule.entries),
        }),
        missing: Missing::Ip,
        shadow: one.shadow.is_some(),
    };
    let count = definitions.limits.len();
    let chosen = definitions.choose_limits(&one.limits, &in_place);
    if count == definitions.limits.len() {
        report_unused(definitions, one);
    }
    for chosen in &chosen {
        check_limit(definitions, one, chosen);
        let defined = &mut definitions.limits[chosen.value];
        defined.is_used = true;
        if let Some(limit) = &mut defined.limit {
            // A call may give units back.
            Arc::make_mut(limit).refunds = true;
        }
    }
    chosen
}

/// The table of all rules; `None` if two are in conflict.
pub(super) fn compile(
    definitions: &Definitions<'_>,
    defined: Vec<DefinedDescriptor>,
    chosen: &[Vec<ChosenLimit>],
) -> Option<DescriptorTable> {
    let mut rules = Vec::new();
    let mut spans = Vec::new();
    for (mut one, chosen) in defined.into_iter().zip(chosen) {
        let limits = chosen
            .iter()
            .map(|chosen| &definitions.limits[chosen.value]);
        one.rule.limits = limits.filter_map(|limit| limit.limit.clone()).collect();
        if one.is_whole {
            rules.push(one.rule);
            spans.push(one.span);
        }
    }
    let conflicts = match DescriptorTable::new(rules) {
        Ok(table) => return Some(table),
        Err(conflicts) => conflicts,
    };
    for conflict in conflicts {
        Diagnostic::new(
            Code::RouteConflict,
            "two descriptors match the same entries",
        )
        .at(&spans[conflict.second], "this one")
        .at(&spans[conflict.first], "and this one")
        .help("tell them apart by the value of an entry, or remove one")
        .report_to(definitions.reader);
    }
    None
}

/// All entries whose value is not exact, or all calls together.
fn default_key(entries: &[EntryRule]) -> Key {
    let is_open = |entry: &&EntryRule| !matches!(entry.value, ValueRule::Exact(_));
    let part = |entry: &EntryRule| Alternatives(vec![Part::Entry(entry.key.clone())]);
    let mut parts: Vec<Alternatives> = entries.iter().filter(is_open).map(part).collect();
    parts.dedup();
    if parts.is_empty() {
        parts.push(Alternatives(vec![Part::Global]));
    }
    Key::new(parts)
}

/// Reports settings of rates in place where there are none.
fn report_unused(definitions: &Definitions<'_>, one: &DefinedDescriptor) {
    let key = one.key.as_ref().map(|key| ("key", &key.span));
    let shadow = one.shadow.as_ref().map(|span| ("shadow", span));
    for (name, span) in key.into_iter().chain(shadow) {
        contradiction(format!("`{name}` is for rates in place"))
            .at(span, "`limits` has none here")
            .help(format!("write `{name}` in the `[limit.NAME]`"))
            .report_to(definitions.reader);
    }
}

fn check_limit(definitions: &Definitions<'_>, one: &DefinedDescriptor, chosen: &ChosenLimit) {
    let defined = &definitions.limits[chosen.value];
    let reader = definitions.reader;
    for part in &defined.key.value.parts {
        check_part(reader, part, &chosen.span, &one.rule.entries);
    }
    let mut rules = defined.rules.iter();
    if let Some(rule) = rules.find(|rule| rule.value.algorithm == Algorithm::Slots) {
        contradiction("`concurrent` in a descriptor")
            .at(
                &chosen.span,
                "the caller does not say when its request ends",
            )
            .at(&rule.span, "")
            .help("name a limit with a `rate`")
            .report_to(reader);
    }
    let is_leased = defined
        .limit
        .as_ref()
        .is_some_and(|limit| limit.lease_us > 0);
    if let Some(span) = one.charges_denied.as_ref().filter(|_| is_leased) {
        contradiction("a descriptor that charges denied calls has a limit with `lease`")
            .at(span, "charges what is denied")
            .at(&chosen.span, "takes units ahead")
            .help("leave out the `lease`, or charge only what is allowed")
            .report_to(reader);
    }
}

/// Reports names that occur twice, and replaced names that no rule has.
fn check_names(definitions: &Definitions<'_>, defined: &[DefinedDescriptor]) {
    let mut names: HashMap<&str, &TextSpan> = HashMap::new();
    for name in defined.iter().filter_map(|one| one.name.as_ref()) {
        if let Some(first) = names.insert(&name.value, &name.span) {
            duplicate(format!("two descriptors are called `{}`", name.value))
                .at(&name.span, "")
                .at(first, "first here")
                .report_to(definitions.reader);
        }
    }
    for one in defined {
        for replaced in &one.replaces {
            let own = one.name.as_ref();
            let is_own = own.is_some_and(|name| name.value == replaced.value);
            if is_own {
                contradiction("a descriptor replaces itself")
                    .at(&replaced.span, "")
                    .report_to(definitions.reader);
            } else if !names.contains_key(replaced.value.as_str()) {
                let otherwise = "give the other descriptor this `name`".to_owned();
                let known = names.keys().copied();
                replaced
                    .unknown(Code::Contradiction, "descriptor")
                    .help(did_you_mean(&replaced.value, known, otherwise))
                    .report_to(definitions.reader);
            }
        }
    }
}
