//! The order in which the service tries the descriptors of one parent, and the holes of its tree.
//!
//! The service takes the first descriptor that fits an entry, and never turns back. tidegate takes
//! the most specific of all rules that fit a call. So a call that the service loses in a subtree
//! may fit a less specific rule here. A hole is a rule that is more specific than that one, and
//! limits nothing.
//!
//! A hole has the path that the service takes, then any values of the keys of the less specific
//! rule. It takes no call from a rule of the service. Such a rule has its own path, or a path that
//! the service tries first, and both are more specific than the hole.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::source::SourceDescriptor;
use super::values::EntryValues;
use crate::draft::{Grade, Notes};
use crate::files::SourceLine;

/// A descriptor with all that stand before it.
pub(super) type DescriptorPath<'d> = Vec<&'d SourceDescriptor>;

/// An entry of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleEntry {
    pub(super) key: String,
    pub(super) values: EntryValues,
}

impl RuleEntry {
    fn from_descriptor(descriptor: &SourceDescriptor) -> RuleEntry {
        RuleEntry {
            key: descriptor.key.clone(),
            values: descriptor.values.clone(),
        }
    }
}

pub(super) fn entries_of(path: &[&SourceDescriptor]) -> Vec<RuleEntry> {
    path.iter()
        .map(|one| RuleEntry::from_descriptor(one))
        .collect()
}

#[derive(Debug)]
pub(super) struct Hole {
    pub(super) place: SourceLine,
    pub(super) entries: Vec<RuleEntry>,
    /// The line of the rule that must not count these calls.
    pub(super) escaped_line: usize,
    /// Whether the service ends at a descriptor without `rate_limit`, not before it.
    pub(super) is_at_end: bool,
}

/// The descriptors with this key, in the order in which the service tries them.
fn in_order<'d>(
    siblings: &'d [SourceDescriptor],
    key: &str,
) -> impl Iterator<Item = &'d SourceDescriptor> {
    let of_kind = move |kind: u8| siblings.iter().filter(move |one| kind_of(one) == kind);
    let all = (0..3).flat_map(of_kind);
    all.filter(move |one| one.key == key)
}

fn kind_of(descriptor: &SourceDescriptor) -> u8 {
    match descriptor.values {
        EntryValues::Exact(_) => 0,
        EntryValues::Pattern(_) => 1,
        EntryValues::Any => 2,
    }
}

/// Removes descriptors that the service never reaches: an earlier pattern takes all their values.
pub(super) fn remove_unreached(siblings: &mut Vec<SourceDescriptor>, notes: &Notes) {
    let mut reached: Vec<usize> = Vec::new();
    let mut unreached = BTreeSet::new();
    for kind in [1, 2] {
        for (index, one) in siblings.iter().enumerate() {
            if kind_of(one) != kind {
                continue;
            }
            let earlier = reached.iter().map(|at| &siblings[*at]);
            let mut same_key = earlier.filter(|earlier| earlier.key == one.key);
            if let Some(earlier) = same_key.find(|earlier| earlier.values.contain(&one.values)) {
                let line = earlier.place.line;
                let why = format!("line {line} takes all its values before, so it never counted");
                notes.add(
                    Grade::Needless,
                    &one.place,
                    &describe(&entries_of(&[one])),
                    why,
                );
                unreached.insert(index);
            } else {
                reached.push(index);
            }
        }
    }
    let mut index = 0..;
    siblings.retain(|_| index.next().is_none_or(|index| !unreached.contains(&index)));
    for one in siblings {
        remove_unreached(&mut one.descriptors, notes);
    }
}

/// Notes pairs of patterns that the service tries in another order than tidegate.
pub(super) fn note_patterns(siblings: &[SourceDescriptor], notes: &Notes) {
    let is_pattern = |one: &&SourceDescriptor| kind_of(one) == 1;
    let patterns: Vec<&SourceDescriptor> = siblings.iter().filter(is_pattern).collect();
    for (index, later) in patterns.iter().enumerate() {
        for earlier in &patterns[..index] {
            if earlier.key == later.key && earlier.values.meet(&later.values) {
                note_order(earlier, later, notes);
            }
        }
    }
    for one in siblings {
        note_patterns(&one.descriptors, notes);
    }
}

