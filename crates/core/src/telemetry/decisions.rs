//! The decision log: one JSON line for each decision, in the order of the store. An auditor can
//! replay it through a model of the limits.
//!
//! `{"t":<store's µs>,"items":[["limit","<key hash>",cost]],"allowed":true,
//!   "limits":{"limit":{"used":0,"remaining":9,"retry_after_us":0,"reset_us":60000000}}}`
//!
//! A request to a model server also has its `model`, and in `reserved` the tokens that it reserved.
//! A settlement has no line, because it is no decision: no request waits for it, and the store
//! tells no time of it. The access log has the final tokens of each request.
//!
//! A request of a banned key has a line too, with the limit of its ban, and its end in µs:
//!
//! `{"t":0,"ban":"login","until":9,"items":[["login","<key hash>",0]],"allowed":false,
//!   "limits":{}}`
//!
//! `retry_after_us` is -1 if no wait helps or it is unknown. Decisions of
//! this process during an outage of the store have `"source":"local"`. Decisions by units that were
//! taken in advance have `"lease"`. Decisions of limits in shadow mode have a `"role"`.
//!
//! Several workers ask the store at once, and the answers arrive in any order. So lines wait
//! [`HOLD`] and are sorted by the time of the store. Only a backward step of the store's clock can
//! put lines out of order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::log_writer::{LineWriter, WriterThread};
use super::{FileId, json};
use crate::clock;
use crate::config::{LogTarget, SettingError};
use crate::limit::{Charge, Decision, KeyHash, LimitCheck, Retry, Role};

/// How long a line waits for an earlier decision to arrive.
pub const HOLD: Duration = Duration::from_millis(200);

/// How long the writer gathers lines before it sorts them.
const GATHER: Duration = Duration::from_millis(5);

/// Lines that may wait to be written. Further ones are dropped and counted.
const QUEUE_LINES: usize = 65_536;

const WRITE_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Store,
    /// This process alone, during an outage of the store.
    Local,
    /// An earlier denial of the store, which still holds.
    Cache,
    /// Units that the store gave in advance.
    Lease,
}

/// A request that is denied because its key is banned.
#[derive(Clone, Copy, Debug)]
pub struct BannedRequest<'r> {
    /// The limit whose ban it is.
    pub limit: &'r str,
    pub tag: KeyHash,
    /// The key in the clear, if logs show keys.
    pub plain: Option<&'r str>,
    /// Microseconds until the ban ends.
    pub left_us: u64,
}

type NextFile = Arc<Mutex<Option<Box<dyn Write + Send>>>>;

/// A line of the log. The order of the fields is the order of lines.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DecisionLine {
    at_us: u64,
    number: u64,
    arrived: Instant,
    text: Vec<u8>,
}

/// The log. Dropping it writes the lines that wait.
pub struct DecisionLog {
    path: Option<PathBuf>,
    file: Mutex<Option<FileId>>,
    next: NextFile,
    arrivals: AtomicU64,
    dropped: Arc<AtomicU64>,
    writer: WriterThread<DecisionLine>,
}

fn cannot_open(path: &Path, error: &io::Error) -> io::Error {
    SettingError::file("log.decisions", "open", path, error)
}

impl DecisionLog {
    pub fn open(path: &Path) -> io::Result<DecisionLog> {
        let target = LogTarget::File(path.to_owned());
        let file = super::open(&target).map_err(|error| cannot_open(path, &error))?;
        let mut log = DecisionLog::start(file.unwrap_or(Box::new(io::sink())))?;
        log.path = Some(path.to_owned());
        log.file = Mutex::new(FileId::find(&target));
        Ok(log)
    }

