//! Locations as routes.
//!
//! nginx asks `=` first, then the longest prefix if it has `^~`, then regular expressions in their
//! order, then the longest prefix. Routes are asked by how specific they are, so that where two
//! locations come to the same pattern, the one that nginx would have asked first has it.

use super::Http;
use super::headers;
use super::limits;
use super::passing::{self, At};
use super::scope::Scope;
use super::settings;
use super::syntax::Directive;
use crate::import::draft::{Draft, Goal, RouteDraft};
use crate::import::patterns::{self, Paths};

/// How a location is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Exact,
    Firm,
    Regex,
    AnyCase,
    Prefix,
}

struct Location<'d> {
    kind: Kind,
    path: &'d str,
    one: &'d Directive,
    scope: Scope<'d>,
}

/// The routes of a server, for each of its hosts.
pub(super) fn routes(
    http: &Http<'_>,
    server: &Directive,
    scope: &Scope<'_>,
    hosts: &[Option<String>],
    draft: &mut Draft,
) {
    let whole = At {
        path: Some("/"),
        is_exact: false,
        is_stripped: false,
    };
    let mut found = Vec::new();
    if !passing::answers_all(scope, draft) {
        collect(scope, &mut found, draft);
    }
    found.sort_by_key(|one| one.kind);
    overtaken(&found, draft);
    for location in &found {
        let at = At {
            path: (!matches!(location.kind, Kind::Regex | Kind::AnyCase)).then_some(location.path),
            is_exact: location.kind == Kind::Exact,
            is_stripped: false,
        };
        let paths = match location.kind {
            Kind::Exact => patterns::exact(location.path),
            Kind::Firm | Kind::Prefix => patterns::prefix(location.path),
            Kind::Regex => patterns::regex(location.path, false),
            Kind::AnyCase => patterns::regex(location.path, true),
        };
        let one = location.one;
        match paths {
            Ok(paths) => add(http, (one, &location.scope), (paths, at), hosts, draft),
            Err(why) => {
                let why = format!("{why}; its requests go where its path leads without it");
                draft.notes.lost(&one.place, &one.line(), why);
            }
        }
    }
    if !found
        .iter()
        .any(|one| one.path == "/" && one.kind != Kind::Exact)
    {
        let paths = Paths {
            pattern: "/*".to_owned(),
            differs: None,
        };
        add(http, (server, scope), (paths, whole), hosts, draft);
    }
}

/// Locations within locations are found like all others.
fn collect<'d>(scope: &Scope<'d>, found: &mut Vec<Location<'d>>, draft: &mut Draft) {
    for one in scope.own().iter().filter(|one| one.name == "location") {
        let (kind, path) = match (one.arg(0), one.args.len()) {
            ("=", 2) => (Kind::Exact, one.arg(1)),
            ("^~", 2) => (Kind::Firm, one.arg(1)),
            ("~", 2) => (Kind::Regex, one.arg(1)),
            ("~*", 2) => (Kind::AnyCase, one.arg(1)),
            (named, 1) if named.starts_with('@') => {
                let why = "locations with a name are reached from within nginx only";
                draft.notes.lost(&one.place, &one.line(), why);
                continue;
            }
            (path, 1) => (Kind::Prefix, path),
            _ => {
                draft.notes.lost(&one.place, &one.line(), "not a location");
                continue;
            }
        };
        let inner = scope.within(one);
        collect(&inner, found, draft);
        found.push(Location {
            kind,
            path,
            one,
            scope: inner,
        });
    }
}

/// Regular expressions come before longer prefixes in nginx; in routes what is longer is first.
fn overtaken(found: &[Location<'_>], draft: &mut Draft) {
    let pattern = |one: &Location<'_>| match one.kind {
        Kind::Regex | Kind::AnyCase => patterns::regex(one.path, false).ok(),
        _ => patterns::prefix(one.path).ok(),
    };
    for regex in found
        .iter()
        .filter(|one| matches!(one.kind, Kind::Regex | Kind::AnyCase))
    {
        let Some(paths) = pattern(regex) else {
            continue;
        };
        let Some(base) = paths.pattern.strip_suffix("/*") else {
            continue;
        };
        let below = found.iter().filter(|one| one.kind == Kind::Prefix);
        let longer = |one: &&Location<'_>| {
            one.path
                .strip_prefix(base)
                .is_some_and(|rest| !rest.trim_matches('/').is_empty())
        };
        if let Some(other) = below.into_iter().find(longer) {
            let why = format!(
                "nginx asks it before `location {}`, which is the more specific route here",
                other.path
            );
            draft
                .notes
                .differs(&regex.one.place, &regex.one.line(), why);
        }
    }
}

fn add(
    http: &Http<'_>,
    (one, scope): (&Directive, &Scope<'_>),
    (paths, at): (Paths, At<'_>),
    hosts: &[Option<String>],
    draft: &mut Draft,
) {
    let outcome = passing::outcome(http, scope, &at, draft);
    if let Some(why) = paths.differs {
        draft.notes.differs(&one.place, &one.line(), why);
    }
    let mut settings = outcome.settings;
    settings.extend(headers::changes(scope, draft));
    settings::real_ip(scope, draft);
    let sizes = scope.all("client_max_body_size");
    let is_own = sizes.first().is_some_and(|one| !is_of_http(one, http));
    if let Some(bytes) = settings::body_bytes(scope, draft).filter(|_| is_own) {
        settings.push(("body_limit".to_owned(), settings::body_text(bytes)));
    }
    // What nginx answers by itself is not limited there either.
    let limits = match outcome.goal {
        Goal::Upstream(_) => limits::of(http, scope, draft),
        _ => Vec::new(),
    };
    for host in hosts {
        let route = RouteDraft {
            place: one.place.clone(),
            was: one.line(),
            host: host.clone(),
            path: paths.pattern.clone(),
            methods: Vec::new(),
            headers: Vec::new(),
            goal: outcome.goal.clone(),
            limits: limits.clone(),
            settings: settings.clone(),
        };
        let Some(first) = draft.add_route(route) else {
            continue;
        };
        let (place, was) = (first.place.clone(), first.was.clone());
        // Of a server without a location for all there is one by itself.
        if place != one.place && one.name == "location" {
            let why = format!("`{was}` of line {} takes these requests", place.line);
            draft.notes.lost(&one.place, &one.line(), why);
        }
    }
}

/// Whether a directive stands in `http` itself, where `[server]` says it.
fn is_of_http(one: &Directive, http: &Http<'_>) -> bool {
    http.top.iter().any(|top| std::ptr::eq(top, one))
}
