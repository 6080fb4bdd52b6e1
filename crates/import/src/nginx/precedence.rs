//! The order in which nginx tries locations, as paths of routes.
//!
//! nginx tries `=` first. Then it finds the longest prefix, and in it the longest one, and so on.
//! It asks the regular expressions beside each of these prefixes, the innermost first, but not
//! those beside a prefix with `^~`. The innermost prefix is last. Routes are tried in this order:
//! exact paths, expressions in the order of the file, paths with `/*`. So some prefixes are written
//! as expressions: those that must come before an expression, and those that end within a segment.

use std::cmp::Reverse;

use super::conditions::Condition;
use super::early_answers::EarlyAnswer;
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
    pub(super) action: RouteAction,
    /// What its conditions answer before its action.
    pub(super) answers: Vec<EarlyAnswer>,
    /// No condition answers before the action, and no addresses are refused that the server
    /// admits.
    pub(super) is_plain: bool,
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
            action: TargetDraft::Redirect { to, status: 301 }.into(),
            answers: Vec::new(),
            is_plain: true,
        })
    }

    /// Whether every request reaches an upstream.
    fn is_open(&self) -> bool {
        self.is_plain && !self.action.target.denies()
    }

    /// Whether some of its answers are for paths, so that they are expressions.
    fn answers_by_path(&self) -> bool {
        let mut answers = self.answers.iter();
        answers.any(|one| matches!(one.condition, Condition::Path(_)))
    }

    fn has_limits(&self) -> bool {
        let mut kinds = limits::KINDS.iter();
        kinds.any(|kind| self.scope.first(kind).is_some())
    }

    /// Returns the block in whose list of expressions or prefixes nginx looks for it.
    fn home(&self) -> &'d Directive {
        let is_regex = |one: &Directive| find_regex(one).is_some();
        let mut around = self.scope.levels[1..].iter();
        around
            .find(|one| !is_regex(one))
            .unwrap_or(&self.scope.levels[0])
    }

    /// Returns the prefix that all of its paths have because of the locations around it.
    fn outer_prefix(&self) -> Option<&'d str> {
        let (kind, path) = parse_location(self.home())?;
        kind.is_prefix().then_some(path)
    }

    fn depth(&self) -> usize {
        self.scope
            .levels
            .iter()
            .filter(|one| one.name == "location")
            .count()
    }

    fn is_in(&self, block: &Directive) -> bool {
        self.scope.levels[1..]
            .iter()
            .any(|one| std::ptr::eq(*one, block))
    }

    /// Whether nginx prefers this prefix to the other one, for paths that have both.
    fn is_preferred_to(&self, other: &Location<'_>) -> bool {
        let is_inner = self.path == other.path && self.is_in(other.scope.block());
        self.kind.is_prefix() && (is_inner || self.is_below(other))
    }

    /// Returns why nginx never gets to it.
    fn obstacle(&self, all: &[Location<'_>]) -> Option<&'static str> {
        let has_prefix = |one: &&Location<'_>| one.kind.is_prefix();
        let mut inner = all
            .iter()
            .filter(has_prefix)
            .filter(|one| one.is_in(self.scope.block()));
        if self.kind.is_prefix() && inner.any(|one| one.path == self.path) {
            return Some("a location in it has the same path");
        }
        let path = match self.kind.is_regex() {
            true => self.outer_prefix()?,
            false => self.path,
        };
        let is_passed_by = |pair: &[&Directive]| {
            let around = parse_location(pair[0]).filter(|(kind, _)| kind.is_prefix());
            let beside = all.iter().filter(has_prefix);
            let mut beside = beside.filter(|one| std::ptr::eq(one.scope.levels[1], pair[1]));
            around.is_some_and(|(_, outer)| {
                beside.any(|one| one.path.len() > outer.len() && path.starts_with(one.path))
            })
        };
        let is_passed = self.scope.levels[1..].windows(2).any(is_passed_by);
        is_passed.then_some("nginx prefers a longer location beside one around it")
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
    let before_regexes = match plain {
        Some(_) => vec![false; all.len()],
        None => prefixes_before_regexes(all),
    };
    let needs_regex = prefixes_as_regexes(all, &before_regexes);
    let mut placed = Vec::new();
    let mut add = |index: usize, path: Result<ImportedPath, String>| {
        let path = match all[index].obstacle(all) {
            Some(why) => Err(why.to_owned()),
            None => path,
        };
        placed.push(PlacedLocation { index, path });
    };
    let indices = |is_it: &dyn Fn(usize) -> bool| {
        let found = (0..all.len()).filter(|index| is_it(*index));
        found.collect::<Vec<usize>>()
    };
    let longest_first = |is_it: &dyn Fn(usize) -> bool| {
        let mut found = indices(is_it);
        found.sort_by_key(|index| Reverse(all[*index].path.len()));
        found
    };
    for index in indices(&|index| all[index].kind == LocationKind::Exact) {
        add(index, exact_path(&all[index], all));
    }
    for index in longest_first(&|index| before_regexes[index]) {
        let one = &all[index];
        if one.obstacle(all).is_none() {
            for regex in regexes_asked_before(one, all) {
                for path in regex_paths(&all[regex], Some(one.path), all) {
                    add(regex, path);
                }
            }
        }
        add(index, escaped_path(one.path, ""));
    }
    // The prefixes before the expressions have these already.
    let is_placed = |regex: &Location<'_>| {
        let mut all = all.iter().zip(&before_regexes);
        all.any(|(one, is_before)| *is_before && std::ptr::eq(one.scope.block(), regex.home()))
    };
    let mut regexes = indices(&|index| all[index].kind.is_regex() && !is_placed(&all[index]));
    regexes.sort_by_key(|index| Reverse(all[*index].depth()));
    for index in regexes {
        let plain = plain.as_ref().and_then(|all| all[index].clone());
        let paths = match plain {
            Some(path) => vec![Ok(path)],
            None => regex_paths(&all[index], all[index].outer_prefix(), all),
        };
        for path in paths {
            add(index, path);
        }
    }
    for index in longest_first(&|index| needs_regex[index] && !before_regexes[index]) {
        add(index, escaped_path(all[index].path, ""));
    }
    for index in indices(&|index| all[index].kind.is_prefix() && !needs_regex[index]) {
        add(index, patterns::prefix_path(all[index].path));
    }
    placed
}

fn exact_path(one: &Location<'_>, all: &[Location<'_>]) -> Result<ImportedPath, String> {
    let path = patterns::exact_path(one.path);
    let mut path = path.or_else(|_| escaped_path(one.path, "$"))?;
    path.trailing_slash = one.trailing_slash(all);
    Ok(path)
}

