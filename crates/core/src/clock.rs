//! The clock: the only reader of time, and alarms for deadlines.
//!
//! A timer for each request costs about 0.3 microseconds. Here a deadline is one relaxed store into
//! an [`Alarm`] that lives as long as its connection. One sweep per worker checks all alarms every
//! [`TICK`] and wakes those that are due. So deadlines are coarse: they fire at most two ticks
//! late, and never early.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the room in which time is read"
)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::task::AtomicWaker;

/// The interval between two sweeps.
pub const TICK: Duration = Duration::from_millis(50);

const NEVER: u32 = u32::MAX;
const RUNG: u32 = u32::MAX - 1;

/// Microseconds since the Unix epoch, by this machine's wall clock.
pub fn unix_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The Unix time at an instant of just now. Reading a clock takes 30 ns, so this uses the readings
/// of both clocks for one [`TICK`].
pub fn unix_us_at(instant: Instant) -> u64 {
    thread_local! {
        static SHOWN: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    }
    if let Some((at, shown_us)) = SHOWN.get()
        && let Some(since) = instant.checked_duration_since(at)
        && since < TICK
    {
        return shown_us + u64::from(since.subsec_micros());
    }
    let (at, shown_us) = (now(), unix_us());
    SHOWN.set(Some((at, shown_us)));
    let since = at.saturating_duration_since(instant).as_micros();
    shown_us.saturating_sub(u64::try_from(since).unwrap_or(u64::MAX))
}

/// A monotonic instant. Everything outside this room gets its instants here.
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock, for dates in headers and logs.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Microseconds of one clock, as the limits count them.
#[derive(Clone, Debug)]
pub enum Micros {
    /// This machine's monotonic clock, set once to the Unix epoch. It never steps back, and does
    /// not follow later corrections of the wall clock.
    Monotonic(MonotonicClock),
    /// Stands still until another time is stored: for tests.
    Manual(Arc<AtomicU64>),
}

impl Micros {
    pub fn monotonic() -> Micros {
        Micros::Monotonic(MonotonicClock::start())
    }

    pub fn now_us(&self) -> u64 {
        match self {
            Micros::Monotonic(clock) => clock.now_us(),
            Micros::Manual(time) => time.load(Ordering::Relaxed),
        }
    }

    /// The wall clock, microseconds since the Unix epoch. It follows corrections.
    pub fn unix_us(&self) -> u64 {
        match self {
            Micros::Monotonic(_) => unix_us(),
            Micros::Manual(time) => time.load(Ordering::Relaxed),
        }
    }

    /// The time at an instant of just now.
    pub fn at_us(&self, instant: Instant) -> u64 {
        match self {
            Micros::Monotonic(clock) => clock.at_us(instant),
            Micros::Manual(_) => self.now_us(),
        }
    }
}

/// A clock that shows microseconds since the Unix epoch, and never steps.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
    start_us: u64,
    read: fn() -> Instant,
}

impl MonotonicClock {
    pub fn start() -> MonotonicClock {
        MonotonicClock::reading(now, unix_us())
    }

    /// A clock that `read` moves. It shows `start_us` at first, microseconds. A simulation brings a
    /// time of its own.
    pub fn reading(read: fn() -> Instant, start_us: u64) -> MonotonicClock {
        MonotonicClock {
            start: read(),
            start_us,
            read,
        }
    }

    pub fn now(&self) -> Instant {
        (self.read)()
    }

    pub fn now_us(&self) -> u64 {
        self.at_us(self.now())
    }

    pub fn at_us(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start).as_micros();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.start_us.saturating_add(since)
    }
}

/// One worker's alarms and their coarse time.
#[derive(Clone, Debug)]
pub struct Sweep(Arc<SweepState>);

#[derive(Debug)]
struct SweepState {
    start: Instant,
    tick: AtomicU32,
    alarms: Mutex<Vec<Weak<Alarm>>>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self::new()
    }
}

impl Sweep {
    /// A sweep that stands still until [`Sweep::run`] is polled or [`Sweep::advance`] is called.
    pub fn new() -> Self {
        Self(Arc::new(SweepState {
            start: now(),
            tick: AtomicU32::new(0),
            alarms: Mutex::new(Vec::new()),
        }))
    }

    pub fn alarm(&self) -> Arc<Alarm> {
        let alarm = Arc::new(Alarm {
            due: AtomicU32::new(NEVER),
            waker: AtomicWaker::new(),
            sweep: self.clone(),
        });
        let mut alarms = self.0.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        alarms.push(Arc::downgrade(&alarm));
        alarm
    }

    pub fn elapsed(&self) -> Duration {
        TICK * self.0.tick.load(Ordering::Relaxed)
    }

    /// Advances the coarse time and rings due alarms, for ever.
    pub async fn run(self) {
        let mut every = tokio::time::interval(TICK);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            every.tick().await;
            self.advance(self.0.start.elapsed());
        }
    }

    /// Sets the coarse time to `elapsed` since the sweep was made, and rings due alarms.
    pub fn advance(&self, elapsed: Duration) {
        let tick = ticks(elapsed);
        self.0.tick.store(tick, Ordering::Relaxed);
        let mut alarms = self.0.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        alarms.retain(|weak| {
            weak.upgrade()
                .inspect(|alarm| alarm.ring_if_due(tick))
                .is_some()
        });
    }

    pub fn ticks(&self) -> u32 {
        self.0.tick.load(Ordering::Relaxed)
    }

    /// Wakes the task of every alarm without ringing, so that the task checks its state.
    pub fn wake_all(&self) {
        let alarms = self.0.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        for alarm in alarms.iter().filter_map(Weak::upgrade) {
            alarm.wake();
        }
    }
}

