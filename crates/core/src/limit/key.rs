//! Keys: whose budget a request is counted against.
//!
//! A key's text is parsed once; each request makes it a [`KeyHash`], a keyed hash of its parts.
//! Counts are by the hash alone, here and in Redis. With `[log] keys = "plain"` the logs also get
//! the key. No two different sets of parts may share a hash, and no spelling of the same value may
//! have two.

mod advice;
mod body;
mod custom;
mod descriptor;
pub mod jwt;
mod key_hash;
mod key_table;
mod known;
mod listed;
mod parse;
mod text;
mod value;

use std::net::IpAddr;

use http::{Extensions, HeaderMap, HeaderName, Method};

use super::Missing;
use crate::certificate::Certificate;
use crate::path::CanonicalPath;
use crate::usage::request::BodyMember;

pub use advice::LackingToken;
pub use body::BodyFacts;
pub use custom::{CustomKey, KeyRequest, custom_hash};
pub use descriptor::{DescriptorEntry, DescriptorFacts};
pub use jwt::Claims;
use key_hash::Identity;
pub use key_hash::{KeyHash, KeyHashPrefix, SHORTEST, SHOWN};
pub use key_table::{
    HASHED, KeyClient, KeyDigest, KeyNote, KeyTable, KnownKey, KnownKeys, is_client_name,
    is_tier_name, same_secret,
};
pub use known::{ApiKeys, KeyRegistry, KeyStanding, KnownBy, RegisteredKey, UnknownKey};
pub use listed::{ListedValues, OTHER};
pub use parse::{KeyError, MAX_CHOICES, part_forms, part_pattern, part_words};
pub use text::address;
pub use text::{Given, PartText};
use value::{Carried, PartValue};
pub use value::{Credential, any_query_value, with_bearer};

/// The secret that identities are hashed with, shared by all proxies of one store.
#[derive(Clone, PartialEq, Eq)]
pub struct HashSecret([u8; 32]);

impl HashSecret {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret itself, to be stored where proxies share it.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A source of key values in a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The client's address, grouped (IPv6 by /64).
    Ip,
    /// The API key, from the first source of `[api_key] from` that carries one.
    ApiKey,
    Header(HeaderName),
    Query(String),
    Cookie(String),
    Path,
    /// The value of a route's `{name}`.
    PathParam(String),
    Method,
    Host,
    Route,
    /// All requests together.
    Global,
    Tier,
    /// A claim of the token that `[auth.jwt]` verified.
    Jwt(String),
    /// A field of the client's certificate.
    Tls(Credential),
    /// What a program's closure makes of the request. No file names it.
    Custom(CustomKey),
    /// The value of this entry of a descriptor. No request has it.
    Entry(String),
    /// A member of the request's body.
    Body(BodyMember),
}

/// One part of a key: the first of these that a request carries. Never empty once parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alternatives(pub Vec<Part>);

/// The key of a limit: all parts together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// In the order of the file.
    pub parts: Vec<Alternatives>,
    /// The parts of which only listed values count by themselves.
    pub listed: Vec<ListedValues>,
}

/// A place in a request that may carry an API key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ApiKeySource {
    /// A header's whole value.
    Header(HeaderName),
    /// `Authorization: Bearer KEY`.
    Bearer,
    Query(String),
    Cookie(String),
}

/// `[api_key] from`: the first source that carries a key wins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ApiKeySources(pub Vec<ApiKeySource>);

/// The properties of a request that keys are derived from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'r> {
    /// The client's address, already grouped.
    pub ip: IpAddr,
    pub api_key: &'r ApiKeys,
    /// The result of looking up the API key; `None` looks it up for each question.
    pub standing: Option<KeyStanding>,
    /// The first of the request's keys that Redis or the callback knows.
    pub registered: Option<&'r RegisteredKey>,
    pub method: &'r Method,
    /// The host, as `route::host_of` returns it.
    pub host: &'r str,
    pub path: &'r CanonicalPath<'r>,
    /// The query, without its `?`.
    pub query: Option<&'r str>,
    pub headers: &'r HeaderMap,
    pub route: &'r str,
    /// Names and values of the route's `{param}`s.
    pub params: &'r [(&'r str, &'r str)],
    pub claims: Option<&'r Claims>,
    pub tier: Option<&'r str>,
    pub certificate: Option<&'r Certificate>,
    /// What a program has added to the request.
    pub extensions: Option<&'r Extensions>,
    /// `None` if the body was not read: then its members are missing.
    pub body: Option<&'r BodyFacts>,
}

