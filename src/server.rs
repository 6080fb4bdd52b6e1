//! The server: its listeners and workers, and how it reloads, drains, and hands over.
//!
//! The caller of [`run`] opens the sockets and decides when the server stops.

mod acceptors;
pub mod claim;
mod connection;
pub mod control;
mod drain;
pub mod echo;
pub mod handover;
#[cfg(test)]
pub(crate) mod harness;
mod http1;
mod http2;
pub mod introspection;
pub mod listen;
pub mod listener;
#[cfg(test)]
mod panics;
pub(crate) mod port_sharing;
mod reload;
pub mod socket_file;
pub mod systemd;
mod tls;
pub mod upgrade;
mod watcher;
mod worker;
mod worker_set;

use std::io::{self, IsTerminal};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::billing::Billing;
use crate::clock::{self, Sweep};
use crate::config::{
    Config, LogFormat, LogSettings, LogTarget, SettingError, TlsSettings, UpstreamSettings,
};
use crate::jwks::JwksFetcher;
use crate::key_callback::KeyCallbacks;
use crate::otlp::Exports;
use crate::proxy::limiter::StoreHandle;
use crate::proxy::{BodyMemory, HeldRequests, StatusAnswers};
use crate::telemetry::access::{AccessLog, AccessLogError, AccessLogSettings};
use crate::telemetry::panics::{lock, spawn_enduring, spawn_thread};
use crate::upstream::{self, Vitals};
use acceptors::Acceptors;
use claim::Claim;
use control::{Reload, Requests};
use drain::{ConnectionsPerIp, Deadlines};
use echo::DemoSettings;
use introspection::Introspection;
use listen::{Listeners, WorkerSocket};
use reload::{ReloadOrder, Reloader};
use tidegate_core::exchange::key_callback::KeyCallback;
use tidegate_core::failpoint;
use tls::ServerTls;
use worker::{CarriedOver, Worker, flush};
use worker_set::{Heartbeats, Position, WorkerSet};

/// The pause before health checks start again after a panic.
const CHECKS_PAUSE: Duration = Duration::from_secs(1);

/// The state that all workers share.
#[derive(Clone)]
pub(crate) struct ServerState {
    pub(crate) access: Arc<AccessLog>,
    pub(crate) counts: Arc<StoreHandle>,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) status_answers: StatusAnswers,
    pub(crate) body_memory: BodyMemory,
    pub(crate) held: HeldRequests,
    health_checks: Arc<HealthChecks>,
    jwks: Arc<JwksFetcher>,
    /// A permit for each connection that may be opened.
    pub(crate) connections: Arc<Semaphore>,
    /// All permits of `connections`, in use or not.
    max_connections: usize,
    per_ip: Arc<ConnectionsPerIp>,
    pub(crate) heartbeats: Arc<Heartbeats>,
    pub(crate) introspection: Arc<Introspection>,
    pub(crate) exports: Arc<Exports>,
    key_callbacks: Arc<KeyCallbacks>,
    /// The service that knows the API keys; `None` if no service does.
    pub(crate) key_callback: Option<Arc<KeyCallback>>,
    pub(crate) billing: Arc<Billing>,
    /// With clients.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// With proxies that ask for decisions.
    decide_tls: Option<Arc<ServerTls>>,
}

impl ServerState {
    fn new(config: &Config, handles: &ServerHandles) -> io::Result<ServerState> {
        let most = config.server.max_connections;
        let tls = config.tls.as_deref().map(ServerTls::new).transpose()?;
        let decide_tls = decide_tls(config).map(ServerTls::new).transpose()?;
        let key_callbacks: Arc<KeyCallbacks> = Arc::default();
        let state = ServerState {
            exports: Arc::default(),
            key_callback: key_callbacks.follow(config.key_callback.as_ref())?,
            key_callbacks,
            billing: Arc::default(),
            access: Arc::new(open_access_log(config)?),
            counts: Arc::new(StoreHandle::replacing(config, handles.predecessor)?),
            vitals: Arc::default(),
            status_answers: StatusAnswers::default(),
            body_memory: BodyMemory::default(),
            held: HeldRequests::default(),
            health_checks: Arc::default(),
            jwks: Arc::default(),
            connections: Arc::new(Semaphore::new(most)),
            max_connections: most,
            per_ip: Arc::default(),
            heartbeats: Arc::clone(&handles.heartbeats),
            introspection: Arc::clone(&handles.introspection),
            tls: tls.map(Arc::new),
            decide_tls: decide_tls.map(Arc::new),
        };
        state.follow(config)?;
        Ok(state)
    }

