//! Reads API definitions and policies of Tyk, JSON: classic ones and those of OpenAPI, one file or
//! several.

mod apis;
mod open_api;
mod policies;

use std::path::PathBuf;

use crate::budgets::{Budget, Counted};
use crate::draft::{Draft, Notes, RouteDraft, ServerDraft, TargetDraft, UpstreamDraft, clean_name};
use crate::files::{self, ImportError, SourceLine};
use crate::limit::Rate;
use crate::patterns::{self, ImportedPath};
use crate::providers::ProviderUrl;
use crate::tree::{self, SourceFile, TreeItem};
use crate::values::{KeyDraft, TomlEntries, quote};
use apis::{TykApi, TykAuth};
use policies::TykPolicy;

/// The header with the tier of a client, from trusted proxies only. A file of keys takes its place.
const TIER_HEADER: &str = "header:x-tier";

#[derive(Default)]
struct TykFiles<'d> {
    apis: Vec<TykApi<'d>>,
    policies: Vec<TykPolicy<'d>>,
    draft: Draft,
}

pub(super) fn read(paths: &[PathBuf]) -> Result<Draft, ImportError> {
    let notes = Notes::default();
    let mut roots = Vec::new();
    for path in paths {
        let source = SourceFile {
            name: path.display().to_string().into(),
            notes: notes.clone(),
        };
        // JSON is YAML.
        roots.push(tree::read_yaml(&files::read_text(path)?, &source)?);
    }
    let mut found = TykFiles::default();
    found.draft.notes = notes.clone();
    for root in &roots {
        found.add_item(root, None);
    }
    found.add_routes();
    if found.draft.routes.is_empty() {
        let file = paths.first().map(|path| path.display().to_string());
        let file = file.unwrap_or_default().into();
        let why = "there is no API to serve, so the result has a route to change. The input must \
                   have an API definition, with `proxy` or `x-tyk-api-gateway`";
        notes.lost(&SourceLine { file, line: 1 }, "no APIs", why);
    }
    Ok(found.draft)
}

/// Reads an API; `None` for something else, and for an API that is off or internal.
fn read_api(item: &TreeItem) -> Option<TykApi<'_>> {
    let gateway = item.get("x-tyk-api-gateway");
    let state = match gateway {
        Some(gateway) => gateway.at("info.state").unwrap_or(gateway),
        None => item,
    };
    let name = gateway.map_or("name", |_| "x-tyk-api-gateway.info.name");
    let what = format!("API {}", item.text_at(name).unwrap_or("unnamed"));
    if state.text_at("active") == Some("false") {
        item.needless(&what, "the API is not active");
        return None;
    }
    if state.is_true("internal") && (gateway.is_some() || item.get("proxy").is_some()) {
        let why = "is internal: only other APIs of Tyk could reach it; it is left out";
        item.lost(&what, why);
        return None;
    }
    Some(match gateway {
        Some(gateway) => open_api::read_open_api(item, gateway),
        None => apis::read_classic(item, item.get("proxy")?),
    })
}

impl<'d> TykFiles<'d> {
    /// Adds an API, a policy, or a list or a table of these. `id` is the key in such a table.
    fn add_item(&mut self, item: &'d TreeItem, id: Option<&'d str>) {
        for inner in item.list() {
            self.add_item(inner, None);
        }
        let inner = ["apis", "policies", "data", "api_definition"];
        let inner: Vec<&TreeItem> = inner.iter().filter_map(|key| item.get(key)).collect();
        if !inner.is_empty() {
            return inner.into_iter().for_each(|one| self.add_item(one, None));
        }
        if let Some(api) = read_api(item) {
            self.apis.push(api);
        } else if item.get("access_rights").is_some() || item.get("quota_max").is_some() {
            self.policies.extend(policies::read(item, id));
        } else {
            for (key, inner) in item.entries() {
                self.add_item(inner, Some(key));
            }
        }
    }

