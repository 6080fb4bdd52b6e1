//! Locations as routes.

use super::Http;
use super::conditions::Around;
use super::headers;
use super::limits;
use super::passing::{self, At, Outcome};
use super::places::{self, Kind, Location};
use super::rewrites;
use super::rules::{self, AskedAt, EarlyAnswer};
use super::scope::Scope;
use super::settings;
use super::syntax::Directive;
use crate::draft::{Draft, Goal, RouteDraft};
use crate::patterns::Paths;

/// A server whose locations are read.
pub(super) struct Site<'a> {
    pub(super) one: &'a Directive,
    pub(super) scope: &'a Scope<'a>,
    pub(super) hosts: &'a [Option<String>],
    pub(super) around: Around<'a>,
    /// Why all of it is closed.
    pub(super) closed: Option<String>,
}

/// A directive with its scope.
struct Block<'a> {
    one: &'a Directive,
    scope: &'a Scope<'a>,
}

/// Where a location stands: how deep, and below which prefix.
#[derive(Clone, Copy, Default)]
struct Nesting<'d> {
    depth: usize,
    parent: Option<&'d str>,
}

/// The routes of a server, for each of its hosts.
pub(super) fn routes(site: &Site<'_>, draft: &mut Draft) {
    let whole = At {
        path: Some("/"),
        is_exact: false,
        is_stripped: false,
    };
    let own = rules::of(site.scope, site.around, &whole, draft);
    let hosts = hosts(site, &own);
    let site = &Site {
        hosts: &hosts,
        closed: site.closed.clone(),
        ..*site
    };
    let own_block = Block {
        one: site.one,
        scope: site.scope,
    };
    for (path, outcome) in rules::by_path(&own, None) {
        put(site, &own_block, &path, outcome, draft);
    }
    let rewrites = rewrites::server_rewrites(site.scope, draft);
    for (path, why) in &rewrites.closed {
        let outcome = Goal::Closed(why.clone()).into();
        put(site, &own_block, path, &outcome, draft);
    }
    let mut found = Vec::new();
    if !rewrites.answers_all {
        collect(site, site.scope, Nesting::default(), &mut found, draft);
    }
    shut_twins(&mut found, draft);
    let (all, left_out) = places::order(&found);
    for (number, why) in left_out {
        let one = found[number].one;
        let why = format!("{why}; its requests go where its path leads without it");
        draft.notes.lost(&one.place, &one.line(), why);
    }
    for mut place in all {
        let location = &mut found[place.number];
        if let Some(why) = place.paths.differs.take_if(|_| place.is_wider) {
            draft
                .notes
                .lost(&location.one.place, &location.one.line(), why);
        }
        if place.is_wider && !location.outcome.goal.refuses() {
            let why = format!("`{}` cannot be said", location.one.line());
            location.outcome = Goal::Closed(why).into();
        }
        let location = &found[place.number];
        add(site, location, &own, place.paths, draft);
    }
    let takes_all =
        |one: &Location<'_>| one.path == "/" && matches!(one.kind, Kind::Prefix | Kind::Firm);
    if !found.iter().any(takes_all) {
        let outcome = passing::outcome(site.around.http, site.scope, &whole, draft);
        let rest = Location {
            kind: Kind::Prefix,
            path: "/",
            one: site.one,
            scope: site.scope.clone(),
            depth: 0,
            parent: None,
            outcome,
            is_plain: true,
        };
        add(site, &rest, &own, Paths::plain("/*"), draft);
    }
}

/// The server's hosts, and those that its conditions tell apart.
fn hosts(site: &Site<'_>, rules: &[EarlyAnswer]) -> Vec<Option<String>> {
    let mut hosts = site.hosts.to_vec();
    for name in rules::hosts(rules) {
        let covers = |host: &Option<String>| match host {
            None => true,
            Some(host) => host
                .strip_prefix('*')
                .is_some_and(|below| name.ends_with(below)),
        };
        let host = Some(name.to_owned());
        let fits = crate::route::HostPattern::parse(name).is_ok() && !name.starts_with('*');
        if fits && !hosts.contains(&host) && hosts.iter().any(covers) {
            hosts.push(host);
        }
    }
    hosts
}

