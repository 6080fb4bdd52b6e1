//! The engine: each request of a log passes the stages of the proxy up to the decision, with the
//! log's clock.
//!
//! Route, canonical path, client address, keys, tiers, exemptions and counts are the proxy's own
//! code. Keys that the log lacks are treated as the limit's `missing` says, and reported.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::counts::{LoggedOutcome, Outside, ReplayCounts, WindowCharges};
use super::entry::{LogEntry, TargetParts};
use super::key_spaces::KeySpaces;
use super::logs::LogLine;
use super::plan::ReplayPlan;
use super::route_cache::{RequestLine, RouteCache};
use crate::config::Config;
use crate::limit::key::{Derived, Facts, KeyStanding};
use crate::limit::{Algorithm, Window};
use crate::route::Route;

mod fast_path;
mod request_reader;

use fast_path::FastPath;
use request_reader::{RequestClient, RequestReader};

/// Replays requests.
#[derive(Debug)]
pub struct Engine {
    reader: RequestReader,
    pub plan: ReplayPlan,
    pub key_spaces: KeySpaces,
    pub counts: ReplayCounts,
    /// The headers of the current request that the configuration asks for.
    headers: HeaderMap,
    /// `None` parses every request anew.
    route_cache: Option<RouteCache>,
    /// By the numbers of routes; empty if every request takes the general path.
    fast_paths: Vec<Option<FastPath>>,
    /// The path of the current request on the fast path, if a key contains it.
    key_path: String,
}

impl Engine {
    /// Replays through `config`. `host` is the host of requests whose log does not say it.
    pub fn new(config: Config, host: &str, max_keys: usize) -> Engine {
        let plan = ReplayPlan::new(&config);
        let reader = RequestReader::new(config, host);
        let key_spaces = KeySpaces::new(&plan.key_spaces, &reader.api_key.from);
        Engine {
            fast_paths: fast_path::all(&reader, &plan, &key_spaces),
            counts: ReplayCounts::new(&plan, max_keys),
            key_spaces,
            headers: HeaderMap::new(),
            route_cache: Some(RouteCache::default()),
            key_path: String::new(),
            plan,
            reader,
        }
    }

    /// Replays a line. Returns false for a plain line that must be read in full.
    pub fn take_line(&mut self, line: LogLine<'_, '_>) -> bool {
        match line {
            LogLine::Plain(plain) => self.take_plain(plain),
            LogLine::Full(entry) => {
                self.take(entry);
                true
            }
        }
    }

    /// Replays one request.
    pub fn take(&mut self, entry: &LogEntry<'_>) {
        let now_us = self.counts.begin_request(entry.at_us);
        self.copy_headers(entry);
        if let Err(outside) = self.charge(entry, now_us) {
            *self.counts.totals.outside.entry(outside).or_default() += 1;
        }
    }

    /// Copies the headers that the configuration asks for.
    fn copy_headers(&mut self, entry: &LogEntry<'_>) {
        self.headers.clear();
        for (name, value) in &entry.headers {
            let mut wanted = self.plan.headers.iter();
            if let Some(name) = wanted.find(|one| one.as_str().eq_ignore_ascii_case(name))
                && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
            {
                self.headers.append(name, value);
            }
        }
    }

    /// The stages of the proxy from the route to the decision.
    fn charge(&mut self, entry: &LogEntry<'_>, now_us: u64) -> Result<(), Outside> {
        let (reader, headers) = (&self.reader, &self.headers);
        let target = TargetParts::split(&entry.target);
        let line = RequestLine {
            method: entry.method,
            host: target
                .host
                .or(entry.host.as_deref())
                .unwrap_or(&reader.host),
            path: target.path,
        };
        let mut charging = Charging {
            plan: &self.plan,
            key_spaces: &mut self.key_spaces,
            counts: &mut self.counts,
        };
        // Where headers choose the route, the cache serves only requests without headers.
        let may_cache = headers.is_empty() || !reader.routes_by_headers;
        let cache = self.route_cache.as_mut().filter(|_| may_cache);
        RouteCache::route(cache, &line, &reader.routes, headers, |request, found| {
            let client = reader.client(entry, headers);
            let facts = Facts {
                query: target.query,
                ..reader.facts(request, &found, headers, client)
            };
            let claims = reader.claims(&facts, now_us);
            let facts = Facts {
                claims: claims.as_ref(),
                ..facts
            };
            let facts = Facts {
                standing: Some(facts.key_standing()),
                ..facts
            };
            let tier = reader.tier_of(&facts, client);
            let facts = Facts {
                tier: tier.as_deref(),
                ..facts
            };
            reader.check_charged(&facts, found.route, client)?;
            charging.charge_limits(entry, found.route, &facts, client)
        })?
    }

