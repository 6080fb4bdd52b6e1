//! What is counted of requests and decisions.
//!
//! Each worker has a [`Meter`] of its own, which it alone writes: no lock, no locked instruction,
//! no line of cache that another worker writes to, and nothing taken of the heap but with the
//! first request of its kind. Whoever wants to know adds up what the workers have. Labels are
//! words: names of the configuration and closed sets ([`codes`]), never a client's key.
//!
//! A reload makes another meter, which goes on with the cells of whatever has the same name. What
//! has no name any more is no longer shown, and begins at 0 should it return.

pub mod cells;
pub mod codes;
pub mod grpc;
pub mod text;
pub mod trail;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use cells::{
    Codes, Count, DECISION_BOUNDS, Durations, GrpcCells, GrpcSum, Histogram, LimitCells, LimitSum,
    REQUEST_BOUNDS, RETRIES, RouteCells, RouteSum, SOURCES, ServerCells, UpstreamCells,
    UpstreamSum, Verdict,
};
pub use codes::{CODES, METHODS, method_of};
pub use grpc::{GRPC_STATUSES, GrpcStatus};

use super::access::Outcome;
use super::denials::Denials;
use trail::Trail;

/// What requests that belong to no route are counted as. No route has such a name.
pub const NO_ROUTE: &str = "(none)";

/// Of decisions that are made without waiting, one in so many is timed.
const TIMED_ONE_IN: u64 = 64;

/// One worker's cells.
#[derive(Debug, Default)]
pub struct Meter {
    /// By the numbers of the configuration's routes; the last is for what belongs to none.
    routes: Vec<(Arc<str>, Arc<RouteCells>)>,
    /// By the numbers of its limits.
    limits: Vec<(Arc<str>, Arc<LimitCells>)>,
    /// By the same numbers: what they would say by the rates that they try.
    candidates: Vec<(Arc<str>, Arc<LimitCells>)>,
    kept: Arc<Kept>,
    /// Where somebody watches.
    watched: Option<Box<Watched>>,
}

/// Why a request got no answer of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Its head could not be read.
    Unreadable,
    /// Its client left before the answer was there.
    ClientLeft,
    /// Something of ours broke.
    Panic,
}

impl Unanswered {
    /// What labels call them.
    pub const WORDS: [&str; 3] = ["unreadable", "client_left", "panic"];
}

/// What somebody who watches takes out many times a second.
#[derive(Debug, Default)]
struct Watched {
    trail: Trail,
    denials: Denials,
}

/// Cells without a name of the configuration.
#[derive(Debug, Default)]
struct Kept {
    outcomes: [Count; 4],
    errors: Count,
    /// Requests of peers that spoke for others and may not.
    forwarded: Count,
    /// Requests that got no answer, by why.
    unanswered: [Count; Unanswered::WORDS.len()],
    decisions: [Histogram; SOURCES.len()],
    /// Decisions that might have been timed.
    turns: Count,
    /// Rare.
    store_errors: Mutex<BTreeMap<&'static str, u64>>,
}

/// Where one call is counted when its answer has ended.
#[derive(Clone, Debug)]
pub struct GrpcCounter {
    route: Arc<RouteCells>,
    kept: Arc<Kept>,
}

impl GrpcCounter {
    /// The call whose answer had the HTTP status `http` ended.
    pub fn ended(&self, status: GrpcStatus, http: u16) {
        self.route.grpc.count(status);
        // An answer of 5xx is among the errors already.
        if status.is_failure() && http < 500 {
            self.kept.errors.add(1);
        }
    }
}

/// What all workers have counted.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// By route.
    pub routes: BTreeMap<Arc<str>, RouteSum>,
    /// By limit.
    pub limits: BTreeMap<Arc<str>, LimitSum>,
    /// The same of their candidates.
    pub candidates: BTreeMap<Arc<str>, LimitSum>,
    /// Allowed, unlimited, denied, rejected.
    pub outcomes: [u64; 4],
    /// Requests that a server's error answered.
    pub errors: u64,
    /// How long decisions took, by source.
    pub decisions: [Durations; SOURCES.len()],
    /// Decisions that the store did not make, by what was wrong.
    pub store_errors: BTreeMap<&'static str, u64>,
}

