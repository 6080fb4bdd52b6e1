//! Why the store gave no decision, for policies, logs and metrics.

use std::fmt;

#[cfg(feature = "redis")]
use crate::tls::TlsTrouble;

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
                ServerTrouble::OutOfMemory
                    | ServerTrouble::ReadOnly
                    | ServerTrouble::Misconfigured
                    | ServerTrouble::NoReplicas
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
            StoreError::Server(trouble) => write!(f, "{}{}", trouble.label(), trouble.hint()),
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
    /// NOREPLICAS: fewer replicas follow it than `min-replicas-to-write` asks for.
    NoReplicas,
    Busy,
    MaxClients,
    /// It has no database of the configured number.
    NoDatabase,
    /// It is no node of a cluster, and the configuration says that it is one.
    NoCluster,
    Other,
}

/// The troubles, their labels, and the codes that servers' error texts begin with.
const TROUBLES: [(ServerTrouble, &str, &[&str]); 15] = [
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
    (ServerTrouble::NoReplicas, "noreplicas", &["NOREPLICAS"]),
    (ServerTrouble::Busy, "busy", &["BUSY"]),
    (ServerTrouble::MaxClients, "maxclients", &[]),
    (ServerTrouble::NoDatabase, "no_database", &[]),
    (ServerTrouble::NoCluster, "no_cluster", &[]),
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
            // Redis 7, of a command in a script.
            None if text.contains("executing the script can't run") => ServerTrouble::Permission,
            None if text.contains("max number of clients") => ServerTrouble::MaxClients,
            None if text.contains("DB index") => ServerTrouble::NoDatabase,
            None if text.contains("cluster support disabled") => ServerTrouble::NoCluster,
            None => ServerTrouble::Other,
        }
    }

    /// What an operator may do about it, where the label does not say so.
    const fn hint(self) -> &'static str {
        match self {
            ServerTrouble::Auth => ": the password is missing or wrong",
            ServerTrouble::Permission => ": its user may not run a command that tidegate needs",
            ServerTrouble::Cluster => {
                ": a cluster that does not serve the slot, or a node of one where `store.url` has \
                 no `+cluster`"
            }
            ServerTrouble::NoReplicas => {
                ": fewer replicas follow it than its `min-replicas-to-write`, so it refuses writes"
            }
            ServerTrouble::NoDatabase => ": it has no database of the number in `store.url`",
            ServerTrouble::NoCluster => ": it is no node of a cluster; write `redis://` in its URL",
            _ => "",
        }
    }

    /// One word for logs and metrics.
    pub const fn label(self) -> &'static str {
        // The table has the order of the variants.
        TROUBLES[self as usize].1
    }
}
