//! Where one worker counts: cells that it alone writes and anybody may read.
//!
//! A single writer needs no locked instruction: it reads its own number and stores the next one.
//! Cells that are written together lie together, on cache lines that no other worker writes to.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::codes::{CODES, METHODS, code_of};
use super::grpc::{GRPC_STATUSES, GrpcStatus};

/// A number that one thread alone adds to.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `more`. Of two threads that do so at once one is forgotten.
    pub fn add(&self, more: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(more), Ordering::Relaxed);
    }

    /// What it is by now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many answers had which status.
#[derive(Debug)]
pub struct Codes([Count; CODES.len()]);

impl Default for Codes {
    fn default() -> Codes {
        Codes(std::array::from_fn(|_| Count::default()))
    }
}

impl Codes {
    /// One more of `status`.
    pub fn count(&self, status: u16) {
        self.0[code_of(status)].add(1);
    }

    /// How many of each, in the order of [`CODES`].
    pub fn get(&self) -> [u64; CODES.len()] {
        std::array::from_fn(|code| self.0[code].get())
    }
}

/// How many calls ended with which status; made with the first call.
#[derive(Debug, Default)]
pub struct GrpcCells(OnceLock<Box<[Count; GRPC_STATUSES.len()]>>);

/// The same of all workers, in the order of [`GRPC_STATUSES`]; nothing where there were no calls.
pub type GrpcSum = Option<Box<[u64; GRPC_STATUSES.len()]>>;

impl GrpcCells {
    /// One more call.
    pub fn count(&self, status: GrpcStatus) {
        let new = || Box::new(std::array::from_fn(|_| Count::default()));
        self.0.get_or_init(new)[status.index()].add(1);
    }

    /// Adds what is here to `sum`.
    pub fn add_to(&self, sum: &mut GrpcSum) {
        let Some(counts) = self.0.get() else { return };
        let sum = sum.get_or_insert_with(|| Box::new([0; GRPC_STATUSES.len()]));
        for (sum, count) in sum.iter_mut().zip(counts.iter()) {
            *sum += count.get();
        }
    }
}

/// Upper bounds of a request's duration, microseconds.
pub const REQUEST_BOUNDS: [u64; 14] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];

/// The same for a decision.
pub const DECISION_BOUNDS: [u64; 14] = [
    1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000,
];

/// Durations in classes; which bounds they have is the reader's to know. What each one adds to
/// comes first, on one cache line with the classes of nearly all.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Histogram {
    sum_us: Count,
    classes: [Count; 15],
}

impl Histogram {
    /// One more of so long.
    pub fn observe(&self, took: Duration, bounds: &[u64; 14]) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // Most are in one of the first.
        let class = bounds.iter().position(|bound| us <= *bound);
        self.classes[class.unwrap_or(bounds.len())].add(1);
        self.sum_us.add(us);
    }

    /// Adds what is here to `sum`.
    pub fn add_to(&self, sum: &mut Durations) {
        for (sum, class) in sum.classes.iter_mut().zip(&self.classes) {
            *sum += class.get();
        }
        sum.sum_us += self.sum_us.get();
    }
}

/// What several histograms say together.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// How many in each class, the last one above all bounds.
    pub classes: [u64; 15],
    /// All together, microseconds.
    pub sum_us: u64,
}

/// What one worker counts of one route.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct RouteCells {
    /// Made with the first request of a method: few routes see all of them.
    methods: [OnceLock<Box<Codes>>; METHODS.len()],
    duration: Histogram,
    /// Calls of gRPC by their own status.
    pub grpc: GrpcCells,
}

impl RouteCells {
    /// One more request.
    pub fn count(&self, method: u8, status: u16, took: Duration) {
        let codes = &self.methods[usize::from(method) % METHODS.len()];
        codes.get_or_init(Box::default).count(status);
        self.duration.observe(took, &REQUEST_BOUNDS);
    }

    /// Adds what is here to `sum`.
    pub fn add_to(&self, sum: &mut RouteSum) {
        for (sum, codes) in sum.methods.iter_mut().zip(&self.methods) {
            let Some(codes) = codes.get() else { continue };
            let sum = sum.get_or_insert_with(|| Box::new([0; CODES.len()]));
            for (sum, count) in sum.iter_mut().zip(codes.get()) {
                *sum += count;
            }
        }
        self.duration.add_to(&mut sum.duration);
        self.grpc.add_to(&mut sum.grpc);
    }
}

