//! Routes as they are found, one by one and against a search of all.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;

use super::*;
use crate::route::pattern::Segment;
use crate::route::{HeaderMatch, PathPattern, QueryMatch, ValueMatch};

/// A route from `[METHOD,..] [host]/path [+header[=value]]..`, named by its text.
pub(super) fn route(text: &str) -> Route {
    let mut route = Route::of_path(text, PathPattern::parse("/").unwrap());
    for word in text.split(' ') {
        if word == "(i)" {
            route.case = Case::Insensitive;
        } else if let Some(parameter) = word.strip_prefix('?') {
            let (name, value) = match parameter.split_once('=') {
                Some((name, value)) => (name, ValueMatch::parse(value.to_owned()).unwrap()),
                None => (parameter, ValueMatch::Any),
            };
            let name = name.into();
            route.query.push(QueryMatch { name, value });
        } else if let Some(header) = word.strip_prefix('+') {
            let (name, value) = match header.split_once('=') {
                Some((name, value)) => (name, ValueMatch::parse(value.to_owned()).unwrap()),
                None => (header, ValueMatch::Any),
            };
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            route.headers.push(HeaderMatch { name, value });
        } else if let Some((host, path)) = word.split_once('@') {
            route.host = HostPattern::parse(&format!("regex:{host}")).unwrap();
            route.path = PathPattern::parse(path).unwrap();
        } else if let Some((host, _)) = word.split_once("regex:") {
            route.path = PathPattern::parse(&word[host.len()..]).unwrap();
            if !host.is_empty() {
                route.host = HostPattern::parse(host).unwrap();
            }
        } else if let Some(slash) = word.find('/') {
            route.path = PathPattern::parse(&word[slash..]).unwrap();
            if slash > 0 {
                route.host = HostPattern::parse(&word[..slash]).unwrap();
            }
        } else {
            route.methods = word.split(',').map(|m| m.parse().unwrap()).collect();
        }
    }
    route.path = route.path.in_case(route.case);
    route
}

pub(super) fn table(routes: &[&str]) -> RouteTable {
    RouteTable::new(routes.iter().map(|text| route(text)).collect()).unwrap()
}

/// What the table finds for `METHOD host/path [+header=value]..`: the route and its parameters.
pub(super) fn found(table: &RouteTable, request: &str) -> Option<String> {
    ask(request, |ask| {
        let found = table.find(ask)?;
        let params = found
            .params
            .iter()
            .map(|(name, value)| format!(" {name}={value}"));
        Some(format!(
            "{}{}",
            found.route.name,
            params.collect::<String>()
        ))
    })
}

