//! The JSON Schema of `proxy.toml`, for editors that complete and check while the user types.
//!
//! The readers declare the kind of each setting. The reference shows its default and its
//! description. Draft 7, which all editors understand.
//!
//! An editor reports a mistake within `anyOf` and `oneOf` as a mistake of the whole value, without
//! a reason. So the schema says by `type`, `if` and `else` how a value may look. Taplo finds no
//! completions there: [`offer`] repeats them in an `anyOf` that allows everything.

use serde_json::{Map, Value, json};

use super::load::read_text;
use super::reader::{DeclaredSettings, Surroundings, ValueKind};
use super::reference::{self, Setting, document_as_json, joined_path, value_as_json};
use super::section::NAME_FORM;
use crate::limit::{key, rate};

pub fn schema() -> Value {
    // Readers declare all settings of a section, also those that the text does not have. The
    // reference has a section of each kind that may be absent.
    let (_, declared) = read_text("", reference::TEXT, &Surroundings::none());
    let mut top = SchemaWriter { declared }.section("");
    top["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    top["title"] = json!("proxy.toml of tidegate");
    top["description"] = json!("The configuration of tidegate: upstreams, limits and routes.");
    top
}

/// The schema with the names of limits, upstreams and tiers that a file defines, as completions. It
/// allows other names as well: the file may get them later.
pub fn schema_with_names(text: &str) -> Value {
    let file = document_as_json(text);
    let limits = file["limit"].as_object().into_iter().flatten();
    let tiers: Vec<&str> = limits
        .flat_map(|(_, limit)| names(&limit["tiers"]))
        .collect();
    let mut schema = schema();
    let sections = &mut schema["properties"];
    let route = &mut sections["route"]["items"]["properties"];
    offer(&mut route["limits"], &names(&file["limit"]));
    offer(&mut route["limits"]["items"], &names(&file["limit"]));
    offer(&mut route["upstream"], &names(&file["upstream"]));
    offer(&mut sections["tier"]["properties"]["default"], &tiers);
    schema
}

/// The keys of a table, without notes.
fn names(table: &Value) -> Vec<&str> {
    let keys = table.as_object().into_iter().flatten();
    let names = keys.map(|(name, _)| name.as_str());
    names.filter(|name| !name.starts_with("x-")).collect()
}

struct SchemaWriter {
    declared: DeclaredSettings,
}

/// Sections and pairs of their settings that exclude each other. An editor marks the first one.
const EXCLUSIVE: [(&str, &str, &str); 13] = [
    ("limit.NAME", "rate", "concurrent"),
    ("limit.NAME", "algorithm", "concurrent"),
    ("limit.NAME", "precision", "concurrent"),
    ("limit.NAME", "candidate", "concurrent"),
    ("limit.NAME", "tiers", "concurrent"),
    ("limit.NAME", "lease", "concurrent"),
    ("limit.NAME", "delay", "concurrent"),
    ("limit.NAME", "lease", "delay"),
    ("store", "urls", "url"),
    ("auth.jwt", "secret_file", "jwks_file"),
    ("tier", "keys_file", "from"),
    ("bypass", "value_file", "value"),
    ("bypass", "key_file", "key"),
];

impl SchemaWriter {
    fn kind(&self, section: &str, key: &str) -> Option<&ValueKind> {
        self.declared.get(section)?.get(key)
    }

    /// A section with its settings, and the sections within.
    fn section(&self, name: &str) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        let settings = reference::settings().iter();
        for setting in settings.filter(|setting| setting.section == name) {
            properties.insert(setting.key.to_owned(), self.setting(setting));
            if setting.is_required() {
                required.push(json!(setting.key));
            }
        }
        for inner in reference::sections_within(name) {
            let path = joined_path(name, inner);
            let table = match reference::has_chosen_names(&path) {
                true => self.named_sections(&path),
                false => self.section(&path),
            };
            let table = match self.kind(name, inner) {
                Some(kind) => with_short_forms(kind, table, &path),
                None => table,
            };
            let value = properties.remove(inner).unwrap_or(json!({}));
            properties.insert(inner.to_owned(), joined(value, table));
        }
        if name == "upstream.NAME" {
            required.push(json!("servers"));
        }
        let header = match name {
            "" => "the top".to_owned(),
            name => format!("`{}`", reference::header(name)),
        };
        let mut object = closed_table(properties, &header);
        if !required.is_empty() {
            object["required"] = Value::Array(required);
        }
        let about = reference::section(name).map_or("", |section| &section.about);
        if !about.is_empty() {
            object["description"] = json!(about);
        }
        if name == "limit.NAME" {
            object["if"] = json!({"required": ["concurrent"]});
            object["else"] = json!({"required": ["rate"]});
        }
        for (_, key, other) in EXCLUSIVE.iter().filter(|(section, ..)| *section == name) {
            let alone = refused(&format!("`{key}` without `{other}`"));
            object["dependencies"][other]["properties"][key] = alone;
        }
        object
    }

    fn named_sections(&self, path: &str) -> Value {
        let section = self.section(&format!("{path}.NAME"));
        json!({
            "type": "object",
            "description": section["description"],
            "patternProperties": {
                "^x-": true,
                "^(?!x-|[a-z0-9_-]{1,64}$)": refused(&format!("a name of {NAME_FORM}")),
            },
            "additionalProperties": section,
        })
    }

    /// One setting, with its description and its default or an example.
    fn setting(&self, setting: &Setting) -> Value {
        let kind = self.kind(&setting.section, setting.key);
        let path = joined_path(&setting.section, setting.key);
        let mut schema = kind.map_or_else(|| json!({}), |kind| self.values(kind, &path));
        match setting.default() {
            Some(value) => schema["default"] = value_as_json(value),
            None => schema["examples"] = json!([value_as_json(setting.value)]),
        }
        if !setting.about.is_empty() {
            describe(&mut schema, &setting.about);
        }
        schema
    }

    /// The values of a kind. The path is that of the setting.
    fn values(&self, kind: &ValueKind, path: &str) -> Value {
        match kind {
            ValueKind::Text => text(),
            ValueKind::Texts => one_or_more(text()),
            ValueKind::Duration => duration(),
            ValueKind::DurationInMinutes => duration_in_minutes(),
            ValueKind::Share => share(),
            ValueKind::ShareOrDuration => share_or_duration(),
            ValueKind::Rate => rate_text(&[]),
            ValueKind::Rates => one_or_more(rate_text(&["unlimited"])),
            ValueKind::Keys => one_or_more(key_text()),
            ValueKind::Boolean => json!({"type": "boolean"}),
            ValueKind::Integer => integer(),
            ValueKind::Fraction => json!({"type": "number", "minimum": 0, "maximum": 1}),
            ValueKind::Decimal => json!({"type": "number", "minimum": 0}),
            ValueKind::IntegerOrText => also(integer(), "string"),
            ValueKind::TimeOfDay => text_like(
                &["([01][0-9]|2[0-3]):[0-5][0-9]"],
                refused("a time of day, such as 06:30"),
            ),
            ValueKind::Anchor => also(anchor_text(), "integer"),
            ValueKind::Size => also(size(&[]), "integer"),
            ValueKind::Bandwidth => bandwidth(),
            ValueKind::SizeOrUnlimited => also(size(&["unlimited"]), "integer"),
            ValueKind::Word(words) => word(words),
            ValueKind::IntegerOrWord(words) => also(word(words), "integer"),
            ValueKind::Words(words) => one_or_more(word(words)),
            ValueKind::WordsOrStatuses(words) => one_or_more(word_or_status(words)),
            ValueKind::FalseOrText => also_false(text()),
            ValueKind::FalseOrTexts => also_false(one_or_more(text())),
            ValueKind::BooleanOrText => also(text(), "boolean"),
            ValueKind::BooleanOrWord(words) => also(word(words), "boolean"),
            ValueKind::BooleanOrDuration => also(duration(), "boolean"),
            ValueKind::BooleanOrInteger => also(integer(), "boolean"),
            ValueKind::Map(inner) => {
                json!({"type": "object", "additionalProperties": self.values(inner, path)})
            }
            ValueKind::AnyTable => json!({"type": "object"}),
            kind => with_short_forms(kind, self.inline_table(path), path),
        }
    }

    /// A table that the reference shows in one line: the readers declare its keys.
    fn inline_table(&self, path: &str) -> Value {
        let keys = self.declared.get(path).into_iter().flatten();
        let properties = keys.map(|(key, kind)| {
            let values = self.values(kind, &joined_path(path, key));
            ((*key).to_owned(), values)
        });
        let mut table = closed_table(properties.collect(), &format!("`{path}`"));
        if path == "route.redirect" {
            table["required"] = json!(["to"]);
        }
        table
    }
}

