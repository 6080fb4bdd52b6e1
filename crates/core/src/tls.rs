//! TLS as a client, towards Redis and upstreams: trusted authorities, our certificate, and errors.
//!
//! Certificates are verified with the configured authorities or those of the system. Only
//! `verify = false` turns this off. This room must never do so by itself.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::ClientTls;
use crate::config::pem::revocation_lists;

/// Makes TLS connections. Connections of one client resume each other's sessions.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient")
            .field("name", &self.name)
            .finish()
    }
}

impl TlsClient {
    /// Makes a client from checked settings, and reads the system's authorities. ALPN offers
    /// `protocols`, the preferred one first.
    pub fn new(settings: &ClientTls, protocols: &[&[u8]]) -> Result<TlsClient, TlsTrouble> {
        let provider = Arc::new(default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|_| TlsTrouble::Settings)?;
        let builder = if settings.unverified {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnyServer(algorithms)))
        } else {
            builder.with_webpki_verifier(verifier(settings, provider)?)
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
        config.enable_sni = !settings.hides_name;
        if settings.never_resumes {
            config.resumption = Resumption::disabled();
        }
        let name = settings.name.clone().map(ServerName::try_from).transpose();
        Ok(TlsClient {
            connector: TlsConnector::from(Arc::new(config)),
            name: name.map_err(|_| TlsTrouble::Settings)?,
        })
    }

    /// Copies the client with other `protocols`. The copy shares the sessions.
    pub fn offering(&self, protocols: &[&[u8]]) -> TlsClient {
        let mut config = ClientConfig::clone(self.connector.config());
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        TlsClient {
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

fn verifier(
    settings: &ClientTls,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsTrouble> {
    let roots = Arc::new(trusted(settings)?);
    let mut verifier = WebPkiServerVerifier::builder_with_provider(roots, provider);
    if let Some(pem) = &settings.crl {
        let lists = revocation_lists(pem).map_err(|_| TlsTrouble::Settings)?;
        verifier = verifier.with_crls(lists).enforce_revocation_expiration();
    }
    verifier.build().map_err(|_| TlsTrouble::Settings)
}

fn trusted(settings: &ClientTls) -> Result<RootCertStore, TlsTrouble> {
    let roots = match &settings.ca {
        Some(pem) => certificates(pem)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut trusted = RootCertStore::empty();
    // The system's bundle may contain an unreadable certificate, which is not trusted.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsTrouble {
    Expired,
    NotYetValid,
    UnknownAuthority,
    OtherName,
    /// The server ended the handshake: it wants our certificate, or another one.
    Refused,
    Plain,
    /// No authority is configured, and the system has none.
    Settings,
    Other,
}

impl TlsTrouble {
    /// Finds a TLS error within an error. Under TLS 1.3 a server's refusal arrives after the
    /// handshake, inside other errors.
    pub fn within(error: &(dyn Error + 'static)) -> Option<TlsTrouble> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Some(TlsTrouble::from_error(error));
            }
            // The source of an `io::Error` is that of the error within, which would be skipped.
            next = match error.downcast_ref::<io::Error>() {
                Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
                None => error.source(),
            };
        }
        None
    }

    fn from_error(error: &rustls::Error) -> TlsTrouble {
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

    pub const fn label(self) -> &'static str {
        self.words().0
    }

    /// The label for logs and metrics, and a sentence.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Expired => ("tls_expired", "its certificate has expired"),
            Self::NotYetValid => ("tls_not_yet_valid", "its certificate is not valid yet"),
            Self::UnknownAuthority => (
                "tls_unknown_ca",
                "its certificate is signed by an unknown authority (`ca` in `tls`)",
            ),
            Self::OtherName => (
                "tls_other_name",
                "its certificate is made out to another name (`name` in `tls`)",
            ),
            Self::Refused => (
                "tls_refused",
                "it refuses our side of TLS; it may want a certificate (`cert` in `tls`)",
            ),
            Self::Plain => ("tls_plain", "it does not speak TLS"),
            Self::Settings => (
                "tls_settings",
                "TLS has no authority to trust (`ca` in `tls`)",
            ),
            Self::Other => ("tls", "TLS failed"),
        }
    }
}

impl fmt::Display for TlsTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

impl Error for TlsTrouble {}

/// Accepts every certificate, for `verify = false`: the connection is private, but the server may
/// be anyone. It still checks that the server has the key of its certificate.
#[derive(Debug)]
struct AcceptAnyServer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
