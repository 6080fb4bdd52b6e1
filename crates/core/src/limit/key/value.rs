//! What a request carries for one part of a key, in one spelling per value.
//!
//! One rule for every carrier: copies of the same value are one value; copies that differ are
//! refused, because upstreams disagree on which of them counts, and a client could hide the key
//! it uses behind fresh ones. An empty value is none. Case is kept.
//!
//! Nothing is copied unless a value has to be decoded.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Method, header};
use smallvec::SmallVec;

use super::{ApiKeySource, Claims, Facts, Key, Part, Taken, same_secret};

/// One value: where it stands in the request, or made from that.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value<'r> {
    Sent(&'r [u8]),
    Made(SmallVec<[u8; 64]>),
}

/// What was found for a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Carried<'r> {
    Nothing,
    One(Value<'r>),
    /// Values that differ.
    Several,
    /// An API key that is not known, where those are refused.
    Unknown,
}

impl Value<'_> {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Sent(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }

    pub(super) fn ip(ip: IpAddr) -> Self {
        Self::Made(match ip {
            IpAddr::V4(ip) => SmallVec::from_slice(&ip.octets()),
            IpAddr::V6(ip) => SmallVec::from_slice(&ip.octets()),
        })
    }
}

impl Facts<'_> {
    /// Whether `test` holds for an API key that the request carries, known or not.
    ///
    /// For keys that the configuration itself names: naming a key is knowing it.
    pub fn any_api_key(&self, test: impl Fn(&[u8]) -> bool) -> bool {
        let mut sources = self.api_key.from.0.iter();
        sources.any(|source| match source.find(self) {
            Carried::One(value) => test(value.as_bytes()),
            Carried::Nothing | Carried::Several | Carried::Unknown => false,
        })
    }

    /// Whether the request carries exactly this API key, compared in constant time.
    pub fn carries_api_key(&self, secret: &[u8]) -> bool {
        self.any_api_key(|key| same_secret(key, secret))
    }
}

impl Key {
    /// Whether `known` holds for a value by which this key names the client of a request.
    pub fn names_any(&self, facts: &Facts<'_>, known: impl Fn(&[u8]) -> bool) -> bool {
        let taken = self.parts.iter().any(|part| match part.take(facts) {
            Taken::Value(part, value) => part.names_client() && known(value.as_bytes()),
            Taken::Nothing | Taken::Several | Taken::Unknown => false,
        });
        taken || (self.asks_api_key() && facts.any_api_key(known))
    }

    /// Whether the API key is one of its parts.
    pub fn asks_api_key(&self) -> bool {
        self.all().any(|part| *part == Part::ApiKey)
    }
}

impl Part {
    /// Whether its values are names of single clients, or may be.
    pub fn names_client(&self) -> bool {
        match self {
            Self::ApiKey | Self::Header(_) | Self::Query(_) | Self::Cookie(_) => true,
            Self::PathParam(_) | Self::Jwt(_) | Self::Tls(_) | Self::Custom(_) => true,
            Self::Ip | Self::Path | Self::Method | Self::Host => false,
            Self::Route | Self::Global | Self::Tier => false,
        }
    }

    /// Its value as a text; nothing where there are several that differ.
    pub fn text<'r>(&self, facts: &Facts<'r>) -> Option<Cow<'r, str>> {
        match self.find(facts) {
            Carried::One(Value::Sent(bytes)) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Carried::One(Value::Made(bytes)) => {
                let text = std::str::from_utf8(&bytes).ok()?;
                Some(Cow::Owned(text.to_owned()))
            }
            Carried::Nothing | Carried::Several | Carried::Unknown => None,
        }
    }

    pub(super) fn find<'r>(&self, facts: &Facts<'r>) -> Carried<'r> {
        let value = match self {
            Self::ApiKey => return facts.api_key(),
            Self::Header(name) => return header(facts.headers, name),
            Self::Query(name) => return query(facts.query, name),
            Self::Cookie(name) => return cookie(facts.headers, name),
            Self::PathParam(wanted) => {
                let param = facts.params.iter().find(|(name, _)| name == wanted);
                let Some((_, value)) = param else {
                    return Carried::Nothing;
                };
                Value::Sent(value.as_bytes())
            }
            Self::Ip => Value::ip(facts.ip),
            Self::Path => Value::Sent(facts.path.as_str().as_bytes()),
            Self::Method => method(facts.method),
            Self::Host => Value::Sent(facts.host.as_bytes()),
            Self::Route => Value::Sent(facts.route.as_bytes()),
            Self::Global => Value::Sent(b""),
            Self::Tier => match facts.tier {
                Some(name) => Value::Sent(name.as_bytes()),
                None => return Carried::Nothing,
            },
            Self::Jwt(claim) => return claimed(facts.claims, claim),
            Self::Tls(credential) => return credential.find(facts),
            Self::Custom(key) => return key.find(facts),
        };
        Carried::One(value)
    }
}

