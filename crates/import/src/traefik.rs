//! Reads YAML or TOML files of Traefik, dynamic and static, and compose files whose containers have
//! labels. This file translates the routers.

mod entry_points;
mod labels;
mod middlewares;
mod ports;
mod rule;
mod services;

use std::cmp::Reverse;
use std::path::Path;

use super::draft::{Draft, RouteDraft, TargetDraft, one_line};
use super::files::{self, ImportError};
use super::overlaps;
use super::tree::{self, SourceFile, TreeItem};
use super::values::quote;
use entry_points::{EntryPoint, TlsOptions};
use middlewares::MiddlewareEffect;
use rule::{Alternative, RouteMatch, RuleSyntax, StrippedPath};

struct TraefikFile<'d> {
    /// The section with the routers, the services and the middlewares.
    http: &'d TreeItem,
    draft: Draft,
}

/// Returns a name without its provider: `auth` of `auth@file`.
fn local_name(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

impl<'d> TraefikFile<'d> {
    fn find(&self, kind: &str, name: &str) -> Option<&'d TreeItem> {
        self.http.get(kind)?.get(local_name(name))
    }
}

pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let text = files::read_text(path)?;
    let source = SourceFile::named(path);
    let root = match is_toml(path, &text) {
        true => tree::read_toml(&text, &source)?,
        false => tree::read_yaml(&text, &source)?,
    };
    let root = labels::read_compose(&root).unwrap_or(root);
    let empty = TreeItem::default();
    let mut file = TraefikFile {
        http: root.get("http").unwrap_or(&empty),
        draft: Draft::default(),
    };
    file.draft.notes = source.notes.clone();
    read_root(&root, &mut file);
    if file.draft.routes.is_empty() {
        let input = "be a file with `http.routers`, or a compose file with labels such as \
                     `traefik.http.routers.NAME.rule`";
        source.note_missing("no http.routers", input);
    }
    Ok(file.draft)
}

/// Whether the first line with content is the head of a table or a key with `=`, or the name ends
/// with `.toml`.
fn is_toml(path: &Path, text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    path.extension().is_some_and(|ending| ending == "toml")
        || first.is_some_and(|line| {
            let sign = line.find(['=', ':']);
            line.starts_with('[') || sign.is_some_and(|at| line[at..].starts_with('='))
        })
}

/// Sections that tidegate does not need.
const NEEDLESS: [(&str, &str); 12] = [
    ("providers", "this is one file"),
    ("api", "`admin` is an address for operators"),
    ("ping", "`admin` has /healthz and /readyz"),
    ("log", "RUST_LOG, and `format` of [log]"),
    ("accessLog", "`access` of [log]"),
    ("metrics", "`admin` has /metrics"),
    ("global", "tidegate sends no data about itself"),
    ("experimental", "there are no plugins"),
    ("pilot", "tidegate sends no data about itself"),
    ("core", "there is one syntax"),
    ("hub", "tidegate sends no data about itself"),
    ("spiffe", "certificates are files"),
];

fn read_root(root: &TreeItem, file: &mut TraefikFile<'_>) {
    let known = "http tls entryPoints certificatesResolvers serversTransport";
    let mut known = known.to_owned();
    for (section, why) in NEEDLESS {
        for (key, item) in root.entries() {
            if key.eq_ignore_ascii_case(section) {
                item.needless(key, why);
            }
        }
        known = format!("{known} {section}");
    }
    root.note_unknown("", &known);
    let points = entry_points::read_entry_points(root, file);
    entry_points::read_tls(root, file);
    let sections = "routers middlewares services serversTransports";
    file.http.note_unknown("http.", sections);
    add_routers(points, root, file);
}

