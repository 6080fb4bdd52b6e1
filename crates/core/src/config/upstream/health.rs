//! `health`, `eject` and `retries` of an upstream: what happens to servers and requests that fail.

use std::time::Duration;

use http::HeaderValue;
use http::uri::{Authority, PathAndQuery};

use crate::config::*;
use crate::route::StatusSet;

const HOUR: Duration = Duration::from_secs(60 * 60);
/// The shortest time between two checks, and the shortest ejection.
const SHORTEST: Duration = Duration::from_millis(50);
/// Checks or failures in a row, at most.
const MAX_IN_A_ROW: u64 = 1000;
/// The most attempts after the first that a file may allow.
const MAX_ATTEMPTS: u64 = 10;

/// `health`: the request that checks a server, and the answers that pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub path: PathAndQuery,
    /// The `Host` of the request; `None` is the server's own.
    pub host: Option<HeaderValue>,
    pub every: Duration,
    pub timeout: Duration,
    /// Passed checks in a row that bring a server back; at least 1.
    pub healthy: u32,
    /// Failed checks in a row that take it out; at least 1.
    pub unhealthy: u32,
    pub status: StatusSet,
}

/// `eject`: when failed requests take a server out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row or `within` a time, at least 1. For a server that cannot be reached one
    /// is enough.
    pub failures: u32,
    /// The time in which failures count, also with successes between them. `None` counts failures
    /// in a row.
    pub within: Option<Duration>,
    /// The length of the first ejection. Each further one is twice as long.
    pub rest: Duration,
    pub longest_rest: Duration,
    /// Percent of the reachable servers that may be out at once.
    pub max_share: u32,
    pub status: StatusSet,
}

impl Default for Ejection {
    fn default() -> Ejection {
        Section::read_defaults("upstream.NAME.eject", ejection)
    }
}

/// `retries`: when a request is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    pub attempts: u32,
    /// Percent of the requests that may be sent again.
    pub budget: u32,
    /// Whether the same server may get the request again if no other server is left.
    pub same_server: bool,
    pub on: RetryOn,
}

impl Default for Retries {
    fn default() -> Retries {
        Section::read_defaults("upstream.NAME", retries)
    }
}

/// Failures after which a request is sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryOn {
    /// The connection ended before the head of an answer.
    pub closed: bool,
    /// No head came within the upstream's `timeout`.
    pub timeout: bool,
    /// An answer with one of these statuses.
    pub status: StatusSet,
}

/// Reads `health`: a path, or a table. Without it servers are not checked.
pub(super) fn health(outer: &mut Section<'_>) -> Option<HealthCheck> {
    const PATH: TextForm = TextForm::new(Code::BadHttp, "a path");
    outer.declare("health", || ValueKind::TextOrTable);
    let value = outer.peek("health").map(|value| value.get_ref());
    let is_path = value.is_some_and(|value| value.is_str());
    let short = match is_path {
        true => Some(outer.parse("health", PATH, path)?),
        false => None,
    };
    let mut section = match is_path {
        true => outer.inner("health", None, outer.key_span("health")),
        false => outer.section("health"),
    };
    if value.is_some_and(|value| value.is_table()) {
        section.require("path", "path = \"/healthz\"");
    }
    let long = section.parse("path", PATH, path);
    let host = section.parse("host", TextForm::new(Code::BadHttp, "a host"), host);
    let status = section.one_or_more_statuses("status", |_| Ok(()));
    let check = HealthCheck {
        path: short
            .or(long)
            .unwrap_or_else(|| PathAndQuery::from_static("/")),
        host,
        every: section.duration("every", SHORTEST..=HOUR),
        timeout: section.duration("timeout", SHORTEST..=HOUR),
        healthy: section.integer("healthy", 1..=MAX_IN_A_ROW),
        unhealthy: section.integer("unhealthy", 1..=MAX_IN_A_ROW),
        status: status.unwrap_or_else(|| {
            let mut passing = StatusSet::default();
            let _ = ["2xx", "3xx"].map(|class| passing.add(class));
            passing
        }),
    };
    section.finish();
    value.map(|_| check)
}

/// Reads `eject`: `false`, or a table. Without it servers have the default.
pub(super) fn eject(outer: &mut Section<'_>) -> Option<Ejection> {
    outer.declare("eject", || ValueKind::FalseOrTable);
    let value = outer.peek("eject").map(|value| value.get_ref());
    if let Some(wanted) = value.and_then(|value| value.as_bool()) {
        return wanted.then(Ejection::default);
    }
    let mut section = outer.section("eject");
    let ejection = ejection(&mut section);
    section.finish();
    Some(ejection)
}

fn ejection(section: &mut Section<'_>) -> Ejection {
    let rest = section.duration("for", SHORTEST..=HOUR);
    let longest = section.optional_duration("max_for", SHORTEST..=24 * HOUR);
    if longest.is_some_and(|longest| longest < rest) {
        section.out_of_range("max_for", &format!("{rest:?} (`for`) or more"));
    }
    Ejection {
        failures: section.integer("failures", 1..=MAX_IN_A_ROW),
        within: section.optional_duration("within", SHORTEST..=HOUR),
        rest,
        // A `for` above the default raises it.
        longest_rest: longest.unwrap_or_else(|| rest.max(section.default_duration("max_for"))),
        max_share: section.integer("max_share", 1..=100),
        status: section.statuses("status").unwrap_or_default(),
    }
}

fn path(text: &str) -> Result<PathAndQuery, &'static str> {
    let is_plain = text.starts_with('/') && !text.contains('#');
    let path = text.parse().ok().filter(|_| is_plain);
    path.ok_or("it begins with `/`; for example `/healthz`")
}

fn host(text: &str) -> Result<HeaderValue, &'static str> {
    const WRITE: &str = "a name, and a port if it has one; for example `api.internal`";
    let authority: Authority = text.parse().map_err(|_| WRITE)?;
    if authority.as_str().contains('@') {
        return Err(WRITE);
    }
    HeaderValue::try_from(authority.as_str()).map_err(|_| WRITE)
}

pub(super) fn retries(outer: &mut Section<'_>) -> Retries {
    outer.declare("retries", || ValueKind::IntegerOrTable);
    let is_number = outer.has_integer("retries");
    let mut section = match is_number {
        true => outer.inner("retries", None, outer.key_span("retries")),
        false => outer.section("retries"),
    };
    let attempts = section.integer("attempts", 0..=MAX_ATTEMPTS);
    let short = match is_number {
        true => outer.optional_integer("retries", 0..=MAX_ATTEMPTS),
        false => None,
    };
    let retries = Retries {
        attempts: short.unwrap_or(attempts),
        budget: section.integer("budget", 0..=100),
        same_server: section.boolean("same_server"),
        on: retry_on(&mut section).unwrap_or(RetryOn {
            closed: true,
            ..RetryOn::default()
        }),
    };
    section.finish();
    retries
}

fn retry_on(section: &mut Section<'_>) -> Option<RetryOn> {
    section.declare("on", || {
        ValueKind::WordsOrStatuses(vec!["closed", "timeout"])
    });
    let texts = section.texts("on")?;
    let form = TextForm::new(Code::UnknownWord, "a reason to try again");
    let mut on = RetryOn::default();
    section.parse_all("on", Some(texts), form, |text| {
        match text {
            "closed" => on.closed = true,
            "timeout" => on.timeout = true,
            status => {
                let added = on.status.add(status);
                let help = "write `closed`, `timeout`, or a status such as `503` or `5xx`";
                return added.map_err(|_| help);
            }
        }
        Ok(())
    });
    Some(on)
}
