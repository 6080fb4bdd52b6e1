//! What a configuration counts: a meter for each window with counts of its own, a row of the report
//! for each window as the clients of one tier see it, and the headers that matter.

use std::sync::Arc;

use http::{HeaderName, header};

use super::meter::Rates;
use super::text::WantedFields;
use crate::config::{Bypass, Config};
use crate::limit::key::{ApiKeySource, ApiKeySources, Key, Part};
use crate::limit::rate::MAX_UNITS;
use crate::limit::{Algorithm, Limit, Missing, Role, Rule, Window};
use crate::route::{CostSource, Route};

/// One window of one limit, as the clients of one tier see it.
#[derive(Clone, Debug)]
pub struct WindowRow {
    /// The index of its limit in [`ReplayPlan::limits`].
    pub limit: usize,
    pub window: Arc<Window>,
    /// `None` for clients without a tier of this limit.
    pub tier: Option<Arc<str>>,
    pub role: Role,
    /// The index of its meter.
    pub meter: usize,
    /// Its units at each of the three rates.
    pub units: Rates<u64>,
}

/// One limit that some route uses.
#[derive(Clone, Debug)]
pub struct PlannedLimit {
    pub limit: Arc<Limit>,
    /// The index of its key in [`ReplayPlan::key_spaces`].
    pub key_space: usize,
    rows: Vec<(Arc<Window>, usize)>,
}

impl PlannedLimit {
    /// The row of one of its windows.
    pub fn row(&self, window: &Arc<Window>) -> usize {
        let own = |(known, _): &&(Arc<Window>, usize)| Arc::ptr_eq(known, window);
        self.rows.iter().find(own).map_or(0, |(_, row)| *row)
    }
}

#[derive(Debug, Default)]
pub struct ReplayPlan {
    /// Every limit that some route uses.
    pub limits: Vec<PlannedLimit>,
    /// The rows of one limit are neighbours.
    pub rows: Vec<WindowRow>,
    pub meter_rules: Vec<Rule>,
    pub key_spaces: Vec<(Key, Missing)>,
    /// Headers that the configuration asks for.
    pub headers: Vec<HeaderName>,
    /// The identity of each meter's window.
    identities: Vec<u128>,
    /// Indexes into `limits` of each route's limits, by the route's number.
    of_routes: Vec<Vec<usize>>,
}

impl ReplayPlan {
    pub fn new(config: &Config) -> ReplayPlan {
        let mut plan = ReplayPlan::default();
        for limit in &config.limits {
            let mut routes = config.routes.iter();
            if routes.any(|route| route.limits.iter().any(|one| one.name == limit.name)) {
                plan.add(limit);
            }
        }
        // A limit that is written in a route belongs to this route alone.
        for route in config.routes.iter() {
            let place = |limit: &Arc<Limit>| plan.named(limit).unwrap_or_else(|| plan.add(limit));
            let places = route.limits.iter().map(place).collect();
            plan.of_routes.push(places);
        }
        plan.note_headers(config);
        plan
    }

    /// The index of the `nth` limit of a route.
    pub fn limit_of(&self, route: &Route, nth: usize) -> usize {
        let places = self.of_routes.get(route.number);
        places
            .and_then(|places| places.get(nth))
            .map_or(0, |place| *place)
    }

    /// The optional fields of text lines that matter.
    pub fn wanted_fields(&self) -> WantedFields {
        let asks = |name| self.headers.contains(&name);
        let is_slots = |row: &WindowRow| row.window.rule.algorithm == Algorithm::Slots;
        WantedFields {
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
        let known = self.key_spaces.iter().position(|one| *one == space);
        let key_space = known.unwrap_or_else(|| {
            self.key_spaces.push(space);
            self.key_spaces.len() - 1
        });
        let role = match limit.shadow {
            true => Role::Shadow,
            false => Role::Enforced,
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
            self.rows.push(WindowRow {
                limit: place,
                window: Arc::clone(window),
                tier,
                role,
                meter,
                units: Rates::scaled(window.rule.units, most_units(window)),
            });
        }
        self.limits.push(PlannedLimit {
            limit: Arc::clone(limit),
            key_space,
            rows,
        });
        place
    }

    /// The meter of a window. Windows of one identity have one budget.
    fn meter(&mut self, window: &Window) -> usize {
        let mut known = self.identities.iter();
        let known = known.position(|identity| *identity == window.identity);
        known.unwrap_or_else(|| {
            self.identities.push(window.identity);
            self.meter_rules.push(window.rule);
            self.meter_rules.len() - 1
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
            names.extend(key_headers(&config.api_key.from));
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

/// Headers that may carry an API key.
fn key_headers(sources: &ApiKeySources) -> impl Iterator<Item = HeaderName> {
    sources.0.iter().filter_map(|source| match source {
        ApiKeySource::Header(name) => Some(name.clone()),
        ApiKeySource::Bearer => Some(header::AUTHORIZATION),
        ApiKeySource::Cookie(_) => Some(header::COOKIE),
        ApiKeySource::Query(_) => None,
    })
}

/// The largest limit that the window's algorithm counts exactly, units.
fn most_units(window: &Window) -> u64 {
    match window.rule.algorithm {
        Algorithm::Counter => ((1 << 53) - 1) / window.rule.window_us,
        Algorithm::Log | Algorithm::Slots => MAX_UNITS,
    }
}
