//! Finds the route of a request and identifies its client.

use std::net::IpAddr;
use std::sync::Arc;

use super::claims::Tokens;
use super::key_lookup::KeyLookup;
use super::rejection::Rejection;
use crate::client::ClientIp;
use crate::client::networks::AccessList;
use crate::config::Bypass;
use crate::limit::key::{ApiKeySource, ApiKeys, BodyFacts, Derived, Facts, HashSecret, Part};
use crate::limit::tier::Tiers;
use crate::limit::{KeyHash, Missing};
use crate::path::Case;
use crate::request_head::RequestHead;
use crate::route::{Route, RouteMatch, RouteQuery, RouteTable};

#[derive(Debug)]
pub struct Router {
    pub(super) routes: RouteTable,
    /// The route of a question that no other route takes.
    pub(super) unrouted: Option<Box<Route>>,
    pub(super) bypass: Vec<Bypass>,
    pub client_ip: Arc<ClientIp>,
    pub(super) access: AccessList,
    pub(super) api_key: ApiKeys,
    pub keys: KeyLookup,
    pub(super) tokens: Option<Tokens>,
    pub(super) tiers: Option<Tiers>,
    /// What the ledger tells clients apart by, if there is one.
    pub(super) billed_by: Option<Part>,
}

impl Router {
    /// # Errors
    /// There is no route, or upstreams may read the path as different routes.
    pub(super) fn find_route<'t, 'p>(
        &'t self,
        head: &RequestHead<'p>,
    ) -> Result<RouteMatch<'t, 'p>, Rejection> {
        let query = RouteQuery {
            host: head.host,
            path: head.path,
            method: head.method,
            headers: head.headers,
            query: head.query,
            port: head.port,
        };
        self.routes
            .find(&query)
            .ok_or_else(|| match self.routes.is_ambiguous(&query) {
                true => Rejection::AmbiguousPath,
                false => Rejection::NoRoute,
            })
    }

    pub(super) fn unrouted<'t, 'p>(&'t self) -> Result<RouteMatch<'t, 'p>, Rejection> {
        let route = self.unrouted.as_deref().ok_or(Rejection::NoRoute)?;
        Ok(RouteMatch {
            route,
            params: Default::default(),
        })
    }

    /// Calls `then` with the facts that the route's keys need: the claims of the token, the
    /// standing of the API key, and the tier.
    #[inline]
    pub(super) fn identify<R>(
        &self,
        head: &RequestHead<'_>,
        found: &RouteMatch<'_, '_>,
        body: Option<&BodyFacts>,
        then: impl FnOnce(&Facts<'_>) -> R,
    ) -> R {
        let (claims, registered, tier);
        let mut facts = Facts {
            ip: self.client_ip.group(head.client),
            api_key: &self.api_key,
            standing: None,
            registered: None,
            method: head.method,
            host: head.host,
            path: head.path.in_case(found.route.case),
            query: head.query,
            headers: head.headers,
            route: &found.route.name,
            params: &found.params,
            claims: None,
            tier: None,
            certificate: head.certificate,
            extensions: head.extensions,
            body,
        };
        let tiers = self.tiers_for(found.route);
        claims = self
            .tokens_for(found.route, tiers)
            .and_then(|tokens| tokens.claims(&facts));
        facts.claims = claims.as_deref();
        if self.api_key.has_source() && self.asks_api_key(found.route, tiers) {
            registered = self.keys.find(&facts);
            facts.registered = registered.as_ref();
            facts.standing = Some(facts.key_standing());
        }
        tier = tiers.and_then(|tiers| tiers.tier_of(&facts, head.is_trusted));
        facts.tier = tier.as_deref();
        then(&facts)
    }

    /// Refuses a client that the route does not serve.
    pub(super) fn check_client(route: &Route, head: &RequestHead<'_>) -> Result<(), Rejection> {
        if !route.access.admits(head.client) {
            return Err(Rejection::AccessDenied);
        }
        match route.require_client_certificate {
            Some(status) if head.certificate.is_none() => Err(Rejection::NoCertificate(status)),
            _ => Ok(()),
        }
    }

    /// The index of the first bypass rule that covers a request.
    pub fn bypass_of(&self, facts: &Facts<'_>, client: IpAddr, case: Case) -> Option<usize> {
        let mut rules = self.bypass.iter();
        rules.position(|bypass| bypass.covers(facts, client, case))
    }

    /// The value of `WWW-Authenticate`.
    pub(super) fn challenge(&self) -> &'static str {
        match self.api_key.from.0.contains(&ApiKeySource::Bearer) {
            true => "Bearer error=\"invalid_token\"",
            false => "ApiKey",
        }
    }

    /// The tiers, if the route needs one.
    pub(super) fn tiers_for(&self, route: &Route) -> Option<&Tiers> {
        let tiers = self.tiers.as_ref()?;
        let needed = route.limits.iter().any(|limit| limit.asks_tier())
            || route.is_balanced_by(|part| matches!(part, Part::Tier));
        needed.then_some(tiers)
    }

    /// Whether something of a request of this route depends on its API key.
    pub(super) fn counts_by_key(&self, route: &Route) -> bool {
        self.asks_api_key(route, self.tiers_for(route))
    }

    /// Whether something of the route or the tier depends on the API key.
    fn asks_api_key(&self, route: &Route, tiers: Option<&Tiers>) -> bool {
        tiers.is_some_and(|tiers| tiers.by_key)
            || (self.billed_by == Some(Part::ApiKey) && !route.limits.is_empty())
            || route.limits.iter().any(|limit| limit.asks_api_key())
            || route.is_balanced_by(|part| matches!(part, Part::ApiKey))
    }

    /// The tokens, if the route or its tier needs claims.
    pub(super) fn tokens_for(&self, route: &Route, tiers: Option<&Tiers>) -> Option<&Tokens> {
        let tokens = self.tokens.as_ref()?;
        let for_tier = tiers.is_some_and(Tiers::asks_claims);
        let bills_claims = matches!(self.billed_by, Some(Part::Jwt(_)));
        let needed = for_tier
            || (bills_claims && !route.limits.is_empty())
            || (self.api_key.tokens && self.asks_api_key(route, tiers))
            || route.limits.iter().any(|limit| limit.asks_claims())
            || route.is_balanced_by(|part| matches!(part, Part::Jwt(_)));
        needed.then_some(tokens)
    }
}

/// The number that chooses the server of a request. All processes compute the same number.
pub(super) fn affinity(route: &Route, facts: &Facts<'_>) -> Option<u64> {
    const NUMBERING: HashSecret = HashSecret::from_bytes(*b"tidegate 1: which server is it?!");
    let key = route.affinity.as_ref()?;
    // An invented key does no harm here, so unknown keys are trusted.
    let facts = &facts.trusting_keys();
    match key.derive(facts, Missing::Skip, &NUMBERING) {
        Derived::Hash(KeyHash(tag)) => Some(u128::from_le_bytes(tag) as u64),
        Derived::Skip | Derived::Denied | Derived::Ambiguous | Derived::Unknown => None,
    }
}
