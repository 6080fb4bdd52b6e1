//! TLS to the store: whom we trust, what we show, and what is wrong when it fails.
//!
//! Certificates are always verified, with the authorities that the file names or the system's.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::RedisTls;
use crate::store::StoreError;

/// Makes TLS connections; one for all workers, so that sessions are resumed.
pub(super) struct Tls {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl Tls {
    /// The settings have been checked; what the system trusts is read here.
    pub(super) fn new(settings: &RedisTls) -> Result<Tls, StoreError> {
        let wrong = |_| StoreError::Tls(TlsTrouble::Settings);
        let roots = match &settings.ca {
            Some(pem) => certificates(pem)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut trusted = RootCertStore::empty();
        // A system's bundle may hold one that nobody can read: that one is not trusted.
        trusted.add_parsable_certificates(roots);
        if trusted.is_empty() {
            return Err(StoreError::Tls(TlsTrouble::Settings));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| StoreError::Tls(TlsTrouble::Settings))?
            .with_root_certificates(trusted);
        let config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| StoreError::Tls(TlsTrouble::Settings))?;
                builder
                    .with_client_auth_cert(certificates(chain)?, key)
                    .map_err(wrong)?
            }
        };
        let name = settings.name.clone().map(ServerName::try_from).transpose();
        Ok(Tls {
            connector: TlsConnector::from(Arc::new(config)),
            name: name.map_err(|_| StoreError::Tls(TlsTrouble::Settings))?,
        })
    }

    /// Shakes hands with the server at `host`.
    pub(super) async fn over(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> Result<TlsStream<TcpStream>, StoreError> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| StoreError::BadAddress)?,
        };
        self.connector.connect(name, stream).await.map_err(|error| {
            tracing::debug!(%error, host, "redis: no TLS");
            TlsTrouble::of(&error).map_or(StoreError::Lost, StoreError::Tls)
        })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| StoreError::Tls(TlsTrouble::Settings))
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
    fn of(error: &io::Error) -> Option<TlsTrouble> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match error {
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
        })
    }

    /// The same of an error that a server's refusal became after the handshake: under TLS 1.3 it
    /// arrives with the first answer.
    pub(super) fn within(error: &RedisError) -> Option<TlsTrouble> {
        let source = error.source()?;
        let inner = source.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
        TlsTrouble::of(inner.downcast_ref::<io::Error>()?)
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
            TlsTrouble::Expired => "the store's certificate has expired",
            TlsTrouble::NotYetValid => "the store's certificate is not valid yet",
            TlsTrouble::UnknownAuthority => {
                "the store's certificate is signed by an unknown authority (store.tls.ca)"
            }
            TlsTrouble::OtherName => {
                "the store's certificate is made out to another name (store.tls.name)"
            }
            TlsTrouble::Refused => {
                "the store refuses our side of TLS; it may want a certificate (store.tls.cert)"
            }
            TlsTrouble::Plain => "the store does not speak TLS",
            TlsTrouble::Settings => "TLS has no authority to trust (store.tls.ca)",
            TlsTrouble::Other => "TLS to the store failed",
        })
    }
}
