//! The engine: each request of a log passes the stages of the proxy up to the decision, with the
//! log's clock.
//!
//! Route, canonical path, client address, keys, tiers, exemptions and counts are the proxy's own
//! code. Keys that the log lacks are treated as the limit's `missing` says, and reported.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;

use super::bans::RecordName;
use super::calls::LoggedCall;
use super::counts::{
    ChargedWindow, LoggedOutcome, Outside, ReplayCounts, RequestCost, WindowCharges,
};
use super::entry::{Dated, LogEntry, TargetParts};
use super::plan::ReplayPlan;
use super::sequence::StartOrder;
use super::tokens::LoggedTokens;
use crate::config::{Config, Listen};
use crate::limit::key::jwt::JwtRules;
use crate::limit::key::{BodyFacts, Derived, Facts, KeyStanding};
use crate::limit::{Algorithm, Limit, Window};
use crate::route::{Route, RouteQuery, host_of};
use crate::usage::request::{BodyMember, BodyMembers, BodyValue};

#[derive(Debug)]
pub struct Engine {
    pub config: Config,
    pub plan: ReplayPlan,
    pub counts: ReplayCounts,
    /// The host of requests whose log has none.
    host: String,
    /// The ports that the proxy listens on. Empty if no route asks for a port.
    ports: Vec<u16>,
    /// The headers of the last request: the next one uses their memory.
    headers: HeaderMap,
    /// `None` while requests have the order of their lines: no limit counts tokens, and no line has
    /// the time of a beginning.
    order: Option<StartOrder>,
}

/// One request on its way to the decision.
struct Charging<'e> {
    config: &'e Config,
    plan: &'e mut ReplayPlan,
    counts: &'e mut ReplayCounts,
    entry: &'e LogEntry<'e>,
    ports: &'e [u16],
}

/// The charges of one request.
#[derive(Default)]
struct LimitCharges {
    enforced: WindowCharges,
    /// Those of limits in shadow mode and of candidates, each decided by itself.
    trials: SmallVec<[WindowCharges; 1]>,
}

#[derive(Clone, Copy, Debug)]
struct RequestClient {
    /// Not grouped.
    address: IpAddr,
    /// Whether the peer is a trusted proxy.
    is_trusted: bool,
}

impl Engine {
    /// Replays through `config`. `host` is the host of requests whose log does not say it.
    pub fn new(config: Config, host: &str, max_keys: usize) -> Engine {
        let plan = ReplayPlan::new(&config);
        let counts_usage = config.routes.iter().any(counts_usage);
        let order = counts_usage.then(StartOrder::default);
        let of_tls = config.tls.iter().flat_map(|tls| &tls.listen);
        let listens = config.listen.iter().chain(of_tls);
        let asks_port = config.routes.iter().any(|route| route.port.is_some());
        Engine {
            ports: listens
                .filter_map(Listen::port)
                .filter(|_| asks_port)
                .collect(),
            order,
            counts: ReplayCounts::new(&plan, max_keys),
            plan,
            config,
            host: host.to_owned(),
            headers: HeaderMap::new(),
        }
    }

    /// Takes the next line of the log. Call [`Engine::finish`] behind the last one.
    pub fn take(&mut self, entry: &LogEntry<'_>) {
        // Such a line is written when the answer ends, and workers write theirs in batches.
        if entry.dates == Dated::Start {
            self.order.get_or_insert_default();
        }
        let Some(order) = &mut self.order else {
            return self.replay(entry, entry.at_us);
        };
        order.push(entry);
        while let Some(next) = self.order.as_mut().and_then(StartOrder::pop) {
            self.replay(&next, next.start_us());
        }
    }

    /// Replays what is left, and ends what is under way.
    pub fn finish(&mut self) {
        while let Some(next) = self.order.as_mut().and_then(StartOrder::pop_last) {
            self.replay(&next, next.start_us());
        }
        self.counts.finish();
    }

    fn replay(&mut self, entry: &LogEntry<'_>, at_us: u64) {
        let now_us = self.counts.begin_request(at_us);
        read_headers(entry, &mut self.headers);
        let mut charging = Charging {
            config: &self.config,
            plan: &mut self.plan,
            counts: &mut self.counts,
            entry,
            ports: &self.ports,
        };
        if let Err(outside) = charging.charge(&self.headers, &self.host, now_us) {
            *self.counts.totals.outside.entry(outside).or_default() += 1;
        }
    }

