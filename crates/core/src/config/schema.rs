//! The JSON Schema of `proxy.toml`, for editors that complete and check while somebody types.
//!
//! Made of what the reference shows of every setting (`known`): a setting that is added there is
//! in the schema. What a value may be besides what its default looks like is said here, and a test
//! asks the readers themselves whether that is so. Draft 7, which all editors understand.

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use super::known::{self, Known};
use crate::limit::key::jwt::JwtAlgorithm;

/// What a setting may be.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    /// A text, or a list of such.
    Texts,
    Switch,
    Number,
    Decimal,
    /// Bytes: a number, or a text with a unit.
    Size,
    /// One of these.
    Words(&'static [&'static str]),
    /// A number, or one of these.
    NumberOr(&'static [&'static str]),
    /// `false`, or any text.
    NeverOrText,
    /// What a request is sent again for: these words and statuses.
    Failures,
    /// Some of these, or one.
    SomeWords(&'static [&'static str]),
    /// Algorithms of tokens, or one.
    Algorithms,
    /// A number, or any text.
    NumberOrText,
    /// `true` or `false`, or any text.
    SwitchOrText,
    /// `true` or `false`, or a number.
    SwitchOrNumber,
    /// A table whose keys are the file's to choose, and what may stand in it.
    Free(&'static Kind),
    /// A table of these, the first of which must be there if so said; or a text.
    Inline(&'static [(&'static str, Kind)], Option<&'static str>, bool),
}

/// What differs from what the default looks like.
const KINDS: &[(&str, &str, Kind)] = &[
    ("", "listen", Kind::Texts),
    (
        "",
        "proxy_protocol",
        Kind::Words(&["off", "optional", "required"]),
    ),
    ("", "case", Kind::Words(CASE)),
    ("route", "case", Kind::Words(CASE)),
    ("store", "on_error", Kind::Words(ON_ERROR)),
    ("store", "fleet", Kind::NumberOr(&["auto"])),
    ("store", "max_memory", Kind::Size),
    ("tls", "listen", Kind::Texts),
    ("tls", "client_auth", Kind::Words(&["required", "optional"])),
    ("tls", "min_version", Kind::Words(&["1.2", "1.3"])),
    ("tls", "redirect", Kind::SwitchOrNumber),
    ("tls", "hsts", Kind::SwitchOrText),
    (
        "tls.acme",
        "challenge",
        Kind::Words(&["http-01", "tls-alpn-01"]),
    ),
    ("auth.jwt", "algorithms", Kind::Algorithms),
    ("auth.jwt", "issuer", Kind::Texts),
    ("auth.jwt", "audience", Kind::Texts),
    ("limit.NAME", "rate", Kind::Texts),
    ("limit.NAME", "tiers", Kind::Free(&Kind::Texts)),
    ("limit.NAME", "key", Kind::Texts),
    ("limit.NAME", "counts", Kind::Words(&["costs", "requests"])),
    ("limit.NAME", "algorithm", Kind::Words(&["log", "counter"])),
    (
        "limit.NAME",
        "missing",
        Kind::Words(&["ip", "deny", "skip", "shared"]),
    ),
    ("api_key", "unknown", Kind::Words(&["ip", "deny", "trust"])),
    ("limit.NAME", "on_error", Kind::Words(ON_ERROR)),
    ("upstream.NAME.retries", "on", Kind::Failures),
    ("route", "headers", Kind::Free(&Kind::SwitchOrText)),
    ("route", "headers_up", Kind::Free(&Kind::SwitchOrText)),
    ("route", "headers_down", Kind::Free(&Kind::SwitchOrText)),
    ("route", "cost", Kind::NumberOrText),
    ("route", "body_limit", Kind::Size),
    ("route", "respond", Kind::Inline(RESPOND, None, false)),
    (
        "route",
        "redirect",
        Kind::Inline(REDIRECT, Some("to"), true),
    ),
    ("headers", "reset", Kind::Words(&["epoch", "delta"])),
    ("headers", "request_id", Kind::NeverOrText),
    ("server", "max_header_bytes", Kind::Size),
    ("server", "max_body", Kind::Size),
    ("log", "format", Kind::Words(&["text", "json", "combined"])),
    ("log", "silence", Kind::SomeWords(&super::FINDINGS)),
    ("log", "keys", Kind::Words(&["hash", "plain", "off"])),
    ("tracing", "protocol", Kind::Words(&["http", "grpc"])),
    (
        "tracing",
        "continue",
        Kind::Words(&["trusted", "all", "never"]),
    ),
];

