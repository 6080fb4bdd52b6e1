//! Reads Kubernetes resources of Envoy AI gateway: `AIGatewayRoute` with its costs, its backends,
//! and the `BackendTrafficPolicy` whose rules limit tokens.

mod backends;
mod costs;
mod rules;

use std::path::Path;

use super::budgets::RouteCalls;
use super::draft::{Draft, RouteDraft, TargetDraft};
use super::files::{self, ImportError};
use super::tree::{self, SourceFile, TreeItem};
use super::values::has_word;
use costs::RequestCosts;

/// Resources of one file, at most.
const MAX_RESOURCES: usize = 10_000;

/// Kinds that are not needed, or are read where another one names them.
const NEEDLESS: &str = "GatewayClass Deployment Service EnvoyProxy Namespace ConfigMap Secret \
                        StatefulSet ServiceAccount InferencePool ReferenceGrant";
/// Kinds that are read.
const READ: &str = "Gateway AIGatewayRoute AIServiceBackend Backend BackendTLSPolicy \
                    BackendTrafficPolicy BackendSecurityPolicy GatewayConfig SecurityPolicy";

struct EnvoyFile {
    resources: Vec<TreeItem>,
    draft: Draft,
}

pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let text = files::read_text(path)?;
    let source = SourceFile::named(path);
    let mut resources = Vec::new();
    for document in tree::read_documents(&text, &source, MAX_RESOURCES)? {
        match document.list_at("items") {
            [] => resources.push(document),
            items => resources.extend(items.iter().cloned()),
        }
    }
    let mut file = EnvoyFile {
        resources,
        draft: Draft::default(),
    };
    file.draft.notes = source.notes.clone();
    file.note_kinds();
    file.add_listens();
    let routes: Vec<TreeItem> = file.all("AIGatewayRoute").cloned().collect();
    for item in &routes {
        file.add_route(item);
    }
    if file.draft.routes.is_empty() {
        let input = "be YAML with an AIGatewayRoute and its backends";
        source.note_missing("no AIGatewayRoute", input);
    }
    Ok(file.draft)
}

fn name_of(item: &TreeItem) -> &str {
    item.text_at("metadata.name").unwrap_or("unnamed")
}

impl EnvoyFile {
    /// Returns the resources of a kind.
    fn all(&self, kind: &str) -> impl Iterator<Item = &TreeItem> {
        let is_kind = move |one: &&TreeItem| one.text_at("kind") == Some(kind);
        self.resources.iter().filter(is_kind)
    }

    fn find(&self, kind: &str, name: &str) -> Option<&TreeItem> {
        self.all(kind).find(|one| name_of(one) == name)
    }

    fn note_kinds(&self) {
        for item in &self.resources {
            let kind = item.text_at("kind").unwrap_or_default();
            let what = format!("{kind} {}", name_of(item));
            if has_word(NEEDLESS, kind) {
                item.needless(&what, "it is for the cluster");
            } else if !has_word(READ, kind) && !kind.is_empty() {
                item.lost(&what, "it is not translated");
            }
        }
    }

    /// Adds the ports of the gateways of the routes.
    fn add_listens(&mut self) {
        let mut ports = Vec::new();
        for gateway in self.all("Gateway") {
            for listener in gateway.list_at("spec.listeners") {
                let protocol = listener.text_at("protocol").unwrap_or("HTTP");
                let what = format!("listener {}", listener.text_at("name").unwrap_or_default());
                match (protocol, listener.number_at("port")) {
                    ("HTTP", Some(port)) => ports.push(format!(":{port}")),
                    _ => {
                        let why = "`[tls]` needs the files of its certificates; it is left out";
                        listener.lost(&what, why);
                    }
                }
            }
        }
        self.draft.listen = ports;
    }

    fn add_route(&mut self, item: &TreeItem) {
        let what = format!("AIGatewayRoute {}", name_of(item));
        let spec = item.get("spec").unwrap_or(item);
        let known = "parentRefs hostnames rules llmRequestCosts schema filterConfig targetRefs";
        spec.note_unknown(&format!("{what}."), known);
        let backend = backends::read(item, &what, self);
        let target = match self.guard_of(item) {
            Some(why) => Err(why),
            None => backend
                .as_ref()
                .map_err(Clone::clone)
                .map(|one| one.upstream.clone()),
        };
        let target = match target {
            Ok(name) => TargetDraft::Upstream(name),
            Err(why) => {
                item.lost(&what, format!("{why}; it is closed"));
                TargetDraft::Closed(why)
            }
        };
        let format = backend.map_or("openai", |one| one.format);
        let mut costs = RequestCosts::read(item, self);
        let budgets = rules::read_budgets(item, &mut costs, self);
        let calls = RouteCalls {
            format,
            budgets,
            weights: costs.chosen(),
        };
        let path = match format {
            "anthropic" => "/anthropic/v1/messages",
            _ => "/v1/*",
        };
        for host in item.hosts(&what, &spec.texts_at("hostnames")) {
            let mut route = RouteDraft::new(item.entry(what.clone()), target.clone());
            route.host = host;
            path.clone_into(&mut route.path);
            if format == "anthropic" {
                route.entries.add("strip_prefix", "\"/anthropic\"");
            }
            calls.add_to(&mut route, item, &mut self.draft);
            self.draft.add_or_note(route);
        }
    }

    /// Returns why a policy of access closes a route.
    fn guard_of(&self, route: &TreeItem) -> Option<String> {
        let mut policies = self.all("SecurityPolicy");
        let policy = policies.find(|one| rules::targets(one, route, self))?;
        Some(format!(
            "SecurityPolicy {} guards it, and tidegate has nothing like it",
            name_of(policy)
        ))
    }
}