    fn add_routes(&mut self) {
        let mut policies = std::mem::take(&mut self.policies);
        policies::number_names(&mut policies);
        let apis = std::mem::take(&mut self.apis);
        for api in &apis {
            self.add_api(api, &policies);
        }
        let has_keys = |api: &TykApi<'_>| matches!(api.auth, TykAuth::Keys(_));
        if apis.iter().any(|api| has_keys(api) && api.closed.is_none()) {
            self.note_keys(&apis, &policies);
        }
    }

    fn add_api(&mut self, api: &TykApi<'d>, policies: &[TykPolicy<'d>]) {
        let mut limits = Vec::new();
        let mut closed = api.closed.clone();
        if let (TykAuth::Keys(sources), None) = (&api.auth, &closed) {
            self.draft.calls.add_key_sources(sources, api.item);
            match self.key_limits(api, policies) {
                Ok(found) => limits = found,
                Err(why) => {
                    api.item.lost(&api.what, format!("{why}; it is closed"));
                    closed = Some(why);
                }
            }
        }
        let of_all = api.global.map(|rate| self.add_limit(api, &api.what, rate));
        limits.extend(of_all);
        let target = match (closed, self.add_upstream(api)) {
            (Some(why), _) => TargetDraft::Closed(why),
            (None, Ok(name)) => TargetDraft::Upstream(name),
            (None, Err(why)) => {
                api.item.lost(&api.what, format!("{why}; it is closed"));
                TargetDraft::Closed(why)
            }
        };
        let base = api.path.trim_end_matches('/');
        let whole = match base {
            "" => Ok(ImportedPath::same("/*")),
            base => patterns::prefix_path(base).or_else(|_| patterns::text_prefix_path(base)),
        };
        self.add_route(api, RoutePart::new(whole, &target, &limits));
        for endpoint in &api.endpoints {
            let what = format!("{} {}", api.what, endpoint.path);
            let why = "Tyk takes this rate for all paths that match; here for this path alone";
            api.item.differs(&what, why);
            let mut limits = limits.clone();
            limits.push(self.add_limit(api, &what, endpoint.rate));
            let path = format!("{base}/{}", endpoint.path.trim_start_matches('/'));
            let path = match path.contains('{') {
                true => ImportedPath::parse(path),
                false => patterns::exact_path(&path),
            };
            let mut part = RoutePart::new(path, &target, &limits);
            part.methods.extend(endpoint.method.clone());
            self.add_route(api, part);
        }
    }

    /// The limits by key: one that the APIs of a policy share, and one of this API alone.
    fn key_limits(
        &mut self,
        api: &TykApi<'d>,
        policies: &[TykPolicy<'d>],
    ) -> Result<Vec<String>, String> {
        if let Some(other) = policies.iter().find(|one| !one.covers(api)) {
            return Err(format!(
                "policy {} does not give access to it, and a route refuses no tier",
                other.name
            ));
        }
        if let Some(other) = policies.iter().find(|one| one.has_paths(api)) {
            return Err(format!(
                "policy {} gives access to some of its paths only, and a route refuses no tier",
                other.name
            ));
        }
        // A policy with own rates for some API shares its rates among the others.
        let shared = |one: &&TykPolicy<'_>| one.own_rates(api).is_none();
        let (partly, whole): (Vec<_>, Vec<_>) =
            policies.iter().partition(|one| one.has_own_rates());
        let whole = whole.into_iter().map(TykPolicy::shared_rates).collect();
        let own = policies.iter().filter_map(|one| one.own_rates(api));
        let own = own.collect();
        let mut names = vec![("keys".to_owned(), whole)];
        for policy in partly.into_iter().filter(shared) {
            names.push((format!("keys-{}", policy.name), vec![policy.shared_rates()]));
        }
        names.push((format!("{}-keys", api.what), own));
        let mut limits = Vec::new();
        for (name, tiers) in names {
            let budget = policies::budget(&name, api, tiers);
            limits.extend(budget.map(|budget| budget.add_to(&mut self.draft)));
        }
        match limits.is_empty() {
            true => Err(
                "no policy in these files limits its keys, and only a limit by key asks for one"
                    .to_owned(),
            ),
            false => Ok(limits),
        }
    }

    /// Adds a limit that all clients share.
    fn add_limit(&mut self, api: &TykApi<'d>, what: &str, rate: Rate) -> String {
        let budget = Budget {
            name: format!("{}-all", clean_name(what)),
            source: api.item.entry(format!("rate limit of {what}")),
            rates: vec![rate],
            tiers: Vec::new(),
            counts: Counted::Requests,
            key: KeyDraft::of_part("global"),
        };
        budget.add_to(&mut self.draft)
    }

    fn add_upstream(&mut self, api: &TykApi<'d>) -> Result<String, String> {
        let mut servers = Vec::new();
        for url in &api.targets {
            let parts = ProviderUrl::parse(url);
            let parts = parts.ok_or_else(|| format!("`{url}` is no URL of a server"))?;
            servers.push(ServerDraft {
                url: parts.server,
                ..ServerDraft::default()
            });
        }
        if servers.is_empty() {
            return Err("it has no upstream in this file".to_owned());
        }
        let mut entries = TomlEntries::default();
        if servers.len() > 1 {
            entries.add("balance", quote("round-robin"));
        }
        if !api.keeps_host {
            entries.add("host", quote("rewrite"));
        }
        Ok(self.draft.add_upstream(UpstreamDraft {
            name: clean_name(api.what.trim_start_matches("API ")),
            servers,
            entries,
            place: api.item.place(),
        }))
    }

    fn add_route(&mut self, api: &TykApi<'d>, part: RoutePart<'_>) {
        let path = match part.path {
            Ok(path) => path,
            Err(why) => return api.item.lost(&api.what, format!("{why}; it is left out")),
        };
        if let Some(why) = path.differs {
            api.item.differs(&api.what, why);
        }
        let mut route = RouteDraft::new(api.item.entry(api.what.clone()), part.target.clone());
        route.host.clone_from(&api.host);
        route.port = api.port;
        route.path = path.pattern;
        route.methods = part.methods;
        route.needs_key = matches!(api.auth, TykAuth::Keys(_));
        route.entries = api.access.clone();
        if matches!(route.target, TargetDraft::Upstream(_)) {
            route.limits = part.limits.to_vec();
            if let Some(bytes) = api.body_limit {
                route.entries.add("body_limit", quote(&format!("{bytes}B")));
            }
            let base = api.path.trim_end_matches('/');
            if api.strips && !base.is_empty() {
                route.entries.add("strip_prefix", quote(base));
            }
            let target = api.targets.first().and_then(|url| ProviderUrl::parse(url));
            if let Some(target) = target.filter(|target| !target.path.is_empty()) {
                route.entries.add("add_prefix", quote(&target.path));
            }
        }
        self.draft.add_or_note(route);
    }

    fn note_keys(&mut self, apis: &[TykApi<'d>], policies: &[TykPolicy<'d>]) {
        let Some(api) = apis.first() else {
            return;
        };
        let why = "keys, and limits of single keys, are in the Redis of Tyk and are not copied: \
                   list the keys in a file with lines `KEY NAME TIER`, where the tier is the \
                   policy, and set `known` of [api_key]. Until then every request is refused";
        api.item.lost("keys", why);
        if policies.is_empty() {
            return;
        }
        self.draft.calls.tier.add_new("from", quote(TIER_HEADER));
        let why = "each policy is a tier of this name. The file of keys gives the tiers; the \
                   header in `from` of [tier] counts from trusted proxies only";
        policies[0].item.lost("policies", why);
    }
}

/// One route of an API.
struct RoutePart<'r> {
    path: Result<ImportedPath, String>,
    methods: Vec<String>,
    target: &'r TargetDraft,
    limits: &'r [String],
}

impl<'r> RoutePart<'r> {
    fn new(
        path: Result<ImportedPath, String>,
        target: &'r TargetDraft,
        limits: &'r [String],
    ) -> RoutePart<'r> {
        RoutePart {
            path,
            methods: Vec::new(),
            target,
            limits,
        }
    }
}
