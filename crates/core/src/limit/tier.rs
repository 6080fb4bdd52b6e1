//! Clients that a limit treats differently: tiers with rates of their own, and exempt clients.
//!
//! A client must not choose its own tier. The tier comes from a claim of a verified token, from
//! the client's API key, or from a header of a trusted peer.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::calendar::AnchorSource;
use super::key::{Alternatives, DescriptorFacts, Facts, Key, Part};
use super::{AnchorDay, Limit, Window};
use crate::client::networks::NetworkSet;

/// `[tier]`
#[derive(Clone, Debug)]
pub struct Tiers {
    /// The first of these that the request has names the tier.
    pub from: Option<Alternatives>,
    /// Whether the file of API keys names a tier where `from` finds none.
    pub by_key: bool,
    /// The tier of all other clients.
    pub default: Option<Arc<str>>,
}

impl Tiers {
    /// Finds the tier of a request. Headers count only if the peer is `trusted`.
    pub fn tier_of<'r>(&'r self, facts: &Facts<'r>, trusted: bool) -> Option<Cow<'r, str>> {
        let is_trusted = |part: &&Part| trusted || !matches!(part, Part::Header(_));
        let from_key = || facts.known_key().filter(|_| self.by_key)?.tier;
        self.parts()
            .filter(is_trusted)
            .find_map(|part| part.text(facts))
            .or_else(|| from_key().map(Cow::Borrowed))
            .or(self.default.as_deref().map(Cow::Borrowed))
    }

    pub fn asks_claims(&self) -> bool {
        self.parts().any(|part| matches!(part, Part::Jwt(_)))
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.from.iter().flat_map(|parts| &parts.0)
    }
}

impl Limit {
    pub fn windows_of(&self, tier: Option<&str>) -> &[Arc<Window>] {
        let of_tier = |name| self.tiers.iter().find(|tier| &*tier.name == name);
        tier.and_then(of_tier)
            .map_or(&self.windows, |tier| &tier.windows)
    }

    /// Whether the client's tier changes the rate or the key.
    pub fn asks_tier(&self) -> bool {
        !self.tiers.is_empty() || self.key.all().any(|part| *part == Part::Tier)
    }

    pub fn asks_claims(&self) -> bool {
        self.key.all().any(|part| matches!(part, Part::Jwt(_)))
            || matches!(self.calendar.source, AnchorSource::Claim(_))
    }

    /// Whether the key or the anchor depends on the client's API key.
    pub fn asks_api_key(&self) -> bool {
        self.key.asks_api_key() || self.calendar.source == AnchorSource::Keys
    }

    /// The anchor of a client, from its line in the file of keys or from its token. `None` for that
    /// of the limit.
    #[inline]
    pub fn anchor_of(&self, facts: &Facts<'_>) -> Option<AnchorDay> {
        match &self.calendar.source {
            AnchorSource::Limit => None,
            AnchorSource::Keys => facts.known_key()?.anchor,
            AnchorSource::Claim(name) => AnchorDay::parse(&facts.claims?.text(name)?),
        }
    }
}

/// Clients that a limit never counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    pub nets: NetworkSet,
    /// BLAKE3 hashes of keys, ascending.
    pub keys: Vec<[u8; 32]>,
}

impl Exempt {
    pub fn is_empty(&self) -> bool {
        self.nets.is_empty() && self.keys.is_empty()
    }

    /// Whether a client is exempt: by its address (not grouped), or by the value that the limit
    /// counts it by. Where the key names no client, the API key decides; it need not be known to
    /// `[api_key]`.
    ///
    /// Only one of the two keys decides. Otherwise a client could send the value of another
    /// client's token as an API key, and be exempt.
    pub fn has(&self, client: IpAddr, key: &Key, facts: &Facts<'_>) -> bool {
        if self.nets.contains(client) {
            return true;
        }
        if self.keys.is_empty() {
            return false;
        }
        let is_exempt = |value: &[u8]| self.has_key(value);
        if key.all().any(Part::names_client) {
            key.names_any(facts, is_exempt)
        } else {
            facts.any_api_key(is_exempt)
        }
    }

    /// Whether a descriptor is exempt: by the client's address, or by an entry of its key.
    pub fn has_descriptor(
        &self,
        client: Option<IpAddr>,
        key: &Key,
        facts: &DescriptorFacts<'_>,
    ) -> bool {
        let is_near = |ip: IpAddr| self.nets.contains(ip);
        if client.is_some_and(is_near) {
            return true;
        }
        let mut values = key.all().filter_map(|part| match part {
            Part::Entry(name) => facts.value_of(name),
            _ => None,
        });
        !self.keys.is_empty() && values.any(|value| self.has_key(value.as_bytes()))
    }

    fn has_key(&self, value: &[u8]) -> bool {
        // Comparing hashes takes a time that tells nothing about the keys.
        let hash = blake3::hash(value);
        self.keys.binary_search(hash.as_bytes()).is_ok()
    }
}

#[cfg(test)]
mod tests;
