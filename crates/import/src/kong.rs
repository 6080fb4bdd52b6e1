//! Reads Kong's declarative configuration (YAML or JSON, as `deck` writes it): services, routes,
//! and the plugins that limit requests and tokens.

mod budget_plugin;
mod budgets;
mod identifiers;
mod models;
mod plugins;
mod policies;
mod services;

use std::path::Path;

use super::budgets::RouteCalls;
use super::draft::{Draft, HeaderDraft, RouteDraft, TargetDraft};
use super::files::{self, ImportError};
use super::overlaps::{self, RankedRoute, SourceRank};
use super::patterns::{self, ImportedPath};
use super::tree::{self, SourceFile, TreeItem};
use super::values::quote;
use crate::route::method_of;
use models::KongModel;
use plugins::KongRoutePlugins;

struct KongFile<'d> {
    root: &'d TreeItem,
    draft: Draft,
    routes: Vec<RankedRoute>,
}

/// Sections that tidegate does not need.
const NEEDLESS: &str = "_format_version _transform _info _konnect _comment _workspace";

pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let text = files::read_text(path)?;
    let source = SourceFile::named(path);
    let root = tree::read_yaml(&text, &source)?;
    let mut file = KongFile {
        root: &root,
        draft: Draft::default(),
        routes: Vec::new(),
    };
    file.draft.notes = source.notes.clone();
    for key in NEEDLESS.split(' ') {
        if let Some(item) = root.get(key) {
            item.needless(key, "this is one file");
        }
    }
    let known = "services routes plugins upstreams consumers consumer_groups";
    root.note_unknown("", &format!("{known} {NEEDLESS}"));
    file.add_services();
    overlaps::add_in_order(std::mem::take(&mut file.routes), "Kong", &mut file.draft);
    plugins::note_tiers(&mut file);
    if file.draft.routes.is_empty() {
        source.note_missing("no routes", "be a file with `services` and their `routes`");
    }
    Ok(file.draft)
}

/// Whether a name or an id in the file is this entity.
fn refers_to(reference: &TreeItem, entity: &TreeItem) -> bool {
    let keys = ["name", "id", "username"];
    let names: Vec<&str> = match reference.text() {
        Some(text) => vec![text],
        None => keys
            .iter()
            .filter_map(|key| reference.text_at(key))
            .collect(),
    };
    keys.iter()
        .filter_map(|key| entity.text_at(key))
        .any(|own| names.contains(&own))
}

const UNNAMED: &str = "unnamed";

fn name_of(entity: &TreeItem) -> &str {
    let keys = ["name", "username", "id"];
    let mut names = keys.iter().filter_map(|key| entity.text_at(key));
    names.next().unwrap_or(UNNAMED)
}

/// A route with its service.
struct KongRoute<'d> {
    /// `route NAME`
    what: String,
    item: &'d TreeItem,
    service: Option<&'d TreeItem>,
    /// Whether the file is for Kong before 3.0, which knows expressions by their characters.
    is_before_3: bool,
}

/// Whether a path is an expression in Kong before 3.0.
fn is_regex_of_2(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~/%-".contains(&byte);
    !path.bytes().all(is_plain)
}

impl<'d> KongFile<'d> {
    fn add_services(&mut self) {
        let services = self.root.list_at("services");
        for service in services {
            for item in service.list_at("routes") {
                self.add_route(item, Some(service));
            }
        }
        for item in self.root.list_at("routes") {
            let reference = item.get("service");
            let service = reference
                .and_then(|reference| services.iter().find(|one| refers_to(reference, one)));
            self.add_route(item, service);
        }
    }

