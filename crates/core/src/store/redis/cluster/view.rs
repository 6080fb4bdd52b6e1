//! What a worker's requests see of the cluster before they ask: who is away, which slots are on the
//! move, which limits are better asked one after the other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::map::{NodeId, SlotMap, slot_of};
use crate::limit::{Charge, LimitCheck};
use crate::store::StoreError;
use crate::store::reserve::{Habit, Reserve};

/// How long a slot counts as being on the move after it was seen to be.
const APART: Duration = Duration::from_secs(1);
/// Sets of limits whose habits are known. There are as many as routes and tiers; beyond, all is
/// learned anew.
const HABITS: usize = 4096;

/// One worker's; locked for a moment by whoever asks and by the worker's task, which run on the
/// same thread.
#[derive(Clone, Debug, Default)]
pub(super) struct View(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) map: SlotMap,
    /// Nodes whose breaker is open.
    pub(super) away: HashSet<NodeId>,
    /// Slots whose keys lie on two nodes, and until when that is assumed.
    apart: HashMap<u16, Instant>,
    habits: HashMap<u128, Habit>,
    /// Windows that took part in a request over several slots.
    crossing: HashSet<u128>,
}

impl View {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a request is to be asked; an error if some node that it needs is away, and then nobody
    /// is asked.
    pub(super) fn reserve(&self, charge: &Charge, now: Instant) -> Result<Reserve, StoreError> {
        let mut view = self.lock();
        let slots = || charge.iter().map(slot_of);
        let is_away = |slot| {
            let owner = view.map.owner(slot);
            owner.is_none_or(|owner| view.away.contains(&owner))
        };
        if slots().any(is_away) {
            return Err(StoreError::Away);
        }
        let apart = !view.apart.is_empty() && slots().any(|slot| view.is_apart(slot, now));
        let first = slots().next();
        let crosses = apart || slots().any(|slot| Some(slot) != first);
        let one_by_one = crosses && view.cross(charge);
        Ok(Reserve::new(charge, slot_of, apart, one_by_one))
    }

    /// A request of one slot turns out to be asked item by item.
    pub(super) fn crosses(&self, charge: &Charge) {
        self.lock().cross(charge);
    }

    /// A request over several slots has been decided.
    pub(super) fn learn(&self, charge: &Charge, refused: bool) {
        let mut view = self.lock();
        let habit = view.habits.entry(set_of(charge)).or_default();
        habit.learn(refused);
    }

    /// Whether units of these items may be given back because another slot refuses.
    pub(super) fn gives_back(&self, charge: &Charge) -> bool {
        let view = self.lock();
        charge
            .iter()
            .any(|item| view.crossing.contains(&item.window.identity))
    }
}

impl Inner {
    /// A slot's keys lie on two nodes: for a while its calls have one key each.
    pub(super) fn set_apart(&mut self, slot: u16, now: Instant) {
        self.apart.retain(|_, until| *until > now);
        self.apart.insert(slot, now + APART);
    }

    pub(super) fn is_apart(&self, slot: u16, now: Instant) -> bool {
        self.apart.get(&slot).is_some_and(|until| *until > now)
    }

    /// Notes that a request crosses slots; whether to ask one after the other.
    fn cross(&mut self, charge: &Charge) -> bool {
        if self.habits.len() >= HABITS || self.crossing.len() >= HABITS {
            self.habits.clear();
            self.crossing.clear();
        }
        for item in charge {
            self.crossing.insert(item.window.identity);
        }
        let habit = self.habits.get(&set_of(charge));
        habit.is_some_and(Habit::one_by_one)
    }
}

/// Names the set of a request's limits, whoever it counts against.
fn set_of(charge: &Charge) -> u128 {
    let mix = |set: u128, item: &LimitCheck| set.rotate_left(1) ^ item.window.identity;
    charge.iter().fold(0, mix)
}
