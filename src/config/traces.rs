//! `[tracing]`: which requests are recorded as traces, and where they are sent.

use std::fmt;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};

use super::client_tls::{self, ClientTls};
use super::diagnostic::{Code, Diagnostic, Span};
use super::reader::At;
use super::section::Section;
use super::values::{TextForm, some_time};
use super::{Hidden, address};
use crate::trace::{Continue, SamplingRules};

/// Header lines of a file, at most.
const MAX_HEADERS: usize = 32;
/// What a collector's path is where its URL has none.
const USUAL_PATH: &str = "/v1/traces";

/// `[tracing]`, where it names a collector.
#[derive(Clone, PartialEq)]
pub struct TracingSettings {
    /// Where spans are sent.
    pub endpoint: Endpoint,
    /// How they are sent there.
    pub protocol: OtlpProtocol,
    /// Which are recorded.
    pub rules: SamplingRules,
    /// What this proxy is called there.
    pub service: String,
    /// What every export carries: names and values, which may be secrets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How long an export may take.
    pub timeout: Duration,
    /// From one export to the next at most.
    pub every: Duration,
    /// Spans of one export at most.
    pub batch: usize,
    /// Spans that may wait, of each worker.
    pub queue: usize,
    /// Whom we trust over TLS, and what we show.
    pub tls: ClientTls,
}

/// A collector's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it is spoken to over TLS.
    pub secure: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Where on it, for HTTP.
    pub path: String,
}

/// What is spoken with a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// OTLP/HTTP with protobuf.
    Http,
    /// OTLP/gRPC.
    Grpc,
}

impl fmt::Debug for TracingSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self
            .headers
            .iter()
            .map(|(name, _)| (name, Hidden))
            .collect();
        f.debug_struct("TracingSettings")
            .field("endpoint", &self.endpoint)
            .field("protocol", &self.protocol)
            .field("rules", &self.rules)
            .field("service", &self.service)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl Endpoint {
    /// `collector:4318`, `[::1]:4318`
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// `[tracing]`; nothing where it names no collector.
pub(super) fn read(mut section: Section<'_>) -> Option<TracingSettings> {
    let said = section.entries().into_iter().next();
    let protocols = [("http", OtlpProtocol::Http), ("grpc", OtlpProtocol::Grpc)];
    let protocol = section.word("protocol", &protocols);
    let protocol = protocol.unwrap_or(OtlpProtocol::Http);
    let kind = TextForm::new(Code::BadUrl, "a collector's URL");
    let endpoint = section.parsed("endpoint", kind, |text| endpoint(text, protocol));
    let rules = rules(&mut section);
    let service = section.parsed(
        "service",
        TextForm::new(Code::BadName, "a service's name"),
        |text| {
            let fits = (1..=255).contains(&text.len()) && !text.contains(char::is_control);
            fits.then(|| text.to_owned())
                .ok_or("1 to 255 characters, none of them a control character")
        },
    );
    let headers = headers(&mut section);
    let second = Duration::from_secs(1);
    let (timeout, every) = (
        section.duration("timeout", some_time(), 10 * second),
        section.duration("every", some_time(), second),
    );
    let batch = section.count("batch", 1..=10_000, 512);
    let queue = section.count("queue", 16..=1_000_000, 4096);
    let (tls, tls_span) = client_tls::read(&mut section, "collector-client");
    if let (None, Some((first, _))) = (section.peek("endpoint"), &said)
        && !first.value.starts_with("x-")
    {
        section.missing("endpoint", "endpoint = \"http://127.0.0.1:4318\"");
    }
    if let Some(endpoint) = &endpoint {
        check_tls(&section, endpoint, tls_span);
    }
    section.finish();
    Some(TracingSettings {
        endpoint: endpoint?.value,
        protocol,
        rules,
        service: service.map_or_else(|| "tidegate".to_owned(), |name| name.value),
        headers,
        timeout,
        every,
        batch,
        queue,
        tls,
    })
}

fn rules(section: &mut Section<'_>) -> SamplingRules {
    let whose = [
        ("trusted", Continue::Trusted),
        ("all", Continue::All),
        ("never", Continue::Never),
    ];
    SamplingRules {
        sample: section.share("sample", 0.01),
        continues: section.word("continue", &whose).unwrap_or_default(),
        obeys: section.boolean("parent_sampled", true),
    }
}

fn check_tls(section: &Section<'_>, endpoint: &At<Endpoint>, tls: Option<Span>) {
    let Some(span) = tls.filter(|_| !endpoint.value.secure) else {
        return;
    };
    let message = "`tracing.tls` is for a collector with TLS";
    let diagnostic = Diagnostic::new(Code::Contradiction, message)
        .at(&span, "the URL is one without")
        .help("write `endpoint = \"https://...\"`");
    section.reader.report(diagnostic);
}

/// `http://127.0.0.1:4318`, `https://otlp.example.com/v1/traces`
fn endpoint(text: &str, protocol: OtlpProtocol) -> Result<Endpoint, &'static str> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("the scheme is missing; write for example `http://127.0.0.1:4318`");
    };
    let secure = match scheme {
        "http" => false,
        "https" => true,
        "grpc" | "grpcs" => {
            return Err("no such scheme; write `http://` or `https://`, and `protocol = \"grpc\"`");
        }
        _ => return Err("no such scheme; write `http://` or `https://`"),
    };
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    if authority.contains('@') {
        return Err("it carries no user; name a file of headers in `headers_file`");
    }
    if path.contains(['?', '#']) {
        return Err("a collector's URL has no query; name a file of headers in `headers_file`");
    }
    let usual = if protocol == OtlpProtocol::Grpc {
        4317
    } else {
        4318
    };
    let default = if secure { 443 } else { usual };
    let (host, port) = address::host_and_port(authority, default)?;
    let path = match (protocol, path) {
        (OtlpProtocol::Http, "" | "/") => USUAL_PATH.to_owned(),
        (OtlpProtocol::Grpc, "" | "/") => String::new(),
        (OtlpProtocol::Grpc, _) => return Err("gRPC has no path of its own; leave it out"),
        (OtlpProtocol::Http, path) => {
            let valid = path.parse::<http::uri::PathAndQuery>().is_ok();
            valid.then(|| path.to_owned()).ok_or("not a path")?
        }
    };
    Ok(Endpoint {
        secure,
        host,
        port,
        path,
    })
}

