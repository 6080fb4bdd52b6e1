//! One decision over several limits, all or nothing. Twin of `lua/decide.lua`.
//!
//! Two passes: [`Count::look`] asks every item, and [`Count::settle`] charges each of them if all
//! allowed it. Nothing is charged by a denial, and a cost of 0 changes nothing. Pure: the counts
//! and the time are arguments.

use super::counter::{self, Counter};
use super::log::{self, Log};
use super::{Algorithm, Retry, Rule, Verdict};

/// What is counted for one key.
#[derive(Clone, Debug)]
pub enum Count {
    /// Exact.
    Log(Log),
    /// Constant memory.
    Counter(Counter),
}

/// What one limit says by itself, before the others are known.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When it would let the request pass; the request is allowed if all say [`Retry::Now`].
    pub retry: Retry,
    aged: Aged,
}

#[derive(Clone, Copy, Debug)]
enum Aged {
    Log(log::Aged),
    Counter(counter::Aged),
}

impl Aged {
    fn used(&self) -> u64 {
        match self {
            Aged::Log(aged) => aged.used,
            Aged::Counter(aged) => aged.used,
        }
    }

    fn stepped(&self) -> bool {
        match self {
            Aged::Log(aged) => aged.stepped,
            Aged::Counter(aged) => aged.stepped,
        }
    }
}

impl Count {
    /// Nothing counted yet; takes no heap.
    pub fn new(algorithm: Algorithm) -> Count {
        match algorithm {
            Algorithm::Log => Count::Log(Log::default()),
            Algorithm::Counter => Count::Counter(Counter::default()),
        }
    }

    /// First pass: whether `cost` units would pass `rule` at `now_us`, microseconds.
    pub fn look(&self, rule: &Rule, cost: u64, now_us: u64) -> Look {
        let aged = match self {
            Count::Log(log) => Aged::Log(log.look(rule, now_us)),
            Count::Counter(counter) => Aged::Counter(counter.look(rule, now_us)),
        };
        let retry = if cost > rule.units {
            Retry::Never
        } else if aged.used() + cost > rule.units {
            Retry::After(self.wait(&aged, rule, rule.units - cost))
        } else {
            Retry::Now
        };
        Look { retry, aged }
    }

    /// Second pass: charges `cost` if the whole request is allowed, and says how the limit stands.
    /// `look` is this count's own, at the same instant.
    pub fn settle(&mut self, rule: &Rule, cost: u64, look: &Look, allowed: bool) -> Verdict {
        let mut aged = look.aged;
        if cost > 0 && allowed {
            aged = match (&mut *self, &look.aged) {
                (Count::Log(log), Aged::Log(aged)) => Aged::Log(log.charge(aged, rule, cost)),
                (Count::Counter(count), Aged::Counter(aged)) => {
                    Aged::Counter(count.charge(aged, cost))
                }
                _ => look.aged,
            };
        } else if cost > 0 && aged.stepped() {
            match (&mut *self, &look.aged) {
                (Count::Log(log), Aged::Log(aged)) => log.keep_ages(aged),
                (Count::Counter(counter), Aged::Counter(aged)) => counter.keep_ages(aged),
                _ => {}
            }
        }
        let used = aged.used();
        Verdict {
            used: look.aged.used(),
            remaining: rule.units.saturating_sub(used),
            retry: look.retry,
            reset_us: self.wait(&aged, rule, 0),
            next_us: if used == 0 {
                0
            } else {
                self.wait(&aged, rule, used - 1)
            },
        }
    }

    /// The clock's time from which on nothing counts, microseconds.
    pub fn empty_at_us(&self, rule: &Rule) -> u64 {
        match self {
            Count::Log(log) => log.empty_at_us(rule),
            Count::Counter(counter) => counter.empty_at_us(rule),
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Count::Log(log) => log.heap_bytes(),
            Count::Counter(_) => 0,
        }
    }

    fn wait(&self, aged: &Aged, rule: &Rule, room: u64) -> u64 {
        match (self, aged) {
            (Count::Log(log), Aged::Log(aged)) => log.wait(aged, rule, room),
            (_, Aged::Counter(aged)) => aged.wait(rule, room),
            (Count::Counter(_), Aged::Log(_)) => 0,
        }
    }
}