    /// Opens the file at the path again if the open one was moved away. Later lines go to the new
    /// file, and no line is lost.
    ///
    /// # Errors
    /// The file cannot be opened. The open one is kept.
    pub fn reopen(&self) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let target = LogTarget::File(path.clone());
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_some() && FileId::find(&target) == *file {
            return Ok(());
        }
        let opened = super::open(&target).map_err(|error| cannot_open(path, &error))?;
        *file = FileId::find(&target);
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(())
    }

    fn start(file: Box<dyn Write + Send>) -> io::Result<DecisionLog> {
        let dropped = Arc::default();
        let next = NextFile::default();
        let mut sorter = LineSorter {
            waiting: BinaryHeap::new(),
            out: LineWriter::new(file, "decision log", &dropped),
            next: Arc::clone(&next),
        };
        let write = move |lines: &Receiver<DecisionLine>| sorter.run(lines);
        Ok(DecisionLog {
            path: None,
            file: Mutex::default(),
            next,
            arrivals: AtomicU64::new(0),
            dropped,
            writer: WriterThread::spawn("decision-log", QUEUE_LINES, write)?,
        })
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Adds one decision without waiting. Callers know the order: they hold the locks of the
    /// embedded store, or read the replies of Redis.
    pub fn record(&self, source: Source, charge: &Charge, decision: &Decision) {
        self.push(decision.at_us, encode(source, charge, decision));
    }

    /// Adds the denial of a banned key. `at_us` is by the store's clock.
    pub fn record_banned(&self, request: &BannedRequest<'_>, at_us: u64) {
        self.push(at_us, encode_banned(request, at_us));
    }

    fn push(&self, at_us: u64, text: Vec<u8>) {
        let line = DecisionLine {
            at_us,
            number: self.arrivals.fetch_add(1, Ordering::Relaxed),
            arrived: clock::now(),
            text,
        };
        if self.writer.try_send(line).is_err() {
            let before = self.dropped.fetch_add(1, Ordering::Relaxed);
            if before.is_multiple_of(10_000) {
                tracing::warn!("the decision log cannot keep up: lines are dropped");
            }
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
        self.writer.end();
        let dropped = self.dropped();
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
        // A cached denial has the exact content that the store would return.
        Source::Store | Source::Cache => b"",
        Source::Local => b",\"source\":\"local\"",
        Source::Lease => b",\"source\":\"lease\"",
    });
    let role = charge.first().map_or(Role::Enforced, LimitCheck::role);
    if role != Role::Enforced {
        out.extend_from_slice(b",\"role\":");
        json::string(&mut out, role.word());
    }
    // All checks of a charge belong to one trace.
    let asker = charge.first().and_then(|check| check.asker.as_ref());
    if let Some(trace) = asker.and_then(|asker| asker.trace) {
        // Writing into a Vec cannot fail.
        let _ = write!(out, ",\"trace_id\":\"{trace}\"");
    }
    if let Some(tokens) = asker.and_then(|asker| asker.tokens.as_ref()) {
        out.extend_from_slice(b",\"model\":");
        json::string(&mut out, &tokens.model);
        out.extend_from_slice(b",\"reserved\":");
        json::number(&mut out, tokens.reserved);
    }
    out.extend_from_slice(b",\"items\":[");
    for (index, check) in charge.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
        json::string(&mut out, &check.window.policy);
        out.push(b',');
        match check.asker.as_ref().and_then(|asker| asker.key.as_ref()) {
            Some(plain) => json::string(&mut out, plain),
            None => json::string(&mut out, &check.tag.to_string()),
        }
        out.push(b',');
        json::number(&mut out, check.cost);
        out.push(b']');
    }
    out.extend_from_slice(b"],\"allowed\":");
    out.extend_from_slice(if decision.allowed { b"true" } else { b"false" });
    if decision.wait_us() > 0 {
        out.extend_from_slice(b",\"wait_us\":");
        json::number(&mut out, decision.wait_us());
    }
    out.extend_from_slice(b",\"limits\":{");
    for (index, (check, verdict)) in charge.iter().zip(&decision.verdicts).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json::name(&mut out, &check.window.policy);
        let retry = match verdict.retry {
            Retry::Now | Retry::Unasked => 0,
            Retry::After(us) | Retry::Booked(us) => i64::try_from(us).unwrap_or(i64::MAX),
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

fn encode_banned(request: &BannedRequest<'_>, at_us: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(b"{\"t\":");
    json::number(&mut out, at_us);
    out.extend_from_slice(b",\"ban\":");
    json::string(&mut out, request.limit);
    out.extend_from_slice(b",\"until\":");
    json::number(&mut out, at_us.saturating_add(request.left_us));
    out.extend_from_slice(b",\"items\":[[");
    json::string(&mut out, request.limit);
    out.push(b',');
    match request.plain {
        Some(plain) => json::string(&mut out, plain),
        None => json::string(&mut out, &request.tag.to_string()),
    }
    out.extend_from_slice(b",0]],\"allowed\":false,\"limits\":{}}\n");
    out
}

struct LineSorter {
    waiting: BinaryHeap<Reverse<DecisionLine>>,
    out: LineWriter,
    next: NextFile,
}

impl LineSorter {
    /// Writes lines in order until the log is dropped, and then all lines that wait.
    fn run(&mut self, lines: &Receiver<DecisionLine>) {
        let mut open = true;
        while open || !self.waiting.is_empty() {
            let next = self
                .next
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(next) = next {
                self.out.reopen(next);
            }
            match lines.recv_timeout(HOLD / 10) {
                Ok(line) => {
                    self.waiting.push(Reverse(line));
                    // A busy log costs one write for many lines.
                    std::thread::sleep(GATHER);
                    let more = lines.try_iter().take(QUEUE_LINES);
                    self.waiting.extend(more.map(Reverse));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => open = false,
            }
            self.write_due(open);
        }
    }

    /// Writes the lines that have waited for [`HOLD`], or all lines of a log that is not `open`.
    /// Lines that cannot be written are lost.
    fn write_due(&mut self, open: bool) {
        let (now, mut text) = (clock::now(), Vec::new());
        while let Some(Reverse(line)) = self.waiting.peek() {
            if open && now.duration_since(line.arrived) < HOLD {
                break;
            }
            if let Some(Reverse(line)) = self.waiting.pop() {
                text.extend(line.text);
            }
            if text.len() >= WRITE_BYTES {
                self.out.write(&text);
                text.clear();
            }
        }
        if !text.is_empty() {
            self.out.write(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::limit::{
        Algorithm, AskedTokens, Asker, Key, KeyHash, Limit, LimitCheck, Rule, Verdict,
    };
    use crate::telemetry::log_writer::tests::Faulty;

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
            anchor: None,
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
            spread_us: 0,
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
    fn a_request_to_a_model_has_its_model_and_its_reserve() {
        let mut charge = charge();
        let tokens = AskedTokens {
            model: "gpt-\"5".into(),
            reserved: 1030,
        };
        charge[0].asker = Some(Arc::new(Asker {
            tokens: Some(Arc::new(tokens)),
            ..Asker::default()
        }));
        let line = encode(Source::Store, &charge, &decision(10));
        let line = String::from_utf8(line).unwrap();
        let start = r#"{"t":10,"model":"gpt-\"5","reserved":1030,"items":[["login","#;
        assert!(line.starts_with(start), "{line}");
    }

    #[test]
    fn a_banned_request_has_its_ban_and_its_end() {
        let request = BannedRequest {
            limit: "login",
            tag: KeyHash([0; 16]),
            plain: None,
            left_us: 5,
        };
        let line = String::from_utf8(encode_banned(&request, 10)).unwrap();
        let expected = r#"{"t":10,"ban":"login","until":15,"#.to_owned()
            + r#""items":[["login","AAAAAAAAAAAAAAAAAAAAAA",0]],"allowed":false,"limits":{}}"#;
        assert_eq!(line, expected + "\n");
    }

    #[test]
    fn lines_that_cannot_be_written_wait_for_nothing_and_are_counted() {
        let file = Faulty::with_room(0);
        let log = DecisionLog::start(Box::new(file.clone())).unwrap();
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
