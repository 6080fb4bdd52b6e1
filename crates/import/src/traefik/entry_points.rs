//! Where clients connect: entry points of a static configuration, and certificates. `[tls]` has one
//! set of options for all routers, and routes say which of them need certificates of clients.

use std::net::SocketAddr;

use super::{TraefikFile, local_name};
use crate::draft::{CertificateDraft, Draft, ProxyProtocolDraft};
use crate::tree::TreeItem;
use crate::values::{self, quote};

/// The set of routers that name none.
const DEFAULT: &str = "default";
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
    /// The set of `tls.options` of routers that name none.
    pub(super) tls_options: Option<String>,
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
            tls_options: item.text_at("http.tls.options").map(str::to_owned),
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

pub(super) fn add_listens(points: &[EntryPoint], root: &TreeItem, file: &mut TraefikFile<'_>) {
    for point in points {
        match point.tls {
            true => file.draft.tls.listen.push(point.address.clone()),
            false => file.draft.listen.push(point.address.clone()),
        }
    }
    let redirects = points.iter().find(|point| point.redirects);
    let Some(redirects) = redirects.filter(|_| !file.draft.tls.listen.is_empty()) else {
        return;
    };
    file.draft.redirect_to_https();
    if let Some(other) = points.iter().find(|point| !point.tls && !point.redirects) {
        let what = format!("entryPoints.{}: redirections", redirects.name);
        let why = format!(
            "`redirect` of [tls] sends all plain requests to https, also those to {}",
            other.name
        );
        root.lost(&what, why);
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

/// The sets of a file, and the authorities that `[tls]` believes.
pub(super) struct TlsOptions<'d> {
    sets: &'d [(String, TreeItem)],
    authorities: Vec<String>,
}

impl<'d> TlsOptions<'d> {
    /// Reads the sets. `used` are the names that routers with TLS use.
    pub(super) fn read(root: &'d TreeItem, used: &[String], draft: &mut Draft) -> TlsOptions<'d> {
        let sets = root.entries_at("tls.options");
        let is_used = |name: &str| used.iter().any(|one| one.eq_ignore_ascii_case(name));
        let is_for_all = |name: &str| match used {
            [] => name == DEFAULT,
            used => used.iter().all(|one| one.eq_ignore_ascii_case(name)),
        };
        let mut found = TlsOptions {
            sets,
            authorities: Vec::new(),
        };
        for (name, set) in sets {
            let what = format!("tls.options.{name}");
            let known = "minVersion clientAuth cipherSuites sniStrict curvePreferences";
            set.note_unknown(&format!("{what}."), known);
            if !is_for_all(name) && !is_used(name) && name != DEFAULT {
                set.needless(&what, "no router of this file names it");
                continue;
            }
            if !is_for_all(name) {
                let why = "there is one set of options for all; only `clientAuth` is kept";
                set.lost(&what, why);
            } else if set.text_at("minVersion") == Some("VersionTLS13") {
                draft.tls.entries.add_new("min_version", quote("1.3"));
            }
            let authorities = set.texts_at("clientAuth.caFiles");
            if found.authorities.is_empty() && verifies(set) && authorities.len() == 1 {
                found.authorities = authorities;
            }
        }
        if let [authority] = &found.authorities[..] {
            let rule = |name: &String| found.find(name).map(|set| found.rule_of_set(set));
            let all_need = used.iter().all(|name| rule(name) == Some(Ok(true)));
            let word = ["optional", "required"][usize::from(all_need && !used.is_empty())];
            let entries = &mut draft.tls.entries;
            entries.add_new("client_ca", quote(authority));
            entries.add_new("client_auth", quote(word));
        }
        found
    }

    fn find(&self, name: &str) -> Option<&'d TreeItem> {
        let mut sets = self.sets.iter();
        let is_it = |(known, _): &&(String, TreeItem)| known.eq_ignore_ascii_case(name);
        sets.find(is_it).map(|(_, set)| set)
    }

    /// Whether the routes of a router with this set serve only clients with a certificate. The
    /// error says why the router is closed.
    pub(super) fn need_certificate(&self, name: &str) -> Result<bool, &'static str> {
        match self.find(name) {
            Some(set) => self.rule_of_set(set),
            None if name == DEFAULT => Ok(false),
            None => Err("its tls.options are not in this file, and may ask for certificates"),
        }
    }

    fn rule_of_set(&self, set: &TreeItem) -> Result<bool, &'static str> {
        let authorities = set.texts_at("clientAuth.caFiles");
        match set.text_at("clientAuth.clientAuthType") {
            Some("NoClientCert" | "RequestClientCert" | "VerifyClientCertIfGiven") => Ok(false),
            None if authorities.is_empty() => Ok(false),
            None | Some("RequireAndVerifyClientCert") if authorities == self.authorities => {
                Ok(true)
            }
            None | Some("RequireAndVerifyClientCert") => {
                Err("`client_ca` of [tls] is one file of authorities for all")
            }
            Some(_) => Err("certificates of clients are verified, or not asked for"),
        }
    }
}

/// Whether certificates of clients are verified, if only some have one.
fn verifies(set: &TreeItem) -> bool {
    let word = set.text_at("clientAuth.clientAuthType");
    matches!(
        word,
        None | Some("RequireAndVerifyClientCert" | "VerifyClientCertIfGiven")
    )
}

/// Returns the name of the set of a router with TLS, which may be that of its entry point.
pub(super) fn name_of_set(router: &TreeItem, of_point: Option<&str>) -> String {
    let own = router.text_at("tls.options");
    local_name(own.or(of_point).unwrap_or(DEFAULT)).to_owned()
}
