//! Descriptor rules: the limits of a descriptor that another proxy sends.
//!
//! A rule takes a descriptor of the same domain and the same number of entries if every entry fits,
//! in order. The most specific of several rules decides: entry by entry from the first, an exact
//! value is before a pattern, and a pattern before any value. Of two patterns the one with more
//! literal characters is first. Two rules that are equal in this order and may take the same
//! descriptor are a conflict. So the order of the file never matters.
//!
//! Finding a rule takes time in proportion to the entries, and to the rules that fit their first
//! entries.

mod pattern;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use smallvec::{SmallVec, smallvec};

use crate::limit::Limit;
use crate::limit::key::DescriptorEntry;
pub use pattern::ValuePattern;

/// `[[descriptor]]`
#[derive(Clone, Debug)]
pub struct DescriptorRule {
    pub name: Arc<str>,
    pub domain: String,
    pub entries: Vec<EntryRule>,
    /// Empty for a rule without a bound.
    pub limits: Vec<Arc<Limit>>,
    /// Whether every call is denied.
    pub is_block: bool,
    /// Whether denied units are charged as well.
    pub charges_always: bool,
    /// Whether a call is denied only if all its rules of this kind are over. Such a rule always
    /// charges.
    pub is_quota: bool,
    /// Descriptors of these rules do not count in a call that has one of this rule.
    pub replaces: Vec<Arc<str>>,
    /// For the caller, where this rule passes.
    pub metadata: Option<Arc<Map<String, Value>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRule {
    pub key: String,
    pub value: ValueRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueRule {
    Exact(String),
    Pattern(ValuePattern),
    Any,
}

impl ValueRule {
    pub fn matches(&self, value: &str) -> bool {
        match self {
            ValueRule::Exact(text) => text == value,
            ValueRule::Pattern(pattern) => pattern.matches(value),
            ValueRule::Any => true,
        }
    }

    /// Higher is more specific.
    pub fn rank(&self) -> usize {
        match self {
            ValueRule::Exact(_) => usize::MAX,
            ValueRule::Pattern(pattern) => pattern.literals() + 1,
            ValueRule::Any => 0,
        }
    }
}

impl DescriptorRule {
    /// More specific rules come first.
    pub fn precedence(&self, other: &DescriptorRule) -> Ordering {
        let ranks = |rule: &'_ DescriptorRule| -> SmallVec<[usize; 4]> {
            rule.entries
                .iter()
                .map(|entry| entry.value.rank())
                .collect()
        };
        ranks(other).cmp(&ranks(self))
    }

    /// The rule with its limits changed by `own`.
    pub fn with_limits(&self, own: impl Fn(&Arc<Limit>) -> Arc<Limit>) -> DescriptorRule {
        DescriptorRule {
            name: Arc::from(&*self.name),
            limits: self.limits.iter().map(own).collect(),
            ..self.clone()
        }
    }

    /// Whether units that a denial did not charge are charged afterwards.
    pub fn charges_denied(&self) -> bool {
        self.charges_always || self.is_quota
    }
}

impl fmt::Display for EntryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match &self.value {
            ValueRule::Exact(value) => write!(f, "={value}"),
            ValueRule::Pattern(pattern) => write!(f, "={pattern}"),
            ValueRule::Any => Ok(()),
        }
    }
}

/// Two rules that may take the same descriptor, neither of them first; by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleConflict {
    pub first: usize,
    pub second: usize,
}

/// All rules, as a tree by domain and entries.
#[derive(Clone, Debug, Default)]
pub struct DescriptorTable {
    rules: Vec<DescriptorRule>,
    domains: HashMap<String, Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// The rules that end here, by index.
    rules: Vec<usize>,
    keys: HashMap<String, KeyNode>,
}

/// The values of the next entry, if it has this key.
#[derive(Clone, Debug, Default)]
struct KeyNode {
    exact: HashMap<String, Node>,
    patterns: Vec<PatternNode>,
    any: Option<Box<Node>>,
}

#[derive(Clone, Debug)]
struct PatternNode {
    pattern: ValuePattern,
    node: Node,
}