    fn add_route(&mut self, item: &'d TreeItem, service: Option<&'d TreeItem>) {
        let paths = item.texts_at("paths").join(" ");
        let name = Some(name_of(item)).filter(|name| *name != UNNAMED || paths.is_empty());
        let version = self.root.text_at("_format_version");
        let route = KongRoute {
            what: format!("route {}", name.unwrap_or(&paths)),
            item,
            service,
            is_before_3: version.is_some_and(|version| version.starts_with(['1', '2'])),
        };
        let known = "name id paths hosts methods headers protocols strip_path preserve_host \
                     regex_priority tags service plugins https_redirect_status_code \
                     request_buffering response_buffering path_handling snis sources destinations";
        item.note_unknown(&format!("{}.", route.what), known);
        if !route.check_protocols(self) {
            return;
        }
        let plugins = plugins::read(&route, self);
        let model = models::read(&route, &plugins);
        let target = route.find_target(&plugins, model.as_ref(), self);
        let calls = model
            .as_ref()
            .ok()
            .and_then(Option::as_ref)
            .map(|model| budgets::read_calls(&route, &plugins, model, self));
        if let (Ok(None), Some(budgets)) = (&model, &plugins.budgets) {
            let why = "counted nothing in Kong: the route has no ai-proxy. Here `usage` of the \
                       route and a limit with `counts` would count";
            let config = budgets.config();
            config.lost(&format!("{}: ai-rate-limiting-advanced", route.what), why);
        }
        let parts = RouteParts {
            target,
            plugins: &plugins,
            model: model.ok().flatten(),
            calls,
        };
        for host in route.hosts() {
            for path in route.paths() {
                route.add_one(host.clone(), &path, &parts, self);
            }
        }
    }
}

/// The common parts of the routes of a route of Kong.
struct RouteParts<'r, 'd> {
    target: TargetDraft,
    plugins: &'r KongRoutePlugins<'d>,
    model: Option<KongModel<'d>>,
    calls: Option<RouteCalls>,
}

/// A path of a route as the file has it, and its translation.
struct KongPath {
    text: String,
    path: ImportedPath,
}

impl<'d> KongRoute<'d> {
    /// Returns whether clients of HTTP can reach the route. Redirects all plain requests if only
    /// those of https can.
    fn check_protocols(&self, file: &mut KongFile<'d>) -> bool {
        let protocols = self.item.texts_at("protocols");
        let has = |list: &[&str]| protocols.iter().any(|one| list.contains(&one.as_str()));
        if protocols.is_empty() || has(&["http", "grpc", "ws"]) {
            return true;
        }
        let is_secure = has(&["https", "grpcs", "wss"]);
        let why = match is_secure {
            true => {
                file.draft.server.add_new("https_port", "443");
                "was served over TLS only: `https_port` of [server] redirects all plain requests, \
                 also those of other routes. Set `listen` and certificates of [tls], or name the \
                 load balancer that ends TLS in `trusted_proxies`"
            }
            false => "tidegate speaks HTTP only; it is left out",
        };
        let what = format!("{}.protocols: {}", self.what, protocols.join(", "));
        self.item.lost(&what, why);
        is_secure
    }

    /// Kong asks routes with more conditions first, then expressions by their priority, then the
    /// longest path.
    fn rank(&self, host: Option<&str>, path: &str) -> SourceRank {
        let count = |key: &str| self.item.at(key).map_or(0, |one| one.list().len());
        let headers = self.item.entries_at("headers").len();
        let conditions = [count("methods"), count("hosts"), headers, count("paths")];
        let conditions = conditions.iter().filter(|count| **count > 0).count();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let is_regex = path.starts_with('~');
        let priority = self.item.text_at("regex_priority");
        let priority = priority.and_then(|text| text.parse().ok()).unwrap_or(0);
        [
            number(conditions),
            i64::from(host.is_some_and(|host| !host.contains('*'))),
            number(headers),
            i64::from(is_regex),
            if is_regex { priority } else { 0 },
            number(path.len()),
        ]
    }

    fn find_target(
        &self,
        plugins: &KongRoutePlugins<'d>,
        model: Result<&Option<KongModel<'d>>, &String>,
        file: &mut KongFile<'d>,
    ) -> TargetDraft {
        for key in ["snis", "sources", "destinations"] {
            if let Some(item) = self.item.get(key) {
                let why = "no route can say this; it is closed";
                item.lost(&format!("{}.{key}", self.what), why);
                return TargetDraft::Closed(format!("`{key}`: no route can say this"));
            }
        }
        if let Some(why) = &plugins.closed {
            return TargetDraft::Closed(why.clone());
        }
        let upstream = match model {
            Err(why) => Err(why.clone()),
            Ok(Some(model)) => model.add_upstream(self, file),
            Ok(None) => services::add_upstream(self, file),
        };
        match upstream {
            Ok(name) => TargetDraft::Upstream(name),
            Err(why) => {
                self.item.lost(&self.what, format!("{why}; it is closed"));
                TargetDraft::Closed(why)
            }
        }
    }

    fn hosts(&self) -> Vec<Option<String>> {
        let hosts = self.item.texts_at("hosts");
        self.item.hosts(&self.what, &hosts)
    }

