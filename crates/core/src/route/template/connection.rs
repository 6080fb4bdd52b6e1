//! Variables of the client's connection: its ports and its TLS session.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{TemplateFacts, push, push_port};
use crate::certificate::Certificate;

/// Characters of a line of a certificate in PEM (RFC 7468 section 2).
const PEM_LINE: usize = 64;

/// The ports of a connection; 0 if there is none, as with a unix socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// The port of the peer that sent the request to the proxy.
    pub peer: u16,
    /// The port of the proxy.
    pub local: u16,
}

/// What a PROXY header tells, beside the address of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// The address that the client has connected to.
    pub server: SocketAddr,
    /// The peer that sent the header.
    pub sender: SocketAddr,
}

/// The connection of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// The requests that it has had, with this one.
    pub requests: u32,
    /// From its beginning to the head of the request.
    pub age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::route) enum RelayVariable {
    ClientIp,
    ClientPort,
    ServerIp,
    ServerPort,
    /// That of the connection, also without a header.
    SenderIp,
    /// That of the connection, also without a header.
    SenderPort,
}

impl RelayVariable {
    pub(super) fn write(self, out: &mut Vec<u8>, facts: &TemplateFacts<'_>) {
        let client = SocketAddr::new(facts.peer, facts.ports.peer);
        let address = match (self, facts.relay) {
            (Self::SenderIp | Self::SenderPort, None) => client,
            (_, None) => return,
            (Self::ClientIp | Self::ClientPort, Some(_)) => client,
            (Self::ServerIp | Self::ServerPort, Some(relay)) => relay.server,
            (Self::SenderIp | Self::SenderPort, Some(relay)) => relay.sender,
        };
        match self {
            Self::ClientIp | Self::ServerIp | Self::SenderIp => {
                push(out, &address.ip().to_canonical().to_string());
            }
            Self::ClientPort | Self::ServerPort | Self::SenderPort => {
                push_port(out, address.port());
            }
        }
    }
}

impl Ports {
    /// Writes the proxy's port behind a host, if the scheme has another by itself.
    pub(super) fn push_part(self, scheme: &str, out: &mut Vec<u8>) {
        let of_scheme = if scheme == "https" { 443 } else { 80 };
        if ![0, of_scheme].contains(&self.local) {
            push(out, &format!(":{}", self.local));
        }
    }
}

/// The facts of a TLS session.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlsFacts<'r> {
    /// Such as `TLSv1.3`; empty if another proxy describes the request.
    pub version: &'r str,
    /// The name of the cipher suite in RFC 8446, or in the registry of IANA.
    pub cipher: &'r str,
    /// The name that the client asked for (SNI).
    pub server_name: &'r str,
    pub is_resumed: bool,
    /// The client's certificate, signed by a trusted authority.
    pub certificate: Option<&'r Certificate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::route) enum TlsVariable {
    /// `on`, as in nginx.
    On,
    Version,
    Cipher,
    ServerName,
    /// `r` for a resumed session, else `.`, as in nginx.
    Resumed,
    /// `SUCCESS` with a certificate, else `NONE`, as in nginx.
    Verified,
    Subject,
    Issuer,
    Serial,
    Fingerprint,
    /// The certificate in PEM, escaped for a URL.
    Certificate,
}

impl TlsVariable {
    /// Writes nothing for a connection without TLS.
    pub(super) fn write(self, out: &mut Vec<u8>, facts: Option<TlsFacts<'_>>) {
        let Some(facts) = facts else { return };
        let certificate = facts.certificate;
        let field = |field: fn(&Certificate) -> &str| certificate.map(field).unwrap_or_default();
        match self {
            Self::On => push(out, "on"),
            Self::Version => push(out, facts.version),
            // rustls names the suites of TLS 1.3 so.
            Self::Cipher => match facts.cipher.strip_prefix("TLS13_") {
                Some(name) => push(out, &format!("TLS_{name}")),
                None => push(out, facts.cipher),
            },
            Self::ServerName => push(out, facts.server_name),
            Self::Resumed => push(out, if facts.is_resumed { "r" } else { "." }),
            Self::Verified => push(
                out,
                if certificate.is_some() {
                    "SUCCESS"
                } else {
                    "NONE"
                },
            ),
            Self::Subject => push(out, field(|one| &one.subject)),
            Self::Issuer => push(out, field(|one| &one.issuer)),
            Self::Serial => push(out, field(|one| &one.serial)),
            Self::Fingerprint => push(out, field(|one| &one.fingerprint)),
            Self::Certificate => {
                let der = certificate.map_or(&[][..], |one| &one.der);
                if !der.is_empty() {
                    push(out, &escaped_pem(der));
                }
            }
        }
    }
}

fn escaped_pem(der: &[u8]) -> String {
    let mut text = "-----BEGIN%20CERTIFICATE-----%0A".to_owned();
    for (index, character) in STANDARD.encode(der).chars().enumerate() {
        if index > 0 && index % PEM_LINE == 0 {
            text.push_str("%0A");
        }
        match character {
            '+' | '/' | '=' => {
                let _ = write!(text, "%{:02X}", character as u32);
            }
            character => text.push(character),
        }
    }
    text.push_str("%0A-----END%20CERTIFICATE-----%0A");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_the_scheme_is_left_out() {
        for (scheme, local, part) in [
            ("http", 80, ""),
            ("http", 443, ":443"),
            ("https", 443, ""),
            ("https", 80, ":80"),
            ("http", 0, ""),
        ] {
            let mut out = Vec::new();
            Ports { peer: 1, local }.push_part(scheme, &mut out);
            assert_eq!(out, part.as_bytes(), "{scheme} {local}");
        }
    }
}
