//! The routes of earlier request lines: logs repeat themselves, and the same method, host and path
//! have the same route.
//!
//! A request line is stored when it comes again before another one of its slot. So lines that come
//! once cost a hash and replace nothing.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::DefaultHashBuilder;
use http::{HeaderMap, Method};
use smallvec::SmallVec;

use super::counts::Outside;
use crate::path::CanonicalPath;
use crate::route::{RouteMatch, RouteQuery, RouteTable, host_of};

/// Slots of the cache; a power of two.
const SLOTS: usize = 4096;
/// Longer hosts and paths are not stored, bytes.
const MAX_STORED: usize = 512;

/// The part of a log line that decides its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'l> {
    pub method: &'l str,
    pub host: &'l str,
    pub path: &'l str,
}

/// A request line as routes and keys see it.
#[derive(Clone, Debug)]
pub struct ParsedRequest<'l> {
    pub method: Method,
    pub host: Cow<'l, str>,
    pub path: CanonicalPath<'l>,
}

#[derive(Debug)]
pub struct RouteCache {
    slots: Vec<CacheSlot>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct CacheSlot {
    /// The hash of the last request line that was not found.
    last_miss: u64,
    route: Option<Box<CachedRoute>>,
}

#[derive(Debug)]
struct CachedRoute {
    method: String,
    host: String,
    path: String,
    parsed: ParsedRequest<'static>,
    route: usize,
    /// The places of the route's parameters in the canonical path.
    values: SmallVec<[Range<usize>; 2]>,
}

impl Default for RouteCache {
    fn default() -> RouteCache {
        let slots = std::iter::repeat_with(CacheSlot::default).take(SLOTS);
        RouteCache {
            slots: slots.collect(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl RouteCache {
    /// Finds the route of a request, with the help of a cache if there is one, and calls `then`.
    pub fn route<R>(
        cache: Option<&mut RouteCache>,
        line: &RequestLine<'_>,
        routes: &RouteTable,
        headers: &HeaderMap,
        then: impl FnOnce(&ParsedRequest<'_>, RouteMatch<'_, '_>) -> R,
    ) -> Result<R, Outside> {
        let hash = cache.as_ref().map_or(0, |cache| cache.hash(line));
        if let Some((parsed, found)) = cache
            .as_ref()
            .and_then(|cache| cache.find(hash, line, routes))
        {
            return Ok(then(parsed, found));
        }
        let parsed = ParsedRequest::parse(line, routes)?;
        let query = RouteQuery {
            host: &parsed.host,
            path: &parsed.path,
            method: &parsed.method,
            headers,
        };
        let found = routes.find(&query).ok_or(Outside::NoRoute)?;
        if let Some(cache) = cache {
            cache.store(hash, line, &parsed, &found);
        }
        Ok(then(&parsed, found))
    }

    fn hash(&self, line: &RequestLine<'_>) -> u64 {
        let hash = self.hasher.hash_one(line.path);
        let method = line.method.as_bytes().first().copied().unwrap_or(0);
        let rest = (line.host.len() as u64) << 8 | u64::from(method);
        hash ^ rest.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn find<'c>(
        &'c self,
        hash: u64,
        line: &RequestLine<'_>,
        routes: &'c RouteTable,
    ) -> Option<(&'c ParsedRequest<'static>, RouteMatch<'c, 'c>)> {
        let cached = self.slots[slot(hash)].route.as_deref()?;
        if cached.path != line.path || cached.method != line.method || cached.host != line.host {
            return None;
        }
        let route = routes.iter().nth(cached.route)?;
        let path = cached.parsed.path.in_case(route.case).as_str();
        let values = cached.values.iter().map(|value| &path[value.clone()]);
        let params = route.path.params().zip(values).collect();
        Some((&cached.parsed, RouteMatch { route, params }))
    }

    /// Stores the route of a request line if the line comes for the second time.
    fn store(
        &mut self,
        hash: u64,
        line: &RequestLine<'_>,
        parsed: &ParsedRequest<'_>,
        found: &RouteMatch<'_, '_>,
    ) {
        let slot = &mut self.slots[slot(hash)];
        if slot.last_miss != hash || line.path.len() > MAX_STORED || line.host.len() > MAX_STORED {
            slot.last_miss = hash;
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
        slot.route = Some(Box::new(CachedRoute {
            method: line.method.to_owned(),
            host: line.host.to_owned(),
            path: line.path.to_owned(),
            parsed: ParsedRequest {
                method: parsed.method.clone(),
                host: parsed.host.clone().into_owned().into(),
                path: parsed.path.clone().into_owned(),
            },
            route: found.route.number,
            values,
        }));
    }
}

impl<'l> ParsedRequest<'l> {
    /// Reads a request line, or refuses it as the proxy does.
    fn parse(line: &RequestLine<'l>, routes: &RouteTable) -> Result<ParsedRequest<'l>, Outside> {
        let method = Method::from_bytes(line.method.as_bytes());
        let method = method.map_err(|_| Outside::Refused)?;
        if matches!(method, Method::CONNECT | Method::TRACE) {
            return Err(Outside::Refused);
        }
        let host = match line.host {
            "" => "".into(),
            host => host_of(host).map_err(|_| Outside::Refused)?,
        };
        let path = routes.read_path(line.path).map_err(|_| Outside::Refused)?;
        Ok(ParsedRequest { method, host, path })
    }
}

fn slot(hash: u64) -> usize {
    usize::try_from(hash % SLOTS as u64).unwrap_or(0)
}
