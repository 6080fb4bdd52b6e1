//! The house around the path: listeners, workers, and an orderly end.
//!
//! One worker per core, each with its own runtime, listener (SO_REUSEPORT), upstream pools and
//! store connection; nothing on the path of a request is shared between them but the embedded
//! store and the logs. `run` is given its sockets and its reason to stop by the caller.

mod acceptors;
mod active_config;
mod checks;
pub mod claim;
mod client_connection;
mod connection;
mod connections_per_ip;
pub mod control;
pub mod control_path;
mod drain;
pub mod echo;
mod handover;
#[cfg(test)]
pub(crate) mod harness;
pub mod heartbeat;
mod http1;
mod http2;
pub mod inherit;
pub mod introspection;
mod left_behind;
pub mod listen;
pub mod listener;
pub mod notify;
mod opening;
#[cfg(test)]
mod panics;
mod parked;
mod phase;
pub mod pid_file;
mod port_sharing;
mod proxy_protocol;
mod reload;
pub mod reload_request;
mod tls;
pub mod upgrade;
mod watcher;
mod worker;
mod worker_set;
mod worker_thread;

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{Semaphore, mpsc, watch};

use crate::config::{Config, LogFormat, LogSettings, LogTarget};
use crate::otlp::Exports;
use crate::proxy::limiter::StoreHandle;
use crate::telemetry::access::AccessLog;
use crate::upstream::Vitals;
use checks::Checks;
use claim::Claim;
use connections_per_ip::ConnectionsPerIp;
use heartbeat::Heartbeats;
use introspection::Introspection;
use listen::Listeners;
use reload::Reloader;
use reload_request::{Reload, Requests};
use tls::Tls;
use worker_set::{Position, WorkerSet};
use worker_thread::WorkerStart;

/// What all workers share: the logs, where they count, what they know of the upstreams' servers,
/// and the bound on connections.
pub(crate) struct ServerState {
    pub(crate) access: Arc<AccessLog>,
    pub(crate) counts: Arc<StoreHandle>,
    pub(crate) vitals: Arc<Vitals>,
    checks: Arc<Checks>,
    pub(crate) connections: Arc<Semaphore>,
    /// How many connections there may be: what the semaphore has, in use or not.
    max_connections: usize,
    /// Who has how many of them.
    per_ip: Arc<ConnectionsPerIp>,
    pub(crate) heartbeats: Arc<Heartbeats>,
    /// What is seen of it from outside.
    pub(crate) introspection: Arc<Introspection>,
    /// Where traces go.
    pub(crate) exports: Arc<Exports>,
    /// Where clients come over TLS.
    pub(crate) tls: Option<Arc<Tls>>,
}

