//! `[[bypass]]`: who is never charged.

use std::fmt;
use std::net::IpAddr;

use http::HeaderName;
use ipnet::IpNet;

use super::diagnostic::{Code, Diagnostic};
use super::route::path_pattern;
use super::section::Section;
use super::values::{TextForm, header_name};
use super::{Hidden, address};
use crate::limit::key::{Facts, same_secret};
use crate::path::{CanonicalPath, Case};
use crate::route::PathPattern;

/// A rule under which a request is forwarded without being charged. Every condition that is given
/// must hold; at least one is given.
#[derive(Clone)]
pub struct Bypass {
    /// Client addresses.
    pub ip: Vec<IpNet>,
    /// A path pattern as in a route.
    pub path: Option<PathPattern>,
    /// The same for requests of routes that ignore letter case.
    pub folded_path: Option<PathPattern>,
    /// A header with exactly this value (compared in constant time).
    pub header: Option<(HeaderName, Vec<u8>)>,
    /// An API key with exactly this value (compared in constant time).
    pub key: Option<Vec<u8>>,
}

impl Bypass {
    /// Whether every condition holds for a request of this client (its address not grouped), whose
    /// route has this case.
    pub fn covers(&self, facts: &Facts<'_>, client: IpAddr, case: Case) -> bool {
        let header = || {
            self.header.as_ref().is_none_or(|(name, secret)| {
                let value = facts.headers.get(name);
                value.is_some_and(|value| same_secret(value.as_bytes(), secret))
            })
        };
        let key = || {
            let secret = self.key.as_ref();
            secret.is_none_or(|secret| facts.carries_api_key(secret))
        };
        self.fits(facts.path, client, case) && header() && key()
    }

    /// Whether the conditions on path and address hold. The path is as a route of `case` sees it.
    pub fn fits(&self, path: &CanonicalPath<'_>, client: IpAddr, case: Case) -> bool {
        let ip = self.ip.is_empty() || self.ip.iter().any(|net| net.contains(&client));
        let pattern = match case {
            Case::Sensitive => &self.path,
            Case::Insensitive => &self.folded_path,
        };
        let pattern = pattern.as_ref().filter(|_| ip);
        ip && pattern.is_none_or(|pattern| pattern.matches(path))
    }
}

impl fmt::Debug for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bypass")
            .field("ip", &self.ip)
            .field("path", &self.path)
            .field(
                "header",
                &self.header.as_ref().map(|(name, _)| (name, Hidden)),
            )
            .field("key", &self.key.as_ref().map(|_| Hidden))
            .finish()
    }
}

/// `[[bypass]]`; nothing if it has no condition that could be read.
pub(super) fn read(mut section: Section<'_>) -> Option<Bypass> {
    let mut ip = Vec::new();
    let texts = section.texts("ip");
    if let Some(texts) = texts.as_ref().filter(|texts| texts.value.is_empty()) {
        section.out_of_range_at("ip", texts, "one or more; leave `ip` out for any");
    }
    for text in texts.map(|texts| texts.value).unwrap_or_default() {
        let kind = TextForm::NETWORK;
        let net = section.understood("ip", text, kind, address::network);
        ip.extend(net.map(|net| net.value));
    }
    let path = section
        .text("path")
        .and_then(|text| path_pattern(&section, text));
    let name = section.parsed("header", TextForm::HEADER_NAME, header_name);
    let value = section.secret(Some("value"), "value_file");
    let key = section.secret(Some("key"), "key_file").map(|key| key.value);
    let has_value = section.peek("value").is_some() || section.peek("value_file").is_some();
    if section.peek("header").is_some() && !has_value {
        section.missing("value_file", "value_file = \"/run/secrets/bypass\"");
    }
    if section.peek("header").is_none() && has_value {
        section.missing("header", "header = \"x-bypass\"");
    }
    let conditions = ["ip", "path", "header", "key", "key_file"];
    if !conditions.iter().any(|key| section.peek(key).is_some()) {
        section.missing("ip", "ip = \"10.0.0.0/8\"");
    }
    for secret in [value.as_ref().map(|value| &value.value), key.as_ref()]
        .into_iter()
        .flatten()
    {
        if secret.is_empty() {
            let message = "an empty secret lets everybody pass";
            let diagnostic = Diagnostic::new(Code::Contradiction, message).at(&section.span, "");
            section.reader.report(diagnostic);
        }
    }
    section.finish();
    let header = name
        .zip(value)
        .map(|(name, value)| (name.value, value.value));
    let path = path.map(|path| path.value);
    let folded = path.clone().map(|path| path.in_case(Case::Insensitive));
    let bypass = Bypass {
        ip,
        path,
        folded_path: folded,
        header,
        key,
    };
    let any = !bypass.ip.is_empty()
        || bypass.path.is_some()
        || bypass.header.is_some()
        || bypass.key.is_some();
    any.then_some(bypass)
}
