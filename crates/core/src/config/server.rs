//! `[server]`, `[client_ip]`, `[log]` and `admin`: clients' connections, the process, its logs and
//! the listener for operators.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::client::ClientIp;

const MIB: u64 = 1 << 20;

/// `[server]`
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Worker threads, at least 1. Zero in the file means one for each core.
    pub workers: usize,
    /// Client connections at once, over all workers.
    pub max_connections: usize,
    /// Client connections at once of one address (IPv6: of one /64) that is no trusted proxy;
    /// `None` for no bound.
    pub max_connections_per_ip: Option<usize>,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    pub body_timeout: Duration,
    pub connections: ConnectionBounds,
    pub max_header_bytes: usize,
    pub max_headers: usize,
    /// Whether request headers with `_` in their names pass; else they are removed.
    pub underscores_in_headers: bool,
    pub proxy_protocol: ProxyProtocol,
    pub http2: bool,
    /// The port of `https` to which plain requests are redirected.
    pub https_port: Option<u16>,
    pub max_streams: u32,
    /// Bytes in a request's body; `None` for no bound.
    pub max_body: Option<u64>,
    /// Bytes of all bodies that are read before a decision, in this process, at most.
    pub body_memory: usize,
    /// Requests that limits with `delay` hold at once in this process, at most.
    pub waiting: usize,
    pub drain_timeout: Duration,
    pub drain_idle: Duration,
    pub handover_timeout: Duration,
    pub pid_file: Option<PathBuf>,
    pub control: Control,
}

/// `connection_requests` and `connection_age`, towards clients and towards servers: after either
/// bound a connection gets no more requests. `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionBounds {
    pub requests: Option<u32>,
    pub age: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// At a path that follows from the configuration's path.
    Derived,
    /// At this path.
    At(PathBuf),
    Off,
}

/// Whether a trusted peer's connections begin with a header of the PROXY protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    #[default]
    Off,
    Optional,
    Required,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq)]
pub struct LogSettings {
    pub decisions: Option<PathBuf>,
    /// The access log's form; `None` is text on a terminal and JSON otherwise.
    pub format: Option<LogFormat>,
    pub access: LogTarget,
    /// The share of allowed requests in the access log, 0 to 1. All other requests are in it.
    pub sample_allowed: f64,
    pub keys: LogKeys,
    /// Findings, of [`FINDINGS`], that are not logged.
    pub silence: Vec<&'static str>,
}

