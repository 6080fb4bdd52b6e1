//! Tiers: which class of clients a request belongs to.
//!
//! What says it must not be the client's own word: a claim of a verified token, the client's API
//! key, or a header, which is believed from trusted peers only.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::key::{Alternatives, Facts, Part};
use super::{Limit, Window};

/// `[tier]`
#[derive(Clone, Debug)]
pub struct Tiers {
    /// What says it.
    pub from: TierSource,
    /// The tier of clients of whom nothing says it.
    pub default: Option<Arc<str>>,
}

/// What says a client's tier.
#[derive(Clone, Debug)]
pub enum TierSource {
    /// The first of these that the request has.
    Part(Alternatives),
    /// Its API key, looked up in a list.
    Keys(Arc<KeyTiers>),
}

/// API keys, as BLAKE3 hashes, and their tiers.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeyTiers {
    names: Vec<Arc<str>>,
    /// Ascending.
    keys: Vec<([u8; 32], u32)>,
}

impl fmt::Debug for KeyTiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyTiers({} keys, {:?})", self.keys.len(), self.names)
    }
}

impl Tiers {
    /// A request's tier. `trusted` is whether its peer may say so in a header.
    pub fn tier_of<'r>(&'r self, facts: &Facts<'r>, trusted: bool) -> Option<Cow<'r, str>> {
        let said = match &self.from {
            TierSource::Part(parts) => {
                let believed = |part: &&Part| trusted || !matches!(part, Part::Header(_));
                let mut parts = parts.0.iter().filter(believed);
                parts.find_map(|part| part.text(facts))
            }
            TierSource::Keys(keys) => facts
                .with_api_key(|key| keys.tier_of(key))
                .map(Cow::Borrowed),
        };
        said.or(self.default.as_deref().map(Cow::Borrowed))
    }
}

impl Limit {
    /// What it enforces for a client of this tier; its own rates where the tier has none in it.
    pub fn windows_of(&self, tier: Option<&str>) -> &[Arc<Window>] {
        let own = |name| self.tiers.iter().find(|tier| &*tier.name == name);
        match tier.and_then(own) {
            Some(tier) => &tier.windows,
            None => &self.windows,
        }
    }

    /// Whether what it asks depends on the client's tier.
    pub fn asks_tier(&self) -> bool {
        !self.tiers.is_empty() || self.key.all().any(|part| *part == Part::Tier)
    }

    /// Whether it counts by what a token claims.
    pub fn asks_claims(&self) -> bool {
        self.key.all().any(|part| matches!(part, Part::Jwt(_)))
    }
}

impl Tiers {
    /// Whether more than headers and a certificate may say the tier. `in_query` is whether API keys
    /// may be in a query.
    pub fn may_be_in_target(&self, in_query: bool) -> bool {
        let elsewhere = |part: &Part| match part {
            Part::Header(_) | Part::Cookie(_) | Part::Jwt(_) | Part::Tls(_) => false,
            Part::ApiKey => in_query,
            _ => true,
        };
        match &self.from {
            TierSource::Part(parts) => parts.0.iter().any(elsewhere),
            TierSource::Keys(_) => in_query,
        }
    }

    /// Whether a token may say the tier.
    pub fn asks_claims(&self) -> bool {
        match &self.from {
            TierSource::Part(parts) => parts.0.iter().any(|part| matches!(part, Part::Jwt(_))),
            TierSource::Keys(_) => false,
        }
    }
}

impl KeyTiers {
    /// Of pairs of key and tier; or the number, from 0, of the first whose key has had another tier
    /// before.
    pub fn new<'t>(pairs: impl Iterator<Item = (&'t str, &'t str)>) -> Result<KeyTiers, usize> {
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut known: HashMap<[u8; 32], u32> = HashMap::new();
        let mut names: Vec<Arc<str>> = Vec::new();
        for (index, (key, tier)) in pairs.enumerate() {
            let number = *numbers.entry(tier).or_insert_with(|| {
                names.push(tier.into());
                u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
            });
            let hash = *blake3::hash(key.as_bytes()).as_bytes();
            if known
                .insert(hash, number)
                .is_some_and(|before| before != number)
            {
                return Err(index);
            }
        }
        let mut keys: Vec<_> = known.into_iter().collect();
        keys.sort_unstable();
        Ok(KeyTiers { names, keys })
    }

    /// The tier of an API key.
    pub fn tier_of(&self, key: &[u8]) -> Option<&str> {
        // Only hashes are compared: how long it takes says nothing about the keys.
        let hash = blake3::hash(key);
        let place = self
            .keys
            .binary_search_by(|(known, _)| known.cmp(hash.as_bytes()));
        let (_, number) = self.keys[place.ok()?];
        self.names.get(number as usize).map(|name| &**name)
    }

    /// How many keys are known.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::limit::key::{ApiKeySources, Key};
    use crate::path::CanonicalPath;

    fn tier(tiers: &Tiers, headers: &[(&'static str, &str)], trusted: bool) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let facts = Facts {
            ip: "192.0.2.7".parse().unwrap(),
            api_key: &ApiKeySources::default(),
            method: &Method::GET,
            host: "h",
            path: &CanonicalPath::parse("/").unwrap(),
            query: None,
            headers: &map,
            route: "r",
            params: &[],
            claims: None,
            tier: None,
            certificate: None,
        };
        tiers.tier_of(&facts, trusted).map(Cow::into_owned)
    }

    #[test]
    fn a_header_is_believed_from_trusted_peers_only() {
        let mut tiers = Tiers {
            from: TierSource::Part(Key::parse_part("header:x-plan").unwrap()),
            default: None,
        };
        let pro = [("x-plan", "pro")];
        assert_eq!(tier(&tiers, &pro, true).as_deref(), Some("pro"));
        assert_eq!(tier(&tiers, &pro, false), None);
        tiers.default = Some("free".into());
        assert_eq!(tier(&tiers, &pro, false).as_deref(), Some("free"));
        assert_eq!(tier(&tiers, &[], true).as_deref(), Some("free"));
        let two = [("x-plan", "pro"), ("x-plan", "gold")];
        assert_eq!(tier(&tiers, &two, true).as_deref(), Some("free"));
    }

    #[test]
    fn an_api_key_has_the_tier_of_its_line() {
        let pairs = [("k1", "pro"), ("k2", "free"), ("k1", "pro")];
        let keys = KeyTiers::new(pairs.into_iter()).unwrap();
        assert_eq!(keys.len(), 2);
        let tiers = Tiers {
            from: TierSource::Keys(Arc::new(keys)),
            default: None,
        };
        for (key, expected) in [("k1", Some("pro")), ("k2", Some("free")), ("k3", None)] {
            assert_eq!(
                tier(&tiers, &[("x-api-key", key)], false).as_deref(),
                expected
            );
        }
        assert_eq!(tier(&tiers, &[], false), None);
        assert!(!format!("{tiers:?}").contains("k1"));
        let torn = [("k1", "pro"), ("k2", "free"), ("k1", "free")];
        assert_eq!(KeyTiers::new(torn.into_iter()), Err(2));
    }
}