impl ServerState {
    fn new(config: &Config, handles: &ServerHandles) -> io::Result<ServerState> {
        let most = config.server.max_connections;
        let (checks, vitals) = (Arc::<Checks>::default(), Arc::default());
        checks.follow(&config.upstreams, &vitals)?;
        let exports = Arc::<Exports>::default();
        exports.follow(config.tracing.as_ref())?;
        Ok(ServerState {
            exports,
            access: Arc::new(open_access_log(&config.log)?),
            counts: Arc::new(StoreHandle::new(config)?),
            vitals,
            checks,
            connections: Arc::new(Semaphore::new(most)),
            max_connections: most,
            per_ip: Arc::default(),
            heartbeats: Arc::clone(&handles.heartbeats),
            introspection: Arc::clone(&handles.introspection),
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
    fn renewed(&self, config: &Config) -> io::Result<ServerState> {
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
        Ok(ServerState {
            exports: Arc::clone(&self.exports),
            access,
            counts,
            vitals: Arc::clone(&self.vitals),
            checks: Arc::clone(&self.checks),
            connections: Arc::clone(&self.connections),
            max_connections: self.bound(config.server.max_connections),
            per_ip: Arc::clone(&self.per_ip),
            heartbeats: Arc::clone(&self.heartbeats),
            introspection: Arc::clone(&self.introspection),
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

/// What the parts of the process share with a running server.
#[derive(Clone, Debug)]
pub struct ServerHandles {
    pub listeners: Arc<Listeners>,
    pub heartbeats: Arc<Heartbeats>,
    pub introspection: Arc<Introspection>,
    /// Asks the server to read its configuration again.
    pub reload: Reload,
    /// The file that the configuration is read from, if there is one.
    pub file: Option<PathBuf>,
    pub shutdown: Shutdown,
}

/// The ends that belong to whoever starts the server.
#[derive(Debug)]
pub struct ServerControls {
    pub lifecycle: watch::Sender<Lifecycle>,
    pub requests: Requests,
}

impl ServerHandles {
    /// For a server with so many workers.
    pub fn new(
        listeners: Arc<Listeners>,
        workers: usize,
        file: Option<PathBuf>,
    ) -> (ServerHandles, ServerControls) {
        let (lifecycle, shutdown) = watch::channel(Lifecycle::Serve);
        let (reload, requests) = reload_request::channel();
        let handles = ServerHandles {
            listeners,
            heartbeats: Arc::new(Heartbeats::new(workers)),
            introspection: Arc::default(),
            reload,
            file,
            shutdown,
        };
        let controls = ServerControls {
            lifecycle,
            requests,
        };
        (handles, controls)
    }
}

/// How a server's configuration is replaced.
#[derive(Debug)]
pub struct Reloads {
    pub requests: Requests,
    /// Whether the file is also read when it changes.
    pub watch: bool,
    /// The right to be the file's process; taken when the control socket is bound, if not before.
    pub claim: Option<Arc<Claim>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
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

/// Tells workers to drain: dropped or sent anything but [`Lifecycle::Serve`].
pub type Shutdown = watch::Receiver<Lifecycle>;

/// Serves until `handles.shutdown` changes, then drains. The caller closes `handles.listeners`
/// before it tells the workers to stop.
///
/// # Errors
/// The access log cannot be opened, a thread cannot be started, or a worker ended unexpectedly:
/// the heartbeats report that worker, and the caller then stops all others.
pub fn run(config: Config, handles: ServerHandles, reloads: Reloads) -> io::Result<()> {
    let state = Arc::new(ServerState::new(&config, &handles)?);
    handles.introspection.renew(config.fresh_copy(), &state);
    let sets = handles.listeners.sets()?;
    let workers = Arc::new(WorkerSet::new(sets.len()));
    let (mut threads, mut orders) = (Vec::new(), Vec::new());
    for (index, sockets) in sets.into_iter().enumerate() {
        let (order, ordered) = mpsc::channel(1);
        orders.push(order);
        let start = WorkerStart {
            config: config.fresh_copy(),
            sockets,
            orders: ordered,
            shutdown: handles.shutdown.clone(),
            position: Position::new(&workers, index),
        };
        threads.push(spawn_worker(start, &state)?);
    }
    let exports = Arc::clone(&state.exports);
    let introspection = Arc::clone(&handles.introspection);
    let reloader = Reloader::new(config, state, orders, handles);
    let reloading = reloader.spawn(reloads)?;
    let ended = threads.into_iter().map(|thread| {
        let joined = thread.join();
        joined.unwrap_or_else(|_| Err(io::Error::other("a worker panicked as it ended")))
    });
    // All are waited for, whatever became of the first.
    let ended: Vec<io::Result<()>> = ended.collect();
    exports.finish();
    introspection.close();
    // It has the last handles of the logs, which are to be written to their end.
    if reloading.join().is_err() {
        tracing::error!("the reload thread panicked");
    }
    ended.into_iter().collect()
}

fn spawn_worker(
    start: WorkerStart,
    state: &Arc<ServerState>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let state = Arc::clone(state);
    let index = start.position.index;
    std::thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            let work = || worker_thread::run(start, &state);
            let ended = std::panic::catch_unwind(AssertUnwindSafe(work));
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a panic")));
            match ended {
                Ok(()) => state.heartbeats.end(index),
                Err(_) => state.heartbeats.fall(index),
            }
            ended.map_err(|why| io::Error::other(format!("worker {index}: {why}")))
        })
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
