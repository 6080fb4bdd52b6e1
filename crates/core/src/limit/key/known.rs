//! API keys: their sources in a request, and which keys are known.
//!
//! A client can invent a key for each request. So an unknown key is no identity: the request counts
//! as having no key, unless the configuration says otherwise.
//!
//! Keys are compared by a keyed hash of their SHA-256. Its secret belongs to this process, so the
//! time of a comparison tells nothing about the keys.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hashbrown::HashTable;
use ring::digest::{SHA256, digest};

use super::value::Carried;
use super::{ApiKeySource, ApiKeySources, Facts, HashSecret};
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

/// `[api_key]`: the first source that carries a known key wins.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys {
    pub from: ApiKeySources,
    /// The keys of the configured files.
    pub known: Option<Arc<KnownKeys>>,
    /// Whether a bearer token that `[auth.jwt]` verified is a known key.
    pub tokens: bool,
    pub unknown: UnknownKey,
}

/// SHA-256 of an API key, as files write it: `sha256:HEX`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownKey<'k> {
    /// The client's name for people.
    pub name: Option<&'k str>,
    pub tier: Option<&'k str>,
    /// The day on which the client's months begin.
    pub anchor: Option<AnchorDay>,
}

pub struct KnownKeys {
    secret: HashSecret,
    table: HashTable<KnownEntry>,
    /// Names and tiers, each once.
    words: Vec<Arc<str>>,
}

struct KnownEntry {
    /// The keyed hash of the key's SHA-256.
    hash: blake3::Hash,
    note: KeyNote,
}

/// The client of a known key, as indexes into `KnownKeys::words`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyNote {
    name: Option<u32>,
    tier: Option<u32>,
    anchor: Option<AnchorDay>,
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
        /// Set if a file or a verified token makes the key known.
        known: Option<KeyNote>,
    },
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
        self.tokens || self.known.as_ref().is_some_and(|known| !known.is_empty())
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
        self.listed(key)?.anchor
    }

    /// Whether requests with this key may be counted by it. A token may be: only a request shows
    /// whether it is verified.
    pub fn may_count(&self, key: &[u8]) -> bool {
        let is_token = self.tokens && key.iter().filter(|byte| **byte == b'.').count() == 2;
        self.unknown == UnknownKey::Trust || is_token || self.is_listed(key)
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
            let verified = self.tokens && *place == ApiKeySource::Bearer && facts.claims.is_some();
            let known = match verified {
                true => Some(KeyNote::default()),
                false => self.listed(value.as_bytes()),
            };
            if known.is_some() || self.unknown == UnknownKey::Trust {
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
        let note = known?;
        let word = |place: Option<u32>| keys.known.as_ref()?.words.get(place? as usize);
        Some(KnownKey {
            name: word(note.name).map(|word| &**word),
            tier: word(note.tier).map(|word| &**word),
            anchor: note.anchor,
        })
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
            KeyStanding::Counted { source, .. } => match keys.from.0.get(source) {
                Some(place) => place.find(self),
                None => Carried::Nothing,
            },
        }
    }
}

impl KeyDigest {
    pub fn of(key: &[u8]) -> KeyDigest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, key).as_ref());
        KeyDigest(bytes)
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse_hex(text: &str) -> Option<KeyDigest> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |one: u8| char::from(one).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(KeyDigest(bytes))
    }
}

impl KnownKeys {
    /// No key may come twice. `secret` is this process's own.
    pub fn new<'k>(
        keys: impl IntoIterator<Item = (KeyDigest, KnownKey<'k>)>,
        secret: HashSecret,
    ) -> KnownKeys {
        let mut known = KnownKeys {
            secret,
            table: HashTable::new(),
            words: Vec::new(),
        };
        let mut places: HashMap<&str, u32> = HashMap::new();
        for (key, client) in keys {
            let words = &mut known.words;
            let mut place = |word: &'k str| {
                *places.entry(word).or_insert_with(|| {
                    words.push(word.into());
                    u32::try_from(words.len() - 1).unwrap_or(u32::MAX)
                })
            };
            let note = KeyNote {
                name: client.name.map(&mut place),
                tier: client.tier.map(&mut place),
                anchor: client.anchor,
            };
            let hash = blake3::keyed_hash(&known.secret.0, &key.0);
            known
                .table
                .insert_unique(bucket(&hash), KnownEntry { hash, note }, |entry| {
                    bucket(&entry.hash)
                });
        }
        known.table.shrink_to_fit(|entry| bucket(&entry.hash));
        known
    }

    fn find(&self, key: &[u8]) -> Option<KeyNote> {
        if self.table.is_empty() {
            return None;
        }
        let hash = blake3::keyed_hash(&self.secret.0, &KeyDigest::of(key).0);
        // `blake3::Hash` compares in constant time.
        let entry = self.table.find(bucket(&hash), |entry| entry.hash == hash)?;
        Some(entry.note)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// The keyed hash is random already: its first bytes choose the bucket.
fn bucket(hash: &blake3::Hash) -> u64 {
    let (first, _) = hash.as_bytes().split_at(8);
    first.try_into().map_or(0, u64::from_le_bytes)
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(..)")
    }
}

