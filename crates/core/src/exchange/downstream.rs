//! The client's connection.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::headers;
use crate::certificate::Certificate;
use crate::connection_use::ConnectionUse;
use crate::request_head::Scheme;
use crate::route::template::{ConnectionFacts, Ports, Relay, TlsFacts};

/// How a client has connected.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The peer's address.
    pub ip: IpAddr,
    pub ports: Ports,
    /// `None` for a connection without a PROXY header.
    pub relay: Option<Relay>,
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
    /// Bytes of a value that a template of a route makes, at most.
    pub(super) max_value: usize,
    /// `None` for a connection of another program, which only describes it.
    opened: Option<Instant>,
    /// The headers that name the client.
    peer: OnceLock<headers::Peer>,
}

impl Downstream {
    pub(super) fn new(trusted: bool, arrival: Arrival, max_value: usize) -> Downstream {
        Downstream {
            trusted,
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

    pub fn peer(&self) -> &headers::Peer {
        self.peer.get_or_init(|| {
            let scheme = Scheme::new(self.arrival.tls.is_some());
            headers::Peer::new(self.arrival.ip, self.trusted, scheme)
        })
    }

    /// Frees memory, because the connection is idle.
    pub fn rest(&self) {
        if let Some(peer) = self.peer.get() {
            peer.rest();
        }
    }
}
