//! Compiles the routes: their names, limits, upstreams, and the default route.

mod limits;

use std::collections::HashMap;
use std::sync::Arc;

use super::definitions::{DEFAULT, Definitions};
use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::reader::{Located, values};
use super::route::RawRoute;
use super::section::proxy_setting;
use crate::limit::Limit;
use crate::path::{CanonicalPath, Case};
use crate::route::template::Template;
use crate::route::{
    Action, CostSource, HeaderText, HostPattern, PathPattern, Route, RouteTable, Target,
};

/// The upstream of routes in files that forward nothing.
const NO_UPSTREAM: usize = 0;

/// The table of all routes; `None` if there is none or two routes are in conflict.
pub(super) fn compile(
    definitions: &mut Definitions<'_>,
    mut raw: Vec<RawRoute>,
    upstream: Option<&Located<Option<String>>>,
) -> Option<RouteTable> {
    let forwards = definitions.reader.surroundings.forwards;
    if !forwards {
        refuse_unlimited(definitions, &raw);
    } else if raw.is_empty() && upstream.is_none() {
        report_no_forwarding(definitions);
    }
    let default = default_target(definitions, upstream);
    let default_span = match forwards {
        true => upstream.map(|text| text.span.clone()),
        false => Some(0..0),
    };
    if let Some(span) = default_span.filter(|_| !raw.iter().any(takes_everything)) {
        raw.push(default_route(&span, &raw));
    }
    let names = route_names(definitions, &raw);
    let chosen = limits::choose_all(definitions, &raw, &names);
    let mut routes = Vec::new();
    let mut spans = Vec::new();
    let mut is_broken = false;
    for ((raw, name), chosen) in raw.into_iter().zip(names).zip(chosen) {
        let span = raw.path_span();
        let target = target(definitions, &raw, default.as_ref());
        check_forwarding(definitions, &raw);
        let limits = limits::check_all(definitions, &raw, &chosen);
        let (Some(path), Some(target)) = (&raw.path, target) else {
            is_broken = true;
            continue;
        };
        let case = case_of(definitions, &raw, routes.len(), &span);
        let path = path.value.clone().in_case(case);
        let parts = RouteParts {
            name,
            path,
            target,
            limits,
            case,
        };
        routes.push(route(definitions, raw, parts, routes.len()));
        spans.push(span);
    }
    table(definitions, routes, &spans).filter(|_| !is_broken)
}

/// The compiled parts of a route.
struct RouteParts {
    name: String,
    path: PathPattern,
    target: Target,
    limits: Vec<Arc<Limit>>,
    case: Case,
}

fn route(definitions: &Definitions<'_>, raw: RawRoute, parts: RouteParts, number: usize) -> Route {
    let case = parts.case;
    let cost = raw.cost.map(|cost| cost.value);
    let forwarding = raw.forwarding;
    let strip_prefix = forwarding.strip_prefix;
    Route {
        number,
        name: Arc::from(parts.name),
        host: raw.host.unwrap_or(HostPattern::Any),
        path: parts.path,
        case,
        methods: raw.methods,
        headers: raw.headers,
        affinity: definitions.balance_key(&parts.target),
        target: parts.target,
        limits: parts.limits,
        cost: cost.unwrap_or(CostSource::Fixed(1)),
        settle: raw.settle.map(|name| name.value),
        refund: raw.refund.map(|set| set.value).unwrap_or_default(),
        strip_prefix: strip_prefix.map(|prefix| prefix.value.in_case(case)),
        add_prefix: forwarding.add_prefix.map(|prefix| prefix.value),
        body_limit: forwarding
            .body_limit
            .unwrap_or(definitions.inherited.max_body),
        headers_up: values(forwarding.headers_up),
        headers_down: values(forwarding.headers_down),
        timeout: raw.timeout,
    }
}

