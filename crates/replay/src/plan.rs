//! What a configuration asks of a log: a meter for each window whose counts are its own, a row of
//! the report for each window as a client's tier sees it, and which headers matter.
//!
//! Pure.

use std::sync::Arc;

use http::{HeaderName, header};

use super::meter::Meter;
use super::rates::Rates;
use super::text::Wanted;
use crate::config::{Bypass, Config};
use crate::limit::key::{ApiKeySource, ApiKeySources, Key, Part};
use crate::limit::rate::MAX_UNITS;
use crate::limit::{Algorithm, Limit, Missing, Role, Window};
use crate::route::{CostSource, Route};

/// One window of one limit, as clients of one tier have it.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its limit's place in [`Plan::limits`].
    pub limit: usize,
    /// The window.
    pub window: Arc<Window>,
    /// Clients of which tier have it; `None` for all others.
    pub tier: Option<Arc<str>>,
    /// What it is to a request.
    pub role: Role,
    /// Where it is counted.
    pub meter: usize,
    /// What it allows at each of the three rates.
    pub units: Rates<u64>,
}

/// One limit that some route asks.
#[derive(Clone, Debug)]
pub struct Planned {
    /// It.
    pub limit: Arc<Limit>,
    /// Its key's place in [`Plan::spaces`].
    pub space: usize,
    /// Its windows' rows.
    rows: Vec<(Arc<Window>, usize)>,
}

impl Planned {
    /// The row of one of its windows.
    pub fn row(&self, window: &Arc<Window>) -> usize {
        let own = |(known, _): &&(Arc<Window>, usize)| Arc::ptr_eq(known, window);
        self.rows.iter().find(own).map_or(0, |(_, row)| *row)
    }
}

/// What is to be counted.
#[derive(Debug, Default)]
pub struct Plan {
    /// Every limit that some route asks.
    pub limits: Vec<Planned>,
    /// Every row, those of a limit one after the other.
    pub rows: Vec<Row>,
    /// Every meter.
    pub meters: Vec<Meter>,
    /// Every way in which requests are told apart.
    pub spaces: Vec<(Key, Missing)>,
    /// Headers that say something, in lower case.
    pub headers: Vec<HeaderName>,
    identities: Vec<u128>,
    /// Places in `limits` of each route's, by its number.
    of_routes: Vec<Vec<usize>>,
}

impl Plan {
    /// What `config` asks.
    pub fn new(config: &Config) -> Plan {
        let mut plan = Plan::default();
        for limit in &config.limits {
            let mut routes = config.routes.iter();
            if routes.any(|route| route.limits.iter().any(|one| one.name == limit.name)) {
                plan.add(limit);
            }
        }
        // Limits that are written in a route are no one else's.
        for route in config.routes.iter() {
            let place = |limit: &Arc<Limit>| plan.named(limit).unwrap_or_else(|| plan.add(limit));
            let places = route.limits.iter().map(place).collect();
            plan.of_routes.push(places);
        }
        plan.note_headers(config);
        plan
    }

    /// The place of one of a route's limits, which is its `nth`.
    pub fn find(&self, route: &Route, nth: usize) -> usize {
        let places = self.of_routes.get(route.number);
        places
            .and_then(|places| places.get(nth))
            .map_or(0, |place| *place)
    }

    /// What of a line in words says something.
    pub fn wanted(&self) -> Wanted {
        let asks = |name| self.headers.contains(&name);
        let is_slots = |row: &Row| row.window.rule.algorithm == Algorithm::Slots;
        Wanted {
            agents: asks(header::REFERER) || asks(header::USER_AGENT),
            extras: asks(HeaderName::from_static("x-forwarded-for"))
                || self.rows.iter().any(is_slots),
        }
    }

    fn named(&self, limit: &Limit) -> Option<usize> {
        let mut limits = self.limits.iter();
        limits.position(|planned| planned.limit.name == limit.name)
    }

