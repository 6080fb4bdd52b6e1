//! Tiers and exemptions.

use http::{HeaderMap, HeaderValue, Method};

use super::*;
use crate::client::networks::NetworkSet;
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
    // The proxy overwrites the header, and not what the client makes of its name.
    let other = [("x-plan", "pro"), ("x_plan", "gold")];
    assert_eq!(tier(&tiers, &other, true).as_deref(), Some("pro"));
}

#[test]
fn an_api_key_has_the_tier_of_its_line() {
    let said = |tier| KnownKey {
        anchor: None,
        name: None,
        tier: Some(tier),
    };
    let list = [("k1", said("pro")), ("k2", said("free"))];
    let list = list.map(|(key, said)| (KeyDigest::new(key.as_bytes()), said));
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

fn is_exempt(key: &str, headers: &[(&'static str, &str)]) -> bool {
    let exempt = Exempt {
        nets: NetworkSet::from_iter(["192.0.2.0/24".parse().unwrap()]),
        keys: [&b"partner"[..]].into_iter().collect(),
        ..Exempt::default()
    };
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_str(value).unwrap());
    }
    let facts = Facts {
        ip: "198.51.100.7".parse().unwrap(),
        api_key: &ApiKeys::default(),
        standing: None,
        registered: None,
        method: &Method::GET,
        host: "partner",
        path: &CanonicalPath::parse("/partner").unwrap(),
        query: None,
        headers: &map,
        route: "partner",
        params: &[("id", "partner")],
        claims: None,
        tier: Some("partner"),
        certificate: None,
        extensions: None,
        body: None,
    };
    exempt.has(facts.ip, &Key::parse([key]).unwrap(), &facts)
}

#[test]
fn a_key_is_one_of_what_the_limit_counts_by() {
    let api_key = [("x-api-key", "partner")];
    let user = [("x-user", "partner")];
    for (key, by_api_key, by_user) in [
        ("ip", true, false),
        ("global", true, false),
        ("api_key or ip", true, false),
        ("header:x-user or ip", false, true),
        ("jwt:sub or ip", false, false),
    ] {
        assert_eq!(is_exempt(key, &api_key), by_api_key, "{key}");
        assert_eq!(is_exempt(key, &user), by_user, "{key}");
    }
    for key in ["path:id", "host", "route", "tier"] {
        assert!(is_exempt(key, &[]), "{key}");
    }
    for key in ["path", "method"] {
        assert!(!is_exempt(key, &api_key), "{key}");
    }
}
