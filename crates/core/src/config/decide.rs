//! `[decide]` and `[decide.tls]`: where other proxies ask for decisions, and who may ask.

use std::net::IpAddr;

use ipnet::IpNet;

use super::*;
use crate::certificate::Validity;

/// `[decide]`
#[derive(Clone, Debug)]
pub struct DecideSettings {
    pub listen: Vec<Listen>,
    pub from: Vec<IpNet>,
    /// Bytes of one question, at most.
    pub max_message: usize,
    /// Descriptors of one call, at most.
    pub max_descriptors: usize,
    /// Whether limits that callers bring with a descriptor count.
    pub overrides: bool,
    /// `[decide.tls]`; `None` without TLS.
    pub tls: Option<Arc<TlsSettings>>,
}

impl DecideSettings {
    /// Whether the peer at this address may ask. A unix socket has the address of this machine.
    pub fn may_ask(&self, ip: IpAddr) -> bool {
        self.from.iter().any(|network| network.contains(&ip))
    }
}

/// The addresses of this machine.
const THIS_MACHINE: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// Reads `[decide]`. Returns `None` if the file does not have it.
pub(super) fn read(top: &mut Section<'_>, places: &mut Places) -> Option<DecideSettings> {
    let is_given = top.has("decide");
    let mut section = top.section("decide");
    if is_given {
        section.require("listen", "listen = \"127.0.0.1:8081\"");
    }
    let texts = section.texts("listen");
    let listen = section.read_listen("listen", texts);
    let from = section.parse_list("from", TextForm::NETWORK, address::network);
    check_from(&section, &listen);
    let this_machine = THIS_MACHINE.iter().filter_map(|text| text.parse().ok());
    let settings = DecideSettings {
        max_message: section.size("max_message", 1 << 10..=1 << 20),
        max_descriptors: section.integer("max_descriptors", 1..=1024),
        overrides: section.boolean("overrides"),
        tls: read_tls(&mut section, places).map(Arc::new),
        listen: values(listen.clone()),
        from: match section.has("from") {
            true => values(from),
            false => this_machine.collect(),
        },
    };
    places.decide_from = section.key_span("from");
    places.decide_overrides = section.key_span("overrides");
    section.finish();
    places.decide_listen = listen;
    is_given.then_some(settings)
}

/// Reads `[decide.tls]`. Its client certificates are always required: a proxy is configured once.
fn read_tls(decide: &mut Section<'_>, places: &mut Places) -> Option<TlsSettings> {
    const EXAMPLES: [&str; 2] = [
        "cert = \"/etc/tidegate/decide.pem\"",
        "key = \"/run/secrets/decide.key\"",
    ];
    let is_given = decide.has("tls");
    let mut section = decide.section("tls");
    let identity = section.identity(is_given, EXAMPLES);
    let ca = section.authorities("client_ca");
    if let Some(identity) = &identity {
        let validity = tls::validity(&section, identity);
        let untimely = Some(validity).filter(|one| one.value != Validity::Valid);
        places.untimely.extend(untimely);
    }
    section.finish();
    Some(TlsSettings {
        listen: Vec::new(),
        certificates: vec![identity?.files],
        clients: ca.map(|ca| ClientCertificates {
            ca,
            crl: None,
            required: true,
        }),
        min_version: TlsVersion::V1_2,
        refuses_unknown: false,
        redirect: None,
        hsts: None,
        http2: true,
        acme: None,
    })
}

/// Reports an address that other machines reach, if the file does not say which of them may ask.
fn check_from(section: &Section<'_>, listen: &[Located<Listen>]) {
    let is_public = |one: &&Located<Listen>| match one.value {
        Listen::Tcp(address) => !address.ip().is_loopback(),
        Listen::Unix(_) => false,
    };
    let Some(public) = listen.iter().find(is_public) else {
        return;
    };
    if !section.has("from") {
        contradiction("`[decide]` has no `from`")
            .at(&public.span, "other machines reach this address")
            .help("write the networks of the proxies that ask: `from = [\"10.0.0.0/8\"]`")
            .report_to(section.reader);
    }
}
