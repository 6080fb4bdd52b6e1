//! TLS where this proxy is the client: the `tls` tables of the store, of upstreams and of the
//! collector.
//!
//! Files are read and checked here: a wrong one is found at load and not by a request.

use std::fmt;

use rustls::pki_types::ServerName;

use super::Secret;
use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::section::Section;
use super::values::TextForm;

/// The trusted certificates and our own certificate. Every file has been read and checked.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates to trust instead of the system's, PEM.
    pub ca: Option<Vec<u8>>,
    /// Our certificate with its chain and its private key, both PEM, for servers that ask for one.
    pub identity: Option<(Vec<u8>, Secret<Vec<u8>>)>,
    /// The name in the servers' certificates; `None` is the host's name.
    pub name: Option<String>,
    /// Whether any certificate of a server is accepted.
    pub unverified: bool,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("ca", &self.ca.as_ref().map(Vec::len))
            .field("identity", &self.identity.as_ref().map(|(_, key)| key))
            .field("name", &self.name)
            .field("unverified", &self.unverified)
            .finish()
    }
}

/// Reads the table `tls` within `outer`. Also returns the place of its first key. `file_stem` is
/// the name of the files in examples.
pub(super) fn read(outer: &mut Section<'_>, file_stem: &str) -> (ClientTls, Option<TextSpan>) {
    let mut section = outer.section("tls");
    let tls = read_keys(&mut section, file_stem);
    let first = section.entries().into_iter().next();
    section.finish();
    (tls, first.map(|(key, _)| key.span))
}

/// Reads the keys of a table that may have more.
pub(super) fn read_keys(section: &mut Section<'_>, file_stem: &str) -> ClientTls {
    let form = TextForm::new(Code::BadAddress, "a name of a server");
    let server_name = |text: &str| match ServerName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("neither a host's name nor an address"),
    };
    let examples = [
        format!("cert = \"/etc/tidegate/{file_stem}.pem\""),
        format!("key = \"/run/secrets/{file_stem}.key\""),
    ];
    let ca = section.authorities("ca");
    let identity = section.identity(false, examples.each_ref().map(String::as_str));
    let identity = identity.map(|identity| identity.files);
    let name = section.parse("name", form, server_name);
    ClientTls {
        ca: ca.map(|file| file.value.content),
        identity: identity.map(|files| (files.cert.content, Secret(files.key.content))),
        name: name.map(|name| name.value),
        unverified: false,
    }
}

impl ClientTls {
    /// Reports a host that no certificate can name, such as `a_b`, unless `name` is set.
    pub(super) fn check_host_names<'h>(
        &self,
        section: &Section<'_>,
        key: &str,
        mut hosts: impl Iterator<Item = &'h str>,
        name: &str,
    ) {
        let is_nameless = |host: &str| ServerName::try_from(host).is_err();
        if self.name.is_none() && hosts.any(is_nameless) {
            Diagnostic::new(Code::BadUrl, "no certificate can be made out to the host")
                .at(&section.key_span(key), "not a name of the DNS")
                .help(format!("say what the certificate says: {name}"))
                .report_to(section.reader);
        }
    }
}
