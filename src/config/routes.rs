//! Routes with their limits and upstreams found, and the default route.

use std::collections::HashMap;
use std::sync::Arc;

use super::budget::Budget;
use super::compile::Names;
use super::diagnostic::{Code, Diagnostic, Span};
use super::limits::RawLimit;
use super::raw::RawRoute;
use super::section::{At, nearest};
use super::standalone;
use crate::limit::rate::RateText;
use crate::limit::{Algorithm, Limit, Missing};
use crate::path::CanonicalPath;
use crate::route::{CostSource, HostPattern, PathPattern, Route, RouteTable, StatusSet};

/// What a route is called that the top-level `upstream` makes, and the limit for routes that name
/// none.
pub(super) const DEFAULT: &str = "default";

/// The table of all routes; nothing if there is none or two are in conflict.
pub(super) fn compile(
    names: &mut Names<'_>,
    mut raw: Vec<RawRoute>,
    upstream: Option<&At<Option<String>>>,
) -> Option<RouteTable> {
    let forwards = names.reader.surroundings.forwards;
    if !forwards {
        standalone::check(names, &raw);
    } else if raw.is_empty() && upstream.is_none() {
        let nothing = Diagnostic::new(Code::MissingKey, "the file forwards nothing");
        let help = "write `upstream = \"http://127.0.0.1:3000\"` at the top, or a `[[route]]`";
        names.reader.report(nothing.help(help));
    }
    let given = upstream.and_then(|text| {
        text.value.clone().map(|value| At {
            value,
            span: text.span.clone(),
        })
    });
    let default_target = given.and_then(|text| names.target(&text));
    let rest = match upstream {
        _ if !forwards => Some(0..0),
        upstream => upstream.map(|text| text.span.clone()),
    };
    if let Some(span) = rest.filter(|_| !raw.iter().any(takes_everything)) {
        raw.push(default_route(&span, &raw));
    }
    let called = route_names(names, &raw);
    let mut chosen = Vec::new();
    for (raw, name) in raw.iter().zip(&called) {
        let limits = choose(names, raw, name);
        check_giving_back(names, raw, &limits);
        chosen.push(limits);
    }
    let mut routes = Vec::new();
    let mut spans = Vec::new();
    let mut broken = false;
    for ((raw, name), chosen) in raw.into_iter().zip(called).zip(chosen) {
        let span = raw
            .path
            .as_ref()
            .map_or(raw.span.clone(), |path| path.span.clone());
        let (limits, path, target) =
            parts(names, &raw, chosen, (upstream.is_some(), default_target));
        let (Some(path), Some(upstream)) = (path, target) else {
            broken = true;
            continue;
        };
        let name = Arc::from(name);
        let (host, methods, headers) = (raw.host.value, raw.methods, raw.headers);
        let cost = raw.cost.value;
        routes.push(Route {
            name,
            host,
            path,
            methods,
            headers,
            upstream,
            limits,
            cost,
            settle: raw.settle.map(|name| name.value),
            refund: raw.refund.map_or_else(StatusSet::default, |set| set.value),
        });
        spans.push(span);
    }
    table(names, routes, &spans).filter(|_| !broken)
}

/// The table, unless two routes match the same requests.
fn table(names: &Names<'_>, routes: Vec<Route>, spans: &[Span]) -> Option<RouteTable> {
    RouteTable::new(routes)
        .inspect_err(|conflicts| {
            for conflict in conflicts {
                report_conflict(names, &spans[conflict.first], &spans[conflict.second]);
            }
        })
        .ok()
}

