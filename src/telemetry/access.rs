//! The access log: one line for each request that is worth one, in its own encoder.
//!
//! Denials and answers that the proxy makes itself are always logged; what was let through is
//! sampled. No query string, no client key and no header value of a client is ever written: of a
//! key there is at most a prefix of its keyed hash. A line is encoded into its worker's buffer;
//! buffers go to one writer thread through a bounded queue that drops, counts and says so.

mod formats;

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::lines::Lines;
use super::metrics::GrpcStatus;
use super::trials::Trials;
use super::{FileId, lines};
use crate::clock;
use crate::config::{LogFormat, LogTarget};
use crate::limit::DeniedKey;
use crate::trace::TraceId;
use formats::{combined, json_line, text};

/// Buffers that may wait for the writer.
const QUEUE_BUFFERS: usize = 1024;
/// A worker hands its buffer over at this size, bytes, or at the next flush.
const BUFFER_BYTES: usize = 16 << 10;

/// What became of a request, as the log calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every limit allowed it.
    Allowed,
    /// No limit was asked.
    Unlimited,
    /// A limit refused it.
    Denied,
    /// The proxy answered it for another reason.
    Rejected,
}

impl Outcome {
    /// As the log calls it.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Unlimited => "unlimited",
            Outcome::Denied => "denied",
            Outcome::Rejected => "rejected",
        }
    }
}

/// The outcome in the line of a request whose upstream's answer ended before its end, whatever the
/// limits said.
pub const TRUNCATED: &str = "truncated";

/// An upstream's answer that ended before its end.
#[derive(Clone, Copy, Debug)]
pub struct MissingBytes {
    /// Bytes that its body should have had, where its head said so.
    pub expected: Option<u64>,
}

/// One request, as far as it is known when its response ends.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// When it came, microseconds since the Unix epoch.
    pub unix_us: u64,
    /// From its head to the end of the response.
    pub duration: Duration,
    /// The client's address, through trusted proxies.
    pub client: IpAddr,
    /// Its method.
    pub method: &'a http::Method,
    /// Its path as it was sent, without the query.
    pub path: &'a str,
    /// The answer's status.
    pub status: u16,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// Whether that is less than the answer should have had.
    pub truncated: Option<MissingBytes>,
    /// The route's name.
    pub route: Option<&'a str>,
    /// What became of it.
    pub outcome: Outcome,
    /// The limits that denied it, each with its key where that is shown.
    pub denied_by: &'a [(Arc<str>, Option<DeniedKey>)],
    /// The limits on trial that would have denied it.
    pub would_deny: &'a [Arc<str>],
    /// Why the proxy answered itself.
    pub reason: Option<&'static str>,
    /// How a gRPC call ended.
    pub grpc_status: Option<GrpcStatus>,
    /// The id given to the client.
    pub request_id: Option<&'a str>,
    /// The trace that it belongs to.
    pub trace_id: Option<TraceId>,
}

impl Entry<'_> {
    fn outcome_word(&self) -> &'static str {
        match self.truncated {
            Some(_) => TRUNCATED,
            None => self.outcome.word(),
        }
    }
}

