//! What a replay found, ready to be shown: plain figures and words.
//!
//! Pure.

use std::collections::BTreeMap;

use super::engine::{Engine, Outside, Seen};
use super::entry::Fault;
use super::logs::Found;
use super::meter::Entry;
use super::notes;
use super::plan::Row;
use super::rates::{RATES, Rates};
use super::series::Minute;
use super::spaces;
use crate::limit::key::HashSecret;
use crate::limit::{Algorithm, Rate, Role};

/// Clients that are shown of each limit.
const WORST: usize = 10;

/// What is wanted of a report.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The share of clients that a suggested rate may deny something.
    pub suggest: Option<f64>,
    /// Shows keys by their hash under this secret.
    pub hash_keys: Option<HashSecret>,
    /// Leading bits of an IPv4 and an IPv6 address that make one client.
    pub prefixes: (u8, u8),
}

/// The whole.
#[derive(Debug)]
pub struct Report {
    /// What was found in each log.
    pub logs: Vec<Found>,
    /// Lines of all of them.
    pub lines: u64,
    /// Those that could not be read, by why; none that are 0.
    pub unread: Vec<(Fault, u64)>,
    /// Requests in them.
    pub requests: u64,
    /// Those that some limit denies, at each rate.
    pub denied: Rates<u64>,
    /// Those that reached no limit.
    pub outside: Vec<(Outside, u64)>,
    /// The first time and the last, microseconds since the epoch.
    pub times: Option<(u64, u64)>,
    /// Every limit's every rate.
    pub limits: Vec<LimitReport>,
    /// What somebody who reads this should know.
    pub notes: Vec<String>,
    /// When the first step begins, seconds since the epoch, and a step's length in seconds.
    pub steps: (u64, u64),
    /// Requests in each step.
    pub requests_over_time: Vec<u32>,
    /// Denied ones in each step.
    pub denied_over_time: Vec<u32>,
}

/// One rate of one limit.
#[derive(Debug)]
pub struct LimitReport {
    /// The limit's name; of several rates with its window.
    pub name: String,
    /// Of which tier's clients.
    pub tier: Option<String>,
    /// What it is to a request.
    pub role: Role,
    /// The rate itself, half of it, twice.
    pub rate: Rates<String>,
    /// Its units at each.
    pub units: Rates<u64>,
    /// The window, as a rate is written: `/min`; ` at once` of slots.
    pub per: String,
    /// What it counts by.
    pub key: String,
    /// Requests that asked it.
    pub asked: u64,
    /// Those that it denies, at each rate.
    pub denied: Rates<u64>,
    /// Different keys among them.
    pub clients: u64,
    /// Those to whom something is denied, at each rate.
    pub hit: Rates<u64>,
    /// Whoever is denied most; then whoever came closest.
    pub worst: Vec<Client>,
    /// Minutes in which most was denied.
    pub minutes: Vec<Minute>,
    /// How many clients need which limit to be denied nothing, ascending.
    pub needs: Vec<(u64, u64)>,
    /// The smallest limit that denies no larger share of clients something.
    pub suggested: Option<Suggested>,
    /// What it denies in each step.
    pub over_time: Vec<u32>,
}

/// One client of one limit.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its key, in the clear or hashed.
    pub key: String,
    /// Its requests.
    pub asked: u64,
    /// Those that are denied.
    pub denied: u64,
    /// The limit at which it would be denied nothing.
    pub need: u64,
}

/// A rate to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggested {
    /// Its units.
    pub units: u64,
    /// As it is written: `240/min`.
    pub rate: String,
    /// Clients that it still denies something.
    pub denied: u64,
}

impl Report {
    /// What an engine has found in these logs.
    pub fn new(engine: &Engine, logs: Vec<Found>, wanted: &Wanted) -> Report {
        let totals = &engine.totals;
        let sum = |fault: Fault| -> u64 { logs.iter().map(|log| log.unread[fault as usize]).sum() };
        let unread = Fault::ALL.map(|fault| (fault, sum(fault)));
        let mut outside: Vec<_> = totals.outside.iter().map(|(kind, n)| (*kind, *n)).collect();
        outside.sort_unstable();
        let rows = engine.plan.rows.iter().enumerate();
        Report {
            lines: logs.iter().map(|log| log.lines).sum(),
            unread: unread.into_iter().filter(|(_, count)| *count > 0).collect(),
            requests: totals.requests,
            denied: totals.denied,
            outside,
            times: totals.times,
            limits: rows
                .map(|(place, row)| limit(engine, place, row, wanted))
                .collect(),
            notes: notes::of(engine, &logs),
            steps: (engine.timeline.start_s(), engine.timeline.length_s()),
            requests_over_time: engine.timeline.counts(0).to_vec(),
            denied_over_time: engine.timeline.counts(1).to_vec(),
            logs,
        }
    }

