//! Known and unknown keys, and the standing of a request's key.

use http::{HeaderMap, HeaderValue, Method};

use super::*;
use crate::limit::key::{Claims, Derived, HashSecret, Key, KeyDigest};
use crate::limit::{AnchorDay, Missing};
use crate::path::CanonicalPath;

const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

fn known(keys: &[(&str, KnownKey<'_>)]) -> Option<Arc<KnownKeys>> {
    let keys = keys
        .iter()
        .map(|(key, said)| (KeyDigest::new(key.as_bytes()), *said));
    Some(Arc::new(KnownKeys::new(keys, SECRET)))
}

fn with_facts<T>(
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
        registered: None,
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
    with_facts(keys, headers, |facts| {
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
        with_facts(&keys, &[("x-api-key", key)], |facts| {
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
    assert_eq!(KeyDigest::parse_hex(hex), Some(KeyDigest::new(b"abc")));
    let upper = hex.to_uppercase();
    assert_eq!(KeyDigest::parse_hex(&upper), Some(KeyDigest::new(b"abc")));
    for wrong in ["", &hex[1..], &format!("{hex}0"), &hex.replace('b', "g")] {
        assert_eq!(KeyDigest::parse_hex(wrong), None, "{wrong}");
    }
}

#[test]
fn a_key_with_two_dots_is_a_token_only_as_a_bearer() {
    let keys = ApiKeys {
        from: ApiKeySources(vec![
            ApiKeySource::Header("x-api-key".parse().unwrap()),
            ApiKeySource::Bearer,
        ]),
        tokens: true,
        ..ApiKeys::default()
    };
    for (source, key, is_token) in [
        (0, "eyJh.eyJz.c2ln", false),
        (1, "eyJh.eyJz.c2ln", true),
        (1, "sk.live.8f3a", false),
        (1, "eyJh.eyJz", false),
        (2, "eyJh.eyJz.c2ln", false),
    ] {
        assert_eq!(
            keys.is_bearer_token(source, key.as_bytes()),
            is_token,
            "{key}"
        );
    }
}

#[test]
fn a_verified_token_counts_without_its_signature() {
    let keys = ApiKeys {
        known: known(&[("eyA.b.c", KnownKey::default())]),
        tokens: true,
        ..ApiKeys::default()
    };
    let claims = Claims(Default::default());
    let by = |token: &str| {
        let headers = [("authorization", format!("Bearer {token}"))];
        let headers = headers
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        with_facts(&keys, &headers, |facts| {
            let verified = Facts {
                claims: Some(&claims),
                ..*facts
            };
            let looked_up = Facts {
                standing: Some(verified.key_standing()),
                ..verified
            };
            let key = Key::parse(["api_key"]).unwrap();
            let derived = key.derive(&verified, Missing::Ip, &SECRET);
            assert_eq!(key.derive(&looked_up, Missing::Ip, &SECRET), derived);
            let mut blocked = Vec::new();
            facts.each_api_key(&SECRET, |tag| blocked.push(Derived::Hash(tag)));
            assert_eq!(blocked, [derived]);
            derived
        })
    };
    assert_eq!(by("eyJ.p.one"), by("eyJ.p.other"));
    assert_ne!(by("eyJ.p.one"), by("eyJ.q.one"));
    assert_eq!(keys.identity(b"eyJ.p.one"), b"eyJ.p");
    // These are no tokens.
    for key in ["eyA.b.c", "a.b.c", "eyJ.b", "eyJ.b.c.d"] {
        assert_eq!(keys.identity(key.as_bytes()), key.as_bytes());
    }
}
