//! Certificates and private keys as files have them: read once when the configuration is checked,
//! and again whenever such a file changes.
//!
//! Pure: bytes in, certificates out. An error is a label, and after a `;` what to do about it.

use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// What is wrong with a file.
pub type Wrong = &'static str;

/// Which of a pair of files is wrong, by its key in the configuration.
pub type WrongOf = (&'static str, Wrong);

const NONE: Wrong = "no certificate in it; PEM begins with `-----BEGIN CERTIFICATE-----`";

/// The authorities of a file, of which there is one at least.
pub fn authorities(pem: &[u8]) -> Result<RootCertStore, Wrong> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| "not PEM")?;
        roots
            .add(certificate)
            .map_err(|_| "a certificate in it cannot be read")?;
    }
    if roots.is_empty() {
        return Err(NONE);
    }
    Ok(roots)
}

/// A certificate, with those that vouch for it, and its key: they belong together.
pub fn identity(cert: &[u8], key: &[u8]) -> Result<CertifiedKey, WrongOf> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
    let chain = chain.map_err(|_| ("cert", "not PEM"))?;
    if chain.is_empty() {
        return Err(("cert", NONE));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        (
            "key",
            "no private key in it; an encrypted one cannot be used",
        )
    })?;
    CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => ("key", "not the key of `cert`"),
        // One without extensions, as `openssl x509 -req` makes it when nothing else is said.
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
}
