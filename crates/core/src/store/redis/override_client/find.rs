//! Clients that are counted, found again by the beginning of their hash.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Value;

use super::{OverrideClient, PATIENCE, patiently, told};
use crate::clock;
use crate::limit::key::key_hash_prefix::KeyHashPrefix;
use crate::limit::{KeyHash, Limit};

/// Names that Redis looks at in one call, about.
const AT_ONCE: u32 = 2000;
/// Clients that are told, at most.
const MOST: usize = 100;
/// Ranges of slots of a cluster.
const MOST_RANGES: usize = 1024;

/// What was found, and whether everything was looked at.
#[derive(Debug, Default)]
pub struct FoundHashes {
    /// Clients with a count, in order.
    pub tags: Vec<KeyHash>,
    /// Redis has more names than could be looked at in time, or does not let this user look.
    pub partly: bool,
}

impl OverrideClient {
    /// Clients with a count in one of the limits and a hash that begins so. Looks at the names of
    /// all keys of the database (SCAN), for as long as an operator waits.
    pub fn find_key_hashes<'l>(
        &mut self,
        limits: impl Iterator<Item = &'l Limit>,
        prefix: &KeyHashPrefix,
    ) -> FoundHashes {
        let patterns = self.patterns(limits, prefix);
        let until = clock::now() + PATIENCE;
        let mut found = BTreeSet::new();
        let mut partly = false;
        for slot in self.first_slots() {
            let turned = slot.is_none_or(|slot| self.turn_to(slot).is_ok());
            for pattern in &patterns {
                let left = until.saturating_duration_since(clock::now());
                partly |= !turned || !self.scan(pattern, prefix, &mut found, left);
            }
        }
        FoundHashes {
            tags: found.into_iter().take(MOST).collect(),
            partly,
        }
    }

    /// `<prefix>{<tag>}..`, and `<prefix>{<slot>}<limit>.<fp>.<tag>` of limits that name a slot.
    fn patterns<'l>(
        &self,
        limits: impl Iterator<Item = &'l Limit>,
        prefix: &KeyHashPrefix,
    ) -> BTreeSet<String> {
        let start = escaped(&self.shared.prefix);
        let pattern = |limit: &Limit| match &limit.slot {
            None => format!("{start}{{{prefix}*"),
            Some(slot) => format!("{start}{{{}}}*.{prefix}*", escaped(slot)),
        };
        limits.map(pattern).collect()
    }

    /// A slot of each node of a cluster; one without a number for a single server.
    fn first_slots(&mut self) -> Vec<Option<u16>> {
        if !self.shared.access.is_cluster() {
            return vec![None];
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let asking = command.query_async::<Vec<(u16, u16, Value)>>(self.link.connection());
        let ranges = patiently(&self.runtime, told(asking)).unwrap_or_default();
        let mut nodes = Vec::new();
        let mut slots = Vec::new();
        for (first, _, node) in ranges.into_iter().take(MOST_RANGES) {
            if !nodes.contains(&node) {
                slots.push(Some(first));
                nodes.push(node);
            }
        }
        slots
    }

    /// Whether it came to the end.
    fn scan(
        &mut self,
        pattern: &str,
        prefix: &KeyHashPrefix,
        found: &mut BTreeSet<KeyHash>,
        patience: Duration,
    ) -> bool {
        let until = clock::now() + patience;
        let mut cursor = "0".to_owned();
        while clock::now() < until && found.len() < MOST {
            let mut command = redis::cmd("SCAN");
            command
                .arg(&cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(AT_ONCE);
            let asking = command.query_async::<(String, Vec<Vec<u8>>)>(self.link.connection());
            let Ok((next, names)) = patiently(&self.runtime, told(asking)) else {
                return false;
            };
            let tags = names
                .iter()
                .filter_map(|name| tag_of(name, self.shared.prefix.len()));
            found.extend(tags.filter(|tag| prefix.matches(*tag)));
            if next == "0" {
                return true;
            }
            cursor = next;
        }
        false
    }
}

/// The tag in a key's name: between its braces, or at its end.
fn tag_of(name: &[u8], prefix: usize) -> Option<KeyHash> {
    let name = std::str::from_utf8(name.get(prefix..)?).ok()?;
    let (braced, rest) = name.strip_prefix('{')?.split_once('}')?;
    let last = rest.rsplit_once('.').map(|(_, last)| last);
    KeyHash::parse(braced).or_else(|| KeyHash::parse(last?))
}

/// A text as it stands in a pattern.
fn escaped(text: &str) -> String {
    let special = |character| matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    let mut out = String::new();
    for character in text.chars() {
        if special(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_from_either_form_of_a_name() {
        let tag = KeyHash([7; 16]);
        let names = [
            format!("t:{{{tag}}}login.9f"),
            format!("t:{{s1}}login.9f.{tag}"),
        ];
        for name in names {
            assert_eq!(tag_of(name.as_bytes(), 2), Some(tag), "{name}");
        }
        for name in ["t:hash-key", "t:{overrides}", "t:", ""] {
            assert_eq!(tag_of(name.as_bytes(), 2), None, "{name}");
        }
        assert_eq!(escaped("a[b]*"), "a\\[b\\]\\*");
    }
}
