//! Findings: probable mistakes that make nothing fail. Each is logged once, with advice.
//!
//! The counters of the workers are checked every second, the store is asked about itself every 15
//! seconds.

mod jwks;
mod usage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use usage::UsageIssue;

use super::crowd::Crowd;
use super::known_keys;
use super::response::{now, seconds};
use super::schema::described;
use crate::clock;
use crate::config::FINDINGS;
use crate::limit::Limit;
use crate::limit::key::Part;
use crate::proxy::Proxy;
use crate::server::introspection::Snapshot;
use crate::store::counts_file::CountsFile;
use crate::store::memory::Evictions;
use crate::store::redis::ServerInfo;
use crate::telemetry::metrics::Meter;
use crate::telemetry::metrics::decide::DecideSum;

const FORWARDED: &str = FINDINGS[0];
const ONE_CLIENT: &str = FINDINGS[1];
const CLOCK: &str = FINDINGS[2];
const EVICTS: &str = FINDINGS[3];
const REPLICA: &str = FINDINGS[4];
const FULL: &str = FINDINGS[5];
const UNMATCHED: &str = FINDINGS[6];
const IGNORED_LIMITS: &str = FINDINGS[7];
const LOST_REPORTS: &str = FINDINGS[8];
const REFUSED_CALLERS: &str = FINDINGS[9];
const NO_USAGE: &str = FINDINGS[10];
const ENCODED: &str = FINDINGS[11];
const ABOVE_ESTIMATE: &str = FINDINGS[12];
const STORE_FILE: &str = FINDINGS[13];
const JWKS_STALE: &str = FINDINGS[14];
const KNOWN_KEYS: &str = FINDINGS[15];
const KEY_CALLBACK: &str = FINDINGS[16];
const WITHOUT_HEADERS: &str = FINDINGS[17];

/// How long a finding about a counter holds after the counter last grew, seconds.
const RECENT: u64 = 600;
/// How often single clients are checked, seconds.
const CHECK_CLIENTS_EVERY: u64 = 5;
/// A client that makes this share of the requests of a limit is a finding.
const DOMINANT_SHARE: f64 = 0.9;
/// The least requests of a limit for that finding.
const DOMINANT_LEAST: u64 = 1000;
/// How far the clock of the store may be from ours, microseconds.
const MAX_CLOCK_OFFSET_US: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Findings {
    found: BTreeMap<&'static str, Finding>,
    /// Requests with forwarding headers from peers that are not trusted.
    forwarded: GrowingCount,
    /// Keys that the embedded store has evicted.
    evicted: GrowingCount,
    /// What proxies that ask for decisions do, and what answers of model servers lack, by the id of
    /// the finding.
    growing: BTreeMap<&'static str, GrowingCount>,
    /// How long the store took for its last answer.
    pub(super) round_trip: Option<Duration>,
}

#[derive(Debug)]
struct Finding {
    report: FindingReport,
    /// Whether the last check found it.
    holds: bool,
}

struct FoundIssue {
    text: String,
    count: u64,
}

/// A count of the workers, and when it last grew.
#[derive(Debug, Default)]
struct GrowingCount {
    count: u64,
    grew_at: u64,
}

impl GrowingCount {
    /// Returns the count if it has grown recently. A reload may make `count` smaller.
    fn recent(&mut self, count: u64, now: u64) -> Option<u64> {
        if count > self.count {
            (self.count, self.grew_at) = (count, now);
        }
        (self.count > 0 && now < self.grew_at + RECENT).then_some(self.count)
    }
}

described! {
    struct FindingReport as "Finding" {
        id: String,
        severity: String,
        text: String,
        first_seen: f64,
        count: u64,
        silence: String,
    }
}

