//! Texts with variables, `"{client_ip} of {host}"`: compiled when the configuration is loaded, and
//! filled in for each request.
//!
//! Pure. A value from a client must stay within the one value that it is put into. It must never
//! end a header line, or become another part of a URL.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, Method, Uri};

use super::{PathPattern, Route};
use crate::path::CanonicalPath;

use connection::TlsVariable;
pub use connection::{Ports, TlsFacts};
pub use late::{AttemptVariable, LateText};

/// Bytes of a template's own text, at most.
pub const MAX_TEXT: usize = 4096;
/// Variables in one template, at most.
pub const MAX_VARIABLES: usize = 32;
/// Bytes of a value that is filled in, at most.
pub const MAX_VALUE: usize = 8192;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<TemplatePiece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TemplatePiece {
    Text(Box<str>),
    Variable(Variable),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    /// The client's address, which limits count by.
    ClientIp,
    PeerIp,
    Host,
    /// The canonical path, with the trailing slash of the request.
    Path,
    /// The part of the path that the route's `/*` matches, without the slash before it.
    Rest,
    Uri,
    /// The query as it was sent, without its `?`.
    Query,
    Method,
    Route,
    RequestId,
    Scheme,
    /// The version of HTTP, such as `HTTP/1.1`.
    Protocol,
    PeerPort,
    /// The port of the proxy that the client has connected to.
    Port,
    Tls(TlsVariable),
    Attempts(AttemptVariable),
    /// All lines of a header, joined.
    Header(HeaderName),
    /// The first value of a query parameter, as it was sent.
    QueryValue(Box<str>),
    /// The first value of a cookie, as it was sent.
    Cookie(Box<str>),
    /// The value of a `{parameter}` of the route's path.
    PathParam(Box<str>),
}

#[derive(Clone, Copy, Debug)]
pub struct TemplateFacts<'r> {
    pub client: IpAddr,
    pub peer: IpAddr,
    pub host: &'r str,
    pub path: &'r CanonicalPath<'r>,
    pub target: &'r Uri,
    pub method: &'r Method,
    pub headers: &'r HeaderMap,
    pub route: &'r Route,
    pub request_id: &'r str,
    pub scheme: &'r str,
    pub protocol: &'r str,
    pub ports: Ports,
    /// `None` for a connection without TLS.
    pub tls: Option<TlsFacts<'r>>,
}

/// A text that is not a template. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    Open,
    Close,
    Unknown(String),
    Name(String),
    Control,
    TooLong,
    TooMany,
}

/// The value would have more than [`MAX_VALUE`] bytes. The client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// The part of a URL that a variable stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlPart {
    Path,
    Query,
}

/// Variables without a `:NAME`.
const WORDS: [(&str, Variable); 27] = [
    ("client_ip", Variable::ClientIp),
    ("peer_ip", Variable::PeerIp),
    ("host", Variable::Host),
    ("path", Variable::Path),
    ("rest", Variable::Rest),
    ("uri", Variable::Uri),
    ("query", Variable::Query),
    ("method", Variable::Method),
    ("route", Variable::Route),
    ("request_id", Variable::RequestId),
    ("scheme", Variable::Scheme),
    ("protocol", Variable::Protocol),
    ("peer_port", Variable::PeerPort),
    ("port", Variable::Port),
    ("tls_version", Variable::Tls(TlsVariable::Version)),
    ("tls_cipher", Variable::Tls(TlsVariable::Cipher)),
    ("tls_server_name", Variable::Tls(TlsVariable::ServerName)),
    ("tls_resumed", Variable::Tls(TlsVariable::Resumed)),
    ("tls_verified", Variable::Tls(TlsVariable::Verified)),
    ("tls_subject", Variable::Tls(TlsVariable::Subject)),
    ("tls_issuer", Variable::Tls(TlsVariable::Issuer)),
    ("tls_serial", Variable::Tls(TlsVariable::Serial)),
    ("tls_fingerprint", Variable::Tls(TlsVariable::Fingerprint)),
    ("tls_cert", Variable::Tls(TlsVariable::Certificate)),
    (
        "upstream_addr",
        Variable::Attempts(AttemptVariable::Address),
    ),
    (
        "upstream_status",
        Variable::Attempts(AttemptVariable::Status),
    ),
    ("upstream_time", Variable::Attempts(AttemptVariable::Time)),
];

