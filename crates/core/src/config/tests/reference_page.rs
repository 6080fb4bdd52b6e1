//! docs/reference.md, made of the schema: every setting with what it may be, its default and what
//! it does. `TIDEGATE_ACCEPT=1 cargo test --lib -- reference_page` writes it anew.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::reference::{self, Setting, value_as_json};
use super::super::schema::schema;
use crate::limit::rate::{parse_duration, parse_size};

/// Settings that came after the first version, and with which.
const LATER: [(&str, &str, &str); 0] = [];

/// Chosen because they stand for those of their kind; what is not here is what its schema says.
const RATES: [&str; 2] = ["rate", "candidate"];

const HEAD: &str = "\
# Every setting

This page is the reference for every setting of `proxy.toml`. It is for operators who look one up.
A program writes it from the schema, which `tidegate schema` prints. `tidegate init --full` writes a
file with all settings. All settings exist since 0.1.0, unless one has another version.

- Lengths of time are texts with a unit of `ms`, `s`, `min`, `h` or `d`: `\"250ms\"`, `\"1h\"`.
- Sizes are numbers of bytes, or texts with a unit: `\"32KiB\"`, `\"1MB\"`.
- Rates are texts `COUNT/WINDOW`: `\"10/s\"`, `\"1000/h\"`, `\"50_000/15min\"`.
- Any text may contain `${VAR}` or `${VAR:-default}`. The environment gives the value.
- Keys that begin with `x-` are notes and have no effect.
- A list of one element may be written as this element.
- Paths of files are relative to the folder of this file.
- `NAME` is a name of your own.
";

/// Where more is said about a section.
const PAGES: [(&str, &str); 17] = [
    ("ledger", "[Bill by usage](howto/billing.md)"),
    ("log", "[Logs](logs.md)"),
    ("tracing", "[Traces](tracing.md)"),
    ("client_ip", "[Behind a CDN](howto/cdn.md)"),
    ("store", "[The store](store.md)"),
    ("tls", "[TLS with clients](tls.md)"),
    (
        "tls.acme",
        "[TLS with clients](tls.md#certificates-from-an-authority-acme)",
    ),
    ("auth.jwt", "[Limits](limits.md#tokens)"),
    ("tier", "[Limits](limits.md#tiers-and-exemptions)"),
    ("limit.NAME", "[Limits](limits.md)"),
    ("upstream.NAME", "[Upstreams](upstreams.md)"),
    ("upstream.NAME.tls", "[Upstreams](upstreams.md#tls)"),
    (
        "upstream.NAME.health",
        "[Upstreams](upstreams.md#health-checks)",
    ),
    (
        "upstream.NAME.eject",
        "[Upstreams](upstreams.md#servers-that-fail)",
    ),
    ("upstream.NAME.retries", "[Upstreams](upstreams.md#retries)"),
    ("route", "[Routes](routes.md)"),
    ("server", "[Clients](clients.md)"),
];

/// The part of the schema that describes a section.
fn part<'a>(schema: &'a Value, section: &str) -> &'a Value {
    let mut found = schema;
    for name in section.split('.').filter(|name| !name.is_empty()) {
        found = match name {
            "NAME" => &found["additionalProperties"],
            name => &found["properties"][name],
        };
        found = table(found).unwrap_or_else(|| panic!("{section} is no table"));
    }
    found
}

/// What is a table of all that it may be.
fn table(schema: &Value) -> Option<&Value> {
    match types(schema).contains(&"object") {
        true => Some(schema),
        false => schema.get("items").and_then(table),
    }
}

fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    }
}

/// What a value may be, in words.
fn kind(schema: &Value, known: &Setting) -> String {
    let types = types(schema);
    let mut kinds = Vec::new();
    for one in ["boolean", "integer", "number", "string", "object", "array"] {
        if !types.contains(&one) {
            continue;
        }
        kinds.push(match one {
            "boolean" if schema["then"]["const"] == false => "`false`".to_owned(),
            "boolean" if types.contains(&"string") => "`true`, `false`".to_owned(),
            "boolean" => "`true` or `false`".to_owned(),
            "integer" => "a whole number".to_owned(),
            "number" => "a number from 0 to 1".to_owned(),
            "string" => texts(schema, known),
            "object" => keys(schema),
            _ if types.len() > 1 => "a list of these".to_owned(),
            _ => format!("a list of {}", kind(&schema["items"], known)),
        });
    }
    assert!(!kinds.is_empty(), "{schema}");
    kinds.join(", or ")
}

