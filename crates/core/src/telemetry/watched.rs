//! Events of single clients on one worker, for operators that watch: the decisions of limits, and
//! denied requests. The admin takes them many times a second.
//!
//! The worker never waits. Decisions go into a ring buffer without a lock ([`Trail`]). A few
//! denials are kept at any moment, the others are counted ([`DenialBuffer`]). So a flood of denials
//! costs the check that finds the buffer full.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use http::Method;

use super::door::Door;
use crate::clock;
use crate::limit::headers::seconds_up;
use crate::limit::{CheckResult, Decided, KeyHash, Retry};
use crate::usage::settings::Quantity;

/// Entries of a trail; a power of two.
const TRAIL_ENTRIES: u64 = 8192;
/// Denials that are buffered. Further ones are only counted.
const BUFFERED_DENIALS: usize = 32;
pub const MOST_RATES: usize = 4;
/// Bytes of a path that are kept.
const MAX_PATH: usize = 256;

const DENIED: u64 = 1 << 32;
const AGAIN: u64 = 1 << 33;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailEntry {
    pub tag: [u8; 16],
    pub limit: u32,
    pub denied: bool,
    /// Whether this is another rate of the limit in the entry before, about the same request.
    pub again: bool,
    /// Units of the rate that the client has left.
    pub remaining: u32,
    pub units: u32,
}

/// A ring buffer of decisions. One thread writes, another one reads. An entry costs five stores. A
/// reader that is late misses entries, and learns how many.
pub struct Trail {
    slots: Box<[[AtomicU64; 4]]>,
    head: AtomicU64,
    /// How many of them were read or missed. Only the reader changes it.
    tail: AtomicU64,
}

impl Default for Trail {
    fn default() -> Trail {
        Trail {
            slots: (0..TRAIL_ENTRIES).map(|_| Default::default()).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }
}

impl Trail {
    /// Writes an entry. Only one thread may do so.
    pub fn push(&self, entry: &TrailEntry) {
        let head = self.head.load(Ordering::Relaxed);
        let tag = u128::from_le_bytes(entry.tag);
        let mut word = u64::from(entry.limit);
        word |= if entry.denied { DENIED } else { 0 };
        word |= if entry.again { AGAIN } else { 0 };
        let left = u64::from(entry.remaining) << 32 | u64::from(entry.units);
        let slot = &self.slots[(head % TRAIL_ENTRIES) as usize];
        // A reader that sees one of the stores below also sees that the slot is being written.
        fence(Ordering::Release);
        for (place, value) in slot
            .iter()
            .zip([tag as u64, (tag >> 64) as u64, word, left])
        {
            place.store(value, Ordering::Relaxed);
        }
        self.head.store(head + 1, Ordering::Release);
    }

