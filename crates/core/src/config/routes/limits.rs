//! The limits of a route, named or written in place, and their agreement with the route.

use std::sync::Arc;

use crate::config::definitions::{DEFAULT, Definitions};
use crate::config::limit_names::{ChosenLimit, RateInPlace};
use crate::config::limits::DefinedLimit;
use crate::config::route::DefinedRoute;
use crate::config::*;
use crate::limit::key::Part;
use crate::limit::{Algorithm, Limit, Missing};
use crate::path::Case;
use crate::route::{CostSource, Target};

/// Finds the limits of each route.
pub(super) fn choose_all(
    definitions: &mut Definitions<'_>,
    routes: &[DefinedRoute],
) -> Vec<Vec<ChosenLimit>> {
    let mut all = Vec::new();
    for route in routes {
        let chosen = choose(definitions, route);
        definitions.has_unlimited_route |= route.limits.is_none() && chosen.is_empty();
        mark_refunded(definitions, route, &chosen);
        mark_held(definitions, &chosen);
        all.push(chosen);
    }
    set_path_case(definitions, routes, &all);
    all
}

/// Checks the limits of a route and returns them.
pub(super) fn check_all(
    definitions: &mut Definitions<'_>,
    route: &DefinedRoute,
    chosen: &[ChosenLimit],
) -> Vec<Arc<Limit>> {
    let mut limits = Vec::new();
    for chosen in chosen {
        definitions.limits[chosen.value].is_used = true;
        let defined = &definitions.limits[chosen.value];
        check_params(definitions, defined, route, &chosen.span);
        check_cost(definitions, defined, route);
        check_delay(definitions, defined, route);
        limits.extend(defined.limit.clone());
    }
    limits
}

fn choose(definitions: &mut Definitions<'_>, route: &DefinedRoute) -> Vec<ChosenLimit> {
    let default = definitions.limit_named(DEFAULT);
    let Some(texts) = &route.limits else {
        let default = default.map(|index| Located::new(index, &route.path_span));
        return Vec::from_iter(default);
    };
    let default = default.map(|index| &definitions.limits[index]);
    let in_place = RateInPlace {
        user: "route",
        name: route.route.name.to_string(),
        key: default.map(|limit| limit.key.value.clone()),
        missing: default.map_or(Missing::Ip, |limit| limit.missing),
        shadow: false,
    };
    definitions.choose_limits(texts, &in_place)
}

/// Marks the limits of a route that gives units back: a client that such a limit denied may be
/// allowed earlier than the denial said. Must come before the limits are shared.
fn mark_refunded(definitions: &mut Definitions<'_>, route: &DefinedRoute, chosen: &[ChosenLimit]) {
    let Some(Located { value: key, span }) = &route.refunds else {
        return;
    };
    let is_concurrent = |defined: &DefinedLimit| {
        let first = defined.rules.first();
        first.is_some_and(|rule| rule.value.algorithm == Algorithm::Slots)
    };
    for chosen in chosen {
        let defined = &mut definitions.limits[chosen.value];
        let refunds = !is_concurrent(defined);
        if let Some(limit) = defined.limit.as_mut().and_then(Arc::get_mut) {
            limit.refunds = refunds;
        }
    }
    // Usage is worth reading without limits too.
    if *key == "usage" {
        return;
    }
    let why = if chosen.is_empty() {
        Some("the route has no limits")
    } else {
        refunds_nothing(route, key).then_some("the route answers by itself")
    };
    if let Some(why) = why {
        no_effect(format!("`{key}` gives nothing back"))
            .at(span, why)
            .help("leave it out")
            .report_to(definitions.reader);
    }
    let mut limits = chosen.iter().map(|one| &definitions.limits[one.value]);
    if let Some(first) = limits.clone().next().filter(|_| limits.all(is_concurrent)) {
        contradiction(format!("nothing to give back by `{key}`"))
            .at(span, "")
            .at(&first.rate_span, "ends with its request")
            .help("name a limit with a `rate`, or leave it out")
            .report_to(definitions.reader);
    }
}

/// Whether a route answers by itself, and never so that `key` changes the cost.
fn refunds_nothing(route: &DefinedRoute, key: &str) -> bool {
    let status = match &route.answer {
        Some(Target::Respond(respond)) => respond.status,
        Some(Target::Redirect(redirect)) => redirect.status,
        _ => return false,
    };
    match key {
        "refund" => !route.route.refund.contains(status),
        // No setting of the route writes this header, but a body or a trailer may have the cost.
        _ => route.route.settle_header().is_some(),
    }
}

