//! Outages of the store: their lines in the log, the debts of requests that were admitted
//! meanwhile, and the debts after a loss of the store's memory.
//!
//! An outage shorter than [`OUTAGE_AFTER`] gets no line in the log. A longer one gets two lines:
//! when it has lasted so long, and when it is over. A store that fails again and again would fill
//! the log. So after [`FULL_REPORTS`] outages further ones are damped: one line sums up those of
//! [`SUM_UP_AFTER`]. Damping ends when the store has been well for [`QUIET`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::RedisShared;
use crate::clock;
use crate::config::{RedisAddress, RedisTopology};
use crate::limit::{Charge, Decided};
use crate::store::StoreError;
use crate::store::recovery::{Greeting, Heartbeat};

#[cfg(test)]
mod tests;

/// A shorter outage is shown neither in the log nor in charts.
pub const OUTAGE_AFTER: Duration = Duration::from_millis(100);
/// Outages with lines of their own before further ones are damped.
const FULL_REPORTS: u32 = 5;
const QUIET: Duration = Duration::from_secs(60);
/// The time from the first outage without a line to the line that sums up.
const SUM_UP_AFTER: Duration = Duration::from_secs(10);
/// So many outages shorter than [`OUTAGE_AFTER`] are worth a line that sums them up.
const MANY_SHORT: u32 = 10;

/// The outages of one server. Time is an argument.
#[derive(Debug, Default)]
struct OutageLog {
    /// Workers that are without the server.
    workers: u32,
    current: Option<CurrentOutage>,
    /// Outages with lines of their own since the store was last well for [`QUIET`].
    reported: u32,
    /// When the last outage of [`OUTAGE_AFTER`] or longer ended.
    ended: Option<Instant>,
    unreported: Option<UnreportedOutages>,
}

#[derive(Clone, Copy, Debug)]
struct CurrentOutage {
    since: Instant,
    kind: StoreError,
    stage: OutageStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageStage {
    /// Nothing yet: it is shorter than [`OUTAGE_AFTER`].
    Fresh,
    Reported,
    /// It waits to be summed up.
    Damped,
}

/// Outages without lines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnreportedOutages {
    since: Instant,
    outages: u32,
    /// How many of them lasted for [`OUTAGE_AFTER`] or longer.
    long: u32,
    /// How long they lasted together.
    away: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageLine {
    Away(StoreError),
    Back {
        after: Duration,
    },
    Summary {
        outages: u32,
        within: Duration,
        away: Duration,
        /// The error of an outage that goes on; its end gets a line.
        still: Option<StoreError>,
    },
}

impl OutageLog {
    fn begin(&mut self, kind: StoreError, now: Instant) -> bool {
        self.workers += 1;
        let is_first = self.workers == 1;
        if is_first {
            let stage = OutageStage::Fresh;
            let since = now;
            self.current = Some(CurrentOutage { since, kind, stage });
        }
        is_first
    }

    /// Called [`OUTAGE_AFTER`] after an outage began at `since`. Returns its line if it goes on and
    /// gets one.
    fn lasts(&mut self, since: Instant, now: Instant) -> Option<OutageLine> {
        let outage = self.current.as_mut()?;
        if outage.since != since || outage.stage != OutageStage::Fresh {
            return None;
        }
        if self.ended.is_none_or(|ended| ended + QUIET <= since) {
            self.reported = 0;
        }
        if self.reported < FULL_REPORTS {
            self.reported += 1;
            outage.stage = OutageStage::Reported;
            return Some(OutageLine::Away(outage.kind));
        }
        outage.stage = OutageStage::Damped;
        let unreported = self.unreported.get_or_insert(UnreportedOutages::new(now));
        unreported.outages += 1;
        unreported.long += 1;
        None
    }

    /// One worker fewer is without the server. Returns the line of the outage's end, if it gets
    /// one.
    fn end(&mut self, now: Instant) -> Option<OutageLine> {
        self.workers = self.workers.saturating_sub(1);
        if self.workers > 0 {
            return None;
        }
        let outage = self.current.take()?;
        let after = now.saturating_duration_since(outage.since);
        if outage.stage != OutageStage::Fresh {
            self.ended = Some(now);
        }
        if outage.stage == OutageStage::Reported {
            return Some(OutageLine::Back { after });
        }
        let unreported = self.unreported.get_or_insert(UnreportedOutages::new(now));
        unreported.outages += u32::from(outage.stage == OutageStage::Fresh);
        unreported.away += after;
        None
    }

    fn sums_up_at(&self) -> Option<Instant> {
        self.unreported
            .map(|unreported| unreported.since + SUM_UP_AFTER)
    }