/// The result of deriving a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derived {
    Hash(KeyHash),
    /// The limit does not apply: the key is missing, and the limit has `missing = "skip"`.
    Skip,
    /// Answer 400: the key is missing, and the limit has `missing = "deny"`.
    Denied,
    /// Answer 400: the request carries different values where one key must be.
    Ambiguous,
    /// Answer 401: the API key is unknown, and `[api_key]` has `unknown = "deny"`.
    Unknown,
}

/// Headers that look trustworthy, and that clients can set to any value.
const CLAIMS: [&str; 11] = [
    "cf-connecting-ip",
    "client-ip",
    "fastly-client-ip",
    "forwarded",
    "referer",
    "true-client-ip",
    "user-agent",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded-for",
    "x-real-ip",
];

impl Key {
    /// Derives the key that a request is counted against.
    ///
    /// For each part the first alternative that the request carries is taken. The alternative's
    /// kind is part of the identity: the API key `1.2.3.4` is not the address. `missing` says what
    /// happens if the request carries no alternative; `Missing::Ip` counts it as the part `ip`.
    pub fn derive(&self, facts: &Facts<'_>, missing: Missing, hash_key: &HashSecret) -> Derived {
        let mut identity = Identity::new(hash_key);
        match self.each_part(facts, missing, |part, value| identity.add(part, value)) {
            Ok(()) => Derived::Hash(identity.hash()),
            Err(without) => without,
        }
    }

    /// Calls `add` with each part and its value before they are hashed, in the order of the file.
    /// The part is `None` where all requests without it are counted together. The error says why
    /// there is no key.
    pub fn each_part(
        &self,
        facts: &Facts<'_>,
        missing: Missing,
        mut add: impl FnMut(Option<&Part>, &[u8]),
    ) -> Result<(), Derived> {
        for part in &self.parts {
            let taken = part.take(facts);
            match taken.carried {
                Carried::One(value) => {
                    add(taken.part, self.counted(taken.part, value.as_bytes()));
                }
                Carried::Several => return Err(Derived::Ambiguous),
                Carried::Unknown => return Err(Derived::Unknown),
                Carried::Nothing => match missing {
                    Missing::Ip => add(Some(&Part::Ip), PartValue::ip(facts.ip).as_bytes()),
                    Missing::Shared => add(None, b""),
                    Missing::Deny => return Err(Derived::Denied),
                    Missing::Skip => return Err(Derived::Skip),
                },
            }
        }
        Ok(())
    }

    pub fn ip() -> Key {
        Key::one(Part::Ip)
    }

    pub fn custom(key: CustomKey) -> Key {
        Key::one(Part::Custom(key))
    }

    fn one(part: Part) -> Key {
        Key::all_of([part])
    }

    /// A key of all these parts.
    pub fn all_of(parts: impl IntoIterator<Item = Part>) -> Key {
        let parts = parts.into_iter().map(|part| Alternatives(vec![part]));
        Key::new(parts.collect())
    }

