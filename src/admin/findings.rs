//! Findings: what is probably wrong though nothing fails, told once each, with what to do.
//!
//! Looked for on the admin's thread: in what the workers count and tell anyway, and in what the
//! store says of itself over a connection of its own, every quarter of a minute.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::AdminState;
use super::schema::described;
use super::time::now_s;
use super::time::seconds;
use crate::clock;
use crate::config::{FINDINGS, RedisTopology, StoreKind};
use crate::limit::key::Part;
use crate::limit::{KeyHash, Limit};
use crate::server::introspection::Snapshot;
use crate::store::memory::Evictions;
use crate::store::redis::{ServerInfo, server_info};

const FORWARDED: &str = FINDINGS[0];
const ONE_CLIENT: &str = FINDINGS[1];
const CLOCK: &str = FINDINGS[2];
const EVICTS: &str = FINDINGS[3];
const REPLICA: &str = FINDINGS[4];
const FULL: &str = FINDINGS[5];

/// How long requests that were forwarded by nobody we trust, and evictions, are a finding, seconds.
const LATELY: u64 = 600;
/// How often clients are looked at, seconds.
const LOOK_EVERY: u64 = 5;
/// The share of a limit's requests that no single client should make, and of so many at least.
const SHARE: f64 = 0.9;
const LEAST: u64 = 1000;
/// How far the store's clock may be from ours, microseconds.
const CLOCK_US: u64 = 1_000_000;
/// How long the store has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Findings {
    found: BTreeMap<&'static str, Finding>,
    /// Requests that were forwarded by nobody we trust, and when there was last one more, seconds.
    forwarded: (u64, u64),
    /// Keys that the embedded store has evicted, and when it last evicted one more, seconds.
    evicted: (u64, u64),
    /// How long the store took to answer when it was last asked.
    pub(super) round_trip: Option<Duration>,
}

#[derive(Debug)]
struct Finding {
    text: String,
    first_us: u64,
    count: u64,
    /// Whether it was found when it was last looked for.
    holds: bool,
}

described! {
    struct FindingReport as "Finding" {
        id: &'static str,
        severity: &'static str,
        text: String,
        first_seen: f64,
        count: u64,
        silence: String,
    }
}

impl Findings {
    /// What was looked for, and if it was found, what to say and how often it was met.
    fn note(&mut self, id: &'static str, met: Option<(String, u64)>) {
        let Some((text, count)) = met else {
            if let Some(finding) = self.found.get_mut(id) {
                finding.holds = false;
            }
            return;
        };
        let finding = self.found.entry(id).or_insert_with(|| {
            tracing::warn!(finding = id, silence = silence(id), "{text}");
            Finding {
                text: String::new(),
                first_us: clock::unix_us(),
                count: 0,
                holds: true,
            }
        });
        (finding.text, finding.count, finding.holds) = (text, count, true);
    }

    /// The same of what is met anew at each look.
    fn note_again(&mut self, id: &'static str, met: Option<String>) {
        let before = self.found.get(id).map_or(0, |finding| finding.count);
        self.note(id, met.map(|text| (text, before + 1)));
    }

    /// What is found now.
    pub(super) fn reports(&self, silent: &[&str]) -> Vec<FindingReport> {
        let list = self.holding(silent).map(|(id, finding)| FindingReport {
            id,
            severity: "warning",
            text: finding.text.clone(),
            first_seen: seconds(finding.first_us),
            count: finding.count,
            silence: silence(id),
        });
        list.collect()
    }

    /// Each that there may be, and whether it is found now.
    pub(super) fn all(&self, silent: &[&str]) -> impl Iterator<Item = (&'static str, bool)> {
        let holding: Vec<&str> = self.holding(silent).map(|(id, _)| id).collect();
        FINDINGS
            .into_iter()
            .map(move |id| (id, holding.contains(&id)))
    }

    fn holding(&self, silent: &[&str]) -> impl Iterator<Item = (&'static str, &Finding)> {
        let found = self.found.iter().map(|(id, finding)| (*id, finding));
        found.filter(|(id, finding)| finding.holds && !silent.contains(id))
    }

