//! Reads routes of APISIX: `apisix.yaml`, a file of ADC, or JSON of the Admin API.

mod budgets;
mod models;
mod plugins;
mod upstreams;

use std::path::Path;

use super::draft::{Draft, RouteDraft, TargetDraft};
use super::files::{self, ImportError};
use super::overlaps::{self, RankedRoute, SourceRank};
use super::patterns::{self, ImportedPath};
use super::tree::{self, SourceFile, TreeItem};
use crate::route::method_of;
use models::ApisixModel;
use plugins::RoutePlugins;

struct ApisixFile<'d> {
    root: &'d TreeItem,
    draft: Draft,
    routes: Vec<RankedRoute>,
}

pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let text = files::read_text(path)?;
    let source = SourceFile::named(path);
    let root = tree::read_yaml(&text, &source)?;
    let mut file = ApisixFile {
        root: &root,
        draft: Draft::default(),
        routes: Vec::new(),
    };
    file.draft.notes = source.notes.clone();
    file.add_all();
    overlaps::add_in_order(std::mem::take(&mut file.routes), "APISIX", &mut file.draft);
    if file.draft.routes.is_empty() {
        let input = "have `routes`, `services` with `routes`, or be one route with `uri`";
        source.note_missing("no routes", input);
    }
    Ok(file.draft)
}

/// A route with what it inherits.
struct ApisixRoute<'d> {
    /// `route NAME`
    what: String,
    item: &'d TreeItem,
    service: Option<&'d TreeItem>,
}

impl<'d> ApisixFile<'d> {
    fn add_all(&mut self) {
        let root = self.root;
        let known = "routes services upstreams plugin_configs consumers consumer_groups \
                     global_rules ssls plugin_metadata stream_routes protos secrets";
        // The Admin API has one route, or its `value`.
        let single = root.get("value").unwrap_or(root);
        if single.get("uri").is_some() || single.get("uris").is_some() {
            return self.add_route(single, None);
        }
        root.note_unknown("", known);
        for key in [
            "consumers",
            "consumer_groups",
            "stream_routes",
            "ssls",
            "secrets",
        ] {
            if let Some(item) = root.get(key) {
                item.lost(
                    key,
                    "tidegate has them in another form, and they are not copied",
                );
            }
        }
        for item in root.list_at("routes") {
            let item = item.get("value").unwrap_or(item);
            let service = item
                .get("service_id")
                .and_then(|id| self.find("services", id));
            self.add_route(item, service);
        }
        for service in root.list_at("services") {
            for item in service.list_at("routes") {
                self.add_route(item, Some(service));
            }
        }
    }

    /// Returns the element of a list with an id.
    fn find(&self, list: &str, id: &TreeItem) -> Option<&'d TreeItem> {
        let id = id.text()?;
        let mut all = self.root.list_at(list).iter();
        all.find(|one| {
            ["id", "name"]
                .iter()
                .any(|key| one.text_at(key) == Some(id))
        })
    }

    fn add_route(&mut self, item: &'d TreeItem, service: Option<&'d TreeItem>) {
        let name = item.text_at("name").or_else(|| item.text_at("id"));
        let uri = item.text_at("uri").unwrap_or("unnamed");
        let route = ApisixRoute {
            what: format!("route {}", name.unwrap_or(uri)),
            item,
            service,
        };
        let known = "id name desc uri uris host hosts method methods plugins plugin_config_id \
                     upstream upstream_id service_id priority status labels timeout vars \
                     remote_addr remote_addrs enable_websocket create_time update_time \
                     description filter_func script";
        item.note_unknown(&format!("{}.", route.what), known);
        if matches!(item.text_at("status"), Some("0")) {
            return item.needless(&route.what, "the route is not enabled");
        }
        let plugins = plugins::read(&route, self);
        let model = models::read(&route, &plugins);
        let target = route.find_target(&plugins, &model, self);
        for host in route.hosts() {
            for path in route.paths() {
                let place = RoutePlace {
                    rank: route.rank(host.as_deref(), &path.path),
                    host: host.clone(),
                    path,
                };
                route.add_one(place, target.clone(), &plugins, &model, self);
            }
        }
    }
}

/// Where a route takes requests.
struct RoutePlace {
    host: Option<String>,
    path: UriPath,
    rank: SourceRank,
}

/// A path as the file has it, and its translation.
struct UriPath {
    uri: String,
    path: ImportedPath,
}

/// Whether a path has parameters or stars within, or braces.
fn is_wildcard(uri: &str) -> bool {
    uri.contains(['*', '{', '}']) || uri.contains("/:")
}