    pub fn new(parts: Vec<Alternatives>) -> Key {
        Key {
            parts,
            listed: Vec::new(),
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flat_map(|part| &part.0)
    }

    /// The path parameters that a route must have for this key.
    pub fn path_params(&self) -> impl Iterator<Item = &str> {
        self.all().filter_map(|part| match part {
            Part::PathParam(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

struct TakenPart<'k, 'r> {
    part: Option<&'k Part>,
    carried: Carried<'r>,
}

impl Alternatives {
    fn take<'k, 'r>(&'k self, facts: &Facts<'r>) -> TakenPart<'k, 'r> {
        for part in &self.0 {
            let carried = part.find(facts);
            if carried != Carried::Nothing {
                let part = Some(part);
                return TakenPart { part, carried };
            }
        }
        let (part, carried) = (None, Carried::Nothing);
        TakenPart { part, carried }
    }
}

impl Part {
    /// Its number in an identity. Counts in Redis outlive this process: never renumber. 0 is a
    /// missing part.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Ip => 1,
            Self::ApiKey => 2,
            Self::Header(_) => 3,
            Self::Query(_) => 4,
            Self::Cookie(_) => 5,
            Self::Path => 6,
            Self::PathParam(_) => 7,
            Self::Method => 8,
            Self::Host => 9,
            Self::Route => 10,
            Self::Global => 11,
            Self::Tier => 12,
            Self::Jwt(_) => 13,
            Self::Tls(_) => 14,
            Self::Custom(_) => custom::KIND,
            Self::Entry(_) => 16,
            Self::Body(member) => body::kind(member),
        }
    }

    /// The name after the colon in the part's text; empty for parts without one.
    pub fn name(&self) -> &str {
        match self {
            Self::Header(name) => name.as_str(),
            Self::Query(name) | Self::Cookie(name) => name,
            Self::PathParam(name) | Self::Jwt(name) | Self::Entry(name) => name,
            Self::Tls(credential) => credential.word(),
            Self::Body(member) => body::name(member),
            _ => "",
        }
    }

    /// Whether clients can set this header to any value, so that a limit by it is no limit. A
    /// trusted proxy may overwrite the header: this is a reason to warn, not an error.
    pub fn is_chosen_by_client(&self) -> bool {
        matches!(self, Self::Header(name) if CLAIMS.contains(&name.as_str()))
    }

    /// Whether every request carries it. Only routes that name a path parameter have it.
    pub fn is_always_present(&self) -> bool {
        match self {
            Self::Ip | Self::Path | Self::Method | Self::Host | Self::Route | Self::Global => true,
            Self::ApiKey | Self::Header(_) | Self::Query(_) | Self::Cookie(_) => false,
            Self::PathParam(_) | Self::Tier | Self::Jwt(_) | Self::Tls(_) => false,
            Self::Custom(_) | Self::Entry(_) | Self::Body(_) => false,
        }
    }
}

impl Default for ApiKeySources {
    /// `x-api-key`, then `Authorization: Bearer`. Not the query, which ends up in logs.
    fn default() -> Self {
        Self(vec![
            ApiKeySource::Header(HeaderName::from_static("x-api-key")),
            ApiKeySource::Bearer,
        ])
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

    /// Derives a key for `GET http://h.example/a/b?QUERY` from 192.0.2.7 with these headers.
    fn derive(key: &[&str], missing: Missing, query: &str, headers: &[(&str, &str)]) -> Derived {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let sources = ["header:x-api-key", "bearer", "query:api_key", "cookie:key"];
        let facts = Facts {
            ip: "192.0.2.7".parse().unwrap(),
            api_key: &ApiKeys::trusting(ApiKeySources::parse(sources).unwrap()),
            standing: None,
            registered: None,
            method: &Method::GET,
            host: "h.example",
            path: &CanonicalPath::parse("/a/b").unwrap(),
            query: Some(query),
            headers: &map,
            route: "r",
            params: &[("id", "b")],
            claims: None,
            tier: Some("pro"),
            certificate: None,
            extensions: None,
            body: None,
        };
        Key::parse(key.iter().copied())
            .unwrap()
            .derive(&facts, missing, &SECRET)
    }

    fn tag(key: &[&str], query: &str, headers: &[(&str, &str)]) -> KeyHash {
        match derive(key, Missing::Deny, query, headers) {
            Derived::Hash(tag) => tag,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn identities_never_change_from_version_to_version() {
        assert_eq!(tag(&["ip"], "", &[]).to_string(), "x6TAd4ddy0z06ChUE5-AsA");
        let key = ["query:q", "path:id", "header:x-user or global"];
        assert_eq!(tag(&key, "q=1", &[]).to_string(), "cuswJ0_bwVXfwF15PxHbYg");
        assert_eq!(
            tag(&["tier"], "", &[]).to_string(),
            "u8wATRBM0lbVQjjhC1G-wQ"
        );
    }

    #[test]
    fn the_kind_of_what_was_taken_is_part_of_the_identity() {
        let value = [("x-user", "192.0.2.7"), ("cookie", "x-user=192.0.2.7")];
        let header = tag(&["header:x-user"], "", &value);
        let cookie = tag(&["cookie:x-user"], "", &value);
        let query = tag(&["query:x-user"], "x-user=192.0.2.7", &[]);
        let api_key = tag(&["api_key"], "", &[("x-api-key", "192.0.2.7")]);
        let tier = tag(&["tier"], "", &[]);
        let tags = [header, cookie, query, api_key, tier, tag(&["ip"], "", &[])];
        for (index, tag) in tags.iter().enumerate() {
            assert!(!tags[..index].contains(tag), "{index}");
        }
    }

    #[test]
    fn the_first_alternative_that_is_present_is_taken() {
        let key = ["header:x-user or cookie:user or ip"];
        let user = [("x-user", "u"), ("cookie", "user=c")];
        assert_eq!(tag(&key, "", &user), tag(&["header:x-user"], "", &user));
        assert_eq!(tag(&key, "", &user[1..]), tag(&["cookie:user"], "", &user));
        assert_eq!(tag(&key, "", &[]), tag(&["ip"], "", &[]));
        assert_eq!(tag(&key, "", &[("x-user", "  ")]), tag(&["ip"], "", &[]));
    }

    #[test]
    fn an_api_key_is_the_same_wherever_it_is_carried() {
        let key = ["api_key"];
        let expected = tag(&key, "", &[("x-api-key", "k")]);
        assert_eq!(tag(&key, "", &[("authorization", "bEARER  k ")]), expected);
        assert_eq!(tag(&key, "x=1&api_key=k", &[]), expected);
        assert_eq!(tag(&key, "", &[("cookie", "a=b; key=k")]), expected);
    }

    #[test]
    fn what_a_missing_key_means_is_said_by_the_limit() {
        let derive = |missing| derive(&["api_key", "path"], missing, "", &[]);
        assert_eq!(derive(Missing::Skip), Derived::Skip);
        assert_eq!(derive(Missing::Deny), Derived::Denied);
        assert_eq!(
            derive(Missing::Ip),
            Derived::Hash(tag(&["ip", "path"], "", &[]))
        );
        let shared = derive(Missing::Shared);
        assert!(matches!(shared, Derived::Hash(_)) && shared != derive(Missing::Ip));
    }

    #[test]
    fn copies_that_differ_are_refused_and_equal_copies_are_one() {
        for key in [
            "header:k or ip",
            "api_key or ip",
            "cookie:k or ip",
            "query:k or ip",
        ] {
            let name = if key.starts_with("api_key") {
                "x-api-key"
            } else {
                "k"
            };
            let two = |a: &str, b: &str| {
                let cookie = format!("k={b}");
                let headers = [
                    (name, a),
                    (name, b),
                    ("cookie", &format!("k={a}")),
                    ("cookie", &cookie),
                ];
                derive(&[key], Missing::Skip, &format!("k={a}&k={b}"), &headers)
            };
            assert_eq!(two("good", "fresh"), Derived::Ambiguous, "{key}");
            assert!(matches!(two("good", "good"), Derived::Hash(_)), "{key}");
        }
    }

    #[test]
    fn secrets_are_equal_or_not_and_never_shown() {
        assert!(same_secret(b"s3cret", b"s3cret") && !same_secret(b"s3cre", b"s3cret"));
        assert_eq!(format!("{SECRET:?}"), "HashSecret(secret)");
    }

    proptest! {
        #[test]
        fn parts_never_run_into_each_other(
            a in "[ab:]{1,3}", b in "[ab:]{1,3}", c in "[ab:]{1,3}", d in "[ab:]{1,3}",
        ) {
            let one = tag(&["query:x", "query:y"], &format!("x={a}&y={b}"), &[]);
            let two = tag(&["query:x", "query:y"], &format!("x={c}&y={d}"), &[]);
            prop_assert_eq!(one == two, (a, b) == (c, d));
        }

        #[test]
        fn long_values_are_hashed_like_short_ones(length in 1_usize..5000) {
            let value = "v".repeat(length);
            let header = tag(&["header:k"], "", &[("k", &value)]);
            let longer = tag(&["header:k"], "", &[("k", &format!("{value}v"))]);
            prop_assert_ne!(header, longer);
        }
    }
}