impl Findings {
    /// Checks what can be seen in this process.
    pub(super) fn check(&mut self, snapshot: &Snapshot<'_>, crowd: &Crowd, now: u64) {
        let silent = &snapshot.config.log.silence;
        if !silent.contains(&FORWARDED) {
            let meters = snapshot.proxies().map(Proxy::meter);
            self.check_forwarded(meters.map(Meter::untrusted_forwarding).sum(), now);
        }
        if !silent.contains(&FULL) {
            self.check_evictions(&snapshot.counts.in_process().evictions(), now);
        }
        if let Some(file) = snapshot.counts.counts_file()
            && !silent.contains(&STORE_FILE)
        {
            self.note(STORE_FILE, unwritten(file));
        }
        if snapshot.config.decide.is_some() {
            self.check_questions(snapshot, now);
        }
        self.check_usage(snapshot, now);
        if !silent.contains(&JWKS_STALE) {
            self.note(
                JWKS_STALE,
                jwks::stale(snapshot.config.jwks.as_deref(), now),
            );
        }
        let keys = [
            (KNOWN_KEYS, known_keys::unusable_keys(snapshot)),
            (KEY_CALLBACK, known_keys::away_callback(snapshot)),
        ];
        for (id, text) in keys.into_iter().filter(|(id, _)| !silent.contains(id)) {
            let count = self.found.get(id).map_or(0, |finding| finding.report.count) + 1;
            self.note(id, text.map(|text| FoundIssue { text, count }));
        }
        if now.is_multiple_of(CHECK_CLIENTS_EVERY) && !silent.contains(&ONE_CLIENT) {
            self.note(
                ONE_CLIENT,
                dominant_client(&snapshot.config.limits, crowd, now),
            );
        }
    }

    fn note(&mut self, id: &'static str, found: Option<FoundIssue>) {
        let Some(FoundIssue { text, count }) = found else {
            if let Some(finding) = self.found.get_mut(id) {
                finding.holds = false;
            }
            return;
        };
        let finding = self.found.entry(id).or_insert_with(|| {
            let report = FindingReport {
                id: id.to_owned(),
                severity: "warning".to_owned(),
                first_seen: now(),
                silence: format!("[log] silence = [\"{id}\"]"),
                ..FindingReport::default()
            };
            tracing::warn!(finding = id, silence = report.silence, "{text}");
            Finding {
                report,
                holds: true,
            }
        });
        (finding.report.text, finding.report.count, finding.holds) = (text, count, true);
    }

    pub(super) fn reports(&self, silent: &[&str]) -> Vec<FindingReport> {
        let holding = self.holding(silent);
        holding.map(|finding| finding.report.clone()).collect()
    }

    /// Whether the finding holds now and is not silenced.
    pub(super) fn holds(&self, id: &str, silent: &[&str]) -> bool {
        self.holding(silent).any(|finding| finding.report.id == id)
    }

    fn holding(&self, silent: &[&str]) -> impl Iterator<Item = &Finding> {
        let found = self.found.iter();
        let holding = found.filter(|(id, finding)| finding.holds && !silent.contains(id));
        holding.map(|(_, finding)| finding)
    }

    fn check_forwarded(&mut self, count: u64, now: u64) {
        let recent = self.forwarded.recent(count, now);
        let found = recent.map(|count| FoundIssue {
            text: "peers outside `trusted_proxies` send X-Forwarded-.., X-Real-IP or the header \
                   of `client_ip`. tidegate ignores these headers, and each peer counts as one \
                   client. If they are your proxies, name their networks in `trusted_proxies`"
                .to_owned(),
            count,
        });
        self.note(FORWARDED, found);
    }

    fn check_questions(&mut self, snapshot: &Snapshot<'_>, now: u64) {
        let mut sum = DecideSum::default();
        let meters = snapshot.proxies().map(Proxy::meter);
        meters.for_each(|meter| meter.decide().add_to(&mut sum));
        let domains: Vec<&str> = sum.unmatched.keys().map(String::as_str).collect();
        let unmatched = format!(
            "proxies send descriptors that no rule takes, so nothing limits them. Their domains: \
             {}. Compare the entries with `tidegate explain --rls`",
            domains.join(", ")
        );
        let found = [
            (UNMATCHED, sum.unmatched.values().sum(), unmatched.as_str()),
            (
                IGNORED_LIMITS,
                sum.ignored_limits,
                "a proxy brings limits of its own with its descriptors, and they are ignored. \
                 `[decide] overrides = true` believes them",
            ),
            (
                LOST_REPORTS,
                sum.lost_reports,
                "descriptors with `hits_addend` were denied and not charged. If they report what a \
                 response cost, give their rules `charge = \"always\"`",
            ),
            (
                REFUSED_CALLERS,
                sum.refused_callers,
                "an address outside `[decide] from` asks for decisions and is refused. If it is \
                 your proxy, name its network there",
            ),
            (
                WITHOUT_HEADERS,
                sum.without_headers,
                "a proxy asks without a header that describes the client's request, and each such \
                 request is denied. Have it set X-Forwarded-Method, -Uri, -Host and -For",
            ),
        ];
        let silent = &snapshot.config.log.silence;
        for (id, count, text) in found.into_iter().filter(|(id, ..)| !silent.contains(id)) {
            let recent = self.growing.entry(id).or_default().recent(count, now);
            let text = text.to_owned();
            self.note(id, recent.map(|count| FoundIssue { text, count }));
        }
    }

