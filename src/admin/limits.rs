//! `/api/v1/limits`: what each limit is, and what it did.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::AdminState;
use super::respond::{ApiError, available};
use super::schema::{described, words};
use super::time::now_s;
use super::traffic::brief_sum;
use crate::limit::{Algorithm, Limit, Window};
use crate::telemetry::metrics::{LimitSum, Sum, Verdict};

/// Routes that are named for a limit.
const MOST_ROUTES: usize = 100;

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

    struct LimitRates {
        allowed: u64,
        denied: u64,
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

/// All of them, in the file's order.
pub(super) fn limits(state: &AdminState) -> Result<LimitList, ApiError> {
    let (list, routes, sum) = available(state.server.introspection.inspect(|snapshot| {
        let mut routes: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
        for route in snapshot.config.routes.iter() {
            for limit in &route.limits {
                let named = routes.entry(Arc::clone(&limit.name)).or_default();
                named.push(route.name.to_string());
            }
        }
        let list: Vec<Arc<Limit>> = snapshot.config.limits.clone();
        (list, routes, brief_sum(snapshot))
    }))?;
    state.drain();
    let reports = list.iter().map(|limit| {
        let named = routes.get(&limit.name).map_or(&[][..], Vec::as_slice);
        report(state, limit, named, &sum)
    });
    Ok(LimitList {
        limits: reports.collect(),
    })
}

fn report(state: &AdminState, limit: &Limit, routes: &[String], sum: &Sum) -> LimitState {
    let rates = |windows: &[Arc<Window>]| -> Vec<String> {
        windows.iter().map(|window| window.rate()).collect()
    };
    let none = LimitSum::default();
    let count = |counts: &LimitSum, verdict: Verdict| counts[verdict as usize].iter().sum::<u64>();
    let counted = sum.limits.get(&limit.name).unwrap_or(&none);
    let tried = sum.candidates.get(&limit.name).unwrap_or(&none);
    let candidate = (!limit.candidate.is_empty()).then(|| CandidateReport {
        rates: rates(&limit.candidate),
        allowed: count(tried, Verdict::Allowed),
        denied: count(tried, Verdict::ShadowDenied),
    });
    let tiers = limit.tiers.iter();
    let key: Vec<String> = limit.key.parts.iter().map(ToString::to_string).collect();
    let (allowed, denied) = state.history().per_second(&limit.name);
    let now = now_s();
    let mut crowd = state.crowd();
    let shares = crowd.shares(&limit.name, now);
    let [q25, q50, q75, q100] = shares.quarters;
    LimitState {
        name: limit.name.to_string(),
        rates: rates(&limit.windows),
        tiers: tiers
            .map(|tier| (tier.name.to_string(), rates(&tier.windows)))
            .collect(),
        key: key.join(", "),
        algorithm: algorithm(limit),
        mode: if limit.shadow { "shadow" } else { "enforced" },
        candidate,
        on_error: limit.on_error.word(),
        routes: routes.iter().take(MOST_ROUTES).cloned().collect(),
        totals: LimitTotals {
            allowed: count(counted, Verdict::Allowed),
            denied: count(counted, Verdict::Denied),
            shadow_denied: count(counted, Verdict::ShadowDenied),
            bypassed: count(counted, Verdict::Bypassed),
        },
        per_second: LimitRates { allowed, denied },
        headroom: crowd.headroom(&limit.name, now).map(f64::from),
        r#use: LimitUse {
            clients: shares.clients,
            q25,
            q50,
            q75,
            q100,
            denied: shares.denied,
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
