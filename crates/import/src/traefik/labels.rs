//! Labels of containers in a compose file, as the configuration that Traefik makes of them.

use super::tree::{Item, Node};

/// Keys within keys, at most.
const MAX_DEPTH: usize = 16;
/// Options whose value is a list: `a,b`.
const LISTS: [&str; 9] = [
    "middlewares",
    "entrypoints",
    "prefixes",
    "sourcerange",
    "users",
    "excludedips",
    "trustedips",
    "sourcenames",
    "permittedhosts",
];

/// What the labels of a compose file come to.
pub(super) struct Compose {
    /// `http` and `entryPoints`, as in a file.
    pub(super) root: Item,
    /// What cannot be kept: where, what and why.
    pub(super) lost: Vec<(usize, String, &'static str)>,
    /// Where the first label stands.
    pub(super) line: usize,
}

/// Reads labels, if the file has any of Traefik's.
pub(super) fn compose(root: &Item) -> Option<Compose> {
    let services = root.get("services")?.entries();
    let mut found = Compose {
        root: Item {
            line: 1,
            node: Node::Table(Vec::new()),
        },
        lost: Vec::new(),
        line: 0,
    };
    for (name, service) in services {
        let mut labels = pairs(service.get("labels"));
        labels.extend(pairs(service.at("deploy.labels")));
        labels.retain(|(key, _)| begins(key, "traefik."));
        if let Some((_, first)) = labels.first().filter(|_| found.line == 0) {
            found.line = first.line;
        }
        container(name, service, &labels, &mut found);
        for (key, value) in pairs(service.get("command")) {
            let key = key.trim_start_matches('-');
            if begins(key, "entrypoints.") || begins(key, "certificatesresolvers.") {
                found.insert(key, value);
            }
        }
    }
    (found.line > 0).then_some(found)
}

fn begins(text: &str, with: &str) -> bool {
    let head = text.get(..with.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(with))
}

/// `- key=value` and `key: value`.
fn pairs(labels: Option<&Item>) -> Vec<(String, Item)> {
    let Some(labels) = labels else {
        return Vec::new();
    };
    let listed = labels.list().iter().filter_map(|one| {
        let (key, value) = one.text()?.split_once('=').unwrap_or((one.text()?, "true"));
        let node = Node::Text(value.to_owned());
        let item = Item {
            line: one.line,
            node,
        };
        Some((key.trim().to_owned(), item))
    });
    let mut found: Vec<(String, Item)> = listed.collect();
    found.extend(labels.entries().iter().cloned());
    found
}

/// A container and its labels.
struct Container<'c> {
    name: &'c str,
    service: &'c Item,
    labels: &'c [(String, Item)],
    line: usize,
}

fn container(name: &str, service: &Item, labels: &[(String, Item)], found: &mut Compose) {
    let Some(line) = labels.first().map(|(_, item)| item.line) else {
        return;
    };
    let container = Container {
        name,
        service,
        labels,
        line,
    };
    if container.value("traefik.enable") == Some("false") {
        return;
    }
    container.options(found);
    let mut services = container.named("services");
    if services.is_empty() {
        services.push(name.to_owned());
    }
    for one in &services {
        container.servers(one, found);
    }
    container.routers(&services, found);
}

impl Container<'_> {
    fn value(&self, key: &str) -> Option<&str> {
        let is_it = |(known, _): &&(String, Item)| known.eq_ignore_ascii_case(key);
        self.labels.iter().find(is_it)?.1.text()
    }

    /// Names of routers, services and middlewares.
    fn named(&self, kind: &str) -> Vec<String> {
        let begin = format!("traefik.http.{kind}.");
        let keys = self.labels.iter().filter(|(key, _)| begins(key, &begin));
        let mut names: Vec<String> = keys
            .filter_map(|(key, _)| key[begin.len()..].split('.').next().map(str::to_owned))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    fn item(&self, node: Node) -> Item {
        Item {
            line: self.line,
            node,
        }
    }

    /// Puts every label where its key says.
    fn options(&self, found: &mut Compose) {
        for (key, item) in self.labels {
            if !begins(key, "traefik.http.") {
                let own = ["traefik.enable", "traefik.docker.", "traefik.swarm."];
                if !own.iter().any(|known| begins(key, known)) {
                    let why = "tidegate has nothing like it";
                    found.lost.push((item.line, key.clone(), why));
                }
                continue;
            }
            let path = &key["traefik.".len()..];
            if !path.to_ascii_lowercase().contains(".loadbalancer.server.") {
                found.insert(path, item.clone());
            }
        }
    }

    /// The only server of a service is the container.
    fn servers(&self, service: &str, found: &mut Compose) {
        let of = |end: &str| {
            self.value(&format!(
                "traefik.http.services.{service}.loadbalancer.server.{end}"
            ))
        };
        let port = of("port")
            .map(str::to_owned)
            .or_else(|| exposed(self.service));
        let url = match (of("url"), port) {
            (Some(url), _) => url.to_owned(),
            (None, Some(port)) => {
                format!("{}://{}:{port}", of("scheme").unwrap_or("http"), self.name)
            }
            (None, None) => {
                let why = "no label says the port: \
                           `traefik.http.services.NAME.loadbalancer.server.port`";
                found
                    .lost
                    .push((self.line, format!("service {service}"), why));
                return;
            }
        };
        let server = Node::Table(vec![("url".to_owned(), self.item(Node::Text(url)))]);
        let servers = self.item(Node::List(vec![self.item(server)]));
        found.insert(
            &format!("http.services.{service}.loadBalancer.servers"),
            servers,
        );
    }

    /// Routers name their service, and have a rule.
    fn routers(&self, services: &[String], found: &mut Compose) {
        let routers = self.named("routers");
        if routers.is_empty() {
            let why = "Traefik makes a rule of the container's name; write one";
            found
                .lost
                .push((self.line, format!("{}: no router", self.name), why));
        }
        for router in routers {
            let at = format!("traefik.http.routers.{router}");
            if self.value(&format!("{at}.rule")).is_none() {
                let why = "Traefik makes a rule of the container's name; it is left out";
                let what = format!("router {router}: no rule");
                found.lost.push((self.line, what, why));
                found.remove_router(&router);
            } else if self.value(&format!("{at}.service")).is_none()
                && let [only] = services
            {
                let item = self.item(Node::Text(only.clone()));
                found.insert(&format!("http.routers.{router}.service"), item);
            }
        }
    }
}

