//! The connection's task: connects, gathers, calls, answers, and knows when to stop asking.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep_until};

use super::link::{Failure, Link, PROBE_TIMEOUT, connect, learn_key};
use super::{QUEUE, Shared, Waiting};
use crate::clock;
use crate::store::batch::{self, Call, Group, Reply};
use crate::store::guard::Guard;
use crate::store::{ServerTrouble, StoreError};
use crate::telemetry::decisions::Source;

/// Items in one call: blocks the server for about 0.3 ms at most.
const MAX_BATCH: usize = 64;
/// How often the hash key is put back should it have gone, and read.
const ASSERT_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Task {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Waiting>,
    /// Taken from the queue, oldest first.
    held: VecDeque<Waiting>,
    guard: Guard,
    /// What the handles see of the guard.
    open: Arc<AtomicBool>,
    settle: watch::Sender<bool>,
    trouble: Option<StoreError>,
    /// One timer for every wait of this task.
    sleep: Pin<Box<Sleep>>,
    assert_at: Instant,
}

impl Task {
    pub(super) fn new(
        shared: Arc<Shared>,
        queue: mpsc::Receiver<Waiting>,
        open: Arc<AtomicBool>,
        settle: watch::Sender<bool>,
    ) -> Task {
        let number = u64::from(shared.spawned.fetch_add(1, Ordering::Relaxed));
        // Pauses must differ between proxies too, which all count their workers from 0.
        let seed = clock::unix_us().rotate_left(20) ^ u64::from(std::process::id()) << 8 ^ number;
        let now = clock::now();
        Task {
            shared,
            queue,
            held: VecDeque::new(),
            guard: Guard::new(seed),
            open,
            settle,
            trouble: None,
            sleep: Box::pin(sleep_until(now.into())),
            assert_at: now,
        }
    }

    /// Runs until every handle is gone.
    pub(super) async fn run(mut self) {
        let mut link = None;
        loop {
            let step = match link.take() {
                None => self.connect().await,
                Some(live) => self.serve(live).await,
            };
            match step {
                ControlFlow::Continue(next) => link = next,
                ControlFlow::Break(()) => break,
            }
        }
        if self.trouble.is_some() {
            self.shared.trouble_ends(clock::now());
        }
    }

    /// Tries to connect once, after the pause if the breaker is open. Meanwhile whoever waits is
    /// answered: at once while open, else when the timeout is over.
    async fn connect(&mut self) -> ControlFlow<(), Option<Link>> {
        if let Some(at) = self.guard.probe_at()
            && self.wait_until(at).await.is_break()
        {
            return ControlFlow::Break(());
        }
        let shared = Arc::clone(&self.shared);
        let deadline = clock::now() + PROBE_TIMEOUT;
        let mut attempt = Box::pin(connect(&shared));
        let result = loop {
            let until = self.next_deadline().unwrap_or(deadline).min(deadline);
            self.sleep.as_mut().reset(until.into());
            tokio::select! {
                result = &mut attempt => break result,
                () = &mut self.sleep => {
                    let now = clock::now();
                    self.expire(now);
                    if now >= deadline {
                        break Err(StoreError::Timeout);
                    }
                    if !self.guard.is_open() {
                        // Someone has waited in vain: from here on nobody should.
                        self.guard.connect_failed(now);
                        self.failed(StoreError::Timeout);
                    }
                }
                waiting = self.queue.recv(), if self.held.len() < QUEUE => match waiting {
                    None => return ControlFlow::Break(()),
                    Some(waiting) if self.guard.is_open() => waiting.answer(Err(StoreError::Away)),
                    Some(waiting) => self.held.push_back(waiting),
                },
            }
        };
        let now = clock::now();
        let link = match result {
            Ok(link) => {
                self.guard.connected();
                self.assert_at = now + ASSERT_EVERY;
                self.open.store(false, Ordering::Relaxed);
                Some(link)
            }
            Err(kind) => {
                self.guard.connect_failed(now);
                self.failed(kind);
                None
            }
        };
        self.settle.send_replace(true);
        ControlFlow::Continue(link)
    }

