//! A Redis Cluster as the store: one task per worker, one connection to each master, one call in
//! flight for each slot.
//!
//! The keys of one script must lie in one slot. A request whose limits share a slot is one call,
//! all or nothing. Other requests go by `store::reserve`. The protocol runs here, in the request's
//! own future. The task decides which node is asked, and what it means that a node is away.
//!
//! The redis crate's cluster client is not used. It follows a redirection only where it may also
//! repeat a command whose connection broke, and such a charge may have been made.

mod node;
mod nodes;
#[cfg(test)]
pub(super) mod stepped;
mod task;
mod topology;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use smallvec::SmallVec;

use super::Redis;
use crate::limit::{Charge, LimitCheck};
use crate::store::batch::Operation;
use crate::store::deny_cache::{GIVES_BACK_US, LONGEST_US};
use crate::store::gather::{AskedCharge, StoreResult};
use crate::store::reserve::{Habit, Reserve, Step, Steps};
use crate::store::{ServerTrouble, StoreError};
use crate::telemetry::decisions::Source;

pub(super) use task::ClusterTask;
pub(super) use topology::{
    NodeConnection, SlotRange, first_slots, open_slot, read_map, slot_of, slot_of_tag,
};
use topology::{NodeId, SlotMap};

/// How long a slot counts as moving after it was seen to move.
const MOVING_FOR: Duration = Duration::from_secs(1);
/// Sets of limits whose habits are known. There are as many as routes and tiers; with more, all is
/// learned anew.
const MAX_HABITS: usize = 4096;

/// Decides and charges one request, whose limits may lie in several slots.
pub(super) async fn charge(
    redis: &Redis,
    view: &ClusterView,
    mut asked: AskedCharge<'_>,
) -> StoreResult {
    let charge = asked.charge;
    let reserve = view.reserve(charge, asked.arrived)?;
    if reserve.parts().len() > 1 {
        // Nodes know nothing of each other's waits: only one of them can hold a request.
        asked.operation = Operation::Charge(1);
    }
    let reservation = Reservation {
        redis,
        view,
        asked,
        reserve,
    };
    let decision = reservation.run().await?;
    if let Some(log) = &redis.shared.log {
        log.record(Source::Store, charge, &decision);
    }
    Ok(decision)
}

/// A request on its way through its slots. Dropped before it is decided (its client has gone), it
/// gives back what slots have charged.
struct Reservation<'c> {
    redis: &'c Redis,
    view: &'c ClusterView,
    asked: AskedCharge<'c>,
    reserve: Reserve,
}

impl Reservation<'_> {
    /// Takes the steps of the request until it is decided.
    async fn run(mut self) -> StoreResult {
        let (redis, view, charge) = (self.redis, self.view, self.asked.charge);
        let request = self.asked;
        let mut replies = FuturesUnordered::new();
        let mut steps: Steps = self.reserve.begin();
        loop {
            for step in steps.drain(..) {
                match step {
                    Step::Ask(part) => {
                        let asked = self.reserve.charge_of(part, charge);
                        let asking = async move {
                            let charge = &asked;
                            ask_slot(redis, view, AskedCharge { charge, ..request }).await
                        };
                        replies.push(async move { (part, asking.await) });
                    }
                    Step::Refund(part, stamps) => self.refund(part, &stamps),
                    Step::Answer(answer) => {
                        if let (Ok(decision), true) = (&answer, self.reserve.parts().len() > 1) {
                            view.learn(charge, !decision.allowed);
                        }
                        return answer;
                    }
                }
            }
            steps = match replies.next().await {
                Some((part, Err(StoreError::Server(ServerTrouble::TryAgain)))) => {
                    view.lock().note_crossing(charge);
                    self.asked.operation = Operation::Charge(1);
                    self.reserve.split(part)
                }
                Some((part, reply)) => self.reserve.replied(part, reply, charge),
                // Every part that was asked answers; without one there is nothing to wait for.
                None => return Err(StoreError::Lost),
            };
        }
    }

    fn refund(&self, part: usize, stamps: &[u64]) {
        let charged = self.reserve.charge_of(part, self.asked.charge);
        self.redis.slots.release(&charged);
        let stamps = SmallVec::from_slice(stamps);
        self.redis
            .notify(Operation::Refund, &charged, stamps, self.asked.generation);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.reserve.is_over() {
            return;
        }
        for step in self.reserve.give_up(self.asked.charge) {
            if let Step::Refund(part, stamps) = step {
                self.refund(part, &stamps);
            }
        }
    }
}

