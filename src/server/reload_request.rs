//! Asking a running server to read its configuration again, and what comes of it.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::config;
use crate::config::diagnostic::Diagnostics;

/// Requests that may wait; those beyond are told that they are too many.
const MOST_WAITING: usize = 64;

/// A reload that took place.
#[derive(Debug)]
pub struct Reloaded {
    /// What changed, a line for each thing.
    pub changes: Vec<String>,
    /// What of it waits for a restart.
    pub restarts: Vec<String>,
    /// What is doubtful in the file.
    pub warnings: Diagnostics,
}

/// Why everything is as it was.
#[derive(Debug)]
pub enum ReloadError {
    /// The proxy was started by flags.
    NoFile,
    /// The file has mistakes, or cannot be read.
    Mistakes(Diagnostics),
    /// Something that it asks for cannot be had.
    Unusable(io::Error),
    /// The process is ending, or too many ask at once.
    Busy,
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadError::NoFile => f.write_str("there is no file to read: started by flags"),
            ReloadError::Mistakes(found) => write!(f, "{}", config::render::human(found, false)),
            ReloadError::Unusable(error) => error.fmt(f),
            ReloadError::Busy => f.write_str("the proxy is ending, or asked too often"),
        }
    }
}

impl std::error::Error for ReloadError {}

/// What came of it, for everyone who asked.
pub type Outcome = Arc<Result<Reloaded, ReloadError>>;

/// Asks a house to read its configuration again; clones ask the same one.
#[derive(Clone, Debug)]
pub struct Reload(mpsc::Sender<oneshot::Sender<Outcome>>);

/// The house's end of it.
#[derive(Debug)]
pub struct Requests(pub(super) mpsc::Receiver<oneshot::Sender<Outcome>>);

/// Both ends.
pub fn channel() -> (Reload, Requests) {
    let (sender, receiver) = mpsc::channel(MOST_WAITING);
    (Reload(sender), Requests(receiver))
}

impl Reload {
    /// Asks, and waits for what comes of it.
    pub async fn ask(&self) -> Outcome {
        let (answer, outcome) = oneshot::channel();
        let busy = || Arc::new(Err(ReloadError::Busy));
        if self.0.try_send(answer).is_err() {
            return busy();
        }
        outcome.await.unwrap_or_else(|_| busy())
    }

    /// Asks; the log tells what comes of it.
    pub fn ask_and_leave(&self) {
        let (answer, _) = oneshot::channel();
        // Full: it will be read again after this moment in any case.
        let _ = self.0.try_send(answer);
    }
}
