//! `/metrics`: all counters, in the format of Prometheus.
//!
//! Likely series are there from the start, at 0. A route has its likely codes under its methods, or
//! under `GET` and `POST` if it takes all. A limit has every possible decision, an upstream its
//! likely codes. Other series begin with their first request. So do all series of routes if there
//! are more than [`MANY_ROUTES`] routes.

use std::fs;

use super::response::seconds;
use super::state::AdminState;
use super::status::store_kind;
use super::upstreams::servers as upstream_servers;
use crate::config::{FINDINGS, ServerAddress, StoreKind, UpstreamSettings};
use crate::proxy::Proxy;
use crate::route::{Route, Target};
use crate::server::introspection::Snapshot;
use crate::store::StoreError;
use crate::store::memory::Evictions;
use crate::telemetry::metrics::text::{MetricType, MetricsText, TextFormat};
use crate::telemetry::metrics::{
    CODES, DECISION_BOUNDS, GRPC_STATUSES, LimitSum, LimitVerdict, METHODS, NO_ROUTE,
    REQUEST_BOUNDS, RETRIES, RouteSum, SOURCES, Sum, Unanswered, UpstreamSum,
};
use crate::telemetry::panics::panics;
use crate::upstream::{ServerReport, ServerStatus};

/// With more routes than this, those without requests are left out.
const MANY_ROUTES: usize = 500;
/// Codes that a route has from the start.
const LIKELY_CODES: [&str; 6] = ["200", "429", "500", "502", "503", "504"];
/// The same of gRPC: success, and how calls fail in a proxy and at a server.
const LIKELY_STATUSES: [&str; 8] = ["0", "2", "4", "8", "12", "13", "14", "none"];
/// Codes that an upstream has from the start.
const LIKELY_ANSWERS: [&str; 4] = ["200", "404", "500", "503"];

pub(super) fn write(state: &AdminState, snapshot: &Snapshot<'_>, format: TextFormat) -> String {
    let sum = Sum::new(snapshot.proxies().map(Proxy::meter));
    let mut text = MetricsText::new(format);
    requests(&mut text, snapshot, &sum);
    decisions(&mut text, snapshot, &sum);
    store(&mut text, snapshot, &sum);
    evictions(&mut text, snapshot);
    upstreams(&mut text, snapshot);
    servers(&mut text, snapshot);
    server(&mut text, snapshot);
    findings(&mut text, state, snapshot);
    process(&mut text, state);
    text.finish()
}

fn requests(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
    let routes: Vec<&Route> = snapshot.config.routes.iter().collect();
    let many = routes.len() > MANY_ROUTES;
    let none = RouteSum::default();
    let named: Vec<(&str, Vec<&str>)> = (routes.iter())
        .map(|route| (&*route.name, likely_methods(route)))
        .chain([(NO_ROUTE, vec!["GET"])])
        .collect();
    let help = "Requests that got an answer, by the route they belong to.";
    text.family(MetricType::Counter, "tidegate_http_requests", help);
    for (route, likely) in &named {
        let counted = sum.routes.get(*route).unwrap_or(&none);
        for (method, codes) in METHODS.iter().zip(&counted.methods) {
            let likely = !many && likely.contains(method);
            for (index, code) in CODES.iter().enumerate() {
                let count = codes.as_ref().map_or(0, |codes| codes[index]);
                if count > 0 || (likely && LIKELY_CODES.contains(code)) {
                    let labels = [("route", *route), ("method", method), ("code", code)];
                    text.sample(&labels, count);
                }
            }
        }
    }
    grpc_calls(text, snapshot, sum);
    let help = "Requests that got no answer of a route.";
    text.family(
        MetricType::Counter,
        "tidegate_http_requests_unanswered",
        help,
    );
    for (index, reason) in Unanswered::WORDS.iter().enumerate() {
        let meters = snapshot.proxies().map(Proxy::meter);
        let counts = meters.map(|meter| meter.all_unanswered()[index]);
        text.sample(&[("reason", reason)], counts.sum::<u64>());
    }
    let help = "From a request's head until its answer's, seconds.";
    text.family(
        MetricType::Histogram,
        "tidegate_http_request_duration_seconds",
        help,
    );
    for (route, _) in &named {
        let counted = sum.routes.get(*route).unwrap_or(&none);
        if !many || counted.requests() > 0 {
            text.durations(&[("route", *route)], &REQUEST_BOUNDS, &counted.duration);
        }
    }
}

