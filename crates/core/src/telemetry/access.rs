//! The access log: one line for each request that is worth one.
//!
//! Denials and answers that the proxy makes itself are always logged, other requests are sampled. A
//! line contains no query string, no client's key, and no header value of a client. Of a key it has
//! at most a prefix of its keyed hash. A line is encoded into the buffer of its worker. Buffers go
//! to one writer thread through a bounded queue, which counts and reports what it drops.

mod entry;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::FileId;
use super::log_writer::{LineWriter, WriterThread, count};
use crate::clock;
use crate::config::{LogFormat, LogTarget};
use crate::limit::Role;
pub use entry::{
    AccessEntry, DENIED_USAGE, LoggedUsage, MissingBytes, Outcome, TRUNCATED, UpstreamFailure,
};
use entry::{combined, json_line, text};

/// Buffers that may wait for the writer.
const QUEUE_BUFFERS: usize = 1024;
/// A worker sends its buffer at this size, bytes, or at the next flush.
const BUFFER_BYTES: usize = 16 << 10;
/// How often the decisions of limits in shadow mode are logged.
const SHADOW_PERIOD: Duration = Duration::from_secs(60);

/// The log of the process. Dropping the last handle writes the lines that wait.
#[derive(Debug)]
pub struct AccessLog {
    target: LogTarget,
    file: Option<FileId>,
    format: LogFormat,
    sample_allowed: f64,
    writer: Option<WriterThread<Vec<u8>>>,
    dropped: Arc<AtomicU64>,
    shadow: ShadowSummary,
}

impl AccessLog {
    /// Opens `target` and starts its writer. A log that is off ignores its lines.
    pub fn open(target: &LogTarget, format: LogFormat, sample_allowed: f64) -> io::Result<Self> {
        let mut log = AccessLog {
            target: target.clone(),
            file: None,
            format,
            sample_allowed,
            writer: None,
            dropped: Arc::default(),
            shadow: ShadowSummary::default(),
        };
        if let Some(out) = super::open(target)? {
            log.file = FileId::find(target);
            log.write_to(out)?;
        }
        Ok(log)
    }

    fn write_to(&mut self, out: Box<dyn Write + Send>) -> io::Result<()> {
        let mut lines = LineWriter::new(out, "access log", &self.dropped);
        let write = move |buffers: &Receiver<Vec<u8>>| {
            buffers.iter().for_each(|text| lines.write(&text));
        };
        self.writer = Some(WriterThread::spawn("access-log", QUEUE_BUFFERS, write)?);
        Ok(())
    }

    /// Whether a log with these settings would be the same. It is not if its file was moved away.
    pub fn is_still(&self, target: &LogTarget, format: LogFormat, sample_allowed: f64) -> bool {
        let same = (&self.target, self.format, self.sample_allowed);
        same == (target, format, sample_allowed) && self.file == FileId::find(target)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub fn buffer(self: &Arc<Self>) -> Buffer {
        Buffer(Arc::new(WorkerBuffer {
            log: Arc::clone(self),
            sampled: AtomicU64::new(0),
            bytes: Mutex::new(Vec::new()),
        }))
    }

    fn send(&self, bytes: Vec<u8>) {
        let Some(writer) = &self.writer else { return };
        if let Err(bytes) = writer.try_send(bytes) {
            let lines = count(&bytes);
            let before = self.dropped.fetch_add(lines, Ordering::Relaxed);
            if before / 100_000 != (before + lines) / 100_000 || before == 0 {
                tracing::warn!(dropped = before + lines, "the access log drops lines");
            }
        }
    }
}

/// One worker's end of the log. Clones share it.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<WorkerBuffer>);

#[derive(Debug)]
struct WorkerBuffer {
    log: Arc<AccessLog>,
    sampled: AtomicU64,
    bytes: Mutex<Vec<u8>>,
}

impl Buffer {
    /// Whether `other` is a clone of this.
    pub fn is_same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub fn is_off(&self) -> bool {
        self.0.log.writer.is_none()
    }

    /// Whether a request with this outcome gets a line. Of the allowed requests of a worker every
    /// n-th one does, so that the share is exact.
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
                let before = self.0.sampled.fetch_add(1, Ordering::Relaxed) as f64;
                ((before + 1.0) * share).floor() > (before * share).floor()
            }
        }
    }

    pub fn record(&self, entry: &AccessEntry<'_>) {
        let mut bytes = self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match self.0.log.format {
            LogFormat::Text => text(&mut bytes, entry),
            LogFormat::Json => json_line(&mut bytes, entry),
            LogFormat::Combined => combined(&mut bytes, entry),
        }
        if bytes.len() >= BUFFER_BYTES {
            // One allocation, instead of one each time that the next buffer grows.
            let next = Vec::with_capacity(BUFFER_BYTES + (BUFFER_BYTES >> 2));
            self.0.log.send(std::mem::replace(&mut *bytes, next));
        }
    }

    /// The decisions of limits in shadow mode. They are logged also if the access log is off.
    pub fn shadow(&self) -> &ShadowSummary {
        &self.0.log.shadow
    }

    /// Sends the lines that wait. The worker calls this from time to time, and at its end.
    pub fn flush(&self) {
        self.shadow().log_if_due(clock::now());
        let mut bytes = self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if !bytes.is_empty() {
            self.0.log.send(std::mem::take(&mut *bytes));
        }
    }
}

impl Drop for WorkerBuffer {
    fn drop(&mut self) {
        let bytes = self.bytes.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !bytes.is_empty() {
            self.log.send(std::mem::take(bytes));
        }
    }
}

/// Denials that limits in shadow mode and candidates would have made, logged once a minute:
/// `limit search (shadow): would have denied 12 of 345`.
///
/// Limits that would have denied nothing are left out. The configuration bounds the size.
#[derive(Debug)]
pub struct ShadowSummary(Mutex<ShadowPeriod>);

#[derive(Debug)]
struct ShadowPeriod {
    began: Instant,
    limits: BTreeMap<(Arc<str>, Role), ShadowCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ShadowCounts {
    denied: u64,
    decided: u64,
}

impl Default for ShadowSummary {
    fn default() -> Self {
        ShadowSummary(Mutex::new(ShadowPeriod {
            began: clock::now(),
            limits: BTreeMap::new(),
        }))
    }
}

impl ShadowSummary {
    pub fn note(&self, limit: &Arc<str>, role: Role, denied: bool) {
        let mut period = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = period.limits.entry((Arc::clone(limit), role)).or_default();
        counts.decided += 1;
        counts.denied += u64::from(denied);
    }

    fn log_if_due(&self, now: Instant) {
        let mut period = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = period.take_due(now, SHADOW_PERIOD);
        drop(period);
        lines.iter().for_each(|line| tracing::info!("{line}"));
    }
}

impl Drop for ShadowSummary {
    fn drop(&mut self) {
        let period = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let lines = period.take_due(clock::now(), Duration::ZERO);
        lines.iter().for_each(|line| tracing::info!("{line}"));
    }
}

impl ShadowPeriod {
    /// Ends the period if it has lasted for `length`, and returns its lines.
    fn take_due(&mut self, now: Instant, length: Duration) -> Vec<String> {
        if now.saturating_duration_since(self.began) < length {
            return Vec::new();
        }
        self.began = now;
        let mut lines = Vec::new();
        for ((limit, role), counts) in std::mem::take(&mut self.limits) {
            let (role, ShadowCounts { denied, decided }) = (role.word(), counts);
            if denied > 0 {
                let line =
                    format!("limit {limit} ({role}): would have denied {denied} of {decided}");
                lines.push(line);
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests;
