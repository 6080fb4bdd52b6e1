//! Weights of servers. Those of a source may be 0, or larger than those of `proxy.toml`.

use super::draft::{Draft, TargetDraft};

/// The largest weight of `proxy.toml`.
const MAX_WEIGHT: u64 = 1000;

/// Removes servers that get no requests, and scales large weights. The routes of an upstream
/// without another server answer 503.
pub(super) fn settle(draft: &mut Draft) {
    let Draft {
        upstreams,
        routes,
        notes,
        ..
    } = draft;
    upstreams.retain_mut(|upstream| {
        let place = upstream.place.clone();
        let count = upstream.servers.len();
        upstream.servers.retain(|server| {
            let is_used = server.weight != Some(0);
            if !is_used {
                let why = "its weight is 0, so it gets no requests; it is left out";
                notes.lost(&place, &server.url, why);
            }
            is_used
        });
        let weights = upstream.servers.iter().map(|one| one.weight.unwrap_or(1));
        let (least, most) = (weights.clone().min(), weights.max().unwrap_or(1));
        if most > MAX_WEIGHT && least != Some(most) {
            let why = format!("weights are at most {MAX_WEIGHT}, so they are scaled down");
            notes.differs(&place, &upstream.name, why);
        }
        for server in &mut upstream.servers {
            let weight = server.weight.unwrap_or(1);
            let scaled = match most > MAX_WEIGHT {
                true => (weight.saturating_mul(MAX_WEIGHT) / most).max(1),
                false => weight,
            };
            server.weight = Some(scaled).filter(|one| *one > 1 && least != Some(most));
        }
        let is_used = count == 0 || !upstream.servers.is_empty();
        let all = routes.iter_mut().filter(|_| !is_used);
        for route in all.filter(|one| one.target.is_upstream(&upstream.name)) {
            let why = "all of its servers have a weight of 0; it answers 503";
            notes.lost(&route.source.place, &route.source.text, why);
            route.answer(TargetDraft::respond(503));
        }
        is_used
    });
}
