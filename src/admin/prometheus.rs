//! `/metrics`: everything that is counted, as Prometheus reads it.
//!
//! Every series is there from the start, at 0: for each route its likely codes under the methods
//! that it names (`GET` and `POST` where it takes all), for each limit all that it can say, for
//! each upstream its likely codes. What is less likely begins with its first request, as does every
//! series of a route where there are more than [`MANY_ROUTES`].

use crate::config::{ServerAddress, StoreKind, UpstreamSettings};
use crate::route::{Route, Target};
use crate::server::introspection::Snapshot;
use crate::store::StoreError;
use crate::store::memory::Evictions;
use crate::telemetry::metrics::text::{Form, Kind, Text};
use crate::telemetry::metrics::{
    CODES, DECISION_BOUNDS, GRPC_STATUSES, LimitSum, METHODS, NO_ROUTE, REQUEST_BOUNDS, RETRIES,
    RouteSum, SOURCES, Sum, Unanswered, UpstreamSum, Verdict,
};
use crate::telemetry::panics::panics;
use crate::upstream::{ServerReport, ServerStatus};

use super::process::process;
use super::status::store_kind;
use super::time::seconds;
use super::{AdminState, upstreams};

/// A number of a server.
type Value = fn(&ServerReport) -> u64;

/// Routes beyond which those without requests are left out.
const MANY_ROUTES: usize = 500;
/// Codes that a route has from the start.
const LIKELY_CODES: [&str; 6] = ["200", "429", "500", "502", "503", "504"];
/// The same of gRPC: success, and how calls fail in a proxy and at a server.
const LIKELY_STATUSES: [&str; 8] = ["0", "2", "4", "8", "12", "13", "14", "none"];
/// The same for an upstream.
const LIKELY_ANSWERS: [&str; 4] = ["200", "404", "500", "503"];

/// The whole text.
pub(super) fn write(state: &AdminState, snapshot: &Snapshot<'_>, form: Form) -> String {
    let mut sum = Sum::default();
    snapshot
        .proxies()
        .for_each(|proxy| proxy.meter().add_to(&mut sum));
    let mut text = Text::new(form);
    requests(&mut text, snapshot, &sum);
    decisions(&mut text, snapshot, &sum);
    store(&mut text, snapshot, &sum);
    evictions(&mut text, snapshot);
    of_upstreams(&mut text, snapshot);
    house(&mut text, snapshot);
    findings(&mut text, state, snapshot);
    of_process(&mut text, state);
    text.finish()
}

