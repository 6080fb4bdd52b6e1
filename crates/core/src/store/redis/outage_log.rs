//! Which outages of the store get lines in the log.
//!
//! An outage that is shorter than [`OUTAGE_AFTER`] gets none. A longer one gets two: when it has
//! lasted so long, and when it is over. A store that fails again and again would fill the log, so
//! after [`TOLD`] outages its further ones are damped: one line sums up those of
//! [`SUM_UP_AFTER`]. Damping ends when the store has been well for [`QUIET`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::store::StoreError;

/// An outage that is shorter than this is no line of the log, and no stretch of a chart.
pub const OUTAGE_AFTER: Duration = Duration::from_millis(100);
/// Outages with lines of their own before further ones are damped.
const TOLD: u32 = 5;
/// How long a store must have been well until each outage has lines of its own again.
const QUIET: Duration = Duration::from_secs(60);
/// The time from the first outage that has no line to the line that sums up.
const SUM_UP_AFTER: Duration = Duration::from_secs(10);
/// Outages shorter than [`OUTAGE_AFTER`] that are worth a line if there were so many to sum up.
const MANY_SHORT: u32 = 10;

/// The outages of one server. Time is an argument.
#[derive(Debug, Default)]
struct OutageLog {
    /// Workers that are without it.
    workers: u32,
    current: Option<CurrentOutage>,
    /// Outages with lines of their own since the store was last well for [`QUIET`].
    told: u32,
    /// When the last outage of [`OUTAGE_AFTER`] or longer ended.
    ended: Option<Instant>,
    untold: Option<UntoldOutages>,
}

#[derive(Clone, Copy, Debug)]
struct CurrentOutage {
    since: Instant,
    kind: StoreError,
    stage: OutageStage,
}

/// What the log says of an outage that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageStage {
    /// Nothing yet: it is shorter than [`OUTAGE_AFTER`].
    Fresh,
    Told,
    /// It waits to be summed up.
    Damped,
}

/// Outages without lines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UntoldOutages {
    since: Instant,
    outages: u32,
    /// How many of them lasted for [`OUTAGE_AFTER`] or longer.
    long: u32,
    /// How long they lasted together.
    away: Duration,
}

/// One line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageLine {
    Away(StoreError),
    Back {
        after: Duration,
    },
    Sum {
        outages: u32,
        within: Duration,
        away: Duration,
        /// The last outage goes on; its end gets a line.
        still: Option<StoreError>,
    },
}

impl OutageLog {
    /// One worker more is without the server. Returns whether an outage begins.
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

    /// The outage that began at `since` goes on at `now`, if it does: [`OUTAGE_AFTER`] later.
    /// Returns its line, if it gets one.
    fn last(&mut self, since: Instant, now: Instant) -> Option<OutageLine> {
        let outage = self.current.as_mut()?;
        if outage.since != since || outage.stage != OutageStage::Fresh {
            return None;
        }
        if self.ended.is_none_or(|ended| ended + QUIET <= since) {
            self.told = 0;
        }
        if self.told < TOLD {
            self.told += 1;
            outage.stage = OutageStage::Told;
            return Some(OutageLine::Away(outage.kind));
        }
        outage.stage = OutageStage::Damped;
        let untold = self.untold.get_or_insert(UntoldOutages::new(now));
        untold.outages += 1;
        untold.long += 1;
        None
    }