/// The name of each route: its `name`, or its methods, host and path.
fn route_names(definitions: &Definitions<'_>, raw: &[RawRoute]) -> Vec<String> {
    let mut taken: HashMap<String, TextSpan> = HashMap::new();
    for name in raw.iter().filter_map(|route| route.name.as_ref()) {
        if let Some(first) = taken.get(&name.value) {
            Diagnostic::new(
                Code::Duplicate,
                format!("two routes are called `{}`", name.value),
            )
            .at(&name.span, "")
            .at(first, "first here")
            .report_to(definitions.reader);
        }
        taken.entry(name.value.clone()).or_insert(name.span.clone());
    }
    let mut names = Vec::new();
    for route in raw {
        let name = match &route.name {
            Some(name) => name.value.clone(),
            None => unique_name(derived_name(route), |name| taken.contains_key(name)),
        };
        taken.entry(name.clone()).or_insert(route.span.clone());
        names.push(name);
    }
    names
}

/// `POST example.com/login`
fn derived_name(route: &RawRoute) -> String {
    let methods: Vec<_> = route.methods.iter().map(http::Method::as_str).collect();
    let space = if methods.is_empty() { "" } else { " " };
    let methods = methods.join(",");
    format!("{methods}{space}{}{}", route.host_text, route.path_text)
}

fn unique_name(name: String, is_taken: impl Fn(&str) -> bool) -> String {
    let mut unique = name.clone();
    let mut number = 1;
    while is_taken(&unique) {
        number += 1;
        unique = format!("{name} #{number}");
    }
    unique
}

