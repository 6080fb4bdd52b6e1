//! The breaker: when to ask the store, when to leave it alone, and what to say about it.
//!
//! Pure: time is an argument, jitter comes from a seed. `Closed` asks; [`FAILURES`] failed calls in
//! a row, or one failed connection, open it. While `Open` nobody asks; after a pause that grows
//! from [`PAUSE_MIN`] to [`PAUSE_MAX`], each time shortened at random so that proxies do not
//! return as a herd, the connection's task probes. A probe that passes makes it `HalfOpen`: calls
//! go through, the first that succeeds closes it and the first that fails opens it again.

use std::time::{Duration, Instant};

/// Failed calls in a row that open the breaker.
pub const FAILURES: u32 = 3;
/// The first pause before a probe.
pub const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause: with the probe's own timeout, recovery takes less than a second.
pub const PAUSE_MAX: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration },
}

/// The breaker of one connection.
#[derive(Clone, Debug)]
pub struct Guard {
    state: State,
    chance: u64,
}

impl Guard {
    /// Closed; `seed` makes its pauses differ from those of others.
    pub fn new(seed: u64) -> Guard {
        Guard {
            state: State::Closed { failures: 0 },
            chance: seed | 1,
        }
    }

    /// Whether nobody may ask now.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// While open: when to probe.
    pub fn probe_at(&self) -> Option<Instant> {
        match self.state {
            State::Open { until, .. } => Some(until),
            State::Closed { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// A call failed, or was answered with an error that concerns the whole server.
    pub fn call_failed(&mut self, now: Instant) {
        match self.state {
            State::Closed { failures } if failures + 1 < FAILURES => {
                self.state = State::Closed {
                    failures: failures + 1,
                };
            }
            State::Closed { .. } => self.open(now, PAUSE_MIN),
            State::HalfOpen { pause } | State::Open { pause, .. } => self.open(now, pause * 2),
        }
    }

    /// The connection could not be made, or its probe failed: there is nobody to ask.
    pub fn connect_failed(&mut self, now: Instant) {
        match self.state {
            State::Closed { .. } => self.open(now, PAUSE_MIN),
            State::HalfOpen { pause } | State::Open { pause, .. } => self.open(now, pause * 2),
        }
    }

    /// A connection stands and its probe passed.
    pub fn connected(&mut self) {
        if let State::Open { pause, .. } = self.state {
            self.state = State::HalfOpen { pause };
        }
    }

    /// A call was answered as it should be.
    pub fn call_succeeded(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    fn open(&mut self, now: Instant, pause: Duration) {
        let pause = pause.min(PAUSE_MAX);
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        // Between half of the pause and all of it.
        let cut = (pause / 2).mul_f64((self.chance >> 11) as f64 / (1u64 << 53) as f64);
        self.state = State::Open {
            until: now + pause - cut,
            pause,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Instant {
        crate::clock::now()
    }

    #[test]
    fn a_few_failed_calls_in_a_row_open_it() {
        let mut guard = Guard::new(7);
        for _ in 1..FAILURES {
            guard.call_failed(start());
        }
        guard.call_succeeded();
        for _ in 1..FAILURES {
            guard.call_failed(start());
            assert!(!guard.is_open());
        }
        guard.call_failed(start());
        assert!(guard.is_open());
    }

    #[test]
    fn a_failed_connection_opens_it_at_once() {
        let mut guard = Guard::new(7);
        guard.connect_failed(start());
        assert!(guard.is_open());
    }

    #[test]
    fn pauses_grow_to_their_bound_and_are_jittered() {
        let mut guard = Guard::new(7);
        let now = start();
        let mut pauses = Vec::new();
        for _ in 0..20 {
            guard.connect_failed(now);
            pauses.push(guard.probe_at().unwrap() - now);
        }
        assert!(pauses[0] >= PAUSE_MIN / 2 && pauses[0] <= PAUSE_MIN);
        assert!(
            pauses[10..]
                .iter()
                .all(|pause| *pause <= PAUSE_MAX && *pause >= PAUSE_MAX / 2)
        );
        assert!(pauses[10..].iter().any(|pause| *pause != pauses[10]));
    }

    #[test]
    fn after_a_probe_one_call_decides() {
        let now = start();
        let mut guard = Guard::new(7);
        guard.connect_failed(now);
        guard.connected();
        assert!(!guard.is_open());
        guard.call_failed(now);
        assert!(guard.is_open());
        guard.connected();
        guard.call_succeeded();
        guard.call_failed(now);
        assert!(!guard.is_open());
    }
}
