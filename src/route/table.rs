//! The table: all routes, ready to be found.
//!
//! Per host a trie of path segments, with a hash table where many follow: the work for a request
//! grows with the segments of its path, not with the number of routes. Precedence is fixed when the
//! table is built, so that the order of the file never matters.

use smallvec::SmallVec;

use super::trie::{Node, Texts, Trie};
use super::{Ask, Found, HostPattern, Route};

/// Two routes that the same request fits equally well, by their index in the given list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conflict {
    /// The earlier one.
    pub first: usize,
    /// The later one.
    pub second: usize,
}

/// Every route.
#[derive(Debug)]
pub struct RouteTable {
    routes: Vec<Route>,
    exact: Texts<Trie>,
    below: Texts<Trie>,
    any: Trie,
}

impl RouteTable {
    /// A table of these routes, or their conflicts: for each route that has one, the first.
    pub fn new(mut routes: Vec<Route>) -> Result<Self, Vec<Conflict>> {
        for (number, route) in routes.iter_mut().enumerate() {
            route.number = number;
        }
        let mut table = Self {
            routes,
            exact: Texts::default(),
            below: Texts::default(),
            any: Trie::default(),
        };
        let mut conflicts = Vec::new();
        for index in 0..table.routes.len() {
            let route = &table.routes[index];
            let trie = match &route.host {
                HostPattern::Any => &mut table.any,
                HostPattern::Exact(host) => table.exact.entry(host.clone()).or_default(),
                HostPattern::Below(host) => table.below.entry(host.clone()).or_default(),
            };
            let before = trie.add(&route.path, u32::try_from(index).unwrap_or(u32::MAX));
            let rival = |other: &&u32| table.routes[**other as usize].rivals(route);
            if let Some(first) = before.iter().find(rival) {
                conflicts.push(Conflict {
                    first: *first as usize,
                    second: index,
                });
            }
        }
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        let all = table.exact.values_mut().chain(table.below.values_mut());
        for trie in all.chain([&mut table.any]) {
            trie.sort_by_key(|index| table.routes[index].header_rank());
        }
        Ok(table)
    }

    /// The most specific route that the request fits: first by host (this one, then below a longer
    /// name, then below a shorter one, then any), then segment by segment from the left (literal,
    /// `{param}`, `/*`), then with methods, then by headers. A route that does not fit gives way
    /// to the next.
    ///
    /// `None` also if the path can be read in two ways that belong to different routes; see
    /// [`RouteTable::is_ambiguous`].
    pub fn find<'t, 'p>(&'t self, ask: &Ask<'p>) -> Option<Found<'t, 'p>> {
        let found = self.find_path(ask, ask.path.as_str())?;
        if let Some(other) = ask.path.unresolved() {
            let other = self.find_path(ask, other)?;
            if !std::ptr::eq(found.route, other.route) {
                return None;
            }
        }
        Some(found)
    }

    /// Whether the path can be read in two ways that belong to different routes, so that upstreams
    /// may disagree about what is asked: 400 rather than 404.
    pub fn is_ambiguous(&self, ask: &Ask<'_>) -> bool {
        let Some(other) = ask.path.unresolved() else {
            return false;
        };
        let route = |path| {
            self.find_path(ask, path)
                .map(|found| std::ptr::from_ref(found.route))
        };
        route(ask.path.as_str()) != route(other)
    }

    /// Every route, in the given order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    fn find_path<'t, 'p>(&'t self, ask: &Ask<'p>, path: &'p str) -> Option<Found<'t, 'p>> {
        let segments = path.strip_prefix('/').unwrap_or(path);
        self.hosts(ask.host).find_map(|trie| {
            let mut walk = Walk {
                table: self,
                trie,
                ask,
                values: SmallVec::new(),
            };
            let route = walk.from(trie.root(), segments)?;
            let params = match walk.values.is_empty() {
                true => SmallVec::new(),
                false => route.path.params().zip(walk.values).collect(),
            };
            Some(Found { route, params })
        })
    }

    /// The tries for a host, the most specific one first.
    fn hosts<'t, 'h>(&'t self, host: &'h str) -> impl Iterator<Item = &'t Trie> + use<'t, 'h> {
        let exact = if self.exact.is_empty() {
            None
        } else {
            self.exact.get(host)
        };
        // Without wildcards there is nothing to look for behind the host's dots.
        let tail = if self.below.is_empty() { "" } else { host };
        let below = tail
            .match_indices('.')
            .filter_map(|(dot, _)| self.below.get(&tail[dot + 1..]));
        exact.into_iter().chain(below).chain([&self.any])
    }
}

