//! Every example of a configuration in the documentation is right. A block of `toml` that begins
//! with `# proxy.toml` is a whole file and earns no warning and no note. A block that begins with
//! the name of another file is left alone. All others show a part, and are completed here by the
//! least that makes a file of them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::super::effective::{effective, toml};
use super::super::load::read_text;
use super::super::reader::Surroundings;
use super::super::reference::as_json;
use super::super::render;
use super::reference;

/// Shows mistakes on purpose; `explained.rs` reads it.
const MISTAKES: &str = "diagnostics.md";

pub(super) struct Example {
    /// The page and the line of the block.
    pub(super) place: String,
    pub(super) text: String,
}

impl Example {
    /// What its first line says that it is a file of, if anything.
    fn file(&self) -> Option<&str> {
        let name = self.text.lines().next()?.strip_prefix("# ")?;
        name.ends_with(".toml").then_some(name)
    }

    /// It is a `proxy.toml`, or a part of one.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.file(), None | Some("proxy.toml"))
    }
}

/// Every page of the documentation, in their order.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut all = vec![root.join("README.md"), root.join("SECURITY.md")];
    walk(&root.join("docs"), &mut all);
    all.sort();
    all
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
}

pub(super) fn examples() -> Vec<Example> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut all = pages();
    all.retain(|page| !page.ends_with(MISTAKES));
    let mut found = Vec::new();
    for page in all {
        let text = std::fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root).unwrap().display().to_string();
        for (at, _) in text.match_indices("```toml\n") {
            let (block, _) = text[at + "```toml\n".len()..].split_once("```").unwrap();
            let line = text[..at].lines().count() + 1;
            found.push(Example {
                place: format!("{name}:{line}"),
                text: block.to_owned(),
            });
        }
    }
    found
}

/// What a text that can be used earns all the same: codes.
#[derive(Debug)]
struct Doubts {
    warnings: Vec<&'static str>,
    notes: Vec<&'static str>,
}

/// The doubts about a text, or what is wrong with it as `tidegate check` prints it.
fn read(name: &str, text: &str) -> Result<Doubts, String> {
    let around = Surroundings {
        base: std::path::Path::new(""),
        forwards: true,
        env: &|_| None,
        now_s: 1_800_000_000,
        read: &reference::file,
    };
    match read_text(name, text, &around).0 {
        Ok((_, found)) => Ok(Doubts {
            warnings: found.list.iter().map(|one| one.code.as_str()).collect(),
            notes: found.notes.iter().map(|one| one.code.as_str()).collect(),
        }),
        Err(found) => Err(render::human(&found, false)),
    }
}

