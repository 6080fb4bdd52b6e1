//! The connection's task: connects, gathers, calls, answers, and knows when to stop asking.

mod answer;

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

use super::link::{Failure, Link, PROBE_TIMEOUT, connect};
use super::reply::Lead;
use super::slot_lease::SlotLease;
use super::{QUEUE, Shared, maintenance};
use crate::clock;
use crate::store::StoreError;
use crate::store::batch::{self, Call};
use crate::store::deny_cache::Span;
use crate::store::gather::{Batch, Bundle};
use crate::store::guard::Guard;
use crate::store::known::Known;
use crate::store::waiting::Waiting;

/// Items in one call: blocks the server for about 0.3 ms at most.
const MAX_BATCH: usize = 64;
/// Requests in one call: equal ones cost nothing, but someone has to hand out the answers.
const MAX_GATHER: usize = 1024;
/// Calls for debts before requests are let at the store again, at most.
const OWED_CALLS_FIRST: usize = 128;
/// How often debts are paid while there are any: requests go between.
const OWED_EVERY: Duration = Duration::from_millis(5);
/// How often the store is asked for what all its proxies share.
const UPKEEP_EVERY: Duration = Duration::from_millis(500);
/// The same while proxies come back from an outage and wait for each other.
const UPKEEP_OFTEN: Duration = Duration::from_millis(100);
/// Calls for one request each, after which nobody is expected to come at the same time.
const COMPANY: u8 = 8;

pub(super) struct Task {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Waiting>,
    /// Taken from the queue, oldest first.
    held: VecDeque<Waiting>,
    guard: Guard,
    /// What the handles see of the guard.
    open: Arc<AtomicBool>,
    known: Known,
    holder: SlotLease,
    settle: watch::Sender<bool>,
    trouble: Option<StoreError>,
    /// How far the store's clock was ahead of ours at the last reply.
    lead: Option<Lead>,
    /// Before how many more calls others are waited for; counted down since one asked for several.
    company: u8,
    /// What operators had said when the last call was sent.
    epoch: u64,
    /// The command under way.
    command: Cmd,
    /// One timer for every wait of this task.
    sleep: Pin<Box<Sleep>>,
    upkeep_at: Instant,
}

