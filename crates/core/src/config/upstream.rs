//! `[upstream.NAME]`: the servers that requests go to, and how they are treated.
//!
//! Every default of such a section is in [`UpstreamSettings::new`]. Parts of it that have a table
//! of their own are in files of their own below this one.

mod balance;
mod health;
mod host;
mod retries;
mod servers;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use super::client_tls::ClientTls;
use super::diagnostic::Span;
use super::limits::Known;
use super::reader::At;
use super::section::Section;
use super::values::some_time;
pub use balance::Balance;
pub use health::{Ejection, HealthCheck};
pub use host::HostHeader;
pub use retries::{Retries, RetryOn};
pub use servers::UpstreamServer;

const SECOND: Duration = Duration::from_secs(1);
/// Names are looked up at least once in this time.
const DAY: Duration = Duration::from_secs(86_400);

/// `[upstream.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamSettings {
    /// Its name; an upstream given as a URL is named by that URL.
    pub name: Arc<str>,
    /// One or more servers, none twice.
    pub servers: Vec<UpstreamServer>,
    /// How one of them is chosen.
    pub balance: Balance,
    /// What its servers are asked for.
    pub host: HostHeader,
    /// How long a server that is new or back takes to get its whole part of the requests.
    pub slow_start: Option<Duration>,
    /// Until a connection stands.
    pub connect_timeout: Duration,
    /// From the request's last byte until the response's head.
    pub timeout: Duration,
    /// Between two reads of a response's body.
    pub body_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// Unused connections kept, per worker.
    pub max_idle: usize,
    /// Requests under way at once, per worker; over HTTP/1.1 each has a connection of its own.
    pub max_connections: usize,
    /// Requests that wait at most while all servers have as many as they may; 0 is no waiting.
    pub queue: usize,
    /// How long each of them waits at most.
    pub queue_timeout: Duration,
    /// How often the names of its servers are looked up.
    pub dns_every: Duration,
    /// TLS to its `https` servers.
    pub tls: Arc<ClientTls>,
    /// Whether HTTP/2 is offered to its `https` servers.
    pub http2: bool,
    /// What each server is asked from time to time.
    pub health: Option<HealthCheck>,
    /// When a server is left alone for what requests met there.
    pub eject: Option<Ejection>,
    /// When a request is sent again.
    pub retries: Retries,
}

impl UpstreamSettings {
    /// An upstream of this name, with all defaults.
    pub fn new(name: &str, servers: Vec<UpstreamServer>) -> UpstreamSettings {
        UpstreamSettings {
            name: Arc::from(name),
            servers,
            balance: Balance::default(),
            host: HostHeader::Pass,
            slow_start: None,
            connect_timeout: 2 * SECOND,
            timeout: 60 * SECOND,
            body_timeout: 60 * SECOND,
            // Shorter than what common servers keep (Node and uvicorn: 5 s), so that a connection
            // is rarely closed by them at the moment it is used again.
            idle_timeout: 4 * SECOND,
            max_idle: 256,
            max_connections: 1024,
            queue: 0,
            queue_timeout: SECOND,
            dns_every: 30 * SECOND,
            tls: Arc::default(),
            http2: true,
            health: None,
            eject: Some(Ejection::default()),
            retries: Retries::default(),
        }
    }
}

/// An upstream as it is written, and where.
pub(super) struct RawUpstream {
    pub(super) settings: UpstreamSettings,
    pub(super) span: Span,
    /// Where each of its servers is named.
    pub(super) server_spans: Vec<Span>,
}

/// `[upstream.NAME]`
pub(super) fn read(name: At<String>, mut section: Section<'_>, known: Known) -> RawUpstream {
    section.check_name(&name, "an upstream");
    let servers = servers::servers(&mut section);
    let server_spans = servers.iter().map(|server| server.span.clone()).collect();
    let servers = servers.into_iter().map(|server| server.value).collect();
    let plain = UpstreamSettings::new(&name.value, servers);
    let settings = UpstreamSettings {
        balance: balance::balance(&mut section, known),
        host: host::host(&mut section),
        slow_start: section
            .length("slow_start", some_time())
            .map(|length| length.value),
        connect_timeout: section.duration("connect_timeout", some_time(), plain.connect_timeout),
        timeout: section.duration("timeout", some_time(), plain.timeout),
        body_timeout: section.duration("body_timeout", some_time(), plain.body_timeout),
        idle_timeout: section.duration("idle_timeout", some_time(), plain.idle_timeout),
        max_idle: section.count("max_idle", 0..=1 << 20, plain.max_idle),
        max_connections: section.count("max_connections", 1..=1 << 20, plain.max_connections),
        dns_every: section.duration("dns_every", SECOND..=DAY, plain.dns_every),
        queue: section.count("queue", 0..=1 << 20, plain.queue),
        queue_timeout: section.duration("queue_timeout", some_time(), plain.queue_timeout),
        tls: Arc::new(tls::read(&mut section, &plain.servers)),
        http2: tls::http2(&mut section, &plain.servers),
        health: health::health(&mut section),
        eject: health::eject(&mut section),
        retries: retries::retries(&mut section),
        ..plain
    };
    section.finish();
    RawUpstream {
        settings,
        span: name.span,
        server_spans,
    }
}