    /// Waits while the breaker is open; whoever comes is sent away at once.
    async fn wait_until(&mut self, at: Instant) -> ControlFlow<()> {
        self.sleep.as_mut().reset(at.into());
        loop {
            tokio::select! {
                () = &mut self.sleep => return ControlFlow::Continue(()),
                waiting = self.queue.recv() => match waiting {
                    None => return ControlFlow::Break(()),
                    Some(waiting) => waiting.answer(Err(StoreError::Away)),
                },
            }
        }
    }

    /// Gathers and calls until the connection fails or every handle is gone.
    async fn serve(&mut self, mut link: Link) -> ControlFlow<(), Option<Link>> {
        loop {
            if self.held.is_empty() {
                self.sleep.as_mut().reset(self.assert_at.into());
                tokio::select! {
                    waiting = self.queue.recv() => match waiting {
                        None => return ControlFlow::Break(()),
                        Some(waiting) => self.held.push_back(waiting),
                    },
                    () = &mut self.sleep => {}
                    () = link.end() => {
                        self.call_failed(StoreError::Lost);
                        return ControlFlow::Continue(None);
                    }
                }
            }
            let result = if clock::now() >= self.assert_at {
                self.assert_key(&mut link)
                    .await
                    .map(|()| self.succeeded(false))
            } else {
                let batch = self.gather();
                if batch.is_empty() {
                    Ok(())
                } else {
                    self.call(&mut link, batch).await
                }
            };
            if let Err(kind) = result {
                self.call_failed(kind);
                return ControlFlow::Continue(None);
            }
        }
    }

    /// Everything that waits, up to a batch; what is too late or was given up is left out.
    fn gather(&mut self) -> Vec<Waiting> {
        while self.held.len() < MAX_BATCH
            && let Ok(waiting) = self.queue.try_recv()
        {
            self.held.push_back(waiting);
        }
        let (mut batch, mut items) = (Vec::with_capacity(self.held.len().min(MAX_BATCH)), 0);
        let now = clock::now();
        let generation = self.shared.keys.current().generation;
        while let Some(next) = self.held.front() {
            if !batch.is_empty() && items + next.charge.len() > MAX_BATCH {
                break;
            }
            items += next.charge.len();
            let Some(waiting) = self.held.pop_front() else {
                break;
            };
            if waiting.answer.is_closed() {
                continue;
            }
            if waiting.generation != generation {
                waiting.answer(Err(StoreError::Away));
            } else if now >= waiting.arrived + self.shared.timeout {
                waiting.answer(Err(StoreError::Timeout));
            } else {
                batch.push(waiting);
            }
        }
        batch
    }

    /// One call. An error means that the connection must go; the batch has been answered.
    async fn call(&mut self, link: &mut Link, batch: Vec<Waiting>) -> Result<(), StoreError> {
        // The batch is in order of arrival: its first decides how long all may wait.
        let deadline = batch.first().map_or_else(clock::now, |first| first.arrived);
        self.sleep
            .as_mut()
            .reset((deadline + self.shared.timeout).into());
        let shared = Arc::clone(&self.shared);
        let groups = batch.iter().map(|waiting| Group::one(&waiting.charge));
        let known = Call::Known(&shared.script_hash);
        let command = batch::encode(known, (&shared.prefix, 0), groups.clone(), None);
        let mut result = self.send(link, &command).await;
        if result.as_ref().is_err_and(Failure::is_no_script) {
            // Nothing has run: the one error after which the same charge may be sent again.
            let command = batch::encode(Call::Whole, (&shared.prefix, 0), groups, None);
            result = self.send(link, &command).await;
        }
        match result {
            Ok(Value::BulkString(bytes)) => self.answer(batch, &bytes),
            Ok(_) => self.fail(batch, StoreError::Garbled),
            Err(failure) => self.fail(batch, failure.0),
        }
    }

    /// Sends one command and waits for its reply, until the timer rings.
    async fn send(&mut self, link: &mut Link, command: &redis::Cmd) -> Result<Value, Failure> {
        tokio::select! {
            biased;
            result = link.connection.send_packed_command(command) => {
                result.and_then(Value::extract_error).map_err(|error| Failure::of(&error))
            }
            () = &mut self.sleep => Err(Failure(StoreError::Timeout, false)),
        }
    }

