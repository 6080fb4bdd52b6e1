//! The route table.
//!
//! Each host pattern has a trie of path segments, with a hash table where many segments follow. The
//! time to find a route grows with the segments of the path, not with the number of routes.
//! Precedence is fixed when the table is built, so that the order of the file never matters.

use smallvec::SmallVec;

use super::trie::{Texts, Trie, TrieNode};
use super::{HostPattern, Regex, Route, RouteMatch, RouteQuery};
use crate::path::{CanonicalPath, Case, Malformed};

/// Two routes that match the same requests equally well, by their index in the given list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conflict {
    pub first: usize,
    pub second: usize,
}

#[derive(Clone, Debug)]
pub struct RouteTable {
    routes: Vec<Route>,
    exact: Texts<Trie>,
    below: Texts<Trie>,
    /// In the order of the file.
    by_regex: Vec<RegexHost>,
    any: Trie,
    /// The case of the tries' segments: folded, if some route ignores letter case.
    case: Case,
}

/// The routes of one host that is an expression.
#[derive(Clone, Debug)]
struct RegexHost {
    regex: Regex,
    trie: Trie,
}

impl RouteTable {
    /// Builds the table. The error has the first conflict of each route that has one.
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
            by_regex: Vec::new(),
            any: Trie::default(),
        };
        let mut conflicts = Vec::new();
        for index in 0..table.routes.len() {
            let route = &table.routes[index];
            let trie = match &route.host {
                HostPattern::Any => &mut table.any,
                HostPattern::Exact(host) => table.exact.entry(host.clone()).or_default(),
                HostPattern::Below(host) => table.below.entry(host.clone()).or_default(),
                HostPattern::Regex(regex) => trie_of(&mut table.by_regex, regex),
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
        let by_regex = table.by_regex.iter_mut().map(|host| &mut host.trie);
        for trie in all.chain(by_regex).chain([&mut table.any]) {
            trie.sort_by_key(|index| table.routes[index].header_rank());
        }
        Ok(table)
    }

    /// Reads a request's path as [`RouteTable::find`] needs it. Fails for a path that no request
    /// may have.
    pub fn read_path<'p>(&self, raw: &'p str) -> Result<CanonicalPath<'p>, Malformed> {
        let path = CanonicalPath::parse(raw)?;
        Ok(match self.case {
            Case::Sensitive => path,
            Case::Insensitive => path.with_folded(),
        })
    }

    /// Finds the most specific route that matches the request: first by host (exact, then below a
    /// longer name, then below a shorter one, then the first expression of the file, then any),
    /// then segment by segment from the left
    /// (literal, `{param}`, `/*`), then by method, then by headers. Regular expressions come after
    /// paths that end and before `/*`, in the order of the file.
    ///
    /// Also `None` if readings of the path belong to different routes; see
    /// [`RouteTable::is_ambiguous`].
    pub fn find<'t, 'p>(&'t self, query: &RouteQuery<'p>) -> Option<RouteMatch<'t, 'p>> {
        let found = self.find_path(query, self.first(query))?;
        if query.path.is_plain() {
            return Some(found);
        }
        let same = |other: Option<&Route>| other.is_some_and(|it| std::ptr::eq(it, found.route));
        self.others(query).all(same).then_some(found)
    }

    /// Whether readings of the path belong to different routes. Upstreams may then disagree about
    /// the path, so the answer is 400, not 404.
    pub fn is_ambiguous(&self, query: &RouteQuery<'_>) -> bool {
        let found = self.find_path(query, self.first(query));
        let first = found.map(|found| std::ptr::from_ref(found.route));
        self.others(query)
            .any(|other| other.map(std::ptr::from_ref) != first)
    }

    /// The routes of the other readings of the path.
    fn others<'t>(&'t self, query: &RouteQuery<'_>) -> impl Iterator<Item = Option<&'t Route>> {
        let folded = query.path.in_case(self.case).others();
        let readings = query.path.others().zip(folded);
        readings.map(|(exact, walked)| {
            let found = self.find_path(query, PathReading { walked, exact });
            found.map(|found| found.route)
        })
    }

    #[inline]
    fn first<'p>(&self, query: &RouteQuery<'p>) -> PathReading<'p> {
        let exact = query.path.as_str();
        let walked = match self.case {
            Case::Sensitive => exact,
            Case::Insensitive => query.path.in_case(self.case).as_str(),
        };
        PathReading { walked, exact }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    fn find_path<'t, 'p>(
        &'t self,
        query: &RouteQuery<'p>,
        path: PathReading<'p>,
    ) -> Option<RouteMatch<'t, 'p>> {
        let segments = path.walked.strip_prefix('/').unwrap_or(path.walked);
        self.hosts(query.host).find_map(|trie| {
            let mut walk = TrieWalk {
                table: self,
                trie,
                query,
                exact: path.exact,
                values: SmallVec::new(),
            };
            let route = match trie.expressions().is_empty() {
                true => walk.descend::<true>(trie.root(), segments)?,
                false => walk.with_expressions(segments)?,
            };
            let params = match walk.values.is_empty() {
                true => SmallVec::new(),
                // The walk ignored letter case, and this route does not.
                false if route.case != self.case => {
                    let values = route.path.values_in(path.exact);
                    route.path.params().zip(values).collect()
                }
                false => route.path.params().zip(walk.values).collect(),
            };
            Some(RouteMatch { route, params })
        })
    }

    /// The tries for a host, the most specific one first.
    fn hosts<'t, 'h>(&'t self, host: &'h str) -> impl Iterator<Item = &'t Trie> + use<'t, 'h> {
        let exact = if self.exact.is_empty() {
            None
        } else {
            self.exact.get(host)
        };
        // Without wildcards no pattern can match behind the host's dots.
        let tail = if self.below.is_empty() { "" } else { host };
        let below = tail
            .match_indices('.')
            .filter_map(|(dot, _)| self.below.get(&tail[dot + 1..]));
        let by_regex = self.by_regex.iter();
        let by_regex = by_regex.filter(|one| one.regex.is_in(host.as_bytes()));
        let by_regex = by_regex.map(|one| &one.trie);
        exact
            .into_iter()
            .chain(below)
            .chain(by_regex)
            .chain([&self.any])
    }
}

