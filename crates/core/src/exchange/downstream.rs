//! The client's connection.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use http::Request;
use http::header::{FORWARDED, HeaderMap, HeaderValue};

use super::headers::{self, RequestFault, UpstreamRequest, X_FORWARDED_PROTO, named_scheme};
use crate::certificate::Certificate;
use crate::client::ClientIp;
use crate::connection_use::ConnectionUse;
use crate::request_head::Scheme;
use crate::route::template::{ConnectionFacts, Ports, Relay, TlsFacts};

/// How a client has connected.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The peer's address.
    pub ip: IpAddr,
    pub ports: Ports,
    /// `None` for a connection without a PROXY header. In a box, because few connections have one.
    pub relay: Option<Box<Relay>>,
    /// `None` for a connection without TLS.
    pub tls: Option<Secured>,
    /// Whether the client speaks plain HTTP on a TLS listener. It gets only an error.
    pub misplaced: bool,
}

/// The facts of a TLS handshake.
#[derive(Clone, Debug, Default)]
pub struct Secured {
    /// Such as `TLSv1.3`.
    pub version: &'static str,
    pub cipher: &'static str,
    pub server_name: Option<Box<str>>,
    pub is_resumed: bool,
    /// The client's certificate, signed by a trusted authority.
    pub certificate: Option<Arc<Certificate>>,
}

impl Arrival {
    /// A connection without TLS.
    pub fn plain(ip: IpAddr) -> Arrival {
        Arrival {
            ip,
            ports: Ports::default(),
            relay: None,
            tls: None,
            misplaced: false,
        }
    }

    /// A connection without TLS on a TLS listener.
    pub fn misplaced(ip: IpAddr) -> Arrival {
        Arrival {
            misplaced: true,
            ..Arrival::plain(ip)
        }
    }

    pub(super) fn tls_facts(&self) -> Option<TlsFacts<'_>> {
        let tls = self.tls.as_ref()?;
        Some(TlsFacts {
            version: tls.version,
            cipher: tls.cipher,
            server_name: tls.server_name.as_deref().unwrap_or_default(),
            is_resumed: tls.is_resumed,
            certificate: tls.certificate.as_deref(),
        })
    }

    pub fn certificate(&self) -> Option<&Certificate> {
        self.tls.as_ref()?.certificate.as_deref()
    }
}

/// One client connection.
#[derive(Debug)]
pub struct Downstream {
    /// Whether the peer may name its client.
    pub trusted: bool,
    /// Whether another proxy only describes the client and its request.
    pub is_described: bool,
    pub arrival: Arrival,
    pub usage: ConnectionUse,
    /// How a trusted peer names its client.
    client_ip: Arc<ClientIp>,
    /// Bytes of a value that a template of a route makes, at most.
    pub(super) max_value: usize,
    /// `None` for a connection of another program, which only describes it.
    opened: Option<Instant>,
    /// The headers that name the client.
    peer: OnceLock<headers::Peer>,
}

impl Downstream {
    pub(super) fn new(client_ip: &Arc<ClientIp>, arrival: Arrival, max_value: usize) -> Downstream {
        Downstream {
            trusted: client_ip.trusts(arrival.ip),
            client_ip: Arc::clone(client_ip),
            is_described: false,
            arrival,
            usage: ConnectionUse::default(),
            max_value,
            opened: None,
            peer: OnceLock::new(),
        }
    }

    /// The same client on a connection that was opened at this time.
    pub fn on_connection(self, usage: ConnectionUse, opened: Instant) -> Downstream {
        Downstream {
            usage,
            opened: Some(opened),
            ..self
        }
    }

    /// The same client on the connection of another value.
    pub fn on_connection_of(self, known: &Downstream) -> Downstream {
        Downstream {
            usage: known.usage.snapshot(),
            opened: known.opened,
            ..self
        }
    }

    /// What is told of the connection to its request of this number, which began at this time.
    pub(super) fn connection_facts(
        &self,
        requests: u32,
        began: Instant,
    ) -> Option<ConnectionFacts> {
        Some(ConnectionFacts {
            requests,
            age: began.saturating_duration_since(self.opened?),
        })
    }

    pub(super) fn described(self) -> Downstream {
        Downstream {
            is_described: true,
            ..self
        }
    }