/// The ids of findings about a running proxy.
pub const FINDINGS: [&str; 18] = [
    "untrusted-forwarded",
    "one-client",
    "store-clock",
    "store-evicts",
    "store-replica",
    "store-full",
    "decide-unmatched",
    "decide-overrides",
    "decide-report",
    "decide-from",
    "usage-missing",
    "usage-encoded",
    "usage-above-estimate",
    "store-file",
    "jwks-stale",
    "known-keys",
    "key-callback",
    "decide-headers",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
    /// The combined format of Apache and nginx.
    Combined,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Off,
    Stdout,
    Stderr,
    /// A file; lines are appended.
    File(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKeys {
    Hash,
    Plain,
    Off,
}

/// Reads `[server]`, and `proxy_protocol` at the top.
pub(super) fn read(top: &mut Section<'_>, places: &mut Places) -> ServerSettings {
    const CONTROL: TextForm = TextForm::new(Code::BadAddress, "a socket's path, or `off`");
    const ANY_WAIT: std::ops::RangeInclusive<Duration> = Duration::ZERO..=DAY;
    let proxy_protocol = read_proxy_protocol(top);
    let mut section = top.section("server");
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let workers = match section.integer("workers", 0..=1024) {
        0 => cores(),
        workers => workers,
    };
    let drain_timeout = section.duration("drain_timeout", ANY_WAIT);
    let handover_timeout = section.optional_duration("handover_timeout", ANY_WAIT);
    let settings = ServerSettings {
        workers,
        max_connections: section.integer("max_connections", 1..=10_000_000),
        max_connections_per_ip: section.optional_integer("max_connections_per_ip", 1..=10_000_000),
        header_timeout: section.duration("header_timeout", UP_TO_A_DAY),
        idle_timeout: section.duration("idle_timeout", UP_TO_A_DAY),
        body_timeout: section.duration("body_timeout", UP_TO_A_DAY),
        connections: section.connection_bounds(),
        // hyper refuses buffers under 8 KiB.
        max_header_bytes: section.size("max_header_bytes", 8 << 10..=MIB),
        max_headers: section.integer("max_headers", 1..=1000),
        underscores_in_headers: section.boolean("underscores_in_headers"),
        proxy_protocol,
        https_port: section.optional_integer("https_port", 1..=65_535),
        http2: section.boolean("http2"),
        max_streams: section.integer("max_streams", 1..=10_000),
        max_body: section
            .size_or_unlimited("max_body")
            .unwrap_or(Some(100 * MIB)),
        drain_timeout,
        body_memory: section.size("body_memory", MIB..=1 << 40),
        waiting: section.integer("waiting", 1..=10_000_000),
        drain_idle: section.duration("drain_idle", ANY_WAIT),
        handover_timeout: handover_timeout.unwrap_or(drain_timeout),
        pid_file: section.file_path("pid_file"),
        control: match section.parse("control", CONTROL, parse_control) {
            Some(Control::At(path)) => Control::At(section.path(path)),
            control => control.unwrap_or(Control::Derived),
        },
    };
    let place = |key: &str, is_set: bool| is_set.then(|| section.key_span(key));
    places.https_port = place("https_port", settings.https_port.is_some());
    places.waiting = section.changed("waiting");
    if let Some(streams) = section.changed("max_streams").filter(|_| !settings.http2) {
        section.reader.report_doubt(
            no_effect("`server.max_streams` changes nothing")
                .at(&streams, "")
                .at(&section.key_span("http2"), "only HTTP/2 has streams")
                .help("leave it out, or write `http2 = true`"),
        );
    }
    places.no_underscores = place("underscores_in_headers", !settings.underscores_in_headers);
    section.finish();
    settings
}

/// Reads `proxy_protocol`. Only trusted proxies may send its header.
fn read_proxy_protocol(top: &mut Section<'_>) -> ProxyProtocol {
    let words = [
        ("off", ProxyProtocol::Off),
        ("optional", ProxyProtocol::Optional),
        ("required", ProxyProtocol::Required),
    ];
    let mode = top.word("proxy_protocol", &words);
    let has_none = match top.peek("trusted_proxies") {
        None => true,
        Some(list) => list
            .get_ref()
            .as_array()
            .is_some_and(|list| list.is_empty()),
    };
    if mode != ProxyProtocol::Off && has_none {
        contradiction("`proxy_protocol` without `trusted_proxies`")
            .at(
                &top.key_span("proxy_protocol"),
                "no proxy is trusted to send the PROXY header",
            )
            .help("name the proxies that send it: `trusted_proxies = [\"10.0.0.0/8\"]`")
            .report_to(top.reader);
    }
    mode
}

/// Parses `control`: a path, or `off`.
pub(super) fn parse_control(text: &str) -> Result<Control, &'static str> {
    match text {
        "off" => Ok(Control::Off),
        // The address of a unix socket has no room for more, and we add an ending to it.
        text if text.len() > 90 => Err("longer than 90 bytes"),
        text => file_path(text).map(Control::At),
    }
}

fn file_path(text: &str) -> Result<PathBuf, &'static str> {
    match text.is_empty() {
        true => Err("empty"),
        false => Ok(PathBuf::from(text)),
    }
}

impl Section<'_> {
    pub(super) fn connection_bounds(&mut self) -> ConnectionBounds {
        ConnectionBounds {
            requests: self.optional_integer("connection_requests", 1..=1_000_000_000),
            age: self.optional_duration("connection_age", UP_TO_A_DAY),
        }
    }

    /// The path of a file that the proxy writes.
    pub(super) fn file_path(&mut self, key: &'static str) -> Option<PathBuf> {
        let path = self.parse(key, TextForm::PATH, file_path)?;
        Some(self.path(path))
    }
}

pub(super) fn read_client_ip(top: &mut Section<'_>, places: &mut Places) -> ClientIp {
    let trusted = top.parse_list("trusted_proxies", TextForm::NETWORK, address::network);
    let mut section = top.section("client_ip");
    let header = section.parse("header", TextForm::HEADER_NAME, header_name);
    places.client_ip_header = section.changed("header");
    let client_ip = ClientIp {
        trusted: values(trusted),
        header: header.unwrap_or(ClientIp::default().header),
        ipv6_prefix: section.integer("ipv6_prefix", 16..=128),
        ipv4_prefix: section.integer("ipv4_prefix", 8..=32),
    };
    section.finish();
    client_ip
}

/// Reads the place of a log: `stdout`, `stderr`, `off` or a file.
pub(super) fn log_target(section: &mut Section<'_>, key: &'static str) -> Option<LogTarget> {
    const TARGET: TextForm = TextForm::new(
        Code::BadAddress,
        "`stdout`, `stderr`, `off` or a file's path",
    );
    let target = |text: &str| match text {
        "off" => Ok(LogTarget::Off),
        "stdout" => Ok(LogTarget::Stdout),
        "stderr" => Ok(LogTarget::Stderr),
        text => file_path(text).map(LogTarget::File),
    };
    Some(match section.parse(key, TARGET, target)? {
        LogTarget::File(path) => LogTarget::File(section.path(path)),
        target => target,
    })
}

