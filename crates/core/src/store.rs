//! Where counts live: in this process, or in one Redis that many proxies share.
//!
//! One verb: [`Store::charge`] decides and charges a whole request in one atomic step. What an
//! outage of the store means is policy and lives in `proxy/admit.rs`; this room only says, within
//! the store's timeout, that it has no answer and why.

pub mod batch;
pub mod deny_cache;
pub mod fleet;
mod gather;
pub mod guard;
pub mod hash_key;
mod journal;
mod known;
pub mod lease;
mod ledger;
pub mod memory;
mod observed;
mod outage;
pub mod overrides;
pub mod recovery;
pub mod redis;
pub mod reserve;
#[cfg(test)]
mod returns;
#[cfg(test)]
mod simulation;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Micros;
use crate::config::{StoreKind, StoreSettings};
use crate::limit::{Charge, Decision};
use crate::telemetry::decisions::{DecisionLog, Source};

use crate::tls::TlsTrouble;
use fleet::Fleet;
pub use hash_key::CurrentKey;
use hash_key::KeyRing;
use memory::Memory;
pub use observed::Observed;
use overrides::OverrideSnapshot;
use redis::Redis;

/// What all workers share of the store; made once, before the workers start.
#[derive(Clone, Debug)]
pub enum Backing {
    /// The embedded store itself.
    Memory(Arc<Memory>),
    /// What the workers' connections to Redis have in common.
    Redis(Arc<redis::Shared>),
}

impl Backing {
    /// Makes what is shared. Asks no server anything. Decisions are written to `log`, if given.
    pub fn new(
        settings: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
    ) -> Result<Backing, StoreError> {
        let keys = KeyRing::new(settings)?;
        Ok(match &settings.kind {
            StoreKind::Memory => Backing::Memory(Arc::new(Memory::new(
                settings,
                keys,
                Micros::monotonic(),
                log,
            ))),
            StoreKind::Redis(server) => {
                Backing::Redis(Arc::new(redis::Shared::new(settings, server, keys, log)?))
            }
        })
    }

    /// What decides while the store is away, with this proxy's part of every limit.
    pub fn local(
        &self,
        settings: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
    ) -> Result<Memory, StoreError> {
        let fleet = match self {
            Backing::Memory(_) => Arc::new(Fleet::of(1)),
            Backing::Redis(shared) => Arc::clone(shared.fleet()),
        };
        let keys = KeyRing::new(settings)?;
        let clock = Micros::monotonic();
        let local = Memory::local(settings, keys, clock, (log, fleet));
        Ok(match self.recovery() {
            Some(recovery) => local.knowing(recovery),
            None => local,
        })
    }

    /// Has what an operator resets forgotten in `local` too, which stands in for this store.
    pub fn forgets_in(&self, local: &Arc<Memory>) {
        match self {
            Backing::Memory(_) => {}
            Backing::Redis(shared) => shared.forgets_in(local),
        }
    }

    /// Since when decisions are made without it, if they are.
    pub fn away_since(&self) -> Option<Instant> {
        match self {
            Backing::Memory(_) => None,
            Backing::Redis(shared) => shared.away_since(),
        }
    }

    /// One worker's handle; called on that worker's runtime, which runs its connection.
    pub fn open(&self) -> Store {
        match self {
            Backing::Memory(memory) => Store::Memory(Arc::clone(memory)),
            Backing::Redis(shared) => Store::Redis(Redis::spawn(Arc::clone(shared))),
        }
    }
}

/// One worker's way to the counts.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process, shared by all workers.
    Memory(Arc<Memory>),
    /// In Redis or Valkey: one server, a master that sentinels name, or a cluster.
    Redis(Redis),
}

impl Store {
    /// The decision of [`Store::charge`] where nothing has to be waited for: the counts are here.
    pub fn charge_here(&self, charge: &Charge) -> Option<Decision> {
        match self {
            Store::Memory(memory) => Some(memory.charge(charge)),
            Store::Redis(_) => None,
        }
    }

