//! Who is compared.

/// A row of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    Tidegate,
    TidegateEmbedded,
    TidegateRedis,
    Nginx,
    NginxLimit,
    NginxLua,
    Haproxy,
    HaproxyTable,
}

pub const ALL: [Peer; 8] = [
    Peer::Tidegate,
    Peer::TidegateEmbedded,
    Peer::TidegateRedis,
    Peer::Nginx,
    Peer::NginxLimit,
    Peer::NginxLua,
    Peer::Haproxy,
    Peer::HaproxyTable,
];

/// Those that limit nothing.
pub const PLAIN: [Peer; 3] = [Peer::Tidegate, Peer::Nginx, Peer::Haproxy];

/// Those that limit each client.
pub const LIMITED: [Peer; 5] = [
    Peer::TidegateEmbedded,
    Peer::TidegateRedis,
    Peer::NginxLimit,
    Peer::NginxLua,
    Peer::HaproxyTable,
];

/// Those whose clients are counted in Redis.
pub const BY_REDIS: [Peer; 2] = [Peer::TidegateRedis, Peer::NginxLua];
/// Those, and what proxies cost without a limit.
pub const CLOSE: [Peer; 5] = [
    Peer::Tidegate,
    Peer::TidegateRedis,
    Peer::Nginx,
    Peer::NginxLua,
    Peer::Haproxy,
];
/// Those that reject without asking anybody.
pub const REJECTING: [Peer; 3] = [
    Peer::TidegateEmbedded,
    Peer::TidegateRedis,
    Peer::NginxLimit,
];

impl Peer {
    pub fn name(self) -> &'static str {
        match self {
            Peer::Tidegate => "tidegate",
            Peer::TidegateEmbedded => "tidegate, embedded store",
            Peer::TidegateRedis => "tidegate, Redis",
            Peer::Nginx => "nginx",
            Peer::NginxLimit => "nginx limit_req",
            Peer::NginxLua => "nginx + Lua + Redis",
            Peer::Haproxy => "HAProxy",
            Peer::HaproxyTable => "HAProxy stick-table",
        }
    }

    /// What the row means.
    pub fn what(self) -> &'static str {
        match self {
            Peer::Tidegate => "proxies, no limit",
            Peer::TidegateEmbedded => "exact sliding window, in the process",
            Peer::TidegateRedis => "the same in Redis, shared by all proxies",
            Peer::Nginx => "proxies, no limit",
            Peer::NginxLimit => "leaky bucket, in shared memory",
            Peer::NginxLua => "exact sliding window in Redis, in a script of ours",
            Peer::Haproxy => "proxies, no limit",
            Peer::HaproxyTable => "sliding rate, approximate, in the process",
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(
            self,
            Peer::Tidegate | Peer::TidegateEmbedded | Peer::TidegateRedis
        )
    }

    pub fn needs_redis(self) -> bool {
        matches!(self, Peer::TidegateRedis | Peer::NginxLua)
    }

    /// What a name is in a file's name.
    pub fn id(self) -> String {
        let word = |c: char| c.is_ascii_alphanumeric();
        let words = self
            .name()
            .split(|c| !word(c))
            .filter(|part| !part.is_empty());
        words.collect::<Vec<_>>().join("-").to_lowercase()
    }
}
