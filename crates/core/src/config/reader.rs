//! The state that all readers of sections share: the findings so far, the settings that the
//! readers declared, and the outside world that a file may refer to.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::diagnostic::{Code, Diagnostic, Severity, TextSpan};
use super::{Listen, habits};
use crate::certificate::Validity;

/// A value and its place in the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) span: TextSpan,
}

impl Located<String> {
    /// The finding that no `kind` has this name.
    pub(super) fn unknown(&self, code: Code, kind: &str) -> Diagnostic {
        let message = format!("no {kind} is called `{}`", self.value);
        Diagnostic::new(code, message).at(&self.span, "")
    }
}

impl<T> Located<T> {
    pub(super) fn new(value: T, span: &TextSpan) -> Located<T> {
        Located {
            value,
            span: span.clone(),
        }
    }

    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Located<U> {
        Located {
            value: change(self.value),
            span: self.span,
        }
    }
}

pub(super) fn values<T>(found: Vec<Located<T>>) -> Vec<T> {
    found.into_iter().map(|one| one.value).collect()
}

/// The purpose of a file, and the outside world that it may refer to.
pub(super) struct Surroundings<'a> {
    /// Whether the file is a proxy's. Otherwise it only limits a service that listens by itself.
    pub(super) forwards: bool,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// The folder of the file. Relative paths start here. Empty for a text without a file.
    pub(super) base: &'a Path,
    /// Reads a file that the configuration names, at most this many bytes of it.
    pub(super) read: &'a dyn Fn(&Path, u64) -> io::Result<Vec<u8>>,
    /// The Unix time in seconds, for certificates that expire.
    pub(super) now_s: u64,
}

impl Surroundings<'static> {
    /// A proxy's file without an environment and without other files.
    pub(super) fn none() -> Surroundings<'static> {
        Surroundings {
            forwards: true,
            env: &|_| None,
            base: Path::new(""),
            read: &|_, _| Err(io::ErrorKind::NotFound.into()),
            now_s: 0,
        }
    }
}

impl Surroundings<'_> {
    /// Resolves a path of the file. Every setting that is a path passes through here.
    pub(super) fn path(&self, written: impl AsRef<Path>) -> PathBuf {
        self.base.join(written)
    }
}

impl Diagnostic {
    pub(super) fn report_to(self, reader: &ConfigReader<'_>) {
        reader.report(self);
    }
}

