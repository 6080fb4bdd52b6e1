//! Services and upstreams of Kong.

use super::{KongFile, KongRoute, name_of, refers_to};
use crate::draft::{ServerDraft, UpstreamDraft};
use crate::providers::ProviderUrl;
use crate::tree::TreeItem;
use crate::values::{TomlEntries, quote, time_text};

/// The weight of a target that names none.
pub(super) const DEFAULT_WEIGHT: u64 = 100;

/// Returns the path of a service, if it has one.
pub(super) fn path_of(service: &TreeItem) -> Option<String> {
    let of_url = service.text_at("url").and_then(ProviderUrl::parse);
    let path = match of_url {
        Some(parts) => parts.path,
        None => service.text_at("path")?.trim_end_matches('/').to_owned(),
    };
    (!path.is_empty()).then_some(path)
}

/// Adds the upstream of a route's service.
pub(super) fn add_upstream(
    route: &KongRoute<'_>,
    file: &mut KongFile<'_>,
) -> Result<String, String> {
    let service = route.service.ok_or("the route has no service")?;
    let known = "name id url protocol host port path connect_timeout read_timeout write_timeout \
                 retries routes plugins tags enabled tls_verify";
    service.note_unknown(&format!("service {}.", name_of(service)), known);
    if service.text_at("enabled") == Some("false") {
        return Err("its service is not enabled".to_owned());
    }
    let parts = server_of(service)?;
    let upstream = find_upstream(&parts, file);
    let servers = match upstream {
        Some(upstream) => read_targets(upstream, &parts),
        None => vec![parts.server_draft()],
    };
    let mut entries = TomlEntries::default();
    let algorithm = upstream.and_then(|one| one.text_at("algorithm"));
    if servers.len() > 1 && algorithm.is_none_or(|one| one == "round-robin") {
        entries.add("balance", quote("round-robin"));
    }
    for (key, why) in [
        ("retries", "`retries` of the upstream is like it"),
        ("write_timeout", "`body_timeout` of [server] is like it"),
    ] {
        if let Some(item) = service.get(key) {
            item.lost(&format!("service {}.{key}", name_of(service)), why);
        }
    }
    if !route.item.is_true("preserve_host") {
        entries.add("host", quote("rewrite"));
    }
    for (theirs, ours) in [
        ("connect_timeout", "connect_timeout"),
        ("read_timeout", "timeout"),
    ] {
        if let Some(ms) = service.number_at(theirs).filter(|ms| *ms > 0) {
            entries.add(ours, time_text(ms));
        }
    }
    Ok(file.draft.add_upstream(UpstreamDraft {
        name: name_of(service).to_owned(),
        servers,
        entries,
        place: service.place(),
    }))
}

fn server_of(service: &TreeItem) -> Result<ProviderUrl, String> {
    if let Some(url) = service.text_at("url") {
        return ProviderUrl::parse(url).ok_or_else(|| format!("`{url}` is no URL of a server"));
    }
    let host = service.text_at("host").ok_or("its service has no host")?;
    let scheme = service.text_at("protocol").unwrap_or("http");
    let port = service.number_at("port");
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let url = format!("{scheme}://{host}{port}");
    ProviderUrl::parse(&url).ok_or_else(|| format!("`{url}` is no URL of a server"))
}

/// Returns the upstream of the file with the service's host.
fn find_upstream<'d>(parts: &ProviderUrl, file: &KongFile<'d>) -> Option<&'d TreeItem> {
    let (_, host) = parts.server.split_once("://")?;
    let name = host.split(':').next().unwrap_or(host);
    let reference = file.root.text_beside(name);
    let mut upstreams = file.root.list_at("upstreams").iter();
    upstreams.find(|one| refers_to(&reference, one))
}

fn read_targets(upstream: &TreeItem, parts: &ProviderUrl) -> Vec<ServerDraft> {
    let name = name_of(upstream);
    let known = "name id targets algorithm slots tags healthchecks";
    upstream.note_unknown(&format!("upstream {name}."), known);
    if let Some(checks) = upstream.get("healthchecks") {
        let why = "`health` and `eject` of the upstream are like it";
        checks.lost(&format!("upstream {name}.healthchecks"), why);
    }
    let why = match upstream.text_at("algorithm") {
        None | Some("round-robin") => None,
        Some("consistent-hashing" | "sticky-sessions") => {
            Some("`balance = \"hash:KEY\"` is like it")
        }
        Some(_) => Some("the default of `balance`, which asks the less busy server, is like it"),
    };
    if let Some(why) = why {
        upstream.lost(&format!("upstream {name}.algorithm"), why);
    }
    let scheme = parts
        .server
        .split_once("://")
        .map_or("http", |(scheme, _)| scheme);
    let targets = upstream.list_at("targets").iter();
    let targets = targets.filter_map(|one| {
        let address = one.text_at("target")?;
        Some(ServerDraft {
            url: format!("{scheme}://{address}"),
            weight: Some(one.number_at("weight").unwrap_or(DEFAULT_WEIGHT)),
            ..ServerDraft::default()
        })
    });
    targets.collect()
}
