//! TLS where we are the client: whom we trust, what we show, and what is wrong when it fails.
//!
//! Certificates are verified with the authorities that the configuration names or the system's,
//! unless it says that anybody will do. This room must never fall back to that by itself.

mod unverified;

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::ClientTls;

/// Makes TLS connections; one for many, so that sessions are resumed.
#[derive(Clone)]
pub struct Tls {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish()
    }
}

impl Tls {
    /// The settings have been checked; what the system trusts is read here. `protocols` are
    /// offered by ALPN, the most wanted first.
    pub fn new(settings: &ClientTls, protocols: &[&[u8]]) -> Result<Tls, TlsTrouble> {
        let provider = Arc::new(default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| TlsTrouble::Settings)?;
        let builder = if settings.unverified {
            builder
                .dangerous()
                .with_custom_certificate_verifier(unverified::anybody(&provider))
        } else {
            builder.with_root_certificates(trusted(settings)?)
        };
        let mut config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsTrouble::Settings)?;
                builder
                    .with_client_auth_cert(certificates(chain)?, key)
                    .map_err(|_| TlsTrouble::Settings)?
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = settings.name.clone().map(ServerName::try_from).transpose();
        Ok(Tls {
            connector: TlsConnector::from(Arc::new(config)),
            name: name.map_err(|_| TlsTrouble::Settings)?,
        })
    }

    /// The same with other `protocols`, and the same sessions.
    pub fn offering(&self, protocols: &[&[u8]]) -> Tls {
        let mut config = ClientConfig::clone(self.connector.config());
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Tls {
            connector: TlsConnector::from(Arc::new(config)),
            name: self.name.clone(),
        }
    }

    /// Shakes hands with the server at `host`: a name or an address without brackets.
    pub async fn over<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &str,
    ) -> io::Result<TlsStream<S>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        self.connector.connect(name, stream).await
    }
}

fn trusted(settings: &ClientTls) -> Result<RootCertStore, TlsTrouble> {
    let roots = match &settings.ca {
        Some(pem) => certificates(pem)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut trusted = RootCertStore::empty();
    // A system's bundle may hold one that nobody can read: that one is not trusted.
    trusted.add_parsable_certificates(roots);
    if trusted.is_empty() {
        return Err(TlsTrouble::Settings);
    }
    Ok(trusted)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsTrouble> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsTrouble::Settings)
}

/// Why there is no TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsTrouble {
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate is signed by nobody we trust.
    UnknownAuthority,
    /// The server's certificate is made out to another name.
    OtherName,
    /// The server ended it: it wants a certificate of ours, or another one.
    Refused,
    /// The server does not speak TLS.
    Plain,
    /// Nothing is trusted: no authority is configured, and the system has none.
    Settings,
    /// Anything else.
    Other,
}

impl TlsTrouble {
    /// What is wrong, if TLS made this error or is the cause of it. Under TLS 1.3 a server's
    /// refusal arrives after the handshake, inside other errors.
    pub fn within(error: &(dyn Error + 'static)) -> Option<TlsTrouble> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Some(TlsTrouble::of(error));
            }
            // An `io::Error` names the source of what it wraps as its own.
            next = match error.downcast_ref::<io::Error>() {
                Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
                None => error.source(),
            };
        }
        None
    }

    fn of(error: &rustls::Error) -> TlsTrouble {
        match error {
            rustls::Error::InvalidCertificate(why) => match why {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    TlsTrouble::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    TlsTrouble::NotYetValid
                }
                CertificateError::UnknownIssuer => TlsTrouble::UnknownAuthority,
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => TlsTrouble::OtherName,
                _ => TlsTrouble::Other,
            },
            rustls::Error::AlertReceived(_) => TlsTrouble::Refused,
            rustls::Error::InvalidMessage(_) => TlsTrouble::Plain,
            _ => TlsTrouble::Other,
        }
    }

    /// One word for logs and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            TlsTrouble::Expired => "tls_expired",
            TlsTrouble::NotYetValid => "tls_not_yet_valid",
            TlsTrouble::UnknownAuthority => "tls_unknown_ca",
            TlsTrouble::OtherName => "tls_other_name",
            TlsTrouble::Refused => "tls_refused",
            TlsTrouble::Plain => "tls_plain",
            TlsTrouble::Settings => "tls_settings",
            TlsTrouble::Other => "tls",
        }
    }
}

impl fmt::Display for TlsTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsTrouble::Expired => "its certificate has expired",
            TlsTrouble::NotYetValid => "its certificate is not valid yet",
            TlsTrouble::UnknownAuthority => {
                "its certificate is signed by an unknown authority (`ca` in `tls`)"
            }
            TlsTrouble::OtherName => {
                "its certificate is made out to another name (`name` in `tls`)"
            }
            TlsTrouble::Refused => {
                "it refuses our side of TLS; it may want a certificate (`cert` in `tls`)"
            }
            TlsTrouble::Plain => "it does not speak TLS",
            TlsTrouble::Settings => "TLS has no authority to trust (`ca` in `tls`)",
            TlsTrouble::Other => "TLS failed",
        })
    }
}

impl Error for TlsTrouble {}