impl Node {
    fn child(&mut self, entry: &EntryRule) -> &mut Node {
        let key = self.keys.entry(entry.key.clone()).or_default();
        match &entry.value {
            ValueRule::Exact(value) => key.exact.entry(value.clone()).or_default(),
            ValueRule::Any => key.any.get_or_insert_default(),
            ValueRule::Pattern(pattern) => {
                let known = key.patterns.iter().position(|one| one.pattern == *pattern);
                let at = known.unwrap_or(key.patterns.len());
                if known.is_none() {
                    key.patterns.push(PatternNode {
                        pattern: pattern.clone(),
                        node: Node::default(),
                    });
                }
                &mut key.patterns[at].node
            }
        }
    }
}

impl KeyNode {
    fn nodes<'n>(&'n self, value: &str) -> impl Iterator<Item = &'n Node> {
        let patterns = self.patterns.iter();
        let patterns = patterns.filter(move |one| one.pattern.matches(value));
        let exact = self.exact.get(value).into_iter();
        exact
            .chain(patterns.map(|one| &one.node))
            .chain(self.any.as_deref())
    }
}

impl DescriptorTable {
    /// # Errors
    /// Every pair of rules in conflict.
    pub fn new(rules: Vec<DescriptorRule>) -> Result<DescriptorTable, Vec<RuleConflict>> {
        let conflicts = conflicts(&rules);
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        let mut table = DescriptorTable::default();
        for (index, rule) in rules.iter().enumerate() {
            let mut node = table.domains.entry(rule.domain.clone()).or_default();
            for entry in &rule.entries {
                node = node.child(entry);
            }
            node.rules.push(index);
        }
        table.rules = rules;
        Ok(table)
    }

    pub fn rules(&self) -> &[DescriptorRule] {
        &self.rules
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The table with the limits of each rule changed by `own`.
    pub fn with_limits(&self, own: impl Fn(&Arc<Limit>) -> Arc<Limit>) -> DescriptorTable {
        DescriptorTable {
            rules: (self.rules.iter())
                .map(|rule| rule.with_limits(&own))
                .collect(),
            domains: self.domains.clone(),
        }
    }

    /// The rule that takes a descriptor.
    pub fn find(&self, domain: &str, entries: &[DescriptorEntry<'_>]) -> Option<&DescriptorRule> {
        let rules = self.fitting(domain, entries);
        rules.min_by(|one, other| one.precedence(other))
    }

    /// All rules that fit a descriptor, the one that takes it first.
    pub fn find_all(&self, domain: &str, entries: &[DescriptorEntry<'_>]) -> Vec<&DescriptorRule> {
        let mut rules: Vec<_> = self.fitting(domain, entries).collect();
        rules.sort_by(|one, other| one.precedence(other));
        rules
    }

    fn fitting(
        &self,
        domain: &str,
        entries: &[DescriptorEntry<'_>],
    ) -> impl Iterator<Item = &DescriptorRule> {
        let mut reached: SmallVec<[&Node; 4]> = match self.domains.get(domain) {
            Some(root) => smallvec![root],
            None => SmallVec::new(),
        };
        for entry in entries {
            let keys = reached.iter().filter_map(|node| node.keys.get(entry.key));
            reached = keys.flat_map(|key| key.nodes(entry.value)).collect();
        }
        let rules = reached.into_iter().flat_map(|node| &node.rules);
        rules.map(|rule| &self.rules[*rule])
    }
}

/// Finds the pairs of rules in conflict. Only rules with the same keys, the same exact values and
/// the same ranks are compared with each other.
fn conflicts(rules: &[DescriptorRule]) -> Vec<RuleConflict> {
    let mut groups: HashMap<String, Vec<usize>> = HashMap::new();
    let mut found = Vec::new();
    for (second, rule) in rules.iter().enumerate() {
        let group = groups.entry(group_of(rule)).or_default();
        for &first in group.iter() {
            if may_meet(&rules[first], rule) {
                found.push(RuleConflict { first, second });
            }
        }
        group.push(second);
    }
    found
}

fn group_of(rule: &DescriptorRule) -> String {
    let mut text = format!("{:?}", rule.domain);
    for entry in &rule.entries {
        let value = match &entry.value {
            ValueRule::Exact(value) => format!("={value:?}"),
            other => other.rank().to_string(),
        };
        text.push_str(&format!(" {:?} {value}", entry.key));
    }
    text
}

/// Whether some descriptor fits two rules of one group.
fn may_meet(one: &DescriptorRule, other: &DescriptorRule) -> bool {
    let mut entries = one.entries.iter().zip(&other.entries);
    entries.all(|(one, other)| match (&one.value, &other.value) {
        (ValueRule::Pattern(one), ValueRule::Pattern(other)) => one.meets(other),
        _ => true,
    })
}