/// A table with the other forms of its setting.
fn with_short_forms(kind: &ValueKind, table: Value, path: &str) -> Value {
    match kind {
        ValueKind::TextOrTable => also(table, "string"),
        ValueKind::FalseOrTable => also_false(table),
        ValueKind::IntegerOrTable => also(table, "integer"),
        ValueKind::Tables => {
            let description = table["description"].clone();
            let items = with_items_of_its_own(table, path);
            json!({"type": "array", "description": description, "items": items})
        }
        ValueKind::TableOrTables => {
            let mut schema = one_or_more(table.clone());
            schema["items"] = with_items_of_its_own(table, path);
            // Taplo completes `[[NAME]]` only for values that are nothing but a list.
            schema["anyOf"] = json!([{"type": "array", "items": {"type": "object"}}, true]);
            schema
        }
        ValueKind::TextsOrTables => {
            let one = also(table, "string");
            let mut schema = one_or_more(one.clone());
            schema["items"] = with_items_of_its_own(one, path);
            schema
        }
        _ => table,
    }
}

/// Taplo looks for the elements of a list inside its elements, once too often. So a table of a list
/// says that its own elements are such tables. A table has no elements: this refuses nothing.
fn with_items_of_its_own(mut table: Value, path: &str) -> Value {
    let mut place = String::new();
    let mut section = String::new();
    for name in path.split('.') {
        if reference::section(&section).is_some_and(|section| section.is_list) {
            place.push_str("/items");
        }
        match name {
            "NAME" => place.push_str("/additionalProperties"),
            name => place.push_str(&format!("/properties/{name}")),
        }
        section = reference::joined_path(&section, name);
    }
    table["items"] = json!({"$ref": format!("#{place}/items")});
    table
}

