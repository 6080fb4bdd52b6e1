//! The effective configuration: a file with its variables filled in, every default written out, and
//! no secrets. Printed as TOML it is a file with the same meaning.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::changes;
use super::files::SourceFiles;
use super::interpolation::{interpolate, without_variables};
use super::reference::{
    document_as_json, has_chosen_names, joined_path, section, sections_within, setting, settings,
    value_as_json,
};
use super::route::UPSTREAM_KEYS;
use super::secrets::{HIDDEN, for_each_secret, for_each_text, may_have_parameters, tables};
use crate::limit::rate::parse_duration;

/// Sections without defaults of their own: an upstream may leave them out.
const OPTIONAL: [&str; 2] = ["upstream.NAME.tls", "upstream.NAME.servers"];
/// Tables of an upstream that a single value may replace, and the key that the value stands for.
const SHORT_FORMS: [(&str, &str); 2] = [
    ("upstream.NAME.health", "path"),
    ("upstream.NAME.retries", "attempts"),
];

/// The effective configuration of a text that has been accepted before.
pub fn effective(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Value {
    let mut top = with_secrets(text, env);
    for_each_text(&mut top, &mut |text| {
        if may_have_parameters(text) {
            *text = changes::without_url_secrets(text);
        }
    });
    for_each_secret(&mut top, &mut |text| HIDDEN.clone_into(text));
    top
}

/// The settings whose values `Config::keep_until_restart` keeps.
const UNTIL_RESTART: [&str; 5] = [
    "server.workers",
    "server.control",
    "server.pid_file",
    "store.file",
    "log.decisions",
];

/// The effective configuration of a running process: settings that need a restart have the values
/// of its start.
pub fn running(sources: &SourceFiles, env: &dyn Fn(&str) -> Option<String>) -> Value {
    let mut now = effective(&sources.text, env);
    let Some(start) = sources.start.as_deref().map(|text| effective(text, env)) else {
        return now;
    };
    for place in waiting_settings(&start, &now) {
        let (section, key) = place.split_once('.').unwrap_or(("", place));
        let pointer = format!("/{}", place.replace('.', "/"));
        let table = match section {
            "" => Some(&mut now),
            section => now.get_mut(section),
        };
        let Some(table) = table.and_then(Value::as_object_mut) else {
            continue;
        };
        match start.pointer(&pointer) {
            Some(value) => table.insert(key.to_owned(), value.clone()),
            None => table.remove(key),
        };
    }
    now
}

/// The settings that need a restart, as far as `new` has other values than the process runs by.
pub fn waiting_settings(running: &Value, new: &Value) -> Vec<&'static str> {
    let has = |place: &str| running.pointer(place).is_some();
    let first_admin = (!has("/admin")).then_some("admin");
    let kept_secret = has("/store/file").then_some("store.hash_key_file");
    let all = UNTIL_RESTART
        .into_iter()
        .chain(first_admin)
        .chain(kept_secret);
    let differs = |place: &&str| {
        let pointer = format!("/{}", place.replace('.', "/"));
        running.pointer(&pointer) != new.pointer(&pointer)
    };
    all.filter(differs).collect()
}

/// A mark for each secret, by the place of the secret. Equal secrets have equal marks. Without
/// `token` a mark says nothing about its secret.
pub fn marks(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    token: &[u8],
) -> BTreeMap<String, String> {
    let key = blake3::derive_key("tidegate: marks of secrets", token);
    let mut open = BTreeMap::new();
    let mut hidden = BTreeMap::new();
    collect_texts(&with_secrets(text, env), String::new(), &mut open);
    collect_texts(&effective(text, env), String::new(), &mut hidden);
    // Where the texts differ, there is a secret.
    open.retain(|place, text| hidden.get(place).is_some_and(|hidden| hidden != text));
    for (place, secret) in &mut open {
        let hash = blake3::keyed_hash(&key, format!("{place}\n{secret}").as_bytes());
        *secret = hash.to_hex()[..16].to_owned();
    }
    open
}

/// Collects all texts in a value by their places.
fn collect_texts(value: &Value, place: String, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                collect_texts(value, joined_path(&place, key), found);
            }
        }
        Value::Array(values) => {
            for (nth, value) in values.iter().enumerate() {
                collect_texts(value, format!("{place}[{nth}]"), found);
            }
        }
        Value::String(text) => {
            found.insert(place, text.clone());
        }
        _ => {}
    }
}

