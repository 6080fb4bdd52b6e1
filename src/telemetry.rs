//! Telemetry: diagnostics through `tracing`, the access log, the decision log for audits, metrics
//! and spans.
//!
//! It knows no connections, and of the configuration only targets and formats. No request waits for
//! it: each log has a thread behind a bounded queue, which counts and reports what it drops.

pub mod access;
pub mod decisions;
pub mod json;
mod log_writer;
pub mod metrics;
pub mod panics;
pub mod spans;
pub mod stamp;
pub mod watched;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::config::LogTarget;

/// Sends diagnostics and panics to standard error: text on a terminal, JSON otherwise. `filter` has
/// the form of `RUST_LOG`, for example `info` or `tidegate::store=debug`.
pub fn init(filter: Option<&str>) {
    let filter = filter
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
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
}

/// The identity of a file. It differs after the file was moved away and made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// `None` if the target is no file, or does not exist.
    fn find(target: &LogTarget) -> Option<FileId> {
        let LogTarget::File(path) = target else {
            return None;
        };
        let file = std::fs::metadata(path).ok()?;
        Some(FileId {
            device: file.dev(),
            inode: file.ino(),
        })
    }
}

/// Opens the output of a log; `None` for `Off`. Appends to a file, and makes it if it is absent.
fn open(target: &LogTarget) -> io::Result<Option<Box<dyn Write + Send>>> {
    Ok(match target {
        LogTarget::Off => None,
        LogTarget::Stdout => Some(Box::new(io::stdout())),
        LogTarget::Stderr => Some(Box::new(io::stderr())),
        LogTarget::File(path) => Some(Box::new(
            OpenOptions::new().create(true).append(true).open(path)?,
        )),
    })
}
