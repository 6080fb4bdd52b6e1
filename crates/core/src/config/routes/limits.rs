//! The limits of a route: named or written in place, and whether they fit it.

use std::sync::Arc;

use super::super::advice;
use super::super::budget::Budget;
use super::super::diagnostic::{Code, Diagnostic, Span};
use super::super::limits::RawLimit;
use super::super::names::{DEFAULT, Names};
use super::super::reader::At;
use super::super::route::RawRoute;
use super::super::slip::nearest;
use crate::limit::rate::RateText;
use crate::limit::{Algorithm, Missing};
use crate::path::Case;
use crate::route::CostSource;

/// The limits of a route, by index and where they are named.
pub(super) fn choose(names: &mut Names<'_>, raw: &RawRoute, route: &str) -> Vec<(usize, Span)> {
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
    if names.reader.is_misnamed("limit", &text.value) {
        return;
    }
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
            let diagnostic = diagnostic.because(&text.span, &error);
            let advice = advice::of(Code::BadRate, &text.value);
            names.reader.report(diagnostic.maybe_help(advice));
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

/// Limits of a route that gives units back may allow sooner than they said when they denied: they
/// know of it. Must come before anybody shares them.
pub(super) fn check_giving_back(names: &mut Names<'_>, raw: &RawRoute, chosen: &[(usize, Span)]) {
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

/// Tells each limit how its routes spell the paths that it may count by.
pub(super) fn spell_paths(names: &mut Names<'_>, raw: &[RawRoute], chosen: &[Vec<(usize, Span)>]) {
    let file = names.case;
    for (index, budget) in names.budgets.iter_mut().enumerate() {
        let uses = |of: &[(usize, Span)]| of.iter().any(|(one, _)| *one == index);
        let routes = raw.iter().zip(chosen).filter(|(_, of)| uses(of));
        let mut cases = routes.map(|(route, _)| route.case.or(file).unwrap_or_default());
        let first = cases.next().unwrap_or_default();
        let same = cases.all(|case| case == first);
        if let Some(limit) = budget.limit.as_mut().and_then(Arc::get_mut) {
            limit.case = if same { first } else { Case::Sensitive };
        }
    }
}

/// A key by a path parameter needs a path that has it.
pub(super) fn check_params(names: &Names<'_>, budget: &Budget, raw: &RawRoute, span: &Span) {
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
        let colon = format!(":{wanted}");
        let help = match close {
            _ if raw.path_text.contains(&colon) => {
                let path = raw.path_text.replace(&colon, &format!("{{{wanted}}}"));
                Some(format!("write the path as `{path}`"))
            }
            close => close.map(|name| format!("did you mean `path:{name}`?")),
        };
        names.reader.report(diagnostic.maybe_help(help));
    }
}

/// A cost above the limit is never granted, for whatever tier. A limit's own cost alone is checked
/// with the limit.
pub(super) fn check_cost(names: &Names<'_>, budget: &Budget, raw: &RawRoute) {
    let (Some(limit), CostSource::Fixed(cost)) = (&budget.limit, &raw.cost.value) else {
        return;
    };
    let smallest = budget.rules.iter().min_by_key(|rule| rule.value.units);
    let total = limit.units(*cost);
    let Some(rule) = smallest.filter(|rule| *cost > 1 && total > rule.value.units) else {
        return;
    };
    let message = "the route's requests can never be allowed";
    let diagnostic = Diagnostic::new(Code::CostAboveLimit, message)
        .help("lower the cost, or raise the rate")
        .at(
            &raw.cost.span,
            format!("each costs {total} of `limit.{}`", limit.name),
        )
        .at(&rule.span, "which never holds so many");
    names.reader.report(diagnostic);
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
