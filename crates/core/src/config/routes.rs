//! Compiles the routes: their names, limits, upstreams, and the default route.

mod limits;
mod usage;

use std::collections::HashMap;

use super::definitions::{DEFAULT, Definitions, RoutePlaces};
use super::route::{DefinedRoute, NO_UPSTREAM, default_route};
use super::*;
use crate::path::{CanonicalPath, Case};
use crate::route::{HostPattern, Route, RouteTable, Target};

/// The table of all routes; `None` if there is none or two routes are in conflict.
pub(super) fn compile(
    definitions: &mut Definitions<'_>,
    mut defined: Vec<DefinedRoute>,
    upstream: Option<&Located<Option<String>>>,
) -> Option<RouteTable> {
    let forwards = definitions.reader.surroundings.forwards;
    if !forwards || definitions.only_decides {
        refuse_unlimited(definitions, &defined);
    } else if defined.is_empty() && upstream.is_none() {
        report_no_forwarding(definitions);
    }
    let default = default_target(definitions, upstream);
    let default_span = match forwards {
        true => upstream.map(|text| text.span.clone()),
        false => Some(0..0),
    };
    if let Some(span) = default_span.filter(|_| !defined.iter().any(takes_everything)) {
        let names = || defined.iter().filter_map(|route| route.name.as_ref());
        let is_taken = |name: &str| names().any(|other| other.value == name);
        let name = unique_name(DEFAULT.to_owned(), is_taken);
        let section = Section::absent(definitions.reader, "route", span);
        defined.push(default_route(section, definitions.inherited, name));
    }
    name_routes(definitions, &mut defined);
    let chosen = limits::choose_all(definitions, &defined);
    let mut routes = Vec::new();
    let mut spans = Vec::new();
    let mut is_broken = false;
    for (one, chosen) in defined.into_iter().zip(chosen) {
        let target = target(definitions, &one, default.as_ref());
        let usage = one.usage.as_ref();
        let usage = usage.and_then(|text| {
            let index = definitions.find_usage(text)?;
            Some(Located::new(index, &text.span))
        });
        let limits = limits::check_all(definitions, &one, &chosen);
        usage::check(definitions, &one, &chosen, usage.as_ref());
        let Some(target) = target.filter(|_| one.has_path) else {
            is_broken = true;
            continue;
        };
        if definitions.only_decides {
            definitions.unseen_responses.extend(one.refunds);
        }
        if !one.says_case {
            let route = Located::new(routes.len(), &one.path_span);
            definitions.without_case.push(route);
        }
        let mut route = one.route;
        route.number = routes.len();
        route.affinity = definitions.balance_key(&target);
        route.target = target;
        route.limits = limits;
        let own = usage.as_ref().map(|one| &definitions.usages[one.value]);
        let own = own.map(|usage| &usage.settings);
        usage::set(&mut route, own, definitions.bills_tokens);
        let pages = one.error_pages.as_deref();
        route.error_pages = definitions.error_pages.of_route(definitions.reader, pages);
        let logs = one.access_logs.as_deref();
        route.access_logs = definitions.access_logs.of_route(definitions.reader, logs);
        definitions.route_places.push(RoutePlaces {
            path: one.path_span.clone(),
            cost: one.cost_span,
            port: one.port_span,
            headers: one.headers_span,
            usage,
        });
        routes.push(route);
        spans.push(one.path_span);
    }
    table(definitions, routes, &spans).filter(|_| !is_broken)
}

/// The route of a question that no other route takes: it has the limit `default`, if there is one.
pub(super) fn unrouted(definitions: &mut Definitions<'_>, number: usize) -> Route {
    let default = definitions.limit_named(DEFAULT);
    let default = default.map(|index| &mut definitions.limits[index]);
    let limits = default.and_then(|limit| {
        limit.is_used = true;
        limit.limit.clone()
    });
    Route {
        number,
        name: "unrouted".into(),
        limits: limits.into_iter().collect(),
        ..without_settings(definitions)
    }
}

/// A route that the file does not have.
pub(super) fn without_settings(definitions: &Definitions<'_>) -> Route {
    let section = Section::absent(definitions.reader, "route", 0..0);
    default_route(section, definitions.inherited, DEFAULT.to_owned()).route
}

/// Names each route: by its `name`, or by its methods, host and path.
fn name_routes(definitions: &Definitions<'_>, routes: &mut [DefinedRoute]) {
    let mut taken: HashMap<String, TextSpan> = HashMap::new();
    for name in routes.iter().filter_map(|route| route.name.as_ref()) {
        if let Some(first) = taken.get(&name.value) {
            duplicate(format!("two routes are called `{}`", name.value))
                .at(&name.span, "")
                .at(first, "first here")
                .report_to(definitions.reader);
        }
        taken.entry(name.value.clone()).or_insert(name.span.clone());
    }
    for route in routes {
        let name = match &route.name {
            Some(name) => name.value.clone(),
            None => unique_name(derived_name(route), |name| taken.contains_key(name)),
        };
        taken.entry(name.clone()).or_insert(route.span.clone());
        route.route.name = name.into();
    }
}

