//! What a verified token says of its bearer.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The claims of a token whose signature, times, issuer and audience are right.
#[derive(Debug)]
pub struct Claims {
    all: Map<String, Value>,
}

impl Claims {
    /// Of an object that somebody has verified.
    pub(super) fn new(all: Map<String, Value>) -> Claims {
        Claims { all }
    }

    /// A claim's text: a string as it is, a number or a boolean as JSON writes it. Dots lead into
    /// objects, unless a claim's own name has them (`https://example.com/plan`).
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match find(&self.all, name)? {
            Value::String(text) => Some(Cow::Borrowed(text)),
            Value::Number(number) => Some(Cow::Owned(number.to_string())),
            Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// The whole name first; then each shorter beginning that is an object's.
fn find<'c>(object: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    if let Some(value) = object.get(name) {
        return Some(value);
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let inner = object.get(&name[..dot])?.as_object()?;
        find(inner, &name[dot + 1..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_by_name_and_by_path() {
        let text = r#"{"sub": "jo", "n": 7, "half": 0.5, "yes": true, "no": null, "list": ["a"],
            "org": {"id": 9, "plan": {"name": "pro"}, "plan.name": "own"},
            "https://example.com/plan": "gold", "a.b": {"c": "d"}}"#;
        let claims = Claims::new(serde_json::from_str(text).unwrap());
        for (name, expected) in [
            ("sub", Some("jo")),
            ("n", Some("7")),
            ("half", Some("0.5")),
            ("yes", Some("true")),
            ("no", None),
            ("list", None),
            ("org", None),
            ("org.id", Some("9")),
            ("org.plan.name", Some("own")),
            ("org.plan", None),
            ("https://example.com/plan", Some("gold")),
            ("a.b.c", Some("d")),
            ("sub.x", None),
            (".", None),
            ("", None),
        ] {
            assert_eq!(claims.text(name).as_deref(), expected, "{name}");
        }
    }
}
