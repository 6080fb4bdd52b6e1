//! Counters of requests and decisions.
//!
//! Each worker has a [`Meter`] that only it writes, without a lock or a locked instruction, on
//! cache lines that no other worker writes. The heap is used only by the first request of a kind.
//! Readers add up the meters. Labels are names of the configuration and closed sets ([`CODES`]),
//! never a client's key.
//!
//! A reload makes a new meter, which keeps the cells of names that still exist. A name that returns
//! later begins at 0.

pub mod cells;
pub mod decide;
pub mod grpc;
pub mod text;
pub mod usage;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

pub use cells::{
    CODES, Codes, CountedAnswer, DECISION_BOUNDS, Durations, GrpcCells, GrpcSum, HELD_BOUNDS,
    Histogram, LimitCells, LimitSum, LimitVerdict, METHODS, REQUEST_BOUNDS, RETRIES, RouteCells,
    RouteSum, SOURCES, ServerCells, UpstreamCells, UpstreamSum, WorkerCounter, method_of,
};
pub use grpc::{GRPC_STATUSES, GrpcStatus};

use super::access::Outcome;
pub use super::door::{DecideCode, Door};
use super::watched::{DenialBuffer, Trail};
use crate::limit::{KeyHash, Role};
pub use crate::route::NO_ROUTE;
use cells::{UsageCells, add_counters};
use decide::DecideCells;

/// Of decisions that are made without waiting, one in so many is timed.
const TIMED_ONE_IN: u64 = 64;

/// The cells of one worker. Routes and limits are in the order of their numbers.
#[derive(Debug, Default)]
pub struct Meter {
    /// The last one is [`NO_ROUTE`].
    routes: NamedCells<RouteCells>,
    limits: NamedCells<LimitCells>,
    /// The decisions that the candidate rates of the limits would make.
    candidates: NamedCells<LimitCells>,
    totals: Arc<MeterTotals>,
    /// `None` if no operator can watch, because there is no admin.
    watched: Option<Box<WatchedEvents>>,
}

type NamedCells<T> = Vec<(Arc<str>, Arc<T>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    Unreadable,
    ClientLeft,
    Panic,
}

impl Unanswered {
    pub const WORDS: [&str; 3] = ["unreadable", "client_left", "panic"];
}

/// Events of single clients, which the admin takes many times a second.
#[derive(Debug, Default)]
struct WatchedEvents {
    trail: Trail,
    denials: DenialBuffer,
}

/// The units that one request holds in reserve, for the metrics. A drop takes them back.
#[derive(Debug, Default)]
pub struct ReservedUnits(SmallVec<[LimitUnits; 2]>);

#[derive(Debug)]
struct LimitUnits {
    cells: Arc<LimitCells>,
    units: u64,
}

impl ReservedUnits {
    pub(super) fn add(&mut self, cells: &Arc<LimitCells>, units: u64) {
        cells.reserved.fetch_add(units, Ordering::Relaxed);
        self.0.push(LimitUnits {
            cells: Arc::clone(cells),
            units,
        });
    }
}

impl Drop for ReservedUnits {
    fn drop(&mut self) {
        for LimitUnits { cells, units } in &self.0 {
            cells.reserved.fetch_sub(*units, Ordering::Relaxed);
        }
    }
}

/// One request that is held, in the metrics of the limits that hold it. A drop takes it back.
#[derive(Debug, Default)]
pub struct WaitingRequest(SmallVec<[WaitingKey; 2]>);

#[derive(Debug)]
struct WaitingKey {
    cells: Arc<LimitCells>,
    tag: KeyHash,
}

impl WaitingRequest {
    /// Notes that it was held for so long, and may pass now.
    pub fn passes(self, waited: Duration) {
        for WaitingKey { cells, .. } in &self.0 {
            let delayed = cells.delayed.get_or_init(Box::default);
            delayed.observe(waited, &HELD_BOUNDS);
        }
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        for WaitingKey { cells, tag } in &self.0 {
            let waiting = cells.waiting.lock();
            let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            if let Entry::Occupied(mut key) = waiting.entry(tag.0) {
                *key.get_mut() -= 1;
                if *key.get() == 0 {
                    key.remove();
                }
            }
        }
    }
}

