//! Where a client's connection of HTTP/1 stands between two requests and within one, and the one
//! alarm that stands for whatever it waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use crate::clock::Alarm;
use crate::config::ServerSettings;

/// How long a connection is kept as it is after an answer, in case the next request is on its way.
/// A connection that is busy must never be parked: it would allocate anew for each request.
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing of the next request has come. The alarm stands for the end of the short wait.
    Idle,
    /// The same for longer, but something stands in the way of parking.
    Still,
    /// The same for longer. Nothing is kept but the stream.
    Parked,
    /// Part of a head has come.
    Head,
    /// A request is being served.
    Request,
    /// It has been answered, and the rest of its body is being thrown away.
    Discard,
    /// The connection was upgraded: its bytes are no longer ours to understand.
    Tunnel,
}

/// What a connection and its socket tell each other.
#[derive(Debug)]
pub(crate) struct Phase {
    stage: AtomicU8,
    answer_pending: AtomicBool,
    /// Whether content of the request is still to come.
    has_content: AtomicBool,
    pub(crate) alarm: Arc<Alarm>,
    header_timeout: Duration,
    idle_timeout: Duration,
    body_timeout: Duration,
}

impl Phase {
    /// Of a connection from which nothing has come, and that has nothing but its stream.
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

    /// The first bytes of a head have come.
    pub(crate) fn begin_head(&self) {
        self.set(Stage::Head);
        self.alarm.arm(self.header_timeout);
    }

    /// A request's head is whole, and content may follow.
    pub(crate) fn begin_request(&self, has_content: bool) {
        self.set(Stage::Request);
        self.has_content.store(has_content, Ordering::Relaxed);
        self.answer_pending.store(true, Ordering::Relaxed);
        if has_content {
            self.expect_body();
        } else {
            self.alarm.disarm();
        }
    }

    /// Whether content of the request is still to come.
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

    /// The response has been put together to its end.
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

    /// The response agrees to an upgrade: no limit on waits holds any more.
    pub(crate) fn begin_tunnel(&self) {
        self.set(Stage::Tunnel);
        self.alarm.disarm();
    }

    /// The whole answer is written.
    pub(crate) fn answer_is_out(&self) {
        self.answer_pending.store(false, Ordering::Relaxed);
    }

    /// Whether something of it is not.
    pub(crate) fn is_answer_pending(&self) -> bool {
        self.answer_pending.load(Ordering::Relaxed)
    }

    /// The next piece of a body is due.
    pub(crate) fn expect_body(&self) {
        self.alarm.arm(self.body_timeout);
    }

    /// A client that takes nothing is waited for as long as a body may stand still.
    pub(crate) fn expect_room(&self) {
        if self.stage() == Stage::Idle {
            self.set(Stage::Still);
        }
        self.alarm.arm(self.body_timeout);
    }

    /// An answer is handed over, but there is no room for it: this is no short wait.
    pub(crate) fn wait_at_length(&self) {
        if self.stage() == Stage::Idle {
            self.set(Stage::Still);
            self.alarm.arm(self.idle_timeout);
        }
    }

    /// There is room again: the deadline is what it is where all goes well.
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

    /// The alarm has rung at the end of the short wait: the rest of the long one is left, and the
    /// connection is to be parked unless something of its answer is not written.
    pub(crate) fn end_short_wait(&self, ready: bool) {
        let parks = ready && !self.is_answer_pending();
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
