//! What upstreams are told of a client's connection, formatted once and not for each request.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, HeaderValue, Version};

use super::PrerenderedHeaders;
use crate::request_head::Scheme;

/// One client connection, in the words of the headers that name it.
#[derive(Debug)]
pub struct Peer {
    pub(super) trusted: bool,
    pub(super) scheme: Scheme,
    /// Its address: `2001:db8::1`.
    pub(super) address: HeaderValue,
    /// The same as RFC 7239 writes it: `for="[2001:db8::1]"`.
    node: String,
    /// What was said last: nearly always the next request is told the same.
    last: Mutex<Option<Last>>,
}

/// What a client's requests to one host are told of it.
#[derive(Debug)]
struct Last {
    host: HeaderValue,
    /// The element of `Forwarded`.
    element: HeaderValue,
    /// All lines that name the client, for requests of this version.
    lines: Option<(Version, PrerenderedHeaders)>,
}

impl Peer {
    /// A connection from `ip`, which may say whom it speaks for if it is `trusted`.
    pub fn new(ip: IpAddr, trusted: bool, scheme: Scheme) -> Peer {
        let ip = ip.to_canonical();
        let address = value(ip.to_string());
        let node = match ip {
            IpAddr::V4(ip) => format!("for={ip}"),
            IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
        };
        Peer {
            trusted,
            scheme,
            address,
            node,
            last: Mutex::new(None),
        }
    }

    /// The element of `Forwarded` that stands for this hop.
    pub(super) fn forwarded(&self, host: Option<&HeaderValue>) -> HeaderValue {
        let Some(host) = host else {
            return value(format!("{};proto={}", self.node, self.scheme.as_str()));
        };
        self.at(host, |last| last.element.clone())
    }

    /// The lines that name the client in a request to `host`; `make` has them worded where they
    /// are not what they were in the last one.
    pub(super) fn lines(
        &self,
        version: Version,
        host: &HeaderValue,
        make: impl FnOnce(&HeaderValue) -> HeaderMap,
    ) -> PrerenderedHeaders {
        self.at(host, |last| match &last.lines {
            Some((known, lines)) if *known == version => lines.clone(),
            _ => {
                let lines = PrerenderedHeaders::new(&make(&last.element));
                last.lines = Some((version, lines.clone()));
                lines
            }
        })
    }

    /// The connection asks for nothing: only what cannot be had again is kept.
    pub fn rest(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What is said to `host`.
    fn at<R>(&self, host: &HeaderValue, see: impl FnOnce(&mut Last) -> R) -> R {
        // One request at a time: the lock is never contended.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *last {
            Some(last) if last.host == host => see(last),
            other => see(other.insert(Last {
                // A copy: the request's own would keep all that was read with it.
                host: HeaderValue::from_bytes(host.as_bytes()).unwrap_or_else(|_| host.clone()),
                element: self.element(host),
                lines: None,
            })),
        }
    }

    fn element(&self, host: &HeaderValue) -> HeaderValue {
        let mut text = self.node.clone();
        // A host that is no text has been refused long before.
        if let Ok(host) = host.to_str() {
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            if host.bytes().all(is_token) && !host.is_empty() {
                let _ = write!(text, ";host={host}");
            } else {
                let _ = write!(text, ";host=\"{host}\"");
            }
        }
        text.push_str(";proto=");
        text.push_str(self.scheme.as_str());
        value(text)
    }
}

/// Addresses and hosts are made of characters that a header can hold.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(ip: &str, host: &'static str) -> HeaderValue {
        Peer::new(ip.parse().unwrap(), false, Scheme::Http)
            .forwarded(Some(&HeaderValue::from_static(host)))
    }

    #[test]
    fn elements_are_quoted_where_rfc_7239_wants_it() {
        assert_eq!(
            element("192.0.2.1", "a.example"),
            "for=192.0.2.1;host=a.example;proto=http"
        );
        assert_eq!(
            element("2001:db8::1", "a:8080"),
            "for=\"[2001:db8::1]\";host=\"a:8080\";proto=http"
        );
    }

    #[test]
    fn a_mapped_address_is_the_one_it_stands_for() {
        let peer = Peer::new("::ffff:192.0.2.1".parse().unwrap(), false, Scheme::Http);
        assert_eq!(peer.address, "192.0.2.1");
    }

    #[test]
    fn another_host_gets_another_element() {
        let peer = Peer::new("192.0.2.1".parse().unwrap(), false, Scheme::Http);
        let one = peer.forwarded(Some(&HeaderValue::from_static("one")));
        let two = peer.forwarded(Some(&HeaderValue::from_static("two")));
        let none = peer.forwarded(None);
        assert_eq!(one, "for=192.0.2.1;host=one;proto=http");
        assert_eq!(two, "for=192.0.2.1;host=two;proto=http");
        assert_eq!(none, "for=192.0.2.1;proto=http");
    }
}