/// The requests that one limit holds and held.
#[derive(Clone, Debug, Default)]
pub struct HeldSum {
    pub waiting: u64,
    /// The same by the hash of the key.
    pub keys: BTreeMap<[u8; 16], u64>,
    pub delayed: Durations,
}

/// Cells without a name of the configuration.
#[derive(Debug, Default)]
struct MeterTotals {
    outcomes: [WorkerCounter; 4],
    errors: WorkerCounter,
    /// Requests with forwarding headers from peers that are not trusted.
    forwarded: WorkerCounter,
    unanswered: [WorkerCounter; Unanswered::WORDS.len()],
    decide: DecideCells,
    decisions: [Histogram; SOURCES.len()],
    turns: WorkerCounter,
    store_errors: Mutex<BTreeMap<&'static str, u64>>,
}

#[derive(Clone, Debug)]
pub struct GrpcCounter {
    route: Arc<RouteCells>,
    totals: Arc<MeterTotals>,
}

impl GrpcCounter {
    /// Counts a call that ended with `status`, whose answer had the HTTP status `http`.
    pub fn ended(&self, status: GrpcStatus, http: u16) {
        self.route.grpc.count(status);
        // An answer of 5xx is among the errors already.
        if status.is_failure() && http < 500 {
            self.totals.errors.add(1);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Sum {
    pub routes: BTreeMap<Arc<str>, RouteSum>,
    pub limits: BTreeMap<Arc<str>, LimitSum>,
    pub candidates: BTreeMap<Arc<str>, LimitSum>,
    /// The units that requests under way hold in reserve, by limit.
    pub reserved: BTreeMap<Arc<str>, u64>,
    /// The requests that limits hold and held, by limit.
    pub held: BTreeMap<Arc<str>, HeldSum>,
    /// Allowed, unlimited, denied, rejected.
    pub outcomes: [u64; 4],
    /// Requests that were answered with 5xx, and calls of gRPC that failed in the same way.
    pub errors: u64,
    pub decisions: [Durations; SOURCES.len()],
    pub store_errors: BTreeMap<&'static str, u64>,
}

impl Sum {
    pub fn new<'m>(meters: impl Iterator<Item = &'m Meter>) -> Sum {
        let mut routes: BTreeMap<Arc<str>, RouteSum> = BTreeMap::new();
        let meters = meters.inspect(|meter| {
            for (name, cells) in &meter.routes {
                cells.add_to(routes.entry(Arc::clone(name)).or_default());
            }
        });
        let sum = Sum::without_routes(meters);
        Sum { routes, ..sum }
    }

    /// Leaves `routes` empty, which is much cheaper.
    pub fn without_routes<'m>(meters: impl Iterator<Item = &'m Meter>) -> Sum {
        let mut sum = Sum::default();
        meters.for_each(|meter| meter.add_to(&mut sum));
        sum
    }
}

impl Meter {
    /// Cells for these routes and limits. Cells of `old` with the same names are kept.
    pub fn new<'n>(
        routes: impl Iterator<Item = &'n str>,
        limits: impl Iterator<Item = &'n str> + Clone,
        old: Option<&Meter>,
    ) -> Meter {
        let none = Meter::default();
        let old = old.unwrap_or(&none);
        Meter {
            routes: keep_cells(routes.chain([NO_ROUTE]), &old.routes),
            limits: keep_cells(limits.clone(), &old.limits),
            candidates: keep_cells(limits, &old.candidates),
            totals: Arc::clone(&old.totals),
            watched: None,
        }
    }

    /// Also notes what single clients do.
    pub fn watched(self) -> Meter {
        Meter {
            watched: Some(Box::default()),
            ..self
        }
    }

    pub fn decision_trail(&self) -> Option<&Trail> {
        self.watched.as_ref().map(|watched| &watched.trail)
    }

    pub fn denials(&self) -> Option<&DenialBuffer> {
        self.watched.as_ref().map(|watched| &watched.denials)
    }

