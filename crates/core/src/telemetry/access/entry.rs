//! One request in the access log, and the formats of its line.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::DeniedKey;
use crate::telemetry::door::Door;
use crate::telemetry::metrics::grpc::GrpcStatus;
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::telemetry::{json, stamp};
use crate::trace::TraceId;
use crate::usage::estimate::Estimate;
use crate::usage::tokens::TokenCounts;

/// Characters of the hash of a key, enough to distinguish keys in a log.
const KEY_CHARACTERS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    /// No limit was asked.
    Unlimited,
    Denied,
    /// The proxy answered it for another reason.
    Rejected,
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Unlimited => "unlimited",
            Outcome::Denied => "denied",
            Outcome::Rejected => "rejected",
        }
    }
}

/// The outcome in `usage` of a request that was denied.
pub const DENIED_USAGE: &str = "denied";

/// The outcome of a request whose upstream's answer ended too early. It replaces the outcome of the
/// limits.
pub const TRUNCATED: &str = "truncated";

#[derive(Clone, Copy, Debug)]
pub struct MissingBytes {
    /// The length of the body that the head announced, bytes.
    pub expected: Option<u64>,
}

/// The tokens of a request to a model server.
#[derive(Clone, Debug)]
pub struct LoggedUsage {
    /// The model of the answer, or of the request if the answer names none.
    pub model: Box<str>,
    /// The model of the request, if it is another one.
    pub requested_model: Option<Box<str>>,
    /// What was reserved, before it was lowered to what a limit holds.
    pub estimate: Estimate,
    /// Input and output together, lowered to what a limit of tokens holds.
    pub reserved: u64,
    pub charged: TokenCounts,
    /// `None` if the request was denied.
    pub outcome: Option<UsageOutcome>,
}

impl LoggedUsage {
    fn outcome_word(&self) -> &'static str {
        self.outcome.map_or(DENIED_USAGE, UsageOutcome::word)
    }
}

/// The server that failed a request, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFailure {
    pub server: String,
    pub error: String,
}

/// One request, as far as it is known when its answer ends.
#[derive(Clone, Copy, Debug)]
pub struct AccessEntry<'a> {
    pub unix_us: u64,
    pub duration: Duration,
    pub client: IpAddr,
    pub method: &'a http::Method,
    /// As it was sent, perhaps with a port.
    pub host: Option<&'a str>,
    /// The path as it was sent, without the query.
    pub path: &'a str,
    /// For example `HTTP/1.1`.
    pub protocol: &'static str,
    pub status: u16,
    pub bytes: u64,
    pub truncated: Option<MissingBytes>,
    pub route: Option<&'a str>,
    pub door: Option<Door>,
    pub outcome: Outcome,
    pub denied_by: &'a [(Arc<str>, Option<DeniedKey>)],
    pub would_deny: &'a [Arc<str>],
    pub reason: Option<&'static str>,
    /// How long a limit held the request.
    pub delayed: Duration,
    pub failure: Option<&'a UpstreamFailure>,
    pub grpc_status: Option<GrpcStatus>,
    pub usage: Option<&'a LoggedUsage>,
    pub request_id: Option<&'a str>,
    pub trace_id: Option<TraceId>,
}

impl AccessEntry<'_> {
    fn outcome_word(&self) -> &'static str {
        match self.truncated {
            Some(_) => TRUNCATED,
            None => self.outcome.word(),
        }
    }
}