/// Notes what happens to values that two patterns take, if it differs.
fn note_order(earlier: &SourceDescriptor, later: &SourceDescriptor, notes: &Notes) {
    // Two rules in conflict: the later one is not kept, and a note says so.
    let is_conflict = [earlier, later]
        .iter()
        .all(|one| one.rate_limit.is_some() && one.descriptors.is_empty());
    let here = match earlier.values.rank().cmp(&later.values.rank()) {
        Ordering::Less => "the pattern with more letters is first",
        Ordering::Equal if !is_conflict => "neither is first",
        Ordering::Equal | Ordering::Greater => return,
    };
    let line = earlier.place.line;
    let why = format!(
        "line {line} takes some of the same values, and the service tries it first. Here {here}"
    );
    let what = describe(&entries_of(&[later]));
    notes.add(Grade::Differs, &later.place, &what, why);
}

/// Finds the descriptors with a rate limit.
pub(super) fn find_rules<'d>(
    siblings: &'d [SourceDescriptor],
    before: &[&'d SourceDescriptor],
    rules: &mut Vec<DescriptorPath<'d>>,
) {
    for one in siblings {
        let path = [before, &[one]].concat();
        if one.rate_limit.is_some() {
            rules.push(path.clone());
        }
        find_rules(&one.descriptors, &path, rules);
    }
}

/// Finds the holes that keep these rules from calls that the service does not limit.
/// Stops when there are more than `max`.
pub(super) fn find_holes(
    roots: &[SourceDescriptor],
    rules: &[DescriptorPath<'_>],
    max: usize,
) -> Vec<Hole> {
    let mut known: BTreeSet<Vec<RuleEntry>> = rules.iter().map(|path| entries_of(path)).collect();
    let mut holes = Vec::new();
    for path in rules {
        if holes.len() > max {
            break;
        }
        let mut siblings = roots;
        for (index, step) in path.iter().enumerate() {
            let tail = &path[index + 1..];
            for other in tried_before(siblings, step) {
                if is_covered(other, tail) {
                    continue;
                }
                let mut entries = entries_of(&path[..index]);
                entries.push(RuleEntry::from_descriptor(other));
                entries.extend(tail.iter().map(|one| RuleEntry {
                    key: one.key.clone(),
                    values: EntryValues::Any,
                }));
                if known.insert(entries.clone()) {
                    holes.push(Hole {
                        place: other.place.clone(),
                        entries,
                        escaped_line: path.last().map_or(0, |last| last.place.line),
                        is_at_end: tail.is_empty(),
                    });
                }
            }
            siblings = &step.descriptors;
        }
    }
    holes.sort_by_key(|hole| hole.place.line);
    holes
}

/// The descriptors that take values of `step`, and are tried before it both by the service and by
/// tidegate.
fn tried_before<'d>(
    siblings: &'d [SourceDescriptor],
    step: &SourceDescriptor,
) -> impl Iterator<Item = &'d SourceDescriptor> {
    // An exact value is tried first, and meets no other exact value.
    let siblings = match step.values {
        EntryValues::Exact(_) => &[],
        _ => siblings,
    };
    let earlier = in_order(siblings, &step.key).take_while(|one| one.values != step.values);
    let is_first_here = |one: &&SourceDescriptor| one.values.rank() > step.values.rank();
    earlier.filter(move |one| is_first_here(one) && one.values.meet(&step.values))
}

/// Whether the service finds a rate limit for each call that fits `tail` behind this descriptor.
fn is_covered(descriptor: &SourceDescriptor, tail: &[&SourceDescriptor]) -> bool {
    let Some((next, rest)) = tail.split_first() else {
        return descriptor.rate_limit.is_some();
    };
    for one in in_order(&descriptor.descriptors, &next.key) {
        if !one.values.meet(&next.values) {
            continue;
        }
        if !is_covered(one, rest) {
            return false;
        }
        if one.values.contain(&next.values) {
            return true;
        }
    }
    false
}

/// Writes entries for a message: `tenant=acme, user`.
pub(super) fn describe(entries: &[RuleEntry]) -> String {
    let text = |entry: &RuleEntry| match &entry.values {
        EntryValues::Exact(value) | EntryValues::Pattern(value) => {
            format!("{}={value}", entry.key)
        }
        EntryValues::Any => entry.key.clone(),
    };
    entries.iter().map(text).collect::<Vec<_>>().join(", ")
}
