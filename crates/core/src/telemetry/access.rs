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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// The settings of the log, and the places of the named logs beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLogSettings {
    pub target: LogTarget,
    pub format: LogFormat,
    pub sample_allowed: f64,
    pub named: Vec<LogTarget>,
}

/// The logs of the process. Dropping the last handle writes the lines that wait.
#[derive(Debug)]
pub struct AccessLog {
    settings: AccessLogSettings,
    main: LogOutput,
    named: Vec<LogOutput>,
    shadow: ShadowSummary,
}

/// The place of a log, and its writer; `None` for a log that is off.
#[derive(Debug, Default)]
struct LogOutput {
    file: Option<FileId>,
    writer: Option<WriterThread<Vec<u8>>>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    pub fn off() -> AccessLog {
        AccessLog {
            settings: AccessLogSettings {
                target: LogTarget::Off,
                format: LogFormat::Json,
                sample_allowed: 0.0,
                named: Vec::new(),
            },
            main: LogOutput::default(),
            named: Vec::new(),
            shadow: ShadowSummary::default(),
        }
    }

    /// Opens the logs and starts their writers. A log that is off ignores its lines. Fails with the
    /// log that cannot be opened.
    pub fn open(settings: AccessLogSettings) -> Result<Self, AccessLogError> {
        let open = |target: &LogTarget| {
            LogOutput::open(target).map_err(|error| AccessLogError {
                target: target.clone(),
                error,
            })
        };
        Ok(AccessLog {
            main: open(&settings.target)?,
            named: settings.named.iter().map(open).collect::<Result<_, _>>()?,
            settings,
            shadow: ShadowSummary::default(),
        })
    }

    /// Whether logs with these settings would be the same. They are not if a file was moved away.
    pub fn is_still(&self, settings: &AccessLogSettings) -> bool {
        let outputs = std::iter::once(&self.main).chain(&self.named);
        let targets = std::iter::once(&settings.target).chain(&settings.named);
        self.settings == *settings
            && outputs
                .map(|output| output.file)
                .eq(targets.map(FileId::find))
    }

    pub fn dropped(&self) -> u64 {
        let outputs = std::iter::once(&self.main).chain(&self.named);
        outputs.map(|one| one.dropped.load(Ordering::Relaxed)).sum()
    }

    pub fn buffer(self: &Arc<Self>) -> Buffer {
        Buffer(Arc::new(WorkerBuffer {
            log: Arc::clone(self),
            sampled: AtomicU64::new(0),
            bytes: Mutex::new(Vec::new()),
            named: self.named.iter().map(|_| Mutex::default()).collect(),
        }))
    }
}

/// A log that cannot be opened.
#[derive(Debug)]
pub struct AccessLogError {
    pub target: LogTarget,
    pub error: io::Error,
}

impl LogOutput {
    fn open(target: &LogTarget) -> io::Result<LogOutput> {
        let mut output = LogOutput::default();
        if let Some(out) = super::open(target)? {
            output.file = FileId::find(target);
            output.write_to(out)?;
        }
        Ok(output)
    }

    fn write_to(&mut self, out: Box<dyn Write + Send>) -> io::Result<()> {
        let mut lines = LineWriter::new(out, "access log", &self.dropped);
        let write = move |buffers: &Receiver<Vec<u8>>| {
            buffers.iter().for_each(|text| lines.write(&text));
        };
        self.writer = Some(WriterThread::spawn("access-log", QUEUE_BUFFERS, write)?);
        Ok(())
    }

    /// Takes the bytes of a buffer if they are so many.
    fn send_from(&self, bytes: &mut Vec<u8>, least: usize) {
        if bytes.len() < least.max(1) {
            return;
        }
        // One allocation, instead of one each time that the next buffer grows.
        let next = match least {
            BUFFER_BYTES => Vec::with_capacity(BUFFER_BYTES + (BUFFER_BYTES >> 2)),
            _ => Vec::new(),
        };
        self.send(std::mem::replace(bytes, next));
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
    /// Those of the named logs.
    named: Vec<Mutex<Vec<u8>>>,
}

impl WorkerBuffer {
    /// Sends the lines of all logs to their writers.
    fn send_all(&self) {
        let outputs = std::iter::once(&self.log.main).chain(&self.log.named);
        let buffers = std::iter::once(&self.bytes).chain(&self.named);
        for (output, bytes) in outputs.zip(buffers) {
            output.send_from(&mut lock(bytes), 1);
        }
    }
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
        self.0.log.main.writer.is_none()
    }

    /// Whether its lines have the hosts of requests.
    pub fn has_hosts(&self) -> bool {
        self.0.log.settings.format == LogFormat::Json
    }

    /// Whether a request with this outcome gets a line. Of the allowed requests of a worker every
    /// n-th one does, so that the share is exact.
    pub fn wants(&self, outcome: Outcome) -> bool {
        if self.is_off() {
            return false;
        }
        let share = self.0.log.settings.sample_allowed;
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
        let mut bytes = lock(&self.0.bytes);
        match self.0.log.settings.format {
            LogFormat::Text => text(&mut bytes, entry),
            LogFormat::Json => json_line(&mut bytes, entry),
            LogFormat::Combined => combined(&mut bytes, entry),
        }
        self.0.log.main.send_from(&mut bytes, BUFFER_BYTES);
    }

    /// Adds a line to the named log with this place.
    pub fn record_named(&self, place: usize, line: &[u8]) {
        let (buffers, outputs) = (&self.0.named, &self.0.log.named);
        if let (Some(bytes), Some(output)) = (buffers.get(place), outputs.get(place)) {
            let mut bytes = lock(bytes);
            bytes.extend_from_slice(line);
            bytes.push(b'\n');
            output.send_from(&mut bytes, BUFFER_BYTES);
        }
    }

    /// The decisions of limits in shadow mode. They are logged also if the access log is off.
    pub fn shadow(&self) -> &ShadowSummary {
        &self.0.log.shadow
    }

    /// Sends the lines that wait. The worker calls this from time to time, and at its end.
    pub fn flush(&self) {
        self.shadow().log_if_due(clock::now());
        self.0.send_all();
    }
}

impl Drop for WorkerBuffer {
    fn drop(&mut self) {
        self.send_all();
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
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
