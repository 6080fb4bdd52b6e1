//! A line of the access log in each of its formats.

use std::io::Write;
use std::net::IpAddr;

use super::Entry;
use crate::limit::DeniedKey;
use crate::telemetry::{json, stamp};

/// As many characters of a key's hash as tell keys apart in a log.
const KEY_CHARACTERS: usize = 8;

/// `22:37:06.123 POST /login 429 0.2ms 1.2.3.4 denied by login (key 3q2-7wAB)`
pub(super) fn text(out: &mut Vec<u8>, entry: &Entry<'_>) {
    out.extend_from_slice(&stamp::rfc3339_bytes(entry.unix_us)[11..23]);
    let millis = entry.duration.as_secs_f64() * 1e3;
    // Writing into a Vec cannot fail.
    let _ = write!(out, " {} ", entry.method);
    printable(out, entry.path);
    let _ = write!(out, " {} {millis:.1}ms ", entry.status);
    address(out, entry.client);
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
            shown(out, key);
            out.push(b')');
        }
    }
    if let Some(reason) = entry.reason {
        let _ = write!(out, " {reason}");
    }
    if let Some(status) = entry.grpc_status {
        let _ = write!(out, " grpc_status {status}");
    }
    for limit in entry.would_deny {
        let _ = write!(out, " would deny {limit}");
    }
    if let Some(id) = entry.trace_id {
        let _ = write!(out, " trace {id}");
    }
    out.push(b'\n');
}

/// A key. One that is spelled out has nothing in it that could end a word.
fn shown(out: &mut Vec<u8>, key: &DeniedKey) {
    match key {
        DeniedKey::Hash(tag) => out.extend_from_slice(&tag.text()[..KEY_CHARACTERS]),
        DeniedKey::Plain(text) => out.extend_from_slice(text.as_bytes()),
    }
}

/// An address, most of which are four numbers.
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

pub(super) fn json_line(out: &mut Vec<u8>, entry: &Entry<'_>) {
    // Names are ours and need no escapes, so they come with what surrounds them.
    let member = |out: &mut Vec<u8>, name: &[u8], value: &str| {
        out.extend_from_slice(name);
        json::string(out, value);
    };
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(&stamp::rfc3339_bytes(entry.unix_us));
    out.extend_from_slice(b"\",\"client\":\"");
    address(out, entry.client);
    out.push(b'"');
    member(out, b",\"method\":", entry.method.as_str());
    member(out, b",\"path\":", entry.path);
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
    member(out, b",\"outcome\":", entry.outcome_word());
    if let Some(expected) = entry.truncated.and_then(|truncated| truncated.expected) {
        out.extend_from_slice(b",\"expected_bytes\":");
        json::number(out, expected);
    }
    if !entry.denied_by.is_empty() {
        denied_by(out, entry);
    }
    if !entry.would_deny.is_empty() {
        out.extend_from_slice(b",\"would_deny\":[");
        for (index, limit) in entry.would_deny.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"" } else { b"," });
            json::string(out, limit);
        }
        out.push(b']');
    }
    if let Some(reason) = entry.reason {
        member(out, b",\"reason\":", reason);
    }
    if let Some(status) = entry.grpc_status {
        out.extend_from_slice(b",\"grpc_status\":");
        match status.code() {
            Some(code) => json::number(out, code),
            None => out.extend_from_slice(b"null"),
        }
    }
    if let Some(id) = entry.request_id {
        member(out, b",\"request_id\":", id);
    }
    if let Some(id) = entry.trace_id {
        let _ = write!(out, ",\"trace_id\":\"{id}\"");
    }
    out.extend_from_slice(b"}\n");
}

fn denied_by(out: &mut Vec<u8>, entry: &Entry<'_>) {
    out.extend_from_slice(b",\"denied_by\":[");
    for (index, (limit, key)) in entry.denied_by.iter().enumerate() {
        out.extend_from_slice(if index == 0 {
            b"{\"limit\":"
        } else {
            b",{\"limit\":"
        });
        json::string(out, limit);
        if let Some(key) = key {
            out.extend_from_slice(b",\"key\":\"");
            shown(out, key);
            out.push(b'"');
        }
        out.push(b'}');
    }
    out.push(b']');
}

/// The combined format; referrer and user agent are what a client wrote, and left out.
pub(super) fn combined(out: &mut Vec<u8>, entry: &Entry<'_>) {
    address(out, entry.client);
    out.extend_from_slice(b" - - [");
    out.extend_from_slice(&stamp::common(entry.unix_us));
    let _ = write!(out, "] \"{} ", entry.method);
    printable(out, entry.path);
    let _ = write!(
        out,
        " HTTP/1.1\" {} {} \"-\" \"-\"",
        entry.status, entry.bytes
    );
    // Behind what the format names: readers of the format leave that alone.
    if let Some(status) = entry.grpc_status {
        let _ = write!(out, " grpc_status={status}");
    }
    out.push(b'\n');
}

/// `path` for a log that people read: what could end the field or the line becomes `?`.
fn printable(out: &mut Vec<u8>, path: &str) {
    out.extend(path.chars().map(|c| match u8::try_from(c) {
        Ok(byte) if byte.is_ascii_graphic() && byte != b'"' => byte,
        _ => b'?',
    }));
}