/// `22:37:06.123 POST /login 429 0.2ms 1.2.3.4 denied by login (key 3q2-7wAB)`
pub(super) fn text(out: &mut Vec<u8>, entry: &AccessEntry<'_>) {
    out.extend_from_slice(&stamp::rfc3339_bytes(entry.unix_us)[11..23]);
    let millis = entry.duration.as_secs_f64() * 1e3;
    // Writing into a Vec cannot fail.
    let _ = write!(out, " {} ", entry.method);
    printable(out, entry.path);
    let _ = write!(out, " {} {millis:.1}ms ", entry.status);
    address(out, entry.client);
    if let Some(door) = entry.door {
        let _ = write!(out, " asked by {}", door.word());
    }
    let _ = write!(out, " {}", entry.outcome_word());
    if let Some(truncated) = entry.truncated {
        let _ = match truncated.expected {
            Some(expected) => write!(out, " after {} of {expected} bytes", entry.bytes),
            None => write!(out, " after {} bytes", entry.bytes),
        };
    }
    for (limit, key) in entry.denied_by {
        let _ = write!(out, " by {limit}");
        if let Some(key) = key {
            out.extend_from_slice(b" (key ");
            write_key(out, key);
            out.push(b')');
        }
    }
    if let Some(reason) = entry.reason {
        let _ = write!(out, " {reason}");
    }
    if !entry.delayed.is_zero() {
        let millis = entry.delayed.as_secs_f64() * 1e3;
        let _ = write!(out, " delayed {millis:.1}ms");
    }
    if let Some(failure) = entry.failure {
        out.extend_from_slice(b" (");
        printable(out, &failure.server);
        out.extend_from_slice(b": ");
        sentence(out, &failure.error);
        out.push(b')');
    }
    if let Some(status) = entry.grpc_status {
        let _ = write!(out, " grpc_status {status}");
    }
    for limit in entry.would_deny {
        let _ = write!(out, " would deny {limit}");
    }
    if let Some(usage) = entry.usage {
        let (charged, reserved) = (usage.charged, usage.reserved);
        let _ = write!(
            out,
            " tokens {}+{} of {reserved} {}",
            charged.input,
            charged.output,
            usage.outcome_word()
        );
    }
    if let Some(id) = entry.trace_id {
        let _ = write!(out, " trace {id}");
    }
    out.push(b'\n');
}

/// A key. A plain one contains no spaces or quotes.
fn write_key(out: &mut Vec<u8>, key: &DeniedKey) {
    match key {
        DeniedKey::Hash(tag) => out.extend_from_slice(&tag.text()[..KEY_CHARACTERS]),
        DeniedKey::Plain(text) => out.extend_from_slice(text.as_bytes()),
    }
}

/// Writes IPv4 addresses, which are the most frequent, without formatting code.
fn address(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            for (index, octet) in ip.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                json::number(out, octet);
            }
        }
        IpAddr::V6(ip) => {
            let _ = write!(out, "{ip}");
        }
    }
}

/// Writes a member with a text. `name` includes the punctuation around it, and needs no escapes.
fn member(out: &mut Vec<u8>, name: &[u8], value: &str) {
    out.extend_from_slice(name);
    json::string(out, value);
}

/// Writes the members that tell the request.
fn write_request(out: &mut Vec<u8>, entry: &AccessEntry<'_>) {
    out.extend_from_slice(b"\"time\":\"");
    out.extend_from_slice(&stamp::rfc3339_bytes(entry.unix_us));
    out.extend_from_slice(b"\",\"client\":\"");
    address(out, entry.client);
    out.push(b'"');
    member(out, b",\"method\":", entry.method.as_str());
    if let Some(host) = entry.host {
        member(out, b",\"host\":", host);
    }
    member(out, b",\"path\":", entry.path);
}

pub(super) fn json_line(out: &mut Vec<u8>, entry: &AccessEntry<'_>) {
    out.push(b'{');
    write_request(out, entry);
    out.extend_from_slice(b",\"status\":");
    json::number(out, entry.status);
    out.extend_from_slice(b",\"bytes\":");
    json::number(out, entry.bytes);
    out.extend_from_slice(b",\"duration_us\":");
    json::number(
        out,
        u64::try_from(entry.duration.as_micros()).unwrap_or(u64::MAX),
    );
    if let Some(route) = entry.route {
        member(out, b",\"route\":", route);
    }
    if let Some(door) = entry.door {
        member(out, b",\"door\":", door.word());
    }
    member(out, b",\"outcome\":", entry.outcome_word());
    if let Some(expected) = entry.truncated.and_then(|truncated| truncated.expected) {
        out.extend_from_slice(b",\"expected_bytes\":");
        json::number(out, expected);
    }
    list(
        out,
        b",\"denied_by\":",
        entry.denied_by,
        |out, (limit, key)| {
            member(out, b"{\"limit\":", limit);
            if let Some(key) = key {
                out.extend_from_slice(b",\"key\":\"");
                write_key(out, key);
                out.push(b'"');
            }
            out.push(b'}');
        },
    );
    list(out, b",\"would_deny\":", entry.would_deny, |out, limit| {
        json::string(out, limit);
    });
    if let Some(reason) = entry.reason {
        member(out, b",\"reason\":", reason);
    }
    write_delayed(out, entry.delayed);
    if let Some(failure) = entry.failure {
        member(out, b",\"server\":", &failure.server);
        member(out, b",\"error\":", &failure.error);
    }
    if let Some(status) = entry.grpc_status {
        write_grpc_status(out, status);
    }
    if let Some(usage) = entry.usage {
        write_usage(out, usage);
    }
    if let Some(id) = entry.request_id {
        member(out, b",\"request_id\":", id);
    }
    if let Some(id) = entry.trace_id {
        let _ = write!(out, ",\"trace_id\":\"{id}\"");
    }
    out.extend_from_slice(b"}\n");
}