    /// Decides one request and charges it if every limit allows it. `generation` is that of the
    /// key with which the checks' key hashes were derived ([`Store::hash_key`]).
    ///
    /// Answers within the store's timeout, counted from when it `arrived`. After an error the
    /// charge may have been made ([`StoreError::maybe_charged`]); it is never repeated here.
    /// `charge` is lent: while this waits it is with whoever asks the server, and when it returns
    /// it is what it was.
    pub async fn charge(
        &self,
        charge: &mut Charge,
        generation: u64,
        arrived: Instant,
    ) -> Result<Decision, StoreError> {
        match self {
            Store::Memory(memory) => Ok(memory.charge(charge)),
            Store::Redis(redis) => redis.charge(charge, generation, arrived).await,
        }
    }

    /// Who made the decision that [`Store::charge`] has just returned, where that was the store:
    /// it itself, or this worker by what it knew of it. Asked once, and at once.
    pub fn decided_by(&self) -> Source {
        match self {
            Store::Memory(_) => Source::Store,
            Store::Redis(redis) => redis.decided_by(),
        }
    }

    /// Remembers what was admitted by `proxy/admit.rs` while the store was away: it is charged when
    /// the store is back, so that the end of an outage is no second helping.
    pub fn owe(&self, charge: &Charge, generation: u64) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.owe(charge, generation),
        }
    }

    /// Asks for a decision that nothing waits for: limits on trial, each by itself.
    pub fn observe(&self, charge: &Charge, generation: u64) -> Observed {
        match self {
            Store::Memory(memory) => Observed::decided(memory.charge(charge)),
            Store::Redis(redis) => redis.observe(charge, generation),
        }
    }

    /// Takes back what `decision`, which allowed `charge`, has charged: the cost of each item,
    /// which may be less by now. Sent once; nothing waits for it. Slots are let go of by
    /// [`Store::release`].
    pub fn give_back(&self, charge: &Charge, decision: &Decision, generation: u64) {
        match self {
            Store::Memory(memory) => memory.give_back(charge, decision),
            Store::Redis(redis) => redis.give_back(charge, decision, generation),
        }
    }

    /// Charges the cost of each item whatever is counted already: what was granted turned out to
    /// cost more. Sent once; nothing waits for it.
    pub fn settle(&self, charge: &Charge, generation: u64) {
        match self {
            Store::Memory(memory) => memory.charge_more(charge),
            Store::Redis(redis) => redis.settle(charge, generation),
        }
    }

    /// Lets go of the slots that an admitted `charge` holds.
    pub fn release(&self, charge: &Charge) {
        match self {
            Store::Memory(memory) => memory.release(charge),
            Store::Redis(redis) => redis.release(charge),
        }
    }

    /// Counts the slots of a `charge` that was admitted without this store, which is to know of
    /// them as soon as it can be asked again.
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
            Store::Redis(redis) => redis.hash_key(),
        }
    }

    /// What operators have set for single keys; `None`, at the cost of one load, if nothing.
    pub fn overrides(&self) -> Option<OverrideSnapshot> {
        match self {
            Store::Memory(memory) => memory.overrides(),
            Store::Redis(redis) => redis.shared().overrides(),
        }
    }

    /// Forgets what it knows without asking: the limits are no longer what they were.
    pub fn limits_changed(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.limits_changed(),
        }
    }

    /// Waits until the first attempt to reach the store has ended, well or badly. Before that
    /// charges are answered [`StoreError::Away`]; a proxy that listens after it need not begin
    /// with decisions of its own. Takes half a second at most.
    pub async fn ready(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.ready().await,
        }
    }

    /// Waits until the store knows what this worker holds: for its end. Takes a quarter of a second
    /// at most, since what it is not told expires by itself.
    pub async fn told(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.told().await,
        }
    }
}

/// Why the store gave no decision. None of these is the client's fault, and none is retried here:
/// the charge may have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The store is known to be away, or the hash key is not (or no longer) the one the store's
    /// proxies share. Nothing was sent.
    Away,
    /// No answer within the timeout.
    Timeout,
    /// The connection could not be made.
    Refused,
    /// The connection was lost before the answer came.
    Lost,
    /// There is no TLS with the server: nothing was sent.
    Tls(TlsTrouble),
    /// No sentinel names a server that says it is the master. Nothing was sent.
    NoMaster,
    /// More requests wait for the store than are allowed to. Nothing was sent.
    Overloaded,
    /// The server answered with an error.
    Server(ServerTrouble),
    /// What came back is not an answer of our script.
    Garbled,
    /// The configured address cannot be used.
    BadAddress,
    /// The operating system gave no random bytes for a hash key.
    NoEntropy,
}

