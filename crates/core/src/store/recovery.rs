//! How one proxy goes through an outage of the store.
//!
//! While the store is away, every proxy admits its share. When the store is back, it does not know
//! what the proxies admitted meanwhile, until each has charged it. So a proxy that is back keeps to
//! its share beside the store's decisions, until no proxy owes the store anything. A proxy that
//! sends no heartbeat may have admitted its share before it was killed or stopped. The others wait
//! until that share has left the window. `docs/outages.md` has the argument.
//!
//! Time is an argument. "Store time" is the store's clock; all other times are this process's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::fleet::Fleet;
use super::last_answers::{Away, LastAnswers};
use super::store_clock::StoreClock;
use crate::config;

/// The name of a process among those that share the store.
pub type ProcessName = [u8; 16];

/// How long another proxy may still be without the store after it is back, microseconds: the
/// longest pause before a probe, and the probe.
const GRACE_US: u64 = 2_000_000;
/// How much later than its timeout a request may end, microseconds.
const LATE_US: u64 = 100_000;
/// A process that did nothing for so long was stopped, microseconds.
const STOPPED_US: u64 = 3_000_000;
/// The time between two heartbeats, microseconds.
const BEAT_EVERY_US: u64 = 500_000;
/// The same while a process waits for others.
const BEAT_OFTEN_US: u64 = 200_000;

/// The store's answer to a process's greeting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    pub size: u32,
    /// The number of proxies with a smaller name.
    pub place: u32,
    pub now_us: u64,
    /// When the store's memory began, store time.
    pub began_us: u64,
    pub names: Vec<ProcessName>,
    /// The proxies that have said, since [`Greeting::since_us`], that they owe the store nothing.
    pub clear: Vec<ProcessName>,
}

/// The fields that a process sends to the store with its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// When the store's memory began, as this process knows it, store time.
    pub began_us: Option<u64>,
    pub is_clear: bool,
    /// Some worker is without the store, although another server may answer the greeting.
    pub is_away: bool,
    /// It asks for proxies that owed nothing at this time or later, store time.
    pub since_us: u64,
}

#[derive(Debug)]
pub struct Recovery {
    fleet: Arc<Fleet>,
    name: ProcessName,
    pub last_answers: LastAnswers,
    pub store_clock: StoreClock,
    /// The longest wait for a decision of the store.
    timeout_us: AtomicU64,
    /// How often the store has lost its memory.
    losses: AtomicU64,
    /// Whether shares hold, beside the store's decisions where there are any.
    on: AtomicBool,
    /// Since when the store is away, or last was before the process began to return; 0 for never.
    since_us: AtomicU64,
    /// When the store came back; 0 while it is away.
    back_us: AtomicU64,
    /// When shares last ceased to hold.
    ended_us: AtomicU64,
    /// The longest window of a decision meanwhile.
    longest_us: AtomicU64,
    alive_us: AtomicU64,
    stopped: AtomicBool,
    state: Mutex<RecoveryState>,
}

#[derive(Debug, Default)]
struct RecoveryState {
    /// The other proxies, as of the last heartbeat.
    others: Vec<ProcessName>,
    began_us: Option<u64>,
    /// Others that may owe the store something.
    awaited: Vec<ProcessName>,
    /// When this process was back, store time. Only later heartbeats of others count.
    since_us: Option<u64>,
}

