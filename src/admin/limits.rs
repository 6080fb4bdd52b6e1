//! `/api/v1/limits`: the limits with their decisions, and the busiest clients of a limit.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use similar::{Change, TextDiff};

use super::crowd::{BusyClient, LimitUse};
use super::history::{LimitRates, count};
use super::request::ApiRequest;
use super::response::{ApiError, now_s, seconds};
use super::schema::{described, quantity_words, words};
use super::state::{AdminState, ServerRecord};
use crate::clock;
use crate::config::{Promotion, promoted};
use crate::limit::{Algorithm, KeyHash, Limit, Tier, Window};
use crate::proxy::Proxy;
use crate::telemetry::metrics::{HeldSum, LimitSum, LimitVerdict, Sum};

const MAX_ROUTES: usize = 100;
/// Clients with requests that wait, in an answer.
const MAX_WAITING: usize = 10;
/// The most and the usual number of busiest clients in an answer.
pub(super) const MAX_BUSIEST: usize = 100;
pub(super) const DEFAULT_BUSIEST: usize = 50;

/// Lines around a change.
const CONTEXT: usize = 3;
/// Settings whose lines may be context.
const OPEN_SETTINGS: [&str; 15] = [
    "rate",
    "calendar",
    "candidate",
    "shadow",
    "key",
    "algorithm",
    "precision",
    "missing",
    "on_error",
    "cost",
    "counts",
    "delay",
    "delay_queue",
    "ban",
    "status",
];

described! {
    struct LimitList {
        limits: Vec<LimitState>,
    }

    struct LimitState as "Limit" {
        name: String,
        rates: Vec<String>,
        /// The rates of `rates` that count by a calendar.
        calendar: Vec<CalendarReport>,
        tiers: BTreeMap<String, Vec<String>>,
        key: String,
        algorithm: String = words(&["log", "counter", "slots", "calendar"]),
        /// The quantity of its units. Money is in millionths.
        counts: String = quantity_words(),
        mode: String = words(&["enforced", "shadow"]),
        candidate: Option<CandidateReport>,
        on_error: String,
        /// The status of its denials, if it is not that of `[deny]`.
        status: Option<u32>,
        /// How long it holds a request instead of denying it. Absent for a limit without `delay`.
        delay_seconds: Option<f64>,
        /// Requests of one key that it holds at once, at most.
        delay_queue: Option<u32>,
        /// The denials that begin a ban of a key. Absent for a limit without `ban`.
        ban: Option<BanReport>,
        /// Requests that it holds now.
        waiting: Option<u64>,
        /// The clients with the most of these requests.
        waiting_clients: Vec<WaitingClient>,
        routes: Vec<String>,
        totals: LimitTotals,
        per_second: LimitRates,
        headroom: Option<f64> = json!({ "minimum": 0, "maximum": 1 }),
        r#use: LimitUse,
    }

    struct BanReport as "Ban" {
        /// Denials of a key within `window_seconds` that begin a ban.
        after: u64,
        window_seconds: f64,
        /// How long the first ban lasts.
        for_seconds: f64,
        /// How many times longer each further ban lasts, up to `max_for_seconds`.
        again: u64,
        max_for_seconds: f64,
    }

    struct WaitingClient {
        id: String,
        waiting: u64,
    }

    struct CalendarReport as "CalendarWindow" {
        policy: String,
        unit: String = words(&["day", "week", "month", "year"]),
        zone: String,
        /// When the window of now ends, in its zone, for a client with the limit's own anchor.
        resets_at: String,
    }

    struct CandidateReport {
        rates: Vec<String>,
        allowed: u64,
        denied: u64,
    }

    struct LimitTotals {
        allowed: u64,
        denied: u64,
        shadow_denied: u64,
        bypassed: u64,
    }

    struct PromotionList {
        file: String,
        /// When the proxy loaded the file.
        loaded_at: f64,
        promotions: Vec<PromotionReport>,
    }

    struct PromotionReport as "Promotion" {
        what: String = words(&["shadow", "candidate"]),
        /// Requests that it would have allowed since the start of the process.
        allowed: u64,
        denied: u64,
        /// A unified diff of the file as it was loaded. Null if the file spells the limit in a form
        /// that the proxy does not change.
        patch: Option<String>,
    }

    struct ClientsReport {
        requests: u64,
        clients: Vec<ClientReport>,
    }

    struct ClientReport as "Client" {
        id: String,
        key: Option<String>,
        requests: u64,
        error: u64,
        denied: u64,
        share: f64,
        /// Units that were used after its last request, of the rate that was used most.
        used: u64,
        /// Units of that rate.
        units: u64,
    }
}

