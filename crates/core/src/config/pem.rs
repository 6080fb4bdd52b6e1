//! Certificates and private keys in PEM files. They are read when the configuration is checked, and
//! again when such a file changes.
//!
//! Pure: bytes in, certificates out. An error is a label, with help after a `;`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, Der, PrivateKeyDer, TrustAnchor,
};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;

pub type PemError = &'static str;

/// The key in the configuration, `cert` or `key`, of the file that cannot be used, and the reason.
pub type IdentityError = (&'static str, PemError);

#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The chain, the certificate itself first.
    pub cert: PemFile,
    pub key: PemFile,
}

#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    pub path: PathBuf,
    pub content: Vec<u8>,
}

impl fmt::Debug for PemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PemFile")
            .field(&self.path)
            .finish_non_exhaustive()
    }
}

const NO_CERTIFICATE: PemError =
    "no certificate in it; PEM begins with `-----BEGIN CERTIFICATE-----`";

/// Reads the authorities of a file; a file without any is an error.
pub fn authorities(pem: &[u8]) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| "not PEM")?;
        roots
            .add(certificate)
            .map_err(|_| "a certificate in it cannot be read")?;
    }
    if roots.is_empty() {
        return Err(NO_CERTIFICATE);
    }
    Ok(roots)
}

/// Reads the lists of revoked certificates in a file; a file without any is an error.
pub fn revocation_lists(
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    let lists = lists.map_err(|_| "not PEM")?;
    if lists.is_empty() {
        return Err(
            "no list of revoked certificates in it; PEM begins with `-----BEGIN X509 CRL-----`",
        );
    }
    // Building a verifier reads the lists. It does not look at the authority.
    let nothing = || Der::from_slice(&[]);
    let authority = TrustAnchor {
        subject: nothing(),
        subject_public_key_info: nothing(),
        name_constraints: None,
    };
    let roots = Arc::new(RootCertStore::from_iter([authority]));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, default_provider().into());
    match verifier.with_crls(lists.iter().cloned()).build() {
        Ok(_) => Ok(lists),
        Err(_) => Err("a list of revoked certificates in it cannot be read (RFC 5280 section 5)"),
    }
}

/// Reads a certificate with its chain and its key, and checks that both belong together.
pub fn identity(cert: &[u8], key: &[u8]) -> Result<CertifiedKey, IdentityError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
    let chain = chain.map_err(|_| ("cert", "not PEM"))?;
    if chain.is_empty() {
        return Err(("cert", NO_CERTIFICATE));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        (
            "key",
            "no private key in it; name a PEM file with a private key that is not encrypted",
        )
    })?;
    CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => (
            "key",
            "not the key of `cert`; name the key that this certificate was made with",
        ),
        // A certificate without extensions, as `openssl x509 -req` makes it by default.
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(_)) => (
            "cert",
            "its certificate cannot be used; make one of X.509 version 3, with `subjectAltName`",
        ),
        rustls::Error::InvalidCertificate(_) => ("cert", "its certificate cannot be read"),
        _ => ("key", "not a private key of a kind that is supported"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_1: &[u8] = b"-----BEGIN CERTIFICATE-----\n\
    MIIBHTCBxQIUewhs2SR5//rMBkxV91V51SIWfygwCgYIKoZIzj0EAwIwETEPMA0G\n\
    A1UEAwwGYS50ZXN0MCAXDTI2MTEyMTA2MTkyMVoYDzIxMjYxMDI4MDYxOTIxWjAR\n\
    MQ8wDQYDVQQDDAZhLnRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASKSR5a\n\
    Zai7ULJEy3zBuoFkbo3TJf3ne3ShMwgqeU5/iQwgmdk35qoiqudXD0nJviB5482W\n\
    EAQv6MLsrgxArgE4MAoGCCqGSM49BAMCA0cAMEQCIGn92bNmaMC2Ie4QPQ+VMNVK\n\
    Ltv0vXMQhox0yE1q9R/AAiAnyj7Z9WIBTFSN53Rwa9euIb/yWEAJ25ujLx8J59Mq\n\
    BA==\n\
    -----END CERTIFICATE-----\n";

    #[test]
    fn a_certificate_without_extensions_is_refused_with_advice() {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let (of, wrong) = identity(VERSION_1, key.as_bytes()).unwrap_err();
        assert_eq!(of, "cert");
        assert!(wrong.contains("X.509 version 3"), "{wrong}");
    }

    /// As some tools make it: of version 2, without extensions.
    const BARE_LIST: &[u8] = b"-----BEGIN X509 CRL-----\n\
    MIGVMDwCAQEwCgYIKoZIzj0EAwIwDTELMAkGA1UEAwwCY2EXDTI2MTEyOTEyMTg0\n\
    OVoXDTI2MTIxMDEyMTg0OVowCgYIKoZIzj0EAwIDSQAwRgIhAILn4oYlxwk86LE/\n\
    ADuim3TYPGberB/gXwvQ0wrq+4fdAiEAit4FOK3qJvqnCOJPp7G22sRqI/1aE1EU\n\
    Fb7RqOhfAds=\n\
    -----END X509 CRL-----\n";

    #[test]
    fn a_list_that_no_verifier_takes_is_refused() {
        let wrong = revocation_lists(BARE_LIST).unwrap_err();
        assert!(wrong.contains("cannot be read"), "{wrong}");
    }
}