fn report_conflict(names: &Names<'_>, first: &Span, second: &Span) {
    let diagnostic = Diagnostic::new(Code::RouteConflict, "two routes match the same requests")
        .at(second, "this route")
        .at(first, "and this one")
        .help("tell them apart by `host`, `path`, `methods` or `headers`, or remove one");
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

/// A route's limits, path and upstream; what cannot be found is reported.
fn parts(
    names: &mut Names<'_>,
    raw: &RawRoute,
    chosen: Vec<(usize, Span)>,
    (has_default, default_target): (bool, Option<usize>),
) -> (Vec<Arc<Limit>>, Option<PathPattern>, Option<usize>) {
    let target = match &raw.upstream {
        _ if !names.reader.surroundings.forwards => Some(standalone::INNER),
        Some(text) => names.target(text),
        None => {
            if !has_default {
                missing_upstream(names, raw);
            }
            default_target
        }
    };
    let mut limits = Vec::new();
    for (index, span) in chosen {
        names.budgets[index].used = true;
        let budget = &names.budgets[index];
        check_params(names, budget, raw, &span);
        check_cost(names, budget, raw);
        limits.extend(budget.limit.clone());
    }
    (
        limits,
        raw.path.as_ref().map(|path| path.value.clone()),
        target,
    )
}

/// Limits of a route that gives units back may allow sooner than they said when they denied: they
/// know of it. Must come before anybody shares them.
fn check_giving_back(names: &mut Names<'_>, raw: &RawRoute, chosen: &[(usize, Span)]) {
    let settle = raw.settle.as_ref().map(|header| ("settle", &header.span));
    let refund = raw.refund.as_ref().map(|set| ("refund", &set.span));
    let Some((key, span)) = settle.or(refund) else {
        return;
    };
    let holds = |budget: &Budget| {
        let first = budget.rules.first();
        first.is_some_and(|rule| rule.value.algorithm == Algorithm::Slots)
    };
    for (index, _) in chosen {
        let budget = &mut names.budgets[*index];
        let spends = !holds(budget);
        if let Some(limit) = budget.limit.as_mut().and_then(Arc::get_mut) {
            limit.gives_back = spends;
        }
    }
    let all = chosen
        .iter()
        .all(|(index, _)| holds(&names.budgets[*index]));
    if let Some((index, _)) = chosen.first().filter(|_| all) {
        let message = format!("nothing to give back by `{key}`");
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(span, "")
            .at(&names.budgets[*index].rate_span, "ends with its request")
            .help("name a limit with a `rate`, or leave it out");
        names.reader.report(diagnostic);
    }
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

/// The limits of a route, by index and where they are named.
fn choose(names: &mut Names<'_>, raw: &RawRoute, route: &str) -> Vec<(usize, Span)> {
    let Some(texts) = &raw.limits else {
        let span = raw
            .path
            .as_ref()
            .map_or(raw.span.clone(), |path| path.span.clone());
        return names
            .limit_named(DEFAULT)
            .map(|index| (index, span))
            .into_iter()
            .collect();
    };
    let mut chosen: Vec<(usize, Span)> = Vec::new();
    for text in &texts.value {
        let index = match names.limit_named(&text.value) {
            Some(index) => index,
            None if text.value.contains('/') => match in_place(names, text, route) {
                Some(index) => index,
                None => continue,
            },
            None if text.value == "unlimited" => continue,
            None => {
                unknown_limit(names, text);
                continue;
            }
        };
        if let Some((_, first)) = chosen.iter().find(|(earlier, _)| *earlier == index) {
            let message = format!("`{}` is named twice in one route", text.value);
            let diagnostic = Diagnostic::new(Code::Duplicate, message)
                .at(&text.span, "")
                .at(first, "first here");
            names.reader.report(diagnostic);
            continue;
        }
        chosen.push((index, text.span.clone()));
    }
    chosen
}

fn unknown_limit(names: &Names<'_>, text: &At<String>) {
    let known = names
        .limits()
        .iter()
        .map(|budget| budget.name.value.as_str());
    let help = match nearest(&text.value, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!(
            "define it: `[limit.{}]`, or write a rate such as `100/min`",
            text.value
        ),
    };
    let message = format!("no limit is called `{}`", text.value);
    let diagnostic = Diagnostic::new(Code::UnknownLimit, message)
        .at(&text.span, "")
        .help(help);
    names.reader.report(diagnostic);
}

/// A rate in place: a limit of the route's name, by the default limit's key or the address.
fn in_place(names: &mut Names<'_>, text: &At<String>, route: &str) -> Option<usize> {
    let rate = match RateText::parse(&text.value) {
        Ok(rate) => rate,
        Err(error) => {
            let message = format!("`{}` is neither a limit's name nor a rate", text.value);
            let diagnostic = Diagnostic::new(Code::BadRate, message);
            names.reader.report(diagnostic.because(&text.span, &error));
            return None;
        }
    };
    let default = names
        .limit_named(DEFAULT)
        .map(|index| &names.budgets[index]);
    let key = default.map(|budget| At {
        value: budget.key.clone(),
        span: budget.key_span.clone(),
    });
    let missing = default.map_or(Missing::Ip, |budget| budget.missing);
    let base = slug(route);
    let mut name = base.clone();
    let mut count = 1;
    // `default` would become the limit of routes that name none, as soon as it had a section.
    while name == DEFAULT || names.is_limit(&name) {
        count += 1;
        name = format!("{base}-{count}");
    }
    let name = At {
        value: name,
        span: text.span.clone(),
    };
    let rate = match rate {
        RateText::Limited(rate) => Some(rate),
        RateText::Unlimited => None,
    };
    Some(names.add_limit(RawLimit {
        key,
        missing,
        ..RawLimit::of_rate(name, rate)
    }))
}

/// A route's name as a limit's name: `POST /login` is `post-login`.
fn slug(route: &str) -> String {
    let route = route.to_ascii_lowercase().replace('*', "all");
    let words = route.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    // Room for a number behind it.
    let name: String = words.join("-").chars().take(58).collect();
    if name.is_empty() {
        "root".to_owned()
    } else {
        name
    }
}

/// A key by a path parameter needs a path that has it.
fn check_params(names: &Names<'_>, budget: &Budget, raw: &RawRoute, span: &Span) {
    let Some(path) = &raw.path else { return };
    for part in &budget.key.parts {
        let [crate::limit::key::Part::PathParam(wanted)] = part.0.as_slice() else {
            continue;
        };
        if path.value.params().any(|name| name == wanted) {
            continue;
        }
        let message = format!("the path has no `{{{wanted}}}` to count by");
        let mut diagnostic = Diagnostic::new(Code::NoSuchParameter, message).at(
            span,
            format!(
                "`limit.{}` is for paths with `{{{wanted}}}`",
                budget.name.value
            ),
        );
        if budget.key_span != *span {
            diagnostic = diagnostic.at(&budget.key_span, "asked for here");
        }
        let close = nearest(wanted, path.value.params());
        let help = close.map(|name| format!("did you mean `path:{name}`?"));
        names.reader.report(diagnostic.maybe_help(help));
    }
}

/// A cost above the limit is never granted, for whatever tier. A limit's own cost alone is checked
/// with the limit.
fn check_cost(names: &Names<'_>, budget: &Budget, raw: &RawRoute) {
    let (Some(limit), CostSource::Fixed(cost)) = (&budget.limit, &raw.cost.value) else {
        return;
    };
    let smallest = budget.rules.iter().min_by_key(|rule| rule.value.units);
    let total = cost.saturating_mul(limit.cost);
    let Some(rule) = smallest.filter(|rule| *cost > 1 && total > rule.value.units) else {
        return;
    };
    let message = "the route's requests can never be allowed";
    let diagnostic = Diagnostic::new(Code::CostAboveLimit, message)
        .at(
            &raw.cost.span,
            format!("each costs {total} of `limit.{}`", limit.name),
        )
        .at(&rule.span, "which never holds so many");
    names.reader.report(diagnostic);
}

/// What each route is called: its `name`, or its methods and path.
fn route_names(names: &Names<'_>, raw: &[RawRoute]) -> Vec<String> {
    let mut taken: HashMap<String, Span> = HashMap::new();
    for name in raw.iter().filter_map(|route| route.name.as_ref()) {
        if let Some(first) = taken.get(&name.value) {
            let message = format!("two routes are called `{}`", name.value);
            let diagnostic = Diagnostic::new(Code::Duplicate, message)
                .at(&name.span, "")
                .at(first, "first here");
            names.reader.report(diagnostic);
        }
        taken.entry(name.value.clone()).or_insert(name.span.clone());
    }
    let mut called = Vec::new();
    for route in raw {
        let name = match &route.name {
            Some(name) => name.value.clone(),
            None => unique(derived_name(route), |name| taken.contains_key(name)),
        };
        taken.entry(name.clone()).or_insert(route.span.clone());
        called.push(name);
    }
    called
}

/// `POST example.com/login`
fn derived_name(route: &RawRoute) -> String {
    let methods: Vec<_> = route.methods.iter().map(http::Method::as_str).collect();
    let space = if methods.is_empty() { "" } else { " " };
    let host = route.host_text.as_deref().unwrap_or_default();
    format!("{}{space}{host}{}", methods.join(","), route.path_text)
}

fn unique(name: String, taken: impl Fn(&str) -> bool) -> String {
    if !taken(&name) {
        return name;
    }
    let numbered = |number: usize| format!("{name} #{number}");
    (2..)
        .map(numbered)
        .find(|candidate| !taken(candidate))
        .unwrap_or(name)
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
        name: Some(here(unique(DEFAULT.to_owned(), taken))),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_its_limits() {
        assert_eq!(slug("POST /login"), "post-login");
        assert_eq!(
            slug("GET,HEAD example.com/users/{id}"),
            "get-head-example-com-users-id"
        );
        assert_eq!(slug("/search/*"), "search-all");
        assert_eq!(slug("/"), "root");
        assert_eq!(slug("Ä"), "root");
        assert!(slug(&"/long".repeat(50)).len() <= 58);
    }
}
