//! Walking a parsed file: a [`Section`] is one table, read key by key.
//!
//! Every reader reports what it finds wrong to the [`Reader`] and goes on with nothing or a
//! default, so that one run finds all mistakes. Keys that nobody asked for are mistakes: nothing is
//! accepted and ignored. Values of keys are read in `values.rs`.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::advice;
use super::diagnostic::{Code, Diagnostic, Span};
use super::known;
use super::meant;
use super::reader::{At, Reader};
use super::slip::nearest;

/// Settings of later versions, so that a file written for one says why it is refused.
pub(super) const PLANNED: &[(&str, &str)] = &[("store", "connections")];

/// One table of the file; one that the file does not have reads as empty.
pub(super) struct Section<'r> {
    pub(super) reader: &'r Reader<'r>,
    /// Where its name stands, for what is missing in it.
    pub(super) span: Span,
    table: Option<&'r DeTable<'r>>,
    /// As people call it: `limit.login`; empty for the top of the file.
    name: String,
    /// The same with `NAME` for a chosen name.
    pattern: String,
    asked: Vec<&'static str>,
}

impl<'r> Section<'r> {
    /// The whole file.
    pub(super) fn top(reader: &'r Reader<'r>, table: &'r DeTable<'r>) -> Section<'r> {
        Section {
            reader,
            span: 0..0,
            table: Some(table),
            name: String::new(),
            pattern: String::new(),
            asked: Vec::new(),
        }
    }

    /// The key's value, if the file has it. Remembers that somebody asked.
    pub(super) fn take(&mut self, key: &'static str) -> Option<&'r Spanned<DeValue<'r>>> {
        self.asked.push(key);
        self.reader.note_asked(&self.pattern, key);
        self.peek(key)
    }

    /// The key's value without asking for it: for readers that choose by its kind.
    pub(super) fn peek(&self, key: &str) -> Option<&'r Spanned<DeValue<'r>>> {
        self.table.and_then(|table| table.get(key))
    }

    /// Where a key's name stands; the section's own name if the key does not.
    pub(super) fn key_span(&self, key: &str) -> Span {
        let entry = self.table.and_then(|table| table.get_key_value(key));
        entry.map_or_else(|| self.span.clone(), |(key, _)| key.span())
    }

    /// Where the name of a key of a table within this one stands, if the file has it.
    pub(super) fn span_within(&self, table: &str, key: &str) -> Option<Span> {
        let DeValue::Table(table) = self.peek(table)?.get_ref() else {
            return None;
        };
        Some(table.get_key_value(key)?.0.span())
    }

    /// A key as people call it: `limit.login.rate`.
    pub(super) fn full(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// The section as people call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The section as `proxy.reference.toml` calls it.
    pub(super) fn pattern(&self) -> &str {
        &self.pattern
    }

    /// A value of the wrong kind.
    pub(super) fn wrong_type(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) {
        let found = kind_of(value.get_ref());
        let message = format!("`{}` must be {wanted}", self.full(key));
        let help = self.instead(key, value, wanted);
        let diagnostic = Diagnostic::new(Code::WrongType, message).at(&value.span(), found);
        self.reader.report(diagnostic.maybe_help(help));
    }

    /// What to write for a value of the wrong kind: the same without quotes, or an example.
    fn instead(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) -> Option<String> {
        let bare = value.get_ref().as_str().filter(|text| match wanted {
            "a whole number" => text.parse::<u64>().is_ok(),
            _ => wanted.starts_with("true") && ["true", "false"].contains(text),
        });
        if let Some(help) = meant::value(&self.pattern, key, value.get_ref()) {
            return Some(help);
        }
        if let Some(word) = meant::boolean(value.get_ref())
            && wanted.starts_with("true")
            && bare.is_none()
        {
            return Some(format!("write `{key} = {word}`"));
        }
        if let Some(bare) = bare {
            return Some(format!("write it without quotes: `{key} = {bare}`"));
        }
        let known = known::of(&self.pattern, key)?;
        Some(format!("write for example `{key} = {}`", known.value))
    }

    /// Something necessary that the section does not say; a slip in its name is told as that only.
    pub(super) fn missing(&self, key: &str, example: &str) {
        if self.has_slip_of(key) {
            return;
        }
        let message = format!("`{}` has no `{key}`", self.name);
        let diagnostic = Diagnostic::new(Code::MissingKey, message)
            .at(&self.span, "")
            .help(format!("write for example `{example}`"));
        self.reader.report(diagnostic);
    }

    /// Whether a key of the section that is none of its settings was meant to be this one.
    fn has_slip_of(&self, key: &str) -> bool {
        let is_slip = |name: &str| {
            let is_unknown = !name.starts_with("x-") && known::of(&self.pattern, name).is_none();
            is_unknown && nearest(name, [key]).is_some()
        };
        let mut names = self.table.iter().flat_map(|table| table.keys());
        names.any(|name| is_slip(name.get_ref()))
    }

    /// Names are what clients, operators, metrics and the command line say.
    pub(super) fn check_name(&self, name: &At<String>, what: &str) {
        if is_name(&name.value) {
            return;
        }
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let better: String = name
            .value
            .to_ascii_lowercase()
            .chars()
            .map(plain)
            .take(64)
            .collect();
        let mut diagnostic = Diagnostic::new(Code::BadName, format!("not a name for {what}"))
            .at(&name.span, NAME_FORM);
        if !better.is_empty() {
            diagnostic = diagnostic.help(format!("for example `{better}`"));
        }
        self.reader.report(diagnostic);
    }

    /// A table within this one.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'r> {
        let value = self.take(key);
        let table = value.and_then(|value| match value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => {
                self.wrong_type(key, value, &format!("a table: `[{}]`", self.full(key)));
                None
            }
        });
        self.inner(key, table, self.key_span(key))
    }

    /// Tables with names that the file chooses, `[limit.NAME]`, in the file's order.
    pub(super) fn named(&mut self, key: &'static str) -> Vec<(At<String>, Section<'r>)> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let DeValue::Table(tables) = value.get_ref() else {
            // `upstream` is also a setting of its own: its reader has looked at it already.
            if key != "upstream" {
                let wanted = format!("tables with names: `[{key}.NAME]`");
                self.wrong_type(key, value, &wanted);
                let help = format!("write `[{key}.login]`: the name stands in the brackets");
                self.reader.amend(&value.span(), help);
            }
            return Vec::new();
        };
        let pattern = format!("{key}.NAME");
        let nameless = |name: &str| name == "servers" || known::of(&pattern, name).is_some();
        let is_setting = |(name, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            !value.get_ref().is_table() && nameless(name.get_ref())
        };
        let without_name = tables.iter().any(is_setting);
        if without_name {
            let name = if key == "limit" { "default" } else { "api" };
            let diagnostic = Diagnostic::new(Code::WrongType, format!("`[{key}]` has no name"))
                .at(&self.key_span(key), "")
                .help(format!("write `[{key}.{name}]`, or another name"));
            self.reader.report(diagnostic);
        }
        let mut found = Vec::new();
        for (name, value) in tables {
            let text = name.get_ref().as_ref();
            let DeValue::Table(table) = value.get_ref() else {
                if !text.starts_with("x-") && !without_name {
                    let full = format!("{key}.{text}");
                    self.wrong_type(&full, value, &format!("a table: `[{full}]`"));
                    if let Some(help) = meant::value(&pattern, "", value.get_ref()) {
                        self.reader.amend(&value.span(), help);
                    }
                }
                continue;
            };
            let section = Section {
                reader: self.reader,
                span: name.span(),
                table: Some(table),
                name: format!("{key}.{text}"),
                pattern: format!("{key}.NAME"),
                asked: Vec::new(),
            };
            found.push((
                At {
                    value: text.to_owned(),
                    span: name.span(),
                },
                section,
            ));
        }
        found.sort_by_key(|(name, _)| name.span.start);
        found
    }

    /// Tables in a list, `[[route]]`, in the file's order.
    pub(super) fn list(&mut self, key: &'static str) -> Vec<Section<'r>> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let DeValue::Array(values) = value.get_ref() else {
            self.wrong_type(key, value, &format!("a list of tables: `[[{key}]]`"));
            let help = format!("write `[[{key}]]` with two brackets: there may be several");
            self.reader.amend(&value.span(), help);
            return Vec::new();
        };
        let mut found = Vec::new();
        for value in values {
            match value.get_ref() {
                DeValue::Table(table) => found.push(self.inner(key, Some(table), value.span())),
                _ => self.wrong_type(key, value, &format!("a list of tables: `[[{key}]]`")),
            }
        }
        found
    }

    /// A table that is found in this one under `key`.
    pub(super) fn inner(
        &self,
        key: &str,
        table: Option<&'r DeTable<'r>>,
        span: Span,
    ) -> Section<'r> {
        let join = |outer: &str| match outer {
            "" => key.to_owned(),
            outer => format!("{outer}.{key}"),
        };
        Section {
            reader: self.reader,
            span,
            table,
            name: join(&self.name),
            pattern: join(&self.pattern),
            asked: Vec::new(),
        }
    }

    /// Every key and value, for tables whose keys the file chooses.
    pub(super) fn entries(&self) -> Vec<(At<String>, &'r Spanned<DeValue<'r>>)> {
        let mut all: Vec<_> = self
            .table
            .into_iter()
            .flatten()
            .map(|(key, value)| {
                (
                    At {
                        value: key.get_ref().clone().into_owned(),
                        span: key.span(),
                    },
                    value,
                )
            })
            .collect();
        all.sort_by_key(|(key, _)| key.span.start);
        all
    }

    /// Ends the section: whatever nobody asked for is a mistake, except notes (`x-`).
    pub(super) fn finish(self) {
        for (key, value) in self.entries() {
            let text = key.value.as_str();
            if text.starts_with("x-") || self.asked.contains(&text) {
                continue;
            }
            let message = match self.name.as_str() {
                "" => format!("unknown key `{text}`"),
                name => format!("unknown key `{text}` in `{name}`"),
            };
            if self.name.is_empty() {
                self.reader.remember_misnamed(text, value.get_ref());
            }
            let diagnostic =
                Diagnostic::new(Code::UnknownKey, message).at(&key.span, "not a setting here");
            self.reader
                .report(match self.advice(text, value.get_ref()) {
                    Advice::Planned => {
                        diagnostic.note("planned; this version does not have it yet")
                    }
                    Advice::Help(help) => diagnostic.help(help),
                    Advice::Top => diagnostic
                        .help(format!(
                            "`{text}` belongs at the top of the file, before the first `[..]`"
                        ))
                        .note(format!("TOML takes it for a key of `{}` here", self.name)),
                    Advice::Nothing => diagnostic,
                });
        }
    }

    fn advice(&self, key: &str, value: &DeValue<'_>) -> Advice {
        if PLANNED.contains(&(self.pattern.as_str(), key)) {
            return Advice::Planned;
        }
        if let Some(habit) = advice::habit(&self.pattern, key) {
            return Advice::Help(habit.to_owned());
        }
        if let Some(help) = meant::key(&self.pattern, key, value) {
            return Advice::Help(help);
        }
        let elsewhere = known::sections_with(key);
        if !elsewhere.is_empty() && self.reader.surroundings.forwards {
            return match elsewhere.iter().any(|one| one == "[]") {
                true => Advice::Top,
                false => Advice::Help(format!(
                    "`{key}` is a setting of `{}`",
                    elsewhere.join("`, `")
                )),
            };
        }
        if let Some(nearest) = nearest(key, self.asked.iter().copied()) {
            return Advice::Help(format!("did you mean `{nearest}`?"));
        }
        if ["listen", "trusted_proxies", "upstream"]
            .into_iter()
            .any(|top| top == key && self.reader.knows_at_top(top))
        {
            return Advice::Top;
        }
        Advice::Nothing
    }
}

/// What a name of the file's choice looks like.
pub(super) const NAME_FORM: &str = "1 to 64 of `a-z`, `0-9`, `_` and `-`";

pub(super) fn is_name(text: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

/// What to say about a key that nobody asked for.
enum Advice {
    Planned,
    /// It is a setting of the top of the file.
    Top,
    Help(String),
    Nothing,
}

/// What a value is, for people.
fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "this is a string",
        DeValue::Integer(_) => "this is a whole number",
        DeValue::Float(_) => "this is a decimal number",
        DeValue::Boolean(_) => "this is true or false",
        DeValue::Datetime(_) => "this is a date or time",
        DeValue::Array(_) => "this is a list",
        DeValue::Table(_) => "this is a table",
    }
}
