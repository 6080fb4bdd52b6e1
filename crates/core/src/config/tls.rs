//! `[tls]`: where clients connect over TLS, our certificates, and the certificates of clients.
//! `[tls.acme]`: certificates that the proxy gets for itself.

use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::Listen;
use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::files::CheckedIdentity;
use super::pem::{IdentityFiles, PemFile};
use super::reader::{Located, ValueKind, values};
use super::section::Section;
use super::values::{DAY, SECOND, TextForm};
use crate::certificate::{Certificate, Validity};
use crate::route::host_of;

/// Certificates of one proxy, at most.
const MAX_CERTIFICATES: usize = 10_000;
/// The length of `hsts = true`: the one that browsers' lists of such hosts ask for.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The default authority.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Names in one certificate, at most: the limit of Let's Encrypt.
const MAX_DOMAINS: usize = 100;

/// `[tls]`
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Where clients connect over TLS.
    pub listen: Vec<Listen>,
    /// Our certificates, chosen by the name that a client asks for. The first is for all others.
    pub certificates: Vec<IdentityFiles>,
    /// The certificates that clients may show; `None` asks for none.
    pub clients: Option<ClientCertificates>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
    /// The port of `https` to which clients of plain listeners are redirected.
    pub redirect: Option<u16>,
    /// How long browsers should remember to come over TLS only.
    pub hsts: Option<Duration>,
    /// Whether HTTP/2 is offered: `[server] http2`.
    pub http2: bool,
    /// A certificate that the proxy gets for itself. It follows those of the file.
    pub acme: Option<AcmeSettings>,
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2
    V1_2,
    /// TLS 1.3
    V1_3,
}

/// `client_ca` and `client_auth`
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    /// The authorities that sign them.
    pub ca: PemFile,
    /// Whether a client without a certificate is refused.
    pub required: bool,
}

/// `[tls.acme]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The names of the one certificate, at least one.
    pub domains: Vec<String>,
    /// Mail addresses for the authority: `mailto:` URLs.
    pub contact: Vec<String>,
    /// The URL of the authority's directory.
    pub directory: String,
    /// The folder of the account and the certificate.
    pub cache: PathBuf,
    /// Certificates to trust for the authority's own server, instead of the system's.
    pub ca: Option<PathBuf>,
    /// How the proxy proves that the names are its own.
    pub challenge: AcmeChallenge,
}

/// How names are proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// By an answer on the plain listeners: port 80.
    Http01,
    /// By a certificate on the listeners of TLS: port 443.
    TlsAlpn01,
}

/// `[tls]` and its places. Empty if the file has no such section.
pub(super) struct RawTls {
    pub(super) settings: Option<TlsSettings>,
    pub(super) listen: Vec<Located<Listen>>,
    /// Certificates that are not valid now.
    pub(super) untimely: Vec<Located<Validity>>,
    /// The place of `redirect`, if there is a redirect.
    pub(super) redirect_span: Option<TextSpan>,
}

/// Reads `[tls]`. `http2` is that of `[server]`.
pub(super) fn read(top: &mut Section<'_>, http2: bool) -> RawTls {
    let is_given = top.has("tls");
    let mut section = top.section("tls");
    let listen = section.listen_addresses("listen");
    let mut certificates = Vec::new();
    let mut untimely = Vec::new();
    for identity in identities(&mut section) {
        let validity = validity(&section, &identity);
        untimely.extend(Some(validity).filter(|one| one.value != Validity::Valid));
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
        redirect,
        hsts: hsts(&mut section),
        acme,
        http2,
    };
    let redirect_span = redirect.map(|_| section.key_span("redirect"));
    section.finish();
    RawTls {
        settings: is_given.then_some(settings),
        listen: if is_given { listen } else { Vec::new() },
        untimely,
        redirect_span,
    }
}

