//! Identities that no request carries: named by an operator, and hashed as a request's would be.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;

use super::value::{Carried, Value, method, named_value};
use super::{Facts, HashSecret, Identity, KeyHash, Part};

/// A value for one part of a key, in the spelling in which it is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given(Option<(Part, Vec<u8>)>);

impl Given {
    /// An address, already grouped.
    pub fn ip(ip: IpAddr) -> Given {
        Given(Some((Part::Ip, Value::ip(ip).as_bytes().to_vec())))
    }

    /// A value as a request carries it; a path or a host in its one spelling.
    pub fn text(part: Part, text: &str) -> Given {
        let text = text.trim_ascii();
        let value = match &part {
            Part::Query(_) | Part::Cookie(_) => {
                let pair = format!("k={text}");
                let value = named_value(pair.as_bytes(), "k");
                value.map_or_else(Vec::new, |value| value.as_bytes().to_vec())
            }
            Part::Method => match text.parse::<Method>() {
                Ok(parsed) => method(&parsed).as_bytes().to_vec(),
                Err(_) => text.as_bytes().to_vec(),
            },
            Part::Global => Vec::new(),
            _ => text.as_bytes().to_vec(),
        };
        Given(Some((part, value)))
    }

    /// What requests without that part share where the limit says `missing = "shared"`.
    pub fn missing() -> Given {
        Given(None)
    }

    /// Which part it is of, if it is of any.
    pub fn part(&self) -> Option<&Part> {
        self.0.as_ref().map(|(part, _)| part)
    }

    /// Whether no request can carry it: an empty value is none.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Some((part, value)) if value.is_empty() && *part != Part::Global)
    }

    /// The tag of a request that has these, in the order of its key's parts.
    pub fn tag(given: &[Given], hash_key: &HashSecret) -> KeyHash {
        let mut identity = Identity::new(hash_key);
        for one in given {
            match &one.0 {
                Some((part, value)) => identity.add(part, value),
                None => identity.add_missing(),
            }
        }
        identity.tag()
    }
}

impl Facts<'_> {
    /// Whoever has this address, whatever limits count by.
    pub fn ip_tag(&self, hash_key: &HashSecret) -> KeyHash {
        let mut identity = Identity::new(hash_key);
        identity.add(&Part::Ip, Value::ip(self.ip).as_bytes());
        identity.tag()
    }

    /// Tells `see` the tag of each API key that the request carries, known or not; false if a
    /// place carries several that differ.
    pub fn each_api_key(&self, hash_key: &HashSecret, mut see: impl FnMut(KeyHash)) -> bool {
        for source in &self.api_key.from.0 {
            match source.find(self) {
                Carried::Nothing | Carried::Unknown => {}
                Carried::Several => return false,
                Carried::One(value) => {
                    let mut identity = Identity::new(hash_key);
                    identity.add(&Part::ApiKey, value.as_bytes());
                    see(identity.tag());
                }
            }
        }
        true
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(secret)")
    }
}

impl KeyHash {
    /// Reads its text back.
    pub fn parse(text: &str) -> Option<KeyHash> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(KeyHash(bytes.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::limit::Missing;
    use crate::limit::key::{ApiKeySources, ApiKeys, Derived, Facts, Key};
    use crate::path::CanonicalPath;

    const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);

    fn derived(key: &[&str], missing: Missing) -> KeyHash {
        let path = CanonicalPath::parse("/search/a%20b").unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-api-key", "abc=="),
            ("x-user", " 7 "),
            ("cookie", "sid=\"a%20b\""),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let facts = Facts {
            ip: "1.2.3.4".parse().unwrap(),
            api_key: &ApiKeys::trusting(ApiKeySources::default()),
            standing: None,
            method: &Method::GET,
            host: "example.com",
            path: &path,
            query: Some("q=a+b"),
            headers: &headers,
            route: "search",
            params: &[("id", "9")],
            claims: None,
            tier: None,
            certificate: None,
            extensions: None,
        };
        let key = Key::parse(key.iter().copied()).unwrap();
        match key.derive(&facts, missing, &SECRET) {
            Derived::Hash(tag) => tag,
            other => panic!("{other:?}"),
        }
    }

    fn text(part: &str, text: &str) -> Given {
        Given::text(Part::parse(part).unwrap(), text)
    }

    #[test]
    fn what_is_named_has_the_tag_of_the_request_that_carries_it() {
        let ip = || Given::ip("1.2.3.4".parse().unwrap());
        let cases: [(&[&str], Vec<Given>); 12] = [
            (&["ip"], vec![ip()]),
            (&["api_key or ip"], vec![text("api_key", "abc==")]),
            (&["header:x-user"], vec![text("header:x-user", "7")]),
            (&["query:q"], vec![text("query:q", "a%20b")]),
            (&["cookie:sid"], vec![text("cookie:sid", "a b")]),
            (&["path"], vec![text("path", "/search/a%20b")]),
            (&["path:id"], vec![text("path:id", "9")]),
            (&["method"], vec![text("method", "get")]),
            (&["host"], vec![text("host", "example.com")]),
            (&["route"], vec![text("route", "search")]),
            (&["global"], vec![text("global", "")]),
            (&["ip", "method"], vec![ip(), text("method", "GET")]),
        ];
        for (key, given) in cases {
            let tag = Given::tag(&given, &SECRET);
            assert_eq!(tag, derived(key, Missing::Ip), "{key:?}");
        }
        let absent: &[&str] = &["header:x-none"];
        assert_eq!(Given::tag(&[ip()], &SECRET), derived(absent, Missing::Ip));
        let shared = Given::tag(&[Given::missing()], &SECRET);
        assert_eq!(shared, derived(absent, Missing::Shared));
    }

    #[test]
    fn a_tag_reads_back() {
        let tag = KeyHash([0xfb; 16]);
        assert_eq!(KeyHash::parse(&tag.to_string()), Some(tag));
        for text in ["", "abc", &"A".repeat(23), "+/+/+/+/+/+/+/+/+/+/+w"] {
            assert_eq!(KeyHash::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_empty_value_is_none() {
        assert!(text("header:x-user", " ").is_empty());
        assert!(!text("global", "").is_empty());
        assert!(!Given::missing().is_empty());
    }
}
