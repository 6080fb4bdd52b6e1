//! `[tracing]`: the requests that are recorded as traces, and the collector of traces.

use std::fmt;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};

use super::tls::{self, ClientTls};
use super::*;
use crate::trace::{Continue, SamplingRules};

const MAX_HEADERS: usize = 32;
const USUAL_PATH: &str = "/v1/traces";

/// `[tracing]`
#[derive(Clone, Debug, PartialEq)]
pub struct TracingSettings {
    pub endpoint: Endpoint,
    pub protocol: OtlpProtocol,
    pub rules: SamplingRules,
    pub service: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub timeout: Duration,
    pub every: Duration,
    pub batch: usize,
    /// Spans that may wait, for each worker.
    pub queue: usize,
    pub tls: ClientTls,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    pub secure: bool,
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// OTLP/HTTP with protobuf.
    Http,
    Grpc,
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

/// Reads `[tracing]`. Returns `None` if it has no collector.
pub(super) fn read(mut section: Section<'_>) -> Option<TracingSettings> {
    let entries = section.entries();
    if entries
        .first()
        .is_some_and(|(key, _)| !key.value.starts_with("x-"))
    {
        section.require("endpoint", "endpoint = \"http://127.0.0.1:4318\"");
    }
    let protocols = [("http", OtlpProtocol::Http), ("grpc", OtlpProtocol::Grpc)];
    let protocol = section.word("protocol", &protocols);
    let url = TextForm::new(Code::BadUrl, "a collector's URL");
    let endpoint = section.parse("endpoint", url, |text| endpoint(text, protocol));
    let name = TextForm::new(Code::BadName, "a service's name");
    let service = section.parse("service", name, service_name);
    let (tls, tls_span) = tls::read_client(&mut section, "collector-client");
    check_tls(&section, endpoint.as_ref(), tls_span);
    let continues = [
        ("trusted", Continue::Trusted),
        ("all", Continue::All),
        ("never", Continue::Never),
    ];
    let has_endpoint = endpoint.is_some();
    let settings = TracingSettings {
        endpoint: endpoint.unwrap_or_default(),
        protocol,
        rules: SamplingRules {
            sample: section.fraction("sample"),
            continues: section.word("continue", &continues),
            obeys: section.boolean("parent_sampled"),
        },
        service: service.unwrap_or_else(|| "tidegate".to_owned()),
        headers: headers(&mut section),
        timeout: section.duration("timeout", UP_TO_A_DAY),
        every: section.duration("every", UP_TO_A_DAY),
        batch: section.integer("batch", 1..=10_000),
        queue: section.integer("queue", 16..=1_000_000),
        tls,
    };
    section.finish();
    has_endpoint.then_some(settings)
}

fn service_name(text: &str) -> Result<String, &'static str> {
    let fits = (1..=255).contains(&text.len()) && !text.contains(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or("1 to 255 characters, none of them a control character")
}

fn check_tls(section: &Section<'_>, endpoint: Option<&Endpoint>, tls: Option<TextSpan>) {
    let is_plain = endpoint.is_some_and(|endpoint| !endpoint.secure);
    let Some(span) = tls.filter(|_| is_plain) else {
        return;
    };
    contradiction("`tracing.tls` is for a collector with TLS")
        .at(&span, "the URL is one without")
        .help("write `endpoint = \"https://...\"`")
        .report_to(section.reader);
}

/// Parses `http://127.0.0.1:4318` or `https://otlp.example.com/v1/traces`.
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

/// Reads `headers_file`: lines `name: value`. The values may be secrets.
fn headers(section: &mut Section<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let Some(content) = section.secret(None, "headers_file") else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&content);
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let read: Option<Vec<_>> = lines.iter().map(|line| header(line)).collect();
    let fits = |read: &Vec<_>| read.len() <= MAX_HEADERS;
    if let Some(read) = read.filter(fits) {
        return read;
    }
    // A line may hold a secret: the message does not show it.
    let wrong = lines.iter().position(|line| header(line).is_none());
    let why = match wrong {
        Some(at) => format!("the header {} is not `name: value`", at + 1),
        None => format!("more than {MAX_HEADERS} headers"),
    };
    let help = "write a header in each line: `authorization: Bearer ...`";
    section.unusable_file("headers_file", &format!("{why}; {help}"));
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