impl Recovery {
    pub fn new(fleet: Arc<Fleet>, name: ProcessName, timeout: Duration, now_us: u64) -> Recovery {
        Recovery {
            fleet,
            name,
            last_answers: LastAnswers::default(),
            store_clock: StoreClock::default(),
            timeout_us: AtomicU64::new(micros(timeout)),
            losses: AtomicU64::new(0),
            on: AtomicBool::new(false),
            since_us: AtomicU64::new(0),
            back_us: AtomicU64::new(0),
            ended_us: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            alive_us: AtomicU64::new(now_us),
            stopped: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Takes the settings of a reload. Requests under way may still wait for the timeout before.
    pub fn renew(&self, fleet: config::Fleet, timeout: Duration) {
        self.fleet.configure(fleet);
        (self.timeout_us).fetch_max(micros(timeout), Ordering::AcqRel);
    }

    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// How often the store has lost its memory.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, RecoveryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store is away for some worker, or a request was admitted without it.
    pub fn away(&self, now_us: u64) {
        let mut state = self.state();
        self.begin(&mut state, now_us);
        state.since_us = None;
        if self.back_us.swap(0, Ordering::AcqRel) > 0 {
            // The store was back for a while, and has admitted units meanwhile.
            self.since_us.store(now_us, Ordering::Release);
        }
    }

    fn begin(&self, state: &mut RecoveryState, now_us: u64) {
        for name in &state.others {
            if !state.awaited.contains(name) {
                state.awaited.push(*name);
            }
        }
        if !self.on.swap(true, Ordering::AcqRel) {
            self.fleet.hold(true);
            self.since_us.store(now_us, Ordering::Release);
        }
    }

    /// No worker is without the store any more.
    pub fn back(&self, now_us: u64) {
        if self.is_on() {
            let order = Ordering::AcqRel;
            let _ = (self.back_us).compare_exchange(0, now_us, order, Ordering::Relaxed);
        }
    }

    /// The next greeting of a process whose workers all have the store, unless it `is_away`. With
    /// `owes`, this process owes the store something.
    pub fn greeting(&self, is_away: bool, owes: bool) -> Greeting {
        let state = self.state();
        Greeting {
            began_us: state.began_us,
            is_clear: !is_away && !owes,
            is_away,
            since_us: state.since_us.unwrap_or(u64::MAX >> 11),
        }
    }

    /// Takes the store's answer to `greeting`. Returns whether the store has lost its memory since
    /// the last answer: then all that this process knows is charged again.
    pub fn take_greeting(&self, greeting: Greeting, beat: Heartbeat, now_us: u64) -> bool {
        let mut state = self.state();
        let is_new = (state.began_us).is_some_and(|began_us| began_us != beat.began_us);
        state.began_us = Some(beat.began_us);
        if is_new {
            self.losses.fetch_add(1, Ordering::Relaxed);
            self.begin(&mut state, now_us);
            state.since_us = None;
        }
        let own = self.name;
        state.others = (beat.names.iter().copied())
            .filter(|name| *name != own)
            .collect();
        if !greeting.is_away {
            self.stopped.store(false, Ordering::Release);
        }
        if self.is_on() && !greeting.is_away {
            self.hear_of_others(&mut state, greeting, &beat, now_us);
        }
        self.fleet.learn(beat.size, beat.place);
        is_new
    }

    fn hear_of_others(
        &self,
        state: &mut RecoveryState,
        greeting: Greeting,
        beat: &Heartbeat,
        now_us: u64,
    ) {
        let is_known = greeting.began_us == Some(beat.began_us);
        if state.since_us.is_none() || beat.now_us < greeting.since_us && is_known {
            // The first since the outage, or the store's clock has stepped back.
            state.since_us = Some(beat.now_us);
            self.back(now_us);
        } else {
            state.awaited.retain(|name| !beat.clear.contains(name));
        }
        let back_us = self.back_us.load(Ordering::Acquire);
        let longest_us = self.longest_us.load(Ordering::Relaxed);
        let is_late = back_us > 0 && now_us >= back_us + GRACE_US + longest_us;
        if greeting.is_clear && is_known && (state.awaited.is_empty() || is_late) {
            state.awaited.clear();
            state.since_us = None;
            self.ended_us.store(now_us, Ordering::Release);
            self.on.store(false, Ordering::Release);
            self.since_us.store(0, Ordering::Release);
            self.back_us.store(0, Ordering::Release);
            self.longest_us.store(0, Ordering::Relaxed);
            self.fleet.hold(false);
        }
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Whether an answer of the store may be compared with the counts of this process. While shares
    /// hold, these have units that the store has not charged yet. Requests that were counted then
    /// may have such units until their timeout.
    pub fn may_compare(&self, now_us: u64) -> bool {
        !self.is_on() && {
            let ended_us = self.ended_us.load(Ordering::Acquire);
            ended_us == 0 || now_us >= ended_us + self.timeout_us.load(Ordering::Acquire) + LATE_US
        }
    }

    /// Whether this process keeps to its shares of limits with this window.
    pub fn holds_for(&self, window_us: u64, now_us: u64) -> bool {
        if !self.is_on() {
            return false;
        }
        self.note_window(window_us);
        let back_us = self.back_us.load(Ordering::Acquire);
        back_us == 0 || now_us < back_us + GRACE_US + window_us
    }

    /// A limit with this window is decided without the store, or beside it.
    pub fn note_window(&self, window_us: u64) {
        self.longest_us.fetch_max(window_us, Ordering::Relaxed);
    }

    /// Whether the store has lost its memory since `at_us`, store time, and this process knows it.
    pub fn has_lost(&self, at_us: u64) -> bool {
        self.is_on() && (self.state().began_us).is_some_and(|began_us| at_us < began_us)
    }

    /// Whether the other proxies have had time to notice that the store is back, by `at_us`. Units
    /// that were admitted without it are older.
    pub fn is_over_by(&self, at_us: u64) -> bool {
        let back_us = self.back_us.load(Ordering::Acquire);
        back_us > 0 && back_us + GRACE_US <= at_us
    }

    /// Since when the store is away, for a decision at `now_us`; `None` if it is there.
    pub fn away_at(&self, now_us: u64) -> Option<Away> {
        let since_us = self.since_us.load(Ordering::Acquire);
        (since_us > 0).then_some(Away { since_us, now_us })
    }

    pub fn alive(&self, now_us: u64) {
        let before_us = self.alive_us.swap(now_us, Ordering::Relaxed);
        if before_us + STOPPED_US < now_us {
            self.stopped.store(true, Ordering::Release);
        }
    }

    /// Whether this process may decide by itself. A process that was stopped may not, until no
    /// worker is without the store: others may have divided its share.
    pub fn may_decide(&self, now_us: u64) -> bool {
        let alive_us = self.alive_us.load(Ordering::Relaxed);
        let stopped = self.stopped.load(Ordering::Acquire) || alive_us + STOPPED_US < now_us;
        !stopped || self.fleet.size() == 1
    }

    pub fn beat_every_us(&self) -> u64 {
        match self.is_on() {
            true => BEAT_OFTEN_US,
            false => BEAT_EVERY_US,
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ProcessName = [1; 16];
    const OTHER: ProcessName = [2; 16];
    const TIMEOUT: Duration = Duration::from_millis(25);

    fn recovery() -> Recovery {
        Recovery::new(Arc::new(Fleet::counted()), ME, TIMEOUT, 1)
    }

    fn beat(now_us: u64, names: &[ProcessName], clear: &[ProcessName]) -> Heartbeat {
        Heartbeat {
            size: names.len() as u32,
            place: 0,
            now_us,
            began_us: 7,
            names: names.to_vec(),
            clear: clear.to_vec(),
        }
    }

    fn note_greeting(recovery: &Recovery, is_clear: bool, beat: Heartbeat, now_us: u64) -> bool {
        let greeting = recovery.greeting(false, !is_clear);
        recovery.take_greeting(greeting, beat, now_us)
    }

    #[test]
    fn shares_hold_until_every_other_proxy_owes_nothing() {
        let recovery = recovery();
        note_greeting(&recovery, true, beat(100, &[ME, OTHER], &[]), 100);
        assert!(!recovery.is_on());
        recovery.away(200);
        assert!(
            recovery.holds_for(1_000_000, 99_000_000),
            "no end is in sight"
        );
        note_greeting(&recovery, true, beat(300, &[ME], &[OTHER]), 300);
        assert!(
            recovery.is_on(),
            "that was said before this process was back"
        );
        assert_eq!(recovery.greeting(false, false).since_us, 300);
        note_greeting(&recovery, false, beat(400, &[ME, OTHER], &[OTHER]), 400);
        assert!(recovery.is_on(), "this process owes something");
        assert_eq!(recovery.fleet().size(), 2, "the other was not forgotten");
        assert!(!recovery.may_compare(500));
        note_greeting(&recovery, true, beat(500, &[ME], &[]), 500);
        assert!(!recovery.is_on());
        assert_eq!(recovery.fleet().size(), 1);
        assert!(
            !recovery.may_compare(499 + 25_000 + LATE_US),
            "a request may be unanswered that was counted before it was sent"
        );
        assert!(recovery.may_compare(500 + 25_000 + LATE_US));
    }

    #[test]
    fn a_proxy_that_never_returns_is_waited_for_until_its_window_is_over() {
        let recovery = recovery();
        note_greeting(&recovery, true, beat(100, &[ME, OTHER], &[]), 100);
        recovery.away(200);
        note_greeting(&recovery, true, beat(300, &[ME], &[]), 300);
        let ends = |window_us| 300 + GRACE_US + window_us;
        assert!(recovery.holds_for(1_000, ends(1_000) - 1));
        assert!(!recovery.holds_for(1_000, ends(1_000)));
        assert!(recovery.holds_for(60_000_000, ends(60_000_000) - 1));
        note_greeting(&recovery, true, beat(500, &[ME], &[]), ends(59_000_000));
        assert!(recovery.is_on());
        note_greeting(&recovery, true, beat(600, &[ME], &[]), ends(60_000_000));
        assert!(!recovery.is_on());
    }

    #[test]
    fn an_answer_of_another_server_is_no_return() {
        let recovery = recovery();
        note_greeting(&recovery, true, beat(100, &[ME, OTHER], &[]), 100);
        recovery.away(200);
        let greeting = recovery.greeting(true, false);
        assert!(!greeting.is_clear);
        recovery.take_greeting(greeting, beat(300, &[ME, OTHER], &[]), 300);
        assert_eq!(recovery.greeting(true, false).since_us, u64::MAX >> 11);
        recovery.back(99_000_000);
        note_greeting(&recovery, true, beat(400, &[ME], &[OTHER]), 99_000_000);
        assert!(
            recovery.is_on(),
            "the other may have said so during the outage"
        );
        note_greeting(
            &recovery,
            true,
            beat(500, &[ME, OTHER], &[OTHER]),
            99_000_001,
        );
        assert!(!recovery.is_on());
    }

    #[test]
    fn a_window_that_was_counted_without_the_store_is_waited_for() {
        let recovery = recovery();
        note_greeting(&recovery, true, beat(100, &[ME, OTHER], &[]), 100);
        recovery.away(200);
        recovery.note_window(60_000_000);
        note_greeting(&recovery, true, beat(300, &[ME], &[]), 300);
        let ends_us = 300 + GRACE_US + 60_000_000;
        note_greeting(&recovery, true, beat(400, &[ME], &[]), ends_us - 1);
        assert!(recovery.is_on());
        note_greeting(&recovery, true, beat(500, &[ME], &[]), ends_us);
        assert!(!recovery.is_on());
    }

    #[test]
    fn a_store_that_began_anew_has_lost_its_memory() {
        let recovery = recovery();
        assert!(!note_greeting(
            &recovery,
            true,
            beat(100, &[ME, OTHER], &[]),
            100
        ));
        let anew = |now_us, clear: &[ProcessName]| Heartbeat {
            began_us: 8,
            ..beat(now_us, &[ME], clear)
        };
        let greeting = recovery.greeting(false, false);
        assert!(recovery.take_greeting(greeting, anew(200, &[]), 200));
        assert!(recovery.is_on(), "it was clear of the old memory only");
        assert!(!note_greeting(&recovery, true, anew(300, &[OTHER]), 300));
        assert!(!recovery.is_on());
    }

    #[test]
    fn a_process_that_was_stopped_decides_nothing_until_it_hears_of_the_store() {
        let recovery = recovery();
        note_greeting(&recovery, true, beat(100, &[ME, OTHER], &[]), 100);
        recovery.alive(1_000_000);
        assert!(recovery.may_decide(1_000_000 + STOPPED_US));
        assert!(!recovery.may_decide(1_000_001 + STOPPED_US));
        recovery.alive(2_000_000 + STOPPED_US);
        assert!(!recovery.may_decide(2_000_000 + STOPPED_US));
        let greeting = recovery.greeting(true, false);
        recovery.take_greeting(greeting, beat(150, &[ME, OTHER], &[]), 5_500_000);
        assert!(
            !recovery.may_decide(5_500_000),
            "another node of the cluster is away, and others may use it"
        );
        note_greeting(&recovery, true, beat(200, &[ME, OTHER], &[]), 6_000_000);
        assert!(recovery.may_decide(6_000_000));
    }
}