impl Task {
    pub(super) fn new(
        shared: Arc<Shared>,
        queue: mpsc::Receiver<Waiting>,
        (open, known, holder): (Arc<AtomicBool>, Known, SlotLease),
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
            known,
            holder,
            settle,
            trouble: None,
            lead: None,
            company: 0,
            epoch: 0,
            command: Cmd::new(),
            sleep: Box::pin(sleep_until(now.into())),
            upkeep_at: now,
        }
    }

    /// Runs until every handle is gone.
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
                Err(_) => self.panicked(),
            }
        }
        if self.trouble.is_some() {
            self.shared.trouble_ends(None, clock::now());
        }
    }

    /// A panic has taken the connection with it. Another is made as after one that could not be:
    /// who waited is answered, who comes is sent away, and each next pause is longer.
    fn panicked(&mut self) {
        self.guard.connect_failed(clock::now());
        self.failed(StoreError::Lost);
        self.settle.send_replace(true);
    }

    /// Tries to connect once, after the pause if the breaker is open.
    async fn connect(&mut self) -> ControlFlow<(), Option<Link>> {
        if let Some(at) = self.guard.probe_at()
            && self.wait_until(at).await.is_break()
        {
            return ControlFlow::Break(());
        }
        failpoint!("redis.connect", self.shared.prefix);
        let shared = Arc::clone(&self.shared);
        let attempt = async {
            let mut link = connect(&shared).await?;
            maintenance::begin(&mut link, &shared).await?;
            // What is owed is owed to the server that counts now.
            match link.has_moved() {
                true => Err(StoreError::Lost),
                false => Ok(link),
            }
        };
        let result = match self.probe(attempt).await? {
            Ok(link) => self.pay_first(link).await?,
            Err(kind) => Err(kind),
        };
        let now = clock::now();
        let link = match result {
            Ok(link) => {
                self.guard.connected();
                // It may be another server, or the same one emptied.
                self.known.clear();
                self.holder.reconnected();
                self.lead = None;
                self.upkeep_at = now
                    + match self.shared.recovery.is_on() {
                        true => UPKEEP_OFTEN,
                        false => UPKEEP_EVERY,
                    };
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

    /// Charges what was admitted meanwhile, before requests are let at the store again. A call that
    /// is cut off is owed again, although the store may have run it: so each has the whole time of
    /// a probe, however long the connection took, and none begins when as much is over.
    async fn pay_first(&mut self, mut link: Link) -> ControlFlow<(), Result<Link, StoreError>> {
        let shared = Arc::clone(&self.shared);
        let until = clock::now() + PROBE_TIMEOUT;
        for _ in 0..OWED_CALLS_FIRST {
            match self
                .probe(maintenance::pay_back(&mut link, &shared, 1))
                .await?
            {
                Ok(true) if clock::now() < until => {}
                Ok(_) => break,
                Err(kind) => return ControlFlow::Continue(Err(kind)),
            }
        }
        ControlFlow::Continue(Ok(link))
    }

    /// Waits for something that a new connection needs. Meanwhile whoever waits is answered: at
    /// once while open, else when the timeout is over.
    async fn probe<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, StoreError>>,
    ) -> ControlFlow<(), Result<T, StoreError>> {
        let deadline = clock::now() + PROBE_TIMEOUT;
        let mut attempt = Box::pin(attempt);
        loop {
            let until = self.next_deadline().unwrap_or(deadline).min(deadline);
            self.sleep.as_mut().reset(until.into());
            tokio::select! {
                result = &mut attempt => return ControlFlow::Continue(result),
                () = &mut self.sleep => {
                    let now = clock::now();
                    self.expire(now);
                    if now >= deadline {
                        return ControlFlow::Continue(Err(StoreError::Timeout));
                    }
                    if !self.guard.is_open() {
                        // Someone has waited in vain: from here on nobody should.
                        self.guard.connect_failed(now);
                        self.failed(StoreError::Timeout);
                    }
                }
                waiting = self.queue.recv(), if self.held.len() < QUEUE => match waiting {
                    None => return ControlFlow::Break(()),
                    Some(waiting) if self.guard.is_open() => waiting.fail(StoreError::Away),
                    Some(waiting) => self.held.push_back(waiting),
                },
            }
        }
    }

    /// Waits while the breaker is open; whoever comes is sent away at once.
    async fn wait_until(&mut self, at: Instant) -> ControlFlow<()> {
        self.sleep.as_mut().reset(at.into());
        loop {
            tokio::select! {
                () = &mut self.sleep => return ControlFlow::Continue(()),
                waiting = self.queue.recv() => match waiting {
                    None => return ControlFlow::Break(()),
                    Some(waiting) => waiting.fail(StoreError::Away),
                },
            }
        }
    }

    /// Gathers and calls until the connection fails or every handle is gone.
    async fn serve(&mut self, mut link: Link) -> ControlFlow<(), Option<Link>> {
        loop {
            if link.has_moved() {
                return ControlFlow::Continue(None);
            }
            let now = clock::now();
            let due = self.holder.next_due(now).unwrap_or(self.upkeep_at);
            if self.held.is_empty() && due > now {
                self.sleep.as_mut().reset(due.min(self.upkeep_at).into());
                tokio::select! {
                    waiting = self.queue.recv() => match waiting {
                        None => return ControlFlow::Break(()),
                        Some(waiting) => self.held.push_back(waiting),
                    },
                    () = &mut self.sleep => {}
                    () = self.holder.is_woken() => {}
                    () = link.end() => {
                        self.call_failed(StoreError::Lost);
                        return ControlFlow::Continue(None);
                    }
                }
            }
            let result = if clock::now() >= self.upkeep_at {
                self.keep_up(&mut link)
                    .await
                    .map(|()| self.succeeded(false))
            } else {
                // What has come to this worker meanwhile is read first, and asks in the same call:
                // with 8 clients that is a fifth more in each, and a sixth less of Redis's time.
                if self.company > 0 {
                    tokio::task::yield_now().await;
                }
                self.ask(&mut link).await
            };
            if let Err(kind) = result {
                self.call_failed(kind);
                return ControlFlow::Continue(None);
            }
        }
    }

    /// One call for whoever waits. What was admitted without the store is charged before: one that
    /// had no memory may have some by now, and nobody is to have the same twice.
    async fn ask(&mut self, link: &mut Link) -> Result<(), StoreError> {
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

    /// Sets the timer to when whoever waits for longest has waited for long enough.
    fn reset_to_oldest(&mut self) {
        let now = clock::now();
        // Whoever comes meanwhile waits behind it, and no longer than for a call.
        self.expire(now);
        let deadline = self.next_deadline();
        let deadline = deadline.unwrap_or(now + self.shared.timeout);
        self.sleep.as_mut().reset(deadline.into());
    }

    /// Everything that waits, up to a batch; what is too late or was given up is left out.
    fn gather(&mut self) -> Batch {
        let mut batch = Batch::for_about(self.held.len() + self.queue.len());
        let (now, mut taken) = (clock::now(), 0);
        let generation = self.shared.keys.generation();
        while let Some(waiting) = self.held.pop_front().or_else(|| self.queue.try_recv().ok()) {
            taken += 1;
            if waiting.is_given_up() {
                continue;
            }
            let late = now >= waiting.arrived + self.shared.timeout;
            if waiting.generation != generation {
                waiting.fail(StoreError::Away);
            } else if late && waiting.is_open() {
                waiting.fail(StoreError::Timeout);
            } else if let Some(waiting) = batch.add(waiting, MAX_BATCH) {
                self.held.push_front(waiting);
                break;
            }
            if taken == MAX_GATHER {
                break;
            }
        }
        self.company = match taken {
            0 | 1 => self.company.saturating_sub(1),
            _ => COMPANY,
        };
        let now_us = self.shared.clock.at_us(now);
        batch.ask_ahead(&self.known, now_us);
        self.holder.say(&mut batch, (now, generation));
        batch
    }

    /// One call. An error means that the connection must go; the batch has been answered.
    async fn call(&mut self, link: &mut Link, batch: Batch) -> Result<(), StoreError> {
        failpoint!("redis.call", self.shared.prefix);
        let sent = clock::now();
        self.epoch = self.shared.overrides.epoch();
        // Its oldest decides how long all may wait; what is only told waits as if it were new.
        let oldest = batch.oldest.unwrap_or(sent);
        let deadline = (oldest + self.shared.timeout).max(sent + self.shared.timeout / 4);
        self.sleep.as_mut().reset(deadline.into());
        let shared = Arc::clone(&self.shared);
        let known = Call::Known(&shared.script_hash);
        let mut result = self.send(link, known, &batch).await;
        if result.as_ref().is_err_and(Failure::is_no_script) {
            // Nothing has run: the one error after which the same charge may be sent again.
            result = self.send(link, Call::Whole, &batch).await;
        }
        let span = Span {
            sent_us: shared.clock.at_us(sent),
            came_us: shared.clock.now_us(),
        };
        match result {
            Ok(bytes) => self.answer(batch, &bytes, span),
            Err(failure) => self.fail(batch, failure.0),
        }
    }

    /// Sends one command and waits for its reply, until the timer rings.
    async fn send(
        &mut self,
        link: &mut Link,
        script: Call<'_>,
        batch: &Batch,
    ) -> Result<Vec<u8>, Failure> {
        let asker = (self.shared.prefix.as_str(), self.holder.name());
        let groups = batch.bundles.iter().map(Bundle::group);
        batch::write(&mut self.command, script, asker, (groups, None));
        tokio::select! {
            biased;
            result = link.ask(&self.command) => result,
            () = &mut self.sleep => Err(Failure(StoreError::Timeout, false)),
        }
    }

    /// Asks for what all proxies of the store share.
    async fn keep_up(&mut self, link: &mut Link) -> Result<(), StoreError> {
        let now = clock::now();
        self.reset_to_oldest();
        let shared = Arc::clone(&self.shared);
        shared.recovery.alive(shared.clock.at_us(now));
        let in_trouble = self.trouble.is_some();
        let asking = async {
            let kept = maintenance::keep_up(link, &shared).await?;
            if in_trouble {
                maintenance::try_script(link, &shared).await?;
            }
            Ok::<_, StoreError>(kept)
        };
        let kept = tokio::select! {
            result = asking => result?,
            () = &mut self.sleep => return Err(StoreError::Timeout),
        };
        if !kept.was_there {
            // Nothing is denied any more.
            self.known.clear();
        }
        self.upkeep_at = now
            + match kept.owes {
                true => OWED_EVERY,
                false if shared.recovery.is_on() => UPKEEP_OFTEN,
                false => UPKEEP_EVERY,
            };
        Ok(())
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
            waiting.fail(StoreError::Timeout);
        }
    }

    fn succeeded(&mut self, wrote: bool) {
        self.guard.call_succeeded();
        if self
            .trouble
            .is_some_and(|kind| wrote || !kind.refuses_writes())
        {
            self.trouble = None;
            self.shared.trouble_ends(None, clock::now());
        }
    }

    fn call_failed(&mut self, kind: StoreError) {
        self.guard.call_failed(clock::now());
        self.failed(kind);
    }

    /// Tells of the trouble, and sends everyone away if the breaker has opened.
    fn failed(&mut self, kind: StoreError) {
        self.shared.recovery.alive(self.shared.clock.now_us());
        if self.guard.is_open() {
            self.open.store(true, Ordering::Relaxed);
            self.begin_trouble(kind);
            self.held
                .drain(..)
                .for_each(|waiting| waiting.fail(StoreError::Away));
            while let Ok(waiting) = self.queue.try_recv() {
                waiting.fail(StoreError::Away);
            }
        }
    }

    fn begin_trouble(&mut self, kind: StoreError) {
        if self.trouble.is_none() {
            self.shared.trouble_begins(None, kind, clock::now());
        }
        self.trouble = Some(kind);
    }
}
