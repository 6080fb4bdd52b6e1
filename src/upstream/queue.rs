//! Requests that wait for a place at an upstream's servers: bounded in number and in time, and
//! served in the order in which they came.
//!
//! Where servers have caps of their own, one queue is shared by all workers, as the caps are; else
//! each worker has one.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::error::UpstreamError;
use crate::clock;

/// A place may also become free in other ways than by a request that ends, as when a server comes
/// back: whoever waits looks again this often.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: AtomicUsize,
    freed: Notify,
}

/// A request's place in the queue, until it is dropped.
struct Waiting<'q>(&'q Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Queue {
    /// Whether anybody waits, so that whoever comes now is not the next.
    pub(super) fn is_waited_in(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// A place may have become free.
    pub(super) fn free(&self) {
        if self.is_waited_in() {
            self.freed.notify_one();
        }
    }

    /// Waits until `take` finds a place; at most `most` requests wait, and each at most `time`.
    pub(super) async fn wait<T>(
        &self,
        (most, time): (usize, Duration),
        take: impl Fn() -> Result<T, UpstreamError>,
    ) -> Result<T, UpstreamError> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(self);
        if before >= most {
            return Err(UpstreamError::TooManyConnections);
        }
        let start = clock::now();
        let mut is_next = before == 0;
        loop {
            let mut freed = pin!(self.freed.notified());
            // From here on nothing is missed.
            freed.as_mut().enable();
            if is_next {
                match take() {
                    Err(UpstreamError::TooManyConnections) => {}
                    taken => {
                        drop(waiting);
                        return taken;
                    }
                }
            }
            let left = time.saturating_sub(clock::now() - start);
            if left.is_zero() {
                return Err(UpstreamError::QueuedTooLong);
            }
            let _ = tokio::time::timeout(left.min(LOOK_AGAIN), freed).await;
            is_next = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn take(free: &Cell<usize>) -> Result<(), UpstreamError> {
        let left = free.get().checked_sub(1);
        free.set(left.ok_or(UpstreamError::TooManyConnections)?);
        Ok(())
    }

    #[tokio::test]
    async fn whoever_came_first_is_first() {
        let (queue, free) = (Queue::default(), Cell::new(0));
        let order = Cell::new(0);
        let wait = async |number: usize| {
            queue.wait((9, LONG), || take(&free)).await.unwrap();
            assert_eq!(order.replace(number), number - 1);
            // As a request that ends at once.
            free.set(free.get() + 1);
            queue.free();
        };
        tokio::join!(biased; wait(1), wait(2), wait(3), async {
            assert!(queue.is_waited_in());
            free.set(1);
            queue.free();
        });
        assert!(order.get() == 3 && !queue.is_waited_in());
    }

    #[tokio::test]
    async fn numbers_and_times_are_bounded() {
        let (queue, free) = (Queue::default(), Cell::new(0));
        let short = Duration::from_millis(30);
        let wait = async || queue.wait((2, short), || take(&free)).await.unwrap_err();
        let (one, two, three) = tokio::join!(biased; wait(), wait(), wait());
        assert!(matches!(one, UpstreamError::QueuedTooLong));
        assert!(matches!(two, UpstreamError::QueuedTooLong));
        assert!(matches!(three, UpstreamError::TooManyConnections));
        assert!(!queue.is_waited_in());
    }

    #[tokio::test]
    async fn one_that_leaves_lets_the_next_one_in() {
        let (queue, free) = (Queue::default(), Cell::new(0));
        let first = queue.wait((9, LONG), || take(&free));
        tokio::select! {
            biased;
            _ = first => panic!("a place"),
            () = tokio::task::yield_now() => {}
        }
        let second = queue.wait((9, LONG), || take(&free));
        let (taken, ()) = tokio::join!(biased; second, async {
            free.set(1);
            queue.free();
        });
        taken.unwrap();
    }
}
