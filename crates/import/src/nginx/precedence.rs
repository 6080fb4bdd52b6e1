//! The order in which nginx tries locations, as paths of routes.
//!
//! nginx tries `=` first, then the longest prefix if it has `^~`, then regular expressions in their
//! order, then the longest prefix. Routes are tried in this order: exact paths, expressions in the
//! order of the file, paths with `/*`. So some prefixes are written as expressions: those that must
//! come before an expression, and those that end within a segment.

use super::limits;
use super::scope::{BlockScope, LocationPath};
use super::syntax::Directive;
use super::variables::{self, ValuePart};
use crate::draft::{RouteAction, TargetDraft};
use crate::patterns::{self, ImportedPath};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocationKind {
    /// `=`
    Exact,
    /// `^~`
    FirmPrefix,
    /// `~`
    Regex,
    /// `~*`
    AnyCaseRegex,
    Prefix,
}

impl LocationKind {
    pub(super) fn is_regex(self) -> bool {
        matches!(self, LocationKind::Regex | LocationKind::AnyCaseRegex)
    }

    pub(super) fn is_prefix(self) -> bool {
        matches!(self, LocationKind::FirmPrefix | LocationKind::Prefix)
    }
}

/// Returns the kind and the path of a location. The sign and the path may be one word, as in
/// `location ~\.php$`.
pub(super) fn parse_location(one: &Directive) -> Option<(LocationKind, &str)> {
    let signs = [
        ("=", LocationKind::Exact),
        ("^~", LocationKind::FirmPrefix),
        ("~*", LocationKind::AnyCaseRegex),
        ("~", LocationKind::Regex),
    ];
    let first = one.arg(0);
    match one.args.len() {
        1 => {
            let signed = |(sign, kind)| Some((kind, first.strip_prefix(sign)?));
            let signed = signs.into_iter().find_map(signed);
            Some(signed.unwrap_or((LocationKind::Prefix, first)))
        }
        2 => {
            let (_, kind) = signs.into_iter().find(|(sign, _)| *sign == first)?;
            Some((kind, one.arg(1)))
        }
        _ => None,
    }
}

pub(super) struct Location<'d> {
    pub(super) kind: LocationKind,
    pub(super) path: &'d str,
    pub(super) scope: BlockScope<'d>,
    pub(super) nesting: Nesting<'d>,
    pub(super) action: RouteAction,
    /// No condition answers before the action, and no addresses are refused that the server
    /// admits.
    pub(super) is_plain: bool,
    /// It sends clients to the path with a slash, before nginx looks into the location.
    pub(super) adds_slash: bool,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Nesting<'d> {
    pub(super) depth: usize,
    /// The prefix of the innermost.
    pub(super) parent: Option<&'d str>,
}

