//! The table: all routes, ready to be found.
//!
//! Per host a trie of path segments, with a hash table where many follow: the work for a request
//! grows with the segments of its path, not with the number of routes. Precedence is fixed when the
//! table is built, so that the order of the file never matters.

mod expressions;

use smallvec::SmallVec;

use super::trie::{Node, Texts, Trie};
use super::{Ask, Found, HostPattern, Route};
use crate::path::{CanonicalPath, Case, PathError};

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
    /// How the tries have segments: folded, if some route ignores letter case.
    case: Case,
}

impl RouteTable {
    /// A table of these routes, or their conflicts: for each route that has one, the first.
    pub fn new(mut routes: Vec<Route>) -> Result<Self, Vec<Conflict>> {
        for (number, route) in routes.iter_mut().enumerate() {
            route.number = number;
        }
        let folds = routes.iter().any(|route| route.case == Case::Insensitive);
        let mut table = Self {
            case: match folds {
                true => Case::Insensitive,
                false => Case::Sensitive,
            },
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
            let folded = folds.then(|| route.path.clone().in_case(Case::Insensitive));
            let path = folded.as_ref().unwrap_or(&route.path);
            let before = trie.add(path, u32::try_from(index).unwrap_or(u32::MAX));
            let rival = |other: &&u32| {
                let other = &table.routes[**other as usize];
                other.rivals(route) && (!route.path.is_regex() || other.path == route.path)
            };
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

    /// Reads a request's path, with all that [`RouteTable::find`] needs of it.
    ///
    /// # Errors
    /// It is a path of no request.
    pub fn read_path<'p>(&self, raw: &'p str) -> Result<CanonicalPath<'p>, PathError> {
        let path = CanonicalPath::parse(raw)?;
        Ok(match self.case {
            Case::Sensitive => path,
            Case::Insensitive => path.with_folded(),
        })
    }

    /// The most specific route that the request fits: first by host (this one, then below a longer
    /// name, then below a shorter one, then any), then segment by segment from the left (literal,
    /// `{param}`, `/*`), then with methods, then by headers. A route that does not fit gives way
    /// to the next. Regular expressions come after paths that end and before `/*`, in the order
    /// of the file.
    ///
    /// `None` also if the path can be read in several ways that belong to different routes; see
    /// [`RouteTable::is_ambiguous`].
    pub fn find<'t, 'p>(&'t self, ask: &Ask<'p>) -> Option<Found<'t, 'p>> {
        let found = self.find_path(ask, self.first(ask))?;
        if ask.path.is_plain() {
            return Some(found);
        }
        let same = |other: Option<&Route>| other.is_some_and(|it| std::ptr::eq(it, found.route));
        self.others(ask).all(same).then_some(found)
    }

    /// Whether the path can be read in several ways that belong to different routes, so that
    /// upstreams may disagree about what is asked: 400 rather than 404.
    pub fn is_ambiguous(&self, ask: &Ask<'_>) -> bool {
        let found = self.find_path(ask, self.first(ask));
        let first = found.map(|found| std::ptr::from_ref(found.route));
        self.others(ask)
            .any(|other| other.map(std::ptr::from_ref) != first)
    }

    /// The routes of the path's other readings.
    fn others<'t>(&'t self, ask: &Ask<'_>) -> impl Iterator<Item = Option<&'t Route>> {
        let folded = ask.path.in_case(self.case).others();
        let readings = ask.path.others().zip(folded);
        readings.map(|(exact, walked)| {
            let found = self.find_path(ask, PathReading { walked, exact });
            found.map(|found| found.route)
        })
    }

    /// The first reading of a request's path.
    #[inline]
    fn first<'p>(&self, ask: &Ask<'p>) -> PathReading<'p> {
        let exact = ask.path.as_str();
        let walked = match self.case {
            Case::Sensitive => exact,
            Case::Insensitive => ask.path.in_case(self.case).as_str(),
        };
        PathReading { walked, exact }
    }

    /// Every route, in the given order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    fn find_path<'t, 'p>(&'t self, ask: &Ask<'p>, path: PathReading<'p>) -> Option<Found<'t, 'p>> {
        let segments = path.walked.strip_prefix('/').unwrap_or(path.walked);
        self.hosts(ask.host).find_map(|trie| {
            let mut walk = Walk {
                table: self,
                trie,
                ask,
                exact: path.exact,
                values: SmallVec::new(),
            };
            let route = match trie.expressions().is_empty() {
                true => walk.from(trie.root(), segments)?,
                false => walk.with_expressions(segments)?,
            };
            let params = match walk.values.is_empty() {
                true => SmallVec::new(),
                // The walk saw no letter case, which this route sees.
                false if route.case != self.case => {
                    let values = route.path.values_in(path.exact);
                    route.path.params().zip(values).collect()
                }
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

/// One way to read a request's path.
#[derive(Clone, Copy)]
struct PathReading<'p> {
    /// As the tries have it.
    walked: &'p str,
    /// With its letter case.
    exact: &'p str,
}

/// One walk down one trie.
struct Walk<'t, 'a, 'p> {
    table: &'t RouteTable,
    trie: &'t Trie,
    ask: &'a Ask<'p>,
    /// The path with its letter case.
    exact: &'p str,
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
        let spelled =
            |route: &&Route| route.case == self.table.case || route.path.matches_text(self.exact);
        let fitting = routes.filter(|route| route.takes_headers(headers) && spelled(route));
        let ranked = fitting.filter_map(|route| Some((route.method_rank(method)?, route)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, route)| route)
    }
}

#[cfg(test)]
mod tests;
