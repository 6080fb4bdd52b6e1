//! Requests for a reload of the configuration, and their results.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::config;
use crate::config::diagnostic::Diagnostics;

/// Requests that may wait. Others get [`ReloadError::Busy`].
const MAX_WAITING: usize = 64;

/// A reload that took place.
#[derive(Debug)]
pub struct Reloaded {
    /// The changes, one line each.
    pub changes: Vec<String>,
    /// The changes that need a restart.
    pub restarts: Vec<String>,
    /// Warnings about the file.
    pub warnings: Diagnostics,
}

/// Why a reload changed nothing.
#[derive(Debug)]
pub enum ReloadError {
    /// The proxy was started by flags.
    NoFile,
    /// The file has mistakes, or cannot be read.
    Mistakes(Diagnostics),
    /// Something in the configuration cannot be used, for example an address.
    Unusable(io::Error),
    /// The process is ending, or too many requests wait.
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

/// The result of a reload, shared by all that requested it.
pub type ReloadOutcome = Arc<Result<Reloaded, ReloadError>>;

/// Sends requests to one server.
#[derive(Clone, Debug)]
pub struct Reload(mpsc::Sender<oneshot::Sender<ReloadOutcome>>);

/// Receives the requests.
#[derive(Debug)]
pub struct Requests(pub(super) mpsc::Receiver<oneshot::Sender<ReloadOutcome>>);

pub fn channel() -> (Reload, Requests) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (Reload(sender), Requests(receiver))
}

impl Reload {
    /// Requests a reload, and waits for its result.
    pub async fn request(&self) -> ReloadOutcome {
        let (answer, outcome) = oneshot::channel();
        let busy = || Arc::new(Err(ReloadError::Busy));
        if self.0.try_send(answer).is_err() {
            return busy();
        }
        outcome.await.unwrap_or_else(|_| busy())
    }

    /// Requests a reload. The log tells its result.
    pub fn request_and_leave(&self) {
        let (answer, _) = oneshot::channel();
        // If the channel is full, the file will be read after this moment in any case.
        let _ = self.0.try_send(answer);
    }
}
