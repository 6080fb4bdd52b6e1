//! Routers as routes: one for each alternative of their rules.

use super::File;
use super::entry_points::{self, Point};
use super::middlewares::{self, Effect};
use super::rule::{self, All};
use super::services;
use super::tree::Item;
use crate::draft::{Goal, RouteDraft};
use crate::notes::shown;
use crate::patterns;
use crate::print::text;
use crate::route::{HostPattern, PathPattern, method_of};

/// Every router of `http`; it is known then which entry points have TLS.
pub(super) fn all(http: &Item, points: &[Point], file: &mut File<'_>) {
    let empty = Item::default();
    let routers = http.get("routers").unwrap_or(&empty).entries();
    let points = with_tls(routers, points, file);
    entry_points::listen(&points, file);
    // Traefik asks those with the longest rule first, unless a priority says otherwise.
    let mut order: Vec<&(String, Item)> = routers.iter().collect();
    order.sort_by_key(|(_, router)| {
        let rule = router.text_at("rule").map_or(0, str::len);
        let priority = router
            .text_at("priority")
            .and_then(|text| text.parse::<usize>().ok());
        std::cmp::Reverse(priority.filter(|one| *one > 0).unwrap_or(rule))
    });
    for (name, router) in order {
        one(name, router, http, &points, file);
    }
}

/// Entry points, with those that only the routers name, and which of them have TLS.
fn with_tls(routers: &[(String, Item)], points: &[Point], file: &mut File<'_>) -> Vec<Point> {
    let mut points = points.to_vec();
    let are_said = !points.is_empty();
    for (_, router) in routers {
        for name in router.texts_at("entryPoints") {
            if points.iter().any(|point| point.name == name) {
                continue;
            }
            let address = match name.as_str() {
                "web" | "http" => ":80",
                "websecure" | "https" => ":443",
                _ => {
                    let why = "its address is in the static configuration; write it to `listen`";
                    file.lost(router, &format!("entryPoint {name}"), why);
                    continue;
                }
            };
            if !are_said {
                let why = format!(
                    "{address}, as usual; the static configuration says where entry points listen"
                );
                file.differs(router, &format!("entryPoint {name}"), why);
            }
            points.push(Point {
                tls: address == ":443",
                name,
                address: address.to_owned(),
                redirects: false,
                middlewares: Vec::new(),
            });
        }
    }
    for point in &mut points {
        let mut own = routers.iter().filter(|(_, router)| {
            let names = router.texts_at("entryPoints");
            names.is_empty() || names.contains(&point.name)
        });
        let mut any = false;
        let all_tls = own.all(|(_, router)| {
            any = true;
            router.get("tls").is_some()
        });
        point.tls |= any && all_tls;
    }
    points
}

fn one(name: &str, router: &Item, http: &Item, points: &[Point], file: &mut File<'_>) {
    let what = format!("router {name}");
    let known = [
        "rule",
        "service",
        "middlewares",
        "entryPoints",
        "priority",
        "tls",
        "ruleSyntax",
        "observability",
    ];
    file.others(router, &format!("routers.{name}."), &known);
    if router.at("tls.certResolver").is_some() {
        let why = "[tls.acme] gets certificates, once you agree to the authority's terms there";
        file.lost(router, &format!("{what}: tls.certResolver"), why);
    }
    let empty = Item::default();
    let mut names = router.texts_at("middlewares");
    let own = router.texts_at("entryPoints");
    let here: Vec<&Point> = points
        .iter()
        .filter(|point| own.is_empty() || own.contains(&point.name))
        .collect();
    for point in &here {
        let more = point.middlewares.iter().filter(|one| !names.contains(one));
        let more: Vec<String> = more.cloned().collect();
        names.splice(0..0, more);
    }
    let all = http.get("middlewares").unwrap_or(&empty);
    let effect = middlewares::effect(&names, all, router, file);
    if !here.is_empty() && here.iter().all(|point| point.tls) {
        let only = (file.place(router), what.clone());
        file.draft.tls.only.get_or_insert(only);
    }
    let is_plain = !here.is_empty() && here.iter().all(|point| !point.tls);
    let has_tls = points.iter().any(|point| point.tls);
    if effect.to_https && is_plain && has_tls {
        let why = "`redirect` of [tls] sends all plain requests to https";
        file.differs(router, &what, why);
        entry_points::redirect(file);
        return;
    }
    let rule = router
        .text_at("rule")
        .unwrap_or("PathPrefix(`/`)")
        .to_owned();
    let alternatives = match rule::read(&rule) {
        Ok(found) => found,
        // What is closed may be more than what the rule says.
        Err(_) if effect.goal.as_ref().is_some_and(Goal::refuses) => vec![Vec::new()],
        Err(why) => return leave_out(router, &format!("{what}: {rule}"), &why, file),
    };
    let goal = goal(&what, router, &effect, http, file);
    let named = RouterDraft {
        what,
        item: router,
        rule,
        goal,
        effect,
    };
    for alternative in alternatives {
        named.add(&alternative, file);
    }
}

/// What becomes of a router's requests.
fn goal(what: &str, router: &Item, effect: &Effect, http: &Item, file: &mut File<'_>) -> Goal {
    if let Some(goal) = &effect.goal {
        return goal.clone();
    }
    let service = router.text_at("service").unwrap_or_default().to_owned();
    match services::upstream(&service, effect.retries, http, file) {
        Ok(name) => Goal::Upstream(name),
        Err(why) => {
            file.lost(router, &format!("{what}: service {service}"), why.clone());
            Goal::Closed(format!("service {service}: {why}"))
        }
    }
}

