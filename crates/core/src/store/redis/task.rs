//! The task of a connection to one server: it connects, gathers requests, calls, answers, and stops
//! asking while the server is away.

#[cfg(test)]
pub(super) mod stepped;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use redis::Cmd;
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep_until};

use super::health::{ReplyOutput, ServerHealth};
use super::link::{PROBE_TIMEOUT, RedisLink, ScriptRun, connect};
use super::slot_lease::SlotLease;
use super::{QUEUE, RedisShared, TaskSetup, maintenance};
use crate::store::deny_cache::CallSpan;
use crate::store::gather::{Batch, Bundle, QueuedRequest};
use crate::store::lease::WorkerCache;
use crate::store::{ServerTrouble, StoreError};

/// Requests in one call: equal ones cost the server nothing, but the worker must answer each.
const MAX_REQUESTS: usize = 1024;
/// Calls for debts before requests use a new connection, at most.
const OWED_CALLS_FIRST: usize = 128;
/// How often debts are paid while there are any: requests go between.
const OWED_EVERY: Duration = Duration::from_millis(5);
/// How often the store is asked for what all its proxies share.
const MAINTENANCE_EVERY: Duration = Duration::from_millis(500);
/// The same while proxies come back from an outage and wait for each other.
const MAINTENANCE_OFTEN: Duration = Duration::from_millis(100);
/// After so many calls for one request each, no request is expected to come at the same time.
const YIELD_CALLS: u8 = 8;

pub(super) struct ServerTask {
    shared: Arc<RedisShared>,
    queue: mpsc::Receiver<QueuedRequest>,
    /// Taken from the queue, oldest first.
    waiting: VecDeque<QueuedRequest>,
    health: ServerHealth,
    /// Tells the handles whether the breaker is open.
    is_open: Arc<AtomicBool>,
    cache: WorkerCache,
    slots: SlotLease,
    ready: watch::Sender<bool>,
    /// Before so many more calls the task waits for other requests. Set by each call for several.
    yield_calls: u8,
    /// The overrides' epoch when the last call was sent.
    epoch: u64,
    /// The losses of the store's memory that this worker has heard of.
    losses: u64,
    command: Cmd,
    /// One timer for every wait of this task.
    sleep: Pin<Box<Sleep>>,
    maintenance_at: Instant,
}

impl ServerTask {
    pub(super) fn new(setup: TaskSetup, is_open: Arc<AtomicBool>) -> ServerTask {
        let now = setup.shared.clock.now();
        ServerTask {
            health: ServerHealth::new(None, setup.shared.next_seed()),
            losses: setup.shared.recovery.losses(),
            shared: setup.shared,
            queue: setup.queue,
            waiting: VecDeque::new(),
            is_open,
            cache: setup.cache,
            slots: setup.slots,
            ready: setup.ready,
            yield_calls: 0,
            epoch: 0,
            command: Cmd::new(),
            sleep: Box::pin(sleep_until(now.into())),
            maintenance_at: now,
        }
    }

    pub(super) async fn run(mut self) {
        let mut link = None;
        loop {
            let step = async {
                match link.take() {
                    None => self.connect().await,
                    Some(live) => self.serve(live).await,
                }
            };
            match AssertUnwindSafe(step).catch_unwind().await {
                Ok(ControlFlow::Continue(next)) => link = next,
                Ok(ControlFlow::Break(())) => break,
                // The panic has taken the connection with it.
                Err(_) => {
                    self.connect_failed(StoreError::Lost);
                    self.ready.send_replace(true);
                }
            }
        }
        self.health
            .end_trouble(&self.shared, self.shared.clock.now());
    }

