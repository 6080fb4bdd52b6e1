//! A Redis Cluster as the store: one task per worker, one connection to each master, one call in
//! flight for each slot.
//!
//! The keys of one script must lie in one slot. A request whose limits all do is one call, all or
//! nothing; one whose limits do not goes by `store::reserve`. The protocol runs in the request's
//! own future, here; which node is asked, and what it means that one is away, is the task's.
//!
//! The redis crate's cluster client is not used: it follows a redirection only where it may also
//! repeat a command whose connection broke, and such a charge may have been made.

mod call;
mod due;
mod map;
mod node;
mod nodes;
mod task;
mod topology;
mod view;

use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use smallvec::SmallVec;
use tokio::sync::{mpsc, watch};

use super::slot_lease::SlotLease;
use super::{QUEUE, Redis, Shared};
use crate::limit::{Algorithm, Charge, Decision};
use crate::store::batch::Operation;
use crate::store::deny_cache::{GIVES_BACK_US, LONGEST_US, Span};
use crate::store::known::Known;
use crate::store::reserve::{Reserve, Step, Steps};
use crate::store::waiting::{Answer, Asked, Question, Waiting, ask};
use crate::store::{ServerTrouble, StoreError};
use crate::telemetry::decisions::Source;

pub(super) use map::{slot_of, slot_of_tag};
pub(super) use topology::reach;
use view::View;

/// Something to ask of a slot.
#[derive(Debug)]
struct Placed {
    slot: u16,
    waiting: Waiting,
}

/// A handle's way to its worker's task.
#[derive(Clone, Debug)]
pub(super) struct ClusterQueue {
    queue: mpsc::Sender<Placed>,
    view: View,
}

impl ClusterQueue {
    /// Starts the worker's task on the current runtime; it ends with the last handle.
    pub(super) fn spawn(
        shared: &Arc<Shared>,
        known: &Known,
        slots: &SlotLease,
        settle: watch::Sender<bool>,
    ) -> ClusterQueue {
        let (queue, asked) = mpsc::channel(QUEUE);
        let view = View::default();
        let handle = (view.clone(), known.clone(), slots.clone());
        tokio::spawn(task::Task::new(Arc::clone(shared), asked, handle, settle).run());
        ClusterQueue { queue, view }
    }

    fn enqueue(&self, slot: u16, waiting: Waiting) -> Result<(), StoreError> {
        Ok(self.queue.try_send(Placed { slot, waiting })?)
    }

    /// Sends a charge on its way, which all lies in one slot; until it is back, nothing is left in
    /// its place.
    pub(super) fn begin(
        &self,
        charge: &mut Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Asked, StoreError> {
        let slot = charge.first().map(slot_of).ok_or(StoreError::Garbled)?;
        let (waiting, asked) = ask(Question {
            charge: std::mem::take(charge),
            operation: Operation::Charge(1),
            extra: SmallVec::new(),
            generation,
            arrived,
        });
        self.enqueue(slot, waiting)?;
        Ok(asked)
    }

    /// Whether every node that a charge needs is there.
    pub(super) fn is_there(&self, charge: &Charge, now: Instant) -> bool {
        self.view.reserve(charge, now).is_ok()
    }

    /// Tells the store something, item by item, once, and waits for nothing.
    pub(super) fn tell(&self, known: &Known, told: &Question) {
        for (index, item) in told.charge.iter().enumerate() {
            if item.window.rule.algorithm == Algorithm::Slots {
                continue;
            }
            if told.operation == Operation::GiveBack {
                known.lock().denied.forget(item.id());
            }
            let waiting = Waiting::told(Question {
                charge: [item.clone()].into_iter().collect(),
                extra: told.extra.get(index).copied().into_iter().collect(),
                ..*told
            });
            // Where the node is away, the units expire by themselves.
            let _ = self.enqueue(slot_of(item), waiting);
        }
    }
}

/// Decides and charges one request, whose limits may lie in several slots.
pub(super) async fn charge(
    redis: &Redis,
    queue: &ClusterQueue,
    charge: &Charge,
    generation: u64,
    arrived: Instant,
) -> Result<Decision, StoreError> {
    let asking = Asking {
        redis,
        queue,
        charge,
        reserve: queue.view.reserve(charge, arrived)?,
        generation,
    };
    let decision = asking.run(arrived).await?;
    if let Some(log) = &redis.shared.log {
        log.record(Source::Store, charge, &decision);
    }
    Ok(decision)
}

/// Asks one slot for items that all lie in it.
async fn ask_slot(
    redis: &Redis,
    queue: &ClusterQueue,
    mut charge: Charge,
    generation: u64,
    arrived: Instant,
) -> Answer {
    let shared = &redis.shared;
    let epoch = shared.overrides.epoch();
    let awaited = redis
        .slots
        .wait(queue.begin(&mut charge, generation, arrived)?);
    let decision = awaited.take(&mut charge).await?;
    // What an operator changed meanwhile may not be in it.
    if !decision.allowed && epoch == shared.overrides.epoch() {
        // Units that another slot's refusal gives back make a denial end early.
        let capped = queue.view.gives_back(&charge);
        let longest_us = if capped { GIVES_BACK_US } else { LONGEST_US };
        let span = Span {
            sent_us: shared.clock.at_us(arrived),
            came_us: shared.clock.now_us(),
        };
        let mut known = redis.known.lock();
        known
            .denied
            .note_within(longest_us, &charge, &decision, span);
    }
    Ok(decision)
}

/// A request on its way through its slots. Dropped before it is decided (its client has gone), it
/// gives back what slots have charged.
struct Asking<'c> {
    redis: &'c Redis,
    queue: &'c ClusterQueue,
    charge: &'c Charge,
    reserve: Reserve,
    generation: u64,
}

impl Asking<'_> {
    /// Takes the steps of the request until it is decided.
    async fn run(mut self, arrived: Instant) -> Answer {
        let (redis, queue, charge) = (self.redis, self.queue, self.charge);
        let mut replies = FuturesUnordered::new();
        let mut steps: Steps = self.reserve.begin();
        loop {
            for step in steps.drain(..) {
                match step {
                    Step::Ask(part) => {
                        let asked = self.reserve.charge_of(part, charge);
                        let asking = ask_slot(redis, queue, asked, self.generation, arrived);
                        replies.push(async move { (part, asking.await) });
                    }
                    Step::GiveBack(part, stamps) => self.give_back(part, &stamps),
                    Step::Answer(answer) => {
                        if let (Ok(decision), true) = (&answer, self.reserve.parts().len() > 1) {
                            queue.view.learn(charge, !decision.allowed);
                        }
                        return answer;
                    }
                }
            }
            steps = match replies.next().await {
                Some((part, Err(StoreError::Server(ServerTrouble::TryAgain)))) => {
                    queue.view.crosses(charge);
                    self.reserve.split(part)
                }
                Some((part, reply)) => self.reserve.replied(part, reply, charge),
                // Every part that was asked answers; there is nothing to wait for without one.
                None => return Err(StoreError::Lost),
            };
        }
    }

    fn give_back(&self, part: usize, stamps: &[u64]) {
        let charged = self.reserve.charge_of(part, self.charge);
        self.redis.slots.let_go(&charged);
        let stamps = SmallVec::from_slice(stamps);
        self.redis
            .tell(Operation::GiveBack, &charged, stamps, self.generation);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.reserve.is_over() {
            return;
        }
        for step in self.reserve.give_up(self.charge) {
            if let Step::GiveBack(part, stamps) = step {
                self.give_back(part, &stamps);
            }
        }
    }
}
