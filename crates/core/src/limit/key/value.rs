//! The values that a request carries for one part of a key, in one spelling per value.
//!
//! One rule for all carriers: equal copies are one value, and different copies are refused.
//! Upstreams disagree on which copy counts, so a client could hide its real key behind fresh ones.
//! An empty value counts as none. Case is kept.
//!
//! Nothing is copied unless a value has to be decoded.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use smallvec::SmallVec;

use super::{ApiKeySource, BodyFacts, Claims, Facts, Key, Part, same_secret};
use crate::certificate::AltName;
use crate::request_head::lines_of;
use crate::usage::request::{BodyMember, BodyValue};

/// One value: a slice of the request, or decoded from it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartValue<'r> {
    Sent(&'r [u8]),
    Made(SmallVec<[u8; 64]>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Carried<'r> {
    Nothing,
    One(PartValue<'r>),
    Several,
    /// An unknown API key, where the configuration refuses those.
    Unknown,
}

impl PartValue<'_> {
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

/// Calls `read` with the bearer token of these headers. `None` if there is no token, or several
/// differ.
pub fn with_bearer<T>(headers: &HeaderMap, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    match bearer(headers) {
        Carried::One(token) => read(token.as_bytes()),
        Carried::Nothing | Carried::Several | Carried::Unknown => None,
    }
}

impl Facts<'_> {
    /// Calls `read` with the request's bearer token. `None` if it carries no token, or several that
    /// differ.
    pub fn with_bearer<T>(&self, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        with_bearer(self.headers, read)
    }

    /// Whether `test` holds for an API key that the request carries, known or not. For keys that
    /// the configuration itself names, which makes them known.
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
    /// Whether `test` holds for a part of this key and the value that it has in a request.
    pub(in crate::limit) fn any_part(
        &self,
        facts: &Facts<'_>,
        test: impl Fn(&Part, &[u8]) -> bool,
    ) -> bool {
        self.parts.iter().any(|part| {
            let taken = part.take(facts);
            match (taken.part, taken.carried) {
                (Some(part), Carried::One(value)) => test(part, value.as_bytes()),
                _ => false,
            }
        })
    }

    /// Whether it may need the body of a request.
    pub fn asks_body(&self) -> bool {
        self.all().any(|part| matches!(part, Part::Body(_)))
    }

    pub fn asks_api_key(&self) -> bool {
        self.all().any(|part| *part == Part::ApiKey)
    }
}

impl Part {
    /// The value as text; `None` if the request carries several different values. A header counts
    /// under its own name alone. A trusted proxy that sets it may pass the client's other spellings
    /// on.
    pub fn text<'r>(&self, facts: &Facts<'r>) -> Option<Cow<'r, str>> {
        let carried = match self {
            Self::Header(name) => trimmed(facts.headers.get_all(name).iter()),
            _ => self.find(facts),
        };
        match carried {
            Carried::One(PartValue::Sent(bytes)) => {
                std::str::from_utf8(bytes).ok().map(Cow::Borrowed)
            }
            Carried::One(PartValue::Made(bytes)) => {
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
                PartValue::Sent(value.as_bytes())
            }
            Self::Ip => PartValue::ip(facts.ip),
            Self::Path => PartValue::Sent(facts.path.as_str().as_bytes()),
            Self::Method => method(facts.method),
            Self::Host => PartValue::Sent(facts.host.as_bytes()),
            Self::Route => PartValue::Sent(facts.route.as_bytes()),
            Self::Global => PartValue::Sent(b""),
            Self::Tier => match facts.tier {
                Some(name) => PartValue::Sent(name.as_bytes()),
                None => return Carried::Nothing,
            },
            Self::Jwt(claim) => return claimed(facts.claims, claim),
            Self::Tls(credential) => return credential.find(facts),
            Self::Custom(key) => return key.find(facts),
            Self::Entry(_) => return Carried::Nothing,
            Self::Body(member) => return body_member(facts.body, member),
        };
        Carried::One(value)
    }
}

