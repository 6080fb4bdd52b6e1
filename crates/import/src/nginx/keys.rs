//! What a zone counts by: nginx's variables as the key of a limit.

use super::maps::{Made, Maps};
use super::values::{Piece, pieces};
use crate::draft::KeyDraft;

/// Maps of maps, at most.
const MAX_DEPTH: usize = 4;

/// The key of a zone, and what is different about it; or why it has none.
pub(super) fn key(text: &str, maps: &Maps<'_>) -> Result<(KeyDraft, Option<String>), String> {
    let mut key = KeyDraft::default();
    let mut differs = None;
    for piece in pieces(text) {
        // What is the same for all tells nobody apart.
        let Piece::Variable(name) = piece else {
            continue;
        };
        let part = variable(name, maps, 0)?;
        key.exempt.extend(part.exempt);
        key.parts.extend(part.parts);
        key.missing = key.missing.or(part.missing);
        differs = differs.or(part.differs);
    }
    key.parts.dedup();
    if key.parts.is_empty() {
        key.parts.push("global".to_owned());
    }
    if key.parts.len() > 1 && key.missing == Some("skip") {
        // nginx leaves out requests only where the whole key is empty.
        key.missing = Some("shared");
    }
    Ok((key, differs))
}

/// What one variable comes to.
#[derive(Debug, Default)]
struct Part {
    parts: Vec<String>,
    missing: Option<&'static str>,
    exempt: Vec<String>,
    differs: Option<String>,
}

fn variable(name: &str, maps: &Maps<'_>, depth: usize) -> Result<Part, String> {
    let plain = |key: &str| Part {
        parts: vec![key.to_owned()],
        ..Part::default()
    };
    let carried = |key: String| Part {
        missing: Some("skip"),
        ..plain(&key)
    };
    if let Some(made) = maps.get(name) {
        if depth >= MAX_DEPTH {
            return Err(format!("${name} is made of too many maps"));
        }
        return mapped(name, made, maps, depth + 1);
    }
    Ok(match name {
        "binary_remote_addr" | "remote_addr" => plain("ip"),
        "server_name" | "host" | "http_host" => plain("host"),
        "uri" | "document_uri" => plain("path"),
        "request_uri" => Part {
            differs: Some("counts by the path, without the query".to_owned()),
            ..plain("path")
        },
        "request_method" => plain("method"),
        "ssl_client_s_dn" => carried("tls:subject".to_owned()),
        "ssl_client_fingerprint" => carried("tls:fingerprint".to_owned()),
        "http_x_forwarded_for" | "proxy_add_x_forwarded_for" | "http_x_real_ip" => Part {
            differs: Some(format!(
                "counts by the client's address: `trusted_proxies` says who may tell it, and \
                 ${name} could be made up by anybody"
            )),
            ..plain("ip")
        },
        "scheme" | "server_port" | "server_addr" => Part {
            differs: Some(format!("${name} tells no clients apart here")),
            ..Part::default()
        },
        _ => {
            let prefixes = [
                ("http_", "header"),
                ("arg_", "query"),
                ("cookie_", "cookie"),
            ];
            let found = prefixes.iter().find_map(|(prefix, kind)| {
                let name = name.strip_prefix(prefix)?;
                let dashed = match *kind {
                    "header" => name.replace('_', "-"),
                    _ => name.to_owned(),
                };
                Some(carried(format!("{kind}:{dashed}")))
            });
            return found.ok_or_else(|| format!("there is no key for ${name}"));
        }
    })
}

/// A variable of `map` or `geo` as a key: the ways in which such are used for limits.
fn mapped(name: &str, made: Made<'_>, maps: &Maps<'_>, depth: usize) -> Result<Part, String> {
    let Made::Map(_) = made else {
        return Err(format!("${name} is a group of addresses, not a client"));
    };
    let source = made.source().strip_prefix('$').unwrap_or_default();
    let inner = |text: &str| match pieces(text)[..] {
        [Piece::Variable(name)] => variable(name, maps, depth).map(Some),
        [] => Ok(None),
        _ => Err(format!("`{text}` is no client")),
    };
    if let Some(geo @ Made::Geo(_)) = maps.get(source) {
        return exempting(name, made, geo, &inner);
    }
    // `"" $binary_remote_addr; default $http_x_key;`: the first that is there.
    let lines: Vec<(&str, &str)> = made.lines().collect();
    let default = made.default();
    let of_itself = default.strip_prefix('$') == Some(source);
    if let ([("", other)], true) = (&lines[..], of_itself) {
        let first = variable(source, maps, depth)?;
        let second = inner(other)?;
        return match (&first.parts[..], second) {
            ([first], Some(second)) if second.parts.len() == 1 => Ok(Part {
                parts: vec![format!("{first} or {}", second.parts[0])],
                missing: second.missing,
                exempt: second.exempt,
                differs: None,
            }),
            (_, None) => Ok(first),
            _ => Err(format!("${name} is made of several things")),
        };
    }
    Err(format!(
        "${name} depends on ${source} in a way that no key does; a limit of its own route, \
         `tiers` or `exempt` may say it"
    ))
}

/// `map $limited { 0 ""; 1 $binary_remote_addr; }` over a `geo`: some networks are left out.
fn exempting(
    name: &str,
    map: Made<'_>,
    geo: Made<'_>,
    inner: &dyn Fn(&str) -> Result<Option<Part>, String>,
) -> Result<Part, String> {
    let value_of = |group: &str| {
        let mut lines = map.lines();
        let line = lines.find(|(fits, _)| *fits == group);
        line.map_or(map.default(), |(_, value)| value)
    };
    let usual = value_of(geo.default());
    let Some(mut part) = inner(usual)? else {
        return Err(format!(
            "${name} limits only some networks; `exempt` says whom a limit leaves out"
        ));
    };
    let networks = geo
        .networks()
        .ok_or_else(|| format!("{} has lines that are no networks", geo.directive().line()))?;
    let exempt = |(_, group): &(ipnet::IpNet, &str)| value_of(group).is_empty();
    let (left_out, others): (Vec<_>, Vec<_>) = networks.into_iter().partition(exempt);
    for (net, group) in left_out.into_iter().chain(others) {
        match value_of(group) {
            "" => part.exempt.push(net.to_string()),
            same if same == usual => {
                if part.exempt.iter().any(|one| contains(one, &net)) {
                    return Err(format!("{net} is an exception of an exception"));
                }
            }
            other => {
                return Err(format!(
                    "{net} is counted by `{other}`, others by `{usual}`"
                ));
            }
        }
    }
    Ok(part)
}

fn contains(outer: &str, inner: &ipnet::IpNet) -> bool {
    let outer = outer.parse::<ipnet::IpNet>();
    outer.is_ok_and(|outer| outer.contains(inner))
}