    /// Lines that could not be read.
    pub fn unread_lines(&self) -> u64 {
        self.unread.iter().map(|(_, count)| count).sum()
    }
}

fn limit(engine: &Engine, place: usize, row: &Row, wanted: &Wanted) -> LimitReport {
    let seen = &engine.seen[place];
    let limit = &engine.plan.limits[row.limit].limit;
    let entries = engine.plan.meters[row.meter].entries();
    let own = || {
        entries
            .iter()
            .filter(|one| usize::from(one.row) == place && one.asked > 0)
    };
    let needs = needs(own(), seen);
    let clients = needs.iter().map(|(_, count)| count).sum();
    let mut hit = seen.forgotten_hit;
    for entry in own() {
        for rate in RATES {
            hit[rate] += u64::from(entry.hit[rate]);
        }
    }
    let rate = |units: &u64| rate(row, *units);
    let suggested = wanted
        .suggest
        .and_then(|share| suggest(&needs, clients, share));
    LimitReport {
        name: row.window.policy.to_string(),
        tier: row.tier.as_deref().map(str::to_owned),
        role: row.role,
        rate: row.units.map(rate),
        units: row.units,
        per: per(row),
        key: notes::key(&limit.key),
        asked: seen.asked,
        denied: seen.denied,
        clients,
        hit,
        worst: worst(own().collect(), wanted),
        minutes: seen.minutes.clone().worst(),
        suggested: suggested.map(|(units, denied)| Suggested {
            units,
            rate: rate(&units),
            denied,
        }),
        needs,
        over_time: engine.timeline.counts(2 + place).to_vec(),
    }
}

fn needs<'e>(entries: impl Iterator<Item = &'e Entry>, seen: &Seen) -> Vec<(u64, u64)> {
    let mut needs = BTreeMap::new();
    let kept = entries.map(|entry| (entry.need, 1));
    let gone = seen.forgotten.iter().map(|(need, count)| (*need, *count));
    for (need, count) in kept.chain(gone) {
        *needs.entry(u64::from(need)).or_default() += count;
    }
    needs.into_iter().collect()
}

/// The smallest limit that denies something to at most this share of clients, and to how many it
/// does. `needs` is ascending.
fn suggest(needs: &[(u64, u64)], clients: u64, share: f64) -> Option<(u64, u64)> {
    let most = (clients as f64 * share).floor() as u64;
    let mut above = 0;
    let mut found = None;
    for (need, count) in needs.iter().rev() {
        if above > most {
            break;
        }
        found = Some(((*need).max(1), above));
        above += count;
    }
    found
}

fn worst(mut entries: Vec<&Entry>, wanted: &Wanted) -> Vec<Client> {
    let rank = |one: &&Entry| std::cmp::Reverse((one.denied, one.need, one.asked));
    if entries.len() > WORST {
        entries.select_nth_unstable_by_key(WORST, rank);
        entries.truncate(WORST);
    }
    entries.sort_by(|one, other| rank(one).cmp(&rank(other)).then(one.name.cmp(&other.name)));
    let client = |entry: &&Entry| Client {
        key: match &wanted.hash_keys {
            Some(secret) => hashed(&entry.name, secret),
            None => spaces::shown(&entry.name, wanted.prefixes),
        },
        asked: u64::from(entry.asked),
        denied: u64::from(entry.denied),
        need: u64::from(entry.need),
    };
    entries.iter().map(client).collect()
}

/// As short as in the access log, and of no use elsewhere.
fn hashed(name: &[u8], secret: &HashSecret) -> String {
    let hash = blake3::keyed_hash(secret.as_bytes(), name);
    let mut tag = [0; 16];
    tag.copy_from_slice(&hash.as_bytes()[..16]);
    crate::limit::KeyHash(tag).to_string()[..8].to_owned()
}

/// `100/min`, `20 at once`
fn rate(row: &Row, units: u64) -> String {
    format!("{units}{}", per(row))
}

fn per(row: &Row) -> String {
    let rule = row.window.rule;
    if rule.algorithm == Algorithm::Slots {
        return " at once".to_owned();
    }
    let rate = Rate {
        units: 1,
        window_us: rule.window_us,
    };
    rate.to_string().trim_start_matches('1').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_rate_for_a_share_of_clients() {
        let needs = [(1, 90), (5, 8), (40, 1), (900, 1)];
        for (share, expected) in [
            (0.0, (900, 0)),
            (0.009, (900, 0)),
            (0.01, (40, 1)),
            (0.02, (5, 2)),
            (0.099, (5, 2)),
            (0.1, (1, 10)),
            (1.0, (1, 10)),
        ] {
            assert_eq!(suggest(&needs, 100, share), Some(expected), "{share}");
        }
        assert_eq!(suggest(&[], 0, 0.01), None);
        assert_eq!(suggest(&[(0, 3)], 3, 0.0), Some((1, 0)));
    }
}
