//! The fields of an X.509 certificate: subject, alternative names, and validity.
//!
//! Pure: bytes in, texts out. Nothing here verifies a signature. Limits count by these texts, so
//! they must never change from version to version.

#[cfg(feature = "redis")]
mod read;

use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// As RFC 4514 writes it: `CN=worker-7,OU=batch,O=Example`. May be empty.
    pub subject: String,
    /// Written as `subject`.
    pub issuer: String,
    /// In upper-case hexadecimal.
    pub serial: String,
    pub names: Vec<AltName>,
    /// Unix seconds.
    pub not_before_s: u64,
    /// Unix seconds.
    pub not_after_s: u64,
    /// SHA-256 of the whole certificate, in lower-case hexadecimal.
    pub fingerprint: String,
    /// The whole certificate.
    pub der: Box<[u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AltName {
    /// In lower case; `*.` stands for any one label.
    Dns(String),
    Ip(IpAddr),
    /// Such as `spiffe://example.org/worker`.
    Uri(String),
    Email(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    Early,
    Valid,
    Expired,
}

#[cfg(not(feature = "redis"))]
impl Certificate {
    /// This build reads no certificates.
    pub fn read(_: &[u8]) -> Option<Certificate> {
        None
    }
}

impl Certificate {
    pub fn validity(&self, now_s: u64) -> Validity {
        if now_s < self.not_before_s {
            Validity::Early
        } else if now_s > self.not_after_s {
            Validity::Expired
        } else {
            Validity::Valid
        }
    }

    /// The hosts of the certificate: its DNS names and addresses, or else its common name.
    pub fn hosts(&self) -> Vec<String> {
        let host = |name: &AltName| match name {
            AltName::Dns(name) => Some(name.clone()),
            AltName::Ip(ip) => Some(ip.to_string()),
            AltName::Uri(_) | AltName::Email(_) => None,
        };
        let hosts: Vec<String> = self.names.iter().filter_map(host).collect();
        if !hosts.is_empty() {
            return hosts;
        }
        let common = self
            .subject
            .split(',')
            .find_map(|part| part.strip_prefix("CN="));
        common.map(str::to_ascii_lowercase).into_iter().collect()
    }
}

impl AltName {
    pub fn text(&self) -> String {
        match self {
            AltName::Dns(text) | AltName::Uri(text) | AltName::Email(text) => text.clone(),
            AltName::Ip(ip) => ip.to_string(),
        }
    }
}