/// The only port that a container names.
fn exposed(service: &Item) -> Option<String> {
    let port = |one: &Item| {
        let text = one.text()?.split('/').next()?.rsplit(':').next()?;
        text.parse::<u16>().ok()
    };
    let list = |key: &str| service.get(key).map(Item::list).unwrap_or_default();
    let mut ports: Vec<u16> = list("expose")
        .iter()
        .chain(list("ports"))
        .filter_map(port)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    match ports[..] {
        [one] => Some(one.to_string()),
        _ => None,
    }
}

impl Compose {
    /// Puts a value where its key says.
    fn insert(&mut self, key: &str, item: Item) {
        let keys: Vec<&str> = key.split('.').take(MAX_DEPTH).collect();
        let last = keys
            .last()
            .map(|key| key.to_ascii_lowercase())
            .unwrap_or_default();
        let is_list = LISTS.contains(&last.as_str());
        let line = item.line;
        let item = match item.node {
            Node::Text(text) if is_list => {
                let one = |text: &str| Item {
                    line,
                    node: Node::Text(text.trim().to_owned()),
                };
                Item {
                    line,
                    node: Node::List(text.split(',').map(one).collect()),
                }
            }
            // `tls=false` is as if it were not there.
            Node::Text(text) if last == "tls" && text == "false" => return,
            node => Item { line, node },
        };
        put(&mut self.root, &keys, item);
    }

    fn remove_router(&mut self, name: &str) {
        let routers = inside(&mut self.root, "http").and_then(|http| inside(http, "routers"));
        if let Some(Node::Table(routers)) = routers.map(|item| &mut item.node) {
            routers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
        }
    }
}

fn inside<'i>(item: &'i mut Item, key: &str) -> Option<&'i mut Item> {
    let Node::Table(entries) = &mut item.node else {
        return None;
    };
    let mut entries = entries.iter_mut();
    let entry = entries.find(|(known, _)| known.eq_ignore_ascii_case(key))?;
    Some(&mut entry.1)
}

fn put(at: &mut Item, keys: &[&str], item: Item) {
    let Some((key, rest)) = keys.split_first() else {
        // A table that has been begun stays one: `tls=true` beside `tls.certresolver=le`.
        if !matches!(at.node, Node::Table(_)) {
            *at = item;
        }
        return;
    };
    if !matches!(at.node, Node::Table(_)) {
        at.node = Node::Table(Vec::new());
    }
    let Node::Table(entries) = &mut at.node else {
        return;
    };
    let known = entries
        .iter()
        .position(|(known, _)| known.eq_ignore_ascii_case(key));
    let place = known.unwrap_or_else(|| {
        let empty = Item {
            line: item.line,
            node: Node::Nothing,
        };
        entries.push(((*key).to_owned(), empty));
        entries.len() - 1
    });
    put(&mut entries[place].1, rest, item);
}

#[cfg(test)]
mod tests {
    use super::super::yaml;
    use super::*;

    #[test]
    fn labels_become_routers_and_services_in_both_forms() {
        let list = "services:\n  web:\n    ports: [\"80:8080\"]\n    labels:\n      \
                    - traefik.http.routers.a.rule=Host(`a`)\n      \
                    - traefik.http.routers.a.middlewares=m,n@file\n";
        let map = "services:\n  web:\n    expose: [8080]\n    labels:\n      \
                   traefik.http.routers.a.rule: Host(`a`)\n      \
                   Traefik.HTTP.routers.a.middlewares: m, n@file\n";
        for text in [list, map] {
            let found = compose(&yaml::read(text).unwrap()).unwrap();
            let root = &found.root;
            assert_eq!(root.text_at("http.routers.a.rule"), Some("Host(`a`)"));
            assert_eq!(root.texts_at("http.routers.a.middlewares"), ["m", "n@file"]);
            assert_eq!(root.text_at("http.routers.a.service"), Some("web"));
            let servers = root.at("http.services.web.loadBalancer.servers").unwrap();
            assert_eq!(servers.list()[0].text_at("url"), Some("http://web:8080"));
            assert!(found.lost.is_empty(), "{:?}", found.lost);
        }
        assert!(compose(&yaml::read("services: {a: {image: b}}\n").unwrap()).is_none());
    }

    #[test]
    fn what_labels_do_not_say_is_lost() {
        let text = "services:\n  a:\n    labels: [traefik.enable=true, \
                    traefik.tcp.routers.t.rule=HostSNI(`*`)]\n  b:\n    labels: \
                    [traefik.enable=false, traefik.http.routers.b.rule=Host(`b`)]\n";
        let found = compose(&yaml::read(text).unwrap()).unwrap();
        let lost: Vec<&str> = found
            .lost
            .iter()
            .map(|(_, what, _)| what.as_str())
            .collect();
        assert_eq!(
            lost,
            ["traefik.tcp.routers.t.rule", "service a", "a: no router"]
        );
        assert!(found.root.at("http.routers.b").is_none());
    }
}
