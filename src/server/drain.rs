//! The orderly end of a worker: no new connections, idle ones closed, requests under way finished,
//! and after the deadline everything else cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Sweep;

/// What a worker's connections and its end tell each other.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    draining: AtomicBool,
    open: AtomicUsize,
    closed: Notify,
}

/// One open connection; dropping it is its end.
#[derive(Debug)]
pub(crate) struct Open(Arc<Drain>);

impl Drain {
    pub(crate) fn open(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// Whether connections should end as soon as they can.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Asks every connection to end and waits until they have, at most `timeout`. Returns how many
    /// were still open then.
    pub(crate) async fn finish(&self, sweep: &Sweep, timeout: Duration) -> usize {
        self.draining.store(true, Ordering::Relaxed);
        sweep.wake_all();
        let all_closed = async {
            while self.open.load(Ordering::Relaxed) > 0 {
                self.closed.notified().await;
            }
        };
        // Ran out or not: the count below tells.
        let _ = tokio::time::timeout(timeout, all_closed).await;
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.closed.notify_one();
    }
}
