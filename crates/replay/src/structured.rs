//! Lines that are JSON objects: nginx's and Traefik's by their customary names, Caddy's, our own.
//!
//! Pure. Which names mean what is one table, whoever wrote the line; Caddy alone nests.

use std::borrow::Cow;
use std::net::IpAddr;

use super::date;
use super::entry::{Entry, Fault, Format, Headers};
use super::json::{self, Value};
use super::text::{address, request_line, status_of};

/// A header that is found in a member of another name: `--header-from x-api-key=consumer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderFrom {
    /// The header.
    pub header: String,
    /// The member; one within `request` is `request.NAME`.
    pub member: String,
}

/// What was found so far.
#[derive(Default)]
struct Found<'l> {
    at_us: Option<u64>,
    said_when: bool,
    peer: Option<IpAddr>,
    client: Option<IpAddr>,
    said_who: bool,
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
pub fn object<'l>(line: &'l [u8], from: &[HeaderFrom]) -> Result<(Entry<'l>, Format), Fault> {
    let mut found = Found::default();
    let mut nested = None;
    json::members(line, |name, value| {
        named(&mut found, from, ("", name), value);
        match (name, value) {
            (b"request", Value::Object(request)) => nested = Some(request),
            (b"headers" | b"request_headers", Value::Object(all)) => headers(&mut found, all),
            _ => member(&mut found, name, value),
        }
    })
    .ok_or(Fault::Form)?;
    if let Some(request) = nested {
        found.caddy = true;
        json::members(request, |name, value| {
            named(&mut found, from, ("request.", name), value);
            match (name, value) {
                (b"headers", Value::Object(all)) => headers(&mut found, all),
                _ => member(&mut found, name, value),
            }
        })
        .ok_or(Fault::Form)?;
    }
    found.entry()
}

impl<'l> Found<'l> {
    fn entry(self) -> Result<(Entry<'l>, Format), Fault> {
        let format = match self {
            Found { caddy: true, .. } => Format::Caddy,
            Found { own: true, .. } => Format::Own,
            _ => Format::Json,
        };
        let at_us = self.at_us.ok_or(match self.said_when || self.said_who {
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
        let entry = Entry {
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
}

/// What a member says by its name.
fn member<'l>(found: &mut Found<'l>, name: &'l [u8], value: Value<'l>) {
    let Some(plain) = value.plain() else {
        return;
    };
    let us = |text| date::seconds(text);
    match name {
        b"time_iso8601" | b"time_local" | b"msec" | b"time" | b"ts" | b"timestamp"
        | b"@timestamp" | b"StartUTC" | b"date" | b"datetime" => {
            found.said_when = true;
            // The finest of those that say it.
            let at_us = date::read(plain);
            if at_us.is_some_and(|us| us % 1_000_000 != 0) || found.at_us.is_none() {
                found.at_us = at_us.or(found.at_us);
            }
        }
        b"remote_addr" | b"remote_ip" | b"client" | b"clientip" | b"ip" | b"remote_host"
        | b"ClientHost" | b"remoteAddr" | b"remote_address" => {
            found.said_who = true;
            found.peer = address(plain).or(found.peer);
        }
        b"client_ip" | b"real_ip" => {
            found.said_who = true;
            found.client = address(plain).or(found.client);
        }
        b"request" => found.request = Some(plain),
        b"request_method" | b"method" | b"RequestMethod" => found.method = value.text(),
        b"request_uri" | b"uri" | b"path" | b"url" | b"RequestPath" => {
            // `request_uri` is what was sent, `uri` what it was rewritten to.
            if found.target.is_none() || name == b"request_uri" {
                found.target = value.text();
            }
        }
        b"args" | b"query_string" => found.query = value.text(),
        b"http_host" | b"host" | b"RequestHost" | b"vhost" => found.host = value.text(),
        b"server_name" if found.host.is_none() => found.host = value.text(),
        b"status" | b"status_code" | b"DownstreamStatus" => found.status = status_of(plain),
        b"request_time" | b"duration" => found.duration_us = us(plain),
        b"duration_us" => found.duration_us = us(plain).map(|us| us / 1_000_000),
        b"Duration" => found.duration_us = us(plain).map(|us| us / 1_000_000_000),
        b"outcome" => found.own = true,
        _ => header_member(found, name, value),
    }
}

/// nginx's `http_x_api_key`, Traefik's `request_X-Api-Key`.
fn header_member<'l>(found: &mut Found<'l>, name: &'l [u8], value: Value<'l>) {
    let (Ok(name), Some(value)) = (std::str::from_utf8(name), value.text()) else {
        return;
    };
    if let Some(header) = name.strip_prefix("http_") {
        found.headers.push((header.replace('_', "-").into(), value));
    } else if let Some(header) = name.strip_prefix("request_")
        && header.starts_with(|c: char| c.is_ascii_uppercase())
    {
        found.headers.push((header.into(), value));
    } else if name.eq_ignore_ascii_case("x_forwarded_for") {
        found.headers.push(("x-forwarded-for".into(), value));
    }
}

/// Caddy's `{"X-Api-Key":["k"]}`. What it hides is not there.
fn headers<'l>(found: &mut Found<'l>, all: &'l [u8]) {
    let mut add = |name: &'l [u8], value: Value<'l>| {
        let (Ok(name), Some(value)) = (std::str::from_utf8(name), value.text()) else {
            return;
        };
        if value != "REDACTED" {
            found.headers.push((name.into(), value));
        }
    };
    let _ = json::members(all, |name, value| match value {
        Value::Array(lines) => {
            let _ = json::elements(lines, |line| add(name, line));
        }
        value => add(name, value),
    });
}

/// What the user says is a header.
fn named<'l>(
    found: &mut Found<'l>,
    from: &[HeaderFrom],
    (prefix, name): (&str, &[u8]),
    value: Value<'l>,
) {
    for one in from {
        let inner = one.member.strip_prefix(prefix);
        if inner.is_some_and(|inner| inner.as_bytes() == name)
            && let Some(value) = value.text()
        {
            found.headers.push((one.header.clone().into(), value));
        }
    }
}
