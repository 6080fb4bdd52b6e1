//! What the proxy says of itself: diagnostics through `tracing`, the access log, and the decision
//! log for audits.
//!
//! Telemetry knows words, never connections or configuration structs of other rooms, and never
//! makes a request wait: each log is written by a thread of its own behind a bounded queue that
//! counts what it had to drop, and says so.

pub mod access;
pub mod decisions;
pub mod denials;
pub mod json;
mod lines;
pub mod metrics;
pub mod panics;
pub mod spans;
pub mod stamp;
pub mod trials;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::config::LogTarget;

/// Sends diagnostics to standard error: text on a terminal, JSON otherwise; panics too. `filter` is
/// in the form of `RUST_LOG`, for example `info` or `tidegate::store=debug`.
pub fn init(filter: Option<&str>) {
    let filter = filter
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_span_events(FmtSpan::NONE)
        // What cannot be written is lost. Told on the same standard error, it would panic, and end
        // the thread that had something to say.
        .log_internal_errors(false)
        .with_target(false);
    // A second start in one process (tests) keeps the first subscriber.
    let _ = if terminal {
        builder.compact().try_init()
    } else {
        builder.json().try_init()
    };
    panics::tell();
}

/// Which file a path led to: another one once it has been moved away and made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    /// That of a log that is a file, if it is there.
    pub fn of(target: &LogTarget) -> Option<FileId> {
        use std::os::unix::fs::MetadataExt;
        let LogTarget::File(path) = target else {
            return None;
        };
        let file = std::fs::metadata(path).ok()?;
        Some(FileId(file.dev(), file.ino()))
    }
}

/// Opens where lines go; `None` for `Off`. A file is appended to and made if absent.
pub fn open(target: &LogTarget) -> io::Result<Option<Box<dyn Write + Send>>> {
    Ok(match target {
        LogTarget::Off => None,
        LogTarget::Stdout => Some(Box::new(io::stdout())),
        LogTarget::Stderr => Some(Box::new(io::stderr())),
        LogTarget::File(path) => Some(Box::new(
            OpenOptions::new().create(true).append(true).open(path)?,
        )),
    })
}
