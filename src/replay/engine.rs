//! The engine: each request of a log goes the way it would go through the proxy, up to the
//! decision, with the log's clock.
//!
//! Route, canonical path, client address, keys, tiers, exemptions and counts are the proxy's own
//! code. What the log lacks is what the limit's `missing` says, and is told.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;

use super::course::Course;
use super::entry::Entry;
use super::held::{Held, Release};
use super::meter::{Ask, Entry as Keyed, Looked};
pub use super::outside::Outside;
use super::plan::Plan;
use super::rates::{RATES, Rates};
use super::series::{Minutes, Timeline};
use super::spaces::Spaces;
use super::target::split;
use crate::client::ClientIp;
use crate::config::{Bypass, Config};
use crate::limit::key::jwt::JwtRules;
use crate::limit::key::{ApiKeySources, Claims, Derived, Facts};
use crate::limit::tier::Tiers;
use crate::limit::{Algorithm, Window};
use crate::path::CanonicalPath;
use crate::route::{Ask as RouteAsk, Found, RouteTable, host_of, is_preflight};

/// The parts of a configuration that read a request.
#[derive(Debug)]
struct Reading {
    routes: RouteTable,
    bypass: Vec<Bypass>,
    client_ip: ClientIp,
    api_key: ApiKeySources,
    jwt: Option<JwtRules>,
    tiers: Option<Tiers>,
    /// The host of requests whose log has none.
    host: String,
}

/// What a row has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Requests that asked it.
    pub asked: u64,
    /// Those that it denies at each rate.
    pub denied: Rates<u64>,
    /// When.
    pub minutes: Minutes,
    /// Clients that were forgotten: how many needed each limit.
    pub forgotten: HashMap<u32, u64>,
    /// Those of them that each rate would have denied something.
    pub forgotten_hit: Rates<u64>,
}

/// What the whole log has.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Those that are denied at each rate.
    pub denied: Rates<u64>,
    /// Those that asked no limit.
    pub outside: HashMap<Outside, u64>,
    /// The first time and the last, microseconds since the epoch.
    pub times: Option<(u64, u64)>,
    /// Requests that a limit of requests at once could not count: the log does not say how long
    /// they took.
    pub untimed: u64,
    /// Requests that a limit exempts, for each limit.
    pub exempt: HashMap<usize, u64>,
}

/// Replays requests.
#[derive(Debug)]
pub struct Engine {
    reading: Reading,
    /// What is counted for whom.
    pub plan: Plan,
    /// Keys, and what the log had of them.
    pub spaces: Spaces,
    /// What each row has seen.
    pub seen: Vec<Seen>,
    /// All rows together.
    pub totals: Totals,
    /// Requests, what is denied, and what each row denies, over time.
    pub timeline: Timeline,
    /// The clock.
    pub course: Course,
    max_keys: usize,
    held: BinaryHeap<Reverse<Release>>,
    headers: HeaderMap,
}

/// What one request asks of one window.
#[derive(Debug)]
struct Item {
    row: usize,
    ask: Ask,
}

type Items = SmallVec<[Item; 4]>;

impl Engine {
    /// Replays through `config`; `host` is asked for where the log does not say it.
    pub fn new(config: Config, host: &str, max_keys: usize) -> Engine {
        let plan = Plan::new(&config);
        let rows = plan.rows.len();
        Engine {
            spaces: Spaces::new(&plan.spaces),
            seen: vec![Seen::default(); rows],
            totals: Totals::default(),
            timeline: Timeline::new(2 + rows),
            course: Course::default(),
            max_keys: max_keys.max(16),
            held: BinaryHeap::new(),
            headers: HeaderMap::new(),
            plan,
            reading: Reading {
                routes: config.routes,
                bypass: config.bypass,
                client_ip: config.client_ip,
                api_key: config.api_key,
                jwt: config.jwt,
                tiers: config.tier,
                host: host.to_owned(),
            },
        }
    }

    /// Replays one request.
    pub fn take(&mut self, entry: &Entry<'_>) {
        let now_us = self.course.at(entry.at_us);
        let (first_us, last_us) = self.totals.times.unwrap_or((now_us, now_us));
        self.totals.times = Some((first_us.min(now_us), last_us.max(now_us)));
        self.totals.requests += 1;
        self.timeline.go(now_us);
        self.timeline.note(0);
        self.release(now_us);
        self.note_headers(entry);
        if let Err(outside) = self.read(entry, now_us) {
            *self.totals.outside.entry(outside).or_default() += 1;
        }
    }

