//! Reads a request as the proxy does: its client, its tier, and whether it is charged at all.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderMap;

use crate::client::ClientIp;
use crate::config::{Bypass, Config};
use crate::counts::Outside;
use crate::entry::LogEntry;
use crate::limit::key::jwt::JwtRules;
use crate::limit::key::{ApiKeys, Claims, Facts};
use crate::limit::tier::Tiers;
use crate::path::{CanonicalPath, Case};
use crate::route::{Route, RouteMatch, RouteTable, is_preflight};
use crate::route_cache::ParsedRequest;

/// The parts of a configuration that read a request.
#[derive(Debug)]
pub(super) struct RequestReader {
    pub(super) routes: RouteTable,
    pub(super) bypass: Vec<Bypass>,
    pub(super) client_ip: ClientIp,
    pub(super) api_key: ApiKeys,
    jwt: Option<JwtRules>,
    pub(super) tiers: Option<Tiers>,
    /// The host of requests whose log has none.
    pub(super) host: String,
    /// Whether headers choose between routes.
    pub(super) routes_by_headers: bool,
}

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestClient {
    /// Not grouped.
    pub(super) address: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub(super) is_trusted: bool,
}

impl RequestReader {
    pub(super) fn new(config: Config, host: &str) -> RequestReader {
        let routes_by_headers = config.routes.iter().any(|route| !route.headers.is_empty());
        RequestReader {
            routes_by_headers,
            routes: config.routes,
            bypass: config.bypass,
            client_ip: config.client_ip,
            api_key: config.api_key,
            jwt: config.jwt,
            tiers: config.tier,
            host: host.to_owned(),
        }
    }

    /// Finds the client behind trusted proxies. A log without the proxies' header may name the
    /// client itself.
    pub(super) fn client(&self, entry: &LogEntry<'_>, headers: &HeaderMap) -> RequestClient {
        let peer = entry.peer.to_canonical();
        let is_trusted = self.client_ip.trusts(peer);
        let address = match entry.client {
            Some(client) if is_trusted && !headers.contains_key(&self.client_ip.header) => {
                client.to_canonical()
            }
            _ => self.client_ip.find(peer, headers),
        };
        RequestClient {
            address,
            is_trusted,
        }
    }

    /// The facts of a request without its query, claims and tier.
    pub(super) fn facts<'r>(
        &'r self,
        request: &'r ParsedRequest<'_>,
        found: &'r RouteMatch<'_, '_>,
        headers: &'r HeaderMap,
        client: RequestClient,
    ) -> Facts<'r> {
        Facts {
            ip: self.client_ip.group(client.address),
            api_key: &self.api_key,
            standing: None,
            method: &request.method,
            host: &request.host,
            path: request.path.in_case(found.route.case),
            query: None,
            headers,
            route: &found.route.name,
            params: &found.params,
            claims: None,
            tier: None,
            certificate: None,
            extensions: None,
        }
    }

    pub(super) fn claims(&self, facts: &Facts<'_>, now_us: u64) -> Option<Claims> {
        let rules = self.jwt.as_ref()?;
        let verified = facts.with_bearer(|token| rules.verify(token, now_us / 1_000_000));
        verified.map(|verified| verified.claims)
    }

    pub(super) fn tier_of<'r>(
        &'r self,
        facts: &Facts<'r>,
        client: RequestClient,
    ) -> Option<Cow<'r, str>> {
        let tiers = self.tiers.as_ref()?;
        tiers.tier_of(facts, client.is_trusted)
    }

    /// Checks that the proxy would charge the request.
    pub(super) fn check_charged(
        &self,
        facts: &Facts<'_>,
        route: &Route,
        client: RequestClient,
    ) -> Result<(), Outside> {
        if route.limits.is_empty() || is_preflight(facts.method, facts.headers) {
            return Err(Outside::Unlimited);
        }
        let mut rules = self.bypass.iter();
        match rules.any(|rule| rule.covers(facts, client.address, route.case)) {
            true => Err(Outside::Bypassed),
            false => Ok(()),
        }
    }

    /// Whether a bypass rule covers a request without headers and without an API key.
    pub(super) fn bypasses_plain(
        &self,
        path: &CanonicalPath<'_>,
        client: IpAddr,
        case: Case,
    ) -> bool {
        let asks_no_more = |rule: &&Bypass| rule.header.is_none() && rule.key.is_none();
        let mut rules = self.bypass.iter().filter(asks_no_more);
        rules.any(|rule| rule.fits(path.in_case(case), client, case))
    }
}
