//! Reloads: another configuration for a running server. Everything is read, checked and prepared
//! before anything is used, so that a mistake changes nothing.
//!
//! 1. A signal, the control socket or a change of the file requests a reload. Requests that come
//!    together are one reload.
//! 2. `config::load` returns a configuration, or every mistake.
//! 3. The shared state is prepared: sockets, logs, store, limits.
//! 4. Each worker replaces its configuration between two requests.
//! 5. The log tells the changes.
//!
//! Connections, requests, counts, pools and sockets stay. All of this runs on its own thread; a
//! worker only puts its new proxy in place. The old configuration comes back to this thread,
//! because the drop of ten thousand routes takes milliseconds, which no request should wait for.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::claim::Claim;
use super::control::{self, ControlSettings, ReloadError, Reloaded, Requests};
use super::echo::DemoSettings;
use super::listen::{ListenChange, ListenLines, WorkerSocket};
use super::watcher::Watcher;
use super::worker::ActiveConfig;
use super::{Lifecycle, Reloads, ServerHandles, ServerState, socket_file, systemd, tls};
use crate::clock;
use crate::config::diagnostic::Diagnostics;
use crate::config::{self, Config, Control, SettingError, StoreKind};
use crate::telemetry::access::AccessLog;
use crate::telemetry::panics::{contained, endure, spawn_thread};
use tidegate_core::failpoint;

/// The pause after a reload. Requests in this time become one reload.
const PAUSE: Duration = Duration::from_millis(5);
const CHECK_EVERY: Duration = Duration::from_millis(400);
/// How long a reload waits for a store that was away and has another login or TLS now.
const STORE_PATIENCE: Duration = Duration::from_secs(2);
const STORE_CHECK_EVERY: Duration = Duration::from_millis(20);

pub(super) struct ReloadOrder {
    pub(super) config: Box<Config>,
    pub(super) state: Arc<ServerState>,
    pub(super) opened: Vec<WorkerSocket>,
    pub(super) closed: Arc<[u64]>,
    /// Gets the replaced configuration when the order is done.
    pub(super) done: oneshot::Sender<Arc<ActiveConfig>>,
}

pub(super) struct Reloader {
    config: Config,
    state: Arc<ServerState>,
    handles: ServerHandles,
    workers: Vec<mpsc::Sender<ReloadOrder>>,
    /// Replaced configurations that requests may still use.
    replaced: Vec<Arc<ActiveConfig>>,
    /// Replaced logs that requests may still write to.
    retired: Vec<Arc<AccessLog>>,
    watcher: Watcher,
    watches: bool,
    demo: Option<DemoSettings>,
    certificates: JoinSet<()>,
}

