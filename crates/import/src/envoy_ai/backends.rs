//! Backends of a route: their format and their address.

use super::{EnvoyFile, name_of};
use crate::draft::{ServerDraft, UpstreamDraft};
use crate::providers;
use crate::tree::TreeItem;
use crate::values::{TomlEntries, quote};

/// The upstream of a route.
pub(super) struct Backend {
    pub(super) upstream: String,
    /// A format of `[usage.NAME]`.
    pub(super) format: &'static str,
}

/// Adds the upstream of a route. The error says why the route is closed.
pub(super) fn read(route: &TreeItem, what: &str, file: &mut EnvoyFile) -> Result<Backend, String> {
    let mut names: Vec<(&str, Option<u64>)> = Vec::new();
    for rule in route.list_at("spec.rules") {
        note_matches(rule, what);
        for one in rule.list_at("backendRefs") {
            let name = one.text_at("name").unwrap_or_default();
            if !names.iter().any(|(known, _)| *known == name) {
                names.push((name, one.number_at("weight")));
            }
            for key in ["modelNameOverride", "headerMutation", "bodyMutation"] {
                if let Some(item) = one.get(key) {
                    item.lost(&format!("{what}: {key}"), "requests are not changed");
                }
            }
        }
    }
    let rules = route.list_at("spec.rules").iter();
    let several = rules
        .filter(|rule| !rule.list_at("backendRefs").is_empty())
        .count()
        > 1;
    if several && names.len() > 1 {
        return Err("the model in the body chooses the backend, and no route can say this".into());
    }
    let mut format = None;
    let mut is_tls = None;
    let mut servers = Vec::new();
    for (name, weight) in &names {
        let found = read_one(name, file)?;
        if format.is_some_and(|one| one != found.format) {
            return Err(
                "its backends speak different formats, and tidegate translates none".into(),
            );
        }
        format = Some(found.format);
        is_tls = Some(found.is_tls);
        servers.extend(found.addresses.into_iter().map(|address| ServerDraft {
            url: format!(
                "{}://{address}",
                if found.is_tls { "https" } else { "http" }
            ),
            weight: *weight,
            ..ServerDraft::default()
        }));
    }
    let format = format.ok_or("it has no backend")?;
    let mut entries = TomlEntries::default();
    if servers.len() > 1 {
        entries.add("balance", quote("round-robin"));
    }
    if is_tls == Some(true) {
        entries.add("host", quote("rewrite"));
    }
    let upstream = file.draft.add_upstream(UpstreamDraft {
        name: names.first().map_or("model", |(name, _)| *name).to_owned(),
        servers,
        entries,
        place: route.place(),
    });
    Ok(Backend { upstream, format })
}

/// Notes the models that the rules are for.
fn note_matches(rule: &TreeItem, what: &str) {
    for one in rule.list_at("matches") {
        for header in one.list_at("headers") {
            let name = header.text_at("name").unwrap_or_default();
            let value = header.text_at("value").unwrap_or_default();
            let why = match name {
                "x-ai-eg-model" => {
                    "is the model of the body: calls of every model go to the backend, which \
                     refuses models that it has not"
                }
                _ => "its requests are taken whatever this header says",
            };
            header.lost(&format!("{what}: {name} {value}"), why);
        }
    }
}

struct BackendParts {
    format: &'static str,
    addresses: Vec<String>,
    is_tls: bool,
}

fn read_one(name: &str, file: &EnvoyFile) -> Result<BackendParts, String> {
    let missing = || format!("AIServiceBackend {name} is not in the file");
    let service = file.find("AIServiceBackend", name).ok_or_else(missing)?;
    let schema = service.text_at("spec.schema.name").unwrap_or("OpenAI");
    let format = match schema {
        "OpenAI" | "AzureOpenAI" => "openai",
        "Anthropic" => "anthropic",
        _ => {
            return Err(format!(
                "its clients speak OpenAI's format and its backend {schema}; tidegate translates \
                 none"
            ));
        }
    };
    for policy in file.all("BackendSecurityPolicy") {
        let targets = policy.list_at("spec.targetRefs").iter();
        let mut names = targets.filter_map(|one| one.text_at("name"));
        if names.any(|one| one == name) {
            let what = format!("BackendSecurityPolicy {}", name_of(policy));
            providers::note_credentials(policy, &what);
        }
    }
    let name = service.text_at("spec.backendRef.name").unwrap_or_default();
    let missing = || format!("Backend {name} is not in the file");
    let backend = file.find("Backend", name).ok_or_else(missing)?;
    let endpoints = backend.list_at("spec.endpoints").iter();
    let addresses = endpoints.filter_map(|one| {
        let host = one
            .text_at("fqdn.hostname")
            .or_else(|| one.text_at("ip.address"))?;
        let port = one
            .number_at("fqdn.port")
            .or_else(|| one.number_at("ip.port"));
        Some(match port {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        })
    });
    let mut policies = file.all("BackendTLSPolicy");
    let is_tls = policies.any(|policy| {
        let targets = policy.list_at("spec.targetRefs").iter();
        let mut names = targets.filter_map(|one| one.text_at("name"));
        names.any(|one| one == name)
    });
    Ok(BackendParts {
        format,
        addresses: addresses.collect(),
        is_tls,
    })
}
