//! Tiers: which class of clients a request belongs to.
//!
//! What says it must not be the client's own word: a claim of a verified token, the client's API
//! key, or a header, which is believed from trusted peers only.

use std::borrow::Cow;
use std::sync::Arc;

use super::key::{Alternatives, Facts, Part};
use super::{Limit, Window};

/// `[tier]`
#[derive(Clone, Debug)]
pub struct Tiers {
    /// What says it: the first of these that the request has.
    pub from: Option<Alternatives>,
    /// Whether else the line of a known API key says it.
    pub by_key: bool,
    /// The tier of clients of whom nothing says it.
    pub default: Option<Arc<str>>,
}

impl Tiers {
    /// A request's tier. `trusted` is whether its peer may say so in a header.
    pub fn tier_of<'r>(&'r self, facts: &Facts<'r>, trusted: bool) -> Option<Cow<'r, str>> {
        let believed = |part: &&Part| trusted || !matches!(part, Part::Header(_));
        let parts = self.from.iter().flat_map(|parts| &parts.0);
        let said = parts.filter(believed).find_map(|part| part.text(facts));
        said.or_else(|| {
            let known = facts.known_key().filter(|_| self.by_key)?;
            known.tier.map(Cow::Borrowed)
        })
        .or(self.default.as_deref().map(Cow::Borrowed))
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
        let mut parts = self.from.iter().flat_map(|parts| &parts.0);
        parts.any(elsewhere) || (self.by_key && in_query)
    }

    /// Whether a token may say the tier.
    pub fn asks_claims(&self) -> bool {
        let mut parts = self.from.iter().flat_map(|parts| &parts.0);
        parts.any(|part| matches!(part, Part::Jwt(_)))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::limit::key::{ApiKeys, HashSecret, Key, KeyDigest, KnownKey, KnownKeys};
    use crate::path::CanonicalPath;

    fn tier(tiers: &Tiers, headers: &[(&'static str, &str)], trusted: bool) -> Option<String> {
        tier_by(&ApiKeys::default(), tiers, headers, trusted)
    }

    fn tier_by(
        keys: &ApiKeys,
        tiers: &Tiers,
        headers: &[(&'static str, &str)],
        trusted: bool,
    ) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let facts = Facts {
            ip: "192.0.2.7".parse().unwrap(),
            api_key: keys,
            standing: None,
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
            extensions: None,
        };
        tiers.tier_of(&facts, trusted).map(Cow::into_owned)
    }

    #[test]
    fn a_header_is_believed_from_trusted_peers_only() {
        let mut tiers = Tiers {
            from: Some(Key::parse_part("header:x-plan").unwrap()),
            by_key: false,
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
        let said = |tier| KnownKey {
            name: None,
            tier: Some(tier),
        };
        let list = [("k1", said("pro")), ("k2", said("free"))];
        let list = list.map(|(key, said)| (KeyDigest::of(key.as_bytes()), said));
        let known = KnownKeys::new(list, HashSecret::from_bytes([7; 32]));
        let keys = ApiKeys {
            known: Some(Arc::new(known)),
            ..ApiKeys::default()
        };
        let mut tiers = Tiers {
            from: Some(Key::parse_part("header:x-plan").unwrap()),
            by_key: true,
            default: None,
        };
        let of = |tiers: &Tiers, key: &str| {
            let headers = [("x-api-key", key), ("x-plan", "gold")];
            let trusted = tier_by(&keys, tiers, &headers, true);
            assert_eq!(trusted.as_deref(), Some("gold"), "`from` comes first");
            tier_by(&keys, tiers, &headers, false)
        };
        for (key, expected) in [("k1", Some("pro")), ("k2", Some("free")), ("k3", None)] {
            assert_eq!(of(&tiers, key).as_deref(), expected);
        }
        tiers.default = Some("basic".into());
        assert_eq!(of(&tiers, "k3").as_deref(), Some("basic"));
    }
}
