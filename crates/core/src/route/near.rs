//! Routes that nearly match a request, and why they do not: for `explain`, not on the request path.
//!
//! This code visits every route, and uses the same comparisons as the table. So it cannot disagree
//! with the table.

use std::cmp::Reverse;

use super::matching::Precedence;
use super::pattern::{Segment, segments};
use super::{HeaderMatch, PathPattern, QueryMatch, Route, RouteQuery, RouteTable};

#[derive(Clone, Debug)]
pub struct Near<'t> {
    pub route: &'t Route,
    /// All mismatches. A route that does match has the one reason why another route wins.
    pub misses: Vec<Miss<'t>>,
}

/// The reason why a route is not the request's route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss<'t> {
    Host,
    /// The path differs from this segment on, counted from 0.
    Path(usize),
    Method,
    /// The request came to another port.
    Port,
    /// The path has a slash at its end, or lacks it.
    TrailingSlash,
    NoHeader(&'t HeaderMatch),
    HeaderValue(&'t HeaderMatch),
    Query(&'t QueryMatch),
    LessSpecific(Precedence),
}

impl RouteTable {
    /// Finds routes that the client may have meant instead of the found one: at most `most`, the
    /// nearest first.
    pub fn near<'t>(&'t self, query: &RouteQuery<'_>, most: usize) -> Vec<Near<'t>> {
        let found = self.find(query).map(|found| found.route);
        let is_other = |route: &&Route| !found.is_some_and(|found| std::ptr::eq(found, *route));
        let others = self.iter().filter(is_other);
        let mut near: Vec<_> = others
            .filter_map(|route| route.near(query, found))
            .collect();
        near.sort_by_key(|(distance, _)| *distance);
        near.truncate(most);
        near.into_iter().map(|(_, near)| near).collect()
    }
}

/// Smaller is nearer: kinds of misses, then segments in common.
type Distance = (usize, Reverse<usize>);

impl Route {
    fn near<'t>(
        &'t self,
        query: &RouteQuery<'_>,
        found: Option<&Route>,
    ) -> Option<(Distance, Near<'t>)> {
        let mut misses = Vec::new();
        if !self.host.matches(query.host) {
            misses.push(Miss::Host);
        }
        let path = query.path.in_case(self.case);
        let (common, path_fits) = self.path.common(path.as_str());
        if !path_fits || !self.path.matches(path) {
            misses.push(Miss::Path(common));
        }
        if self.method_rank(query.method).is_none() {
            misses.push(Miss::Method);
        }
        if !self.takes_port(query.port) {
            misses.push(Miss::Port);
        }
        if !self.takes_slash(query.path) {
            misses.push(Miss::TrailingSlash);
        }
        for wanted in self.headers.iter().filter(|one| !one.is_in(query.headers)) {
            misses.push(match query.headers.contains_key(&wanted.name) {
                true => Miss::HeaderValue(wanted),
                false => Miss::NoHeader(wanted),
            });
        }
        let wanted = self.query.iter().filter(|one| !one.is_in(query.query));
        misses.extend(wanted.map(Miss::Query));
        let is_path = |miss: &Miss<'_>| matches!(miss, Miss::Path(_));
        let path_misses = misses.iter().any(is_path);
        let is_near = match misses.len() {
            0 | 1 if !path_misses => true,
            2 if !path_misses => !self.takes_all_paths(),
            count => count == 1 && (common > 0 || self.is_misspelt(query)),
        };
        if !is_near {
            return None;
        }
        if misses.is_empty() {
            misses.push(Miss::LessSpecific(found?.precedes(self, query)));
        }
        let distance = (misses.len() + usize::from(path_misses), Reverse(common));
        let near = Near {
            route: self,
            misses,
        };
        Some((distance, near))
    }

    fn takes_all_paths(&self) -> bool {
        self.path.segments().is_empty() && self.path.takes_rest() && !self.path.is_regex()
    }

    /// Why this route comes before another route, when both match.
    fn precedes(&self, other: &Route, query: &RouteQuery<'_>) -> Precedence {
        if self.host != other.host {
            Precedence::Host
        } else if !self.path.is_as_specific_as(&other.path) {
            Precedence::Path
        } else if self.method_rank(query.method) != other.method_rank(query.method) {
            Precedence::Method
        } else if self.port.is_some() != other.port.is_some() {
            Precedence::Port
        } else if self.trailing_slash.is_some() != other.trailing_slash.is_some() {
            Precedence::TrailingSlash
        } else {
            self.fields_precede(other)
        }
    }

    /// Whether the path has as many segments as this route's, and only one of them has a typo.
    fn is_misspelt(&self, query: &RouteQuery<'_>) -> bool {
        let given: Vec<&str> = segments(query.path.in_case(self.case).as_str()).collect();
        let own = self.path.segments();
        let pairs = own.iter().zip(given.iter().copied());
        let typos = pairs.filter_map(|pair| match pair {
            (Segment::Literal(own), given) if **own != *given => Some((&**own, given)),
            _ => None,
        });
        let typos: Vec<_> = typos.collect();
        let close = |(own, given): &(&str, &str)| {
            let most = (own.len().max(given.len()) / 3).max(1);
            strsim::osa_distance(own, given) <= most
        };
        (own.len() == given.len() || (self.path.takes_rest() && own.len() < given.len()))
            && matches!(&typos[..], [typo] if close(typo))
    }
}

impl PathPattern {
    /// Whether neither of two patterns for the same path has precedence.
    fn is_as_specific_as(&self, other: &PathPattern) -> bool {
        let literal = |segment: &Segment| matches!(segment, Segment::Literal(_));
        let shape = |pattern: &PathPattern| -> Vec<bool> {
            pattern.segments().iter().map(literal).collect()
        };
        shape(self) == shape(other)
            && self.takes_rest() == other.takes_rest()
            && !self.is_regex()
            && !other.is_regex()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, Method};

    use super::*;
    use crate::config;
    use crate::path::CanonicalPath;

    const FILE: &str = r#"
        upstream = "http://127.0.0.1:1"
        [[route]]
        path = "/login"
        methods = ["POST"]
        [[route]]
        path = "/login"
        host = "old.example"
        [[route]]
        path = "/users/{id}"
        [[route]]
        path = "/users/me"
        headers = { x-version = "2" }
        [[route]]
        path = "/users/me"
    "#;

    fn near(request: &str, version: Option<&'static str>) -> Vec<String> {
        let (config, _) = config::parse("proxy.toml", FILE, &|_| None).unwrap();
        let (method, path) = request.split_once(' ').unwrap();
        let mut headers = HeaderMap::new();
        headers.extend(version.map(|text| {
            let name = HeaderName::from_static("x-version");
            (name, HeaderValue::from_static(text))
        }));
        let ask = RouteQuery {
            host: "api.example",
            path: &CanonicalPath::parse(path).unwrap(),
            method: &Method::from_bytes(method.as_bytes()).unwrap(),
            headers: &headers,
            query: None,
            port: 0,
        };
        let near = config.routes.near(&ask, 5);
        let text = |near: &Near<'_>| format!("{}: {:?}", near.route.name, near.misses);
        near.iter().map(text).collect()
    }

    #[test]
    fn what_does_not_fit_is_said_of_each() {
        assert_eq!(
            near("GET /login", None),
            ["POST /login: [Method]", "old.example/login: [Host]"]
        );
    }

    #[test]
    fn of_routes_that_fit_the_less_specific_says_why() {
        assert_eq!(
            near("GET /users/me", Some("2")),
            [
                "/users/{id}: [LessSpecific(Path)]",
                "/users/me #2: [LessSpecific(MoreFields)]",
                "default: [LessSpecific(Path)]"
            ]
        );
    }

    #[test]
    fn of_routes_with_as_many_headers_the_real_reason_is_said() {
        let reason = |first: &str, second: &str| {
            let route = |fields: &str| format!("[[route]]\npath = \"/a\"\n{fields}\n");
            let file = format!("upstream = \"http://h\"\n{}{}", route(first), route(second));
            let (config, _) = config::parse("f", &file, &|_| None).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert("x-a", HeaderValue::from_static("1"));
            headers.insert("x-b", HeaderValue::from_static("1"));
            let ask = RouteQuery {
                host: "h",
                path: &CanonicalPath::parse("/a").unwrap(),
                method: &Method::GET,
                headers: &headers,
                query: None,
                port: 80,
            };
            let near = config.routes.near(&ask, 1);
            match near[0].misses[..] {
                [Miss::LessSpecific(by)] => by,
                ref other => panic!("{other:?}"),
            }
        };
        let (a, b) = ("headers = { x-a = \"1\" }", "headers = { x-b = \"1\" }");
        assert_eq!(reason(a, b), Precedence::Alphabet);
        assert_eq!(
            reason("headers = { x-a = true }", b),
            Precedence::ExactFields
        );
        assert_eq!(reason(a, ""), Precedence::MoreFields);
        assert_eq!(reason(a, "port = 80"), Precedence::Port);
        assert_eq!(
            reason(a, "trailing_slash = false"),
            Precedence::TrailingSlash
        );
    }

    #[test]
    fn a_slip_in_a_path_is_near() {
        assert_eq!(near("POST /logni", None), ["POST /login: [Path(0)]"]);
        assert!(near("POST /other", None).is_empty());
    }
}