    /// Headers that nobody asks about are left alone.
    fn note_headers(&mut self, entry: &Entry<'_>) {
        self.headers.clear();
        for (name, value) in &entry.headers {
            let wanted = self.plan.headers.iter();
            let mut wanted = wanted.filter(|one| one.as_str().eq_ignore_ascii_case(name));
            if let Some(name) = wanted.next()
                && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
            {
                self.headers.append(name, value);
            }
        }
    }

    /// What `Limiter::read` and `Limiter::ask` do.
    fn read(&mut self, entry: &Entry<'_>, now_us: u64) -> Result<(), Outside> {
        let reading = &self.reading;
        let headers = &self.headers;
        let (authority, path, query) = split(&entry.target);
        let method = Method::from_bytes(entry.method.as_bytes());
        let method = method.map_err(|_| Outside::Refused)?;
        if matches!(method, Method::CONNECT | Method::TRACE) {
            return Err(Outside::Refused);
        }
        let said = authority.or(entry.host.as_deref());
        let host = match said.unwrap_or(&reading.host) {
            "" => "".into(),
            host => host_of(host).map_err(|_| Outside::Refused)?,
        };
        let path = CanonicalPath::parse(path).map_err(|_| Outside::Refused)?;
        let (client, trusted) = reading.client(entry, headers);
        let ask = RouteAsk {
            host: &host,
            path: &path,
            method: &method,
            headers,
        };
        let found = reading.routes.find(&ask).ok_or(Outside::NoRoute)?;
        let facts = Facts {
            ip: reading.client_ip.group(client),
            api_key: &reading.api_key,
            method: &method,
            host: &host,
            path: &path,
            query,
            headers,
            route: &found.route.name,
            params: &found.params,
            claims: None,
            tier: None,
            certificate: None,
        };
        let claims = reading.claims(&facts, now_us);
        let facts = Facts {
            claims: claims.as_ref(),
            ..facts
        };
        let tiers = reading.tiers.as_ref();
        let tier = tiers.and_then(|tiers| tiers.tier_of(&facts, trusted));
        let facts = Facts {
            tier: tier.as_deref(),
            ..facts
        };
        if found.route.limits.is_empty() || is_preflight(&method, headers) {
            return Err(Outside::Unlimited);
        }
        if reading
            .bypass
            .iter()
            .any(|bypass| bypass.covers(&facts, client))
        {
            return Err(Outside::Bypassed);
        }
        let cost = found.route.cost.units(headers, trusted);
        let mut counting = Counting {
            plan: &mut self.plan,
            spaces: &mut self.spaces,
            totals: &mut self.totals,
            seen: &mut self.seen,
            timeline: &mut self.timeline,
            held: &mut self.held,
            max_keys: self.max_keys,
            now_us,
        };
        counting.ask(entry, &found, &facts, (client, cost))
    }

    /// Routes whose responses say what a request weighed, which no log does.
    pub fn settles(&self) -> Vec<String> {
        let routes = self.reading.routes.iter();
        let settling = routes.filter(|route| route.settle.is_some());
        settling.map(|route| format!("`{}`", route.name)).collect()
    }

    /// Limits that have forgotten keys, and how many.
    pub fn forgotten(&self) -> Vec<(String, u64)> {
        let rows = self.plan.rows.iter().zip(&self.seen);
        let count = |seen: &Seen| seen.forgotten.values().sum::<u64>();
        rows.filter(|(_, seen)| !seen.forgotten.is_empty())
            .map(|(row, seen)| (row.window.policy.to_string(), count(seen)))
            .collect()
    }

    /// Lets go of what requests held that have ended by now.
    fn release(&mut self, now_us: u64) {
        while let Some(Reverse(first)) = self.held.peek()
            && first.at_us <= now_us
        {
            if let Some(Reverse(release)) = self.held.pop() {
                release.apply(&mut self.plan.meters, now_us);
            }
        }
    }
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

    fn claims(&self, facts: &Facts<'_>, now_us: u64) -> Option<Claims> {
        let rules = self.jwt.as_ref()?;
        let verified = facts.with_bearer(|token| rules.verify(token, now_us / 1_000_000));
        verified.map(|verified| verified.claims)
    }
}

/// All that a request that asks limits changes.
struct Counting<'e> {
    plan: &'e mut Plan,
    spaces: &'e mut Spaces,
    totals: &'e mut Totals,
    seen: &'e mut [Seen],
    timeline: &'e mut Timeline,
    held: &'e mut Held,
    max_keys: usize,
    now_us: u64,
}