fn ask<T>(request: &str, look: impl FnOnce(&RouteQuery<'_>) -> T) -> T {
    let mut words = request.split(' ');
    let method: Method = words.next().unwrap().parse().unwrap();
    let (host, path) = words.next().unwrap().split_once('/').unwrap();
    let path = format!("/{path}");
    let mut headers = HeaderMap::new();
    let (mut port, mut query) = (0, None);
    for word in words {
        if let Some(text) = word.strip_prefix('?') {
            query = Some(text);
            continue;
        }
        if let Some(text) = word.strip_prefix(':') {
            port = text.parse().unwrap();
            continue;
        }
        let (name, value) = word.strip_prefix('+').unwrap().split_once('=').unwrap();
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let path = CanonicalPath::parse(&path).unwrap().with_folded();
    look(&RouteQuery {
        host,
        path: &path,
        method: &method,
        headers: &headers,
        query,
        port,
    })
}

#[track_caller]
pub(super) fn finds(table: &RouteTable, request: &str, expected: &str) {
    assert_eq!(
        found(table, request).as_deref(),
        Some(expected),
        "{request}"
    );
}

#[test]
fn a_port_makes_a_route_more_specific_and_narrower() {
    let mut routes = vec![route("/a"), route("/a"), route("/a/b"), route("/*")];
    for (route, (name, port)) in routes.iter_mut().zip([
        ("any", None),
        ("8081", Some(8081)),
        ("below", Some(8082)),
        ("rest", None),
    ]) {
        (route.name, route.port) = (name.into(), port);
    }
    let table = RouteTable::new(routes).unwrap();
    for (request, expected) in [
        ("GET h/a", "any"),
        ("GET h/a :8081", "8081"),
        ("GET h/a :8082", "any"),
        ("GET h/a/b :8082", "below"),
        ("GET h/a/b :8081", "rest"),
    ] {
        finds(&table, request, expected);
    }
    let mut twins = vec![route("/a"), route("/a")];
    twins.iter_mut().for_each(|route| route.port = Some(1));
    assert!(RouteTable::new(twins).is_err());
}

#[test]
fn a_slash_at_the_end_tells_paths_apart_only_if_asked_for() {
    let mut routes = vec![
        route("/a"),
        route("/a"),
        route("/a/*"),
        route("/b"),
        route("/b"),
    ];
    for (route, (name, slash)) in routes.iter_mut().zip([
        ("without", Some(false)),
        ("with", Some(true)),
        ("rest", None),
        ("both", None),
        ("b with", Some(true)),
    ]) {
        (route.name, route.trailing_slash) = (name.into(), slash);
    }
    let table = RouteTable::new(routes).unwrap();
    for (request, expected) in [
        ("GET h/a", "without"),
        ("GET h/a/", "with"),
        ("GET h//a//", "with"),
        ("GET h/%61/.", "with"),
        ("GET h/a/;x", "with"),
        ("GET h/a;x", "without"),
        ("GET h/a/b/", "rest"),
        ("GET h/b", "both"),
        ("GET h/b/", "b with"),
    ] {
        finds(&table, request, expected);
    }
    let mut twins = vec![route("/a"), route("/a")];
    twins
        .iter_mut()
        .for_each(|route| route.trailing_slash = Some(true));
    assert!(RouteTable::new(twins).is_err());
}

#[test]
fn the_most_specific_path_wins_whatever_the_order() {
    let mut routes = [
        "/*",
        "/users/*",
        "/users/{id}",
        "/users/me",
        "/users/{id}/posts",
        "/{any}/me/posts",
    ];
    for _ in 0..2 {
        let table = table(&routes);
        finds(&table, "GET h/", "/*");
        finds(&table, "GET h/other/x", "/*");
        finds(&table, "GET h/users", "/users/*");
        finds(&table, "GET h/users/me", "/users/me");
        finds(&table, "GET h/users/5", "/users/{id} id=5");
        finds(&table, "GET h/users/5/posts", "/users/{id}/posts id=5");
        finds(&table, "GET h/users/5/posts/7", "/users/*");
        // Decided from the left: a literal first segment beats a parameter there.
        finds(&table, "GET h/users/me/posts", "/users/{id}/posts id=me");
        finds(&table, "GET h/x/me/posts", "/{any}/me/posts any=x");
        finds(&table, "GET h/x/you/posts", "/*");
        routes.reverse();
    }
}

#[test]
fn a_route_that_does_not_fit_gives_way_to_a_less_specific_one() {
    let table = table(&[
        "POST /login",
        "/login +x-beta",
        "/{page}",
        "/*",
        "h.example/login",
    ]);
    finds(&table, "POST h/login", "POST /login");
    finds(&table, "GET h/login +x-beta=1", "/login +x-beta");
    finds(&table, "GET h/login", "/{page} page=login");
    finds(&table, "POST h/login +x-beta=1", "POST /login");
    finds(&table, "POST h.example/login", "h.example/login");
    finds(&table, "GET h.example/other", "/{page} page=other");
}

#[test]
fn parameters_of_abandoned_ways_are_forgotten() {
    let table = table(&["/{a}/{b}/x", "/{c}/y/z", "/*"]);
    finds(&table, "GET h/1/y/z", "/{c}/y/z c=1");
    finds(&table, "GET h/1/y/x", "/{a}/{b}/x a=1 b=y");
    finds(&table, "GET h/1/y/q", "/*");
}

#[test]
fn the_most_specific_host_wins() {
    let table = table(&["/*", "*.com/*", "*.example.com/*", "a.example.com/*"]);
    finds(&table, "GET a.example.com/", "a.example.com/*");
    finds(&table, "GET b.example.com/", "*.example.com/*");
    finds(&table, "GET x.a.example.com/", "*.example.com/*");
    finds(&table, "GET example.com/", "*.com/*");
    finds(&table, "GET com/", "/*");
}

#[test]
fn get_takes_head_unless_head_is_named() {
    let both = table(&["GET /a", "HEAD /a", "/a"]);
    finds(&both, "HEAD h/a", "HEAD /a");
    let get = table(&["GET /a", "/a"]);
    finds(&get, "HEAD h/a", "GET /a");
    finds(&get, "PUT h/a", "/a");
}

#[test]
fn methods_are_compared_without_case() {
    let table = table(&["POST /login", "/*"]);
    finds(&table, "post h/login", "POST /login");
    finds(&table, "PoSt h/login", "POST /login");
}

#[test]
fn more_and_more_exact_headers_win() {
    let mut routes = ["/a", "/a +x", "/a +x=1", "/a +x=1 +y", "/a +y"];
    for _ in 0..2 {
        let table = table(&routes);
        finds(&table, "GET h/a", "/a");
        finds(&table, "GET h/a +x=2", "/a +x");
        finds(&table, "GET h/a +x=2 +x=1", "/a +x=1");
        finds(&table, "GET h/a +x=1 +y=1", "/a +x=1 +y");
        finds(&table, "GET h/a +x=2 +y=1", "/a +x");
        routes.reverse();
    }
}

#[test]
fn a_path_with_two_readings_belongs_to_a_route_only_if_they_agree() {
    let table = table(&["/a/{id}", "/b", "/files/*", "/*"]);
    for request in [
        "GET h/a/../b",
        "GET h/files/../b",
        "GET h/a/x%2fy",
        "GET h/a%5cb",
    ] {
        assert_eq!(found(&table, request), None, "{request}");
        assert!(ask(request, |ask| table.is_ambiguous(ask)), "{request}");
    }
    finds(&table, "GET h/files/x%2fy", "/files/*");
    finds(&table, "GET h/x/../y", "/*");
    finds(&table, "GET h/./a//5/", "/a/{id} id=5");
    assert!(!ask("GET h/files/x%2fy", |ask| table.is_ambiguous(ask)));
    assert!(!ask("GET h/b", |ask| table.is_ambiguous(ask)));
}

#[test]
fn a_route_without_case_takes_every_spelling_and_its_parameters_are_folded() {
    let table = table(&["(i) /Login", "(i) /Users/{id}/*", "/Files/{Name}", "/*"]);
    for path in [
        "login",
        "LOGIN",
        "Login",
        "%4cogin",
        "logIN/",
        "log%C4%B1n",
        "./LOGIN;x",
    ] {
        finds(&table, &format!("GET h/{path}"), "(i) /Login");
    }
    finds(&table, "GET h/users/ABC/X", "(i) /Users/{id}/* id=abc");
    finds(&table, "GET h/Files/ABC", "/Files/{Name} Name=ABC");
    finds(&table, "GET h/files/ABC", "/*");
}

#[test]
fn routes_with_and_without_case_stand_beside_each_other() {
    let mut routes = [
        "(i) POST /login",
        "/login",
        "GET /Login",
        "(i) /users/{id}",
        "/Users/Me",
        "/USERS/{id}/x",
        "(i) a.example/*",
        "/*",
    ];
    for _ in 0..2 {
        let table = table(&routes);
        finds(&table, "POST h/LOGIN", "(i) POST /login");
        finds(&table, "POST h/login", "(i) POST /login");
        finds(&table, "PUT h/login", "/login");
        finds(&table, "PUT h/Login", "/*");
        finds(&table, "GET h/Login", "GET /Login");
        finds(&table, "GET h/users/Me", "(i) /users/{id} id=me");
        finds(&table, "GET h/Users/Me", "/Users/Me");
        finds(&table, "GET h/USERS/Me/x", "/USERS/{id}/x id=Me");
        finds(&table, "GET h/users/Me/x", "/*");
        finds(&table, "GET a.example/LOGIN", "(i) a.example/*");
        routes.reverse();
    }
}

#[test]
fn readings_that_differ_are_compared_without_case_too() {
    let table = table(&["(i) /login", "(i) /files/*", "/*"]);
    for request in [
        "GET h/LOGIN.",
        "GET h/Login%20",
        "GET h/LogIn%3BX=1",
        "GET h/A/../LOGIN",
    ] {
        assert_eq!(found(&table, request), None, "{request}");
        assert!(ask(request, |ask| table.is_ambiguous(ask)), "{request}");
    }
    finds(&table, "GET h/FILES/Report.", "(i) /files/*");
    finds(&table, "GET h/other.", "/*");
}

#[test]
fn routes_that_differ_by_letter_case_conflict_if_one_ignores_it() {
    let conflicts = |routes: &[&str]| {
        let routes = routes.iter().map(|text| route(text)).collect();
        RouteTable::new(routes).is_err()
    };
    assert!(conflicts(&["(i) /login", "/Login"]));
    assert!(conflicts(&["/Login", "(i) /login"]));
    assert!(conflicts(&["(i) /login", "(i) /Login"]));
    assert!(conflicts(&["(i) /Users/{id}", "/users/{name}"]));
    assert!(!conflicts(&["/login", "/Login", "(i) /other"]));
    assert!(!conflicts(&["(i) POST /login", "GET /Login"]));
    assert!(!conflicts(&["(i) /login", "/Login/*"]));
}

#[test]
fn routes_that_fit_equally_well_are_in_conflict() {
    let routes = [
        "GET,POST /users/{id}",
        "/users/{id}",
        "POST /users/{name}",
        "/users/{x} +a=1 +b",
        "/users/{y} +b +a=1",
        "h/users/{id}",
        "/users/{id}/",
        "PUT /users/{id}",
    ];
    let conflicts = RouteTable::new(routes.map(route).to_vec()).unwrap_err();
    let pairs: Vec<_> = conflicts.iter().map(|c| (c.first, c.second)).collect();
    assert_eq!(pairs, [(0, 2), (3, 4), (1, 6)]);
}

#[test]
fn routes_are_listed_in_the_given_order() {
    let table = table(&["/b", "/a"]);
    let names: Vec<Arc<str>> = table.iter().map(|route| route.name.clone()).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    assert_eq!(names, ["/b", "/a"]);
}

proptest! {
    /// Routes with and without case, against the rule of precedence spelled out over a list.
    #[test]
    fn a_folded_trie_finds_what_a_search_of_all_routes_finds(
        patterns in prop::collection::btree_set(
            "(\\(i\\) )?(/(a|b|B|\\{p\\})){0,3}(/\\*)?", 1..10,
        ),
        path in "(/[aAbBc]){0,4}",
    ) {
        let patterns: Vec<String> = patterns
            .iter()
            .map(|text| match text.strip_prefix("(i) ") {
                Some(path) => format!("(i) {}", number_params(path)),
                None => number_params(text),
            })
            .collect();
        let routes = patterns.iter().map(|text| route(text)).collect();
        let Ok(table) = RouteTable::new(routes) else {
            return Ok(());
        };
        let path = if path.is_empty() { "/" } else { &path };
        let got = ask(&format!("GET h{path}"), |ask| {
            table.find(ask).map(|found| found.route.name.to_string())
        });
        let given = CanonicalPath::parse(path).unwrap().with_folded();
        let fits = table.iter().filter(|route| route.path.matches(given.in_case(route.case)));
        let best = fits.min_by_key(|route| shape(route));
        prop_assert_eq!(got, best.map(|route| route.name.to_string()));
    }

    /// The trie against the rule of precedence, spelled out over a list.
    #[test]
    fn the_trie_finds_what_a_search_of_all_routes_finds(
        patterns in prop::collection::btree_set("(/(a|b|\\{p\\})){0,3}(/\\*)?", 1..12),
        path in "(/[abc]){0,4}",
    ) {
        let patterns: Vec<String> = patterns.iter().map(|p| number_params(p)).collect();
        let texts: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let Ok(table) = RouteTable::new(texts.iter().map(|text| route(text)).collect()) else {
            // "" and "/" are the same pattern.
            return Ok(());
        };
        let request = format!("GET h{}", if path.is_empty() { "/" } else { &path });
        let got = ask(&request, |ask| table.find(ask).map(|f| f.route.name.to_string()));
        let given = CanonicalPath::parse(if path.is_empty() { "/" } else { &path }).unwrap();
        let fits = table.iter().filter(|route| route.path.matches(&given));
        let best = fits.min_by_key(|route| shape(route));
        prop_assert_eq!(got, best.map(|route| route.name.to_string()));
    }
}

fn number_params(pattern: &str) -> String {
    let mut text = if pattern.is_empty() {
        "/".to_owned()
    } else {
        pattern.to_owned()
    };
    for number in 0..3 {
        text = text.replacen("{p}", &format!("{{p{number}}}"), 1);
    }
    text
}

/// Smaller for paths that are more specific, from the left.
fn shape(route: &Route) -> Vec<u8> {
    let kinds = route.path.segments().iter().map(|segment| match segment {
        Segment::Literal(_) => 1,
        Segment::Param(_) => 2,
    });
    let end = if route.path.takes_rest() { 3 } else { 0 };
    kinds.chain([end]).collect()
}
