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
use crate::path::Case;
use crate::usage::request::BodyMember;

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
    /// Sets the letter case of its routes' paths, and the spelling of paths in its settings.
    pub fn set_case(&mut self, case: Case) {
        self.case = case;
        self.exempt.set_case(case);
        self.key.set_case(case);
    }

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
    pub keys: ExemptKeys,
    /// The same keys where paths ignore letter case.
    pub folded_keys: ExemptKeys,
}

/// BLAKE3 hashes of keys, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExemptKeys(Vec<[u8; 32]>);

impl ExemptKeys {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, value: &[u8]) -> bool {
        // Comparing hashes takes a time that tells nothing about the keys.
        let hash = blake3::hash(value);
        self.0.binary_search(hash.as_bytes()).is_ok()
    }
}

impl<'k> FromIterator<&'k [u8]> for ExemptKeys {
    fn from_iter<I: IntoIterator<Item = &'k [u8]>>(keys: I) -> ExemptKeys {
        let hashes = keys.into_iter().map(|key| *blake3::hash(key).as_bytes());
        let mut hashes: Vec<_> = hashes.collect();
        hashes.sort_unstable();
        hashes.dedup();
        ExemptKeys(hashes)
    }
}

impl Exempt {
    pub fn is_empty(&self) -> bool {
        self.nets.is_empty() && self.keys.is_empty()
    }

    /// Whether a client is exempt: by its address (not grouped), or by the value that the limit
    /// counts it by. [`Key::exempts`] says which value decides.
    pub fn has(&self, client: IpAddr, key: &Key, facts: &Facts<'_>) -> bool {
        if self.nets.contains(client) {
            return true;
        }
        !self.keys.is_empty() && key.exempts(facts, |value| self.keys.has(value))
    }

    /// Takes the keys in the spelling of paths of this case.
    fn set_case(&mut self, case: Case) {
        let folded_keys = std::mem::take(&mut self.folded_keys);
        if case == Case::Insensitive {
            self.keys = folded_keys;
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
        !self.keys.is_empty() && values.any(|value| self.keys.has(value.as_bytes()))
    }
}

/// What the values of a part tell of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PartNature {
    /// They name it, and something has verified that.
    Proven,
    /// They name it, and are secrets of the client.
    ApiKey,
    /// They name it, and each client can send each of them.
    Chosen,
    /// They name what the client asks for, or a group of clients.
    Shared,
    /// They are nothing that `exempt` can name beside its networks.
    Unnamed,
}

impl Part {
    fn nature(&self) -> PartNature {
        match self {
            Self::Jwt(_) | Self::Tls(_) | Self::Custom(_) => PartNature::Proven,
            Self::ApiKey => PartNature::ApiKey,
            Self::Header(_) | Self::Query(_) | Self::Cookie(_) => PartNature::Chosen,
            Self::PathParam(_) | Self::Entry(_) => PartNature::Chosen,
            Self::Body(BodyMember::Path(_)) => PartNature::Chosen,
            Self::Body(_) | Self::Path | Self::Method | Self::Host => PartNature::Shared,
            Self::Route | Self::Tier => PartNature::Shared,
            Self::Ip | Self::Global => PartNature::Unnamed,
        }
    }
}

impl Key {
    /// The parts whose values may exempt a client. A key of `ip` or `global` has none: then the API
    /// key decides.
    pub fn exempting_parts(&self) -> impl Iterator<Item = &Part> {
        self.all().filter(|part| self.may_exempt(part))
    }

    /// Whether `listed` holds for the value that exempts the client of a request. If only API keys
    /// can, the key need not be known to `[api_key]`: the configuration itself names it.
    ///
    /// A client must not choose the value that exempts it, if its key also has a value that it
    /// cannot choose. Otherwise it could send the name of another client in a path or as an
    /// invented API key.
    fn exempts(&self, facts: &Facts<'_>, listed: impl Fn(&[u8]) -> bool) -> bool {
        if self.exempting_parts().all(|part| *part == Part::ApiKey) {
            return facts.any_api_key(listed);
        }
        self.any_part(facts, |part, value| {
            let is_known = *part != Part::ApiKey || facts.known_key().is_some();
            is_known && self.may_exempt(part) && listed(value)
        })
    }

    fn may_exempt(&self, part: &Part) -> bool {
        let has = |nature| self.all().any(|one| one.nature() == nature);
        match part.nature() {
            PartNature::Proven | PartNature::ApiKey => true,
            PartNature::Chosen => !has(PartNature::Proven) && !self.has_api_key_beside(part),
            PartNature::Shared => self
                .all()
                .all(|one| matches!(one.nature(), PartNature::Shared | PartNature::Unnamed)),
            PartNature::Unnamed => false,
        }
    }

    /// Whether requests count by an API key together with this part, and not in its place.
    fn has_api_key_beside(&self, part: &Part) -> bool {
        let mut others = self.parts.iter().filter(|one| !one.0.contains(part));
        others.any(|one| one.0.contains(&Part::ApiKey))
    }
}

#[cfg(test)]
mod exempt_tests;
#[cfg(test)]
mod tests;