    fn add(&mut self, limit: &Arc<Limit>) -> usize {
        let place = self.limits.len();
        let space = (limit.key.clone(), limit.missing);
        let known = self.spaces.iter().position(|one| *one == space);
        let space = known.unwrap_or_else(|| {
            self.spaces.push(space);
            self.spaces.len() - 1
        });
        let role = if limit.shadow {
            Role::Shadow
        } else {
            Role::Enforced
        };
        let own = limit.windows.iter().map(|window| (window, None, role));
        let tiers = limit.tiers.iter().flat_map(|tier| {
            let windows = tier.windows.iter();
            windows.map(|window| (window, Some(Arc::clone(&tier.name)), role))
        });
        let candidate = limit.candidate.iter();
        let candidate = candidate.map(|window| (window, None, Role::Candidate));
        let mut rows = Vec::new();
        for (window, tier, role) in own.chain(tiers).chain(candidate) {
            rows.push((Arc::clone(window), self.rows.len()));
            let meter = self.meter(window);
            self.rows.push(Row {
                limit: place,
                window: Arc::clone(window),
                tier,
                role,
                meter,
                units: Rates::of(window.rule.units, most_units(window)),
            });
        }
        self.limits.push(Planned {
            limit: Arc::clone(limit),
            space,
            rows,
        });
        place
    }

    /// Where a window is counted: windows of one identity have one budget.
    fn meter(&mut self, window: &Window) -> usize {
        let mut known = self.identities.iter();
        let known = known.position(|identity| *identity == window.identity);
        known.unwrap_or_else(|| {
            self.identities.push(window.identity);
            self.meters.push(Meter::new(window.rule));
            self.meters.len() - 1
        })
    }

    fn note_headers(&mut self, config: &Config) {
        let limits = || config.routes.iter().flat_map(|route| &route.limits);
        let keys = limits().map(|limit| &limit.key);
        let mut parts: Vec<&Part> = keys.flat_map(Key::all).collect();
        let mut names = Vec::new();
        let exempts = limits().any(|limit| !limit.exempt.keys.is_empty());
        let passes = |bypass: &Bypass| bypass.key.is_some();
        let mut api_key = exempts || config.bypass.iter().any(passes);
        if let Some(tiers) = &config.tier {
            parts.extend(tiers.from.iter().flat_map(|tier| &tier.0));
            api_key |= tiers.by_key;
        }
        for part in parts {
            match part {
                Part::ApiKey => api_key = true,
                Part::Header(name) => names.push(name.clone()),
                Part::Cookie(_) => names.push(header::COOKIE),
                Part::Jwt(_) => names.push(header::AUTHORIZATION),
                _ => {}
            }
        }
        if api_key {
            names.extend(carriers(&config.api_key.from));
        }
        if !config.client_ip.trusted.is_empty() {
            names.push(config.client_ip.header.clone());
        }
        for route in config.routes.iter() {
            names.extend(route.headers.iter().map(|one| one.name.clone()));
            if let CostSource::Header(name) = &route.cost {
                names.push(name.clone());
            }
        }
        let bypass = config
            .bypass
            .iter()
            .filter_map(|bypass| bypass.header.as_ref());
        names.extend(bypass.map(|(name, _)| name.clone()));
        names.extend([header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD]);
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        self.headers = names;
    }
}

/// Headers in which an API key may be.
fn carriers(sources: &ApiKeySources) -> impl Iterator<Item = HeaderName> {
    sources.0.iter().filter_map(|source| match source {
        ApiKeySource::Header(name) => Some(name.clone()),
        ApiKeySource::Bearer => Some(header::AUTHORIZATION),
        ApiKeySource::Cookie(_) => Some(header::COOKIE),
        ApiKeySource::Query(_) => None,
    })
}

/// The largest limit that a window's algorithm counts exactly.
fn most_units(window: &Window) -> u64 {
    match window.rule.algorithm {
        Algorithm::Counter => ((1 << 53) - 1) / window.rule.window_us,
        Algorithm::Log | Algorithm::Slots => MAX_UNITS,
    }
}