impl StoreError {
    /// What its metrics have from the start.
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
            StoreError::Away => "away",
            StoreError::Timeout => "timeout",
            StoreError::Refused => "refused",
            StoreError::Lost => "lost",
            StoreError::Tls(trouble) => trouble.label(),
            StoreError::NoMaster => "no_master",
            StoreError::Overloaded => "overloaded",
            StoreError::Server(trouble) => trouble.label(),
            StoreError::Garbled => "garbled",
            StoreError::BadAddress => "bad_address",
            StoreError::NoEntropy => "no_entropy",
        }
    }

    /// Whether the server answers all the same, but for writes: only a write shows that it is over.
    pub const fn refuses_writes(self) -> bool {
        matches!(
            self,
            StoreError::Server(
                ServerTrouble::OutOfMemory | ServerTrouble::ReadOnly | ServerTrouble::Misconfigured
            )
        )
    }

    /// Whether the store may have charged the request all the same.
    pub const fn maybe_charged(self) -> bool {
        matches!(
            self,
            StoreError::Timeout | StoreError::Lost | StoreError::Garbled
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreError::Away => "the store is away",
            StoreError::Timeout => "the store did not answer in time",
            StoreError::Refused => "the store cannot be connected to",
            StoreError::Lost => "the connection to the store was lost",
            StoreError::Tls(trouble) => return write!(f, "the store: {trouble}"),
            StoreError::NoMaster => "no sentinel names a master that is one",
            StoreError::Overloaded => "too many requests wait for the store",
            StoreError::Server(trouble) => return write!(f, "the store says {}", trouble.label()),
            StoreError::Garbled => "the store's answer cannot be read",
            StoreError::BadAddress => "the store's address cannot be used",
            StoreError::NoEntropy => "the operating system gave no random bytes",
        })
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
    /// BUSY: another script runs.
    Busy,
    /// It has as many clients as it may.
    MaxClients,
    /// Any other error.
    Other,
}

impl ServerTrouble {
    /// Reads the server's error text, which begins with its code.
    pub fn parse(text: &str) -> ServerTrouble {
        match text
            .split(' ')
            .next()
            .unwrap_or_default()
            .trim_start_matches('-')
        {
            "NOAUTH" | "WRONGPASS" => ServerTrouble::Auth,
            "NOPERM" => ServerTrouble::Permission,
            "LOADING" => ServerTrouble::Loading,
            "READONLY" => ServerTrouble::ReadOnly,
            "OOM" => ServerTrouble::OutOfMemory,
            "MASTERDOWN" => ServerTrouble::MasterDown,
            "CLUSTERDOWN" | "MOVED" | "ASK" | "CROSSSLOT" => ServerTrouble::Cluster,
            "TRYAGAIN" => ServerTrouble::TryAgain,
            "MISCONF" => ServerTrouble::Misconfigured,
            "BUSY" => ServerTrouble::Busy,
            _ if text.contains("max number of clients") => ServerTrouble::MaxClients,
            _ => ServerTrouble::Other,
        }
    }

    /// One word for logs and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            ServerTrouble::Auth => "noauth",
            ServerTrouble::Permission => "noperm",
            ServerTrouble::Loading => "loading",
            ServerTrouble::ReadOnly => "readonly",
            ServerTrouble::OutOfMemory => "oom",
            ServerTrouble::MasterDown => "masterdown",
            ServerTrouble::Cluster => "cluster",
            ServerTrouble::TryAgain => "tryagain",
            ServerTrouble::Misconfigured => "misconf",
            ServerTrouble::Busy => "busy",
            ServerTrouble::MaxClients => "maxclients",
            ServerTrouble::Other => "server_error",
        }
    }
}