    /// The port of requests that have none.
    pub fn first_port(&self) -> Option<u16> {
        self.ports.first().copied()
    }

    /// Whether requests are replayed in the order of their beginnings.
    pub fn orders_by_start(&self) -> bool {
        self.order.is_some()
    }

    /// Routes whose responses say in a number of their own what a request weighed, which no log
    /// does.
    pub fn settling_routes(&self) -> Vec<String> {
        let routes = self.config.routes.iter();
        let settling = routes.filter(|route| route.settle.is_some());
        settling.map(|route| format!("`{}`", route.name)).collect()
    }
}

/// The method of a request that the proxy takes.
fn read_method(text: &str) -> Result<Method, Outside> {
    let method = Method::from_bytes(text.as_bytes()).ok();
    let method = method.filter(|method| !matches!(*method, Method::CONNECT | Method::TRACE));
    method.ok_or(Outside::Refused)
}

impl Charging<'_> {
    /// The port that a request came to: that of the log, or of the host if the proxy listens there.
    /// Without one, it is the first that the proxy listens on.
    fn find_port(&mut self, authority: &str) -> u16 {
        let Some(first) = self.ports.first() else {
            return 0;
        };
        let of_host = authority
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        let of_host = of_host.filter(|port| self.ports.contains(port));
        let logged = self.entry.port.or(of_host);
        let is_portless = logged.is_none() && self.ports.len() > 1;
        self.counts.totals.portless += u64::from(is_portless);
        logged.unwrap_or(*first)
    }

    /// The stages of the proxy from the route to the decision.
    fn charge(&mut self, headers: &HeaderMap, own_host: &str, now_us: u64) -> Result<(), Outside> {
        let (config, entry) = (self.config, self.entry);
        let target = TargetParts::split(&entry.target);
        let method = read_method(&entry.method)?;
        let authority = target.host.or(entry.host.as_deref()).unwrap_or(own_host);
        let host = match authority {
            "" => "".into(),
            host => host_of(host).map_err(|_| Outside::Refused)?,
        };
        let path = (config.routes.read_path(target.path)).map_err(|_| Outside::Refused)?;
        let client = find_client(config, entry, headers);
        if !config.access.admits(client.address) {
            return Err(Outside::Refused);
        }
        let status = config.status.as_ref();
        if status.is_some_and(|status| status.takes(&method, target.path)) {
            return Err(Outside::Unlimited);
        }
        let query = RouteQuery {
            host: &host,
            path: &path,
            method: &method,
            headers,
            query: target.query,
            port: self.find_port(authority),
        };
        let found = config.routes.find(&query).ok_or(Outside::NoRoute)?;
        let route = found.route;
        if !route.access.admits(client.address) {
            return Err(Outside::Refused);
        }
        let body = read_body(route, entry.tokens.as_deref());
        let mut facts = Facts {
            ip: config.client_ip.group(client.address),
            api_key: &config.api_key,
            standing: None,
            registered: None,
            method: &method,
            host: &host,
            path: path.in_case(route.case),
            query: target.query,
            headers,
            route: &route.name,
            params: &found.params,
            claims: None,
            tier: None,
            certificate: None,
            extensions: None,
            body: body.as_ref(),
        };
        let verify =
            |rules: &JwtRules| facts.with_bearer(|token| rules.verify(token, now_us / 1_000_000));
        let verified = config.jwt.as_ref().and_then(verify);
        let claims = verified.map(|verified| verified.claims);
        facts.claims = claims.as_ref();
        let mut limits = route.limits.iter();
        if limits.any(|limit| limit.key.asks_api_key()) {
            facts.standing = Some(facts.key_standing());
        }
        let tiers = config.tier.as_ref();
        let tier = tiers.and_then(|tiers| tiers.tier_of(&facts, client.is_trusted));
        facts.tier = tier.as_deref();
        self.charge_client(route, &facts, client, now_us)
    }

    /// The bypass rules and the bans, and then the limits of the route.
    fn charge_client(
        &mut self,
        route: &Route,
        facts: &Facts<'_>,
        client: RequestClient,
        now_us: u64,
    ) -> Result<(), Outside> {
        let is_free = route.limits.is_empty() || route.is_preflight(facts.method, facts.headers);
        let mut bypass = self.config.bypass.iter();
        let is_bypassed = bypass.any(|rule| rule.covers(facts, client.address, route.case));
        if is_bypassed {
            let reasons = [Outside::Bypassed, Outside::Unlimited];
            return Err(reasons[usize::from(is_free)]);
        }
        let banned = self.counts.bans.find_everywhere(facts, now_us);
        let banned = banned.filter(|ban| !self.is_spared(ban, facts, client));
        match banned {
            Some(ban) if is_free => {
                self.counts.bans.count_denied(ban);
                self.counts.deny_banned();
                Ok(())
            }
            None if is_free => Err(Outside::Unlimited),
            banned => self.charge_limits(route, facts, client, banned),
        }
    }

    /// Whether a client is exempt from the limit of a ban.
    fn is_spared(&self, ban: &RecordName, facts: &Facts<'_>, client: RequestClient) -> bool {
        let limit = &self.plan.limits[ban.limit].limit;
        limit.exempt.has(client.address, &limit.key, facts)
    }

    fn charge_limits(
        &mut self,
        route: &Route,
        facts: &Facts<'_>,
        client: RequestClient,
        mut banned: Option<RecordName>,
    ) -> Result<(), Outside> {
        let now_us = self.counts.now_us();
        if facts.standing == Some(KeyStanding::Unknown) {
            self.counts.totals.unknown_keys += 1;
        }
        let entry = self.entry;
        let tokens = entry.tokens.as_deref();
        let usage = route.usage_of(facts.method, facts.headers, facts.path);
        let call = usage
            .zip(tokens)
            .and_then(|(settings, tokens)| LoggedCall::new(settings, tokens, facts.path.as_str()));
        if usage.is_some() && counts_usage(route) {
            self.note_call(call.as_ref());
        }
        let weight = route.cost.units(facts.headers, client.is_trusted);
        let is_refunded = is_refunded(route, entry.status);
        let mut charges = LimitCharges::default();
        for limit in &route.limits {
            let Some(number) = self.plan.limit(limit) else {
                continue;
            };
            let space = &mut self.plan.key_spaces[self.plan.limits[number].key_space];
            let exempt = limit.exempt.has(client.address, &limit.key, facts);
            match space.derive(facts) {
                Ok(()) => {}
                Err(Derived::Skip) => continue,
                Err(_) if exempt => {}
                // A limit in shadow mode refuses no request.
                Err(_) if limit.shadow => continue,
                Err(_) => return Err(Outside::NoKey),
            }
            if banned.is_none() && !exempt {
                let ban = self.counts.bans.find(&space.name, now_us);
                banned = ban.filter(|ban| !self.is_spared(ban, facts, client));
            }
            if exempt {
                continue;
            }
            let windows = limit.windows_of(facts.tier);
            let cost = match (usage, &call) {
                (None, _) => RequestCost::Units(limit.units(weight)),
                (Some(_), None) if limit.counts_usage() => continue,
                (Some(_), None) => RequestCost::Units(limit.units(1)),
                (Some(_), Some(call)) => match call.cost(limit, is_refunded) {
                    Some(cost) => RequestCost::Call {
                        cost,
                        smallest: self.plan.smallest(number, windows),
                    },
                    None if limit.shadow => continue,
                    None => return Err(Outside::Unpriced),
                },
            };
            self.charge_limit(limit, number, windows, &cost, &mut charges);
        }
        let outcome = LoggedOutcome {
            is_refunded,
            duration_us: entry.duration_us.unwrap_or(0),
            settles_after_us: entry.end_us().saturating_sub(entry.start_us()),
            is_banned: banned.is_some(),
        };
        let (counts, enforced) = (&mut *self.counts, &charges.enforced);
        let denying = counts.decide(enforced, &charges.trials, outcome);
        if let Some(ban) = banned {
            counts.bans.count_denied(ban);
        }
        self.count_denials(&denying);
        Ok(())
    }

    /// Counts a denial for the ban of each limit that denies. The keys are those that were derived
    /// last.
    fn count_denials(&mut self, denying: &[usize]) {
        let mut last = None;
        for row in denying {
            let number = self.plan.rows[*row].limit;
            let planned = &self.plan.limits[number];
            if let Some(ban) = planned.limit.ban.filter(|_| last != Some(number)) {
                let name = RecordName {
                    limit: number,
                    key: self.plan.key_spaces[planned.key_space].name.clone(),
                };
                let now_us = self.counts.now_us();
                self.counts.bans.add(name, &ban, now_us);
            }
            last = Some(number);
        }
    }

    fn note_call(&mut self, call: Option<&LoggedCall<'_>>) {
        let calls = &mut self.counts.totals.calls;
        calls.requests += 1;
        let tokens = self.entry.tokens.as_ref();
        calls.broken += u64::from(tokens.is_some_and(|tokens| tokens.numbers.is_broken));
        match call {
            Some(call) => {
                calls.note(call.facts);
                calls.untimed += u64::from(self.entry.duration_us.is_none());
            }
            None => calls.tokenless += 1,
        }
    }

    /// Adds the charges of a limit, for the key that was derived last.
    fn charge_limit(
        &mut self,
        limit: &Limit,
        number: usize,
        windows: &[Arc<Window>],
        cost: &RequestCost,
        charges: &mut LimitCharges,
    ) {
        let mut trial = |windows: &[Arc<Window>]| {
            let mut charged = WindowCharges::new();
            self.charge_windows(number, windows, cost, &mut charged);
            charges.trials.push(charged);
        };
        if limit.shadow {
            trial(windows);
        }
        if !limit.candidate.is_empty() {
            trial(&limit.candidate);
        }
        if !limit.shadow {
            self.charge_windows(number, windows, cost, &mut charges.enforced);
        }
    }

    /// Adds the charges of a limit's windows, for the key that was derived last.
    fn charge_windows(
        &mut self,
        limit: usize,
        windows: &[Arc<Window>],
        cost: &RequestCost,
        charges: &mut WindowCharges,
    ) {
        let planned = &self.plan.limits[limit];
        let key = &self.plan.key_spaces[planned.key_space].name;
        for window in windows {
            let Some(row) = self.plan.row(limit, window) else {
                continue;
            };
            if window.rule.algorithm == Algorithm::Slots && self.entry.duration_us.is_none() {
                self.counts.totals.untimed += 1;
                continue;
            }
            let place = ChargedWindow {
                row,
                window: &self.plan.rows[row],
                key,
                delay: planned.limit.delay,
            };
            charges.push(self.counts.charge(place, cost));
        }
    }
}

