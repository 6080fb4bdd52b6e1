//! How far a request's content has been read, for those who do not read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::Alarm;

/// Shared between the content, which a connection to an upstream owns, and the client's connection.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    bytes: AtomicU64,
    unfinished: AtomicBool,
    too_large: AtomicBool,
    /// Counts the requests of the connection: what is left of an earlier body may still be read.
    turn: AtomicU32,
    pace: Option<Pace>,
}

/// How long a client may leave its reader without a piece, where its socket cannot tell: one
/// connection of HTTP/2 carries many bodies.
#[derive(Debug)]
struct Pace {
    alarm: Arc<Alarm>,
    most: Duration,
    waiting: AtomicBool,
}

impl Progress {
    /// Of content that has its own deadline, `alarm`: pieces come within `most` of being asked for.
    pub fn paced(alarm: Arc<Alarm>, most: Duration) -> Progress {
        let waiting = AtomicBool::new(false);
        let pace = Some(Pace {
            alarm,
            most,
            waiting,
        });
        let unfinished = AtomicBool::new(true);
        Progress(Arc::new(Marks {
            unfinished,
            pace,
            ..Marks::default()
        }))
    }

    /// A new request begins, with or without content.
    pub fn restart(&self, has_body: bool) {
        self.0.turn.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.store(0, Ordering::Relaxed);
        self.0.unfinished.store(has_body, Ordering::Relaxed);
        self.0.too_large.store(false, Ordering::Relaxed);
    }

    /// Bytes of content read so far.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Whether the content has been read to its end; true when there is none.
    pub fn has_ended(&self) -> bool {
        !self.0.unfinished.load(Ordering::Relaxed)
    }

    /// Whether it was longer than allowed.
    pub fn is_too_large(&self) -> bool {
        self.0.too_large.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.0.unfinished.store(false, Ordering::Relaxed);
    }

    pub(super) fn add_bytes(&self, length: u64) {
        self.0.bytes.fetch_add(length, Ordering::Relaxed);
    }

    pub(super) fn note_too_large(&self) {
        self.0.too_large.store(true, Ordering::Relaxed);
    }

    pub(super) fn turn(&self) -> u32 {
        self.0.turn.load(Ordering::Relaxed)
    }

    /// Whether its connection may carry several requests at once.
    pub(super) fn is_paced(&self) -> bool {
        self.0.pace.is_some()
    }

    /// A piece was asked for and has not come: ready if that has lasted too long.
    pub(super) fn poll_late(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(pace) = &self.0.pace else {
            return Poll::Pending;
        };
        if !pace.waiting.swap(true, Ordering::Relaxed) {
            pace.alarm.arm(pace.most);
        }
        pace.alarm.poll(context)
    }

    /// A piece has come.
    pub(super) fn note_piece(&self) {
        if let Some(pace) = &self.0.pace
            && pace.waiting.swap(false, Ordering::Relaxed)
        {
            pace.alarm.disarm();
        }
    }
}