impl fmt::Debug for KnownKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KnownKeys({} keys)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::limit::Missing;
    use crate::limit::key::{Derived, Key};
    use crate::path::CanonicalPath;

    const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

    fn known(keys: &[(&str, KnownKey<'_>)]) -> Option<Arc<KnownKeys>> {
        let keys = keys
            .iter()
            .map(|(key, said)| (KeyDigest::of(key.as_bytes()), *said));
        Some(Arc::new(KnownKeys::new(keys, SECRET)))
    }

    fn look<T>(
        keys: &ApiKeys,
        headers: &[(&'static str, &str)],
        see: impl FnOnce(&Facts<'_>) -> T,
    ) -> T {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        see(&Facts {
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
            body: None,
        })
    }

    fn derive(keys: &ApiKeys, key: &str, headers: &[(&'static str, &str)]) -> Derived {
        let key = Key::parse([key]).unwrap();
        look(keys, headers, |facts| {
            key.derive(facts, Missing::Ip, &SECRET)
        })
    }

    #[test]
    fn a_key_that_is_not_known_is_as_if_there_were_none() {
        let mut keys = ApiKeys {
            known: known(&[("k1", KnownKey::default())]),
            ..ApiKeys::default()
        };
        let none = derive(&keys, "api_key or ip", &[]);
        let invented = [("x-api-key", "made-up")];
        assert_eq!(derive(&keys, "api_key or ip", &invented), none);
        assert_eq!(derive(&keys, "api_key", &invented), none);
        assert_ne!(derive(&keys, "api_key or ip", &[("x-api-key", "k1")]), none);
        keys.known = None;
        assert_eq!(derive(&keys, "api_key or ip", &[("x-api-key", "k1")]), none);
        keys.unknown = UnknownKey::Trust;
        assert_ne!(derive(&keys, "api_key or ip", &invented), none);
        keys.unknown = UnknownKey::Deny;
        assert_eq!(derive(&keys, "api_key or ip", &invented), Derived::Unknown);
        assert_eq!(derive(&keys, "api_key or ip", &[]), none);
        assert_eq!(derive(&keys, "ip", &invented), none, "nobody asks");
    }

    #[test]
    fn a_known_key_does_not_hide_behind_an_invented_one() {
        let mut keys = ApiKeys {
            known: known(&[("k1", KnownKey::default())]),
            ..ApiKeys::default()
        };
        let alone = derive(&keys, "api_key", &[("x-api-key", "k1")]);
        let bearer = ("authorization", "Bearer k1");
        for unknown in [UnknownKey::Missing, UnknownKey::Deny] {
            keys.unknown = unknown;
            let both = derive(&keys, "api_key", &[("x-api-key", "made-up"), bearer]);
            assert_eq!(both, alone, "{unknown:?}");
        }
        let two = [("x-api-key", "k1"), ("x-api-key", "made-up")];
        assert_eq!(derive(&keys, "api_key", &two), Derived::Ambiguous);
        let list = [("x-api-key", "k1, made-up")];
        assert_eq!(derive(&keys, "api_key", &list), Derived::Ambiguous);
    }

    #[test]
    fn a_known_key_has_a_name_and_a_tier() {
        let said = KnownKey {
            name: Some("acme"),
            tier: Some("pro"),
            anchor: AnchorDay::of_month(31),
        };
        let nameless = KnownKey {
            tier: Some("acme"),
            ..KnownKey::default()
        };
        let keys = ApiKeys {
            known: known(&[("k1", said), ("k2", nameless), ("k3", KnownKey::default())]),
            ..ApiKeys::default()
        };
        for (key, expected) in [
            ("k1", Some(said)),
            ("k2", Some(nameless)),
            ("k3", Some(KnownKey::default())),
            ("k4", None),
        ] {
            look(&keys, &[("x-api-key", key)], |facts| {
                assert_eq!(facts.known_key(), expected, "{key}");
                let known = facts.key_standing();
                let facts = Facts {
                    standing: Some(known),
                    ..*facts
                };
                assert_eq!(facts.known_key(), expected, "looked up before: {key}");
            });
        }
        assert!(keys.is_listed(b"k1") && !keys.is_listed(b"k4"));
        let shown = format!("{keys:?}");
        assert!(shown.contains("3 keys") && !shown.contains("k1"), "{shown}");
    }

    #[test]
    fn a_digest_is_read_in_either_case() {
        // echo -n abc | sha256sum
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyDigest::parse_hex(hex), Some(KeyDigest::of(b"abc")));
        let upper = hex.to_uppercase();
        assert_eq!(KeyDigest::parse_hex(&upper), Some(KeyDigest::of(b"abc")));
        for wrong in ["", &hex[1..], &format!("{hex}0"), &hex.replace('b', "g")] {
            assert_eq!(KeyDigest::parse_hex(wrong), None, "{wrong}");
        }
    }
}
