//! `[[bypass]]`: requests that are never charged.

use std::net::IpAddr;

use http::HeaderName;
use ipnet::IpNet;

use super::diagnostic::{Code, Diagnostic};
use super::reader::values;
use super::route::path_pattern;
use super::section::Section;
use super::values::{TextForm, header_name};
use super::{Secret, address};
use crate::limit::key::{Facts, same_secret};
use crate::path::Case;
use crate::route::PathPattern;

/// A rule for requests that are forwarded without a charge. It has at least one condition, and all
/// its conditions must hold.
#[derive(Clone, Debug)]
pub struct Bypass {
    /// Client addresses.
    pub ip: Vec<IpNet>,
    /// A path pattern as in a route.
    pub path: Option<PathPattern>,
    /// The same for requests of routes that ignore letter case.
    pub folded_path: Option<PathPattern>,
    /// A header with exactly this value (compared in constant time).
    pub header: Option<(HeaderName, Secret<Vec<u8>>)>,
    /// An API key with exactly this value (compared in constant time).
    pub key: Option<Secret<Vec<u8>>>,
}

impl Bypass {
    /// Whether every condition holds for a request. `client` is its full address, and `case` is
    /// that of its route.
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
        let path = || {
            let pattern = match case {
                Case::Sensitive => &self.path,
                Case::Insensitive => &self.folded_path,
            };
            let pattern = pattern.as_ref();
            pattern.is_none_or(|pattern| pattern.matches(facts.path))
        };
        let ip = self.ip.is_empty() || self.ip.iter().any(|net| net.contains(&client));
        ip && path() && header() && key()
    }
}

/// Reads `[[bypass]]`. Returns `None` if no condition could be read.
pub(super) fn read(mut section: Section<'_>) -> Option<Bypass> {
    let texts = section.counted_texts("ip", 1..=usize::MAX, "one or more; leave `ip` out for any");
    let ip = section.parse_all("ip", texts, TextForm::NETWORK, address::network);
    let path = section.text("path");
    let path = path.and_then(|text| path_pattern(&section, text));
    let name = section.parse("header", TextForm::HEADER_NAME, header_name);
    let value = section.secret(Some("value"), "value_file");
    let key = section.secret(Some("key"), "key_file");
    if section.has("value") || section.has("value_file") {
        section.require("header", "header = \"x-bypass\"");
    } else if section.has("header") {
        section.missing("value_file", "value_file = \"/run/secrets/bypass\"");
    }
    let conditions = ["ip", "path", "header", "key", "key_file"];
    if !conditions.iter().any(|key| section.has(key)) {
        section.missing("ip", "ip = \"10.0.0.0/8\"");
    }
    let secrets = [&value, &key].into_iter().flatten();
    for _ in secrets.filter(|secret| secret.value.is_empty()) {
        Diagnostic::new(Code::Contradiction, "an empty secret lets everybody pass")
            .at(&section.span, "")
            .report_to(section.reader);
    }
    section.finish();
    let path = path.map(|path| path.value);
    let header = name.zip(value);
    let bypass = Bypass {
        ip: values(ip),
        folded_path: path.clone().map(|path| path.in_case(Case::Insensitive)),
        path,
        header: header.map(|(name, value)| (name.value, Secret(value.value))),
        key: key.map(|key| Secret(key.value)),
    };
    let has_condition = !bypass.ip.is_empty()
        || bypass.path.is_some()
        || bypass.header.is_some()
        || bypass.key.is_some();
    has_condition.then_some(bypass)
}
