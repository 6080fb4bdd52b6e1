//! The result of a replay as figures and words, with notes about what the log lacked.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::counts::{self, Outside, RowStats};
use super::engine::Engine;
use super::entry::Fault;
use super::key_spaces;
use super::logs::LogSummary;
use super::meter::{KeyCounts, Rates, SCALES};
use super::plan::WindowRow;
use super::timeline::Minute;
use crate::limit::key::{HashSecret, Part};
use crate::limit::{Algorithm, Limit, Missing, Rate, Role};
use crate::route::{CostSource, Route};

/// Clients that are shown of each limit.
const WORST: usize = 10;

#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// The share of clients that a suggested rate may deny something.
    pub suggest: Option<f64>,
    /// The secret for hashes of keys; `None` shows keys in the clear.
    pub hash_keys: Option<HashSecret>,
}

#[derive(Debug)]
pub struct Report {
    pub logs: Vec<LogSummary>,
    pub lines: u64,
    /// Unreadable lines by their faults, without zeros.
    pub unread: Vec<(Fault, u64)>,
    pub requests: u64,
    /// Requests that some enforced limit denies, at each rate.
    pub denied: Rates<u64>,
    pub outside: Vec<(Outside, u64)>,
    /// The first and the last time, microseconds since the epoch.
    pub times: Option<(u64, u64)>,
    /// One for each rate of each limit.
    pub limits: Vec<LimitReport>,
    /// Sentences about what the log lacked.
    pub notes: Vec<String>,
    pub timeline: RequestsOverTime,
}

/// The requests of each step of the log, as `--json` writes them.
#[derive(Debug, Serialize)]
pub struct RequestsOverTime {
    /// The beginning of the first step, seconds since the epoch.
    pub start: u64,
    /// The length of a step, seconds.
    pub step: u64,
    pub requests: Vec<u32>,
    pub denied: Vec<u32>,
}

/// One rate of one limit, as `--json` writes it.
#[derive(Debug, Serialize)]
pub struct LimitReport {
    /// The limit's name; with its window if the limit has several rates.
    pub name: String,
    pub tier: Option<String>,
    #[serde(rename = "mode", serialize_with = "role_word")]
    pub role: Role,
    pub rate: String,
    /// The rate at each scale.
    pub rates: Rates<String>,
    pub units: Rates<u64>,
    /// The window as a rate writes it: `/min`, or ` at once` for slots.
    pub per: String,
    /// The key as the configuration writes it.
    pub key: String,
    pub requests: u64,
    pub denied: Rates<u64>,
    /// Different keys.
    pub clients: u64,
    /// Clients that are denied something, at each rate.
    pub clients_hit: Rates<u64>,
    /// The clients with the most denials, then those that came closest to one.
    pub worst_clients: Vec<ClientStats>,
    pub worst_minutes: Vec<Minute>,
    /// Limits that clients need to be denied nothing, ascending, and how many clients need each.
    pub peaks: Vec<(u64, u64)>,
    pub suggested: Option<Suggested>,
    pub over_time: Vec<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ClientStats {
    pub key: String,
    pub requests: u64,
    pub denied: u64,
    /// The limit at which nothing would be denied.
    pub peak: u64,
}

/// The smallest rate that denies something to at most the wanted share of clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggested {
    pub units: u64,
    /// As the configuration writes it: `240/min`.
    pub rate: String,
    /// Clients that it still denies something.
    pub clients_hit: u64,
}

fn role_word<S: Serializer>(role: &Role, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(role.word())
}

impl Report {
    pub fn new(engine: &Engine, logs: Vec<LogSummary>, options: &ReportOptions) -> Report {
        let totals = &engine.counts.totals;
        let timeline = &engine.counts.timeline;
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
                .map(|(number, row)| limit(engine, number, row, options))
                .collect(),
            notes: notes(engine, &logs),
            timeline: RequestsOverTime {
                start: timeline.start_s(),
                step: timeline.length_s,
                requests: timeline.counts[counts::REQUESTS].clone(),
                denied: timeline.counts[counts::DENIED].clone(),
            },
            logs,
        }
    }

    pub fn unread_lines(&self) -> u64 {
        self.unread.iter().map(|(_, count)| count).sum()
    }
}