impl Counting<'_> {
    fn ask(
        &mut self,
        entry: &Entry<'_>,
        found: &Found<'_, '_>,
        facts: &Facts<'_>,
        (client, cost): (IpAddr, u64),
    ) -> Result<(), Outside> {
        self.spaces.begin();
        let (mut charge, mut riders) = (Items::new(), SmallVec::<[Items; 1]>::new());
        for limit in &found.route.limits {
            let place = self.plan.find(limit).unwrap_or(0);
            let planned = &self.plan.limits[place];
            let exempt = limit.exempt.has(client, &limit.key, facts);
            match self.spaces.derive(planned.space, facts) {
                Ok(()) => {}
                Err(Derived::Skip) => continue,
                Err(_) if exempt => {}
                Err(_) => return Err(Outside::NoKey),
            }
            if exempt {
                *self.totals.exempt.entry(place).or_default() += 1;
                continue;
            }
            let units = cost.saturating_mul(limit.cost);
            let own = self.items(place, limit.windows_of(facts.tier), units, entry);
            match limit.shadow {
                true if !own.is_empty() => riders.push(own),
                true => {}
                false => charge.extend(own),
            }
            if !limit.candidate.is_empty() {
                riders.push(self.items(place, &limit.candidate, units, entry));
            }
        }
        let allowed = self.decide(&charge, entry, found);
        for rate in RATES {
            self.totals.denied[rate] += u64::from(!allowed[rate]);
        }
        if !allowed.own {
            self.timeline.note(1);
        }
        for rider in &riders {
            self.decide(rider, entry, found);
        }
        Ok(())
    }

    /// What these windows of a limit are asked.
    fn items(
        &mut self,
        place: usize,
        windows: &[Arc<Window>],
        cost: u64,
        entry: &Entry<'_>,
    ) -> Items {
        let planned = &self.plan.limits[place];
        let name = self.spaces.name(planned.space);
        let mut items = Items::new();
        for window in windows {
            let row = planned.row(window);
            let Some(known) = self.plan.rows.get(row) else {
                continue;
            };
            if window.rule.algorithm == Algorithm::Slots && entry.duration_us.is_none() {
                self.totals.untimed += 1;
                continue;
            }
            let meter = &mut self.plan.meters[known.meter];
            if meter.entries().len() >= self.max_keys {
                let tell = |one: &Keyed| forget(&mut self.seen[usize::from(one.row)], one);
                let places = meter.forget(self.now_us, tell);
                super::held::moved(self.held, known.meter, &places);
            }
            let place = meter.place(name);
            items.push(Item {
                row,
                ask: Ask {
                    place,
                    cost,
                    units: known.units,
                },
            });
        }
        items
    }

    /// All or nothing, at each rate by itself.
    fn decide(&mut self, items: &Items, entry: &Entry<'_>, found: &Found<'_, '_>) -> Rates<bool> {
        let mut allowed = Rates::default().map(|_: &bool| true);
        let mut looks: SmallVec<[Looked; 4]> = SmallVec::new();
        for Item { row, ask } in items {
            let meter = self.plan.rows[*row].meter;
            let looked = self.plan.meters[meter].look(ask, self.now_us);
            for rate in RATES {
                allowed[rate] &= !looked.denies[rate];
            }
            looks.push(looked);
        }
        let status = StatusCode::from_u16(entry.status).ok();
        let refunds = status.is_some_and(|status| found.route.refund.contains(status));
        for (Item { row, ask }, looked) in items.iter().zip(&looks) {
            let known = &self.plan.rows[*row];
            let meter = &mut self.plan.meters[known.meter];
            let stamps = meter.settle(ask, looked, &allowed);
            meter.note(ask.place, u16::try_from(*row).unwrap_or(0), &looked.denies);
            if meter.algorithm() == Algorithm::Slots {
                self.held.push(Reverse(Release {
                    at_us: self.now_us + entry.duration_us.unwrap_or(0),
                    meter: known.meter,
                    ask: *ask,
                    stamps,
                    allowed,
                }));
            } else if refunds && ask.cost > 0 {
                meter.give_back(ask, &stamps, &allowed, self.now_us);
            }
            let seen = &mut self.seen[*row];
            seen.asked += 1;
            for rate in RATES {
                seen.denied[rate] += u64::from(looked.denies[rate]);
            }
            if looked.denies.own {
                seen.minutes.note(self.now_us);
                self.timeline.note(2 + *row);
            }
        }
        allowed
    }
}

/// What is kept of a key that is forgotten.
fn forget(seen: &mut Seen, entry: &Keyed) {
    *seen.forgotten.entry(entry.need).or_default() += 1;
    for rate in RATES {
        seen.forgotten_hit[rate] += u64::from(entry.hit[rate]);
    }
}

#[cfg(test)]
mod tests;