    /// Makes the state for another configuration, with all parts of this one that can stay. The
    /// steps that can fail come first: after an error, this state stays in use unchanged. Must be
    /// called on a runtime.
    fn renewed(&self, config: &Config) -> io::Result<ServerState> {
        let access = match self.access.is_still(&access_log_settings(config)) {
            true => Arc::clone(&self.access),
            false => Arc::new(open_access_log(config)?),
        };
        let tls = ServerTls::prepare(self.tls.as_ref(), config.tls.as_deref())?;
        let decide_tls = ServerTls::prepare(self.decide_tls.as_ref(), decide_tls(config))?;
        let counts = self.counts.renewed(&config.store)?;
        self.follow(config)?;
        Ok(ServerState {
            access,
            key_callback: self.key_callbacks.follow(config.key_callback.as_ref())?,
            counts,
            max_connections: self.limit_connections(config.server.max_connections),
            tls: tls.commit(),
            decide_tls: decide_tls.commit(),
            ..self.clone()
        })
    }

    fn all_tls(&self) -> Vec<Arc<ServerTls>> {
        let both = self.tls.iter().chain(&self.decide_tls);
        both.cloned().collect()
    }

    /// Starts or changes the threads beside the workers: health checks, the keys of tokens, the
    /// export of traces, and the ledger.
    fn follow(&self, config: &Config) -> io::Result<()> {
        self.health_checks.follow(&config.upstreams, &self.vitals)?;
        self.jwks.follow(config.jwks.as_ref())?;
        self.billing.follow(config, &self.counts.usage)?;
        self.exports.follow(config.tracing.as_ref())
    }

