//! One table of the file, read key by key.
//!
//! Every method reports its findings to the [`ConfigReader`] and goes on with nothing or a default,
//! so that one run finds all mistakes. A key that no reader declares is a mistake: no setting is
//! accepted and ignored. Values of keys are read in `values.rs`.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::habits::{self, nearest};
use super::reader::{ConfigReader, Located, Surroundings, ValueKind};
use super::reference;
use crate::limit::key::is_tier_name;

/// Settings of later versions, so that the error for such a file can say so.
pub(super) const PLANNED: &[(&str, &str)] = &[("store", "connections")];

/// The optional sections that a limit may need, and whether the file has them.
#[derive(Clone, Copy, Default)]
pub(super) struct SectionsPresent {
    pub(super) tier: bool,
    pub(super) jwt: bool,
    /// `known` of `[api_key]`: a file names clients.
    pub(super) known_keys: bool,
    /// `client_ca` of `[tls]`: clients show certificates.
    pub(super) client_ca: bool,
    pub(super) prices: bool,
    /// `unknown = "deny"` of `[api_key]`: requests with unknown keys are refused.
    pub(super) denies_unknown_keys: bool,
}

impl SectionsPresent {
    pub(super) fn new(top: &Section<'_>) -> SectionsPresent {
        let has = |table: &str, key: &str| {
            let table = top.peek(table).and_then(|value| value.get_ref().as_table());
            table.is_some_and(|table| table.contains_key(key))
        };
        SectionsPresent {
            tier: top.has("tier"),
            jwt: has("auth", "jwt"),
            known_keys: has("api_key", "known"),
            client_ca: has("tls", "client_ca"),
            prices: top.has("prices"),
            denies_unknown_keys: false,
        }
    }
}

/// One table of the file. A table that the file does not have reads as empty.
pub(super) struct Section<'r> {
    pub(super) reader: &'r ConfigReader<'r>,
    /// The place of its name, for findings about missing keys.
    pub(super) span: TextSpan,
    table: Option<&'r DeTable<'r>>,
    /// Its name in messages: `limit.login`; empty for the top of the file.
    name: String,
    /// Its name in the reference: `limit.NAME`.
    pattern: String,
    /// The keys that its reader declared.
    declared: Vec<&'static str>,
}

