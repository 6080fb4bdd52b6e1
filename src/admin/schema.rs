//! The JSON Schema of the answers of the API, derived from the types that are sent.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::usage::settings::Quantity;

pub(crate) trait Described {
    /// The name under which the document describes it once, if it has one.
    const COMPONENT: Option<&'static str> = None;

    fn schema(components: &mut Components) -> Value;

    /// Whether a field with this value is left out.
    fn is_absent(&self) -> bool {
        false
    }

    /// Whether every answer has this field.
    fn is_required() -> bool {
        true
    }
}

/// The schemas that have a name.
#[derive(Debug, Default)]
pub(crate) struct Components(pub(super) BTreeMap<&'static str, Value>);

impl Components {
    /// The schema of a type, or a reference to it.
    pub(super) fn refer<T: Described>(&mut self) -> Value {
        let Some(name) = T::COMPONENT else {
            return T::schema(self);
        };
        if !self.0.contains_key(name) {
            let schema = T::schema(self);
            self.0.insert(name, schema);
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }
}

/// The schema of a struct, field by field.
pub(super) struct ObjectSchema<'c> {
    components: &'c mut Components,
    properties: Map<String, Value>,
    required: Vec<&'static str>,
}

impl ObjectSchema<'_> {
    pub(super) fn new(components: &mut Components) -> ObjectSchema<'_> {
        ObjectSchema {
            components,
            properties: Map::new(),
            required: Vec::new(),
        }
    }

    /// Adds a field. The members of `more` are added to the schema of its type.
    pub(super) fn field<T: Described>(
        mut self,
        name: &'static str,
        doc: &str,
        more: Option<Value>,
    ) -> Self {
        let mut schema = self.components.refer::<T>();
        for (key, value) in more.iter().filter_map(Value::as_object).flatten() {
            schema[key] = value.clone();
        }
        if !doc.is_empty() {
            schema["description"] = json!(doc.trim());
        }
        let name = name.trim_start_matches("r#");
        if T::is_required() {
            self.required.push(name);
        }
        self.properties.insert(name.to_owned(), schema);
        self
    }

    pub(super) fn finish(self) -> Value {
        json!({
            "type": "object",
            "properties": self.properties,
            "required": self.required,
            "additionalProperties": false,
        })
    }
}

/// Declares a part of an answer: a struct, its JSON, and its schema. A comment on a field is its
/// description in the document. `= ..` after its type adds to the schema of that type. The command
/// line reads the same structs: what a proxy of another version leaves out has its default.
macro_rules! described {
    ($(
        $(#[$attribute:meta])*
        struct $name:ident $(as $component:literal)? {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty $(= $more:expr)?,)*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(default)]
        pub(crate) struct $name {
            $(
                $(#[doc = $doc])*
                #[serde(skip_serializing_if = "crate::admin::schema::Described::is_absent")]
                pub(crate) $field: $type,
            )*
        }

        impl crate::admin::schema::Described for $name {
            $(const COMPONENT: Option<&'static str> = Some($component);)?

            fn schema(components: &mut crate::admin::schema::Components) -> serde_json::Value {
                crate::admin::schema::ObjectSchema::new(components)
                    $(.field::<$type>(
                        stringify!($field),
                        concat!($($doc),*),
                        [$($more)?].into_iter().next(),
                    ))*
                    .finish()
            }
        }
    )*};
}
pub(super) use described;

/// The schema of a text that is one of `words`.
pub(super) fn words(words: &[&str]) -> Value {
    json!({ "enum": words })
}

/// The schema of what a limit counts.
pub(super) fn quantity_words() -> Value {
    words(&Quantity::WORDS.map(|(word, _)| word))
}

/// Implements [`Described`] for types that are no structs.
macro_rules! described_as {
    ($($type:ty => $schema:tt,)*) => {$(
        impl Described for $type {
            fn schema(_: &mut Components) -> Value {
                json!($schema)
            }
        }
    )*};
}

described_as! {
    bool => { "type": "boolean" },
    u32 => { "type": "integer", "minimum": 0 },
    u64 => { "type": "integer", "minimum": 0 },
    usize => { "type": "integer", "minimum": 0 },
    i64 => { "type": "integer" },
    f64 => { "type": "number" },
    String => { "type": "string" },
}

impl<T: Described> Described for Vec<T> {
    fn schema(components: &mut Components) -> Value {
        json!({ "type": "array", "items": components.refer::<T>() })
    }
}

impl<K, T: Described> Described for BTreeMap<K, T> {
    fn schema(components: &mut Components) -> Value {
        json!({ "type": "object", "additionalProperties": components.refer::<T>() })
    }
}

/// `None` is `null`.
impl<T: Described> Described for Option<T> {
    fn schema(components: &mut Components) -> Value {
        let mut schema = components.refer::<T>();
        match schema.get("type") {
            Some(Value::String(kind)) if kind != "object" => {
                schema["type"] = json!([kind, "null"]);
                schema
            }
            _ => json!({ "anyOf": [schema, { "type": "null" }] }),
        }
    }
}

/// A field that is absent in some answers.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Sometimes<T>(pub(crate) Option<T>);

impl<T: Described> Described for Sometimes<T> {
    fn schema(components: &mut Components) -> Value {
        components.refer::<T>()
    }

    fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    fn is_required() -> bool {
        false
    }
}
