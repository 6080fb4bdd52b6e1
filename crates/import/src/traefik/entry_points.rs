//! Entry points: where clients come, of a static configuration or by their usual names.

use super::tree::Item;
use super::{File, times};
use crate::draft::ProxyProtocol;

/// An entry point.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) tls: bool,
    /// Everybody is sent to another one, over TLS.
    pub(super) redirects: bool,
    /// Middlewares of all of its routers.
    pub(super) middlewares: Vec<String>,
}

/// Every one that the file names.
pub(super) fn read(root: &Item, file: &mut File<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for (name, item) in root
        .get("entryPoints")
        .map(Item::entries)
        .unwrap_or_default()
    {
        let address = item.text_at("address").unwrap_or(":80").to_owned();
        if address.ends_with("/udp") {
            file.lost(
                item,
                &format!("entryPoints.{name}"),
                "tidegate speaks HTTP only",
            );
            continue;
        }
        let address = address.trim_end_matches("/tcp").replace("0.0.0.0:", ":");
        file.others(
            item,
            &format!("entryPoints.{name}."),
            &[
                "address",
                "http",
                "forwardedHeaders",
                "proxyProtocol",
                "transport",
                "asDefault",
                "http2",
            ],
        );
        forwarded(item, file);
        timeouts(item, file);
        let target = item.at("http.redirections.entryPoint");
        let redirects = target.is_some_and(|to| to.text_at("scheme") != Some("http"));
        points.push(Point {
            name: name.clone(),
            address,
            tls: item.at("http.tls").is_some(),
            redirects,
            middlewares: item.texts_at("http.middlewares"),
        });
    }
    points
}

/// Whom to believe.
fn forwarded(item: &Item, file: &mut File<'_>) {
    for key in ["forwardedHeaders", "proxyProtocol"] {
        let Some(section) = item.get(key) else {
            continue;
        };
        file.draft.trusted.extend(section.texts_at("trustedIPs"));
        if key == "proxyProtocol" {
            file.draft.proxy_protocol = Some(ProxyProtocol {
                mode: "optional",
                place: file.place(section),
                was: key.to_owned(),
            });
        }
        if section.is_true("insecure") {
            let why = "whoever may connect could say any address; `trusted_proxies` names whom to \
                       believe";
            file.lost(section, &format!("{key}.insecure"), why);
        }
    }
}

fn timeouts(item: &Item, file: &mut File<'_>) {
    let Some(transport) = item.get("transport") else {
        return;
    };
    for (theirs, ours) in [
        ("respondingTimeouts.readTimeout", "body_timeout"),
        ("respondingTimeouts.idleTimeout", "idle_timeout"),
        ("lifeCycle.graceTimeOut", "drain_timeout"),
    ] {
        let Some(one) = transport.at(theirs) else {
            continue;
        };
        let time = one.text().and_then(times::us);
        match time.filter(|us| (1_000..=86_400_000_000).contains(us)) {
            Some(us) if !file.draft.server.iter().any(|(known, _)| known == ours) => {
                file.draft.server.push((ours.to_owned(), times::text(us)));
            }
            Some(_) => {}
            None => file.lost(one, theirs, "a bound of a day at most is needed"),
        }
    }
}

/// Says where the proxy listens, when it is known which points have TLS.
pub(super) fn listen(points: &[Point], file: &mut File<'_>) {
    for point in points {
        match point.tls {
            true => file.draft.tls.listen.push(point.address.clone()),
            false => file.draft.listen.push(point.address.clone()),
        }
    }
    let redirects = points.iter().any(|point| point.redirects);
    if redirects && !file.draft.tls.listen.is_empty() {
        redirect(file);
    }
}

/// Plain requests are sent to https.
pub(super) fn redirect(file: &mut File<'_>) {
    let settings = &mut file.draft.tls.settings;
    if !settings.iter().any(|(key, _)| key == "redirect") {
        settings.push(("redirect".to_owned(), "true".to_owned()));
    }
}