/// Reports upstreams in a file that forwards nothing, and a file that limits nothing.
fn refuse_unlimited(definitions: &Definitions<'_>, routes: &[RawRoute]) {
    for upstream in routes.iter().filter_map(|route| route.upstream.as_ref()) {
        let finding = proxy_setting("route.upstream", &upstream.span);
        definitions.reader.report(finding);
    }
    let is_limited = |route: &RawRoute| {
        let limits = route.limits.as_ref();
        limits.is_some_and(|limits| !limits.value.is_empty())
    };
    if !definitions.has_default_limit() && !routes.iter().any(is_limited) {
        let help = "write `[limit.default]` with a `rate`, or a `[[route]]` with `limits`";
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
    let help = "write `upstream = \"http://127.0.0.1:3000\"` at the top, or a `[[route]]`";
    definitions.reader.report(nothing.help(help));
}

/// Whether letter case tells the paths of a route apart. Remembers routes for which the file does
/// not say it: a note may ask for it.
fn case_of(
    definitions: &mut Definitions<'_>,
    raw: &RawRoute,
    number: usize,
    path: &TextSpan,
) -> Case {
    let given = raw.case.or(definitions.inherited.case);
    if given.is_none() {
        let route = Located::new(number, path);
        definitions.without_case.push(route);
    }
    given.unwrap_or_default()
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
fn takes_everything(raw: &RawRoute) -> bool {
    let root = CanonicalPath::parse("/any/path/at/all");
    raw.host
        .as_ref()
        .is_none_or(|host| *host == HostPattern::Any)
        && raw.methods.is_empty()
        && raw.headers.is_empty()
        && raw.path.as_ref().is_some_and(|path| {
            path.value.params().next().is_none()
                && root.as_ref().is_ok_and(|root| path.value.matches(root))
        })
}

/// The `upstream` at the top by its index; `None` inside if it could not be read.
struct DefaultTarget(Option<usize>);

fn default_target(
    definitions: &mut Definitions<'_>,
    upstream: Option<&Located<Option<String>>>,
) -> Option<DefaultTarget> {
    let upstream = upstream?;
    let text = upstream.value.clone();
    let text = text.map(|text| Located::new(text, &upstream.span));
    let index = text.and_then(|text| definitions.find_upstream(&text));
    Some(DefaultTarget(index))
}

/// The target of a route. Reports a route without one.
fn target(
    definitions: &mut Definitions<'_>,
    raw: &RawRoute,
    default: Option<&DefaultTarget>,
) -> Option<Target> {
    if !definitions.reader.surroundings.forwards {
        return Some(Target::Upstream(NO_UPSTREAM));
    }
    if let Some(answer) = &raw.forwarding.answer {
        return answer.value.clone();
    }
    let index = match &raw.upstream {
        Some(text) => definitions.find_upstream(text),
        None => {
            if default.is_none() && !definitions.reader.has_misplaced("upstream") {
                report_missing_upstream(definitions, raw);
            }
            default.and_then(|default| default.0)
        }
    };
    index.map(Target::Upstream)
}

fn report_missing_upstream(definitions: &Definitions<'_>, raw: &RawRoute) {
    let first = definitions.upstreams.first();
    let example = first.map_or("http://127.0.0.1:3000", |one| &one.settings.name);
    Diagnostic::new(Code::MissingKey, "`route` has no `upstream`")
        .at(&raw.span, "")
        .help(format!("write for example `upstream = \"{example}\"`"))
        .report_to(definitions.reader);
}

/// The catch-all route that the top-level `upstream` makes.
fn default_route(upstream: &TextSpan, others: &[RawRoute]) -> RawRoute {
    let names = || others.iter().filter_map(|route| route.name.as_ref());
    let is_taken = |name: &str| names().any(|other| other.value == name);
    let name = unique_name(DEFAULT.to_owned(), is_taken);
    let path = PathPattern::parse("/*").ok();
    RawRoute {
        span: upstream.clone(),
        name: Some(Located::new(name, upstream)),
        path: path.map(|path| Located::new(path, upstream)),
        path_text: "/*".to_owned(),
        ..RawRoute::default()
    }
}

/// Reports changes that do not fit.
fn check_forwarding(definitions: &Definitions<'_>, raw: &RawRoute) {
    check_prefix(definitions, raw);
    let forwarding = &raw.forwarding;
    for change in forwarding.headers_up.iter().chain(&forwarding.headers_down) {
        if let Action::Set(HeaderText::Made(text)) | Action::Add(HeaderText::Made(text)) =
            &change.value.action
        {
            check_variables(definitions, raw, text, &change.span);
        }
    }
    if let Some(answer) = &forwarding.answer
        && let Some(Target::Redirect(redirect)) = &answer.value
    {
        check_variables(definitions, raw, redirect.to(), &answer.span);
    }
    let Some(settle) = &raw.settle else { return };
    let same = forwarding
        .headers_down
        .iter()
        .find(|change| change.value.name == settle.value);
    if let Some(change) = same {
        let message = format!("`{}` never reaches the client", settle.value);
        Diagnostic::new(Code::Contradiction, message)
            .at(&change.span, "is changed")
            .at(&settle.span, "settles, and is taken off by that")
            .report_to(definitions.reader);
    }
}

/// Reports a variable that the path of the route does not have.
fn check_variables(
    definitions: &Definitions<'_>,
    raw: &RawRoute,
    text: &Template,
    span: &TextSpan,
) {
    let Some(path) = &raw.path else { return };
    if let Some(unknown) = text.unknown_to(&path.value) {
        Diagnostic::new(
            Code::NoSuchParameter,
            format!("the path has nothing for `{{{unknown}}}`"),
        )
        .at(span, "asked for here")
        .at(&path.span, "paths of the route")
        .report_to(definitions.reader);
    }
}

/// Reports a `strip_prefix` that some path of the route does not begin with.
fn check_prefix(definitions: &Definitions<'_>, raw: &RawRoute) {
    let (Some(path), Some(prefix)) = (&raw.path, &raw.forwarding.strip_prefix) else {
        return;
    };
    let case = raw.case.or(definitions.inherited.case).unwrap_or_default();
    let (whole, begin) = (
        path.value.clone().in_case(case),
        prefix.value.clone().in_case(case),
    );
    if !whole.begins_with(begin.as_str()) {
        Diagnostic::new(Code::Contradiction, "not every path begins with this")
            .at(&prefix.span, "is taken off")
            .at(&path.span, "paths of the route")
            .help(format!(
                "write for example `path = \"{}/*\"`",
                prefix.value.as_str()
            ))
            .report_to(definitions.reader);
    }
}
