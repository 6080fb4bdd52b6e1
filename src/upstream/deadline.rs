//! Time limits of one exchange, and a task that ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;

use crate::clock::Alarm;

/// The time limits of one connection. To move the alarm is a store: a request arms no timer.
#[derive(Debug)]
pub(super) struct Deadline {
    /// On an idle connection it rings when the connection is too old.
    pub(super) alarm: Arc<Alarm>,
    head: Duration,
    pub(super) body: Duration,
    /// True until the head has come. Only then the upload may move the alarm.
    awaits_head: AtomicBool,
}

impl Deadline {
    pub(super) fn new(alarm: Arc<Alarm>, head: Duration, body: Duration) -> Deadline {
        Deadline {
            alarm,
            head,
            body,
            awaits_head: AtomicBool::new(false),
        }
    }

    /// A deadline that shares the alarm and does not wait for a head.
    pub(super) fn for_body(&self) -> Deadline {
        Deadline::new(Arc::clone(&self.alarm), self.head, self.body)
    }

    pub(super) fn begin_head(&self) {
        self.awaits_head.store(true, Ordering::Relaxed);
        self.alarm.arm(self.head);
    }

    pub(super) fn end_head(&self) {
        self.awaits_head.store(false, Ordering::Relaxed);
        // A connection whose alarm has rung counts as too old, so the alarm must not ring now.
        self.alarm.disarm();
    }

    /// Restarts the time limit if the client `has_sent` a piece, and stops it otherwise: the server
    /// is not responsible for a slow client.
    pub(super) fn note_upload(&self, has_sent: bool) {
        if !self.awaits_head.load(Ordering::Relaxed) {
            return;
        }
        if has_sent {
            self.alarm.arm(self.head);
        } else {
            self.alarm.disarm();
        }
    }
}

/// Aborts its task when it is dropped.
#[derive(Debug, Default)]
pub(super) struct AbortOnDrop(Option<AbortHandle>);

impl AbortOnDrop {
    pub(super) fn new(task: &JoinHandle<()>) -> AbortOnDrop {
        AbortOnDrop(Some(task.abort_handle()))
    }

    pub(super) fn abort_after(&mut self, grace: Duration) {
        let task = self.0.take().filter(|task| !task.is_finished());
        if let (Some(task), Ok(runtime)) = (task, Handle::try_current()) {
            runtime.spawn(async move {
                sleep(grace).await;
                task.abort();
            });
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}
