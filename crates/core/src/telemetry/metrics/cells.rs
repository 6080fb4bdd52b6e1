//! The cells of one worker: counters that one thread writes and every thread may read.
//!
//! A single writer needs no locked instruction: it loads a counter and stores the next value. Cells
//! that are written together lie together, on cache lines that no other worker writes.
//!
//! Only a fixed set of methods and status codes has series of its own. All others share series, so
//! that clients cannot create series.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use http::Method;

use super::grpc::{GRPC_STATUSES, GrpcStatus};
use super::usage::{RATIO_BOUNDS, TOKEN_CLASSES, UsageOutcome};
use crate::usage::tokens::TokenCounts;

/// A counter that only one thread adds to. If two threads do so at once, one addition may be lost.
#[derive(Debug, Default)]
pub struct WorkerCounter(AtomicU64);

impl WorkerCounter {
    pub fn add(&self, more: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(more), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) fn add_counters(sums: &mut [u64], counters: &[WorkerCounter]) {
    for (sum, counter) in sums.iter_mut().zip(counters) {
        *sum += counter.get();
    }
}

fn zeros<const N: usize>() -> [WorkerCounter; N] {
    std::array::from_fn(|_| WorkerCounter::default())
}

/// Answers by status, in the order of [`CODES`].
#[derive(Debug)]
pub struct Codes([WorkerCounter; CODES.len()]);

impl Default for Codes {
    fn default() -> Codes {
        Codes(zeros())
    }
}

impl Codes {
    pub fn count(&self, status: u16) {
        self.0[code_of(status)].add(1);
    }

    fn add_to(&self, sum: &mut [u64; CODES.len()]) {
        add_counters(sum, &self.0);
    }
}

/// Calls of gRPC by status. The first call allocates the counters.
#[derive(Debug, Default)]
pub struct GrpcCells(OnceLock<Box<[WorkerCounter; GRPC_STATUSES.len()]>>);

/// Calls of all workers, in the order of [`GRPC_STATUSES`]. `None` if there were no calls.
pub type GrpcSum = Option<Box<[u64; GRPC_STATUSES.len()]>>;

impl GrpcCells {
    pub fn count(&self, status: GrpcStatus) {
        self.0.get_or_init(|| Box::new(zeros()))[status.index()].add(1);
    }

    pub fn add_to(&self, sum: &mut GrpcSum) {
        if let Some(counters) = self.0.get() {
            let sum = sum.get_or_insert_with(|| Box::new([0; GRPC_STATUSES.len()]));
            add_counters(&mut **sum, &**counters);
        }
    }
}

/// Upper bounds of the duration of a request, microseconds.
pub const REQUEST_BOUNDS: [u64; 14] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];

/// Upper bounds of the duration of a decision, microseconds.
pub const DECISION_BOUNDS: [u64; 14] = [
    1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000,
];

/// Upper bounds of the time for which requests are held, microseconds.
pub const HELD_BOUNDS: [u64; 14] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
];

/// Durations by class; the last class is above all bounds. The sum, which every duration changes,
/// is on one cache line with the first classes, which hold nearly all durations.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Histogram {
    sum_us: WorkerCounter,
    classes: [WorkerCounter; 15],
}

impl Histogram {
    pub fn observe(&self, took: Duration, bounds: &[u64; 14]) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // Most durations are in one of the first classes.
        let class = bounds.iter().position(|bound| us <= *bound);
        self.classes[class.unwrap_or(bounds.len())].add(1);
        self.sum_us.add(us);
    }

    pub fn add_to(&self, sum: &mut Durations) {
        add_counters(&mut sum.classes, &self.classes);
        sum.sum_us += self.sum_us.get();
    }
}

