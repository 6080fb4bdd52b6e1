//! Certificates of a test's own: an authority, servers' in every state, and a client's.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use tempfile::TempDir;

/// Files `NAME.pem` and `NAME.key` in a folder.
pub struct Certificates {
    folder: TempDir,
}

/// Servers' certificates by name: whom they are made out to, and when they end.
const SERVERS: [(&str, &[&str], i32); 3] = [
    ("good", &["localhost", "127.0.0.1"], 2999),
    ("other", &["other.test"], 2999),
    ("expired", &["localhost", "127.0.0.1"], 2020),
];

impl Certificates {
    /// `ca` signs `good`, `other`, `expired` and `client`; `stranger` signs nothing.
    pub fn new() -> Certificates {
        let all = Certificates {
            folder: tempfile::tempdir().unwrap(),
        };
        let (ca, _) = all.authority("ca");
        all.authority("stranger");
        for (name, hosts, end) in SERVERS {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let mut params = CertificateParams::new(hosts).unwrap();
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(end, 1, 1);
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            all.signed(name, params, &ca);
        }
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        all.signed("client", params, &ca);
        all
    }

    fn authority(&self, name: &str) -> (Issuer<'static, KeyPair>, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        self.write(&format!("{name}.pem"), &pem);
        (Issuer::new(params, key), pem)
    }

    fn signed(&self, name: &str, params: CertificateParams, by: &Issuer<'_, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, by).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Arguments of a server that speaks TLS with that certificate.
    pub fn server(&self, name: &str, port: u16) -> Vec<String> {
        let path = |name: String| self.path(&name).display().to_string();
        let words = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", path(format!("{name}.pem"))),
            ("--tls-key-file", path(format!("{name}.key"))),
            ("--tls-ca-cert-file", path("ca.pem".to_owned())),
        ];
        words
            .into_iter()
            .flat_map(|(key, value)| [key.to_owned(), value])
            .collect()
    }
}