/// Decides for each location whether it is a prefix that must come before the expressions.
fn prefixes_before_regexes(all: &[Location<'_>]) -> Vec<bool> {
    let regexes = || all.iter().filter(|one| one.kind.is_regex());
    // An expression in a shorter prefix.
    let passes = |regex: &Location<'_>, one: &Location<'_>| {
        let outer = regex
            .outer_prefix()
            .filter(|outer| outer.len() < one.path.len());
        outer.is_some_and(|outer| one.path.starts_with(outer)) && !one.is_in(regex.home())
    };
    let is_first = |one: &Location<'_>| {
        let is_firm = one.kind == LocationKind::FirmPrefix;
        one.kind.is_prefix() && (is_firm || regexes().any(|regex| passes(regex, one)))
    };
    let first: Vec<&Location<'_>> = all.iter().filter(|one| is_first(one)).collect();
    let comes_before = |one: &Location<'_>| first.iter().any(|first| one.is_preferred_to(first));
    all.iter()
        .map(|one| is_first(one) || comes_before(one))
        .collect()
}

/// Returns the expressions that nginx asks before a prefix, in its order.
fn regexes_asked_before(prefix: &Location<'_>, all: &[Location<'_>]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut is_firm = false;
    for block in &prefix.scope.levels {
        let is_here = |one: &Location<'_>| {
            one.kind.is_regex() && !is_firm && std::ptr::eq(one.home(), *block)
        };
        let mut here: Vec<usize> = (0..all.len())
            .filter(|index| is_here(&all[*index]))
            .collect();
        here.sort_by_key(|index| Reverse(all[*index].depth()));
        found.append(&mut here);
        is_firm = parse_location(block).is_some_and(|(kind, _)| kind == LocationKind::FirmPrefix);
    }
    found
}

