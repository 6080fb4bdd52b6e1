//! The blueprint: everything a `proxy.toml` says, parsed, checked and with every default filled in.
//!
//! A [`Config`] exists only if it is right: [`load()`] returns it, with warnings, or
//! every mistake at once.
//! Nothing after this file looks at TOML, guesses a default or checks a range again.

mod acme;
mod address;
mod admin;
mod advice;
mod api_key;
mod auth;
mod budget;
mod built;
mod bypass;
mod changes;
mod client_tls;
mod compile;
mod copy;
pub mod diagnostic;
pub mod effective;
mod files;
mod flags;
mod hints;
mod interpolate;
mod inventable;
mod known;
mod limits;
mod load;
mod mask;
mod meant;
mod names;
pub mod pem;
mod reader;
mod redis;
mod redis_keys;
pub mod render;
mod route;
mod routes;
pub mod schema;
mod section;
mod settings;
mod slip;
mod standalone;
mod store_url;
mod syntax;
#[cfg(test)]
mod tests;
mod tier;
mod tls;
mod tls_keys;
mod traces;
mod upstream;
mod values;
mod warnings;
mod written;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use crate::client::ClientIp;
use crate::limit::headers::HeaderSettings;
use crate::limit::key::ApiKeys;
use crate::limit::key::jwt::JwtRules;
use crate::limit::tier::Tiers;
use crate::limit::{Limit, OnError};
use crate::route::RouteTable;

pub use acme::{AcmeChallenge, AcmeSettings};
pub use address::ServerAddress;
pub use admin::AdminSettings;
pub use built::{BuiltLimit, LimitsBuilder};
pub use bypass::Bypass;
pub use changes::{changes, restarts};
pub use client_tls::ClientTls;
pub use flags::{FlagConfig, from_flags, from_limit};
pub use load::{
    AdminPlace, admin_of, control_of, environment, load, load_limits, load_noting, parse,
    parse_limits,
};
pub use redis::{RedisAddress, RedisSettings, RedisTopology, Sentinels};
pub use standalone::Limits;
pub use tls::{ClientCertificates, IdentityFiles, PemFile, TlsSettings, TlsVersion};
pub use traces::{Endpoint, OtlpProtocol, TracingSettings};
pub use upstream::{
    Balance, Ejection, HealthCheck, HostHeader, Retries, RetryOn, UpstreamServer, UpstreamSettings,
};
pub use written::{NamedFile, Written};

/// A whole, valid configuration. Each worker takes a [`Config::fresh_copy`], so that no two cores
/// share the reference counts on the path of a request.
#[derive(Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: Vec<Listen>,
    /// Where they connect over TLS, if anywhere.
    pub tls: Option<Arc<TlsSettings>>,
    /// Where operators look in, if anywhere.
    pub admin: Option<AdminSettings>,
    /// Where counts live.
    pub store: StoreSettings,
    /// How a client's address is found.
    pub client_ip: ClientIp,
    /// Where API keys are carried.
    pub api_key: ApiKeys,
    /// Which tokens are believed.
    pub jwt: Option<JwtRules>,
    /// Which tier a client has.
    pub tier: Option<Tiers>,
    /// Every budget by name, also those that no route uses.
    pub limits: Vec<Arc<Limit>>,
    /// Routes, ready to match; each refers to `upstreams` by index.
    pub routes: RouteTable,
    /// Requests that are never charged.
    pub bypass: Vec<Bypass>,
    /// Where requests go.
    pub upstreams: Vec<UpstreamSettings>,
    /// Which rate-limit headers a client gets.
    pub headers: HeaderSettings,
    /// The header in which requests have ids, if they have.
    pub request_id: Option<HeaderName>,
    /// What a denial looks like.
    pub deny: DenySettings,
    /// Bounds on clients and on ourselves.
    pub server: ServerSettings,
    /// What is logged, and where.
    pub log: LogSettings,
    /// Where traces are sent, if anywhere.
    pub tracing: Option<Arc<TracingSettings>>,
    /// What all this was read from.
    pub written: Arc<Written>,
}

/// One address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address; `:8080` is every IPv4 and IPv6 address.
    Tcp(SocketAddr),
    /// A unix socket's path.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `[store]`
#[derive(Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// Which store.
    pub kind: StoreKind,
    /// What every key in Redis begins with.
    pub prefix: String,
    /// A decision never waits longer than this.
    pub timeout: Duration,
    /// What an outage means for limits that do not say it themselves.
    pub on_error: OnError,
    /// How many proxies share the store.
    pub fleet: Fleet,
    /// The secret that keys are hashed with, when the file gives one (`hash_key_file`); else it is
    /// made once and kept in Redis, or in this process.
    pub hash_key: Option<[u8; 32]>,
    /// Keys the embedded store holds at most.
    pub max_keys: usize,
    /// Bytes the embedded store's counts take at most.
    pub max_memory: usize,
}

