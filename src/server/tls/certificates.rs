//! Chooses the certificate for a client by the name that it requests and by the signatures that it
//! can verify.
//!
//! It also has the proofs for a certificate authority that checks a name. They are answers on
//! listeners without TLS (http-01, RFC 8555 section 8.3) and certificates (tls-alpn-01, RFC 8737).

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::Certificate;
use crate::config::{IdentityFiles, pem};
use crate::telemetry::panics::lock;

/// The ALPN protocol of tls-alpn-01.
pub(super) const ACME_PROTOCOL: &[u8] = b"acme-tls/1";
const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// All certificates. They are replaced as a whole; a handshake goes on with those it began with.
#[derive(Debug)]
pub(crate) struct Certificates {
    index: ArcSwap<CertificateIndex>,
    challenges: Arc<Challenges>,
}

/// Certificates of one name differ in the kind of their keys. A client gets the first one that it
/// can verify.
#[derive(Debug, Default)]
pub(super) struct CertificateIndex {
    /// By the whole name of a host.
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// By the part of a wildcard name after `*.`
    wildcard: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// In the order of the file, for clients that request no name or an unknown one.
    all: Vec<Arc<CertifiedKey>>,
    refuses_unknown: bool,
}

impl Certificates {
    pub(super) fn new(index: CertificateIndex, challenges: Arc<Challenges>) -> Certificates {
        Certificates {
            index: ArcSwap::from_pointee(index),
            challenges,
        }
    }

    /// Uses these certificates from the next handshake on.
    pub(super) fn replace(&self, index: CertificateIndex) {
        self.index.store(Arc::new(index));
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut offered = hello.alpn().into_iter().flatten();
        if offered.next() == Some(ACME_PROTOCOL) {
            return self.challenges.certificate_for(hello.server_name());
        }
        let index = self.index.load();
        index.find(hello.server_name(), hello.signature_schemes())
    }
}

pub(super) fn parse_identity(cert: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    pem::identity(cert, key).map_err(|(part, why)| format!("{part}: {why}"))
}

pub(super) fn read_certificate(identity: &CertifiedKey) -> Option<Certificate> {
    let der = identity.end_entity_cert().ok()?;
    Certificate::read(der)
}

impl CertificateIndex {
    /// Without `refuses_unknown`, clients that ask for an unknown name get the first certificate.
    pub(super) fn load<'f>(
        files: impl IntoIterator<Item = &'f IdentityFiles>,
        refuses_unknown: bool,
    ) -> io::Result<CertificateIndex> {
        let mut index = CertificateIndex {
            refuses_unknown,
            ..CertificateIndex::default()
        };
        for one in files {
            let identity = parse_identity(&one.cert.content, &one.key.content);
            index.add(Arc::new(identity.map_err(io::Error::other)?));
        }
        Ok(index)
    }

    fn add(&mut self, identity: Arc<CertifiedKey>) {
        let certificate = read_certificate(&identity);
        for host in certificate.map(|one| one.hosts()).unwrap_or_default() {
            let (names, host) = match host.strip_prefix("*.") {
                Some(parent) => (&mut self.wildcard, parent.to_owned()),
                None => (&mut self.exact, host),
            };
            names.entry(host).or_default().push(Arc::clone(&identity));
        }
        self.all.push(identity);
    }

    fn find(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let usable = |list: &Vec<Arc<CertifiedKey>>| {
            let can_verify = |one: &&Arc<CertifiedKey>| one.key.choose_scheme(schemes).is_some();
            list.iter().find(can_verify).cloned()
        };
        let name = name.map(str::to_ascii_lowercase);
        let name = name.as_deref().unwrap_or_default();
        let exact = self.exact.get(name);
        let wildcard = || self.wildcard.get(name.split_once('.')?.1);
        let known = exact
            .and_then(usable)
            .or_else(|| wildcard().and_then(usable));
        if known.is_some() || self.refuses_unknown {
            return known;
        }
        usable(&self.all).or_else(|| self.all.first().cloned())
    }
}