    /// One worker fewer is without the server.
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
        if outage.stage == OutageStage::Told {
            return Some(OutageLine::Back { after });
        }
        let untold = self.untold.get_or_insert(UntoldOutages::new(now));
        untold.outages += u32::from(outage.stage == OutageStage::Fresh);
        untold.away += after;
        None
    }

    /// When outages without lines are due to be summed up.
    fn sums_up_at(&self) -> Option<Instant> {
        self.untold.map(|untold| untold.since + SUM_UP_AFTER)
    }

    /// Sums up, if it is due at `now`.
    fn sum_up(&mut self, now: Instant) -> Option<OutageLine> {
        self.sums_up_at().filter(|due| *due <= now)?;
        let mut untold = self.untold.take()?;
        if untold.long == 0 && untold.outages < MANY_SHORT {
            return None;
        }
        let still = self
            .current
            .as_mut()
            .filter(|one| one.stage == OutageStage::Damped);
        let still = still.map(|outage| {
            outage.stage = OutageStage::Told;
            untold.away += now.saturating_duration_since(outage.since);
            outage.kind
        });
        Some(OutageLine::Sum {
            outages: untold.outages,
            within: now.saturating_duration_since(untold.since),
            away: untold.away,
            still,
        })
    }

    /// Whether nothing of it matters at `now` any more.
    fn is_over(&self, now: Instant) -> bool {
        let is_quiet = self.ended.is_none_or(|ended| ended + QUIET <= now);
        self.current.is_none() && self.untold.is_none() && is_quiet
    }
}

impl UntoldOutages {
    fn new(since: Instant) -> UntoldOutages {
        UntoldOutages {
            since,
            outages: 0,
            long: 0,
            away: Duration::ZERO,
        }
    }
}

/// Writes the lines about one server, or about one node of a cluster.
#[derive(Debug)]
pub(super) struct OutageReporter {
    /// Names the node, where the store has several.
    node: Option<String>,
    log: Mutex<OutageLog>,
    /// Decisions that were asked for and not made since the last line that told of them.
    unmade: Arc<AtomicU64>,
}

impl OutageReporter {
    pub(super) fn new(node: Option<String>, unmade: Arc<AtomicU64>) -> OutageReporter {
        OutageReporter {
            node,
            log: Mutex::default(),
            unmade,
        }
    }

