//! Labels of containers in a compose file, as the configuration that Traefik makes of them.

use crate::tree::{TreeItem, TreeNode};

/// Keys within keys, at most.
const MAX_DEPTH: usize = 16;
/// Options whose value is a list, separated by commas.
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

/// Returns `http` and `entryPoints` of a compose file, as in a file of Traefik; `None` if it has no
/// label of Traefik.
pub(super) fn read_compose(root: &TreeItem) -> Option<TreeItem> {
    let mut made = root.beside(TreeNode::Table(Vec::new()));
    made.line = 1;
    let is_exposed = is_exposed_by_default(root.get("services")?);
    let mut first_label: Option<TreeItem> = None;
    for (name, service) in root.get("services")?.entries() {
        let mut labels = key_values(service.get("labels"));
        labels.extend(key_values(service.at("deploy.labels")));
        labels.retain(|(key, _)| begins_with(key, "traefik."));
        if let Some((_, first)) = labels.first() {
            first_label.get_or_insert_with(|| first.clone());
            let container = Container {
                name,
                service,
                labels: &labels,
                first,
                is_exposed,
            };
            container.translate(&mut made);
        }
        for (key, value) in key_values(service.get("command")) {
            let key = key.trim_start_matches('-');
            if begins_with(key, "providers.docker.constraints") {
                value.lost(key, "containers are taken whatever their labels are");
            }
            if begins_with(key, "entrypoints.") || begins_with(key, "certificatesresolvers.") {
                insert(&mut made, key, value);
            }
        }
    }
    let first_label = first_label?;
    let why = "containers are asked for by their service's name, as in their own network; the \
               proxy must be in it, or their addresses must be written";
    first_label.differs("labels", why);
    Some(made)
}