    /// Reads the entries since the last call, oldest first. Returns how many were missed. Only one
    /// thread at a time may do so.
    pub fn drain(&self, mut read: impl FnMut(TrailEntry)) -> u64 {
        let (head, tail) = (
            self.head.load(Ordering::Acquire),
            self.tail.load(Ordering::Relaxed),
        );
        // The oldest slot may be the one that is written next.
        let first = tail.max(head.saturating_sub(TRAIL_ENTRIES - 1));
        let mut missed = first - tail;
        for number in first..head {
            let slot = &self.slots[(number % TRAIL_ENTRIES) as usize];
            let [low, high, word, left] =
                [0, 1, 2, 3].map(|place: usize| slot[place].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.head.load(Ordering::Relaxed) >= number + TRAIL_ENTRIES {
                // The slot was overwritten while it was read.
                missed += 1;
                continue;
            }
            read(TrailEntry {
                tag: (u128::from(high) << 64 | u128::from(low)).to_le_bytes(),
                limit: word as u32,
                denied: word & DENIED != 0,
                again: word & AGAIN != 0,
                remaining: (left >> 32) as u32,
                units: left as u32,
            });
        }
        self.tail.store(head, Ordering::Relaxed);
        missed
    }
}

impl std::fmt::Debug for Trail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trail")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct ObservedDenial {
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    /// The first limit that denied. A candidate has its mark.
    pub limit: String,
    pub route: String,
    /// Where a proxy asked for the decision; `None` for a request that came here.
    pub door: Option<Door>,
    pub method: Method,
    pub path: String,
    pub client: IpAddr,
    pub tag: KeyHash,
    /// `Retry-After`, seconds; `None` if no wait helps or it is unknown.
    pub retry_after: Option<u64>,
    /// The rates that denied it, at most [`MOST_RATES`].
    pub rates: Vec<DeniedRate>,
    pub request_id: String,
    /// Whether the limit is in shadow mode, so that the request went on.
    pub shadow: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct DeniedRequest<'r> {
    pub client: IpAddr,
    pub method: &'r Method,
    pub path: &'r str,
    /// The name of the route; empty for none.
    pub route: &'r str,
    pub door: Option<Door>,
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
            door: request.door,
            method: request.method.clone(),
            path: truncate_path(request.path),
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
    pub tag: KeyHash,
    /// The rate in force, as a configuration has it: that of the limit, a tier or an override.
    pub rate: String,
    /// What the limit counts, and so the unit of the numbers below.
    pub counts: Quantity,
    pub units: u64,
    /// Units that were counted before the request.
    pub used: u64,
    pub remaining: u64,
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
            counts: check.limit.counts,
            units: check.window.rule.units,
            used: verdict.used,
            remaining: verdict.remaining,
            cost: check.cost,
            retry_after: match verdict.retry {
                Retry::After(us) => Some(seconds_up(us).max(1)),
                _ => None,
            },
        }
    }
}

#[derive(Debug, Default)]
pub struct DenialBuffer(Mutex<TakenDenials>);

/// The denials since the last call of [`DenialBuffer::take`].
#[derive(Debug, Default)]
pub struct TakenDenials {
    pub denials: Vec<ObservedDenial>,
    pub dropped: u64,
}

impl DenialBuffer {
    /// Adds a denial. Calls `make` only if there is space.
    pub fn note(&self, make: impl FnOnce() -> Option<ObservedDenial>) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.denials.len() < BUFFERED_DENIALS {
            taken.denials.extend(make());
        } else {
            taken.dropped += 1;
        }
    }

    pub fn take(&self) -> TakenDenials {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub fn truncate_path(path: &str) -> String {
    let mut end = path.len().min(MAX_PATH);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    path[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> TrailEntry {
        let tag = u128::from(number) << 64 | u128::from(!number);
        TrailEntry {
            tag: tag.to_le_bytes(),
            limit: number as u32,
            denied: number.is_multiple_of(2),
            again: number.is_multiple_of(3),
            remaining: number as u32,
            units: !(number as u32),
        }
    }

    #[test]
    fn entries_are_read_once_in_their_order() {
        let trail = Trail::default();
        let mut found = Vec::new();
        for round in 0..3 {
            (round * 10..round * 10 + 10).for_each(|number| trail.push(&entry(number)));
            assert_eq!(trail.drain(|one| found.push(one)), 0);
        }
        assert_eq!(found, (0..30).map(entry).collect::<Vec<_>>());
    }

    #[test]
    fn a_late_reader_learns_how_many_were_missed() {
        let trail = Trail::default();
        (0..TRAIL_ENTRIES + 100).for_each(|number| trail.push(&entry(number)));
        let mut found = Vec::new();
        assert_eq!(trail.drain(|one| found.push(one)), 101);
        assert_eq!(found.first(), Some(&entry(101)));
        assert_eq!(found.len() as u64, TRAIL_ENTRIES - 1);
    }

    #[test]
    fn no_entry_is_torn_while_it_is_written() {
        let trail = Trail::default();
        let many = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..many).for_each(|number| trail.push(&entry(number))));
            let (mut count, mut next) = (0, 0);
            while count < many {
                let mut whole = 0;
                let missed = trail.drain(|one| {
                    let number = (u128::from_le_bytes(one.tag) >> 64) as u64;
                    assert_eq!(one, entry(number));
                    assert!(number >= next, "out of order");
                    next = number + 1;
                    whole += 1;
                });
                count += whole + missed;
            }
            assert_eq!(count, many);
        });
    }
}