impl Template {
    /// Reads `text {variable} text`; `{{` and `}}` are braces.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        if text.len() > MAX_TEXT {
            return Err(TemplateError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(TemplateError::Control);
        }
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut left = text;
        while let Some(at) = left.find(['{', '}']) {
            plain.push_str(&left[..at]);
            let brace = &left[at..=at];
            let rest = &left[at + 1..];
            if let Some(rest) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                left = rest;
                continue;
            }
            if brace == "}" {
                return Err(TemplateError::Close);
            }
            let (name, rest) = rest.split_once('}').ok_or(TemplateError::Open)?;
            push_text(&mut pieces, &mut plain);
            pieces.push(TemplatePiece::Variable(variable(name)?));
            left = rest;
        }
        plain.push_str(left);
        push_text(&mut pieces, &mut plain);
        let template = Template { pieces };
        if template.variables().count() > MAX_VARIABLES {
            return Err(TemplateError::TooMany);
        }
        Ok(template)
    }

    /// Makes a header's value. Values from the client stay as they were sent.
    pub fn fill(&self, facts: &TemplateFacts<'_>) -> Result<Vec<u8>, TooLong> {
        let mut value = Vec::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => value.extend_from_slice(text.as_bytes()),
                TemplatePiece::Variable(variable) => variable.write(&mut value, facts),
            }
            if value.len() > MAX_VALUE {
                return Err(TooLong);
            }
        }
        Ok(value)
    }

    /// Makes a URL or a path. Values from the client are escaped for the part that they stand in.
    pub fn fill_url(&self, facts: &TemplateFacts<'_>) -> Result<String, TooLong> {
        let mut url = String::new();
        let mut part = UrlPart::Path;
        let mut value = Vec::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => {
                    url.push_str(text);
                    if text.contains(['?', '#']) {
                        part = UrlPart::Query;
                    }
                }
                TemplatePiece::Variable(variable) => {
                    value.clear();
                    variable.write(&mut value, facts);
                    variable.escape(&mut url, &value, part);
                }
            }
            if url.len() > MAX_VALUE {
                return Err(TooLong);
            }
        }
        // The request had no query.
        let ends_with_query = matches!(
            self.pieces.last(),
            Some(TemplatePiece::Variable(Variable::Query))
        );
        if url.ends_with('?') || ends_with_query && url.ends_with('&') {
            url.pop();
        }
        // Browsers read `//name` as another host.
        let slashes = url.bytes().take_while(|byte| *byte == b'/').count();
        if slashes > 1 {
            url.drain(..slashes - 1);
        }
        Ok(url)
    }

    pub fn fixed(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [TemplatePiece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// A variable that paths of this pattern do not have, as the configuration writes it.
    pub fn unknown_to(&self, path: &PathPattern) -> Option<String> {
        self.variables().find_map(|variable| match variable {
            Variable::Rest if !path.takes_rest() => Some("rest".to_owned()),
            Variable::PathParam(wanted) if path.params().all(|name| *name != **wanted) => {
                Some(format!("path:{wanted}"))
            }
            _ => None,
        })
    }

    pub fn is_constant(&self) -> bool {
        self.variables().next().is_none()
    }

    pub(super) fn pieces(&self) -> &[TemplatePiece] {
        &self.pieces
    }

    fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Variable(variable) => Some(variable),
            TemplatePiece::Text(_) => None,
        })
    }
}

