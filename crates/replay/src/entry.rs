//! One line of an access log, read: what it says of a request.
//!
//! Pure. It borrows from its line; only what was escaped is copied.

use std::borrow::Cow;
use std::net::IpAddr;

/// What a line says of a request.
#[derive(Clone, Debug)]
pub struct Entry<'l> {
    /// When, microseconds since the Unix epoch.
    pub at_us: u64,
    /// Whoever was connected.
    pub peer: IpAddr,
    /// Whom the writer of the log took for the client, where it says both.
    pub client: Option<IpAddr>,
    /// The method.
    pub method: &'l str,
    /// Path and query, or a whole URL, as it was sent.
    pub target: Cow<'l, str>,
    /// The host asked for, if the log has it.
    pub host: Option<Cow<'l, str>>,
    /// The response's status; 0 if the log does not say it.
    pub status: u16,
    /// How long the request took, microseconds, if the log has it.
    pub duration_us: Option<u64>,
    /// The request's headers, as far as the log has them: names in any case.
    pub headers: Headers<'l>,
}

/// Headers of a line, by their names in any case. Most lines have none that matter, and whatever
/// stood in the entry itself would be moved with it.
pub type Headers<'l> = Vec<(Cow<'l, str>, Cow<'l, str>)>;

/// Why a line could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is of no known form.
    Form,
    /// It does not say when, or not in a way that can be read.
    Time,
    /// Its client is no address.
    Client,
    /// There is no request in it: `-`, or what a TLS handshake looks like to HTTP.
    Request,
    /// It is not UTF-8 where it has to be.
    Text,
    /// It is too long.
    Long,
}

impl Fault {
    /// Every one of them.
    pub const ALL: [Fault; 6] = [
        Fault::Form,
        Fault::Time,
        Fault::Client,
        Fault::Request,
        Fault::Text,
        Fault::Long,
    ];

    /// What reports call it.
    pub const fn sentence(self) -> &'static str {
        match self {
            Fault::Form => "not a line of a known format",
            Fault::Time => "no time that can be read",
            Fault::Client => "the client is not an address",
            Fault::Request => "no HTTP request in it",
            Fault::Text => "not UTF-8",
            Fault::Long => "longer than a line may be",
        }
    }
}

/// A format in which logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// The common log format.
    Common,
    /// Common, with what the client says it is and came from, and perhaps more.
    Combined,
    /// One JSON object for each line, with the names of nginx, Traefik or one's own.
    Json,
    /// Caddy's JSON.
    Caddy,
    /// Our own, in JSON.
    Own,
    /// Our own, for people: it has no dates.
    OwnText,
}

impl Format {
    /// What reports and `--format` call it.
    pub const fn word(self) -> &'static str {
        match self {
            Format::Common => "common",
            Format::Combined => "combined",
            Format::Json => "json",
            Format::Caddy => "caddy",
            Format::Own => "tidegate-json",
            Format::OwnText => "tidegate-text",
        }
    }
}