    /// Tries to connect once, after the pause if the breaker is open.
    async fn connect(&mut self) -> ControlFlow<(), Option<RedisLink>> {
        if let Some(at) = self.health.breaker.probe_at() {
            let _ = self
                .wait(at, std::future::pending::<Result<(), _>>())
                .await?;
        }
        failpoint!("redis.connect", self.shared.prefix);
        let shared = Arc::clone(&self.shared);
        let attempt = async {
            let mut link = connect(&shared).await?;
            maintenance::begin(&mut link, &shared).await?;
            // Debts are for the server that counts now.
            match link.has_moved() {
                true => Err(StoreError::Lost),
                false => Ok(link),
            }
        };
        let result = match self
            .wait(self.shared.clock.now() + PROBE_TIMEOUT, attempt)
            .await?
        {
            Ok(link) => self.pay_first(link).await?,
            Err(kind) => Err(kind),
        };
        let link = match result {
            Ok(link) => {
                self.connected();
                Some(link)
            }
            Err(kind) => {
                self.connect_failed(kind);
                None
            }
        };
        self.ready.send_replace(true);
        ControlFlow::Continue(link)
    }

    fn connected(&mut self) {
        self.health.breaker.connected();
        self.health.forget_clock();
        // It may be another server, or the same one emptied.
        self.cache.clear();
        self.slots.reconnected();
        self.maintenance_at = self.shared.clock.now() + self.maintenance_pause();
        self.is_open.store(false, Ordering::Relaxed);
    }

    fn maintenance_pause(&self) -> Duration {
        match self.shared.recovery.is_on() {
            true => MAINTENANCE_OFTEN,
            false => MAINTENANCE_EVERY,
        }
    }

    /// Charges what was admitted meanwhile, before requests use the connection. If a call is cut
    /// off, its debts are owed again, although the store may have run it. So each call has the
    /// whole time of a probe, and none begins when that time is over.
    async fn pay_first(
        &mut self,
        mut link: RedisLink,
    ) -> ControlFlow<(), Result<RedisLink, StoreError>> {
        let shared = Arc::clone(&self.shared);
        let until = self.shared.clock.now() + PROBE_TIMEOUT;
        for _ in 0..OWED_CALLS_FIRST {
            let paying = maintenance::pay_back(&mut link, &shared, 1);
            match self
                .wait(self.shared.clock.now() + PROBE_TIMEOUT, paying)
                .await?
            {
                Ok(true) if self.shared.clock.now() < until => {}
                Ok(_) => break,
                Err(kind) => return ControlFlow::Continue(Err(kind)),
            }
        }
        ControlFlow::Continue(Ok(link))
    }

    /// Waits for an `attempt` that a new connection needs. Meanwhile requests fail: at once while
    /// the breaker is open, else when their timeout is over.
    async fn wait<T>(
        &mut self,
        deadline: Instant,
        attempt: impl Future<Output = Result<T, StoreError>>,
    ) -> ControlFlow<(), Result<T, StoreError>> {
        let mut attempt = Box::pin(attempt);
        loop {
            let until = self.next_deadline().unwrap_or(deadline).min(deadline);
            self.sleep.as_mut().reset(until.into());
            tokio::select! {
                result = &mut attempt => return ControlFlow::Continue(result),
                () = &mut self.sleep => {
                    let now = self.shared.clock.now();
                    self.expire(now);
                    if now >= deadline {
                        return ControlFlow::Continue(Err(StoreError::Timeout));
                    }
                    if !self.health.breaker.is_open() {
                        // A request has waited in vain: from here on none does.
                        self.connect_failed(StoreError::Timeout);
                    }
                }
                request = self.queue.recv(), if self.waiting.len() < QUEUE => match request {
                    None => return ControlFlow::Break(()),
                    Some(request) if self.health.breaker.is_open() => {
                        request.fail(StoreError::Away);
                    }
                    Some(request) => self.waiting.push_back(request),
                },
            }
        }
    }