/// One walk down one trie.
struct Walk<'t, 'a, 'p> {
    table: &'t RouteTable,
    trie: &'t Trie,
    ask: &'a Ask<'p>,
    values: SmallVec<[&'p str; 4]>,
}

impl<'t, 'p> Walk<'t, '_, 'p> {
    /// The best route at or below a node for what is left of the path. No deeper than a pattern
    /// can be, and at no node twice.
    fn from(&mut self, node: &'t Node, left: &'p str) -> Option<&'t Route> {
        let trie = self.trie;
        if left.is_empty() {
            let here = self.best(trie.here(node));
            return here.or_else(|| self.best(trie.rest(node)));
        }
        // Segments are short: a loop finds their end before a search has begun.
        let end = left.bytes().position(|byte| byte == b'/');
        let (segment, left) = end.map_or((left, ""), |end| (&left[..end], &left[end + 1..]));
        if let Some(child) = trie.literal(node, segment)
            && let Some(route) = self.from(trie.node(child), left)
        {
            return Some(route);
        }
        if let Some(child) = node.param {
            self.values.push(segment);
            if let Some(route) = self.from(trie.node(child), left) {
                return Some(route);
            }
            self.values.pop();
        }
        self.best(trie.rest(node))
    }

    /// Of routes with the same path, the best that the request fits; of equals the first.
    fn best(&self, routes: &[u32]) -> Option<&'t Route> {
        let Ask {
            method, headers, ..
        } = *self.ask;
        let routes = routes
            .iter()
            .map(|index| &self.table.routes[*index as usize]);
        let fitting = routes.filter(|route| route.takes_headers(headers));
        let ranked = fitting.filter_map(|route| Some((route.method_rank(method)?, route)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, route)| route)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderMap, HeaderName, HeaderValue, Method};
    use proptest::prelude::*;

    use super::*;
    use crate::path::CanonicalPath;
    use crate::route::pattern::Segment;
    use crate::route::{CostSource, HeaderMatch, PathPattern, StatusSet, Target};

    /// A route from `[METHOD,..] [host]/path [+header[=value]]..`, named by its text.
    fn route(text: &str) -> Route {
        let mut route = Route {
            number: 0,
            name: text.into(),
            host: HostPattern::Any,
            path: PathPattern::parse("/").unwrap(),
            methods: Vec::new(),
            headers: Vec::new(),
            target: Target::Upstream(0),
            affinity: None,
            limits: Vec::new(),
            cost: CostSource::Fixed(1),
            settle: None,
            refund: StatusSet::default(),
            strip_prefix: None,
            body_limit: None,
            headers_up: Vec::new(),
            headers_down: Vec::new(),
            timeout: None,
        };
        for word in text.split(' ') {
            if let Some(header) = word.strip_prefix('+') {
                let (name, value) = match header.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (header, None),
                };
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                route.headers.push(HeaderMatch { name, value });
            } else if let Some(slash) = word.find('/') {
                route.path = PathPattern::parse(&word[slash..]).unwrap();
                if slash > 0 {
                    route.host = HostPattern::parse(&word[..slash]).unwrap();
                }
            } else {
                route.methods = word.split(',').map(|m| m.parse().unwrap()).collect();
            }
        }
        route
    }

    fn table(routes: &[&str]) -> RouteTable {
        RouteTable::new(routes.iter().map(|text| route(text)).collect()).unwrap()
    }

    /// What the table finds for `METHOD host/path [+header=value]..`: the route and its parameters.
    fn found(table: &RouteTable, request: &str) -> Option<String> {
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

    fn ask<T>(request: &str, look: impl FnOnce(&Ask<'_>) -> T) -> T {
        let mut words = request.split(' ');
        let method: Method = words.next().unwrap().parse().unwrap();
        let (host, path) = words.next().unwrap().split_once('/').unwrap();
        let path = format!("/{path}");
        let mut headers = HeaderMap::new();
        for word in words {
            let (name, value) = word.strip_prefix('+').unwrap().split_once('=').unwrap();
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        let path = CanonicalPath::parse(&path).unwrap();
        look(&Ask {
            host,
            path: &path,
            method: &method,
            headers: &headers,
        })
    }

    #[track_caller]
    fn finds(table: &RouteTable, request: &str, expected: &str) {
        assert_eq!(
            found(table, request).as_deref(),
            Some(expected),
            "{request}"
        );
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
            let best = fits.min_by_key(|route| {
                let kinds = route.path.segments().iter().map(|segment| match segment {
                    Segment::Literal(_) => 1,
                    Segment::Param(_) => 2,
                });
                let end = if route.path.takes_rest() { 3 } else { 0 };
                kinds.chain([end]).collect::<Vec<_>>()
            });
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
}
