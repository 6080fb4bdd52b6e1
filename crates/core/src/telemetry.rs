//! Telemetry: the access log, the decision log, metrics and spans. No request waits for it: each
//! log has a thread behind a bounded queue, which counts and reports what it drops.

pub mod access;
pub mod decisions;
pub mod door;
pub mod log_writer;
pub mod metrics;
pub mod panics;
pub mod spans;
pub mod watched;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;

use crate::config::LogTarget;
pub use crate::{json, stamp};

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