fn requests(text: &mut Text, snapshot: &Snapshot<'_>, sum: &Sum) {
    let routes: Vec<&Route> = snapshot.config.routes.iter().collect();
    let many = routes.len() > MANY_ROUTES;
    let none = RouteSum::default();
    let named: Vec<(&str, Vec<&str>)> = (routes.iter())
        .map(|route| (&*route.name, likely_methods(route)))
        .chain([(NO_ROUTE, vec!["GET"])])
        .collect();
    let help = "Requests that got an answer, by the route they belong to.";
    text.family(Kind::Counter, "tidegate_http_requests", help);
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
    text.family(Kind::Counter, "tidegate_http_requests_unanswered", help);
    let mut unanswered = [0; Unanswered::WORDS.len()];
    for counted in snapshot
        .proxies()
        .map(|proxy| proxy.meter().all_unanswered())
    {
        unanswered = std::array::from_fn(|why| unanswered[why] + counted[why]);
    }
    for (why, count) in Unanswered::WORDS.iter().zip(unanswered) {
        text.sample(&[("reason", why)], count);
    }
    let help = "From a request's head until its answer's, seconds.";
    text.family(
        Kind::Histogram,
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

/// Calls of gRPC. HTTP says 200 of nearly all.
fn grpc_calls(text: &mut Text, snapshot: &Snapshot<'_>, sum: &Sum) {
    let many = snapshot.config.routes.iter().count() > MANY_ROUTES;
    let help = "Calls of gRPC that ended, by the status of gRPC.";
    text.family(Kind::Counter, "tidegate_grpc_requests", help);
    let routes = snapshot.config.routes.iter();
    let named = routes.map(|route| (&*route.name, !many && takes_grpc(snapshot, route)));
    for (route, likely) in named.chain([(NO_ROUTE, false)]) {
        let counted = sum.routes.get(route).and_then(|sum| sum.grpc.as_deref());
        let calls = Calls {
            label: ("route", route),
            counted,
            likely,
        };
        calls.write(text);
    }
}

/// Whether calls of gRPC are likely on a route: it takes their method, and its servers their
/// protocol.
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
struct Calls<'c> {
    label: (&'static str, &'c str),
    counted: Option<&'c [u64; GRPC_STATUSES.len()]>,
    /// Whether there may be some although none was counted.
    likely: bool,
}

impl Calls<'_> {
    /// One series for each likely status, and for each that was seen. Where any was seen, all
    /// likely ones are there.
    fn write(&self, text: &mut Text) {
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

fn decisions(text: &mut Text, snapshot: &Snapshot<'_>, sum: &Sum) {
    let none = LimitSum::default();
    let shared = snapshot.config.store.kind != StoreKind::Memory;
    let help = "What limits said of requests, and who decided.";
    text.family(Kind::Counter, "tidegate_decisions", help);
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
    text.family(Kind::Histogram, "tidegate_decision_duration_seconds", help);
    text.durations(&[("source", "store")], &DECISION_BOUNDS, &sum.decisions[0]);
}

/// All that a limit can say from the start: one on trial does not deny, and where the counts are in
/// this process nobody else decides.
fn limit_samples(text: &mut Text, limit: &str, counts: &LimitSum, on_trial: bool, shared: bool) {
    for (verdict, by_source) in Verdict::WORDS.iter().zip(counts) {
        for (index, (source, count)) in SOURCES.iter().zip(by_source).enumerate() {
            let likely = match *verdict {
                "allowed" => index == 0 || shared,
                "denied" => !on_trial && (index == 0 || (shared && *source != "lease")),
                "shadow_denied" => on_trial && index == 0,
                _ => *source == "local",
            };
            if likely || *count > 0 {
                let labels = [("limit", limit), ("decision", verdict), ("source", source)];
                text.sample(&labels, count);
            }
        }
    }
}

fn store(text: &mut Text, snapshot: &Snapshot<'_>, sum: &Sum) {
    let away = snapshot.counts.backing().away_since().is_some();
    let help = "Whether the store makes the decisions.";
    text.family(Kind::Gauge, "tidegate_store_up", help);
    text.sample(&[("store", store_kind(snapshot))], u8::from(!away));
    let help = "Whether decisions are made without the store, as on_error says.";
    text.family(Kind::Gauge, "tidegate_degraded", help);
    text.sample(&[], u8::from(away));
    let help = "Decisions that the store was asked for and did not make.";
    text.family(Kind::Counter, "tidegate_store_errors", help);
    let shared = snapshot.config.store.kind != StoreKind::Memory;
    let likely = StoreError::LIKELY.iter().filter(|_| shared);
    for kind in likely.clone() {
        let count = sum.store_errors.get(kind).copied().unwrap_or(0);
        text.sample(&[("kind", kind)], count);
    }
    for (kind, count) in &sum.store_errors {
        if !likely.clone().any(|likely| likely == kind) {
            text.sample(&[("kind", kind)], count);
        }
    }
}

/// What counts in this process has lost because there was no room.
fn evictions(text: &mut Text, snapshot: &Snapshot<'_>) {
    let lost = snapshot.counts.in_process().evictions();
    let mut family = |name: &'static str, help: &'static str, count: fn(&Evictions) -> u64| {
        text.family(Kind::Counter, name, help);
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

fn of_upstreams(text: &mut Text, snapshot: &Snapshot<'_>) {
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
    text.family(Kind::Counter, "tidegate_upstream_requests", help);
    for (upstream, sum) in named() {
        for (code, count) in CODES.iter().zip(sum.codes) {
            if count > 0 || LIKELY_ANSWERS.contains(code) {
                text.sample(&[("upstream", upstream), ("code", code)], count);
            }
        }
        text.sample(&[("upstream", upstream), ("code", "none")], sum.failures);
    }
    let help = "Answers to calls of gRPC, by the status of gRPC.";
    text.family(Kind::Counter, "tidegate_upstream_grpc_requests", help);
    for (index, (upstream, sum)) in named().enumerate() {
        let calls = Calls {
            label: ("upstream", upstream),
            counted: sum.grpc.as_deref(),
            likely: speaks_http2(&upstreams[index]),
        };
        calls.write(text);
    }
    let help = "Further attempts, by what was wrong with the one before.";
    text.family(Kind::Counter, "tidegate_upstream_retries", help);
    for (upstream, sum) in named() {
        for (reason, count) in RETRIES.iter().zip(sum.retries) {
            text.sample(&[("upstream", upstream), ("reason", reason)], count);
        }
    }
    let servers: Vec<_> = (0..upstreams.len())
        .map(|index| upstreams::servers(snapshot, index))
        .collect();
    let named = || upstreams.iter().map(|one| &*one.name).zip(&servers);
    of_servers(text, || {
        named().map(|(name, servers)| (name, servers.as_slice()))
    });
    let help = "Answers of the server that ended before their end.";
    text.family(Kind::Counter, "tidegate_upstream_truncated", help);
    for (upstream, servers) in named() {
        for server in servers {
            let labels = [("upstream", upstream), ("server", server.server.as_str())];
            text.sample(&labels, server.truncated);
        }
    }
    let help = "Connections to an upstream; active ones have a request, of HTTP/2 each request.";
    text.family(Kind::Gauge, "tidegate_upstream_connections", help);
    for (upstream, servers) in named() {
        let idle: u64 = servers.iter().map(|server| server.idle).sum();
        let active: u64 = servers.iter().map(|server| server.in_flight).sum();
        text.sample(&[("upstream", upstream), ("state", "active")], active);
        text.sample(&[("upstream", upstream), ("state", "idle")], idle);
    }
}

/// What each server did. `named` gives the servers of each upstream.
fn of_servers<'s, I>(text: &mut Text, named: impl Fn() -> I)
where
    I: Iterator<Item = (&'s str, &'s [ServerReport])>,
{
    let mut family = |kind: Kind, name: &'static str, help: &str, value: Value| {
        text.family(kind, name, help);
        for (upstream, servers) in named() {
            for server in servers {
                let labels = [("upstream", upstream), ("server", server.server.as_str())];
                text.sample(&labels, value(server));
            }
        }
    };
    let name = "tidegate_upstream_server_up";
    let help = "Whether requests are sent to the server and the last ones did not all fail.";
    let is_up = |server: &ServerReport| u64::from(server.state == ServerStatus::Up);
    family(Kind::Gauge, name, help, is_up);
    let name = "tidegate_upstream_server_requests";
    family(Kind::Counter, name, "Attempts at the server.", |server| {
        server.requests
    });
    let name = "tidegate_upstream_server_failures";
    let help = "Attempts without a usable answer, or with one that says that the server failed.";
    family(Kind::Counter, name, help, |server| server.failures);
}

fn house(text: &mut Text, snapshot: &Snapshot<'_>) {
    let help = "Connections of clients that are open.";
    text.family(Kind::Gauge, "tidegate_connections", help);
    text.sample(&[], snapshot.connections);
    let help = "Panics, each of them a bug of this program, whatever part it ended.";
    text.family(Kind::Counter, "tidegate_panics", help);
    text.sample(&[], panics());
    let help = "Lines that a log could not take in time.";
    text.family(Kind::Counter, "tidegate_log_dropped", help);
    text.sample(&[("log", "access")], snapshot.access.dropped());
    if let Some(dropped) = snapshot.counts.log_dropped() {
        text.sample(&[("log", "decisions")], dropped);
    }
    let help = "Spans of recorded traces, by what became of them.";
    text.family(Kind::Counter, "tidegate_spans", help);
    let fates = snapshot.exports.fates();
    for (outcome, count) in [
        ("exported", fates.exported),
        ("dropped", fates.dropped),
        ("failed", fates.failed),
        ("refused", fates.refused),
    ] {
        text.sample(&[("outcome", outcome)], count);
    }
    let failed = snapshot.reload.is_some_and(|last| last.outcome.is_err());
    let help = "Whether the configuration that was read last is the one that is served by.";
    text.family(Kind::Gauge, "tidegate_config_last_reload_successful", help);
    text.sample(&[], u8::from(!failed));
    let help = "When the configuration was last replaced, seconds since the Unix epoch.";
    text.family(
        Kind::Gauge,
        "tidegate_config_last_reload_success_timestamp_seconds",
        help,
    );
    text.sample(&[], seconds(snapshot.loaded_us));
    if let Some(known) = &snapshot.config.api_key.known {
        let help = "API keys that the files of the configuration name.";
        text.family(Kind::Gauge, "tidegate_known_keys", help);
        text.sample(&[], known.len());
    }
    text.family(
        Kind::Gauge,
        "tidegate_workers",
        "Threads that serve clients.",
    );
    text.sample(&[], snapshot.config.server.workers);
    text.family(Kind::Info, "tidegate_build", "What this program is.");
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("target", &*target)];
    text.sample(&labels, 1);
}

fn findings(text: &mut Text, state: &AdminState, snapshot: &Snapshot<'_>) {
    let help = "What is probably wrong though nothing fails, as /api/v1/status says it.";
    text.family(Kind::Gauge, "tidegate_findings", help);
    for (id, holds) in state.findings().all(&snapshot.config.log.silence) {
        text.sample(&[("id", id)], u8::from(holds));
    }
}

fn of_process(text: &mut Text, state: &AdminState) {
    let process = process();
    let help = "Time of all threads on a core, seconds.";
    text.family(Kind::Counter, "process_cpu_seconds", help);
    text.sample(&[], process.cpu_seconds);
    text.family(
        Kind::Gauge,
        "process_resident_memory_bytes",
        "Memory in use.",
    );
    text.sample(&[], process.resident_bytes);
    text.family(
        Kind::Gauge,
        "process_virtual_memory_bytes",
        "Memory that is mapped.",
    );
    text.sample(&[], process.virtual_bytes);
    text.family(Kind::Gauge, "process_open_fds", "Open file descriptors.");
    text.sample(&[], process.open_files);
    text.family(Kind::Gauge, "process_max_fds", "How many there may be.");
    text.sample(&[], process.most_files);
    text.family(Kind::Gauge, "process_threads", "Threads.");
    text.sample(&[], process.threads);
    let help = "When the process was started, seconds since the Unix epoch.";
    text.family(Kind::Gauge, "process_start_time_seconds", help);
    text.sample(&[], seconds(state.server.introspection.started_us()));
}
