//! Signals to the running proxy, and notifications to its service manager.
//!
//! | signal | |
//! |---|---|
//! | SIGTERM, SIGINT | drain and stop; a second one stops at once |
//! | SIGHUP | reload the configuration |
//! | SIGUSR2 | upgrade: the binary at the same path replaces this process |
//!
//! If a worker is lost, the process drains and stops, so that the service manager starts another. A
//! panic of this thread loses one signal, and no later one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::OptionFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Interval, interval};

use super::DID_NOT_WORK;
use crate::diagnostics;
use crate::server::claim::{Claim, PidFile};
use crate::server::handover::Predecessor;
use crate::server::upgrade::{self, ProgramCommand, Successor};
use crate::server::{Lifecycle, ServerHandles, systemd};
use crate::telemetry::panics::contained;
use tidegate_core::failpoint;

/// The parts of the server that signals act on.
pub(super) struct SignalTargets {
    pub(super) lifecycle: watch::Sender<Lifecycle>,
    pub(super) server: ServerHandles,
    pub(super) predecessor: Option<Predecessor>,
    pub(super) pid_file: Option<Arc<PidFile>>,
    pub(super) claim: Option<Arc<Claim>>,
}

struct SignalLoop {
    targets: SignalTargets,
    /// None if the path of this program is not known.
    program: Option<ProgramCommand>,
    /// Cancels the upgrade in progress.
    abandon: Arc<AtomicBool>,
    upgrading: Option<JoinHandle<io::Result<Successor>>>,
    /// All workers accept connections.
    serves: bool,
    /// The predecessor and the service manager know that all workers accept.
    announced: bool,
    ends: bool,
    /// An upgrade was requested before all workers accepted.
    upgrade_wanted: bool,
    watchdog: Option<Interval>,
    /// The heartbeats of the workers at the last watchdog tick.
    last_beats: Vec<u64>,
}

/// Starts the thread that handles signals until the process ends.
pub(super) fn spawn(targets: SignalTargets) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = {
        let _entered = runtime.enter();
        [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::user_defined2())?,
        ]
    };
    let program = ProgramCommand::of_this_process()
        .inspect_err(|error| {
            tracing::warn!(%error, "upgrades are off: the path of this program \
         is unknown")
        })
        .ok();
    let signal_loop = SignalLoop {
        targets,
        program,
        abandon: Arc::default(),
        upgrading: None,
        serves: false,
        announced: false,
        ends: false,
        upgrade_wanted: false,
        watchdog: None,
        last_beats: Vec::new(),
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(signal_loop.run(signals)))?;
    Ok(())
}

/// Ends the process at once, after the messages that wait.
fn exit() -> ! {
    diagnostics::finish();
    std::process::exit(i32::from(DID_NOT_WORK));
}

impl SignalLoop {
    async fn run(mut self, mut signals: [Signal; 4]) {
        // Twice as often as the service manager requires.
        self.watchdog = systemd::watchdog().map(|time| interval(time / 2));
        while contained(self.listen(&mut signals)).await.is_none() {
            self.recover_from_panic();
        }
    }

    /// Does not retry what panicked, but completes a requested stop.
    fn recover_from_panic(&mut self) {
        if self.serves && !self.announced {
            tracing::error!("startup notification failed: shutting down");
            exit();
        }
        if self.ends && self.is_serving() {
            self.targets.server.listeners.close();
            self.set_lifecycle(Lifecycle::Stop { yields: false });
        }
    }

    fn is_serving(&self) -> bool {
        *self.targets.lifecycle.borrow() == Lifecycle::Serve
    }

    fn set_lifecycle(&self, lifecycle: Lifecycle) {
        self.targets.lifecycle.send_replace(lifecycle);
    }

    async fn listen(&mut self, signals: &mut [Signal; 4]) {
        let [terminate, interrupt, hangup, user2] = signals;
        loop {
            let upgraded = OptionFuture::from(self.upgrading.as_mut());
            let watchdog = OptionFuture::from(self.watchdog.as_mut().map(Interval::tick));
            let heartbeats = &self.targets.server.heartbeats;
            tokio::select! {
                _ = terminate.recv() => self.stop_or_exit().await,
                _ = interrupt.recv() => self.stop_or_exit().await,
                _ = hangup.recv() => {
                    failpoint!("signals.reload");
                    self.targets.server.reload.request_and_leave();
                }
                _ = user2.recv() => self.upgrade(),
                () = heartbeats.all_serve(), if !self.serves => self.announce(),
                Some(outcome) = upgraded => {
                    self.finish_upgrade(outcome.unwrap_or_else(|_| Err(upgrade::abandoned())));
                }
                () = heartbeats.wait_for_lost_worker() => {
                    if self.is_serving() {
                        tracing::error!("a worker is lost: shutting down");
                        self.stop().await;
                    }
                }
                Some(_) = watchdog => {
                    if heartbeats.all_beat_since(&mut self.last_beats) {
                        systemd::alive();
                    }
                }
            }
        }
    }

