//! Why the other routes are not a request's: for people, and not on the path of a request.
//!
//! It asks each route what the table's order rests on, so that what it says and what the table
//! finds cannot differ. It looks at every route.

use std::cmp::Reverse;

use http::HeaderName;

use super::pattern::Segment;
use super::{Ask, HostPattern, PathPattern, Route, RouteTable};

/// A route that is near a request, and not its own.
#[derive(Clone, Debug)]
pub struct Near<'t> {
    /// The route.
    pub route: &'t Route,
    /// Everything that does not fit; of a route that fits, by what the other one wins.
    pub misses: Vec<Miss<'t>>,
}

/// Why a route is not a request's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss<'t> {
    /// It is another host's.
    Host,
    /// Its path is another: from this segment on, counted from 0.
    Path(usize),
    /// It does not take the method.
    Method,
    /// The request does not have this header.
    NoHeader(&'t HeaderName),
    /// The request has this header with another value.
    HeaderValue(&'t HeaderName),
    /// It fits, and the route that was found is more specific by this.
    LessSpecific(Precedence),
}

/// What makes one of two fitting routes the more specific one, in the order in which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// Its host.
    Host,
    /// Its path.
    Path,
    /// That it names the method.
    Method,
    /// Its headers.
    Headers,
}

impl RouteTable {
    /// Routes that might have been meant instead of the one that the table finds, the nearest
    /// first; so many at most.
    pub fn near<'t>(&'t self, ask: &Ask<'_>, most: usize) -> Vec<Near<'t>> {
        let found = self.find(ask).map(|found| found.route);
        let others = self.iter().filter(|route| {
            let found = found.map(std::ptr::from_ref);
            found != Some(std::ptr::from_ref(*route))
        });
        let mut near: Vec<_> = others.filter_map(|route| route.near(ask, found)).collect();
        near.sort_by_key(|(distance, _)| *distance);
        near.truncate(most);
        near.into_iter().map(|(_, near)| near).collect()
    }
}

/// Smaller is nearer: kinds of misses, then segments in common.
type Distance = (usize, Reverse<usize>);

impl Route {
    fn near<'t>(&'t self, ask: &Ask<'_>, found: Option<&Route>) -> Option<(Distance, Near<'t>)> {
        let mut misses = Vec::new();
        if !self.host.matches(ask.host) {
            misses.push(Miss::Host);
        }
        let path = ask.path.in_case(self.case);
        let (common, path_fits) = self.path.common(path.as_str());
        if !path_fits || !self.path.matches(path) {
            misses.push(Miss::Path(common));
        }
        if self.method_rank(ask.method).is_none() {
            misses.push(Miss::Method);
        }
        for wanted in self.headers.iter().filter(|one| !one.is_in(ask.headers)) {
            misses.push(match ask.headers.contains_key(&wanted.name) {
                true => Miss::HeaderValue(&wanted.name),
                false => Miss::NoHeader(&wanted.name),
            });
        }
        let is_path = |miss: &Miss<'_>| matches!(miss, Miss::Path(_));
        let path_misses = misses.iter().any(is_path);
        let is_near = match misses.len() {
            0 | 1 if !path_misses => true,
            2 if !path_misses => !self.takes_all_paths(),
            count => count == 1 && (common > 0 || self.is_misspelt(ask)),
        };
        if !is_near {
            return None;
        }
        if misses.is_empty() {
            misses.push(Miss::LessSpecific(found?.precedes(self, ask)));
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

    /// By what this route, which fits, comes before another one that fits.
    fn precedes(&self, other: &Route, ask: &Ask<'_>) -> Precedence {
        let host = |route: &Route| match &route.host {
            HostPattern::Exact(_) => usize::MAX,
            HostPattern::Below(name) => name.len(),
            HostPattern::Any => 0,
        };
        if host(self) != host(other) {
            Precedence::Host
        } else if !self.path.is_as_specific_as(&other.path) {
            Precedence::Path
        } else if self.method_rank(ask.method) != other.method_rank(ask.method) {
            Precedence::Method
        } else {
            Precedence::Headers
        }
    }

    /// Whether the path has as many segments as this route's, and differs in one, by a slip.
    fn is_misspelt(&self, ask: &Ask<'_>) -> bool {
        let given: Vec<&str> = segments(ask.path.in_case(self.case).as_str()).collect();
        let own = self.path.segments();
        let slips = own
            .iter()
            .zip(given.iter().copied())
            .filter_map(|pair| match pair {
                (Segment::Literal(own), given) if **own != *given => Some((&**own, given)),
                _ => None,
            });
        let slips: Vec<_> = slips.collect();
        let close = |(own, given): &(&str, &str)| {
            let most = (own.len().max(given.len()) / 3).max(1);
            strsim::osa_distance(own, given) <= most
        };
        (own.len() == given.len() || (self.path.takes_rest() && own.len() < given.len()))
            && matches!(&slips[..], [slip] if close(slip))
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

impl PathPattern {
    /// How many segments of a path fit from the left, and whether all do.
    fn common(&self, path: &str) -> (usize, bool) {
        if self.is_regex() {
            return (0, self.matches_text(path));
        }
        let mut given = segments(path);
        for (at, segment) in self.segments().iter().enumerate() {
            let fits = match (segment, given.next()) {
                (_, None) => false,
                (Segment::Literal(own), Some(given)) => **own == *given,
                (Segment::Param(_), Some(_)) => true,
            };
            if !fits {
                return (at, false);
            }
        }
        let own = self.segments().len();
        (own, self.takes_rest() || given.next().is_none())
    }

    /// Whether neither of two patterns for the same path comes before the other.
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
    use http::{HeaderMap, HeaderValue, Method};

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
        let ask = Ask {
            host: "api.example",
            path: &CanonicalPath::parse(path).unwrap(),
            method: &Method::from_bytes(method.as_bytes()).unwrap(),
            headers: &headers,
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
                "/users/me #2: [LessSpecific(Headers)]",
                "default: [LessSpecific(Path)]"
            ]
        );
    }

    #[test]
    fn a_slip_in_a_path_is_near() {
        assert_eq!(near("POST /logni", None), ["POST /login: [Path(0)]"]);
        assert!(near("POST /other", None).is_empty());
    }
}
