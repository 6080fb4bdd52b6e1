//! What holds in the end: a file with its variables filled in and every default said, and nothing
//! in it that is secret. As TOML it is a file that means the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::changes;
use super::interpolate::interpolate;
use super::known;
use super::schema::{as_json, read, within};
use toml::de::{DeTable, DeValue};

/// Stands for what nobody may read.
const HIDDEN: &str = "***";
/// Sections that are nothing unless the file has them.
const OPTIONAL: [&str; 2] = ["upstream.NAME.tls", "upstream.NAME.servers"];
/// Parts of an upstream that may be said shorter, and what they are short for.
const SHORT: [(&str, &str, &str); 2] = [
    ("upstream.NAME", "health", "path"),
    ("upstream.NAME", "retries", "attempts"),
];

/// The whole of a text that has been accepted before.
pub fn effective(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Value {
    let mut top = open(text, env);
    if let Value::Object(top) = &mut top {
        hide(top);
    }
    top
}

/// What stands for each secret of it, by its place: who does not know `token` learns nothing from
/// that, and the same secrets have the same.
pub fn marks(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    token: &[u8],
) -> BTreeMap<String, String> {
    let key = blake3::derive_key("tidegate: marks of secrets", token);
    let mut marks = BTreeMap::new();
    let both = Disclosure {
        open: &open(text, env),
        hidden: &effective(text, env),
    };
    mark(both, "", &mut |place, secret| {
        let hash = blake3::keyed_hash(&key, format!("{place}\n{secret}").as_bytes());
        marks.insert(place.to_owned(), hash.to_hex()[..16].to_owned());
    });
    marks
}

/// One value as it is, and as everybody may read it.
#[derive(Clone, Copy)]
struct Disclosure<'v> {
    open: &'v Value,
    hidden: &'v Value,
}

/// Tells `each` where the two differ: by a secret.
fn mark(both: Disclosure<'_>, at: &str, each: &mut dyn FnMut(&str, &str)) {
    match (both.open, both.hidden) {
        (Value::Object(open), Value::Object(hidden)) => {
            for (key, open) in open {
                let dot = if at.is_empty() { "" } else { "." };
                if let Some(hidden) = hidden.get(key) {
                    mark(
                        Disclosure { open, hidden },
                        &format!("{at}{dot}{key}"),
                        each,
                    );
                }
            }
        }
        (Value::Array(open), Value::Array(hidden)) => {
            for (nth, (open, hidden)) in open.iter().zip(hidden).enumerate() {
                mark(Disclosure { open, hidden }, &format!("{at}[{nth}]"), each);
            }
        }
        (Value::String(secret), Value::String(hidden)) if secret != hidden => each(at, secret),
        _ => {}
    }
}

fn open(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Value {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (document, _) = DeTable::parse_recoverable(text);
    let mut top = as_json(&DeValue::Table(document.into_inner()));
    fill_in(&mut top, env);
    if let Value::Object(top) = &mut top {
        complete("", top);
        inherit(top);
    }
    top
}

/// What is different in `new`, as a reload would say it.
pub fn differences(old: &Value, new: &Value) -> Vec<String> {
    changes::between(&super::written::of_json(old), &super::written::of_json(new))
}

/// Variables.
fn fill_in(value: &mut Value, env: &dyn Fn(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Ok(filled) = interpolate(text, env).map(Cow::into_owned) {
                *text = filled;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|one| fill_in(one, env)),
        Value::Object(table) => {
            table.values_mut().for_each(|one| fill_in(one, env));
        }
        _ => {}
    }
}

/// Says every default of a section, and of those within; leaves out people's notes.
fn complete(section: &str, table: &mut Map<String, Value>) {
    table.retain(|key, _| !key.starts_with("x-"));
    for known in known::all().iter().filter(|known| known.section == section) {
        if let Some(value) = known.default().filter(|_| !table.contains_key(known.key)) {
            table.insert(known.key.to_owned(), read(value));
        }
    }
    for key in within(section) {
        let path = match section {
            "" => key.to_owned(),
            section => format!("{section}.{key}"),
        };
        let short = SHORT
            .iter()
            .find(|(at, one, _)| (*at, *one) == (section, key));
        if let (Some((.., long)), Some(value)) = (short, table.get_mut(key))
            && !value.is_object()
        {
            *value = json!({*long: value.take()});
        }
        match table.get_mut(key) {
            Some(Value::Object(inner)) => each(&path, inner),
            Some(Value::Array(values)) => {
                let tables = values.iter_mut().filter_map(Value::as_object_mut);
                tables.for_each(|inner| complete(&path, inner));
            }
            Some(_) => {}
            None if OPTIONAL.contains(&path.as_str()) => {}
            None => {
                let mut inner = Map::new();
                complete(&path, &mut inner);
                if !inner.is_empty() && !is_list(&path) {
                    table.insert(key.to_owned(), Value::Object(inner));
                }
            }
        }
    }
}

/// A section, or all sections of its kind.
fn each(path: &str, table: &mut Map<String, Value>) {
    let names = format!("{path}.NAME");
    if !known::all().iter().any(|known| known.section == names) {
        return complete(path, table);
    }
    table.retain(|_, value| value.is_object());
    let tables = table.values_mut().filter_map(Value::as_object_mut);
    tables.for_each(|inner| complete(&names, inner));
}

/// What follows from another setting.
fn inherit(top: &mut Map<String, Value>) {
    let on_error = top["store"]["on_error"].clone();
    let limits = top.get_mut("limit").and_then(Value::as_object_mut);
    let usual = limits
        .as_ref()
        .is_some_and(|limits| limits.contains_key("default"));
    for limit in limits.into_iter().flat_map(|limits| limits.values_mut()) {
        if let Some(limit) = limit.as_object_mut() {
            limit.entry("on_error").or_insert_with(|| on_error.clone());
        }
    }
    let routes = top.get_mut("route").and_then(Value::as_array_mut);
    for route in routes
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        if usual {
            route.entry("limits").or_insert_with(|| json!(["default"]));
        }
    }
}

