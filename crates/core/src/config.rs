//! The configuration: a `proxy.toml`, parsed, checked, and with every default filled in.
//!
//! [`load()`] returns a correct [`Config`] with warnings, or every mistake at once. No other room
//! reads TOML, knows a default or checks a range.
//!
//! A setting is declared in two places: by the reader of its section, with its form and its range,
//! and by its line in `proxy.reference.toml`, with its default and its description.

mod address;
mod admin;
mod advice;
mod api_key;
mod auth;
mod built;
mod bypass;
mod changes;
mod client_tls;
mod compile;
mod definitions;
mod deny;
pub mod diagnostic;
pub mod effective;
mod files;
mod flags;
mod habits;
mod interpolate;
mod limits;
mod load;
pub mod pem;
mod reader;
mod redis;
mod reference;
pub mod render;
mod route;
mod routes;
pub mod schema;
mod section;
mod server;
mod store;
mod syntax;
#[cfg(test)]
pub mod tests;
mod tls;
mod traces;
mod upstream;
mod values;
mod warnings;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderName;

use crate::client::ClientIp;
use crate::limit::headers::HeaderSettings;
use crate::limit::key::ApiKeys;
use crate::limit::key::jwt::JwtRules;
use crate::limit::tier::Tiers;
use crate::limit::{Limit, Tier, Window};
use crate::route::{HeaderChange, Prefix, Route, RouteTable};

pub use address::ServerAddress;
pub use admin::AdminSettings;
pub use built::{BuiltLimit, LimitsBuilder};
pub use bypass::Bypass;
pub use changes::{changes, restarts};
pub use client_tls::ClientTls;
pub use deny::{BodyKind, DenySettings};
pub use files::{NamedFile, SourceFiles};
pub use flags::{FlagConfig, from_flags, from_limit};
pub use load::{
    AdminPlace, Limits, admin_of, control_of, environment, load, load_limits, load_noting, parse,
    parse_limits,
};
pub use pem::{IdentityFiles, PemFile};
pub use redis::{RedisAddress, RedisSettings, RedisTopology, SentinelSettings};
pub use server::{
    Control, FINDINGS, LogFormat, LogKeys, LogSettings, LogTarget, ProxyProtocol, ServerSettings,
};
pub use store::{Fleet, StoreKind, StoreSettings};
pub use tls::{AcmeChallenge, AcmeSettings, ClientCertificates, TlsSettings, TlsVersion};
pub use traces::{Endpoint, OtlpProtocol, TracingSettings};
pub use upstream::{
    Balance, Ejection, HealthCheck, HostHeader, Retries, RetryOn, UpstreamServer, UpstreamSettings,
};

/// A whole, valid configuration. Each worker takes a [`Config::fresh_copy`], so that no two cores
/// share the reference counts on the path of a request.
#[derive(Debug)]
pub struct Config {
    pub listen: Vec<Listen>,
    /// Where clients connect over TLS.
    pub tls: Option<Arc<TlsSettings>>,
    /// The listener for operators.
    pub admin: Option<AdminSettings>,
    /// Where counts are kept.
    pub store: StoreSettings,
    /// How a client's address is found.
    pub client_ip: ClientIp,
    /// Where API keys are carried.
    pub api_key: ApiKeys,
    /// The tokens that are trusted.
    pub jwt: Option<JwtRules>,
    /// How a client gets its tier.
    pub tier: Option<Tiers>,
    /// Every limit, also those that no route uses.
    pub limits: Vec<Arc<Limit>>,
    /// Routes, ready to match; each refers to `upstreams` by index.
    pub routes: RouteTable,
    /// Requests that are never charged.
    pub bypass: Vec<Bypass>,
    /// The servers that requests go to.
    pub upstreams: Vec<UpstreamSettings>,
    /// The rate-limit headers for clients.
    pub headers: HeaderSettings,
    /// The header for ids of requests.
    pub request_id: Option<HeaderName>,
    /// The form of a denial.
    pub deny: DenySettings,
    /// Bounds on clients and on the process.
    pub server: ServerSettings,
    pub log: LogSettings,
    /// The collector of traces.
    pub tracing: Option<Arc<TracingSettings>>,
    /// The files that the configuration was read from.
    pub sources: Arc<SourceFiles>,
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

/// A secret. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(pub T);

impl<T: Deref> Deref for Secret<T> {
    type Target = T::Target;

