//! Every setting, as `proxy.reference.toml` shows it: its section, its default and its description.
//!
//! A setting is declared by the reader of its section and by its line in the reference, nowhere
//! else. The reader says its form and its range. The line says its default and its description.
//! The schema, `docs/reference.md` and `tidegate config` are made of both.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

pub(super) const TEXT: &str = include_str!("../../proxy.reference.toml");

#[derive(Debug)]
pub(super) struct Setting {
    /// Its section, with `NAME` for a chosen name: `limit.NAME`; empty for the top.
    pub(super) section: String,
    pub(super) key: &'static str,
    /// Its default, or an example, as TOML.
    pub(super) value: &'static str,
    pub(super) about: String,
    /// Whether the reference sets it. A setting behind a `#` is an example.
    is_set: bool,
}

/// Settings that the reference must set to be a valid file, although they have no default.
const WITHOUT_DEFAULT: [(&str, &str); 6] = [
    ("limit.NAME", "rate"),
    ("upstream.NAME.servers", "url"),
    ("route", "path"),
    ("route", "upstream"),
    ("route", "limits"),
    ("bypass", "path"),
];

impl Setting {
    pub(super) fn default(&self) -> Option<&'static str> {
        let has_none = WITHOUT_DEFAULT.contains(&(self.section.as_str(), self.key));
        (self.is_set && !has_none).then_some(self.value)
    }

    /// Whether each section of its kind must have it.
    pub(super) fn is_required(&self) -> bool {
        self.about == "required" || self.about.ends_with("; required")
    }
}

#[derive(Debug)]
pub(super) struct SectionInfo {
    /// Spelled as in [`Setting::section`].
    pub(super) name: String,
    pub(super) about: String,
    /// Whether it is a list of tables: `[[route]]`.
    pub(super) is_list: bool,
}

#[derive(Default)]
struct Reference {
    settings: Vec<Setting>,
    sections: Vec<SectionInfo>,
}

static PARSED: LazyLock<Reference> = LazyLock::new(parse);

static INDEX: LazyLock<HashMap<(&str, &str), &Setting>> = LazyLock::new(|| {
    let settings = settings().iter();
    let keyed = settings.map(|setting| ((setting.section.as_str(), setting.key), setting));
    keyed.collect()
});

pub(super) fn settings() -> &'static [Setting] {
    &PARSED.settings
}

pub(super) fn sections() -> &'static [SectionInfo] {
    &PARSED.sections
}

pub(super) fn section(name: &str) -> Option<&'static SectionInfo> {
    sections().iter().find(|section| section.name == name)
}

pub(super) fn setting(section: &str, key: &str) -> Option<&'static Setting> {
    INDEX.get(&(section, key)).copied()
}

/// Headers of the sections that have a setting of this name: `[limit.NAME]`, `[[route]]`.
pub(super) fn sections_with(key: &str) -> Vec<String> {
    let with = settings().iter().filter(|setting| setting.key == key);
    with.map(|setting| header(&setting.section)).collect()
}

pub(super) fn header(name: &str) -> String {
    match section(name).is_some_and(|section| section.is_list) {
        true => format!("[[{name}]]"),
        false => format!("[{name}]"),
    }
}