/// All limits, in the order of the configuration.
pub(super) fn limits(state: &AdminState) -> Result<LimitList, ApiError> {
    state.collect();
    state.inspect(|snapshot| {
        let mut routes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for route in snapshot.config.routes.iter() {
            for limit in &route.limits {
                let names = routes.entry(&limit.name).or_default();
                if names.len() < MAX_ROUTES {
                    names.push(route.name.to_string());
                }
            }
        }
        let sum = Sum::without_routes(snapshot.proxies().map(Proxy::meter));
        let reports = snapshot.config.limits.iter().map(|limit| {
            let routes = routes.remove(&*limit.name).unwrap_or_default();
            limit_state(state, limit, routes, &sum)
        });
        LimitList {
            limits: reports.collect(),
        }
    })
}

fn limit_state(state: &AdminState, limit: &Limit, routes: Vec<String>, sum: &Sum) -> LimitState {
    let rates = |windows: &[Arc<Window>]| -> Vec<String> {
        windows.iter().map(|window| window.rate()).collect()
    };
    let none = LimitSum::default();
    let counted = sum.limits.get(&limit.name).unwrap_or(&none);
    let tried = sum.candidates.get(&limit.name).unwrap_or(&none);
    let candidate = (!limit.candidate.is_empty()).then(|| CandidateReport {
        rates: rates(&limit.candidate),
        allowed: count(tried, LimitVerdict::Allowed),
        denied: count(tried, LimitVerdict::ShadowDenied),
    });
    let tier = |tier: &Tier| (tier.name.to_string(), rates(&tier.windows));
    let key: Vec<String> = limit.key.parts.iter().map(ToString::to_string).collect();
    let now = now_s();
    let ServerRecord { crowd, history, .. } = &*state.record();
    LimitState {
        name: limit.name.to_string(),
        rates: rates(&limit.windows),
        calendar: limit.windows.iter().filter_map(calendar).collect(),
        tiers: limit.tiers.iter().map(tier).collect(),
        key: key.join(", "),
        algorithm: algorithm(limit).to_owned(),
        counts: limit.counts.word().to_owned(),
        mode: mode(limit).to_owned(),
        candidate,
        on_error: limit.on_error.word().to_owned(),
        status: limit.status.map(|status| status.as_u16().into()),
        delay_seconds: limit.delay.map(|delay| seconds(delay.longest_us)),
        delay_queue: limit.delay.map(|delay| delay.queue),
        ban: limit.ban.map(|ban| BanReport {
            after: ban.after,
            window_seconds: seconds(ban.window_us),
            for_seconds: seconds(ban.first_us),
            again: ban.again,
            max_for_seconds: seconds(ban.max_us),
        }),
        waiting: limit
            .delay
            .map(|_| sum.held.get(&limit.name).map_or(0, |held| held.waiting)),
        waiting_clients: (sum.held.get(&limit.name)).map_or_else(Vec::new, waiting_clients),
        routes,
        totals: LimitTotals {
            allowed: count(counted, LimitVerdict::Allowed),
            denied: count(counted, LimitVerdict::Denied),
            shadow_denied: count(counted, LimitVerdict::ShadowDenied),
            bypassed: count(counted, LimitVerdict::Bypassed),
        },
        per_second: history.per_second(&limit.name),
        headroom: crowd.headroom(&limit.name, now).map(f64::from),
        r#use: crowd.usage(&limit.name, now),
    }
}

/// The clients with the most requests that wait.
fn waiting_clients(held: &HeldSum) -> Vec<WaitingClient> {
    let client = |(tag, waiting): (&[u8; 16], &u64)| WaitingClient {
        id: KeyHash(*tag).to_string(),
        waiting: *waiting,
    };
    let mut clients: Vec<WaitingClient> = held.keys.iter().map(client).collect();
    clients.sort_by_key(|client| Reverse(client.waiting));
    clients.truncate(MAX_WAITING);
    clients
}

fn calendar(window: &Arc<Window>) -> Option<CalendarReport> {
    let calendar = window.calendar.as_ref()?;
    let end_us = calendar.span(None, clock::unix_us()).end_us;
    Some(CalendarReport {
        policy: window.policy.to_string(),
        unit: calendar.unit().word().to_owned(),
        zone: calendar.settings().zone.name.to_string(),
        resets_at: calendar.text(end_us),
    })
}

