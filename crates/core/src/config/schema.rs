//! The JSON Schema of `proxy.toml`, for editors that complete and check while the user types.
//!
//! The readers declare the kind of each setting. The reference shows its default and its
//! description. Draft 7, which all editors understand.

use serde_json::{Map, Value, json};

use super::load::read_text;
use super::reader::{DeclaredSettings, Surroundings, ValueKind};
use super::reference::{self, Setting, joined_path, value_as_json};

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

struct SchemaWriter {
    declared: DeclaredSettings,
}

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
            let mut table = match self.kind(name, inner) {
                Some(kind) => Self::with_short_forms(kind, table),
                None => table,
            };
            // `upstream = "URL"` beside `[upstream.NAME]`.
            if let Some(Value::Object(mut value)) = properties.remove(inner) {
                let about = value.remove("description");
                table = json!({"anyOf": [value, table], "description": about});
            }
            properties.insert(inner.to_owned(), table);
        }
        if name == "upstream.NAME" {
            required.push(json!("servers"));
        }
        let mut object = closed_table(properties);
        if !required.is_empty() {
            object["required"] = Value::Array(required);
        }
        let about = reference::section(name).map_or("", |section| &section.about);
        if !about.is_empty() {
            object["description"] = json!(about);
        }
        if name == "limit.NAME" {
            object["oneOf"] = json!([{"required": ["rate"]}, {"required": ["concurrent"]}]);
        }
        object
    }

    fn named_sections(&self, path: &str) -> Value {
        json!({
            "type": "object",
            "patternProperties": {"^x-": true},
            "additionalProperties": self.section(&format!("{path}.NAME")),
        })
    }

    /// One setting, with its description and its default or an example.
    fn setting(&self, setting: &Setting) -> Value {
        let kind = self.kind(&setting.section, setting.key);
        let path = joined_path(&setting.section, setting.key);
        let mut schema = kind.map_or_else(|| json!({}), |kind| self.values(kind, &path));
        if !setting.about.is_empty() {
            schema["description"] = json!(setting.about);
        }
        match setting.default() {
            Some(value) => schema["default"] = value_as_json(value),
            None => schema["examples"] = json!([value_as_json(setting.value)]),
        }
        schema
    }

    /// The values of a kind. The path is that of the setting.
    fn values(&self, kind: &ValueKind, path: &str) -> Value {
        let integer = || json!({"type": "integer", "minimum": 0});
        let text = || json!({"type": "string"});
        match kind {
            ValueKind::Text => text(),
            ValueKind::Texts => {
                json!({"anyOf": [text(), {"type": "array", "items": text()}]})
            }
            ValueKind::Boolean => json!({"type": "boolean"}),
            ValueKind::Integer => integer(),
            ValueKind::Fraction => json!({"type": "number", "minimum": 0, "maximum": 1}),
            ValueKind::IntegerOrText => json!({"anyOf": [integer(), text()]}),
            ValueKind::Word(words) => json!({"anyOf": [{"enum": words}, variable()]}),
            ValueKind::IntegerOrWord(words) => {
                json!({"anyOf": [integer(), {"enum": words}, variable()]})
            }
            ValueKind::Words(words) => {
                one_or_more(&json!({"anyOf": [{"enum": words}, variable()]}))
            }
            ValueKind::WordsOrStatuses(words) => {
                let status = json!({"type": "string", "pattern": "^[1-5]([0-9][0-9]|xx)$"});
                one_or_more(&json!({"anyOf": [{"enum": words}, status, variable()]}))
            }
            ValueKind::FalseOrText => json!({"anyOf": [{"const": false}, text()]}),
            ValueKind::BooleanOrText => json!({"type": ["boolean", "string"]}),
            ValueKind::BooleanOrInteger => json!({"anyOf": [{"type": "boolean"}, integer()]}),
            ValueKind::Map(inner) => {
                json!({"type": "object", "additionalProperties": self.values(inner, path)})
            }
            kind => Self::with_short_forms(kind, self.inline_table(path)),
        }
    }

    /// A table that the reference shows in one line: the readers declare its keys.
    fn inline_table(&self, path: &str) -> Value {
        let keys = self.declared.get(path).into_iter().flatten();
        let properties = keys.map(|(key, kind)| ((*key).to_owned(), self.values(kind, path)));
        let mut table = closed_table(properties.collect());
        if path == "route.redirect" {
            table["required"] = json!(["to"]);
        }
        table
    }

    /// A table with the other forms of its setting.
    fn with_short_forms(kind: &ValueKind, table: Value) -> Value {
        let text = json!({"type": "string"});
        match kind {
            ValueKind::TextOrTable => json!({"anyOf": [text, table]}),
            ValueKind::FalseOrTable => json!({"anyOf": [{"const": false}, table]}),
            ValueKind::IntegerOrTable => {
                json!({"anyOf": [{"type": "integer", "minimum": 0}, table]})
            }
            ValueKind::Tables => json!({"type": "array", "items": table}),
            ValueKind::TableOrTables => one_or_more(&table),
            ValueKind::TextsOrTables => {
                let one = json!({"anyOf": [text, table]});
                json!({"anyOf": [text, {"type": "array", "items": one}, table]})
            }
            _ => table,
        }
    }
}

/// A table in which no other keys may stand but notes.
fn closed_table(properties: Map<String, Value>) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": true},
        "additionalProperties": false,
    })
}

fn one_or_more(one: &Value) -> Value {
    json!({"anyOf": [one, {"type": "array", "items": one}]})
}

/// A text with a variable of the environment in place of a word.
fn variable() -> Value {
    json!({"type": "string", "pattern": "\\$\\{"})
}