/// A setting that is a value or a table, such as `upstream = "URL"` and `[upstream.NAME]`.
fn joined(mut value: Value, table: Value) -> Value {
    let mut table = match value["type"].as_str() {
        Some(kind) => also(table, kind),
        None => table,
    };
    value["type"] = table["type"].take();
    if let (Value::Object(table), Value::Object(value)) = (&mut table, &mut value) {
        table.append(value);
    }
    table
}

/// A table in which no other keys may stand but notes. The message of `additionalProperties` is at
/// the table: a pattern of all other keys puts one on the line of the key.
fn closed_table(properties: Map<String, Value>, name: &str) -> Value {
    let keys: Vec<&str> = properties.keys().map(String::as_str).collect();
    let others = format!("^(?!x-|(?:{})$)", keys.join("|"));
    let wanted = format!("a key of {name} ({})", keys.join(", "));
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": true, others: refused(&wanted)},
        "additionalProperties": false,
    })
}

/// Refuses every value. An editor's message says which value is expected: here, what to write.
fn refused(wanted: &str) -> Value {
    json!({"const": wanted, "not": {"const": wanted}})
}

/// The same schema for values of one more type. Every other keyword is about one type only.
fn also(mut schema: Value, kind: &str) -> Value {
    let mut kinds = match schema["type"].take() {
        Value::Array(kinds) => kinds,
        kind => vec![kind],
    };
    kinds.push(json!(kind));
    schema["type"] = Value::Array(kinds);
    if kind == "integer" {
        schema["minimum"] = json!(0);
    }
    schema
}

fn also_false(schema: Value) -> Value {
    let mut schema = also(schema, "boolean");
    schema["if"] = json!({"const": true});
    schema["then"] = json!({"const": false});
    schema
}

fn one_or_more(one: Value) -> Value {
    let mut schema = also(one.clone(), "array");
    schema["items"] = one;
    schema
}

fn text() -> Value {
    json!({"type": "string"})
}

fn integer() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// A text that fits one of these patterns, or one with a variable of the environment.
fn text_like(patterns: &[&str], otherwise: Value) -> Value {
    let whole = patterns.iter().map(|pattern| format!("^({pattern})$"));
    let variable = "\\$\\{".to_owned();
    let pattern = std::iter::once(variable)
        .chain(whole)
        .collect::<Vec<_>>()
        .join("|");
    json!({"type": "string", "if": {"pattern": pattern}, "else": otherwise})
}

fn word(words: &[&str]) -> Value {
    let mut schema = text_like(&[], json!({"enum": words}));
    offer(&mut schema, words);
    schema
}