/// The settings of a limit that can be enforced: shadow mode, and a candidate.
pub(super) fn promotions(request: &ApiRequest) -> Result<PromotionList, ApiError> {
    let state = &request.state;
    let name = request.path.limit.as_deref().unwrap_or_default();
    let Some(file) = &state.server.file else {
        let detail = "the proxy was started by flags: there is no file";
        return Err(ApiError::new(StatusCode::CONFLICT, detail));
    };
    let short = file.file_name().unwrap_or_default().to_string_lossy();
    state.inspect(|snapshot| {
        let mut limits = snapshot.config.limits.iter();
        let limit = limits.find(|limit| *limit.name == *name);
        let limit = limit.ok_or_else(|| ApiError::no_limit(name))?;
        let text = &snapshot.config.sources.text;
        let sum = Sum::without_routes(snapshot.proxies().map(Proxy::meter));
        let report = |kind: Promotion, counts: Option<&LimitSum>| {
            let counts = counts.copied().unwrap_or_default();
            PromotionReport {
                what: kind.word().to_owned(),
                allowed: count(&counts, LimitVerdict::Allowed),
                denied: count(&counts, LimitVerdict::ShadowDenied),
                patch: promotion_patch(&short, text, name, kind),
            }
        };
        let shadow = limit
            .shadow
            .then(|| report(Promotion::Shadow, sum.limits.get(name)));
        let has_candidate = !limit.candidate.is_empty();
        let candidate =
            has_candidate.then(|| report(Promotion::Candidate, sum.candidates.get(name)));
        Ok(PromotionList {
            file: file.display().to_string(),
            loaded_at: seconds(snapshot.loaded_us),
            promotions: shadow.into_iter().chain(candidate).collect(),
        })
    })?
}

pub(super) fn mode(limit: &Limit) -> &'static str {
    if limit.shadow { "shadow" } else { "enforced" }
}

fn algorithm(limit: &Limit) -> &'static str {
    let first = limit.windows.first();
    first.map_or("log", |window| match window.rule.algorithm {
        Algorithm::Log => "log",
        Algorithm::Counter => "counter",
        Algorithm::Slots => "slots",
        Algorithm::Calendar => "calendar",
    })
}

pub(super) fn busiest(request: &ApiRequest) -> Result<ClientsReport, ApiError> {
    let state = &request.state;
    let limit = request.path.limit.as_deref().unwrap_or_default();
    let top = match request.parameter("top").map(|top| top.parse()) {
        None => DEFAULT_BUSIEST,
        Some(Ok(top @ 1..=MAX_BUSIEST)) => top,
        Some(_) => return Err(ApiError::bad_request("`top` is a number from 1 to 100")),
    };
    let exists = state.inspect(|snapshot| {
        let mut limits = snapshot.config.limits.iter();
        limits.any(|one| *one.name == *limit)
    })?;
    if !exists {
        return Err(ApiError::no_limit(limit));
    }
    state.collect();
    let busiest = state.record().crowd.busiest(limit, now_s());
    let report = |client: &BusyClient| ClientReport {
        id: client.tag.to_string(),
        key: None,
        requests: client.requests,
        error: client.error,
        denied: client.denied,
        share: client.requests as f64 / busiest.requests.max(1) as f64,
        used: client.used.into(),
        units: client.units.into(),
    };
    Ok(ClientsReport {
        requests: busiest.requests,
        clients: busiest.clients.iter().take(top).map(report).collect(),
    })
}

/// The unified diff of a promotion. It has one hunk, with lines of that limit's table only. `None`
/// if the proxy cannot make the change, or if a line may have a key of a client.
fn promotion_patch(file: &str, text: &str, limit: &str, kind: Promotion) -> Option<String> {
    let promoted = promoted(text, limit, kind)?;
    // A line keeps its `\r`, so that the patch fits a file with such line ends.
    let before: Vec<&str> = text.split_terminator('\n').collect();
    let after: Vec<&str> = promoted.split_terminator('\n').collect();
    let equal = |one: &(&&str, &&str)| one.0 == one.1;
    let same_above = before.iter().zip(&after).take_while(equal).count();
    let (old, new) = (&before[same_above..], &after[same_above..]);
    let same_below = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(equal)
        .count();
    let (old, below) = old.split_at(old.len() - same_below);
    let new = &new[..new.len() - same_below];
    let line = |change: Change<&str>| format!("{}{}\n", change.tag(), change.value());
    let diff = TextDiff::from_slices(old, new);
    let changed: Vec<String> = diff.iter_all_changes().map(line).collect();
    if changed.is_empty() || changed.iter().any(|line| line.contains("exempt")) {
        return None;
    }
    let above = before[..same_above].iter().rev();
    let above: Vec<&str> = context(above.copied());
    let below: Vec<&str> = context(below.iter().copied().take_while(|line| !is_header(line)));
    let start = same_above - above.len() + 1;
    let [old_lines, new_lines] = [old, new].map(|lines| above.len() + lines.len() + below.len());
    // Without lines of its own, a side names the line before.
    let new_start = if new_lines == 0 { start - 1 } else { start };
    let places = format!("-{start},{old_lines} +{new_start},{new_lines}");
    let mut diff = format!("--- a/{file}\n+++ b/{file}\n@@ {places} @@\n");
    let unchanged = |line: &str| format!(" {line}\n");
    diff.extend(above.into_iter().rev().map(unchanged));
    diff.extend(changed);
    diff.extend(below.into_iter().map(unchanged));
    Some(diff)
}

