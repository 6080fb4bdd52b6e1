//! `[upstream.NAME]`: the servers that requests go to, and the treatment of these servers.

mod health;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::address::ServerAddress;
use super::limits::check_sections;
use super::section::SectionsPresent;
use super::tls::{self, ClientTls};
use super::*;
use crate::limit::key::{Alternatives, Key, Part};
use crate::route::host_of;

pub use health::{Ejection, HealthCheck, Retries, RetryOn};

/// `[upstream.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamSettings {
    /// Its name. An upstream that is given as a URL is named by that URL.
    pub name: Arc<str>,
    pub servers: Vec<UpstreamServer>,
    pub balance: Balance,
    pub host: HostHeader,
    pub slow_start: Option<Duration>,
    pub connect_timeout: Duration,
    pub timeout: Duration,
    pub body_timeout: Duration,
    pub idle_timeout: Duration,
    pub connections: ConnectionBounds,
    /// Unused connections kept, per worker.
    pub max_idle: usize,
    /// Requests under way at once, per worker; over HTTP/1.1 each has a connection of its own.
    pub max_connections: usize,
    /// Requests that wait while all servers are at their limit, at most; 0 is no waiting.
    pub queue: usize,
    pub queue_timeout: Duration,
    pub dns_every: Duration,
    pub tls: Arc<ClientTls>,
    pub http2: bool,
    pub health: Option<HealthCheck>,
    pub eject: Option<Ejection>,
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
    pub(super) server_spans: Vec<TextSpan>,
    pub(super) is_used: bool,
}

pub(super) fn read(
    name: Located<String>,
    mut section: Section<'_>,
    present: SectionsPresent,
) -> DefinedUpstream {
    section.check_name(&name, "an upstream");
    let servers = servers(&mut section);
    let server_spans = servers.iter().map(|server| server.span.clone()).collect();
    let servers = values(servers);
    let settings = settings(&mut section, &name.value, servers, present);
    check_effects(&section, &settings);
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
    UpstreamSettings {
        name: Arc::from(name),
        balance: balance(section, present),
        host: host(section),
        slow_start: section.optional_duration("slow_start", UP_TO_A_DAY),
        connect_timeout: section.duration("connect_timeout", UP_TO_A_DAY),
        timeout: section.duration("timeout", UP_TO_A_DAY),
        body_timeout: section.duration("body_timeout", UP_TO_A_DAY),
        // The default is shorter than what common servers keep (Node and uvicorn: 5 s). A
        // connection is rarely closed by them at the moment it is used again.
        idle_timeout: section.duration("idle_timeout", UP_TO_A_DAY),
        connections: section.connection_bounds(),
        max_idle: section.integer("max_idle", 0..=1 << 20),
        max_connections: section.integer("max_connections", 1..=1 << 20),
        dns_every: section.duration("dns_every", SECOND..=DAY),
        queue: section.integer("queue", 0..=1 << 20),
        queue_timeout: section.duration("queue_timeout", UP_TO_A_DAY),
        tls: Arc::new(tls(section, &servers)),
        http2: http2(section, &servers),
        health: health::health(section),
        eject: health::eject(section),
        retries: health::retries(section),
        servers,
    }
}

/// Reports settings that change nothing beside the others.
fn check_effects(section: &Section<'_>, settings: &UpstreamSettings) {
    if section.has("queue_timeout") && !section.has("queue") {
        no_effect("`queue_timeout` changes nothing without `queue`")
            .at(
                &section.key_span("queue_timeout"),
                "no request waits for a server",
            )
            .help("say how many requests may wait, for example `queue = 100`")
            .report_to(section.reader);
    }
    if settings.slow_start.is_some() && matches!(settings.balance, Balance::Hash(_)) {
        no_effect("`slow_start` changes nothing beside `balance = \"hash:..\"`")
            .at(
                &section.key_span("slow_start"),
                "a new server gets all of its keys at once",
            )
            .at(&section.key_span("balance"), "")
            .help("use `p2c` or `round-robin`, or leave `slow_start` out")
            .report_to(section.reader);
    }
    let servers = &settings.servers;
    let is_name = |server: &UpstreamServer| {
        let at = server.address.host_and_port();
        at.is_some_and(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().is_err())
    };
    if servers.iter().any(is_name) {
        return;
    }
    if settings.dns_every != section.default_duration("dns_every") {
        no_effect("`dns_every` changes nothing without names")
            .at(&section.key_span("dns_every"), "all servers are addresses")
            .help("leave `dns_every` out")
            .report_to(section.reader);
    }
    if servers.len() == 1 {
        check_single_server(section, settings);
    }
}

