//! What requests must know of an outage of the store, and what the store must know of it from them.

use std::sync::Arc;

use super::recovery::Recovery;
use super::{Backing, Store};
use crate::limit::Charge;

impl Backing {
    /// What this process knows of the store's outages, where there can be any.
    pub fn recovery(&self) -> Option<&Arc<Recovery>> {
        match self {
            Backing::Memory(_) => None,
            Backing::Redis(shared) => Some(shared.recovery()),
        }
    }
}

impl Store {
    /// Whether this process keeps to its share of the limits beside what the store says: the store
    /// may not know yet of all that was admitted.
    pub fn is_returning(&self) -> bool {
        self.recovery().is_some_and(Recovery::is_on)
    }

    /// Whether this process may admit requests by itself. One that was stopped for a while may not:
    /// it does not know what became of the others.
    pub fn may_decide_alone(&self) -> bool {
        match self {
            Store::Memory(_) => true,
            Store::Redis(redis) => redis.shared().may_decide_alone(),
        }
    }

    fn recovery(&self) -> Option<&Recovery> {
        match self {
            Store::Memory(_) => None,
            Store::Redis(redis) => Some(redis.shared().recovery()),
        }
    }

    /// Whether units that the store has said to be used are gone only when they expire or by its
    /// loss: where a request asks several places, one may give back what another refuses.
    pub fn tells_of_others(&self) -> bool {
        match self {
            Store::Memory(_) => false,
            Store::Redis(redis) => !redis.shared().is_cluster(),
        }
    }

    /// The store lacks these units, by its own answer. They are charged again soon, unless an
    /// operator has reset their keys; until then this process keeps to its share.
    pub fn suspect(&self, lost: Charge) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.shared().suspect(lost),
        }
    }
}