fn trie_of<'t>(hosts: &'t mut Vec<RegexHost>, regex: &Regex) -> &'t mut Trie {
    let known = hosts.iter().position(|one| one.regex == *regex);
    let index = known.unwrap_or_else(|| {
        hosts.push(RegexHost {
            regex: regex.clone(),
            trie: Trie::default(),
        });
        hosts.len() - 1
    });
    &mut hosts[index].trie
}

#[derive(Clone, Copy)]
struct PathReading<'p> {
    /// In the case of the tries.
    walked: &'p str,
    exact: &'p str,
}

struct TrieWalk<'t, 'a, 'p> {
    table: &'t RouteTable,
    trie: &'t Trie,
    query: &'a RouteQuery<'p>,
    exact: &'p str,
    values: SmallVec<[&'p str; 4]>,
}

impl<'t, 'p> TrieWalk<'t, '_, 'p> {
    /// The best route: a path that ends, then the first expression, then a path with `/*`.
    fn with_expressions(&mut self, segments: &'p str) -> Option<&'t Route> {
        let trie = self.trie;
        if let Some(route) = self.descend::<false>(trie.root(), segments) {
            return Some(route);
        }
        for index in trie.expressions() {
            let route = &self.table.routes[*index as usize];
            if route.path.matches_text(self.exact)
                && let Some(route) = self.best(std::slice::from_ref(index))
            {
                return Some(route);
            }
        }
        self.descend::<true>(trie.root(), segments)
    }

    /// The best route at or below a node for the rest of the path; with `REST` also one that ends
    /// in `/*`. It goes no deeper than a pattern, and visits no node twice.
    fn descend<const REST: bool>(
        &mut self,
        node: &'t TrieNode,
        left: &'p str,
    ) -> Option<&'t Route> {
        let trie = self.trie;
        if left.is_empty() {
            if let Some(route) = self.best(trie.here(node)) {
                return Some(route);
            }
        } else {
            // Segments are short: a loop finds their end before a search has begun.
            let end = left.bytes().position(|byte| byte == b'/');
            let (segment, left) = end.map_or((left, ""), |end| (&left[..end], &left[end + 1..]));
            if let Some(child) = trie.literal(node, segment)
                && let Some(route) = self.descend::<REST>(trie.node(child), left)
            {
                return Some(route);
            }
            if let Some(child) = node.param {
                self.values.push(segment);
                if let Some(route) = self.descend::<REST>(trie.node(child), left) {
                    return Some(route);
                }
                self.values.pop();
            }
        }
        match REST {
            true => self.best(trie.rest(node)),
            false => None,
        }
    }

    /// The best matching route of those with the same path; the first of equals.
    fn best(&self, routes: &[u32]) -> Option<&'t Route> {
        let RouteQuery { method, port, .. } = *self.query;
        let routes = routes
            .iter()
            .map(|index| &self.table.routes[*index as usize]);
        let spelled =
            |route: &&Route| route.case == self.table.case || route.path.matches_text(self.exact);
        let fitting = routes.filter(|route| {
            route.takes_port(port)
                && route.takes_slash(self.query.path)
                && route.takes_fields(self.query)
                && spelled(route)
        });
        let ranked = fitting.filter_map(|route| Some((route.method_rank(method)?, route)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, route)| route)
    }
}

#[cfg(test)]
mod expression_tests;
#[cfg(test)]
mod tests;
