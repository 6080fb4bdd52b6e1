//! Where counts live: in this process, or in one Redis that many proxies share. [`Store::charge`]
//! decides and charges a whole request in one atomic step. If the store has no answer within its
//! timeout, this room says why. `proxy/admit.rs` has the policy for that.

mod backing;
pub mod batch;
pub mod counts_file;
pub mod deny_cache;
pub mod fleet;
mod gather;
pub mod guard;
pub mod hash_key;
mod journal;
pub mod lease;
mod ledger;
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
mod returns;
#[cfg(test)]
mod simulation;
pub mod store_clock;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::limit::{Algorithm, Charge, Decision, LimitCheck};
use crate::telemetry::decisions::Source;

#[cfg(feature = "redis")]
use crate::tls::TlsTrouble;
pub use backing::Backing;
pub use hash_key::CurrentKey;
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

    /// The decision of [`Store::charge`] if the counts are in this process, and nothing waits.
    pub fn charge_here(&self, charge: &Charge) -> Option<Decision> {
        match self {
            Store::Memory(memory) => Some(memory.charge(charge)),
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
        match self {
            Store::Memory(memory) => Ok(memory.charge(charge)),
            Store::Redis(redis) => redis.charge(charge, generation, arrived).await,
        }
    }

    /// Whether the store made the decision that [`Store::charge`] has just returned, or this worker
    /// by what it knew of the store. Call it once, right after `charge`.
    pub fn decided_by(&self) -> Source {
        self.redis()
            .map_or(Source::Store, |redis| redis.take_source())
    }

    /// Remembers a request that was admitted while the store was away. It is charged when the store
    /// is back, so that the end of an outage does not admit the same units twice.
    pub fn owe(&self, charge: &Charge, generation: u64) {
        if let Store::Redis(redis) = self {
            redis.shared().owe(charge, generation);
        }
    }

    /// Remembers a request that the store admitted at `at_us`, by its clock, and has forgotten.
    pub fn owe_if_lost(&self, charge: &Charge, at_us: u64, generation: u64) {
        if let Store::Redis(redis) = self {
            redis.shared().owe_if_lost(charge, at_us, generation);
        }
    }

    /// Asks for a decision that nothing waits for: that of a limit on trial.
    pub fn observe(&self, charge: &Charge, generation: u64) -> Observed {
        match self {
            Store::Memory(memory) => Observed::Decided(Some(memory.charge(charge))),
            Store::Redis(redis) => redis.observe(charge, generation),
        }
    }

    /// Takes back what `decision`, which allowed `charge`, has charged: the cost of each item,
    /// which may be less by now. It is sent once, and nothing waits for it. [`Store::release`]
    /// frees slots.
    pub fn give_back(&self, charge: &Charge, decision: &Decision, generation: u64) {
        match self {
            Store::Memory(memory) => memory.give_back(charge, decision),
            Store::Redis(redis) => redis.give_back(charge, decision, generation),
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
    pub fn give_back_oldest(&self, charge: &Charge, generation: u64) {
        match self {
            Store::Memory(memory) => memory.give_back_oldest(charge),
            Store::Redis(redis) => redis.give_back_oldest(charge, generation),
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

    /// Waits until the store knows which slots this worker holds: for the worker's end. Takes a
    /// quarter of a second at most, since slots that are not reported expire by themselves.
    pub async fn flush_slots(&self) {
        if let Store::Redis(redis) = self {
            redis.flush_slots().await;
        }
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

    /// Whether units that the store has reported can only expire or be lost. In a cluster a request
    /// may give units back to one node because another node refused it.
    pub fn tells_of_others(&self) -> bool {
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

/// Why the store gave no decision. None of these is the client's fault. The store room retries none
/// of them: the charge may have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The store is known to be away, or the hash key is not the one that its proxies share.
    /// Nothing was sent.
    Away,
    Timeout,
    Refused,
    Lost,
    /// TLS with the server failed. Nothing was sent.
    #[cfg(feature = "redis")]
    Tls(TlsTrouble),
    #[cfg(not(feature = "redis"))]
    NoRedis,
    /// No sentinel names a server that reports itself as the master. Nothing was sent.
    NoMaster,
    Overloaded,
    /// The store's clock has moved twice by more than a calendar window. Nothing was written.
    ClockUnknown,
    Server(ServerTrouble),
    /// The reply is not one of our script.
    Garbled,
    BadAddress,
    /// The operating system gave no random bytes for a hash key.
    NoEntropy,
}

impl StoreError {
    /// The labels that the metrics have from the start.
    pub const LIKELY: [&'static str; 6] = [
        "away",
        "garbled",
        "lost",
        "overloaded",
        "refused",
        "timeout",
    ];

    /// One word for logs and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            #[cfg(feature = "redis")]
            StoreError::Tls(trouble) => trouble.label(),
            StoreError::Server(trouble) => trouble.label(),
            other => other.texts().0,
        }
    }

    /// The label and the message; those of the server's and TLS's troubles are their own.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            StoreError::Away => ("away", "the store is away"),
            StoreError::Timeout => ("timeout", "the store did not answer in time"),
            StoreError::Refused => ("refused", "the store cannot be connected to"),
            StoreError::Lost => ("lost", "the connection to the store was lost"),
            #[cfg(feature = "redis")]
            StoreError::Tls(_) => ("tls", "the store: "),
            #[cfg(not(feature = "redis"))]
            StoreError::NoRedis => ("no_redis", "this program was built without Redis"),
            StoreError::NoMaster => ("no_master", "no sentinel names a server that is a master"),
            StoreError::Overloaded => ("overloaded", "too many requests wait for the store"),
            StoreError::ClockUnknown => (
                "clock",
                "the store's clock has moved by more than a calendar window",
            ),
            StoreError::Server(_) => ("server_error", "the store says "),
            StoreError::Garbled => ("garbled", "the store's answer cannot be read"),
            StoreError::BadAddress => ("bad_address", "the store's address cannot be used"),
            StoreError::NoEntropy => ("no_entropy", "the operating system gave no random bytes"),
        }
    }

    /// Whether the server still answers reads. Only a write shows that this trouble is over.
    pub const fn refuses_writes(self) -> bool {
        matches!(
            self,
            StoreError::Server(
                ServerTrouble::OutOfMemory | ServerTrouble::ReadOnly | ServerTrouble::Misconfigured
            )
        )
    }

    /// Whether the store may have charged the request nevertheless.
    pub const fn maybe_charged(self) -> bool {
        matches!(
            self,
            StoreError::Timeout | StoreError::Lost | StoreError::Garbled
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)?;
        match self {
            #[cfg(feature = "redis")]
            StoreError::Tls(trouble) => trouble.fmt(f),
            StoreError::Server(trouble) => f.write_str(trouble.label()),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for StoreError {}

/// An error that the server itself reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerTrouble {
    /// NOAUTH, WRONGPASS: the password is missing or wrong.
    Auth,
    /// NOPERM: the user may not do this.
    Permission,
    /// LOADING: it still reads its data set.
    Loading,
    /// READONLY: it is a replica; after a failover the name must be resolved again.
    ReadOnly,
    /// OOM: memory is full, and its policy is not to evict. Denials are still answered.
    OutOfMemory,
    /// MASTERDOWN: a replica without its master.
    MasterDown,
    /// CLUSTERDOWN, MOVED, ASK, CROSSSLOT: a cluster that does not serve the slot, or one where
    /// none is configured.
    Cluster,
    /// TRYAGAIN: a slot of a cluster is moving, and the keys of the call lie on both sides.
    TryAgain,
    /// MISCONF: it cannot persist, and refuses writes.
    Misconfigured,
    Busy,
    MaxClients,
    Other,
}

/// The troubles, their labels, and the codes that servers' error texts begin with.
const TROUBLES: [(ServerTrouble, &str, &[&str]); 12] = [
    (ServerTrouble::Auth, "noauth", &["NOAUTH", "WRONGPASS"]),
    (ServerTrouble::Permission, "noperm", &["NOPERM"]),
    (ServerTrouble::Loading, "loading", &["LOADING"]),
    (ServerTrouble::ReadOnly, "readonly", &["READONLY"]),
    (ServerTrouble::OutOfMemory, "oom", &["OOM"]),
    (ServerTrouble::MasterDown, "masterdown", &["MASTERDOWN"]),
    (
        ServerTrouble::Cluster,
        "cluster",
        &["CLUSTERDOWN", "MOVED", "ASK", "CROSSSLOT"],
    ),
    (ServerTrouble::TryAgain, "tryagain", &["TRYAGAIN"]),
    (ServerTrouble::Misconfigured, "misconf", &["MISCONF"]),
    (ServerTrouble::Busy, "busy", &["BUSY"]),
    (ServerTrouble::MaxClients, "maxclients", &[]),
    (ServerTrouble::Other, "server_error", &[]),
];

impl ServerTrouble {
    /// Reads the server's error text.
    pub fn parse(text: &str) -> ServerTrouble {
        let code = text.split(' ').next().unwrap_or_default();
        let code = code.trim_start_matches('-');
        let known = TROUBLES.iter().find(|(_, _, codes)| codes.contains(&code));
        match known {
            Some((trouble, ..)) => *trouble,
            None if text.contains("max number of clients") => ServerTrouble::MaxClients,
            None => ServerTrouble::Other,
        }
    }

    /// One word for logs and metrics.
    pub const fn label(self) -> &'static str {
        // The table has the order of the variants.
        TROUBLES[self as usize].1
    }
}
