//! Traefik: routers, middlewares and services of a dynamic configuration, and the entry points of a
//! static one, in YAML or TOML; labels of containers in a compose file.

mod entry_points;
mod labels;
mod middlewares;
mod routers;
mod rule;
mod services;
mod times;
mod tls;
mod toml_tree;
mod tree;
mod yaml;

use std::path::Path;

use super::draft::Draft;
use super::notes::Place;
use super::{ImportError, files};
use tree::Item;

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let text = files::text(path)?;
    let name: std::rc::Rc<str> = path.display().to_string().into();
    let at = |line| Place {
        file: name.clone(),
        line,
    };
    // A table's head or a key with `=` in the first line that says something.
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    let is_toml = path.extension().is_some_and(|ending| ending == "toml")
        || first.is_some_and(|line| {
            let key = line.split(['=', ':']).next().unwrap_or_default();
            line.starts_with('[') || key.len() < line.len() && line[key.len()..].starts_with('=')
        });
    let read = match is_toml {
        true => toml_tree::read(&text),
        false => yaml::read(&text),
    };
    let root = read.map_err(|(line, what)| ImportError::Syntax {
        place: at(line),
        what,
    })?;
    let mut draft = Draft::default();
    let mut file = File {
        name: name.clone(),
        draft: &mut draft,
    };
    match labels::compose(&root) {
        Some(compose) => {
            let why = "containers are asked for by their service's name, as in their own network; \
                       the proxy must be in it, or their addresses must be written";
            file.draft.notes.differs(&at(compose.line), "labels", why);
            for (line, what, why) in &compose.lost {
                file.draft.notes.lost(&at(*line), what, *why);
            }
            all(&compose.root, &mut file);
        }
        None => all(&root, &mut file),
    }
    if draft.routes.is_empty() {
        let why = "there is nothing to serve; one stands there to be changed. What is read is a \
                   file with `http.routers`, or a compose file with labels such as \
                   `traefik.http.routers.NAME.rule`";
        draft.notes.lost(&at(1), "no http.routers", why);
    }
    Ok(draft)
}

/// The file that is read, and what comes of it.
struct File<'d> {
    name: std::rc::Rc<str>,
    draft: &'d mut Draft,
}

impl File<'_> {
    fn place(&self, item: &Item) -> Place {
        Place {
            file: self.name.clone(),
            line: item.line,
        }
    }

    fn lost(&mut self, item: &Item, what: &str, why: impl Into<String>) {
        let place = self.place(item);
        self.draft.notes.lost(&place, what, why);
    }

    fn differs(&mut self, item: &Item, what: &str, why: impl Into<String>) {
        let place = self.place(item);
        self.draft.notes.differs(&place, what, why);
    }

    fn needless(&mut self, item: &Item, what: &str, why: impl Into<String>) {
        let place = self.place(item);
        self.draft.notes.needless(&place, what, why);
    }

    /// Says which keys of a table nobody reads.
    fn others(&mut self, table: &Item, path: &str, known: &[&str]) {
        for (key, item) in table.entries() {
            if !known.iter().any(|known| known.eq_ignore_ascii_case(key)) {
                self.lost(
                    item,
                    &format!("{path}{key}"),
                    "tidegate has nothing like it",
                );
            }
        }
    }
}

/// What concerns Traefik alone.
const NEEDLESS: [(&str, &str); 12] = [
    ("providers", "this is one file"),
    ("api", "`admin` is an address for operators"),
    ("ping", "`admin` has /healthz and /readyz"),
    ("log", "RUST_LOG, and `format` of [log]"),
    ("accessLog", "`access` of [log]"),
    ("metrics", "`admin` has /metrics"),
    ("global", "nobody is told of this proxy"),
    ("experimental", "there are no plugins"),
    ("pilot", "nobody is told of this proxy"),
    ("core", "there is one syntax"),
    ("hub", "nobody is told of this proxy"),
    ("spiffe", "certificates are files"),
];

fn all(root: &Item, file: &mut File<'_>) {
    for (key, item) in root.entries() {
        let needless = NEEDLESS
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(key));
        if let Some((_, why)) = needless {
            file.needless(item, key, *why);
        }
    }
    let mut known: Vec<&str> = NEEDLESS.iter().map(|(known, _)| *known).collect();
    known.extend([
        "http",
        "tls",
        "entryPoints",
        "certificatesResolvers",
        "serversTransport",
    ]);
    file.others(root, "", &known);
    let points = entry_points::read(root, file);
    tls::read(root, file);
    let http = root.get("http");
    let empty = Item::default();
    let http = http.unwrap_or(&empty);
    let sections = ["routers", "middlewares", "services", "serversTransports"];
    file.others(http, "http.", &sections);
    routers::all(http, &points, file);
}
