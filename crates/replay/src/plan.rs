//! What a configuration counts: a meter for each window with counts of its own, and a row of the
//! report for each window as the clients of one tier see it.

use std::sync::Arc;

use super::key_spaces::KeySpace;
use super::meter::Rates;
use crate::config::Config;
use crate::limit::calendar::MAX_COUNT;
use crate::limit::rate::MAX_UNITS;
use crate::limit::{Algorithm, Limit, Role, Window};

/// One window of one limit, as the clients of one tier see it.
#[derive(Clone, Debug)]
pub struct WindowRow {
    /// The index of its limit in [`ReplayPlan::limits`].
    pub limit: usize,
    pub window: Arc<Window>,
    /// `None` for clients without a tier of this limit.
    pub tier: Option<Arc<str>>,
    pub role: Role,
    pub meter: usize,
    /// Its units at each of the three rates.
    pub units: Rates<u64>,
}

#[derive(Clone, Debug)]
pub struct PlannedLimit {
    pub limit: Arc<Limit>,
    /// The index of its key in [`ReplayPlan::key_spaces`].
    pub key_space: usize,
}

#[derive(Debug, Default)]
pub struct ReplayPlan {
    pub limits: Vec<PlannedLimit>,
    /// The rows of one limit are neighbours.
    pub rows: Vec<WindowRow>,
    pub meter_windows: Vec<Arc<Window>>,
    pub key_spaces: Vec<KeySpace>,
}

impl ReplayPlan {
    pub fn new(config: &Config) -> ReplayPlan {
        let mut plan = ReplayPlan::default();
        let in_routes = || config.routes.iter().flat_map(|route| &route.limits);
        let is_used = |limit: &&Arc<Limit>| in_routes().any(|one| one.name == limit.name);
        // A limit that is written in a route belongs to this route alone.
        for limit in config.limits.iter().filter(is_used).chain(in_routes()) {
            if plan.limit(limit).is_none() {
                plan.add(limit);
            }
        }
        plan
    }

    pub fn limit(&self, limit: &Limit) -> Option<usize> {
        let mut limits = self.limits.iter();
        limits.position(|planned| planned.limit.name == limit.name)
    }

    /// The index of the row of a limit's window.
    pub fn row(&self, limit: usize, window: &Arc<Window>) -> Option<usize> {
        let mut rows = self.rows.iter();
        rows.position(|row| row.limit == limit && Arc::ptr_eq(&row.window, window))
    }

    /// What these windows of a limit hold at each rate, all together.
    pub fn smallest(&self, limit: usize, windows: &[Arc<Window>]) -> Rates<u64> {
        let rows = windows.iter().filter_map(|window| self.row(limit, window));
        let units = rows.map(|row| self.rows[row].units);
        let smallest = units.reduce(|one, other| Rates {
            half: one.half.min(other.half),
            own: one.own.min(other.own),
            twice: one.twice.min(other.twice),
        });
        smallest.unwrap_or(Rates {
            half: u64::MAX,
            own: u64::MAX,
            twice: u64::MAX,
        })
    }

    fn add(&mut self, limit: &Arc<Limit>) {
        let mut spaces = self.key_spaces.iter();
        let known = spaces.position(|one| one.key == limit.key && one.missing == limit.missing);
        let key_space = known.unwrap_or_else(|| {
            self.key_spaces
                .push(KeySpace::new(&limit.key, limit.missing));
            self.key_spaces.len() - 1
        });
        let role = match limit.shadow {
            true => Role::Shadow,
            false => Role::Enforced,
        };
        for window in &limit.windows {
            self.add_row(window, None, role);
        }
        for tier in &limit.tiers {
            for window in &tier.windows {
                self.add_row(window, Some(&tier.name), role);
            }
        }
        for window in &limit.candidate {
            self.add_row(window, None, Role::Candidate);
        }
        self.limits.push(PlannedLimit {
            limit: Arc::clone(limit),
            key_space,
        });
    }

    /// Adds a row of the next limit. Windows of one identity have one budget, so one meter.
    fn add_row(&mut self, window: &Arc<Window>, tier: Option<&Arc<str>>, role: Role) {
        let mut known = self.rows.iter();
        let known = known.find(|row| row.window.identity == window.identity);
        let meter = known.map_or(self.meter_windows.len(), |row| row.meter);
        if meter == self.meter_windows.len() {
            self.meter_windows.push(Arc::clone(window));
        }
        self.rows.push(WindowRow {
            limit: self.limits.len(),
            window: Arc::clone(window),
            tier: tier.cloned(),
            role,
            meter,
            units: Rates::scaled(window.rule.units, most_units(window)),
        });
    }
}

/// The largest limit that the window's algorithm counts exactly, units.
fn most_units(window: &Window) -> u64 {
    match window.rule.algorithm {
        Algorithm::Counter => ((1 << 53) - 1) / window.rule.window_us,
        Algorithm::Log | Algorithm::Slots => MAX_UNITS,
        Algorithm::Calendar => MAX_COUNT,
    }
}
