//! The fast path of plain lines: what a route charges is prepared, where only the client's address
//! and the path can change it.
//!
//! Every other request takes the general path, with the same result: requests of bypassed or exempt
//! clients, of trusted proxies, and on routes whose keys need more than an address and a path.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use ipnet::IpNet;
use memchr::memchr2;
use smallvec::SmallVec;

use super::request_reader::RequestReader;
use super::{Engine, is_refunded};
use crate::counts::{LoggedOutcome, Outside, ReplayCounts, WindowCharges};
use crate::formats::PlainLine;
use crate::key_spaces::KeySpaces;
use crate::limit::{Algorithm, Limit, Window};
use crate::plan::ReplayPlan;
use crate::route::Route;
use crate::route_cache::{RequestLine, RouteCache};

/// The charges of a plain request on one route.
#[derive(Debug, Default)]
pub(super) struct FastPath {
    enforced: Vec<FastCharge>,
    trials: Vec<Vec<FastCharge>>,
    /// The key spaces of all charges, each once.
    key_spaces: Vec<usize>,
    /// Whether some key contains the path.
    uses_path: bool,
    /// Clients that some limit exempts.
    exempt: Vec<IpNet>,
}

#[derive(Clone, Copy, Debug)]
struct FastCharge {
    row: usize,
    key_space: usize,
    cost: u64,
}

/// Settings that are the same for all routes.
#[derive(Clone, Copy)]
struct FastPathSettings<'a> {
    plan: &'a ReplayPlan,
    key_spaces: &'a KeySpaces,
    /// The tier of all clients.
    tier: Option<&'a str>,
    /// Whether API keys may be in a query.
    keys_in_query: bool,
}

/// Prepares the fast paths of all routes, by their numbers. Empty if no request can take one.
pub(super) fn all(
    reader: &RequestReader,
    plan: &ReplayPlan,
    key_spaces: &KeySpaces,
) -> Vec<Option<FastPath>> {
    let keys_in_query = reader.api_key.from.reads_query();
    let tier = match &reader.tiers {
        Some(tiers) if tiers.may_be_in_target(keys_in_query) => return Vec::new(),
        Some(tiers) => tiers.default.as_deref(),
        None => None,
    };
    if keys_in_query && reader.bypass.iter().any(|rule| rule.key.is_some()) {
        return Vec::new();
    }
    let shared = FastPathSettings {
        plan,
        key_spaces,
        tier,
        keys_in_query,
    };
    let path = |route| FastPath::new(route, shared);
    reader.routes.iter().map(path).collect()
}

impl FastPath {
    fn new(route: &Route, shared: FastPathSettings<'_>) -> Option<FastPath> {
        let mut path = FastPath::default();
        let weight = route.cost.units(&HeaderMap::new(), false);
        for (nth, limit) in route.limits.iter().enumerate() {
            let number = shared.plan.limit_of(route, nth);
            let key_space = shared.plan.limits[number].key_space;
            // A plain request has no header with an exempt key, but may have one in its query.
            let has_exempt_keys = shared.keys_in_query && !limit.exempt.keys.is_empty();
            if !shared.key_spaces.is_plain(key_space) || has_exempt_keys {
                return None;
            }
            path.exempt.extend(&limit.exempt.nets);
            if !path.key_spaces.contains(&key_space) {
                path.key_spaces.push(key_space);
            }
            path.uses_path |= shared.key_spaces.uses_path(key_space);
            let charges =
                |windows: &[Arc<Window>]| charges(shared.plan, number, limit, windows, weight);
            let own = charges(limit.windows_of(shared.tier))?;
            match limit.shadow {
                true => path.trials.push(own),
                false => path.enforced.extend(own),
            }
            if !limit.candidate.is_empty() {
                path.trials.push(charges(&limit.candidate)?);
            }
        }
        Some(path)
    }
}

/// The charges of a limit's windows. `None` for slots, whose requests need a duration.
fn charges(
    plan: &ReplayPlan,
    number: usize,
    limit: &Limit,
    windows: &[Arc<Window>],
    weight: u64,
) -> Option<Vec<FastCharge>> {
    let planned = &plan.limits[number];
    let charge = |window: &Arc<Window>| {
        (window.rule.algorithm != Algorithm::Slots).then_some(FastCharge {
            row: planned.row(window),
            key_space: planned.key_space,
            cost: limit.units(weight),
        })
    };
    windows.iter().map(charge).collect()
}

impl Engine {
    /// Replays a plain request if it can take the fast path. Otherwise nothing changes.
    pub fn take_plain(&mut self, line: &PlainLine<'_>) -> bool {
        let Some(number) = self.fast_route(line) else {
            return false;
        };
        let Some(Some(path)) = self.fast_paths.get(number) else {
            return false;
        };
        let peer = IpAddr::from(line.peer);
        let client_ip = &self.reader.client_ip;
        if client_ip.trusts(peer) || path.exempt.iter().any(|net| net.contains(&peer)) {
            return false;
        }
        let client = client_ip.group(peer);
        self.counts.begin_request(line.at_us);
        if path.key_spaces.is_empty() {
            let outside = &mut self.counts.totals.outside;
            *outside.entry(Outside::Unlimited).or_default() += 1;
            return true;
        }
        for key_space in &path.key_spaces {
            self.key_spaces
                .derive_plain(*key_space, client, &self.key_path);
        }
        let (plan, key_spaces) = (&self.plan, &self.key_spaces);
        let charged = |counts: &mut ReplayCounts, all: &[FastCharge]| -> WindowCharges {
            let charge = |one: &FastCharge| {
                let key = key_spaces.name(one.key_space);
                counts.charge(one.row, &plan.rows[one.row], key, one.cost)
            };
            all.iter().map(charge).collect()
        };
        let enforced = charged(&mut self.counts, &path.enforced);
        let trials: SmallVec<[WindowCharges; 1]> = path
            .trials
            .iter()
            .map(|trial| charged(&mut self.counts, trial))
            .collect();
        let mut routes = self.reader.routes.iter();
        let outcome = LoggedOutcome {
            is_refunded: routes
                .nth(number)
                .is_some_and(|route| is_refunded(route, line.status)),
            duration_us: 0,
        };
        self.counts.decide(&enforced, &trials, outcome);
        true
    }

    /// The number of the route of a plain request, unless a bypass rule covers it. Copies the path
    /// to `key_path` if a key contains it.
    fn fast_route(&mut self, line: &PlainLine<'_>) -> Option<usize> {
        if self.fast_paths.is_empty() {
            return None;
        }
        let end = memchr2(b'?', b'#', line.target.as_bytes());
        let (reader, fast_paths) = (&self.reader, &self.fast_paths);
        let key_path = &mut self.key_path;
        let request_line = RequestLine {
            method: line.method,
            host: &reader.host,
            path: &line.target[..end.unwrap_or(line.target.len())],
        };
        let cache = self.route_cache.as_mut();
        let headers = HeaderMap::new();
        let number = RouteCache::route(
            cache,
            &request_line,
            &reader.routes,
            &headers,
            |request, found| {
                let (number, case) = (found.route.number, found.route.case);
                if reader.bypasses_plain(&request.path, line.peer.into(), case) {
                    return None;
                }
                let path = fast_paths.get(number).and_then(Option::as_ref);
                if path.is_some_and(|path| path.uses_path) {
                    key_path.clear();
                    key_path.push_str(request.path.in_case(case).as_str());
                }
                Some(number)
            },
        );
        number.ok().flatten()
    }
}

#[cfg(test)]
mod tests;