fn with_secrets(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Value {
    let mut top = document_as_json(text);
    for_each_text(&mut top, &mut |text| {
        if let Ok(filled) = interpolate(text, env).map(Cow::into_owned) {
            *text = filled;
        }
    });
    if let Value::Object(top) = &mut top {
        add_defaults("", top);
        inherit(top);
    }
    top
}

/// The differences between two effective configurations, as a reload logs them.
pub fn differences(old: &Value, new: &Value) -> Vec<String> {
    changes::between(old, new)
}

fn add_defaults(path: &str, table: &mut Map<String, Value>) {
    table.retain(|key, _| !key.starts_with("x-"));
    for setting in settings().iter().filter(|setting| setting.section == path) {
        if let Some(value) = setting
            .default()
            .filter(|_| !table.contains_key(setting.key) && !is_excluded(path, table, setting.key))
        {
            table.insert(setting.key.to_owned(), value_as_json(value));
        }
    }
    for key in sections_within(path) {
        let path = joined_path(path, key);
        let short_form = SHORT_FORMS.iter().find(|(at, _)| *at == path);
        if let (Some((_, long)), Some(value)) = (short_form, table.get_mut(key))
            && !value.is_object()
        {
            *value = json!({*long: value.take()});
        }
        match table.get_mut(key) {
            Some(Value::Object(inner)) if has_chosen_names(&path) => {
                inner.retain(|_, value| value.is_object());
                let tables = inner.values_mut().filter_map(Value::as_object_mut);
                tables.for_each(|inner| add_defaults(&format!("{path}.NAME"), inner));
            }
            Some(Value::Object(inner)) => add_defaults(&path, inner),
            Some(Value::Array(values)) => {
                let tables = values.iter_mut().filter_map(Value::as_object_mut);
                tables.for_each(|inner| add_defaults(&path, inner));
            }
            Some(_) => {}
            None if OPTIONAL.contains(&path.as_str()) => {}
            None => {
                let mut inner = Map::new();
                add_defaults(&path, &mut inner);
                if !inner.is_empty() && section(&path).is_none_or(|section| !section.is_list) {
                    table.insert(key.to_owned(), Value::Object(inner));
                }
            }
        }
    }
}

/// Whether another setting of a table excludes this one.
fn is_excluded(path: &str, table: &Map<String, Value>, key: &str) -> bool {
    let has = |key: &str| table.contains_key(key);
    match path {
        "route" => UPSTREAM_KEYS.contains(&key) && (has("redirect") || has("respond")),
        "store" => key == "url" && has("urls"),
        _ => false,
    }
}

fn inherit(top: &mut Map<String, Value>) {
    let on_error = top["store"]["on_error"].clone();
    for limit in tables(top, "limit") {
        limit.entry("on_error").or_insert_with(|| on_error.clone());
        if let Some(ban) = limit.get_mut("ban").and_then(Value::as_object_mut) {
            add_ban_defaults(ban);
        }
    }
    let has_default_limit = top
        .get("limit")
        .is_some_and(|limits| limits.get("default").is_some());
    for route in tables(top, "route").filter(|_| has_default_limit) {
        route.entry("limits").or_insert_with(|| json!(["default"]));
    }
}

/// Adds the defaults of a ban: the longest one is not below the first.
fn add_ban_defaults(ban: &mut Map<String, Value>) {
    let default = |key| setting("limit.NAME.ban", key).map(|found| value_as_json(found.value));
    let duration = |value: &Value| value.as_str().and_then(|text| parse_duration(text).ok());
    let first = ban.get("for").cloned();
    for key in ["again", "max_for"] {
        let Some(mut value) = default(key).filter(|_| !ban.contains_key(key)) else {
            continue;
        };
        if key == "max_for"
            && let Some(first) = first.as_ref()
            && duration(first) > duration(&value)
        {
            value.clone_from(first);
        }
        ban.insert(key.to_owned(), value);
    }
}

/// Prints an effective configuration as TOML, in the reference's order.
pub fn toml(effective: &Value) -> String {
    let mut out = String::new();
    if let Value::Object(top) = effective {
        write_section(&mut out, &Heading::default(), top);
    }
    out
}

/// The names of a section; both are empty for the top.
#[derive(Default)]
struct Heading {
    /// The name in the reference, with `NAME` for a chosen name.
    path: String,
    name: String,
}

fn write_section(out: &mut String, heading: &Heading, table: &Map<String, Value>) {
    let (path, name) = (heading.path.as_str(), heading.name.as_str());
    let own = settings().iter().filter(|setting| setting.section == path);
    let mut order: Vec<&str> = own.map(|setting| setting.key).collect();
    let inner = sections_within(path);
    order.extend(&inner);
    let place = |key: &String| order.iter().position(|one| one == key);
    let mut keys: Vec<&String> = table.keys().collect();
    keys.sort_by_key(|key| place(key).unwrap_or(usize::MAX));
    let has_names = has_chosen_names(path);
    let is_section = |key: &str, value: &Value| match value {
        Value::Object(_) => has_names || inner.contains(&key),
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
        let _ = writeln!(out, "{} = {}", bare_or_quoted(key), toml_value(value));
    }
    for (key, value) in sections {
        let path = match has_names {
            true => format!("{path}.NAME"),
            false => joined_path(path, key),
        };
        let name = joined_path(name, &bare_or_quoted(key));
        let inner = Heading { path, name };
        match value {
            Value::Object(table) => {
                if !has_chosen_names(&inner.path) {
                    let _ = writeln!(out, "\n[{}]", inner.name);
                }
                write_section(out, &inner, table);
            }
            Value::Array(tables) => {
                for table in tables.iter().filter_map(Value::as_object) {
                    let _ = writeln!(out, "\n[[{}]]", inner.name);
                    write_section(out, &inner, table);
                }
            }
            _ => {}
        }
    }
}

fn bare_or_quoted(key: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    match !key.is_empty() && key.bytes().all(is_bare) {
        true => key.to_owned(),
        false => toml_string(key),
    }
}

/// A string of TOML. It differs from one of JSON by one character.
pub(super) fn toml_string(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}

fn toml_value(value: &Value) -> String {
    match value {
        Value::String(text) => toml_string(&without_variables(text)),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(toml_value).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(table) => {
            let mut pairs: Vec<_> = table.iter().collect();
            // Of several names of `[prices]` that fit, the first one counts.
            pairs.sort_by_key(|(key, _)| key.strip_suffix('*').map(|key| Reverse(key.len())));
            let pairs = pairs
                .into_iter()
                .map(|(key, value)| format!("{} = {}", bare_or_quoted(key), toml_value(value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Null => toml_string(""),
        other => other.to_string(),
    }
}