/// Asks one slot for items that all lie in it.
async fn ask_slot(redis: &Redis, view: &ClusterView, asked: AskedCharge<'_>) -> StoreResult {
    let (shared, charge) = (&redis.shared, asked.charge);
    let epoch = shared.overrides.epoch();
    let answer = redis.send_charge(asked)?;
    let decision = answer.take().await?;
    // If an operator has changed something meanwhile, the decision may be older.
    if !decision.allowed && epoch == shared.overrides.epoch() {
        // If another slot's refusal gives units back, a denial ends early.
        let longest_us = match view.may_refund(charge) {
            true => GIVES_BACK_US,
            false => LONGEST_US,
        };
        let span = shared.span_since(asked.arrived);
        let mut cache = redis.cache.lock();
        cache
            .denied
            .note_within(longest_us, charge, &decision, span);
    }
    Ok(decision)
}

/// The state of the cluster, which a worker's requests check before they ask. The requests and the
/// worker's task run on one thread, and lock it for a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterView(Arc<Mutex<ViewState>>);

#[derive(Debug, Default)]
struct ViewState {
    map: SlotMap,
    /// Nodes whose breaker is open.
    away: HashSet<NodeId>,
    /// Slots whose keys lie on two nodes, and until when that is assumed.
    moving: HashMap<u16, Instant>,
    habits: HashMap<u128, Habit>,
    /// Windows that took part in a request over several slots.
    crossing: HashSet<u128>,
}

impl ClusterView {
    fn lock(&self) -> MutexGuard<'_, ViewState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a request is to be asked. Fails if a node that it needs is away; then no node is asked.
    pub(super) fn reserve(&self, charge: &Charge, now: Instant) -> Result<Reserve, StoreError> {
        let mut view = self.lock();
        if view.is_away(charge) {
            return Err(StoreError::Away);
        }
        let slots = || charge.iter().map(slot_of);
        let is_moving = !view.moving.is_empty() && slots().any(|slot| view.is_moving(slot, now));
        let first = slots().next();
        let crosses = is_moving || slots().any(|slot| Some(slot) != first);
        let one_by_one = crosses && view.note_crossing(charge);
        Ok(Reserve::new(charge, slot_of, is_moving, one_by_one))
    }

    /// A request over several slots has been decided.
    fn learn(&self, charge: &Charge, refused: bool) {
        let mut view = self.lock();
        let habit = view.habits.entry(limits_of(charge)).or_default();
        habit.learn(refused);
    }

    /// Whether units of these items may be given back because another slot refuses.
    fn may_refund(&self, charge: &Charge) -> bool {
        let view = self.lock();
        charge
            .iter()
            .any(|item| view.crossing.contains(&item.window.identity))
    }
}

impl ViewState {
    fn is_away(&self, charge: &Charge) -> bool {
        charge.iter().any(|item| {
            let owner = self.map.owner(slot_of(item));
            owner.is_none_or(|owner| self.away.contains(&owner))
        })
    }

    /// A slot's keys lie on two nodes: for a while its calls have one key each.
    fn note_moving(&mut self, slot: u16, now: Instant) {
        self.moving.retain(|_, until| *until > now);
        self.moving.insert(slot, now + MOVING_FOR);
    }

    fn is_moving(&self, slot: u16, now: Instant) -> bool {
        self.moving.get(&slot).is_some_and(|until| *until > now)
    }

    /// Notes that a request crosses slots. Returns whether to ask one after the other.
    fn note_crossing(&mut self, charge: &Charge) -> bool {
        if self.habits.len() >= MAX_HABITS || self.crossing.len() >= MAX_HABITS {
            self.habits.clear();
            self.crossing.clear();
        }
        for item in charge {
            self.crossing.insert(item.window.identity);
        }
        let habit = self.habits.get(&limits_of(charge));
        habit.is_some_and(Habit::one_by_one)
    }
}

/// A name for the set of a request's limits, whatever its keys.
fn limits_of(charge: &Charge) -> u128 {
    let mix = |set: u128, item: &LimitCheck| set.rotate_left(1) ^ item.window.identity;
    charge.iter().fold(0, mix)
}