impl<'d> Location<'d> {
    pub(super) fn request_path(&self) -> LocationPath<'d> {
        LocationPath {
            path: (!self.kind.is_regex()).then_some(self.path),
            is_exact: self.kind == LocationKind::Exact,
            new_beginning: None,
        }
    }

    /// Whether an exact path has a slash at its end; `None` if no other location has the path
    /// that differs in the slash.
    fn trailing_slash(&self, all: &[Location<'_>]) -> Option<bool> {
        let is_there = self.path.ends_with('/');
        let other = match self.path.strip_suffix('/') {
            Some(path) => path.to_owned(),
            None => format!("{}/", self.path),
        };
        let has_twin = all
            .iter()
            .any(|one| !one.kind.is_regex() && one.path == other);
        has_twin.then_some(is_there)
    }

    /// Returns the location that nginx adds to `/a/` with a `proxy_pass`: it redirects `/a` there.
    pub(super) fn slash_redirect(&self, all: &[Location<'_>]) -> Option<Location<'d>> {
        let path = self
            .path
            .strip_suffix('/')
            .filter(|path| !path.is_empty())?;
        let names_server = ["proxy_pass", "grpc_pass"]
            .iter()
            .any(|name| self.scope.first(name).is_some());
        let passes = names_server && matches!(self.action.target, TargetDraft::Upstream(_));
        let is_taken = all
            .iter()
            .any(|one| !one.kind.is_regex() && one.path == path);
        if !self.kind.is_prefix() || !passes || is_taken {
            return None;
        }
        let to = format!("{}?{{query}}", patterns::escape_path(self.path));
        Some(Location {
            kind: LocationKind::Exact,
            path,
            scope: self.scope.clone(),
            nesting: self.nesting,
            action: TargetDraft::Redirect { to, status: 301 }.into(),
            is_plain: true,
            adds_slash: true,
        })
    }

    /// Whether every request reaches an upstream.
    fn is_open(&self) -> bool {
        self.is_plain && !self.action.target.denies()
    }

    fn has_limits(&self) -> bool {
        let mut kinds = limits::KINDS.iter();
        kinds.any(|kind| self.scope.first(kind).is_some())
    }

    /// Whether it is below `^~`, and nginx still asks the expressions before it.
    fn is_asked_after_regexes(&self, firm: &Location<'_>) -> bool {
        self.kind == LocationKind::Prefix && self.is_below(firm)
    }

    fn is_below(&self, other: &Location<'_>) -> bool {
        other.path.len() < self.path.len() && self.path.starts_with(other.path)
    }
}

pub(super) struct PlacedLocation {
    pub(super) index: usize,
    /// Fails with a reason if no route can have the path.
    pub(super) path: Result<ImportedPath, String>,
}

/// Returns all locations in the order in which routes must try their expressions.
pub(super) fn order(all: &[Location<'_>]) -> Vec<PlacedLocation> {
    let plain = plain_regexes(all);
    let needs_regex = prefixes_as_regexes(all, plain.is_none());
    // Those that must come before a guard, which comes before the expressions.
    let is_hoisted = |index: usize| {
        let mut firm = all.iter().zip(&needs_regex).filter(|(one, is_regex)| {
            **is_regex && one.kind == LocationKind::FirmPrefix && !one.is_open()
        });
        plain.is_none() && firm.any(|(firm, _)| all[index].is_asked_after_regexes(firm))
    };
    let rank = |index: &usize| {
        let one = &all[*index];
        let longest_first = usize::MAX - one.path.len();
        match one.kind {
            LocationKind::Exact => (0, 0),
            LocationKind::FirmPrefix if needs_regex[*index] => (1, longest_first),
            _ if is_hoisted(*index) => (1, longest_first),
            kind if kind.is_regex() => (2, usize::MAX - one.nesting.depth),
            _ if needs_regex[*index] => (3, longest_first),
            _ => (4, 0),
        }
    };
    let mut indices: Vec<usize> = (0..all.len()).collect();
    indices.sort_by_key(rank);
    let place = |index: usize| {
        let one = &all[index];
        match one.kind {
            LocationKind::Exact => {
                let path = patterns::exact_path(one.path);
                let mut path = path.or_else(|_| escaped_path(one.path, "$"))?;
                path.trailing_slash = one.trailing_slash(all);
                Ok(path)
            }
            LocationKind::Prefix if is_hoisted(index) => {
                let guards = |one: &Location<'_>| one.kind.is_regex() && !one.is_open();
                let mut path = escaped_path(one.path, "")?;
                path.is_wider = all.iter().any(guards);
                let why = match path.is_wider {
                    true => {
                        "nginx asks the expressions before it, and some of them guard; so it is \
                             closed"
                    }
                    false => "it comes before the expressions here, because of the `^~` around it",
                };
                Ok(path.differing(Some(why.to_owned())))
            }
            kind if kind.is_prefix() && needs_regex[index] => escaped_path(one.path, ""),
            LocationKind::FirmPrefix if plain.is_none() => {
                let path = patterns::prefix_path(one.path)?;
                let why = "the expressions come before it here, also for paths that nginx sends to \
                           it, because of the longer locations below it";
                Ok(path.differing(Some(why.to_owned())))
            }
            kind if kind.is_prefix() => patterns::prefix_path(one.path),
            _ => match plain.as_ref().and_then(|all| all[index].clone()) {
                Some(path) => Ok(path),
                None => regex_path(one),
            },
        }
    };
    let placed = indices.into_iter().map(|index| PlacedLocation {
        index,
        path: place(index),
    });
    placed.collect()
}

/// Returns the regular expressions as plain paths, if each has one and no prefix is in the way.
fn plain_regexes(all: &[Location<'_>]) -> Option<Vec<Option<ImportedPath>>> {
    let each = all.iter().map(|one| {
        if !one.kind.is_regex() {
            return Some(None);
        }
        let path = patterns::plain_regex_path(one.path).ok()?;
        let is_same = one.kind == LocationKind::Regex
            && path.differs.is_none()
            && one.nesting.parent.is_none()
            && !uses_groups(one.scope.block());
        let fixed = path.pattern.find(['{', '*']).unwrap_or(path.pattern.len());
        let fixed = &path.pattern[..fixed];
        let in_the_way = |other: &Location<'_>| {
            // A prefix that ends within a segment may become an expression.
            let firm = other.kind == LocationKind::FirmPrefix || !other.path.ends_with('/');
            let firm = firm && fixed.starts_with(other.path);
            other.kind.is_prefix() && other.path != "/" && (firm || other.path.starts_with(fixed))
        };
        (is_same && !all.iter().any(in_the_way)).then_some(Some(path))
    });
    each.collect()
}

/// Whether a location names groups of its expression by numbers. A `rewrite` has groups of its own.
fn uses_groups(block: &Directive) -> bool {
    let is_group = |part: &ValuePart<'_>| match part {
        ValuePart::Variable(name) => name.parse::<usize>().is_ok(),
        ValuePart::Text(_) => false,
    };
    let has_group = |text: &String| variables::split_variables(text).iter().any(is_group);
    block
        .inner()
        .iter()
        .any(|one| one.name != "rewrite" && (one.args.iter().any(has_group) || uses_groups(one)))
}

/// Decides for each location whether it is a prefix that must be an expression.
fn prefixes_as_regexes(all: &[Location<'_>], beside_regexes: bool) -> Vec<bool> {
    let needs_regex = |one: &Location<'_>| {
        let ends_in_segment = !one.path.ends_with('/')
            && (!one.is_open()
                || one.has_limits()
                || !one.path.ends_with(|c: char| c.is_alphanumeric()));
        // A guard comes before expressions, also if it has longer prefixes, for which nginx asks
        // the expressions first.
        let has_longer = all.iter().any(|other| other.is_asked_after_regexes(one));
        let before_regexes = beside_regexes
            && one.kind == LocationKind::FirmPrefix
            && (!has_longer || !one.is_open());
        // `/foo` and `/foo/` would be the same path.
        let is_twin = |other: &Location<'_>| {
            other.kind.is_prefix() && other.path.strip_suffix('/') == Some(one.path)
        };
        let has_twin = !one.path.is_empty() && all.iter().any(is_twin);
        one.kind.is_prefix()
            && (ends_in_segment || has_twin || before_regexes || one.path.contains(['{', '}', '*']))
    };
    let mut found: Vec<bool> = all.iter().map(needs_regex).collect();
    // A longer prefix must come before such a prefix.
    for (index, one) in all.iter().enumerate() {
        let mut shorter = all.iter().zip(&found);
        if one.kind.is_prefix() && shorter.any(|(other, is)| *is && one.is_below(other)) {
            found[index] = true;
        }
    }
    found
}

/// Writes a path as an expression, which `end` completes.
fn escaped_path(path: &str, end: &str) -> Result<ImportedPath, String> {
    ImportedPath::parse(format!("regex:^{}{end}", patterns::escape_regex(path)))
}

/// Translates a location with a regular expression.
fn regex_path(one: &Location<'_>) -> Result<ImportedPath, String> {
    let any_case = one.kind == LocationKind::AnyCaseRegex;
    let denies = one.action.target.denies();
    if one.path.ends_with("/$") && !denies {
        return Err("a slash at a path's end makes no difference to a route".to_owned());
    }
    let parent = one.nesting.parent.filter(|parent| *parent != "/");
    let text = match parent.filter(|_| !denies && !one.path.starts_with('^')) {
        Some(parent) => format!("^{}.*(?:{})", patterns::escape_regex(parent), one.path),
        None => one.path.to_owned(),
    };
    let parse = |regex: &str| ImportedPath::parse(format!("regex:{regex}"));
    if let Ok(same) = patterns::translate_regex(&text, any_case) {
        return parse(same.as_str());
    }
    // A wider expression closes all requests that the exact one could match.
    let wider = patterns::widen_regex(&text, any_case).unwrap_or_default();
    let mut path = parse(&wider)?;
    path.differs = Some(format!(
        "the route's expression is `{wider}`, which takes more; so it is closed"
    ));
    path.is_wider = true;
    Ok(path)
}