/// The first lines that may be shown, up to the header of the table.
fn context<'t>(lines: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut shown = Vec::new();
    for line in lines.take(CONTEXT) {
        let name = line.split('=').next().unwrap_or_default().trim();
        if !is_header(line) && !OPEN_SETTINGS.contains(&name) {
            break;
        }
        shown.push(line);
        if is_header(line) {
            break;
        }
    }
    shown
}

fn is_header(line: &str) -> bool {
    line.trim_start().starts_with('[')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
        [store]\nurl = \"redis://:secret@store\"\n\n\
        # Note.\n[limit.search]\nrate = \"100/min\"  # as before\nkey = \"ip\"\n\
        candidate = \"60/min\"\nshadow = true\nexempt = [\"partner-key\"]\n\n\
        [limit]\nlogin = { rate = \"5/min\", shadow = true, candidate = \"3/min\" }\n\
        dotted.rate = \"1/s\"\ndotted.shadow = true\n";

    fn patch(limit: &str, kind: Promotion) -> Option<String> {
        promotion_patch("proxy.toml", FILE, limit, kind)
    }

    #[test]
    fn a_limit_in_shadow_mode_is_enforced() {
        let patch = patch("search", Promotion::Shadow).unwrap();
        let expected = "--- a/proxy.toml\n+++ b/proxy.toml\n@@ -6,4 +6,3 @@\n \
            rate = \"100/min\"  # as before\n key = \"ip\"\n candidate = \"60/min\"\n\
            -shadow = true\n";
        assert_eq!(patch, expected);
    }

    #[test]
    fn a_candidate_replaces_the_rate() {
        let patch = patch("search", Promotion::Candidate).unwrap();
        let expected = "--- a/proxy.toml\n+++ b/proxy.toml\n@@ -5,5 +5,4 @@\n [limit.search]\n\
            -rate = \"100/min\"  # as before\n+rate = \"60/min\"  # as before\n key = \"ip\"\n\
            -candidate = \"60/min\"\n shadow = true\n";
        assert_eq!(patch, expected);
    }

    #[test]
    fn other_forms_of_a_limit_are_promoted_too() {
        let inline = |kind| patch("login", kind).unwrap();
        let shadow = inline(Promotion::Shadow);
        let line = "+login = { rate = \"5/min\", candidate = \"3/min\" }\n";
        assert!(shadow.contains(line), "{shadow}");
        let candidate = inline(Promotion::Candidate);
        let line = "+login = { rate = \"3/min\", shadow = true }\n";
        assert!(candidate.contains(line), "{candidate}");
        let dotted = patch("dotted", Promotion::Shadow).unwrap();
        assert!(dotted.ends_with("\n-dotted.shadow = true\n"), "{dotted}");
    }

    #[test]
    fn a_patch_has_the_line_ends_of_its_file() {
        let windows = FILE.replace('\n', "\r\n");
        for limit in ["search", "login", "dotted"] {
            for kind in [Promotion::Shadow, Promotion::Candidate] {
                let crlf = promotion_patch("proxy.toml", &windows, limit, kind);
                let expected = patch(limit, kind).map(|patch| {
                    let (head, lines) = patch.split_at(patch.find("@@\n").unwrap() + 3);
                    format!("{head}{}", lines.replace('\n', "\r\n"))
                });
                assert_eq!(crlf, expected, "{limit}");
            }
        }
    }

    #[test]
    fn no_patch_shows_a_secret_or_changes_nothing() {
        for limit in ["search", "login", "dotted"] {
            for kind in [Promotion::Shadow, Promotion::Candidate] {
                let patch = patch(limit, kind).unwrap_or_default();
                assert!(!patch.contains("secret") && !patch.contains("partner"));
            }
        }
        assert_eq!(patch("dotted", Promotion::Candidate), None);
        assert_eq!(patch("other", Promotion::Shadow), None);
        let inline = "limit = { a = { rate = \"1/s\", shadow = true, exempt = [\"k\"] } }\n";
        assert_eq!(promotion_patch("f", inline, "a", Promotion::Shadow), None);
    }
}