/// What a rule's alternative says.
#[derive(Default)]
struct Wanted {
    host: Option<String>,
    path: Option<String>,
    methods: Vec<String>,
    headers: Vec<(String, Option<String>)>,
    differs: Option<String>,
}

/// `closes` is whether the route turns all of its requests away.
fn wanted(all: &All, closes: bool) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    for matcher in all {
        let arg = matcher.args.first().map_or("", String::as_str);
        let paths = match matcher.name.as_str() {
            "Host" if wanted.host.is_none() && HostPattern::parse(arg).is_ok() => {
                wanted.host = Some(arg.to_ascii_lowercase());
                continue;
            }
            "Method" if method_of(arg).is_ok() => {
                wanted.methods.push(arg.to_owned());
                continue;
            }
            "Header" | "Headers" if matcher.args.len() == 2 => {
                let name = arg.to_ascii_lowercase();
                wanted.headers.push((name, Some(matcher.args[1].clone())));
                continue;
            }
            "Path" => match PathPattern::parse(arg) {
                Ok(_) => Ok(patterns::Paths::plain(arg)),
                Err(_) => Err(format!("`{arg}` cannot be a route's path")),
            },
            "PathPrefix" if closes && PathPattern::parse(arg).is_ok() && !arg.ends_with('/') => {
                patterns::beginning(arg)
            }
            "PathPrefix" => patterns::prefix(arg).or_else(|_| patterns::beginning(arg)),
            "PathRegexp" => patterns::regex(arg, false)
                .or_else(|_| patterns::checked(format!("regex:{arg}"), None)),
            // What is closed may be more than what the rule says.
            _ if closes => continue,
            name => Err(format!("no route can say {name}(`{arg}`)")),
        };
        let paths = paths?;
        if wanted.path.replace(paths.pattern).is_some() {
            return Err("it wants two paths at once".to_owned());
        }
        wanted.differs = paths.differs;
    }
    match wanted.methods.len() > 1 {
        true => Err("it wants two methods at once".to_owned()),
        false => Ok(wanted),
    }
}

/// Leaves a rule out, or one of its alternatives, and says so.
fn leave_out(router: &Item, rule: &str, why: &str, file: &mut File<'_>) {
    file.lost(router, rule, format!("{why}; it is left out"));
}

/// A router whose middlewares and service have been read.
struct RouterDraft<'f> {
    /// `router NAME`
    what: String,
    item: &'f Item,
    rule: String,
    goal: Goal,
    effect: Effect,
}

impl RouterDraft<'_> {
    /// The route of one of its rule's alternatives.
    fn add(&self, all: &All, file: &mut File<'_>) {
        let RouterDraft {
            what,
            item: router,
            rule,
            goal,
            effect,
        } = self;
        let wanted = match wanted(all, goal.refuses()) {
            Ok(wanted) => wanted,
            Err(why) => return leave_out(router, &format!("{what}: {rule}"), &why, file),
        };
        if let Some(why) = wanted.differs {
            file.differs(router, what, why);
        }
        let path = wanted.path.unwrap_or_else(|| "/*".to_owned());
        let mut goal = goal.clone();
        let mut settings = effect.settings.clone();
        match strip(&effect.strip, &path) {
            Ok(Some(prefix)) => settings.push(("strip_prefix".to_owned(), text(&prefix))),
            Ok(None) => {}
            Err(why) => {
                file.lost(router, &format!("{what}: stripPrefix"), why);
                goal = Goal::Closed(why.to_owned());
            }
        }
        if let Some(prefix) = &effect.prefix {
            settings.push(("add_prefix".to_owned(), text(prefix)));
        }
        let limits = match goal {
            Goal::Closed(_) => Vec::new(),
            _ => effect.limits.clone(),
        };
        let route = RouteDraft {
            place: file.place(router),
            was: shown(&format!("{what}: {rule}")),
            host: wanted.host,
            path,
            methods: wanted.methods,
            headers: wanted.headers,
            goal,
            limits,
            settings,
        };
        // Methods of one rule are one route.
        let mut known = file.draft.routes.iter_mut();
        if let Some(same) = known.find(|one| one.is_but_for_methods(&route)) {
            same.methods.extend(route.methods);
            return;
        }
        // Traefik has asked those before this one first.
        let before = file.draft.routes.iter().find(|one| one.surrounds(&route));
        if let Some(before) = before {
            let why = format!(
                "is the more specific route here, and Traefik asks `{}` before it",
                before.was
            );
            file.differs(router, what, why);
        }
        if let Some(first) = file.draft.add_route(route) {
            let why = format!("`{}` takes these requests", first.was);
            file.lost(router, what, why);
        }
    }
}

/// The prefix that is taken off a path, of those that are named.
fn strip(prefixes: &[String], path: &str) -> Result<Option<String>, &'static str> {
    if prefixes.is_empty() {
        return Ok(None);
    }
    let fits = prefixes
        .iter()
        .map(|one| one.trim_end_matches('/'))
        .find(|one| {
            let rest = path.strip_prefix(one);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    match fits {
        Some("") => Ok(None),
        Some(prefix) => Ok(Some(prefix.to_owned())),
        None => Err("a route can take off only what its own path begins with"),
    }
}