    fn route(&self, number: usize) -> Option<&Arc<RouteCells>> {
        let route = self.routes.get(number).or(self.routes.last());
        route.map(|(_, cells)| cells)
    }

    /// Counts an answer. A number that no route has stands for no route.
    pub fn count_answer(&self, route: usize, answer: CountedAnswer) {
        if let Some(cells) = self.route(route) {
            cells.count(answer);
        }
        if answer.status >= 500 {
            self.totals.errors.add(1);
        }
    }

    /// Where a gRPC call of this route is counted when it ends. `route` is as for `count_answer`.
    pub fn grpc_counter(&self, route: usize) -> Option<GrpcCounter> {
        Some(GrpcCounter {
            route: Arc::clone(self.route(route)?),
            totals: Arc::clone(&self.totals),
        })
    }

    /// The tokens of a route. `route` is as for `count_answer`.
    pub fn usage(&self, route: usize) -> Option<&UsageCells> {
        self.route(route).map(|cells| &cells.usage)
    }

    pub fn count_outcome(&self, outcome: Outcome) {
        self.totals.outcomes[outcome as usize].add(1);
    }

    pub fn count_untrusted_forwarding(&self) {
        self.totals.forwarded.add(1);
    }

    pub fn untrusted_forwarding(&self) -> u64 {
        self.totals.forwarded.get()
    }

    pub fn unanswered(&self, why: Unanswered) {
        self.totals.unanswered[why as usize].add(1);
    }

    pub fn all_unanswered(&self) -> [u64; Unanswered::WORDS.len()] {
        self.totals.unanswered.each_ref().map(WorkerCounter::get)
    }

    /// The questions of other proxies.
    pub fn decide(&self) -> &DecideCells {
        &self.totals.decide
    }

    pub fn count_decision(&self, limit: usize, verdict: LimitVerdict, source: usize) {
        count(&self.limits, limit, verdict, source);
    }

    /// Notes that a request holds these units of a limit in reserve, until `reserved` is dropped.
    pub fn reserve(&self, limit: usize, units: u64, reserved: &mut ReservedUnits) {
        if let Some((_, cells)) = self.limits.get(limit) {
            reserved.add(cells, units);
        }
    }

    /// Notes that a limit holds a request with this key, until `waiting` is dropped.
    pub fn wait(&self, limit: usize, tag: KeyHash, waiting: &mut WaitingRequest) {
        if let Some((_, cells)) = self.limits.get(limit) {
            let keys = cells.waiting.lock();
            let mut keys = keys.unwrap_or_else(PoisonError::into_inner);
            *keys.entry(tag.0).or_default() += 1;
            waiting.0.push(WaitingKey {
                cells: Arc::clone(cells),
                tag,
            });
        }
    }

    /// Counts a decision in shadow mode: of a limit, or of its candidate rates.
    pub fn count_shadow_decision(&self, role: Role, limit: usize, allowed: bool) {
        let cells = match role {
            Role::Candidate => &self.candidates,
            Role::Enforced | Role::Shadow => &self.limits,
        };
        let verdict = match allowed {
            true => LimitVerdict::Allowed,
            false => LimitVerdict::ShadowDenied,
        };
        count(cells, limit, verdict, 0);
    }

    pub fn is_next_timed(&self) -> bool {
        let turn = self.totals.turns.get();
        self.totals.turns.add(1);
        turn.is_multiple_of(TIMED_ONE_IN)
    }

    pub fn observe_decision(&self, source: usize, took: Duration) {
        self.totals.decisions[source % SOURCES.len()].observe(took, &DECISION_BOUNDS);
    }

    #[cold]
    pub fn store_failed(&self, kind: &'static str) {
        let errors = &self.totals.store_errors;
        let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry(kind).or_default() += 1;
    }