fn begins_with(text: &str, prefix: &str) -> bool {
    let head = text.get(..prefix.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// Reads `exposedByDefault` of the command or the environment of Traefik.
fn is_exposed_by_default(services: &TreeItem) -> bool {
    let denies = |(key, value): &(String, TreeItem)| {
        let key = key
            .trim_start_matches('-')
            .replace('_', ".")
            .to_ascii_lowercase();
        let key = key.strip_prefix("traefik.").unwrap_or(&key);
        let is_it = key.starts_with("providers.") && key.ends_with(".exposedbydefault");
        is_it
            && value
                .text()
                .is_some_and(|text| text.eq_ignore_ascii_case("false"))
    };
    !services.entries().iter().any(|(_, service)| {
        let command = key_values(service.get("command"));
        command.iter().any(denies) || key_values(service.get("environment")).iter().any(denies)
    })
}

/// Reads a list of `- key=value`, a text of such words, or a table.
fn key_values(labels: Option<&TreeItem>) -> Vec<(String, TreeItem)> {
    let Some(labels) = labels else {
        return Vec::new();
    };
    let words = labels.text().unwrap_or_default().split_whitespace();
    let words = words.map(|word| labels.text_beside(word));
    let listed = words
        .chain(labels.list().iter().cloned())
        .filter_map(|one| {
            let (key, value) = one.text()?.split_once('=').unwrap_or((one.text()?, "true"));
            Some((key.trim().to_owned(), one.text_beside(value)))
        });
    listed.chain(labels.entries().iter().cloned()).collect()
}

struct Container<'c> {
    name: &'c str,
    service: &'c TreeItem,
    labels: &'c [(String, TreeItem)],
    /// The first label.
    first: &'c TreeItem,
    /// Whether Traefik serves it unless a label says otherwise.
    is_exposed: bool,
}

impl Container<'_> {
    fn translate(&self, made: &mut TreeItem) {
        match self.label("traefik.enable") {
            Some("true") => {}
            None if self.is_exposed => {}
            None => {
                let why = "Traefik serves containers with `traefik.enable=true` only; it is left \
                           out";
                return self.first.needless(&format!("{}: labels", self.name), why);
            }
            Some(_) => return,
        }
        self.add_options(made);
        let mut services = self.names("services");
        if services.is_empty() {
            services.push(self.name.to_owned());
        }
        for one in &services {
            self.add_server(one, made);
        }
        self.add_routers(&services, made);
    }

    fn label(&self, key: &str) -> Option<&str> {
        let is_it = |(known, _): &&(String, TreeItem)| known.eq_ignore_ascii_case(key);
        self.labels.iter().find(is_it)?.1.text()
    }

    fn names(&self, kind: &str) -> Vec<String> {
        let begin = format!("traefik.http.{kind}.");
        let keys = self.labels.iter().map(|(key, _)| key);
        let keys = keys.filter(|key| begins_with(key, &begin));
        let mut names: Vec<String> = keys
            .filter_map(|key| key[begin.len()..].split('.').next().map(str::to_owned))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Adds every label that has a key of its own in a file of Traefik.
    fn add_options(&self, made: &mut TreeItem) {
        for (key, item) in self.labels {
            if !begins_with(key, "traefik.http.") {
                let own = ["traefik.enable", "traefik.docker.", "traefik.swarm."];
                if !own.iter().any(|known| begins_with(key, known)) {
                    item.lost(key, "tidegate has nothing like it");
                }
                continue;
            }
            let path = &key["traefik.".len()..];
            if !path.to_ascii_lowercase().contains(".loadbalancer.server.") {
                insert(made, path, item.clone());
            }
        }
    }

    /// Adds the only server of a service, which is the container.
    fn add_server(&self, service: &str, made: &mut TreeItem) {
        let label = |end: &str| {
            let server = format!("traefik.http.services.{service}.loadbalancer.server");
            self.label(&format!("{server}.{end}"))
        };
        let port = label("port").map(str::to_owned);
        let port = port.or_else(|| only_port(self.service));
        let url = match (label("url"), port) {
            (Some(url), _) => url.to_owned(),
            (None, Some(port)) => {
                let scheme = label("scheme").unwrap_or("http");
                format!("{scheme}://{}:{port}", self.name)
            }
            (None, None) => {
                let why = "no label says the port: \
                           `traefik.http.services.NAME.loadbalancer.server.port`";
                return self.first.lost(&format!("service {service}"), why);
            }
        };
        let url = ("url".to_owned(), self.first.text_beside(&url));
        let server = self.first.beside(TreeNode::Table(vec![url]));
        let servers = self.first.beside(TreeNode::List(vec![server]));
        let key = format!("http.services.{service}.loadBalancer.servers");
        insert(made, &key, servers);
    }

    /// Completes its routers by their service, and removes those without a rule.
    fn add_routers(&self, services: &[String], made: &mut TreeItem) {
        let routers = self.names("routers");
        if routers.is_empty() {
            let why = "Traefik makes a rule of the container's name; write one";
            self.first.lost(&format!("{}: no router", self.name), why);
        }
        for router in routers {
            let key = format!("traefik.http.routers.{router}");
            if self.label(&format!("{key}.rule")).is_none() {
                let why = "Traefik makes a rule of the container's name; it is left out";
                self.first.lost(&format!("router {router}: no rule"), why);
                remove_router(made, &router);
            } else if self.label(&format!("{key}.service")).is_none()
                && let [only] = services
            {
                let item = self.first.text_beside(only);
                insert(made, &format!("http.routers.{router}.service"), item);
            }
        }
    }
}

fn only_port(service: &TreeItem) -> Option<String> {
    let port = |one: &TreeItem| {
        let text = one.text()?.split('/').next()?.rsplit(':').next()?;
        text.parse::<u16>().ok()
    };
    let all = service
        .list_at("expose")
        .iter()
        .chain(service.list_at("ports"));
    let mut ports: Vec<u16> = all.filter_map(port).collect();
    ports.sort_unstable();
    ports.dedup();
    match ports[..] {
        [one] => Some(one.to_string()),
        _ => None,
    }
}

/// Puts the value of a label where its key says.
fn insert(root: &mut TreeItem, key: &str, item: TreeItem) {
    let keys: Vec<&str> = key.split('.').take(MAX_DEPTH).collect();
    let is_last = |key: &&str| {
        keys.last()
            .is_some_and(|last| last.eq_ignore_ascii_case(key))
    };
    let list = match item.text() {
        // `tls=false` is the default, but Traefik's files turn TLS on by the key alone.
        Some("false") if is_last(&"tls") => return,
        Some(text) if LISTS.iter().any(is_last) => {
            let items = text.split(',').map(|one| item.text_beside(one.trim()));
            Some(TreeNode::List(items.collect()))
        }
        _ => None,
    };
    let item = match list {
        Some(list) => item.beside(list),
        None => item,
    };
    insert_at(root, &keys, item);
}

fn insert_at(parent: &mut TreeItem, keys: &[&str], item: TreeItem) {
    let is_table = matches!(parent.node, TreeNode::Table(_));
    let Some((key, rest)) = keys.split_first() else {
        // A table stays a table: `tls=true` beside `tls.certresolver=le`.
        if !is_table {
            *parent = item;
        }
        return;
    };
    if !is_table {
        parent.node = TreeNode::Table(Vec::new());
    }
    if find_mut(parent, key).is_none()
        && let TreeNode::Table(entries) = &mut parent.node
    {
        entries.push(((*key).to_owned(), item.beside(TreeNode::Null)));
    }
    if let Some(child) = find_mut(parent, key) {
        insert_at(child, rest, item);
    }
}

fn find_mut<'i>(item: &'i mut TreeItem, key: &str) -> Option<&'i mut TreeItem> {
    let TreeNode::Table(entries) = &mut item.node else {
        return None;
    };
    let mut entries = entries.iter_mut();
    let entry = entries.find(|(known, _)| known.eq_ignore_ascii_case(key))?;
    Some(&mut entry.1)
}

