//! Spans that have ended and wait to be exported.
//!
//! Each worker has a bounded [`SpanQueue`]. Spans that do not fit are dropped and counted, so no
//! request waits. The exporter takes them out from time to time, and when a batch is complete.
//! Spans contain names of the configuration, hashes, and fields of the access log.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::clock;
use crate::config::ServerAddress;
use crate::route::template::AttemptVariable;
use crate::trace::{SpanId, TraceContext};

/// One part of the work on a request.
#[derive(Clone, Debug)]
pub struct TraceSpan {
    pub own: TraceContext,
    pub parent: Option<SpanId>,
    /// A related span of another trace.
    pub link: Option<TraceContext>,
    pub kind: SpanKind,
    pub name: String,
    /// Microseconds since the Unix epoch.
    pub start_us: u64,
    /// Microseconds since the Unix epoch.
    pub end_us: u64,
    pub attributes: Vec<(&'static str, SpanValue)>,
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    Server,
    Client,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SpanValue {
    Text(Cow<'static, str>),
    Name(Arc<str>),
    Number(i64),
    Many(Vec<SpanValue>),
}

impl From<&'static str> for SpanValue {
    fn from(text: &'static str) -> SpanValue {
        SpanValue::Text(Cow::Borrowed(text))
    }
}

impl From<String> for SpanValue {
    fn from(text: String) -> SpanValue {
        SpanValue::Text(Cow::Owned(text))
    }
}

impl From<&Arc<str>> for SpanValue {
    fn from(name: &Arc<str>) -> SpanValue {
        SpanValue::Name(Arc::clone(name))
    }
}

impl From<u64> for SpanValue {
    fn from(number: u64) -> SpanValue {
        SpanValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// The queues of all workers, and the counts of exported spans.
#[derive(Debug, Default)]
pub struct SpanQueues {
    queues: Mutex<Vec<Arc<SpanQueue>>>,
    filled: Arc<Notify>,
    exported: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// Spans by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    pub exported: u64,
    pub dropped: u64,
    /// The collector could not be reached, its answer was wrong, or the exporter panicked.
    pub failed: u64,
    pub refused: u64,
}

#[derive(Debug)]
pub struct SpanQueue {
    filled: Arc<Notify>,
    spans: Mutex<Vec<TraceSpan>>,
    dropped: AtomicU64,
}

/// The bounds of a queue, in spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    pub most: usize,
    /// So many spans wake the exporter.
    pub batch: usize,
}

impl SpanQueues {
    pub fn queue(&self) -> Arc<SpanQueue> {
        let queue = Arc::new(SpanQueue {
            filled: Arc::clone(&self.filled),
            spans: Mutex::default(),
            dropped: AtomicU64::new(0),
        });
        self.queues().push(Arc::clone(&queue));
        queue
    }

    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    pub fn take(&self) -> Vec<TraceSpan> {
        let mut all = Vec::new();
        for queue in self.queues().iter() {
            all.append(&mut queue.spans());
        }
        all
    }

    pub fn note_exported(&self, taken: u64, refused: u64) {
        self.exported.fetch_add(taken, Ordering::Relaxed);
        self.refused.fetch_add(refused, Ordering::Relaxed);
    }

    pub fn note_failed(&self, spans: u64) {
        self.failed.fetch_add(spans, Ordering::Relaxed);
    }

    pub fn counts(&self) -> SpanCounts {
        let queues = self.queues();
        let dropped = queues.iter().map(|one| one.dropped.load(Ordering::Relaxed));
        SpanCounts {
            exported: self.exported.load(Ordering::Relaxed),
            dropped: dropped.sum(),
            failed: self.failed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Arc<SpanQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpanQueue {
    /// Adds all spans of a request, or none if they do not fit.
    pub fn push(&self, new: Vec<TraceSpan>, bounds: QueueBounds) {
        let mut spans = self.spans();
        let before = spans.len();
        if before + new.len() > bounds.most {
            self.dropped.fetch_add(new.len() as u64, Ordering::Relaxed);
            return;
        }
        spans.extend(new);
        if before < bounds.batch && spans.len() >= bounds.batch {
            self.filled.notify_one();
        }
    }

    fn spans(&self) -> MutexGuard<'_, Vec<TraceSpan>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The attempts to send one request. If the request is traced, each attempt is a span, and
/// `traceparent` tells the server its id.
#[derive(Debug)]
pub struct AttemptLog {
    parent: Option<TraceContext>,
    attempts: Mutex<Vec<RecordedAttempt>>,
}

#[derive(Clone, Debug)]
pub struct RecordedAttempt {
    pub span: SpanId,
    /// The server's name or address, or the path of its socket.
    pub address: String,
    pub port: Option<u16>,
    pub began: Instant,
    pub ended: Option<Instant>,
    pub status: Option<u16>,
    pub error: Option<&'static str>,
    pub bytes: AttemptBytes,
}

/// Bytes of one attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptBytes {
    /// With the head of the request; `None` with HTTP/2.
    pub sent: Option<u64>,
    /// With the head of the response; `None` with HTTP/2.
    pub received: Option<u64>,
    /// Of the response's body.
    pub body: u64,
}

impl AttemptLog {
    /// `parent` is the trace of the request, if it is traced.
    pub fn new(parent: Option<TraceContext>) -> Arc<AttemptLog> {
        Arc::new(AttemptLog {
            parent,
            attempts: Mutex::default(),
        })
    }

    pub fn take(&self) -> Vec<RecordedAttempt> {
        std::mem::take(&mut *self.lock())
    }

    /// Returns what a variable says of the attempts so far.
    pub fn variable_text(&self, variable: AttemptVariable) -> String {
        text_of_attempts(variable, &self.lock())
    }

    /// Records the start of an attempt. Returns its trace context if the request is traced. An
    /// attempt that is still open goes on: an idle connection that turned out to be closed does not
    /// count.
    pub fn begin(&self, server: &ServerAddress) -> Option<TraceContext> {
        let mut attempts = self.lock();
        if let Some(last) = attempts.last().filter(|last| last.ended.is_none()) {
            return Some(self.parent?.with(last.span));
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
            bytes: AttemptBytes::default(),
        });
        Some(self.parent?.with(span))
    }

    /// Records the bytes of the last attempt so far.
    pub fn note_bytes(&self, bytes: AttemptBytes) {
        if let Some(last) = self.lock().last_mut() {
            last.bytes = bytes;
        }
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

/// Writes what a variable says of each attempt.
fn text_of_attempts(variable: AttemptVariable, attempts: &[RecordedAttempt]) -> String {
    let bytes = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    let one = |attempt: &RecordedAttempt| match variable {
        AttemptVariable::BytesSent => bytes(attempt.bytes.sent),
        AttemptVariable::BytesReceived => bytes(attempt.bytes.received),
        AttemptVariable::BodyBytes => bytes(Some(attempt.bytes.body)),
        AttemptVariable::Address => match attempt.port {
            Some(port) if attempt.address.contains(':') => format!("[{}]:{port}", attempt.address),
            Some(port) => format!("{}:{port}", attempt.address),
            None => format!("unix:{}", attempt.address),
        },
        AttemptVariable::Status => attempt
            .status
            .map_or("502".to_owned(), |one| one.to_string()),
        AttemptVariable::Time => {
            let ended = attempt.ended.unwrap_or_else(clock::now);
            let seconds = ended.saturating_duration_since(attempt.began).as_secs_f64();
            format!("{seconds:.3}")
        }
    };
    attempts.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceId;

    fn spans(count: usize) -> Vec<TraceSpan> {
        let span = TraceSpan {
            own: TraceContext {
                trace: TraceId::made(),
                span: SpanId::made(),
                sampled: true,
            },
            parent: None,
            link: None,
            kind: SpanKind::Server,
            name: "GET".to_owned(),
            start_us: 1,
            end_us: 2,
            attributes: Vec::new(),
            failed: false,
        };
        vec![span; count]
    }

    #[test]
    fn spans_that_do_not_fit_are_dropped_and_counted() {
        let queues = SpanQueues::default();
        let (one, other) = (queues.queue(), queues.queue());
        let bounds = QueueBounds { most: 5, batch: 4 };
        one.push(spans(3), bounds);
        one.push(spans(3), bounds);
        one.push(spans(2), bounds);
        other.push(spans(1), bounds);
        assert_eq!(queues.counts().dropped, 3);
        assert_eq!(queues.take().len(), 6);
        one.push(spans(5), bounds);
        assert_eq!(queues.take().len(), 5);
        assert!(queues.take().is_empty());
        queues.note_exported(9, 1);
        queues.note_failed(1);
        let counts = SpanCounts {
            exported: 9,
            dropped: 3,
            failed: 1,
            refused: 1,
        };
        assert_eq!(queues.counts(), counts);
    }

    #[tokio::test]
    async fn a_batch_wakes_the_exporter() {
        let queues = SpanQueues::default();
        let queue = queues.queue();
        let bounds = QueueBounds { most: 9, batch: 2 };
        queue.push(spans(2), bounds);
        queues.filled().await;
    }
}