    fn deref(&self) -> &T::Target {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Config {
    /// A copy with limits, routes and names of its own, for one worker: no two cores write to the
    /// same reference counts.
    pub fn fresh_copy(&self) -> Config {
        let limits: Vec<Arc<Limit>> = self.limits.iter().map(|limit| own_limit(limit)).collect();
        let by_name: HashMap<&str, &Arc<Limit>> =
            limits.iter().map(|limit| (&*limit.name, limit)).collect();
        let own_route = |route: &Route| Route {
            name: Arc::from(&*route.name),
            limits: route
                .limits
                .iter()
                .map(|limit| Arc::clone(by_name[&*limit.name]))
                .collect(),
            strip_prefix: route.strip_prefix.as_ref().map(Prefix::own),
            add_prefix: route.add_prefix.as_ref().map(Prefix::own),
            headers_up: route.headers_up.iter().map(HeaderChange::own).collect(),
            headers_down: route.headers_down.iter().map(HeaderChange::own).collect(),
            target: route.target.own(),
            ..route.clone()
        };
        let routes = RouteTable::new(self.routes.iter().map(own_route).collect())
            .expect("routes without conflicts have none when they are copied");
        Config {
            listen: self.listen.clone(),
            tls: self.tls.clone(),
            admin: self.admin.clone(),
            store: self.store.clone(),
            client_ip: self.client_ip.clone(),
            // All workers share the list of known keys: it may be long, and no request counts
            // references to it.
            api_key: self.api_key.clone(),
            jwt: self.jwt.clone(),
            tier: self.tier.as_ref().map(own_tiers),
            routes,
            bypass: self.bypass.iter().map(Bypass::clone).collect(),
            upstreams: self.upstreams.iter().map(own_upstream).collect(),
            headers: self.headers,
            request_id: self.request_id.as_ref().and_then(own_name),
            deny: self.deny.clone(),
            server: self.server.clone(),
            log: self.log.clone(),
            tracing: self.tracing.clone(),
            sources: Arc::clone(&self.sources),
            limits,
        }
    }
}

fn own_name(name: &HeaderName) -> Option<HeaderName> {
    HeaderName::from_bytes(name.as_str().as_bytes()).ok()
}

fn own_limit(limit: &Limit) -> Arc<Limit> {
    let own_tier = |tier: &Tier| Tier {
        name: Arc::from(&*tier.name),
        windows: own_windows(&tier.windows),
    };
    Arc::new(Limit {
        name: Arc::from(&*limit.name),
        windows: own_windows(&limit.windows),
        tiers: limit.tiers.iter().map(own_tier).collect(),
        candidate: own_windows(&limit.candidate),
        slot: limit.slot.as_ref().map(|slot| Arc::from(&**slot)),
        ..limit.clone()
    })
}

fn own_tiers(tiers: &Tiers) -> Tiers {
    Tiers {
        from: tiers.from.clone(),
        by_key: tiers.by_key,
        default: tiers.default.as_ref().map(|name| Arc::from(&**name)),
    }
}

fn own_windows(windows: &[Arc<Window>]) -> Vec<Arc<Window>> {
    let own = |window: &Arc<Window>| Arc::new(window.own());
    windows.iter().map(own).collect()
}

fn own_upstream(upstream: &UpstreamSettings) -> UpstreamSettings {
    UpstreamSettings {
        name: Arc::from(&*upstream.name),
        ..upstream.clone()
    }
}