fn write_grpc_status(out: &mut Vec<u8>, status: GrpcStatus) {
    out.extend_from_slice(b",\"grpc_status\":");
    match status.code() {
        Some(code) => json::number(out, code),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes how long a limit held the request, if it did.
fn write_delayed(out: &mut Vec<u8>, delayed: Duration) {
    if !delayed.is_zero() {
        let millis = delayed.as_secs_f64() * 1e3;
        let _ = write!(out, ",\"delayed_ms\":{millis:.1}");
    }
}

fn write_usage(out: &mut Vec<u8>, usage: &LoggedUsage) {
    let charged = usage.charged;
    out.extend_from_slice(b",\"usage\":{\"model\":");
    json::string(out, &usage.model);
    if let Some(model) = &usage.requested_model {
        out.extend_from_slice(b",\"requested_model\":");
        json::string(out, model);
    }
    let _ = write!(
        out,
        ",\"input\":{},\"cached\":{},\"cache_write\":{},\"output\":{}",
        charged.input, charged.cached, charged.cache_write, charged.output
    );
    let _ = write!(
        out,
        ",\"reserved\":{},\"reserved_input\":{},\"named_maximum\":{}",
        usage.reserved, usage.estimate.tokens.input, usage.estimate.names_maximum
    );
    let estimated = usage.estimate.tokens.total();
    if estimated != usage.reserved {
        let _ = write!(out, ",\"estimated\":{estimated}");
    }
    let _ = write!(
        out,
        ",\"charged\":{},\"outcome\":\"{}\"}}",
        charged.total(),
        usage.outcome_word()
    );
}

/// Writes an array, unless it is empty.
fn list<T>(out: &mut Vec<u8>, name: &[u8], items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    if items.is_empty() {
        return;
    }
    out.extend_from_slice(name);
    let mut before = b'[';
    for item in items {
        out.push(before);
        write(out, item);
        before = b',';
    }
    out.push(b']');
}

/// The combined format. Referrer and user agent are header values of a client, so they are left
/// out.
pub(super) fn combined(out: &mut Vec<u8>, entry: &AccessEntry<'_>) {
    address(out, entry.client);
    out.extend_from_slice(b" - - [");
    out.extend_from_slice(&stamp::common(entry.unix_us));
    let _ = write!(out, "] \"{} ", entry.method);
    printable(out, entry.path);
    let _ = write!(
        out,
        " {}\" {} {} \"-\" \"-\"",
        entry.protocol, entry.status, entry.bytes
    );
    // Readers of the format ignore what follows its fields.
    if let Some(door) = entry.door {
        let _ = write!(out, " door={}", door.word());
    }
    if let Some(status) = entry.grpc_status {
        let _ = write!(out, " grpc_status={status}");
    }
    out.push(b'\n');
}

/// Writes a path. Bytes that could end the field or begin an escape are percent-encoded: it stays
/// the same path.
fn printable(out: &mut Vec<u8>, path: &str) {
    for byte in path.bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\') {
            out.push(byte);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Writes `?` for characters that could end the line.
fn sentence(out: &mut Vec<u8>, text: &str) {
    let is_kept = |c: &char| c.is_ascii_graphic() || *c == ' ';
    out.extend(
        text.chars()
            .map(|c| if is_kept(&c) { c as u8 } else { b'?' }),
    );
}