    async fn stop_or_exit(&mut self) {
        if self.is_serving() {
            return self.stop().await;
        }
        if !self.ends && *self.targets.lifecycle.borrow() == Lifecycle::HandOver {
            self.ends = true;
            tracing::info!("draining: stopped by a signal");
            return self.set_lifecycle(Lifecycle::Stop { yields: false });
        }
        if let Some(file) = &self.targets.pid_file {
            file.remove();
        }
        exit();
    }

    /// Tells the predecessor, and then the service manager, that all workers accept.
    fn announce(&mut self) {
        self.serves = true;
        if let Some(predecessor) = self.targets.predecessor.take() {
            let pid = predecessor.pid;
            if let Err(error) = predecessor.take_over() {
                tracing::error!(%error, "upgrade cancelled");
                exit();
            }
            tracing::info!(from = pid, "upgrade: this process now serves");
            let file = self.targets.pid_file.as_deref();
            if let Some(Err(error)) = file.map(|file| file.write(true)) {
                tracing::warn!(%error, "the pid file does not name this process");
            }
            drop(predecessor);
        }
        systemd::ready("serving");
        self.announced = true;
        if std::mem::take(&mut self.upgrade_wanted) {
            self.upgrade();
        }
    }

    async fn stop(&mut self) {
        self.ends = true;
        tracing::info!("draining");
        failpoint!("signals.stop");
        systemd::stopping("draining");
        self.abandon.store(true, Ordering::Relaxed);
        if let Some(upgrading) = self.upgrading.take() {
            // A successor that just got ready stops too.
            match upgrading.await {
                Ok(Ok(successor)) => successor.end(),
                Ok(Err(error)) => tracing::warn!(%error, "upgrade failed"),
                Err(_) => {}
            }
        }
        let yields = self.targets.server.listeners.yield_with_care();
        self.targets.server.listeners.close();
        // Before the process may end.
        self.release();
        self.set_lifecycle(Lifecycle::Stop { yields });
    }

    /// Lets another process run the file while this one drains.
    fn release(&self) {
        if let Some(claim) = &self.targets.claim {
            claim.release();
        }
        if let Some(file) = &self.targets.pid_file {
            file.release();
        }
    }

    fn upgrade(&mut self) {
        let reason = match (&self.program, &self.upgrading) {
            _ if !self.is_serving() => "this process is ending",
            _ if !self.serves => {
                self.upgrade_wanted = true;
                return;
            }
            (_, Some(_)) => "one is under way",
            (None, None) => "the path of this program is not known",
            (Some(program), None) => {
                let (program, abandon) = (program.clone(), Arc::clone(&self.abandon));
                let listeners = Arc::clone(&self.targets.server.listeners);
                let start = move || upgrade::start(&program, &listeners, &abandon);
                self.upgrading = Some(tokio::task::spawn_blocking(start));
                return;
            }
        };
        tracing::warn!(reason, "upgrade refused");
    }

    fn finish_upgrade(&mut self, outcome: io::Result<Successor>) {
        self.upgrading = None;
        let successor = match outcome {
            Ok(successor) => successor,
            Err(error) => {
                tracing::error!(%error, "upgrade failed: this process continues");
                return;
            }
        };
        let pid = successor.pid();
        // First: from here on, the service manager accepts messages of the new process only.
        systemd::successor(pid);
        match successor.replace_this_process() {
            Ok(()) => {
                tracing::info!(to = pid, "upgrade: draining");
                self.release();
                self.set_lifecycle(Lifecycle::HandOver);
                self.targets.server.listeners.close();
            }
            Err(error) => {
                systemd::successor(std::process::id());
                tracing::error!(%error, "upgrade failed: this process continues");
            }
        }
    }
}

#[cfg(test)]
mod panics;
