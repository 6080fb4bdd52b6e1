//! `/api/v1/routes`: how often each route answered in the last minute, with which status, and how
//! long that took.
//!
//! Every few seconds the counters of all routes are recorded. A report is the difference to the
//! oldest record. The size is fixed: [`MAX_RECORDS`] records of [`MAX_ROUTES`] routes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::schema::described;
use crate::proxy::Proxy;
use crate::route::Route;
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::cells::UsageSum;
use crate::telemetry::metrics::grpc::failures;
use crate::telemetry::metrics::usage::{TOKEN_CLASSES, UsageOutcome};
use crate::telemetry::metrics::{CODES, Durations, NO_ROUTE, REQUEST_BOUNDS, RouteSum, Sum};

/// Records that are kept: a minute.
const MAX_RECORDS: usize = 12;
/// Seconds between two records.
const EVERY: u64 = 5;
/// Routes that are recorded, in the order of the configuration.
const MAX_ROUTES: usize = 256;
/// Classes of statuses. `4xx` does not count 429.
const STATUSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "429", "5xx"];

described! {
    struct RouteList {
        /// Seconds that the counts are of: a minute, or the age of the proxy if it is younger.
        seconds: u64,
        routes: Vec<RouteReport>,
        all: AnswersReport,
        statuses: Vec<StatusCount>,
        /// Routes beyond the first 256.
        left_out: usize,
    }

    struct RouteReport as "RouteAnswers" {
        name: String,
        path: Option<String>,
        methods: Vec<String>,
        requests: u64,
        requests_per_second: f64,
        /// `4xx` does not count 429.
        statuses: BTreeMap<String, u64> = statuses_schema(),
        grpc: GrpcReport,
        latency_seconds: Quantiles,
        /// Null for a route without `usage`.
        usage: Option<UsageReport>,
    }

    struct UsageReport as "RouteUsage" {
        /// Tokens that answers reported.
        tokens: BTreeMap<String, u64> = counts_schema(&TOKEN_CLASSES),
        /// Ended calls.
        outcomes: BTreeMap<String, u64> = counts_schema(&UsageOutcome::WORDS),
        /// The mean share of its reserve that an answer used. Null if no answer told its tokens.
        estimate_ratio: Option<f64>,
    }

    struct AnswersReport as "Answers" {
        requests: u64,
        requests_per_second: f64,
        /// `4xx` does not count 429.
        statuses: BTreeMap<String, u64> = statuses_schema(),
        grpc: GrpcReport,
        latency_seconds: Quantiles,
    }

    struct GrpcReport {
        calls: u64,
        failed: u64,
    }

    struct Quantiles {
        p50: Option<f64>,
        p95: Option<f64>,
        p99: Option<f64>,
    }

    struct StatusCount {
        code: String,
        requests: u64,
    }
}

fn statuses_schema() -> Value {
    counts_schema(&STATUSES)
}

/// The schema of one count for each name.
fn counts_schema(names: &[&str]) -> Value {
    let count = json!({ "type": "integer", "minimum": 0 });
    let properties: BTreeMap<&str, &Value> = names.iter().map(|name| (*name, &count)).collect();
    json!({
        "properties": properties,
        "required": names,
        "additionalProperties": false,
    })
}

/// The counts by their names.
fn by_name(names: &[&str], counts: &[u64]) -> BTreeMap<String, u64> {
    let names = names.iter().map(|name| (*name).to_owned());
    names.zip(counts.iter().copied()).collect()
}

/// Counters of one route, or their growth.
#[derive(Clone, Debug, Default)]
struct RouteCounts {
    /// In the order of [`STATUSES`].
    statuses: [u64; STATUSES.len()],
    durations: Durations,
    /// All calls of gRPC, and the failed ones.
    grpc: [u64; 2],
    usage: UsageSum,
}