impl Meter {
    /// The cells of these routes and limits, in the order of their numbers; those that `old` had
    /// under the same name.
    pub fn new<'n>(
        routes: impl Iterator<Item = &'n str>,
        limits: impl Iterator<Item = &'n str> + Clone,
        old: Option<&Meter>,
    ) -> Meter {
        let old_routes = old.map_or(&[][..], |old| &old.routes);
        let old_limits = old.map_or(&[][..], |old| &old.limits);
        let old_candidates = old.map_or(&[][..], |old| &old.candidates);
        Meter {
            routes: again(routes.chain([NO_ROUTE]), old_routes),
            limits: again(limits.clone(), old_limits),
            candidates: again(limits, old_candidates),
            kept: old.map(|old| Arc::clone(&old.kept)).unwrap_or_default(),
            watched: None,
        }
    }

    /// The same for whoever watches what single clients do.
    pub fn watched(self) -> Meter {
        Meter {
            watched: Some(Box::default()),
            ..self
        }
    }

    /// Where decisions are told, if anybody watches.
    pub fn trail(&self) -> Option<&Trail> {
        self.watched.as_ref().map(|watched| &watched.trail)
    }

    /// Where denials are told, if anybody watches.
    pub fn denials(&self) -> Option<&Denials> {
        self.watched.as_ref().map(|watched| &watched.denials)
    }

    /// One more request has its answer. `route` is a route's number, or any other for none.
    pub fn answered(&self, route: usize, (method, status): (u8, u16), took: Duration) {
        let route = self.routes.get(route).or(self.routes.last());
        if let Some((_, cells)) = route {
            cells.count(method, status, took);
        }
        if status >= 500 {
            self.kept.errors.add(1);
        }
    }

    /// Where a gRPC call of this route is counted when it ends. `route` is as for `answered`.
    pub fn grpc_counter(&self, route: usize) -> Option<GrpcCounter> {
        let (_, cells) = self.routes.get(route).or(self.routes.last())?;
        Some(GrpcCounter {
            route: Arc::clone(cells),
            kept: Arc::clone(&self.kept),
        })
    }

    /// What has become of one more request.
    pub fn ended(&self, outcome: Outcome) {
        self.kept.outcomes[outcome as usize].add(1);
    }

    /// One more request whose peer spoke for others and may not.
    pub fn forwarded_by_nobody(&self) {
        self.kept.forwarded.add(1);
    }

    /// One more request that got no answer of a route.
    pub fn unanswered(&self, why: Unanswered) {
        self.kept.unanswered[why as usize].add(1);
    }

    /// How many of those there were, in the order of [`Unanswered::WORDS`].
    pub fn all_unanswered(&self) -> [u64; Unanswered::WORDS.len()] {
        self.kept.unanswered.each_ref().map(Count::get)
    }

    /// How many of those there were.
    pub fn forwarded(&self) -> u64 {
        self.kept.forwarded.get()
    }

    /// One more decision of the limit of this number.
    pub fn decided(&self, limit: usize, verdict: Verdict, source: usize) {
        if let Some((_, cells)) = self.limits.get(limit) {
            cells.count(verdict, source);
        }
    }

    /// What a limit on trial, or its candidate, would have said of a request.
    pub fn tried(&self, (limit, is_candidate): (usize, bool), allowed: bool) {
        let verdict = match allowed {
            true => Verdict::Allowed,
            false => Verdict::ShadowDenied,
        };
        let cells = match is_candidate {
            true => self.candidates.get(limit),
            false => self.limits.get(limit),
        };
        if let Some((_, cells)) = cells {
            cells.count(verdict, 0);
        }
    }

    /// Whether the next decision is one that is timed, of those that are made in no time.
    pub fn is_turn(&self) -> bool {
        let turn = self.kept.turns.get();
        self.kept.turns.add(1);
        turn.is_multiple_of(TIMED_ONE_IN)
    }

    /// How long a decision by this source took.
    pub fn took(&self, source: usize, took: Duration) {
        self.kept.decisions[source % SOURCES.len()].observe(took, &DECISION_BOUNDS);
    }

    /// One more decision that the store did not make.
    #[cold]
    pub fn store_failed(&self, kind: &'static str) {
        let errors = &self.kept.store_errors;
        let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry(kind).or_default() += 1;
    }

    /// Adds what is here to `sum`.
    pub fn add_to(&self, sum: &mut Sum) {
        for (name, cells) in &self.routes {
            cells.add_to(sum.routes.entry(Arc::clone(name)).or_default());
        }
        self.add_brief_to(sum);
    }

    /// The same without what each route had.
    pub fn add_brief_to(&self, sum: &mut Sum) {
        sum.errors += self.kept.errors.get();
        for (name, cells) in &self.limits {
            cells.add_to(sum.limits.entry(Arc::clone(name)).or_default());
        }
        for (name, cells) in &self.candidates {
            cells.add_to(sum.candidates.entry(Arc::clone(name)).or_default());
        }
        for (sum, count) in sum.outcomes.iter_mut().zip(&self.kept.outcomes) {
            *sum += count.get();
        }
        for (sum, histogram) in sum.decisions.iter_mut().zip(&self.kept.decisions) {
            histogram.add_to(sum);
        }
        let errors = &self.kept.store_errors;
        let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        for (kind, count) in errors.iter() {
            *sum.store_errors.entry(kind).or_default() += count;
        }
    }
}

