//! Texts with variables, `"{client_ip} of {host}"`: compiled when the configuration is loaded, and
//! filled in for each request.
//!
//! Pure. A value from a client must stay within the one value that it is put into. It must never
//! end a header line, or become another part of a URL.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{COOKIE, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Method, Uri};

use super::{HostPattern, PathPattern, Route};
use crate::path::{CanonicalPath, has_one_spelling};

pub use body::BodyTemplate;
pub use connection::{ConnectionFacts, Ports, Relay, TlsFacts};
use connection::{RelayVariable, TlsVariable};
pub use error::TemplateError;
pub use escape::escape_target;
use escape::{is_argument_byte, is_host_byte, is_unreserved, is_url_byte, push_escaped};
use late::LateVariable;
pub use late::{AttemptVariable, LateText, LimitResult, ResponseTime, SentResponse};
pub use line::LineTemplate;
use words::WORDS;

/// Bytes of a template's own text, at most.
pub const MAX_TEXT: usize = 4096;
/// Variables in one template, at most.
pub const MAX_VARIABLES: usize = 32;
/// Bytes of a value that is filled in, at most, unless heads may be large.
pub const MAX_VALUE: usize = 8192;
/// The part of the longest head that one value may be, if that is more.
const VALUES_OF_HEAD: usize = 4;

/// The bound of values that are filled in, where heads have at most so many bytes. One long line of
/// a head then fits into a value, and a few values are not longer than a head.
pub fn max_value(max_head_bytes: usize) -> usize {
    MAX_VALUE.max(max_head_bytes / VALUES_OF_HEAD)
}

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
    /// The port that the client asked for, behind its host.
    AskedPort,
    /// `:` if the client asked for a port, as in nginx.
    IsAskedPort,
    /// The version of HTTP, such as `HTTP/1.1`.
    Protocol,
    /// `h2` for HTTP/2 with TLS, `h2c` without, as in nginx.
    Http2,
    PeerPort,
    /// The port of the proxy that the client has connected to.
    Port,
    Relay(RelayVariable),
    /// The number of the request on its connection.
    ConnectionRequests,
    /// `:` and this port, unless it is that of the scheme.
    PortPart,
    Tls(TlsVariable),
    Late(LateVariable),
    /// The user that `Authorization: Basic` names.
    BasicUser,
    /// All lines of a header, joined.
    Header(HeaderName),
    /// The first value of a query parameter, as it was sent.
    QueryValue(Box<str>),
    /// The first value of a cookie, as it was sent.
    Cookie(Box<str>),
    /// The value of a `{parameter}` of the route's path, or of a group of its expression.
    PathParam(Box<str>),
    /// The value of a group of the expression that the route's host is.
    HostGroup(Box<str>),
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
    /// `None` for a connection without a PROXY header.
    pub relay: Option<Relay>,
    /// `None` if another program describes the request.
    pub connection: Option<ConnectionFacts>,
    /// `None` for a connection without TLS.
    pub tls: Option<TlsFacts<'r>>,
    /// Bytes of a value, at most: see [`max_value`].
    pub max_value: usize,
}

impl TemplateFacts<'_> {
    /// The port in the target of the request, or else in `Host`; 0 without one.
    fn asked_port(&self) -> u16 {
        let of_host = || {
            let host = self.headers.get(HOST)?.to_str().ok()?;
            host.parse::<Authority>().ok()?.port_u16()
        };
        match self.target.authority() {
            Some(authority) => authority.port_u16().unwrap_or(0),
            None => of_host().unwrap_or(0),
        }
    }
}

/// The value would be longer than [`max_value`]. The client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// The part of a URL that a variable stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlPart {
    Path,
    Query,
}

