//! `/metrics`: all counters, in the format of Prometheus.
//!
//! Likely series are there from the start, at 0. A route has its likely codes under its methods, or
//! `GET` and `POST`. A limit has every possible decision, an upstream its likely codes. The other
//! series begin with their first request. So do all series of routes beyond [`MANY_ROUTES`] routes.

mod process;

mod optional;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use super::response::seconds;
use super::state::AdminState;
use super::status::{servers as upstream_servers, store_kind};
use crate::config::{FINDINGS, ServerAddress, StoreKind, UpstreamSettings};
use crate::diagnostics;
use crate::limit::Limit;
use crate::proxy::Proxy;
use crate::route::{Route, Target};
use crate::server::introspection::Snapshot;
use crate::store::StoreError;
use crate::store::memory::Evictions;
use crate::telemetry::metrics::cells::{Durations, UsageSum};
use crate::telemetry::metrics::decide::DecideSum;
use crate::telemetry::metrics::text::{MetricType, MetricsText, TextFormat};
use crate::telemetry::metrics::usage::{RATIO_BOUNDS, TOKEN_CLASSES, UsageOutcome};
use crate::telemetry::metrics::{
    CODES, DECISION_BOUNDS, DecideCode, Door, GRPC_STATUSES, LimitSum, LimitVerdict, METHODS,
    NO_ROUTE, REQUEST_BOUNDS, RETRIES, RouteSum, SOURCES, Sum, Unanswered, UpstreamSum,
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

type CountOf<T> = fn(&T) -> u64;

/// Every family: its type, its name and its help.
const FAMILIES: &str = include_str!("prometheus/families.txt");

pub(super) fn write(state: &AdminState, snapshot: &Snapshot<'_>, format: TextFormat) -> String {
    let sum = Sum::new(snapshot.proxies().map(Proxy::meter));
    let mut text = MetricsText::new(format);
    requests(&mut text, snapshot, &sum);
    decisions(&mut text, snapshot, &sum);
    store(&mut text, snapshot, &sum);
    optional::write_ledger(&mut text, snapshot);
    upstreams(&mut text, snapshot);
    servers(&mut text, snapshot);
    server(&mut text, state, snapshot);
    process::write(&mut text, state.server.introspection.started_us);
    text.finish()
}

fn family(text: &mut MetricsText, name: &'static str) {
    let mut rows = FAMILIES.lines().map(|row| row.splitn(3, ' '));
    let row = rows.find(|row| row.clone().nth(1) == Some(name));
    let mut words = row.into_iter().flatten();
    let kind = match words.next() {
        Some("counter") => MetricType::Counter,
        Some("histogram") => MetricType::Histogram,
        Some("info") => MetricType::Info,
        _ => MetricType::Gauge,
    };
    text.family(kind, name, words.nth(1).unwrap_or_default());
}

fn single(text: &mut MetricsText, name: &'static str, value: impl Display) {
    family(text, name);
    text.sample(&[], value);
}

fn labelled<'l, V: Display>(
    text: &mut MetricsText,
    name: &'static str,
    label: &'static str,
    samples: impl IntoIterator<Item = (&'l str, V)>,
) {
    family(text, name);
    for (value, sample) in samples {
        text.sample(&[(label, value)], sample);
    }
}

fn requests(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
    let unrouted = snapshot.config.unrouted.as_deref();
    let routes: Vec<&Route> = snapshot.config.routes.iter().chain(unrouted).collect();
    let many = routes.len() > MANY_ROUTES;
    let none = RouteSum::default();
    let named: Vec<(&str, Vec<&str>)> = (routes.iter())
        .map(|route| (&*route.name, likely_methods(route)))
        .chain([(NO_ROUTE, vec!["GET"])])
        .collect();
    family(text, "tidegate_http_requests");
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
    // Nearly all calls of gRPC have the HTTP status 200.
    family(text, "tidegate_grpc_requests");
    let likely = routes
        .iter()
        .map(|route| !many && takes_grpc(snapshot, route));
    for ((route, _), likely) in named.iter().zip(likely.chain([false])) {
        let counted = sum.routes.get(*route).and_then(|sum| sum.grpc.as_deref());
        grpc_samples(text, "route", route, counted, likely);
    }
    usage(text, snapshot, sum);
    let unanswered = Unanswered::WORDS.iter().enumerate().map(|(index, reason)| {
        let meters = snapshot.proxies().map(Proxy::meter);
        let counts = meters.map(|meter| meter.all_unanswered()[index]);
        (*reason, counts.sum::<u64>())
    });
    labelled(
        text,
        "tidegate_http_requests_unanswered",
        "reason",
        unanswered,
    );
    if snapshot.config.decide.is_some() {
        questions(text, snapshot);
    }
    family(text, "tidegate_http_request_duration_seconds");
    for (route, _) in &named {
        let counted = sum.routes.get(*route).unwrap_or(&none);
        if !many || counted.requests() > 0 {
            text.durations(&[("route", *route)], &REQUEST_BOUNDS, &counted.duration);
        }
    }
}

/// The tokens of routes with `usage`.
fn usage(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
    let routes = snapshot.config.routes.iter();
    let routes = routes.filter(|route| route.usage.is_some());
    let none = UsageSum::default();
    let counted: Vec<(&str, &UsageSum)> = routes
        .map(|route| {
            let counted = sum.routes.get(&*route.name);
            let counted = counted.and_then(|sum| sum.usage.as_deref());
            (&*route.name, counted.unwrap_or(&none))
        })
        .collect();
    family(text, "tidegate_usage_tokens");
    for (route, sum) in &counted {
        for (class, count) in TOKEN_CLASSES.iter().zip(sum.tokens) {
            text.sample(&[("route", *route), ("class", *class)], count);
        }
    }
    family(text, "tidegate_usage_settlements");
    for (route, sum) in &counted {
        for (outcome, count) in UsageOutcome::WORDS.iter().zip(sum.outcomes) {
            text.sample(&[("route", *route), ("outcome", *outcome)], count);
        }
    }
    let reserves = |limit: &&Arc<Limit>| {
        let mut routes = snapshot.config.routes.iter();
        let is_of = |route: &Route| route.limits.iter().any(|one| one.name == limit.name);
        limit.counts_usage() && routes.any(|route| route.usage.is_some() && is_of(route))
    };
    let limits = snapshot.config.limits.iter().filter(reserves);
    let reserved = limits.map(|limit| {
        let units = sum.reserved.get(&limit.name).copied();
        (&*limit.name, units.unwrap_or(0))
    });
    labelled(text, "tidegate_usage_reserved_units", "limit", reserved);
    family(text, "tidegate_usage_estimate_ratio");
    for (route, sum) in &counted {
        text.durations(&[("route", *route)], &RATIO_BOUNDS, &sum.ratios);
    }
}

/// The questions of other proxies, by door and answer.
fn questions(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let mut sum = DecideSum::default();
    let meters = snapshot.proxies().map(Proxy::meter);
    meters.for_each(|meter| meter.decide().add_to(&mut sum));
    family(text, "tidegate_decide_requests");
    for (door, counts) in Door::WORDS.iter().zip(&sum.questions) {
        for (code, count) in DecideCode::WORDS.iter().zip(counts) {
            text.sample(&[("door", *door), ("code", *code)], *count);
        }
    }
    family(text, "tidegate_decide_duration_seconds");
    let asked = |of: &(&&str, &Durations)| of.1.classes.iter().any(|count| *count > 0);
    for (door, durations) in Door::WORDS.iter().zip(&sum.durations).filter(asked) {
        text.durations(&[("door", *door)], &DECISION_BOUNDS, durations);
    }
    family(text, "tidegate_decide_unmatched");
    for (domain, count) in &sum.unmatched {
        text.sample(&[("domain", domain)], *count);
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

/// Calls of gRPC of one route or upstream. Writes all likely statuses if calls are `likely` or were
/// counted, and every counted status.
fn grpc_samples(
    text: &mut MetricsText,
    label: &'static str,
    of: &str,
    counted: Option<&[u64; GRPC_STATUSES.len()]>,
    likely: bool,
) {
    for (index, status) in GRPC_STATUSES.iter().enumerate() {
        let count = counted.map_or(0, |counts| counts[index]);
        let is_likely = (likely || counted.is_some()) && LIKELY_STATUSES.contains(status);
        if count > 0 || is_likely {
            text.sample(&[(label, of), ("grpc_status", status)], count);
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
    family(text, "tidegate_decisions");
    for limit in &snapshot.config.limits {
        let counts = sum.limits.get(&limit.name).unwrap_or(&none);
        limit_samples(text, &limit.name, counts, limit.shadow, shared);
        if !limit.candidate.is_empty() {
            let counts = sum.candidates.get(&limit.name).unwrap_or(&none);
            let name = format!("{}~candidate", limit.name);
            limit_samples(text, &name, counts, true, shared);
        }
    }
    let begun = snapshot.counts.backing.bans_begun();
    let limits = snapshot.config.limits.iter();
    let banning = limits.filter(|limit| limit.ban.is_some());
    let bans = banning.map(|limit| {
        let count = begun.get(&limit.name).copied();
        (&*limit.name, count.unwrap_or(0))
    });
    labelled(text, "tidegate_bans", "limit", bans);
    let banned = snapshot.counts.backing.count_banned();
    single(text, "tidegate_banned", banned);
    family(text, "tidegate_decision_duration_seconds");
    text.durations(&[("source", "store")], &DECISION_BOUNDS, &sum.decisions[0]);
    optional::write_held(text, snapshot, sum);
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
                _ => index == 0,
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
    let up = [(store_kind(snapshot), u8::from(!away))];
    labelled(text, "tidegate_store_up", "store", up);
    single(text, "tidegate_degraded", u8::from(away));
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    if snapshot.config.store.kind != StoreKind::Memory {
        errors.extend(StoreError::LIKELY.iter().map(|kind| (*kind, 0)));
    }
    errors.extend(&sum.store_errors);
    labelled(text, "tidegate_store_errors", "kind", errors);
    // Counts that the embedded store forgot because it was full.
    let lost = snapshot.counts.in_process().evictions();
    let counts: [(&str, CountOf<Evictions>); 3] = [
        ("tidegate_memory_evicted_keys", |lost| lost.keys),
        ("tidegate_memory_forgiven_keys", |lost| lost.at_limit),
        ("tidegate_memory_forgiven_units", |lost| lost.units),
    ];
    for (name, count) in counts {
        let limits = snapshot.config.limits.iter().map(|limit| {
            let lost = lost.iter().find(|lost| lost.limit == limit.name);
            (&*limit.name, lost.map_or(0, count))
        });
        labelled(text, name, "limit", limits);
    }
}

fn upstreams(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let upstreams = snapshot.config.upstreams.iter().enumerate();
    let sums: Vec<(&UpstreamSettings, UpstreamSum)> = upstreams
        .map(|(index, settings)| {
            let mut sum = UpstreamSum::default();
            for proxy in snapshot.proxies() {
                proxy.upstreams().add_to(index, &mut sum);
            }
            (settings, sum)
        })
        .collect();
    let named = || sums.iter().map(|(settings, sum)| (&*settings.name, sum));
    family(text, "tidegate_upstream_requests");
    for (upstream, sum) in named() {
        for (code, count) in CODES.iter().zip(sum.codes) {
            if count > 0 || LIKELY_ANSWERS.contains(code) {
                text.sample(&[("upstream", upstream), ("code", code)], count);
            }
        }
        text.sample(&[("upstream", upstream), ("code", "none")], sum.failures);
    }
    family(text, "tidegate_upstream_grpc_requests");
    for (settings, sum) in &sums {
        let (counted, likely) = (sum.grpc.as_deref(), speaks_http2(settings));
        grpc_samples(text, "upstream", &settings.name, counted, likely);
    }
    family(text, "tidegate_upstream_retries");
    for (upstream, sum) in named() {
        for (reason, count) in RETRIES.iter().zip(sum.retries) {
            text.sample(&[("upstream", upstream), ("reason", reason)], count);
        }
    }
}

fn servers(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let upstreams = snapshot.config.upstreams.iter().enumerate();
    let upstreams: Vec<(&str, Vec<ServerReport>)> = upstreams
        .map(|(index, one)| (&*one.name, upstream_servers(snapshot, index)))
        .collect();
    let metrics: [(&str, CountOf<ServerReport>); 4] = [
        ("tidegate_upstream_server_up", |server| {
            u64::from(matches!(server.state, ServerStatus::Up))
        }),
        ("tidegate_upstream_server_requests", |server| {
            server.requests
        }),
        ("tidegate_upstream_server_failures", |server| {
            server.failures
        }),
        ("tidegate_upstream_truncated", |server| server.truncated),
    ];
    for (name, value) in metrics {
        family(text, name);
        for (upstream, servers) in &upstreams {
            for server in servers {
                let labels = [("upstream", *upstream), ("server", &*server.server)];
                text.sample(&labels, value(server));
            }
        }
    }
    family(text, "tidegate_upstream_connections");
    for (upstream, servers) in &upstreams {
        let idle: u64 = servers.iter().map(|server| server.idle).sum();
        let active: u64 = servers.iter().map(|server| server.in_flight).sum();
        text.sample(&[("upstream", upstream), ("state", "active")], active);
        text.sample(&[("upstream", upstream), ("state", "idle")], idle);
    }
}

/// Connections, logs, traces, the configuration, the build and findings.
fn server(text: &mut MetricsText, state: &AdminState, snapshot: &Snapshot<'_>) {
    single(text, "tidegate_connections", snapshot.connections);
    single(text, "tidegate_panics", panics());
    let always = [
        ("access", snapshot.access.dropped()),
        ("messages", diagnostics::dropped()),
    ];
    let decisions = snapshot
        .counts
        .log_dropped()
        .map(|dropped| ("decisions", dropped));
    labelled(
        text,
        "tidegate_log_dropped",
        "log",
        always.into_iter().chain(decisions),
    );
    let spans = snapshot.exports.span_counts();
    let spans = [
        ("exported", spans.exported),
        ("dropped", spans.dropped),
        ("failed", spans.failed),
        ("refused", spans.refused),
    ];
    labelled(text, "tidegate_spans", "outcome", spans);
    let failed = snapshot.reload.is_some_and(|last| last.outcome.is_err());
    let name = "tidegate_config_last_reload_successful";
    single(text, name, u8::from(!failed));
    let name = "tidegate_config_last_reload_success_timestamp_seconds";
    single(text, name, seconds(snapshot.loaded_us));
    optional::write_known_keys(text, snapshot);
    optional::write_token_keys(text, snapshot);
    single(text, "tidegate_workers", snapshot.config.server.workers);
    family(text, "tidegate_build");
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("target", &*target)];
    text.sample(&labels, 1);
    let findings = &state.record().findings;
    let silent = &snapshot.config.log.silence;
    let findings = FINDINGS.map(|id| (id, u8::from(findings.holds(id, silent))));
    labelled(text, "tidegate_findings", "id", findings);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_is_described_once() {
        let own = concat!(
            include_str!("prometheus.rs"),
            include_str!("prometheus/optional.rs"),
            include_str!("prometheus/process.rs"),
        );
        let mut names = Vec::new();
        for row in FAMILIES.lines() {
            let words: Vec<&str> = row.splitn(3, ' ').collect();
            assert!(words.len() == 3 && words[2].ends_with('.'), "{row}");
            assert!(own.contains(&format!("\"{}\"", words[1])), "{row}");
            names.push(words[1]);
        }
        let described = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), described);
    }
}