impl<'d> ApisixRoute<'d> {
    fn find_target(
        &self,
        plugins: &RoutePlugins<'d>,
        model: &Result<Option<ApisixModel<'d>>, String>,
        file: &mut ApisixFile<'d>,
    ) -> TargetDraft {
        for key in [
            "vars",
            "filter_func",
            "script",
            "remote_addr",
            "remote_addrs",
        ] {
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
            Ok(Some(model)) => Ok(model.add_upstream(file)),
            Ok(None) => upstreams::add_upstream(self, file),
        };
        match upstream {
            Ok(name) => TargetDraft::Upstream(name),
            Err(why) => {
                self.item.lost(&self.what, format!("{why}; it is closed"));
                TargetDraft::Closed(why)
            }
        }
    }

    fn texts(&self, one: &str, several: &str) -> Vec<String> {
        let mut texts = self.item.texts_at(several);
        texts.extend(self.item.text_at(one).map(str::to_owned));
        texts
    }

    fn hosts(&self) -> Vec<Option<String>> {
        let mut hosts = self.texts("host", "hosts");
        if hosts.is_empty() {
            hosts = self
                .service
                .map_or(Vec::new(), |item| item.texts_at("hosts"));
        }
        self.item.hosts(&self.what, &hosts)
    }

    /// APISIX asks routes by their host, then the longest path, then by their `priority`.
    fn rank(&self, host: Option<&str>, path: &ImportedPath) -> SourceRank {
        let number = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        let priority = self.item.text_at("priority");
        let is_regex = path.pattern.starts_with("regex:");
        let length = path.pattern.trim_end_matches("/*").len();
        [
            i64::from(host.is_some_and(|host| !host.starts_with('*'))),
            number(host.map_or(0, str::len)),
            i64::from(!is_regex && !path.pattern.ends_with("/*")),
            number(if is_regex {
                length.saturating_sub(7)
            } else {
                length
            }),
            priority.and_then(|text| text.parse().ok()).unwrap_or(0),
            0,
        ]
    }

    /// `/a` is one path, and `/a*` a beginning of paths.
    fn paths(&self) -> Vec<UriPath> {
        let mut found = Vec::new();
        for uri in self.texts("uri", "uris") {
            let translated = match uri.strip_suffix('*') {
                Some(start) if !is_wildcard(start) => {
                    patterns::prefix_path(start).or_else(|_| patterns::text_prefix_path(start))
                }
                Some(_) => patterns::wildcard_path(&uri),
                None if is_wildcard(&uri) => patterns::wildcard_path(&uri),
                None => patterns::exact_path(&uri),
            };
            match translated {
                Ok(path) => found.push(UriPath { uri, path }),
                Err(why) => self.item.lost(
                    &format!("{}: {uri}", self.what),
                    format!("{why}; it is left out"),
                ),
            }
        }
        found
    }

    fn add_one(
        &self,
        place: RoutePlace,
        target: TargetDraft,
        plugins: &RoutePlugins<'d>,
        model: &Result<Option<ApisixModel<'d>>, String>,
        file: &mut ApisixFile<'d>,
    ) {
        let UriPath { uri, path } = place.path;
        let text_prefix = uri.strip_suffix('*').filter(|_| path.differs.is_some());
        let mut route = RouteDraft::new(self.item.entry(self.what.clone()), target);
        route.host = place.host;
        route.path = path.pattern;
        let methods = self.item.texts_at("methods").into_iter();
        route.methods = methods.filter(|one| method_of(one).is_ok()).collect();
        if let Ok(Some(model)) = model {
            model.set_path(&self.what, &mut route);
        }
        if matches!(route.target, TargetDraft::Upstream(_)) {
            route.limits.clone_from(&plugins.limits);
        }
        if let Some(item) = plugins.budgets {
            match model {
                Ok(Some(model)) => {
                    let calls = budgets::read_calls(self, item, plugins, model, file);
                    calls.add_to(&mut route, item, &mut file.draft);
                }
                Ok(None) => {
                    let why = "did nothing in APISIX: the route has no ai-proxy and no \
                               ai-proxy-multi. Here `usage` of the route and a limit with \
                               `counts` would count";
                    item.lost(&format!("{}: ai-rate-limiting", self.what), why);
                }
                Err(_) => {}
            }
        }
        file.routes.push(RankedRoute {
            rank: place.rank,
            route,
            text_prefix: text_prefix.map(str::to_owned),
        });
    }
}
