//! The head of one request as data. Everybody who can describe a request can ask the limiter about
//! it: a connection, a line of a log, a trusted proxy's headers.
//!
//! Pure. What it says has been checked: the host and the path have one spelling, and the client's
//! address is one that the client could not make up.

use std::net::IpAddr;

use http::{Extensions, HeaderMap, Method};

use crate::certificate::Certificate;
use crate::path::CanonicalPath;

/// See the file's head.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    pub method: &'r Method,
    /// As `route::host_of` spells it; empty if the request names none.
    pub host: &'r str,
    pub path: &'r CanonicalPath<'r>,
    /// Without its `?`.
    pub query: Option<&'r str>,
    pub scheme: Scheme,
    pub headers: &'r HeaderMap,
    /// The client's address, not grouped.
    pub client: IpAddr,
    /// Whether the peer is a trusted proxy: its headers may name a tier and a cost.
    pub is_trusted: bool,
    /// The certificate that the peer showed.
    pub certificate: Option<&'r Certificate>,
    /// What a program has added to the request; `None` for a request that is described.
    pub extensions: Option<&'r Extensions>,
}

/// What the connection of a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    /// Over TLS.
    Https,
}

impl Scheme {
    /// That of a connection that is `secure` or not.
    pub fn of(secure: bool) -> Scheme {
        match secure {
            true => Scheme::Https,
            false => Scheme::Http,
        }
    }

    /// As URLs write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// What makes a head that could be read one that must not be served; found where it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// A line ended in LF alone.
    BareLf,
    /// Content-Length and Transfer-Encoding in one head.
    TwoLengths,
    /// More bytes or lines than the configuration allows.
    TooLarge,
    /// Plain HTTP where TLS is spoken.
    WithoutTls,
}