/// Locations within locations are found like all others.
fn collect<'d>(
    site: &Site<'_>,
    scope: &Scope<'d>,
    nesting: Nesting<'d>,
    found: &mut Vec<Location<'d>>,
    draft: &mut Draft,
) {
    for one in scope.own().iter().filter(|one| one.name == "location") {
        let (kind, path) = match (one.arg(0), one.args.len()) {
            ("=", 2) => (Kind::Exact, one.arg(1)),
            ("^~", 2) => (Kind::Firm, one.arg(1)),
            ("~", 2) => (Kind::Regex, one.arg(1)),
            ("~*", 2) => (Kind::AnyCase, one.arg(1)),
            (named, 1) if named.starts_with('@') => {
                if !is_fallback(scope.own(), named) {
                    let why = "locations with a name are reached from within nginx only";
                    draft.notes.lost(&one.place, &one.line(), why);
                }
                continue;
            }
            // `location ~\.php$` is one word to nginx too.
            (text, 1) if text.starts_with("~*") => (Kind::AnyCase, &text[2..]),
            (text, 1) if text.starts_with('~') => (Kind::Regex, &text[1..]),
            (text, 1) if text.starts_with("^~") => (Kind::Firm, &text[2..]),
            (text, 1) if text.starts_with('=') => (Kind::Exact, &text[1..]),
            (path, 1) => (Kind::Prefix, path),
            _ => {
                draft.notes.lost(&one.place, &one.line(), "not a location");
                continue;
            }
        };
        let inner = scope.within(one);
        let below = Nesting {
            depth: nesting.depth + 1,
            parent: matches!(kind, Kind::Prefix | Kind::Firm).then_some(path),
        };
        collect(site, &inner, below, found, draft);
        let at = At {
            path: (!matches!(kind, Kind::Regex | Kind::AnyCase)).then_some(path),
            is_exact: kind == Kind::Exact,
            is_stripped: false,
        };
        let outcome = passing::outcome(site.around.http, &inner, &at, draft);
        let answers = ["if", "limit_except"];
        let is_plain = !inner
            .own()
            .iter()
            .any(|one| answers.contains(&one.name.as_str()));
        found.push(Location {
            kind,
            path,
            one,
            scope: inner,
            depth: nesting.depth,
            parent: nesting.parent,
            outcome,
            is_plain,
        });
    }
}

/// Whether a `try_files` leads to a named location.
fn is_fallback(list: &[Directive], name: &str) -> bool {
    list.iter().any(|one| {
        one.name == "try_files" && one.args.last().is_some_and(|last| last == name)
            || is_fallback(one.inner(), name)
    })
}

/// A route for `/x` takes `/x/` as well: where another location guards that, it is closed.
fn shut_twins(found: &mut [Location<'_>], draft: &mut Draft) {
    for number in 0..found.len() {
        let one = &found[number];
        let guards = |other: &Location<'_>| {
            other.kind != Kind::Exact
                && other.path.strip_suffix('/') == Some(one.path)
                && (other.outcome.goal.refuses() || !other.is_plain)
        };
        let passes = matches!(one.outcome.goal, Goal::Upstream(_));
        if one.kind == Kind::Exact && passes && found.iter().any(guards) {
            let why = "a route takes the path with a slash at its end as well, which another \
                       location guards; it is closed";
            draft.notes.lost(&one.one.place, &one.one.line(), why);
            let why = format!("`{}`: {why}", one.one.line());
            found[number].outcome = Goal::Closed(why).into();
        }
    }
}

