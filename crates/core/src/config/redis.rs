//! How to reach Redis: which servers, as whom, and whether over TLS.

use std::fmt;
use std::path::PathBuf;

use super::{ClientTls, Hidden};

/// How to reach Redis. `Debug` and error texts never show a password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// Which servers.
    pub topology: RedisTopology,
    /// Database number.
    pub database: i64,
    /// ACL user.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// TLS to every server, sentinels too; `None` for plain connections.
    pub tls: Option<Box<ClientTls>>,
}

/// Which servers hold the counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTopology {
    /// One server.
    Single(RedisAddress),
    /// The master that sentinels name.
    Sentinel(Sentinels),
    /// A cluster's nodes, by slot.
    Cluster {
        /// Nodes that are asked for the others; at least one, all `Tcp`.
        seeds: Vec<RedisAddress>,
    },
}

/// Sentinels, and what they know the master by.
#[derive(Clone, PartialEq, Eq)]
pub struct Sentinels {
    /// At least one, all `Tcp`.
    pub addresses: Vec<RedisAddress>,
    /// The master's name.
    pub master: String,
    /// ACL user of the sentinels themselves.
    pub username: Option<String>,
    /// Password of the sentinels themselves.
    pub password: Option<String>,
}

/// Where a Redis listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RedisAddress {
    /// Host name or address (IPv6 without brackets), and port.
    Tcp(String, u16),
    /// A socket's path.
    Unix(PathBuf),
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            RedisAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            RedisAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for RedisTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |addresses: &[RedisAddress]| {
            let texts: Vec<String> = addresses.iter().map(RedisAddress::to_string).collect();
            texts.join(",")
        };
        match self {
            RedisTopology::Single(address) => address.fmt(f),
            RedisTopology::Sentinel(sentinels) => {
                write!(
                    f,
                    "sentinel {}/{}",
                    all(&sentinels.addresses),
                    sentinels.master
                )
            }
            RedisTopology::Cluster { seeds } => write!(f, "cluster {}", all(seeds)),
        }
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("topology", &self.topology)
            .field("database", &self.database)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| Hidden))
            .field("tls", &self.tls)
            .finish()
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("addresses", &self.addresses)
            .field("master", &self.master)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| Hidden))
            .finish()
    }
}