/// Places in the file that findings about the whole configuration point to.
#[derive(Default)]
pub(super) struct Places {
    pub(super) admin: Option<TextSpan>,
    pub(super) listen: Vec<Located<Listen>>,
    pub(super) tls_listen: Vec<Located<Listen>>,
    pub(super) decide_listen: Vec<Located<Listen>>,
    pub(super) decide_from: TextSpan,
    pub(super) decide_overrides: TextSpan,
    pub(super) tls_redirect: Option<TextSpan>,
    pub(super) trusted_proxies: TextSpan,
    pub(super) client_ip_header: Option<TextSpan>,
    pub(super) tier: TextSpan,
    pub(super) auth: TextSpan,
    pub(super) unknown_keys: Option<TextSpan>,
    pub(super) https_port: Option<TextSpan>,
    /// The place of a `waiting` that is not the default.
    pub(super) waiting: Option<TextSpan>,
    /// The place of `underscores_in_headers = false`.
    pub(super) no_underscores: Option<TextSpan>,
    pub(super) untimely: Vec<Located<Validity>>,
    /// Whether counts are in this process, also if a variable of `store.url` has another value.
    pub(super) counts_here: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Text,
    Texts,
    Duration,
    /// The same, with `m` for minutes as well.
    DurationInMinutes,
    /// A share, such as `10%`.
    Share,
    ShareOrDuration,
    Rate,
    Rates,
    /// What a limit counts by.
    Keys,
    Boolean,
    Integer,
    Fraction,
    /// A decimal number, not negative.
    Decimal,
    IntegerOrText,
    /// `HH:MM`
    TimeOfDay,
    /// A day of the month, a date, or where the anchor of a client is.
    Anchor,
    Size,
    /// Bytes per second, such as `1MiB/s`.
    Bandwidth,
    SizeOrUnlimited,
    Word(Vec<&'static str>),
    IntegerOrWord(Vec<&'static str>),
    Words(Vec<&'static str>),
    /// The same, with statuses such as `503` and `5xx` as well.
    WordsOrStatuses(Vec<&'static str>),
    FalseOrText,
    FalseOrTexts,
    BooleanOrText,
    BooleanOrWord(Vec<&'static str>),
    BooleanOrDuration,
    BooleanOrInteger,
    /// A table whose keys the file chooses, each with a value of this kind.
    Map(Box<ValueKind>),
    Table,
    /// A table with any keys and values.
    AnyTable,
    TextOrTable,
    FalseOrTable,
    IntegerOrTable,
    TextsOrTables,
    Tables,
    TableOrTables,
}

/// The kind of each setting by its section and its key. `NAME` stands for a chosen name.
pub(super) type DeclaredSettings = BTreeMap<String, BTreeMap<&'static str, ValueKind>>;

/// Collects findings, and holds what the readers of values need.
pub(super) struct ConfigReader<'a> {
    pub(super) text: &'a str,
    pub(super) surroundings: &'a Surroundings<'a>,
    findings: RefCell<Vec<Diagnostic>>,
    /// Warnings about a file without mistakes.
    doubts: RefCell<Vec<Diagnostic>>,
    declared: RefCell<DeclaredSettings>,
    /// Sections and the names that tables with a misspelt name define in them.
    misnamed: RefCell<BTreeSet<(&'static str, String)>>,
}

impl<'a> ConfigReader<'a> {
    pub(super) fn new(text: &'a str, surroundings: &'a Surroundings<'a>) -> ConfigReader<'a> {
        ConfigReader {
            text,
            surroundings,
            findings: RefCell::default(),
            doubts: RefCell::default(),
            declared: RefCell::default(),
            misnamed: RefCell::default(),
        }
    }

    pub(super) fn report(&self, diagnostic: Diagnostic) {
        self.findings.borrow_mut().push(diagnostic);
    }

    /// Reports a warning, unless the file has mistakes: they may be the cause.
    pub(super) fn report_doubt(&self, diagnostic: Diagnostic) {
        self.doubts.borrow_mut().push(diagnostic);
    }

    /// Reports the warnings about a file without mistakes.
    pub(super) fn report_doubts(&self) {
        let mut findings = self.findings.borrow_mut();
        findings.append(&mut self.doubts.borrow_mut());
    }

    pub(super) fn has_no_errors(&self) -> bool {
        let findings = self.findings.borrow();
        findings.iter().all(|one| one.severity() != Severity::Error)
    }

    /// Whether an unknown key was probably meant to be this setting of the top.
    pub(super) fn has_misplaced(&self, key: &str) -> bool {
        let quoted = format!("`{key}`");
        let is_it = |one: &Diagnostic| {
            let help = one.help.as_deref().unwrap_or_default();
            one.code == Code::UnknownKey && help.contains(&quoted)
        };
        self.findings.borrow().iter().any(is_it)
    }

    /// Whether a table with a misspelt name defines `[section.name]`. The misspelt name has been
    /// reported already; reporting the name as unknown would repeat it.
    pub(super) fn is_misnamed(&self, section: &'static str, name: &str) -> bool {
        let misnamed = self.misnamed.borrow();
        misnamed.contains(&(section, name.to_owned()))
    }

    /// Remembers the names that a table with a misspelt name at the top defines.
    pub(super) fn remember_misnamed(&self, key: &str, value: &DeValue<'_>) {
        let intended = habits::intended_section(key, value);
        let (Some(section), Some(table)) = (intended, value.as_table()) else {
            return;
        };
        let mut misnamed = self.misnamed.borrow_mut();
        for (name, value) in table {
            // A table without a name, such as `[limits]` with a rate, is read as the default one.
            let name = match value.get_ref().is_table() {
                true => name.get_ref().as_ref(),
                false => "default",
            };
            misnamed.insert((section, name.to_owned()));
        }
    }

    /// Sets the help of the last finding, if that finding is at this place.
    pub(super) fn set_help(&self, span: &TextSpan, help: String) {
        let mut findings = self.findings.borrow_mut();
        let is_here = |last: &&mut Diagnostic| last.labels.iter().any(|label| label.span == *span);
        if let Some(last) = findings.last_mut().filter(is_here) {
            last.help = Some(help);
        }
    }

    /// Remembers a setting that a reader understands, whether or not the file has it. The first
    /// declaration of a setting holds.
    pub(super) fn declare(
        &self,
        section: &str,
        key: &'static str,
        kind: impl FnOnce() -> ValueKind,
    ) {
        let mut declared = self.declared.borrow_mut();
        match declared.get_mut(section) {
            Some(keys) => {
                keys.entry(key).or_insert_with(kind);
            }
            None => {
                declared.insert(section.to_owned(), BTreeMap::from([(key, kind())]));
            }
        }
    }

    pub(super) fn is_declared(&self, section: &str, key: &str) -> bool {
        let declared = self.declared.borrow();
        declared
            .get(section)
            .is_some_and(|keys| keys.contains_key(key))
    }

    pub(super) fn into_parts(self) -> (Vec<Diagnostic>, DeclaredSettings) {
        (self.findings.into_inner(), self.declared.into_inner())
    }
}
