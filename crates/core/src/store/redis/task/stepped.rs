//! The task of a connection in steps, for simulations: all of it that needs no socket, in the order
//! of `connect`, `serve`, `call` and `maintain`. The simulation carries the messages and moves the
//! clock.

mod debts;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use debts::TakenDebts;

use super::{OWED_CALLS_FIRST, ServerTask};
use crate::store::StoreError;
use crate::store::gather::{Batch, Bundle};
use crate::store::recovery::{Greeting, Heartbeat};
use crate::store::redis::health::ServerHealth;
use crate::store::redis::link::PROBE_TIMEOUT;
use crate::store::redis::maintenance::OWED_CALLS;
use crate::store::redis::stepped::{FromServer, Sent, SentGroup, ToServer, greeting_if_due};
use crate::store::redis::{QUEUE, RedisShared, TaskSetup};

enum Stage {
    /// Without a connection.
    Down,
    Connecting {
        deadline: Instant,
        greeting: Option<Greeting>,
    },
    PayingFirst {
        until: Instant,
        deadline: Instant,
        debts: TakenDebts,
        calls: usize,
    },
    Idle,
    Maintaining {
        deadline: Instant,
        greeting: Option<Greeting>,
        began: Instant,
    },
    PayingInMaintenance {
        deadline: Instant,
        debts: TakenDebts,
        calls: usize,
        began: Instant,
    },
    PayingBefore {
        deadline: Instant,
        debts: TakenDebts,
    },
    Calling {
        deadline: Instant,
        sent: Instant,
        batch: Batch,
        is_again: bool,
    },
}

impl Stage {
    fn name(&self) -> &'static str {
        match self {
            Stage::Down => "down",
            Stage::Connecting { .. } => "connecting",
            Stage::PayingFirst { .. } => "paying first",
            Stage::Idle => "idle",
            Stage::Maintaining { .. } => "maintaining",
            Stage::PayingInMaintenance { .. } => "paying in maintenance",
            Stage::PayingBefore { .. } => "paying before a call",
            Stage::Calling { .. } => "calling",
        }
    }
}

pub(crate) struct SteppedTask {
    task: ServerTask,
    stage: Stage,
    outbox: Vec<Sent>,
    /// The number of the connection: each new one has the next number.
    pub(crate) link: u64,
    /// Sentinels name another master: the task connects to it between two calls.
    pub(crate) has_moved: bool,
    /// Whether the server took a write at the last maintenance.
    takes_writes: bool,
}

