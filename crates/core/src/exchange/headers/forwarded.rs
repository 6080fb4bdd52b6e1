//! The headers that name the client to an upstream: `X-Forwarded-*`, `X-Real-IP`, `Forwarded`.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http::Version;
use http::header::{Entry, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, VIA};

use super::via_of;
use crate::request_head::{Scheme, are_twins};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// One client connection as these headers name it. Values are formatted once, not per request.
#[derive(Debug)]
pub struct Peer {
    pub(super) trusted: bool,
    pub(super) scheme: Scheme,
    /// The header that names clients, if it is not `X-Forwarded-For`.
    header: Option<HeaderName>,
    ip: IpAddr,
    /// `2001:db8::1`
    pub(super) address: HeaderValue,
    /// `for="[2001:db8::1]"` (RFC 7239)
    node: String,
    /// The values of the last request, which the next one nearly always needs too.
    last: Mutex<Option<HostValues>>,
}

/// The values for requests to one host.
#[derive(Debug)]
struct HostValues {
    host: HeaderValue,
    /// An element of `Forwarded`.
    element: HeaderValue,
    /// All lines for requests of this version.
    lines: Option<(Version, PrerenderedHeaders)>,
}

impl Peer {
    /// A `trusted` peer may name its client.
    pub fn new(ip: IpAddr, trusted: bool, scheme: Scheme) -> Peer {
        let ip = ip.to_canonical();
        Peer {
            trusted,
            scheme,
            header: None,
            ip,
            address: value(ip.to_string()),
            node: node(ip),
            last: Mutex::new(None),
        }
    }

    /// Trusted peers name clients in this header.
    #[must_use]
    pub fn naming_clients_by(self, header: &HeaderName) -> Peer {
        let header = (*header != X_FORWARDED_FOR).then(|| header.clone());
        Peer { header, ..self }
    }

    /// Whether a header of this peer is removed, because its client may have made it up. A trusted
    /// proxy says nothing under a name with `_` for `-`.
    pub(super) fn may_forge(&self, name: &HeaderName) -> bool {
        match &self.header {
            Some(header) if header == name => !self.trusted,
            Some(header) if are_twins(header, name) => true,
            _ => is_forged(name) && (!self.trusted || name.as_str().contains('_')),
        }
    }

    /// The element of `Forwarded` for this hop.
    pub(super) fn forwarded(&self, host: Option<&HeaderValue>) -> HeaderValue {
        let Some(host) = host else {
            return element(&self.node, None, self.scheme);
        };
        self.at(host, |last| last.element.clone())
    }

    /// The lines for a request to `host`.
    pub(super) fn lines(&self, version: Version, host: &HeaderValue) -> PrerenderedHeaders {
        self.at(host, |last| match &last.lines {
            Some((known, lines)) if *known == version => lines.clone(),
            _ => {
                let mut map = HeaderMap::new();
                let element = last.element.clone();
                // The copy, because the request's value keeps the whole read buffer.
                replace_names(&mut map, self, Some(last.host.clone()), element);
                map.insert(VIA, via_of(version));
                let lines = PrerenderedHeaders::new(map);
                last.lines = Some((version, lines.clone()));
                lines
            }
        })
    }

    /// Frees memory, because the connection is idle.
    pub fn rest(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn at<R>(&self, host: &HeaderValue, read: impl FnOnce(&mut HostValues) -> R) -> R {
        // One request at a time: the lock is never contended.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *last {
            Some(last) if last.host == host => read(last),
            other => read(other.insert(HostValues {
                // A copy, because the request's value keeps the whole read buffer.
                host: HeaderValue::from_bytes(host.as_bytes()).unwrap_or_else(|_| host.clone()),
                element: element(&self.node, Some(host), self.scheme),
                lines: None,
            })),
        }
    }
}

/// `for="[2001:db8::1]"` (RFC 7239)
fn node(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => format!("for={ip}"),
        IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
    }
}

/// An element of `Forwarded`.
fn element(node: &str, host: Option<&HeaderValue>, scheme: Scheme) -> HeaderValue {
    let mut text = node.to_owned();
    if let Some(host) = host.and_then(|host| host.to_str().ok()) {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if host.bytes().all(is_token) && !host.is_empty() {
            let _ = write!(text, ";host={host}");
        } else {
            let _ = write!(text, ";host=\"{host}\"");
        }
    }
    text.push_str(";proto=");
    text.push_str(scheme.as_str());
    value(text)
}

/// A header can hold all characters of addresses and hosts.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("unknown"))
}

/// The scheme that `X-Forwarded-Proto` names: that of the client, if several proxies have appended
/// their own. Traefik writes `ws` and `wss` for WebSockets.
pub fn named_scheme(proto: &[u8]) -> Option<Scheme> {
    let first = proto.split(|byte| *byte == b',').next().unwrap_or_default();
    let is = |word: &[u8]| first.trim_ascii().eq_ignore_ascii_case(word);
    if is(b"https") || is(b"wss") {
        Some(Scheme::Https)
    } else if is(b"http") || is(b"ws") {
        Some(Scheme::Http)
    } else {
        None
    }
}

