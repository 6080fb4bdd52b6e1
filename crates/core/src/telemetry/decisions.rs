//! The decision log: one JSON line for each decision, in the order the store made them, so that an
//! auditor can replay them through a model of the limits.
//!
//! `{"t":<store's µs>,"items":[["limit","<key hash>",cost]],"allowed":true,
//!   "limits":{"limit":{"used":0,"remaining":9,"retry_after_us":0,"reset_us":60000000}}}`
//!
//! `retry_after_us` is -1 where the cost is above the limit, or where nobody can say. Decisions
//! made here while the store was away carry `"source":"local"`, and those by units that were taken
//! ahead `"lease"`; limits on trial have a `"role"`. Several workers ask the store at once and
//! their answers arrive in any order: lines wait [`HOLD`] and are sorted by the store's time. Only
//! lines that overtake each other across a backward step of the store's clock can come out of
//! order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::lines::Lines;
use super::{FileId, json, lines};
use crate::clock;
use crate::config::LogTarget;
use crate::limit::{Charge, Decision, LimitCheck, Retry, Role};
use crate::trace::TraceId;

/// How long a line waits for an earlier decision to arrive.
pub const HOLD: Duration = Duration::from_millis(200);

/// How long the writer gathers lines before it writes.
const GATHER: Duration = Duration::from_millis(5);

/// Lines that may wait to be written; more are dropped and counted.
const QUEUE_LINES: usize = 65_536;

/// Written at once.
const PIECE_BYTES: usize = 64 << 10;

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The store that all proxies share, or the embedded one where that is the store.
    Store,
    /// This process alone, while the store was away.
    Local,
    /// The store, earlier: the denial still holds.
    Cache,
    /// The store, earlier: the units were taken ahead.
    Lease,
}

/// A file that was opened in place of the one that is written to.
type NextFile = Arc<Mutex<Option<Box<dyn Write + Send>>>>;

/// A line with its place: the store's time, then the order of arrival.
type Placed = Reverse<(u64, u64, Line)>;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    arrived: Instant,
    text: Vec<u8>,
}

/// The log; dropping it writes what is left.
pub struct DecisionLog {
    path: Option<PathBuf>,
    /// The file that is written to, and the one that the writer turns to.
    file: Mutex<Option<FileId>>,
    next: NextFile,
    queue: Option<SyncSender<Placed>>,
    arrivals: AtomicU64,
    dropped: Arc<AtomicU64>,
    writer: Option<JoinHandle<()>>,
}

impl DecisionLog {
    /// Opens the file for appending and starts its writer.
    pub fn open(path: &Path) -> io::Result<DecisionLog> {
        let target = LogTarget::File(path.to_owned());
        let file = super::open(&target)?;
        let mut log = DecisionLog::over(file.unwrap_or(Box::new(io::sink())))?;
        log.path = Some(path.to_owned());
        log.file = Mutex::new(FileId::of(&target));
        Ok(log)
    }

    /// Goes on in the file at its path, where the one that is open was moved away. Lines that come
    /// from now on are written there, and no line is lost.
    ///
    /// # Errors
    /// It cannot be opened: the one that is open is written to.
    pub fn reopen(&self) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let target = LogTarget::File(path.clone());
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_some() && FileId::of(&target) == *file {
            return Ok(());
        }
        let opened = super::open(&target)?;
        *file = FileId::of(&target);
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(())
    }

    fn over(file: Box<dyn Write + Send>) -> io::Result<DecisionLog> {
        let (queue, placed) = sync_channel(QUEUE_LINES);
        let dropped = Arc::default();
        let mut file = Lines::new(file, "decision log", &dropped);
        let mut waiting = BinaryHeap::new();
        let next = NextFile::default();
        let opened = Arc::clone(&next);
        let writing = move || {
            lines::endure(|| write_lines(&placed, &mut waiting, &mut file, &opened));
        };
        let writer = std::thread::Builder::new()
            .name("decision-log".to_owned())
            .spawn(writing)?;
        Ok(DecisionLog {
            path: None,
            file: Mutex::default(),
            next,
            queue: Some(queue),
            arrivals: AtomicU64::new(0),
            dropped,
            writer: Some(writer),
        })
    }

    /// Lines that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Adds one decision. Called where the order is known: under the embedded store's locks, or as
    /// an answer of Redis is read. Never waits.
    pub fn record(&self, source: Source, charge: &Charge, decision: &Decision) {
        let line = Line {
            arrived: clock::now(),
            text: encode(source, charge, decision),
        };
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let placed = Reverse((decision.at_us, arrival, line));
        if self
            .queue
            .as_ref()
            .is_some_and(|queue| queue.try_send(placed).is_err())
            && self
                .dropped
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(10_000)
        {
            tracing::warn!("the decision log cannot keep up: lines are dropped");
        }
    }
}

impl fmt::Debug for DecisionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionLog")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Drop for DecisionLog {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            // Its panic was already printed by the runtime; there is nothing left to save.
            let _ = writer.join();
        }
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "lines missing from the decision log");
        }
    }
}