impl Variable {
    fn write(&self, out: &mut Vec<u8>, facts: &TemplateFacts<'_>) {
        match self {
            Self::ClientIp => push(out, &facts.client.to_canonical().to_string()),
            Self::PeerIp => push(out, &facts.peer.to_canonical().to_string()),
            Self::Host => push(out, facts.host),
            Self::Path => push_path(out, facts),
            Self::Rest => {
                let rest = facts.route.path.rest_of(facts.path.as_str());
                push(out, rest);
                if !rest.is_empty() && facts.target.path().ends_with('/') {
                    out.push(b'/');
                }
            }
            Self::Uri => {
                push_path(out, facts);
                if let Some(query) = facts.target.query() {
                    out.push(b'?');
                    push(out, query);
                }
            }
            Self::Query => push(out, facts.target.query().unwrap_or_default()),
            Self::Method => push(out, facts.method.as_str()),
            // The operator's name of a route may have characters of any script.
            Self::Route => push(out, &facts.route.name),
            Self::RequestId => push(out, facts.request_id),
            Self::Scheme => push(out, facts.scheme),
            Self::Protocol => push(out, facts.protocol),
            Self::PeerPort => push_port(out, facts.ports.peer),
            Self::Port => push_port(out, facts.ports.local),
            Self::Tls(variable) => variable.write(out, facts.tls),
            // They have no value yet.
            Self::Attempts(_) => {}
            Self::Header(name) => {
                // HTTP/2 may send cookies in several lines.
                let between = if *name == COOKIE { "; " } else { ", " };
                for (index, line) in facts.headers.get_all(name).iter().enumerate() {
                    push(out, if index == 0 { "" } else { between });
                    out.extend_from_slice(line.as_bytes());
                }
            }
            Self::QueryValue(name) => {
                let query = facts.target.query().unwrap_or_default().as_bytes();
                out.extend_from_slice(named(query.split(|byte| *byte == b'&'), name));
            }
            Self::Cookie(name) => out.extend_from_slice(cookie(facts.headers, name)),
            Self::PathParam(name) => {
                push(out, facts.route.path.param_of(name, facts.path.as_str()));
            }
        }
    }

    /// Writes a value into a URL, escaped so that it stays within its part.
    fn escape(&self, url: &mut String, value: &[u8], part: UrlPart) {
        // A value that is a part of a URL has its own escapes. In other values `%` is a character.
        let (keep, escaped): (fn(u8) -> bool, bool) = match (self, part) {
            (Self::Host, UrlPart::Path) => (is_host_byte, false),
            (Self::Path | Self::Rest | Self::Uri | Self::PathParam(_), UrlPart::Path) => {
                (is_url_byte, true)
            }
            (Self::Query, UrlPart::Query) => (is_url_byte, true),
            (Self::Path | Self::Rest | Self::Uri, UrlPart::Query) => (is_argument_byte, false),
            (Self::QueryValue(_) | Self::Query, _) => (is_unreserved, true),
            _ => (is_unreserved, false),
        };
        let is_form = matches!(self, Self::QueryValue(_));
        let mut left = value;
        while let Some((&byte, rest)) = left.split_first() {
            let is_escape = matches!(
                rest,
                [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit()
            );
            match byte {
                b'%' if escaped && is_escape => url.push('%'),
                // A plus in a form is a space.
                b'+' if is_form => url.push_str("%20"),
                byte if keep(byte) => url.push(char::from(byte)),
                byte => {
                    let _ = write!(url, "%{byte:02X}");
                }
            }
            left = rest;
        }
    }
}

fn push(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn push_port(out: &mut Vec<u8>, port: u16) {
    if port != 0 {
        push(out, &port.to_string());
    }
}

fn push_path(out: &mut Vec<u8>, facts: &TemplateFacts<'_>) {
    let path = facts.path.as_str();
    push(out, path);
    if path != "/" && facts.target.path().ends_with('/') {
        out.push(b'/');
    }
}

/// The first value of this name in `name=value` pairs.
fn named<'r>(mut pairs: impl Iterator<Item = &'r [u8]>, name: &str) -> &'r [u8] {
    let value = pairs.find_map(|pair| {
        let rest = pair.trim_ascii().strip_prefix(name.as_bytes())?;
        rest.strip_prefix(b"=")
    });
    value.unwrap_or_default()
}