impl<'r> Carried<'r> {
    /// The one value that all these are.
    fn from_copies(copies: impl Iterator<Item = Value<'r>>) -> Self {
        let mut found = Self::Nothing;
        for value in copies.filter(|value| !value.as_bytes().is_empty()) {
            found = match found {
                Self::Nothing => Self::One(value),
                Self::One(first) if first.as_bytes() == value.as_bytes() => Self::One(first),
                _ => return Self::Several,
            };
        }
        found
    }
}

impl ApiKeySource {
    /// What a request carries there.
    pub(super) fn find<'r>(&self, facts: &Facts<'r>) -> Carried<'r> {
        match self {
            ApiKeySource::Header(name) if *name == header::AUTHORIZATION => {
                header(facts.headers, name)
            }
            ApiKeySource::Header(name) => listed(facts.headers, name),
            ApiKeySource::Bearer => bearer(facts.headers),
            ApiKeySource::Query(name) => query(facts.query, name),
            ApiKeySource::Cookie(name) => cookie(facts.headers, name),
        }
    }
}

/// What the verified token says of it; an empty text is none.
fn claimed<'r>(claims: Option<&'r Claims>, name: &str) -> Carried<'r> {
    let text = claims.and_then(|claims| claims.text(name));
    Carried::from_copies(text.into_iter().map(|text| match text {
        Cow::Borrowed(text) => Value::Sent(text.as_bytes()),
        Cow::Owned(text) => Value::Made(text.as_bytes().into()),
    }))
}

/// `HEAD` counts as `GET`: it makes an upstream do the same work and shows the same resource.
pub(super) fn method(method: &Method) -> Value<'_> {
    let name = method.as_str().as_bytes();
    if name.eq_ignore_ascii_case(b"HEAD") {
        return Value::Sent(b"GET");
    }
    // There are upstreams to which `get` is `GET`.
    if name.iter().any(u8::is_ascii_lowercase) {
        return Value::Made(name.to_ascii_uppercase().into());
    }
    Value::Sent(name)
}

/// A header's lines, spaces around them aside. A line is one value, commas or not.
fn header<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Carried<'r> {
    let lines = headers.get_all(name).iter();
    Carried::from_copies(lines.map(|line| Value::Sent(line.as_bytes().trim_ascii())))
}

/// The same where API keys are carried: there a comma separates as a new line does, since
/// programs on the way join lines with one (RFC 9110, section 5.3). No key has a comma in it.
fn listed<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Carried<'r> {
    match header(headers, name) {
        Carried::Nothing => return Carried::Nothing,
        Carried::One(key) if !key.as_bytes().contains(&b',') => return Carried::One(key),
        _ => {}
    }
    let lines = headers.get_all(name).iter();
    let keys = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    Carried::from_copies(keys.map(|key| Value::Sent(key.trim_ascii())))
}

/// The credentials of `Authorization: Bearer`; another scheme carries none. A token has no comma
/// in it (RFC 6750, section 2.1): what looks like a list has several values.
pub(super) fn bearer(headers: &HeaderMap) -> Carried<'_> {
    let lines = headers.get_all(header::AUTHORIZATION).iter();
    let tokens = lines.filter_map(|line| {
        let line = line.as_bytes().trim_ascii();
        let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
        let (scheme, token) = line.split_at(end);
        scheme
            .eq_ignore_ascii_case(b"bearer")
            .then(|| Value::Sent(token.trim_ascii()))
    });
    match Carried::from_copies(tokens) {
        Carried::One(token) if token.as_bytes().contains(&b',') => Carried::Several,
        carried => carried,
    }
}

/// The values of a query parameter: `&` separates, names are compared decoded.
///
/// Some upstreams split at `;` as well. Where that would find another value, the request carries
/// several: a client could otherwise show each side a value of its own.
fn query<'r>(query: Option<&'r str>, name: &str) -> Carried<'r> {
    let query = query.unwrap_or_default().as_bytes();
    let pairs = query.split(|byte| *byte == b'&');
    let found = Carried::from_copies(pairs.filter_map(|pair| named_value(pair, name)));
    if !query.contains(&b';') {
        return found;
    }
    let pairs = query.split(|byte| matches!(byte, b'&' | b';'));
    match Carried::from_copies(pairs.filter_map(|pair| named_value(pair, name))) {
        other if other == found => found,
        _ => Carried::Several,
    }
}