    fn forwarded(&mut self, count: u64, now: u64) {
        if count > self.forwarded.0 {
            self.forwarded = (count, now);
        }
        let (most, last) = self.forwarded;
        let text = "peers outside `trusted_proxies` say whom they forward for (X-Forwarded-.., \
                    X-Real-IP), and are not believed: each of them counts as one client; if they \
                    are proxies of yours, name their networks in `trusted_proxies`";
        let lately = most > 0 && now < last + LATELY;
        self.note(FORWARDED, lately.then(|| (text.to_owned(), most)));
    }

    /// Counts that the embedded store forgot because it was full.
    fn evictions(&mut self, evictions: &[Evictions], now: u64) {
        let keys = evictions.iter().map(|one| one.keys).sum();
        if keys > self.evicted.0 {
            self.evicted = (keys, now);
        }
        let at_limit: u64 = evictions.iter().map(|one| one.at_limit).sum();
        let lately = keys > 0 && now < self.evicted.1 + LATELY;
        let most = evictions.first().filter(|_| lately);
        let text = most.map(|most| {
            format!(
                "the embedded store is full: {keys} counts were forgotten before they had expired, \
                 {at_limit} of them of clients at their limit, most by limit `{}`; raise \
                 `[store] max_keys` or `max_memory`, and put a limit by address beside every key \
                 that clients can invent",
                most.limit
            )
        });
        self.note(FULL, text.map(|text| (text, keys)));
    }

    /// What the store said of itself; nothing where it did not answer.
    fn of_store(&mut self, info: Option<&ServerInfo>, may_be_replica: bool, silent: &[&str]) {
        self.round_trip = info.and_then(|info| info.round_trip);
        let Some(info) = info else { return };
        let met = [
            (CLOCK, clock_is_off(info)),
            (EVICTS, evicts(info)),
            (REPLICA, is_replica(info).filter(|_| !may_be_replica)),
        ];
        for (id, met) in met {
            self.note_again(id, met.filter(|_| !silent.contains(&id)));
        }
    }
}

/// What to write where one is not wanted.
fn silence(id: &str) -> String {
    format!("[log] silence = [\"{id}\"]")
}

fn clock_is_off(info: &ServerInfo) -> Option<String> {
    let ahead_us = info.clock_ahead_us?;
    let off = ahead_us.unsigned_abs();
    let direction = if ahead_us > 0 { "ahead of" } else { "behind" };
    let seconds = off as f64 / 1e6;
    (off > CLOCK_US).then(|| {
        format!(
            "the store's clock is {seconds:.1} s {direction} this machine's: limits go by the \
             store's, so the times that clients are told in `X-RateLimit-Reset` are off; keep both \
             in time (NTP)"
        )
    })
}

fn evicts(info: &ServerInfo) -> Option<String> {
    info.forgets().map(|why| format!("the store: {why}"))
}

fn is_replica(info: &ServerInfo) -> Option<String> {
    let text = "the store is a replica, and takes no writes: limits follow `on_error`; name its \
                master in `[store] url`, or use `redis+sentinel://`";
    (info.role.as_deref() == Some("slave")).then(|| text.to_owned())
}

