//! Upstreams of APISIX.

use super::{ApisixFile, ApisixRoute};
use crate::draft::{ServerDraft, UpstreamDraft};
use crate::tree::TreeItem;
use crate::values::{TomlEntries, quote, time_text};

pub(super) fn add_upstream(
    route: &ApisixRoute<'_>,
    file: &mut ApisixFile<'_>,
) -> Result<String, String> {
    let of_item = |item: &TreeItem| {
        let id = item.get("upstream_id");
        let named = id.and_then(|id| file.find("upstreams", id));
        item.get("upstream").cloned().or_else(|| named.cloned())
    };
    let item = of_item(route.item).or_else(|| route.service.and_then(of_item));
    let item = item.ok_or("the route has no upstream in this file")?;
    let known = "id name nodes type scheme pass_host upstream_host timeout retries \
                 keepalive_pool checks hash_on key labels desc";
    item.note_unknown("upstream.", known);
    if let Some(checks) = item.get("checks") {
        let why = "`health` and `eject` of the upstream are like it";
        checks.lost("upstream.checks", why);
    }
    let scheme = item.text_at("scheme").unwrap_or("http");
    let servers = read_nodes(&item, scheme);
    if servers.is_empty() {
        return Err("its upstream has no nodes in this file".to_owned());
    }
    let mut entries = TomlEntries::default();
    if servers.len() > 1 && item.text_at("type").is_none_or(|one| one == "roundrobin") {
        entries.add("balance", quote("round-robin"));
    }
    for (theirs, ours) in [
        ("timeout.connect", "connect_timeout"),
        ("timeout.read", "timeout"),
    ] {
        if let Some(seconds) = item.number_at(theirs).filter(|seconds| *seconds > 0) {
            entries.add(ours, time_text(seconds.saturating_mul(1000)));
        }
    }
    note_unlike(&item);
    match (item.text_at("pass_host"), item.text_at("upstream_host")) {
        (Some("node"), _) => entries.add("host", quote("rewrite")),
        (Some("rewrite"), Some(host)) => entries.add("host", quote(host)),
        _ => {}
    }
    let name = item.text_at("name").or_else(|| item.text_at("id"));
    Ok(file.draft.add_upstream(UpstreamDraft {
        name: name.unwrap_or(&route.what).to_owned(),
        servers,
        entries,
        place: item.place(),
    }))
}

/// Notes settings that an upstream here has in another form.
fn note_unlike(item: &TreeItem) {
    let kind = item.text_at("type").unwrap_or("roundrobin");
    let other = match kind {
        "roundrobin" => None,
        "chash" => Some("`balance = \"hash:KEY\"` is like it"),
        _ => Some("the default of `balance`, which asks the less busy server, is like it"),
    };
    if let Some(why) = other {
        item.lost(&format!("upstream.type: {kind}"), why);
    }
    if item.get("retries").is_some() {
        item.lost("upstream.retries", "`retries` of the upstream is like it");
    }
    if item.at("timeout.send").is_some() {
        let why = "`body_timeout` of [server] is like it";
        item.lost("upstream.timeout.send", why);
    }
    let mut nodes = item.list_at("nodes").iter();
    if nodes.any(|node| node.get("priority").is_some()) {
        let why = "all servers get requests; `backup = true` of a server is like a low priority";
        item.lost("upstream.nodes.priority", why);
    }
}

/// Reads `nodes`: a table of addresses and weights, or a list.
fn read_nodes(item: &TreeItem, scheme: &str) -> Vec<ServerDraft> {
    let server = |address: String, weight: Option<u64>| ServerDraft {
        url: format!("{scheme}://{address}"),
        weight,
        ..ServerDraft::default()
    };
    let table = item.entries_at("nodes").iter();
    let table = table.map(|(address, weight)| {
        let weight = weight.text().and_then(|text| text.parse().ok());
        server(address.clone(), weight)
    });
    let list = item.list_at("nodes").iter().filter_map(|one| {
        let host = one.text_at("host")?;
        let port = one.text_at("port").map(|port| format!(":{port}"));
        let address = format!("{host}{}", port.unwrap_or_default());
        Some(server(address, one.number_at("weight")))
    });
    table.chain(list).collect()
}
