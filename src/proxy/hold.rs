//! Requests that a limit with `delay` holds: each waits for the time that it was charged for.
//!
//! A held request has its head, a timer and a place among the requests that the process holds. Its
//! body is not read meanwhile. If its client leaves, the drop of the request gives the booking
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::{Proxy, ProxyExchange};
use crate::clock;
use tidegate_core::exchange::admit::Admission;
use tidegate_core::exchange::limiter::Limiter;
use tidegate_core::exchange::rejection::Rejection;

/// The requests that the process holds. All workers share them, and they outlive a configuration.
#[derive(Clone, Debug, Default)]
pub struct HeldRequests(Arc<HeldState>);

#[derive(Debug, Default)]
struct HeldState {
    count: AtomicUsize,
    /// When the last requests must have passed; `None` before the process drains.
    end: watch::Sender<Option<Instant>>,
}

/// A place among the requests that are held. A drop frees it.
struct HeldPlace(HeldRequests);

impl HeldRequests {
    /// Ends the waits of all requests that could not pass before `at`.
    pub(crate) fn end_at(&self, at: Instant) {
        self.0.end.send_replace(Some(at));
    }

    fn has_space(&self, most: usize) -> bool {
        self.0.count.load(Ordering::Relaxed) < most
    }

    fn take(&self, most: usize) -> Option<HeldPlace> {
        let before = self.0.count.fetch_add(1, Ordering::Relaxed);
        let place = HeldPlace(self.clone());
        (before < most).then_some(place)
    }

    /// The time until the process ends, if it drains.
    fn time_left(&self) -> Option<Duration> {
        let end = *self.0.end.borrow();
        end.map(|end| end.saturating_duration_since(clock::now()))
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.0.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a held request was charged. A drop gives it back, unless the request has passed.
struct Booking<'x> {
    limiter: &'x Limiter,
    admission: &'x mut Admission,
    has_passed: bool,
}

impl Drop for Booking<'_> {
    fn drop(&mut self) {
        if !self.has_passed {
            self.limiter.give_booking_back(self.admission);
        }
    }
}

impl Proxy {
    /// Lets the limits of the request hold it: for less than the timeout of its route, and for no
    /// longer than the process has left.
    pub(super) fn allow_wait(&self, x: &mut ProxyExchange<'_>) {
        if !x.admission.may_be_held() || !self.held.has_space(self.max_held) {
            return;
        }
        let timeout = x.route.and_then(|route| route.timeout);
        let bounds = [
            x.record.time_left(timeout).map(longest_wait_us),
            self.held.time_left().map(micros),
        ];
        x.admission.longest_wait_us = bounds.into_iter().flatten().min().unwrap_or(u64::MAX);
    }

    /// Waits until a request that was booked may pass. It is refused if the process holds too many,
    /// or ends before.
    pub(super) async fn delay(&self, x: &mut ProxyExchange<'_>) -> Result<(), Rejection> {
        let wait = Duration::from_micros(x.admission.wait_us());
        let began = clock::now();
        let until = began + wait;
        let limiter = &*self.stages.limiter;
        let mut booking = Booking {
            limiter,
            admission: &mut x.admission,
            has_passed: false,
        };
        let Some(_place) = self.held.take(self.max_held) else {
            drop(booking);
            return Err(limiter.deny_held(&mut x.admission));
        };
        let waiting = limiter.count_waiting(booking.admission);
        let mut end = self.held.0.end.subscribe();
        let is_late = |end: &Option<Instant>| end.is_some_and(|end| end < until);
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            _ = end.wait_for(is_late) => {
                drop(booking);
                x.record.delayed = clock::now().saturating_duration_since(began);
                return Err(Rejection::Draining);
            }
        }
        let waited = clock::now().saturating_duration_since(began);
        booking.has_passed = true;
        booking.admission.end_wait(micros(waited));
        limiter.bill_admitted(booking.admission);
        drop(booking);
        waiting.passes(waited);
        x.record.note_delay(waited);
        Ok(())
    }
}

/// The longest wait of a request that leaves some of its route's timeout, microseconds.
pub(super) fn longest_wait_us(timeout: Duration) -> u64 {
    micros(timeout).saturating_sub(1)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
