//! The sections that refer to each other, as they are written: routes, bypasses, upstreams. Limits
//! are in `limits.rs`.
//!
//! Every value is read and checked by itself; names are still names. `compile.rs` joins them.

use std::time::Duration;

use http::{HeaderName, Method};
use toml::de::DeValue;

use super::diagnostic::{Code, Diagnostic, Span};
use super::section::{At, Section, nearest};
use super::settings::{header_name, some_time};
use super::{Bypass, ServerAddress, address};
use crate::limit::key::{Alternatives, Key, Part};
use crate::route::{CostSource, HeaderMatch, HostPattern, PathPattern, StatusSet};

/// A cost is below 2^32, as the units of a limit are.
const MAX_COST: u64 = u32::MAX as u64;
/// Servers of one upstream, at most.
const MAX_SERVERS: usize = 256;

/// `[[route]]`
pub(super) struct RawRoute {
    pub(super) span: Span,
    pub(super) name: Option<At<String>>,
    pub(super) host: At<HostPattern>,
    /// As written, for the route's name.
    pub(super) host_text: Option<String>,
    /// Nothing if it could not be read.
    pub(super) path: Option<At<PathPattern>>,
    pub(super) path_text: String,
    pub(super) methods: Vec<Method>,
    pub(super) headers: Vec<HeaderMatch>,
    pub(super) upstream: Option<At<String>>,
    pub(super) limits: Option<At<Vec<At<String>>>>,
    pub(super) cost: At<CostSource>,
    pub(super) settle: Option<At<HeaderName>>,
    pub(super) refund: Option<At<StatusSet>>,
}

/// `[upstream.NAME]`
pub(super) struct RawUpstream {
    pub(super) name: At<String>,
    pub(super) servers: Vec<At<ServerAddress>>,
    pub(super) times: UpstreamTimes,
    pub(super) max_idle: usize,
    pub(super) max_connections: usize,
}

/// How long an upstream may take.
pub(super) struct UpstreamTimes {
    pub(super) connect: Duration,
    pub(super) head: Duration,
    pub(super) body: Duration,
    pub(super) idle: Duration,
}

/// Names are what clients, operators, metrics and the command line say.
pub(super) fn check_name(section: &Section<'_>, name: &At<String>, what: &str) {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=64).contains(&name.value.len()) && name.value.bytes().all(fits) {
        return;
    }
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let better: String = name
        .value
        .to_ascii_lowercase()
        .chars()
        .map(plain)
        .take(64)
        .collect();
    let mut diagnostic = Diagnostic::new(Code::BadName, format!("not a name for {what}"))
        .at(&name.span, "1 to 64 of `a-z`, `0-9`, `_` and `-`");
    if !better.is_empty() {
        diagnostic = diagnostic.help(format!("for example `{better}`"));
    }
    section.reader.report(diagnostic);
}

/// Limits' and routes' default key.
pub(super) fn by_address() -> Key {
    Key {
        parts: vec![Alternatives(vec![Part::Ip])],
    }
}

/// `[[route]]`
pub(super) fn route(mut section: Section<'_>) -> RawRoute {
    let name = section.parsed("name", (Code::BadName, "a route's name"), |text| {
        let fits = (1..=128).contains(&text.chars().count()) && !text.chars().any(char::is_control);
        if fits {
            Ok(text.to_owned())
        } else {
            Err("1 to 128 characters, no control characters")
        }
    });
    let host_text = section.text("host");
    let host = host_text.clone().and_then(|text| {
        section.understood(
            "host",
            text,
            (Code::BadPattern, "a host"),
            HostPattern::parse,
        )
    });
    let path_text = section.text("path");
    let path = path_text
        .clone()
        .and_then(|text| path_pattern(&section, text));
    if section.peek("path").is_none() {
        section.missing("path", "path = \"/*\"");
    }
    let methods = methods(&mut section);
    let headers = headers(section.section("headers"));
    let upstream = section.text("upstream");
    let limits = section.texts("limits");
    let cost = cost(&mut section);
    let settle = section.parsed("settle", (Code::BadKey, "a cost"), settle);
    let refund = refund(&mut section);
    let span = section.span.clone();
    section.finish();
    let host = host.unwrap_or(At {
        value: HostPattern::Any,
        span: span.clone(),
    });
    let host_text = host_text.map(|text| text.value);
    let path_text = path_text.map(|text| text.value).unwrap_or_default();
    RawRoute {
        span,
        name,
        host,
        host_text,
        path,
        path_text,
        methods,
        headers,
        upstream,
        limits,
        cost,
        settle,
        refund,
    }
}