/// Lines `name: value` of a file, which may be secrets.
fn headers(section: &mut Section<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let Some(content) = section.secret(None, "headers_file") else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&content.value);
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let read: Option<Vec<_>> = lines.iter().map(|line| header(line)).collect();
    let fits = |read: &Vec<_>| read.len() <= MAX_HEADERS;
    if let Some(read) = read.filter(fits) {
        return read;
    }
    // What a line holds may be secret: it is not shown.
    let wrong = lines.iter().position(|line| header(line).is_none());
    let why = match wrong {
        Some(at) => format!("its header {} is not `name: value`", at + 1),
        None => format!("more than {MAX_HEADERS} headers"),
    };
    let message = "the file of `tracing.headers_file` cannot be used";
    let diagnostic = Diagnostic::new(Code::SecretFile, message)
        .at(&content.span, why)
        .help("write a header in each line: `authorization: Bearer ...`");
    section.reader.report(diagnostic);
    Vec::new()
}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    let name = HeaderName::try_from(name.trim()).ok()?;
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    let ours = [
        "host",
        "content-length",
        "content-type",
        "te",
        "transfer-encoding",
        "connection",
    ];
    (!ours.contains(&name.as_str())).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_the_usual_port_and_path() {
        let read = |text, protocol| {
            let endpoint = endpoint(text, protocol).unwrap();
            (endpoint.to_string(), endpoint.path)
        };
        let pair = |url: &str, path: &str| (url.to_owned(), path.to_owned());
        let http = OtlpProtocol::Http;
        assert_eq!(read("http://a", http), pair("http://a:4318", "/v1/traces"));
        assert_eq!(read("https://a/x/y", http), pair("https://a:443", "/x/y"));
        assert_eq!(
            read("http://[::1]:9/", http),
            pair("http://[::1]:9", "/v1/traces")
        );
        assert_eq!(
            read("http://a", OtlpProtocol::Grpc),
            pair("http://a:4317", "")
        );
    }

    #[test]
    fn a_header_of_our_own_is_not_the_files() {
        assert!(header("authorization: Bearer x").is_some());
        for wrong in [
            "authorization",
            "a b: c",
            "host: x",
            "Content-Type: text/plain",
        ] {
            assert!(header(wrong).is_none(), "{wrong}");
        }
    }
}
