//! What the running proxy does when it is told something from outside, by a signal or by its
//! service manager:
//!
//! | signal | |
//! |---|---|
//! | SIGTERM, SIGINT | an orderly end; a second one ends at once |
//! | SIGHUP | a reload: the configuration is read again |
//! | SIGUSR2 | an upgrade: the binary at the same path takes this process's place |
//!
//! A worker that is lost ends the process in the same order: half of one is worse than none, and
//! whoever manages it starts another. A panic here loses the signal that it happened at, and none
//! after it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Interval, interval};

use super::DID_NOT_WORK;
use crate::server::claim::Claim;
use crate::server::handover::Predecessor;
use crate::server::pid_file::PidFile;
use crate::server::upgrade::{self, ProgramCommand, Successor, UpgradeError};
use crate::server::{Lifecycle, ServerHandles, systemd};
use crate::telemetry::panics::contained;

/// What signals act on.
pub(super) struct SignalTargets {
    pub(super) lifecycle: watch::Sender<Lifecycle>,
    pub(super) server: ServerHandles,
    pub(super) predecessor: Option<Predecessor>,
    pub(super) pid_file: Option<Arc<PidFile>>,
    pub(super) claim: Option<Arc<Claim>>,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user2: Signal,
}

/// The thread's state.
struct Watch {
    targets: SignalTargets,
    /// Nothing once it could not be found out.
    program: Option<ProgramCommand>,
    /// Says that the upgrade under way is no longer wanted.
    abandon: Arc<AtomicBool>,
    upgrading: Option<JoinHandle<Result<Successor, UpgradeError>>>,
    serves: bool,
    /// Whoever waited for that has been told.
    announced: bool,
    ends: bool,
    /// An upgrade was asked for before.
    wanted: bool,
    /// The watchdog's period, and what was seen of the workers last.
    watchdog: Option<Interval>,
    seen: Vec<u64>,
}

enum Event {
    AllServe,
    Stop,
    Reload,
    Upgrade,
    Upgraded(Result<Successor, UpgradeError>),
    Fallen,
    Watchdog,
}

/// Listens for signals on a thread of its own, from now until the process ends.
pub(super) fn spawn(targets: SignalTargets) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = {
        let _entered = runtime.enter();
        Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user2: signal(SignalKind::user_defined2())?,
        }
    };
    let program = ProgramCommand::of_this_process()
        .inspect_err(|error| tracing::warn!(%error, "no upgrade without the path of this program"))
        .ok();
    let watch = Watch {
        targets,
        program,
        abandon: Arc::default(),
        upgrading: None,
        serves: false,
        announced: false,
        ends: false,
        wanted: false,
        watchdog: None,
        seen: Vec::new(),
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(watch.run(signals)))?;
    Ok(())
}

impl Watch {
    async fn run(mut self, mut signals: Signals) {
        // Twice as often as it must be.
        self.watchdog = systemd::watchdog().map(|time| interval(time / 2));
        while contained(self.listen(&mut signals)).await.is_none() {
            self.panicked();
        }
    }

    /// What was under way is not tried again; but an end that was asked for comes.
    fn panicked(&mut self) {
        if self.serves && !self.announced {
            tracing::error!("startup notification failed: shutting down");
            std::process::exit(i32::from(DID_NOT_WORK));
        }
        if self.ends && *self.targets.lifecycle.borrow() == Lifecycle::Serve {
            self.targets.server.listeners.close();
            let yields = false;
            self.targets
                .lifecycle
                .send_replace(Lifecycle::Stop { yields });
        }
    }

