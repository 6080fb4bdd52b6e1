//! `/api/v1/limits`: the settings of each limit, and its decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::history::LimitRates;
use super::response::{ApiError, now_s};
use super::schema::{described, words};
use super::state::AdminState;
use crate::limit::{Algorithm, Limit, Tier, Window};
use crate::proxy::Proxy;
use crate::telemetry::metrics::{LimitSum, LimitVerdict, Sum};

/// Routes that are listed for a limit.
const MAX_ROUTES: usize = 100;

described! {
    struct LimitList {
        limits: Vec<LimitState>,
    }

    struct LimitState as "Limit" {
        name: String,
        rates: Vec<String>,
        tiers: BTreeMap<String, Vec<String>>,
        key: String,
        algorithm: &'static str = words(&["log", "counter", "slots"]),
        mode: &'static str = words(&["enforced", "shadow"]),
        candidate: Option<CandidateReport>,
        on_error: &'static str,
        routes: Vec<String>,
        totals: LimitTotals,
        per_second: LimitRates,
        headroom: Option<f64> = json!({ "minimum": 0, "maximum": 1 }),
        r#use: LimitUse,
    }

    struct CandidateReport {
        rates: Vec<String>,
        allowed: u64,
        denied: u64,
    }

    struct LimitTotals {
        allowed: u64,
        denied: u64,
        shadow_denied: u64,
        bypassed: u64,
    }

    struct LimitUse {
        clients: u64,
        q25: u64,
        q50: u64,
        q75: u64,
        q100: u64,
        denied: u64,
    }
}

/// All limits, in the order of the configuration.
pub(super) fn limits(state: &AdminState) -> Result<LimitList, ApiError> {
    state.collect();
    state.inspect(|snapshot| {
        let mut routes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for route in snapshot.config.routes.iter() {
            for limit in &route.limits {
                let names = routes.entry(&limit.name).or_default();
                if names.len() < MAX_ROUTES {
                    names.push(route.name.to_string());
                }
            }
        }
        let sum = Sum::without_routes(snapshot.proxies().map(Proxy::meter));
        let reports = snapshot.config.limits.iter().map(|limit| {
            let routes = routes.remove(&*limit.name).unwrap_or_default();
            report(state, limit, routes, &sum)
        });
        LimitList {
            limits: reports.collect(),
        }
    })
}

fn report(state: &AdminState, limit: &Limit, routes: Vec<String>, sum: &Sum) -> LimitState {
    let rates = |windows: &[Arc<Window>]| -> Vec<String> {
        windows.iter().map(|window| window.rate()).collect()
    };
    let none = LimitSum::default();
    let count =
        |counts: &LimitSum, verdict: LimitVerdict| counts[verdict as usize].iter().sum::<u64>();
    let counted = sum.limits.get(&limit.name).unwrap_or(&none);
    let tried = sum.candidates.get(&limit.name).unwrap_or(&none);
    let candidate = (!limit.candidate.is_empty()).then(|| CandidateReport {
        rates: rates(&limit.candidate),
        allowed: count(tried, LimitVerdict::Allowed),
        denied: count(tried, LimitVerdict::ShadowDenied),
    });
    let tier = |tier: &Tier| (tier.name.to_string(), rates(&tier.windows));
    let key: Vec<String> = limit.key.parts.iter().map(ToString::to_string).collect();
    let now = now_s();
    let crowd = state.crowd();
    let usage = crowd.usage(&limit.name, now);
    let [q25, q50, q75, q100] = usage.quarters;
    LimitState {
        name: limit.name.to_string(),
        rates: rates(&limit.windows),
        tiers: limit.tiers.iter().map(tier).collect(),
        key: key.join(", "),
        algorithm: algorithm(limit),
        mode: if limit.shadow { "shadow" } else { "enforced" },
        candidate,
        on_error: limit.on_error.word(),
        routes,
        totals: LimitTotals {
            allowed: count(counted, LimitVerdict::Allowed),
            denied: count(counted, LimitVerdict::Denied),
            shadow_denied: count(counted, LimitVerdict::ShadowDenied),
            bypassed: count(counted, LimitVerdict::Bypassed),
        },
        per_second: state.history().per_second(&limit.name),
        headroom: crowd.headroom(&limit.name, now).map(f64::from),
        r#use: LimitUse {
            clients: usage.clients,
            q25,
            q50,
            q75,
            q100,
            denied: usage.denied,
        },
    }
}

fn algorithm(limit: &Limit) -> &'static str {
    let first = limit.windows.first();
    first.map_or("log", |window| match window.rule.algorithm {
        Algorithm::Log => "log",
        Algorithm::Counter => "counter",
        Algorithm::Slots => "slots",
    })
}
