//! `[upstream.NAME]`: the servers that requests go to, and the treatment of these servers.

mod health;
mod servers;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::client_tls::ClientTls;
use super::diagnostic::{Code, TextSpan};
use super::limits::{SectionsPresent, check_sections};
use super::reader::{Located, values};
use super::section::Section;
use super::values::{DAY, SECOND, TextForm, UP_TO_A_DAY};
use crate::limit::key::Key;
use crate::route::host_of;
pub use health::{Ejection, HealthCheck, Retries, RetryOn};
pub use servers::UpstreamServer;

/// `[upstream.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamSettings {
    /// Its name. An upstream that is given as a URL is named by that URL.
    pub name: Arc<str>,
    /// One or more servers, all different.
    pub servers: Vec<UpstreamServer>,
    /// How a server is chosen for a request.
    pub balance: Balance,
    /// The `Host` of requests to its servers.
    pub host: HostHeader,
    /// How long a server that is new or back takes to get its full share of the requests.
    pub slow_start: Option<Duration>,
    /// The longest wait for a connection.
    pub connect_timeout: Duration,
    /// From the request's last byte to the response's head.
    pub timeout: Duration,
    /// Between two reads of a response's body.
    pub body_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// Unused connections kept, per worker.
    pub max_idle: usize,
    /// Requests under way at once, per worker; over HTTP/1.1 each has a connection of its own.
    pub max_connections: usize,
    /// Requests that wait while all servers are at their limit, at most; 0 is no waiting.
    pub queue: usize,
    /// The longest wait of each such request.
    pub queue_timeout: Duration,
    /// How often the names of its servers are looked up.
    pub dns_every: Duration,
    /// TLS to its `https` servers.
    pub tls: Arc<ClientTls>,
    /// Whether HTTP/2 is offered to its `https` servers.
    pub http2: bool,
    /// The health check of each server.
    pub health: Option<HealthCheck>,
    /// When failed requests take a server out.
    pub eject: Option<Ejection>,
    /// When a request is sent again.
    pub retries: Retries,
}

/// How one of several servers is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// The less busy one of two servers drawn at random, unless it is much slower.
    #[default]
    P2c,
    /// In turn.
    RoundRobin,
    /// The server that belongs to this key of the request.
    Hash(Key),
}

/// The `Host` of requests to an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostHeader {
    /// The host that the client asked for.
    #[default]
    Pass,
    /// Each server's own, from its URL.
    Rewrite,
    /// Always this.
    Fixed(Box<str>),
}

impl UpstreamSettings {
    /// An upstream with all defaults.
    pub fn new(name: &str, servers: Vec<UpstreamServer>) -> UpstreamSettings {
        static DEFAULTS: LazyLock<UpstreamSettings> = LazyLock::new(|| {
            let present = SectionsPresent::default();
            let read = |section: &mut Section<'_>| settings(section, "", Vec::new(), present);
            Section::read_defaults("upstream.NAME", read)
        });
        UpstreamSettings {
            name: Arc::from(name),
            servers,
            ..DEFAULTS.clone()
        }
    }
}

/// An upstream and its places in the file.
pub(super) struct DefinedUpstream {
    pub(super) settings: UpstreamSettings,
    pub(super) span: TextSpan,
    /// The places of its servers.
    pub(super) server_spans: Vec<TextSpan>,
    /// Whether a route uses it.
    pub(super) is_used: bool,
}

/// Reads `[upstream.NAME]`.
pub(super) fn read(
    name: Located<String>,
    mut section: Section<'_>,
    present: SectionsPresent,
) -> DefinedUpstream {
    section.check_name(&name, "an upstream");
    let servers = servers::servers(&mut section);
    let server_spans = servers.iter().map(|server| server.span.clone()).collect();
    let servers = values(servers);
    let settings = settings(&mut section, &name.value, servers, present);
    section.finish();
    DefinedUpstream {
        settings,
        span: name.span,
        server_spans,
        is_used: false,
    }
}

fn settings(
    section: &mut Section<'_>,
    name: &str,
    servers: Vec<UpstreamServer>,
    present: SectionsPresent,
) -> UpstreamSettings {
    let slow_start = section.optional_duration("slow_start", UP_TO_A_DAY);
    UpstreamSettings {
        name: Arc::from(name),
        balance: balance(section, present),
        host: host(section),
        slow_start: slow_start.map(|length| length.value),
        connect_timeout: section.duration("connect_timeout", UP_TO_A_DAY),
        timeout: section.duration("timeout", UP_TO_A_DAY),
        body_timeout: section.duration("body_timeout", UP_TO_A_DAY),
        // The default is shorter than what common servers keep (Node and uvicorn: 5 s). A
        // connection is rarely closed by them at the moment it is used again.
        idle_timeout: section.duration("idle_timeout", UP_TO_A_DAY),
        max_idle: section.integer("max_idle", 0..=1 << 20),
        max_connections: section.integer("max_connections", 1..=1 << 20),
        dns_every: section.duration("dns_every", SECOND..=DAY),
        queue: section.integer("queue", 0..=1 << 20),
        queue_timeout: section.duration("queue_timeout", UP_TO_A_DAY),
        tls: Arc::new(servers::tls(section, &servers)),
        http2: servers::http2(section, &servers),
        health: health::health(section),
        eject: health::eject(section),
        retries: health::retries(section),
        servers,
    }
}

/// Reads `balance`: `p2c`, `round-robin` or `hash:KEY`.
fn balance(section: &mut Section<'_>, present: SectionsPresent) -> Balance {
    let form = TextForm::new(Code::BadKey, "a way to balance");
    let balance = section.parse("balance", form, |text| match text.split_once(':') {
        None if text == "p2c" => Ok((Balance::P2c, None)),
        None if text == "round-robin" => Ok((Balance::RoundRobin, None)),
        Some(("hash", key)) => {
            let part = Key::parse_part(key).map_err(|error| error.to_string())?;
            let parts = vec![part.clone()];
            Ok((Balance::Hash(Key { parts }), Some(part)))
        }
        _ => Err("write `p2c`, `round-robin` or for example `hash:cookie:session`".to_owned()),
    });
    let Some(balance) = balance else {
        return Balance::default();
    };
    let (chosen, key) = balance.value;
    if let Some(part) = key {
        check_sections(section, &Located::new(part, &balance.span), present);
    }
    chosen
}

/// Reads `host`: `pass`, `rewrite`, or a host.
fn host(section: &mut Section<'_>) -> HostHeader {
    let form = TextForm::new(Code::BadHttp, "`pass`, `rewrite` or a host");
    let host = section.parse("host", form, |text| match text {
        "pass" => Ok(HostHeader::Pass),
        "rewrite" => Ok(HostHeader::Rewrite),
        text => host_of(text).map(|_| HostHeader::Fixed(text.into())),
    });
    host.map_or(HostHeader::Pass, |host| host.value)
}