/// Proofs for a certificate authority. Usually there are none.
#[derive(Debug, Default)]
pub(crate) struct Challenges {
    answers: Mutex<HashMap<String, String>>,
    certificates: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl Challenges {
    pub(super) fn add_answer(&self, token: &str, proof: &str) {
        lock(&self.answers).insert(token.to_owned(), proof.to_owned());
    }

    pub(super) fn add_certificate(&self, name: &str, digest: &[u8]) -> Result<(), &'static str> {
        const WRONG: &str = "no certificate can be made for that name";
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(|_| WRONG)?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate().map_err(|_| WRONG)?;
        let certificate = params.self_signed(&key).map_err(|_| WRONG)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let chain = vec![certificate.der().clone()];
        let key = default_provider().key_provider.load_private_key(key);
        // Not `from_der`: it rejects the critical extension, which only authorities know.
        let identity = CertifiedKey::new(chain, key.map_err(|_| WRONG)?);
        lock(&self.certificates).insert(name.to_owned(), Arc::new(identity));
        Ok(())
    }

    pub(super) fn clear(&self) {
        lock(&self.answers).clear();
        lock(&self.certificates).clear();
    }

    /// The answer to a request for this path, if it is that of an authority.
    pub(in crate::server) fn answer_at(&self, path: &str) -> Option<String> {
        let token = path.strip_prefix(CHALLENGE_PATH)?;
        lock(&self.answers).get(token).cloned()
    }

    fn certificate_for(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        lock(&self.certificates).get(name?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PemFile;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};
    use std::path::PathBuf;
    const P256: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

    const ED25519: SignatureScheme = SignatureScheme::ED25519;

    fn files(hosts: &[&str], kind: &'static rcgen::SignatureAlgorithm) -> IdentityFiles {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let key = KeyPair::generate_for(kind).unwrap();
        let cert = CertificateParams::new(hosts).unwrap();
        let file = |text: String| PemFile {
            path: PathBuf::new(),
            content: text.into_bytes(),
        };
        IdentityFiles {
            cert: file(cert.self_signed(&key).unwrap().pem()),
            key: file(key.serialize_pem()),
        }
    }

    /// The place in the file of what such a client gets.
    fn found(index: &CertificateIndex, name: Option<&str>, known: &[SignatureScheme]) -> usize {
        let found = index.find(name, known).unwrap();
        let same = |one: &Arc<CertifiedKey>| Arc::ptr_eq(one, &found);
        index.all.iter().position(same).unwrap()
    }

    #[test]
    fn a_name_gets_its_own_certificate_and_any_other_the_first() {
        let p256 = &PKCS_ECDSA_P256_SHA256;
        let all = [
            files(&["default.test"], p256),
            files(&["*.a.test", "a.test"], p256),
            files(&["b.a.test"], p256),
        ];
        let index = CertificateIndex::load(&all, false).unwrap();
        for (name, place) in [
            (Some("default.test"), 0),
            (Some("a.test"), 1),
            (Some("x.a.test"), 1),
            (Some("X.A.test"), 1),
            (Some("b.a.test"), 2),
            (Some("x.y.a.test"), 0),
            (Some("other.test"), 0),
            (Some("test"), 0),
            (None, 0),
        ] {
            assert_eq!(found(&index, name, &[P256]), place, "{name:?}");
        }
        let strict = CertificateIndex::load(&all, true).unwrap();
        assert!(strict.find(Some("x.a.test"), &[P256]).is_some());
        assert!(strict.find(Some("other.test"), &[P256]).is_none());
        assert!(strict.find(None, &[P256]).is_none());
    }

    #[test]
    fn of_two_kinds_of_keys_a_client_gets_the_one_that_it_can_verify() {
        let all = [
            files(&["a.test"], &PKCS_ED25519),
            files(&["a.test"], &PKCS_ECDSA_P256_SHA256),
        ];
        let index = CertificateIndex::load(&all, false).unwrap();
        let name = Some("a.test");
        assert_eq!(found(&index, name, &[P256]), 1);
        assert_eq!(found(&index, name, &[P256, ED25519]), 0);
        assert_eq!(found(&index, None, &[P256]), 1);
        assert_eq!(found(&index, name, &[SignatureScheme::RSA_PSS_SHA256]), 0);
    }
}
