//! The tree of the service and the rules that it becomes, beside each other on random trees and
//! calls. Both must choose the same limit, and count the same calls together.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::config::{self, Config};
use tidegate_core::limit::key::{DescriptorEntry, DescriptorFacts};

use super::import_text;
use crate::{Grade, Imported};

#[derive(Clone, Debug)]
struct Node {
    key: &'static str,
    value: &'static str,
    is_shared: bool,
    /// The name of its rate limit.
    limit: Option<String>,
    nodes: Vec<Node>,
}

type Call = Vec<DescriptorEntry<'static>>;

/// The limit of a call, and the text that the call is counted under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Counted {
    limit: String,
    count: String,
}

impl Node {
    fn joined(&self) -> String {
        match self.value {
            "" => self.key.to_owned(),
            value => format!("{}_{value}", self.key),
        }
    }

    fn is_pattern(&self) -> bool {
        self.value.contains('*')
    }

    fn takes(&self, entry: &DescriptorEntry<'_>) -> bool {
        let is_whole = self.value.is_empty() && self.key == entry.key;
        is_whole || fits(&self.joined(), &format!("{}_{}", entry.key, entry.value))
    }

    fn yaml(&self) -> String {
        let (key, value) = (self.key, self.value);
        let limit = self.limit.as_ref().map_or(String::new(), |name| {
            format!(", rate_limit: {{name: {name}, unit: hour, requests_per_unit: 5}}")
        });
        let shared = match self.is_shared && self.is_pattern() {
            true => ", share_threshold: true",
            false => "",
        };
        let nodes: Vec<String> = self.nodes.iter().map(Node::yaml).collect();
        let nodes = nodes.join(",");
        format!("\n {{key: {key}, value: '{value}'{shared}{limit}, descriptors: [{nodes}]}}")
    }
}

/// Whether a text fits a pattern, by trying every length for each star.
fn fits(pattern: &str, text: &str) -> bool {
    match (pattern.chars().next(), text.chars().next()) {
        (None, first) => first.is_none(),
        (Some('*'), first) => {
            fits(&pattern[1..], text) || first.is_some() && fits(pattern, &text[1..])
        }
        (Some(wanted), Some(first)) => wanted == first && fits(&pattern[1..], &text[1..]),
        (Some(_), None) => false,
    }
}

/// Finds the limit as the service does: by key and value, then by the patterns in order, then by
/// the key. The service never turns back, and a limit counts only at the last entry.
fn service_finds(roots: &[Node], call: &Call) -> Option<Counted> {
    let mut level = roots;
    let mut count = String::new();
    for (index, entry) in call.iter().enumerate() {
        let joined = format!("{}_{}", entry.key, entry.value);
        let exact = level.iter().find(|node| node.joined() == joined);
        let mut patterns = level.iter().filter(|node| node.is_pattern());
        let pattern = patterns.find(|node| fits(&node.joined(), &joined));
        let plain = level.iter().find(|node| node.joined() == entry.key);
        let node = exact.or(pattern).or(plain)?;
        let value = match node.is_shared && node.is_pattern() {
            true => node.value,
            false => entry.value,
        };
        count.push_str(&format!("{}_{value}_", entry.key));
        if index + 1 == call.len() {
            let limit = node.limit.clone()?;
            return Some(Counted { limit, count });
        }
        level = &node.nodes;
    }
    None
}

/// Finds the rule of a call. A rule that limits nothing is none.
fn tidegate_finds(config: &Config, call: &Call) -> Option<Counted> {
    let rule = config.descriptors.find("d", call)?;
    let limit = rule.limits.first()?;
    assert_eq!(rule.limits.len(), 1);
    let facts = DescriptorFacts {
        entries: call,
        ip: None,
    };
    Some(Counted {
        limit: rule.name.to_string(),
        count: limit.key.spell_descriptor(&facts).unwrap(),
    })
}

/// Patterns of which one takes all values of the other, or none. So their order can be kept.
const NESTED: [&str; 10] = ["", "", "", "x", "y", "xy", "x*", "xy*", "xy*y", "*"];
const MIXED: [&str; 10] = ["", "", "x", "y", "xy", "x*", "*y", "xy*", "x*y", "*x*"];

