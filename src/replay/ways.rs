//! Where targets went that came before: logs repeat themselves, and the same method, host and path
//! have the same route.
//!
//! Pure. A target is remembered when it comes again after none other of its place did, so that
//! those that come once cost a hash and drive nobody out.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::DefaultHashBuilder;
use http::Method;
use smallvec::SmallVec;

use crate::path::CanonicalPath;
use crate::route::{RouteMatch, RouteTable};

/// Targets that are remembered, at most; a power of two.
const PLACES: usize = 4096;
/// Of longer ones none is.
const LONGEST: usize = 512;

/// What decides where a request goes, as its line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'l> {
    /// The method.
    pub method: &'l str,
    /// The host.
    pub host: &'l str,
    /// The path.
    pub path: &'l str,
}

/// The same as routes and keys see it.
#[derive(Clone, Debug)]
pub struct Parsed<'l> {
    /// The method.
    pub method: Method,
    /// The host.
    pub host: std::borrow::Cow<'l, str>,
    /// The path.
    pub path: CanonicalPath<'l>,
}

/// Everything that is remembered.
#[derive(Debug)]
pub struct Ways {
    places: Vec<Place>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct Place {
    /// The hash of whoever came last and was not found.
    last: u64,
    way: Option<Box<Way>>,
}

/// Where one target goes.
#[derive(Debug)]
struct Way {
    method: String,
    host: String,
    path: String,
    parsed: Parsed<'static>,
    route: usize,
    /// Where the values of the route's parameters are in the canonical path.
    values: SmallVec<[Range<usize>; 2]>,
}

impl Default for Ways {
    /// Nothing remembered yet.
    fn default() -> Ways {
        let places = std::iter::repeat_with(Place::default).take(PLACES);
        Ways {
            places: places.collect(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl Ways {
    /// What [`Ways::find`] and [`Ways::keep`] want to know.
    pub fn hash(&self, sent: &Sent<'_>) -> u64 {
        self.hash_of(sent.method, sent.host, sent.path.as_bytes())
    }

    /// The same of a path that is not known to be text.
    pub fn hash_of(&self, method: &str, host: &str, path: &[u8]) -> u64 {
        let hash = self.hasher.hash_one(path);
        let method = method.as_bytes().first().copied().unwrap_or(0);
        let apart = (host.len() as u64) << 8 | u64::from(method);
        hash ^ apart.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The number of the route that a target went, and its canonical path.
    pub fn route_of(
        &self,
        hash: u64,
        (method, host): (&str, &str),
        path: &[u8],
    ) -> Option<(usize, &CanonicalPath<'static>)> {
        let way = self.places[place(hash)].way.as_deref()?;
        let is_it = way.path.as_bytes() == path && way.method == method && way.host == host;
        is_it.then_some((way.route, &way.parsed.path))
    }

    /// Where a target went, and what it was read as.
    pub fn find<'w>(
        &'w self,
        hash: u64,
        sent: &Sent<'_>,
        routes: &'w RouteTable,
    ) -> Option<(&'w Parsed<'static>, RouteMatch<'w, 'w>)> {
        let way = self.places[place(hash)].way.as_deref()?;
        if way.path != sent.path || way.method != sent.method || way.host != sent.host {
            return None;
        }
        let route = routes.iter().nth(way.route)?;
        let path = way.parsed.path.in_case(route.case).as_str();
        let values = way.values.iter().map(|value| &path[value.clone()]);
        let params = route.path.params().zip(values).collect();
        Some((&way.parsed, RouteMatch { route, params }))
    }

    /// Remembers it, if it has come before.
    pub fn keep(
        &mut self,
        hash: u64,
        sent: &Sent<'_>,
        parsed: &Parsed<'_>,
        found: &RouteMatch<'_, '_>,
    ) {
        let place = &mut self.places[place(hash)];
        if place.last != hash || sent.path.len() > LONGEST || sent.host.len() > LONGEST {
            place.last = hash;
            return;
        }
        let path = parsed.path.in_case(found.route.case).as_str();
        let range = |value: &str| {
            let start = value.as_ptr().addr().checked_sub(path.as_ptr().addr())?;
            let range = start..start + value.len();
            (path.get(range.clone()) == Some(value)).then_some(range)
        };
        let values = found.params.iter().map(|(_, value)| range(value));
        let Some(values) = values.collect() else {
            return;
        };
        place.way = Some(Box::new(Way {
            method: sent.method.to_owned(),
            host: sent.host.to_owned(),
            path: sent.path.to_owned(),
            parsed: Parsed {
                method: parsed.method.clone(),
                host: parsed.host.clone().into_owned().into(),
                path: parsed.path.clone().into_owned(),
            },
            route: found.route.number,
            values,
        }));
    }
}

fn place(hash: u64) -> usize {
    usize::try_from(hash % PLACES as u64).unwrap_or(0)
}
