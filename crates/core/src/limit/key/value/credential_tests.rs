//! Certificates as keys.

use http::{HeaderMap, Method};

use super::*;
use crate::certificate::Certificate;
use crate::limit::Missing;
use crate::limit::key::{ApiKeys, Derived, Given, HashSecret, Key, KeyHash, Part};
use crate::path::CanonicalPath;

const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

fn derived(key: &str, certificate: Option<&Certificate>) -> Derived {
    let facts = Facts {
        ip: "1.2.3.4".parse().unwrap(),
        api_key: &ApiKeys::default(),
        standing: None,
        registered: None,
        method: &Method::GET,
        host: "example.com",
        path: &CanonicalPath::parse("/").unwrap(),
        query: None,
        headers: &HeaderMap::new(),
        route: "r",
        params: &[],
        claims: None,
        tier: None,
        certificate,
        extensions: None,
        body: None,
    };
    let key = Key::parse([key]).unwrap();
    key.derive(&facts, Missing::Deny, &SECRET)
}

fn certificate(subject: &str, names: Vec<AltName>) -> Certificate {
    Certificate {
        subject: subject.to_owned(),
        names,
        not_before_s: 0,
        not_after_s: 1,
        fingerprint: "ab".repeat(32),
        issuer: String::new(),
        serial: String::new(),
        der: Box::default(),
    }
}

fn given(part: &str, text: &str) -> KeyHash {
    Given::tag(&[Given::text(Part::parse(part).unwrap(), text)], &SECRET)
}

#[test]
fn a_client_is_who_its_certificate_says() {
    let uri = AltName::Uri("spiffe://x/y".to_owned());
    let worker = certificate("CN=worker", vec![uri, AltName::Dns("w".to_owned())]);
    for (part, text) in [
        ("tls:subject", "CN=worker"),
        ("tls:san", "spiffe://x/y"),
        ("tls:fingerprint", &"ab".repeat(32)),
    ] {
        let tag = given(part, text);
        assert_eq!(derived(part, Some(&worker)), Derived::Hash(tag), "{part}");
    }
    let address = certificate("", vec![AltName::Ip("::1".parse().unwrap())]);
    let tag = given("tls:san", "::1");
    assert_eq!(derived("tls:san", Some(&address)), Derived::Hash(tag));
}

#[test]
fn identities_never_change_from_version_to_version() {
    let tag = given("tls:subject", "CN=worker").to_string();
    assert_eq!(tag, "60N6yG0f7xlh2dTyOuKcbQ");
}

#[test]
fn who_shows_none_or_one_that_says_nothing_has_no_key() {
    assert_eq!(derived("tls:subject", None), Derived::Denied);
    let nameless = certificate("", Vec::new());
    assert_eq!(derived("tls:subject", Some(&nameless)), Derived::Denied);
    assert_eq!(derived("tls:san", Some(&nameless)), Derived::Denied);
}