/// A path pattern, with what is wrong pointed at within it.
fn path_pattern(section: &Section<'_>, text: At<String>) -> Option<At<PathPattern>> {
    match PathPattern::parse(&text.value) {
        Ok(value) => Some(At {
            value,
            span: text.span,
        }),
        Err(error) => {
            // Only a text without escapes and variables lies in the file as it was parsed.
            let at = text.span.start + 1 + error.at;
            let literal = section
                .reader
                .text
                .get(text.span.start + 1..text.span.end - 1);
            let exact = literal == Some(text.value.as_str()) && at < text.span.end - 1;
            let span = if exact {
                at..text.span.end - 1
            } else {
                text.span
            };
            let message = format!("`{}` is not a path pattern", section.full("path"));
            let diagnostic = Diagnostic::new(Code::BadPattern, message).because(&span, &error);
            section.reader.report(diagnostic);
            None
        }
    }
}

fn methods(section: &mut Section<'_>) -> Vec<Method> {
    const COMMON: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let mut methods = Vec::new();
    let Some(texts) = section.texts("methods") else {
        return methods;
    };
    if texts.value.is_empty() {
        section.out_of_range_at(
            "methods",
            &texts,
            "one or more; leave `methods` out for all",
        );
    }
    for text in texts.value {
        // Methods are case-sensitive: `get` is another method, which nobody means.
        let upper = text.value.to_ascii_uppercase();
        let span = text.span.clone();
        let kind = (Code::BadHttp, "a method");
        let method = section.understood("methods", text, kind, |text| {
            let fits = text == upper && text != "CONNECT";
            let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| fits);
            method.ok_or_else(|| match nearest(&upper, COMMON) {
                Some(near) if text != "CONNECT" => {
                    format!("no such method; did you mean `{near}`?")
                }
                _ => "a method in upper case, and not `CONNECT`".to_owned(),
            })
        });
        let Some(method) = method else { continue };
        if methods.contains(&method.value) {
            let message = format!("`{}` is named twice", method.value);
            section
                .reader
                .report(Diagnostic::new(Code::Duplicate, message).at(&span, ""));
        }
        methods.push(method.value);
    }
    methods
}

/// `headers = { "x-version" = "2", authorization = true }`
fn headers(section: Section<'_>) -> Vec<HeaderMatch> {
    let mut matches: Vec<HeaderMatch> = Vec::new();
    for (key, value) in section.entries() {
        let name = key.value.clone();
        let kind = (Code::BadHttp, "a header's name");
        let Some(name) = section.understood(&name, key, kind, header_name) else {
            continue;
        };
        if matches.iter().any(|one| one.name == name.value) {
            let message = format!("`{}` is named twice", name.value);
            section
                .reader
                .report(Diagnostic::new(Code::Duplicate, message).at(&name.span, ""));
        }
        let wanted = match value.get_ref() {
            DeValue::Boolean(true) => None,
            DeValue::String(_) => match section.filled(value) {
                Some(text) => Some(text.value),
                None => continue,
            },
            _ => {
                section.wrong_type(name.value.as_str(), value, "a value, or `true` for any");
                continue;
            }
        };
        matches.push(HeaderMatch {
            name: name.value,
            value: wanted,
        });
    }
    matches
}

/// `cost`: a number, or `"header:x-cost"`.
fn cost(section: &mut Section<'_>) -> At<CostSource> {
    let default = At {
        value: CostSource::Fixed(1),
        span: section.span.clone(),
    };
    let is_text = section
        .peek("cost")
        .is_some_and(|value| value.get_ref().is_str());
    if !is_text {
        let number = section.integer("cost", 0..=MAX_COST);
        return number.map_or(default, |number| number.map(CostSource::Fixed));
    }
    let source = section.parsed("cost", (Code::BadKey, "a cost"), |text| {
        let name = text
            .strip_prefix("header:")
            .ok_or("write a number, or `\"header:x-cost\"`")?;
        header_name(name)
    });
    source.map_or(default, |name| name.map(CostSource::Header))
}

/// `settle = "response-header:x-cost"`
fn settle(text: &str) -> Result<HeaderName, &'static str> {
    let name = text.strip_prefix("response-header:");
    header_name(name.ok_or("the upstream says it; write `\"response-header:x-cost\"`")?)
}

/// `refund = ["5xx", "404"]`
fn refund(section: &mut Section<'_>) -> Option<At<StatusSet>> {
    let texts = section.texts("refund")?;
    if texts.value.is_empty() {
        section.out_of_range_at("refund", &texts, "one or more; leave `refund` out for none");
    }
    let mut set = StatusSet::default();
    for text in texts.value {
        let kind = (Code::BadHttp, "a status");
        section.understood("refund", text, kind, |text| set.add(text));
    }
    Some(At {
        value: set,
        span: texts.span,
    })
}

