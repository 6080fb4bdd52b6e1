//! Texts with variables, `"{client_ip} of {host}"`: compiled when the configuration is loaded, and
//! filled in for one request.
//!
//! Pure. What a client sent must never become more than a part of the one value that it is put
//! into: no line of a header ends within it, and in a URL it is no part of another kind.

mod fill;
mod parse;

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Method, Uri};

use super::{PathPattern, Route};
use crate::path::CanonicalPath;

pub use fill::TooLong;
pub use parse::TemplateError;

/// Bytes of a template's own text, at most.
pub const MAX_TEXT: usize = 4096;
/// Variables in one template, at most.
pub const MAX_VARIABLES: usize = 32;
/// Bytes of a value that is filled in, at most.
pub const MAX_VALUE: usize = 8192;

/// See the file's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Box<str>),
    Variable(Variable),
}

/// What can be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    /// Whom the request counts for.
    ClientIp,
    /// Who sent it to us.
    PeerIp,
    /// The host asked for, without port.
    Host,
    /// The canonical path, with the slash at its end if the client wrote one.
    Path,
    /// What the route's `/*` stands for, without the slash before it.
    Rest,
    /// The path and the query.
    Uri,
    /// The query without its `?`, as it was sent.
    Query,
    Method,
    Route,
    RequestId,
    /// `http` or `https`.
    Scheme,
    /// Of the client's certificate.
    TlsSubject,
    /// All lines of a header, joined.
    Header(HeaderName),
    /// The first value of a query parameter, as it was sent.
    QueryValue(Box<str>),
    /// The first value of a cookie, as it was sent.
    Cookie(Box<str>),
    /// What a `{parameter}` of the route's path stands for.
    PathParam(Box<str>),
}

/// One request, as its variables see it.
#[derive(Clone, Copy, Debug)]
pub struct TemplateFacts<'r> {
    /// Whom it counts for.
    pub client: IpAddr,
    /// Who sent it to us.
    pub peer: IpAddr,
    /// The host asked for, without port; empty if HTTP/1.0 names none.
    pub host: &'r str,
    /// Its path.
    pub path: &'r CanonicalPath<'r>,
    /// Its target.
    pub target: &'r Uri,
    /// Its method.
    pub method: &'r Method,
    /// Its headers as the client sent them.
    pub headers: &'r HeaderMap,
    /// Its route.
    pub route: &'r Route,
    /// The id under which it is logged.
    pub request_id: &'r str,
    /// `http` or `https`.
    pub scheme: &'r str,
    /// The subject of its client's certificate.
    pub tls_subject: Option<&'r str>,
}

impl Template {
    /// Its text, if it is always the same.
    pub fn fixed(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// A variable of it that no path of this pattern has, as it is written.
    pub fn unknown_to(&self, path: &PathPattern) -> Option<String> {
        self.variables().find_map(|variable| match variable {
            Variable::Rest if !path.takes_rest() => Some("rest".to_owned()),
            Variable::PathParam(wanted) if path.params().all(|name| *name != **wanted) => {
                Some(format!("path:{wanted}"))
            }
            _ => None,
        })
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Variable(variable) => Some(variable),
            Piece::Text(_) => None,
        })
    }
}
