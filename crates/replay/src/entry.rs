//! One line of an access log, read. It borrows from its line; only escaped texts are copied.

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr2};

use super::tokens::LoggedTokens;

const MILLISECOND_US: u64 = 1000;

#[derive(Clone, Debug)]
pub struct LogEntry<'l> {
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    /// What the time dates.
    pub dates: Dated,
    /// The address of the connection.
    pub peer: IpAddr,
    /// The client behind proxies, where the log has its own member for it.
    pub client: Option<IpAddr>,
    pub method: Cow<'l, str>,
    /// Path and query, or a whole URL, as it was sent.
    pub target: Cow<'l, str>,
    pub host: Option<Cow<'l, str>>,
    /// The port that the request came to, where the log has its own member for it.
    pub port: Option<u16>,
    /// The response's status; 0 if the log does not have it.
    pub status: u16,
    /// How long the request took, microseconds.
    pub duration_us: Option<u64>,
    /// The request's headers that the log has. Names in any case.
    pub headers: Headers<'l>,
    /// `None` if the line has no member of a model server's call.
    pub tokens: Option<Box<LoggedTokens<'l>>>,
}

/// The moment of a request that the time of its line means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dated {
    #[default]
    End,
    Start,
}

impl LogEntry<'_> {
    /// When the request began. Without a duration this is the time of its line.
    pub fn start_us(&self) -> u64 {
        match self.dates {
            Dated::Start => self.at_us,
            Dated::End => self.at_us.saturating_sub(self.duration_us.unwrap_or(0)),
        }
    }

    /// When the answer ended. Without a duration this is the time of its line.
    ///
    /// Times of beginnings are cut to milliseconds in logs, so the sum is cut too. Otherwise a call
    /// that began after this end could seem to begin before it.
    pub fn end_us(&self) -> u64 {
        match self.dates {
            Dated::Start => {
                let end_us = self.at_us.saturating_add(self.duration_us.unwrap_or(0));
                (end_us - end_us % MILLISECOND_US).max(self.at_us)
            }
            Dated::End => self.at_us,
        }
    }

    /// A copy that does not borrow from its line.
    pub fn detached(&self) -> LogEntry<'static> {
        let own = |text: &Cow<'_, str>| Cow::Owned(text.clone().into_owned());
        let headers = self.headers.iter();
        LogEntry {
            at_us: self.at_us,
            dates: self.dates,
            peer: self.peer,
            client: self.client,
            method: own(&self.method),
            target: own(&self.target),
            host: self.host.as_ref().map(own),
            port: self.port,
            status: self.status,
            duration_us: self.duration_us,
            headers: headers
                .map(|(name, value)| (own(name), own(value)))
                .collect(),
            tokens: self
                .tokens
                .as_ref()
                .map(|tokens| Box::new(tokens.detached())),
        }
    }
}

/// Names and values of headers. A `Vec`, since most lines have none and entries are moved often.
pub type Headers<'l> = Vec<(Cow<'l, str>, Cow<'l, str>)>;

/// A line that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Form,
    /// Its time is missing or unreadable.
    Time,
    /// Its client is not an address.
    Client,
    /// It has no request: `-`, or a TLS handshake that the server read as HTTP.
    Request,
    Text,
    Long,
}

impl Fault {
    pub const ALL: [Fault; 6] = [
        Fault::Form,
        Fault::Time,
        Fault::Client,
        Fault::Request,
        Fault::Text,
        Fault::Long,
    ];

    /// The words in reports.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineFormat {
    Common,
    /// Common, with the referer and the user agent, and perhaps more.
    Combined,
    /// One JSON object for each line, with the names of nginx, Traefik or other programs.
    Json,
    Caddy,
    /// tidegate's JSON.
    Own,
    /// tidegate's lines for people, which have no dates.
    OwnText,
}

impl LineFormat {
    /// The word in reports.
    pub const fn word(self) -> &'static str {
        match self {
            LineFormat::Common => "common",
            LineFormat::Combined => "combined",
            LineFormat::Json => "json",
            LineFormat::Caddy => "caddy",
            LineFormat::Own => "tidegate-json",
            LineFormat::OwnText => "tidegate-text",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetParts<'t> {
    pub host: Option<&'t str>,
    pub path: &'t str,
    /// Without its `?`.
    pub query: Option<&'t str>,
}

impl<'t> TargetParts<'t> {
    /// Splits a target in any form of HTTP, and drops its fragment.
    pub fn split(target: &'t str) -> TargetParts<'t> {
        let url = match target.starts_with('/') {
            true => None,
            false => ["http://", "https://"]
                .iter()
                .find_map(|scheme| target.strip_prefix(scheme)),
        };
        let (host, rest) = match url {
            Some(url) => {
                let end = url.find(['/', '?', '#']).unwrap_or(url.len());
                (Some(&url[..end]), &url[end..])
            }
            None => (None, target),
        };
        let end = memchr2(b'?', b'#', rest.as_bytes()).unwrap_or(rest.len());
        let query = rest[end..].strip_prefix('?');
        let path = match &rest[..end] {
            // A query may follow the host directly.
            "" if query.is_some() || host.is_some() && rest.is_empty() => "/",
            path => path,
        };
        let query = query.map(|query| {
            let end = memchr(b'#', query.as_bytes());
            &query[..end.unwrap_or(query.len())]
        });
        TargetParts { host, path, query }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_target_has_its_parts() {
        for (target, expected) in [
            ("/", (None, "/", None)),
            ("/a?b=1", (None, "/a", Some("b=1"))),
            ("/a?b?c#d?e", (None, "/a", Some("b?c"))),
            ("/a#b?c", (None, "/a", None)),
            ("http://h:80/a?b", (Some("h:80"), "/a", Some("b"))),
            ("https://h?b", (Some("h"), "/", Some("b"))),
            ("https://h", (Some("h"), "/", None)),
            ("*", (None, "*", None)),
            ("", (None, "", None)),
        ] {
            let parts = TargetParts::split(target);
            assert_eq!((parts.host, parts.path, parts.query), expected, "{target}");
        }
    }
}
