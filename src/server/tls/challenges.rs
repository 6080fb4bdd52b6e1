//! Proofs that names are ours, while an authority is looking: answers on plain listeners (http-01,
//! RFC 8555 section 8.3) and certificates on those of TLS (tls-alpn-01, RFC 8737).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

/// The protocol of ALPN that asks for such a certificate.
pub(super) const PROTOCOL: &[u8] = b"acme-tls/1";
const PATH: &str = "/.well-known/acme-challenge/";

/// Empty nearly always.
#[derive(Default)]
pub(crate) struct Challenges {
    /// By token.
    answers: ArcSwap<HashMap<String, String>>,
    /// By name.
    shown: ArcSwap<HashMap<String, Arc<CertifiedKey>>>,
}

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Challenges").finish_non_exhaustive()
    }
}

impl Challenges {
    pub(super) fn answer(&self, token: &str, proof: &str) {
        let mut answers = HashMap::clone(&self.answers.load());
        answers.insert(token.to_owned(), proof.to_owned());
        self.answers.store(Arc::new(answers));
    }

    pub(super) fn show(&self, name: &str, digest: &[u8]) -> Result<(), &'static str> {
        const WRONG: &str = "no certificate can be made for that name";
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(|_| WRONG)?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate().map_err(|_| WRONG)?;
        let certificate = params.self_signed(&key).map_err(|_| WRONG)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let chain = vec![certificate.der().clone()];
        let key = default_provider().key_provider.load_private_key(key);
        // Not asked whether they fit: the extension is critical, and known to authorities alone.
        let identity = CertifiedKey::new(chain, key.map_err(|_| WRONG)?);
        let mut shown = HashMap::clone(&self.shown.load());
        shown.insert(name.to_owned(), Arc::new(identity));
        self.shown.store(Arc::new(shown));
        Ok(())
    }

    pub(super) fn clear(&self) {
        self.answers.store(Arc::default());
        self.shown.store(Arc::default());
    }

    /// What is answered at this path, if an authority may be asking.
    pub(in crate::server) fn answer_at(&self, path: &str) -> Option<String> {
        let token = path.strip_prefix(PATH)?;
        self.answers.load().get(token).cloned()
    }

    /// What is shown to an authority that asks for this name.
    pub(super) fn shown_for(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        self.shown.load().get(name?).cloned()
    }
}
