//! `[tls]`: where clients connect over TLS, our certificates, and the certificates of clients.
//! `[tls.acme]`: certificates that the proxy gets for itself.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::ServerName;
use toml::de::DeValue;

use super::files::CheckedIdentity;
use super::pem::{IdentityFiles, PemFile};
use super::*;
use crate::certificate::{Certificate, Validity};
use crate::route::host_of;

/// Certificates of one proxy, at most.
const MAX_CERTIFICATES: usize = 10_000;
/// The length of `hsts = true`: the one that browsers' lists of such hosts ask for.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Names in one certificate, at most: the limit of Let's Encrypt.
const MAX_DOMAINS: usize = 100;

/// `[tls]`
#[derive(Clone, Debug)]
pub struct TlsSettings {
    pub listen: Vec<Listen>,
    pub certificates: Vec<IdentityFiles>,
    /// The certificates that clients may show; `None` asks for none.
    pub clients: Option<ClientCertificates>,
    pub min_version: TlsVersion,
    /// Whether a client that asks for a name of no certificate, or for none, is refused. Else it
    /// gets the first certificate.
    pub refuses_unknown: bool,
    /// The port of `https` to which clients of plain listeners are redirected.
    pub redirect: Option<u16>,
    pub hsts: Option<Duration>,
    pub http2: bool,
    pub acme: Option<AcmeSettings>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    V1_2,
    V1_3,
}

/// `client_ca`, `client_crl` and `client_auth`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    pub ca: PemFile,
    /// Lists of revoked certificates. Each authority of a chain needs one then.
    pub crl: Option<PemFile>,
    pub required: bool,
}

impl ClientCertificates {
    pub fn files(&self) -> impl Iterator<Item = &PemFile> {
        [&self.ca].into_iter().chain(&self.crl)
    }
}

/// `[tls.acme]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    pub domains: Vec<String>,
    /// Mail addresses for the authority: `mailto:` URLs.
    pub contact: Vec<String>,
    pub directory: String,
    pub cache: PathBuf,
    pub ca: Option<PathBuf>,
    pub challenge: AcmeChallenge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    Http01,
    TlsAlpn01,
}

