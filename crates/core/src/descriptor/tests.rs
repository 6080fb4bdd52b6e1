//! The rule of a descriptor, against a search of all rules.

use proptest::prelude::*;

use super::*;

fn entry(text: &str) -> EntryRule {
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
    EntryRule {
        key: key.to_owned(),
        value,
    }
}

fn rule(text: &str) -> DescriptorRule {
    DescriptorRule {
        name: text.into(),
        domain: "shop".to_owned(),
        entries: text.split(',').map(entry).collect(),
        limits: Vec::new(),
        is_block: false,
        charges_always: false,
        is_quota: false,
        replaces: Vec::new(),
        metadata: None,
    }
}

fn entries(text: &str) -> Vec<DescriptorEntry<'_>> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| DescriptorEntry { key, value })
        .collect()
}

fn found(rules: &[&str], call: &str) -> Option<String> {
    let table = DescriptorTable::new(rules.iter().map(|text| rule(text)).collect()).unwrap();
    let rule = table.find("shop", &entries(call));
    rule.map(|rule| rule.name.to_string())
}

#[test]
fn the_most_specific_rule_decides() {
    let rules = ["a=1,b", "a,b=2", "a=1*,b=2", "a,b", "a=1,b=2*", "a"];
    for (call, expected) in [
        ("a=1,b=2", "a=1,b=2*"),
        ("a=1,b=3", "a=1,b"),
        ("a=12,b=2", "a=1*,b=2"),
        ("a=12,b=3", "a,b"),
        ("a=2,b=2", "a,b=2"),
        ("a=1", "a"),
    ] {
        assert_eq!(found(&rules, call).as_deref(), Some(expected), "{call}");
    }
    for call in ["b=1", "a=1,b=2,c=3", "a=1,c=2", "b=2,a=1"] {
        assert_eq!(found(&rules, call), None, "{call}");
    }
    let table = DescriptorTable::new(vec![rule("a")]).unwrap();
    assert!(table.find("other", &entries("a=1")).is_none());
    assert!(table.has_domain("shop") && !table.has_domain("other"));
}

#[test]
fn longer_patterns_come_first_and_ties_are_conflicts() {
    assert_eq!(found(&["a=1*", "a=12*"], "a=123").as_deref(), Some("a=12*"));
    let conflicts = |rules: &[&str]| {
        let rules = rules.iter().map(|text| rule(text)).collect();
        DescriptorTable::new(rules).err().unwrap_or_default()
    };
    let one = [RuleConflict {
        first: 0,
        second: 1,
    }];
    for pair in [
        ["a=1", "a=1"],
        ["a", "a"],
        ["a=x*", "a=*y"],
        ["a=x*,b=1", "a=*y,b=1"],
    ] {
        assert_eq!(conflicts(&pair), one, "{pair:?}");
    }
    for pair in [
        ["a=1", "a=2"],
        ["a=x*", "a=y*"],
        ["a=x*,b=1", "a=*y,b"],
        ["a=x*,b=1", "a=*y,b=2"],
        ["a", "b"],
    ] {
        assert_eq!(conflicts(&pair), [], "{pair:?}");
    }
}

fn rule_text() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just(String::new()),
        "=[xy]{1,2}".prop_map(|text| text),
        "=[xy]{0,1}\\*[xy]{0,1}".prop_map(|text| text),
    ];
    let entry = ("[ab]", value).prop_map(|(key, value)| format!("{key}{value}"));
    proptest::collection::vec(entry, 1..4).prop_map(|entries| entries.join(","))
}

proptest! {
    /// The model tries every rule.
    #[test]
    fn the_tree_finds_what_a_scan_finds(
        texts in proptest::collection::vec(rule_text(), 1..8),
        call in proptest::collection::vec("[ab]=[xy]{0,2}", 1..4),
    ) {
        let rules: Vec<DescriptorRule> = texts.iter().map(|text| rule(text)).collect();
        let call = call.join(",");
        let entries = entries(&call);
        let fits = |rule: &&DescriptorRule| {
            rule.entries.len() == entries.len()
                && rule.entries.iter().zip(&entries).all(|(rule, entry)| {
                    rule.key == entry.key && rule.value.matches(entry.value)
                })
        };
        let mut fitting: Vec<&DescriptorRule> = rules.iter().filter(fits).collect();
        fitting.sort_by(|one, other| one.precedence(other));
        let names: Vec<&str> = fitting.iter().map(|rule| &*rule.name).collect();
        match DescriptorTable::new(rules.clone()) {
            Ok(table) => {
                let all = table.find_all("shop", &entries);
                prop_assert_eq!(all.iter().map(|rule| &*rule.name).collect::<Vec<_>>(), names);
                prop_assert_eq!(table.find("shop", &entries).map(|rule| &rule.name),
                    fitting.first().map(|rule| &rule.name));
                let tie = fitting.windows(2)
                    .any(|pair| pair[0].precedence(pair[1]) == Ordering::Equal);
                prop_assert!(!tie, "a tie that was no conflict");
            }
            Err(conflicts) => prop_assert!(!conflicts.is_empty()),
        }
    }
}
