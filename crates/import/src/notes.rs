//! What is told of an import: each directive that is not in the result as it was, with its place.

use std::fmt;
use std::rc::Rc;

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// As the file was named.
    pub file: Rc<str>,
    /// From 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// How much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Nothing; somebody has to decide.
    Lost,
    /// It is there, and not quite the same.
    Differs,
    /// Nothing, and nothing is missing.
    Needless,
}

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// How much of it is left.
    pub grade: Grade,
    /// Where it stands.
    pub place: Place,
    /// What stands there.
    pub what: String,
    /// Why it is not kept, or what is different.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.what, self.why)
    }
}

/// Every note, as they come.
#[derive(Debug, Default)]
pub(super) struct Notes {
    list: Vec<Note>,
}

impl Notes {
    pub(super) fn lost(&mut self, place: &Place, what: &str, why: impl Into<String>) {
        self.add(Grade::Lost, place, what, why.into());
    }

    pub(super) fn differs(&mut self, place: &Place, what: &str, why: impl Into<String>) {
        self.add(Grade::Differs, place, what, why.into());
    }

    pub(super) fn needless(&mut self, place: &Place, what: &str, why: impl Into<String>) {
        self.add(Grade::Needless, place, what, why.into());
    }

    /// What is inherited by several places is told once.
    fn add(&mut self, grade: Grade, place: &Place, what: &str, why: String) {
        let note = Note {
            grade,
            place: place.clone(),
            what: shown(what),
            why,
        };
        if !self.list.contains(&note) {
            self.list.push(note);
        }
    }

    /// By grade, then by place.
    pub(super) fn sorted(&self) -> Vec<Note> {
        let mut list = self.list.clone();
        list.sort();
        list
    }
}

/// One line, and not a long one; without what a terminal would obey.
pub(super) fn shown(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.chars().take(100).map(clean).collect();
    match text.chars().count() > 100 {
        true => format!("{line}.."),
        false => line,
    }
}
