//! What the proxy says of itself: diagnostics through `tracing`, the access log, and the decision
//! log for audits.
//!
//! Telemetry knows words, never connections or configuration structs of other rooms, and never
//! makes a request wait: each log is written by a thread of its own behind a bounded queue that
//! counts what it had to drop, and says so.

pub mod access;
pub mod attempt_log;
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
use std::io::{self, Write};

use crate::config::LogTarget;

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
