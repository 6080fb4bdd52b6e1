//! The claims of a verified token, as values of keys.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The claims of a verified token.
#[derive(Debug)]
pub struct Claims {
    all: Map<String, Value>,
}

impl Claims {
    pub(super) fn new(all: Map<String, Value>) -> Claims {
        Claims { all }
    }

    /// The text of a claim: a string as it is, a number or a boolean as JSON writes it. Dots lead
    /// into objects, unless the claim's own name has them (`https://example.com/plan`).
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match find_claim(&self.all, name)? {
            Value::String(text) => Some(Cow::Borrowed(text)),
            Value::Number(number) => Some(Cow::Owned(number.to_string())),
            Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// Tries the whole name first, then each shorter beginning that names an object.
fn find_claim<'c>(object: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    if let Some(value) = object.get(name) {
        return Some(value);
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let inner = object.get(&name[..dot])?.as_object()?;
        find_claim(inner, &name[dot + 1..])
    })
}