fn limit(engine: &Engine, number: usize, row: &WindowRow, options: &ReportOptions) -> LimitReport {
    let stats = &engine.counts.rows[number];
    let limit = &engine.plan.limits[row.limit].limit;
    let keys = &engine.counts.meters[row.meter].keys;
    let is_own = |key: &&KeyCounts| usize::from(key.row) == number && key.asked > 0;
    let own = || keys.iter().filter(is_own);
    let peaks = peaks(own(), stats);
    let clients = peaks.iter().map(|(_, count)| count).sum();
    let mut clients_hit = stats.forgotten_hit;
    for key in own() {
        for scale in SCALES {
            clients_hit[scale] += u64::from(key.hit[scale]);
        }
    }
    let per = per(row);
    let rate = |units: &u64| format!("{units}{per}");
    let share = options.suggest;
    let least = least_units(engine, limit);
    let suggested = share.and_then(|share| suggest(&peaks, clients, share, least));
    let rates = row.units.map(rate);
    let parts = limit.key.parts.iter();
    LimitReport {
        name: row.window.policy.to_string(),
        tier: row.tier.as_deref().map(str::to_owned),
        role: row.role,
        rate: rates.own.clone(),
        rates,
        units: row.units,
        key: parts
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
        requests: stats.asked,
        denied: stats.denied,
        clients,
        clients_hit,
        worst_clients: worst(own().collect(), engine, options),
        worst_minutes: stats.minutes.clone().into_sorted(),
        suggested: suggested.map(|units| Suggested {
            units,
            rate: rate(&units),
            clients_hit: clients_above(&peaks, units),
        }),
        per,
        peaks,
        over_time: engine.counts.timeline.counts[counts::FIRST_ROW + number].clone(),
    }
}

fn peaks<'e>(keys: impl Iterator<Item = &'e KeyCounts>, stats: &RowStats) -> Vec<(u64, u64)> {
    let mut peaks = BTreeMap::new();
    let kept = keys.map(|key| (key.need, 1));
    let forgotten = stats.forgotten.iter().map(|(need, count)| (*need, *count));
    for (need, count) in kept.chain(forgotten) {
        *peaks.entry(u64::from(need)).or_default() += count;
    }
    peaks.into_iter().collect()
}

/// The units that a rate needs so that each route of the limit can be allowed: a configuration with
/// a smaller rate is refused.
fn least_units(engine: &Engine, limit: &Limit) -> u64 {
    let routes = engine.config.routes.iter();
    let uses = |route: &&Route| route.limits.iter().any(|one| one.name == limit.name);
    let costs = routes.filter(uses).map(|route| match route.cost {
        CostSource::Fixed(units) => limit.units(units),
        CostSource::Header(_) | CostSource::Body(_) => 1,
    });
    costs.max().unwrap_or(1).max(limit.cost)
}

/// Finds the smallest limit of at least `least` units that denies something to at most this share
/// of clients. `peaks` is ascending.
fn suggest(peaks: &[(u64, u64)], clients: u64, share: f64, least: u64) -> Option<u64> {
    let most = (clients as f64 * share).floor() as u64;
    let mut above = 0;
    let mut found = None;
    for (need, count) in peaks.iter().rev() {
        if above > most {
            break;
        }
        found = Some((*need).max(least));
        above += count;
    }
    found
}

/// The clients that need more than a limit of these units.
fn clients_above(peaks: &[(u64, u64)], units: u64) -> u64 {
    let above = peaks.iter().rev().take_while(|(need, _)| *need > units);
    above.map(|(_, count)| count).sum()
}

fn worst(mut keys: Vec<&KeyCounts>, engine: &Engine, options: &ReportOptions) -> Vec<ClientStats> {
    let rank = |key: &KeyCounts| Reverse((key.denied, key.need, key.asked));
    let order = |one: &&KeyCounts, other: &&KeyCounts| {
        rank(one)
            .cmp(&rank(other))
            .then_with(|| one.name.cmp(&other.name))
    };
    if keys.len() > WORST {
        // Sorting a million clients takes longer than finding the few that are shown.
        keys.select_nth_unstable_by(WORST, order);
        keys.truncate(WORST);
    }
    keys.sort_unstable_by(order);
    let client = |key: &&KeyCounts| ClientStats {
        key: match &options.hash_keys {
            Some(secret) => hashed(&key.name, secret),
            None => key_spaces::display_name(&key.name, &engine.config.client_ip),
        },
        requests: u64::from(key.asked),
        denied: u64::from(key.denied),
        peak: u64::from(key.need),
    };
    keys.iter().map(client).collect()
}

/// A hash as short as in the access log. Only this report uses it.
fn hashed(name: &[u8], secret: &HashSecret) -> String {
    let hash = blake3::keyed_hash(secret.as_bytes(), name);
    let mut tag = [0; 16];
    tag.copy_from_slice(&hash.as_bytes()[..16]);
    crate::limit::KeyHash(tag).to_string()[..8].to_owned()
}

