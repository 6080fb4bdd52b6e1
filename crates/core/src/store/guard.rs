//! The breaker: when to ask the store, and when not to.
//!
//! While it is `Closed`, calls go through. [`FAILURES`] failed calls in a row, or one failed
//! connection, open it. While it is `Open`, no call goes through. After a pause the connection's
//! task probes. The pause grows from [`PAUSE_MIN`] to [`PAUSE_MAX`], and is shortened at random so
//! that proxies do not return all at once. A probe that passes makes it `HalfOpen`: calls go
//! through. The first that succeeds closes it, and the first that fails opens it again.
//!
//! Pure: time is an argument, and randomness comes from a seed.

use std::time::{Duration, Instant};

/// Failed calls in a row that open the breaker.
pub const FAILURES: u32 = 3;
/// The first pause before a probe.
pub const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause: with the probe's own timeout, recovery takes less than a second.
pub const PAUSE_MAX: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed { failures: u32 },
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration },
}

#[derive(Clone, Debug)]
pub struct Breaker {
    state: BreakerState,
    random: u64,
}

impl Breaker {
    /// A closed breaker; `seed` makes its pauses differ from those of others.
    pub fn new(seed: u64) -> Breaker {
        Breaker {
            state: BreakerState::Closed { failures: 0 },
            random: seed | 1,
        }
    }

    /// Whether no call may go through now.
    pub fn is_open(&self) -> bool {
        matches!(self.state, BreakerState::Open { .. })
    }

    pub fn probe_at(&self) -> Option<Instant> {
        match self.state {
            BreakerState::Open { until, .. } => Some(until),
            BreakerState::Closed { .. } | BreakerState::HalfOpen { .. } => None,
        }
    }

    /// A call failed, or its answer was an error of the whole server.
    pub fn call_failed(&mut self, now: Instant) {
        match self.state {
            BreakerState::Closed { failures } if failures + 1 < FAILURES => {
                self.state = BreakerState::Closed {
                    failures: failures + 1,
                };
            }
            _ => self.connect_failed(now),
        }
    }

    /// The connection could not be made, or its probe failed.
    pub fn connect_failed(&mut self, now: Instant) {
        match self.state {
            BreakerState::Closed { .. } => self.open(now, PAUSE_MIN),
            BreakerState::HalfOpen { pause } | BreakerState::Open { pause, .. } => {
                self.open(now, pause * 2)
            }
        }
    }

    pub fn connected(&mut self) {
        if let BreakerState::Open { pause, .. } = self.state {
            self.state = BreakerState::HalfOpen { pause };
        }
    }

    pub fn call_succeeded(&mut self) {
        self.state = BreakerState::Closed { failures: 0 };
    }

    fn open(&mut self, now: Instant, pause: Duration) {
        let pause = pause.min(PAUSE_MAX);
        // Between half of the pause and all of it.
        let random = xorshift(&mut self.random) >> 11;
        let cut = (pause / 2).mul_f64(random as f64 / (1u64 << 53) as f64);
        self.state = BreakerState::Open {
            until: now + pause - cut,
            pause,
        };
    }
}

/// The next of a sequence of random numbers; `state` must not be 0.
pub(super) fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Instant {
        crate::clock::now()
    }

    #[test]
    fn a_few_failed_calls_in_a_row_open_it() {
        let mut breaker = Breaker::new(7);
        for _ in 1..FAILURES {
            breaker.call_failed(start());
        }
        breaker.call_succeeded();
        for _ in 1..FAILURES {
            breaker.call_failed(start());
            assert!(!breaker.is_open());
        }
        breaker.call_failed(start());
        assert!(breaker.is_open());
    }

    #[test]
    fn a_failed_connection_opens_it_at_once() {
        let mut breaker = Breaker::new(7);
        breaker.connect_failed(start());
        assert!(breaker.is_open());
    }

    #[test]
    fn pauses_grow_to_their_bound_and_are_jittered() {
        let mut breaker = Breaker::new(7);
        let now = start();
        let mut pauses = Vec::new();
        for _ in 0..20 {
            breaker.connect_failed(now);
            pauses.push(breaker.probe_at().unwrap() - now);
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
        let mut breaker = Breaker::new(7);
        breaker.connect_failed(now);
        breaker.connected();
        assert!(!breaker.is_open());
        breaker.call_failed(now);
        assert!(breaker.is_open());
        breaker.connected();
        breaker.call_succeeded();
        breaker.call_failed(now);
        assert!(!breaker.is_open());
    }
}