    fn sum_up(&mut self, now: Instant) -> Option<OutageLine> {
        self.sums_up_at().filter(|due| *due <= now)?;
        let mut unreported = self.unreported.take()?;
        if unreported.long == 0 && unreported.outages < MANY_SHORT {
            return None;
        }
        let still = self
            .current
            .as_mut()
            .filter(|one| one.stage == OutageStage::Damped);
        let still = still.map(|outage| {
            outage.stage = OutageStage::Reported;
            unreported.away += now.saturating_duration_since(outage.since);
            outage.kind
        });
        Some(OutageLine::Summary {
            outages: unreported.outages,
            within: now.saturating_duration_since(unreported.since),
            away: unreported.away,
            still,
        })
    }

    fn is_over(&self, now: Instant) -> bool {
        let is_quiet = self.ended.is_none_or(|ended| ended + QUIET <= now);
        self.current.is_none() && self.unreported.is_none() && is_quiet
    }
}

impl UnreportedOutages {
    fn new(since: Instant) -> UnreportedOutages {
        UnreportedOutages {
            since,
            outages: 0,
            long: 0,
            away: Duration::ZERO,
        }
    }
}

/// Writes the lines about one server, or about one node of a cluster.
#[derive(Debug)]
struct OutageReporter {
    /// Names the node, where the store has several.
    node: Option<String>,
    /// The address of a store without nodes.
    server: Option<Arc<str>>,
    log: Mutex<OutageLog>,
    /// Decisions not made since the last line that reported their number.
    unmade: Arc<AtomicU64>,
}

impl OutageReporter {
    fn begin(self: &Arc<Self>, kind: StoreError, now: Instant) {
        if !self.log().begin(kind, now) {
            return;
        }
        let reporter = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(OUTAGE_AFTER).await;
            reporter.update(|log| log.lasts(now, clock::now()));
        });
    }

    /// Writes the line of a change, and sums up later where the change makes that due.
    fn update(self: &Arc<Self>, change: impl FnOnce(&mut OutageLog) -> Option<OutageLine>) {
        let (line, due) = {
            let mut log = self.log();
            let was_due = log.sums_up_at();
            let line = change(&mut log);
            (line, log.sums_up_at().filter(|_| was_due.is_none()))
        };
        if let Some(line) = line {
            self.write(line);
        }
        if let Some(due) = due {
            self.sum_up_at(due);
        }
    }

    fn sum_up_at(self: &Arc<Self>, due: Instant) {
        let reporter = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            reporter.update(|log| log.sum_up(clock::now()));
        });
    }

    fn write(&self, line: OutageLine) {
        let node = self.node.as_ref().map(tracing::field::display);
        let server = self.server.as_ref().map(tracing::field::display);
        let (there, replaced) = match self.node {
            Some(_) => (" kept there", ", or replaced"),
            None => ("", ""),
        };
        let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
        let decisions_without = || self.unmade.swap(0, Ordering::Relaxed);
        match line {
            OutageLine::Away(kind) => tracing::warn!(
                kind = kind.label(),
                node,
                server,
                "redis: {kind}; limits{there} follow on_error until it is back"
            ),
            OutageLine::Back { after } => tracing::info!(
                seconds = %seconds(after),
                decisions_without = decisions_without(),
                node,
                "redis: back{replaced}"
            ),
            OutageLine::Summary {
                outages,
                within,
                away,
                still,
            } => {
                let now = match still {
                    Some(kind) => format!("{kind}; limits{there} follow on_error until it is back"),
                    None => "well now".to_owned(),
                };
                tracing::warn!(
                    outages,
                    seconds = %seconds(away),
                    decisions_without = decisions_without(),
                    node,
                    server,
                    "redis: failed {outages} more times in {:.0} s; {now}",
                    within.as_secs_f64()
                );
            }
        }
    }

    fn log(&self) -> MutexGuard<'_, OutageLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct Outages {
    /// By node; `None` is the server of a store without nodes. Servers that have been well for long
    /// are removed.
    reporters: Mutex<HashMap<Option<RedisAddress>, Arc<OutageReporter>>>,
    /// Decisions not made since the last line that reported their number.
    unmade: Arc<AtomicU64>,
    /// The address of the store, for the log.
    place: Arc<str>,
}

impl Outages {
    pub(super) fn new(topology: &RedisTopology) -> Outages {
        Outages {
            reporters: Mutex::default(),
            unmade: Arc::default(),
            place: topology.to_string().into(),
        }
    }

    /// One worker more is without a server.
    pub(super) fn begin(&self, node: Option<&RedisAddress>, kind: StoreError, now: Instant) {
        let mut reporters = self.reporters();
        reporters.retain(|_, one| !one.log().is_over(now));
        let reporter = reporters.entry(node.cloned()).or_insert_with(|| {
            Arc::new(OutageReporter {
                node: node.map(ToString::to_string),
                server: node.is_none().then(|| Arc::clone(&self.place)),
                log: Mutex::default(),
                unmade: Arc::clone(&self.unmade),
            })
        });
        reporter.begin(kind, now);
    }