/// Cells for these names: those that are there, and new ones.
fn again<'n, T: Default>(
    names: impl Iterator<Item = &'n str>,
    old: &[(Arc<str>, Arc<T>)],
) -> Vec<(Arc<str>, Arc<T>)> {
    let old: HashMap<&str, &Arc<T>> = old.iter().map(|(name, cells)| (&**name, cells)).collect();
    let named = |name: &'n str| {
        let cells = old.get(name).map(|cells| Arc::clone(cells));
        (Arc::from(name), cells.unwrap_or_default())
    };
    names.map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(routes: &[&'static str], old: Option<&Meter>) -> Meter {
        Meter::new(routes.iter().copied(), ["login"].into_iter(), old)
    }

    fn requests(meters: &[&Meter]) -> BTreeMap<String, u64> {
        let mut sum = Sum::default();
        meters.iter().for_each(|meter| meter.add_to(&mut sum));
        let routes = sum.routes.iter();
        routes
            .map(|(name, one)| (name.to_string(), one.requests()))
            .collect()
    }

    #[test]
    fn workers_are_added_up_and_a_reload_goes_on_by_name() {
        let (one, other) = (meter(&["a", "b"], None), meter(&["a", "b"], None));
        one.answered(0, (0, 200), Duration::ZERO);
        other.answered(0, (0, 200), Duration::ZERO);
        other.answered(1, (0, 200), Duration::ZERO);
        other.answered(usize::MAX, (0, 404), Duration::ZERO);
        let counts = requests(&[&one, &other]);
        assert_eq!((counts["a"], counts["b"], counts[NO_ROUTE]), (2, 1, 1));
        let next = meter(&["c", "a"], Some(&other));
        next.answered(1, (0, 200), Duration::ZERO);
        // A request that began before the reload ends by the old numbers.
        other.answered(0, (0, 200), Duration::ZERO);
        let counts = requests(&[&next]);
        assert_eq!((counts["a"], counts["c"]), (3, 0));
        assert!(!counts.contains_key("b"));
    }

    #[test]
    fn decisions_are_counted_by_limit_verdict_and_source() {
        let meter = meter(&[], None);
        meter.decided(0, Verdict::Denied, 1);
        meter.decided(7, Verdict::Denied, 1);
        meter.store_failed("timeout");
        let mut sum = Sum::default();
        meter.add_to(&mut sum);
        assert_eq!(sum.limits["login"][Verdict::Denied as usize][1], 1);
        assert_eq!(sum.limits["login"].iter().flatten().sum::<u64>(), 1);
        assert_eq!(sum.store_errors["timeout"], 1);
    }
}