/// Reads `certificates`: tables with `cert` and `key`; a single one may stand without a list.
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
        let span = value.map_or(0..0, |value| value.span());
        let allowed = format!("1 to {MAX_CERTIFICATES} certificates");
        section.out_of_range("certificates", &Located::new((), &span), &allowed);
    }
    let identities = tables.into_iter().filter_map(|mut table| {
        let identity = table.identity(true, EXAMPLES);
        table.finish();
        identity
    });
    identities.collect()
}

/// Whether a certificate is valid now.
fn validity(section: &Section<'_>, identity: &CheckedIdentity) -> Located<Validity> {
    let der = identity.certified.end_entity_cert().ok();
    let certificate = der.and_then(|der| Certificate::read(der));
    let now_s = section.reader.surroundings.now_s;
    let validity = certificate.map_or(Validity::Valid, |read| read.validity(now_s));
    Located::new(validity, &identity.cert_span)
}

/// Reads `client_ca` and `client_auth`.
fn client_certificates(section: &mut Section<'_>) -> Option<ClientCertificates> {
    let ca = section.authorities("client_ca");
    let required = section.optional_word("client_auth", &[("required", true), ("optional", false)]);
    if let Some(word) = required.as_ref().filter(|_| !section.has("client_ca")) {
        Diagnostic::new(Code::Contradiction, "`tls.client_auth` needs `client_ca`")
            .at(&word.span, "nobody's certificates could be believed")
            .help("name the authorities: `client_ca = \"/etc/tidegate/clients.pem\"`")
            .report_to(section.reader);
    }
    Some(ClientCertificates {
        ca: ca?.value,
        required: required.is_none_or(|word| word.value),
    })
}

/// Reads `redirect`: `true` for the first port of `listen`, or the port that clients see.
fn redirect(section: &mut Section<'_>, listen: &[Located<Listen>]) -> Option<u16> {
    let value = section.take("redirect", || ValueKind::BooleanOrInteger)?;
    if section.has_integer("redirect") {
        let port = section.optional_integer("redirect", 1..=65_535)?;
        return Some(port.value);
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
        Diagnostic::new(Code::Contradiction, "`tls.redirect` must say the port")
            .at(&value.span(), "`tls.listen` has none to send clients to")
            .help("write `redirect = 443`")
            .report_to(section.reader);
    }
    port.filter(|_| wanted)
}

/// Reads `hsts`: `true` for a year, or a time.
fn hsts(section: &mut Section<'_>) -> Option<Duration> {
    let value = section.take("hsts", || ValueKind::BooleanOrText)?;
    if let Some(wanted) = value.get_ref().as_bool() {
        return wanted.then_some(YEAR);
    }
    let length = section.optional_duration("hsts", SECOND..=3650 * DAY)?;
    Some(Duration::from_secs(length.value.as_secs()))
}

/// Reports a challenge that cannot succeed: the authority has no certificate to show.
fn check_challenge(
    section: &Section<'_>,
    acme: Option<&AcmeSettings>,
    clients: Option<&ClientCertificates>,
) {
    let is_closed = clients.is_some_and(|clients| clients.required);
    if acme.is_some_and(|acme| acme.challenge == AcmeChallenge::TlsAlpn01) && is_closed {
        let message = "`tls-alpn-01` and required client certificates exclude each other";
        Diagnostic::new(Code::Contradiction, message)
            .at(&section.key_span("acme"), "the authority could not connect")
            .help("use `challenge = \"http-01\"`")
            .report_to(section.reader);
    }
}

/// Reads `[tls.acme]`, if the file has it.
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
        directory: directory.map_or_else(|| LETS_ENCRYPT.to_owned(), |url| url.value),
        cache: section.path_of("cache").unwrap_or_default(),
        ca: section.path_of("ca"),
        challenge: section.word("challenge", &challenges),
    };
    let agrees = section.optional_boolean("terms").unwrap_or(false);
    if is_given {
        section.require("domains", "domains = [\"example.com\"]");
        section.require("cache", "cache = \"/var/lib/tidegate/acme\"");
        if !agrees {
            let message = "the authority's terms of service must be agreed to";
            Diagnostic::new(Code::Contradiction, message)
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
            section.report_duplicate("the same name twice", &name);
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
