//! The orderly end of a worker: no new connections, requests under way finished, idle connections
//! closed, and after the deadline everything else cut.
//!
//! A client may send a request just as its idle connection is closed, and cannot know what became
//! of it. So idle connections stay open for a while: each answer from now on says that it is the
//! last, and only who has nothing to ask for that long is closed unasked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::connections_per_ip::ConnectionPermit;
use crate::clock::Sweep;

/// What a worker's connections and its end tell each other.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    draining: AtomicBool,
    closing: AtomicBool,
    open: AtomicUsize,
    closed: Notify,
}

/// How long an end may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// For one more request on an idle connection.
    pub(crate) idle: Duration,
    /// For everything.
    pub(crate) all: Duration,
}

/// One open connection and its place among all that may be open; dropping it is its end. It is
/// there before its connection's task has begun, so that no end comes in between.
#[derive(Debug)]
pub(crate) struct Open {
    drain: Arc<Drain>,
    _permit: OwnedSemaphorePermit,
    /// Boxed: mostly there is none, and a parked connection should take little.
    permit: Option<Box<ConnectionPermit>>,
}

impl Drain {
    pub(crate) fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open {
            drain: Arc::clone(self),
            _permit: permit,
            permit: None,
        }
    }

    /// Whether each answer should be its connection's last.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub(crate) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn leave(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.closed.notify_one();
    }

    /// Whether idle connections should end too.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// From now on each answer is its connection's last.
    pub(crate) fn begin(&self, sweep: &Sweep) {
        // Against whoever is passed on here: either he is told, or he is waited for.
        self.draining.store(true, Ordering::SeqCst);
        sweep.wake_all();
    }

    /// Waits until every connection has ended. Returns how many were still open at the deadline.
    pub(crate) async fn finish(&self, sweep: &Sweep, deadlines: Deadlines) -> usize {
        self.begin(sweep);
        let idle = deadlines.idle.min(deadlines.all);
        self.all_closed(idle).await;
        self.closing.store(true, Ordering::Relaxed);
        sweep.wake_all();
        self.all_closed(deadlines.all - idle).await;
        self.open.load(Ordering::Relaxed)
    }

    async fn all_closed(&self, timeout: Duration) {
        let all_closed = async {
            while self.open.load(Ordering::SeqCst) > 0 {
                self.closed.notified().await;
            }
        };
        // Ran out or not: the count tells.
        let _ = tokio::time::timeout(timeout, all_closed).await;
    }
}

impl Open {
    /// Its place among the connections of its address, where those are counted.
    pub(super) fn hold_permit(&mut self, permit: Option<ConnectionPermit>) {
        self.permit = permit.map(Box::new);
    }

    /// Another worker has the connection from now on.
    pub(crate) fn move_to(&mut self, other: &Arc<Drain>) {
        other.open.fetch_add(1, Ordering::SeqCst);
        std::mem::replace(&mut self.drain, Arc::clone(other)).leave();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.drain.leave();
    }
}