const CASE: &[&str] = &["sensitive", "insensitive"];
const ON_ERROR: &[&str] = &["local", "allow", "deny"];
const RESPOND: &[(&str, Kind)] = &[
    ("status", Kind::Number),
    ("body", Kind::Text),
    ("content_type", Kind::Text),
];
const REDIRECT: &[(&str, Kind)] = &[("to", Kind::Text), ("status", Kind::Number)];

/// Parts of an upstream that may be said shorter than by a table.
const SHORT: &[(&str, &str, Short)] = &[
    ("upstream.NAME", "health", Short::Text),
    ("upstream.NAME", "eject", Short::Never),
    ("upstream.NAME", "retries", Short::Number),
    ("upstream.NAME", "servers", Short::Texts),
    ("", "route", Short::List),
    ("", "bypass", Short::List),
    ("tls", "certificates", Short::OneOrMore),
];

/// What may stand in place of a table.
#[derive(Clone, Copy)]
enum Short {
    Text,
    Never,
    Number,
    Texts,
    /// Nothing: it is a list of tables.
    List,
    /// It may be a list of tables as well.
    OneOrMore,
}

/// The whole schema.
pub fn schema() -> Value {
    let mut top = section("");
    if let Some(top) = top.as_object_mut() {
        let about = "What tidegate serves, and how much of it each client may have.";
        top.insert(
            "$schema".into(),
            json!("http://json-schema.org/draft-07/schema#"),
        );
        top.insert("title".into(), json!("proxy.toml of tidegate"));
        top.insert("description".into(), json!(about));
    }
    top
}

/// A section with its settings, and the sections within.
fn section(name: &str) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for known in known::all().iter().filter(|known| known.section == name) {
        properties.insert(known.key.to_owned(), setting(known));
        if known.is_required() {
            required.push(json!(known.key));
        }
    }
    for inner in within(name) {
        let path = joined(name, inner);
        let mut table = match has_names(&path) {
            true => named(&path),
            false => section(&path),
        };
        if let Some((.., short)) = SHORT
            .iter()
            .find(|(at, key, _)| (*at, *key) == (name, inner))
        {
            table = shortened(&table, *short);
        }
        // `upstream = "URL"` beside `[upstream.NAME]`.
        if let Some(mut value) = properties.remove(inner) {
            let about = value
                .as_object_mut()
                .and_then(|value| value.remove("description"));
            table = json!({"anyOf": [value, table], "description": about});
        }
        properties.insert(inner.to_owned(), table);
    }
    if name == "upstream.NAME" {
        required.push(json!("servers"));
    }
    let mut object = closed(properties);
    if !required.is_empty() {
        object["required"] = Value::Array(required);
    }
    let part = known::parts().iter().find(|part| part.section == name);
    if let Some(part) = part.filter(|part| !part.about.is_empty()) {
        object["description"] = json!(part.about);
    }
    if name == "limit.NAME" {
        object["oneOf"] = json!([{"required": ["rate"]}, {"required": ["concurrent"]}]);
    }
    object
}

/// The sections that stand directly in this one.
pub(super) fn within(name: &str) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    for known in known::all() {
        let rest = match name {
            "" => Some(known.section.as_str()),
            name => known
                .section
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('.')),
        };
        let first = rest
            .and_then(|rest| rest.split('.').next())
            .unwrap_or_default();
        if !first.is_empty() && first != "NAME" && !found.contains(&first) {
            found.push(first);
        }
    }
    found
}

fn joined(name: &str, inner: &str) -> String {
    match name {
        "" => inner.to_owned(),
        name => format!("{name}.{inner}"),
    }
}

/// Whether sections of this kind have names that the file chooses.
fn has_names(path: &str) -> bool {
    let names = format!("{path}.NAME");
    known::all().iter().any(|known| known.section == names)
}

fn named(path: &str) -> Value {
    json!({
        "type": "object",
        "patternProperties": {"^x-": true},
        "additionalProperties": section(&format!("{path}.NAME")),
    })
}

/// A table in which nothing else may stand but notes.
fn closed(properties: Map<String, Value>) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": true},
        "additionalProperties": false,
    })
}

fn shortened(table: &Value, short: Short) -> Value {
    match short {
        Short::Text => json!({"anyOf": [{"type": "string"}, table]}),
        Short::Never => json!({"anyOf": [{"const": false}, table]}),
        Short::Number => json!({"anyOf": [{"type": "integer", "minimum": 0}, table]}),
        Short::List => json!({"type": "array", "items": table}),
        Short::OneOrMore => json!({"anyOf": [table, {"type": "array", "items": table}]}),
        Short::Texts => {
            let one = json!({"anyOf": [{"type": "string"}, table]});
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": one}, table]})
        }
    }
}