    /// Gathers and calls until the connection fails or every handle is gone.
    async fn serve(&mut self, mut link: RedisLink) -> ControlFlow<(), Option<RedisLink>> {
        loop {
            if link.has_moved() {
                return ControlFlow::Continue(None);
            }
            let now = self.shared.clock.now();
            if self.shared.is_suspicious() {
                // An operator's reset explains an answer with too few units: learn of it soon.
                self.maintenance_at = now;
            }
            let due = self.slots.next_due(now).unwrap_or(self.maintenance_at);
            if self.waiting.is_empty() && due > now {
                self.sleep
                    .as_mut()
                    .reset(due.min(self.maintenance_at).into());
                tokio::select! {
                    request = self.queue.recv() => match request {
                        Some(request) => self.waiting.push_back(request),
                        // The last handle may have freed slots that Redis does not know of yet.
                        None if self.slots.is_due(self.shared.clock.now()) => {}
                        None => return ControlFlow::Break(()),
                    },
                    () = &mut self.sleep => {}
                    () = self.slots.woken() => {}
                    () = link.ended() => {
                        self.call_failed(StoreError::Lost);
                        return ControlFlow::Continue(None);
                    }
                }
            }
            let result = if self.shared.clock.now() >= self.maintenance_at {
                self.maintain(&mut link).await
            } else {
                // Requests that have come to this worker meanwhile are read first, and go into the
                // same call. With 8 clients a call carries a fifth more, and Redis works a sixth
                // less.
                if self.yield_calls > 0 {
                    tokio::task::yield_now().await;
                }
                self.serve_requests(&mut link).await
            };
            if let Err(kind) = result {
                self.call_failed(kind);
                return ControlFlow::Continue(None);
            }
        }
    }

