//! API keys: their sources in a request, and which keys are known.
//!
//! A client can invent a key for each request. So an unknown key is no identity: the request counts
//! as having no key, unless the configuration says otherwise.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderMap;

use super::value::{Carried, PartValue};
use super::{
    ApiKeySource, ApiKeySources, Facts, KeyClient, KeyDigest, KeyNote, KnownKey, KnownKeys,
};
use crate::limit::AnchorDay;

/// `[api_key] unknown`: the meaning of an unknown key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKey {
    /// The request has no key: `or ip` and `missing` decide.
    #[default]
    Missing,
    Deny,
    /// Count by it.
    Trust,
}

/// `[api_key] known`, as far as keys become known while the proxy runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRegistry {
    /// There is none: files name all known keys.
    #[default]
    None,
    /// Operators add and remove keys in Redis.
    Redis,
    /// A service is asked about each key.
    Callback,
}

/// `[api_key]`: the first source that carries a known key wins.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys {
    pub from: ApiKeySources,
    /// The keys of the configured files.
    pub known: Option<Arc<KnownKeys>>,
    pub registry: KeyRegistry,
    /// Whether a bearer token that `[auth.jwt]` verified is a known key.
    pub tokens: bool,
    pub unknown: UnknownKey,
}

/// The state of a request's API key, looked up once for all limits that count by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStanding {
    Absent,
    /// The request carries several different keys.
    Several,
    Unknown,
    /// Limits count by the key.
    Counted {
        /// The index of the source that carries it.
        source: usize,
        /// `None` if the key is not known, and counted all the same.
        known: Option<KnownBy>,
    },
}

/// What makes a key known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    File(KeyNote),
    Token,
    /// Redis or the callback.
    Registry,
}

/// A key of the request that Redis or the callback knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredKey {
    /// The index of the source that carries it.
    pub source: usize,
    pub client: Arc<KeyClient>,
}

impl ApiKeys {
    /// Counts by every key: `unknown = "trust"`.
    pub fn trusting(from: ApiKeySources) -> ApiKeys {
        ApiKeys {
            from,
            unknown: UnknownKey::Trust,
            ..ApiKeys::default()
        }
    }

    /// Whether anything tells known keys from invented ones.
    pub fn has_source(&self) -> bool {
        self.tokens
            || self.registry != KeyRegistry::None
            || self.known.as_ref().is_some_and(|known| !known.is_empty())
    }

    /// Whether clients can invent keys that are counted by.
    pub fn is_inventable(&self) -> bool {
        self.unknown == UnknownKey::Trust
    }

    pub fn is_listed(&self, key: &[u8]) -> bool {
        self.listed(key).is_some()
    }

    /// The anchor that the file of keys gives this key.
    pub fn anchor_of(&self, key: &[u8]) -> Option<AnchorDay> {
        let note = self.listed(key)?;
        self.known.as_ref()?.client(note).anchor
    }

    /// Whether `[auth.jwt]` may verify the key.
    pub fn may_be_token(&self, key: &[u8]) -> bool {
        self.tokens && key.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Whether the key of a source is a token, by its place and its form. Other keys with two dots
    /// are keys.
    pub fn is_bearer_token(&self, source: usize, key: &[u8]) -> bool {
        let is_bearer = self.from.0.get(source) == Some(&ApiKeySource::Bearer);
        is_bearer && self.may_be_token(key) && key.starts_with(b"ey")
    }

    /// The bytes that a key counts by. A token counts without its signature: from one signature of
    /// ECDSA everyone can make a second valid one.
    pub fn identity<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        let is_token = self.may_be_token(key) && key.starts_with(b"ey") && !self.is_listed(key);
        let end = key.iter().rposition(|byte| *byte == b'.');
        &key[..end.filter(|_| is_token).unwrap_or(key.len())]
    }

