//! Warnings about budgets of tokens, and about what clients choose in their bodies.

use std::collections::BTreeSet;

use crate::config::compile::Compiled;
use crate::config::definitions::RoutePlaces;
use crate::config::usage::DefinedUsage;
use crate::config::*;
use crate::limit::key::Part;
use crate::limit::{Limit, Rule};
use crate::route::{CostSource, Route};
use crate::usage::settings::{AbortedUsage, Quantity, UsageSettings};
use crate::usage::tokens::TokenCounts;

/// Bytes for one token that a text of one language has at most, as a rule.
const USUAL_BYTES: u64 = 4;

/// Reports all warnings about usage.
pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>, refused: &BTreeSet<usize>) {
    let definitions = &compiled.definitions;
    let mut observed = BTreeSet::new();
    for (route, places) in compiled.config.routes.iter().zip(&definitions.route_places) {
        if let CostSource::Body(path) = &route.cost {
            report_chosen_cost(reader, path.as_str(), places);
        }
        let Some(usage) = &places.usage else { continue };
        let defined = &definitions.usages[usage.value];
        if observed.insert(usage.value) {
            check_observed(reader, defined);
        }
        let enforced = route.limits.iter().filter(|limit| !limit.shadow);
        let counting: Vec<&Limit> = (enforced.map(|limit| &**limit))
            .filter(|limit| limit.counts_usage())
            .collect();
        if counting.is_empty() {
            continue;
        }
        check_refund(reader, route, &usage.span);
        check_bound(reader, route, &usage.span, counting[0]);
        for limit in counting {
            check_default_output(reader, compiled, defined, limit);
        }
    }
    check_invented_values(reader, compiled, refused);
}

fn report_chosen_cost(reader: &ConfigReader<'_>, path: &str, places: &RoutePlaces) {
    Diagnostic::new(
        Code::ClientChosenCost,
        "clients choose what their requests cost",
    )
    .at(&places.cost, format!("the client writes `{path}`"))
    .help("leave `cost` out, or let the upstream settle it: `settle = \"response-json:PATH\"`")
    .report_to(reader);
}

fn check_observed(reader: &ConfigReader<'_>, defined: &DefinedUsage) {
    let UsageSettings {
        abort,
        bytes_per_token,
        ..
    } = &*defined.settings;
    if *abort != AbortedUsage::Observed || *bytes_per_token <= USUAL_BYTES {
        return;
    }
    let message = format!(
        "`usage.{}` charges little for answers that clients leave",
        defined.name
    );
    Diagnostic::new(Code::LooseObservation, message)
        .at(
            &defined.abort_span,
            format!("a token for each {bytes_per_token} bytes that were seen"),
        )
        .help("use `bytes_per_token = 4` or less, or `abort = \"estimate\"` or `\"drain\"`")
        .report_to(reader);
}

fn check_refund(reader: &ConfigReader<'_>, route: &Route, usage: &TextSpan) {
    if !route.refund.is_empty() {
        return;
    }
    let message = format!("route `{}` charges calls that failed", route.name);
    Diagnostic::new(Code::NoRefund, message)
        .at(
            usage,
            "an error has no usage, so the whole reserve is charged",
        )
        .help("write `refund = [\"4xx\", \"5xx\"]` in the route")
        .report_to(reader);
}

/// Reports calls that may go on in any number: each may use more than it reserved.
fn check_bound(reader: &ConfigReader<'_>, route: &Route, usage: &TextSpan, counting: &Limit) {
    let bounds = |limit: &Limit| limit.is_concurrent() || limit.counts == Quantity::Requests;
    let mut enforced = route.limits.iter().filter(|limit| !limit.shadow);
    if enforced.any(|limit| bounds(limit)) {
        return;
    }
    let message = format!(
        "nothing bounds the calls under way on route `{}`",
        route.name
    );
    let label = format!(
        "all of them may use more than they reserved of `limit.{}`",
        counting.name
    );
    Diagnostic::new(Code::UnboundedCalls, message)
        .at(usage, label)
        .help("add a limit with `concurrent = 20`, or one with `counts = \"requests\"`")
        .report_to(reader);
}

/// Reports a limit that does not hold two calls whose requests name no maximum.
fn check_default_output(
    reader: &ConfigReader<'_>,
    compiled: &Compiled<'_>,
    defined: &DefinedUsage,
    limit: &Limit,
) {
    let reserve = limit.units(default_units(&defined.settings, limit.counts));
    let limits = &compiled.definitions.limits;
    let places = limits.iter().find(|one| one.name.value == *limit.name);
    let rules = places.map_or(&[][..], |one| one.rules.as_slice());
    let smallest = rules.iter().min_by_key(|rule| rule.value.units);
    let is_small = |rule: &&Located<Rule>| 2 * reserve > rule.value.units;
    let Some(rule) = smallest.filter(is_small) else {
        return;
    };
    let message = format!(
        "`limit.{}` does not hold two calls without a maximum",
        limit.name
    );
    Diagnostic::new(Code::LargeDefaultOutput, message)
        .at(&rule.span, "")
        .at(
            &defined.output_span,
            format!("each reserves {reserve} units for its answer"),
        )
        .help("set a lower `default_output`, or raise the rate")
        .report_to(reader);
}

/// The units of `default_output`, of the most expensive model.
fn default_units(settings: &UsageSettings, counts: Quantity) -> u64 {
    let tokens = TokenCounts {
        output: settings.default_output,
        ..TokenCounts::default()
    };
    match counts {
        Quantity::Money => {
            let rows = settings.prices.rows.iter();
            rows.map(|row| row.price.units(tokens)).max().unwrap_or(0)
        }
        counts => settings.units(counts, tokens, "").unwrap_or(0),
    }
}

/// Reports parts of keys that clients choose in their bodies, if each value counts by itself.
fn check_invented_values(
    reader: &ConfigReader<'_>,
    compiled: &Compiled<'_>,
    refused: &BTreeSet<usize>,
) {
    let limits = compiled.definitions.limits.iter().enumerate();
    let accepted = limits.filter(|(index, limit)| limit.is_used && !refused.contains(index));
    for (_, defined) in accepted {
        let key = &defined.key.value;
        let is_invented = |part: &&Part| matches!(part, Part::Body(_)) && !key.lists(part);
        // A rate in place takes the default limit's key: that limit has the warning.
        let is_in_place = defined.name.span == defined.rate_span;
        let Some(part) = key.all().find(is_invented).filter(|_| !is_in_place) else {
            continue;
        };
        let message = format!(
            "clients can invent budgets of `limit.{}`",
            defined.name.value
        );
        Diagnostic::new(Code::InventedValues, message)
            .at(
                &defined.key.span,
                format!("each new `{part}` has a budget of its own"),
            )
            .help(values_help(part))
            .report_to(reader);
    }
}

pub(super) fn values_help(part: &Part) -> String {
    format!("name the values: `values = {{ \"{part}\" = [\"..\"] }}`")
}