/// One setting, with what the reference says of it.
fn setting(known: &Known) -> Value {
    let special = KINDS
        .iter()
        .find(|(at, key, _)| *at == known.section && *key == known.key);
    let kind = special.map_or_else(|| looks_like(known), |(.., kind)| *kind);
    let mut schema = possible(kind);
    if let Some(schema) = schema.as_object_mut() {
        if !known.about.is_empty() {
            schema.insert("description".into(), json!(known.about));
        }
        match known.default() {
            Some(value) => schema.insert("default".into(), read(value)),
            None => schema.insert("examples".into(), json!([read(known.value)])),
        };
    }
    schema
}

fn looks_like(known: &Known) -> Kind {
    match read(known.value) {
        Value::Bool(_) => Kind::Switch,
        Value::Number(number) if number.is_f64() => Kind::Decimal,
        Value::Number(_) => Kind::Number,
        Value::Array(_) => Kind::Texts,
        _ => Kind::Text,
    }
}

fn possible(kind: Kind) -> Value {
    let number = || json!({"type": "integer", "minimum": 0});
    match kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Texts => {
            let list = json!({"type": "array", "items": {"type": "string"}});
            json!({"anyOf": [{"type": "string"}, list]})
        }
        Kind::Algorithms => {
            let words: Vec<&str> = JwtAlgorithm::ALL.iter().map(|(word, _)| *word).collect();
            one_or_more(&json!({"anyOf": [{"enum": words}, filled_in()]}))
        }
        Kind::SomeWords(words) => one_or_more(&json!({"anyOf": [{"enum": words}, filled_in()]})),
        Kind::Failures => {
            let words = json!({"enum": ["closed", "timeout"]});
            let status = json!({"type": "string", "pattern": "^[1-5]([0-9][0-9]|xx)$"});
            one_or_more(&json!({"anyOf": [words, status, filled_in()]}))
        }
        Kind::NeverOrText => json!({"anyOf": [{"const": false}, {"type": "string"}]}),
        Kind::Switch => json!({"type": "boolean"}),
        Kind::Number => number(),
        Kind::Decimal => json!({"type": "number", "minimum": 0, "maximum": 1}),
        Kind::Size | Kind::NumberOrText => json!({"anyOf": [number(), {"type": "string"}]}),
        Kind::Words(words) => json!({"anyOf": [{"enum": words}, filled_in()]}),
        Kind::NumberOr(words) => json!({"anyOf": [number(), {"enum": words}, filled_in()]}),
        Kind::SwitchOrText => json!({"type": ["boolean", "string"]}),
        Kind::SwitchOrNumber => json!({"anyOf": [{"type": "boolean"}, number()]}),
        Kind::Free(inner) => json!({"type": "object", "additionalProperties": possible(*inner)}),
        Kind::Inline(keys, required, short) => {
            let keys = keys
                .iter()
                .map(|(key, kind)| ((*key).to_owned(), possible(*kind)));
            let mut table = closed(keys.collect());
            if let Some(required) = required {
                table["required"] = json!([required]);
            }
            match short {
                true => json!({"anyOf": [{"type": "string"}, table]}),
                false => table,
            }
        }
    }
}

fn one_or_more(one: &Value) -> Value {
    json!({"anyOf": [one, {"type": "array", "items": one}]})
}

/// A word that a variable of the environment says.
fn filled_in() -> Value {
    json!({"type": "string", "pattern": "\\$\\{"})
}

/// A value of the reference.
pub(super) fn read(value: &str) -> Value {
    let text = format!("value = {value}");
    let (document, _) = DeTable::parse_recoverable(&text);
    let found = document.get_ref().get("value");
    found.map_or(Value::Null, |value| as_json(value.get_ref()))
}

/// The same value in the words of JSON; a date is its text.
pub(super) fn as_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| json!(number.as_str()), |number| json!(number)),
        DeValue::Float(number) => json!(number.as_str().parse::<f64>().unwrap_or_default()),
        DeValue::Boolean(is) => json!(is),
        DeValue::Datetime(time) => json!(time.to_string()),
        DeValue::Array(values) => values.iter().map(|one| as_json(one.get_ref())).collect(),
        DeValue::Table(table) => {
            let pairs = table.iter();
            let pairs =
                pairs.map(|(key, value)| (key.get_ref().to_string(), as_json(value.get_ref())));
            Value::Object(pairs.collect())
        }
    }
}
