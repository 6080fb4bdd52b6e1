//! The keys of `[tls]`: what each says by itself, and what they say to each other.

use std::time::Duration;

use toml::de::DeValue;

use super::diagnostic::{Code, Diagnostic, Span};
use super::reader::At;
use super::section::Section;
use super::tls::{ClientCertificates, IdentityFiles, PemFile, TlsSettings, TlsVersion};
use super::values::TextForm;
use super::{AcmeChallenge, AcmeSettings, Listen, acme, pem};
use crate::certificate::{Certificate, Validity};

/// Certificates of one proxy, at most.
const MAX_CERTIFICATES: usize = 10_000;
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// What browsers' lists of such hosts ask for.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// `[tls]` and where its parts stand.
pub(super) struct RawTls {
    pub(super) settings: TlsSettings,
    pub(super) listen: Vec<At<Listen>>,
    /// Certificates that cannot be used now, and what is the matter with their times.
    pub(super) untimely: Vec<At<Validity>>,
    /// Where `redirect` stands, if it asks for anything.
    pub(super) redirect_span: Option<Span>,
}

/// `[tls]`, if the file has it.
pub(super) fn read(top: &mut Section<'_>) -> Option<RawTls> {
    let given = top.peek("tls").is_some();
    let mut section = top.section("tls");
    let listen = listen(&mut section);
    let (certificates, untimely) = certificates(&mut section);
    let acme = acme::read(&mut section);
    if given && acme.is_none() && section.peek("certificates").is_none() {
        let example = "certificates = [{ cert = \"/etc/tidegate/tls.pem\", \
                       key = \"/run/secrets/tls.key\" }]";
        section.missing("certificates", example);
    }
    let clients = clients(&mut section);
    let versions = [("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)];
    let min_version = section.word("min_version", &versions);
    let redirect = redirect(&mut section, &listen);
    let redirect_span = redirect.map(|_| section.key_span("redirect"));
    let hsts = hsts(&mut section);
    check_challenge(&section, acme.as_ref(), clients.as_ref());
    section.finish();
    given.then(|| RawTls {
        settings: TlsSettings {
            listen: listen.iter().map(|one| one.value.clone()).collect(),
            certificates,
            clients,
            min_version: min_version.unwrap_or(TlsVersion::V1_2),
            redirect,
            hsts,
            acme,
            http2: true,
        },
        listen,
        untimely,
        redirect_span,
    })
}

fn listen(section: &mut Section<'_>) -> Vec<At<Listen>> {
    let default = || At {
        value: vec![At {
            value: ":8443".to_owned(),
            span: section.span.clone(),
        }],
        span: section.span.clone(),
    };
    let default = default();
    let texts = section.texts("listen").unwrap_or(default);
    if texts.value.is_empty() {
        section.out_of_range_at("listen", &texts, "one or more addresses");
    }
    let kind = TextForm::LISTEN;
    let read = |text| section.understood("listen", text, kind, |text| section.listen_at(text));
    texts.value.into_iter().filter_map(read).collect()
}

/// `certificates`: tables with `cert` and `key`; one may stand without its list.
fn certificates(section: &mut Section<'_>) -> (Vec<IdentityFiles>, Vec<At<Validity>>) {
    let value = section.peek("certificates");
    let one = value.is_some_and(|value| matches!(value.get_ref(), DeValue::Table(_)));
    let tables = match one {
        true => vec![section.section("certificates")],
        false => section.list("certificates"),
    };
    let whole = value.map(|value| At {
        value: (),
        span: value.span(),
    });
    if let Some(whole) = whole.filter(|_| tables.is_empty() || tables.len() > MAX_CERTIFICATES) {
        let is_list = value.is_some_and(|value| value.get_ref().is_array());
        if is_list {
            let possible = format!("1 to {MAX_CERTIFICATES} certificates");
            section.out_of_range_at("certificates", &whole, &possible);
        }
    }
    if value.is_none() {
        let mut none = section.section("certificates");
        let _ = ["cert", "key"].map(|key| none.take(key));
    }
    let (mut identities, mut untimely) = (Vec::new(), Vec::new());
    for table in tables {
        let Some((identity, validity)) = identity(table) else {
            continue;
        };
        untimely.extend(Some(validity).filter(|one| one.value != Validity::Valid));
        identities.push(identity);
    }
    (identities, untimely)
}

/// `{ cert, key }`
fn identity(mut section: Section<'_>) -> Option<(IdentityFiles, At<Validity>)> {
    let cert = section.file_at("cert");
    let key = section.file_at("key");
    for (name, example) in [
        ("cert", "cert = \"/etc/tidegate/tls.pem\""),
        ("key", "key = \"/run/secrets/tls.key\""),
    ] {
        if section.peek(name).is_none() {
            section.missing(name, example);
        }
    }
    let pair = cert.zip(key).and_then(|(cert, key)| {
        match pem::identity(&cert.value.content, &key.value.content) {
            Ok(identity) => Some((cert, key, identity)),
            Err((part, why)) => {
                let file = if part == "cert" { &cert } else { &key };
                section.unusable(part, &file.span, why);
                None
            }
        }
    });
    let now_s = section.reader.surroundings.now_s;
    section.finish();
    let (cert, key, identity) = pair?;
    let read = identity.end_entity_cert().ok();
    let read = read.and_then(|der| Certificate::read(der));
    let validity = At {
        value: read.map_or(Validity::Valid, |read| read.validity(now_s)),
        span: cert.span.clone(),
    };
    let files = IdentityFiles {
        cert: cert.value,
        key: key.value,
    };
    Some((files, validity))
}

/// `client_ca` and `client_auth`
fn clients(section: &mut Section<'_>) -> Option<ClientCertificates> {
    let ca = section.file_at("client_ca").filter(|file| {
        let wrong = pem::authorities(&file.value.content).err();
        wrong
            .map(|why| section.unusable("client_ca", &file.span, why))
            .is_none()
    });
    let required = section.word_at("client_auth", &[("required", true), ("optional", false)]);
    if let Some(word) = required
        .as_ref()
        .filter(|_| section.peek("client_ca").is_none())
    {
        let message = "`tls.client_auth` needs `client_ca`";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&word.span, "nobody's certificates could be believed")
            .help("name the authorities: `client_ca = \"/etc/tidegate/clients.pem\"`");
        section.reader.report(diagnostic);
    }
    Some(ClientCertificates {
        ca: ca?.value,
        required: required.is_none_or(|word| word.value),
    })
}

/// `true` for the first port of `listen`, or the port that clients see.
fn redirect(section: &mut Section<'_>, listen: &[At<Listen>]) -> Option<u16> {
    let value = section.take("redirect")?;
    if value.get_ref().is_integer() {
        let port = section.integer("redirect", 1..=65_535)?;
        return u16::try_from(port.value).ok();
    }
    if value.get_ref().as_bool().is_none() {
        section.wrong_type("redirect", value, "true, false or a port");
        return None;
    }
    if !section.boolean("redirect", false) {
        return None;
    }
    let ports = listen.iter().filter_map(|one| match one.value {
        Listen::Tcp(address) => Some(address.port()),
        Listen::Unix(_) => None,
    });
    let port = ports.into_iter().next().filter(|port| *port != 0);
    if port.is_none() {
        let message = "`tls.redirect` must say the port";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&value.span(), "`tls.listen` has none to send clients to")
            .help("write `redirect = 443`");
        section.reader.report(diagnostic);
    }
    port
}