/// `/min`, ` at once`
fn per(row: &WindowRow) -> String {
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

pub fn notes(engine: &Engine, logs: &[LogSummary]) -> Vec<String> {
    let mut notes = Vec::new();
    missing_parts(engine, &mut notes);
    let totals = &engine.counts.totals;
    if totals.unknown_keys > 0 {
        notes.push(format!(
            "{} had an API key that is not known: as in the proxy it was no identity",
            counted(totals.unknown_keys, "request")
        ));
    }
    let mut meters = engine.counts.meters.iter();
    if totals.untimed > 0 {
        notes.push(format!(
            "{} were not asked for requests at once: the log does not say how long they took",
            counted(totals.untimed, "request")
        ));
    } else if meters.any(|meter| meter.algorithm() == Algorithm::Slots) {
        notes.push(
            "requests at once are held from their line on, for as long as they took".to_owned(),
        );
    }
    let settling = engine.settling_routes();
    if !settling.is_empty() {
        notes.push(format!(
            "no log says what a response settled: route {} was charged as it came in",
            settling.join(", ")
        ));
    }
    clock(engine, &mut notes);
    for (row, stats) in engine.plan.rows.iter().zip(&engine.counts.rows) {
        if !stats.forgotten.is_empty() {
            notes.push(format!(
                "limit `{}` met more keys than are kept at once (--max-keys): {} were forgotten, \
                 and count twice if they came again",
                row.window.policy,
                stats.forgotten.values().sum::<u64>()
            ));
        }
    }
    for log in logs {
        if let Some(error) = &log.error {
            notes.push(format!("{} ends early: {error}", log.name));
        }
    }
    notes
}

/// Names the parts of keys that no line had.
fn missing_parts(engine: &Engine, notes: &mut Vec<String>) {
    let has_unknown_keys = engine.counts.totals.unknown_keys > 0;
    for planned in &engine.plan.limits {
        let space = &engine.plan.key_spaces[planned.key_space];
        let never = space.never_carried();
        let never = never.filter(|part| !(has_unknown_keys && **part == Part::ApiKey));
        let parts: Vec<_> = never.map(ToString::to_string).collect();
        if parts.is_empty() || !space.asked {
            continue;
        }
        let limit = &planned.limit;
        let instead = match limit.missing {
            _ if !space.lacked => "it counted by the rest of its key",
            Missing::Ip => "it counted by the address (missing = \"ip\")",
            Missing::Shared => "all such requests were counted together (missing = \"shared\")",
            Missing::Skip => "it was not asked (missing = \"skip\")",
            Missing::Deny => "such requests were refused (missing = \"deny\")",
        };
        notes.push(format!(
            "limit `{}`: no line has {}; {instead}",
            limit.name,
            parts.join(" or ")
        ));
    }
}

fn clock(engine: &Engine, notes: &mut Vec<String>) {
    let clock = &engine.counts.clock;
    if clock.late > 0 {
        notes.push(format!(
            "{} were up to {:.1} s older than the line before: taken at its time",
            counted(clock.late, "line"),
            clock.latest_us as f64 / 1e6
        ));
    }
    if clock.steps > 0 {
        notes.push(format!(
            "the log's clock was set back {}",
            counted(clock.steps, "time")
        ));
    }
    if clock.leaps > 0 {
        notes.push(format!(
            "{} of a far future were taken at the time of the line before",
            counted(clock.leaps, "line")
        ));
    }
}

/// `1 line`, `12,345 lines`
pub fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{} {what}{s}", grouped(count))
}

/// `1,234,567`
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12.3 %`; small shares have more digits.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    match share {
        share if part == whole => format!("{share:.0} %"),
        share if share < 0.01 => "<0.01 %".to_owned(),
        share if share < 1.0 => format!("{share:.2} %"),
        share => format!("{:.1} %", share.min(99.9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_rate_for_a_share_of_clients() {
        let needs = [(1, 90), (5, 8), (40, 1), (900, 1)];
        for (share, units, hit) in [
            (0.0, 900, 0),
            (0.009, 900, 0),
            (0.01, 40, 1),
            (0.02, 5, 2),
            (0.099, 5, 2),
            (0.1, 1, 10),
            (1.0, 1, 10),
        ] {
            assert_eq!(suggest(&needs, 100, share, 1), Some(units), "{share}");
            assert_eq!(clients_above(&needs, units), hit, "{share}");
        }
        assert_eq!(suggest(&[], 0, 0.01, 1), None);
        assert_eq!(suggest(&[(0, 3)], 3, 0.0, 1), Some(1));
        assert_eq!(suggest(&needs, 100, 1.0, 3), Some(3));
    }
}
