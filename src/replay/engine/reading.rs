//! How a request is read: whose it is, which route it has, and what is known of it.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, Method};

use super::super::entry::Entry;
use super::super::outside::Outside;
use super::super::ways::{Parsed, Sent};
use crate::client::ClientIp;
use crate::config::Bypass;
use crate::limit::key::jwt::JwtRules;
use crate::limit::key::{ApiKeys, Claims, Facts};
use crate::limit::tier::Tiers;
use crate::path::{CanonicalPath, Case};
use crate::route::{RouteMatch, RouteTable, host_of, is_preflight};

/// The parts of a configuration that read a request.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) routes: RouteTable,
    pub(super) bypass: Vec<Bypass>,
    pub(super) client_ip: ClientIp,
    pub(super) api_key: ApiKeys,
    pub(super) jwt: Option<JwtRules>,
    pub(super) tiers: Option<Tiers>,
    /// The host of requests whose log has none.
    pub(super) host: String,
    /// Whether some route asks for headers.
    pub(super) by_headers: bool,
}

impl Reading {
    /// The client's address, and whether its peer may say whom it speaks for. Where the log has no
    /// word of such a peer, whom its writer took for the client is believed.
    fn client(&self, entry: &Entry<'_>, headers: &HeaderMap) -> (IpAddr, bool) {
        let peer = entry.peer.to_canonical();
        let trusted = self.client_ip.trusts(peer);
        let client = match entry.client {
            Some(client) if trusted && !headers.contains_key(&self.client_ip.header) => {
                client.to_canonical()
            }
            _ => self.client_ip.find(peer, headers),
        };
        (client, trusted)
    }

    /// Whether a request without headers and without an API key is never charged.
    pub(super) fn spares(&self, path: &CanonicalPath<'_>, client: IpAddr, case: Case) -> bool {
        let asks_no_more = |rule: &&Bypass| rule.header.is_none() && rule.key.is_none();
        let mut rules = self.bypass.iter().filter(asks_no_more);
        rules.any(|rule| rule.fits(path.in_case(case), client, case))
    }

    /// Whether letter case tells the paths of a route apart.
    pub(super) fn case_of(&self, route: usize) -> Case {
        let route = self.routes.iter().nth(route);
        route.map_or(Case::Sensitive, |route| route.case)
    }

    /// What is known of a request but for its client.
    pub(super) fn facts<'r>(
        &'r self,
        parsed: &'r Parsed<'_>,
        found: &'r RouteMatch<'_, '_>,
        (query, headers): (Option<&'r str>, &'r HeaderMap),
    ) -> Facts<'r> {
        Facts {
            ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            api_key: &self.api_key,
            standing: None,
            method: &parsed.method,
            host: &parsed.host,
            path: parsed.path.in_case(found.route.case),
            query,
            headers,
            route: &found.route.name,
            params: &found.params,
            claims: None,
            tier: None,
            certificate: None,
        }
    }

    /// What `Limiter::ask` does: whoever asks limits is counted by `count`, with its address and
    /// what it weighs.
    pub(super) fn ask(
        &self,
        entry: &Entry<'_>,
        found: &RouteMatch<'_, '_>,
        (mut facts, now_us): (Facts<'_>, u64),
        count: impl FnOnce(&Facts<'_>, (IpAddr, u64)) -> Result<(), Outside>,
    ) -> Result<(), Outside> {
        let (client, trusted) = self.client(entry, facts.headers);
        facts.ip = self.client_ip.group(client);
        let claims = self.claims(&facts, now_us);
        let facts = Facts {
            claims: claims.as_ref(),
            ..facts
        };
        let facts = Facts {
            standing: Some(facts.key_standing()),
            ..facts
        };
        let tiers = self.tiers.as_ref();
        let tier = tiers.and_then(|tiers| tiers.tier_of(&facts, trusted));
        let facts = Facts {
            tier: tier.as_deref(),
            ..facts
        };
        if found.route.limits.is_empty() || is_preflight(facts.method, facts.headers) {
            return Err(Outside::Unlimited);
        }
        if self
            .bypass
            .iter()
            .any(|bypass| bypass.covers(&facts, client, found.route.case))
        {
            return Err(Outside::Bypassed);
        }
        let cost = found.route.cost.units(facts.headers, trusted);
        count(&facts, (client, cost))
    }

    fn claims(&self, facts: &Facts<'_>, now_us: u64) -> Option<Claims> {
        let rules = self.jwt.as_ref()?;
        let verified = facts.with_bearer(|token| rules.verify(token, now_us / 1_000_000));
        verified.map(|verified| verified.claims)
    }
}

/// What a target is read as, or that it is refused.
pub(super) fn parse<'l>(sent: &Sent<'l>, routes: &RouteTable) -> Result<Parsed<'l>, Outside> {
    let method = Method::from_bytes(sent.method.as_bytes());
    let method = method.map_err(|_| Outside::Refused)?;
    if matches!(method, Method::CONNECT | Method::TRACE) {
        return Err(Outside::Refused);
    }
    let host = match sent.host {
        "" => "".into(),
        host => host_of(host).map_err(|_| Outside::Refused)?,
    };
    let path = routes.read_path(sent.path).map_err(|_| Outside::Refused)?;
    Ok(Parsed { method, host, path })
}
