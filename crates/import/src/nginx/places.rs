//! Which locations nginx asks first, as paths of routes.
//!
//! nginx asks `=` first, then the longest prefix if it has `^~`, then regular expressions in their
//! order, then the longest prefix. A route's path is asked in this order: paths that end,
//! expressions in the order of the file, paths with `/*`. So a prefix that must come before an
//! expression, or that ends within a segment, is written as an expression as well.

use super::expressions;
use super::passing::Outcome;
use super::scope::Scope;
use super::syntax::Directive;
use crate::patterns::{self, Paths};

/// How a location is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Exact,
    Firm,
    Regex,
    AnyCase,
    Prefix,
}

/// A location.
pub(super) struct Location<'d> {
    pub(super) kind: Kind,
    pub(super) path: &'d str,
    pub(super) one: &'d Directive,
    pub(super) scope: Scope<'d>,
    /// Locations around it; the path of the innermost.
    pub(super) depth: usize,
    pub(super) parent: Option<&'d str>,
    pub(super) outcome: Outcome,
    /// Whether nothing answers before it.
    pub(super) is_plain: bool,
}

impl Location<'_> {
    fn is_regex(&self) -> bool {
        matches!(self.kind, Kind::Regex | Kind::AnyCase)
    }

    fn is_prefix(&self) -> bool {
        matches!(self.kind, Kind::Firm | Kind::Prefix)
    }

    /// Whether requests reach an upstream and nothing decides about them.
    fn is_open(&self) -> bool {
        self.is_plain && !self.outcome.goal.refuses()
    }
}

/// A location with its path.
pub(super) struct Placed {
    /// Which of the locations.
    pub(super) number: usize,
    pub(super) paths: Paths,
    /// The path takes more than the location did, so that the route is closed.
    pub(super) is_wider: bool,
}

/// The paths of all locations, in the order in which expressions are asked; those that have none,
/// and why.
pub(super) fn order(all: &[Location<'_>]) -> (Vec<Placed>, Vec<(usize, String)>) {
    let plain = plain_regexes(all);
    let as_regex = as_regexes(all, plain.is_none());
    let rank = |number: &usize| {
        let one = &all[*number];
        let longest = usize::MAX - one.path.len();
        match one.kind {
            Kind::Exact => (0, 0),
            Kind::Firm if as_regex[*number] => (1, longest),
            Kind::Regex | Kind::AnyCase => (2, usize::MAX - one.depth),
            Kind::Prefix if as_regex[*number] => (3, longest),
            Kind::Firm | Kind::Prefix => (4, 0),
        }
    };
    let mut numbers: Vec<usize> = (0..all.len()).collect();
    numbers.sort_by_key(rank);
    let mut places = Vec::new();
    let mut left_out = Vec::new();
    for number in numbers {
        let one = &all[number];
        let found = match one.kind {
            Kind::Exact => patterns::exact(one.path)
                .or_else(|_| literal(one.path, true))
                .map(|paths| (paths, false)),
            Kind::Firm | Kind::Prefix if as_regex[number] => {
                literal(one.path, false).map(|paths| (paths, false))
            }
            Kind::Firm | Kind::Prefix => patterns::prefix(one.path).map(|paths| (paths, false)),
            Kind::Regex | Kind::AnyCase => match plain.as_ref().and_then(|all| all[number].clone())
            {
                Some(paths) => Ok((paths, false)),
                None => regex(one),
            },
        };
        match found {
            Ok((paths, is_wider)) => places.push(Placed {
                number,
                paths,
                is_wider,
            }),
            Err(why) => left_out.push((number, why)),
        }
    }
    (places, left_out)
}

/// The regular expressions as plain paths, if all of them have one and no prefix is in the way.
fn plain_regexes(all: &[Location<'_>]) -> Option<Vec<Option<Paths>>> {
    let each = all.iter().map(|one| {
        if !one.is_regex() {
            return Some(None);
        }
        let paths = patterns::regex(one.path, false).ok()?;
        let exact = one.kind == Kind::Regex && paths.differs.is_none() && one.parent.is_none();
        let end = paths
            .pattern
            .find(['{', '*'])
            .unwrap_or(paths.pattern.len());
        let head = &paths.pattern[..end];
        let in_the_way = |other: &Location<'_>| {
            let firm = other.kind == Kind::Firm && head.starts_with(other.path);
            other.is_prefix() && other.path != "/" && (firm || other.path.starts_with(head))
        };
        (exact && !all.iter().any(in_the_way)).then_some(Some(paths))
    });
    each.collect()
}

/// Which prefixes must be written as expressions.
fn as_regexes(all: &[Location<'_>], beside_regexes: bool) -> Vec<bool> {
    let mut found: Vec<bool> = all
        .iter()
        .map(|one| {
            let within = !one.path.ends_with('/')
                && (!one.is_open() || !one.path.ends_with(|c: char| c.is_alphanumeric()));
            let below = |other: &Location<'_>| {
                other.kind == Kind::Prefix
                    && other.path.len() > one.path.len()
                    && other.path.starts_with(one.path)
            };
            let firm = beside_regexes && one.kind == Kind::Firm && !all.iter().any(below);
            one.is_prefix() && (within || firm || one.path.contains(['{', '}', '*']))
        })
        .collect();
    // What is longer than such a prefix is asked before it.
    for number in 0..all.len() {
        let one = &all[number];
        let above = |(other, is): (&Location<'_>, &bool)| {
            *is && other.path.len() < one.path.len() && one.path.starts_with(other.path)
        };
        if one.is_prefix() && all.iter().zip(&found).any(above) {
            found[number] = true;
        }
    }
    found
}

/// A prefix, or one path, as an expression.
fn literal(path: &str, is_exact: bool) -> Result<Paths, String> {
    let end = if is_exact { "$" } else { "" };
    let text = format!("regex:^{}{end}", expressions::escape(path));
    patterns::checked(text, None)
}

/// A regular expression, and whether it takes more here than it did.
fn regex(one: &Location<'_>) -> Result<(Paths, bool), String> {
    let any_case = one.kind == Kind::AnyCase;
    // Whether a path ends in a slash makes no difference to a route.
    if one.path.ends_with("/$") && !one.outcome.goal.refuses() {
        return Err("a slash at a path's end makes no difference to a route".to_owned());
    }
    let parent = one
        .parent
        .filter(|parent| *parent != "/" && !one.path.starts_with('^'));
    let text = match parent.filter(|_| !one.outcome.goal.refuses()) {
        Some(parent) => format!("^{}.*(?:{})", expressions::escape(parent), one.path),
        None => one.path.to_owned(),
    };
    let written = |text: &str| patterns::checked(format!("regex:{text}"), None);
    if let Ok(same) = expressions::read(&text, any_case) {
        return Ok((written(same.as_str())?, false));
    }
    // What cannot be said is closed as far as it can be bounded.
    let wider = expressions::widened(&text, any_case).unwrap_or_default();
    let mut paths = written(&wider)?;
    paths.differs = Some(format!(
        "the route's expression is `{wider}`, which takes more; so it is closed"
    ));
    Ok((paths, true))
}
