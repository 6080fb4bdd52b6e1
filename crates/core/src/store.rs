//! Where counts live: in this process, or in one Redis that many proxies share.
//!
//! [`Store::charge_or_book`] decides and charges a whole request in one atomic step. If the store
//! has no answer within its timeout, this room says why. `exchange/admit.rs` has the policy for
//! that.

mod backing;
pub mod bans;
pub mod batch;
pub mod counts_file;
mod denials;
pub mod deny_cache;
mod error;
pub mod fleet;
mod gather;
pub mod guard;
pub mod hash_key;
mod journal;
pub mod known_keys;
mod last_answers;
pub mod lease;
pub mod memory;
mod observed;
pub mod overrides;
pub mod recovery;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(not(feature = "redis"))]
#[path = "store/without_redis.rs"]
pub mod redis;
pub mod reserve;
#[cfg(test)]
mod simulation;
pub mod store_clock;

use std::sync::Arc;
use std::time::Instant;

use crate::limit::{Algorithm, Charge, Decided, Decision, LimitCheck};
use crate::telemetry::decisions::Source;

pub use backing::Backing;
pub use error::{ServerTrouble, StoreError};
pub use hash_key::CurrentKey;
use known_keys::RegisteredKeys;
use memory::Memory;
pub use observed::Observed;
use overrides::OverrideSnapshot;
use redis::Redis;

/// One worker's handle to the counts.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process, shared by all workers.
    Memory(Arc<Memory>),
    /// In Redis or Valkey: one server, a master that sentinels name, or a cluster.
    Redis(Redis),
}

impl Store {
    fn redis(&self) -> Option<&Redis> {
        match self {
            Store::Memory(_) => None,
            Store::Redis(redis) => Some(redis),
        }
    }

    /// The decision of [`Store::charge_or_book`] if the counts are in this process, and nothing
    /// waits for it.
    pub fn charge_here(&self, charge: &Charge, longest_us: u64) -> Option<Decision> {
        match self {
            Store::Memory(memory) => Some(memory.charge_or_book(charge, longest_us)),
            Store::Redis(_) => None,
        }
    }

    /// The denial of a charge, or of any with higher costs, if it is known without a call. It is
    /// the decision that the store would return now. Nothing is charged.
    pub fn find_denial(
        &self,
        charge: &Charge,
        generation: u64,
        arrived: Instant,
    ) -> Option<Decision> {
        match self {
            Store::Memory(memory) => memory.find_denial(charge),
            Store::Redis(redis) => redis.find_denial(charge, generation, arrived),
        }
    }

    /// Whether [`Store::find_denial`] may find one.
    pub fn may_know_denials(&self) -> bool {
        self.redis().is_none_or(|redis| redis.knows_denials())
    }

    /// Decides one request, and charges it if every limit allows it. `generation` is that of the
    /// key that the checks' key hashes were derived with ([`Store::hash_key`]).
    ///
    /// Answers within the store's timeout, counted from `arrived`. After an error the charge may
    /// have been made ([`StoreError::maybe_charged`]); it is never repeated.
    pub async fn charge(
        &self,
        charge: &Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        self.charge_or_book(charge, 0, generation, arrived).await
    }

    /// Decides and charges as [`Store::charge`] does. A request that is denied is charged and held
    /// instead, if every limit that denies it has `delay`, and the wait is not above `longest_us`,
    /// microseconds. The caller forwards it after [`Decision::wait_us`], or gives it back.
    pub async fn charge_or_book(
        &self,
        charge: &Charge,
        longest_us: u64,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        match self {
            Store::Memory(memory) => Ok(memory.charge_or_book(charge, longest_us)),
            Store::Redis(redis) => {
                redis
                    .charge_or_book(charge, longest_us, generation, arrived)
                    .await
            }
        }
    }

    /// What made the last decision: the store, or this worker by what it knew of the store. It is
    /// about the charge that has just returned, so call it before the next one.
    pub fn decided_by(&self) -> Source {
        self.redis().map_or(Source::Store, |redis| redis.source())
    }

    /// Remembers a request that was admitted while the store was away. It is charged when the store
    /// is back, so that the end of an outage does not admit the same units twice.
    pub fn owe(&self, charge: &Charge, generation: u64) {
        if let Store::Redis(redis) = self {
            redis.shared().owe(charge, generation);
        }
    }

    /// Gives back units that are owed: the cost of each item of `less`, with its part of the
    /// decision, which was made `age_us` ago.
    pub fn owe_less(&self, less: Decided<'_>, age_us: u64, generation: u64) {
        if let Store::Redis(redis) = self {
            redis.shared().owe_less(less, age_us, generation);
        }
    }

    /// Remembers a request that the store admitted at `at_us`, by its clock, and has forgotten.
    pub fn owe_if_lost(&self, charge: &Charge, at_us: u64, generation: u64) {
        if let Store::Redis(redis) = self {
            redis.shared().owe_if_lost(charge, at_us, generation);
        }
    }