/// How many proxies share the store: each keeps its part of every budget while it is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fleet {
    /// So many; at least 1.
    Fixed(u32),
    /// As many as are seen alive.
    Auto,
}

/// Where counts are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    Memory,
    /// In Redis or Valkey.
    Redis(RedisSettings),
}

/// `[deny]`
#[derive(Clone, Debug)]
pub struct DenySettings {
    /// Status of a denial; 429 unless the file says otherwise.
    pub status: StatusCode,
    /// Where clients read about the limits; sent as the problem's `docs` member and a `Link`.
    pub docs_url: Option<String>,
    /// Body templates by media type, instead of the built-in ones. `{limit}`, `{retry_after}`
    /// and `{request_id}` are filled in.
    pub body: Vec<(BodyKind, String)>,
}

/// Media types a denial is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// `application/problem+json`
    Json,
    /// `text/html`
    Html,
    /// `text/plain`
    Text,
}

/// `[server]`
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Worker threads, at least 1; 0 in the file has become one for each core.
    pub workers: usize,
    /// Client connections at once, over all workers.
    pub max_connections: usize,
    /// Of them, those of one address (IPv6: of one /64) that does not speak for others; `None` for
    /// no bound.
    pub max_connections_per_ip: Option<usize>,
    /// From a request's first byte until its head is whole.
    pub header_timeout: Duration,
    /// How long a connection may wait between requests (and before its first byte).
    pub idle_timeout: Duration,
    /// Between two reads of a request's body, and between two writes to a slow reader.
    pub body_timeout: Duration,
    /// Bytes in a request's head.
    pub max_header_bytes: usize,
    /// Header lines in a request.
    pub max_headers: usize,
    /// Whether connections begin with who is behind them.
    pub proxy_protocol: ProxyProtocol,
    /// Whether clients may speak HTTP/2.
    pub http2: bool,
    /// The port of `https` to which plain requests are sent.
    pub https_port: Option<u16>,
    /// Requests at once on a connection of HTTP/2.
    pub max_streams: u32,
    /// Bytes in a request's body; `None` for no bound.
    pub max_body: Option<u64>,
    /// How long requests under way may take after SIGTERM.
    pub drain_timeout: Duration,
    /// How long idle connections stay open after SIGTERM for one more request.
    pub drain_idle: Duration,
    /// How long requests and tunnels under way may take after an upgrade.
    pub handover_timeout: Duration,
    /// Where the process's id is written once it serves.
    pub pid_file: Option<PathBuf>,
    /// Where commands reach the running process.
    pub control: Control,
}

/// A socket for commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// At a place that follows from the configuration's path.
    Derived,
    /// At this path.
    At(PathBuf),
    /// There is none.
    Off,
}

/// Whether a trusted peer's connections begin with a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Never.
    #[default]
    Off,
    /// Some do.
    Optional,
    /// All do, and there is no other peer.
    Required,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq)]
pub struct LogSettings {
    /// One JSON line per decision, for audits.
    pub decisions: Option<PathBuf>,
    /// The access log's form; `None` is text on a terminal and JSON otherwise.
    pub format: Option<LogFormat>,
    /// Where the access log goes.
    pub access: LogTarget,
    /// Share of allowed requests that are logged, 0 to 1; everything else is logged always.
    pub sample_allowed: f64,
    /// How client keys appear.
    pub keys: LogKeys,
    /// Findings that are not told, of [`FINDINGS`].
    pub silence: Vec<&'static str>,
}

/// What may be found of a running proxy, as people name it.
pub const FINDINGS: [&str; 6] = [
    "untrusted-forwarded",
    "one-client",
    "store-clock",
    "store-evicts",
    "store-replica",
    "store-full",
];

/// The access log's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Short lines for people.
    Text,
    /// One JSON object per line.
    Json,
    /// The combined format of Apache and nginx.
    Combined,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, appended to.
    File(PathBuf),
}

/// How client keys appear in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKeys {
    /// A prefix of the keyed hash.
    Hash,
    /// As they are, which is only done where it is asked for.
    Plain,
    /// Not at all.
    Off,
}

impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSettings")
            .field("kind", &self.kind)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("on_error", &self.on_error)
            .field("fleet", &self.fleet)
            .field("hash_key", &self.hash_key.map(|_| Hidden))
            .field("max_keys", &self.max_keys)
            .field("max_memory", &self.max_memory)
            .finish()
    }
}

impl fmt::Debug for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreKind::Memory => f.write_str("Memory"),
            StoreKind::Redis(redis) => redis.fmt(f),
        }
    }
}

/// Stands for a secret wherever it might be printed.
struct Hidden;

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