/// Names that only proxies may set; also with `_` for `-`, as many servers read them.
pub(super) fn is_forged(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    let same = |prefix: &[u8]| {
        name.len() >= prefix.len()
            && prefix
                .iter()
                .zip(name)
                .all(|(&p, &n)| p == n || (p == b'-' && n == b'_'))
    };
    name.first() == Some(&b'x')
        && (same(b"x-forwarded-") || (name.len() == 9 && same(b"x-real-ip")))
}

/// Names the client. The values of an untrusted peer are replaced. A trusted proxy is believed, but
/// of the lists of addresses only in the one that names clients: others may be the client's own.
pub(super) fn name_client(headers: &mut HeaderMap, peer: &Peer, client: IpAddr) {
    let host = headers.get(HOST).cloned();
    if !peer.trusted {
        let forwarded = peer.forwarded(host.as_ref());
        return replace_names(headers, peer, host, forwarded);
    }
    let client = client.to_canonical();
    let address = value(client.to_string());
    if peer.header.is_some() {
        headers.remove(X_FORWARDED_FOR);
        if client != peer.ip {
            headers.insert(X_FORWARDED_FOR, address.clone());
        }
    }
    append(headers, X_FORWARDED_FOR, peer.address.clone());
    headers.insert(X_REAL_IP, address);
    let proto = HeaderValue::from_static(peer.scheme.as_str());
    let proto = headers.entry(X_FORWARDED_PROTO).or_insert(proto);
    let scheme = named_scheme(proto.as_bytes()).unwrap_or(peer.scheme);
    if peer.header == Some(FORWARDED) {
        append(headers, FORWARDED, peer.forwarded(host.as_ref()));
    } else {
        headers.insert(FORWARDED, element(&node(client), host.as_ref(), scheme));
    }
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

fn replace_names(
    headers: &mut HeaderMap,
    peer: &Peer,
    host: Option<HeaderValue>,
    forwarded: HeaderValue,
) {
    headers.insert(X_REAL_IP, peer.address.clone());
    headers.insert(X_FORWARDED_FOR, peer.address.clone());
    headers.insert(FORWARDED, forwarded);
    let proto = HeaderValue::from_static(peer.scheme.as_str());
    headers.insert(X_FORWARDED_PROTO, proto);
    match host {
        Some(host) => headers.insert(X_FORWARDED_HOST, host),
        None => headers.remove(X_FORWARDED_HOST),
    };
}

/// Appends to a list in one line, because not every reader looks for a second line.
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(value);
        }
        Entry::Occupied(mut entry) => {
            let mut line = Vec::new();
            for known in entry.iter() {
                line.extend_from_slice(known.as_bytes());
                line.extend_from_slice(b", ");
            }
            line.extend_from_slice(value.as_bytes());
            // Valid values, joined by valid characters, are a valid value.
            entry.insert(HeaderValue::try_from(line).unwrap_or(value));
        }
    }
}

/// Headers of many requests of one client, made once. The map of such a request contains none of
/// their names.
#[derive(Clone, Debug)]
pub struct PrerenderedHeaders(Arc<Prerendered>);

#[derive(Debug)]
struct Prerendered {
    /// The lines of a head of HTTP/1.1.
    lines: Vec<u8>,
    headers: HeaderMap,
}

impl PrerenderedHeaders {
    pub fn new(headers: HeaderMap) -> PrerenderedHeaders {
        let mut lines = Vec::new();
        for (name, value) in &headers {
            put_line(&mut lines, name, value.as_bytes());
        }
        lines.shrink_to_fit();
        PrerenderedHeaders(Arc::new(Prerendered { lines, headers }))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0.lines
    }

    pub fn insert_into(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0.headers {
            headers.insert(name.clone(), value.clone());
        }
    }
}

/// Writes one line of a head or of trailers.
#[inline]
pub fn put_line(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
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

    #[test]
    fn what_was_worded_is_in_the_map_again_however_often_it_joins() {
        let lines = [("x-real-ip", "2001:db8::1"), ("via", "1.1 a: b")];
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let prerendered = PrerenderedHeaders::new(headers.clone());
        let worded: &[u8] = b"x-real-ip: 2001:db8::1\r\nvia: 1.1 a: b\r\n";
        assert_eq!(prerendered.as_bytes(), worded);
        let mut joined = HeaderMap::new();
        joined.insert("host", HeaderValue::from_static("a"));
        prerendered.insert_into(&mut joined);
        prerendered.insert_into(&mut joined);
        headers.insert("host", HeaderValue::from_static("a"));
        assert_eq!(joined, headers);
    }
}