#[derive(Clone, Debug, Default)]
pub struct Durations {
    pub classes: [u64; 15],
    pub sum_us: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct CountedAnswer {
    pub method: u8,
    pub status: u16,
    pub took: Duration,
}

#[derive(Debug, Default)]
#[repr(align(64))]
pub struct RouteCells {
    /// The first request of a method allocates its counters: few routes get all methods.
    methods: [OnceLock<Box<Codes>>; METHODS.len()],
    duration: Histogram,
    pub grpc: GrpcCells,
    pub usage: UsageCells,
}

impl RouteCells {
    pub fn count(&self, answer: CountedAnswer) {
        let codes = &self.methods[usize::from(answer.method) % METHODS.len()];
        codes.get_or_init(Box::default).count(answer.status);
        self.duration.observe(answer.took, &REQUEST_BOUNDS);
    }

    pub fn add_to(&self, sum: &mut RouteSum) {
        for (sum, codes) in sum.methods.iter_mut().zip(&self.methods) {
            if let Some(codes) = codes.get() {
                codes.add_to(sum.get_or_insert_with(|| Box::new([0; CODES.len()])));
            }
        }
        self.duration.add_to(&mut sum.duration);
        self.grpc.add_to(&mut sum.grpc);
        self.usage.add_to(&mut sum.usage);
    }
}

/// One worker's cells of a route; empty before its first answer.
#[derive(Debug, Default)]
pub struct UsageCells(OnceLock<Box<UsageCounts>>);

#[derive(Debug, Default)]
struct UsageCounts {
    tokens: [WorkerCounter; TOKEN_CLASSES.len()],
    outcomes: [WorkerCounter; UsageOutcome::WORDS.len()],
    /// The share of the reserve that was used. A microsecond stands for a millionth.
    ratios: Histogram,
}

/// The sum over workers.
#[derive(Clone, Debug, Default)]
pub struct UsageSum {
    pub tokens: [u64; TOKEN_CLASSES.len()],
    pub outcomes: [u64; UsageOutcome::WORDS.len()],
    /// A microsecond stands for a millionth.
    pub ratios: Durations,
}

impl UsageCells {
    pub fn count_outcome(&self, outcome: UsageOutcome) {
        self.0.get_or_init(Box::default).outcomes[outcome as usize].add(1);
    }

    /// Counts the tokens of an answer, and compares them with its reserve.
    pub fn count_tokens(&self, tokens: TokenCounts, reserved: TokenCounts) {
        let counts = self.0.get_or_init(Box::default);
        let cached = tokens.cached.saturating_add(tokens.cache_write);
        let classes = [
            tokens.input.saturating_sub(cached),
            tokens.cached,
            tokens.cache_write,
            tokens.output,
        ];
        for (counter, count) in counts.tokens.iter().zip(classes) {
            counter.add(count);
        }
        let millionths = tokens.total().saturating_mul(1_000_000) / reserved.total().max(1);
        counts
            .ratios
            .observe(Duration::from_micros(millionths), &RATIO_BOUNDS);
    }

    pub fn add_to(&self, sum: &mut Option<Box<UsageSum>>) {
        let Some(counts) = self.0.get() else { return };
        let sum = sum.get_or_insert_default();
        add_counters(&mut sum.tokens, &counts.tokens);
        add_counters(&mut sum.outcomes, &counts.outcomes);
        counts.ratios.add_to(&mut sum.ratios);
    }
}

#[derive(Clone, Debug, Default)]
pub struct RouteSum {
    /// Answers by method and code. `None` for a method without requests.
    pub methods: [Option<Box<[u64; CODES.len()]>>; METHODS.len()],
    pub duration: Durations,
    pub grpc: GrpcSum,
    pub usage: Option<Box<UsageSum>>,
}

impl RouteSum {
    pub fn requests(&self) -> u64 {
        let codes = self.methods.iter().flatten();
        codes.map(|counts| counts.iter().sum::<u64>()).sum()
    }

