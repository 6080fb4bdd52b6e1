//! The usage of a route, its agreement with the limits, and what the route reads of bodies.

use std::sync::Arc;

use crate::config::definitions::Definitions;
use crate::config::limit_names::ChosenLimit;
use crate::config::limits::DefinedLimit;
use crate::config::route::DefinedRoute;
use crate::config::*;
use crate::limit::Limit;
use crate::limit::key::Part;
use crate::route::CostSource;
use crate::usage::request::{BodyMember, RequestTable, UsageMembers};
use crate::usage::settings::{Quantity, UsageSettings};
use crate::usage::tokens::TokenCounts;

impl Definitions<'_> {
    /// The index of the usage that `usage = TEXT` of a route refers to: by its name, or by the name
    /// of a format.
    pub(super) fn find_usage(&mut self, text: &Located<String>) -> Option<usize> {
        let named = self.usages.iter().position(|one| one.name == text.value);
        if named.is_some() {
            return named;
        }
        let Some(defined) = usage::of_format(text, &self.prices) else {
            self.report_unknown_usage(text);
            return None;
        };
        self.usages.push(defined);
        Some(self.usages.len() - 1)
    }

    fn report_unknown_usage(&self, text: &Located<String>) {
        if self.reader.is_misnamed("usage", &text.value) {
            return;
        }
        let help = if text.value == usage::JSON {
            "write `[usage.json]` with `format = \"json\"` and the paths of its numbers".to_owned()
        } else {
            let named = self.usages.iter().map(|one| one.name.as_str());
            let otherwise = format!(
                "define it: `[usage.{}]`, or write a format such as `openai`",
                text.value
            );
            did_you_mean(&text.value, named.chain(usage::format_words()), otherwise)
        };
        text.unknown(Code::UnknownUsage, "usage")
            .help(help)
            .report_to(self.reader);
    }
}

/// Sets how a route counts usage, and what it reads of bodies. `is_billed` tells whether a ledger
/// has the tokens or the money of its requests.
pub(super) fn set(route: &mut Route, settings: Option<&Arc<UsageSettings>>, is_billed: bool) {
    if settings.is_some() {
        route.cost = CostSource::Fixed(0);
    }
    route.usage = settings.cloned();
    route.reads_body = reads_body(route, is_billed && !route.limits.is_empty());
}

/// The members of a body that the decision about a request of the route needs.
fn reads_body(route: &Route, is_billed: bool) -> Option<Arc<RequestTable>> {
    let mut members: Vec<BodyMember> = Vec::new();
    let parts = route.limits.iter().flat_map(|limit| limit.key.all());
    let of_keys = parts.filter_map(|part| match part {
        Part::Body(member) => Some(member.clone()),
        _ => None,
    });
    let of_cost = match &route.cost {
        CostSource::Body(path) => Some(BodyMember::Path(path.clone())),
        CostSource::Fixed(_) | CostSource::Header(_) => None,
    };
    for member in of_keys.chain(of_cost) {
        if !members.contains(&member) {
            members.push(member);
        }
    }
    let reserves_output =
        |limit: &Arc<Limit>| limit.counts_usage() && limit.counts != Quantity::Input;
    let reads_usage =
        |usage: &UsageSettings| usage.asks || is_billed || route.limits.iter().any(reserves_output);
    let usage = match &route.usage {
        Some(usage) if reads_usage(usage) => {
            usage.format.map_or(UsageMembers::OfAny, UsageMembers::Of)
        }
        _ => UsageMembers::None,
    };
    let reads = usage != UsageMembers::None || !members.is_empty();
    reads.then(|| Arc::new(RequestTable::new(members, usage)))
}

/// Checks the limits of a route against its usage.
pub(super) fn check(
    definitions: &Definitions<'_>,
    route: &DefinedRoute,
    chosen: &[ChosenLimit],
    usage: Option<&Located<usize>>,
) {
    for chosen in chosen {
        check_needed(definitions, route, chosen);
        if let Some(usage) = usage {
            check_smallest(definitions, &definitions.limits[chosen.value], usage);
        }
    }
}

/// Reports a limit that counts something of which the route knows nothing.
fn check_needed(definitions: &Definitions<'_>, route: &DefinedRoute, chosen: &ChosenLimit) {
    let defined = &definitions.limits[chosen.value];
    let Some(limit) = defined
        .limit
        .as_ref()
        .filter(|limit| limit.counts.needs_usage())
    else {
        return;
    };
    // A route without a cost only looks at its limits.
    if route.usage.is_some() || route.route.cost == CostSource::Fixed(0) {
        return;
    }
    let message = format!(
        "`limit.{}` counts what a route without `usage` does not know",
        limit.name
    );
    let mut diagnostic = Diagnostic::new(Code::UsageNeeded, message)
        .at(&defined.counts_span, "needs the usage of each answer");
    if !chosen.span.is_empty() {
        diagnostic = diagnostic.at(&chosen.span, "this route has no `usage`");
    }
    diagnostic
        .help("write `usage = \"openai\"` in the route, or another format")
        .report_to(definitions.reader);
}

/// Reports a limit that cannot even hold one token of input.
fn check_smallest(definitions: &Definitions<'_>, defined: &DefinedLimit, usage: &Located<usize>) {
    let Some(limit) = defined.limit.as_ref().filter(|limit| limit.counts_usage()) else {
        return;
    };
    let settings = &definitions.usages[usage.value].settings;
    let total = limit.units(smallest(settings, limit.counts));
    let rule = defined.rules.iter().min_by_key(|rule| rule.value.units);
    let Some(rule) = rule.filter(|rule| total > rule.value.units) else {
        return;
    };
    Diagnostic::new(
        Code::CostAboveLimit,
        "the route's requests can never be allowed",
    )
    .help("lower the weights or the cost, or raise the rate")
    .at(
        &usage.span,
        format!("a single token costs {total} of `limit.{}`", limit.name),
    )
    .at(&rule.span, "which never holds so many")
    .report_to(definitions.reader);
}

/// The units of one token of input, of the cheapest model.
fn smallest(settings: &UsageSettings, counts: Quantity) -> u64 {
    let tokens = TokenCounts {
        input: 1,
        ..TokenCounts::default()
    };
    match counts {
        Quantity::Money => {
            let rows = settings.prices.rows.iter();
            rows.map(|row| row.price.units(tokens)).min().unwrap_or(0)
        }
        counts => settings.units(counts, tokens, "").unwrap_or(0),
    }
}
