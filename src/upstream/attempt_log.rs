//! What becomes of each attempt to send one request, for whoever traces it.
//!
//! Each attempt is a span of its own, by whose name the server knows where the request comes from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::clock;
use crate::config::ServerAddress;
use crate::trace::{SpanId, TraceContext};

/// See the file's head.
#[derive(Debug)]
pub struct AttemptLog {
    parent: TraceContext,
    list: Mutex<Vec<RecordedAttempt>>,
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct RecordedAttempt {
    /// Its own.
    pub span: SpanId,
    /// The server's name or address, or the path of its socket.
    pub address: String,
    /// The server's port, where it has one.
    pub port: Option<u16>,
    /// When it began.
    pub began: Instant,
    /// When it was over; nothing while it is not.
    pub ended: Option<Instant>,
    /// The answer's status.
    pub status: Option<u16>,
    /// What was wrong if there was none.
    pub error: Option<&'static str>,
}

impl AttemptLog {
    /// Attempts for what is done as `parent`.
    pub fn new(parent: TraceContext) -> Arc<AttemptLog> {
        Arc::new(AttemptLog {
            parent,
            list: Mutex::default(),
        })
    }

    /// Takes what there was.
    pub fn take(&self) -> Vec<RecordedAttempt> {
        std::mem::take(&mut *self.list())
    }

    /// One begins, unless it is still the one that has begun: an idle connection that turns out to
    /// be closed is no attempt. Returns what it is called.
    pub(super) fn begin(&self, server: &ServerAddress) -> TraceContext {
        let mut list = self.list();
        if let Some(last) = list.last().filter(|last| last.ended.is_none()) {
            return self.parent.with(last.span);
        }
        let (address, port) = match server {
            ServerAddress::Unix(path) => (path.display().to_string(), None),
            ServerAddress::Http(host, port)
            | ServerAddress::Https(host, port)
            | ServerAddress::H2c(host, port) => (host.clone(), Some(*port)),
        };
        let span = SpanId::made();
        list.push(RecordedAttempt {
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

    /// The last one has ended: with a status, or with what was wrong.
    pub(super) fn end(&self, how: Result<u16, &'static str>) {
        if let Some(last) = self.list().last_mut() {
            last.ended = Some(clock::now());
            match how {
                Ok(status) => last.status = Some(status),
                Err(error) => last.error = Some(error),
            }
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<RecordedAttempt>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