    pub fn errors(&self) -> u64 {
        let codes = self.methods.iter().flatten();
        let counts = codes.flat_map(|counts| counts.iter().zip(&CODES));
        let errors = counts.filter(|(_, code)| code.starts_with('5'));
        errors.map(|(count, _)| count).sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitVerdict {
    Allowed,
    Denied,
    ShadowDenied,
    /// The request or its client is exempt from the limit.
    Bypassed,
}

impl LimitVerdict {
    pub const WORDS: [&str; 4] = ["allowed", "denied", "shadow_denied", "bypassed"];
}

/// The sources of decisions, in the order in which they are counted.
pub const SOURCES: [&str; 4] = ["store", "local", "cache", "lease"];

#[derive(Debug, Default)]
#[repr(align(64))]
pub struct LimitCells {
    decisions: [[WorkerCounter; SOURCES.len()]; LimitVerdict::WORDS.len()],
    /// Units that requests under way hold in reserve. A request may end on another thread.
    pub(super) reserved: AtomicU64,
    /// Requests that are held now, by the hash of their key. A request may end on another thread.
    pub(super) waiting: Mutex<BTreeMap<[u8; 16], u64>>,
    /// How long requests were held. Empty before the first one.
    pub(super) delayed: OnceLock<Box<Histogram>>,
}

/// The counters of one limit, of all workers: by verdict, then by source.
pub type LimitSum = [[u64; SOURCES.len()]; LimitVerdict::WORDS.len()];

impl LimitCells {
    pub fn count(&self, verdict: LimitVerdict, source: usize) {
        self.decisions[verdict as usize][source % SOURCES.len()].add(1);
    }

    pub fn add_to(&self, sum: &mut LimitSum) {
        add_counters(sum.as_flattened_mut(), self.decisions.as_flattened());
    }
}

/// The reasons for another attempt at an upstream, in the order in which they are counted.
pub const RETRIES: [&str; 4] = ["unsent", "closed", "timeout", "status"];

#[derive(Debug, Default)]
#[repr(align(64))]
pub struct UpstreamCells {
    pub codes: Codes,
    pub failures: WorkerCounter,
    /// Further attempts, by [`RETRIES`].
    pub retries: [WorkerCounter; RETRIES.len()],
    pub grpc: GrpcCells,
}

#[derive(Clone, Debug)]
pub struct UpstreamSum {
    pub codes: [u64; CODES.len()],
    pub failures: u64,
    pub retries: [u64; RETRIES.len()],
    pub grpc: GrpcSum,
}

impl Default for UpstreamSum {
    fn default() -> UpstreamSum {
        UpstreamSum {
            codes: [0; CODES.len()],
            failures: 0,
            retries: [0; RETRIES.len()],
            grpc: None,
        }
    }
}

impl UpstreamCells {
    pub fn add_to(&self, sum: &mut UpstreamSum) {
        self.codes.add_to(&mut sum.codes);
        sum.failures += self.failures.get();
        add_counters(&mut sum.retries, &self.retries);
        self.grpc.add_to(&mut sum.grpc);
    }
}

#[derive(Debug, Default)]
pub struct ServerCells {
    pub requests: WorkerCounter,
    /// Attempts without a usable answer, or with an answer that says that the server failed: a 5xx,
    /// the same in gRPC, or a status that `eject` names.
    pub failures: WorkerCounter,
    /// Answers that ended before their end. They are failures too.
    pub truncated: WorkerCounter,
}

/// Methods with a series of their own, and a word for all others.
pub const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other",
];

/// Status codes with a series of their own, and for each hundred a word for its other codes.
pub const CODES: [&str; 48] = [
    "101", "200", "201", "202", "203", "204", "206", "207", "301", "302", "303", "304", "307",
    "308", "400", "401", "402", "403", "404", "405", "406", "408", "409", "410", "411", "412",
    "413", "414", "415", "416", "417", "421", "422", "425", "428", "429", "431", "451", "500",
    "501", "502", "503", "504", "1xx", "2xx", "3xx", "4xx", "5xx",
];

/// The index of `1xx`.
const HUNDREDS: usize = CODES.len() - 5;

/// The indices in `CODES` of the statuses from 100 to 599.
static INDEX: [u8; 500] = index();

const fn index() -> [u8; 500] {
    let mut table = [0; 500];
    let mut status = 0;
    while status < table.len() {
        table[status] = (HUNDREDS + status / 100) as u8;
        status += 1;
    }
    let mut code = 0;
    while code < HUNDREDS {
        let digits = CODES[code].as_bytes();
        let number = (digits[0] - b'0') as usize * 100
            + (digits[1] - b'0') as usize * 10
            + (digits[2] - b'0') as usize;
        table[number - 100] = code as u8;
        code += 1;
    }
    table
}

pub fn code_of(status: u16) -> usize {
    let index = INDEX.get(usize::from(status).wrapping_sub(100));
    index.map_or(CODES.len() - 1, |index| usize::from(*index))
}

pub fn method_of(method: &Method) -> u8 {
    match *method {
        Method::GET => 0,
        Method::HEAD => 1,
        Method::POST => 2,
        Method::PUT => 3,
        Method::PATCH => 4,
        Method::DELETE => 5,
        Method::OPTIONS => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_class_that_holds_it() {
        let histogram = Histogram::default();
        for us in [0, 500, 501, 10_000_000, 10_000_001] {
            histogram.observe(Duration::from_micros(us), &REQUEST_BOUNDS);
        }
        let mut sum = Durations::default();
        histogram.add_to(&mut sum);
        let found: Vec<_> = (0..15).filter(|class| sum.classes[*class] > 0).collect();
        assert_eq!(found, [0, 1, 13, 14]);
        assert_eq!((sum.classes[0], sum.sum_us), (2, 20_001_002));
    }

    fn answer(method: u8, status: u16) -> CountedAnswer {
        CountedAnswer {
            method,
            status,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_route_is_counted_by_method_and_code() {
        let (one, other) = (RouteCells::default(), RouteCells::default());
        one.count(answer(0, 200));
        one.count(answer(0, 503));
        other.count(answer(2, 200));
        let mut sum = RouteSum::default();
        one.add_to(&mut sum);
        other.add_to(&mut sum);
        assert_eq!((sum.requests(), sum.errors()), (3, 1));
        assert!(sum.methods[1].is_none());
    }

    #[test]
    fn every_number_has_a_series_and_odd_ones_share_one() {
        let cells = GrpcCells::default();
        let mut sum = None;
        cells.add_to(&mut sum);
        assert!(sum.is_none());
        for code in [0, 14, 14, 16, 17, 999, u16::MAX] {
            cells.count(GrpcStatus::Code(code));
        }
        cells.count(GrpcStatus::Missing);
        cells.add_to(&mut sum);
        let sum = sum.unwrap();
        let seen = |word: &str| sum[GRPC_STATUSES.iter().position(|one| *one == word).unwrap()];
        assert_eq!((seen("0"), seen("14"), seen("16")), (1, 2, 1));
        assert_eq!((seen("other"), seen("none")), (3, 1));
        assert_eq!(crate::telemetry::metrics::grpc::failures(&sum), 3);
    }

    #[test]
    fn every_status_is_counted_as_itself_or_with_its_hundred() {
        for status in 0..=u16::MAX {
            let code = CODES[code_of(status)];
            let own = code == status.to_string();
            let hundred = code.ends_with("xx") && code.starts_with(&(status / 100).to_string());
            let odd = !(100..600).contains(&status) && code == "5xx";
            assert!(own || hundred || odd, "{status} is counted as {code}");
        }
        assert_eq!(CODES[code_of(429)], "429");
        assert_eq!(CODES[code_of(418)], "4xx");
    }

    #[test]
    fn every_method_has_a_place() {
        for (index, name) in METHODS.iter().enumerate() {
            let method = Method::from_bytes(name.as_bytes()).unwrap();
            assert_eq!(usize::from(method_of(&method)), index);
        }
        let odd = Method::from_bytes(b"BREW").unwrap();
        assert_eq!(METHODS[usize::from(method_of(&odd))], "other");
    }
}