/// The log of the whole process; dropping the last handle writes what is left.
#[derive(Debug)]
pub struct AccessLog {
    target: LogTarget,
    /// Which file was opened, where it is one.
    file: Option<FileId>,
    format: LogFormat,
    sample_allowed: f64,
    queue: Option<SyncSender<Vec<u8>>>,
    dropped: Arc<AtomicU64>,
    trials: Trials,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AccessLog {
    /// Opens `target` and starts its writer; a log that is off takes lines and forgets them.
    pub fn open(target: &LogTarget, format: LogFormat, sample_allowed: f64) -> io::Result<Self> {
        let mut log = AccessLog {
            target: target.clone(),
            file: None,
            format,
            sample_allowed,
            queue: None,
            dropped: Arc::default(),
            trials: Trials::default(),
            writer: Mutex::new(None),
        };
        if let Some(out) = super::open(target)? {
            log.file = FileId::of(target);
            log.write_to(out)?;
        }
        Ok(log)
    }

    /// Starts its writer.
    fn write_to(&mut self, out: Box<dyn Write + Send>) -> io::Result<()> {
        let (queue, buffers) = sync_channel::<Vec<u8>>(QUEUE_BUFFERS);
        let mut lines = Lines::new(out, "access log", &self.dropped);
        let writing = move || lines::endure(|| buffers.iter().for_each(|text| lines.write(&text)));
        let writer = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(writing)?;
        self.queue = Some(queue);
        self.writer = Mutex::new(Some(writer));
        Ok(())
    }

    /// Whether opening it anew with these settings would change anything: false also where its file
    /// has been moved away.
    pub fn is_still(&self, target: &LogTarget, format: LogFormat, sample_allowed: f64) -> bool {
        let same = (&self.target, self.format, self.sample_allowed);
        same == (target, format, sample_allowed) && self.file == FileId::of(target)
    }

    /// Lines that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// A worker's own end of the log.
    pub fn buffer(self: &Arc<Self>) -> Buffer {
        Buffer(Arc::new(Local {
            log: Arc::clone(self),
            seen: AtomicU64::new(0),
            bytes: Mutex::new(Vec::new()),
        }))
    }

    fn send(&self, bytes: Vec<u8>) {
        let Some(queue) = &self.queue else { return };
        let refused = queue.try_send(bytes);
        if let Err(TrySendError::Full(bytes) | TrySendError::Disconnected(bytes)) = refused {
            let lines = lines::count(&bytes);
            let before = self.dropped.fetch_add(lines, Ordering::Relaxed);
            if before / 100_000 != (before + lines) / 100_000 || before == 0 {
                tracing::warn!(dropped = before + lines, "the access log drops lines");
            }
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        drop(self.queue.take());
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(writer) = writer {
            // Its panic was already printed; there is nothing left to save.
            let _ = writer.join();
        }
    }
}

/// One worker's end of the log: cheap to clone, not shared between workers.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Local>);

#[derive(Debug)]
struct Local {
    log: Arc<AccessLog>,
    /// Requests that were let through, while a share of them is logged.
    seen: AtomicU64,
    bytes: Mutex<Vec<u8>>,
}

impl Buffer {
    /// Whether both are handles of one end.
    pub fn is_same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this is the last handle of this end: no more lines will come.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Whether no line is ever written.
    pub fn is_off(&self) -> bool {
        self.0.log.queue.is_none()
    }

    /// Whether a request with this outcome gets a line: everything but what was let through, of
    /// which every n-th of a worker, so that the share is exact.
    pub fn wants(&self, outcome: Outcome) -> bool {
        if self.is_off() {
            return false;
        }
        let share = self.0.log.sample_allowed;
        match outcome {
            Outcome::Denied | Outcome::Rejected => true,
            Outcome::Allowed | Outcome::Unlimited if share <= 0.0 => false,
            Outcome::Allowed | Outcome::Unlimited if share >= 1.0 => true,
            Outcome::Allowed | Outcome::Unlimited => {
                let seen = self.0.seen.fetch_add(1, Ordering::Relaxed) as f64;
                ((seen + 1.0) * share).floor() > (seen * share).floor()
            }
        }
    }

    /// Adds one line.
    pub fn record(&self, entry: &Entry<'_>) {
        let mut bytes = self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match self.0.log.format {
            LogFormat::Text => text(&mut bytes, entry),
            LogFormat::Json => json_line(&mut bytes, entry),
            LogFormat::Combined => combined(&mut bytes, entry),
        }
        if bytes.len() >= BUFFER_BYTES {
            // The next one gets its room at once, not by growing line by line.
            let next = Vec::with_capacity(BUFFER_BYTES + (BUFFER_BYTES >> 2));
            self.0.log.send(std::mem::replace(&mut *bytes, next));
        }
    }

    /// What limits on trial would have denied; told once a minute, whether lines are written or
    /// not.
    pub fn trials(&self) -> &Trials {
        &self.0.log.trials
    }

    /// Hands over what is waiting; called by the worker from time to time, and at its end.
    pub fn flush(&self) {
        self.trials().tell(clock::now());
        let mut bytes = self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if !bytes.is_empty() {
            self.0.log.send(std::mem::take(&mut *bytes));
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let bytes = self.bytes.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !bytes.is_empty() {
            self.log.send(std::mem::take(bytes));
        }
    }
}

#[cfg(test)]
mod tests;