impl<'r> Section<'r> {
    pub(super) fn top(reader: &'r ConfigReader<'r>, table: &'r DeTable<'r>) -> Section<'r> {
        Section {
            table: Some(table),
            ..Section::absent(reader, "", 0..0)
        }
    }

    /// A section that the file does not have: every key has its default.
    pub(super) fn absent(
        reader: &'r ConfigReader<'r>,
        pattern: &str,
        span: TextSpan,
    ) -> Section<'r> {
        Section {
            reader,
            span,
            table: None,
            name: pattern.to_owned(),
            pattern: pattern.to_owned(),
            declared: Vec::new(),
        }
    }

    /// The result of a reader for a section that no file has: all its defaults.
    pub(super) fn read_defaults<T>(pattern: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let surroundings = Surroundings::none();
        let reader = ConfigReader::new("", &surroundings);
        read(&mut Section::absent(&reader, pattern, 0..0))
    }

    /// Declares a key of the section. Readers of values do this themselves; other readers do it
    /// first, if a key has several kinds of values.
    pub(super) fn declare(&mut self, key: &'static str, kind: impl FnOnce() -> ValueKind) {
        self.declared.push(key);
        self.reader.declare(&self.pattern, key, kind);
    }

    pub(super) fn take(
        &mut self,
        key: &'static str,
        kind: impl FnOnce() -> ValueKind,
    ) -> Option<&'r Spanned<DeValue<'r>>> {
        self.declare(key, kind);
        self.peek(key)
    }

    pub(super) fn peek(&self, key: &str) -> Option<&'r Spanned<DeValue<'r>>> {
        self.table.and_then(|table| table.get(key))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.peek(key).is_some()
    }

    /// The place of a key's name; the section's own name if the file does not have the key.
    pub(super) fn key_span(&self, key: &str) -> TextSpan {
        let entry = self.table.and_then(|table| table.get_key_value(key));
        entry.map_or_else(|| self.span.clone(), |(key, _)| key.span())
    }

    /// The place of a key's value; the section's own name if the file does not have the key.
    pub(super) fn value_span(&self, key: &str) -> TextSpan {
        self.peek(key)
            .map_or_else(|| self.span.clone(), Spanned::span)
    }

    /// The full name of a key: `limit.login.rate`.
    pub(super) fn full_key(&self, key: &str) -> String {
        reference::joined_path(&self.name, key)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn pattern(&self) -> &str {
        &self.pattern
    }

    pub(super) fn wrong_type(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) {
        let found = kind_name(value.get_ref());
        let message = format!("`{}` must be {wanted}", self.full_key(key));
        let help = self.instead(key, value, wanted);
        Diagnostic::new(Code::WrongType, message)
            .at(&value.span(), found)
            .maybe_help(help)
            .report_to(self.reader);
    }

    /// The advice for a value of the wrong kind: the same without quotes, or an example.
    fn instead(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) -> Option<String> {
        let bare = value.get_ref().as_str().filter(|text| match wanted {
            "a whole number" => text.parse::<u64>().is_ok(),
            _ => wanted.starts_with("true") && ["true", "false"].contains(text),
        });
        if let Some(help) = habits::value_help(&self.pattern, key, value.get_ref()) {
            return Some(help);
        }
        if let Some(word) = habits::intended_boolean(value.get_ref())
            && wanted.starts_with("true")
            && bare.is_none()
        {
            return Some(format!("write `{key} = {word}`"));
        }
        if let Some(bare) = bare {
            return Some(format!("write it without quotes: `{key} = {bare}`"));
        }
        let setting = reference::setting(&self.pattern, key)?;
        Some(format!("write for example `{key} = {}`", setting.value))
    }

    /// Reports a necessary key that the section lacks, unless an unknown key of the section looks
    /// like a misspelling of it: that key is reported already.
    pub(super) fn missing(&self, key: &str, example: &str) {
        if self.has_misspelling_of(key) {
            return;
        }
        Diagnostic::new(Code::MissingKey, format!("`{}` has no `{key}`", self.name))
            .at(&self.span, "")
            .help(format!("write for example `{example}`"))
            .report_to(self.reader);
    }

    pub(super) fn require(&self, key: &str, example: &str) {
        if !self.has(key) {
            self.missing(key, example);
        }
    }

    fn has_misspelling_of(&self, key: &str) -> bool {
        let is_misspelling = |name: &str| {
            let is_setting = reference::setting(&self.pattern, name).is_some();
            !name.starts_with("x-") && !is_setting && nearest(name, [key]).is_some()
        };
        let mut names = self.table.iter().flat_map(|table| table.keys());
        names.any(|name| is_misspelling(name.get_ref()))
    }

    /// Reports a name that breaks the rules for names of limits, upstreams and tiers.
    pub(super) fn check_name(&self, name: &Located<String>, what: &str) {
        if is_name(&name.value) {
            return;
        }
        let replaced = |c: char| match c.is_ascii_alphanumeric() || c == '-' {
            true => c.to_ascii_lowercase(),
            false => '_',
        };
        let better: String = name.value.chars().map(replaced).take(64).collect();
        let help = (!better.is_empty()).then(|| format!("for example `{better}`"));
        Diagnostic::new(Code::BadName, format!("not a name for {what}"))
            .at(&name.span, NAME_FORM)
            .maybe_help(help)
            .report_to(self.reader);
    }

    pub(super) fn section(&mut self, key: &'static str) -> Section<'r> {
        let value = self.take(key, || ValueKind::Table);
        let table = value.and_then(|value| match value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => {
                self.wrong_type(key, value, &format!("a table: `[{}]`", self.full_key(key)));
                None
            }
        });
        self.inner(key, table, self.key_span(key))
    }

    /// The tables `[key.NAME]`, in the file's order.
    pub(super) fn named(&mut self, key: &'static str) -> Vec<(Located<String>, Section<'r>)> {
        let Some(value) = self.take(key, || ValueKind::Table) else {
            return Vec::new();
        };
        let DeValue::Table(tables) = value.get_ref() else {
            // `upstream` may also be a URL. The reader of the top has reported other kinds.
            if key != "upstream" {
                let wanted = format!("tables with names: `[{key}.NAME]`");
                self.wrong_type(key, value, &wanted);
                let help = format!("write `[{key}.login]`: the name stands in the brackets");
                self.reader.set_help(&value.span(), help);
            }
            return Vec::new();
        };
        let pattern = format!("{key}.NAME");
        let is_setting = |(name, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let name = name.get_ref();
            let is_known = name == "servers" || reference::setting(&pattern, name).is_some();
            !value.get_ref().is_table() && is_known
        };
        let without_name = tables.iter().any(is_setting);
        if without_name {
            let name = match key {
                "limit" => "default",
                "usage" => "chat",
                _ => "api",
            };
            Diagnostic::new(Code::WrongType, format!("`[{key}]` has no name"))
                .at(&self.key_span(key), "")
                .help(format!("write `[{key}.{name}]`, or another name"))
                .report_to(self.reader);
        }
        let mut found = Vec::new();
        for (name, value) in tables {
            let text = name.get_ref().as_ref();
            let full = format!("{key}.{text}");
            let DeValue::Table(table) = value.get_ref() else {
                if !text.starts_with("x-") && !without_name {
                    self.wrong_type(&full, value, &format!("a table: `[{full}]`"));
                    if let Some(help) = habits::value_help(&pattern, "", value.get_ref()) {
                        self.reader.set_help(&value.span(), help);
                    }
                }
                continue;
            };
            let section = Section {
                table: Some(table),
                name: full,
                ..Section::absent(self.reader, &pattern, name.span())
            };
            found.push((Located::new(text.to_owned(), &name.span()), section));
        }
        found.sort_by_key(|(name, _)| name.span.start);
        found
    }

    pub(super) fn list(&mut self, key: &'static str) -> Vec<Section<'r>> {
        let Some(value) = self.take(key, || ValueKind::Tables) else {
            return Vec::new();
        };
        let wanted = format!("a list of tables: `[[{key}]]`");
        let DeValue::Array(values) = value.get_ref() else {
            self.wrong_type(key, value, &wanted);
            let help = format!("write `[[{key}]]` with two brackets: there may be several");
            self.reader.set_help(&value.span(), help);
            return Vec::new();
        };
        let mut found = Vec::new();
        for value in values {
            match value.get_ref() {
                DeValue::Table(table) => found.push(self.inner(key, Some(table), value.span())),
                _ => self.wrong_type(key, value, &wanted),
            }
        }
        found
    }

    pub(super) fn inner(
        &self,
        key: &str,
        table: Option<&'r DeTable<'r>>,
        span: TextSpan,
    ) -> Section<'r> {
        Section {
            reader: self.reader,
            span,
            table,
            name: self.full_key(key),
            pattern: reference::joined_path(&self.pattern, key),
            declared: Vec::new(),
        }
    }

    /// A table within, whose name the file chooses. All such tables have the same settings, which
    /// the reference shows as those of this section.
    pub(super) fn row(&self, name: &Located<String>, table: &'r DeTable<'r>) -> Section<'r> {
        Section {
            pattern: self.pattern.clone(),
            ..self.inner(&name.value, Some(table), name.span.clone())
        }
    }

    /// Every key and value, for tables whose keys the file chooses.
    pub(super) fn entries(&self) -> Vec<(Located<String>, &'r Spanned<DeValue<'r>>)> {
        let entries = self.table.into_iter().flatten().map(|(key, value)| {
            let name = key.get_ref().clone().into_owned();
            (Located::new(name, &key.span()), value)
        });
        let mut all: Vec<_> = entries.collect();
        all.sort_by_key(|(key, _)| key.span.start);
        all
    }

    /// Whether a key is a proxy's, and the file only limits a service that listens by itself.
    fn is_misplaced(&self, key: &str) -> bool {
        let mut settings = PROXY_SETTINGS
            .iter()
            .filter(|(section, _)| *section == self.pattern);
        let is_proxys = settings.any(|(_, keys)| keys.split(' ').any(|one| one == key));
        is_proxys && !self.reader.surroundings.forwards
    }

    /// Ends the section: reports every key that no reader declared, except notes (`x-`).
    pub(super) fn finish(self) {
        for (key, value) in self.entries() {
            let text = key.value.as_str();
            if self.is_misplaced(text) {
                let message = format!("`{}` is a proxy's setting", self.full_key(text));
                Diagnostic::new(Code::UnknownKey, message)
                    .at(&key.span, "not a setting here")
                    .note(NOT_A_PROXY)
                    .report_to(self.reader);
                continue;
            }
            if text.starts_with("x-") || self.declared.contains(&text) {
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
            let diagnostic = self.advise(diagnostic, text, value.get_ref());
            self.reader.report(diagnostic);
        }
    }

    fn advise(&self, finding: Diagnostic, key: &str, value: &DeValue<'_>) -> Diagnostic {
        if PLANNED.contains(&(self.pattern.as_str(), key)) {
            return finding.note("planned; this version does not have it yet");
        }
        if let Some(help) = habits::key_help(&self.pattern, key, value) {
            return finding.help(help);
        }
        let of_top = |finding: Diagnostic| {
            finding
                .help(format!(
                    "`{key}` belongs at the top of the file, before the first `[..]`"
                ))
                .note(format!("TOML takes it for a key of `{}` here", self.name))
        };
        let elsewhere = reference::sections_with(key);
        if !elsewhere.is_empty() && self.reader.surroundings.forwards {
            return match elsewhere.iter().any(|one| one == "[]") {
                true => of_top(finding),
                false => finding.help(format!(
                    "`{key}` is a setting of `{}`",
                    elsewhere.join("`, `")
                )),
            };
        }
        if let Some(nearest) = nearest(key, self.declared.iter().copied()) {
            return finding.help(format!("did you mean `{nearest}`?"));
        }
        let everywhere = reference::settings().iter().map(|setting| setting.key);
        if let Some(near) = nearest(key, everywhere).filter(|_| self.reader.surroundings.forwards) {
            let sections = reference::sections_with(near).join("`, `");
            return finding.help(format!(
                "did you mean `{near}`? It is a setting of `{sections}`"
            ));
        }
        let may_be_of_top = ["listen", "trusted_proxies", "upstream"].contains(&key);
        match may_be_of_top && self.reader.is_declared("", key) {
            true => of_top(finding),
            false => finding,
        }
    }
}

const NOT_A_PROXY: &str =
    "the library only limits: the program around it listens, answers and logs";

/// Settings that only a proxy has, by section. A service with limits listens, answers and logs by
/// itself.
const PROXY_SETTINGS: &[(&str, &str)] = &[
    (
        "",
        "listen tls admin upstream server tracing usage prices ledger error_page \
         access_log decide descriptor proxy_protocol",
    ),
    ("log", "access format sample_allowed keys silence"),
    ("auth.jwt", "jwks_url refresh max_stale tls"),
    (
        "route",
        "upstream strip_prefix add_prefix replace_prefix body_limit bandwidth bandwidth_after \
         method_up pass_headers pass_body headers_up headers_down headers_success expires \
         expires_from trailers_down rewrite_down location_base respond redirect usage body_read \
         error_pages access_logs require_client_certificate timeout port",
    ),
];

pub(super) const NAME_FORM: &str = "1 to 64 of `a-z`, `0-9`, `_` and `-`";

pub(super) fn is_name(text: &str) -> bool {
    is_tier_name(text)
}

fn kind_name(value: &DeValue<'_>) -> &'static str {
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