impl Template {
    /// Reads `text {variable} text`; `{{` and `}}` are braces.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        if text.chars().any(char::is_control) {
            return Err(TemplateError::Control);
        }
        Template::parse_with(text, &[])
    }

    /// Does the same for a text that may have several lines, and more variables.
    fn parse_with(text: &str, more: &[(&str, Variable)]) -> Result<Template, TemplateError> {
        if text.len() > MAX_TEXT {
            return Err(TemplateError::TooLong);
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
            pieces.push(TemplatePiece::Variable(variable(name, more)?));
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
            if value.len() > facts.max_value {
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
            if url.len() > facts.max_value {
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
    pub fn unknown_to_path(&self, path: &PathPattern) -> Option<String> {
        self.variables().find_map(|variable| match variable {
            Variable::Rest if !path.takes_rest() => Some("rest".to_owned()),
            Variable::PathParam(wanted) if !path.has_param(wanted) => {
                Some(format!("path:{wanted}"))
            }
            _ => None,
        })
    }

    /// A variable that hosts of this pattern do not have.
    pub fn unknown_to_host(&self, host: &HostPattern) -> Option<String> {
        self.variables().find_map(|variable| match variable {
            Variable::HostGroup(wanted) if !host.has_group(wanted) => {
                Some(format!("host:{wanted}"))
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
            Self::Path => push_path(out, &full_path(facts), facts),
            Self::Rest => {
                let path = full_path(facts);
                push_path(out, facts.route.path.rest_of(&path), facts);
            }
            Self::Uri => {
                push_path(out, &full_path(facts), facts);
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
            Self::AskedPort => push_port(out, facts.asked_port()),
            Self::IsAskedPort if facts.asked_port() == 0 => {}
            Self::IsAskedPort => out.push(b':'),
            Self::Protocol => push(out, facts.protocol),
            Self::Http2 if facts.protocol != "HTTP/2.0" => {}
            Self::Http2 => push(out, facts.tls.map_or("h2c", |_| "h2")),
            Self::PeerPort => push_port(out, facts.ports.peer),
            Self::Port => push_port(out, facts.ports.local),
            Self::Relay(variable) => variable.write(out, facts),
            Self::ConnectionRequests => {
                if let Some(connection) = facts.connection {
                    push(out, &connection.requests.to_string());
                }
            }
            Self::PortPart => facts.ports.push_part(facts.scheme, out),
            Self::Tls(variable) => variable.write(out, facts.tls),
            // They have no value yet.
            Self::Late(_) => {}
            Self::BasicUser => basic_user::write(out, facts.headers),
            Self::Header(name) => push_header(out, facts.headers, name),
            Self::QueryValue(name) => {
                let query = facts.target.query().unwrap_or_default().as_bytes();
                out.extend_from_slice(named(query.split(|byte| *byte == b'&'), name));
            }
            Self::Cookie(name) => out.extend_from_slice(cookie(facts.headers, name)),
            Self::PathParam(name) => {
                let path = facts.path.as_sent(facts.target.path());
                facts.route.path.push_param(name, &path, out);
            }
            Self::HostGroup(name) => facts.route.host.push_group(name, facts.host, out),
        }
    }

    /// Writes a value into a URL, escaped so that it stays within its part.
    fn escape(&self, url: &mut String, value: &[u8], part: UrlPart) {
        // A value that is a part of a URL has its own escapes. In other values `%` is a character.
        let (keep, escaped): (fn(u8) -> bool, bool) = match (self, part) {
            (Self::Host | Self::PortPart, UrlPart::Path) => (is_host_byte, false),
            (Self::Path | Self::Rest | Self::Uri | Self::PathParam(_), UrlPart::Path) => {
                (is_url_byte, true)
            }
            (Self::Query, UrlPart::Query) => (is_url_byte, true),
            (Self::Path | Self::Rest | Self::Uri, UrlPart::Query) => (is_argument_byte, false),
            (Self::QueryValue(_) | Self::Query, _) => (is_unreserved, true),
            _ => (is_unreserved, false),
        };
        let is_form = matches!(self, Self::QueryValue(_));
        push_escaped(url, value, keep, escaped, is_form);
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

/// The path with the parameters of its segments (`/a;v=1`), which the canonical path lacks.
fn full_path<'r>(facts: &TemplateFacts<'r>) -> Cow<'r, str> {
    let sent = facts.target.path();
    match sent.contains(';') && has_one_spelling(sent) {
        true => Cow::Borrowed(sent.strip_suffix('/').unwrap_or(sent)),
        false => facts.path.as_sent(sent),
    }
}

/// Writes a path, or the end of it, with the slash that the client wrote.
fn push_path(out: &mut Vec<u8>, path: &str, facts: &TemplateFacts<'_>) {
    push(out, path);
    if !["", "/"].contains(&path) && facts.target.path().ends_with('/') {
        out.push(b'/');
    }
}

/// Writes all lines of a header, joined.
fn push_header(out: &mut Vec<u8>, headers: &HeaderMap, name: &HeaderName) {
    // HTTP/2 may send cookies in several lines.
    let between = if *name == COOKIE { "; " } else { ", " };
    for (index, line) in headers.get_all(name).iter().enumerate() {
        push(out, if index == 0 { "" } else { between });
        out.extend_from_slice(line.as_bytes());
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

fn push_text(pieces: &mut Vec<TemplatePiece>, plain: &mut String) {
    if !plain.is_empty() {
        pieces.push(TemplatePiece::Text(std::mem::take(plain).into()));
    }
}

/// Finds a variable by its name, also among `more` words.
fn variable(name: &str, more: &[(&str, Variable)]) -> Result<Variable, TemplateError> {
    let mut words = WORDS.iter().chain(more);
    if let Some((_, variable)) = words.find(|(word, _)| *word == name) {
        return Ok(variable.clone());
    }
    let Some((kind, inner)) = name.split_once(':') else {
        return Err(TemplateError::Unknown(name.to_owned()));
    };
    let is_token = !inner.is_empty() && inner.bytes().all(is_unreserved);
    let header = || {
        let name = HeaderName::from_bytes(inner.as_bytes());
        name.map_err(|_| TemplateError::Name(inner.to_owned()))
    };
    match kind {
        "header" => Ok(Variable::Header(header()?)),
        "response_header" => Ok(Variable::Late(LateVariable::Header(header()?))),
        "query" | "cookie" | "path" | "host" | "response_cookie" if !is_token => {
            Err(TemplateError::Name(inner.to_owned()))
        }
        "response_cookie" => Ok(Variable::Late(LateVariable::Cookie(inner.into()))),
        "query" => Ok(Variable::QueryValue(inner.into())),
        "cookie" => Ok(Variable::Cookie(inner.into())),
        "path" => Ok(Variable::PathParam(inner.into())),
        "host" => Ok(Variable::HostGroup(inner.into())),
        _ => Err(TemplateError::Unknown(name.to_owned())),
    }
}

mod basic_user;
mod body;
mod connection;
mod error;
mod escape;
mod late;
mod line;
mod words;

#[cfg(test)]
mod fill_tests;
#[cfg(test)]
mod parse_tests;