/// Reports settings that need a second server.
fn check_single_server(section: &Section<'_>, settings: &UpstreamSettings) {
    let retries = &settings.retries;
    if retries.attempts > 0 && !retries.same_server && !retries.on.status.is_empty() {
        no_effect("no request is sent again because of its status")
            .at(&section.key_span("retries"), "there is no other server")
            .help("write `same_server = true` in `retries`, or name another server")
            .report_to(section.reader);
    }
    let eject = settings.eject.as_ref();
    if eject.is_some_and(|eject| !eject.status.is_empty()) {
        no_effect("no status makes a server left out")
            .at(
                &section.key_span("eject"),
                "the only server is never left out",
            )
            .help("name another server, or leave `eject` out")
            .report_to(section.reader);
    }
}

/// Reports a server that a member of the body would choose: bodies are read for limits alone.
fn check_body_parts(section: &Section<'_>, parts: &Alternatives, span: &TextSpan) {
    if let Some(part) = parts.0.iter().find(|part| matches!(part, Part::Body(_))) {
        contradiction(format!("`{part}` cannot choose a server"))
            .at(span, "bodies are read for limits only")
            .help("balance by something in the head: `hash:header:NAME`, `hash:cookie:NAME`")
            .report_to(section.reader);
    }
}

fn balance(section: &mut Section<'_>, present: SectionsPresent) -> Balance {
    let form = TextForm::new(Code::BadKey, "a way to balance");
    let balance = section.parse("balance", form, |text| match text.split_once(':') {
        None if text == "p2c" => Ok(Balance::P2c),
        None if text == "round-robin" => Ok(Balance::RoundRobin),
        Some(("hash", key)) => {
            let part = Key::parse_part(key).map_err(|error| error.to_string())?;
            Ok(Balance::Hash(Key::new(vec![part])))
        }
        _ => Err("write `p2c`, `round-robin` or for example `hash:cookie:session`".to_owned()),
    });
    if let Some(Balance::Hash(key)) = &balance {
        for part in &key.parts {
            let span = section.value_span("balance");
            check_sections(section, part, &span, present);
            check_body_parts(section, part, &span);
        }
    }
    balance.unwrap_or_default()
}

fn host(section: &mut Section<'_>) -> HostHeader {
    let form = TextForm::new(Code::BadHttp, "`pass`, `rewrite` or a host");
    let host = section.parse("host", form, |text| match text {
        "pass" => Ok(HostHeader::Pass),
        "rewrite" => Ok(HostHeader::Rewrite),
        text => host_of(text).map(|_| HostHeader::Fixed(text.into())),
    });
    host.unwrap_or_default()
}

const MAX_SERVERS: usize = 256;
const MAX_WEIGHT: u64 = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    pub address: ServerAddress,
    /// Its share of the requests, relative to the other servers; at least 1.
    pub weight: u32,
    /// Requests under way there at once, over all workers; `None` for no bound of its own.
    pub max_connections: Option<usize>,
    /// It gets requests only while no other server may get them.
    pub backup: bool,
}

impl From<ServerAddress> for UpstreamServer {
    fn from(address: ServerAddress) -> UpstreamServer {
        UpstreamServer {
            address,
            weight: 1,
            max_connections: None,
            backup: false,
        }
    }
}

impl fmt::Display for UpstreamServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// Reads `servers`: a URL, a table, or a list of them.
fn servers(section: &mut Section<'_>) -> Vec<Located<UpstreamServer>> {
    section.require("servers", "servers = [\"http://10.0.1.10:3000\"]");
    let Some(value) = section.take("servers", || ValueKind::TextsOrTables) else {
        return Vec::new();
    };
    let values: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
        DeValue::Array(values) => values.iter().collect(),
        _ => vec![value],
    };
    if !(1..=MAX_SERVERS).contains(&values.len()) {
        section.out_of_range("servers", &format!("1 to {MAX_SERVERS} servers"));
    }
    let mut servers: Vec<Located<UpstreamServer>> = Vec::new();
    for server in values
        .into_iter()
        .filter_map(|value| server(section, value))
    {
        let is_same =
            |first: &&Located<UpstreamServer>| first.value.address == server.value.address;
        if let Some(first) = servers.iter().find(is_same) {
            duplicate("the same server twice")
                .at(&server.span, "")
                .at(&first.span, "first here")
                .help("a server gets more of the requests by its `weight`")
                .report_to(section.reader);
        }
        servers.push(server);
    }
    if !servers.is_empty() && servers.iter().all(|server| server.value.backup) {
        contradiction("all servers are backups")
            .at(
                &section.value_span("servers"),
                "no server is there to be replaced",
            )
            .help("leave `backup` out of at least one server")
            .report_to(section.reader);
    }
    servers
}

