//! The attempts to send one traced request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::clock;
use crate::config::ServerAddress;
use crate::trace::{SpanId, TraceContext};

/// The attempts to send one traced request. Each attempt is a span, and `traceparent` tells the
/// server its id.
#[derive(Debug)]
pub struct AttemptLog {
    parent: TraceContext,
    attempts: Mutex<Vec<RecordedAttempt>>,
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct RecordedAttempt {
    /// The attempt's own span.
    pub span: SpanId,
    /// The server's name or address, or the path of its socket.
    pub address: String,
    /// The server's port, if it has one.
    pub port: Option<u16>,
    /// When it began.
    pub began: Instant,
    /// When it ended; `None` while it runs.
    pub ended: Option<Instant>,
    /// The status of the response.
    pub status: Option<u16>,
    /// The label of the error, if there was no response.
    pub error: Option<&'static str>,
}

impl AttemptLog {
    /// `parent` is the span of the request.
    pub fn new(parent: TraceContext) -> Arc<AttemptLog> {
        Arc::new(AttemptLog {
            parent,
            attempts: Mutex::default(),
        })
    }

    /// Takes the recorded attempts.
    pub fn take(&self) -> Vec<RecordedAttempt> {
        std::mem::take(&mut *self.lock())
    }

    /// Records the start of an attempt and returns its trace context. An attempt that is still open
    /// goes on: an idle connection that turned out to be closed does not count.
    pub fn begin(&self, server: &ServerAddress) -> TraceContext {
        let mut attempts = self.lock();
        if let Some(last) = attempts.last().filter(|last| last.ended.is_none()) {
            return self.parent.with(last.span);
        }
        let (address, port) = match server {
            ServerAddress::Unix(path) => (path.display().to_string(), None),
            ServerAddress::Http(host, port)
            | ServerAddress::Https(host, port)
            | ServerAddress::H2c(host, port) => (host.clone(), Some(*port)),
        };
        let span = SpanId::made();
        attempts.push(RecordedAttempt {
            span,
            address,
            port,
            began: clock::now(),
            ended: None,
            status: None,
            error: None,
        });
        self.parent.with(span)
    }

    /// Records the end of the last attempt: a status or the label of an error.
    pub fn end(&self, outcome: Result<u16, &'static str>) {
        if let Some(last) = self.lock().last_mut() {
            last.ended = Some(clock::now());
            last.status = outcome.ok();
            last.error = outcome.err();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordedAttempt>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