    fn check_usage(&mut self, snapshot: &Snapshot<'_>, now: u64) {
        let silent = &snapshot.config.log.silence;
        let issues = usage::issues(&usage::routes(snapshot)).into_iter();
        for UsageIssue { id, found } in issues.filter(|issue| !silent.contains(&issue.id)) {
            let growing = self.growing.entry(id).or_default();
            let count = found.as_ref().map_or(0, |found| found.count);
            let is_recent = growing.recent(count, now).is_some();
            self.note(id, found.filter(|_| is_recent));
        }
    }

    fn check_evictions(&mut self, evictions: &[Evictions], now: u64) {
        let keys: u64 = evictions.iter().map(|one| one.keys).sum();
        let at_limit: u64 = evictions.iter().map(|one| one.at_limit).sum();
        let recent = self.evicted.recent(keys, now).is_some() && keys > 0;
        let most = evictions.first().filter(|_| recent);
        let found = most.map(|most| FoundIssue {
            text: format!(
                "the embedded store is full: it evicted {keys} counts before they expired, \
                 {at_limit} of them of clients at their limit, most of limit `{}`. Raise `[store] \
                 max_keys` or `max_memory`. Put a limit by address beside every key that clients \
                 can invent",
                most.limit
            ),
            count: keys,
        });
        self.note(FULL, found);
    }

    /// Checks what the store says of itself. `None` says that it did not answer.
    pub(super) fn check_store(
        &mut self,
        info: Option<&ServerInfo>,
        may_be_replica: bool,
        silent: &[&str],
    ) {
        self.round_trip = info.and_then(|info| info.round_trip);
        let Some(info) = info else { return };
        let checks = [
            (CLOCK, clock_offset(info)),
            (
                EVICTS,
                info.forgets().map(|why| format!("the store: {why}")),
            ),
            (REPLICA, replica(info).filter(|_| !may_be_replica)),
        ];
        for (id, text) in checks {
            let before = self.found.get(id).map_or(0, |finding| finding.report.count);
            let text = text.filter(|_| !silent.contains(&id));
            let count = before + 1;
            self.note(id, text.map(|text| FoundIssue { text, count }));
        }
    }
}

fn unwritten(file: &CountsFile) -> Option<FoundIssue> {
    let trouble = file.trouble()?;
    let lag = clock::now().saturating_duration_since(trouble.since);
    let text = format!(
        "`[store] file` {} cannot be written: {}. A restart would lose what calendar windows have \
         counted since then. Counting goes on, and all of it is written once this is mended",
        file.path().display(),
        trouble.reason
    );
    Some(FoundIssue {
        text,
        count: lag.as_secs().max(1),
    })
}

fn clock_offset(info: &ServerInfo) -> Option<String> {
    let ahead_us = info.clock_ahead_us?;
    let offset_us = ahead_us.unsigned_abs();
    let direction = if ahead_us > 0 { "ahead of" } else { "behind" };
    let seconds = seconds(offset_us);
    (offset_us > MAX_CLOCK_OFFSET_US).then(|| {
        format!(
            "the store's clock is {seconds:.1} s {direction} this machine's. Limits use the \
             store's clock, so `X-RateLimit-Reset` is wrong for clients. Synchronize both clocks \
             (NTP)"
        )
    })
}

fn replica(info: &ServerInfo) -> Option<String> {
    let text = "the store is a replica and takes no writes, so limits follow `on_error`. Name its \
                master in `[store] url`, or use `redis+sentinel://`";
    (info.role.as_deref() == Some("slave")).then(|| text.to_owned())
}