impl<'r> Carried<'r> {
    /// Joins equal copies to one value.
    fn from_copies(copies: impl Iterator<Item = PartValue<'r>>) -> Self {
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
    pub(super) fn find<'r>(&self, facts: &Facts<'r>) -> Carried<'r> {
        self.find_in(facts.headers, facts.query)
    }

    pub(super) fn find_in<'r>(
        &self,
        headers: &'r HeaderMap,
        query_text: Option<&'r str>,
    ) -> Carried<'r> {
        match self {
            ApiKeySource::Header(name) if *name == header::AUTHORIZATION => header(headers, name),
            ApiKeySource::Header(name) => listed(headers, name),
            ApiKeySource::Bearer => bearer(headers),
            ApiKeySource::Query(name) => query(query_text, name),
            ApiKeySource::Cookie(name) => cookie(headers, name),
        }
    }
}

/// A field of a client's certificate that can be a key. An authority that the configuration names
/// has signed it, so the client cannot choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Credential {
    Subject,
    /// The first subject alternative name.
    San,
    /// SHA-256 of the certificate. It changes with each renewal.
    Fingerprint,
}

impl Credential {
    const ALL: [Credential; 3] = [
        Credential::Subject,
        Credential::San,
        Credential::Fingerprint,
    ];

    /// The word in a key's text. It is part of identities: never change it.
    pub fn word(self) -> &'static str {
        match self {
            Credential::Subject => "subject",
            Credential::San => "san",
            Credential::Fingerprint => "fingerprint",
        }
    }

    pub fn parse(word: &str) -> Option<Credential> {
        Credential::ALL.into_iter().find(|one| one.word() == word)
    }

    /// The field of the request's certificate. An empty text counts as none.
    fn find<'r>(self, facts: &Facts<'r>) -> Carried<'r> {
        let Some(certificate) = facts.certificate else {
            return Carried::Nothing;
        };
        let text = match self {
            Credential::Subject => certificate.subject.as_str(),
            Credential::Fingerprint => certificate.fingerprint.as_str(),
            Credential::San => match certificate.names.first() {
                Some(AltName::Dns(text) | AltName::Uri(text) | AltName::Email(text)) => text,
                Some(AltName::Ip(ip)) => {
                    return Carried::One(PartValue::Made(ip.to_string().as_bytes().into()));
                }
                None => "",
            },
        };
        match text {
            "" => Carried::Nothing,
            text => Carried::One(PartValue::Sent(text.as_bytes())),
        }
    }
}

/// A claim of the verified token. An empty text counts as none.
fn claimed<'r>(claims: Option<&'r Claims>, name: &str) -> Carried<'r> {
    let text = claims.and_then(|claims| claims.text(name));
    Carried::from_copies(text.into_iter().map(|text| match text {
        Cow::Borrowed(text) => PartValue::Sent(text.as_bytes()),
        Cow::Owned(text) => PartValue::Made(text.as_bytes().into()),
    }))
}

/// A member of the body. An empty text counts as none.
fn body_member<'r>(body: Option<&'r BodyFacts>, member: &BodyMember) -> Carried<'r> {
    match body.map(|body| body.value(member)) {
        Some(BodyValue::One(text)) if !text.is_empty() => {
            Carried::One(PartValue::Sent(text.as_bytes()))
        }
        Some(BodyValue::Ambiguous) => Carried::Several,
        Some(BodyValue::One(_) | BodyValue::Missing) | None => Carried::Nothing,
    }
}

/// `HEAD` counts as `GET`: it makes an upstream do the same work and shows the same resource.
pub(super) fn method(method: &Method) -> PartValue<'_> {
    let name = method.as_str().as_bytes();
    if name.eq_ignore_ascii_case(b"HEAD") {
        return PartValue::Sent(b"GET");
    }
    // There are upstreams to which `get` is `GET`.
    if name.iter().any(u8::is_ascii_lowercase) {
        return PartValue::Made(name.to_ascii_uppercase().into());
    }
    PartValue::Sent(name)
}