/// Calls of gRPC. Nearly all of them have the HTTP status 200.
fn grpc_calls(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
    let many = snapshot.config.routes.iter().count() > MANY_ROUTES;
    let help = "Calls of gRPC that ended, by the status of gRPC.";
    text.family(MetricType::Counter, "tidegate_grpc_requests", help);
    let routes = snapshot.config.routes.iter();
    let named = routes.map(|route| (&*route.name, !many && takes_grpc(snapshot, route)));
    for (route, likely) in named.chain([(NO_ROUTE, false)]) {
        let counted = sum.routes.get(route).and_then(|sum| sum.grpc.as_deref());
        let calls = GrpcSeries {
            label: ("route", route),
            counted,
            likely,
        };
        calls.write(text);
    }
}

/// Whether calls of gRPC are likely on a route: it takes POST, and its servers speak HTTP/2.
fn takes_grpc(snapshot: &Snapshot<'_>, route: &Route) -> bool {
    let Target::Upstream(upstream) = route.target else {
        return false;
    };
    let upstream = snapshot.config.upstreams.get(upstream);
    likely_methods(route).contains(&"POST") && upstream.is_some_and(speaks_http2)
}

fn speaks_http2(upstream: &UpstreamSettings) -> bool {
    let mut servers = upstream.servers.iter();
    servers.any(|server| match server.address {
        ServerAddress::H2c(..) => true,
        ServerAddress::Https(..) => upstream.http2,
        ServerAddress::Http(..) | ServerAddress::Unix(_) => false,
    })
}

/// Calls of gRPC of one route or upstream.
struct GrpcSeries<'c> {
    label: (&'static str, &'c str),
    counted: Option<&'c [u64; GRPC_STATUSES.len()]>,
    /// Whether calls are likely although none was counted.
    likely: bool,
}

impl GrpcSeries<'_> {
    /// Writes all likely statuses if calls are likely or were counted, and every counted status.
    fn write(&self, text: &mut MetricsText) {
        let likely = self.likely || self.counted.is_some();
        for (index, status) in GRPC_STATUSES.iter().enumerate() {
            let count = self.counted.map_or(0, |counts| counts[index]);
            if count > 0 || (likely && LIKELY_STATUSES.contains(status)) {
                text.sample(&[self.label, ("grpc_status", status)], count);
            }
        }
    }
}

fn likely_methods(route: &Route) -> Vec<&str> {
    match route.methods.as_slice() {
        [] => vec!["GET", "POST"],
        methods => methods.iter().map(http::Method::as_str).collect(),
    }
}

fn decisions(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
    let none = LimitSum::default();
    let shared = snapshot.config.store.kind != StoreKind::Memory;
    let help = "What limits said of requests, and who decided.";
    text.family(MetricType::Counter, "tidegate_decisions", help);
    for limit in &snapshot.config.limits {
        let counts = sum.limits.get(&limit.name).unwrap_or(&none);
        limit_samples(text, &limit.name, counts, limit.shadow, shared);
        if !limit.candidate.is_empty() {
            let counts = sum.candidates.get(&limit.name).unwrap_or(&none);
            let name = format!("{}~candidate", limit.name);
            limit_samples(text, &name, counts, true, shared);
        }
    }
    let help = "How long decisions took, seconds; of those that need not wait, one in 64.";
    text.family(
        MetricType::Histogram,
        "tidegate_decision_duration_seconds",
        help,
    );
    text.durations(&[("source", "store")], &DECISION_BOUNDS, &sum.decisions[0]);
}

/// Writes every decision that a limit can make. A limit in shadow mode (`shadow`) does not deny.
/// With the embedded store (not `shared`) there is one source of decisions.
fn limit_samples(
    text: &mut MetricsText,
    limit: &str,
    counts: &LimitSum,
    shadow: bool,
    shared: bool,
) {
    for (verdict, by_source) in LimitVerdict::WORDS.iter().zip(counts) {
        for (index, (source, count)) in SOURCES.iter().zip(by_source).enumerate() {
            let likely = match *verdict {
                "allowed" => index == 0 || shared,
                "denied" => !shadow && (index == 0 || (shared && *source != "lease")),
                "shadow_denied" => shadow && index == 0,
                _ => *source == "local",
            };
            if likely || *count > 0 {
                let labels = [("limit", limit), ("decision", verdict), ("source", source)];
                text.sample(&labels, count);
            }
        }
    }
}

fn store(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
    let away = snapshot.counts.backing.away_since().is_some();
    let help = "Whether the store makes the decisions.";
    text.family(MetricType::Gauge, "tidegate_store_up", help);
    text.sample(&[("store", store_kind(snapshot))], u8::from(!away));
    let help = "Whether decisions are made without the store, as on_error says.";
    text.gauge("tidegate_degraded", help, u8::from(away));
    let help = "Decisions that the store was asked for and did not make.";
    text.family(MetricType::Counter, "tidegate_store_errors", help);
    let shared = snapshot.config.store.kind != StoreKind::Memory;
    let likely = StoreError::LIKELY.iter().filter(|_| shared);
    for kind in likely.clone() {
        let count = sum.store_errors.get(kind).copied().unwrap_or(0);
        text.sample(&[("kind", kind)], count);
    }
    let mut others = sum.store_errors.clone();
    others.retain(|kind, _| !likely.clone().any(|likely| likely == kind));
    for (kind, count) in others {
        text.sample(&[("kind", kind)], count);
    }
}