/// The counters of all routes at one time.
#[derive(Debug, Default)]
struct RouteRecord {
    /// Seconds since the Unix epoch.
    at: u64,
    routes: HashMap<Arc<str>, RouteCounts>,
    codes: BTreeMap<&'static str, u64>,
}

/// See the file's head. The oldest record is first.
#[derive(Debug, Default)]
pub(super) struct RouteHistory(VecDeque<RouteRecord>);

impl RouteCounts {
    fn new(sum: &RouteSum) -> RouteCounts {
        let mut statuses = [0; STATUSES.len()];
        for (code, count) in counts_by_code(sum) {
            let is_class = |name: &&str| name.ends_with("xx") && name[..1] == code[..1];
            let exact = STATUSES.iter().position(|name| *name == code);
            if let Some(class) = exact.or_else(|| STATUSES.iter().position(is_class)) {
                statuses[class] += count;
            }
        }
        let calls = sum.grpc.as_deref();
        RouteCounts {
            statuses,
            durations: sum.duration.clone(),
            grpc: calls.map_or([0; 2], |counts| [counts.iter().sum(), failures(counts)]),
            usage: sum.usage.as_deref().cloned().unwrap_or_default(),
        }
    }

    fn counters(&mut self) -> impl Iterator<Item = &mut u64> {
        let counts = self.statuses.iter_mut().chain(&mut self.grpc);
        let usage = &mut self.usage;
        let usage_counts = usage.tokens.iter_mut().chain(&mut usage.outcomes);
        let ratios = usage.ratios.classes.iter_mut();
        let ratios = ratios.chain([&mut usage.ratios.sum_us]);
        let counts = counts.chain(&mut self.durations.classes);
        counts.chain(usage_counts).chain(ratios)
    }

    /// The growth since `before`. The counters of a route that was away for a time begin at 0.
    fn since(mut self, mut before: RouteCounts) -> RouteCounts {
        for (now, before) in self.counters().zip(before.counters()) {
            *now = now.saturating_sub(*before);
        }
        self
    }

    fn add(&mut self, mut more: RouteCounts) {
        for (sum, more) in self.counters().zip(more.counters()) {
            *sum += *more;
        }
    }

    fn report(&self, seconds: u64) -> AnswersReport {
        let requests = self.statuses.iter().sum();
        let latency = |share| quantile(&self.durations, share);
        let [calls, failed] = self.grpc;
        AnswersReport {
            requests,
            requests_per_second: requests as f64 / seconds.max(1) as f64,
            statuses: by_name(&STATUSES, &self.statuses),
            grpc: GrpcReport { calls, failed },
            latency_seconds: Quantiles {
                p50: latency(0.5),
                p95: latency(0.95),
                p99: latency(0.99),
            },
        }
    }
}

/// The usage of a route in the last minute.
fn usage_report(sum: &UsageSum) -> UsageReport {
    let answers: u64 = sum.ratios.classes.iter().sum();
    let mean = || sum.ratios.sum_us as f64 / 1e6 / answers as f64;
    UsageReport {
        tokens: by_name(&TOKEN_CLASSES, &sum.tokens),
        outcomes: by_name(&UsageOutcome::WORDS, &sum.outcomes),
        estimate_ratio: (answers > 0).then(mean),
    }
}

fn counts_by_code(sum: &RouteSum) -> impl Iterator<Item = (&'static str, u64)> {
    let methods = sum.methods.iter().flatten();
    methods.flat_map(|counts| CODES.iter().copied().zip(counts.iter().copied()))
}

/// The longest time of that share of the requests, seconds. Interpolates linearly within a class.
fn quantile(durations: &Durations, share: f64) -> Option<f64> {
    let all: u64 = durations.classes.iter().sum();
    let wanted = share * all as f64;
    let (mut below, mut from) = (0.0, 0.0);
    for (count, bound) in durations.classes.iter().zip(REQUEST_BOUNDS) {
        let (count, bound) = (*count as f64, bound as f64);
        if count > 0.0 && below + count >= wanted {
            let part = (wanted - below) / count;
            return Some((from + (bound - from) * part) / 1e6);
        }
        (below, from) = (below + count, bound);
    }
    // Longer times have no upper bound: report the last bound.
    (all > 0).then(|| REQUEST_BOUNDS[REQUEST_BOUNDS.len() - 1] as f64 / 1e6)
}

