//! `/api/v1/routes`: what each route answered in the last minute: how often, with which status, and
//! how long it took.
//!
//! A look every few seconds notes what was counted by then; an answer is the difference to the
//! oldest look. Fixed memory: [`LOOKS`] looks at [`MOST_ROUTES`] routes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::AdminState;
use super::respond::{ApiError, available};
use super::schema::described;
use super::time::now_s;
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::grpc::failures;
use crate::telemetry::metrics::{CODES, Durations, NO_ROUTE, REQUEST_BOUNDS, RouteSum, Sum};

/// Looks that are kept: a minute.
const LOOKS: usize = 12;
/// Seconds from one look to the next.
const EVERY: u64 = 5;
/// Routes that are told, in the file's order.
const MOST_ROUTES: usize = 256;
/// Statuses that are told of each route, and the first digit of those that are one of them.
const STATUSES: [(&str, char); 6] = [
    ("1xx", '1'),
    ("2xx", '2'),
    ("3xx", '3'),
    ("4xx", '4'),
    ("429", '-'),
    ("5xx", '5'),
];
/// The place of 429 among those.
const DENIED: usize = 4;

/// What was counted of one route.
#[derive(Clone, Debug, Default)]
struct Counted {
    /// In the order of [`STATUSES`].
    statuses: [u64; STATUSES.len()],
    durations: Durations,
    calls: u64,
    failed_calls: u64,
}

/// What was counted of all routes by some time.
#[derive(Debug, Default)]
struct Look {
    /// Seconds since the Unix epoch.
    at: u64,
    routes: HashMap<Arc<str>, Counted>,
    codes: BTreeMap<&'static str, u64>,
}

/// See the file's head. The oldest look is first.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Look>);

impl Counted {
    fn of(sum: &RouteSum) -> Counted {
        let mut statuses = [0; STATUSES.len()];
        for (code, count) in codes_of(sum) {
            let class = match code {
                "429" => Some(DENIED),
                code => STATUSES
                    .iter()
                    .position(|(_, digit)| code.starts_with(*digit)),
            };
            if let Some(class) = class {
                statuses[class] += count;
            }
        }
        let grpc = sum.grpc.as_deref();
        Counted {
            statuses,
            durations: sum.duration.clone(),
            calls: grpc.map_or(0, |counts| counts.iter().sum()),
            failed_calls: grpc.map_or(0, failures),
        }
    }

    /// What came to it since `before`. A route that went and returned begins at 0.
    fn since(&self, before: &Counted) -> Counted {
        let less = |now: u64, before: u64| now.saturating_sub(before);
        let mut gained = self.clone();
        for (now, before) in gained.statuses.iter_mut().zip(before.statuses) {
            *now = less(*now, before);
        }
        let classes = gained.durations.classes.iter_mut();
        for (now, before) in classes.zip(before.durations.classes) {
            *now = less(*now, before);
        }
        gained.calls = less(self.calls, before.calls);
        gained.failed_calls = less(self.failed_calls, before.failed_calls);
        gained
    }

    fn add(&mut self, more: &Counted) {
        let pairs = self.statuses.iter_mut().zip(more.statuses);
        pairs.for_each(|(sum, more)| *sum += more);
        let classes = self.durations.classes.iter_mut();
        let pairs = classes.zip(more.durations.classes);
        pairs.for_each(|(sum, more)| *sum += more);
        self.calls += more.calls;
        self.failed_calls += more.failed_calls;
    }

    fn requests(&self) -> u64 {
        self.statuses.iter().sum()
    }

    fn report(&self, seconds: u64) -> AnswersReport {
        let statuses = STATUSES.iter().zip(self.statuses);
        let latency = |share| quantile(&self.durations, share);
        AnswersReport {
            requests: self.requests(),
            requests_per_second: self.requests() as f64 / seconds.max(1) as f64,
            statuses: statuses.map(|((name, _), count)| (*name, count)).collect(),
            grpc: GrpcReport {
                calls: self.calls,
                failed: self.failed_calls,
            },
            latency_seconds: Quantiles {
                p50: latency(0.5),
                p95: latency(0.95),
                p99: latency(0.99),
            },
        }
    }
}

fn codes_of(sum: &RouteSum) -> impl Iterator<Item = (&'static str, u64)> {
    let methods = sum.methods.iter().flatten();
    methods.flat_map(|counts| CODES.iter().copied().zip(counts.iter().copied()))
}

/// How long that share of the requests took at most, seconds; within a class as if they lay evenly.
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
    // Beyond the last bound nothing more is known.
    (all > 0).then(|| REQUEST_BOUNDS[REQUEST_BOUNDS.len() - 1] as f64 / 1e6)
}

impl Look {
    fn of(at: u64, snapshot: &Snapshot<'_>) -> Look {
        let mut sum = Sum::default();
        snapshot
            .proxies()
            .for_each(|proxy| proxy.meter().add_to(&mut sum));
        let mut codes = BTreeMap::new();
        for (code, count) in sum.routes.values().flat_map(codes_of) {
            if count > 0 {
                *codes.entry(code).or_default() += count;
            }
        }
        let names = snapshot.config.routes.iter().take(MOST_ROUTES);
        let names = names.map(|route| &*route.name).chain([NO_ROUTE]);
        let counted = names.filter_map(|name| sum.routes.get_key_value(name));
        Look {
            at,
            routes: counted
                .map(|(name, sum)| (Arc::clone(name), Counted::of(sum)))
                .collect(),
            codes,
        }
    }
}