pub(super) fn read_log(mut section: Section<'_>) -> LogSettings {
    let formats = [
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
        ("combined", LogFormat::Combined),
    ];
    let keys = [
        ("hash", LogKeys::Hash),
        ("plain", LogKeys::Plain),
        ("off", LogKeys::Off),
    ];
    let settings = LogSettings {
        decisions: section.file_path("decisions"),
        format: section.optional_word("format", &formats),
        access: log_target(&mut section, "access").unwrap_or(LogTarget::Stdout),
        sample_allowed: section.fraction("sample_allowed"),
        keys: section.word("keys", &keys),
        silence: silence(&mut section),
    };
    section.finish();
    settings
}

fn silence(section: &mut Section<'_>) -> Vec<&'static str> {
    section.declare("silence", || ValueKind::Words(FINDINGS.to_vec()));
    let texts = section.texts("silence").unwrap_or_default().into_iter();
    let known = |text: Located<String>| {
        let found = FINDINGS.into_iter().find(|id| *id == text.value);
        if found.is_none() {
            report_unknown_finding(section, &text);
        }
        found
    };
    texts.filter_map(known).collect()
}

fn report_unknown_finding(section: &Section<'_>, text: &Located<String>) {
    let all = FINDINGS.map(|id| format!("`{id}`")).join(", ");
    let message = format!("`log.silence` names no finding: `{}`", text.value);
    Diagnostic::new(Code::UnknownWord, message)
        .at(&text.span, "no finding has this name")
        .help(did_you_mean(
            &text.value,
            FINDINGS,
            format!("write some of {all}"),
        ))
        .report_to(section.reader);
}

/// Bytes of a token, at least: a shorter one can be guessed.
const SHORTEST_TOKEN: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    pub address: SocketAddr,
    /// The token of a file, for requests that change something; otherwise one is made at the start.
    pub token: Option<Secret<Vec<u8>>>,
    pub hosts: Vec<String>,
    /// Whether a file names the address. Commands reach another address with `--admin` only.
    pub is_from_file: bool,
}

/// Reads the three keys at the top of a file.
pub(super) fn read_admin(top: &mut Section<'_>) -> Option<Located<AdminSettings>> {
    let address = top.parse("admin", TextForm::LISTEN, tcp_address);
    let span = top.value_span("admin");
    let token = top.long_secret("admin_token_file", SHORTEST_TOKEN, "token");
    let host_form = TextForm::new(Code::BadName, "the name of a host");
    let hosts = values(top.parse_list("admin_hosts", host_form, host_name));
    let Some(address) = address else {
        let named = [
            ("admin_token_file", token.is_some()),
            ("admin_hosts", !hosts.is_empty()),
        ];
        let is_absent = !top.has("admin");
        for (key, _) in named.iter().filter(|(_, is_set)| *is_set && is_absent) {
            contradiction(format!("`{key}` needs `admin`"))
                .at(&top.key_span(key), "")
                .help("write for example `admin = \"127.0.0.1:9180\"` at the top")
                .report_to(top.reader);
        }
        return None;
    };
    if !address.ip().is_loopback() && !top.has("admin_token_file") {
        Diagnostic::new(
            Code::OpenAdmin,
            "`admin` is open to others, and has no token",
        )
        .at(&span, "other machines can reach this address")
        .help("name a file in `admin_token_file`, or write `admin = \"127.0.0.1:9180\"`")
        .report_to(top.reader);
    }
    let settings = AdminSettings {
        address,
        token: token.map(Secret),
        hosts,
        is_from_file: true,
    };
    Some(Located::new(settings, &span))
}

/// Reports an `admin` on the port of another line of `listen`: only one of them could be bound.
/// The same address twice is reported elsewhere.
pub(super) fn check_admin_port(
    reader: &ConfigReader<'_>,
    admin: &Located<SocketAddr>,
    listen: &[Located<Listen>],
) {
    let own = admin.value;
    let has_same_port = |line: &&Located<Listen>| match line.value {
        Listen::Tcp(other) => {
            let (a, b) = (own.ip().to_canonical(), other.ip().to_canonical());
            let is_any = a.is_unspecified() || b.is_unspecified();
            own.port() == other.port() && own.port() != 0 && own != other && (a == b || is_any)
        }
        Listen::Unix(_) => false,
    };
    if let Some(line) = listen.iter().find(has_same_port) {
        let mut diagnostic = contradiction("`admin` is on the port of `listen`")
            .at(&admin.span, "only one of them can have the port")
            .help("give it a port of its own: `admin = \"127.0.0.1:9180\"`");
        if !line.span.is_empty() {
            diagnostic = diagnostic.at(&line.span, "clients connect here");
        }
        reader.report(diagnostic);
    }
}

fn tcp_address(text: &str) -> Result<SocketAddr, &'static str> {
    match address::listen(text)? {
        Listen::Tcp(address) => Ok(address),
        Listen::Unix(_) => Err("a socket is no place for a browser; write `127.0.0.1:9180`"),
    }
}

fn host_name(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    match !text.is_empty() && text.len() <= 253 && text.bytes().all(fits) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("not the name of a host; without a port: `proxy.internal`"),
    }
}
