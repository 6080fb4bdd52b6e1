//! The head of one request as data. It may come from a connection, a log line, or the headers of a
//! trusted proxy.
//!
//! Pure. The values are checked: host and path have their canonical spelling, and the client cannot
//! have made its address up.

use std::net::IpAddr;

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method};

use crate::certificate::Certificate;
use crate::path::CanonicalPath;

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
    /// The port of the proxy that the request came to; 0 if that is not known.
    pub port: u16,
    pub certificate: Option<&'r Certificate>,
    /// What a program has added to the request; `None` for a request that is described.
    pub extensions: Option<&'r Extensions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn new(secure: bool) -> Scheme {
        match secure {
            true => Scheme::Https,
            false => Scheme::Http,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// Whether two different names are equal for servers that read `_` as `-`.
#[inline]
pub fn are_twins(one: &HeaderName, other: &HeaderName) -> bool {
    let (one, other) = (one.as_str(), other.as_str());
    one.len() == other.len() && one != other && is_equal_with_dashes(one, other)
}

/// The lines of a header, also under a name with `_` for `-`. Many servers take both names for one
/// header, so a client could show the proxy one value and the upstream another.
pub fn lines_of<'r>(
    headers: &'r HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'r HeaderValue> {
    let twins = headers.keys().filter(move |other| are_twins(name, other));
    let lines = headers.get_all(name).iter();
    lines.chain(twins.flat_map(move |twin| headers.get_all(twin)))
}

fn is_equal_with_dashes(one: &str, other: &str) -> bool {
    let is_dash = |byte| matches!(byte, b'-' | b'_');
    let mut pairs = one.bytes().zip(other.bytes());
    pairs.all(|(one, other)| one == other || is_dash(one) && is_dash(other))
}

/// A reason to refuse a head that was readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// A line ended in LF alone.
    BareLf,
    /// Content-Length and Transfer-Encoding in one head.
    TwoLengths,
    /// More bytes than the configuration allows.
    TooLarge,
    /// More bytes than that before the first line ends.
    TargetTooLong,
    /// More header lines than the configuration allows.
    TooManyLines,
    /// Plain HTTP where TLS is spoken.
    WithoutTls,
}