/// The names of the sections directly inside this one.
pub(super) fn sections_within(name: &str) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    for setting in settings() {
        let rest = match name {
            "" => Some(setting.section.as_str()),
            name => setting
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

/// Whether the file chooses the names of the sections at this path, as in `[limit.NAME]`.
pub(super) fn has_chosen_names(path: &str) -> bool {
    let names = format!("{path}.NAME");
    settings().iter().any(|setting| setting.section == names)
}

pub(super) fn joined_path(outer: &str, key: &str) -> String {
    match outer {
        "" => key.to_owned(),
        outer => format!("{outer}.{key}"),
    }
}

fn parse() -> Reference {
    let mut section = String::new();
    let mut reference = Reference::default();
    // The lines of comment directly above a section.
    let mut above: Vec<&str> = Vec::new();
    for line in TEXT.lines() {
        let (line, is_set) = match line.strip_prefix("# ") {
            Some(rest) => (rest, false),
            None => (line, true),
        };
        if line.starts_with('[') && line.ends_with(']') {
            section = with_chosen_name(line.trim_matches(['[', ']']));
            reference.sections.push(SectionInfo {
                name: section.clone(),
                about: above.join(" "),
                is_list: line.starts_with("[["),
            });
            above.clear();
            continue;
        }
        let last = reference.settings.last_mut();
        if let Some(setting) = parse_setting(&section, line, is_set) {
            reference.settings.push(setting);
        } else if let (Some(more), Some(last)) = (continued_comment(line), last) {
            last.about.push(' ');
            last.about.push_str(more);
        } else if is_set {
            above.clear();
        } else {
            above.push(line);
        }
    }
    reference
}

/// Replaces the chosen part of a section's name: `limit.per_client` becomes `limit.NAME`.
fn with_chosen_name(name: &str) -> String {
    match name.split_once('.') {
        Some((kind @ ("limit" | "upstream" | "usage" | "error_page" | "access_log"), name)) => {
            match name.split_once('.') {
                Some((_, inner)) => format!("{kind}.NAME.{inner}"),
                None => format!("{kind}.NAME"),
            }
        }
        _ => name.to_owned(),
    }
}

fn parse_setting(section: &str, line: &'static str, is_set: bool) -> Option<Setting> {
    let (key, rest) = line.split_once('=')?;
    let key = key.trim_end();
    let is_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if key.is_empty() || !key.bytes().all(is_key) {
        return None;
    }
    let mut quote = None;
    let comment = rest.char_indices().find(|(_, c)| {
        match (quote, *c) {
            (None, '"' | '\'') => quote = Some(*c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
        quote.is_none() && *c == '#'
    });
    let (value, about) = match comment {
        Some((at, _)) => (&rest[..at], rest[at + 1..].trim()),
        None => (rest, ""),
    };
    Some(Setting {
        section: section.to_owned(),
        key,
        value: value.trim(),
        about: about.to_owned(),
        is_set,
    })
}

/// A line that continues the comment of the line before it.
fn continued_comment(line: &'static str) -> Option<&'static str> {
    let (space, text) = line.split_once("# ")?;
    (space.len() > 20 && space.trim().is_empty()).then(|| text.trim())
}

pub(super) fn value_as_json(value: &str) -> Value {
    document_as_json(&format!("value = {value}"))["value"].take()
}

/// Reads a document as JSON. Lines that are not TOML are left out.
pub(super) fn document_as_json(text: &str) -> Value {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (document, _) = DeTable::parse_recoverable(text);
    as_json(&DeValue::Table(document.into_inner()))
}

/// The same value as JSON; a date becomes its text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_with_their_defaults() {
        let rate = setting("limit.NAME", "rate").unwrap();
        assert_eq!(rate.value, "\"600/min\"");
        let hold = setting("limit.NAME", "hold").unwrap();
        assert_eq!(hold.value, "\"15s\"");
        let listen = setting("", "listen").unwrap();
        assert!(listen.about.contains("unix:PATH"), "{listen:?}");
        let on_error = setting("store", "on_error").unwrap();
        assert!(
            on_error.about.ends_with("`deny` answers 503"),
            "{on_error:?}"
        );
        assert_eq!(sections_with("connect_timeout"), ["[upstream.NAME]"]);
        assert_eq!(header("upstream.NAME.servers"), "[[upstream.NAME.servers]]");
        let client = &sections()[2];
        assert_eq!(client.name, "tls");
        assert!(client.about.starts_with("TLS with clients. The proxy"));
        assert!(client.about.ends_with("change."), "{client:?}");
    }
}
