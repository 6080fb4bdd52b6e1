//! The configuration: a `proxy.toml`, parsed, checked, and with every default filled in.
//!
//! [`load()`] returns a correct [`Config`] with warnings, or every mistake at once. No other room
//! reads TOML, knows a default or checks a range.
//!
//! A setting is declared in two places: by the reader of its section, with its form and its range,
//! and by its line in `proxy.reference.toml`, with its default and its description. That line
//! describes the fields of settings that have no comment here.

mod access;
mod access_log;
mod address;
mod api_key;
mod auth;
mod billing;
mod callback_settings;
mod changes;
mod compile;
mod decide;
mod definitions;
mod deny;
mod descriptor;
pub mod diagnostic;
pub mod effective;
mod error_page;
mod files;
mod flags;
mod habits;
mod interpolation;
mod limit_names;
mod limits;
mod load;
mod overwrite;
pub mod pem;
mod promotion;
mod reader;
mod redis;
mod reference;
pub mod render;
mod route;
mod routes;
pub mod schema;
pub mod secrets;
mod section;
mod server;
mod setting_error;
mod status_path;
mod store;
mod syntax;
#[cfg(test)]
pub mod tests;
mod tls;
mod traces;
mod upstream;
mod usage;
mod values;
mod warnings;
mod zones;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderName;

use crate::client::ClientIp;
use crate::client::networks::AccessList;
use crate::descriptor::DescriptorTable;
use crate::ledger::LedgerSettings;
use crate::limit::headers::HeaderSettings;
use crate::limit::key::ApiKeys;
use crate::limit::key::jwt::JwtRules;
use crate::limit::tier::Tiers;
use crate::limit::{CalendarSettings, Limit, Tier, Window};
use crate::route::{ErrorPage, HeaderChange, Prefix, Route, RouteTable};
use crate::usage::settings::UsageSettings;

use diagnostic::{Code, Diagnostic, TextSpan, contradiction, duplicate, no_effect};
use habits::{did_you_mean, nearest};
use reader::{ConfigReader, Located, Places, ValueKind, values};
use section::Section;
use values::{DAY, MS, SECOND, TextForm, UP_TO_A_DAY, header_name};

pub use access_log::NamedLog;
pub use address::ServerAddress;
pub use api_key::process_secret;
pub use auth::JwksSettings;
pub use callback_settings::KeyCallbackSettings;
pub use changes::{changes, restarts};
pub use decide::DecideSettings;
pub use deny::{BODY_WORDS, BodyKind, Bypass, DenySettings};
pub use descriptor::MAX_ENTRIES;
pub use files::{NamedFile, RatePlace, SourceFiles};
pub use flags::{FlagConfig, from_flags, from_limit};
pub use limits::{SpellingError, looks_like_address, spelled};
pub use load::{
    AdminPlace, BuiltLimit, LimitsBuilder, admin_of, control_of, environment, load, load_limits,
    load_noting, load_text, parse, parse_limits,
};
pub use overwrite::{WriteKind, written_files};
pub use pem::{IdentityFiles, PemFile};
pub use promotion::{Promotion, promoted};
pub use redis::{RedisAddress, RedisSettings, RedisTopology, SentinelSettings};
pub use route::MAX_BODY_READ;
pub use server::{
    AdminSettings, ConnectionBounds, Control, FINDINGS, LogFormat, LogKeys, LogSettings, LogTarget,
    ProxyProtocol, ServerSettings,
};
pub use setting_error::{SettingError, place_of, span_of};
pub use status_path::StatusSettings;
pub use store::{Fleet, StoreKind, StoreSettings};
pub use tls::{
    AcmeChallenge, AcmeSettings, ClientCertificates, ClientTls, TlsSettings, TlsVersion,
};
pub use traces::{Endpoint, OtlpProtocol, TracingSettings};
pub use upstream::{
    Balance, Ejection, HealthCheck, HostHeader, Retries, RetryOn, UpstreamServer, UpstreamSettings,
};

