//! Routes with their limits and upstreams found, and the default route.

mod called;
mod limits;
mod passing;

use std::sync::Arc;

use super::diagnostic::{Code, Diagnostic, Span};
use super::names::{DEFAULT, Names};
use super::reader::At;
use super::route::{RawPassing, RawRoute};
use super::standalone;
use crate::limit::Limit;
use crate::path::{CanonicalPath, Case};
use crate::route::{CostSource, HostPattern, PathPattern, Route, RouteTable, StatusSet, Target};

/// The table of all routes; nothing if there is none or two are in conflict.
pub(super) fn compile(
    names: &mut Names<'_>,
    mut raw: Vec<RawRoute>,
    upstream: Option<&At<Option<String>>>,
) -> Option<RouteTable> {
    let forwards = names.reader.surroundings.forwards;
    if !forwards {
        refuse_unlimited(names, &raw);
    } else if raw.is_empty() && upstream.is_none() {
        forwards_nothing(names);
    }
    let given = upstream.and_then(|text| {
        text.value.clone().map(|value| At {
            value,
            span: text.span.clone(),
        })
    });
    let target = given.and_then(|text| names.target(&text));
    let default_target = upstream.map(|_| DefaultTarget(target));
    let rest = match upstream {
        _ if !forwards => Some(0..0),
        upstream => upstream.map(|text| text.span.clone()),
    };
    if let Some(span) = rest.filter(|_| !raw.iter().any(takes_everything)) {
        raw.push(default_route(&span, &raw));
    }
    let called = called::route_names(names, &raw);
    let chosen = choose_limits(names, &raw, &called);
    let mut routes = Vec::new();
    let mut spans = Vec::new();
    let mut broken = false;
    for ((raw, name), chosen) in raw.into_iter().zip(called).zip(chosen) {
        let span = raw
            .path
            .as_ref()
            .map_or(raw.span.clone(), |path| path.span.clone());
        let (limits, path, target) = parts(names, &raw, chosen, default_target.as_ref());
        let (Some(path), Some(target)) = (path, target) else {
            broken = true;
            continue;
        };
        let name = Arc::from(name);
        let case = case_of(names, &raw, routes.len(), &span);
        let (host, methods, headers) = (raw.host.value, raw.methods, raw.headers);
        let cost = raw.cost.value;
        routes.push(Route {
            number: routes.len(),
            name,
            host,
            path: path.in_case(case),
            case,
            methods,
            headers,
            affinity: names.affinity(&target),
            target,
            limits,
            cost,
            settle: raw.settle.map(|name| name.value),
            refund: raw.refund.map_or_else(StatusSet::default, |set| set.value),
            strip_prefix: raw
                .passing
                .strip_prefix
                .map(|prefix| prefix.value.in_case(case)),
            add_prefix: raw.passing.add_prefix.map(|prefix| prefix.value),
            body_limit: raw.passing.body_limit.unwrap_or(names.max_body),
            headers_up: values(raw.passing.headers_up),
            headers_down: values(raw.passing.headers_down),
            timeout: raw.timeout,
        });
        spans.push(span);
    }
    table(names, routes, &spans).filter(|_| !broken)
}

/// The limits of each route.
fn choose_limits(
    names: &mut Names<'_>,
    raw: &[RawRoute],
    called: &[String],
) -> Vec<Vec<(usize, Span)>> {
    let mut chosen = Vec::new();
    for (raw, name) in raw.iter().zip(called) {
        let limits = limits::choose(names, raw, name);
        names.unlimited_unsaid |= raw.limits.is_none() && limits.is_empty();
        limits::check_giving_back(names, raw, &limits);
        chosen.push(limits);
    }
    limits::spell_paths(names, raw, &chosen);
    chosen
}

/// What is wrong with routes that lead nowhere, and with a file that limits nothing.
fn refuse_unlimited(names: &Names<'_>, routes: &[RawRoute]) {
    for upstream in routes.iter().filter_map(|route| route.upstream.as_ref()) {
        let diagnostic = standalone::meaningless("route.upstream", &upstream.span);
        names.reader.report(diagnostic);
    }
    let limited = |route: &RawRoute| {
        let limits = route.limits.as_ref();
        limits.is_some_and(|limits| !limits.value.is_empty())
    };
    if !names.has_default() && !routes.iter().any(limited) {
        let help = "write `[limit.default]` with a `rate`, or a `[[route]]` with `limits`";
        let diagnostic = Diagnostic::new(Code::MissingKey, "the file limits nothing");
        names.reader.report(diagnostic.help(help));
    }
}

fn forwards_nothing(names: &Names<'_>) {
    if names.reader.has_misplaced("upstream") {
        return;
    }
    let nothing = Diagnostic::new(Code::MissingKey, "the file forwards nothing");
    let help = "write `upstream = \"http://127.0.0.1:3000\"` at the top, or a `[[route]]`";
    names.reader.report(nothing.help(help));
}

