//! `health` and `eject` of an upstream: how its servers are watched.

use std::time::Duration;

use http::HeaderValue;
use http::uri::{Authority, PathAndQuery};

use super::super::diagnostic::Code;
use super::super::reader::At;
use super::super::section::Section;
use super::super::values::TextForm;
use crate::route::StatusSet;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
/// The shortest time between two checks, and the shortest rest.
const SHORTEST: Duration = Duration::from_millis(50);
/// Checks or failures in a row, at most.
const MAX_IN_A_ROW: u64 = 1000;

/// `health`: what each server is asked, and when its answers count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked for by `GET`.
    pub path: PathAndQuery,
    /// The `Host` of it; `None` is the server's own.
    pub host: Option<HeaderValue>,
    /// Between two checks of a server.
    pub every: Duration,
    /// From connecting until the head of the answer.
    pub timeout: Duration,
    /// Passed checks in a row that bring a server back; at least 1.
    pub healthy: u32,
    /// Failed checks in a row that take it out; at least 1.
    pub unhealthy: u32,
    /// The statuses that pass.
    pub status: StatusSet,
}

impl HealthCheck {
    /// A check of this path, with all defaults.
    pub fn new(path: PathAndQuery) -> HealthCheck {
        HealthCheck {
            path,
            host: None,
            every: 5 * SECOND,
            timeout: 2 * SECOND,
            healthy: 2,
            unhealthy: 3,
            status: well(),
        }
    }
}

/// `eject`: when a server is left alone for what requests met there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row, at least 1. A server that cannot be reached needs only one.
    pub failures: u32,
    /// The first time; each further time twice as long.
    pub rest: Duration,
    /// Never longer than this.
    pub longest_rest: Duration,
    /// Percent of the servers that may be left alone at once while they can be reached.
    pub max_share: u32,
    /// Answers that count as failures.
    pub status: StatusSet,
}

impl Default for Ejection {
    fn default() -> Ejection {
        Ejection {
            failures: 5,
            rest: 10 * SECOND,
            longest_rest: 60 * SECOND,
            max_share: 50,
            status: StatusSet::default(),
        }
    }
}

/// `health`: a path, or a table. Nothing if servers are not checked.
pub(super) fn health(outer: &mut Section<'_>) -> Option<HealthCheck> {
    let value = outer.peek("health");
    let kind = TextForm::new(Code::BadHttp, "a path");
    if value.is_some_and(|value| value.get_ref().is_str()) {
        return Some(HealthCheck::new(outer.parsed("health", kind, path)?.value));
    }
    let mut section = outer.section("health");
    let path = section.parsed("path", kind, path);
    if value.is_some_and(|value| value.get_ref().is_table()) && section.peek("path").is_none() {
        section.missing("path", "path = \"/healthz\"");
    }
    let unread = || PathAndQuery::from_static("/");
    let usual = HealthCheck::new(path.map_or_else(unread, |path| path.value));
    let host = section.parsed("host", TextForm::new(Code::BadHttp, "a host"), host);
    let check = HealthCheck {
        host: host.map(|host| host.value),
        every: section.duration("every", SHORTEST..=HOUR, usual.every),
        timeout: section.duration("timeout", SHORTEST..=HOUR, usual.timeout),
        healthy: in_a_row(&mut section, "healthy", usual.healthy),
        unhealthy: in_a_row(&mut section, "unhealthy", usual.unhealthy),
        status: statuses(&mut section, "status").unwrap_or(usual.status),
        path: usual.path,
    };
    section.finish();
    value.map(|_| check)
}

/// The statuses of an answer that says "well".
fn well() -> StatusSet {
    let mut well = StatusSet::default();
    for class in ["2xx", "3xx"] {
        let _ = well.add(class);
    }
    well
}

/// `eject`: `false`, or a table. Nothing if servers are never left alone.
pub(super) fn eject(outer: &mut Section<'_>) -> Option<Ejection> {
    let switch = outer
        .peek("eject")
        .and_then(|value| value.get_ref().as_bool());
    if switch.is_some() {
        let wanted = outer.boolean("eject", true);
        return wanted.then(Ejection::default);
    }
    let mut section = outer.section("eject");
    let usual = Ejection::default();
    let rest = section.length("for", SHORTEST..=HOUR);
    let longest = section.length("max_for", SHORTEST..=24 * HOUR);
    let ejection = Ejection {
        failures: in_a_row(&mut section, "failures", usual.failures),
        rest: rest.as_ref().map_or(usual.rest, |rest| rest.value),
        longest_rest: match (&rest, &longest) {
            (_, Some(longest)) => longest.value,
            // A longer `for` says that as well.
            (Some(rest), None) => rest.value.max(usual.longest_rest),
            (None, None) => usual.longest_rest,
        },
        max_share: section
            .integer("max_share", 1..=100)
            .map_or(usual.max_share, small),
        status: statuses(&mut section, "status").unwrap_or_default(),
    };
    if let Some(longest) = longest.filter(|longest| longest.value < ejection.rest) {
        let allowed = format!("{:?} (`for`) or more", ejection.rest);
        section.out_of_range_at("max_for", &longest, &allowed);
    }
    section.finish();
    Some(ejection)
}

fn in_a_row(section: &mut Section<'_>, key: &'static str, default: u32) -> u32 {
    let number = section.integer(key, 1..=MAX_IN_A_ROW);
    number.map_or(default, small)
}

/// A number whose range is small.
pub(super) fn small(number: At<u64>) -> u32 {
    u32::try_from(number.value).unwrap_or(u32::MAX)
}

/// A list of statuses and classes of them.
fn statuses(section: &mut Section<'_>, key: &'static str) -> Option<StatusSet> {
    let texts = section.texts(key)?;
    let mut set = StatusSet::default();
    for text in texts.value {
        section.understood(
            key,
            text,
            TextForm::new(Code::BadHttp, "a status"),
            |text| set.add(text),
        );
    }
    Some(set)
}

fn path(text: &str) -> Result<PathAndQuery, &'static str> {
    let plain = text.starts_with('/') && !text.contains('#');
    let path = text.parse().ok().filter(|_| plain);
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