    async fn listen(&mut self, signals: &mut Signals) {
        loop {
            let event = self.next(signals).await;
            match event {
                Event::AllServe => self.announce(),
                Event::Stop if *self.targets.lifecycle.borrow() == Lifecycle::Serve => {
                    self.stop().await
                }
                Event::Stop => {
                    self.remove_pid_file();
                    std::process::exit(i32::from(DID_NOT_WORK));
                }
                Event::Reload => {
                    failpoint!("signals.reload");
                    self.targets.server.reload.request_and_leave();
                }
                Event::Upgrade => self.upgrade(),
                Event::Upgraded(outcome) => self.upgraded(outcome),
                Event::Fallen if *self.targets.lifecycle.borrow() == Lifecycle::Serve => {
                    tracing::error!("a worker is lost: this process ends");
                    self.stop().await;
                }
                Event::Fallen => {}
                Event::Watchdog => {
                    if self
                        .targets
                        .server
                        .heartbeats
                        .all_beat_since(&mut self.seen)
                    {
                        systemd::alive();
                    }
                }
            }
        }
    }

    async fn next(&mut self, signals: &mut Signals) -> Event {
        let upgraded = async {
            match &mut self.upgrading {
                Some(upgrading) => upgrading.await,
                None => std::future::pending().await,
            }
        };
        let watchdog = async {
            match &mut self.watchdog {
                Some(every) => every.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = signals.terminate.recv() => Event::Stop,
            _ = signals.interrupt.recv() => Event::Stop,
            _ = signals.hangup.recv() => Event::Reload,
            _ = signals.user2.recv() => Event::Upgrade,
            () = self.targets.server.heartbeats.all_serve(), if !self.serves => Event::AllServe,
            outcome = upgraded => Event::Upgraded(outcome.unwrap_or(Err(UpgradeError::Abandoned))),
            () = self.targets.server.heartbeats.wait_for_lost_worker() => Event::Fallen,
            _ = watchdog => Event::Watchdog,
        }
    }

    /// All workers accept: who waits for that is told, in the order in which they believe it.
    fn announce(&mut self) {
        self.serves = true;
        if let Some(predecessor) = self.targets.predecessor.take() {
            let pid = predecessor.pid();
            if let Err(error) = predecessor.take_over() {
                tracing::error!(%error, "the upgrade was called off");
                std::process::exit(i32::from(DID_NOT_WORK));
            }
            tracing::info!(from = pid, "upgrade: this process serves now");
            let file = self.targets.pid_file.as_deref();
            if let Some(Err(error)) = file.map(|file| file.write(true)) {
                tracing::warn!(%error, "the pid file does not name this process");
            }
            drop(predecessor);
        }
        systemd::ready("serving");
        self.announced = true;
        if std::mem::take(&mut self.wanted) {
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
            // Nobody is left to serve: also one that got ready just now is ended.
            match upgrading.await {
                Ok(Ok(successor)) => successor.end(),
                Ok(Err(error)) => tracing::warn!(%error, "no upgrade"),
                Err(_) => {}
            }
        }
        let yields = self.targets.server.listeners.yield_with_care();
        self.targets.server.listeners.close();
        // Before the process may end.
        self.release();
        self.targets
            .lifecycle
            .send_replace(Lifecycle::Stop { yields });
    }

    /// What this process drains, another one may run.
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
            _ if *self.targets.lifecycle.borrow() != Lifecycle::Serve => "this process is ending",
            _ if !self.serves => {
                self.wanted = true;
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
        tracing::warn!(reason, "no upgrade");
    }

    fn upgraded(&mut self, outcome: Result<Successor, UpgradeError>) {
        self.upgrading = None;
        let successor = match outcome {
            Ok(successor) => successor,
            Err(error) => {
                tracing::error!(%error, "no upgrade: this process goes on");
                return;
            }
        };
        let pid = successor.pid();
        // In this order: the service manager believes the new process from here on.
        systemd::successor(pid);
        match successor.replace_this_process() {
            Ok(()) => {
                tracing::info!(to = pid, "upgrade: draining");
                self.release();
                self.targets.lifecycle.send_replace(Lifecycle::HandOver);
                self.targets.server.listeners.close();
            }
            Err(error) => {
                systemd::successor(std::process::id());
                tracing::error!(%error, "no upgrade: this process goes on");
            }
        }
    }

    fn remove_pid_file(&self) {
        if let Some(file) = &self.targets.pid_file {
            file.remove();
        }
    }
}

#[cfg(test)]
mod panics;
