//! TLS where we are the client: the `tls` tables of the store and of upstreams.
//!
//! Files are read and checked here, so that a wrong one is found at load and not by a request.

use std::fmt;

use rustls::pki_types::ServerName;

use super::diagnostic::{Code, Diagnostic, Span};
use super::section::Section;
use super::values::TextForm;
use super::{Hidden, pem};

/// Whom we trust and what we show: every file has been read, and holds what it should.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates to trust instead of the system's, PEM.
    pub ca: Option<Vec<u8>>,
    /// Our certificate with its chain and its private key, both PEM, for servers that ask for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that servers' certificates are made out to; `None` is the host's.
    pub name: Option<String>,
    /// Whether anybody is taken for the server, whatever certificate it shows.
    pub unverified: bool,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.as_ref().map(Vec::len))
            .field("identity", &self.identity.as_ref().map(|_| Hidden))
            .field("name", &self.name)
            .field("unverified", &self.unverified)
            .finish()
    }
}

/// The table `tls` within `outer`, and where its first key stands. `who` is in the files' names
/// that are suggested.
pub(super) fn read(outer: &mut Section<'_>, who: &str) -> (ClientTls, Option<Span>) {
    let mut section = outer.section("tls");
    let read = within(&mut section, who);
    section.finish();
    read
}

/// The same of a table that may hold more: it is not finished.
pub(super) fn within(section: &mut Section<'_>, who: &str) -> (ClientTls, Option<Span>) {
    let ca = section.file("ca");
    let cert = section.file("cert");
    let key = section.file("key");
    let name = section.parsed(
        "name",
        TextForm::new(Code::BadAddress, "a name of a server"),
        |text| match ServerName::try_from(text) {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err("neither a host's name nor an address"),
        },
    );
    let first = section
        .entries()
        .into_iter()
        .map(|(key, _)| key.span)
        .next();
    let ca = ca.filter(|pem| {
        let wrong = pem::authorities(&pem.value).err();
        wrong
            .map(|why| unusable(section, "ca", &pem.span, why))
            .is_none()
    });
    if cert.is_some() && section.peek("key").is_none() {
        section.missing("key", &format!("key = \"/run/secrets/{who}.key\""));
    }
    if key.is_some() && section.peek("cert").is_none() {
        section.missing("cert", &format!("cert = \"/etc/tidegate/{who}.pem\""));
    }
    let identity = cert.zip(key).filter(|(cert, key)| {
        let wrong = pem::identity(&cert.value, &key.value).err();
        let told = wrong.map(|(part, why)| {
            let span = if part == "cert" {
                &cert.span
            } else {
                &key.span
            };
            unusable(section, part, span, why);
        });
        told.is_none()
    });
    let tls = ClientTls {
        ca: ca.map(|pem| pem.value),
        identity: identity.map(|(cert, key)| (cert.value, key.value)),
        name: name.map(|name| name.value),
        unverified: false,
    };
    (tls, first)
}

/// A file that could be read, and not used.
pub(super) fn unusable(section: &Section<'_>, key: &str, span: &Span, why: &str) {
    let message = format!("the file of `{}` cannot be used", section.full(key));
    let diagnostic = Diagnostic::new(Code::SecretFile, message).because(span, &why);
    section.reader.report(diagnostic);
}
