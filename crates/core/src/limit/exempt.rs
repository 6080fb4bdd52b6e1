//! Whom a limit does not concern.

use std::net::IpAddr;

use ipnet::IpNet;

use super::key::{Facts, Key, Part};

/// Whom a limit does not concern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    /// Clients at these addresses.
    pub nets: Vec<IpNet>,
    /// Clients with these keys, as BLAKE3 hashes, ascending.
    pub keys: Vec<[u8; 32]>,
}

impl Exempt {
    /// Whether it concerns everybody.
    pub fn is_empty(&self) -> bool {
        self.nets.is_empty() && self.keys.is_empty()
    }

    /// Whether a client is among them: by its address (not grouped), or by the value that the limit
    /// counts it by; by its API key where the limit counts by nothing that names a client. An API
    /// key that stands here is known by that, whatever `[api_key]` knows.
    ///
    /// Never by both: a client would be exempt that sends, as an API key of its own making, what
    /// somebody else's token says.
    pub fn has(&self, client: IpAddr, key: &Key, facts: &Facts<'_>) -> bool {
        if self.nets.iter().any(|net| net.contains(&client)) {
            return true;
        }
        if self.keys.is_empty() {
            return false;
        }
        // Only hashes are compared: how long it takes says nothing about the keys.
        let known = |value: &[u8]| {
            let hash = blake3::hash(value);
            self.keys.binary_search(hash.as_bytes()).is_ok()
        };
        if key.all().any(Part::names_client) {
            key.names_any(facts, known)
        } else {
            facts.any_api_key(known)
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::limit::key::ApiKeys;
    use crate::path::CanonicalPath;

    fn is_exempt(key: &str, headers: &[(&'static str, &str)]) -> bool {
        let exempt = Exempt {
            nets: vec!["192.0.2.0/24".parse().unwrap()],
            keys: vec![*blake3::hash(b"partner").as_bytes()],
        };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let facts = Facts {
            ip: "198.51.100.7".parse().unwrap(),
            api_key: &ApiKeys::default(),
            standing: None,
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
        assert!(is_exempt("path:id", &[]));
        // What every client has names nobody.
        for key in ["host", "path", "route", "tier", "method"] {
            assert!(!is_exempt(key, &[]), "{key}");
        }
    }
}
