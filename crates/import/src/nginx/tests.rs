use std::fs;

use crate::{Grade, Imported, SourceProgram, import};

/// Imports a text in `http`, from a folder that has no other file.
fn import_http(text: &str) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nginx.conf");
    fs::write(&path, format!("events {{}}\nhttp {{\n{text}\n}}\n")).unwrap();
    import(SourceProgram::Nginx, &[path]).unwrap()
}

impl Imported {
    fn has_note(&self, grade: Grade, why: &str) -> bool {
        let mut notes = self.notes.iter();
        notes.any(|note| note.grade == grade && note.why.contains(why))
    }

    /// Returns the parts of the text between empty lines that have such a line.
    fn sections(&self, line: &str) -> Vec<&str> {
        let sections = self.text.split("\n\n");
        sections
            .filter(|section| section.lines().any(|one| one == line))
            .collect()
    }
}

#[test]
fn a_pattern_without_its_folder_closes_its_block() {
    let imported = import_http(
        "server { listen 80; include snippets/auth*.conf;\n\
         location / { proxy_pass http://10.0.0.1; } }",
    );
    assert!(
        imported.has_note(Grade::Lost, "no such folder here"),
        "{imported:?}"
    );
    assert!(!imported.text.contains("\nupstream "), "{}", imported.text);
    // Nothing beside `http` guards a route, and an empty folder includes nothing.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nginx.conf");
    let text = "include modules/*.conf;\nhttp { include *.none; server { listen 80;\n\
                location / { proxy_pass http://10.0.0.1; } } }";
    fs::write(&path, text).unwrap();
    let imported = import(SourceProgram::Nginx, &[path]).unwrap();
    assert!(imported.text.contains("\nupstream "), "{}", imported.text);
}