    /// Changes the number of permits to `most`. A lower limit closes no connection: new ones wait
    /// until enough have ended.
    fn limit_connections(&self, most: usize) -> usize {
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

/// The thread that checks the servers of the upstreams. It starts with the first upstream that has
/// health checks, and ends when this is dropped.
#[derive(Debug, Default)]
struct HealthChecks(Mutex<Option<watch::Sender<Vec<UpstreamSettings>>>>);

impl HealthChecks {
    fn follow(&self, settings: &[UpstreamSettings], vitals: &Arc<Vitals>) -> io::Result<()> {
        let mut thread = lock(&self.0);
        if let Some(thread) = &*thread {
            // A change starts all checks again.
            thread.send_if_modified(|known| {
                let is_other = known != settings;
                settings.clone_into(known);
                is_other
            });
        } else if settings.iter().any(|one| one.health.is_some()) {
            let (sender, followed) = watch::channel(settings.to_vec());
            let vitals = Arc::clone(vitals);
            spawn_thread("checks", move || check_health(followed, vitals))?;
            *thread = Some(sender);
        }
        Ok(())
    }
}

async fn check_health(mut followed: watch::Receiver<Vec<UpstreamSettings>>, vitals: Arc<Vitals>) {
    loop {
        let settings = followed.borrow_and_update().clone();
        tokio::select! {
            () = upstream::run_health_checks(&settings, &vitals) => {
                tokio::time::sleep(CHECKS_PAUSE).await;
            }
            changed = followed.changed() => if changed.is_err() { return },
        }
    }
}

/// The handles through which other parts of the process reach a running server.
#[derive(Clone, Debug)]
pub struct ServerHandles {
    pub listeners: Arc<Listeners>,
    pub heartbeats: Arc<Heartbeats>,
    pub introspection: Arc<Introspection>,
    pub reload: Reload,
    pub file: Option<PathBuf>,
    /// The process that this one replaces.
    pub predecessor: Option<u32>,
    pub shutdown: Shutdown,
}

/// The other ends of channels in [`ServerHandles`], for the code that starts the server.
#[derive(Debug)]
pub struct ServerControls {
    pub lifecycle: watch::Sender<Lifecycle>,
    pub requests: Requests,
}

impl ServerHandles {
    pub fn new(
        listeners: Arc<Listeners>,
        workers: usize,
        file: Option<PathBuf>,
    ) -> (ServerHandles, ServerControls) {
        let (lifecycle, shutdown) = watch::channel(Lifecycle::Serve);
        let (reload, requests) = control::reload_channel();
        let handles = ServerHandles {
            listeners,
            heartbeats: Arc::new(Heartbeats::new(workers)),
            introspection: Arc::default(),
            reload,
            file,
            predecessor: None,
            shutdown,
        };
        let controls = ServerControls {
            lifecycle,
            requests,
        };
        (handles, controls)
    }
}

#[derive(Debug)]
pub struct Reloads {
    pub requests: Requests,
    pub watch: bool,
    /// The claim to the file. If absent, the server takes it when it binds the control socket.
    pub claim: Option<Arc<Claim>>,
    pub demo: Option<DemoSettings>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    Serve,
    /// The server ends. Connections that wait at its sockets are still served.
    Stop {
        /// Whether other processes share the ports, and handshakes must move to them.
        yields: bool,
    },
    HandOver,
}

/// Makes workers drain if it is dropped or receives anything but [`Lifecycle::Serve`].
pub type Shutdown = watch::Receiver<Lifecycle>;

/// Serves until `handles.shutdown` changes, then drains. The caller must close `handles.listeners`
/// before that.
///
/// # Errors
/// The access log cannot be opened, a thread cannot be started, or a worker ended unexpectedly. The
/// heartbeats report such a worker, and the caller then stops all others.
pub fn run(config: Config, handles: ServerHandles, reloads: Reloads) -> io::Result<()> {
    let state = Arc::new(ServerState::new(&config, &handles)?);
    handles.introspection.renew(config.fresh_copy(), &state);
    let sockets = handles.listeners.worker_sockets()?;
    let workers = Arc::new(WorkerSet::new(sockets.len()));
    let (mut threads, mut orders) = (Vec::new(), Vec::new());
    for (index, sockets) in sockets.into_iter().enumerate() {
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
    let (exports, billing) = (Arc::clone(&state.exports), Arc::clone(&state.billing));
    let counts = Arc::clone(&state.counts);
    let introspection = Arc::clone(&handles.introspection);
    let reloader = Reloader::new(config, state, orders, handles);
    let reloading = reloader.spawn(reloads)?;
    let ended = threads.into_iter().map(|thread| {
        let joined = thread.join();
        joined.unwrap_or_else(|_| Err(io::Error::other("a worker panicked as it ended")))
    });
    // Waits for all workers, even if the first one has failed.
    let ended: Vec<io::Result<()>> = ended.collect();
    counts.finish();
    billing.finish();
    exports.finish();
    introspection.close();
    // The reload thread has the last handles of the logs. Their drop writes the last lines.
    if reloading.join().is_err() {
        tracing::error!("the reload thread panicked");
    }
    ended.into_iter().collect()
}

struct WorkerStart {
    config: Config,
    sockets: Vec<WorkerSocket>,
    orders: mpsc::Receiver<ReloadOrder>,
    shutdown: Shutdown,
    position: Position,
}

fn spawn_worker(
    start: WorkerStart,
    state: &Arc<ServerState>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let state = Arc::clone(state);
    let index = start.position.index;
    spawn_thread(&format!("worker-{index}"), async move || {
        let ended = AssertUnwindSafe(serve(start, &state)).catch_unwind().await;
        let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a panic")));
        match ended {
            Ok(()) => state.heartbeats.end(index),
            Err(_) => state.heartbeats.lose(index),
        }
        ended.map_err(|why| io::Error::other(format!("worker {index}: {why}")))
    })
}

/// Serves on one worker until `shutdown`, then drains.
async fn serve(mut start: WorkerStart, state: &ServerState) -> io::Result<()> {
    let sweep = Sweep::new();
    let sweeping = sweep.clone();
    spawn_enduring(move || sweeping.clone().run());
    let mut carried = CarriedOver::open(state).await;
    let first = carried.activate(None, start.config, state, &sweep).await;
    let worker = Arc::new(Worker {
        serving: Arc::new(ArcSwap::from_pointee(first)),
        sweep,
        drain: start.position.drain(),
        connections: Arc::clone(&state.connections),
        per_ip: Arc::clone(&state.per_ip),
        position: start.position,
    });
    state.introspection.add_worker(&worker.serving);
    let mut acceptors = Acceptors::open(&worker, start.sockets)?;
    if let Some(handed_off) = worker.position.join() {
        tokio::spawn(acceptors::receive(handed_off, Arc::clone(&worker)));
    }
    let index = worker.position.index;
    let heartbeats = Arc::clone(&state.heartbeats);
    let serving = Arc::clone(&worker.serving);
    spawn_enduring(move || {
        let heartbeats = Arc::clone(&heartbeats);
        flush(Arc::clone(&serving), move || heartbeats.beat(index))
    });
    loop {
        tokio::select! {
            // A dropped sender means the same as a stop.
            _ = start.shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => break,
            Some(order) = start.orders.recv() => {
                carry_out(order, &worker, &mut carried, &mut acceptors).await;
            }
        }
    }
    state.counts.drain();
    let lifecycle = *start.shutdown.borrow();
    acceptors.end(lifecycle).await;
    drain(&worker, state, &mut start.shutdown).await;
    carried.store().flush().await;
    Ok(())
}

/// Lets the connections of a worker finish, and cuts those that are open at the deadline. A stop
/// after an upgrade replaces the deadline.
async fn drain(worker: &Worker, state: &ServerState, shutdown: &mut Shutdown) {
    let cut = loop {
        let lifecycle = *shutdown.borrow_and_update();
        let deadlines = Deadlines::new(lifecycle, &worker.serving.load().settings);
        let end = clock::now() + deadlines.all;
        state.held.end_at(end);
        state.exports.note_end(end);
        let finishing = async {
            let open = worker.drain.finish(&worker.sweep, deadlines).await;
            let config = worker.serving.load_full();
            // Answers that are not read by then keep their reserve.
            let _ = tokio::time::timeout_at(end.into(), config.proxy.finish_drains()).await;
            open
        };
        tokio::select! {
            open = finishing => break open,
            Ok(()) = shutdown.changed() => {}
        }
    };
    if cut > 0 {
        worker.drain.cut(&worker.sweep).await;
        tracing::warn!("drain timeout reached: closed {cut} connections");
    }
}

async fn carry_out(
    order: ReloadOrder,
    worker: &Worker,
    carried: &mut CarriedOver,
    acceptors: &mut Acceptors,
) {
    failpoint!("server.worker_reload");
    let old = worker.serving.load_full();
    let next = carried.activate(Some(&old), *order.config, &order.state, &worker.sweep);
    let next = next.await;
    worker.serving.store(Arc::new(next));
    for socket in order.opened {
        if let Err(error) = acceptors.add(socket) {
            tracing::error!(%error, "a worker cannot accept there");
        }
    }
    acceptors.close(&order.closed).await;
    // The reload thread may have ended.
    let _ = order.done.send(old);
}

fn decide_tls(config: &Config) -> Option<&TlsSettings> {
    config.decide.as_ref()?.tls.as_deref()
}

fn open_access_log(config: &Config) -> io::Result<AccessLog> {
    let opened = AccessLog::open(access_log_settings(config));
    opened.map_err(|AccessLogError { target, error }| {
        let setting = match target == config.log.access {
            true => "log.access",
            false => "access_log",
        };
        match &target {
            LogTarget::File(path) => SettingError::file(setting, "open", path, &error),
            _ => error,
        }
    })
}

fn access_log_settings(config: &Config) -> AccessLogSettings {
    let log = &config.log;
    AccessLogSettings {
        target: log.access.clone(),
        format: format_of(log),
        sample_allowed: log.sample_allowed,
        named: (config.access_logs.iter())
            .map(|named| named.target.clone())
            .collect(),
    }
}

/// By default text on a terminal, and JSON for programs.
fn format_of(log: &LogSettings) -> LogFormat {
    let is_terminal = match &log.access {
        LogTarget::Stdout => io::stdout().is_terminal(),
        LogTarget::Stderr => io::stderr().is_terminal(),
        LogTarget::Off | LogTarget::File(_) => false,
    };
    log.format.unwrap_or(match is_terminal {
        true => LogFormat::Text,
        false => LogFormat::Json,
    })
}
