//! Spans that have ended and wait to be exported.
//!
//! Each worker has a [`Queue`] of its own, bounded: what does not fit is dropped and counted, and
//! no request ever waits. Whoever exports takes them out from time to time, or when a batch has
//! come together. A span holds words: names of the configuration, hashes, and what the access log
//! says of a request too.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::trace::{SpanId, TraceContext};

/// One part of what was done about a request.
#[derive(Clone, Debug)]
pub struct Span {
    /// Itself.
    pub own: TraceContext,
    /// What it is a part of.
    pub parent: Option<SpanId>,
    /// What else it has to do with.
    pub link: Option<TraceContext>,
    /// Whose view it is.
    pub kind: Kind,
    /// What is done.
    pub name: String,
    /// Microseconds since the Unix epoch.
    pub start_us: u64,
    /// The same.
    pub end_us: u64,
    /// What is known of it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether it failed.
    pub failed: bool,
}

/// Whose view a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of something within.
    Internal,
    /// Of the one who is asked.
    Server,
    /// Of the one who asks.
    Client,
}

/// What is known of a span, in one respect.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(Cow<'static, str>),
    /// A name of the configuration.
    Name(Arc<str>),
    /// A number.
    Number(i64),
    /// Several.
    Many(Vec<Value>),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(Cow::Owned(text))
    }
}

impl From<&Arc<str>> for Value {
    fn from(name: &Arc<str>) -> Value {
        Value::Name(Arc::clone(name))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// All workers' queues, and what became of what was in them.
#[derive(Debug, Default)]
pub struct Depot {
    queues: Mutex<Vec<Arc<Queue>>>,
    filled: Arc<Notify>,
    exported: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// What has become of spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// The collector took them.
    pub exported: u64,
    /// There was no room for them.
    pub dropped: u64,
    /// The collector could not be reached, or did not answer as it should; or we panicked.
    pub failed: u64,
    /// The collector said that it does not want them.
    pub refused: u64,
}

/// One worker's end.
#[derive(Debug)]
pub struct Queue {
    filled: Arc<Notify>,
    spans: Mutex<Vec<Span>>,
    dropped: AtomicU64,
}

/// How much a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Spans at most.
    pub most: usize,
    /// So many are worth an export.
    pub batch: usize,
}

impl Depot {
    /// A worker's queue, which is there from now on.
    pub fn queue(&self) -> Arc<Queue> {
        let queue = Arc::new(Queue {
            filled: Arc::clone(&self.filled),
            spans: Mutex::default(),
            dropped: AtomicU64::new(0),
        });
        self.queues().push(Arc::clone(&queue));
        queue
    }

    /// Waits until one of them has a batch.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Takes out what waits, of all workers.
    pub fn take(&self) -> Vec<Span> {
        let mut all = Vec::new();
        for queue in self.queues().iter() {
            all.append(&mut queue.spans());
        }
        all
    }

    /// The collector took so many, and did not want the others.
    pub fn note_exported(&self, taken: u64, refused: u64) {
        self.exported.fetch_add(taken, Ordering::Relaxed);
        self.refused.fetch_add(refused, Ordering::Relaxed);
    }

    /// So many were not taken by anybody.
    pub fn note_failed(&self, spans: u64) {
        self.failed.fetch_add(spans, Ordering::Relaxed);
    }

    /// What has become of all spans so far.
    pub fn fates(&self) -> Fates {
        let queues = self.queues();
        let dropped = queues.iter().map(|one| one.dropped.load(Ordering::Relaxed));
        Fates {
            exported: self.exported.load(Ordering::Relaxed),
            dropped: dropped.sum(),
            failed: self.failed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Adds the spans of one request: all of them or, where there is no room, none.
    pub fn push(&self, new: Vec<Span>, room: Room) {
        let mut spans = self.spans();
        let before = spans.len();
        if before + new.len() > room.most {
            let dropped = new.len() as u64;
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
            return;
        }
        spans.extend(new);
        if before < room.batch && spans.len() >= room.batch {
            self.filled.notify_one();
        }
    }

    fn spans(&self) -> MutexGuard<'_, Vec<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceId;

    fn spans(count: usize) -> Vec<Span> {
        let span = Span {
            own: TraceContext {
                trace: TraceId::made(),
                span: SpanId::made(),
                sampled: true,
            },
            parent: None,
            link: None,
            kind: Kind::Server,
            name: "GET".to_owned(),
            start_us: 1,
            end_us: 2,
            attributes: Vec::new(),
            failed: false,
        };
        vec![span; count]
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let depot = Depot::default();
        let (one, other) = (depot.queue(), depot.queue());
        let room = Room { most: 5, batch: 4 };
        one.push(spans(3), room);
        one.push(spans(3), room);
        one.push(spans(2), room);
        other.push(spans(1), room);
        assert_eq!(depot.fates().dropped, 3);
        assert_eq!(depot.take().len(), 6);
        one.push(spans(5), room);
        assert_eq!(depot.take().len(), 5);
        assert!(depot.take().is_empty());
        depot.note_exported(9, 1);
        depot.note_failed(1);
        let fates = Fates {
            exported: 9,
            dropped: 3,
            failed: 1,
            refused: 1,
        };
        assert_eq!(depot.fates(), fates);
    }

    #[tokio::test]
    async fn a_batch_wakes_whoever_exports() {
        let depot = Depot::default();
        let queue = depot.queue();
        let room = Room { most: 9, batch: 2 };
        queue.push(spans(2), room);
        depot.filled().await;
    }
}