    /// One call for the requests that wait. Debts are paid before: a store that had no memory may
    /// have some by now, and must not admit the same units twice.
    async fn serve_requests(&mut self, link: &mut RedisLink) -> Result<(), StoreError> {
        if self.shared.journal.owes() {
            self.reset_to_oldest();
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                paid = maintenance::pay_back(link, &shared, 1) => drop(paid?),
                () = &mut self.sleep => return Err(StoreError::Timeout),
            }
        }
        let batch = self.gather();
        if batch.bundles.is_empty() {
            return Ok(());
        }
        self.call(link, batch).await
    }

    /// Sets the timer to the deadline of the oldest request.
    fn reset_to_oldest(&mut self) {
        let now = self.shared.clock.now();
        let deadline = self.oldest_deadline(now);
        self.sleep.as_mut().reset(deadline.into());
    }

    /// The deadline of the oldest request, also of one in the queue, or of one call if none waits.
    /// Requests whose time is over fail.
    fn oldest_deadline(&mut self, now: Instant) -> Instant {
        loop {
            self.expire(now);
            if let Some(deadline) = self.next_deadline() {
                return deadline;
            }
            match self.queue.try_recv() {
                Ok(request) => self.waiting.push_back(request),
                Err(_) => return now + self.shared.timeout,
            }
        }
    }

    /// Everything that waits and is worth sending, up to a batch.
    fn gather(&mut self) -> Batch {
        let mut batch = Batch::for_about(self.waiting.len() + self.queue.len());
        let now = self.shared.clock.now();
        let conditions = self.shared.send_conditions(now);
        let mut taken = 0;
        while taken < MAX_REQUESTS
            && let Some(request) = self.next_request()
        {
            taken += 1;
            if let Some(request) = batch.add_if_due(request, conditions) {
                self.waiting.push_front(request);
                break;
            }
        }
        self.yield_calls = match taken {
            0 | 1 => self.yield_calls.saturating_sub(1),
            _ => YIELD_CALLS,
        };
        batch.ask_ahead(&self.cache, self.shared.clock.at_us(now));
        self.slots
            .add_reports(&mut batch, now, conditions.generation);
        batch
    }

    /// One call, and a second one for what must be asked again. An error means that the connection
    /// must go; the batch has been answered.
    async fn call(&mut self, link: &mut RedisLink, batch: Batch) -> Result<(), StoreError> {
        let mut again = self.call_once(link, batch).await?;
        if !again.is_empty() {
            again = self.call_once(link, Batch::again(again)).await?;
            self.slots.refuse(again, StoreError::ClockUnknown);
        }
        Ok(())
    }

    /// Returns the bundles to be asked again.
    async fn call_once(
        &mut self,
        link: &mut RedisLink,
        batch: Batch,
    ) -> Result<Vec<Bundle>, StoreError> {
        failpoint!("redis.call", self.shared.prefix);
        let sent = self.shared.clock.now();
        self.epoch = self.shared.overrides.epoch();
        let deadline = batch.deadline(sent, self.shared.timeout);
        self.sleep.as_mut().reset(deadline.into());
        let run = ScriptRun {
            shared: &self.shared,
            holder: self.slots.name(),
            asking: false,
        };
        let groups = batch.bundles.iter().map(Bundle::group);
        let result = tokio::select! {
            biased;
            result = run.send(link.connection(), &mut self.command, groups) => {
                result.map_err(StoreError::from)
            }
            () = &mut self.sleep => Err(StoreError::Timeout),
        };
        let span = self.shared.span_since(sent);
        match result {
            Ok(bytes) => self.answer(batch, &bytes, span),
            Err(kind) => {
                self.slots.fail(batch.bundles, kind);
                Err(kind)
            }
        }
    }

    /// Hands out a reply's decisions. Returns the bundles to be asked again. An error means that
    /// the connection must go.
    fn answer(
        &mut self,
        batch: Batch,
        bytes: &[u8],
        span: CallSpan,
    ) -> Result<Vec<Bundle>, StoreError> {
        let is_fresh = self.epoch == self.shared.overrides.epoch();
        let output = ReplyOutput {
            span,
            slots: &self.slots,
            cache: is_fresh.then_some(&self.cache),
            caches_denials: true,
            log: self.shared.log.as_deref(),
        };
        let mut report = output.hand_out(batch, bytes);
        let again = std::mem::take(&mut report.again);
        let now = self.shared.clock.now();
        let noted = self
            .health
            .note_reply(&report, &self.shared, &self.cache, now);
        if let Err(kind) = noted {
            self.slots.fail(again, kind);
            return Err(kind);
        }
        Ok(again)
    }

    async fn maintain(&mut self, link: &mut RedisLink) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        self.reset_to_oldest();
        let shared = Arc::clone(&self.shared);
        shared.recovery.alive(shared.clock.at_us(now));
        let in_trouble = self.health.trouble().is_some();
        let asking = async {
            let report = maintenance::run(link, &shared).await?;
            let mut wrote = false;
            if in_trouble {
                maintenance::try_script(link, &shared).await?;
                // Without requests no other write shows that the trouble is over.
                wrote = maintenance::takes_writes(link.connection(), &shared, "").await?;
            }
            Ok::<_, StoreError>((report, wrote))
        };
        let (report, wrote) = tokio::select! {
            result = asking => result?,
            () = &mut self.sleep => return Err(StoreError::Timeout),
        };
        let losses = shared.recovery.losses();
        let has_lost = std::mem::replace(&mut self.losses, losses) != losses;
        if has_lost || !report.was_there {
            // The store has been emptied: no cached denial holds, and it knows of no held slot.
            self.cache.clear();
            self.slots.reconnected();
        }
        let pause = match report.owes {
            true => OWED_EVERY,
            false => self.maintenance_pause(),
        };
        self.maintenance_at = now + pause;
        self.health
            .call_succeeded(wrote, &shared, self.shared.clock.now());
        // The name of the server, or a sentinel, may lead to another one by now.
        let read_only = StoreError::Server(ServerTrouble::ReadOnly);
        match self.health.trouble() == Some(read_only) {
            true => Err(read_only),
            false => Ok(()),
        }
    }

    fn next_request(&mut self) -> Option<QueuedRequest> {
        let oldest = self.waiting.pop_front();
        oldest.or_else(|| self.queue.try_recv().ok())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.waiting.front()?;
        Some(oldest.arrived + self.shared.timeout)
    }

    fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now)
            && let Some(request) = self.waiting.pop_front()
        {
            request.fail(StoreError::Timeout);
        }
    }

    fn connect_failed(&mut self, kind: StoreError) {
        self.health.breaker.connect_failed(self.shared.clock.now());
        self.failed(kind);
    }

    fn call_failed(&mut self, kind: StoreError) {
        self.health.breaker.call_failed(self.shared.clock.now());
        self.failed(kind);
    }

    /// Reports the trouble, and fails all requests, if the breaker has opened.
    fn failed(&mut self, kind: StoreError) {
        self.shared.recovery.alive(self.shared.clock.now_us());
        if self.health.breaker.is_open() {
            self.is_open.store(true, Ordering::Relaxed);
            self.health
                .begin_trouble(kind, &self.shared, self.shared.clock.now());
            while let Some(request) = self.next_request() {
                request.fail(StoreError::Away);
            }
        }
    }
}
