//! The result of a replay as figures and words, with notes about what the log lacked.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::bans::{BanCounts, RecordName};
use super::counts::{self, CallTotals, HeldStats, Outside, RowStats};
use super::engine::Engine;
use super::entry::Fault;
use super::key_spaces;
use super::logs::LogSummary;
use super::meter::{KeyCounts, Rates, SCALES};
use super::notes;
use super::plan::WindowRow;
use super::timeline::Minute;
use crate::limit::key::HashSecret;
use crate::limit::{Algorithm, Limit, Rate, Role};
use crate::route::{CostSource, Route};
use crate::usage::settings::{Quantity, UsageSettings};
use crate::usage::tokens::TokenCounts;

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
    /// Requests whose limits count what their answers used.
    pub calls: CallTotals,
    /// The first and the last time, microseconds since the epoch.
    pub times: Option<(u64, u64)>,
    /// One for each rate of each limit.
    pub limits: Vec<LimitReport>,
    /// `None` if no limit bans.
    pub bans: Option<BanReport>,
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

/// The bans of all limits, as `--json` writes them.
#[derive(Debug, Serialize)]
pub struct BanReport {
    /// Bans that would have begun.
    pub begun: u64,
    /// Keys that would have been banned.
    pub keys: u64,
    /// Requests that a ban would have denied. They are among the denied ones.
    pub denied: u64,
    /// The keys with the most requests that a ban would have denied.
    pub worst: Vec<BannedKey>,
}

#[derive(Debug, Serialize)]
pub struct BannedKey {
    pub limit: String,
    pub key: String,
    pub bans: u64,
    pub denied: u64,
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
    /// What it counts of a request, as `counts` of the configuration names it.
    pub counts: &'static str,
    /// The unit for people, if it is not a request.
    #[serde(skip)]
    pub unit: Option<&'static str>,
    pub requests: u64,
    /// What all its requests cost, denied ones too. `None` if the limit counts no calls of model
    /// servers.
    pub spent: Option<u64>,
    pub denied: Rates<u64>,
    /// Requests that wait instead. `None` for a limit without `delay`.
    pub waits: Option<WaitReport>,
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

/// Requests that a limit holds instead of denying them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WaitReport {
    pub requests: u64,
    pub mean_ms: f64,
    pub longest_ms: f64,
}

impl WaitReport {
    fn new(held: HeldStats) -> WaitReport {
        let millis = |us: u64| us as f64 / 1e3;
        WaitReport {
            requests: held.requests,
            mean_ms: millis(held.total_us / held.requests.max(1)),
            longest_ms: millis(held.longest_us),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct ClientStats {
    pub key: String,
    pub requests: u64,
    /// What its requests cost, denied ones too. `None` if the limit counts no calls of model
    /// servers.
    pub spent: Option<u64>,
    pub denied: u64,
    /// The limit at which nothing would be denied, and no window would be overdrawn.
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
            calls: totals.calls,
            times: totals.times,
            limits: rows
                .map(|(number, row)| limit(engine, number, row, options))
                .collect(),
            bans: bans(engine, options),
            notes: notes::of_log(engine, &logs),
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

fn bans(engine: &Engine, options: &ReportOptions) -> Option<BanReport> {
    let limits = &engine.plan.limits;
    limits.iter().find(|planned| planned.limit.ban.is_some())?;
    let bans = &engine.counts.bans;
    let mut banned: Vec<(&RecordName, &BanCounts)> = bans.banned.iter().collect();
    banned.sort_by_key(|(_, counts)| Reverse((counts.denied, counts.bans)));
    let key = |(of, counts): &(&RecordName, &BanCounts)| BannedKey {
        limit: limits[of.limit].limit.name.to_string(),
        key: key_text(&of.key, engine, options),
        bans: counts.bans,
        denied: counts.denied,
    };
    Some(BanReport {
        begun: bans.totals.bans,
        keys: banned.len() as u64,
        denied: bans.totals.denied,
        worst: banned.iter().take(WORST).map(key).collect(),
    })
}

fn key_text(name: &[u8], engine: &Engine, options: &ReportOptions) -> String {
    match &options.hash_keys {
        Some(secret) => hashed(name, secret),
        None => key_spaces::display_name(name, &engine.config.client_ip),
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
    let counts_usage = counts_usage(engine, row);
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
        counts: counts_word(limit.counts),
        unit: counts_usage.then(|| unit_words(limit.counts)),
        requests: stats.asked,
        spent: counts_usage.then_some(stats.spent),
        denied: stats.denied,
        waits: limit.delay.map(|_| WaitReport::new(stats.held)),
        clients,
        clients_hit,
        worst_clients: worst(own().collect(), counts_usage, engine, options),
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
    let costs = routes
        .filter(uses)
        .map(|route| match (&route.usage, &route.cost) {
            (Some(usage), _) => limit.units(least_call(usage, limit.counts)),
            (None, CostSource::Fixed(units)) => limit.units(*units),
            (None, CostSource::Header(_) | CostSource::Body(_)) => 1,
        });
    costs.max().unwrap_or(1).max(limit.cost)
}

/// The units of one token of input, of the cheapest model.
fn least_call(usage: &UsageSettings, counts: Quantity) -> u64 {
    let tokens = TokenCounts {
        input: 1,
        ..TokenCounts::default()
    };
    let prices = usage.prices.rows.iter().map(|row| row.price.units(tokens));
    match counts {
        Quantity::Money => prices.min().unwrap_or(0),
        counts => usage.units(counts, tokens, "").unwrap_or(0),
    }
}

/// Whether what an answer used changes the counts of a row.
fn counts_usage(engine: &Engine, row: &WindowRow) -> bool {
    let limit = &engine.plan.limits[row.limit].limit;
    let mut routes = engine.config.routes.iter();
    let uses = |route: &Route| route.limits.iter().any(|one| one.name == limit.name);
    limit.counts_usage() && routes.any(|route| route.usage.is_some() && uses(route))
}

fn counts_word(counts: Quantity) -> &'static str {
    match counts {
        Quantity::Costs => "costs",
        Quantity::Requests => "requests",
        Quantity::Tokens => "tokens",
        Quantity::Input => "input",
        Quantity::Output => "output",
        Quantity::Money => "money",
    }
}

fn unit_words(counts: Quantity) -> &'static str {
    match counts {
        Quantity::Costs => "weighted tokens",
        Quantity::Requests => "requests",
        Quantity::Tokens => "tokens",
        Quantity::Input => "input tokens",
        Quantity::Output => "output tokens",
        Quantity::Money => "millionths",
    }
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

fn worst(
    mut keys: Vec<&KeyCounts>,
    counts_usage: bool,
    engine: &Engine,
    options: &ReportOptions,
) -> Vec<ClientStats> {
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
        key: key_text(&key.name, engine, options),
        requests: u64::from(key.asked),
        spent: counts_usage.then_some(key.spent),
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
    format!("/{}", Rate::from_rule(rule).window_text())
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