    /// One worker more is without the server.
    pub(super) fn begin(self: &Arc<Self>, kind: StoreError, now: Instant) {
        if !self.log().begin(kind, now) {
            return;
        }
        let reporter = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(OUTAGE_AFTER).await;
            reporter.update(|log| log.last(now, clock::now()));
        });
    }

    /// One worker fewer is without the server.
    pub(super) fn end(self: &Arc<Self>, now: Instant) {
        self.update(|log| log.end(now));
    }

    /// Since when some worker is without the server.
    pub(super) fn away_since(&self) -> Option<Instant> {
        self.log().current.map(|outage| outage.since)
    }

    /// Whether the server is well, and has been for long.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.log().is_over(now)
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
        let (there, replaced) = match self.node {
            Some(_) => (" kept there", ", or replaced"),
            None => ("", ""),
        };
        let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
        let without = || self.unmade.swap(0, Ordering::Relaxed);
        match line {
            OutageLine::Away(kind) => tracing::warn!(
                kind = kind.label(),
                node,
                "redis: {kind}; limits{there} follow on_error until it is back"
            ),
            OutageLine::Back { after } => tracing::info!(
                seconds = %seconds(after),
                decisions_without = without(),
                node,
                "redis: back{replaced}"
            ),
            OutageLine::Sum {
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
                    decisions_without = without(),
                    node,
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    const KIND: StoreError = StoreError::Refused;

    /// A log, its clock, and the lines so far with their times.
    struct TimedLog {
        log: OutageLog,
        now: Instant,
        lines: Vec<OutageLine>,
    }

    impl TimedLog {
        fn new() -> TimedLog {
            TimedLog {
                log: OutageLog::default(),
                now: clock::now(),
                lines: Vec::new(),
            }
        }

        /// Lets time pass as the reporter's timer does.
        fn pass(&mut self, time: Duration) {
            let until = self.now + time;
            while let Some(due) = self.log.sums_up_at().filter(|due| *due <= until) {
                self.lines.extend(self.log.sum_up(due));
            }
            self.now = until;
        }

        fn outage(&mut self, time: Duration) {
            let since = self.now;
            assert!(self.log.begin(KIND, since));
            if time >= OUTAGE_AFTER {
                self.pass(OUTAGE_AFTER);
                self.lines.extend(self.log.last(since, self.now));
                self.pass(time - OUTAGE_AFTER);
            } else {
                self.pass(time);
                let (since, now) = (self.now, self.now);
                assert_eq!(self.log.last(since, now), None, "it is another outage");
            }
            self.lines.extend(self.log.end(self.now));
        }

        fn outages(&mut self, count: u32, away: Duration, well: Duration) {
            for _ in 0..count {
                self.outage(away);
                self.pass(well);
            }
        }
    }

    #[test]
    fn an_outage_of_milliseconds_gets_no_line() {
        let mut told = TimedLog::new();
        told.outages(9, 99 * MS, 60 * SECOND);
        assert_eq!(told.lines, []);
        told.outage(100 * MS);
        let after = 100 * MS;
        assert_eq!(
            told.lines,
            [OutageLine::Away(KIND), OutageLine::Back { after }]
        );
    }

    #[test]
    fn many_outages_of_milliseconds_get_one_line() {
        let mut told = TimedLog::new();
        told.outages(10, 50 * MS, 150 * MS);
        told.pass(20 * SECOND);
        let [
            OutageLine::Sum {
                outages,
                away,
                still,
                ..
            },
        ] = told.lines[..]
        else {
            panic!("{:?}", told.lines);
        };
        assert_eq!((outages, away, still), (10, 500 * MS, None));
    }

    #[test]
    fn outages_of_single_workers_are_one() {
        let mut told = TimedLog::new();
        let since = told.now;
        assert!(told.log.begin(KIND, since));
        assert!(!told.log.begin(KIND, since + 30 * MS));
        assert_eq!(
            told.log.last(since, since + 100 * MS),
            Some(OutageLine::Away(KIND))
        );
        assert_eq!(told.log.end(since + SECOND), None);
        let after = 2 * SECOND;
        assert_eq!(
            told.log.end(since + after),
            Some(OutageLine::Back { after })
        );
    }

    #[test]
    fn a_store_that_flaps_for_an_hour_gets_few_lines_that_count_every_outage() {
        let mut told = TimedLog::new();
        told.outages(6_000, 300 * MS, 300 * MS);
        told.pass(2 * SUM_UP_AFTER);
        let sums = told
            .lines
            .iter()
            .filter(|line| matches!(line, OutageLine::Sum { .. }));
        assert!(sums.count() <= 360, "one in ten seconds");
        assert!(told.lines.len() <= 2 * 5 + 2 * 360, "{}", told.lines.len());
        let counted: u32 = (told.lines.iter())
            .map(|line| match line {
                OutageLine::Sum { outages, .. } => *outages,
                OutageLine::Away(_) => 1,
                OutageLine::Back { .. } => 0,
            })
            .sum();
        assert_eq!(counted, 6_000);
    }

    #[test]
    fn a_damped_outage_that_lasts_is_told_by_the_sum_and_its_end_too() {
        let mut told = TimedLog::new();
        told.outages(5, 300 * MS, 700 * MS);
        told.lines.clear();
        told.outage(30 * SECOND);
        let [sum, back] = told.lines[..] else {
            panic!("{:?}", told.lines);
        };
        assert_eq!(
            sum,
            OutageLine::Sum {
                outages: 1,
                within: SUM_UP_AFTER,
                away: SUM_UP_AFTER + OUTAGE_AFTER,
                still: Some(KIND),
            }
        );
        assert_eq!(back, OutageLine::Back { after: 30 * SECOND });
    }

    #[test]
    fn a_store_that_was_well_for_a_minute_has_two_lines_for_its_next_outage() {
        let mut told = TimedLog::new();
        told.outages(9, 300 * MS, SECOND);
        told.pass(QUIET);
        assert!(told.log.is_over(told.now));
        told.lines.clear();
        told.outage(SECOND);
        let after = SECOND;
        assert_eq!(
            told.lines,
            [OutageLine::Away(KIND), OutageLine::Back { after }]
        );
    }
}
