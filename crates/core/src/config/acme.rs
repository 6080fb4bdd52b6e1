//! `[tls.acme]`: certificates that the proxy gets for itself.

use std::path::PathBuf;

use super::diagnostic::{Code, Diagnostic};
use super::section::Section;
use super::values::TextForm;
use crate::route::host_of;

/// Whose certificates are asked for unless the file says otherwise.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Names in one certificate, at most: what Let's Encrypt allows.
const MAX_DOMAINS: usize = 100;

/// `[tls.acme]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The names of the one certificate, at least one.
    pub domains: Vec<String>,
    /// Whom the authority may write to: `mailto:` URLs.
    pub contact: Vec<String>,
    /// Where the authority says what it offers.
    pub directory: String,
    /// Where the account and the certificate are kept.
    pub cache: PathBuf,
    /// Who vouches for the authority's own server, if not whom the system trusts.
    pub ca: Option<PathBuf>,
    /// How we prove that the names are ours.
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

/// `[tls.acme]`, if the file has it.
pub(super) fn read(tls: &mut Section<'_>) -> Option<AcmeSettings> {
    let given = tls.peek("acme").is_some();
    let mut section = tls.section("acme");
    let domains = domains(&mut section);
    let contact = contact(&mut section);
    let url = TextForm::new(Code::BadUrl, "the URL of a directory");
    let directory = section.parsed("directory", url, |text| {
        let fits = text.starts_with("https://") && text.parse::<http::Uri>().is_ok();
        fits.then(|| text.to_owned())
            .ok_or("write for example `https://acme-v02.api.letsencrypt.org/directory`")
    });
    let cache = section.text("cache").map(|path| section.path(path.value));
    let ca = section.text("ca").map(|path| section.path(path.value));
    let ways = [
        ("http-01", AcmeChallenge::Http01),
        ("tls-alpn-01", AcmeChallenge::TlsAlpn01),
    ];
    let challenge = section.word("challenge", &ways);
    let terms = section.boolean("terms", false);
    if given {
        for (key, example) in [
            ("domains", "domains = [\"example.com\"]"),
            ("cache", "cache = \"/var/lib/tidegate/acme\""),
        ] {
            if section.peek(key).is_none() {
                section.missing(key, example);
            }
        }
        if !terms {
            let message = "the authority's terms of service must be agreed to";
            let diagnostic = Diagnostic::new(Code::Contradiction, message)
                .at(&section.key_span("terms"), "")
                .help("read them, and write `terms = true`");
            section.reader.report(diagnostic);
        }
    }
    section.finish();
    given.then(|| AcmeSettings {
        domains,
        contact,
        directory: directory.map_or_else(|| LETS_ENCRYPT.to_owned(), |url| url.value),
        cache: cache.unwrap_or_default(),
        ca,
        challenge: challenge.unwrap_or(AcmeChallenge::Http01),
    })
}

fn domains(section: &mut Section<'_>) -> Vec<String> {
    let Some(texts) = section.texts("domains") else {
        return Vec::new();
    };
    if texts.value.is_empty() || texts.value.len() > MAX_DOMAINS {
        section.out_of_range_at("domains", &texts, &format!("1 to {MAX_DOMAINS} names"));
    }
    let mut domains: Vec<String> = Vec::new();
    for text in texts.value {
        let kind = TextForm::new(Code::BadAddress, "a name of the DNS");
        let Some(name) = section.understood("domains", text, kind, domain) else {
            continue;
        };
        if domains.contains(&name.value) {
            let diagnostic = Diagnostic::new(Code::Duplicate, "the same name twice");
            section.reader.report(diagnostic.at(&name.span, ""));
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

/// Addresses, with or without `mailto:`.
fn contact(section: &mut Section<'_>) -> Vec<String> {
    let texts = section.texts("contact").map(|texts| texts.value);
    let kind = TextForm::new(Code::BadAddress, "a mail address");
    let read = |text: &str| {
        let address = text.strip_prefix("mailto:").unwrap_or(text);
        let fits = address.bytes().all(|byte| byte.is_ascii_graphic()) && address.contains('@');
        fits.then(|| format!("mailto:{address}"))
            .ok_or("write for example `ops@example.com`")
    };
    let all = texts.unwrap_or_default().into_iter();
    all.filter_map(|text| section.understood("contact", text, kind, read))
        .map(|contact| contact.value)
        .collect()
}
