//! Tests of single faults of the imports of gateways and of Traefik. `tests/it/import.rs` imports
//! whole files.

mod apisix;
mod envoy_ai;
mod kong;
mod traefik;
mod tyk;

use std::fs;

use crate::{Grade, Imported, SourceProgram, import};

/// Imports a text from a folder that has no other file.
fn import_text(program: SourceProgram, text: &str) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("source");
    fs::write(&path, text).unwrap();
    import(program, &[path]).unwrap()
}

impl Imported {
    /// Whether something is lost whose note has this text.
    #[track_caller]
    fn assert_lost(&self, text: &str) {
        let mut lost = self.notes.iter().filter(|one| one.grade == Grade::Lost);
        let is_lost = lost.any(|note| format!("{}: {}", note.what, note.why).contains(text));
        assert!(is_lost, "{text}: {:#?}", self.notes);
    }

    /// Returns the lines of the route whose comment has this text.
    #[track_caller]
    pub(super) fn assert_has(&self, text: &str) {
        assert!(self.text.contains(text), "{text}: {}", self.text);
    }

    #[track_caller]
    pub(super) fn assert_has_not(&self, text: &str) {
        assert!(!self.text.contains(text), "{text}: {}", self.text);
    }

    #[track_caller]
    fn route(&self, text: &str) -> &str {
        let mut sections = self.text.split("\n\n");
        let is_it = |section: &&str| {
            section.trim_start().starts_with("[[route]]\n")
                && section
                    .lines()
                    .any(|line| line.starts_with('#') && line.contains(text))
        };
        let found = sections.find(is_it);
        found.unwrap_or_else(|| panic!("no route {text}:\n{}", self.text))
    }

    #[track_caller]
    fn assert_closed(&self, text: &str) {
        let route = self.route(text);
        assert!(route.contains("status = 501"), "{route}");
    }

    #[track_caller]
    fn assert_open(&self, text: &str) {
        let route = self.route(text);
        assert!(route.contains("\nupstream "), "{route}");
    }
}