impl RouteRecord {
    fn read(snapshot: &Snapshot<'_>, at: u64) -> RouteRecord {
        let sum = Sum::new(snapshot.proxies().map(Proxy::meter));
        let mut codes = BTreeMap::new();
        for (code, count) in sum.routes.values().flat_map(counts_by_code) {
            if count > 0 {
                *codes.entry(code).or_default() += count;
            }
        }
        let names = snapshot.config.routes.iter().take(MAX_ROUTES);
        let names = names.map(|route| &*route.name).chain([NO_ROUTE]);
        let counted = names.filter_map(|name| sum.routes.get_key_value(name));
        RouteRecord {
            at,
            routes: counted
                .map(|(name, sum)| (Arc::clone(name), RouteCounts::new(sum)))
                .collect(),
            codes,
        }
    }

    fn counts(&self, route: &str) -> RouteCounts {
        self.routes.get(route).cloned().unwrap_or_default()
    }
}

impl RouteHistory {
    /// Records the counters if it is time for that.
    pub(super) fn record(&mut self, snapshot: &Snapshot<'_>, now: u64) {
        if self.is_due(now) {
            self.push(RouteRecord::read(snapshot, now));
        }
    }

    /// Whether it is time for another record. It is after the clock was set back.
    fn is_due(&self, now: u64) -> bool {
        let last = self.0.back().map(|record| record.at);
        last.is_none_or(|last| now < last || now >= last + EVERY)
    }

    fn push(&mut self, record: RouteRecord) {
        if self.0.len() == MAX_RECORDS {
            self.0.pop_front();
        }
        self.0.push_back(record);
    }

    /// The record of a minute ago. `None` in the first minute: then all counts since the start are
    /// of the last minute.
    fn oldest(&self) -> Option<&RouteRecord> {
        let is_full = self.0.len() == MAX_RECORDS;
        self.0.front().filter(|_| is_full)
    }