/// The routes of a location.
fn add(
    site: &Site<'_>,
    location: &Location<'_>,
    own: &[EarlyAnswer],
    paths: Paths,
    draft: &mut Draft,
) {
    let (one, scope) = (location.one, &location.scope);
    let block = Block { one, scope };
    let at = At {
        path: (!matches!(location.kind, Kind::Regex | Kind::AnyCase)).then_some(location.path),
        is_exact: location.kind == Kind::Exact,
        is_stripped: false,
    };
    if let Some(why) = paths.differs {
        draft.notes.differs(&one.place, &one.line(), why);
    }
    settings::real_ip(scope, draft);
    let mut all = own.to_vec();
    if one.name == "location" {
        all.extend(rules::of(scope, site.around, &at, draft));
    }
    if let Some(fallback) = passing::fallback(scope) {
        all.extend(rules::of(&fallback.scope, site.around, &at, draft));
    }
    let mut outcome = location.outcome.clone();
    if scope.here("internal").is_some() {
        all.clear();
    }
    if let Some(why) = site.closed.as_ref().filter(|_| !outcome.goal.refuses()) {
        outcome = Goal::Closed(why.clone()).into();
    }
    let later = all.get(own.len()..).unwrap_or_default();
    for (path, outcome) in rules::by_path(later, at.path.filter(|_| !at.is_exact)) {
        put(site, &block, &path, outcome, draft);
    }
    for host in site.hosts {
        let seat = AskedAt {
            method: None,
            host: host.as_deref(),
            path: at.path.filter(|_| at.is_exact),
        };
        for variant in rules::variants(&all, &outcome, seat) {
            let mut route = written(site, &block, &variant.outcome, draft);
            route.host.clone_from(host);
            route.path.clone_from(&paths.pattern);
            route.methods = variant.methods;
            route.headers = variant.headers;
            enter(route, one, draft);
        }
    }
}

/// A route for each host with one path and one outcome.
fn put(site: &Site<'_>, block: &Block<'_>, path: &str, outcome: &Outcome, draft: &mut Draft) {
    for host in site.hosts {
        let mut route = written(site, block, outcome, draft);
        route.host.clone_from(host);
        path.clone_into(&mut route.path);
        enter(route, block.one, draft);
    }
}

/// A route with all but what it takes.
fn written(site: &Site<'_>, block: &Block<'_>, outcome: &Outcome, draft: &mut Draft) -> RouteDraft {
    let (one, scope) = (block.one, block.scope);
    let http = site.around.http;
    let passes = matches!(outcome.goal, Goal::Upstream(_));
    let mut settings = outcome.settings.clone();
    let fallback = passing::fallback(scope);
    let target = fallback.as_ref().map_or(scope, |fallback| &fallback.scope);
    for change in headers::changes(target, draft) {
        let is_new = !settings.iter().any(|(key, _)| *key == change.0);
        if is_new && (passes || change.0 == "headers_down" && !outcome.goal.refuses()) {
            settings.push(change);
        }
    }
    let sizes = scope.all("client_max_body_size");
    let is_own = sizes.first().is_some_and(|one| !is_of_http(one, http));
    if let Some(bytes) = settings::body_bytes(scope, draft).filter(|_| is_own && passes) {
        settings.push(("body_limit".to_owned(), settings::body_text(bytes)));
    }
    // What nginx answers by itself is not limited there either.
    let mut limits = Vec::new();
    if passes {
        limits = limits::of(http, scope, draft);
        if let Some(fallback) = fallback.filter(|_| limits.is_empty()) {
            limits = limits::of(http, &fallback.scope, draft);
        }
    }
    RouteDraft {
        place: one.place.clone(),
        was: one.line(),
        host: None,
        path: String::new(),
        methods: Vec::new(),
        headers: Vec::new(),
        goal: outcome.goal.clone(),
        limits,
        settings,
    }
}

fn enter(route: RouteDraft, one: &Directive, draft: &mut Draft) {
    let Some(first) = draft.add_route(route) else {
        return;
    };
    let (place, was) = (first.place.clone(), first.was.clone());
    // Of a server without a location for all there is one by itself.
    if place != one.place && one.name == "location" {
        let why = format!("`{was}` of line {} takes these requests", place.line);
        draft.notes.lost(&one.place, &one.line(), why);
    }
}

/// Whether a directive stands in `http` itself, where `[server]` says it.
fn is_of_http(one: &Directive, http: &Http<'_>) -> bool {
    http.top.iter().any(|top| std::ptr::eq(top, one))
}
