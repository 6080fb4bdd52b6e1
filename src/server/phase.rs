//! The state of an HTTP/1 connection, and its one alarm, which serves all of its deadlines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use crate::clock::Alarm;
use crate::config::ServerSettings;

/// How long a connection keeps its buffers after an answer. A busy connection must never be parked,
/// because it would allocate for each request.
const SHORT_WAIT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The short wait for the next request.
    Idle,
    /// The long wait for the next request, in which the connection cannot be parked.
    Still,
    /// The long wait for the next request. The connection keeps only its stream.
    Parked,
    /// A part of a head has come.
    Head,
    /// A request is served.
    Request,
    /// The answer is sent, and the rest of the request's content is discarded.
    Discard,
    /// The connection was upgraded.
    Tunnel,
}

/// The state that a connection and its socket share.
#[derive(Debug)]
pub(crate) struct Phase {
    stage: AtomicU8,
    answer_pending: AtomicBool,
    /// Whether some of the request's content has not come.
    has_content: AtomicBool,
    pub(crate) alarm: Arc<Alarm>,
    header_timeout: Duration,
    idle_timeout: Duration,
    body_timeout: Duration,
}

impl Phase {
    /// The phase of a new connection: parked.
    pub(crate) fn new(alarm: Arc<Alarm>, settings: &ServerSettings) -> Arc<Phase> {
        alarm.arm(settings.idle_timeout);
        Arc::new(Phase {
            stage: AtomicU8::new(Stage::Parked as u8),
            answer_pending: AtomicBool::new(false),
            has_content: AtomicBool::new(false),
            alarm,
            header_timeout: settings.header_timeout,
            idle_timeout: settings.idle_timeout,
            body_timeout: settings.body_timeout,
        })
    }

    pub(crate) fn begin_head(&self) {
        self.set(Stage::Head);
        self.alarm.arm(self.header_timeout);
    }

    /// Begins a request whose head has come whole.
    pub(crate) fn begin_request(&self, has_content: bool) {
        self.set(Stage::Request);
        self.has_content.store(has_content, Ordering::Relaxed);
        self.answer_pending.store(true, Ordering::Relaxed);
        self.restart_wait();
    }

    pub(crate) fn has_content(&self) -> bool {
        self.has_content.load(Ordering::Relaxed)
    }

    /// All of the request's content has come.
    pub(crate) fn end_content(&self) {
        self.has_content.store(false, Ordering::Relaxed);
        if self.stage() == Stage::Discard {
            self.begin_short_wait();
        }
    }

    /// Ends the request: the whole answer is ready to be written.
    pub(crate) fn end_response(&self) {
        if self.stage() != Stage::Request {
            return;
        }
        if self.has_content() {
            self.set(Stage::Discard);
            self.expect_body();
        } else {
            self.begin_short_wait();
        }
    }

    /// Begins a tunnel, which has no deadline here.
    pub(crate) fn begin_tunnel(&self) {
        self.set(Stage::Tunnel);
        self.alarm.disarm();
    }

    pub(crate) fn note_answer_sent(&self) {
        self.answer_pending.store(false, Ordering::Relaxed);
    }

    /// Starts the deadline for the next piece of a body.
    pub(crate) fn expect_body(&self) {
        self.alarm.arm(self.body_timeout);
    }

    /// Starts the deadline of a write that found no room.
    pub(crate) fn expect_room(&self) {
        if self.stage() == Stage::Idle {
            self.set(Stage::Still);
        }
        self.alarm.arm(self.body_timeout);
    }

    /// Replaces the short wait by the long one, because the answer finds no room.
    pub(crate) fn leave_short_wait(&self) {
        if self.stage() == Stage::Idle {
            self.set(Stage::Still);
            self.alarm.arm(self.idle_timeout);
        }
    }

    /// Starts the usual deadline of the stage.
    pub(crate) fn restart_wait(&self) {
        match self.stage() {
            Stage::Request if !self.has_content() => self.alarm.disarm(),
            Stage::Request | Stage::Discard => self.expect_body(),
            Stage::Idle | Stage::Still => self.begin_short_wait(),
            Stage::Parked => self.alarm.arm(self.idle_timeout),
            Stage::Head => self.alarm.arm(self.header_timeout),
            Stage::Tunnel => self.alarm.disarm(),
        }
    }

    fn begin_short_wait(&self) {
        if self.idle_timeout > SHORT_WAIT {
            self.set(Stage::Idle);
            self.alarm.arm(SHORT_WAIT);
        } else {
            self.set(Stage::Still);
            self.alarm.arm(self.idle_timeout);
        }
    }

    /// Goes on with the long wait after the short one. The connection is parked if it is `ready`
    /// for that and its answer is sent.
    pub(crate) fn end_short_wait(&self, ready: bool) {
        let parks = ready && !self.answer_pending.load(Ordering::Relaxed);
        self.set(if parks { Stage::Parked } else { Stage::Still });
        self.alarm
            .go_on(self.idle_timeout.saturating_sub(SHORT_WAIT));
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Idle,
            1 => Stage::Still,
            2 => Stage::Parked,
            3 => Stage::Head,
            4 => Stage::Request,
            5 => Stage::Discard,
            _ => Stage::Tunnel,
        }
    }

    fn set(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }
}
