//! The house around the path: listeners, workers, and an orderly end.
//!
//! One worker per core, each with its own runtime, listener (SO_REUSEPORT), upstream pools and
//! store connection; nothing on the path of a request is shared between them but the embedded
//! store and the logs. `run` is given its sockets and its reason to stop by the caller.

mod drain;
pub mod echo;
mod lint;
pub mod listen;
mod socket;
mod worker;

use std::io;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::config::{Config, LogFormat, LogSettings, LogTarget};
use crate::proxy::limiter::Counts;
use crate::telemetry::access::AccessLog;
use listen::Listeners;

/// What all workers share: the logs, where they count, and the bound on connections.
pub(crate) struct House {
    pub(crate) access: Arc<AccessLog>,
    pub(crate) counts: Counts,
    pub(crate) connections: Arc<Semaphore>,
}

/// Tells workers to stop: dropped or sent `true`, they drain.
pub type Shutdown = watch::Receiver<bool>;

/// Serves until `shutdown` says so, then drains. `configs` holds one compiled copy of the same
/// configuration for each worker; `listeners` one set of sockets for each.
///
/// # Errors
/// A log that cannot be opened or a thread that cannot be started. Once it serves, it does not
/// fail.
pub fn run(configs: Vec<Config>, listeners: Listeners, shutdown: &Shutdown) -> io::Result<()> {
    let Some(first) = configs.first() else {
        return Ok(());
    };
    let house = Arc::new(House {
        access: Arc::new(open_access_log(&first.log)?),
        counts: Counts::new(first)?,
        connections: Arc::new(Semaphore::new(first.server.max_connections)),
    });
    let mut workers = Vec::new();
    for (index, (config, sockets)) in configs.into_iter().zip(listeners.into_sets()).enumerate() {
        let (house, shutdown) = (Arc::clone(&house), shutdown.clone());
        workers.push(
            std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || worker::run(config, sockets, &house, shutdown))?,
        );
    }
    for worker in workers {
        match worker.join() {
            Ok(result) => result?,
            Err(_) => tracing::error!("a worker panicked"),
        }
    }
    Ok(())
}

fn open_access_log(log: &LogSettings) -> io::Result<AccessLog> {
    let format = log.format.unwrap_or_else(|| default_format(&log.access));
    AccessLog::open(&log.access, format, log.sample_allowed)
}

/// Text where a person reads along, JSON where a program collects.
fn default_format(target: &LogTarget) -> LogFormat {
    use std::io::IsTerminal;
    let terminal = match target {
        LogTarget::Stdout => io::stdout().is_terminal(),
        LogTarget::Stderr => io::stderr().is_terminal(),
        LogTarget::Off | LogTarget::File(_) => false,
    };
    if terminal {
        LogFormat::Text
    } else {
        LogFormat::Json
    }
}
