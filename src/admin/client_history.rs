//! The requests of single clients in the last quarter of an hour, for the page of a client.
//!
//! The state feeds it with the decisions that workers note. It has a fixed size: at most
//! [`SETS`] times [`WAYS`] histories of about 1 KB. A new client replaces the client of its
//! set with the oldest request. Denied clients stay longer.
//!
//! Pure: the time is an argument, in seconds.

use std::sync::Arc;

use serde_json::json;

use super::crowd::used_units;
use super::schema::described;
use crate::limit::KeyHash;
use crate::telemetry::watched::TrailEntry;

const SETS: usize = 512;
const WAYS: usize = 8;
/// The length of an interval, seconds.
pub(super) const STEP: u64 = 15;
const INTERVALS: usize = 60;
/// How much longer a denied client keeps its place, seconds.
const DENIED_STAYS: u64 = 300;

described! {
    #[derive(Copy)]
    struct ClientInterval {
        /// Its begin, seconds since the Unix epoch.
        at: u64,
        requests: u64,
        denied: u64,
        /// The largest share of the limit that was used after a request.
        used: f64 = json!({ "minimum": 0, "maximum": 1 }),
        /// The units of that share, in what the limit counts.
        used_units: u64,
        /// The units of the rate that was used so.
        units: u64,
    }
}

#[derive(Debug)]
pub(super) struct ClientHistories {
    sets: Vec<Vec<ClientHistory>>,
}

/// One client of one limit.
#[derive(Debug)]
struct ClientHistory {
    tag: KeyHash,
    limit: Arc<str>,
    /// The newest interval, counted since the Unix epoch.
    newest: u64,
    intervals: Box<[Interval; INTERVALS]>,
    /// Until when it has its place, before the other clients of its set.
    stays_until: u64,
    /// Whether the request of the last entry counts as denied already.
    is_denied: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    requests: u32,
    denied: u32,
    /// After the request that used the largest share.
    used: u32,
    units: u32,
}

impl Interval {
    /// The share of the limit that was used.
    fn share(self) -> f64 {
        f64::from(self.used) / f64::from(self.units.max(1))
    }
}

impl Default for ClientHistories {
    fn default() -> ClientHistories {
        ClientHistories {
            sets: (0..SETS).map(|_| Vec::new()).collect(),
        }
    }
}

impl ClientHistories {
    pub(super) fn record(&mut self, limit: &Arc<str>, entry: &TrailEntry, now: u64) {
        let tag = KeyHash(entry.tag);
        let set = &mut self.sets[set_of(tag)];
        let place = set.iter().position(|one| one.is_of(tag, limit));
        let place = place.unwrap_or_else(|| {
            let history = ClientHistory::new(tag, limit, now);
            if set.len() < WAYS {
                set.push(history);
                return set.len() - 1;
            }
            let oldest = set
                .iter()
                .enumerate()
                .min_by_key(|(_, one)| one.stays_until);
            let place = oldest.map_or(0, |(place, _)| place);
            set[place] = history;
            place
        });
        set[place].record(entry, now);
    }

    /// Forgets limits that do not exist any more.
    pub(super) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        for set in &mut self.sets {
            set.retain(|one| exists(&one.limit));
        }
    }

    /// The intervals of a client, the oldest first. Empty if nothing is known.
    pub(super) fn report(&self, tag: KeyHash, limit: &str, now: u64) -> Vec<ClientInterval> {
        let mut set = self.sets[set_of(tag)].iter();
        let history = set.find(|one| one.is_of(tag, limit));
        history.map_or_else(Vec::new, |history| history.report(now))
    }
}

/// Hashes of keys are as good as random numbers.
fn set_of(tag: KeyHash) -> usize {
    u128::from_le_bytes(tag.0) as usize % SETS
}

impl ClientHistory {
    fn new(tag: KeyHash, limit: &Arc<str>, now: u64) -> ClientHistory {
        ClientHistory {
            tag,
            limit: Arc::clone(limit),
            newest: now / STEP,
            intervals: Box::new([Interval::default(); INTERVALS]),
            stays_until: now,
            is_denied: false,
        }
    }

    fn is_of(&self, tag: KeyHash, limit: &str) -> bool {
        self.tag == tag && *self.limit == *limit
    }