    /// `started` is the start of the process, seconds since the Unix epoch, as `now`.
    pub(super) fn report(&self, snapshot: &Snapshot<'_>, started: u64, now: u64) -> RouteList {
        let record = RouteRecord::read(snapshot, now);
        let nothing = RouteRecord::default();
        let oldest = self.oldest().unwrap_or(&nothing);
        let seconds = now.saturating_sub(oldest.at.max(started)).max(1);
        let mut all = RouteCounts::default();
        let mut report = |name: &str, route: Option<&Route>| {
            let gained = record.counts(name).since(oldest.counts(name));
            let answers = gained.report(seconds);
            let usage = route.is_some_and(|route| route.usage.is_some());
            let usage = usage.then(|| usage_report(&gained.usage));
            let methods = route.map_or(&[][..], |route| &route.methods);
            all.add(gained);
            RouteReport {
                name: name.to_owned(),
                path: route.map(|route| route.path.to_string()),
                methods: methods.iter().map(ToString::to_string).collect(),
                requests: answers.requests,
                requests_per_second: answers.requests_per_second,
                statuses: answers.statuses,
                grpc: answers.grpc,
                latency_seconds: answers.latency_seconds,
                usage,
            }
        };
        let named = snapshot.config.routes.iter().take(MAX_ROUTES);
        let mut routes: Vec<RouteReport> = named
            .map(|route| report(&route.name, Some(route)))
            .collect();
        routes.push(report(NO_ROUTE, None));
        let codes = record.codes.iter().map(|(code, count)| {
            let before = oldest.codes.get(code).copied().unwrap_or(0);
            let requests = count.saturating_sub(before);
            let code = (*code).to_owned();
            StatusCount { code, requests }
        });
        RouteList {
            seconds,
            routes,
            all: all.report(seconds),
            statuses: codes.filter(|one| one.requests > 0).collect(),
            left_out: snapshot
                .config
                .routes
                .iter()
                .count()
                .saturating_sub(MAX_ROUTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::metrics::{CountedAnswer, RouteCells};
    use crate::usage::tokens::TokenCounts;

    fn counted(answers: &[(u16, u64)]) -> RouteCounts {
        let cells = RouteCells::default();
        for (status, millis) in answers {
            cells.count(CountedAnswer {
                method: 0,
                status: *status,
                took: Duration::from_millis(*millis),
            });
        }
        let mut sum = RouteSum::default();
        cells.add_to(&mut sum);
        RouteCounts::new(&sum)
    }

    #[test]
    fn statuses_are_reported_by_class_and_denials_separately() {
        let counted = counted(&[(200, 1), (204, 1), (418, 1), (429, 1), (503, 1), (101, 1)]);
        assert_eq!(counted.statuses, [1, 2, 0, 1, 1, 1]);
        let report = counted.report(2);
        assert_eq!(report.requests_per_second, 3.0);
        assert_eq!(report.statuses["429"], 1);
    }

    #[test]
    fn latency_is_that_of_the_last_minute_and_unknown_without_requests() {
        let before = counted(&[(200, 9000); 50]);
        let mut now = counted(&[(200, 2); 100]);
        now.add(before.clone());
        let gained = now.since(before);
        let p99 = gained.report(60).latency_seconds.p99.unwrap();
        assert!((0.001..=0.0025).contains(&p99), "{p99}");
        assert_eq!(RouteCounts::default().report(60).latency_seconds.p50, None);
    }

    #[test]
    fn usage_is_that_of_the_last_minute() {
        let tokens = |input: u64, output: u64| TokenCounts {
            input,
            cached: input / 2,
            cache_write: 0,
            output,
        };
        let cells = RouteCells::default();
        let counted = || {
            let mut sum = RouteSum::default();
            cells.add_to(&mut sum);
            RouteCounts::new(&sum)
        };
        cells.usage.count_tokens(tokens(900, 100), tokens(0, 500));
        cells.usage.count_outcome(UsageOutcome::Exact);
        let before = counted();
        for output in [100, 300] {
            cells
                .usage
                .count_tokens(tokens(100, output), tokens(400, 400));
            cells.usage.count_outcome(UsageOutcome::Exact);
        }
        cells.usage.count_outcome(UsageOutcome::Missing);
        let report = usage_report(&counted().since(before).usage);
        let tokens = report.tokens;
        assert_eq!(
            [tokens["input"], tokens["cached"], tokens["output"]],
            [100, 100, 400]
        );
        assert_eq!(
            [report.outcomes["exact"], report.outcomes["missing"]],
            [2, 1]
        );
        assert_eq!(report.estimate_ratio, Some(0.375));
        assert_eq!(usage_report(&UsageSum::default()).estimate_ratio, None);
    }

    #[test]
    fn a_minute_is_kept() {
        let mut history = RouteHistory::default();
        for at in 0..100 {
            let at = at * EVERY;
            assert!(history.is_due(at));
            history.push(RouteRecord {
                at,
                ..RouteRecord::default()
            });
            assert!(!history.is_due(at + 1));
            // Requests before the first record are of the last minute too.
            let oldest = history.oldest().map(|record| record.at);
            let most = MAX_RECORDS as u64 - 1;
            assert_eq!(
                oldest,
                (at / EVERY).checked_sub(most).map(|one| one * EVERY)
            );
        }
        assert_eq!(history.0.len(), MAX_RECORDS);
        assert!(history.is_due(3), "the clock was set back");
    }
}