/// Counts that the embedded store forgot because it was full.
fn evictions(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let lost = snapshot.counts.in_process().evictions();
    let mut family = |name: &'static str, help: &'static str, count: fn(&Evictions) -> u64| {
        text.family(MetricType::Counter, name, help);
        for limit in &snapshot.config.limits {
            let lost = lost.iter().find(|lost| lost.limit == limit.name);
            text.sample(&[("limit", &limit.name)], lost.map_or(0, count));
        }
    };
    let help = "Keys that the embedded store forgot before they had expired, since it was full.";
    family("tidegate_memory_evicted_keys", help, |lost| lost.keys);
    let help = "Those of them that were at their limit.";
    family("tidegate_memory_forgiven_keys", help, |lost| lost.at_limit);
    let help = "Units that counted in the forgotten keys.";
    family("tidegate_memory_forgiven_units", help, |lost| lost.units);
}

fn upstreams(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let upstreams = &snapshot.config.upstreams;
    let sum = |index: usize| {
        let mut sum = UpstreamSum::default();
        snapshot
            .proxies()
            .for_each(|proxy| proxy.upstreams().add_to(index, &mut sum));
        sum
    };
    let sums: Vec<UpstreamSum> = (0..upstreams.len()).map(sum).collect();
    let named = || upstreams.iter().map(|one| &*one.name).zip(&sums);
    let help = "Attempts at an upstream by their answer's code; none is an attempt without one.";
    text.family(MetricType::Counter, "tidegate_upstream_requests", help);
    for (upstream, sum) in named() {
        for (code, count) in CODES.iter().zip(sum.codes) {
            if count > 0 || LIKELY_ANSWERS.contains(code) {
                text.sample(&[("upstream", upstream), ("code", code)], count);
            }
        }
        text.sample(&[("upstream", upstream), ("code", "none")], sum.failures);
    }
    let help = "Answers to calls of gRPC, by the status of gRPC.";
    text.family(MetricType::Counter, "tidegate_upstream_grpc_requests", help);
    for (settings, sum) in upstreams.iter().zip(&sums) {
        let calls = GrpcSeries {
            label: ("upstream", &settings.name),
            counted: sum.grpc.as_deref(),
            likely: speaks_http2(settings),
        };
        calls.write(text);
    }
    let help = "Further attempts, by what was wrong with the one before.";
    text.family(MetricType::Counter, "tidegate_upstream_retries", help);
    for (upstream, sum) in named() {
        for (reason, count) in RETRIES.iter().zip(sum.retries) {
            text.sample(&[("upstream", upstream), ("reason", reason)], count);
        }
    }
}

/// The metrics of each server: type, name, help and value.
type ServerMetric = (
    MetricType,
    &'static str,
    &'static str,
    fn(&ServerReport) -> u64,
);

const SERVER_METRICS: [ServerMetric; 4] = [
    (
        MetricType::Gauge,
        "tidegate_upstream_server_up",
        "Whether requests are sent to the server and the last ones did not all fail.",
        |server| u64::from(matches!(server.state, ServerStatus::Up)),
    ),
    (
        MetricType::Counter,
        "tidegate_upstream_server_requests",
        "Attempts at the server.",
        |server| server.requests,
    ),
    (
        MetricType::Counter,
        "tidegate_upstream_server_failures",
        "Attempts without a usable answer, or with one that says that the server failed.",
        |server| server.failures,
    ),
    (
        MetricType::Counter,
        "tidegate_upstream_truncated",
        "Answers of the server that ended before their end.",
        |server| server.truncated,
    ),
];

fn servers(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let upstreams = snapshot.config.upstreams.iter().enumerate();
    let upstreams: Vec<(&str, Vec<ServerReport>)> = upstreams
        .map(|(index, one)| (&*one.name, upstream_servers(snapshot, index)))
        .collect();
    for (kind, name, help, value) in SERVER_METRICS {
        text.family(kind, name, help);
        for (upstream, servers) in &upstreams {
            for server in servers {
                let labels = [("upstream", *upstream), ("server", &*server.server)];
                text.sample(&labels, value(server));
            }
        }
    }
    let help = "Connections to an upstream; active ones have a request, of HTTP/2 each request.";
    text.family(MetricType::Gauge, "tidegate_upstream_connections", help);
    for (upstream, servers) in &upstreams {
        let idle: u64 = servers.iter().map(|server| server.idle).sum();
        let active: u64 = servers.iter().map(|server| server.in_flight).sum();
        text.sample(&[("upstream", upstream), ("state", "active")], active);
        text.sample(&[("upstream", upstream), ("state", "idle")], idle);
    }
}

