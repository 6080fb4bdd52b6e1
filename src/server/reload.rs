//! Another configuration for a running house: read, checked and prepared whole before anything of
//! it is used, so that what is wrong changes nothing.
//!
//! ```text
//! asked      by a signal, the control socket or whoever watches the file; many at once are one
//! read       config::load: every mistake, or a configuration
//! prepare    what the house shares: logs, counts, the bound on connections
//! order      each worker replaces what it serves by, between two requests
//! tell       what has changed, in words
//! ```
//!
//! Connections, requests under way, counts, pools and sockets stay. All of it happens on a thread
//! of its own; a worker does no more than put its new proxy in place. What it served by comes back
//! here: to take ten thousand routes apart takes milliseconds, which no request should wait for.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::active_config::ActiveConfig;
use super::claim::Claim;
use super::listen::{ListenLines, Moves};
use super::reload_request::{ReloadError, Reloaded, Requests};
use super::watcher::{LOOK_EVERY, Watcher};
use super::worker_thread::Order;
use super::{Lifecycle, Reloads, ServerHandles, ServerState, control, control_path, notify, tls};
use crate::config::diagnostic::Diagnostics;
use crate::config::{self, Config, Control};
use crate::telemetry::access::AccessLog;
use crate::telemetry::panics::{contained, endure};

/// From one reload to the next: what asks meanwhile is answered together.
const REST: Duration = Duration::from_millis(5);

/// Replaces what a running server serves by.
pub(super) struct Reloader {
    config: Config,
    state: Arc<ServerState>,
    handles: ServerHandles,
    workers: Vec<mpsc::Sender<Order>>,
    /// Configurations that requests may still use.
    replaced: Vec<Arc<ActiveConfig>>,
    /// Logs that requests may still write to.
    retired: Vec<Arc<AccessLog>>,
    watcher: Watcher,
    watches: bool,
    /// Tasks that look after the files of certificates, where there are any.
    certificates: JoinSet<()>,
}

impl Reloader {
    pub(super) fn new(
        config: Config,
        state: Arc<ServerState>,
        workers: Vec<mpsc::Sender<Order>>,
        handles: ServerHandles,
    ) -> Reloader {
        Reloader {
            config,
            state,
            handles,
            workers,
            replaced: Vec::new(),
            retired: Vec::new(),
            watcher: Watcher::default(),
            watches: false,
            certificates: JoinSet::new(),
        }
    }