    /// The scheme of the client's own request. A trusted proxy names it.
    pub fn scheme(&self, headers: &HeaderMap) -> Scheme {
        let proto = self.client_ip.forwarded_proto(self.arrival.ip, headers);
        let named = || {
            let proto = headers.get(X_FORWARDED_PROTO).filter(|_| self.trusted)?;
            named_scheme(proto.as_bytes())
        };
        let scheme = proto.and_then(named_scheme).or_else(named);
        scheme.unwrap_or_else(|| Scheme::new(self.arrival.tls.is_some()))
    }

    /// Makes a request of this client ready for its upstream.
    #[inline]
    pub fn to_upstream<B>(
        &self,
        request: &mut Request<B>,
        client: IpAddr,
        may_prerender: bool,
    ) -> Result<UpstreamRequest, RequestFault> {
        self.repeat_scheme(request.headers_mut());
        headers::to_upstream(request, self.peer(), client, may_prerender)
    }

    /// Writes the scheme that a trusted proxy names in `Forwarded` into `X-Forwarded-Proto`, which
    /// more upstreams read.
    fn repeat_scheme(&self, headers: &mut HeaderMap) {
        let reads_forwarded = self.client_ip.header == FORWARDED;
        if self.trusted && (reads_forwarded || !headers.contains_key(X_FORWARDED_PROTO)) {
            let scheme = HeaderValue::from_static(self.scheme(headers).as_str());
            headers.insert(X_FORWARDED_PROTO, scheme);
        }
    }

    pub fn peer(&self) -> &headers::Peer {
        self.peer.get_or_init(|| {
            let scheme = Scheme::new(self.arrival.tls.is_some());
            headers::Peer::new(self.arrival.ip, self.trusted, scheme)
                .naming_clients_by(&self.client_ip.header)
        })
    }

    /// Frees memory, because the connection is idle.
    pub fn rest(&self) {
        if let Some(peer) = self.peer.get() {
            peer.rest();
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    /// The connection of a peer that is trusted, or of another one.
    fn downstream(by: &'static str, peer: &str) -> Downstream {
        let client_ip = Arc::new(ClientIp {
            trusted: vec!["10.0.0.0/8".parse().unwrap()],
            header: HeaderName::from_static(by),
            ..ClientIp::default()
        });
        Downstream::new(&client_ip, Arrival::plain(peer.parse().unwrap()), 0)
    }

    fn scheme(by: &'static str, peer: &str, name: &'static str, value: &str) -> Scheme {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        downstream(by, peer).scheme(&headers)
    }

    #[test]
    fn a_trusted_proxy_names_the_scheme_of_the_client() {
        let (by, proto) = ("x-forwarded-for", "x-forwarded-proto");
        assert_eq!(scheme(by, "10.0.0.1", proto, "https"), Scheme::Https);
        assert_eq!(scheme(by, "10.0.0.1", proto, "https, http"), Scheme::Https);
        assert_eq!(scheme(by, "10.0.0.1", proto, "http,https"), Scheme::Http);
        assert_eq!(scheme(by, "192.0.2.1", proto, "https"), Scheme::Http);
        let element = "for=192.0.2.1;proto=https, for=10.0.0.2;proto=http";
        let by = "forwarded";
        assert_eq!(scheme(by, "10.0.0.1", by, element), Scheme::Https);
        assert_eq!(scheme(by, "10.0.0.1", proto, "https"), Scheme::Https);
        assert_eq!(scheme(by, "192.0.2.1", by, element), Scheme::Http);
        assert_eq!(
            scheme("x-forwarded-for", "10.0.0.1", by, element),
            Scheme::Http
        );
    }

    #[test]
    fn a_scheme_that_only_forwarded_names_is_repeated() {
        for (peer, forwarded, expected) in [
            ("10.0.0.1", "for=192.0.2.1;proto=https", Some("https")),
            ("10.0.0.1", "for=192.0.2.1;proto=http", Some("http")),
            ("10.0.0.1", "for=192.0.2.1", Some("http")),
            ("192.0.2.1", "for=192.0.2.9;proto=https", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("forwarded", forwarded.parse().unwrap());
            downstream("forwarded", peer).repeat_scheme(&mut headers);
            let found = headers
                .get(X_FORWARDED_PROTO)
                .map(|it| it.to_str().unwrap());
            assert_eq!(found, expected, "{peer} {forwarded}");
        }
    }
}