/// What a part needs besides to be a file: somewhere to go, the limits and upstreams that its
/// routes name, and routes for those that it has.
fn completed(part: &str) -> String {
    let document = DeTable::parse(part).unwrap_or_else(|error| panic!("{error}\n{part}"));
    let file = as_json(&DeValue::Table(document.into_inner()));
    let names = |kind: &str| -> Vec<String> {
        let table = file.get(kind).and_then(Value::as_object);
        table.map_or_else(Vec::new, |table| table.keys().cloned().collect())
    };
    let routes = file.get("route").and_then(Value::as_array);
    let routes = routes.map_or(&[][..], Vec::as_slice);
    let asked: Vec<&str> = routes
        .iter()
        .flat_map(|route| route["limits"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .filter(|name| !name.contains('/'))
        .collect();
    let sent: Vec<&str> = routes
        .iter()
        .filter_map(|route| route["upstream"].as_str())
        .filter(|name| !name.contains("://"))
        .collect();
    let (limits, mut upstreams) = (names("limit"), names("upstream"));
    let mut text = part.to_owned();
    if file.get("descriptor").is_some() && file.get("decide").is_none() {
        text.push_str("[decide]\nlisten = \"127.0.0.1:8081\"\n");
    }
    for name in sent
        .iter()
        .filter(|name| !upstreams.iter().any(|one| one == *name))
    {
        let _ = writeln!(
            text,
            "[upstream.{name}]\nservers = \"http://127.0.0.1:3000\""
        );
    }
    upstreams.extend(sent.iter().map(|name| (*name).to_owned()));
    for name in asked
        .iter()
        .filter(|name| !limits.iter().any(|one| one == *name))
    {
        let _ = writeln!(text, "[limit.{name}]\nrate = \"100/min\"");
    }
    let table = |kind: &str, name: &str| file.get(kind).map(|all| &all[name]);
    for name in upstreams.iter().filter(|name| {
        let own = table("upstream", name).and_then(Value::as_object);
        own.is_some_and(|own| !own.contains_key("servers"))
    }) {
        let url = "http://127.0.0.1:3000";
        let _ = writeln!(text, "[[upstream.{name}.servers]]\nurl = \"{url}\"");
    }
    if file
        .get("tls")
        .is_some_and(|tls| tls["certificates"].is_null() && tls["acme"].is_null())
    {
        text.push_str("[[tls.certificates]]\ncert = \"a.pem\"\nkey = \"a.key\"\n");
    }
    let to = match upstreams.first() {
        Some(name) => format!("upstream = \"{name}\"\n"),
        None => String::new(),
    };
    let unused = limits.iter().filter(|name| !asked.contains(&name.as_str()));
    for name in unused.filter(|name| *name != "default") {
        let _ = writeln!(
            text,
            "[[route]]\npath = \"/{name}/*\"\nlimits = [\"{name}\"]\n{to}"
        );
    }
    for name in upstreams
        .iter()
        .filter(|name| !sent.contains(&name.as_str()))
    {
        let _ = writeln!(
            text,
            "[[route]]\npath = \"/to/{name}/*\"\nupstream = \"{name}\""
        );
    }
    match upstreams.is_empty() && file.get("upstream").is_none() {
        true => format!("upstream = \"http://127.0.0.1:3000\"\n{text}"),
        false => text,
    }
}

#[test]
fn every_example_is_right() {
    let (mut whole, mut parts) = (0, 0);
    let mut wrong = String::new();
    for example in examples() {
        let text = match example.file() {
            Some("proxy.toml") => example.text.clone(),
            Some(_) => continue,
            None => completed(&example.text),
        };
        match (example.file(), read(&example.place, &text)) {
            (_, Err(found)) => {
                let _ = writeln!(wrong, "{found}");
            }
            (file, Ok(doubts))
                if !doubts.warnings.is_empty() || (file.is_some() && !doubts.notes.is_empty()) =>
            {
                let _ = writeln!(wrong, "{}: {doubts:?}\n{text}", example.place);
            }
            (Some(_), Ok(_)) => whole += 1,
            (None, Ok(_)) => parts += 1,
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(whole + parts > 30, "{whole} and {parts}");
}

/// Every file for the proxy that is shipped, by its place: those of `deploy/` are found, so that a
/// new one is read as well.
fn shipped() -> Vec<(String, String)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut files = vec![root.join("proxy.toml"), root.join("proxy.reference.toml")];
    for folder in std::fs::read_dir(root.join("deploy")).unwrap() {
        let file = folder.unwrap().path().join("proxy.toml");
        files.extend(file.is_file().then_some(file));
    }
    let text_of = |file: &Path| std::fs::read_to_string(file).unwrap();
    let mut all: Vec<(String, String)> = files
        .iter()
        .map(|file| (file.display().to_string(), text_of(file)))
        .collect();
    let manifest = text_of(&root.join("deploy/kubernetes/tidegate.yaml"));
    let (_, config) = manifest.split_once("  proxy.toml: |\n").unwrap();
    let inside = config
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .map(|line| format!("{}\n", line.trim_start()));
    all.push(("kubernetes".to_owned(), inside.collect()));
    all
}

#[test]
fn a_shipped_file_earns_neither_a_warning_nor_a_note() {
    let shipped = shipped();
    assert!(shipped.len() >= 6, "{}", shipped.len());
    for (name, text) in shipped {
        let doubts = read(&name, &text).unwrap_or_else(|found| panic!("{found}"));
        let none = doubts.warnings.is_empty() && doubts.notes.is_empty();
        assert!(none, "{name}: {doubts:?}");
    }
}

/// Files of other tests that a proxy accepts, and files that it refuses.
fn fixtures() -> Vec<(String, String)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures"));
    let (mut folders, mut all) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "toml") {
                // One of them is not UTF-8.
                let text = std::fs::read_to_string(&path).ok();
                all.extend(text.map(|text| (path.display().to_string(), text)));
            }
        }
    }
    all
}

#[test]
fn the_effective_configuration_of_every_file_is_a_file() {
    let (mut accepted, mut wrong) = (0, String::new());
    let ours = examples().into_iter().filter(Example::is_ours);
    let pages = ours.map(|example| (example.place.clone(), completed(&example.text)));
    for (name, text) in pages.chain(shipped()).chain(fixtures()) {
        if read(&name, &text).is_err() {
            continue;
        }
        accepted += 1;
        let whole = toml(&effective(&text, &|_| None));
        if let Err(found) = read(&name, &whole) {
            let _ = writeln!(wrong, "{name}: {found}");
        }
        let again = toml(&effective(&whole, &|_| None));
        if again != whole {
            let _ = writeln!(wrong, "{name} differs:\n{whole}\n{again}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(accepted > 150, "{accepted}");
}