fn nodes(depth: u32, values: &'static [&'static str]) -> BoxedStrategy<Vec<Node>> {
    let below = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => nodes(depth - 1, values),
    };
    let keys = select(&["a", "a", "a", "b"][..]);
    let node = (keys, select(values), any::<bool>(), any::<bool>(), below);
    let node = node.prop_map(|(key, value, is_shared, is_limited, nodes)| Node {
        key,
        value,
        is_shared,
        limit: is_limited.then(String::new),
        nodes,
    });
    let all = vec(node, 0..7).prop_map(|nodes| {
        let mut kept: Vec<Node> = Vec::new();
        for node in nodes {
            if kept.iter().all(|one| one.joined() != node.joined()) {
                kept.push(node);
            }
        }
        kept
    });
    all.boxed()
}

fn give_names(nodes: &mut [Node], count: &mut usize) {
    for node in nodes {
        if let Some(name) = &mut node.limit {
            *count += 1;
            *name = format!("r{count}");
        }
        give_names(&mut node.nodes, count);
    }
}

/// All calls of at most three entries.
fn calls() -> Vec<Call> {
    let entry = |key, value| DescriptorEntry { key, value };
    let values = ["", "x", "y", "xy", "xyzy"].map(|value| entry("a", value));
    let entries = [
        &values[..],
        &["x", "y", "xy"].map(|value| entry("b", value)),
    ]
    .concat();
    let mut calls: Vec<Call> = vec![Vec::new()];
    let mut at = 0;
    while calls[at].len() < 3 {
        for entry in &entries {
            calls.push([&calls[at][..], &[*entry]].concat());
        }
        at += 1;
    }
    calls.split_off(1)
}

fn has_note(imported: &Imported, grade: Grade, why: &str) -> bool {
    let mut notes = imported.notes.iter();
    notes.any(|note| note.grade == grade && note.why.contains(why))
}

/// Whether two patterns beside each other take an entry of the call.
fn meets_rivals(level: &[Node], call: &[DescriptorEntry<'_>]) -> bool {
    let Some((first, rest)) = call.split_first() else {
        return false;
    };
    let taking = || level.iter().filter(|node| node.takes(first));
    let patterns = taking().filter(|node| node.is_pattern());
    patterns.count() > 1 || taking().any(|node| meets_rivals(&node.nodes, rest))
}

/// Whether two entries have one key. The key of a limit finds only the first of them.
fn repeats_key(call: &Call) -> bool {
    let mut entries = call.iter().enumerate();
    entries.any(|(index, entry)| call[..index].iter().any(|one| one.key == entry.key))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rules_count_the_calls_of_the_tree(
        (is_nested, mut roots) in prop_oneof![
            nodes(2, &NESTED).prop_map(|roots| (true, roots)),
            nodes(2, &MIXED).prop_map(|roots| (false, roots)),
        ],
    ) {
        let mut count = 0;
        give_names(&mut roots, &mut count);
        let yaml: Vec<String> = roots.iter().map(Node::yaml).collect();
        let yaml = format!("domain: d\ndescriptors: [{}]\n", yaml.join(","));
        let imported = match import_text(&yaml) {
            Ok(imported) => imported,
            Err(error) => {
                prop_assert!(error.contains("that can be kept"), "{}{}", yaml, error);
                let found = calls().iter().any(|call| service_finds(&roots, call).is_some());
                prop_assert!(!found, "{}", yaml);
                return Ok(());
            }
        };
        let is_disputed = has_note(&imported, Grade::Differs, "takes some of the same");
        let has_tie = has_note(&imported, Grade::Lost, "takes some of the same");
        prop_assert!(!is_nested || !is_disputed && !has_tie, "{}{}", yaml, imported.text);
        let (config, _) = config::parse("proxy.toml", &imported.text, &|_| None).unwrap();
        let mut counts = BTreeMap::new();
        let mut reverse = BTreeMap::new();
        for call in calls() {
            if has_tie || is_disputed && meets_rivals(&roots, &call) {
                continue;
            }
            let expected = service_finds(&roots, &call);
            let found = tidegate_finds(&config, &call);
            let names = [&found, &expected].map(|one| one.as_ref().map(|one| &one.limit));
            prop_assert_eq!(names[0], names[1], "{:?}\n{}{}", call, yaml, imported.text);
            if let (Some(found), Some(expected), false) = (found, expected, repeats_key(&call)) {
                let known = counts.entry(expected.clone()).or_insert(found.clone());
                prop_assert_eq!(&*known, &found, "{:?}\n{}{}", call, yaml, imported.text);
                let known = reverse.entry(found).or_insert(expected.clone());
                prop_assert_eq!(&*known, &expected, "{:?}\n{}{}", call, yaml, imported.text);
            }
        }
    }
}
