//! The last denials of one worker, for operators that watch: a few at any moment, the others
//! counted.
//!
//! The admin takes them many times a second. In a flood of denials a full buffer is found and
//! nothing else is done.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use http::Method;

use crate::clock;
use crate::limit::headers::seconds_up;
use crate::limit::{CheckResult, Decided, KeyHash, Retry};

/// Denials that are buffered. Further ones are only counted.
const CAPACITY: usize = 32;
/// Rates of one denial that are kept.
pub const MOST_RATES: usize = 4;
/// Bytes of a path that are kept.
const MAX_PATH: usize = 256;

/// A denied request, as operators see it.
#[derive(Clone, Debug)]
pub struct ObservedDenial {
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    /// The first limit that denied. A candidate has its mark.
    pub limit: String,
    pub route: String,
    pub method: Method,
    /// The path without the query.
    pub path: String,
    pub client: IpAddr,
    /// The hash of the key.
    pub tag: KeyHash,
    /// `Retry-After`, seconds; `None` if no wait helps or it is unknown.
    pub retry_after: Option<u64>,
    /// The rates that denied it, at most [`MOST_RATES`].
    pub rates: Vec<DeniedRate>,
    pub request_id: String,
    /// Whether the limit is in shadow mode, so that the request went on.
    pub shadow: bool,
}

/// The request that was denied.
#[derive(Clone, Copy, Debug)]
pub struct DeniedRequest<'r> {
    pub client: IpAddr,
    pub method: &'r Method,
    pub path: &'r str,
    /// The name of the route; empty for none.
    pub route: &'r str,
    pub id: &'r str,
}

impl ObservedDenial {
    /// A denial made now by the limit of this name. `None` if nothing was checked.
    pub fn now(
        request: DeniedRequest<'_>,
        limit: &str,
        decided: Decided<'_>,
        shadow: bool,
    ) -> Option<ObservedDenial> {
        let first = decided.denying().next();
        let check = first.map_or(decided.charge.first()?, |result| result.check);
        let denied = decided.denying().take(MOST_RATES);
        let rates: Vec<DeniedRate> = denied.map(DeniedRate::new).collect();
        Some(ObservedDenial {
            at_us: clock::unix_us(),
            limit: limit.to_owned(),
            route: request.route.to_owned(),
            method: request.method.clone(),
            path: short(request.path),
            client: request.client,
            tag: check.tag,
            retry_after: rates.first().and_then(|rate| rate.retry_after),
            rates,
            request_id: request.id.to_owned(),
            shadow,
        })
    }
}

/// A rate of a limit that denied a request, with its counts at that moment.
#[derive(Clone, Debug)]
pub struct DeniedRate {
    /// The limit, or `NAME/WINDOW` if it has several rates.
    pub policy: String,
    /// The parts of the key, as the configuration has them.
    pub key: String,
    /// The hash of the key.
    pub tag: KeyHash,
    /// The rate in force, as a configuration has it: that of the limit, a tier or an override.
    pub rate: String,
    /// Units that the rate allows.
    pub units: u64,
    /// Units that were counted before the request.
    pub used: u64,
    /// Units that were left.
    pub remaining: u64,
    /// Units that the request needed.
    pub cost: u64,
    /// Whole seconds until the request could pass, rounded up; `None` if no wait helps or it is
    /// unknown.
    pub retry_after: Option<u64>,
}

impl DeniedRate {
    fn new(result: CheckResult<'_>) -> DeniedRate {
        let CheckResult { check, verdict } = result;
        let parts = check.limit.key.parts.iter();
        let parts: Vec<String> = parts.map(ToString::to_string).collect();
        DeniedRate {
            policy: check.window.policy.to_string(),
            key: parts.join(", "),
            tag: check.tag,
            rate: check.window.rate(),
            units: check.window.rule.units,
            used: verdict.used,
            remaining: verdict.remaining,
            cost: check.cost,
            retry_after: match verdict.retry {
                Retry::After(us) => Some(seconds_up(us).max(1)),
                Retry::Now | Retry::Never | Retry::Released | Retry::Unasked => None,
            },
        }
    }
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct DenialBuffer(Mutex<TakenDenials>);

/// The denials since the last call of [`DenialBuffer::take`].
#[derive(Debug, Default)]
pub struct TakenDenials {
    pub denials: Vec<ObservedDenial>,
    /// Denials for which there was no space.
    pub dropped: u64,
}

impl DenialBuffer {
    /// Adds a denial. Calls `make` only if there is space.
    pub fn note(&self, make: impl FnOnce() -> Option<ObservedDenial>) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.denials.len() < CAPACITY {
            taken.denials.extend(make());
        } else {
            taken.dropped += 1;
        }
    }

    pub fn take(&self) -> TakenDenials {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The first bytes of a path that are kept.
pub fn short(path: &str) -> String {
    let mut end = path.len().min(MAX_PATH);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    path[..end].to_owned()
}