    fn record(&mut self, entry: &TrailEntry, now: u64) {
        // After the clock was set back, requests count in the newest interval.
        let number = (now / STEP).max(self.newest);
        for passed in (self.newest + 1..=number).take(INTERVALS) {
            let place = (number - (passed - self.newest - 1)) as usize % INTERVALS;
            self.intervals[place] = Interval::default();
        }
        self.newest = number;
        // Another rate of the same request is no request, and denies it once.
        let is_repeated = entry.again && self.is_denied;
        let is_denied = entry.denied && !is_repeated;
        self.is_denied = entry.denied || is_repeated;
        let interval = &mut self.intervals[number as usize % INTERVALS];
        interval.requests = interval.requests.saturating_add(u32::from(!entry.again));
        interval.denied = interval.denied.saturating_add(u32::from(is_denied));
        let after = Interval {
            used: used_units(entry),
            units: entry.units,
            ..*interval
        };
        if interval.units == 0 || after.share() > interval.share() {
            *interval = after;
        }
        let stays = if entry.denied { DENIED_STAYS } else { 0 };
        self.stays_until = self.stays_until.max(now + stays);
    }

    fn report(&self, now: u64) -> Vec<ClientInterval> {
        let newest = (now / STEP).max(self.newest);
        let oldest = (newest + 1).saturating_sub(INTERVALS as u64);
        let interval = |number: u64| {
            let is_known = number <= self.newest && number + INTERVALS as u64 > self.newest;
            let known = match is_known {
                true => self.intervals[number as usize % INTERVALS],
                false => Interval::default(),
            };
            ClientInterval {
                at: number * STEP,
                requests: known.requests.into(),
                denied: known.denied.into(),
                used: known.share(),
                used_units: known.used.into(),
                units: known.units.into(),
            }
        };
        (oldest..=newest).map(interval).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(client: u64, denied: bool) -> TrailEntry {
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&client.to_le_bytes());
        TrailEntry {
            tag,
            limit: 0,
            denied,
            again: false,
            remaining: if denied { 0 } else { 5 },
            units: 10,
        }
    }

    fn counts(histories: &ClientHistories, client: u64, now: u64) -> Vec<(u64, u64, u64)> {
        let tag = KeyHash(entry(client, false).tag);
        let report = histories.report(tag, "login", now).into_iter();
        let busy = report.filter(|one| one.requests > 0);
        busy.map(|one| (one.at, one.requests, one.denied)).collect()
    }

    #[test]
    fn requests_are_reported_by_interval_for_a_quarter_of_an_hour() {
        let (mut histories, limit) = (ClientHistories::default(), Arc::from("login"));
        for (now, denied) in [(1000, false), (1004, true), (1010, true), (1300, false)] {
            histories.record(&limit, &entry(7, denied), now);
        }
        assert_eq!(
            counts(&histories, 7, 1301),
            [(990, 2, 1), (1005, 1, 1), (1290, 1, 0)]
        );
        let tag = KeyHash(entry(7, false).tag);
        let report = histories.report(tag, "login", 1301);
        assert_eq!((report.len(), report[59].used), (60, 0.5));
        assert_eq!((report[59].used_units, report[59].units), (5, 10));
        assert_eq!((report[40].used_units, report[40].units), (10, 10));
        assert_eq!(counts(&histories, 7, 1896), [(1005, 1, 1), (1290, 1, 0)]);
        histories.record(&limit, &entry(7, false), 9000);
        assert_eq!(counts(&histories, 7, 9000), [(9000, 1, 0)]);
        assert_eq!(histories.report(tag, "other", 9000), []);
        histories.retain(|_| false);
        assert_eq!(counts(&histories, 7, 9000), []);
    }

    #[test]
    fn rates_of_one_request_count_once() {
        let (mut histories, limit) = (ClientHistories::default(), Arc::from("login"));
        let again = |denied| TrailEntry {
            again: true,
            ..entry(7, denied)
        };
        for one in [
            entry(7, true),
            again(true),
            entry(7, false),
            again(true),
            again(false),
        ] {
            histories.record(&limit, &one, 1000);
        }
        assert_eq!(counts(&histories, 7, 1000), [(990, 2, 2)]);
    }

    #[test]
    fn its_size_is_fixed_and_denied_clients_stay() {
        let (mut histories, limit) = (ClientHistories::default(), Arc::from("login"));
        histories.record(&limit, &entry(7, true), 1000);
        for client in 0..100_000 {
            histories.record(&limit, &entry(client * SETS as u64 + 8, false), 1001);
            histories.record(&limit, &entry(client * SETS as u64 + 7, false), 1001);
        }
        assert!(histories.sets.iter().all(|set| set.len() <= WAYS));
        assert_eq!(counts(&histories, 7, 1001)[0].2, 1);
    }
}