fn cookie<'r>(headers: &'r HeaderMap, name: &str) -> &'r [u8] {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    named(pairs, name)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn is_host_byte(byte: u8) -> bool {
    is_unreserved(byte) || b"[]:".contains(&byte)
}

fn is_argument_byte(byte: u8) -> bool {
    is_unreserved(byte) || byte == b'/'
}

/// Whether a path or a query may hold this byte unescaped.
fn is_url_byte(byte: u8) -> bool {
    is_unreserved(byte) || b"/?:@!$&'()*+,;=[]".contains(&byte)
}

fn push_text(pieces: &mut Vec<TemplatePiece>, plain: &mut String) {
    if !plain.is_empty() {
        pieces.push(TemplatePiece::Text(std::mem::take(plain).into()));
    }
}

fn variable(name: &str) -> Result<Variable, TemplateError> {
    if let Some((_, variable)) = WORDS.iter().find(|(word, _)| *word == name) {
        return Ok(variable.clone());
    }
    let Some((kind, inner)) = name.split_once(':') else {
        return Err(TemplateError::Unknown(name.to_owned()));
    };
    let is_token = !inner.is_empty()
        && inner
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    match kind {
        "header" => match HeaderName::from_bytes(inner.as_bytes()) {
            Ok(header) => Ok(Variable::Header(header)),
            Err(_) => Err(TemplateError::Name(inner.to_owned())),
        },
        "query" | "cookie" | "path" if !is_token => Err(TemplateError::Name(inner.to_owned())),
        "query" => Ok(Variable::QueryValue(inner.into())),
        "cookie" => Ok(Variable::Cookie(inner.into())),
        "path" => Ok(Variable::PathParam(inner.into())),
        _ => Err(TemplateError::Unknown(name.to_owned())),
    }
}

impl TemplateError {
    /// The known variable that looks most like an unknown one.
    fn near(unknown: &str) -> Option<&'static str> {
        let plain = |text: &str| text.to_ascii_lowercase().replace(['-', ' ', '.', '$'], "_");
        let distance = |word: &str| strsim::damerau_levenshtein(word, &plain(unknown));
        let near = WORDS.iter().map(|(word, _)| (distance(word), *word));
        near.min()
            .filter(|(far, _)| *far <= 2)
            .map(|(_, word)| word)
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("a `{` is not closed; write `{{` for a brace"),
            Self::Close => f.write_str("a `}` closes nothing; write `}}` for a brace"),
            Self::Unknown(name) => {
                write!(f, "there is no `{{{name}}}`")?;
                match Self::near(name) {
                    Some(near) => write!(f, "; did you mean `{{{near}}}`?"),
                    None => f.write_str(
                        "; docs/routes.md lists them: client_ip, peer_ip, host, path, rest, uri, \
                         query, method, route, request_id, scheme, header:NAME, query:NAME, \
                         cookie:NAME, path:PARAM and others",
                    ),
                }
            }
            Self::Name(name) => write!(f, "`{name}` is no name that a request can have"),
            Self::Control => f.write_str("a header cannot hold control characters"),
            Self::TooLong => write!(f, "longer than {MAX_TEXT} bytes"),
            Self::TooMany => write!(f, "more than {MAX_VARIABLES} variables"),
        }
    }
}

impl std::error::Error for TemplateError {}

mod connection;
mod late;

#[cfg(test)]
mod fill_tests;
#[cfg(test)]
mod parse_tests;
