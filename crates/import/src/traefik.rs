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

use super::draft::{Draft, HeaderDraft, RouteDraft, TargetDraft, one_line};
use super::files::{self, ImportError};
use super::patterns::{self, ImportedPath};
use super::tree::{self, SourceFile, TreeItem};
use super::values::quote;
use crate::route::{HostPattern, PathPattern, method_of};
use entry_points::EntryPoint;
use middlewares::MiddlewareEffect;
use rule::Alternative;

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
    add_routers(points, root.get("entryPoints"), file);
}

/// Adds every router of `http`, and the addresses of the entry points. Only routers tell which of
/// these use TLS.
fn add_routers(points: Vec<EntryPoint>, section: Option<&TreeItem>, file: &mut TraefikFile<'_>) {
    let routers = file.http.entries_at("routers");
    let mut points = complete_entry_points(points, routers);
    ports::remove_unused(&mut points, routers, section);
    entry_points::add_listens(&points, file);
    let needs_ports = ports::need_ports(&points, routers);
    // Traefik tries the longest rule first, unless a priority says otherwise.
    let mut order: Vec<&(String, TreeItem)> = routers.iter().collect();
    order.sort_by_key(|(_, router)| {
        let rule = router.text_at("rule").map_or(0, str::len);
        let priority = router.number_at("priority").filter(|one| *one > 0);
        Reverse(priority.unwrap_or(rule as u64))
    });
    for (name, item) in order {
        let router = Router {
            what: format!("router {name}"),
            item,
            points: &points,
            needs_ports,
        };
        let known = "rule service middlewares entryPoints priority tls ruleSyntax observability";
        item.note_unknown(&format!("routers.{name}."), known);
        router.add_routes(file);
    }
}

/// Adds the entry points that only routers name, and finds out which entry points use TLS.
fn complete_entry_points(
    mut points: Vec<EntryPoint>,
    routers: &[(String, TreeItem)],
) -> Vec<EntryPoint> {
    let are_in_file = !points.is_empty();
    for (_, router) in routers {
        for name in router.texts_at("entryPoints") {
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
            });
        }
    }
    let uses_tls = |name: &String| {
        let own = routers.iter().map(|(_, router)| router);
        let mut own = own.filter(|one| ports::entry_point_names(one, &points).contains(name));
        let uses_tls = |router: &TreeItem| router.get("tls").is_some();
        own.next().is_some_and(uses_tls) && own.all(uses_tls)
    };
    let with_tls: Vec<bool> = points.iter().map(|point| uses_tls(&point.name)).collect();
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
        let own = ports::entry_point_names(self.item, self.points);
        let is_own = |point: &&EntryPoint| own.contains(&point.name);
        let points: Vec<&EntryPoint> = self.points.iter().filter(is_own).collect();
        let mut names = self.item.texts_at("middlewares");
        for point in &points {
            let more = point.middlewares.iter().filter(|one| !names.contains(one));
            let more: Vec<String> = more.cloned().collect();
            names.splice(0..0, more);
        }
        let mut effect = middlewares::read_middlewares(&names, self.item, file);
        let ports = self.find_ports(&points, &mut effect);
        if !self.needs_ports && !points.is_empty() && points.iter().all(|point| point.tls) {
            let only = self.item.entry(self.what.clone());
            file.draft.tls.only.get_or_insert(only);
        }
        let is_plain = !points.is_empty() && points.iter().all(|point| !point.tls);
        let has_tls = self.points.iter().any(|point| point.tls);
        if effect.redirects_to_https && is_plain && has_tls && !self.needs_ports {
            let why = "`redirect` of [tls] sends all plain requests to https";
            self.item.differs(&self.what, why);
            file.draft.redirect_to_https();
            return;
        }
        let rule = self.item.text_at("rule").unwrap_or("PathPrefix(`/`)");
        let denies = effect.target.as_ref().is_some_and(TargetDraft::denies);
        let alternatives = match rule::parse_rule(rule) {
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
            self.item.lost(&self.what, format!("{why}; it is closed"));
            effect.target = Some(TargetDraft::Closed(why));
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
        match stripped_prefix(&effect.strip, &route.path) {
            Ok("") => {}
            Ok(prefix) => route.entries.add("strip_prefix", quote(prefix)),
            Err(why) => {
                item.lost(&format!("{what}: stripPrefix"), why);
                route.target = TargetDraft::Closed(why.to_owned());
            }
        }
        if let Some(prefix) = &effect.prefix {
            route.entries.add("add_prefix", quote(prefix));
        }
        if !matches!(route.target, TargetDraft::Closed(_)) {
            route.limits = effect.limits.clone();
        }
        for port in &shared.ports {
            let port = *port;
            self.add_for_port(
                RouteDraft {
                    port,
                    ..route.clone()
                },
                file,
            );
        }
    }

    fn add_for_port(&self, route: RouteDraft, file: &mut TraefikFile<'_>) {
        let (what, item) = (&self.what, self.item);
        // Alternatives that differ by their method are one route.
        let mut known = file.draft.routes.iter_mut();
        if let Some(same) = known.find(|one| one.differs_by_methods(&route)) {
            same.methods.extend(route.methods);
            return;
        }
        // Traefik tries the routers before this one first.
        if let Some(before) = file.draft.routes.iter().find(|one| one.contains(&route)) {
            let why = format!(
                "is the more specific route here, and Traefik asks `{}` before it",
                before.source.text
            );
            item.differs(what, why);
        }
        if let Some(first) = file.draft.add_route(route) {
            let why = format!("`{}` takes these requests", first.source.text);
            item.lost(what, why);
        }
    }
}