    fn counted<'r>(&self, value: PartValue<'r>, known: Option<KnownBy>) -> PartValue<'r> {
        match value {
            PartValue::Sent(key) if known == Some(KnownBy::Token) => {
                PartValue::Sent(self.identity(key))
            }
            value => value,
        }
    }

    /// Whether requests with this key may be counted by it. A token may be: only a request shows
    /// whether it is verified. A key of a registry may be, too.
    pub fn may_count(&self, key: &[u8]) -> bool {
        let may_be_known = self.may_be_token(key) || self.registry != KeyRegistry::None;
        self.unknown == UnknownKey::Trust || may_be_known || self.is_listed(key)
    }

    /// Calls `see` with each key of a request that no file lists, and with the index of its source.
    /// A source with several different keys has none.
    pub fn each_unlisted(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        mut see: impl FnMut(usize, &[u8]),
    ) {
        for (source, place) in self.from.0.iter().enumerate() {
            if let Carried::One(value) = place.find_in(headers, query)
                && !self.is_listed(value.as_bytes())
            {
                see(source, value.as_bytes());
            }
        }
    }

    fn listed(&self, key: &[u8]) -> Option<KeyNote> {
        self.known.as_ref()?.find(key)
    }

    /// Looks the key of a request up. Returns the key itself if limits count by it.
    fn find<'r>(&self, facts: &Facts<'r>) -> (KeyStanding, Carried<'r>) {
        let mut standing = KeyStanding::Absent;
        for (source, place) in self.from.0.iter().enumerate() {
            let value = match place.find(facts) {
                Carried::Nothing => continue,
                Carried::Several | Carried::Unknown => {
                    return (KeyStanding::Several, Carried::Several);
                }
                Carried::One(value) => value,
            };
            let is_verified = *place == ApiKeySource::Bearer && facts.claims.is_some();
            let registered = facts.registered.filter(|key| key.source == source);
            let known = match self.tokens && is_verified {
                true => Some(KnownBy::Token),
                false => (self.listed(value.as_bytes()).map(KnownBy::File))
                    .or(registered.map(|_| KnownBy::Registry)),
            };
            if known.is_some() || self.unknown == UnknownKey::Trust {
                let value = self.counted(value, known);
                return (KeyStanding::Counted { source, known }, Carried::One(value));
            }
            // A later source may carry a known key, which an invented key must not hide.
            standing = KeyStanding::Unknown;
        }
        match standing {
            KeyStanding::Unknown if self.unknown == UnknownKey::Deny => {
                (standing, Carried::Unknown)
            }
            _ => (standing, Carried::Nothing),
        }
    }
}

impl Facts<'_> {
    pub fn key_standing(&self) -> KeyStanding {
        self.standing.unwrap_or_else(|| self.api_key.find(self).0)
    }

    /// The facts of the same request if each key were known.
    pub fn trusting_keys(&self) -> Self {
        let mut places = self.api_key.from.0.iter().enumerate();
        let carried = places.find_map(|(source, place)| match place.find(self) {
            Carried::Nothing => None,
            Carried::Several | Carried::Unknown => Some(KeyStanding::Several),
            Carried::One(_) => Some(KeyStanding::Counted {
                source,
                known: None,
            }),
        });
        Facts {
            standing: Some(carried.unwrap_or(KeyStanding::Absent)),
            ..*self
        }
    }

    pub fn api_key_source(&self) -> Option<&ApiKeySource> {
        match self.key_standing() {
            KeyStanding::Counted { source, .. } => self.api_key.from.0.get(source),
            _ => None,
        }
    }
}

impl<'r> Facts<'r> {
    /// The client of the request's API key, if the key is known.
    pub fn known_key(&self) -> Option<KnownKey<'r>> {
        let keys: &'r ApiKeys = self.api_key;
        let KeyStanding::Counted { known, .. } = self.key_standing() else {
            return None;
        };
        Some(match known? {
            KnownBy::File(note) => keys.known.as_ref()?.client(note),
            KnownBy::Token => KnownKey::default(),
            KnownBy::Registry => self.registered?.client.as_known(),
        })
    }

    /// The name that people know the client of the request's API key by, if the key is known. A
    /// verified token has its subject, and a key without a name the beginning of its SHA-256.
    pub fn billed_key(&self) -> Option<Cow<'r, str>> {
        if let Some(name) = self.known_key()?.name {
            return Some(Cow::Borrowed(name));
        }
        let is_token = self.api_key_source() == Some(&ApiKeySource::Bearer);
        if let Some(claims) = self.claims.filter(|_| self.api_key.tokens && is_token) {
            return claims.text("sub");
        }
        match self.api_key() {
            Carried::One(key) => Some(Cow::Owned(KeyDigest::new(key.as_bytes()).short())),
            _ => None,
        }
    }

    pub(super) fn api_key(&self) -> Carried<'r> {
        let keys: &'r ApiKeys = self.api_key;
        let Some(standing) = self.standing else {
            return keys.find(self).1;
        };
        match standing {
            KeyStanding::Absent => Carried::Nothing,
            KeyStanding::Several => Carried::Several,
            KeyStanding::Unknown if keys.unknown == UnknownKey::Deny => Carried::Unknown,
            KeyStanding::Unknown => Carried::Nothing,
            KeyStanding::Counted { source, known } => {
                let place = keys.from.0.get(source);
                match place.map_or(Carried::Nothing, |place| place.find(self)) {
                    Carried::One(value) => Carried::One(keys.counted(value, known)),
                    other => other,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
