//! The texts of a file that are secrets by their place. No command, log or admin shows them.

use std::ops::Range;

use serde_json::{Map, Value};

/// Stands for a secret.
pub(super) const HIDDEN: &str = "***";

/// Calls `change` for each text that is a secret by its place.
pub(super) fn for_each_secret(top: &mut Value, change: &mut dyn FnMut(&mut String)) {
    let Value::Object(top) = top else { return };
    for bypass in tables(top, "bypass") {
        for key in ["value", "key"] {
            for_each_text(bypass.get_mut(key).unwrap_or(&mut Value::Null), change);
        }
    }
    for route in tables(top, "route") {
        let keys = [
            "headers",
            "query",
            "headers_up",
            "headers_down",
            "headers_success",
            "trailers_down",
        ];
        for key in keys {
            change_named(route.get_mut(key), change);
        }
    }
    for limit in tables(top, "limit") {
        change_named(limit.get_mut("values"), change);
        if let Some(exempt) = limit.get_mut("exempt") {
            // An entry that is no network may be an API key.
            for_each_text(exempt, &mut |text| {
                if super::address::network(text).is_err() {
                    change(text);
                }
            });
        }
    }
}

/// Changes the values whose names sound secret.
fn change_named(table: Option<&mut Value>, change: &mut dyn FnMut(&mut String)) {
    let table = table.and_then(Value::as_object_mut);
    for (name, value) in table.into_iter().flatten() {
        if !sounds_secret(name) {
            continue;
        }
        for_each_text(value, change);
        // Hidden texts are equal, and a list may not have a text twice.
        if let Value::Array(values) = value {
            values.dedup();
        }
    }
}

/// Whether a header, a parameter or a part of a key with this name has a secret value.
pub fn sounds_secret(name: &str) -> bool {
    let words = [
        "auth",
        "cookie",
        "key",
        "passw",
        "secret",
        "session",
        "signature",
        "token",
    ];
    let name = name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word))
}

/// Whether a text is a URL, or a path with a query.
pub(super) fn may_have_parameters(text: &str) -> bool {
    text.contains("://") || text.starts_with('/') && text.contains('?')
}

/// The values of query parameters in a URL or a path whose names sound secret. A value that a
/// variable fills in is none.
pub(super) fn secret_parameters(url: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut begin = 0;
    for part in url.split(['?', '&', ';', '#']) {
        let end = begin + part.len();
        if let Some((name, value)) = part.split_once('=')
            && sounds_secret(name)
            && !name.contains('/')
            && !value.starts_with('{')
        {
            found.push(end - value.len()..end);
        }
        begin = end + 1;
    }
    found
}

pub(super) fn for_each_text(value: &mut Value, change: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(values) => values.iter_mut().for_each(|one| for_each_text(one, change)),
        Value::Object(table) => {
            let values = table.values_mut();
            values.for_each(|one| for_each_text(one, change));
        }
        _ => {}
    }
}

pub(super) fn tables<'t>(
    top: &'t mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'t mut Map<String, Value>> {
    let tables: Vec<&mut Value> = match top.get_mut(key) {
        Some(Value::Object(named)) => named.values_mut().collect(),
        Some(Value::Array(list)) => list.iter_mut().collect(),
        _ => Vec::new(),
    };
    tables.into_iter().filter_map(Value::as_object_mut)
}