/// `[upstream.NAME]`
pub(super) fn upstream(name: At<String>, mut section: Section<'_>) -> RawUpstream {
    check_name(&section, &name, "an upstream");
    let texts = section.texts("servers");
    if section.peek("servers").is_none() {
        section.missing("servers", "servers = [\"http://10.0.1.10:3000\"]");
    }
    if let Some(texts) = texts
        .as_ref()
        .filter(|texts| !(1..=MAX_SERVERS).contains(&texts.value.len()))
    {
        section.out_of_range_at("servers", texts, &format!("1 to {MAX_SERVERS} servers"));
    }
    let mut servers: Vec<At<ServerAddress>> = Vec::new();
    for text in texts.map(|texts| texts.value).unwrap_or_default() {
        let kind = (Code::BadUrl, "a server's URL");
        let Some(server) = section.understood("servers", text, kind, address::server) else {
            continue;
        };
        if let Some(first) = servers.iter().find(|first| first.value == server.value) {
            let diagnostic = Diagnostic::new(Code::Duplicate, "the same server twice")
                .at(&server.span, "")
                .at(&first.span, "first here");
            section.reader.report(diagnostic);
        }
        servers.push(server);
    }
    let raw = RawUpstream {
        name,
        servers,
        ..bare_upstream(&mut section)
    };
    section.finish();
    raw
}

/// An upstream without name and servers: all that has a default.
pub(super) fn bare_upstream(section: &mut Section<'_>) -> RawUpstream {
    const SECOND: Duration = Duration::from_secs(1);
    RawUpstream {
        name: At {
            value: String::new(),
            span: section.span.clone(),
        },
        servers: Vec::new(),
        times: UpstreamTimes {
            connect: section.duration("connect_timeout", some_time(), 2 * SECOND),
            head: section.duration("timeout", some_time(), 60 * SECOND),
            body: section.duration("body_timeout", some_time(), 60 * SECOND),
            // Shorter than what common servers keep (Node and uvicorn: 5 s), so that a connection
            // is rarely closed by them at the moment it is used again.
            idle: section.duration("idle_timeout", some_time(), 4 * SECOND),
        },
        max_idle: section.count("max_idle", 0..=1 << 20, 256),
        max_connections: section.count("max_connections", 1..=1 << 20, 1024),
    }
}

/// `[[bypass]]`; nothing if it has no condition that could be read.
pub(super) fn bypass(mut section: Section<'_>) -> Option<Bypass> {
    let mut ip = Vec::new();
    let texts = section.texts("ip");
    if let Some(texts) = texts.as_ref().filter(|texts| texts.value.is_empty()) {
        section.out_of_range_at("ip", texts, "one or more; leave `ip` out for any");
    }
    for text in texts.map(|texts| texts.value).unwrap_or_default() {
        let kind = (Code::BadAddress, "an address or a network");
        let net = section.understood("ip", text, kind, address::network);
        ip.extend(net.map(|net| net.value));
    }
    let path = section
        .text("path")
        .and_then(|text| path_pattern(&section, text));
    let name = section.parsed("header", (Code::BadHttp, "a header's name"), header_name);
    let value = section.secret(Some("value"), "value_file");
    let key = section.secret(Some("key"), "key_file").map(|key| key.value);
    let has_value = section.peek("value").is_some() || section.peek("value_file").is_some();
    if section.peek("header").is_some() && !has_value {
        section.missing("value_file", "value_file = \"/run/secrets/bypass\"");
    }
    if section.peek("header").is_none() && has_value {
        section.missing("header", "header = \"x-bypass\"");
    }
    let conditions = ["ip", "path", "header", "key", "key_file"];
    if !conditions.iter().any(|key| section.peek(key).is_some()) {
        section.missing("ip", "ip = \"10.0.0.0/8\"");
    }
    for secret in [value.as_ref().map(|value| &value.value), key.as_ref()]
        .into_iter()
        .flatten()
    {
        if secret.is_empty() {
            let message = "an empty secret lets everybody pass";
            let diagnostic = Diagnostic::new(Code::Contradiction, message).at(&section.span, "");
            section.reader.report(diagnostic);
        }
    }
    section.finish();
    let header = name
        .zip(value)
        .map(|(name, value)| (name.value, value.value));
    let bypass = Bypass {
        ip,
        path: path.map(|path| path.value),
        header,
        key,
    };
    let any = !bypass.ip.is_empty()
        || bypass.path.is_some()
        || bypass.header.is_some()
        || bypass.key.is_some();
    any.then_some(bypass)
}