/// The trimmed lines of a header. A line is one value, even with commas.
fn header<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Carried<'r> {
    trimmed(lines_of(headers, name))
}

fn trimmed<'r>(lines: impl Iterator<Item = &'r HeaderValue>) -> Carried<'r> {
    Carried::from_copies(lines.map(|line| PartValue::Sent(line.as_bytes().trim_ascii())))
}

/// The lines of a header that carries API keys. A comma separates like a new line, since proxies
/// join lines with commas (RFC 9110, section 5.3). No API key contains a comma.
fn listed<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Carried<'r> {
    match header(headers, name) {
        Carried::Nothing => return Carried::Nothing,
        Carried::One(key) if !key.as_bytes().contains(&b',') => return Carried::One(key),
        _ => {}
    }
    let keys = lines_of(headers, name).flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    Carried::from_copies(keys.map(|key| PartValue::Sent(key.trim_ascii())))
}

/// The credentials of `Authorization: Bearer`. Tokens contain no comma (RFC 6750, section 2.1), so
/// a comma means several values.
pub(super) fn bearer(headers: &HeaderMap) -> Carried<'_> {
    let lines = headers.get_all(header::AUTHORIZATION).iter();
    let tokens = lines.filter_map(|line| {
        let line = line.as_bytes().trim_ascii();
        let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
        let (scheme, token) = line.split_at(end);
        scheme
            .eq_ignore_ascii_case(b"bearer")
            .then(|| PartValue::Sent(token.trim_ascii()))
    });
    match Carried::from_copies(tokens) {
        Carried::One(token) if token.as_bytes().contains(&b',') => Carried::Several,
        carried => carried,
    }
}

/// The values of a query parameter: `&` separates, names are compared decoded.
///
/// Some upstreams also split at `;`. If that finds another value, the request counts as carrying
/// several. Otherwise a client could show the proxy one value and the upstream another.
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

/// Whether some value of a query parameter passes a test. A name without `=` has an empty value.
///
/// Values are decoded, and a space in them is `+`. Values behind `;` count too, because some
/// upstreams split there.
pub fn any_query_value(query: &str, name: &str, passes: impl Fn(&[u8]) -> bool) -> bool {
    let has = |pair: &[u8]| match pair.contains(&b'=') {
        true => named_value(pair, name).is_some_and(|value| passes(value.as_bytes())),
        false => decoded(pair.trim_ascii()).eq(name.bytes().map(fold)) && passes(b""),
    };
    let query = query.as_bytes();
    let mut pairs = query.split(|byte| *byte == b'&');
    pairs.any(has)
        || query.contains(&b';') && {
            let mut pairs = query.split(|byte| matches!(byte, b'&' | b';'));
            pairs.any(has)
        }
}

/// The values of a cookie, without quotes, over all `Cookie` lines (RFC 6265, section 5.4).
fn cookie<'r>(headers: &'r HeaderMap, name: &str) -> Carried<'r> {
    let lines = headers.get_all(header::COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    Carried::from_copies(pairs.filter_map(|pair| named_value(pair.trim_ascii(), name)))
}

pub(super) fn named_value<'r>(pair: &'r [u8], wanted: &str) -> Option<PartValue<'r>> {
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
        PartValue::Sent(value)
    } else {
        PartValue::Made(decoded(value).collect())
    })
}

/// Decodes percent escapes. A `%` that begins no escape stands for itself.
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

/// Maps a space to a plus. Upstreams disagree on which of the two a `+` is, and a value must not
/// have two identities.
fn fold(byte: u8) -> u8 {
    if byte == b' ' { b'+' } else { byte }
}

#[cfg(test)]
mod credential_tests;
#[cfg(test)]
mod tests;
