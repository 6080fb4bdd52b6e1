//! Which certificate a client is shown: by the name that it asks for, and by what it can verify.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::challenges::{Challenges, PROTOCOL};
use crate::certificate::Certificate;
use crate::config::{IdentityFiles, pem};

/// All of them; replaced whole, and a handshake under way goes on with what it has.
pub(crate) struct Certificates {
    index: ArcSwap<Index>,
    challenges: Arc<Challenges>,
}

/// Several of one name differ in the kind of their keys: a client gets the first that it can
/// verify.
#[derive(Default)]
struct Index {
    /// By a host's whole name.
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// By what follows `*.`
    below: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// In the order of the file: for clients that ask for no name of ours, or for none.
    all: Vec<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    pub(super) fn new(
        files: &[IdentityFiles],
        challenges: Arc<Challenges>,
    ) -> io::Result<Certificates> {
        Ok(Certificates {
            index: ArcSwap::from_pointee(Index::of(files)?),
            challenges,
        })
    }

    /// Shows these from the next handshake on; if one of them cannot be used nothing changes.
    pub(super) fn replace(&self, files: &[IdentityFiles]) -> io::Result<()> {
        self.index.store(Arc::new(Index::of(files)?));
        Ok(())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut offered = hello.alpn().into_iter().flatten();
        if offered.next() == Some(PROTOCOL) {
            return self.challenges.shown_for(hello.server_name());
        }
        let index = self.index.load();
        index.find(hello.server_name(), hello.signature_schemes())
    }
}

impl Index {
    fn of(files: &[IdentityFiles]) -> io::Result<Index> {
        let mut index = Index::default();
        for one in files {
            let identity = pem::identity(&one.cert.content, &one.key.content)
                .map_err(|(part, why)| io::Error::other(format!("{part}: {why}")))?;
            index.add(Arc::new(identity));
        }
        Ok(index)
    }

    fn add(&mut self, identity: Arc<CertifiedKey>) {
        let read = identity.end_entity_cert().ok();
        let read = read.and_then(|der| Certificate::read(der));
        for host in read.map(|read| read.hosts()).unwrap_or_default() {
            let (names, host) = match host.strip_prefix("*.") {
                Some(parent) => (&mut self.below, parent.to_owned()),
                None => (&mut self.exact, host),
            };
            names.entry(host).or_default().push(Arc::clone(&identity));
        }
        self.all.push(identity);
    }

    fn find(&self, name: Option<&str>, known: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let usable = |list: &Vec<Arc<CertifiedKey>>| {
            let can = |one: &&Arc<CertifiedKey>| one.key.choose_scheme(known).is_some();
            list.iter().find(can).cloned()
        };
        let name = name.map(str::to_ascii_lowercase);
        let name = name.as_deref().unwrap_or_default();
        let exact = self.exact.get(name);
        let wild = || self.below.get(name.split_once('.')?.1);
        exact
            .and_then(usable)
            .or_else(|| wild().and_then(usable))
            .or_else(|| usable(&self.all))
            .or_else(|| self.all.first().cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519};

    use super::*;
    use crate::config::PemFile;

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
    fn found(index: &Index, name: Option<&str>, known: &[SignatureScheme]) -> usize {
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
        let index = Index::of(&all).unwrap();
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
    }

    #[test]
    fn of_two_kinds_of_keys_a_client_gets_the_one_that_it_can_verify() {
        let all = [
            files(&["a.test"], &PKCS_ED25519),
            files(&["a.test"], &PKCS_ECDSA_P256_SHA256),
        ];
        let index = Index::of(&all).unwrap();
        let name = Some("a.test");
        assert_eq!(found(&index, name, &[P256]), 1);
        assert_eq!(found(&index, name, &[P256, ED25519]), 0);
        assert_eq!(found(&index, None, &[P256]), 1);
        assert_eq!(found(&index, name, &[SignatureScheme::RSA_PSS_SHA256]), 0);
    }
}