/// Connections, logs, traces, the configuration and the build.
fn server(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let help = "Connections of clients that are open.";
    text.gauge("tidegate_connections", help, snapshot.connections);
    let help = "Panics, each of them a bug of this program, whatever part it ended.";
    text.counter("tidegate_panics", help, panics());
    let help = "Lines that a log could not take in time.";
    text.family(MetricType::Counter, "tidegate_log_dropped", help);
    text.sample(&[("log", "access")], snapshot.access.dropped());
    if let Some(dropped) = snapshot.counts.log_dropped() {
        text.sample(&[("log", "decisions")], dropped);
    }
    let help = "Spans of recorded traces, by what became of them.";
    text.family(MetricType::Counter, "tidegate_spans", help);
    let spans = snapshot.exports.span_counts();
    text.sample(&[("outcome", "exported")], spans.exported);
    text.sample(&[("outcome", "dropped")], spans.dropped);
    text.sample(&[("outcome", "failed")], spans.failed);
    text.sample(&[("outcome", "refused")], spans.refused);
    let failed = snapshot.reload.is_some_and(|last| last.outcome.is_err());
    let name = "tidegate_config_last_reload_successful";
    let help = "Whether the configuration that was read last is the one that is served by.";
    text.gauge(name, help, u8::from(!failed));
    let name = "tidegate_config_last_reload_success_timestamp_seconds";
    let help = "When the configuration was last replaced, seconds since the Unix epoch.";
    text.gauge(name, help, seconds(snapshot.loaded_us));
    if let Some(known) = &snapshot.config.api_key.known {
        let help = "API keys that the files of the configuration name.";
        text.gauge("tidegate_known_keys", help, known.len());
    }
    let workers = snapshot.config.server.workers;
    text.gauge("tidegate_workers", "Threads that serve clients.", workers);
    text.family(MetricType::Info, "tidegate_build", "What this program is.");
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("target", &*target)];
    text.sample(&labels, 1);
}

fn findings(text: &mut MetricsText, state: &AdminState, snapshot: &Snapshot<'_>) {
    let help = "What is probably wrong though nothing fails, as /api/v1/status says it.";
    text.family(MetricType::Gauge, "tidegate_findings", help);
    let findings = state.findings();
    for id in FINDINGS {
        let holds = findings.holds(id, &snapshot.config.log.silence);
        text.sample(&[("id", id)], u8::from(holds));
    }
}

fn process(text: &mut MetricsText, state: &AdminState) {
    let usage = ProcessUsage::read();
    let help = "Time of all threads on a core, seconds.";
    text.counter("process_cpu_seconds", help, usage.cpu_seconds);
    let name = "process_resident_memory_bytes";
    text.gauge(name, "Memory in use.", usage.resident_bytes);
    let name = "process_virtual_memory_bytes";
    text.gauge(name, "Memory that is mapped.", usage.virtual_bytes);
    text.gauge(
        "process_open_fds",
        "Open file descriptors.",
        usage.open_files,
    );
    text.gauge("process_max_fds", "How many there may be.", usage.max_files);
    text.gauge("process_threads", "Threads.", usage.threads);
    let help = "When the process was started, seconds since the Unix epoch.";
    let started = seconds(state.server.introspection.started_us);
    text.gauge("process_start_time_seconds", help, started);
}

/// The usage that the kernel reports of this process. A value is 0 if it cannot be read.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessUsage {
    /// Seconds of all threads on a core.
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_files: u64,
    max_files: u64,
    threads: u64,
}

impl ProcessUsage {
    fn read() -> ProcessUsage {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let page = rustix::param::page_size() as u64;
        let mut pages = pages
            .split(' ')
            .map(|word| word.parse::<u64>().unwrap_or(0) * page);
        // The name of the program, in brackets, may contain spaces and brackets itself.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<u64> = (fields.split_whitespace())
            .map(|word| word.parse().unwrap_or(0))
            .collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        ProcessUsage {
            cpu_seconds: (field(14) + field(15)) as f64 / ticks,
            virtual_bytes: pages.next().unwrap_or(0),
            resident_bytes: pages.next().unwrap_or(0),
            // One of them is the directory that was read.
            open_files: (files as u64).saturating_sub(1),
            max_files: limit.current.unwrap_or(u64::MAX),
            threads: field(20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_this_process_is_read() {
        let process = ProcessUsage::read();
        assert!(process.resident_bytes > 1 << 20);
        assert!(process.virtual_bytes >= process.resident_bytes);
        assert!(process.open_files >= 3 && process.threads >= 1);
        assert!(process.max_files >= process.open_files);
        assert!((0.0..1e6).contains(&process.cpu_seconds));
    }
}