/// `true` for a year, or a time.
fn hsts(section: &mut Section<'_>) -> Option<Duration> {
    let value = section.take("hsts")?;
    if value.get_ref().as_bool().is_some() {
        return section.boolean("hsts", false).then_some(YEAR);
    }
    let length = section.length("hsts", SECOND..=3650 * DAY)?;
    Some(Duration::from_secs(length.value.as_secs()))
}

/// An authority that looks shows no certificate of its own.
fn check_challenge(
    section: &Section<'_>,
    acme: Option<&AcmeSettings>,
    clients: Option<&ClientCertificates>,
) {
    let closed = clients.is_some_and(|clients| clients.required);
    if acme.is_some_and(|acme| acme.challenge == AcmeChallenge::TlsAlpn01) && closed {
        let message = "`tls-alpn-01` and required client certificates exclude each other";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&section.key_span("acme"), "the authority could not connect")
            .help("use `challenge = \"http-01\"`");
        section.reader.report(diagnostic);
    }
}

impl Section<'_> {
    /// The file that `key` names, and what it holds.
    fn file_at(&mut self, key: &'static str) -> Option<At<PemFile>> {
        let path = self.text(key)?;
        let content = self.pem_of(key, &path)?;
        Some(path.map(|path| PemFile {
            path: self.path(path),
            content,
        }))
    }

    fn unusable(&self, key: &str, span: &Span, why: &str) {
        let message = format!("the file of `{}` cannot be used", self.full(key));
        let diagnostic = Diagnostic::new(Code::SecretFile, message).because(span, &why);
        self.reader.report(diagnostic);
    }
}