/// `POST example.com/login`
fn derived_name(route: &DefinedRoute) -> String {
    let methods: Vec<_> = route
        .route
        .methods
        .iter()
        .map(http::Method::as_str)
        .collect();
    let space = if methods.is_empty() { "" } else { " " };
    let methods = methods.join(",");
    format!("{methods}{space}{}{}", route.host_text, route.path_text)
}

pub(super) fn unique_name(name: String, is_taken: impl Fn(&str) -> bool) -> String {
    let mut unique = name.clone();
    let mut number = 1;
    while is_taken(&unique) {
        number += 1;
        unique = format!("{name} #{number}");
    }
    unique
}

/// Reports a file that limits nothing.
fn refuse_unlimited(definitions: &Definitions<'_>, routes: &[DefinedRoute]) {
    let is_limited = |route: &DefinedRoute| {
        let limits = route.limits.as_ref();
        limits.is_some_and(|limits| !limits.is_empty())
    };
    let is_empty = !definitions.has_default_limit() && !definitions.has_descriptors;
    if is_empty && !routes.iter().any(is_limited) {
        let help = match definitions.only_decides {
            true => "write a `[[route]]` or a `[[descriptor]]` with `limits`",
            false => "write `[limit.default]` with a `rate`, or a `[[route]]` with `limits`",
        };
        Diagnostic::new(Code::MissingKey, "the file limits nothing")
            .help(help)
            .report_to(definitions.reader);
    }
}

fn report_no_forwarding(definitions: &Definitions<'_>) {
    if definitions.reader.has_misplaced("upstream") {
        return;
    }
    let nothing = Diagnostic::new(Code::MissingKey, "the file forwards nothing");
    let help = match definitions.upstreams.first() {
        None => {
            "write `upstream = \"http://127.0.0.1:3000\"` at the top, or a `[[route]]`".to_owned()
        }
        Some(one) => format!(
            "write a `[[route]]` with `path = \"/*\"` and `upstream = \"{}\"`",
            one.settings.name
        ),
    };
    definitions.reader.report(nothing.help(help));
}

/// The table, unless two routes match the same requests.
fn table(
    definitions: &Definitions<'_>,
    routes: Vec<Route>,
    spans: &[TextSpan],
) -> Option<RouteTable> {
    let cases: Vec<Case> = routes.iter().map(|route| route.case).collect();
    let conflicts = match RouteTable::new(routes) {
        Ok(table) => return Some(table),
        Err(conflicts) => conflicts,
    };
    for conflict in conflicts {
        let message = "two routes match the same requests";
        let mut diagnostic = Diagnostic::new(Code::RouteConflict, message)
            .at(&spans[conflict.second], "this route")
            .at(&spans[conflict.first], "and this one")
            .help("tell them apart by `host`, `path`, `methods` or `headers`, or remove one");
        let mut both = [conflict.first, conflict.second].into_iter();
        if both.any(|one| cases[one] == Case::Insensitive) {
            let note = "`case = \"insensitive\"` takes a path in every letter case";
            diagnostic = diagnostic.note(note);
        }
        definitions.reader.report(diagnostic);
    }
    None
}

/// Whether a route is the catch-all that the default route would be.
fn takes_everything(defined: &DefinedRoute) -> bool {
    let route = &defined.route;
    let root = CanonicalPath::parse("/any/path/at/all");
    route.host == HostPattern::Any
        && route.methods.is_empty()
        && route.headers.is_empty()
        && route.query.is_empty()
        && defined.has_path
        && route.path.params().next().is_none()
        && root.is_ok_and(|root| route.path.matches(&root))
}

/// The `upstream` at the top by its index; `None` inside if it could not be read.
fn default_target(
    definitions: &mut Definitions<'_>,
    upstream: Option<&Located<Option<String>>>,
) -> Option<Option<usize>> {
    let upstream = upstream?;
    let text = upstream.value.clone();
    let text = text.map(|text| Located::new(text, &upstream.span));
    Some(text.and_then(|text| definitions.find_upstream(&text)))
}

/// The target of a route. Reports a route without one.
fn target(
    definitions: &mut Definitions<'_>,
    route: &DefinedRoute,
    default: Option<&Option<usize>>,
) -> Option<Target> {
    if !definitions.reader.surroundings.forwards {
        return Some(Target::Upstream(NO_UPSTREAM));
    }
    if route.answers {
        return route.answer.clone();
    }
    let index = match &route.upstream {
        Some(text) => definitions.find_upstream(text),
        None if definitions.only_decides => Some(NO_UPSTREAM),
        None => {
            if default.is_none() && !definitions.reader.has_misplaced("upstream") {
                report_missing_upstream(definitions, route);
            }
            default.copied().flatten()
        }
    };
    index.map(Target::Upstream)
}

fn report_missing_upstream(definitions: &Definitions<'_>, route: &DefinedRoute) {
    let first = definitions.upstreams.first();
    let example = first.map_or("http://127.0.0.1:3000", |one| &one.settings.name);
    Diagnostic::new(Code::MissingKey, "`route` has no `upstream`")
        .at(&route.span, "")
        .help(format!("write for example `upstream = \"{example}\"`"))
        .report_to(definitions.reader);
}