#[derive(Default)]
struct RouteMatch {
    host: Option<String>,
    path: Option<String>,
    methods: Vec<String>,
    headers: Vec<HeaderDraft>,
    /// How the path matches other requests than Traefik's.
    differs: Option<String>,
}

impl RouteMatch {
    /// Translates the matchers. A route that denies may match more than they do.
    fn parse(matchers: &Alternative, denies: bool) -> Result<RouteMatch, String> {
        let mut found = RouteMatch::default();
        for matcher in matchers {
            let arg = matcher.args.first().map_or("", String::as_str);
            let path = match matcher.name.as_str() {
                "Host" if found.host.is_none() && HostPattern::parse(arg).is_ok() => {
                    found.host = Some(arg.to_ascii_lowercase());
                    continue;
                }
                "HostRegexp" if found.host.is_none() && patterns::regex_host(arg).is_ok() => {
                    found.host = Some(format!("regex:{arg}"));
                    continue;
                }
                "Method" if method_of(arg).is_ok() => {
                    found.methods.push(arg.to_owned());
                    continue;
                }
                "Header" | "Headers" if matcher.args.len() == 2 => {
                    found.headers.push(HeaderDraft {
                        name: arg.to_ascii_lowercase(),
                        value: Some(matcher.args[1].clone()),
                    });
                    continue;
                }
                "Query" if matches!(matcher.args.len(), 1 | 2) && !arg.contains('=') => {
                    found.headers.push(HeaderDraft {
                        name: format!("query:{arg}"),
                        value: matcher.args.get(1).cloned(),
                    });
                    continue;
                }
                "Path" => ImportedPath::parse(arg.to_owned())?,
                "PathPrefix"
                    if denies && PathPattern::parse(arg).is_ok() && !arg.ends_with('/') =>
                {
                    patterns::text_prefix_path(arg)?
                }
                "PathPrefix" => {
                    patterns::prefix_path(arg).or_else(|_| patterns::text_prefix_path(arg))?
                }
                "PathRegexp" => patterns::plain_regex_path(arg)
                    .or_else(|_| ImportedPath::parse(format!("regex:{arg}")))?,
                _ if denies => continue,
                name => return Err(format!("no route can say {name}(`{arg}`)")),
            };
            if found.path.replace(path.pattern).is_some() {
                return Err("it wants two paths at once".to_owned());
            }
            found.differs = path.differs;
        }
        match found.methods.len() > 1 {
            true => Err("it wants two methods at once".to_owned()),
            false => Ok(found),
        }
    }
}

/// Returns the first prefix that the path begins with, or an empty text if there are no prefixes.
fn stripped_prefix<'p>(prefixes: &'p [String], path: &str) -> Result<&'p str, &'static str> {
    if prefixes.is_empty() {
        return Ok("");
    }
    let mut prefixes = prefixes.iter().map(|one| one.trim_end_matches('/'));
    let found = prefixes.find(|one| {
        let rest = path.strip_prefix(one);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    found.ok_or("a route can take off only what its own path begins with")
}