    /// Starts a thread that reloads whenever it is asked to, until the server ends.
    pub(super) fn spawn(self, reloads: Reloads) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || runtime.block_on(self.run(reloads)))
    }

    async fn run(mut self, reloads: Reloads) {
        let Reloads {
            mut requests,
            watch,
            claim,
        } = reloads;
        // Ends with this runtime, and takes the socket's file away.
        let mut control = JoinSet::new();
        if let Some(path) = &self.handles.file {
            let place = &self.config.server.control;
            let claim = claim.unwrap_or_else(|| Arc::new(Claim::new(path, place, false)));
            let post = control::Post {
                places: control_path::places(path, place),
                own_directory: *place == Control::Derived,
                claim,
                reload: self.handles.reload.clone(),
                heartbeats: Arc::clone(&self.handles.heartbeats),
            };
            control.spawn(endure(move || control::serve(post.clone())));
            let written = &self.config.sources;
            self.watcher.read(path, Some(&written.text), &written.files);
            self.watches = watch;
        }
        self.certificates = self.watch_certificates();
        while contained(self.attend(&mut requests)).await.is_none() {}
        control.shutdown().await;
    }

    /// Reads the file when that is asked for, or also when it changes, until the house ends. A
    /// panic beside what is read costs those who asked their answer.
    async fn attend(&mut self, requests: &mut Requests) {
        let mut shutdown = self.handles.shutdown.clone();
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut asked = Vec::new();
            tokio::select! {
                _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => break,
                Some(first) = requests.0.recv() => asked.push(first),
                _ = looks.tick(), if self.watches || self.keeps_any() => {
                    self.let_go();
                    if !self.watches || !self.watcher.look() {
                        continue;
                    }
                }
            }
            failpoint!("server.reload");
            while let Ok(more) = requests.0.try_recv() {
                asked.push(more);
            }
            let before = self.state.tls.clone();
            let outcome = Arc::new(self.reload().await);
            let after = self.state.tls.as_ref();
            if before.as_ref().map(Arc::as_ptr) != after.map(Arc::as_ptr) {
                // The tasks before are aborted.
                self.certificates = self.watch_certificates();
            }
            tell(&outcome);
            self.state.introspection.note_reload(&outcome);
            for answer in asked {
                // Whoever asked may have gone.
                let _ = answer.send(Arc::clone(&outcome));
            }
            tokio::time::sleep(REST).await;
        }
    }

    fn watch_certificates(&self) -> JoinSet<()> {
        let mut watching = JoinSet::new();
        if let Some(tls) = &self.state.tls {
            let known = (Arc::clone(tls), self.handles.shutdown.clone());
            let (watched, acquired) = (known.clone(), known);
            watching.spawn(endure(move || {
                let (tls, shutdown) = watched.clone();
                tls::watch(tls, shutdown)
            }));
            watching.spawn(endure(move || {
                let (tls, shutdown) = acquired.clone();
                tls::acme(tls, shutdown)
            }));
        }
        watching
    }

    async fn reload(&mut self) -> Result<Reloaded, ReloadError> {
        let path = self.handles.file.clone().ok_or(ReloadError::NoFile)?;
        notify::reloading();
        let reloaded = contained(self.replace(&path)).await;
        notify::ready("serving");
        reloaded.unwrap_or_else(|| {
            let why = io::Error::other("something of ours broke, which the log has told");
            Err(ReloadError::Unusable(why))
        })
    }

    async fn replace(&mut self, path: &Path) -> Result<Reloaded, ReloadError> {
        let (mut config, warnings) = self.read(path).map_err(ReloadError::Mistakes)?;
        let changes = config::changes(&self.config, &config);
        let restarts = config::restarts(&self.config, &config);
        config.keep_until_restart(&self.config);
        let change = self.handles.listeners.prepare(ListenLines::of(&config));
        let change = change.map_err(ReloadError::Unusable)?;
        let state = self.state.renewed(&config).map_err(ReloadError::Unusable)?;
        let state = Arc::new(state);
        let moves = self.handles.listeners.commit(change);
        let moves = moves.map_err(ReloadError::Unusable)?;
        self.order(&config, &state, moves).await;
        self.state.introspection.renew(config.fresh_copy(), &state);
        let old = std::mem::replace(&mut self.state, state);
        if !Arc::ptr_eq(&old.access, &self.state.access) {
            // The last handle of a log waits for its writer: no worker should have to.
            self.retired.push(Arc::clone(&old.access));
        }
        drop(old);
        self.let_go();
        self.config = config;
        Ok(Reloaded {
            changes,
            restarts,
            warnings,
        })
    }

    fn keeps_any(&self) -> bool {
        !self.replaced.is_empty() || !self.retired.is_empty()
    }

    /// Drops what no request uses any more.
    fn let_go(&mut self) {
        self.replaced.retain(|old| Arc::strong_count(old) > 1);
        self.retired.retain(|log| Arc::strong_count(log) > 1);
    }

    /// Reads the file; whatever comes of it, the watcher knows what was read.
    fn read(&mut self, path: &Path) -> Result<(Config, Diagnostics), Diagnostics> {
        let mut files = Vec::new();
        let loaded = config::load_noting(path, &mut files);
        let text = match &loaded {
            Ok((config, _)) => Some(&*config.sources.text),
            Err(found) => Some(&*found.source.text).filter(|text| !text.is_empty()),
        };
        self.watcher.read(path, text, &files);
        loaded
    }

    /// Has every worker serve by `config`; returns when all do.
    async fn order(&mut self, config: &Config, state: &Arc<ServerState>, moves: Moves) {
        let closed: Arc<[u64]> = moves.closed.into();
        let mut done = Vec::new();
        for (worker, opened) in self.workers.iter().zip(moves.opened) {
            let (answer, told) = oneshot::channel();
            let order = Order {
                config: Box::new(config.fresh_copy()),
                state: Arc::clone(state),
                opened,
                closed: Arc::clone(&closed),
                done: answer,
            };
            if worker.send(order).await.is_ok() {
                done.push(told);
            }
        }
        for told in done {
            // A worker that ends meanwhile serves nothing any more.
            if let Ok(old) = told.await {
                self.replaced.push(old);
            }
        }
    }
}

/// What the log says of it.
fn tell(outcome: &Result<Reloaded, ReloadError>) {
    match outcome {
        Ok(reloaded) => {
            if !reloaded.warnings.is_empty() {
                let found = config::render::human(&reloaded.warnings, false);
                tracing::warn!("reload: doubtful:\n{found}");
            }
            for line in &reloaded.restarts {
                tracing::warn!("reload: {line}");
            }
            for line in &reloaded.changes {
                tracing::info!("reload: {line}");
            }
            match reloaded.changes.len() {
                0 => tracing::info!("reload: done, and nothing is different"),
                changes => tracing::info!(changes, "reload: done"),
            }
        }
        Err(error) => tracing::error!("reload: nothing was changed: {error}"),
    }
}
