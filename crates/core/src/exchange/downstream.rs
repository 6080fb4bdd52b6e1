//! How a client's connection came to us: from where, and over what.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use super::headers;
use crate::certificate::Certificate;
use crate::request_head::Scheme;

/// How a client came: from where, and over what.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The peer's address.
    pub ip: IpAddr,
    /// What TLS said of it; nothing of a connection in the clear.
    pub tls: Option<Secured>,
    /// In the clear where TLS is spoken: whoever asks so is told, and gets nothing else.
    pub misplaced: bool,
}

/// What a TLS handshake told of a client.
#[derive(Clone, Debug, Default)]
pub struct Secured {
    /// Its certificate; whoever signed it is believed.
    pub certificate: Option<Arc<Certificate>>,
}

impl Arrival {
    /// A peer whose connection is in the clear.
    pub fn plain(ip: IpAddr) -> Arrival {
        Arrival {
            ip,
            tls: None,
            misplaced: false,
        }
    }

    /// A peer that should have begun a handshake.
    pub fn misplaced(ip: IpAddr) -> Arrival {
        Arrival {
            misplaced: true,
            ..Arrival::plain(ip)
        }
    }

    /// The certificate that the client showed.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.tls.as_ref()?.certificate.as_deref()
    }
}

/// One client connection, as the proxy sees it.
#[derive(Debug)]
pub struct Downstream {
    /// Whether its other end may say whom it speaks for.
    pub trusted: bool,
    pub arrival: Arrival,
    /// What is told of it upstream, formatted once.
    peer: OnceLock<headers::Peer>,
}

impl Downstream {
    pub(super) fn new(trusted: bool, arrival: Arrival) -> Downstream {
        Downstream {
            trusted,
            arrival,
            peer: OnceLock::new(),
        }
    }

    pub fn peer(&self) -> &headers::Peer {
        self.peer.get_or_init(|| {
            let scheme = Scheme::of(self.arrival.tls.is_some());
            headers::Peer::new(self.arrival.ip, self.trusted, scheme)
        })
    }

    /// It asks for nothing for a while.
    pub fn rest(&self) {
        if let Some(peer) = self.peer.get() {
            peer.rest();
        }
    }
}
