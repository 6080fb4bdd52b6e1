//! Where a client's connection of HTTP/1 stands between two requests and within one, and the one
//! alarm that stands for whatever it waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use crate::body::Progress;
use crate::clock::Alarm;
use crate::config::ServerSettings;
use crate::proxy::flaw::Flaw;

/// How long a connection is kept as it is after an answer, in case the next request is on its way.
/// A connection that is busy must never be parked: it would allocate anew for each request.
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// The answer has not ended before its end; it has; and all that came of it is written.
const WHOLE: u8 = 0;
const CUT: u8 = 1;
const CUT_AND_WRITTEN: u8 = 2;

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

/// What the socket and the service of one connection tell each other.
#[derive(Debug)]
pub(crate) struct Phase {
    stage: AtomicU8,
    flaw: AtomicU8,
    answer_pending: AtomicBool,
    cut: AtomicU8,
    /// hyper has asked for the next request, which it gets once this one is answered.
    holds_next: AtomicBool,
    /// How far the request's body has been read; one for all requests of the connection.
    pub(crate) body: Progress,
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
            flaw: AtomicU8::new(0),
            answer_pending: AtomicBool::new(false),
            cut: AtomicU8::new(WHOLE),
            holds_next: AtomicBool::new(false),
            body: Progress::default(),
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

    /// What the lint says of the head that is coming.
    pub(crate) fn found(&self, flaw: Flaw) {
        self.flaw.store(flaw.code(), Ordering::Relaxed);
    }

    /// A request's head is whole and the service has it. Tells what the head's lint found.
    pub(crate) fn begin_request(&self, has_body: bool) -> Option<Flaw> {
        self.set(Stage::Request);
        self.body.restart(has_body);
        self.answer_pending.store(true, Ordering::Relaxed);
        if has_body {
            self.expect_body();
        } else {
            self.alarm.disarm();
        }
        let flaw = self.flaw.load(Ordering::Relaxed);
        if flaw == 0 {
            return None;
        }
        self.flaw.store(0, Ordering::Relaxed);
        Flaw::from_code(flaw)
    }

    /// The next request is kept back until this one is answered. The task behind the alarm is woken
    /// then.
    pub(crate) fn hold_next(&self) {
        self.holds_next.store(true, Ordering::Relaxed);
    }

    /// The response has been handed to hyper to its end.
    pub(crate) fn end_response(&self) {
        if self.stage() != Stage::Request {
            return;
        }
        if self.holds_next.load(Ordering::Relaxed) {
            self.holds_next.store(false, Ordering::Relaxed);
            self.alarm.wake();
        }
        if self.body.has_ended() {
            self.begin_short_wait();
        } else {
            self.set(Stage::Discard);
            self.expect_body();
        }
    }

    /// The response agrees to an upgrade: no limit on waits holds any more.
    pub(crate) fn begin_tunnel(&self) {
        self.set(Stage::Tunnel);
        self.alarm.disarm();
    }

    /// The answer's content has ended before its end: the connection ends as soon as what came of
    /// it is written.
    pub(crate) fn cut_answer(&self) {
        self.cut.store(CUT, Ordering::Relaxed);
    }

    /// All that was handed over is written.
    pub(crate) fn written(&self) {
        if self.cut.load(Ordering::Relaxed) == CUT {
            self.cut.store(CUT_AND_WRITTEN, Ordering::Relaxed);
        }
    }

    /// Whether the answer has ended before its end, and what came of it is written.
    pub(crate) fn is_cut_and_written(&self) -> bool {
        self.cut.load(Ordering::Relaxed) == CUT_AND_WRITTEN
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
            Stage::Request if self.body.has_ended() => self.alarm.disarm(),
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