/// Whether what an answer used changes a count of some limit of the route.
fn counts_usage(route: &Route) -> bool {
    let mut limits = route.limits.iter();
    route.usage.is_some() && limits.any(|limit| limit.counts_usage())
}

/// The members of the request's body that keys count by, as far as the log has them.
fn read_body(route: &Route, tokens: Option<&LoggedTokens<'_>>) -> Option<BodyFacts> {
    let table = route.reads_body.as_ref()?;
    let model = tokens.and_then(LoggedTokens::asked_model)?;
    let value = |member: &BodyMember| match member {
        BodyMember::Path(path) if path.as_str().eq_ignore_ascii_case("model") => {
            BodyValue::One(model.into())
        }
        _ => BodyValue::Missing,
    };
    Some(BodyFacts {
        table: Arc::clone(table),
        members: BodyMembers {
            values: table.members.iter().map(value).collect(),
            ..BodyMembers::default()
        },
    })
}

fn read_headers(entry: &LogEntry<'_>, headers: &mut HeaderMap) {
    headers.clear();
    for (name, value) in &entry.headers {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes())
            && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
        {
            // A line may have more headers than a map may.
            let _ = headers.try_append(name, value);
        }
    }
}

/// Finds the client behind trusted proxies. A log without the proxies' header may name the client
/// itself.
fn find_client(config: &Config, entry: &LogEntry<'_>, headers: &HeaderMap) -> RequestClient {
    let client_ip = &config.client_ip;
    let peer = entry.peer.to_canonical();
    let is_trusted = client_ip.trusts(peer);
    let address = match entry.client {
        Some(client) if is_trusted && !headers.contains_key(&client_ip.header) => {
            client.to_canonical()
        }
        _ => client_ip.find(peer, headers),
    };
    RequestClient {
        address,
        is_trusted,
    }
}

fn is_refunded(route: &Route, status: u16) -> bool {
    !route.refund.is_empty()
        && StatusCode::from_u16(status).is_ok_and(|status| route.refund.contains(status))
}

#[cfg(test)]
mod tests;