impl Recent {
    /// Whether it is time for another look; also where the clock was set back.
    fn is_due(&self, now: u64) -> bool {
        let last = self.0.back().map(|look| look.at);
        last.is_none_or(|last| now < last || now >= last + EVERY)
    }

    fn keep(&mut self, look: Look) {
        if self.0.len() == LOOKS {
            self.0.pop_front();
        }
        self.0.push_back(look);
    }
}

impl AdminState {
    /// Notes what the routes have answered by now, every few seconds.
    pub(super) fn look_at_routes(&self) {
        let now = now_s();
        if !self.recent().is_due(now) {
            return;
        }
        if let Some(look) = self
            .server
            .introspection
            .inspect(|snapshot| Look::of(now, snapshot))
        {
            self.recent().keep(look);
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
        statuses: BTreeMap<&'static str, u64> = statuses_schema(),
        grpc: GrpcReport,
        latency_seconds: Quantiles,
    }

    struct AnswersReport as "Answered" {
        requests: u64,
        requests_per_second: f64,
        /// `4xx` does not count 429.
        statuses: BTreeMap<&'static str, u64> = statuses_schema(),
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
        code: &'static str,
        requests: u64,
    }
}

fn statuses_schema() -> Value {
    let names = STATUSES.map(|(name, _)| name);
    let count = json!({ "type": "integer", "minimum": 0 });
    let properties: BTreeMap<&str, &Value> = names.iter().map(|name| (*name, &count)).collect();
    json!({
        "properties": properties,
        "required": names,
        "additionalProperties": false,
    })
}

/// A route as the configuration has it.
struct RouteLine {
    name: String,
    path: Option<String>,
    methods: Vec<String>,
}

impl RouteLine {
    fn report(self, answers: AnswersReport) -> RouteReport {
        RouteReport {
            name: self.name,
            path: self.path,
            methods: self.methods,
            requests: answers.requests,
            requests_per_second: answers.requests_per_second,
            statuses: answers.statuses,
            grpc: answers.grpc,
            latency_seconds: answers.latency_seconds,
        }
    }
}

pub(super) fn routes(state: &AdminState) -> Result<RouteList, ApiError> {
    let now = now_s();
    let (look, routes) = available(state.server.introspection.inspect(|snapshot| {
        let routes = snapshot.config.routes.iter().map(|route| RouteLine {
            name: route.name.to_string(),
            path: Some(route.path.to_string()),
            methods: route.methods.iter().map(ToString::to_string).collect(),
        });
        (Look::of(now, snapshot), routes.collect::<Vec<_>>())
    }))?;
    let recent = state.recent();
    let nothing = Look::default();
    let oldest = recent.0.front().unwrap_or(&nothing);
    let started = state.server.introspection.started_us() / 1_000_000;
    let seconds = now.saturating_sub(oldest.at.max(started)).max(1);
    let none = Counted::default();
    let gained = |name: &str| {
        let counted = look.routes.get(name).unwrap_or(&none);
        counted.since(oldest.routes.get(name).unwrap_or(&none))
    };
    let mut all = Counted::default();
    let left_out = routes.len().saturating_sub(MOST_ROUTES);
    let nowhere = RouteLine {
        name: NO_ROUTE.to_owned(),
        path: None,
        methods: Vec::new(),
    };
    let listed = routes.into_iter().take(MOST_ROUTES).chain([nowhere]);
    let listed = listed.map(|line| {
        let gained = gained(&line.name);
        all.add(&gained);
        line.report(gained.report(seconds))
    });
    let listed = listed.collect();
    let codes = look.codes.iter().map(|(code, count)| {
        let before = oldest.codes.get(code).copied().unwrap_or(0);
        let requests = count.saturating_sub(before);
        StatusCount { code, requests }
    });
    Ok(RouteList {
        seconds,
        routes: listed,
        all: all.report(seconds),
        statuses: codes.filter(|one| one.requests > 0).collect(),
        left_out,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::metrics::RouteCells;

    fn counted(answers: &[(u16, u64)]) -> Counted {
        let cells = RouteCells::default();
        for (status, millis) in answers {
            cells.count(0, *status, Duration::from_millis(*millis));
        }
        let mut sum = RouteSum::default();
        cells.add_to(&mut sum);
        Counted::of(&sum)
    }

    #[test]
    fn statuses_are_told_by_their_class_and_denials_by_themselves() {
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
        now.add(&before);
        let gained = now.since(&before);
        let p99 = gained.report(60).latency_seconds.p99.unwrap();
        assert!((0.001..=0.0025).contains(&p99), "{p99}");
        assert_eq!(Counted::default().report(60).latency_seconds.p50, None);
    }

    #[test]
    fn what_is_kept_is_a_minute() {
        let mut recent = Recent::default();
        for at in 0..100 {
            let at = at * EVERY;
            assert!(recent.is_due(at));
            recent.keep(Look {
                at,
                ..Look::default()
            });
            assert!(!recent.is_due(at + 1));
        }
        assert_eq!(recent.0.len(), LOOKS);
        assert!(recent.is_due(3), "the clock was set back");
    }
}