    /// One worker fewer is without a server.
    pub(super) fn end(&self, node: Option<&RedisAddress>, now: Instant) {
        if let Some(reporter) = self.reporters().get(&node.cloned()) {
            reporter.update(|log| log.end(now));
        }
    }

    /// Since when some worker is without some server.
    pub(super) fn away_since(&self) -> Option<Instant> {
        let reporters = self.reporters();
        let outages = reporters.values().filter_map(|one| one.log().current);
        outages.map(|outage| outage.since).min()
    }

    pub(super) fn count_unmade(&self) {
        self.unmade.fetch_add(1, Ordering::Relaxed);
    }

    fn reporters(&self) -> MutexGuard<'_, HashMap<Option<RedisAddress>, Arc<OutageReporter>>> {
        self.reporters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisShared {
    pub fn may_decide_alone(&self) -> bool {
        self.recovery.may_decide(self.clock.now_us())
    }

    pub fn suspect(&self, lost: Charge) {
        let now_us = self.clock.now_us();
        self.recovery.away(now_us);
        // The next heartbeat says whether everything is lost.
        self.beat_at_us.store(0, Ordering::Relaxed);
        for item in lost {
            self.journal.suspect(item, now_us);
        }
    }

    /// Whether an answer since the last heartbeat had too few units.
    pub(super) fn is_suspicious(&self) -> bool {
        self.beat_at_us.load(Ordering::Relaxed) == 0
    }

    /// The store has lost its memory: all that was admitted here is charged to it again.
    fn owe_all(&self) {
        let at = self.instant();
        let admitted = self.local.get().map(|local| local.admitted());
        let admitted = admitted.unwrap_or_default();
        if !admitted.is_empty() {
            tracing::warn!(
                keys = admitted.len(),
                "redis: Redis lost its data; this proxy charges its admitted units again"
            );
        }
        for item in admitted {
            self.journal.put(item, at);
        }
    }

    pub(super) fn note_greeting(&self, greeting: Greeting, beat: Heartbeat) {
        let (recovery, now_us) = (&self.recovery, self.clock.now_us());
        recovery.store_clock.note(beat.now_us, now_us);
        if recovery.take_greeting(greeting, beat, now_us) {
            self.owe_all();
        }
        let fleet = recovery.fleet();
        if fleet.is_larger_than_configured() && !self.warned_of_more.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                proxies = fleet.size(),
                "redis: more proxies share the store than `fleet`; shares follow the larger number"
            );
        }
    }

    /// Whether some worker is without the server, or without a node of the cluster.
    pub(super) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire) > 0
    }

    /// Whether this process owes the store something. Units that the store seems to have lost count
    /// as owed, although they are charged later. Else all proxies would trust the store too early.
    pub(super) fn owes(&self) -> bool {
        !self.journal.is_empty()
    }

    /// Owes a charge that the store made before it lost its memory, if this process had heard of
    /// the loss before the store's answer came.
    pub fn owe_if_lost(&self, charge: &Charge, at_us: u64, generation: u64) {
        if self.recovery.has_lost(at_us) {
            self.owe(charge, generation);
        }
    }

    pub fn owe(&self, charge: &Charge, generation: u64) {
        let at = self.instant();
        self.recovery.away(at.now_us);
        // The store knows no tags that were made with a provisional key.
        if self.is_current(generation) {
            self.journal.add(charge, at);
        }
    }

    /// Gives back units that it owes. The local decision was made `age_us` ago.
    pub fn owe_less(&self, less: Decided<'_>, age_us: u64, generation: u64) {
        if self.is_current(generation) {
            self.journal.give_back(less, age_us, self.instant());
        }
    }

    /// One worker more is without the server, or without a node of the cluster.
    pub(super) fn trouble_begins(
        &self,
        node: Option<&RedisAddress>,
        kind: StoreError,
        now: Instant,
    ) {
        self.troubled.fetch_add(1, Ordering::AcqRel);
        self.recovery.away(self.clock.now_us());
        self.outages.begin(node, kind, now);
    }

    /// One worker fewer is without the server, or without a node of the cluster.
    pub(super) fn trouble_ends(&self, node: Option<&RedisAddress>, now: Instant) {
        if self.troubled.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.recovery.back(self.clock.now_us());
        }
        self.recovery.last_answers.forget_clock();
        self.outages.end(node, now);
    }

    pub(super) fn count_begun_anew(&self, keys: u16) {
        self.begun_anew
            .fetch_add(u64::from(keys), Ordering::Relaxed);
        tracing::warn!(
            keys,
            "redis: keys of tidegate had foreign data; they were deleted and start at zero"
        );
    }
}
