//! Requests that wait until a server has room: bounded in number and in time, first come first
//! served.
//!
//! If servers have caps, all workers share one queue, as they share the caps; otherwise each worker
//! has its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::error::UpstreamError;
use crate::clock;
use crate::telemetry::panics::lock;

/// The first waiting request checks at this interval for room that no finished request announces,
/// for example because a server came back.
const CHECK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct PermitQueue {
    /// The length of `line`, for requests that do not wait.
    waiting: AtomicUsize,
    /// The wake-up of each waiting request. Only the first request may take a place.
    line: Mutex<VecDeque<Arc<Notify>>>,
}

/// A request in the queue until it is dropped. Then the next one may take a place.
struct QueuedRequest<'q> {
    queue: &'q PermitQueue,
    freed: Arc<Notify>,
}

impl<'q> QueuedRequest<'q> {
    /// `None` if `most` requests wait.
    fn enter(queue: &'q PermitQueue, most: usize) -> Option<QueuedRequest<'q>> {
        let mut line = lock(&queue.line);
        if line.len() >= most {
            return None;
        }
        let freed = Arc::new(Notify::new());
        line.push_back(Arc::clone(&freed));
        queue.waiting.store(line.len(), Ordering::Relaxed);
        Some(QueuedRequest { queue, freed })
    }

    fn is_first(&self) -> bool {
        let line = lock(&self.queue.line);
        line.front()
            .is_some_and(|first| Arc::ptr_eq(first, &self.freed))
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let mut line = lock(&self.queue.line);
        let own = line.iter().position(|one| Arc::ptr_eq(one, &self.freed));
        own.and_then(|own| line.remove(own));
        self.queue.waiting.store(line.len(), Ordering::Relaxed);
        if let Some(first) = line.front() {
            first.notify_one();
        }
    }
}

impl PermitQueue {
    /// Whether requests wait, so that a new request has to wait as well.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn wake_next(&self) {
        if self.has_waiting()
            && let Some(first) = lock(&self.line).front()
        {
            first.notify_one();
        }
    }

    /// Waits until `take` succeeds, for at most `time`. Fails at once if `most` requests wait.
    pub(super) async fn wait<T>(
        &self,
        most: usize,
        time: Duration,
        take: impl Fn() -> Result<T, UpstreamError>,
    ) -> Result<T, UpstreamError> {
        let Some(queued) = QueuedRequest::enter(self, most) else {
            return Err(UpstreamError::TooManyConnections);
        };
        let start = clock::now();
        loop {
            let is_first = queued.is_first();
            if is_first {
                match take() {
                    Err(UpstreamError::TooManyConnections) => {}
                    taken => return taken,
                }
            }
            let left = time.saturating_sub(clock::now() - start);
            if left.is_zero() {
                return Err(UpstreamError::QueuedTooLong);
            }
            let longest = match is_first {
                true => left.min(CHECK_EVERY),
                false => left,
            };
            // A notification between `take` and here is kept.
            let _ = tokio::time::timeout(longest, queued.freed.notified()).await;
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

    /// The first one looks for room at an interval, and keeps its place when it finds none.
    #[tokio::test]
    async fn looking_for_room_costs_no_place() {
        let (queue, free) = (PermitQueue::default(), Cell::new(0));
        let order = Cell::new(0);
        let wait = async |number: usize, after: Duration| {
            tokio::time::sleep(after).await;
            queue.wait(9, LONG, || take(&free)).await.unwrap();
            assert_eq!(order.replace(number), number - 1);
            free.set(free.get() + 1);
            queue.wake_next();
        };
        tokio::join!(biased; wait(1, Duration::ZERO), wait(2, CHECK_EVERY / 2), async {
            tokio::time::sleep(CHECK_EVERY * 5 / 4).await;
            free.set(1);
            queue.wake_next();
        });
        assert_eq!(order.get(), 2);
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