/// Reads `[tls]`. `http2` is that of `[server]`.
pub(super) fn read(top: &mut Section<'_>, http2: bool, places: &mut Places) -> Option<TlsSettings> {
    let is_given = top.has("tls");
    let mut section = top.section("tls");
    let listen = section.listen_addresses("listen");
    let mut certificates = Vec::new();
    for identity in identities(&mut section) {
        let validity = validity(&section, &identity);
        let untimely = Some(validity).filter(|one| one.value != Validity::Valid);
        places.untimely.extend(untimely);
        certificates.push(identity.files);
    }
    let acme = acme(&mut section);
    if is_given && acme.is_none() {
        let example = "certificates = [{ cert = \"/etc/tidegate/tls.pem\", \
                       key = \"/run/secrets/tls.key\" }]";
        section.require("certificates", example);
    }
    let clients = client_certificates(&mut section);
    let versions = [("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)];
    let redirect = redirect(&mut section, &listen);
    check_challenge(&section, acme.as_ref(), clients.as_ref());
    let settings = TlsSettings {
        listen: values(listen.clone()),
        certificates,
        clients,
        min_version: section.word("min_version", &versions),
        refuses_unknown: section.word("unknown_name", &[("first", false), ("refuse", true)]),
        redirect,
        hsts: hsts(&mut section),
        acme,
        http2,
    };
    places.tls_redirect = redirect.map(|_| section.key_span("redirect"));
    section.finish();
    if is_given {
        places.tls_listen = listen;
    }
    is_given.then_some(settings)
}

fn identities(section: &mut Section<'_>) -> Vec<CheckedIdentity> {
    const EXAMPLES: [&str; 2] = [
        "cert = \"/etc/tidegate/tls.pem\"",
        "key = \"/run/secrets/tls.key\"",
    ];
    section.declare("certificates", || ValueKind::TableOrTables);
    let value = section.peek("certificates");
    let is_list = value.is_some_and(|value| value.get_ref().is_array());
    let tables = match value.map(|value| value.get_ref()) {
        Some(DeValue::Table(_)) => vec![section.section("certificates")],
        Some(_) => section.list("certificates"),
        None => {
            // Declares the keys of a certificate.
            section.section("certificates").identity(false, EXAMPLES);
            return Vec::new();
        }
    };
    if is_list && !(1..=MAX_CERTIFICATES).contains(&tables.len()) {
        let allowed = format!("1 to {MAX_CERTIFICATES} certificates");
        section.out_of_range("certificates", &allowed);
    }
    let identities = tables.into_iter().filter_map(|mut table| {
        let identity = table.identity(true, EXAMPLES);
        table.finish();
        identity
    });
    identities.collect()
}

/// Whether the certificate is valid now.
pub(super) fn validity(section: &Section<'_>, identity: &CheckedIdentity) -> Located<Validity> {
    let der = identity.certified.end_entity_cert().ok();
    let certificate = der.and_then(|der| Certificate::read(der));
    let now_s = section.reader.surroundings.now_s;
    let validity = certificate.map_or(Validity::Valid, |read| read.validity(now_s));
    Located::new(validity, &identity.cert_span)
}

fn client_certificates(section: &mut Section<'_>) -> Option<ClientCertificates> {
    let ca = section.authorities("client_ca");
    let required = section.optional_word("client_auth", &[("required", true), ("optional", false)]);
    let crl = section.revocation_lists("client_crl");
    for key in ["client_auth", "client_crl"] {
        if section.has(key) && !section.has("client_ca") {
            contradiction(format!("`tls.{key}` needs `client_ca`"))
                .at(
                    &section.value_span(key),
                    "no certificate of a client could be verified",
                )
                .help("name the authorities: `client_ca = \"/etc/tidegate/clients.pem\"`")
                .report_to(section.reader);
        }
    }
    Some(ClientCertificates {
        ca: ca?,
        crl,
        required: required.unwrap_or(true),
    })
}

fn redirect(section: &mut Section<'_>, listen: &[Located<Listen>]) -> Option<u16> {
    let value = section.take("redirect", || ValueKind::BooleanOrInteger)?;
    if section.has_integer("redirect") {
        return section.optional_integer("redirect", 1..=65_535);
    }
    let Some(wanted) = value.get_ref().as_bool() else {
        section.wrong_type("redirect", value, "true, false or a port");
        return None;
    };
    let ports = listen.iter().filter_map(|one| match one.value {
        Listen::Tcp(address) => Some(address.port()),
        Listen::Unix(_) => None,
    });
    let port = ports.into_iter().next().filter(|port| *port != 0);
    if wanted && port.is_none() {
        contradiction("`tls.redirect` must name the port")
            .at(&value.span(), "`tls.listen` has no port for the redirect")
            .help("write `redirect = 443`")
            .report_to(section.reader);
    }
    port.filter(|_| wanted)
}

fn hsts(section: &mut Section<'_>) -> Option<Duration> {
    let value = section.take("hsts", || ValueKind::BooleanOrDuration)?;
    if let Some(wanted) = value.get_ref().as_bool() {
        return wanted.then_some(YEAR);
    }
    let length = section.optional_duration("hsts", SECOND..=3650 * DAY)?;
    Some(Duration::from_secs(length.as_secs()))
}

/// Reports a challenge that cannot succeed: the authority has no certificate to show.
fn check_challenge(
    section: &Section<'_>,
    acme: Option<&AcmeSettings>,
    clients: Option<&ClientCertificates>,
) {
    let is_closed = clients.is_some_and(|clients| clients.required);
    if acme.is_some_and(|acme| acme.challenge == AcmeChallenge::TlsAlpn01) && is_closed {
        contradiction("`tls-alpn-01` and required client certificates exclude each other")
            .at(&section.key_span("acme"), "the authority could not connect")
            .help("use `challenge = \"http-01\"`")
            .report_to(section.reader);
    }
}

fn acme(tls: &mut Section<'_>) -> Option<AcmeSettings> {
    let is_given = tls.has("acme");
    let mut section = tls.section("acme");
    let directory_form = TextForm::new(Code::BadUrl, "the URL of a directory");
    let challenges = [
        ("http-01", AcmeChallenge::Http01),
        ("tls-alpn-01", AcmeChallenge::TlsAlpn01),
    ];
    let directory = section.parse("directory", directory_form, directory);
    let mail = TextForm::new(Code::BadAddress, "a mail address");
    let settings = AcmeSettings {
        domains: domains(&mut section),
        contact: values(section.parse_list("contact", mail, mailto)),
        directory: directory.unwrap_or_else(|| LETS_ENCRYPT.to_owned()),
        cache: section.path_of("cache").unwrap_or_default(),
        ca: section.path_of("ca"),
        challenge: section.word("challenge", &challenges),
    };
    let agrees = section.optional_boolean("terms").unwrap_or(false);
    if is_given {
        section.require("domains", "domains = [\"example.com\"]");
        section.require("cache", "cache = \"/var/lib/tidegate/acme\"");
        if !agrees {
            contradiction("the authority's terms of service must be agreed to")
                .at(&section.key_span("terms"), "")
                .help("read them, and write `terms = true`")
                .report_to(section.reader);
        }
    }
    section.finish();
    is_given.then_some(settings)
}

fn directory(text: &str) -> Result<String, &'static str> {
    let fits = text.starts_with("https://") && text.parse::<http::Uri>().is_ok();
    fits.then(|| text.to_owned())
        .ok_or("write for example `https://acme-v02.api.letsencrypt.org/directory`")
}

fn domains(section: &mut Section<'_>) -> Vec<String> {
    let allowed = format!("1 to {MAX_DOMAINS} names");
    let texts = section.counted_texts("domains", 1..=MAX_DOMAINS, &allowed);
    let form = TextForm::new(Code::BadAddress, "a name of the DNS");
    let mut domains: Vec<String> = Vec::new();
    for name in section.parse_all("domains", texts, form, domain) {
        if domains.contains(&name.value) {
            section.report_duplicate("the same name twice", &name.span);
        }
        domains.push(name.value);
    }
    domains
}

fn domain(text: &str) -> Result<String, &'static str> {
    if text.starts_with("*.") {
        return Err(
            "a wildcard takes a record in the DNS, which this proxy cannot set; \
                    name the hosts, or bring a certificate of your own",
        );
    }
    let name = host_of(text).map_err(|_| "write for example `example.com`")?;
    let is_name = !text.contains([':', '[']) && name.parse::<std::net::IpAddr>().is_err();
    is_name
        .then(|| name.into_owned())
        .ok_or("an address or a port; write a name: `example.com`")
}

