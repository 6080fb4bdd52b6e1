//! Where clients connect: entry points of a static configuration, and certificates.

use std::net::SocketAddr;

use super::TraefikFile;
use crate::draft::{CertificateDraft, ProxyProtocolDraft};
use crate::files;
use crate::tree::TreeItem;
use crate::values::{self, quote};

/// The longest time that `proxy.toml` takes.
const DAY_US: u64 = 86_400_000_000;

#[derive(Clone, Debug)]
pub(super) struct EntryPoint {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) tls: bool,
    /// It redirects all requests to another one with TLS.
    pub(super) redirects: bool,
    /// Routers that name no entry point are at this one.
    pub(super) is_default: bool,
    /// The middlewares of all of its routers.
    pub(super) middlewares: Vec<String>,
}

impl EntryPoint {
    pub(super) fn port(&self) -> Option<u16> {
        self.address.rsplit_once(':')?.1.parse().ok()
    }

    /// Whether only this machine can reach it.
    pub(super) fn is_internal(&self) -> bool {
        let address = self.address.replace("localhost:", "127.0.0.1:");
        let address = address.parse::<SocketAddr>();
        address.is_ok_and(|address| address.ip().is_loopback())
    }
}

pub(super) fn read_entry_points(root: &TreeItem, file: &mut TraefikFile<'_>) -> Vec<EntryPoint> {
    let mut points = Vec::new();
    for (name, item) in root.entries_at("entryPoints") {
        let what = format!("entryPoints.{name}");
        let address = item.text_at("address").unwrap_or(":80");
        if address.ends_with("/udp") {
            item.lost(&what, "tidegate speaks HTTP only");
            continue;
        }
        let address = address.trim_end_matches("/tcp").replace("0.0.0.0:", ":");
        let known = "address http forwardedHeaders proxyProtocol transport asDefault http2";
        item.note_unknown(&format!("{what}."), known);
        read_trusted(item, file);
        read_timeouts(item, file);
        let target = item.at("http.redirections.entryPoint");
        points.push(EntryPoint {
            name: name.clone(),
            address,
            tls: item.at("http.tls").is_some(),
            redirects: target.is_some_and(|to| to.text_at("scheme") != Some("http")),
            is_default: item.is_true("asDefault"),
            middlewares: item.texts_at("http.middlewares"),
        });
    }
    points
}

fn read_trusted(item: &TreeItem, file: &mut TraefikFile<'_>) {
    for key in ["forwardedHeaders", "proxyProtocol"] {
        let Some(section) = item.get(key) else {
            continue;
        };
        file.draft.trusted.extend(section.texts_at("trustedIPs"));
        if key == "proxyProtocol" {
            file.draft.proxy_protocol = Some(ProxyProtocolDraft {
                mode: "optional",
                source: section.entry(key.to_owned()),
            });
        }
        if section.is_true("insecure") {
            let why = "every peer could then send any address; name your proxies in \
                       `trusted_proxies`";
            section.lost(&format!("{key}.insecure"), why);
        }
    }
}

fn read_timeouts(item: &TreeItem, file: &mut TraefikFile<'_>) {
    for (theirs, ours) in [
        ("respondingTimeouts.readTimeout", "body_timeout"),
        ("respondingTimeouts.idleTimeout", "idle_timeout"),
        ("lifeCycle.graceTimeOut", "drain_timeout"),
    ] {
        let Some(one) = item.at(&format!("transport.{theirs}")) else {
            continue;
        };
        match one.text().and_then(parse_timeout) {
            Some(value) => file.draft.server.add_new(ours, value),
            None => one.lost(theirs, "a bound of a day at most is needed"),
        }
    }
}

/// Translates a time of at least 1 ms and at most a day.
pub(super) fn parse_timeout(text: &str) -> Option<String> {
    let us = values::parse_go_us(text).filter(|us| (1000..=DAY_US).contains(us))?;
    Some(values::time_text(us / 1000))
}

pub(super) fn add_listens(points: &[EntryPoint], file: &mut TraefikFile<'_>) {
    for point in points {
        match point.tls {
            true => file.draft.tls.listen.push(point.address.clone()),
            false => file.draft.listen.push(point.address.clone()),
        }
    }
    let redirects = points.iter().any(|point| point.redirects);
    if redirects && !file.draft.tls.listen.is_empty() {
        file.draft.redirect_to_https();
    }
}

pub(super) fn read_tls(root: &TreeItem, file: &mut TraefikFile<'_>) {
    let empty = TreeItem::default();
    let tls = root.get("tls").unwrap_or(&empty);
    tls.note_unknown("tls.", "certificates stores options");
    // Traefik uses the default certificate for unknown names. tidegate uses the first one.
    let default = tls.at("stores.default.defaultCertificate");
    for one in default.into_iter().chain(tls.list_at("certificates")) {
        read_certificate(one, file);
    }
    for (name, options) in tls.entries_at("options") {
        if name != "default" {
            let why = "there is one set of options for all";
            options.lost(&format!("tls.options.{name}"), why);
            continue;
        }
        let known = "minVersion clientAuth cipherSuites sniStrict curvePreferences";
        options.note_unknown("tls.options.default.", known);
        if options.text_at("minVersion") == Some("VersionTLS13") {
            file.draft.tls.entries.add_new("min_version", quote("1.3"));
        }
        if let Some(auth) = options.get("clientAuth") {
            read_client_auth(auth, file);
        }
    }
    for (name, item) in root.entries_at("certificatesResolvers") {
        note_acme(item, &format!("certificatesResolvers.{name}"));
    }
}

/// Notes that the operator has to agree to ACME.
pub(super) fn note_acme(item: &TreeItem, what: &str) {
    let why = "[tls.acme] gets certificates, once you agree to the authority's terms there";
    item.lost(what, why);
}

fn read_certificate(one: &TreeItem, file: &mut TraefikFile<'_>) {
    let (Some(cert), Some(key)) = (one.text_at("certFile"), one.text_at("keyFile")) else {
        return one.lost("certificate", "certFile and keyFile are needed");
    };
    let place = one.place();
    file.draft.tls.certificates.push(CertificateDraft {
        cert: cert.to_owned(),
        key: key.to_owned(),
        place,
    });
}

fn read_client_auth(auth: &TreeItem, file: &mut TraefikFile<'_>) {
    let word = match auth.text_at("clientAuthType") {
        Some("RequireAndVerifyClientCert") => "required",
        Some("VerifyClientCertIfGiven") => "optional",
        _ => {
            let why = "certificates of clients are verified, or not asked for";
            return auth.lost("clientAuth", why);
        }
    };
    match &auth.texts_at("caFiles")[..] {
        [ca] if files::is_readable(ca) => {
            let entries = &mut file.draft.tls.entries;
            entries.add_new("client_ca", quote(ca));
            entries.add_new("client_auth", quote(word));
        }
        _ => {
            auth.lost(
                "clientAuth",
                "`client_ca` of [tls] is one file that can be read here",
            );
        }
    }
}
