//! The speed of one response: how many bytes of its body may go to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::{Instant, Sleep};

use crate::route::Bandwidth;

/// Bytes are sent for this long at a time.
const SLICE: Duration = Duration::from_millis(100);

/// Splits the data of a body so that no moment is ahead of the bandwidth by more than [`SLICE`].
#[derive(Debug)]
pub(super) struct BodyPace {
    bandwidth: Bandwidth,
    began: Instant,
    sent: u64,
    /// Data that waits for its time.
    waiting: Bytes,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl BodyPace {
    pub(super) fn new(bandwidth: Bandwidth) -> BodyPace {
        BodyPace {
            bandwidth,
            began: Instant::now(),
            sent: 0,
            waiting: Bytes::new(),
            sleep: None,
        }
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Takes data that is to be sent after that which waits.
    pub(super) fn put(&mut self, data: Bytes) {
        debug_assert!(self.waiting.is_empty());
        self.waiting = data;
    }

    /// The next bytes of the data that waits, as soon as their time has come.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        loop {
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(context));
                self.sleep = None;
            }
            let allowed = self.bandwidth.bytes_in(self.began.elapsed() + SLICE);
            let room = allowed.saturating_sub(self.sent);
            if room == 0 {
                // Half a slice is worth a wake-up.
                let until = self.began + self.bandwidth.time_of(self.sent + 1);
                self.sleep = Some(Box::pin(tokio::time::sleep_until(until - SLICE / 2)));
                continue;
            }
            let length = usize::try_from(room)
                .map_or(self.waiting.len(), |room| room.min(self.waiting.len()));
            self.sent += length as u64;
            return Poll::Ready(self.waiting.split_to(length));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sleep that ends at once would be polled again and again.
    #[tokio::test]
    async fn the_next_byte_of_a_slow_body_is_awaited() {
        let mut pace = BodyPace::new(Bandwidth::parse("1B/s").unwrap());
        pace.put(Bytes::from_static(b"a"));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(pace.poll_next(&mut context).is_pending());
        let wakes_at = pace.sleep.unwrap().deadline();
        assert!(wakes_at > Instant::now() + Duration::from_millis(500));
    }
}
