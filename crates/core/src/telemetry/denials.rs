//! The last denials of one worker, for people who watch: a few in any moment, the others counted.
//!
//! Whoever watches takes them out many times a second. A flood of denials costs no more than the
//! look that finds the room full.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::Method;

use crate::clock;
use crate::limit::headers::seconds_up;
use crate::limit::{CheckResult, Decided, KeyHash, Retry};

/// Denials that wait to be taken out; those beyond are counted only.
const ROOM: usize = 32;
/// Rates of one denial that are kept.
pub const MOST_RATES: usize = 4;
/// Bytes of a path that are kept.
const MOST_PATH: usize = 256;

/// One denial.
#[derive(Clone, Debug)]
pub struct Denial {
    /// When it was made, microseconds since the Unix epoch.
    pub at_us: u64,
    /// The limit that denied, the first of them; of a candidate with its mark.
    pub limit: String,
    /// The route's name.
    pub route: String,
    /// The request's method.
    pub method: Method,
    /// Its path, without the query.
    pub path: String,
    /// Its client's address.
    pub client: IpAddr,
    /// The hash of its key.
    pub tag: KeyHash,
    /// What it was told to wait, seconds; nothing where nobody knows.
    pub retry_after: Option<u64>,
    /// What the rates that denied it had counted, at most [`MOST_RATES`].
    pub rates: Vec<DeniedRate>,
    /// The id that it was given.
    pub request_id: String,
    /// Whether the limit is on trial: the request went on.
    pub shadow: bool,
}

/// The request that was denied.
#[derive(Clone, Copy, Debug)]
pub struct DeniedRequest<'r> {
    pub client: IpAddr,
    pub method: &'r Method,
    pub path: &'r str,
    /// The route's name; empty for none.
    pub route: &'r str,
    pub id: &'r str,
}

impl Denial {
    /// A denial made now. `limit` is its name, `shadow` says that the request went on. `None` where
    /// nothing was checked.
    pub fn now(
        request: DeniedRequest<'_>,
        limit: &str,
        decided: Decided<'_>,
        shadow: bool,
    ) -> Option<Denial> {
        let first = decided.denying().next();
        let check = first.map_or(decided.charge.first()?, |result| result.check);
        let rates = DeniedRate::all(decided);
        Some(Denial {
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

/// One rate of a limit that denied a request, as it was counted at that moment.
#[derive(Clone, Debug)]
pub struct DeniedRate {
    /// The limit, or `NAME/WINDOW` where it has several rates.
    pub policy: String,
    /// The parts of the key, as the file has them.
    pub key: String,
    /// The hash of the key.
    pub tag: KeyHash,
    /// The rate, as a file has it; that of a tier or an override where it holds.
    pub rate: String,
    /// Units that the rate allows.
    pub units: u64,
    /// Units that were counted before the request.
    pub used: u64,
    /// Units that were left.
    pub remaining: u64,
    /// Units that the request asked for.
    pub cost: u64,
    /// When the same request could pass, seconds; nothing where no wait helps or nobody knows.
    pub retry_after: Option<u64>,
}

impl DeniedRate {
    /// Those of a charge that denied; nothing of the others.
    pub fn all(decided: Decided<'_>) -> Vec<DeniedRate> {
        let denied = decided.denying().take(MOST_RATES);
        denied.map(DeniedRate::of).collect()
    }

    fn of(result: CheckResult<'_>) -> DeniedRate {
        let (item, verdict) = (result.check, result.verdict);
        let parts: Vec<String> = item
            .limit
            .key
            .parts
            .iter()
            .map(ToString::to_string)
            .collect();
        DeniedRate {
            policy: item.window.policy.to_string(),
            key: parts.join(", "),
            tag: item.tag,
            rate: item.window.rate(),
            units: item.window.rule.units,
            used: verdict.used,
            remaining: verdict.remaining,
            cost: item.cost,
            retry_after: wait(verdict.retry),
        }
    }
}

/// Whole seconds to wait, rounded up.
fn wait(retry: Retry) -> Option<u64> {
    match retry {
        Retry::After(us) => Some(seconds_up(us).max(1)),
        Retry::Now | Retry::Never | Retry::Released | Retry::Unasked => None,
    }
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Room>);

#[derive(Debug, Default)]
struct Room {
    list: Vec<Denial>,
    dropped: u64,
}

impl Denials {
    /// One more, made only if there is room for it, and if it can be.
    pub fn note(&self, make: impl FnOnce() -> Option<Denial>) {
        let mut room = self.room();
        if room.list.len() < ROOM {
            room.list.extend(make());
        } else {
            room.dropped += 1;
        }
    }

    /// Takes them out; also how many there was no room for.
    pub fn take(&self) -> (Vec<Denial>, u64) {
        let mut room = self.room();
        (
            std::mem::take(&mut room.list),
            std::mem::take(&mut room.dropped),
        )
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As much of a path as is kept.
pub fn short(path: &str) -> String {
    let mut end = path.len().min(MOST_PATH);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    path[..end].to_owned()
}