/// Adds every router of `http`, and the addresses of the entry points. Only routers tell which of
/// these use TLS.
fn add_routers(points: Vec<EntryPoint>, root: &TreeItem, file: &mut TraefikFile<'_>) {
    let routers = file.http.entries_at("routers");
    let mut points = complete_entry_points(points, routers);
    ports::remove_unused(&mut points, routers, root.get("entryPoints"));
    entry_points::add_listens(&points, root, file);
    let needs_ports = ports::need_ports(&points, routers);
    let with_tls = routers.iter().map(|(_, router)| router);
    let used = with_tls.filter_map(|one| ports::options_of(one, &points));
    let used: Vec<String> = used.collect();
    let options = TlsOptions::read(root, &used, &mut file.draft);
    let syntax = RuleSyntax::parse(root.text_at("core.defaultRuleSyntax"));
    // Traefik tries the longest rule first, unless a priority says otherwise.
    let mut order: Vec<&(String, TreeItem)> = routers.iter().collect();
    order.sort_by_key(|(_, router)| {
        let rule = router.text_at("rule").map_or(0, str::len);
        let priority = router
            .text_at("priority")
            .and_then(|text| text.parse().ok());
        let priority = priority.filter(|priority| *priority != 0);
        Reverse(priority.unwrap_or_else(|| i64::try_from(rule).unwrap_or(i64::MAX)))
    });
    for (name, item) in order {
        let router = Router {
            what: format!("router {name}"),
            item,
            points: &points,
            needs_ports,
            options: &options,
            syntax,
        };
        let known = "rule service middlewares entryPoints priority tls ruleSyntax observability";
        item.note_unknown(&format!("routers.{name}."), known);
        router.add_routes(file);
    }
    overlaps::note_order("Traefik", &mut file.draft);
}

/// Adds the entry points that only routers name, and finds out which entry points use TLS.
fn complete_entry_points(
    mut points: Vec<EntryPoint>,
    routers: &[(String, TreeItem)],
) -> Vec<EntryPoint> {
    let are_in_file = !points.is_empty();
    let has_tls = |router: &TreeItem| router.get("tls").is_some();
    let some_tls = routers.iter().any(|(_, router)| has_tls(router));
    for (_, router) in routers {
        let mut names = router.texts_at("entryPoints");
        if names.is_empty() && !are_in_file && some_tls {
            names.push(["web", "websecure"][usize::from(has_tls(router))].to_owned());
        }
        for name in names {
            if points.iter().any(|point| point.name == name) {
                continue;
            }
            let what = format!("entryPoint {name}");
            let address = match name.as_str() {
                "web" | "http" => ":80",
                "websecure" | "https" => ":443",
                _ => {
                    let why = "its address is in the static configuration; write it to `listen`";
                    router.lost(&what, why);
                    continue;
                }
            };
            if !are_in_file {
                let why = format!(
                    "{address}, as usual; the static configuration says where entry points listen"
                );
                router.differs(&what, why);
            }
            points.push(EntryPoint {
                tls: address == ":443",
                name,
                address: address.to_owned(),
                redirects: false,
                is_default: false,
                middlewares: Vec::new(),
                tls_options: None,
            });
        }
    }
    let uses_tls = |point: &EntryPoint| {
        let own = routers.iter().map(|(_, router)| router);
        let names = |one: &&TreeItem| ports::entry_point_names(one, &points);
        let own = own.filter(|one| names(one).contains(&point.name));
        let own: Vec<bool> = own.map(has_tls).collect();
        let is_for_tls = point.port() == Some(443) || !own.contains(&false);
        own.contains(&true) && is_for_tls
    };
    let with_tls: Vec<bool> = points.iter().map(uses_tls).collect();
    for (point, tls) in points.iter_mut().zip(with_tls) {
        point.tls |= tls;
    }
    points
}

struct Router<'f> {
    /// `router NAME`
    what: String,
    item: &'f TreeItem,
    points: &'f [EntryPoint],
    /// Whether its routes are for the ports of its entry points alone.
    needs_ports: bool,
    options: &'f TlsOptions<'f>,
    /// That of rules which name none.
    syntax: RuleSyntax,
}