/// The values of a cookie over all `Cookie` lines (RFC 6265, section 5.4), quotes around them
/// aside.
fn cookie<'r>(headers: &'r HeaderMap, name: &str) -> Carried<'r> {
    let lines = headers.get_all(header::COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    Carried::from_copies(pairs.filter_map(|pair| named_value(pair.trim_ascii(), name)))
}

/// The value of `name=value`, if it has this name.
pub(super) fn named_value<'r>(pair: &'r [u8], wanted: &str) -> Option<Value<'r>> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
    if !decoded(name).eq(wanted.bytes().map(fold)) {
        return None;
    }
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""));
    let value = inner.unwrap_or(value);
    let is_plain = value.iter().all(|byte| !matches!(byte, b'%' | b' '));
    Some(if is_plain {
        Value::Sent(value)
    } else {
        Value::Made(decoded(value).collect())
    })
}

/// The bytes that a percent-encoded text stands for; a `%` that begins no escape is itself.
fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut left = text;
    std::iter::from_fn(move || {
        let (first, rest) = left.split_first()?;
        left = rest;
        if let (b'%', [high, low, rest @ ..]) = (first, rest)
            && let (Some(high), Some(low)) = (digit(high), digit(low))
        {
            left = rest;
            return u8::try_from(high * 16 + low).ok().map(fold);
        }
        Some(fold(*first))
    })
}