    fn paths(&self) -> Vec<KongPath> {
        let mut found = Vec::new();
        for mut text in self.item.texts_at("paths") {
            if self.is_before_3 && is_regex_of_2(&text) {
                text.insert(0, '~');
            }
            let translated = match text.strip_prefix('~') {
                Some(regex) => patterns::regex_path(regex),
                None => patterns::prefix_path(&text).or_else(|_| patterns::text_prefix_path(&text)),
            };
            match translated {
                Ok(path) => found.push(KongPath { text, path }),
                Err(why) => self.item.lost(
                    &format!("{}: {text}", self.what),
                    format!("{why}; it is left out"),
                ),
            }
        }
        if self.item.list_at("paths").is_empty() {
            found.push(KongPath {
                text: String::new(),
                path: ImportedPath::same("/*"),
            });
        }
        found
    }

    fn add_one(
        &self,
        host: Option<String>,
        path: &KongPath,
        parts: &RouteParts<'_, 'd>,
        file: &mut KongFile<'d>,
    ) {
        let is_text_prefix = path.path.differs.is_some() && !path.text.starts_with('~');
        let text_prefix = is_text_prefix.then(|| path.text.clone());
        if let Some(why) = path.path.differs.as_ref().filter(|_| !is_text_prefix) {
            self.item.differs(&self.what, why.clone());
        }
        let rank = self.rank(host.as_deref(), &path.text);
        let source = self.item.entry(self.what.clone());
        let mut route = RouteDraft::new(source, parts.target.clone());
        route.host = host;
        route.path.clone_from(&path.path.pattern);
        route.needs_key = parts.plugins.has_keys;
        let methods = self.item.texts_at("methods");
        route.methods = methods
            .into_iter()
            .filter(|one| method_of(one).is_ok())
            .collect();
        self.add_headers(&mut route);
        match &parts.model {
            Some(model) => model.set_path(&self.what, &mut route),
            None => self.set_service_path(&mut route),
        }
        if matches!(route.target, TargetDraft::Upstream(_)) {
            route.limits.clone_from(&parts.plugins.limits);
            route
                .entries
                .list
                .extend(parts.plugins.entries.list.clone());
        }
        if let (Some(calls), Some(item)) = (&parts.calls, parts.plugins.first_budget()) {
            calls.add_to(&mut route, item, &mut file.draft);
        }
        if path.path.is_wider {
            let why = "no route can say this expression";
            let text = format!("{}: {}", self.what, path.text);
            let note = format!("{why}; all that it may take is closed");
            self.item.lost(&text, note);
            route.answer(TargetDraft::Closed(why.to_owned()));
        }
        file.routes.push(RankedRoute {
            rank,
            route,
            text_prefix,
        });
    }

    /// Adds the headers that a request must have. A route here has one value of each.
    fn add_headers(&self, route: &mut RouteDraft) {
        for (name, item) in self.item.entries_at("headers") {
            let values: Vec<&str> = item.list().iter().filter_map(TreeItem::text).collect();
            let value = match values[..] {
                [one] if !one.starts_with("~*") => one.to_owned(),
                [one] => format!("regex:(?i){}", one.trim_start_matches("~*")),
                _ => {
                    let why = "a route has one value of a header; it is closed";
                    item.lost(&format!("{}.headers.{name}", self.what), why);
                    route.target = TargetDraft::Closed(format!("several values of `{name}`"));
                    continue;
                }
            };
            route.headers.push(HeaderDraft {
                name: name.to_ascii_lowercase(),
                value: Some(value),
            });
        }
    }

    /// Sets the path that the service sees.
    fn set_service_path(&self, route: &mut RouteDraft) {
        if !matches!(route.target, TargetDraft::Upstream(_)) {
            return;
        }
        let is_kept = self.item.text_at("strip_path") == Some("false");
        let own = route.path.trim_end_matches("/*").to_owned();
        let is_plain = own.starts_with('/') && !own.contains(['{', '*']);
        if !is_kept && is_plain {
            route.entries.add("strip_prefix", quote(&own));
        } else if !is_kept && !own.is_empty() {
            let why = "what an expression matches is not taken off the path";
            self.item.lost(
                &format!("{}.strip_path", self.what),
                format!("{why}; it is closed"),
            );
            route.target = TargetDraft::Closed(why.to_owned());
            return;
        }
        let prefix = self.service.and_then(services::path_of);
        if let Some(prefix) = prefix {
            route.entries.add("add_prefix", quote(&prefix));
        }
    }
}
