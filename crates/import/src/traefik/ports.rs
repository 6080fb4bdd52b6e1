//! Which ports a router's routes are for. Traefik serves a router at its entry points alone.

use std::collections::BTreeSet;

use super::entry_points::{self, EntryPoint};
use crate::tree::TreeItem;

/// The names that entry points for all clients usually have: one plain, one with TLS.
const USUAL: [&str; 4] = ["web", "http", "websecure", "https"];

/// Returns the names of a router's entry points. A router that names none is at the default ones.
pub(super) fn entry_point_names(router: &TreeItem, points: &[EntryPoint]) -> Vec<String> {
    let own = router.texts_at("entryPoints");
    if !own.is_empty() {
        return own;
    }
    let has_default = points.iter().any(|point| point.is_default);
    let defaults = points
        .iter()
        .filter(|point| point.is_default || !has_default);
    defaults.map(|point| point.name.clone()).collect()
}

/// Returns the entry points of a router. One with `tls` serves no plain requests.
pub(super) fn entry_points<'p>(router: &TreeItem, points: &'p [EntryPoint]) -> Vec<&'p EntryPoint> {
    let names = entry_point_names(router, points);
    let own = points.iter().filter(|point| names.contains(&point.name));
    let mut own: Vec<&EntryPoint> = own.collect();
    if router.get("tls").is_some() && own.iter().any(|point| point.tls) {
        own.retain(|point| point.tls);
    }
    own
}

/// Returns the name of the set of `tls.options` of a router; `None` without TLS.
pub(super) fn options_of(router: &TreeItem, points: &[EntryPoint]) -> Option<String> {
    let own = entry_points(router, points);
    let of_point = own.iter().find_map(|point| point.tls_options.as_deref());
    let has_tls = router.get("tls").is_some() || own.iter().any(|point| point.tls);
    has_tls.then(|| entry_points::name_of_set(router, of_point))
}

/// Whether routers are at different entry points. Without need, routes have no ports: the operator
/// may listen on others. The two usual entry points count as one, because `redirect` of `[tls]`
/// keeps plain requests from routers of the one with TLS.
pub(super) fn need_ports(points: &[EntryPoint], routers: &[(String, TreeItem)]) -> bool {
    let is_served = |router: &&TreeItem| {
        let service = router.text_at("service").unwrap_or_default();
        !service.ends_with("@internal")
    };
    let groups = |router: &TreeItem| {
        let names = entry_point_names(router, points).into_iter();
        let is_internal = |name: &str| {
            points
                .iter()
                .any(|one| one.name == name && one.is_internal())
        };
        let group = |name: String| match USUAL.contains(&name.as_str()) && !is_internal(&name) {
            true => String::new(),
            false => name,
        };
        names.map(group).collect::<BTreeSet<String>>()
    };
    let routers = routers.iter().map(|(_, router)| router);
    let mut groups = routers.filter(is_served).map(groups);
    let first = groups.next();
    groups.any(|other| first.as_ref() != Some(&other))
}

/// Removes the entry points that no router is at, such as one for metrics: here, each of them would
/// serve all routes.
pub(super) fn remove_unused(
    points: &mut Vec<EntryPoint>,
    routers: &[(String, TreeItem)],
    section: Option<&TreeItem>,
) {
    if routers.is_empty() {
        return;
    }
    let routers = routers.iter().map(|(_, router)| router);
    let used: BTreeSet<String> = routers
        .flat_map(|router| entry_point_names(router, points))
        .collect();
    points.retain(|point| {
        let is_used = used.contains(&point.name);
        let is_kept = is_used || point.redirects || USUAL.contains(&point.name.as_str());
        if let Some(section) = section.filter(|_| !is_kept) {
            let item = section.get(&point.name).unwrap_or(section);
            let why = "no router of this file is at it, and a listener serves all routes; it is \
                       left out of `listen`";
            item.needless(&format!("entryPoints.{}", point.name), why);
        }
        is_kept
    });
}

/// Returns the ports of a router at some of the entry points. The error says why it is closed.
pub(super) fn ports_of(
    own: &[&EntryPoint],
    all: &[EntryPoint],
) -> Result<Vec<Option<u16>>, String> {
    let mut ports: Vec<Option<u16>> = Vec::new();
    for point in own {
        let Some(port) = point.port() else {
            return Err(format!(
                "the port of the entryPoint {} is not known",
                point.name
            ));
        };
        let is_other = |one: &&EntryPoint| own.iter().all(|own| own.name != one.name);
        let mut others = all.iter().filter(is_other);
        if let Some(other) = others.find(|one| one.port() == Some(port)) {
            return Err(format!(
                "the entryPoints {} and {} have the same port, and routes do not depend on the \
                 address that a request came to",
                point.name, other.name
            ));
        }
        if !ports.contains(&Some(port)) {
            ports.push(Some(port));
        }
    }
    match ports.is_empty() {
        true => Err("none of its entryPoints has an address in this file".to_owned()),
        false => Ok(ports),
    }
}
