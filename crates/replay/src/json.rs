//! Log lines that are JSON objects of nginx, Traefik, Caddy or tidegate.
//!
//! One table of member names serves all programs. Only Caddy nests members. The reader is
//! forgiving: it accepts `\x22`, which nginx writes without `escape=json`, and skips nested values
//! unread. It does not recurse, so depth costs nothing.

mod value;

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use super::date;
use super::entry::{Dated, Fault, Headers, LineFormat, LogEntry};
use super::text::{request_line, status_of};
use super::tokens::{CallField, LoggedTokens};
use crate::client::address;
use value::{JsonValue, MemberOf, each_item, find_member, members};

/// A member that is a header of the request: `--header-from x-api-key=consumer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderFrom {
    pub header: String,
    /// Dots lead into objects: a member within `request` is `request.NAME`.
    pub member: String,
}

/// A member that says something of a model server's call: `--usage-from input=tokens.in`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFrom {
    pub field: CallField,
    /// Dots lead into objects.
    pub member: String,
}

/// What an operator says of the members of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberMapping {
    pub headers: Vec<HeaderFrom>,
    pub tokens: Vec<TokenFrom>,
    /// The request line of lines without one: `POST /v1/chat/completions`.
    pub request: Option<String>,
}

/// Where the value of a mapped member goes.
#[derive(Clone, Copy)]
enum Mapped<'m> {
    Header(&'m str),
    Tokens(CallField),
}

impl MemberMapping {
    fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.tokens.is_empty()
    }

    /// The members that are wanted, and what for.
    fn wanted(&self) -> impl Iterator<Item = (&str, Mapped<'_>)> {
        let headers = self.headers.iter();
        let headers = headers.map(|one| (&*one.member, Mapped::Header(&one.header)));
        let tokens = self.tokens.iter();
        headers.chain(tokens.map(|one| (&*one.member, Mapped::Tokens(one.field))))
    }
}

#[derive(Default)]
struct EntryBuilder<'l> {
    at_us: Option<u64>,
    /// The beginning of the request, where the log has a member for it.
    start_us: Option<u64>,
    /// The end of the request, beside `start_us`.
    end_us: Option<u64>,
    /// `duration` is in milliseconds.
    is_envoy: bool,
    /// Some member is a time, readable or not.
    has_time: bool,
    peer: Option<IpAddr>,
    client: Option<IpAddr>,
    /// Some member is an address, readable or not.
    has_client: bool,
    request: Option<&'l [u8]>,
    method: Option<Cow<'l, str>>,
    target: Option<Cow<'l, str>>,
    port: Option<u16>,
    query: Option<Cow<'l, str>>,
    host: Option<Cow<'l, str>>,
    status: u16,
    duration_us: Option<u64>,
    headers: Headers<'l>,
    tokens: Option<Box<LoggedTokens<'l>>>,
    format: Option<LineFormat>,
}

pub fn read<'l>(
    line: &'l [u8],
    mapping: &MemberMapping,
) -> Result<(LogEntry<'l>, LineFormat), Fault> {
    let mut entry = EntryBuilder::default();
    if let Some(request) = entry.add_members(line, "", mapping)? {
        entry.format = Some(LineFormat::Caddy);
        entry.add_members(request, "request.", mapping)?;
    }
    let format = entry.format.unwrap_or(LineFormat::Json);
    Ok((entry.build(mapping.request.as_deref())?, format))
}

