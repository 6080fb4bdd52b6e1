//! `/api/v1/limits`: what each limit is, and what it did.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::AdminState;
use super::answer::{Refusal, seen};
use super::clients::now_s;
use super::traffic::brief_sum;
use crate::limit::{Algorithm, Limit, Window};
use crate::telemetry::metrics::{LimitSum, Verdict};

/// Routes that are named for a limit.
const MOST_ROUTES: usize = 100;

/// All of them, in the file's order.
pub(super) fn limits(state: &AdminState) -> Result<Value, Refusal> {
    let (list, sum) = seen(state.server.introspection.inspect(|snapshot| {
        let mut routes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for route in snapshot.config.routes.iter() {
            for limit in &route.limits {
                routes.entry(&limit.name).or_default().push(&route.name);
            }
        }
        let describe = |limit: &Arc<Limit>| {
            let routes = routes.get(&*limit.name).map_or(&[][..], Vec::as_slice);
            (Arc::clone(&limit.name), describe(limit, routes))
        };
        let list: Vec<_> = snapshot.config.limits.iter().map(describe).collect();
        (list, brief_sum(snapshot))
    }))?;
    state.drain();
    let history = state.history();
    let mut crowd = state.crowd();
    let now = now_s();
    let counted = list.into_iter().map(|(name, mut described)| {
        let none = LimitSum::default();
        let counts = sum.limits.get(&name).unwrap_or(&none);
        let count = |verdict: Verdict| counts[verdict as usize].iter().sum::<u64>();
        let (allowed, denied) = history.per_second(&name);
        described["totals"] = json!({
            "allowed": count(Verdict::Allowed),
            "denied": count(Verdict::Denied),
            "shadow_denied": count(Verdict::ShadowDenied),
            "bypassed": count(Verdict::Bypassed),
        });
        if let Some(candidate) = described.get_mut("candidate").filter(|one| !one.is_null()) {
            let tried = sum.candidates.get(&name).unwrap_or(&none);
            let count = |verdict: Verdict| tried[verdict as usize].iter().sum::<u64>();
            candidate["allowed"] = json!(count(Verdict::Allowed));
            candidate["denied"] = json!(count(Verdict::ShadowDenied));
        }
        let shares = crowd.shares(&name, now);
        described["headroom"] = json!(crowd.headroom(&name, now));
        described["use"] = json!({
            "clients": shares.clients,
            "q25": shares.quarters[0],
            "q50": shares.quarters[1],
            "q75": shares.quarters[2],
            "q100": shares.quarters[3],
            "denied": shares.denied,
        });
        described["per_second"] = json!({ "allowed": allowed, "denied": denied });
        described
    });
    Ok(json!({ "limits": counted.collect::<Vec<_>>() }))
}

fn describe(limit: &Limit, routes: &[&str]) -> Value {
    let rates = |windows: &[Arc<Window>]| -> Vec<String> {
        windows.iter().map(|window| window.rate()).collect()
    };
    let tiers = limit.tiers.iter();
    let tiers: BTreeMap<&str, Vec<String>> = tiers
        .map(|tier| (&*tier.name, rates(&tier.windows)))
        .collect();
    let key: Vec<String> = limit.key.parts.iter().map(ToString::to_string).collect();
    let algorithm = limit
        .windows
        .first()
        .map_or("log", |window| match window.rule.algorithm {
            Algorithm::Log => "log",
            Algorithm::Counter => "counter",
            Algorithm::Slots => "slots",
        });
    let candidate = (!limit.candidate.is_empty())
        .then(|| json!({ "rates": rates(&limit.candidate), "allowed": 0, "denied": 0 }));
    json!({
        "name": &*limit.name,
        "rates": rates(&limit.windows),
        "tiers": tiers,
        "key": key.join(", "),
        "algorithm": algorithm,
        "mode": if limit.shadow { "shadow" } else { "enforced" },
        "candidate": candidate,
        "on_error": limit.on_error.word(),
        "routes": &routes[..routes.len().min(MOST_ROUTES)],
        "headroom": null,
        "use": null,
    })
}