/// What all workers have counted of one route.
#[derive(Clone, Debug, Default)]
pub struct RouteSum {
    /// By method and code; nothing for a method that nobody used.
    pub methods: [Option<Box<[u64; CODES.len()]>>; METHODS.len()],
    /// How long they took.
    pub duration: Durations,
    /// Calls of gRPC by their own status.
    pub grpc: GrpcSum,
}

impl RouteSum {
    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        let all = self.methods.iter().flatten();
        all.map(|codes| codes.iter().sum::<u64>()).sum()
    }

    /// How many of them a server's error answered.
    pub fn errors(&self) -> u64 {
        let is_error = |code: &&str| code.starts_with('5');
        let all = self.methods.iter().flatten();
        let errors = all.flat_map(|codes| codes.iter().zip(&CODES));
        errors
            .filter(|(_, code)| is_error(code))
            .map(|(count, _)| count)
            .sum()
    }
}

/// What a limit said of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It let it pass.
    Allowed,
    /// It denied it.
    Denied,
    /// It is on trial, and would have denied it.
    ShadowDenied,
    /// It was not asked: the request or its client is exempt.
    Bypassed,
}

impl Verdict {
    /// All, in the order in which they are counted.
    pub const WORDS: [&str; 4] = ["allowed", "denied", "shadow_denied", "bypassed"];
}

/// Who decides, in the order in which decisions are counted.
pub const SOURCES: [&str; 4] = ["store", "local", "cache", "lease"];

/// What one worker counts of one limit.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct LimitCells([[Count; SOURCES.len()]; Verdict::WORDS.len()]);

/// What all workers have counted of one limit: by verdict, then by source.
pub type LimitSum = [[u64; SOURCES.len()]; Verdict::WORDS.len()];

impl LimitCells {
    /// One more decision, by the source of this index.
    pub fn count(&self, verdict: Verdict, source: usize) {
        self.0[verdict as usize][source % SOURCES.len()].add(1);
    }

    /// Adds what is here to `sum`.
    pub fn add_to(&self, sum: &mut LimitSum) {
        for (sum, counts) in sum.iter_mut().flatten().zip(self.0.iter().flatten()) {
            *sum += counts.get();
        }
    }
}

/// Why requests are sent to an upstream again, in the order in which that is counted.
pub const RETRIES: [&str; 4] = ["unsent", "closed", "timeout", "status"];

/// What one worker counts of one upstream.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct UpstreamCells {
    /// Answers, of every attempt.
    pub codes: Codes,
    /// Attempts without one.
    pub failures: Count,
    /// Further attempts, by [`RETRIES`].
    pub retries: [Count; RETRIES.len()],
    /// Answers to calls of gRPC, by their own status.
    pub grpc: GrpcCells,
}

/// What all workers have counted of one upstream.
#[derive(Clone, Debug)]
pub struct UpstreamSum {
    /// Answers by [`CODES`].
    pub codes: [u64; CODES.len()],
    /// Attempts without one.
    pub failures: u64,
    /// Further attempts, by [`RETRIES`].
    pub retries: [u64; RETRIES.len()],
    /// Answers to calls of gRPC, by their own status.
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
    /// Adds what is here to `sum`.
    pub fn add_to(&self, sum: &mut UpstreamSum) {
        for (sum, count) in sum.codes.iter_mut().zip(self.codes.get()) {
            *sum += count;
        }
        sum.failures += self.failures.get();
        for (sum, count) in sum.retries.iter_mut().zip(&self.retries) {
            *sum += count.get();
        }
        self.grpc.add_to(&mut sum.grpc);
    }
}

/// What one worker counts of one server.
#[derive(Debug, Default)]
pub struct ServerCells {
    /// Attempts.
    pub requests: Count,
    /// Those without a usable answer, or with one that says that the server failed: a 5xx, the
    /// same in gRPC, or a status that `eject` names.
    pub failures: Count,
    /// Answers that ended before their end, which are failures too.
    pub truncated: Count,
}

impl ServerCells {
    /// Goes on where `old` is.
    pub fn go_on(&self, old: &ServerCells) {
        self.requests.add(old.requests.get());
        self.failures.add(old.failures.get());
        self.truncated.add(old.truncated.get());
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

    #[test]
    fn a_route_is_counted_by_method_and_code() {
        let (one, other) = (RouteCells::default(), RouteCells::default());
        one.count(0, 200, Duration::ZERO);
        one.count(0, 503, Duration::ZERO);
        other.count(2, 200, Duration::ZERO);
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
}