    /// Hands out a reply's decisions, in the order of the batch.
    fn answer(&mut self, batch: Vec<Waiting>, bytes: &[u8]) -> Result<(), StoreError> {
        let mut reply = match Reply::read(bytes) {
            Ok(reply) => reply,
            Err(kind) => return self.fail(batch, kind),
        };
        if reply.begun_anew > 0 {
            let keys = reply.begun_anew;
            self.shared
                .begun_anew
                .fetch_add(u64::from(keys), Ordering::Relaxed);
            tracing::warn!(
                keys,
                "redis: keys of ours held something else and were begun anew"
            );
        }
        let mut refused = Vec::new();
        let mut wrote = false;
        let mut rest = batch.into_iter();
        while let Some(waiting) = rest.next() {
            let decided = reply.outcome(&waiting.charge, 1);
            match decided.map(|one| one.and_then(|one| one.decision(0, &waiting.charge))) {
                Ok(Some(decision)) => {
                    wrote |= decision.allowed && waiting.charge.iter().any(|item| item.cost > 0);
                    if let Some(log) = &self.shared.log {
                        log.record(Source::Store, &waiting.charge, &decision);
                    }
                    waiting.answer(Ok(decision));
                }
                Ok(None) => refused.push(waiting),
                Err(kind) => {
                    waiting.answer(Err(kind));
                    return self.fail(rest.collect(), kind);
                }
            }
        }
        let Some(trouble) = reply.refusal() else {
            self.succeeded(wrote);
            return Ok(());
        };
        let kind = StoreError::Server(trouble);
        refused
            .into_iter()
            .for_each(|waiting| waiting.answer(Err(kind)));
        if trouble == ServerTrouble::OutOfMemory {
            // Denials are still answered, so the store stays worth asking.
            self.begin_trouble(kind);
            return Ok(());
        }
        Err(kind)
    }

    fn fail(&mut self, batch: Vec<Waiting>, kind: StoreError) -> Result<(), StoreError> {
        batch
            .into_iter()
            .for_each(|waiting| waiting.answer(Err(kind)));
        Err(kind)
    }

    /// Puts the hash key back should it have gone, and takes Redis's word for what it is.
    async fn assert_key(&mut self, link: &mut Link) -> Result<(), StoreError> {
        let now = clock::now();
        self.assert_at = now + ASSERT_EVERY;
        self.sleep
            .as_mut()
            .reset((now + self.shared.timeout.max(PROBE_TIMEOUT / 4)).into());
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            result = learn_key(&mut link.connection, &shared) => result,
            () = &mut self.sleep => Err(StoreError::Timeout),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.held
            .front()
            .map(|oldest| oldest.arrived + self.shared.timeout)
    }

    /// Answers those whose time is over.
    fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now)
            && let Some(waiting) = self.held.pop_front()
        {
            waiting.answer(Err(StoreError::Timeout));
        }
    }

    fn succeeded(&mut self, wrote: bool) {
        self.guard.call_succeeded();
        // Where writes were refused, only a write shows that they no longer are.
        let needs_write = matches!(
            self.trouble,
            Some(StoreError::Server(
                ServerTrouble::OutOfMemory | ServerTrouble::ReadOnly | ServerTrouble::Misconfigured
            ))
        );
        if self.trouble.is_some() && (wrote || !needs_write) {
            self.trouble = None;
            self.shared.trouble_ends(clock::now());
        }
    }

    fn call_failed(&mut self, kind: StoreError) {
        self.guard.call_failed(clock::now());
        self.failed(kind);
    }

    /// Tells of the trouble, and sends everyone away if the breaker has opened.
    fn failed(&mut self, kind: StoreError) {
        if self.guard.is_open() {
            self.open.store(true, Ordering::Relaxed);
            self.begin_trouble(kind);
            self.held
                .drain(..)
                .for_each(|waiting| waiting.answer(Err(StoreError::Away)));
            while let Ok(waiting) = self.queue.try_recv() {
                waiting.answer(Err(StoreError::Away));
            }
        }
    }

    fn begin_trouble(&mut self, kind: StoreError) {
        if self.trouble.is_none() {
            self.shared.trouble_begins(kind, clock::now());
        }
        self.trouble = Some(kind);
    }
}