/// Whether letter case tells the paths of a route apart. A note may ask for what is not said.
fn case_of(names: &mut Names<'_>, raw: &RawRoute, number: usize, path: &Span) -> Case {
    let said = raw.case.or(names.case);
    if said.is_none() {
        names.caseless.push(At {
            value: number,
            span: path.clone(),
        });
    }
    said.unwrap_or_default()
}

fn values<T>(found: Vec<At<T>>) -> Vec<T> {
    found.into_iter().map(|one| one.value).collect()
}

/// The table, unless two routes match the same requests.
fn table(names: &Names<'_>, routes: Vec<Route>, spans: &[Span]) -> Option<RouteTable> {
    let cases: Vec<Case> = routes.iter().map(|route| route.case).collect();
    RouteTable::new(routes)
        .inspect_err(|conflicts| {
            for conflict in conflicts {
                let both = [conflict.first, conflict.second];
                let folds = both.iter().any(|one| cases[*one] == Case::Insensitive);
                report_conflict(names, both.map(|one| &spans[one]), folds);
            }
        })
        .ok()
}

fn report_conflict(names: &Names<'_>, [first, second]: [&Span; 2], folds: bool) {
    let mut diagnostic = Diagnostic::new(Code::RouteConflict, "two routes match the same requests")
        .at(second, "this route")
        .at(first, "and this one")
        .help("tell them apart by `host`, `path`, `methods` or `headers`, or remove one");
    if folds {
        diagnostic = diagnostic.note("`case = \"insensitive\"` takes a path in every letter case");
    }
    names.reader.report(diagnostic);
}

/// Whether a route is the catch-all that the default route would be.
fn takes_everything(raw: &RawRoute) -> bool {
    let root = CanonicalPath::parse("/any/path/at/all");
    raw.host.value == HostPattern::Any
        && raw.methods.is_empty()
        && raw.headers.is_empty()
        && raw.path.as_ref().is_some_and(|path| {
            path.value.params().next().is_none()
                && root.as_ref().is_ok_and(|root| path.value.matches(root))
        })
}

/// The `upstream` at the top by number; nothing in it if it could not be read.
struct DefaultTarget(Option<usize>);

/// A route's limits, path and upstream; what cannot be found is reported.
fn parts(
    names: &mut Names<'_>,
    raw: &RawRoute,
    chosen: Vec<(usize, Span)>,
    default: Option<&DefaultTarget>,
) -> (Vec<Arc<Limit>>, Option<PathPattern>, Option<Target>) {
    let target = match (&raw.passing.answer, &raw.upstream) {
        _ if !names.reader.surroundings.forwards => Some(Target::Upstream(standalone::INNER)),
        (Some(answer), _) => answer.value.clone(),
        (None, Some(text)) => names.target(text).map(Target::Upstream),
        (None, None) => {
            if default.is_none() && !names.reader.has_misplaced("upstream") {
                missing_upstream(names, raw);
            }
            default.and_then(|default| default.0).map(Target::Upstream)
        }
    };
    passing::check(names, raw);
    let mut limits = Vec::new();
    for (index, span) in chosen {
        names.budgets[index].used = true;
        let budget = &names.budgets[index];
        limits::check_params(names, budget, raw, &span);
        limits::check_cost(names, budget, raw);
        limits.extend(budget.limit.clone());
    }
    (
        limits,
        raw.path.as_ref().map(|path| path.value.clone()),
        target,
    )
}

fn missing_upstream(names: &Names<'_>, raw: &RawRoute) {
    let example = names
        .targets
        .first()
        .map_or("http://127.0.0.1:3000", |one| &one.settings.name);
    let diagnostic = Diagnostic::new(Code::MissingKey, "`route` has no `upstream`")
        .at(&raw.span, "")
        .help(format!("write for example `upstream = \"{example}\"`"));
    names.reader.report(diagnostic);
}

/// The catch-all route that the top-level `upstream` makes.
fn default_route(upstream: &Span, others: &[RawRoute]) -> RawRoute {
    let taken = |name: &str| {
        others
            .iter()
            .filter_map(|route| route.name.as_ref())
            .any(|other| other.value == name)
    };
    let here = |value| At {
        value,
        span: upstream.clone(),
    };
    RawRoute {
        span: upstream.clone(),
        name: Some(here(called::unique(DEFAULT.to_owned(), taken))),
        host: At {
            value: HostPattern::Any,
            span: upstream.clone(),
        },
        host_text: None,
        path: PathPattern::parse("/*").ok().map(|value| At {
            value,
            span: upstream.clone(),
        }),
        path_text: "/*".to_owned(),
        case: None,
        methods: Vec::new(),
        headers: Vec::new(),
        upstream: None,
        limits: None,
        cost: At {
            value: CostSource::Fixed(1),
            span: upstream.clone(),
        },
        settle: None,
        refund: None,
        passing: RawPassing::default(),
        timeout: None,
    }
}
