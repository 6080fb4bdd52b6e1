//! `[[bypass]]`: who is never charged.

use std::net::IpAddr;

use http::HeaderName;
use ipnet::IpNet;

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