/// The common parts of the routes of a router's alternatives.
struct SharedRoute {
    rule: String,
    target: TargetDraft,
    effect: MiddlewareEffect,
    /// `None` is every port.
    ports: Vec<Option<u16>>,
}

impl Router<'_> {
    /// Adds a route for each alternative of its rule.
    fn add_routes(&self, file: &mut TraefikFile<'_>) {
        if self.item.at("tls.certResolver").is_some() {
            let what = format!("{}: tls.certResolver", self.what);
            entry_points::note_acme(self.item, &what);
        }
        let points = ports::entry_points(self.item, self.points);
        let mut names = self.item.texts_at("middlewares");
        for point in &points {
            let more = point.middlewares.iter().filter(|one| !names.contains(one));
            let more: Vec<String> = more.cloned().collect();
            names.splice(0..0, more);
        }
        let mut effect = middlewares::read_middlewares(&names, self, file);
        let ports = self.find_ports(&points, &mut effect);
        if !self.needs_ports && !points.is_empty() && points.iter().all(|point| point.tls) {
            let only = self.item.entry(self.what.clone());
            file.draft.tls.only.get_or_insert(only);
        }
        self.find_guards(&points, &mut effect);
        if self.redirect_plain(&points, &mut effect, file) {
            return;
        }
        let rule = self.item.text_at("rule").unwrap_or("PathPrefix(`/`)");
        let denies = effect.target.as_ref().is_some_and(TargetDraft::denies);
        let syntax = self.item.text_at("ruleSyntax");
        let syntax = syntax.map_or(self.syntax, |own| RuleSyntax::parse(Some(own)));
        let alternatives = match rule::parse_rule(rule, syntax) {
            Ok(found) => found,
            // A closed route may match more than the rule.
            Err(_) if denies => vec![Vec::new()],
            Err(why) => return self.note_left_out(rule, &why),
        };
        let shared = SharedRoute {
            rule: rule.to_owned(),
            target: self.find_target(&effect, file),
            effect,
            ports,
        };
        for alternative in alternatives {
            self.add_route(&alternative, &shared, file);
        }
    }

    /// Closes a router whose TLS would be lost, and asks for the certificates of its clients.
    fn find_guards(&self, points: &[&EntryPoint], effect: &mut MiddlewareEffect) {
        let has_tls = points.iter().any(|point| point.tls);
        if self.item.get("tls").is_some() && !points.is_empty() && !has_tls {
            let why = "it is served over TLS only, and other routers use its entryPoints without";
            self.close(why, effect);
        }
        let name = ports::options_of(self.item, self.points);
        match name.map_or(Ok(false), |name| self.options.need_certificate(&name)) {
            Ok(false) => {}
            Ok(true) => effect.entries.add("require_client_certificate", "true"),
            Err(why) => self.close(why, effect),
        }
    }

    fn close(&self, why: &str, effect: &mut MiddlewareEffect) {
        self.item.lost(&self.what, format!("{why}; it is closed"));
        effect.target = Some(TargetDraft::Closed(why.to_owned()));
    }

    /// Translates `redirectScheme`, which is for plain requests only. Returns whether the router
    /// has no others.
    fn redirect_plain(
        &self,
        points: &[&EntryPoint],
        effect: &mut MiddlewareEffect,
        file: &mut TraefikFile<'_>,
    ) -> bool {
        let has_own_tls = points.iter().any(|point| point.tls);
        let has_plain = points.iter().any(|point| !point.tls);
        let has_tls = self.points.iter().any(|point| point.tls);
        let is_apart = self.needs_ports && !has_own_tls;
        if !effect.redirects_to_https || !has_tls || points.is_empty() || is_apart {
            return false;
        }
        if has_plain {
            let why = "`redirect` of [tls] sends all plain requests to https, also those of other \
                       routers";
            self.item.differs(&self.what, why);
            file.draft.redirect_to_https();
        }
        effect
            .target
            .take_if(|target| matches!(target, TargetDraft::Redirect { .. }));
        !has_own_tls
    }

    /// Returns the ports of its routes, and closes them if these cannot be told apart.
    fn find_ports(
        &self,
        points: &[&EntryPoint],
        effect: &mut MiddlewareEffect,
    ) -> Vec<Option<u16>> {
        if !self.needs_ports || points.len() == self.points.len() {
            return vec![None];
        }
        ports::ports_of(points, self.points).unwrap_or_else(|why| {
            self.close(&why, effect);
            vec![None]
        })
    }

    fn note_left_out(&self, rule: &str, why: &str) {
        let what = format!("{}: {rule}", self.what);
        self.item.lost(&what, format!("{why}; it is left out"));
    }

    fn find_target(&self, effect: &MiddlewareEffect, file: &mut TraefikFile<'_>) -> TargetDraft {
        if let Some(target) = &effect.target {
            return target.clone();
        }
        let service = self.item.text_at("service").unwrap_or_default();
        match services::add_upstream(service, effect.retries, file) {
            Ok(name) => TargetDraft::Upstream(name),
            Err(why) => {
                let what = format!("{}: service {service}", self.what);
                self.item.lost(&what, why.clone());
                TargetDraft::Closed(format!("service {service}: {why}"))
            }
        }
    }

    fn add_route(
        &self,
        alternative: &Alternative,
        shared: &SharedRoute,
        file: &mut TraefikFile<'_>,
    ) {
        let (what, item, effect) = (&self.what, self.item, &shared.effect);
        let parts = match RouteMatch::parse(alternative, shared.target.denies()) {
            Ok(parts) => parts,
            Err(why) => return self.note_left_out(&shared.rule, &why),
        };
        if let Some(why) = parts.differs {
            item.differs(what, why);
        }
        let source = item.entry(one_line(&format!("{what}: {}", shared.rule)));
        let mut route = RouteDraft::new(source, shared.target.clone());
        route.host = parts.host;
        route.methods = parts.methods;
        route.headers = parts.headers;
        route.path = parts.path.unwrap_or(route.path);
        route.entries = effect.entries.clone();
        let paths = rule::stripped_paths(&effect.strip, &route.path).unwrap_or_else(|why| {
            item.lost(&format!("{what}: stripPrefix"), why);
            route.target = TargetDraft::Closed(why.to_owned());
            vec![StrippedPath::whole(&route.path)]
        });
        if !matches!(route.target, TargetDraft::Closed(_)) {
            route.limits = effect.limits.clone();
        }
        for StrippedPath { path, prefix } in paths {
            for port in &shared.ports {
                let (mut route, path) = (route.clone(), path.clone());
                if !prefix.is_empty() {
                    route.entries.add("strip_prefix", quote(&prefix));
                }
                if let Some(prefix) = &effect.prefix {
                    route.entries.add("add_prefix", quote(prefix));
                }
                (route.path, route.port) = (path, *port);
                add_route(route, &mut file.draft);
            }
        }
    }
}

/// Adds a route. Alternatives that differ by their method are one route.
fn add_route(route: RouteDraft, draft: &mut Draft) {
    let mut known = draft.routes.iter_mut();
    match known.find(|one| differ_by_methods(one, &route)) {
        Some(same) => same.methods.extend(route.methods),
        None => draft.add_or_note(route),
    }
}

/// Whether the routes come from one place and only their methods differ.
fn differ_by_methods(one: &RouteDraft, other: &RouteDraft) -> bool {
    one.source.place == other.source.place
        && one.port == other.port
        && (&one.host, &one.path, &one.headers) == (&other.host, &other.path, &other.headers)
        && !one.methods.is_empty()
        && !other.methods.is_empty()
        && !one.methods_meet(other)
}