/// Whether a limit counts clients apart: one that does not has but one key for all of them.
fn tells_clients_apart(limit: &Limit) -> bool {
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

impl AdminState {
    pub(super) fn findings(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for what can be seen in this process.
    pub(super) fn look_for_findings(&self) {
        let now = now_s();
        self.server.introspection.inspect(|snapshot| {
            let silent = &snapshot.config.log.silence;
            if !silent.contains(&FORWARDED) {
                let forwarded = snapshot.proxies().map(|proxy| proxy.meter().forwarded());
                self.findings().forwarded(forwarded.sum(), now);
            }
            if !silent.contains(&FULL) {
                let evictions = snapshot.counts.in_process().evictions();
                self.findings().evictions(&evictions, now);
            }
            if now.is_multiple_of(LOOK_EVERY) && !silent.contains(&ONE_CLIENT) {
                let met = self.one_client(snapshot, now);
                self.findings().note(ONE_CLIENT, met);
            }
        });
    }

    fn one_client(&self, snapshot: &Snapshot<'_>, now: u64) -> Option<(String, u64)> {
        let crowd = self.crowd();
        let limits = snapshot.config.limits.iter();
        let mut limits = limits.filter(|limit| tells_clients_apart(limit));
        let (limit, client) = limits.find_map(|limit| {
            let client = crowd.dominant(&limit.name, SHARE, LEAST, now)?;
            Some((&limit.name, client))
        })?;
        let id = KeyHash(client.tag.to_le_bytes());
        let text = format!(
            "one client makes nine of ten requests that limit `{limit}` counts ({id}): a proxy in \
             front that `trusted_proxies` does not name looks like that, and so does a key that \
             all clients share"
        );
        Some((text, client.requests))
    }
}

/// Asks the store about itself, beside everything else.
pub(super) fn ask_store(state: &Arc<AdminState>) {
    let seen = state
        .server
        .introspection
        .inspect(|snapshot| match &snapshot.config.store.kind {
            StoreKind::Redis(redis) => Some((redis.clone(), snapshot.config.log.silence.clone())),
            StoreKind::Memory => None,
        });
    let Some(Some((redis, silent))) = seen else {
        return;
    };
    let state = Arc::clone(state);
    tokio::spawn(async move {
        // Any node of a cluster may answer, also one that takes no writes.
        let may_be_replica = matches!(redis.topology, RedisTopology::Cluster { .. });
        let said = server_info(&redis, PATIENCE).await.ok();
        state
            .findings()
            .of_store(said.as_ref(), may_be_replica, &silent);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(findings: &Findings) -> Vec<&'static str> {
        findings.holding(&[]).map(|(id, _)| id).collect()
    }

    #[test]
    fn what_a_store_says_of_itself_is_judged() {
        let mut findings = Findings::default();
        let fine = ServerInfo {
            role: Some("master".to_owned()),
            maxmemory_policy: Some("noeviction".to_owned()),
            round_trip: Some(Duration::from_millis(1)),
            clock_ahead_us: Some(-900_000),
            ..ServerInfo::default()
        };
        findings.of_store(Some(&fine), false, &[]);
        assert!(ids(&findings).is_empty());
        assert_eq!(findings.round_trip, fine.round_trip);
        let odd = ServerInfo {
            role: Some("slave".to_owned()),
            maxmemory_policy: Some("allkeys-lru".to_owned()),
            clock_ahead_us: Some(-1_500_000),
            ..ServerInfo::default()
        };
        findings.of_store(Some(&odd), true, &[CLOCK]);
        assert_eq!(ids(&findings), [EVICTS]);
        findings.of_store(Some(&odd), false, &[]);
        assert_eq!(ids(&findings), [CLOCK, EVICTS, REPLICA]);
        let told = findings.reports(&[EVICTS, REPLICA]);
        assert_eq!(told.len(), 1);
        let text = &told[0].text;
        assert!(text.contains("1.5 s behind"), "{text}");
        assert_eq!(told[0].silence, "[log] silence = [\"store-clock\"]");
        // Silence says nothing new, and what is mended is not told.
        findings.of_store(None, false, &[]);
        assert_eq!((ids(&findings).len(), findings.round_trip), (3, None));
        findings.of_store(Some(&fine), false, &[]);
        assert!(findings.all(&[]).all(|(_, holds)| !holds));
        assert_eq!(findings.found[EVICTS].count, 2);
    }

    #[test]
    fn evictions_are_a_finding_for_a_while() {
        let mut findings = Findings::default();
        findings.evictions(&[], 1000);
        assert!(ids(&findings).is_empty());
        let of = |limit: &str, keys, at_limit| Evictions {
            limit: limit.into(),
            keys,
            at_limit,
            units: keys,
        };
        findings.evictions(&[of("b", 7, 2), of("a", 1, 0)], 1001);
        assert_eq!(ids(&findings), [FULL]);
        let text = &findings.found[FULL].text;
        assert!(
            text.contains("8 counts") && text.contains("limit `b`"),
            "{text}"
        );
        findings.evictions(&[of("b", 7, 2), of("a", 1, 0)], 1001 + LATELY);
        assert!(ids(&findings).is_empty());
    }

    #[test]
    fn forwarding_by_nobody_is_a_finding_for_a_while() {
        let mut findings = Findings::default();
        findings.forwarded(0, 1000);
        assert!(ids(&findings).is_empty());
        findings.forwarded(3, 1001);
        assert_eq!(ids(&findings), [FORWARDED]);
        findings.forwarded(3, 1000 + LATELY);
        assert_eq!(findings.reports(&[])[0].count, 3);
        findings.forwarded(3, 1001 + LATELY);
        assert!(ids(&findings).is_empty());
    }
}