/// What a text may be.
fn texts(schema: &Value, known: &Setting) -> String {
    let words = schema["anyOf"][0]["enum"].as_array();
    let words = words.map(|words| words.iter().map(shown).collect::<Vec<_>>().join(", "));
    let pattern = schema["if"]["pattern"].as_str().unwrap_or_default();
    match words {
        _ if pattern.contains("[1-5]") => {
            let status = "a status such as `\"503\"`".to_owned();
            words
                .into_iter()
                .chain([status])
                .collect::<Vec<_>>()
                .join(", or ")
        }
        Some(words) if schema["else"].get("enum").is_some() => words,
        _ => text(known).to_owned(),
    }
}

/// What its text is, by the example.
fn text(known: &Setting) -> &'static str {
    let example = value_as_json(known.value);
    let Some(example) = example.as_str() else {
        return "a text";
    };
    if RATES.contains(&known.key) {
        "a rate"
    } else if known.key.ends_with("_file") {
        "the path of a file"
    } else if parse_duration(example).is_ok() {
        "a length of time"
    } else if parse_size(example).is_ok() {
        "a size"
    } else {
        "a text"
    }
}

/// The keys of a table that stands in its line.
fn keys(schema: &Value) -> String {
    match schema["properties"].as_object() {
        Some(keys) => {
            let keys: Vec<String> = keys.keys().map(|key| format!("`{key}`")).collect();
            format!("a table of {}", keys.join(", "))
        }
        None => "a table of names and values".to_owned(),
    }
}

fn shown(value: &Value) -> String {
    format!("`{value}`")
}

fn entry(page: &mut String, known: &Setting, schema: &Value) {
    let section = match known.section.as_str() {
        "" => String::new(),
        section => format!("{section}."),
    };
    let setting = &part(schema, &known.section)["properties"][known.key];
    // `upstream` at the top is a text or tables, which have sections of their own.
    let text = json!({"type": "string"});
    let setting = match (&*known.section, known.key) {
        ("", "upstream") => &text,
        _ => setting,
    };
    let holds = match known.default() {
        Some(value) => format!("default `{value}`"),
        None if known.is_required() => format!("required; for example `{}`", known.value),
        None => format!("for example `{}`", known.value),
    };
    let since = LATER
        .iter()
        .find(|(at, key, _)| (*at, *key) == (&*known.section, known.key))
        .map_or_else(String::new, |(.., version)| format!(" · since {version}"));
    let about = known.about.replace("; required", "");
    let _ = write!(
        page,
        "\n### `{section}{}`\n\n{} · {holds}{since}\n\n{}.\n",
        known.key,
        kind(setting, known),
        sentence(&about)
    );
}

/// A fragment, begun as a sentence is.
fn sentence(about: &str) -> String {
    let mut letters = about.trim_end_matches('.').chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

fn page() -> String {
    let schema = schema();
    let mut page = format!("{HEAD}\n## At the top\n");
    let mut section = "";
    for known in reference::settings() {
        if known.section != section {
            section = &known.section;
            let _ = writeln!(page, "\n## `{}`", reference::header(section));
            let part = reference::section(section);
            let about = part.map_or("", |part| part.about.as_str());
            let more = PAGES.iter().find(|(of, _)| *of == section);
            let more = more.map_or_else(String::new, |(_, link)| format!(" More in {link}."));
            let _ = writeln!(page, "\n{about}{more}");
        }
        entry(&mut page, known, &schema);
    }
    page
}

#[test]
fn the_page_of_settings_is_as_the_schema_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
    let page = page();
    if std::env::var_os("TIDEGATE_ACCEPT").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == page,
        "docs/reference.md is stale: TIDEGATE_ACCEPT=1 cargo test --lib -- reference_page"
    );
}

#[test]
fn every_setting_and_section_is_described() {
    for known in reference::settings() {
        assert!(known.about.len() > 5, "{}.{}", known.section, known.key);
    }
    for part in reference::sections() {
        assert!(!part.about.is_empty(), "[{}]", part.name);
    }
}
