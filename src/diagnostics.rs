//! Diagnostics: what the program reports on standard error.
//!
//! A thread writes the messages, because the reader of standard error may stop reading. No request
//! waits for it: further messages are dropped and counted.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::telemetry::log_writer::WriterThread;
use crate::telemetry::panics::{self, lock};

/// Messages that may wait to be written.
const QUEUE_MESSAGES: usize = 1024;

static OUTPUT: Mutex<Output> = Mutex::new(Output::Direct);
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum Output {
    /// The thread that logs writes its message itself.
    Direct,
    Queue(WriterThread<Vec<u8>>),
    /// The last messages could not be written, so no others can.
    Stuck,
}

/// Dropping this writes the messages that wait.
#[must_use]
pub struct WaitingMessages(());

impl Drop for WaitingMessages {
    fn drop(&mut self) {
        finish();
    }
}

/// Sends diagnostics and panics to standard error: text on a terminal, JSON otherwise. `filter` has
/// the form of `RUST_LOG`, for example `info` or `tidegate::store=debug`.
pub fn init(filter: Option<&str>) -> WaitingMessages {
    let filter = filter
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| MessageWriter)
        .with_span_events(FmtSpan::NONE)
        // A report of a failed write would go to the same standard error. It would panic, and end
        // the thread that logs.
        .log_internal_errors(false)
        .with_target(false);
    // A second call in one process (tests) keeps the first subscriber.
    let _ = if terminal {
        builder.compact().try_init()
    } else {
        builder.json().try_init()
    };
    panics::log_panics();
    let thread = WriterThread::spawn("messages", QUEUE_MESSAGES, |messages| {
        // If standard error is closed, no reader is left.
        let write = |text: Vec<u8>| drop(io::stderr().write_all(&text));
        messages.iter().for_each(write);
    });
    if let Ok(thread) = thread {
        *lock(&OUTPUT) = Output::Queue(thread);
    }
    WaitingMessages(())
}

/// Writes the messages that wait. Later ones are written at once.
pub fn finish() {
    let output = std::mem::replace(&mut *lock(&OUTPUT), Output::Direct);
    if let Output::Queue(mut thread) = output
        && !thread.finish()
    {
        *lock(&OUTPUT) = Output::Stuck;
    }
}

pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Takes one message, whole.
struct MessageWriter;

impl Write for MessageWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let output = lock(&OUTPUT);
        match &*output {
            Output::Queue(thread) => {
                if thread.try_send(text.to_vec()).is_err() {
                    DROPPED.fetch_add(1, Ordering::Relaxed);
                }
            }
            Output::Direct => {
                drop(output);
                io::stderr().write_all(text)?;
            }
            Output::Stuck => {}
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