/// Returns the regular expressions as plain paths, if each has one and no prefix is in the way.
fn plain_regexes(all: &[Location<'_>]) -> Option<Vec<Option<ImportedPath>>> {
    if all.iter().any(Location::answers_by_path) {
        return None;
    }
    let each = all.iter().map(|one| {
        if !one.kind.is_regex() {
            return Some(None);
        }
        let path = patterns::plain_regex_path(one.path).ok()?;
        let is_same = one.kind == LocationKind::Regex
            && path.differs.is_none()
            && one.depth() == 1
            && longer_paths(one, all).is_none()
            && !uses_groups(one.scope.block(), one.path);
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

/// Whether a location names groups of its expression. A `rewrite` has groups of its own.
fn uses_groups(block: &Directive, regex: &str) -> bool {
    let is_group = |part: &ValuePart<'_>| match part {
        ValuePart::Variable(name) => patterns::has_group(regex, name),
        ValuePart::Text(_) => false,
    };
    let has_group = |text: &String| variables::split_variables(text).iter().any(is_group);
    block.inner().iter().any(|one| {
        one.name != "rewrite" && (one.args.iter().any(has_group) || uses_groups(one, regex))
    })
}

/// Decides for each location whether it is a prefix that must be an expression.
fn prefixes_as_regexes(all: &[Location<'_>], before_regexes: &[bool]) -> Vec<bool> {
    let needs_regex = |one: &Location<'_>| {
        let ends_in_segment = !one.path.ends_with('/')
            && (!one.is_open()
                || one.has_limits()
                || !one.path.ends_with(|c: char| c.is_alphanumeric()));
        // `/foo` and `/foo/` would be the same path.
        let is_twin = |other: &Location<'_>| {
            other.kind.is_prefix() && other.path.strip_suffix('/') == Some(one.path)
        };
        let has_twin = !one.path.is_empty() && all.iter().any(is_twin);
        // Its answers must not come before longer prefixes.
        let has_answers =
            one.answers_by_path() && all.iter().any(|longer| longer.is_preferred_to(one));
        let is_pattern = one.path.contains(['{', '}', '*']);
        one.kind.is_prefix() && (ends_in_segment || has_twin || has_answers || is_pattern)
    };
    let each = all.iter().zip(before_regexes);
    let mut found: Vec<bool> = each
        .map(|(one, is_before)| *is_before || needs_regex(one))
        .collect();
    // A longer prefix must come before such a prefix.
    for (index, one) in all.iter().enumerate() {
        let mut shorter = all.iter().zip(&found);
        if shorter.any(|(other, is)| *is && one.is_preferred_to(other)) {
            found[index] = true;
        }
    }
    found
}

/// Writes a path as an expression, which `end` completes.
fn escaped_path(path: &str, end: &str) -> Result<ImportedPath, String> {
    ImportedPath::parse(format!("regex:^{}{end}", patterns::escape_regex(path)))
}

/// Returns the expression of a block that is a location with one.
fn find_regex(block: &Directive) -> Option<(LocationKind, &str)> {
    parse_location(block).filter(|(kind, _)| block.name == "location" && kind.is_regex())
}

/// Translates a location with a regular expression, for the paths with a prefix.
fn regex_paths(
    one: &Location<'_>,
    prefix: Option<&str>,
    all: &[Location<'_>],
) -> Vec<Result<ImportedPath, String>> {
    let mut own = regex_path(one, one.path, prefix);
    let mut longer = Ok(None);
    if let (Some(text), Ok(Some(path))) = (longer_paths(one, all), &mut own)
        && !path.is_wider
    {
        path.trailing_slash = Some(true);
        longer = regex_path(one, &text, prefix);
    }
    [own, longer]
        .into_iter()
        .filter_map(Result::transpose)
        .collect()
}

/// Returns the expression for paths with more behind its last slash, if a prefix may guard the path
/// without that slash. Other expressions take such a path as well.
fn longer_paths(one: &Location<'_>, all: &[Location<'_>]) -> Option<String> {
    let guards = |one: &Location<'_>| one.kind.is_prefix() && (!one.is_open() || one.has_limits());
    if one.action.target.denies() || one.path.contains('|') || !all.iter().any(guards) {
        return None;
    }
    let ends = [
        ("/", "/."),
        ("/(.*)$", "/(.+)$"),
        ("/(.*)", "/(.+)"),
        ("/.*$", "/."),
        ("/.*", "/."),
    ];
    let longer = |(end, longer)| Some(format!("{}{longer}", one.path.strip_suffix(end)?));
    ends.into_iter().find_map(longer)
}

/// Translates an expression of a location. `None` if it matches no path with the prefix.
fn regex_path(
    one: &Location<'_>,
    regex: &str,
    prefix: Option<&str>,
) -> Result<Option<ImportedPath>, String> {
    let denies = one.action.target.denies();
    if one.path.ends_with("/$") && !denies {
        return Err("a slash at a path's end makes no difference to a route".to_owned());
    }
    // Routes cannot ask two expressions, and what is in an expression may be open.
    let outer = one.scope.levels[1..]
        .iter()
        .find_map(|around| find_regex(around));
    let outer = outer.filter(|_| !denies);
    let (kind, text) = outer.unwrap_or((one.kind, regex));
    let any_case = kind == LocationKind::AnyCaseRegex;
    let exact = patterns::translate_regex(text, any_case)
        .ok()
        .filter(|_| outer.is_none());
    let mut is_wider = exact.is_none();
    let mut text = match exact {
        Some(exact) => exact.as_str().to_owned(),
        None => patterns::widen_regex(text, any_case).unwrap_or_default(),
    };
    if let Some(prefix) = prefix.filter(|prefix| *prefix != "/") {
        let uses_groups = uses_groups(one.scope.block(), one.path);
        let confined = match patterns::confine_regex(&text, prefix) {
            Ok(None) => return Ok(None),
            Ok(confined) => confined.filter(|it| it.keeps_groups || !uses_groups),
            Err(_) => None,
        };
        is_wider |= confined.is_none();
        let whole = || format!("^{}", patterns::escape_regex(prefix));
        text = confined.map_or_else(whole, |confined| confined.text);
    }
    let mut path = ImportedPath::parse(format!("regex:{text}"))?;
    if is_wider {
        // It closes all requests that the exact expression could match.
        path.differs = Some(format!(
            "the route's expression is `{text}`, which takes more; so it is closed"
        ));
        path.is_wider = true;
    }
    Ok(Some(path))
}