/// A space and a plus are one, however they were written: upstreams disagree on which of the two a
/// `+` is, and a value must not have two identities.
fn fold(byte: u8) -> u8 {
    if byte == b' ' { b'+' } else { byte }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn text(carried: Carried<'_>) -> Option<String> {
        match carried {
            Carried::Nothing => None,
            Carried::One(value) => Some(String::from_utf8(value.as_bytes().to_vec()).unwrap()),
            Carried::Several => Some("several".to_owned()),
            Carried::Unknown => Some("unknown".to_owned()),
        }
    }

    fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        headers
    }

    fn in_query(given: &str, name: &str) -> Option<String> {
        text(query(Some(given), name))
    }

    #[test]
    fn query_parameters_are_decoded_in_name_and_value() {
        assert_eq!(in_query("a=1&k=v", "k").as_deref(), Some("v"));
        assert_eq!(
            in_query("%61pi%5Fkey=%76%3d", "api_key").as_deref(),
            Some("v=")
        );
        assert_eq!(in_query("k=a+b", "k"), in_query("k=a%20b", "k"));
        assert_eq!(in_query("k=a%2bb", "k"), in_query("k=a+b", "k"));
        assert_eq!(in_query("k=%zz%4", "k").as_deref(), Some("%zz%4"));
        assert_eq!(in_query("K=v&kk=v&k", "k"), None);
        assert_eq!(in_query("k=&k", "k"), None);
        assert_eq!(in_query("k=a=b", "k").as_deref(), Some("a=b"));
        assert_eq!(text(query(None, "k")), None);
    }

    #[test]
    fn a_second_copy_cannot_hide_the_first() {
        assert_eq!(in_query("k=a&k=b", "k").as_deref(), Some("several"));
        assert_eq!(in_query("k=a&%6b=b", "k").as_deref(), Some("several"));
        assert_eq!(in_query("k=a&%6b=%61&k=", "k").as_deref(), Some("a"));
    }

    #[test]
    fn a_semicolon_cannot_hide_a_value_from_either_reading() {
        for (given, expected) in [
            // Splitting at `;` finds a value that splitting at `&` does not.
            ("a=1;k=v", Some("several")),
            ("k=v;x", Some("several")),
            ("k=v;k=w", Some("several")),
            ("k=v&a=1;k=w", Some("several")),
            ("k=;v", Some("several")),
            ("k;=v", None),
            ("a;k=v&k=v", Some("v")),
            ("k=v;", Some("several")),
            // Both find the same.
            ("a=1;b=2&k=v", Some("v")),
            ("a=1;b=2", None),
            ("a;k", None),
            // An escaped one is a part of the value to both.
            ("k=v%3Bx", Some("v;x")),
            ("a=1%3Bk=v", None),
        ] {
            assert_eq!(in_query(given, "k").as_deref(), expected, "{given}");
        }
    }

    #[test]
    fn header_values_keep_their_case_and_lose_their_spaces() {
        let name = HeaderName::from_static("x-user");
        let value = |lines: &[&str]| text(header(&headers("x-user", lines), &name));
        assert_eq!(value(&[" Ab \t"]).as_deref(), Some("Ab"));
        assert_eq!(value(&["a, b"]).as_deref(), Some("a, b"));
        assert_eq!(value(&["a", "b"]).as_deref(), Some("several"));
        assert_eq!(value(&["a", "", " a"]).as_deref(), Some("a"));
        assert_eq!(value(&["", " "]), None);
    }

    #[test]
    fn a_list_of_api_keys_is_several_keys() {
        let name = HeaderName::from_static("x-api-key");
        let value = |lines: &[&str]| text(listed(&headers("x-api-key", lines), &name));
        assert_eq!(value(&["a,b"]).as_deref(), Some("several"));
        assert_eq!(value(&["a", "b"]).as_deref(), Some("several"));
        assert_eq!(value(&["a , a,", "a"]).as_deref(), Some("a"));
        assert_eq!(value(&[" , "]), None);
        let token = |lines: &[&str]| text(bearer(&headers("authorization", lines)));
        assert_eq!(token(&["Bearer a, Bearer b"]).as_deref(), Some("several"));
    }

    #[test]
    fn bearer_is_read_whatever_its_case_and_spaces() {
        let value = |lines: &[&str]| text(bearer(&headers("authorization", lines)));
        for line in ["Bearer t", "bearer   t", " BEARER\tt "] {
            assert_eq!(value(&[line]).as_deref(), Some("t"), "{line}");
        }
        for line in ["Basic dDp0", "Bearer", "Bearer ", "Bearert", ""] {
            assert_eq!(value(&[line]), None, "{line}");
        }
        assert_eq!(value(&["Basic dDp0", "Bearer t"]).as_deref(), Some("t"));
        assert_eq!(value(&["Bearer u", "Bearer t"]).as_deref(), Some("several"));
    }

    #[test]
    fn cookies_are_read_over_all_lines() {
        let value = |lines: &[&str]| text(cookie(&headers("cookie", lines), "s"));
        assert_eq!(value(&["a=b; s=v; c=d"]).as_deref(), Some("v"));
        assert_eq!(value(&["a=b", "c=d;s = v "]).as_deref(), Some("v"));
        assert_eq!(value(&["s=\"v\""]).as_deref(), Some("v"));
        assert_eq!(value(&["s=%76"]).as_deref(), Some("v"));
        assert_eq!(value(&["s=a", "s=b"]).as_deref(), Some("several"));
        assert_eq!(value(&["S=v; ss=v; s", "s="]), None);
    }

    #[test]
    fn methods_have_one_spelling() {
        assert_eq!(
            method(&"get".parse().unwrap()),
            Value::Made(SmallVec::from_slice(b"GET"))
        );
        assert_eq!(method(&Method::GET), Value::Sent(b"GET"));
        assert_eq!(method(&Method::HEAD), Value::Sent(b"GET"));
        assert_eq!(method(&"hEad".parse().unwrap()), Value::Sent(b"GET"));
        assert_eq!(method(&Method::POST), Value::Sent(b"POST"));
    }

    #[test]
    fn only_what_has_to_be_decoded_is_copied() {
        assert!(matches!(
            query(Some("k=a+b-c"), "k"),
            Carried::One(Value::Sent(_))
        ));
        assert!(matches!(
            query(Some("k=a%20b"), "k"),
            Carried::One(Value::Made(_))
        ));
    }

    proptest! {
        #[test]
        fn every_spelling_of_a_query_value_is_one_value(
            value in "[a-z0-9+ ]{1,12}",
            escapes in prop::collection::vec(0_u8..3, 12),
        ) {
            let mut spelled = String::from("k=");
            for (byte, escape) in value.bytes().zip(escapes) {
                match (byte, escape) {
                    (byte, 0) => spelled.push_str(&format!("%{byte:02x}")),
                    (byte, 1) => spelled.push_str(&format!("%{byte:02X}")),
                    (b' ', _) => spelled.push('+'),
                    (byte, _) => spelled.push(char::from(byte)),
                }
            }
            let expected = value.replace(' ', "+");
            prop_assert_eq!(in_query(&spelled, "k"), Some(expected));
        }
    }
}
