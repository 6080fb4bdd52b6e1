//! `[tls]` as it was understood: where clients connect over TLS, with which certificates, and
//! which certificates of theirs are believed.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{AcmeSettings, Hidden, Listen};

/// `[tls]`
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Where clients connect over TLS.
    pub listen: Vec<Listen>,
    /// What we show, chosen by the name that a client asks for; the first is for all others.
    pub certificates: Vec<IdentityFiles>,
    /// Whose certificates clients may show; `None` asks for none.
    pub clients: Option<ClientCertificates>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
    /// The port of `https` to which clients of plain listeners are sent.
    pub redirect: Option<u16>,
    /// For how long browsers should remember to come over TLS only.
    pub hsts: Option<Duration>,
    /// Whether HTTP/2 is offered: `[server] http2`.
    pub http2: bool,
    /// A certificate that we get for ourselves; shown behind those of the file.
    pub acme: Option<AcmeSettings>,
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2
    V1_2,
    /// TLS 1.3
    V1_3,
}

/// `client_ca` and `client_auth`
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    /// The authorities that sign them.
    pub ca: PemFile,
    /// Whether a client without one is turned away.
    pub required: bool,
}

/// A certificate, with those that vouch for it, and its key.
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The chain, the certificate itself first.
    pub cert: PemFile,
    /// Its private key.
    pub key: PemFile,
}

/// A file, and what it held when it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it held.
    pub content: Vec<u8>,
}

impl fmt::Debug for PemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PemFile")
            .field(&self.path)
            .field(&Hidden)
            .finish()
    }
}