    /// Routes whose responses say what a request weighed, which no log does.
    pub fn settling_routes(&self) -> Vec<String> {
        let routes = self.reader.routes.iter();
        let settling = routes.filter(|route| route.settle.is_some());
        settling.map(|route| format!("`{}`", route.name)).collect()
    }
}

/// The parts of an engine that a request changes.
struct Charging<'e> {
    plan: &'e ReplayPlan,
    key_spaces: &'e mut KeySpaces,
    counts: &'e mut ReplayCounts,
}

impl Charging<'_> {
    fn charge_limits(
        &mut self,
        entry: &LogEntry<'_>,
        route: &Route,
        facts: &Facts<'_>,
        client: RequestClient,
    ) -> Result<(), Outside> {
        self.key_spaces.begin_request();
        let asks_api_key = || route.limits.iter().any(|limit| limit.key.asks_api_key());
        if facts.key_standing() == KeyStanding::Unknown && asks_api_key() {
            self.counts.totals.unknown_keys += 1;
        }
        let weight = route.cost.units(facts.headers, client.is_trusted);
        let mut enforced = WindowCharges::new();
        let mut trials: SmallVec<[WindowCharges; 1]> = SmallVec::new();
        for (nth, limit) in route.limits.iter().enumerate() {
            let number = self.plan.limit_of(route, nth);
            let key_space = self.plan.limits[number].key_space;
            let exempt = limit.exempt.has(client.address, &limit.key, facts);
            match self.key_spaces.derive(key_space, facts) {
                Ok(()) => {}
                Err(Derived::Skip) => continue,
                Err(_) if exempt => {}
                Err(_) => return Err(Outside::NoKey),
            }
            if exempt {
                *self.counts.totals.exempt.entry(number).or_default() += 1;
                continue;
            }
            let cost = limit.units(weight);
            let mut charge = |windows: &[Arc<Window>], charges: &mut WindowCharges| {
                self.charge_windows(number, windows, cost, entry, charges);
            };
            let windows = limit.windows_of(facts.tier);
            if limit.shadow {
                let mut trial = WindowCharges::new();
                charge(windows, &mut trial);
                trials.push(trial);
            } else {
                charge(windows, &mut enforced);
            }
            if !limit.candidate.is_empty() {
                let mut trial = WindowCharges::new();
                charge(&limit.candidate, &mut trial);
                trials.push(trial);
            }
        }
        let outcome = LoggedOutcome {
            is_refunded: is_refunded(route, entry.status),
            duration_us: entry.duration_us.unwrap_or(0),
        };
        self.counts.decide(&enforced, &trials, outcome);
        Ok(())
    }

    /// Adds the charges of a limit's windows.
    fn charge_windows(
        &mut self,
        limit: usize,
        windows: &[Arc<Window>],
        cost: u64,
        entry: &LogEntry<'_>,
        charges: &mut WindowCharges,
    ) {
        let planned = &self.plan.limits[limit];
        let key = self.key_spaces.name(planned.key_space);
        for window in windows {
            let row = planned.row(window);
            if window.rule.algorithm == Algorithm::Slots && entry.duration_us.is_none() {
                self.counts.totals.untimed += 1;
                continue;
            }
            charges.push(self.counts.charge(row, &self.plan.rows[row], key, cost));
        }
    }
}

/// Whether a response status refunds the charge.
fn is_refunded(route: &Route, status: u16) -> bool {
    !route.refund.is_empty()
        && StatusCode::from_u16(status).is_ok_and(|status| route.refund.contains(status))
}

#[cfg(test)]
mod tests;