    /// Asks for a decision that nothing waits for: that of a shadow limit.
    pub fn observe(&self, charge: &Charge, generation: u64) -> Observed {
        match self {
            Store::Memory(memory) => Observed::Decided(Some(memory.charge(charge))),
            Store::Redis(redis) => redis.observe(charge, generation),
        }
    }

    /// Takes back what `decision`, which allowed `charge`, has charged: the cost of each item,
    /// which may be less by now. It is sent once, and nothing waits for it. [`Store::release`]
    /// frees slots.
    pub fn refund(&self, charge: &Charge, decision: &Decision, generation: u64) {
        match self {
            Store::Memory(memory) => memory.refund(charge, decision),
            Store::Redis(redis) => redis.refund(charge, decision, generation),
        }
    }

    /// Charges the cost of each item, even above the limit: the request cost more than was charged.
    /// It is sent once, and nothing waits for it. If that fails, the units of limits that are
    /// counted locally are owed, as those of admitted requests are. A store that ran the call and
    /// lost only its answer charges them twice: too little is admitted then, and never too much.
    pub fn settle(&self, charge: &Charge, generation: u64) {
        match self {
            Store::Memory(memory) => memory.charge_more(charge),
            Store::Redis(redis) => redis.settle(charge, generation),
        }
    }

    /// Takes back units of each item, oldest first: its cost, and no more than counts. It is sent
    /// once, and nothing waits for it. Slots do not change.
    ///
    /// So no window of a log holds more than its limit, whichever request is meant of those that
    /// still count. If the request that is meant has expired, a unit of a later one is taken.
    pub fn refund_oldest(&self, charge: &Charge, generation: u64) {
        match self {
            Store::Memory(memory) => memory.refund_oldest(charge),
            Store::Redis(redis) => redis.refund_oldest(charge, generation),
        }
    }

    pub fn release(&self, charge: &Charge) {
        match self {
            Store::Memory(memory) => memory.release(charge),
            Store::Redis(redis) => redis.release(charge),
        }
    }

    /// Counts the slots of a `charge` that was admitted without this store. The store learns of
    /// them as soon as it answers again.
    pub fn hold(&self, charge: &Charge, generation: u64) {
        match self {
            Store::Memory(memory) => memory.hold(charge),
            Store::Redis(redis) => redis.hold(charge, generation),
        }
    }

    /// The secret that identities are hashed with now, and its generation.
    pub fn hash_key(&self) -> CurrentKey {
        match self {
            Store::Memory(memory) => memory.hash_key(),
            Store::Redis(redis) => redis.shared().hash_key(),
        }
    }

    /// The overrides in force; `None`, at the cost of one load, if there are none.
    pub fn overrides(&self) -> Option<OverrideSnapshot> {
        match self {
            Store::Memory(memory) => memory.overrides().snapshot(),
            Store::Redis(redis) => redis.shared().overrides(),
        }
    }

    /// Forgets the cached denials: the limits have changed.
    pub fn limits_changed(&self) {
        if let Store::Redis(redis) = self {
            redis.forget_denials();
        }
    }

    /// Waits until the first attempt to reach the store has succeeded or failed, half a second at
    /// most. Before that, charges fail with [`StoreError::Away`].
    pub async fn ready(&self) {
        if let Store::Redis(redis) = self {
            redis.ready().await;
        }
    }

    /// Waits until the store has all corrections and knows which slots this worker holds: for the
    /// worker's end. Takes the timeout of the store or a quarter of a second at most.
    pub async fn flush(&self) {
        if let Store::Redis(redis) = self {
            redis.flush().await;
        }
    }

    /// The API keys that Redis has, if the configuration keeps them there.
    pub fn known_keys(&self) -> Option<&Arc<RegisteredKeys>> {
        self.redis().and_then(|redis| redis.shared().known_keys())
    }

    /// Whether this process keeps to its share of the limits beside the store's decisions: the
    /// store may not know yet of all that was admitted.
    pub fn is_returning(&self) -> bool {
        self.redis()
            .is_some_and(|redis| redis.shared().recovery().is_on())
    }

    /// Whether this process may admit requests by itself. A process that was stopped for a while
    /// may not: the others may have divided its share.
    pub fn may_decide_alone(&self) -> bool {
        self.redis()
            .is_none_or(|redis| redis.shared().may_decide_alone())
    }

    /// Whether the store has lost units if it reports fewer than before and none have expired. In a
    /// cluster a request may give units back to one node because another node refused it.
    pub fn reports_losses(&self) -> bool {
        self.redis()
            .is_some_and(|redis| !redis.shared().is_cluster())
    }

    /// Takes note that the store lacks these units, by its own answer. They are charged again soon,
    /// unless an operator has reset their keys. Until then this process keeps to its share.
    pub fn suspect(&self, lost: Charge) {
        if let Store::Redis(redis) = self {
            redis.shared().suspect(lost);
        }
    }
}

/// Whether an item holds slots rather than spends units.
fn is_slots(item: &LimitCheck) -> bool {
    item.window.rule.algorithm == Algorithm::Slots
}