    fn add_to(&self, sum: &mut Sum) {
        sum.errors += self.totals.errors.get();
        for (name, cells) in &self.limits {
            cells.add_to(sum.limits.entry(Arc::clone(name)).or_default());
            *sum.reserved.entry(Arc::clone(name)).or_default() +=
                cells.reserved.load(Ordering::Relaxed);
            let held = sum.held.entry(Arc::clone(name)).or_default();
            let waiting = cells.waiting.lock();
            for (key, count) in waiting.unwrap_or_else(PoisonError::into_inner).iter() {
                held.waiting += count;
                *held.keys.entry(*key).or_default() += count;
            }
            if let Some(delayed) = cells.delayed.get() {
                delayed.add_to(&mut held.delayed);
            }
        }
        for (name, cells) in &self.candidates {
            cells.add_to(sum.candidates.entry(Arc::clone(name)).or_default());
        }
        add_counters(&mut sum.outcomes, &self.totals.outcomes);
        for (sum, histogram) in sum.decisions.iter_mut().zip(&self.totals.decisions) {
            histogram.add_to(sum);
        }
        let errors = &self.totals.store_errors;
        let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        for (kind, count) in errors.iter() {
            *sum.store_errors.entry(kind).or_default() += count;
        }
    }
}

fn count(
    cells: &[(Arc<str>, Arc<LimitCells>)],
    limit: usize,
    verdict: LimitVerdict,
    source: usize,
) {
    if let Some((_, cells)) = cells.get(limit) {
        cells.count(verdict, source);
    }
}

/// Cells for these names: the old ones where they exist, and new ones.
fn keep_cells<'n, T: Default>(
    names: impl Iterator<Item = &'n str>,
    old: &[(Arc<str>, Arc<T>)],
) -> NamedCells<T> {
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

    fn answer(status: u16) -> CountedAnswer {
        CountedAnswer {
            method: 0,
            status,
            took: Duration::ZERO,
        }
    }

    fn requests(meters: &[&Meter]) -> BTreeMap<String, u64> {
        let sum = Sum::new(meters.iter().copied());
        let routes = sum.routes.iter();
        routes
            .map(|(name, one)| (name.to_string(), one.requests()))
            .collect()
    }

    #[test]
    fn workers_are_added_up_and_a_reload_goes_on_by_name() {
        let (one, other) = (meter(&["a", "b"], None), meter(&["a", "b"], None));
        one.count_answer(0, answer(200));
        other.count_answer(0, answer(200));
        other.count_answer(1, answer(200));
        other.count_answer(usize::MAX, answer(404));
        let counts = requests(&[&one, &other]);
        assert_eq!((counts["a"], counts["b"], counts[NO_ROUTE]), (2, 1, 1));
        let next = meter(&["c", "a"], Some(&other));
        next.count_answer(1, answer(200));
        // A request that began before the reload ends by the old numbers.
        other.count_answer(0, answer(200));
        let counts = requests(&[&next]);
        assert_eq!((counts["a"], counts["c"]), (3, 0));
        assert!(!counts.contains_key("b"));
    }

    #[test]
    fn reserved_units_are_taken_back_also_after_a_reload() {
        let (old, other) = (meter(&[], None), meter(&[], None));
        let reserved = |meters: &[&Meter]| Sum::new(meters.iter().copied()).reserved["login"];
        let (mut one, mut two) = (ReservedUnits::default(), ReservedUnits::default());
        old.reserve(0, 30, &mut one);
        other.reserve(0, 12, &mut two);
        old.reserve(7, 5, &mut two);
        assert_eq!(reserved(&[&old, &other]), 42);
        let new = meter(&["a"], Some(&old));
        drop(old);
        assert_eq!(reserved(&[&new, &other]), 42);
        drop(one);
        assert_eq!(reserved(&[&new, &other]), 12);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _two = two;
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(reserved(&[&new, &other]), 0);
    }

    #[test]
    fn decisions_are_counted_by_limit_verdict_and_source() {
        let meter = meter(&[], None);
        meter.count_decision(0, LimitVerdict::Denied, 1);
        meter.count_decision(7, LimitVerdict::Denied, 1);
        meter.store_failed("timeout");
        let sum = Sum::new([&meter].into_iter());
        assert_eq!(sum.limits["login"][LimitVerdict::Denied as usize][1], 1);
        assert_eq!(sum.limits["login"].iter().flatten().sum::<u64>(), 1);
        assert_eq!(sum.store_errors["timeout"], 1);
    }
}