impl SteppedTask {
    /// `seed` is that of the breaker.
    pub(in crate::store::redis) fn new(
        setup: TaskSetup,
        is_open: Arc<AtomicBool>,
        seed: u64,
    ) -> SteppedTask {
        let mut task = ServerTask::new(setup, is_open);
        task.health = ServerHealth::new(None, seed);
        SteppedTask {
            task,
            stage: Stage::Down,
            outbox: Vec::new(),
            link: 0,
            has_moved: false,
            takes_writes: false,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<RedisShared> {
        &self.task.shared
    }

    fn now(&self) -> Instant {
        self.task.shared.clock.now()
    }

    pub(crate) fn is_away(&self) -> bool {
        self.task.health.breaker.is_open()
    }

    pub(crate) fn is_connected(&self) -> bool {
        !matches!(self.stage, Stage::Down | Stage::Connecting { .. })
    }

    /// Whether it has a connection, and nothing to send.
    pub(crate) fn is_idle(&self) -> bool {
        let due = self.task.slots.next_due(self.now());
        matches!(self.stage, Stage::Idle) && due.is_none_or(|due| due > self.now())
    }

    pub(crate) fn owes(&self) -> bool {
        let is_paying = matches!(
            self.stage,
            Stage::PayingFirst { .. }
                | Stage::PayingInMaintenance { .. }
                | Stage::PayingBefore { .. }
        );
        is_paying || self.task.shared.owes()
    }

    /// Goes as far as it can. Returns what is to be sent.
    pub(crate) fn advance(&mut self) -> Vec<Sent> {
        while self.step() {}
        std::mem::take(&mut self.outbox)
    }

    fn post(&mut self, message: ToServer) {
        self.outbox.push(Sent {
            link: self.link,
            call: 0,
            message,
        });
    }

    /// When it must advance again, although nothing has come.
    pub(crate) fn wake_at(&self) -> Instant {
        let (now, task) = (self.now(), &self.task);
        let oldest = |deadline: Instant| task.next_deadline().unwrap_or(deadline).min(deadline);
        match &self.stage {
            Stage::Down => oldest(task.health.breaker.probe_at().unwrap_or(now)),
            Stage::Connecting { deadline, .. } | Stage::PayingFirst { deadline, .. } => {
                oldest(*deadline)
            }
            Stage::Idle => {
                let due = task.slots.next_due(now).unwrap_or(task.maintenance_at);
                due.min(task.maintenance_at)
            }
            Stage::Maintaining { deadline, .. }
            | Stage::PayingInMaintenance { deadline, .. }
            | Stage::PayingBefore { deadline, .. }
            | Stage::Calling { deadline, .. } => *deadline,
        }
    }

    /// Returns whether it may go on.
    fn step(&mut self) -> bool {
        let now = self.now();
        match &self.stage {
            Stage::Down => self.begin_to_connect(now),
            Stage::Connecting { deadline, .. } | Stage::PayingFirst { deadline, .. } => {
                let is_late = now >= *deadline;
                self.take_requests(now);
                if is_late {
                    self.failed(StoreError::Timeout);
                }
                is_late
            }
            Stage::Idle => self.serve(now),
            Stage::Maintaining { deadline, .. }
            | Stage::PayingInMaintenance { deadline, .. }
            | Stage::PayingBefore { deadline, .. }
            | Stage::Calling { deadline, .. } => {
                let is_late = now >= *deadline;
                if is_late {
                    self.failed(StoreError::Timeout);
                }
                is_late
            }
        }
    }

    fn begin_to_connect(&mut self, now: Instant) -> bool {
        let probe_at = self.task.health.breaker.probe_at();
        if probe_at.is_some_and(|at| now < at) {
            self.take_requests(now);
            return false;
        }
        self.link += 1;
        self.has_moved = false;
        let greeting = greeting_if_due(&self.task.shared);
        self.post(ToServer::Hello(greeting));
        self.stage = Stage::Connecting {
            deadline: now + PROBE_TIMEOUT,
            greeting,
        };
        true
    }

    /// What `ServerTask::wait` does with requests.
    fn take_requests(&mut self, now: Instant) {
        let task = &mut self.task;
        while task.waiting.len() < QUEUE
            && let Ok(request) = task.queue.try_recv()
        {
            match task.health.breaker.is_open() {
                true => request.fail(StoreError::Away),
                false => task.waiting.push_back(request),
            }
        }
        if task.next_deadline().is_some_and(|deadline| deadline <= now) {
            task.expire(now);
            if !task.health.breaker.is_open() {
                task.connect_failed(StoreError::Timeout);
            }
        }
    }

    fn serve(&mut self, now: Instant) -> bool {
        if self.has_moved {
            self.stage = Stage::Down;
            return true;
        }
        let task = &self.task;
        let has_requests = !task.waiting.is_empty() || !task.queue.is_empty();
        if now >= task.maintenance_at {
            self.begin_maintenance(now);
            return true;
        }
        if !has_requests && task.slots.next_due(now).is_none_or(|due| due > now) {
            return false;
        }
        if task.shared.journal.owes()
            && let Some(debts) = self.take_debts()
        {
            let deadline = self.task.oldest_deadline(now);
            self.send_debts(&debts);
            self.stage = Stage::PayingBefore { deadline, debts };
        } else {
            self.begin_call();
        }
        true
    }

    fn begin_maintenance(&mut self, now: Instant) {
        let deadline = self.task.oldest_deadline(now);
        let shared = &self.task.shared;
        shared.recovery.alive(shared.clock.at_us(now));
        let greeting = greeting_if_due(&self.task.shared);
        self.post(ToServer::Hello(greeting));
        self.stage = Stage::Maintaining {
            deadline,
            greeting,
            began: now,
        };
    }

    fn begin_call(&mut self) {
        self.stage = Stage::Idle;
        let batch = self.task.gather();
        if !batch.bundles.is_empty() {
            self.call_once(batch, false);
        }
    }

    fn call_once(&mut self, batch: Batch, is_again: bool) {
        let now = self.now();
        let task = &mut self.task;
        task.epoch = task.shared.overrides.epoch();
        let store_us = task.shared.instant().store_us;
        let group = |bundle: &Bundle| SentGroup {
            operation: bundle.operation,
            charge: bundle.charge().clone(),
            extra: bundle.extra.to_vec(),
            store_us,
        };
        let groups = batch.bundles.iter().map(group).collect();
        let deadline = batch.deadline(now, task.shared.timeout);
        let holder = task.slots.name();
        self.post(ToServer::Call(groups, holder));
        self.stage = Stage::Calling {
            deadline,
            sent: now,
            batch,
            is_again,
        };
    }

    /// Takes what comes over a connection. What comes over an earlier one is lost: then this
    /// returns false.
    pub(crate) fn receive(&mut self, link: u64, message: FromServer) -> bool {
        if link != self.link {
            return false;
        }
        self.take(message);
        true
    }

    fn take(&mut self, message: FromServer) {
        let now = self.now();
        match (std::mem::replace(&mut self.stage, Stage::Down), message) {
            (Stage::Connecting { greeting, .. }, FromServer::Hello(reply)) => {
                self.task.shared.learn_overrides(&reply.overrides);
                self.note_greeting(greeting, reply.beat);
                self.pay_first(now + PROBE_TIMEOUT, OWED_CALLS_FIRST);
            }
            (
                Stage::PayingFirst {
                    until,
                    debts,
                    calls,
                    ..
                },
                FromServer::Reply(bytes),
            ) => match self.note_payment(debts, &bytes) {
                Ok(true) if now < until => self.pay_first(until, calls - 1),
                Ok(_) => self.connected(),
                Err(kind) => self.task.connect_failed(kind),
            },
            (
                Stage::Maintaining {
                    deadline,
                    greeting,
                    began,
                },
                FromServer::Hello(reply),
            ) => {
                self.task.shared.learn_overrides(&reply.overrides);
                self.note_greeting(greeting, reply.beat);
                self.takes_writes = reply.takes_writes;
                let shared = &self.task.shared;
                shared.journal.ripen(shared.instant());
                self.pay_in_maintenance(deadline, OWED_CALLS, began);
            }
            (
                Stage::PayingInMaintenance {
                    deadline,
                    debts,
                    calls,
                    began,
                },
                FromServer::Reply(bytes),
            ) => match self.note_payment(debts, &bytes) {
                Ok(true) => self.pay_in_maintenance(deadline, calls - 1, began),
                Ok(false) => self.end_maintenance(false, began),
                Err(kind) => self.task.call_failed(kind),
            },
            (Stage::PayingBefore { debts, .. }, FromServer::Reply(bytes)) => {
                match self.note_payment(debts, &bytes) {
                    Ok(_) => self.begin_call(),
                    Err(kind) => self.task.call_failed(kind),
                }
            }
            (
                Stage::Calling {
                    sent,
                    batch,
                    is_again,
                    ..
                },
                FromServer::Reply(bytes),
            ) => self.called(batch, &bytes, sent, is_again),
            (stage, message) => {
                let name = stage.name();
                self.stage = stage;
                unreachable!("an answer to a task that is {name}: {message:?}");
            }
        }
    }

    fn called(&mut self, batch: Batch, bytes: &[u8], sent: Instant, is_again: bool) {
        let span = self.task.shared.span_since(sent);
        match self.task.answer(batch, bytes, span) {
            Ok(again) if again.is_empty() => self.stage = Stage::Idle,
            Ok(again) if is_again => {
                self.task.slots.refuse(again, StoreError::ClockUnknown);
                self.stage = Stage::Idle;
            }
            Ok(again) => self.call_once(Batch::again(again), true),
            Err(kind) => self.task.call_failed(kind),
        }
    }

    fn note_greeting(&self, greeting: Option<Greeting>, beat: Option<Heartbeat>) {
        if let (Some(greeting), Some(beat)) = (greeting, beat) {
            self.task.shared.note_greeting(greeting, beat);
        }
    }

    fn connected(&mut self) {
        self.task.connected();
        self.stage = Stage::Idle;
    }

    /// The connection has ended.
    pub(crate) fn broken(&mut self, link: u64, kind: StoreError) {
        if link == self.link && !matches!(self.stage, Stage::Down) {
            self.failed(kind);
        }
    }

    fn failed(&mut self, kind: StoreError) {
        self.link += 1;
        match std::mem::replace(&mut self.stage, Stage::Down) {
            Stage::Down => {}
            Stage::Connecting { .. } => self.task.connect_failed(kind),
            Stage::PayingFirst { debts, .. } => {
                self.owe_again(debts, None);
                self.task.connect_failed(kind);
            }
            Stage::Idle | Stage::Maintaining { .. } => self.task.call_failed(kind),
            Stage::PayingInMaintenance { debts, .. } | Stage::PayingBefore { debts, .. } => {
                self.owe_again(debts, None);
                self.task.call_failed(kind);
            }
            Stage::Calling { batch, .. } => {
                self.task.slots.fail(batch.bundles, kind);
                self.task.call_failed(kind);
            }
        }
    }
}