/// Whole ticks in `time`, below `RUNG` and `NEVER`; 2^32 ticks are 6.8 years.
fn ticks(time: Duration) -> u32 {
    // In 64 bits: a division of 128 bits calls a function.
    let milliseconds = time.as_secs().saturating_mul(1_000);
    let milliseconds = milliseconds.saturating_add(time.subsec_millis().into());
    let ticks = milliseconds / u64::from(TICK.subsec_millis());
    u32::try_from(ticks).unwrap_or(RUNG - 1).min(RUNG - 1)
}

/// A deadline that one store can move. It wakes its task when it passes.
#[derive(Debug)]
pub struct Alarm {
    due: AtomicU32,
    waker: AtomicWaker,
    sweep: Sweep,
}

impl Alarm {
    /// Rings `after` from now, at most two ticks late. Replaces an earlier deadline.
    pub fn arm(&self, after: Duration) {
        let now = self.sweep.0.tick.load(Ordering::Relaxed);
        // One more tick, since the current one may be nearly over: late, never early.
        let due = now
            .saturating_add(ticks(after))
            .saturating_add(2)
            .min(RUNG - 1);
        self.due.store(due, Ordering::Relaxed);
    }

    /// Rings `after` from the tick on which it has just rung. So a wait in two parts takes no
    /// longer than the same wait in one part.
    pub fn go_on(&self, after: Duration) {
        let now = self.sweep.ticks();
        let due = now.saturating_add(ticks(after)).min(RUNG - 1);
        self.due.store(due, Ordering::Relaxed);
    }

    pub fn disarm(&self) {
        self.due.store(NEVER, Ordering::Relaxed);
    }

    /// The time until it rings; `None` if it is not armed.
    pub fn left(&self) -> Option<Duration> {
        match self.due.load(Ordering::Relaxed) {
            NEVER => None,
            RUNG => Some(Duration::ZERO),
            due => Some(TICK * due.saturating_sub(self.sweep.ticks())),
        }
    }

    /// Whether it has rung since it was last armed or disarmed.
    pub fn has_rung(&self) -> bool {
        self.due.load(Ordering::Relaxed) == RUNG
    }

    /// Ready once it has rung; until then the task is woken when it does.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_rung() {
            return Poll::Ready(());
        }
        self.waker.register(context.waker());
        // It may have rung before the registration.
        if self.has_rung() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    pub fn wake(&self) {
        self.waker.wake();
    }

    fn ring_if_due(&self, tick: u32) {
        let due = self.due.load(Ordering::Relaxed);
        if due <= tick
            && self
                .due
                .compare_exchange(due, RUNG, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_goes_by_the_other_one_for_a_tick() {
        const SLEWED_US: u64 = 1_000;
        for ago in [1_000_000, 0, 0, 30_000, 0] {
            let before = unix_us();
            let told = unix_us_at(now() - Duration::from_micros(ago));
            let right = before - ago - SLEWED_US..=unix_us() - ago + SLEWED_US;
            assert!(right.contains(&told), "{told}, {right:?}");
        }
    }

    #[test]
    fn an_alarm_rings_after_its_time_and_not_before() {
        let sweep = Sweep::new();
        let alarm = sweep.alarm();
        alarm.arm(Duration::from_millis(200));
        sweep.advance(Duration::from_millis(200));
        assert!(!alarm.has_rung());
        assert_eq!(alarm.left(), Some(Duration::from_millis(100)));
        sweep.advance(Duration::from_millis(300));
        assert!(alarm.has_rung());
        assert_eq!(alarm.left(), Some(Duration::ZERO));
    }

    #[test]
    fn a_wait_in_two_parts_is_no_longer_than_one() {
        let sweep = Sweep::new();
        let (whole, parts) = (sweep.alarm(), sweep.alarm());
        whole.arm(Duration::from_millis(1000));
        parts.arm(Duration::from_millis(400));
        let mut at = Duration::ZERO;
        while !parts.has_rung() {
            at += TICK;
            sweep.advance(at);
        }
        parts.go_on(Duration::from_millis(600));
        assert_eq!(parts.left(), whole.left());
        while !whole.has_rung() {
            assert!(!parts.has_rung());
            at += TICK;
            sweep.advance(at);
        }
        assert!(parts.has_rung());
    }

    #[test]
    fn a_disarmed_alarm_stays_silent() {
        let sweep = Sweep::new();
        let alarm = sweep.alarm();
        alarm.arm(Duration::from_millis(50));
        alarm.disarm();
        sweep.advance(Duration::from_secs(60));
        assert!(!alarm.has_rung());
    }

    #[test]
    fn dropped_alarms_are_forgotten() {
        let sweep = Sweep::new();
        drop(sweep.alarm());
        sweep.advance(Duration::from_secs(1));
        assert!(sweep.0.alarms.lock().unwrap().is_empty());
    }
}