/// Marks the limits of a route that holds requests: clients that leave while they wait give units
/// back. Must come before the limits are shared.
fn mark_held(definitions: &mut Definitions<'_>, chosen: &[ChosenLimit]) {
    let limit_of = |one: &ChosenLimit| definitions.limits[one.value].limit.as_ref();
    let mut limits = chosen.iter().filter_map(limit_of);
    if !limits.any(|limit| limit.delay.is_some()) {
        return;
    }
    for chosen in chosen {
        let limit = &mut definitions.limits[chosen.value].limit;
        if let Some(limit) = limit.as_mut().and_then(Arc::get_mut) {
            limit.refunds = !limit.is_concurrent();
        }
    }
}

/// Sets the letter case of keys by path: it is that of the limit's routes, if all have the same.
fn set_path_case(
    definitions: &mut Definitions<'_>,
    routes: &[DefinedRoute],
    chosen: &[Vec<ChosenLimit>],
) {
    for (index, defined) in definitions.limits.iter_mut().enumerate() {
        let uses = |chosen: &[ChosenLimit]| chosen.iter().any(|one| one.value == index);
        let users = routes.iter().zip(chosen).filter(|(_, chosen)| uses(chosen));
        let mut cases = users.map(|(route, _)| route.route.case);
        let first = cases.next().unwrap_or_default();
        let is_same = cases.all(|case| case == first);
        if let Some(limit) = defined.limit.as_mut().and_then(Arc::get_mut) {
            limit.set_case(if is_same { first } else { Case::Sensitive });
        }
    }
}

/// Reports a key by a path parameter that the path does not have.
fn check_params(
    definitions: &Definitions<'_>,
    limit: &DefinedLimit,
    route: &DefinedRoute,
    span: &TextSpan,
) {
    if !route.has_path {
        return;
    }
    let path = &route.route.path;
    for part in &limit.key.value.parts {
        if part.0.iter().all(|one| matches!(one, Part::Entry(_))) {
            contradiction(format!("no request has `{part}`"))
                .at(span, "only a descriptor has entries")
                .help("count by something that a request has: `ip`, `api_key`, `header:NAME`")
                .report_to(definitions.reader);
        }
        let [Part::PathParam(wanted)] = part.0.as_slice() else {
            continue;
        };
        if path.params().any(|name| name == wanted) {
            continue;
        }
        let message = format!("the path has no `{{{wanted}}}` to count by");
        let name = &limit.name.value;
        let label = format!("`limit.{name}` is for paths with `{{{wanted}}}`");
        let mut diagnostic = Diagnostic::new(Code::NoSuchParameter, message).at(span, label);
        if limit.key.span != *span {
            diagnostic = diagnostic.at(&limit.key.span, "asked for here");
        }
        let close = nearest(wanted, path.params());
        let colon = format!(":{wanted}");
        let help = match close {
            _ if route.path_text.contains(&colon) => {
                let path = route.path_text.replace(&colon, &format!("{{{wanted}}}"));
                Some(format!("write the path as `{path}`"))
            }
            close => close.map(|name| format!("did you mean `path:{name}`?")),
        };
        definitions.reader.report(diagnostic.maybe_help(help));
    }
}

/// Reports a wait that ends after the time of the route: the request is denied instead.
fn check_delay(definitions: &Definitions<'_>, defined: &DefinedLimit, route: &DefinedRoute) {
    let delay = defined.limit.as_ref().and_then(|limit| limit.delay);
    let (Some(delay), Some(timeout)) = (delay, route.route.timeout) else {
        return;
    };
    if u128::from(delay.longest_us) < timeout.as_micros() {
        return;
    }
    let message = format!(
        "`limit.{}` may hold a request longer than its route's `timeout`",
        defined.name.value
    );
    Diagnostic::new(Code::OutlivedWait, message)
        .at(&route.timeout_span, "includes the wait")
        .at(
            &defined.delay_span,
            "a request that would wait so long is denied at once",
        )
        .help("raise the `timeout`, or lower the `delay`")
        .report_to(definitions.reader);
}

/// Reports a cost above the units of a limit or of one of its tiers. The limit's own cost is
/// checked with the limit.
fn check_cost(definitions: &Definitions<'_>, defined: &DefinedLimit, route: &DefinedRoute) {
    let (Some(limit), CostSource::Fixed(units)) = (&defined.limit, &route.route.cost) else {
        return;
    };
    let units = *units;
    let smallest = defined.rules.iter().min_by_key(|rule| rule.value.units);
    let total = limit.units(units);
    let Some(rule) = smallest.filter(|rule| units > 1 && total > rule.value.units) else {
        return;
    };
    let message = "the route's requests can never be allowed";
    let label = format!("each costs {total} of `limit.{}`", limit.name);
    Diagnostic::new(Code::CostAboveLimit, message)
        .help("lower the cost, or raise the rate")
        .at(&route.cost_span, label)
        .at(&rule.span, "which never holds so many")
        .report_to(definitions.reader);
}