/// Reads a URL, or `{ url = "http://10.0.1.10:3000", weight = 3 }`.
fn server<'r>(
    section: &Section<'r>,
    value: &'r Spanned<DeValue<'r>>,
) -> Option<Located<UpstreamServer>> {
    const FORM: TextForm = TextForm::new(Code::BadUrl, "a server's URL");
    match value.get_ref() {
        DeValue::String(_) => {
            let text = section.interpolated(value)?;
            let address =
                section.parse_text("servers", text, FORM, |text| section.server_at(text))?;
            Some(address.map(UpstreamServer::from))
        }
        DeValue::Table(table) => {
            let mut section = section.inner("servers", Some(table), value.span());
            section.require("url", "url = \"http://10.0.1.10:3000\"");
            let url = section.located_text("url");
            let address = url.and_then(|text| {
                section.parse_text("url", text, FORM, |text| section.server_at(text))
            });
            let weight = section.integer("weight", 1..=MAX_WEIGHT);
            let most = section.optional_integer("max_connections", 1..=1 << 20);
            let backup = section.boolean("backup");
            section.finish();
            Some(address?.map(|address| UpstreamServer {
                address,
                weight,
                max_connections: most,
                backup,
            }))
        }
        _ => {
            section.wrong_type("servers", value, "a URL, a table, or a list of them");
            None
        }
    }
}

fn tls(upstream: &mut Section<'_>, servers: &[UpstreamServer]) -> ClientTls {
    let mut section = upstream.section("tls");
    let mut tls = tls::read_client_keys(&mut section, "upstream-client");
    tls.crl = (section.revocation_lists("crl")).map(|file| file.content);
    tls.unverified = !section.boolean("verify");
    tls.hides_name = !section.boolean("sni");
    tls.never_resumes = !section.boolean("resume");
    let verify = section.key_span("verify");
    section.finish();
    if tls != ClientTls::default() {
        check_https(upstream, "tls", servers, "write `https://` in `servers`");
    }
    let for_verifying = [("ca", tls.ca.is_some()), ("crl", tls.crl.is_some())];
    let useless = for_verifying.into_iter().find(|(_, is_given)| *is_given);
    if let (true, Some((key, _))) = (tls.unverified, useless) {
        contradiction(format!("`{key}` is for verifying, and `verify` is off"))
            .at(&verify, "the proxy accepts every certificate of the server")
            .help("leave one of the two out")
            .report_to(upstream.reader);
    } else if tls.unverified {
        Diagnostic::new(
            Code::UnverifiedTls,
            "the upstream's certificate is not verified",
        )
        .at(
            &verify,
            "an attacker in the network can pose as its servers",
        )
        .help("name the authority that signs it: `tls = { ca = \"/etc/tidegate/ca.pem\" }`")
        .report_to(upstream.reader);
    }
    let hosts = servers.iter().filter_map(|server| match &server.address {
        ServerAddress::Https(host, _) => Some(host.as_str()),
        _ => None,
    });
    let name = "`tls = { name = \"api.example\" }`";
    tls.check_host_names(upstream, "servers", hosts, name);
    tls
}

/// Reads `http2`. Without it, `https` servers get HTTP/1.1.
fn http2(upstream: &mut Section<'_>, servers: &[UpstreamServer]) -> bool {
    let http2 = upstream.boolean("http2");
    if !http2 {
        let help = "HTTP/2 without TLS is spoken to `h2c://` servers, and only to them";
        check_https(upstream, "http2", servers, help);
    }
    http2
}

/// Reports a setting for `https` servers in an upstream that has none.
fn check_https(upstream: &Section<'_>, key: &str, servers: &[UpstreamServer], help: &str) {
    let is_https = |server: &UpstreamServer| matches!(server.address, ServerAddress::Https(..));
    // An upstream without any server has been reported.
    if servers.is_empty() || servers.iter().any(is_https) {
        return;
    }
    contradiction(format!(
        "`{}` is for `https` servers",
        upstream.full_key(key)
    ))
    .at(&upstream.key_span(key), "this upstream has none")
    .help(help)
    .report_to(upstream.reader);
}