impl Reloader {
    pub(super) fn new(
        config: Config,
        state: Arc<ServerState>,
        workers: Vec<mpsc::Sender<ReloadOrder>>,
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
            demo: None,
            certificates: JoinSet::new(),
        }
    }

    pub(super) fn spawn(self, reloads: Reloads) -> io::Result<JoinHandle<()>> {
        spawn_thread("reload", move || self.run(reloads))
    }

    async fn run(mut self, mut reloads: Reloads) {
        self.demo = reloads.demo.take();
        // The end of this task removes the socket's file.
        let mut control_task = JoinSet::new();
        if let Some(path) = &self.handles.file {
            let control = &self.config.server.control;
            let settings = ControlSettings {
                places: socket_file::control_paths(path, control),
                own_directory: *control == Control::Derived,
                claim: reloads
                    .claim
                    .unwrap_or_else(|| Arc::new(Claim::new(path, control, false))),
                reload: self.handles.reload.clone(),
                heartbeats: Arc::clone(&self.handles.heartbeats),
            };
            control_task.spawn(endure(move || control::serve(settings.clone())));
            let written = &self.config.sources;
            self.watcher
                .watch(path, Some(&written.text), &written.files);
            self.watches = reloads.watch;
        }
        self.certificates = self.maintain_certificates();
        while contained(self.serve_requests(&mut reloads.requests))
            .await
            .is_none()
        {}
        control_task.shutdown().await;
    }

    /// Reloads on requests and on changes of the file until the server ends. If a reload panics,
    /// its requests get no response.
    async fn serve_requests(&mut self, requests: &mut Requests) {
        let mut shutdown = self.handles.shutdown.clone();
        let mut checks = tokio::time::interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut waiting = Vec::new();
            let has_replaced = !self.replaced.is_empty() || !self.retired.is_empty();
            tokio::select! {
                biased;
                _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => break,
                Some(first) = requests.0.recv() => waiting.push(first),
                _ = checks.tick(), if self.watches || has_replaced => {
                    self.drop_replaced();
                    if !self.watches || !self.watcher.has_changed() {
                        continue;
                    }
                }
            }
            failpoint!("server.reload");
            while let Ok(more) = requests.0.try_recv() {
                waiting.push(more);
            }
            let before = self.state.all_tls();
            let outcome = Arc::new(self.reload().await);
            let after = self.state.all_tls();
            let places = |tls: &[Arc<_>]| tls.iter().map(Arc::as_ptr).collect::<Vec<_>>();
            if places(&before) != places(&after) {
                // This aborts the old tasks.
                self.certificates = self.maintain_certificates();
            }
            log_outcome(&outcome);
            self.state.introspection.note_reload(&outcome);
            for answer in waiting {
                // The requester may have left.
                let _ = answer.send(Arc::clone(&outcome));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn maintain_certificates(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for watched in self.state.all_tls() {
            let shutdown = self.handles.shutdown.clone();
            tasks.spawn(endure(move || {
                tls::watch_files(Arc::clone(&watched), shutdown.clone())
            }));
        }
        if let Some(tls) = &self.state.tls {
            let acquired = Arc::clone(tls);
            let shutdown = self.handles.shutdown.clone();
            tasks.spawn(endure(move || {
                tls::acquire_certificates(Arc::clone(&acquired), shutdown.clone())
            }));
        }
        tasks
    }

    async fn reload(&mut self) -> Result<Reloaded, ReloadError> {
        let path = self.handles.file.clone().ok_or(ReloadError::NoFile)?;
        systemd::reloading();
        let reloaded = contained(self.replace(&path)).await;
        systemd::ready("serving");
        reloaded.unwrap_or_else(|| {
            let why = io::Error::other("internal error: the log of the proxy has the details");
            Err(ReloadError::Unusable(why))
        })
    }

    async fn replace(&mut self, path: &Path) -> Result<Reloaded, ReloadError> {
        let (mut config, warnings) = self.read(path).map_err(ReloadError::Mistakes)?;
        let changes = config::changes(&self.config, &config);
        let restarts = config::restarts(&self.config, &config);
        config.keep_until_restart(&self.config);
        config.keep_fetched_keys(&self.config);
        let listeners = &self.handles.listeners;
        let unusable =
            |error| ReloadError::Unusable(SettingError::locate(error, Some(path), &config.sources));
        let change = listeners.prepare(ListenLines::new(&config));
        let mut change = change.map_err(unusable)?;
        let state = self.state.renewed(&config).map_err(unusable)?;
        let state = Arc::new(state);
        listeners.commit(&mut change);
        self.reload_workers(&config, &state, change).await;
        self.state.introspection.renew(config.fresh_copy(), &state);
        let old = std::mem::replace(&mut self.state, state);
        if !Arc::ptr_eq(&old.access, &self.state.access) {
            // The drop of a log's last handle waits for its writer, so no worker may do it.
            self.retired.push(Arc::clone(&old.access));
        }
        drop(old);
        self.drop_replaced();
        let has_new_login = has_new_login(&self.config.store.kind, &config.store.kind);
        self.config = config;
        if *self.handles.shutdown.borrow() != Lifecycle::Serve {
            return Err(ReloadError::Stopping);
        }
        if has_new_login {
            self.wait_for_store().await;
        }
        Ok(Reloaded {
            changes,
            restarts,
            problems: self.problems(),
            warnings,
        })
    }

    fn is_store_away(&self) -> bool {
        self.state.counts.backing.away_since().is_some()
    }

    /// Lets the workers connect with the new login, so that no old error is reported.
    async fn wait_for_store(&self) {
        let until = clock::now() + STORE_PATIENCE;
        while self.is_store_away()
            && clock::now() < until
            && *self.handles.shutdown.borrow() == Lifecycle::Serve
        {
            tokio::time::sleep(STORE_CHECK_EVERY).await;
        }
    }

    fn problems(&self) -> Vec<String> {
        let away = self.is_store_away();
        let line = "The store does not answer: limits follow `on_error` until it does";
        away.then(|| line.to_owned()).into_iter().collect()
    }

    fn drop_replaced(&mut self) {
        self.replaced.retain(|old| Arc::strong_count(old) > 1);
        self.retired.retain(|log| Arc::strong_count(log) > 1);
    }

    /// Reads the file. The watcher remembers the content, with or without mistakes.
    fn read(&mut self, path: &Path) -> Result<(Config, Diagnostics), Diagnostics> {
        let mut files = Vec::new();
        let mut loaded = config::load_noting(path, &mut files);
        let text = match &loaded {
            Ok((config, _)) => Some(&*config.sources.text),
            Err(found) => Some(&*found.source.text).filter(|text| !text.is_empty()),
        };
        self.watcher.watch(path, text, &files);
        if let (Some(demo), Ok((config, _))) = (&self.demo, &mut loaded) {
            demo.apply(config);
        }
        loaded
    }

    /// Makes every worker serve by `config`. Returns when all do.
    async fn reload_workers(
        &mut self,
        config: &Config,
        state: &Arc<ServerState>,
        change: ListenChange,
    ) {
        let closed: Arc<[u64]> = change.closed.into();
        let mut replaced = Vec::new();
        for (worker, opened) in self.workers.iter().zip(change.opened) {
            let (done, old) = oneshot::channel();
            let order = ReloadOrder {
                config: Box::new(config.fresh_copy()),
                state: Arc::clone(state),
                opened,
                closed: Arc::clone(&closed),
                done,
            };
            if worker.send(order).await.is_ok() {
                replaced.push(old);
            }
        }
        for old in replaced {
            // A worker that has ended in the meantime sends nothing.
            if let Ok(old) = old.await {
                self.replaced.push(old);
            }
        }
    }
}

/// Whether the store is at the same place, with another login or TLS.
fn has_new_login(before: &StoreKind, now: &StoreKind) -> bool {
    match (before, now) {
        (StoreKind::Redis(before), StoreKind::Redis(now)) => {
            before.topology == now.topology && before != now
        }
        _ => false,
    }
}

fn log_outcome(outcome: &Result<Reloaded, ReloadError>) {
    let reloaded = match outcome {
        Ok(reloaded) => reloaded,
        Err(error) => return tracing::error!("reload: nothing was changed: {error}"),
    };
    if !reloaded.warnings.is_empty() {
        let found = config::render::human(&reloaded.warnings, false);
        tracing::warn!("reload: warnings:\n{found}");
    }
    for line in reloaded.restarts.iter().chain(&reloaded.problems) {
        tracing::warn!("reload: {line}");
    }
    for line in &reloaded.changes {
        tracing::info!("reload: {line}");
    }
    match reloaded.changes.len() {
        0 => tracing::info!("reload: done, no change"),
        changes => tracing::info!(changes, "reload: done"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::harness::{Harness, on_a_runtime};

    #[test]
    fn a_process_that_stops_refuses_a_reload() {
        let harness = Harness::open("");
        harness.is_well();
        let reload = harness.handles.reload.clone();
        harness.close().unwrap();
        let outcome = on_a_runtime(reload.request());
        assert!(
            matches!(&*outcome, Err(ReloadError::Stopping)),
            "{outcome:?}"
        );
    }
}
