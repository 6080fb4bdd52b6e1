//! The house around the path: listeners, workers, and an orderly end.
//!
//! One worker per core, each with its own runtime, listener (SO_REUSEPORT), upstream pools and
//! store connection; nothing on the path of a request is shared between them but the embedded
//! store and the logs. `run` is given its sockets and its reason to stop by the caller.

mod checks;
mod chunks;
pub mod claim;
mod connection;
pub mod control;
mod crew;
mod drain;
pub mod echo;
mod entrances;
mod handover;
#[cfg(test)]
pub(crate) mod harness;
mod http2;
pub mod inherit;
mod lean;
mod left_behind;
mod lint;
pub mod listen;
mod neighbours;
pub mod notify;
mod opening;
#[cfg(all(test, debug_assertions))]
mod panics;
mod parked;
mod phase;
pub mod pid_file;
mod proxy_protocol;
pub mod pulse;
pub mod reload;
mod seats;
mod serving;
pub mod sight;
mod socket;
mod tls;
pub mod upgrade;
mod watcher;
mod worker;

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, watch};

use crate::config::{Config, LogFormat, LogSettings, LogTarget};
use crate::otlp::Exports;
use crate::proxy::limiter::Counts;
use crate::telemetry::access::AccessLog;
use crate::upstream::Vitals;
use checks::Checks;
use claim::Claim;
use crew::Crew;
use listen::Listeners;
use pulse::Pulse;
use reload::{Reload, Reloader, Requests};
use seats::Seats;
use sight::Sight;
use tls::Tls;

/// What all workers share: the logs, where they count, what they know of the upstreams' servers,
/// and the bound on connections.
pub(crate) struct House {
    pub(crate) access: Arc<AccessLog>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) vitals: Arc<Vitals>,
    checks: Arc<Checks>,
    pub(crate) connections: Arc<Semaphore>,
    /// How many connections there may be: what the semaphore has, in use or not.
    max_connections: usize,
    /// Who has how many of them.
    seats: Arc<Seats>,
    pub(crate) pulse: Arc<Pulse>,
    /// What is seen of it from outside.
    pub(crate) sight: Arc<Sight>,
    /// Where traces go.
    pub(crate) exports: Arc<Exports>,
    /// Where clients come over TLS.
    pub(crate) tls: Option<Arc<Tls>>,
}

impl House {
    fn new(config: &Config, (pulse, sight): (Arc<Pulse>, Arc<Sight>)) -> io::Result<House> {
        let most = config.server.max_connections;
        let (checks, vitals) = (Arc::<Checks>::default(), Arc::default());
        checks.follow(&config.upstreams, &vitals)?;
        let exports = Arc::<Exports>::default();
        exports.follow(config.tracing.as_ref())?;
        Ok(House {
            exports,
            access: Arc::new(open_access_log(&config.log)?),
            counts: Arc::new(Counts::new(config)?),
            vitals,
            checks,
            connections: Arc::new(Semaphore::new(most)),
            max_connections: most,
            seats: Arc::default(),
            pulse,
            sight,
            tls: config
                .tls
                .as_deref()
                .map(Tls::new)
                .transpose()?
                .map(Arc::new),
        })
    }

    /// The house under another configuration: with everything of this one that can stay. Called
    /// on a runtime.
    fn renewed(&self, config: &Config) -> io::Result<House> {
        let log = &config.log;
        let (target, format, share) = (&log.access, format_of(log), log.sample_allowed);
        let access = if self.access.is_still(target, format, share) {
            Arc::clone(&self.access)
        } else {
            Arc::new(open_access_log(log)?)
        };
        let counts = self.counts.renewed(&config.store)?;
        let tls = match (&self.tls, &config.tls) {
            (Some(tls), Some(settings)) => {
                tls.renew(settings)?;
                Some(Arc::clone(tls))
            }
            (None, Some(settings)) => Some(Arc::new(Tls::new(settings)?)),
            (_, None) => None,
        };
        self.checks.follow(&config.upstreams, &self.vitals)?;
        self.exports.follow(config.tracing.as_ref())?;
        Ok(House {
            exports: Arc::clone(&self.exports),
            access,
            counts,
            vitals: Arc::clone(&self.vitals),
            checks: Arc::clone(&self.checks),
            connections: Arc::clone(&self.connections),
            max_connections: self.bound(config.server.max_connections),
            seats: Arc::clone(&self.seats),
            pulse: Arc::clone(&self.pulse),
            sight: Arc::clone(&self.sight),
            tls,
        })
    }

