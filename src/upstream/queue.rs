//! Requests that wait until a server has room: bounded in number and in time, first come first
//! served.
//!
//! If servers have caps, all workers share one queue, as they share the caps; otherwise each worker
//! has its own.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::error::UpstreamError;
use crate::clock;

/// Waiting requests check at this interval for room that no finished request announces, for example
/// because a server came back.
const CHECK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct PermitQueue {
    waiting: AtomicUsize,
    freed: Notify,
}

/// Counts a request in the queue until it is dropped.
struct QueuedRequest<'q>(&'q PermitQueue);

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PermitQueue {
    /// Whether requests wait, so that a new request has to wait as well.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn wake_next(&self) {
        if self.has_waiting() {
            self.freed.notify_one();
        }
    }

    /// Waits until `take` succeeds, for at most `time`. Fails at once if `most` requests wait.
    pub(super) async fn wait<T>(
        &self,
        most: usize,
        time: Duration,
        take: impl Fn() -> Result<T, UpstreamError>,
    ) -> Result<T, UpstreamError> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let queued = QueuedRequest(self);
        if before >= most {
            return Err(UpstreamError::TooManyConnections);
        }
        let start = clock::now();
        let mut is_next = before == 0;
        loop {
            let mut freed = pin!(self.freed.notified());
            // Registers before `take`, so that no notification is lost between them.
            freed.as_mut().enable();
            if is_next {
                match take() {
                    Err(UpstreamError::TooManyConnections) => {}
                    taken => {
                        drop(queued);
                        return taken;
                    }
                }
            }
            let left = time.saturating_sub(clock::now() - start);
            if left.is_zero() {
                return Err(UpstreamError::QueuedTooLong);
            }
            let _ = tokio::time::timeout(left.min(CHECK_EVERY), freed).await;
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
        let (queue, free) = (PermitQueue::default(), Cell::new(0));
        let order = Cell::new(0);
        let wait = async |number: usize| {
            queue.wait(9, LONG, || take(&free)).await.unwrap();
            assert_eq!(order.replace(number), number - 1);
            // As a request that ends at once.
            free.set(free.get() + 1);
            queue.wake_next();
        };
        tokio::join!(biased; wait(1), wait(2), wait(3), async {
            assert!(queue.has_waiting());
            free.set(1);
            queue.wake_next();
        });
        assert!(order.get() == 3 && !queue.has_waiting());
    }

    #[tokio::test]
    async fn numbers_and_times_are_bounded() {
        let (queue, free) = (PermitQueue::default(), Cell::new(0));
        let short = Duration::from_millis(30);
        let wait = async || queue.wait(2, short, || take(&free)).await.unwrap_err();
        let (one, two, three) = tokio::join!(biased; wait(), wait(), wait());
        assert!(matches!(one, UpstreamError::QueuedTooLong));
        assert!(matches!(two, UpstreamError::QueuedTooLong));
        assert!(matches!(three, UpstreamError::TooManyConnections));
        assert!(!queue.has_waiting());
    }

    #[tokio::test]
    async fn one_that_leaves_lets_the_next_one_in() {
        let (queue, free) = (PermitQueue::default(), Cell::new(0));
        let first = queue.wait(9, LONG, || take(&free));
        tokio::select! {
            biased;
            _ = first => panic!("a place"),
            () = tokio::task::yield_now() => {}
        }
        let second = queue.wait(9, LONG, || take(&free));
        let (taken, ()) = tokio::join!(biased; second, async {
            free.set(1);
            queue.wake_next();
        });
        taken.unwrap();
    }
}
