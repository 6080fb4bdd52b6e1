//! Which value of a request decides whether its client is exempt.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method};

use super::*;
use crate::limit::key::{ApiKeys, Claims, HashSecret, KeyDigest, KnownKey, KnownKeys, UnknownKey};
use crate::path::CanonicalPath;

/// A request with everything that a key can name: the token of mallory, and elsewhere `alice`.
struct Request {
    sub: Option<&'static str>,
    api_key: &'static str,
    unknown: UnknownKey,
}

impl Request {
    const MALLORY: Request = Request {
        sub: Some("mallory"),
        api_key: "alice",
        unknown: UnknownKey::Missing,
    };

    /// Whether `exempt = ["alice", "secret", "/x/alice", "GET"]` names its client.
    fn is_exempt(&self, key: &[&str]) -> bool {
        let known = [(KeyDigest::new(b"secret"), KnownKey::default())];
        let known = KnownKeys::new(known, HashSecret::from_bytes([7; 32]));
        let api_key = ApiKeys {
            known: Some(Arc::new(known)),
            unknown: self.unknown,
            ..ApiKeys::default()
        };
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static(self.api_key));
        headers.insert("x-user", HeaderValue::from_static("alice"));
        let claims = self.sub.map(|sub| {
            let claims = serde_json::json!({ "sub": sub });
            Claims(claims.as_object().unwrap().clone())
        });
        let facts = Facts {
            ip: "192.0.2.7".parse().unwrap(),
            api_key: &api_key,
            standing: None,
            registered: None,
            method: &Method::GET,
            host: "alice",
            path: &CanonicalPath::parse("/x/alice").unwrap(),
            query: Some("project=alice"),
            headers: &headers,
            route: "alice",
            params: &[("id", "alice")],
            claims: claims.as_ref(),
            tier: Some("alice"),
            certificate: None,
            extensions: None,
            body: None,
        };
        let key = Key::parse(key.iter().copied()).unwrap();
        let listed = ["alice", "secret", "/x/alice", "GET"];
        key.exempts(&facts, |value| {
            listed.iter().any(|one| one.as_bytes() == value)
        })
    }
}

#[test]
fn a_verified_claim_decides_alone() {
    for beside in [
        "api_key",
        "query:project",
        "path:id",
        "header:x-user",
        "host",
    ] {
        let either = format!("jwt:sub or {beside}");
        for key in [&["jwt:sub", beside][..], &[beside, "jwt:sub"], &[&either]] {
            assert!(!Request::MALLORY.is_exempt(key), "{key:?}");
            let alice = Request {
                sub: Some("alice"),
                ..Request::MALLORY
            };
            assert!(alice.is_exempt(key), "{key:?}");
        }
    }
}

#[test]
fn a_client_cannot_leave_its_token_out_to_be_exempt() {
    for unknown in [UnknownKey::Missing, UnknownKey::Deny, UnknownKey::Trust] {
        let request = Request {
            sub: None,
            unknown,
            ..Request::MALLORY
        };
        for key in ["jwt:sub or api_key", "jwt:sub or header:x-user or ip"] {
            assert!(!request.is_exempt(&[key]), "{key}");
        }
        let known = Request {
            api_key: "secret",
            ..request
        };
        assert!(known.is_exempt(&["jwt:sub or api_key"]));
    }
}

#[test]
fn an_api_key_decides_where_the_key_has_no_other_name() {
    for key in [
        &["ip"][..],
        &["global"],
        &["api_key or ip"],
        &["api_key", "path:id"],
        &["api_key", "host"],
    ] {
        assert!(Request::MALLORY.is_exempt(key), "{key:?}");
        let other = Request {
            api_key: "other",
            ..Request::MALLORY
        };
        assert!(!other.is_exempt(key), "{key:?}");
    }
}

#[test]
fn a_key_that_names_no_client_is_exempt_by_what_it_names() {
    for key in [
        &["path"][..],
        &["method"],
        &["host"],
        &["tier"],
        &["route"],
        &["ip", "path"],
    ] {
        let other = Request {
            api_key: "other",
            ..Request::MALLORY
        };
        assert!(other.is_exempt(key), "{key:?}");
    }
    let entry_as_key = Request {
        api_key: "secret",
        ..Request::MALLORY
    };
    assert!(!entry_as_key.is_exempt(&["header:x-other or ip"]));
}
