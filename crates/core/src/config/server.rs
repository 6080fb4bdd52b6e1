//! `[server]`, `[client_ip]` and `[log]`: clients' connections, the process and its logs.

use std::path::PathBuf;
use std::time::Duration;

use super::address;
use super::diagnostic::{Code, Diagnostic};
use super::habits::nearest;
use super::reader::{Located, ValueKind, values};
use super::section::Section;
use super::values::{DAY, TextForm, UP_TO_A_DAY, header_name};
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
    /// From a request's first byte to the end of its head.
    pub header_timeout: Duration,
    /// The longest wait before a connection's first byte, and between two requests.
    pub idle_timeout: Duration,
    /// Between two reads of a request's body, and between two writes to a slow reader.
    pub body_timeout: Duration,
    /// Bytes in a request's head.
    pub max_header_bytes: usize,
    /// Header lines in a request.
    pub max_headers: usize,
    /// Whether connections begin with a header that names the client.
    pub proxy_protocol: ProxyProtocol,
    /// Whether clients may speak HTTP/2.
    pub http2: bool,
    /// The port of `https` to which plain requests are redirected.
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
    /// The file that gets the process's id once the process serves.
    pub pid_file: Option<PathBuf>,
    /// The socket for commands to the running process.
    pub control: Control,
}

/// A socket for commands.
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
    /// Some do.
    Optional,
    /// All do, and other peers may not connect.
    Required,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq)]
pub struct LogSettings {
    /// The file that gets one JSON line per decision, for audits.
    pub decisions: Option<PathBuf>,
    /// The access log's form; `None` is text on a terminal and JSON otherwise.
    pub format: Option<LogFormat>,
    /// The target of the access log.
    pub access: LogTarget,
    /// The share of allowed requests in the access log, 0 to 1. All other requests are in it.
    pub sample_allowed: f64,
    /// How client keys appear.
    pub keys: LogKeys,
    /// Findings, of [`FINDINGS`], that are not logged.
    pub silence: Vec<&'static str>,
}

/// The ids of findings about a running proxy.
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

/// The target of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Off,
    Stdout,
    Stderr,
    /// A file; lines are appended.
    File(PathBuf),
}

/// How client keys appear in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKeys {
    /// A prefix of the keyed hash.
    Hash,
    /// The key itself, only on demand.
    Plain,
    /// Not at all.
    Off,
}

/// Reads `[server]`, and `proxy_protocol` at the top.
pub(super) fn read(top: &mut Section<'_>) -> ServerSettings {
    const CONTROL: TextForm = TextForm::new(Code::BadAddress, "a socket's path, or `off`");
    const ANY_WAIT: std::ops::RangeInclusive<Duration> = Duration::ZERO..=DAY;
    let proxy_protocol = read_proxy_protocol(top);
    let mut section = top.section("server");
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let workers = match section.integer("workers", 0..=1024) {
        0 => cores(),
        workers => workers,
    };
    let per_ip = section.optional_integer("max_connections_per_ip", 1..=10_000_000);
    let https_port = section.optional_integer("https_port", 1..=65_535);
    let max_body = section.size_or_unlimited("max_body");
    let drain_timeout = section.duration("drain_timeout", ANY_WAIT);
    let handover_timeout = section.optional_duration("handover_timeout", ANY_WAIT);
    let pid_file = section.parse("pid_file", TextForm::PATH, file_path);
    let control = section.parse("control", CONTROL, parse_control);
    let settings = ServerSettings {
        workers,
        max_connections: section.integer("max_connections", 1..=10_000_000),
        max_connections_per_ip: per_ip.map(|most| most.value),
        header_timeout: section.duration("header_timeout", UP_TO_A_DAY),
        idle_timeout: section.duration("idle_timeout", UP_TO_A_DAY),
        body_timeout: section.duration("body_timeout", UP_TO_A_DAY),
        // hyper refuses buffers under 8 KiB.
        max_header_bytes: section.size("max_header_bytes", 8 << 10..=MIB),
        max_headers: section.integer("max_headers", 1..=1000),
        proxy_protocol,
        https_port: https_port.map(|port| port.value),
        http2: section.boolean("http2"),
        max_streams: section.integer("max_streams", 1..=10_000),
        max_body: max_body.unwrap_or(Some(100 * MIB)),
        drain_timeout,
        drain_idle: section.duration("drain_idle", ANY_WAIT),
        handover_timeout: handover_timeout.map_or(drain_timeout, |timeout| timeout.value),
        pid_file: pid_file.map(|path| section.path(path.value)),
        control: match control.map(|control| control.value) {
            Some(Control::At(path)) => Control::At(section.path(path)),
            control => control.unwrap_or(Control::Derived),
        },
    };
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
    if mode != ProxyProtocol::Off && !top.has("trusted_proxies") {
        Diagnostic::new(
            Code::Contradiction,
            "`proxy_protocol` without `trusted_proxies`",
        )
        .at(
            &top.key_span("proxy_protocol"),
            "nobody may say whom a connection is from",
        )
        .help("name who may: `trusted_proxies = [\"10.0.0.0/8\"]`")
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

/// Reads `trusted_proxies` and `[client_ip]`.
pub(super) fn read_client_ip(top: &mut Section<'_>) -> ClientIp {
    let trusted = top.parse_list("trusted_proxies", TextForm::NETWORK, address::network);
    let mut section = top.section("client_ip");
    let header = section.parse("header", TextForm::HEADER_NAME, header_name);
    let client_ip = ClientIp {
        trusted: values(trusted),
        header: header.map_or(ClientIp::default().header, |header| header.value),
        ipv6_prefix: section.integer("ipv6_prefix", 16..=128),
        ipv4_prefix: section.integer("ipv4_prefix", 8..=32),
    };
    section.finish();
    client_ip
}

pub(super) fn read_log(mut section: Section<'_>) -> LogSettings {
    const TARGET: TextForm = TextForm::new(
        Code::BadAddress,
        "`stdout`, `stderr`, `off` or a file's path",
    );
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
    let target = |text: &str| match text {
        "off" => Ok(LogTarget::Off),
        "stdout" => Ok(LogTarget::Stdout),
        "stderr" => Ok(LogTarget::Stderr),
        text => file_path(text).map(LogTarget::File),
    };
    let decisions = section.parse("decisions", TextForm::PATH, file_path);
    let access = section.parse("access", TARGET, target);
    let settings = LogSettings {
        decisions: decisions.map(|path| section.path(path.value)),
        format: (section.optional_word("format", &formats)).map(|format| format.value),
        access: match access.map(|target| target.value) {
            Some(LogTarget::File(path)) => LogTarget::File(section.path(path)),
            target => target.unwrap_or(LogTarget::Stdout),
        },
        sample_allowed: section.fraction("sample_allowed"),
        keys: section.word("keys", &keys),
        silence: silence(&mut section),
    };
    section.finish();
    settings
}

/// Reads `silence`: ids of findings.
fn silence(section: &mut Section<'_>) -> Vec<&'static str> {
    section.declare("silence", || ValueKind::Words(FINDINGS.to_vec()));
    let texts = section.texts("silence").map(|texts| texts.value);
    let texts = texts.unwrap_or_default().into_iter();
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
    let help = match nearest(&text.value, FINDINGS) {
        Some(id) => format!("did you mean `{id}`?"),
        None => format!("write some of {all}"),
    };
    Diagnostic::new(
        Code::UnknownWord,
        format!("`log.silence` names no finding: `{}`", text.value),
    )
    .at(&text.span, "nothing that is found is called so")
    .help(help)
    .report_to(section.reader);
}
