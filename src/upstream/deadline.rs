//! How long an exchange may take, and the task that ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};

use crate::clock::Alarm;

/// What one connection waits for at most, moved by a store: no timer is armed for a request.
#[derive(Debug)]
pub(super) struct Deadline {
    alarm: Arc<Alarm>,
    head: Duration,
    body: Duration,
    /// Whether the head of the response is still to come, so that the upload may move the alarm.
    awaits_head: AtomicBool,
}

impl Deadline {
    /// Of the head and of each piece of the body.
    pub(super) fn new(alarm: Arc<Alarm>, (head, body): (Duration, Duration)) -> Deadline {
        Deadline {
            alarm,
            head,
            body,
            awaits_head: AtomicBool::new(false),
        }
    }

    /// With the same alarm, for the body.
    pub(super) fn twin(&self) -> Deadline {
        Deadline::new(Arc::clone(&self.alarm), (self.head, self.body))
    }

    pub(super) fn await_head(&self) {
        self.awaits_head.store(true, Ordering::Relaxed);
        self.alarm.arm(self.head);
    }

    pub(super) fn end_head(&self) {
        self.awaits_head.store(false, Ordering::Relaxed);
        // An idle connection's alarm says that it is too old; one that rang must not.
        self.alarm.disarm();
    }

    /// A piece of the upload has `come`, and it is the server's turn to take it; or the client has
    /// none, and the server is not to blame for the time that passes.
    pub(super) fn upload(&self, come: bool) {
        if !self.awaits_head.load(Ordering::Relaxed) {
            return;
        }
        if come {
            self.alarm.arm(self.head);
        } else {
            self.alarm.disarm();
        }
    }

    pub(super) fn arm_body(&self) {
        self.alarm.arm(self.body);
    }

    /// Rings in `time` from now.
    pub(super) fn arm(&self, time: Duration) {
        self.alarm.arm(time);
    }

    pub(super) fn disarm(&self) {
        self.alarm.disarm();
    }

    pub(super) fn has_rung(&self) -> bool {
        self.alarm.has_rung()
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(context)
    }
}

/// Ends the task when dropped, unless it was let go.
#[derive(Debug)]
pub(super) struct Task(Option<AbortHandle>);

impl Task {
    pub(super) fn none() -> Task {
        Task(None)
    }

    pub(super) fn of(task: &JoinHandle<()>) -> Task {
        Task(Some(task.abort_handle()))
    }

    /// Lets go of it, if it has not ended.
    pub(super) fn take_unfinished(&mut self) -> Option<AbortHandle> {
        self.0.take().filter(|task| !task.is_finished())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}