/// Finds a client that makes nearly all requests of a limit that counts clients separately.
fn dominant_client(limits: &[Arc<Limit>], crowd: &Crowd, now: u64) -> Option<FoundIssue> {
    let mut limits = limits.iter().filter(|limit| separates_clients(limit));
    let (limit, client) = limits.find_map(|limit| {
        let client = crowd.dominant(&limit.name, DOMINANT_SHARE, DOMINANT_LEAST, now)?;
        Some((&limit.name, client))
    })?;
    let id = client.tag;
    let text = format!(
        "one client ({id}) makes nine of ten requests that limit `{limit}` counts. Is it a proxy \
         in front that `trusted_proxies` does not name, or a key that all clients share?"
    );
    Some(FoundIssue {
        text,
        count: client.requests,
    })
}

/// Whether the key of a limit depends on the client.
fn separates_clients(limit: &Limit) -> bool {
    let mut parts = limit.key.parts.iter().flat_map(|part| part.0.iter());
    parts.any(|part| {
        !matches!(
            part,
            Part::Global
                | Part::Route
                | Part::Path
                | Part::PathParam(_)
                | Part::Method
                | Part::Host
                | Part::Tier
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(findings: &Findings) -> Vec<&str> {
        let holding = findings.holding(&[]);
        holding.map(|finding| &*finding.report.id).collect()
    }

    #[test]
    fn a_store_that_describes_itself_is_judged() {
        let mut findings = Findings::default();
        let fine = ServerInfo {
            role: Some("master".to_owned()),
            maxmemory_policy: Some("noeviction".to_owned()),
            round_trip: Some(Duration::from_millis(1)),
            clock_ahead_us: Some(-900_000),
            ..ServerInfo::default()
        };
        findings.check_store(Some(&fine), false, &[]);
        assert!(ids(&findings).is_empty());
        assert_eq!(findings.round_trip, fine.round_trip);
        let odd = ServerInfo {
            role: Some("slave".to_owned()),
            maxmemory_policy: Some("allkeys-lru".to_owned()),
            clock_ahead_us: Some(-1_500_000),
            ..ServerInfo::default()
        };
        findings.check_store(Some(&odd), true, &[CLOCK]);
        assert_eq!(ids(&findings), [EVICTS]);
        findings.check_store(Some(&odd), false, &[]);
        assert_eq!(ids(&findings), [CLOCK, EVICTS, REPLICA]);
        let reports = findings.reports(&[EVICTS, REPLICA]);
        assert_eq!(reports.len(), 1);
        let text = &reports[0].text;
        assert!(text.contains("1.5 s behind"), "{text}");
        assert_eq!(reports[0].silence, "[log] silence = [\"store-clock\"]");
        // A store that does not answer changes no finding. A store that is fine ends them.
        findings.check_store(None, false, &[]);
        assert_eq!((ids(&findings).len(), findings.round_trip), (3, None));
        findings.check_store(Some(&fine), false, &[]);
        assert!(FINDINGS.iter().all(|id| !findings.holds(id, &[])));
        assert_eq!(findings.found[EVICTS].report.count, 2);
    }

    #[test]
    fn evictions_are_a_finding_for_a_while() {
        let mut findings = Findings::default();
        findings.check_evictions(&[], 1000);
        assert!(ids(&findings).is_empty());
        let of = |limit: &str, keys, at_limit| Evictions {
            limit: limit.into(),
            keys,
            at_limit,
            units: keys,
        };
        findings.check_evictions(&[of("b", 7, 2), of("a", 1, 0)], 1001);
        assert_eq!(ids(&findings), [FULL]);
        let text = &findings.found[FULL].report.text;
        assert!(
            text.contains("8 counts") && text.contains("limit `b`"),
            "{text}"
        );
        findings.check_evictions(&[of("b", 7, 2), of("a", 1, 0)], 1001 + RECENT);
        assert!(ids(&findings).is_empty());
    }

    #[test]
    fn forwarding_by_untrusted_peers_is_a_finding_for_a_while() {
        let mut findings = Findings::default();
        findings.check_forwarded(0, 1000);
        assert!(ids(&findings).is_empty());
        findings.check_forwarded(3, 1001);
        assert_eq!(ids(&findings), [FORWARDED]);
        findings.check_forwarded(3, 1000 + RECENT);
        assert_eq!(findings.reports(&[])[0].count, 3);
        findings.check_forwarded(3, 1001 + RECENT);
        assert!(ids(&findings).is_empty());
    }
}
