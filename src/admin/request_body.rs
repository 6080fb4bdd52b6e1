//! What the API's POST requests send, as JSON Schema.

use serde_json::{Value, json};

use super::overrides::{LONGEST, MOST_REASON};

/// What is sent with a POST request.
pub(super) struct BodyDoc {
    pub(super) required: bool,
    pub(super) schema: fn() -> Value,
    pub(super) example: fn() -> Option<Value>,
}

/// The body of this request is ignored.
pub(super) const EMPTY_BODY: BodyDoc = BodyDoc {
    required: false,
    schema: || {
        json!({
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": true,
        })
    },
    example: || None,
};

pub(super) const RESET_BODY: BodyDoc = BodyDoc {
    required: true,
    schema: || client_body(&[], false),
    example: || Some(json!({ "key": "192.0.2.7" })),
};

pub(super) const OVERRIDE_BODY: BodyDoc = BodyDoc {
    required: true,
    schema: || client_body(&["rate"], true),
    example: || {
        let key = "192.0.2.7";
        let reason = "an office";
        Some(json!({ "key": key, "rate": "50/min", "for_seconds": 60, "reason": reason }))
    },
};

pub(super) const EXPLAIN_BODY: BodyDoc = BodyDoc {
    required: true,
    schema: explain_body,
    example: || {
        Some(json!({
            "method": "GET",
            "url": "/login",
            "headers": [["accept", "*/*"]],
            "ip": "192.0.2.7",
            "live": true,
        }))
    },
};

pub(super) const BLOCK_BODY: BodyDoc = BodyDoc {
    required: true,
    schema: || client_body(&[], true),
    example: || Some(json!({ "key": "192.0.2.8", "for_seconds": 60 })),
};

/// The body of a change to one client. `own` are the fields of this change alone.
fn client_body(own: &[&str], lasts: bool) -> Value {
    let word = json!({ "type": "string" });
    let mut properties = json!({
        "id": {
            "type": "string",
            "description": "The hash of the client's key. For one of the busiest clients the \
                short form of logs is enough.",
        },
        "key": {
            "oneOf": [word, { "type": "array", "items": word, "minItems": 1, "maxItems": 16 }],
            "description": "The key as people write it, in place of `id`: one word for each part.",
        },
        "by": {
            "type": ["string", "null"], "minLength": 1, "maxLength": MOST_REASON,
            "description": "Who makes the change.",
        },
    });
    for name in own {
        properties[*name] = word.clone();
    }
    if lasts {
        properties["for_seconds"] =
            json!({ "type": ["integer", "null"], "minimum": 1, "maximum": LONGEST });
        properties["reason"] = json!({ "type": ["string", "null"], "maxLength": MOST_REASON });
        properties["remove"] = json!({ "type": "boolean" });
    }
    json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": true,
        "oneOf": [{ "required": ["id"] }, { "required": ["key"] }],
    })
}

fn explain_body() -> Value {
    let pair =
        json!({ "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2 });
    json!({
        "type": "object",
        "properties": {
            "method": { "type": "string" },
            "url": { "type": "string" },
            "headers": { "type": "array", "items": pair },
            "ip": { "type": "string" },
            "live": { "type": "boolean" },
        },
        "required": ["url"],
        "additionalProperties": true,
    })
}
