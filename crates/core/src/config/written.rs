//! What a configuration was made from: its text, and the files that the text names.
//!
//! Kept beside the [`Config`](super::Config), so that a reload can say in the file's own words what
//! changed, and so that whoever watches knows which files to look at. Of other files there is only
//! a digest: they hold secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// The text of a configuration, and what it read besides.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// The file as it was read; empty for what was not a file.
    pub text: String,
    /// Every other file that was read for it, in that order.
    pub files: Vec<NamedFile>,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs in it may hold passwords.
        f.debug_struct("Written").finish_non_exhaustive()
    }
}

/// A file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// As it is named.
    pub path: PathBuf,
    /// Over its content; `None` if it could not be read.
    pub digest: Option<[u8; 32]>,
}

impl NamedFile {
    /// What reading `path` came to.
    pub(super) fn new(path: &Path, content: Option<&[u8]>) -> NamedFile {
        NamedFile {
            path: path.to_owned(),
            digest: content.map(|bytes| *blake3::hash(bytes).as_bytes()),
        }
    }
}

/// A value of a file, without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// `{ .. }` or a section.
    Table(Table),
    /// `[ .. ]` or several sections of one name.
    List(Vec<Value>),
    /// Everything else, as it is written.
    Word(String),
}

/// A section, its keys in order.
pub(super) type Table = BTreeMap<String, Value>;

/// Reads a text that has been accepted before; what cannot be read is nothing.
pub(super) fn tree(text: &str) -> Table {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (document, _) = DeTable::parse_recoverable(text);
    table(document.get_ref())
}

fn table(read: &DeTable<'_>) -> Table {
    read.iter()
        .map(|(key, value)| (key.get_ref().to_string(), self::value(value.get_ref())))
        .collect()
}

fn value(read: &DeValue<'_>) -> Value {
    match read {
        DeValue::Table(inner) => Value::Table(table(inner)),
        DeValue::Array(values) => {
            let values = values.iter().map(|one| value(one.get_ref()));
            Value::List(values.collect())
        }
        DeValue::String(text) => Value::Word(text.to_string()),
        DeValue::Integer(number) => Value::Word(number.to_string()),
        DeValue::Float(number) => Value::Word(number.to_string()),
        DeValue::Boolean(is) => Value::Word(is.to_string()),
        DeValue::Datetime(time) => Value::Word(time.to_string()),
    }
}

/// The same of JSON, which a table is; what is none is an empty one.
pub(super) fn of_json(read: &serde_json::Value) -> Table {
    let pairs = read.as_object().into_iter().flatten();
    pairs
        .map(|(key, value)| (key.clone(), json_value(value)))
        .collect()
}

fn json_value(read: &serde_json::Value) -> Value {
    match read {
        serde_json::Value::Object(_) => Value::Table(of_json(read)),
        serde_json::Value::Array(values) => Value::List(values.iter().map(json_value).collect()),
        serde_json::Value::String(text) => Value::Word(text.clone()),
        other => Value::Word(other.to_string()),
    }
}
