//! Keys as text: written out for logs and for `explain`, and named by operators without a request.
//!
//! The texts are in the clear. The caller decides how much of them to show.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use http::Method;

use super::key_hash::Identity;
use super::value::{Carried, PartValue, method, named_value};
use super::{Alternatives, Facts, HashSecret, Key, KeyHash, Part};
use crate::limit::Missing;
use crate::path::{Case, fold};

/// A longer spelled key stays a hash, bytes.
pub(super) const MAX_SPELLED: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartText<'k> {
    /// The request carries this alternative, with this value.
    Value(&'k Part, String),
    /// It carries several different values of this alternative.
    Several(&'k Part),
    /// It carries an unknown API key, and the configuration refuses those.
    Unknown,
    Nothing,
}

impl Key {
    /// Finds the value of each part, in the file's order, as [`Key::derive`] does.
    pub fn part_texts<'k>(&'k self, facts: &Facts<'_>) -> Vec<(&'k Alternatives, PartText<'k>)> {
        let text = |part: &'k Alternatives| (part, part.text(facts, self));
        self.parts.iter().map(text).collect()
    }

    /// Writes the key that [`Key::derive`] would hash: `PART=VALUE`, joined by `&`, with percent
    /// signs for characters that could end a word or a line. `None` if there is no key, or if the
    /// text is longer than 512 bytes.
    #[cold]
    pub fn spell(&self, facts: &Facts<'_>, missing: Missing) -> Option<String> {
        let mut out = String::new();
        let derived = self.each_part(facts, missing, |part, value| {
            push_spelled(&mut out, part, value);
        });
        (derived.is_ok() && out.len() <= MAX_SPELLED).then_some(out)
    }
}

impl Part {
    /// Does the same for a key of this one part.
    #[cold]
    pub fn spell(self, facts: &Facts<'_>) -> Option<String> {
        let key = Key::all_of([self]);
        key.spell(facts, Missing::Skip)
    }
}

impl Alternatives {
    fn text<'k>(&'k self, facts: &Facts<'_>, key: &Key) -> PartText<'k> {
        let taken = self.take(facts);
        match (taken.part, taken.carried) {
            (Some(part @ Part::Ip), Carried::One(_)) => PartText::Value(part, facts.ip.to_string()),
            (Some(part), Carried::One(value)) => {
                let value = key.counted(Some(part), value.as_bytes());
                PartText::Value(part, String::from_utf8_lossy(value).into_owned())
            }
            (Some(part), Carried::Several) => PartText::Several(part),
            (_, Carried::Unknown) => PartText::Unknown,
            _ => PartText::Nothing,
        }
    }
}

/// Adds one part of a key to its text.
pub(super) fn push_spelled(out: &mut String, part: Option<&Part>, value: &[u8]) {
    if !out.is_empty() {
        out.push('&');
    }
    match part {
        None => out.push_str("missing"),
        Some(Part::Global) => out.push_str("global"),
        Some(part) => push_part(out, part, value),
    }
}

fn push_part(out: &mut String, part: &Part, value: &[u8]) {
    push_escaped(out, part.to_string().as_bytes());
    out.push('=');
    match (part, address(value)) {
        (Part::Ip, Some(ip)) => _ = write!(out, "{ip}"),
        _ => push_escaped(out, value),
    }
}

/// Reads the bytes of an address, as [`PartValue::ip`] makes them.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

fn push_escaped(out: &mut String, bytes: &[u8]) {
    for &byte in bytes.iter().take(MAX_SPELLED + 1) {
        if byte.is_ascii_alphanumeric() || b"-._~:@!$*,;=+".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// A value for one part of a key that an operator names, in the spelling that is hashed. `None`
/// stands for a missing part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given(Option<(Part, Vec<u8>)>);

impl Given {
    pub fn ip(ip: IpAddr) -> Given {
        Given(Some((Part::Ip, PartValue::ip(ip).as_bytes().to_vec())))
    }

    /// A value as a request carries it. A path or a host must be in its canonical spelling.
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

    /// The value of all requests without that part where the limit has `missing = "shared"`.
    pub fn missing() -> Given {
        Given(None)
    }

    pub fn part(&self) -> Option<&Part> {
        self.0.as_ref().map(|(part, _)| part)
    }

    /// The value in the spelling of paths of this case.
    #[must_use]
    pub fn in_case(self, case: Case) -> Given {
        let folded = |part: &Part, value: &[u8]| match case {
            Case::Sensitive => None,
            Case::Insensitive => part.folded(value),
        };
        Given(self.0.map(|(part, value)| {
            let folded = folded(&part, &value);
            (part, folded.unwrap_or(value))
        }))
    }

    pub fn value(&self) -> &[u8] {
        self.0.as_ref().map_or(b"", |(_, value)| value)
    }

    /// Whether no request can carry it, since an empty value counts as none.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Some((part, value)) if value.is_empty() && *part != Part::Global)
    }

    /// The hash of a request with these values, in the order of its key's parts.
    pub fn tag(given: &[Given], hash_key: &HashSecret) -> KeyHash {
        let mut identity = Identity::new(hash_key);
        for one in given {
            match &one.0 {
                Some((part, value)) => identity.add(Some(part), value),
                None => identity.add(None, b""),
            }
        }
        identity.hash()
    }
}

impl Facts<'_> {
    pub fn ip_tag(&self, hash_key: &HashSecret) -> KeyHash {
        Part::Ip.hash_value(PartValue::ip(self.ip).as_bytes(), hash_key)
    }

    /// Calls `see` with the hash of each API key that the request carries, known or not. Returns
    /// false if one source carries several different keys.
    pub fn each_api_key(&self, hash_key: &HashSecret, mut see: impl FnMut(KeyHash)) -> bool {
        for source in &self.api_key.from.0 {
            match source.find(self) {
                Carried::Nothing | Carried::Unknown => {}
                Carried::Several => return false,
                Carried::One(value) => {
                    let key = self.api_key.identity(value.as_bytes());
                    see(Part::ApiKey.hash_value(key, hash_key));
                }
            }
        }
        true
    }
}

impl Part {
    /// A value of this part without letter case; `None` if the part is not of paths.
    pub(super) fn folded(&self, value: &[u8]) -> Option<Vec<u8>> {
        let is_of_path = matches!(self, Part::Path | Part::PathParam(_));
        let text = std::str::from_utf8(value).ok().filter(|_| is_of_path)?;
        Some(fold(text).into_owned().into_bytes())
    }

    fn hash_value(&self, value: &[u8], hash_key: &HashSecret) -> KeyHash {
        let mut identity = Identity::new(hash_key);
        identity.add(Some(self), value);
        identity.hash()
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(secret)")
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
            registered: None,
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
            body: None,
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
