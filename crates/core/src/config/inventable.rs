//! Doubts about limits that count by what clients can invent: a client that sends another value
//! with each request has a fresh budget each time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::Config;
use super::budget::Budget;
use super::compile::Compiled;
use super::diagnostic::{Code, Diagnostic};
use super::reader::Reader;
use crate::limit::key::{Alternatives, Part, UnknownKey};
use crate::limit::{Limit, Missing};
use crate::route::Route;

/// The place of each budget, by the address of its limit.
type BudgetIndex = HashMap<*const Limit, usize>;

/// Reports both doubts.
pub(super) fn find(reader: &Reader<'_>, compiled: &Compiled<'_>, index: &BudgetIndex) {
    untold_keys(reader, compiled);
    let mut told = BTreeSet::new();
    for route in compiled.config.routes.iter() {
        let guards = inventable(&compiled.config, route);
        let budget = |limit: &Arc<Limit>| index.get(&Arc::as_ptr(limit)).copied();
        let budgets: Vec<usize> = guards
            .iter()
            .filter_map(|(limit, _)| budget(limit))
            .collect();
        // Routes with the same limits have the same fault.
        if budgets.is_empty() || !told.insert(budgets.clone()) {
            continue;
        }
        let budgets = budgets.iter().map(|index| &compiled.names.budgets[*index]);
        let parts = guards.iter().map(|(_, part)| *part);
        report(reader, compiled, route, budgets.zip(parts).collect());
    }
}

/// Limits count by API keys, and every key is unknown.
fn untold_keys(reader: &Reader<'_>, compiled: &Compiled<'_>) {
    if !compiled.config.keys_are_untold() {
        return;
    }
    let mut budgets = compiled.names.budgets.iter();
    let Some(budget) = budgets.find(|budget| budget.limit.is_some() && budget.key.asks_api_key())
    else {
        return;
    };
    let what = match compiled.config.api_key.unknown {
        UnknownKey::Deny => "every request with a key is refused",
        _ => "every key counts as none: by its client's address, or as `missing` says",
    };
    let message = "API keys are not told apart: nothing says which are known";
    let diagnostic = Diagnostic::new(Code::UntoldKeys, message)
        .at(&budget.key_span, what)
        .help(
            "name the keys: `known = \"keys.txt\"` in `[api_key]`; or set `unknown = \"trust\"` \
             there, with a limit by `ip` beside; or count by `ip`, or by `jwt:CLAIM`",
        );
    reader.report(diagnostic);
}

/// The route's limits that count by an invention, with the part at fault; none if another of its
/// limits holds.
fn inventable<'r>(config: &Config, route: &'r Route) -> Vec<(&'r Arc<Limit>, &'r Part)> {
    let mut found = Vec::new();
    for limit in route.limits.iter().filter(|limit| !limit.shadow) {
        match limit
            .key
            .parts
            .iter()
            .find_map(|part| invention(config, part))
        {
            Some(part) => found.push((limit, part)),
            None if can_be_skipped(limit) => {}
            None => return Vec::new(),
        }
    }
    // Such headers have a warning of their own.
    match found.iter().all(|(_, part)| part.is_chosen_by_client()) {
        true => Vec::new(),
        false => found,
    }
}

/// The alternative that a client can invent. Those before it can be left out: one that is present
/// in every request is always the last.
fn invention<'k>(config: &Config, part: &'k Alternatives) -> Option<&'k Part> {
    part.0.iter().find(|one| match one {
        Part::ApiKey => config.api_key.is_inventable(),
        // Trusted proxies may have set it.
        Part::Header(_) => config.client_ip.trusted.is_empty(),
        Part::Query(_) | Part::Cookie(_) | Part::PathParam(_) => true,
        Part::Ip | Part::Path | Part::Method | Part::Host | Part::Route => false,
        Part::Global | Part::Tier | Part::Jwt(_) | Part::Tls(_) | Part::Custom(_) => false,
    })
}

/// Whether a request that leaves its key out is not counted at all.
fn can_be_skipped(limit: &Limit) -> bool {
    let mut parts = limit.key.parts.iter();
    limit.missing == Missing::Skip && parts.any(|part| !part.0.iter().any(Part::is_always_present))
}

fn report(
    reader: &Reader<'_>,
    compiled: &Compiled<'_>,
    route: &Route,
    guards: Vec<(&Budget, &Part)>,
) {
    let message = format!(
        "route `{}` is limited only by what clients can invent",
        route.name
    );
    let mut diagnostic = Diagnostic::new(Code::InventableKey, message);
    for (budget, part) in &guards {
        let label = format!("each new `{part}` has a budget of its own");
        diagnostic = diagnostic.at(&budget.key_span, label);
    }
    if guards.iter().any(|(_, part)| **part == Part::ApiKey)
        && let Some(span) = &compiled.unknown_span
    {
        diagnostic = diagnostic.at(span, "keys that nothing knows are believed");
    }
    let help = "add a limit by `ip` to the route; or count by what clients cannot invent: `ip`, \
                `jwt:CLAIM`, `tls:subject`, or `api_key` with `known = \"keys.txt\"`";
    diagnostic = diagnostic.help(help);
    if guards
        .iter()
        .any(|(_, part)| matches!(part, Part::Header(_)))
    {
        let note = "if a proxy in front of this one sets the header, name it in `trusted_proxies`";
        diagnostic = diagnostic.note(note);
    }
    reader.report(diagnostic);
}