/// Passwords in URLs, and what else is a secret by where it stands.
fn hide(top: &mut Map<String, Value>) {
    top.values_mut().for_each(hide_passwords);
    let bypasses = top.get_mut("bypass").and_then(Value::as_array_mut);
    for bypass in bypasses
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        for key in ["value", "key"] {
            bypass.entry(key).and_modify(|value| *value = json!(HIDDEN));
        }
    }
    let routes = top.get_mut("route").and_then(Value::as_array_mut);
    for route in routes.into_iter().flatten() {
        for key in ["headers", "headers_up", "headers_down"] {
            let headers = route.get_mut(key).and_then(Value::as_object_mut);
            for (name, value) in headers.into_iter().flatten() {
                if tells_secret(name) && value.is_string() {
                    *value = json!(HIDDEN);
                }
            }
        }
    }
    let limits = top.get_mut("limit").and_then(Value::as_object_mut);
    for limit in limits.into_iter().flat_map(|limits| limits.values_mut()) {
        match limit.get_mut("exempt") {
            Some(Value::Array(values)) => values.iter_mut().for_each(hide_key),
            Some(one) => hide_key(one),
            None => {}
        }
    }
}

/// Whom a limit leaves alone may be said by an API key.
fn hide_key(value: &mut Value) {
    if value
        .as_str()
        .is_some_and(|text| super::address::network(text).is_err())
    {
        *value = json!(HIDDEN);
    }
}

fn tells_secret(header: &str) -> bool {
    let name = header.to_ascii_lowercase();
    [
        "authorization",
        "cookie",
        "key",
        "token",
        "secret",
        "password",
    ]
    .iter()
    .any(|word| name.contains(word))
}

fn hide_passwords(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("://") => *text = changes::shown(text),
        Value::Array(values) => values.iter_mut().for_each(hide_passwords),
        Value::Object(table) => table.values_mut().for_each(hide_passwords),
        _ => {}
    }
}

fn is_list(path: &str) -> bool {
    [
        "route",
        "bypass",
        "tls.certificates",
        "upstream.NAME.servers",
    ]
    .contains(&path)
}

/// A file that says it, in the reference's order.
pub fn toml(effective: &Value) -> String {
    let mut out = String::new();
    if let Value::Object(top) = effective {
        section(&mut out, &Heading::default(), top);
    }
    out
}

/// What a section is called; both are empty for the top.
#[derive(Default)]
struct Heading {
    /// As in the reference, with `NAME` for a chosen name.
    path: String,
    /// As the file has it.
    name: String,
}

/// One section: its settings, and then those within.
fn section(out: &mut String, heading: &Heading, table: &Map<String, Value>) {
    let (path, name) = (heading.path.as_str(), heading.name.as_str());
    let mut order: Vec<&str> = known::all()
        .iter()
        .filter(|known| known.section == path)
        .map(|known| known.key)
        .collect();
    let inner = within(path);
    order.extend(&inner);
    let place = |key: &String| order.iter().position(|one| one == key);
    let mut keys: Vec<&String> = table.keys().collect();
    keys.sort_by_key(|key| place(key).unwrap_or(usize::MAX));
    let has_names = path.ends_with(".NAME") || !matches!(path, "limit" | "upstream");
    let is_section = |key: &str, value: &Value| match value {
        Value::Object(_) => !has_names || inner.contains(&key),
        Value::Array(values) => {
            inner.contains(&key) && !values.is_empty() && values.iter().all(Value::is_object)
        }
        _ => false,
    };
    let (sections, settings): (Vec<_>, Vec<_>) = keys
        .into_iter()
        .map(|key| (key, &table[key]))
        .partition(|(key, value)| is_section(key, value));
    for (key, value) in settings {
        let _ = writeln!(out, "{} = {}", bare(key), written(value));
    }
    for (key, value) in sections {
        let full = match name {
            "" => bare(key),
            name => format!("{name}.{}", bare(key)),
        };
        let path = match path {
            "" => key.clone(),
            "limit" | "upstream" => format!("{path}.NAME"),
            path => format!("{path}.{key}"),
        };
        let has_header = !(name.is_empty() && matches!(key.as_str(), "limit" | "upstream"));
        let inner = Heading { path, name: full };
        let full = &inner.name;
        match value {
            Value::Object(table) => {
                if has_header {
                    let _ = writeln!(out, "\n[{full}]");
                }
                section(out, &inner, table);
            }
            Value::Array(tables) => {
                for table in tables.iter().filter_map(Value::as_object) {
                    let _ = writeln!(out, "\n[[{full}]]");
                    section(out, &inner, table);
                }
            }
            _ => {}
        }
    }
}

fn bare(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    match !key.is_empty() && key.bytes().all(plain) {
        true => key.to_owned(),
        false => quoted(key),
    }
}

/// A string of TOML, which is one of JSON but for one character.
fn quoted(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}

fn written(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::String(text) => quoted(text),
        Value::Array(values) => format!("[{}]", joined(values.iter().map(written).collect())),
        Value::Object(table) => {
            let pair =
                |(key, value): (&String, &Value)| format!("{} = {}", bare(key), written(value));
            format!("{{ {} }}", joined(table.iter().map(pair).collect()))
        }
        Value::Null => quoted(""),
        other => other.to_string(),
    }
}