fn remove_router(root: &mut TreeItem, name: &str) {
    let routers = find_mut(root, "http").and_then(|http| find_mut(http, "routers"));
    if let Some(TreeNode::Table(routers)) = routers.map(|item| &mut item.node) {
        routers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Grade;
    use crate::tree::{self, SourceFile};

    struct Compose {
        root: Option<TreeItem>,
        lost: Vec<String>,
    }

    fn read(text: &str) -> Compose {
        let source = SourceFile::default();
        let root = read_compose(&tree::read_yaml(text, &source).unwrap());
        let notes = source.notes.sorted();
        let lost = notes.iter().filter(|note| note.grade == Grade::Lost);
        let lost = lost.map(|note| note.what.clone()).collect();
        Compose { root, lost }
    }

    #[test]
    fn labels_become_routers_and_services_in_both_forms() {
        let list = "services:\n  web:\n    ports: [\"80:8080\"]\n    labels:\n      \
                    - traefik.http.routers.a.rule=Host(`a`)\n      \
                    - traefik.http.routers.a.middlewares=m,n@file\n";
        let map = "services:\n  web:\n    expose: [8080]\n    labels:\n      \
                   traefik.http.routers.a.rule: Host(`a`)\n      \
                   Traefik.HTTP.routers.a.middlewares: m, n@file\n";
        for text in [list, map] {
            let found = read(text);
            let root = found.root.unwrap();
            assert_eq!(root.text_at("http.routers.a.rule"), Some("Host(`a`)"));
            assert_eq!(root.texts_at("http.routers.a.middlewares"), ["m", "n@file"]);
            assert_eq!(root.text_at("http.routers.a.service"), Some("web"));
            let servers = root.list_at("http.services.web.loadBalancer.servers");
            assert_eq!(servers[0].text_at("url"), Some("http://web:8080"));
            assert!(found.lost.is_empty(), "{:?}", found.lost);
        }
        assert!(read("services: {a: {image: b}}\n").root.is_none());
    }

    #[test]
    fn labels_without_a_translation_are_lost() {
        let text = "services:\n  a:\n    labels: [traefik.enable=true, \
                    traefik.tcp.routers.t.rule=HostSNI(`*`)]\n  b:\n    labels: \
                    [traefik.enable=false, traefik.http.routers.b.rule=Host(`b`)]\n";
        let found = read(text);
        assert_eq!(
            found.lost,
            ["a: no router", "service a", "traefik.tcp.routers.t.rule"]
        );
        assert!(found.root.unwrap().at("http.routers.b").is_none());
    }
    #[test]
    fn containers_may_have_to_ask_to_be_served() {
        let labels = |name: &str, more: &str| {
            format!(
                "  {name}:\n    expose: [80]\n    labels: [{more}\
                 traefik.http.routers.{name}.rule=Host(`{name}`)]\n"
            )
        };
        let both = labels("a", "") + &labels("b", "traefik.enable=true, ");
        for proxy in [
            "command: [--providers.docker.exposedByDefault=false]",
            "command: --api --providers.docker.exposedbydefault=false",
            "environment: {TRAEFIK_PROVIDERS_DOCKER_EXPOSEDBYDEFAULT: \"false\"}",
        ] {
            let found = read(&format!("services:\n{both}  proxy:\n    {proxy}\n"));
            let root = found.root.unwrap();
            assert!(root.at("http.routers.a").is_none(), "{proxy}");
            assert!(root.at("http.routers.b").is_some(), "{proxy}");
        }
        let root = read(&format!("services:\n{both}")).root.unwrap();
        assert!(root.at("http.routers.a").is_some());
    }
}
