//! Log lines that are JSON objects of nginx, Traefik, Caddy or tidegate.
//!
//! One table of member names serves all programs. Only Caddy nests members.

use std::borrow::Cow;
use std::net::IpAddr;

use super::date;
use super::entry::{Fault, Headers, LineFormat, LogEntry};
use super::json::{self, JsonValue};
use super::text::{address, request_line, status_of};

/// A member that is a header of the request: `--header-from x-api-key=consumer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderFrom {
    pub header: String,
    /// A member within `request` is `request.NAME`.
    pub member: String,
}

/// The members of a line that were read so far.
#[derive(Default)]
struct EntryBuilder<'l> {
    at_us: Option<u64>,
    /// Some member is a time, readable or not.
    has_time: bool,
    peer: Option<IpAddr>,
    client: Option<IpAddr>,
    /// Some member is an address, readable or not.
    has_client: bool,
    request: Option<&'l [u8]>,
    method: Option<Cow<'l, str>>,
    target: Option<Cow<'l, str>>,
    query: Option<Cow<'l, str>>,
    host: Option<Cow<'l, str>>,
    status: u16,
    duration_us: Option<u64>,
    headers: Headers<'l>,
    caddy: bool,
    own: bool,
}

/// Reads a line that is an object.
pub fn read<'l>(line: &'l [u8], from: &[HeaderFrom]) -> Result<(LogEntry<'l>, LineFormat), Fault> {
    let mut entry = EntryBuilder::default();
    let mut nested = None;
    json::members(line, |name, value| {
        entry.add_named_header(from, "", name, value);
        match (name, value) {
            (b"request", JsonValue::Object(request)) => nested = Some(request),
            (b"headers" | b"request_headers", JsonValue::Object(all)) => entry.add_headers(all),
            _ => entry.add_member(name, value),
        }
    })
    .ok_or(Fault::Form)?;
    if let Some(request) = nested {
        entry.caddy = true;
        json::members(request, |name, value| {
            entry.add_named_header(from, "request.", name, value);
            match (name, value) {
                (b"headers", JsonValue::Object(all)) => entry.add_headers(all),
                _ => entry.add_member(name, value),
            }
        })
        .ok_or(Fault::Form)?;
    }
    entry.build()
}

impl<'l> EntryBuilder<'l> {
    fn build(self) -> Result<(LogEntry<'l>, LineFormat), Fault> {
        let format = match self {
            EntryBuilder { caddy: true, .. } => LineFormat::Caddy,
            EntryBuilder { own: true, .. } => LineFormat::Own,
            _ => LineFormat::Json,
        };
        let at_us = self.at_us.ok_or(match self.has_time || self.has_client {
            true => Fault::Time,
            false => Fault::Form,
        })?;
        let peer = self.peer.or(self.client).ok_or(Fault::Client)?;
        let (method, target) = match (self.method, self.target, self.request) {
            (Some(method), Some(target), _) => (method, target),
            (_, _, Some(request)) => {
                let (method, target) = request_line(request)?;
                (method.into(), target)
            }
            _ => return Err(Fault::Request),
        };
        let target = match self.query {
            Some(query) if !target.contains('?') => format!("{target}?{query}").into(),
            _ => target,
        };
        // No method has an escape.
        let Cow::Borrowed(method) = method else {
            return Err(Fault::Request);
        };
        let entry = LogEntry {
            at_us,
            peer,
            client: self.client,
            method,
            target,
            host: self.host,
            status: self.status,
            duration_us: self.duration_us,
            headers: self.headers,
        };
        Ok((entry, format))
    }

    /// Reads a member by its name.
    fn add_member(&mut self, name: &'l [u8], value: JsonValue<'l>) {
        let Some(plain) = value.raw_text() else {
            return;
        };
        let us = |text| date::seconds(text);
        match name {
            b"time_iso8601" | b"time_local" | b"msec" | b"time" | b"ts" | b"timestamp"
            | b"@timestamp" | b"StartUTC" | b"date" | b"datetime" => {
                self.has_time = true;
                // Prefer a time with a fraction of a second.
                let at_us = date::read(plain);
                if at_us.is_some_and(|us| us % 1_000_000 != 0) || self.at_us.is_none() {
                    self.at_us = at_us.or(self.at_us);
                }
            }
            b"remote_addr" | b"remote_ip" | b"client" | b"clientip" | b"ip" | b"remote_host"
            | b"ClientHost" | b"remoteAddr" | b"remote_address" => {
                self.has_client = true;
                self.peer = address(plain).or(self.peer);
            }
            b"client_ip" | b"real_ip" => {
                self.has_client = true;
                self.client = address(plain).or(self.client);
            }
            b"request" => self.request = Some(plain),
            b"request_method" | b"method" | b"RequestMethod" => self.method = value.text(),
            b"request_uri" | b"uri" | b"path" | b"url" | b"RequestPath" => {
                // nginx's `request_uri` is the original, and its `uri` may be rewritten.
                if self.target.is_none() || name == b"request_uri" {
                    self.target = value.text();
                }
            }
            b"args" | b"query_string" => self.query = value.text(),
            b"http_host" | b"host" | b"RequestHost" | b"vhost" => self.host = value.text(),
            b"server_name" if self.host.is_none() => self.host = value.text(),
            b"status" | b"status_code" | b"DownstreamStatus" => self.status = status_of(plain),
            b"request_time" | b"duration" => self.duration_us = us(plain),
            b"duration_us" => self.duration_us = us(plain).map(|us| us / 1_000_000),
            b"Duration" => self.duration_us = us(plain).map(|us| us / 1_000_000_000),
            b"outcome" => self.own = true,
            _ => self.add_header_member(name, value),
        }
    }

    /// Reads nginx's `http_x_api_key` and Traefik's `request_X-Api-Key`.
    fn add_header_member(&mut self, name: &'l [u8], value: JsonValue<'l>) {
        let (Ok(name), Some(value)) = (std::str::from_utf8(name), value.text()) else {
            return;
        };
        if let Some(header) = name.strip_prefix("http_") {
            self.headers.push((header.replace('_', "-").into(), value));
        } else if let Some(header) = name.strip_prefix("request_")
            && header.starts_with(|c: char| c.is_ascii_uppercase())
        {
            self.headers.push((header.into(), value));
        } else if name.eq_ignore_ascii_case("x_forwarded_for") {
            self.headers.push(("x-forwarded-for".into(), value));
        }
    }

    /// Reads Caddy's `{"X-Api-Key":["k"]}`, without redacted values.
    fn add_headers(&mut self, all: &'l [u8]) {
        let mut add = |name: &'l [u8], value: JsonValue<'l>| {
            let (Ok(name), Some(value)) = (std::str::from_utf8(name), value.text()) else {
                return;
            };
            if value != "REDACTED" {
                self.headers.push((name.into(), value));
            }
        };
        let _ = json::members(all, |name, value| match value {
            JsonValue::Array(lines) => {
                let _ = json::elements(lines, |line| add(name, line));
            }
            value => add(name, value),
        });
    }

    /// Adds a member that `--header-from` names. `prefix` leads to the member's object.
    fn add_named_header(
        &mut self,
        from: &[HeaderFrom],
        prefix: &str,
        name: &[u8],
        value: JsonValue<'l>,
    ) {
        for one in from {
            let wanted = one.member.strip_prefix(prefix);
            if wanted.is_some_and(|wanted| wanted.as_bytes() == name)
                && let Some(value) = value.text()
            {
                self.headers.push((one.header.clone().into(), value));
            }
        }
    }
}
