//! What readers of sections share: where findings gather, and what a file may refer to outside.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::diagnostic::{Code, Diagnostic, Span};
use super::meant;

/// Something read, and where it stood.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Span,
}

impl<T> At<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> At<U> {
        At {
            value: change(self.value),
            span: self.span,
        }
    }
}

/// What a file is for, and what it may refer to outside itself.
pub(super) struct Surroundings<'a> {
    /// Whether it is a proxy's; else it only limits what somebody else serves.
    pub(super) forwards: bool,
    /// The environment.
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// The folder of the file: what its relative paths begin from. Empty for a text without one.
    pub(super) base: &'a Path,
    /// The files that it names: at most so many bytes of each.
    pub(super) read: &'a dyn Fn(&Path, u64) -> io::Result<Vec<u8>>,
    /// The Unix second, for certificates that expire.
    pub(super) now_s: u64,
}

impl Surroundings<'_> {
    /// Where a path leads that the file has: every setting that is a path passes through here.
    pub(super) fn path(&self, written: impl AsRef<Path>) -> PathBuf {
        self.base.join(written)
    }
}

/// Where findings gather, and what the readers of values need.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) surroundings: &'a Surroundings<'a>,
    found: RefCell<Vec<Diagnostic>>,
    /// `(section, key)` of all that was asked for, names of limits and upstreams as `NAME`.
    asked: RefCell<BTreeSet<(String, &'static str)>>,
    /// Sections and the names in them that stand in a table whose own name has a slip.
    misnamed: RefCell<BTreeSet<(&'static str, String)>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str, surroundings: &'a Surroundings<'a>) -> Reader<'a> {
        Reader {
            text,
            surroundings,
            found: RefCell::default(),
            asked: RefCell::default(),
            misnamed: RefCell::default(),
        }
    }

    /// Keeps a finding.
    pub(super) fn report(&self, diagnostic: Diagnostic) {
        self.found.borrow_mut().push(diagnostic);
    }

    /// Nothing has been found so far.
    pub(super) fn is_clean(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Whether something unknown was probably meant to be this setting of the top.
    pub(super) fn has_misplaced(&self, key: &str) -> bool {
        let quoted = format!("`{key}`");
        let is_it = |one: &Diagnostic| {
            let help = one.help.as_deref().unwrap_or_default();
            one.code == Code::UnknownKey && help.contains(&quoted)
        };
        self.found.borrow().iter().any(is_it)
    }

    /// Whether `[section.name]` is defined in a table whose own name has a slip: the slip has been
    /// reported, and the name would only be reported for it again.
    pub(super) fn is_misnamed(&self, section: &'static str, name: &str) -> bool {
        let misnamed = self.misnamed.borrow();
        misnamed.contains(&(section, name.to_owned()))
    }

    /// Remembers what a table of an unknown name at the top defines.
    pub(super) fn remember_misnamed(&self, key: &str, value: &DeValue<'_>) {
        let (Some(section), Some(table)) = (meant::misnamed(key, value), value.as_table()) else {
            return;
        };
        let mut misnamed = self.misnamed.borrow_mut();
        for (name, value) in table {
            // A table without a name, `[limits]` with a rate, is read as the default one.
            let name = match value.get_ref().is_table() {
                true => name.get_ref().as_ref(),
                false => "default",
            };
            misnamed.insert((section, name.to_owned()));
        }
    }

    /// Adds help to the last finding, if it is about this place.
    pub(super) fn amend(&self, span: &Span, help: String) {
        let mut found = self.found.borrow_mut();
        let here = |last: &&mut Diagnostic| last.labels.iter().any(|label| label.span == *span);
        if let Some(last) = found.last_mut().filter(here) {
            last.help = Some(help);
        }
    }

    /// Remembers that a reader looked for a key, whether or not the file has it.
    pub(super) fn note_asked(&self, section: &str, key: &'static str) {
        self.asked.borrow_mut().insert((section.to_owned(), key));
    }

    /// Whether the top of the file was asked for this key.
    pub(super) fn knows_at_top(&self, key: &'static str) -> bool {
        self.asked.borrow().contains(&(String::new(), key))
    }

    /// Every finding so far, and every key that was asked for.
    pub(super) fn into_parts(self) -> (Vec<Diagnostic>, BTreeSet<(String, &'static str)>) {
        (self.found.into_inner(), self.asked.into_inner())
    }
}