impl<'l> EntryBuilder<'l> {
    /// Reads the members of an object. `prefix` leads to it from the line. Returns its request, if
    /// that is an object.
    fn add_members(
        &mut self,
        object: &'l [u8],
        prefix: &str,
        mapping: &MemberMapping,
    ) -> Result<Option<&'l [u8]>, Fault> {
        let mut nested = None;
        let is_mapped = !mapping.is_empty();
        let read = members(object, |name, value| {
            let is_request = name == b"request" && matches!(value, JsonValue::Object(_));
            if is_mapped && !(is_request && prefix.is_empty()) {
                self.add_mapped(
                    MemberOf {
                        prefix,
                        name,
                        value,
                    },
                    mapping,
                );
            }
            match (name, value) {
                (b"request", JsonValue::Object(request)) => nested = Some(request),
                (b"headers" | b"request_headers", JsonValue::Object(all)) => self.add_headers(all),
                (b"usage", JsonValue::Object(usage)) => self.add_usage(usage),
                _ => self.add_member(name, value),
            }
        });
        read.ok_or(Fault::Form)?;
        Ok(nested)
    }

    /// Reads what the mapping wants of a member, or of the objects inside it.
    fn add_mapped(&mut self, member: MemberOf<'_, 'l>, mapping: &MemberMapping) {
        for (path, goal) in mapping.wanted() {
            let rest = path.strip_prefix(member.prefix);
            let found = rest.and_then(|rest| member.find(rest));
            let Some(value) = found.and_then(JsonValue::text) else {
                continue;
            };
            match goal {
                Mapped::Header(header) => self.headers.push((header.to_owned().into(), value)),
                Mapped::Tokens(field) => self.tokens_mut().set(field, value),
            }
        }
    }

    fn tokens_mut(&mut self) -> &mut LoggedTokens<'l> {
        self.tokens.get_or_insert_default()
    }

    /// Reads `usage`: that of tidegate's own log, or of an answer.
    fn add_usage(&mut self, usage: &'l [u8]) {
        let _ = members(usage, |name, value| match (name, value) {
            (b"prompt_tokens_details" | b"input_tokens_details", JsonValue::Object(details)) => {
                let cached = find_member(details, "cached_tokens").and_then(JsonValue::text);
                if let Some(cached) = cached {
                    self.tokens_mut().set(CallField::Cached, cached);
                }
            }
            _ => {
                if let Some(field) = CallField::of_usage_member(name)
                    && let Some(text) = value.text()
                {
                    self.tokens_mut().set(field, text);
                }
            }
        });
    }

    fn build(mut self, request: Option<&str>) -> Result<LogEntry<'l>, Fault> {
        let dates = match self.start_us.is_some() || self.format == Some(LineFormat::Own) {
            true => Dated::Start,
            false => Dated::End,
        };
        self.set_duration();
        let at_us = self
            .start_us
            .or(self.at_us)
            .ok_or(match self.has_time || self.has_client {
                true => Fault::Time,
                false => Fault::Form,
            })?;
        let unknown = request.map(|_| IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let peer = self.peer.or(self.client).or(unknown).ok_or(Fault::Client)?;
        let (method, target) = match (self.method, self.target, self.request, request) {
            (Some(method), Some(target), ..) => (method, target),
            (_, _, Some(request), _) => {
                let (method, target) = request_line(request)?;
                (method.into(), target)
            }
            (_, _, None, Some(request)) => {
                let (method, target) = request_line(request.as_bytes())?;
                (method.to_owned().into(), target.into_owned().into())
            }
            _ => return Err(Fault::Request),
        };
        let target = match self.query {
            Some(query) if !target.contains('?') => format!("{target}?{query}").into(),
            _ => target,
        };
        Ok(LogEntry {
            at_us,
            dates,
            peer,
            client: self.client,
            method,
            target,
            host: self.host,
            port: self.port,
            status: self.status,
            duration_us: self.duration_us,
            headers: self.headers,
            tokens: self.tokens,
        })
    }

    fn set_duration(&mut self) {
        if self.is_envoy {
            self.duration_us = self.duration_us.map(|us| us / 1000);
        }
        if let (None, Some(start), Some(end)) = (self.duration_us, self.start_us, self.end_us) {
            self.duration_us = end.checked_sub(start);
        }
    }

    fn add_member(&mut self, name: &'l [u8], value: JsonValue<'l>) {
        let Some(plain) = value.raw_text() else {
            return;
        };
        match name {
            b"time_iso8601" | b"time_local" | b"msec" | b"time" | b"ts" | b"timestamp"
            | b"@timestamp" | b"date" | b"datetime" => {
                self.has_time = true;
                // Prefer a time with a fraction of a second.
                let at_us = date::read(plain);
                if at_us.is_some_and(|us| us % 1_000_000 != 0) || self.at_us.is_none() {
                    self.at_us = at_us.or(self.at_us);
                }
            }
            b"StartUTC" | b"startTime" | b"start_time" => {
                self.has_time = true;
                self.start_us = date::read(plain).or(self.start_us);
                self.is_envoy = name == b"start_time";
            }
            b"endTime" => self.end_us = date::read(plain),
            b"remote_addr"
            | b"remote_ip"
            | b"client"
            | b"clientip"
            | b"ip"
            | b"remote_host"
            | b"ClientHost"
            | b"remoteAddr"
            | b"remote_address"
            | b"downstream_remote_address"
            | b"requester_ip_address" => {
                self.has_client = true;
                self.peer = address(plain).or(self.peer);
            }
            b"client_ip" | b"real_ip" => {
                self.has_client = true;
                self.client = address(plain).or(self.client);
            }
            b"request" => self.request = Some(plain),
            b"request_method" | b"method" | b"RequestMethod" => self.method = value.text(),
            b"request_uri"
            | b"uri"
            | b"path"
            | b"url"
            | b"RequestPath"
            | b"x-envoy-origin-path" => {
                // nginx's `request_uri` is the original, and its `uri` may be rewritten.
                let is_original = matches!(name, b"request_uri" | b"x-envoy-origin-path");
                if self.target.is_none() || is_original {
                    self.target = value.text();
                }
            }
            b"args" | b"query_string" => self.query = value.text(),
            b"http_host" | b"host" | b"RequestHost" | b"vhost" | b":authority" => {
                self.host = value.text()
            }
            b"server_name" if self.host.is_none() => self.host = value.text(),
            b"status" | b"status_code" | b"DownstreamStatus" | b"response_code" => {
                self.status = status_of(plain)
            }
            b"request_time" | b"duration" => self.duration_us = date::seconds(plain),
            b"duration_us" => self.duration_us = date::seconds(plain).map(|us| us / 1_000_000),
            b"Duration" => self.duration_us = date::seconds(plain).map(|us| us / 1_000_000_000),
            b"outcome" => self.format = self.format.or(Some(LineFormat::Own)),
            _ => match CallField::of_member(name) {
                Some(field) => {
                    if let Some(text) = value.text() {
                        self.tokens_mut().set(field, text);
                    }
                }
                None => self.add_rare_member(name, value),
            },
        }
    }

    /// Reads nginx's `server_port` and `http_x_api_key`, and Traefik's `request_X-Api-Key`.
    fn add_rare_member(&mut self, name: &'l [u8], value: JsonValue<'l>) {
        let (Ok(name), Some(value)) = (std::str::from_utf8(name), value.text()) else {
            return;
        };
        if name == "server_port" {
            self.port = value.parse().ok();
        } else if let Some(header) = name.strip_prefix("http_") {
            self.headers.push((header.replace('_', "-").into(), value));
        } else if let Some(header) = name.strip_prefix("request_")
            && header.starts_with(|c: char| c.is_ascii_uppercase())
        {
            self.headers.push((header.into(), value));
        } else if name.eq_ignore_ascii_case("x_forwarded_for") || name == "x-forwarded-for" {
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
        let _ = members(all, |name, value| match value {
            JsonValue::Array(lines) => {
                let _ = each_item(lines, [b'[', b']'], |scan| {
                    add(name, scan.value()?);
                    Some(())
                });
            }
            value => add(name, value),
        });
    }
}