fn word_or_status(words: &[&str]) -> Value {
    let status = "a status such as 503 or 5xx";
    let wanted = [words, &[status]].concat().join(", or ");
    let patterns = [words, &["[1-5]([0-9][0-9]|xx)"]].concat();
    let mut schema = text_like(&patterns, refused(&wanted));
    offer(&mut schema, words);
    schema
}

fn duration() -> Value {
    let wanted = "a number and a unit of ms, s, min, h or d, such as 10s";
    text_like(&[&duration_pattern()], refused(wanted))
}

/// The same, with `m` for minutes as well.
fn duration_in_minutes() -> Value {
    let wanted = "a number and a unit of ms, s, min, h or d, such as 10min";
    let patterns = [duration_pattern(), "\\s*[0-9_]+\\s*m\\s*".to_owned()];
    text_like(&patterns.each_ref().map(String::as_str), refused(wanted))
}

fn duration_pattern() -> String {
    format!("\\s*[0-9_]+\\s*({})\\s*", rate::time_units().join("|"))
}

const SHARE: &str = "[0-9]{1,3}(\\.[0-9]{1,2})?\\s*%";

fn share() -> Value {
    text_like(&[SHARE], refused("a share, such as 10%"))
}

fn share_or_duration() -> Value {
    let wanted = "a share or a time, such as 10% or 5s";
    text_like(&[SHARE, &duration_pattern()], refused(wanted))
}

fn rate_text(words: &[&str]) -> Value {
    let units = [rate::time_units(), rate::calendar_units()]
        .concat()
        .join("|");
    let rate = format!("[0-9_]+\\s*/\\s*[0-9_]*\\s*({units})");
    let patterns = [words, &[rate.as_str()]].concat().join("|");
    let form = "COUNT/WINDOW in ms, s, min, h, d, week, month or year, such as 100/min";
    let wanted = [&[form], words].concat().join("; or ");
    text_like(&[&format!("\\s*({patterns})\\s*")], refused(&wanted))
}

fn anchor_text() -> Value {
    let patterns = [
        "0?[1-9]|[12][0-9]|3[01]",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}.*",
        "keys",
        "jwt:.+",
    ];
    let wanted = "a day from 1 to 31, a date, keys or jwt:CLAIM";
    text_like(&patterns, refused(wanted))
}

fn size(words: &[&str]) -> Value {
    let unit = "[Bb]|[KkMmGg][Bb]|[KkMmGgTt][Ii][Bb]";
    let pattern = format!("\\s*[0-9_]+\\s*({unit})?\\s*");
    let bytes = "a number of bytes, or one with a unit, such as 64KiB or 10MB";
    let wanted = [words, &[bytes]].concat().join(", or ");
    let patterns = [words, &[pattern.as_str()]].concat();
    text_like(&patterns, refused(&wanted))
}

fn bandwidth() -> Value {
    let pattern = "\\s*[0-9_]+\\s*([Bb]|[KkMmGg][Bb]|[KkMmGgTt][Ii][Bb])?\\s*/s\\s*";
    text_like(&[pattern], refused("bytes per second, such as 1MiB/s"))
}

fn key_text() -> Value {
    let part = key::part_pattern();
    let pattern = format!("\\s*({part})(\\s+or\\s+({part}))*\\s*");
    let wanted = format!("{}, or several with ` or ` between them", key::part_forms());
    let mut schema = text_like(&[&pattern], refused(&wanted));
    offer(&mut schema, &key::part_words());
    schema
}

/// Has editors complete these texts. It refuses nothing.
fn offer(schema: &mut Value, texts: &[&str]) {
    if !texts.is_empty() {
        schema["anyOf"] = json!([{"enum": texts}, true]);
        if let Some(about) = schema["description"].as_str().map(str::to_owned) {
            describe(schema, &about);
        }
    }
}

/// Describes a setting, its elements and its completions. Taplo shows the description of the
/// setting and those of its completions one below the other: the former is empty for it.
fn describe(schema: &mut Value, about: &str) {
    schema["description"] = json!(about);
    if let Some(offered) = schema.pointer_mut("/anyOf/0") {
        offered["description"] = json!(about);
        schema["x-taplo"] = json!({"docs": {"main": ""}});
    }
    if let Some(items) = schema
        .get_mut("items")
        .filter(|items| items["$ref"].is_null())
    {
        describe(items, about);
    }
}