fn encode(source: Source, charge: &Charge, decision: &Decision) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + 160 * charge.len());
    out.extend_from_slice(b"{\"t\":");
    json::number(&mut out, decision.at_us);
    out.extend_from_slice(match source {
        // A denial that still holds is told to the microsecond as the store would tell it.
        Source::Store | Source::Cache => b"",
        Source::Local => b",\"source\":\"local\"",
        Source::Lease => b",\"source\":\"lease\"",
    });
    let role = charge.first().map_or(Role::Enforced, LimitCheck::role);
    if role != Role::Enforced {
        out.extend_from_slice(b",\"role\":");
        json::string(&mut out, role.word());
    }
    if let Some(trace) = trace_of(charge) {
        // Writing into a Vec cannot fail.
        let _ = write!(out, ",\"trace_id\":\"{trace}\"");
    }
    out.extend_from_slice(b",\"items\":[");
    for (index, item) in charge.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
        json::string(&mut out, &item.window.policy);
        out.push(b',');
        match item.asker.as_ref().and_then(|asker| asker.key.as_ref()) {
            Some(plain) => json::string(&mut out, plain),
            None => json::string(&mut out, &item.tag.to_string()),
        }
        out.push(b',');
        json::number(&mut out, item.cost);
        out.push(b']');
    }
    out.extend_from_slice(b"],\"allowed\":");
    out.extend_from_slice(if decision.allowed { b"true" } else { b"false" });
    out.extend_from_slice(b",\"limits\":{");
    for (index, (item, verdict)) in charge.iter().zip(&decision.verdicts).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json::name(&mut out, &item.window.policy);
        let retry = match verdict.retry {
            Retry::Now | Retry::Unasked => 0,
            Retry::After(us) => i64::try_from(us).unwrap_or(i64::MAX),
            Retry::Never | Retry::Released => -1,
        };
        out.extend_from_slice(b"{\"used\":");
        json::number(&mut out, verdict.used);
        out.extend_from_slice(b",\"remaining\":");
        json::number(&mut out, verdict.remaining);
        out.extend_from_slice(b",\"retry_after_us\":");
        json::number(&mut out, retry);
        out.extend_from_slice(b",\"reset_us\":");
        json::number(&mut out, verdict.reset_us);
        out.push(b'}');
    }
    out.extend_from_slice(b"}}\n");
    out
}

/// The trace of whoever asks: that of all items is one.
fn trace_of(charge: &Charge) -> Option<TraceId> {
    charge.first()?.asker.as_ref()?.trace
}

/// Writes lines in order until the log is dropped; then what is left, at once.
fn write_lines(
    lines: &Receiver<Placed>,
    waiting: &mut BinaryHeap<Placed>,
    file: &mut Lines,
    next: &NextFile,
) {
    let mut open = true;
    while open || !waiting.is_empty() {
        if let Some(next) = next.lock().unwrap_or_else(PoisonError::into_inner).take() {
            file.go_on_in(next);
        }
        match lines.recv_timeout(HOLD / 10) {
            Ok(line) => {
                waiting.push(line);
                // Gathers, so that a busy log costs a write for many lines, not for each.
                std::thread::sleep(GATHER);
                waiting.extend(lines.try_iter().take(QUEUE_LINES));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => open = false,
        }
        write_due(waiting, file, open);
    }
}

/// Those that have waited for long enough leave, also where nothing can be written.
fn write_due(waiting: &mut BinaryHeap<Placed>, file: &mut Lines, open: bool) {
    let (now, mut text) = (clock::now(), Vec::new());
    while let Some(Reverse((_, _, line))) = waiting.peek() {
        if open && now.duration_since(line.arrived) < HOLD {
            break;
        }
        if let Some(Reverse((_, _, line))) = waiting.pop() {
            text.extend(line.text);
        }
        if text.len() >= PIECE_BYTES {
            file.write(&text);
            text.clear();
        }
    }
    if !text.is_empty() {
        file.write(&text);
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::limit::{Algorithm, Key, KeyHash, Limit, LimitCheck, Rule, Verdict};
    use crate::telemetry::lines::tests::Faulty;

    fn charge() -> Charge {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 5,
            window_us: 1000,
            precision_us: 1,
        };
        let limit = Limit::new("login", &[rule], Key::parse(["ip"]).unwrap());
        smallvec![LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([0; 16]),
            cost: 2,
            asker: None
        }]
    }

    fn decision(at_us: u64) -> Decision {
        let verdict = Verdict {
            used: 4,
            remaining: 1,
            retry: Retry::After(7),
            reset_us: 900,
            next_us: 7,
            stamp: 0,
        };
        Decision {
            allowed: false,
            at_us,
            verdicts: smallvec![verdict],
        }
    }

    #[test]
    fn lines_come_out_in_the_stores_order_and_none_is_lost_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("decisions.jsonl");
        let log = DecisionLog::open(&path).unwrap();
        log.record(Source::Store, &charge(), &decision(20));
        log.record(Source::Local, &charge(), &decision(30));
        log.record(Source::Store, &charge(), &decision(10));
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "{\"t\":10,\"items\":[[\"login\",\"AAAAAAAAAAAAAAAAAAAAAA\",2]],\"allowed\":false,\
             \"limits\":{\"login\":{\"used\":4,\"remaining\":1,\"retry_after_us\":7,\
             \"reset_us\":900}}}"
        );
        assert!(lines[1].starts_with("{\"t\":20,"));
        assert!(lines[2].starts_with("{\"t\":30,\"source\":\"local\","));
    }
    #[test]
    fn lines_that_cannot_be_written_wait_for_nothing_and_are_counted() {
        let file = Faulty::with_room(0);
        let log = DecisionLog::over(Box::new(file.clone())).unwrap();
        for at_us in 0..2000 {
            log.record(Source::Store, &charge(), &decision(at_us));
        }
        let began = clock::now();
        while log.dropped() < 2000 {
            assert!(began.elapsed() < 100 * HOLD, "{} dropped", log.dropped());
            std::thread::sleep(GATHER);
        }
        drop(log);
        assert_eq!(file.text(), "");
    }
}