/// A whole, valid configuration. Each worker takes a [`Config::fresh_copy`], so that no two cores
/// share the reference counts on the path of a request.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Vec<Listen>,
    pub tls: Option<Arc<TlsSettings>>,
    /// `None` if no proxy asks for decisions.
    pub decide: Option<Arc<DecideSettings>>,
    pub admin: Option<AdminSettings>,
    pub store: StoreSettings,
    pub client_ip: ClientIp,
    pub access: AccessList,
    pub api_key: ApiKeys,
    /// The service that knows the API keys; `None` if no service does.
    pub key_callback: Option<Arc<KeyCallbackSettings>>,
    pub jwt: Option<JwtRules>,
    /// Where the keys of tokens are fetched, if they are. All workers share the keys.
    pub jwks: Option<Arc<JwksSettings>>,
    pub tier: Option<Tiers>,
    /// Every limit, also those that no route uses.
    pub limits: Vec<Arc<Limit>>,
    /// Routes, ready to match; each refers to `upstreams` by index.
    pub routes: RouteTable,
    /// The route of a question that no other route takes, with the limit `default`. Only a file
    /// with `[decide]` has it.
    pub unrouted: Option<Box<Route>>,
    /// Where clients learn how much of their limits is left; `None` if they cannot.
    pub status: Option<Arc<StatusSettings>>,
    /// `None` if usage is not added up.
    pub ledger: Option<Arc<LedgerSettings>>,
    /// The rules for descriptors that other proxies send.
    pub descriptors: DescriptorTable,
    pub bypass: Vec<Bypass>,
    pub upstreams: Vec<UpstreamSettings>,
    /// Pages for errors of requests without a route.
    pub error_pages: Vec<Arc<ErrorPage>>,
    /// `[access_log.NAME]`, in the file's order.
    pub access_logs: Vec<NamedLog>,
    pub headers: HeaderSettings,
    pub request_id: Option<HeaderName>,
    pub deny: DenySettings,
    pub server: ServerSettings,
    pub log: LogSettings,
    pub tracing: Option<Arc<TracingSettings>>,
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

impl Listen {
    pub fn port(&self) -> Option<u16> {
        match self {
            Listen::Tcp(address) => Some(address.port()),
            Listen::Unix(_) => None,
        }
    }
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
            limits: (route.limits.iter())
                .map(|limit| Arc::clone(by_name[&*limit.name]))
                .collect(),
            strip_prefix: route.strip_prefix.as_ref().map(Prefix::deep_copy),
            add_prefix: route.add_prefix.as_ref().map(Prefix::deep_copy),
            headers_up: route
                .headers_up
                .iter()
                .map(HeaderChange::deep_copy)
                .collect(),
            headers_down: route
                .headers_down
                .iter()
                .map(HeaderChange::deep_copy)
                .collect(),
            trailers_down: route
                .trailers_down
                .iter()
                .map(HeaderChange::deep_copy)
                .collect(),
            target: route.target.deep_copy(),
            usage: route.usage.as_deref().map(own_usage),
            reads_body: (route.reads_body.as_deref()).map(|table| Arc::new(table.clone())),
            ..route.clone()
        };
        let routes = RouteTable::new(self.routes.iter().map(own_route).collect())
            .expect("routes without conflicts have none when they are copied");
        let own_name = |name: &HeaderName| HeaderName::from_bytes(name.as_str().as_bytes()).ok();
        let own_upstream = |upstream: &UpstreamSettings| UpstreamSettings {
            name: Arc::from(&*upstream.name),
            ..upstream.clone()
        };
        let own_tiers = |tiers: &Tiers| Tiers {
            default: tiers.default.as_deref().map(Arc::from),
            ..tiers.clone()
        };
        Config {
            status: self.status.as_deref().map(|status| {
                Arc::new(StatusSettings {
                    route: Box::new(own_route(&status.route)),
                    ..status.clone()
                })
            }),
            ledger: (self.ledger.as_deref()).map(|ledger| Arc::new(ledger.deep_copy())),
            unrouted: (self.unrouted.as_deref()).map(|route| Box::new(own_route(route))),
            routes,
            descriptors: (self.descriptors).with_limits(|limit| Arc::clone(by_name[&*limit.name])),
            tier: self.tier.as_ref().map(own_tiers),
            upstreams: self.upstreams.iter().map(own_upstream).collect(),
            request_id: self.request_id.as_ref().and_then(own_name),
            limits,
            // All workers share the list of known keys in `api_key`: it may be long, and no request
            // counts references to it.
            ..self.clone()
        }
    }
}

fn own_usage(usage: &UsageSettings) -> Arc<UsageSettings> {
    Arc::new(UsageSettings {
        name: Arc::from(&*usage.name),
        table: Arc::new((*usage.table).clone()),
        prices: Arc::new((*usage.prices).clone()),
        ..usage.clone()
    })
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
        calendar: Arc::new(CalendarSettings::clone(&limit.calendar)),
        slot: limit.slot.as_deref().map(Arc::from),
        ..limit.clone()
    })
}

fn own_windows(windows: &[Arc<Window>]) -> Vec<Arc<Window>> {
    let own = |window: &Arc<Window>| Arc::new(window.deep_copy());
    windows.iter().map(own).collect()
}