    /// Has so many connections at most. Under a bound that sinks none is closed: the next ones
    /// wait until enough have ended.
    fn bound(&self, most: usize) -> usize {
        let connections = Arc::clone(&self.connections);
        if most > self.max_connections {
            connections.add_permits(most - self.max_connections);
        } else if let Ok(fewer @ 1..) = u32::try_from(self.max_connections - most) {
            tokio::spawn(async move {
                if let Ok(permits) = connections.acquire_many_owned(fewer).await {
                    permits.forget();
                }
            });
        }
        most
    }
}

/// Where another configuration comes from.
#[derive(Debug)]
pub struct Source {
    /// The file that the house was started with.
    pub path: Option<PathBuf>,
    /// Who asks for it to be read again: one end,
    pub reload: Reload,
    /// and the other.
    pub requests: Requests,
    /// Whether it is also read when it changes.
    pub watch: bool,
    /// The right to be the file's process; taken when the control socket is bound, if not before.
    pub claim: Option<Arc<Claim>>,
}

/// What the house is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Connections are accepted.
    Serve,
    /// The end: what waits at the sockets is still served, then they are closed.
    Stop {
        /// Whether other processes listen on the same ports, and something has to be done for
        /// connections that are in between.
        yields: bool,
    },
    /// Another process listens on the same sockets, but for those that it has no use for.
    HandOver,
}

/// Tells workers to drain: dropped or sent anything but [`Course::Serve`].
pub type Shutdown = watch::Receiver<Course>;

/// Serves until `shutdown` says so, then drains; what is served can be replaced from `source`
/// meanwhile. Whoever says stop closes `listeners` before; `pulse` tells when all workers serve,
/// and `sight` shows what they do.
///
/// # Errors
/// A log that cannot be opened or a thread that cannot be started. Once it serves, a worker that
/// ends though nobody told it to: `pulse` tells so, and whoever runs it then ends all others.
pub fn run(
    config: Config,
    listeners: Arc<Listeners>,
    (shutdown, source): (&Shutdown, Source),
    (pulse, sight): (Arc<Pulse>, Arc<Sight>),
) -> io::Result<()> {
    let house = Arc::new(House::new(&config, (pulse, Arc::clone(&sight)))?);
    sight.renew(config.fresh_copy(), &house);
    let (mut workers, mut orders) = (Vec::new(), Vec::new());
    let sets = listeners.sets()?;
    let crew = Arc::new(Crew::new(sets.len()));
    for (index, sockets) in sets.into_iter().enumerate() {
        let (order, ordered) = mpsc::channel(1);
        orders.push(order);
        let (config, house) = (config.fresh_copy(), Arc::clone(&house));
        let told = (ordered, shutdown.clone());
        let place = (Arc::clone(&crew), index);
        workers.push(
            std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    let work = || worker::run(config, sockets, &house, told, place);
                    let ended = std::panic::catch_unwind(AssertUnwindSafe(work));
                    let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a panic")));
                    match ended {
                        Ok(()) => house.pulse.end(index),
                        Err(_) => house.pulse.fall(index),
                    }
                    ended.map_err(|why| io::Error::other(format!("worker {index}: {why}")))
                })?,
        );
    }
    let exports = Arc::clone(&house.exports);
    let reloader = Reloader::new(config, house, listeners, orders);
    let reloading = reloader.spawn(source, shutdown.clone())?;
    let ended = workers.into_iter().map(|worker| {
        let joined = worker.join();
        joined.unwrap_or_else(|_| Err(io::Error::other("a worker panicked as it ended")))
    });
    // All are waited for, whatever became of the first.
    let ended: Vec<io::Result<()>> = ended.collect();
    exports.finish();
    sight.close();
    // It has the last handles of the logs, which are to be written to their end.
    if reloading.join().is_err() {
        tracing::error!("the reload thread panicked");
    }
    ended.into_iter().collect()
}

fn open_access_log(log: &LogSettings) -> io::Result<AccessLog> {
    let opened = AccessLog::open(&log.access, format_of(log), log.sample_allowed);
    opened.map_err(|error| match &log.access {
        LogTarget::File(path) => {
            let text = format!("log.access: cannot open {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        }
        _ => error,
    })
}

fn format_of(log: &LogSettings) -> LogFormat {
    log.format.unwrap_or_else(|| default_format(&log.access))
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