/// An address with or without `mailto:`.
fn mailto(text: &str) -> Result<String, &'static str> {
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let fits = address.bytes().all(|byte| byte.is_ascii_graphic()) && address.contains('@');
    fits.then(|| format!("mailto:{address}"))
        .ok_or("write for example `ops@example.com`")
}

/// The trusted certificates and our own certificate. Every file has been read and checked.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates to trust instead of the system's, PEM.
    pub ca: Option<Vec<u8>>,
    /// Lists of revoked certificates, PEM.
    pub crl: Option<Vec<u8>>,
    /// Our certificate with its chain and its private key, both PEM, for servers that ask for one.
    pub identity: Option<(Vec<u8>, Secret<Vec<u8>>)>,
    /// The name in the servers' certificates; `None` is the host's name.
    pub name: Option<String>,
    /// Whether any certificate of a server is accepted.
    pub unverified: bool,
    /// Whether the handshake leaves the name out (no SNI).
    pub hides_name: bool,
    /// Whether each connection has a handshake of its own.
    pub never_resumes: bool,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("ca", &self.ca.as_ref().map(Vec::len))
            .field("crl", &self.crl.as_ref().map(Vec::len))
            .field("identity", &self.identity.as_ref().map(|(_, key)| key))
            .field("name", &self.name)
            .field("unverified", &self.unverified)
            .field("hides_name", &self.hides_name)
            .field("never_resumes", &self.never_resumes)
            .finish()
    }
}

/// Reads the table `tls` within `outer`. Also returns the place of its first key. `file_stem` is
/// the name of the files in examples.
pub(super) fn read_client(
    outer: &mut Section<'_>,
    file_stem: &str,
) -> (ClientTls, Option<TextSpan>) {
    let mut section = outer.section("tls");
    let tls = read_client_keys(&mut section, file_stem);
    let first = section.entries().into_iter().next();
    section.finish();
    (tls, first.map(|(key, _)| key.span))
}

/// Reads the keys of a table that may have more.
pub(super) fn read_client_keys(section: &mut Section<'_>, file_stem: &str) -> ClientTls {
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
        ca: ca.map(|file| file.content),
        identity: identity.map(|files| (files.cert.content, Secret(files.key.content))),
        name,
        crl: None,
        unverified: false,
        hides_name: false,
        never_resumes: false,
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
            Diagnostic::new(Code::BadUrl, "no certificate can name this host")
                .at(&section.key_span(key), "not a name of the DNS")
                .help(format!("write the name in the certificate: {name}"))
                .report_to(section.reader);
        }
    }
}
