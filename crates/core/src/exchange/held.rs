//! A request that is held: it is charged, and may pass later.
//!
//! The owner of the request waits. It then calls [`Admission::end_wait`], or gives the booking
//! back: its client has left, or the process ends before. Those behind it keep their times.

use super::admit::Admission;
use super::limiter::Limiter;
use super::rejection::{Denial, Rejection};
use super::reserve::Adjustment;
use crate::clock;
use crate::limit::{Retry, Verdict};
use crate::telemetry::metrics::WaitingRequest;

impl Admission {
    /// Whether a limit would hold the request instead of denying it.
    pub fn may_be_held(&self) -> bool {
        self.charge.iter().any(|check| check.limit.delay.is_some())
    }

    /// How long the request must be held, microseconds; 0 for most.
    pub fn wait_us(&self) -> u64 {
        match self.longest_wait_us {
            0 => 0,
            _ => self.decision.wait_us(),
        }
    }

    /// Notes that the request was held for so long, and may pass now.
    pub fn end_wait(&mut self, waited_us: u64) {
        self.decision = self.decision.later(waited_us);
        self.unix_us = clock::unix_us();
    }
}

impl Limiter {
    /// Counts a request that is held among those of the limits that hold it.
    pub fn count_waiting(&self, admission: &Admission) -> WaitingRequest {
        let mut waiting = WaitingRequest::default();
        let mut last = usize::MAX;
        for (check, verdict) in admission.charge.iter().zip(&admission.decision.verdicts) {
            let number = check.limit.number;
            // A limit with several rates holds a request once.
            if matches!(verdict.retry, Retry::Booked(_)) && number != last {
                self.meter.wait(number, check.tag, &mut waiting);
                last = number;
            }
        }
        waiting
    }

    /// Gives back what a request was charged that will not pass.
    pub fn give_booking_back(&self, admission: &mut Admission) {
        self.adjust_all(admission, Adjustment::Refund, None);
        admission.decider = None;
        admission.slots = None;
        admission.reserved = None;
    }

    /// The denial of a request whose booking was given back.
    pub fn deny_held(&self, admission: &mut Admission) -> Rejection {
        let mut decision = std::mem::take(&mut admission.decision);
        let charge = std::mem::take(&mut admission.charge);
        decision.allowed = false;
        for (check, verdict) in charge.iter().zip(&mut decision.verdicts) {
            let units = check.window.rule.units;
            *verdict = Verdict {
                remaining: units.saturating_sub(verdict.used),
                retry: match verdict.retry {
                    Retry::Booked(us) => Retry::After(us),
                    other => other,
                },
                ..*verdict
            };
        }
        Rejection::Limited(Box::new(Denial {
            charge,
            decision,
            is_local: false,
        }))
    }
}
